--- The table of an evaluation: a column for each model, a line for each number.

local layout = require 'moonstill.base.layout'
local measuring = require 'moonstill.train.measuring'

local M = {}

local WORDS = { loss = 'loss, nats a token', perplexity = 'perplexity',
  agree = 'top-1 is the label', teacher_agree = "top-1 is the teacher's",
  exact = 'exact answers', ended = 'answers that ended', parameters = 'parameters',
  tokens_per_second = 'tokens a second, read', written = 'tokens a second, written' }

-- numbers ----------------------------------------------------------------------------------------

local function nats(x) return ('%.4f'):format(x) end
local function percent(x) return ('%.1f %%'):format(100 * x) end
local function whole(x) return ('%.0f'):format(x) end
local function short(x) return ('%.4g'):format(x) end

local function count(n)
  local units, i = { '', ' k', ' M', ' G' }, 1
  while n >= 999.5 and i < #units do n, i = n / 1000, i + 1 end
  return ('%.3g%s'):format(n, units[i])
end

-- the rows ---------------------------------------------------------------------------------------

-- Of how many answers the exact ones are a share, where these are not all.
local function exact_words(report)
  local answers = rawget(report.students[1], 'answers')
  if not answers or answers.of == report.data.samples then return WORDS.exact end
  return ('%s, of %d'):format(WORDS.exact, answers.of)
end

-- Each: the words before it, and what of a model's entry it shows; `error` is what goes behind a ±.
local function rows_of(report)
  local function entry(key, format, with_error)
    return { words = WORDS[key], format = format, get = function(e) return rawget(e, key) end,
      error = with_error and function(e)
        local err = rawget(e, key .. '_error')
        return (err ~= 0 or key ~= 'exact') and err or nil -- of answers all alike none is known
      end }
  end
  local rows = { entry('loss', nats, true), entry('perplexity', short), entry('agree', percent) }
  local objective = rawget(report, 'objective')
  if objective then
    local row, t = entry(objective, nats, true), report.temperature
    row.words = ('%s to the teacher%s'):format(measuring.in_words(objective),
      t ~= 1 and (', T = %g'):format(t) or '')
    rows[#rows + 1] = row
    rows[#rows + 1] = entry('teacher_agree', percent)
  end
  rows[#rows + 1] = entry('exact', percent, true)
  rows[#rows].words = exact_words(report)
  local function of_answers(words, format, f)
    rows[#rows + 1] = { words = words, format = format, get = function(e)
      local answers = rawget(e, 'answers')
      return answers and f(answers)
    end }
  end
  of_answers(WORDS.ended, percent, function(a) return a.ended / a.of end)
  rows[#rows + 1] = entry('tokens_per_second', whole)
  of_answers(WORDS.written, whole, function(a) return a.tokens_per_second end)
  rows[#rows + 1] = entry('parameters', count)
  return rows
end

-- A cell as its number and what stands behind the ±.
local function cell_of(row, e)
  local value = row.get(e)
  if value == nil then return '-' end
  local err = row.error and row.error(e)
  return row.format(value), err and '±' .. row.format(err) or nil
end

-- laying out -------------------------------------------------------------------------------------

local width, padded = layout.width, layout.padded

-- The cells of a table, with errors or without: by row, of each model.
local function cells_of(rows, entries, with_errors)
  local cells = {}
  for r, row in ipairs(rows) do
    cells[r] = {}
    for c, e in ipairs(entries) do
      local value, err = cell_of(row, e)
      cells[r][c] = with_errors and err and value .. ' ' .. err or value
    end
  end
  return cells
end

local GAP = 2

local function widths_of(cells, heads)
  local widths = {}
  for c, head in ipairs(heads) do
    widths[c] = width(head)
    for _, row in ipairs(cells) do widths[c] = math.max(widths[c], width(row[c])) end
  end
  return widths
end

local function total(widths, first, last, words)
  local sum = words
  for c = first, last do sum = sum + GAP + widths[c] end
  return sum
end

-- The rows that any model has something in.
local function filled(rows, entries)
  local list = {}
  for _, row in ipairs(rows) do
    for _, e in ipairs(entries) do
      if row.get(e) ~= nil then
        list[#list + 1] = row
        break
      end
    end
  end
  return list
end

-- Lines of the columns first .. last.
local function block(rows, cells, heads, widths, first, last, words)
  local lines, line = {}, padded('', words)
  for c = first, last do line = line .. (' '):rep(GAP) .. padded(heads[c], widths[c], 'right') end
  lines[1] = line
  for r, row in ipairs(rows) do
    line = padded(row.words, words)
    for c = first, last do
      line = line .. (' '):rep(GAP) .. padded(cells[r][c], widths[c], 'right')
    end
    lines[#lines + 1] = line
  end
  return lines
end

local function longest(rows)
  local most = 0
  for _, row in ipairs(rows) do most = math.max(most, #row.words) end
  return most
end

-- The table within so many columns: errors are left out where it does not fit with them, and where
-- it does not fit without them either, it is cut into several.
local function table_lines(rows, entries, heads, columns)
  local words = longest(rows)
  local cells = cells_of(rows, entries, true)
  local widths = widths_of(cells, heads)
  if total(widths, 1, #heads, words) > columns then
    cells = cells_of(rows, entries, false)
    widths = widths_of(cells, heads)
  end
  local lines, first = {}, 1
  while first <= #heads do
    local last = first
    while last < #heads and total(widths, first, last + 1, words) <= columns do last = last + 1 end
    if first > 1 then lines[#lines + 1] = '' end
    for _, line in ipairs(block(rows, cells, heads, widths, first, last, words)) do
      lines[#lines + 1] = line
    end
    first = last + 1
  end
  return lines
end

-- What stands around it --------------------------------------------------------------------------

local LETTERS = 'ABCDEFGHIJKLMNOPQRSUVWXYZ' -- T is the teacher

-- How the columns are called, and lines that say which model each is.
local function heads_of(report)
  local heads, lines, n = {}, {}, #report.students
  for i, e in ipairs(report.students) do
    heads[i] = n == 1 and 'student' or LETTERS:sub(i, i) ~= '' and LETTERS:sub(i, i)
      or tostring(i)
    lines[i] = ('%-7s  %s'):format(heads[i], e.name)
  end
  local teacher = rawget(report, 'teacher')
  if teacher then
    heads[n + 1] = 'teacher'
    lines[n + 1] = ('%-7s  %s'):format('teacher', teacher.name)
  end
  return heads, lines
end

-- How a model differs from the first one, in lines of at most so many columns.
local function add_difference(lines, d, heads, i, objective, columns)
  local parts = {}
  local words = objective and measuring.in_words(objective) or ''
  for _, each in ipairs { { 'loss', 'loss', nats }, { objective or '', words, nats },
    { 'exact', 'exact answers', percent } } do
    local value, err = d[each[1]], d[each[1] .. '_error']
    if value then
      local text = ('%s %s%s%s'):format(each[2], value > 0 and '+' or '', each[3](value),
        err and ' ±' .. each[3](err) or '')
      parts[#parts + 1] = (text:gsub(' ', layout.TIE)) -- no line ends inside
    end
  end
  local head = ('%s less %s  '):format(heads[i + 1], heads[1])
  local texts = layout.wrap(table.concat(parts, ', '), columns - #head)
  for k, text in ipairs(texts) do
    lines[#lines + 1] = (k == 1 and head or (' '):rep(#head)) .. text
  end
end

local function data_lines(d)
  return { ('%-7s  %s'):format('data', table.concat(d.files, ', ')),
    ('%-7s  %d samples, %.0f of %.0f tokens learnt'):format('', d.samples, d.measured, d.tokens) }
end

--- The lines that `moonstill eval` prints.
--- @param report table see `ms.eval`
--- @param columns integer
--- @return string[]
function M.lines(report, columns)
  local heads, lines = heads_of(report)
  local entries = { unpack(report.students) }
  entries[#entries + 1] = rawget(report, 'teacher')
  for _, line in ipairs(data_lines(report.data)) do lines[#lines + 1] = line end
  lines[#lines + 1] = ''
  local rows = filled(rows_of(report), entries)
  for _, line in ipairs(table_lines(rows, entries, heads, columns)) do lines[#lines + 1] = line end
  if rawget(report.students[1], 'answers') and not rawget(report, 'match') then
    lines[#lines + 1] = ''
    local text = "An answer is exact where its whole text is the data's; match='...' says which "
      .. 'part counts.'
    for _, line in ipairs(layout.wrap(text, columns)) do lines[#lines + 1] = line end
  end
  if #report.differences > 0 then lines[#lines + 1] = '' end
  for i, d in ipairs(report.differences) do
    add_difference(lines, d, heads, i, rawget(report, 'objective'), columns)
  end
  return lines
end

return M
