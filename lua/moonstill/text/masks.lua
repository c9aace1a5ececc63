--- Which bytes of a rendered conversation are whose, and which of them are learnt: of each turn,
--- the message that it holds and the token that ends it.
---
--- Where the template marks what the model says ({% generation %}), that is taken to the letter.
--- Elsewhere it is found by difference. The strings of the messages are known where they stand (the
--- renderer's spans), so what is looked for is short: in the template's own text before a turn's
--- first string, how much of it the prompt had already; in that behind its last string, where the
--- turn's end is. The first is answered by rendering the messages before it with a generation
--- prompt, the second by comparing how a turn ends inside of a conversation and at its close. Equal
--- texts have equal answers, which are kept (`memo`): so a long conversation is rendered once or a
--- few times, not once a turn.
---
--- A rendering is a table { text, spans, sources, generation }, see `moonstill.jinja`; positions in
--- it are 0-based and half open.

local fail = require 'moonstill.base.fail'
local thoughts = require 'moonstill.text.turns'.thoughts

local M = {}

-- Fields of messages that stand in the head of a turn, or say nothing themselves.
local ASIDE = { role = true, name = true, tool_call_id = true, id = true }
--- Fields that hold what was thought before the answer.
M.THOUGHT = {}
for _, name in ipairs(thoughts) do M.THOUGHT[name] = true end
local THINK_END = '</think>'
-- What templates write around thinking; with nothing between them where there was none.
local AROUND_THINKING = { { '<think>', '</think>' }, { '[THINK]', '[/THINK]' },
  { '<|START_THINKING|>', '<|END_THINKING|>' }, { '<|channel>thought', '<channel|>' } }
local CACHED = 1000 -- answers that are kept

-- texts ------------------------------------------------------------------------------------------

local function common_bytes(a, b)
  local n = math.min(#a, #b)
  if a:sub(1, n) == b:sub(1, n) then return n end
  local low, high = 0, n -- the first `low` bytes are equal, the first `high` are not
  while high - low > 1 do
    local middle = math.floor((low + high) / 2)
    if a:sub(1, middle) == b:sub(1, middle) then low = middle else high = middle end
  end
  return low
end

-- How many bytes two texts begin with alike, not ending inside of a tag (<|im_end|>, [INST]).
local function common(a, b)
  local n = common_bytes(a, b)
  if n == #a or n == #b then return n end
  local open = a:sub(1, n):match '^.*()[<%[]'
  return open and not a:sub(open, n):find '[>%]]' and open - 1 or n
end

local function without_space(text) return text:match '^.*%S' or '' end

-- What two texts behind an answer begin with alike, without the head of a turn that follows in
-- both: a tag that stands in the prompt, but for the end of the turn before, which is the first tag
-- there, whatever is between it and the question.
local function ending_of(a, b, probe)
  local text = without_space(a:sub(1, common(a, b)))
  local behind = (probe.head:find '[<%[]' or 1) + 1
  for at in text:gmatch '()[<%[]' do
    local rest = text:sub(at)
    local begins = probe.prompt:sub(1, #rest) == rest or probe.head:find(rest, behind, true)
    if at > 1 and begins then return without_space(text:sub(1, at - 1)) end
  end
  return text
end

-- spans ------------------------------------------------------------------------------------------

-- The spans of a rendering that stand in the body of a turn, or are of no message (0), as columns.
local function bodies(r)
  local b, n = { from = {}, to = {}, message = {}, field = {} }, 0
  local spans, sources = r.spans, r.sources
  for k = 1, #spans, 3 do
    local source = sources[spans[k + 2]]
    if not ASIDE[source.field] then
      n = n + 1
      b.from[n], b.to[n] = spans[k], spans[k + 1]
      b.message[n], b.field[n] = source.message or 0, source.field
    end
  end
  b.count = n
  return b
end

local function holds(text, word, from, to)
  return word ~= '' and text:sub(from + 1, to):find(word, 1, true) ~= nil
end

-- By message, the first and the last span of its turn: those of its strings that follow one another
-- without the end of a turn between them.
local function runs_of(r, b, ending)
  local runs = {}
  for k = 1, b.count do
    local run = runs[b.message[k]]
    if not run then
      runs[b.message[k]] = { first = k, last = k }
    elseif run.last == k - 1 and not holds(r.text, ending, b.to[k - 1], b.from[k]) then
      run.last = k
    end
  end
  return runs
end

-- by difference ----------------------------------------------------------------------------------

--- What a template writes around answers, from conversations made up for it: `ending`, with which
--- each of them ends ('' where there is nothing such), `closing`, with which the last one does,
--- `prompt`, what it adds for an answer to come, `head`, what then stands behind a question, and
--- `unprompted`, what an answer has before it beyond that.
--- @param render fun(messages: table[], prompt: boolean): table
--- @return { ending: string, closing: string, prompt: string, head: string, unprompted: string }
function M.probe(render)
  local function said(role, content) return { role = role, content = content } end
  local messages = { said('user', 'a'), said('assistant', 'b'), said('user', 'c'),
    said('assistant', 'd') }
  local found = { ending = '', closing = '', prompt = '', head = '', unprompted = '' }
  local ok, r = fail.attempt(render, messages, false)
  if not ok then return found end
  local b = bodies(r)
  local runs = runs_of(r, b, '')
  local asked, with, without = { messages[1] }, nil, nil
  ok, with = fail.attempt(render, asked, true)
  if ok then ok, without = fail.attempt(render, asked, false) end
  if ok then
    local last = bodies(with)
    found.prompt = with.text:sub(common(with.text, without.text) + 1)
    found.head = with.text:sub((last.to[last.count] or 0) + 1)
    local gap = runs[1] and runs[2] and r.text:sub(b.to[runs[1].last] + 1, b.from[runs[2].first])
    found.unprompted = gap and gap:sub(common(gap, found.head) + 1) or ''
  end
  if runs[2] and runs[4] and b.count > runs[2].last then
    local inside = r.text:sub(b.to[runs[2].last] + 1, b.from[runs[2].last + 1])
    found.closing = without_space(r.text:sub(b.to[runs[4].last] + 1))
    found.ending = ending_of(inside, found.closing, found)
  end
  return found
end

local function remembered(c, key, find)
  local value = c.memo[key]
  if value == nil then
    value = find()
    if (c.memo.count or 0) >= CACHED then
      for _, name in ipairs(c.memo) do c.memo[name] = nil end
      for i = #c.memo, 1, -1 do c.memo[i] = nil end
      c.memo.count = 0
    end
    c.memo[key], c.memo.count = value, (c.memo.count or 0) + 1
    c.memo[c.memo.count] = key
  end
  return value
end

-- Of the text before an answer that cannot be prompted for alone.
local function head_of_first(c, i, gap)
  local from, to = gap:find(c.probe.prompt, 1, true)
  if from and c.probe.prompt ~= '' then return to end
  fail('message %d: where the answer begins is not found: the template cannot be rendered up to it',
    i)
end

-- How much of the text `gap` before message i's first string is the prompt's; and, where all of it
-- is, what the prompt has beyond it.
local function find_head(c, r, b, i, k, gap)
  local ok, g = false, nil
  if i > 1 then ok, g = fail.attempt(c.render, i - 1, true) end
  if not ok then return head_of_first(c, i, gap) end
  local last, before = bodies(g), b.message[k - 1]
  local start = last.to[last.count] or 0
  if last.message[last.count] == before and last.field[last.count] == b.field[k - 1] then
    local head = g.text:sub(start + 1)
    local n = common(head, gap)
    local merged = c.messages[i - 1].role == c.messages[i].role
    if n > 0 or gap == '' or head == '' or merged then
      return n, n == #gap and head:sub(n + 1) or nil
    end
  else
    local at = b.to[k - 1] or 0
    local n = common(g.text, r.text:sub(1, b.from[k]))
    if n >= at then return n - at end
  end
  fail('message %d: where the answer begins is not found: the text up to it does not begin as the '
    .. 'prompt for it does', i)
end

-- The end of the block of thinking without any in a template's text; 0 where there is none.
local function empty_thinking_end(gap)
  for _, words in ipairs(AROUND_THINKING) do
    local _, open = gap:find(words[1], 1, true)
    local close = open and gap:match('^%s*()', open + 1)
    if close and gap:sub(close, close + #words[2] - 1) == words[2] then
      return gap:match('^%s*()', close + #words[2]) - 1
    end
  end
  return 0
end

local function spells_thinking(content)
  return type(content) == 'string' and content:find(THINK_END, 1, true) ~= nil
end

-- Where message i's turn begins: what of it the model says itself. That it thought nothing is what
-- the template says of an answer without thinking: to learn it would be to learn not to think.
local function turn_start(c, r, b, i, run)
  local k = run.first
  local at = b.to[k - 1] or 0
  local gap = r.text:sub(at + 1, b.from[k])
  local before = c.messages[i - 1]
  local key = ('head %s %s %s %s'):format(before and before.role or '', i - (b.message[k - 1] or i),
    b.field[k - 1] or '', gap)
  local known = remembered(c, key, function()
    local n, more = find_head(c, r, b, i, k, gap)
    local prompt = c.probe.prompt
    -- the head of a turn that goes on without a prompt, as after a tool's answer
    if prompt ~= '' and gap:sub(n + 1, n + #prompt) == prompt then n = n + #prompt end
    return { n, more or '', empty_thinking_end(gap) }
  end)
  local start = at + known[1]
  if known[3] > known[1] and not spells_thinking(c.messages[i].content) then
    start = at + known[3]
  end
  -- what the prompt opens, such as thinking, may be written by the message itself
  local more = known[2]
  return r.text:sub(start + 1, start + #more) == more and start + #more or start
end

-- Where the end of message i's turn begins and ends in the text `gap` behind its last string, where
-- it is not the usual one.
local function find_tail(c, r, i, gap, is_last)
  if is_last then
    local rest = without_space(gap)
    if rest == c.probe.closing then return { 0, #rest } end
    return { 0, #(rest:match '^%s*<[^<>]*>' or rest:match '^%s*%[[^%[%]]*%]' or '') }
  end
  local ok, t = fail.attempt(c.render, i, false)
  if not ok then return { 0, 0 } end
  local b = bodies(t)
  local run = runs_of(t, b, c.probe.ending)[i]
  if not run then return { 0, 0 } end
  return { 0, #ending_of(gap, t.text:sub(b.to[run.last] + 1), c.probe) }
end

-- Where the end of message i's turn begins and ends.
local function turn_end(c, r, b, i, run)
  local at = b.to[run.last]
  local is_last = run.last == b.count
  local gap = r.text:sub(at + 1, b.from[run.last + 1] or #r.text)
  local ending = c.probe.ending
  if ending ~= '' then
    local from, to = gap:find(ending, 1, true)
    if from then return at + from - 1, at + to end
  end
  local after = c.messages[i + 1]
  local key = ('tail %s %s %s'):format(after and after.role or '', tostring(is_last), gap)
  local tail = remembered(c, key, function() return find_tail(c, r, i, gap, is_last) end)
  return at + tail[1], at + tail[2]
end

local CONTENT, CALLS = { content = true }, { tool_calls = true, function_call = true }

local function count_calls(b, run)
  local n = 0
  for k = run.first, run.last do
    if CALLS[b.field[k]] then n = n + 1 end
  end
  return n
end

-- A template may write the names of calls again, in the turns of the tools that answer them: those
-- are no part of message i's turn, which ends where it does without the messages behind it.
local function without_answers(c, r, b, i, run)
  local after, n = c.messages[i + 1], count_calls(b, run)
  if n == 0 or not after then return run end
  local parts = {}
  for k = run.first, run.last do
    parts[#parts + 1] = b.field[k] .. r.text:sub(b.to[k] + 1, b.from[k + 1] or #r.text)
  end
  local key = ('calls %s %s'):format(after.role, table.concat(parts, '\0'))
  local own = remembered(c, key, function()
    local ok, t = fail.attempt(c.render, i, false)
    local alone = ok and bodies(t)
    local found = alone and runs_of(t, alone, c.probe.ending)[i]
    return found and count_calls(alone, found) or n
  end)
  if own >= n then return run end
  for k = run.first, run.last do
    if CALLS[b.field[k]] then own = own - 1 end
    if own < 0 then return { first = run.first, last = k - 1 } end
  end
end

local function by_difference(c, r, b, runs, i)
  local run = runs[i] and without_answers(c, r, b, i, runs[i])
  if not run then return nil end
  local from = turn_start(c, r, b, i, run)
  local end_from, to = turn_end(c, r, b, i, run)
  return { from, to, run = run, cut = end_from }
end

-- by marks ---------------------------------------------------------------------------------------

local function add_range(turns, message, from, to)
  if from >= to then return end
  local turn = turns[message]
  if not turn then
    turn = {}
    turns[message] = turn
  end
  turn[#turn + 1], turn[#turn + 2] = from, to
end

-- By message, the ranges that the template marks: cut where the next message's strings begin. One
-- without strings belongs to the message before it.
local function by_marks(c, r, b, runs)
  local turns, k, owner = {}, 1, nil
  for g = 1, #r.generation, 2 do
    local from, to = r.generation[g], r.generation[g + 1]
    while k <= b.count and b.from[k] < from do
      if c.messages[b.message[k]] then owner = b.message[k] end
      k = k + 1
    end
    local start, first = from, true
    while k <= b.count and b.from[k] < to do
      local message = b.message[k]
      if message > 0 and message ~= owner then
        if not first then
          add_range(turns, owner, start, b.from[k])
          start = b.from[k]
        end
        owner = message
      end
      first, k = false, k + 1
    end
    if owner then add_range(turns, owner, start, to) end
  end
  for message, turn in ipairs(M.in_order(turns, #c.messages)) do
    if turn then
      turn.run = runs[message]
      turn.cut = turn.run and b.to[turn.run.last] or turn[2]
    end
  end
  return turns
end

--- A table with holes as a list with false in them.
--- @param t table<integer, any>
--- @param n integer
--- @return any[]
function M.in_order(t, n)
  local list = {}
  for i = 1, n do list[i] = t[i] or false end
  return list
end

-- what must be there -----------------------------------------------------------------------------

-- What Python's strip takes away, beside ASCII's.
local SPACES = { '\194\133', '\194\160', '\225\154\128', '\226\128[\128-\138\168\169\175]',
  '\226\129\159', '\227\128\128' }

local function squeezed(text)
  text = text:gsub('[%s\28-\31]+', '')
  if not text:find '[\194\225-\227]' then return text end
  for _, space in ipairs(SPACES) do text = text:gsub(space, '') end
  return text
end

local function behind_thinking(text)
  local at = text:match('^.*' .. THINK_END .. '()')
  return at and text:sub(at) or text
end

-- A content's text without what was thought before it, which templates may leave out.
local function expected(content)
  if type(content) == 'string' then return behind_thinking(content) end
  local parts = {}
  for i, part in ipairs(content or {}) do parts[i] = part.text end
  return table.concat(parts)
end

-- The text of a message's strings of some fields within its turn.
local function written(r, b, i, turn, fields)
  local parts, k = {}, turn.run.first
  while k <= b.count and b.from[k] < turn[#turn] do
    for t = 1, b.message[k] == i and fields[b.field[k]] and #turn or 0, 2 do
      local from, to = math.max(turn[t], b.from[k]), math.min(turn[t + 1], b.to[k])
      if from < to then parts[#parts + 1] = r.text:sub(from + 1, to) end
    end
    k = k + 1
  end
  return table.concat(parts)
end

-- An error unless all that is to be learnt of message i stands in its turn.
local function check_turn(c, r, b, i, turn)
  local message = c.messages[i]
  local want, got = expected(message.content), written(r, b, i, turn, CONTENT)
  if #got < #want and #squeezed(got) < #squeezed(want) then
    fail('message %d: the template %s', i, got == '' and 'does not write its content in its turn'
      or 'writes only a part of its content in its turn')
  end
  if c.calls and (message.tool_calls or message.function_call)
    and written(r, b, i, turn, CALLS) == '' then
    fail('message %d: the template does not write its tool calls in its turn', i)
  end
end

-- parts of a turn --------------------------------------------------------------------------------

-- The range of what is thought in a turn, with the template's own text around it; or nil.
local function thinking(r, b, turn)
  local run, from, to = turn.run, turn[1], turn[#turn]
  local text = r.text:sub(from + 1, to)
  local at = text:match('^.*' .. THINK_END .. '%s*()')
  if at then return from, from + at - 1 end
  for k = run.last, run.first, -1 do
    if M.THOUGHT[b.field[k]] then return from, k < run.last and b.from[k + 1] or b.to[k] end
  end
end

-- The same of its tool calls; behind the last one, to the turn's end.
local function calls(b, turn)
  local run, first, last = turn.run, nil, nil
  for k = run.first, run.last do
    if CALLS[b.field[k]] then first, last = first or k, k end
  end
  if not first then return nil end
  return first > run.first and b.to[first - 1] or turn[1],
    last < run.last and b.from[last + 1] or turn[#turn]
end

-- A turn's ranges without one between them.
local function without(turn, from, to)
  if not from then return turn end
  local left = { run = turn.run, cut = turn.cut }
  for k = 1, #turn, 2 do
    local a, z = turn[k], turn[k + 1]
    if a < math.min(z, from) then left[#left + 1], left[#left + 2] = a, math.min(z, from) end
    if math.max(a, to) < z then left[#left + 1], left[#left + 2] = math.max(a, to), z end
  end
  return left
end

-- A turn of another role: its strings, and the end where it has the usual one.
local function plain_turn(c, r, b, runs, i)
  local run = runs[i]
  if not run then return nil end
  local to = b.to[run.last]
  local gap = r.text:sub(to + 1, b.from[run.last + 1] or #r.text)
  local _, last = nil, nil
  if c.probe.ending ~= '' then _, last = gap:find(c.probe.ending, 1, true) end
  return { b.from[run.first], to + (last or 0), run = run, cut = to }
end

local function turn_of(c, r, b, runs, marked, i)
  if c.messages[i].role ~= 'assistant' then return plain_turn(c, r, b, runs, i) end
  if marked then return marked[i] end
  return by_difference(c, r, b, runs, i)
end

-- Where a turn's share of the text ends: behind its end and the space that follows.
local function share_end(c, r, b, run)
  local at = b.to[run.last]
  local gap = r.text:sub(at + 1, b.from[run.last + 1] or #r.text)
  local last
  if c.probe.ending ~= '' then last = select(2, gap:find(c.probe.ending, 1, true)) end
  if not last then return run.last == b.count and #r.text or at end
  return at + gap:match('^%s*()', last + 1) - 1
end

--- Finds the turns of a rendered conversation. `c` says how: `messages`; `wanted`, by message,
--- those that are learnt; `render(count, prompt)`, which renders the first of them; `probe` of the
--- template; `memo`, a table of the caller's for answers that will be asked for again; `marked`,
--- whether the template marks what the model says; `thinking` and `calls`, whether those are
--- learnt.
--- @param c table
--- @param r table the rendering of all messages
--- @return (table|false)[] turns by message: { from, to, .. } of what is learnt, and `cut`, where
---   the turn's end begins; false for those that are not wanted
--- @return integer[] shares by message, where its share of the text ends
function M.turns(c, r)
  local b = bodies(r)
  local runs = runs_of(r, b, c.probe.ending)
  local marked = c.marked and r.generation and by_marks(c, r, b, runs)
  local turns, shares = {}, {}
  for i in ipairs(c.messages) do
    turns[i] = false
    if c.wanted[i] then
      local turn = turn_of(c, r, b, runs, marked, i)
      if not turn or not turn.run then
        fail('message %d: the template writes nothing of it where it is learnt', i)
      end
      if c.messages[i].role == 'assistant' then check_turn(c, r, b, i, turn) end
      if not c.thinking then turn = without(turn, thinking(r, b, turn)) end
      if not c.calls then turn = without(turn, calls(b, turn)) end
      turns[i] = turn
    end
    shares[i] = runs[i] and share_end(c, r, b, runs[i]) or 0
  end
  return turns, shares
end

return M
