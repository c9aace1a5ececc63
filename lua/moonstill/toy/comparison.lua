--- What is told of models that were trained on worked problems: a table, curves, their answers, and
--- which of two students is the better one. All of it fits the width that it is given.
---
--- An entry is what is known of a model: its `name`; `parameters`; `tokens` and `seconds` of its
--- training, where there was any; `steps`, `loss` and `kl`, lists of equal length, of its
--- validations (no `kl`: there was no teacher); `right`, for each held-out problem whether its
--- answer was exact; `answers`, the texts of the first few.

local check = require 'moonstill.base.check'
local columns = require 'moonstill.base.columns'
local fail = require 'moonstill.base.fail'
local layout = require 'moonstill.base.layout'
local plot = require 'moonstill.plot.plot'
local progress = require 'moonstill.base.progress'
local screen = require 'moonstill.base.screen'
local toy = require 'moonstill.toy.toy'

local M = {}

local function last(list) return list[#list] end

local function count(flags)
  local n = 0
  for _, flag in ipairs(flags) do n = n + (flag and 1 or 0) end
  return n
end

local function share(flags) return 100 * count(flags) / math.max(1, #flags) end

-- what is given ---------------------------------------------------------------------------------

local HERE = 'comparison'

local function check_numbers(name, list)
  for i, x in ipairs(check.table(HERE, name, list)) do
    check.number(HERE, ('%s[%d]'):format(name, i), x, -math.huge, math.huge)
  end
  if #list == 0 then fail('%s: %s is empty', HERE, name) end
end

local function check_entry(e)
  check.table(HERE, 'entry', e)
  check.text(HERE, 'name', e.name)
  check.integer(HERE, 'parameters', e.parameters, 0, check.EXACT)
  for _, key in ipairs { 'steps', 'loss', e.kl ~= nil and 'kl' or nil } do
    check_numbers(key, e[key])
  end
  if e.tokens then
    check.number(HERE, 'tokens', e.tokens, 0, math.huge)
    check.number(HERE, 'seconds', e.seconds, 0, math.huge)
  end
  check.table(HERE, 'right', e.right)
  for i, text in ipairs(check.table(HERE, 'answers', e.answers)) do
    check.text(HERE, ('answers[%d]'):format(i), text)
  end
  return e
end

local function check_entries(entries)
  for _, e in ipairs(check.table(HERE, 'entries', entries)) do check_entry(e) end
  if #entries == 0 then fail('%s: there is no entry', HERE) end
end

local function check_width(width) return check.integer(HERE, 'width', width, 1, check.INT32) end

-- tables -----------------------------------------------------------------------------------------

-- Columns from the left, of which those of the highest level are left out where there is no room.
local COLUMNS = {
  { head = '' }, { head = 'weights', align = 'right', level = 5 },
  { head = 'tokens/s', align = 'right', level = 6 },
  { head = 'validation loss', align = 'right', level = 3, wraps = 10 },
  { head = 'KL to the teacher', align = 'right', level = 4, wraps = 9 },
  { head = 'exact answers', align = 'right', level = 2, wraps = 7 },
}

local function row_of(e)
  return { e.name, progress.count(e.parameters),
    e.tokens and e.seconds > 0 and ('%.0f'):format(e.tokens / e.seconds) or '-',
    ('%.4f'):format(last(e.loss)), e.kl and ('%.4f'):format(last(e.kl)) or '-',
    ('%.1f%s%%'):format(share(e.right), layout.TIE) }
end

--- A table of the entries, a line for each, no wider than `width`.
--- @param entries table[]
--- @param width integer
--- @return string
function M.table(entries, width)
  check_entries(entries)
  local rows = {}
  for i, e in ipairs(entries) do rows[i] = row_of(e) end
  return table.concat(columns.table(COLUMNS, rows, check_width(width)), '\n')
end

--- How wide lines on stdout are to be.
--- @return integer
function M.width() return screen.page() end

-- texts ------------------------------------------------------------------------------------------

--- A text with line ends between its words, so that no line is wider than `width`. The first line
--- begins with `head`, the others with as many blanks.
--- @param text string
--- @param width integer
--- @param head? string
--- @return string
function M.wrap(text, width, head)
  check.text(HERE, 'text', text)
  head = head == nil and '' or check.text(HERE, 'head', head)
  local lines = layout.wrap(text, check_width(width) - #head)
  return head .. table.concat(lines, '\n' .. (' '):rep(#head))
end

local LONGEST = 200 -- bytes of an answer that are shown; a model that has learnt little says more

-- A text whose words are no longer than `room`.
local function shown(answer, room)
  local text = #answer <= LONGEST and answer or answer:sub(1, LONGEST) .. ' ..'
  return (text:gsub(('%S'):rep(room), '%0 '))
end

--- A problem, the answer that is expected, and the answer of each model.
--- @param entries table[]
--- @param problems table[] the held-out problems, as `ms.toy.problems` makes them
--- @param i integer which
--- @param width integer
--- @return string
function M.sample(entries, problems, i, width)
  check_entries(entries)
  check.table(HERE, 'problems', problems)
  i = check.integer(HERE, 'i', i, 1, #problems)
  toy.check { problems[i] }
  check.number(HERE, 'answer', problems[i].answer, -math.huge, math.huge)
  local problem, label = problems[i], #'expected'
  for _, e in ipairs(entries) do label = math.max(label, #e.name) end
  local head = '  %-' .. label .. 's  %5s  '
  local lines = { M.wrap(problem.messages[1].content, width, ('problem %d: '):format(i)),
    head:format('expected', '') .. problem.answer }
  for _, e in ipairs(entries) do
    local first = head:format(e.name, e.right[i] and 'right' or 'wrong')
    lines[#lines + 1] = M.wrap(shown(e.answers[i], math.max(1, width - #first)), width, first)
  end
  return table.concat(lines, '\n')
end

-- curves -----------------------------------------------------------------------------------------

local function panel_of(entries, what, title)
  local panel = { title = title, x_label = 'step', y_label = 'nats per token', log = true,
    series = {} }
  for i, e in ipairs(entries) do
    if e[what] then
      panel.series[#panel.series + 1] = { name = e.name, style = i, x = e.steps, y = e[what] }
    end
  end
  return panel
end

--- Panels for `ms.plot`: the validation loss of all entries, and the KL to the teacher.
--- @param entries table[]
--- @return table[]
function M.curves(entries)
  check_entries(entries)
  return { panel_of(entries, 'loss', 'Validation loss'),
    panel_of(entries, 'kl', 'KL to the teacher') }
end

--- The validation loss as lines of text for stdout.
--- @param entries table[]
--- @return string
function M.sketch(entries)
  check_entries(entries)
  local panel = panel_of(entries, 'loss', 'Validation loss, nats per token')
  return plot.sketch(panel, { rows = 12 })
end

-- who is better ----------------------------------------------------------------------------------

-- How many problems one answers right and the other does not.
local function alone(a, b)
  local n = 0
  for i = 1, #a.right do n = n + (a.right[i] and not b.right[i] and 1 or 0) end
  return n
end

--- How much better the second entry is than the first: by how much its validation loss is lower,
--- and its exact answers are more, in percent.
--- @param a table
--- @param b table
--- @return number loss
--- @return number exact
function M.margin(a, b)
  check_entry(a)
  check_entry(b)
  return last(a.loss) - last(b.loss), share(b.right) - share(a.right)
end

local function compared(a, b)
  return a == b and 'like' or a < b and 'worse than' or 'better than'
end

--- Whether the second entry is better than the first, in words: in both measures, in one, in none.
--- The answers may differ by chance: coins divide n problems, those that one of the two alone gets
--- right, as unevenly as by 1.96 sqrt(n) in one of twenty trials.
--- @param a table
--- @param b table
--- @return string
function M.verdict(a, b)
  check_entry(a)
  check_entry(b)
  local loss = compared(last(a.loss), last(b.loss))
  local exact = compared(count(b.right), count(a.right))
  local only_a, only_b = alone(a, b), alone(b, a)
  local chance = math.abs(only_a - only_b) <= 1.96 * math.sqrt(only_a + only_b)
  local how = loss == exact and ('%s the %s in both measures'):format(loss, a.name)
    or ('%s the %s by its validation loss, %s it in exact answers'):format(loss, a.name, exact)
  local words = ('The %s is %s: validation loss %.4f against %.4f, exact answers to %d of %d '
    .. 'problems against %d.'):format(b.name, how, last(b.loss), last(a.loss), count(b.right),
    #b.right, count(a.right))
  if only_a + only_b == 0 then return words end
  return words .. (' It alone is right in %d problems, the %s alone in %d%s.'):format(only_b,
    a.name, only_a, chance and ': chance may make such a difference' or '')
end

-- Smallest, mean and largest.
local function spread(list)
  local low, high, sum = math.huge, -math.huge, 0
  for _, v in ipairs(list) do low, high, sum = math.min(low, v), math.max(high, v), sum + v end
  return low, sum / #list, high
end

--- What several repetitions gave, as lines of text.
--- @param losses number[] margins, see `margin`
--- @param exacts number[]
--- @return string
function M.margins(losses, exacts)
  check_numbers('losses', losses)
  check_numbers('exacts', exacts)
  local wins = 0
  for i = 1, #losses do wins = wins + (losses[i] > 0 and exacts[i] > 0 and 1 or 0) end
  return table.concat({
    ('%-26s %8s %8s %8s'):format('', 'smallest', 'mean', 'largest'),
    ('%-26s %8.4f %8.4f %8.4f'):format('validation loss lower by', spread(losses)),
    ('%-26s %6.1f %% %6.1f %% %6.1f %%'):format('exact answers more by', spread(exacts)),
    ('better in both: %d of %d'):format(wins, #losses) }, '\n')
end

return M
