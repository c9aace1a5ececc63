--- Worked text problems: a small data set that needs no download.
---
--- A problem tells how a number of things changes, step by step; the answer works it out and ends
--- in "answer: N". How it is told and how it is worked out vary at random, so that there is no
--- single right text. The number is right unless slips are asked for: then some steps go wrong, as
--- people's do. Everything is a function of (seed, part, index).

local ffi = require 'ffi'
local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local fail = require 'moonstill.base.fail'
local json = require 'moonstill.base.json'

local M = {}

local MOST = 40       -- no number of a problem is larger
local HELD_OUT = 8    -- one in so many chains of numbers belongs to the held-out part
local parts = { train = 1, valid = 2 }

local names = { 'Mia', 'Tom', 'Ana', 'Ben', 'Eva', 'Sam', 'Lea', 'Max' }
local things = { 'apples', 'pens', 'coins', 'nuts', 'books', 'cards', 'shells', 'stamps' }

-- What may happen: the operation, the numbers that fit, how it is told.
local events = {
  { op = '+', told = { '{other} gives {name} {k} more.', '{name} finds {k} more.',
    '{name} buys {k} {things}.', '{k} {things} are added.' } },
  { op = '-', told = { '{name} gives {k} to {other}.', '{name} loses {k} of them.',
    '{name} sells {k} {things}.', '{k} {things} are taken away.' } },
  { op = '*', told = { 'Then the number of {things} grows {k} times.',
    '{name} wins a game and has {k} times as many.' } },
  { op = '/', told = { '{name} shares them equally among {k} friends and keeps one part.',
    '{name} keeps only one of {k} equal parts.' } },
}

-- How an answer is worked out: what comes before all, before each step, and between steps.
local styles = {
  { first = '', step = '{a} {op} {k} = {b}.', join = ' ' },
  { first = 'Start with {start}. ', step = '{a} {op} {k} = {b}.', join = ' Then ' },
  { first = 'We go step by step: ', step = '{a} {op} {k} = {b}', join = ', then ', last = '.' },
  { first = '{name} has {start} {things} at first. ', step = 'After that {a} {op} {k} = {b}.',
    join = ' ' },
}
local closings = { ' So the', ' The', ' This gives the' }

-- Integers below n, one after another, from one stream of random words.
local word = ffi.new 'uint32_t[4]'
local function dice(seed, stream)
  local index, left = 0, 0
  return function(n)
    if left == 0 then
      C.ms_philox(seed, stream, index, word)
      index, left = index + 1, 4
    end
    left = left - 1
    return math.floor(word[left] / 4294967296 * n)
  end
end

local function pick(draw, list) return list[draw(#list) + 1] end

local function fill(text, values)
  return (text:gsub('{(%w+)}', values))
end

-- The number that goes with an operation on `a`, or nil when it does not fit.
local function operand(draw, op, a)
  if op == '+' then return a + 2 <= MOST and 2 + draw(math.min(9, MOST - a - 1)) or nil end
  if op == '-' then return a >= 3 and 1 + draw(math.min(9, a - 1)) or nil end
  local k = 2 + draw(2)
  if op == '*' then return a * k <= MOST and k or nil end
  return a % k == 0 and a > k and k or nil
end

local function apply(op, a, k)
  if op == '+' then return a + k end
  if op == '-' then return a - k end
  if op == '*' then return a * k end
  return a / k
end

-- A chain of numbers: start, then steps { op, k, a (before), b (after), event }.
local function chain(draw)
  local start = 2 + draw(19)
  local a, steps = start, {}
  local count = 1 + draw(4)
  while #steps < count do
    local event = events[({ 1, 1, 2, 2, 3, 4 })[draw(6) + 1]]
    local k = operand(draw, event.op, a)
    if k then
      local b = apply(event.op, a, k)
      steps[#steps + 1] = { op = event.op, k = k, a = a, b = b, event = event }
      a = b
    end
  end
  return start, steps, a
end

-- Whether a chain is held out: by its numbers alone, so that no retelling of it is trained on.
local function held_out(start, steps)
  local h = start
  for _, step in ipairs(steps) do
    h = (h * 31 + step.op:byte() * 101 + step.k) % 65521
  end
  return (h * 40503) % 65536 % HELD_OUT == 0
end

local function question(draw, start, steps, values)
  local told = { fill('{name} has {start} {things}.', values) }
  for _, step in ipairs(steps) do
    values.k = step.k
    told[#told + 1] = fill(pick(draw, step.event.told), values)
  end
  told[#told + 1] = fill('How many {things} does {name} have now?', values)
  return table.concat(told, ' ')
end

-- The steps as they are worked out: a share of `slips` of them comes out 1 or 2 off, and the next
-- one goes on from there.
local function work_out(draw, steps, slips)
  local a, done = steps[1].a, {}
  for i, step in ipairs(steps) do
    local b = math.max(0, math.floor(apply(step.op, a, step.k))) -- after a slip anything may come
    if slips > 0 and draw(1000) < 1000 * slips then
      b = math.max(0, b + ({ -2, -1, 1, 2 })[draw(4) + 1])
    end
    done[i] = { op = step.op, k = step.k, a = a, b = b }
    a = b
  end
  return done, a
end

local function working(draw, steps, values, slips)
  local style = pick(draw, styles)
  local done, answer = work_out(draw, steps, slips)
  local lines = {}
  for i, step in ipairs(done) do lines[i] = fill(style.step, step) end
  return fill(style.first, values) .. table.concat(lines, style.join) .. (style.last or '')
    .. pick(draw, closings) .. ' answer: ' .. answer
end

local function problem(draw, part, slips)
  local start, steps, answer
  repeat
    start, steps, answer = chain(draw)
  until held_out(start, steps) == (part == 'valid')
  local who = draw(#names)
  local values = { start = start, name = names[who + 1],
    other = names[(who + 1 + draw(#names - 1)) % #names + 1], things = pick(draw, things) }
  local asked = question(draw, start, steps, values)
  return { answer = answer, steps = #steps, messages = {
    { role = 'user', content = asked },
    { role = 'assistant', content = working(draw, steps, values, slips) },
  } }
end

--- Problems of one part. The chains of numbers of the two parts have nothing in common.
--- @param part "train"|"valid"
--- @param count integer
--- @param seed? integer default 1
--- @param slips? number share of steps that are worked out wrong, default 0; `answer` stays right
--- @return table[] list of { messages, answer (a number), steps }
function M.problems(part, count, seed, slips)
  local stream = parts[part]
  if not stream then
    fail("toy: no part '%s'; there are train and valid", tostring(part))
  end
  check.integer('toy', 'count', count, 0, check.INT32)
  seed = check.integer('toy', 'seed', seed or 1, 0, check.EXACT)
  slips = check.number('toy', 'slips', slips or 0, 0, 1)
  local list = {}
  for i = 1, count do list[i] = problem(dice(seed, stream * 2 ^ 32 + i), part, slips) end
  return list
end

--- The number that a worked answer ends in, or nil.
--- @param text string
--- @return number?
function M.answer(text)
  if type(text) ~= 'string' then fail('toy: an answer is a text, got ' .. type(text)) end
  return tonumber((text:match '.*answer: (%d+)'))
end

--- An error unless these are problems, as `problems` makes them.
--- @package
--- @param problems table[]
function M.check(problems)
  for i, p in ipairs(check.table('toy', 'problems', problems)) do
    check.table('toy', 'problem ' .. i, p)
    local name = ('messages of problem %d'):format(i)
    for k, m in ipairs(check.table('toy', name, p.messages)) do
      check.table('toy', ('message %d of problem %d'):format(k, i), m)
      check.text('toy', 'role', m.role)
      check.text('toy', 'content', m.content)
    end
  end
end

--- The texts that a tokenizer for these problems is learnt from: problems, and every number often
--- enough to become one token.
--- @param problems table[]
--- @return string[]
function M.texts(problems)
  local texts = {}
  M.check(problems)
  for _, p in ipairs(problems) do
    for _, message in ipairs(p.messages) do
      texts[#texts + 1] = message.role .. '\n' .. message.content
    end
  end
  for n = 0, MOST do texts[#texts + 1] = (' ' .. n):rep(#problems) end
  return texts
end

--- Writes problems as conversations, a line of JSON each.
--- @param path string
--- @param problems table[]
function M.write(path, problems)
  local lines = {}
  check.path('toy', path)
  M.check(problems)
  for i, p in ipairs(problems) do
    lines[i] = json.encode({ messages = json.array(p.messages) }, { order = { 'role' } })
  end
  json.write_lines(path, lines)
end

return M
