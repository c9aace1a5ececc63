--- What a sample becomes before it is encoded: a conversation is rendered, and the bytes that are
--- learnt are marked with their levels; a plain text gets its end; ids are checked.
---
--- `chat` is an `ms_chat`, whose fields say how.

local ffi = require 'ffi'
local ends = require 'moonstill.text.ends'
local fail = require 'moonstill.base.fail'
local json = require 'moonstill.base.json'
local masks = require 'moonstill.text.masks'
local sorted = require 'moonstill.base.sorted'
local tokenizer = require 'moonstill.text.tokenizer'
local turns = require 'moonstill.text.turns'

local M = {}

local ints = ffi.typeof 'int32_t[?]'
local bytes = ffi.typeof 'uint8_t[?]'

-- The level of what is learnt in full, which every chat has.
local ONE = 1

--- The levels of a new chat, from 0: what is not learnt, and what is learnt in full.
--- @return { response: number, all: number }[]
function M.levels() return { [0] = { response = 0, all = 1 }, { response = 1, all = 1 } } end

-- what is spelled --------------------------------------------------------------------------------

--- The special tokens of a tokenizer by the two letters that they begin with, as they are looked
--- for in texts.
--- @param tok ms_tokenizer
--- @return table[]
function M.spellings(tok)
  local list, by = {}, {}
  for id = 0, tok:size() - 1 do
    local text = tok:is_special(id) and tok:token(id)
    if text and #text > 1 then
      local head = text:sub(1, 2)
      if not by[head] then
        by[head] = {}
        list[#list + 1] = { head = head, tokens = by[head] }
      end
      table.insert(by[head], text)
    end
  end
  return list
end

local function spelled_at(text, at, tokens)
  for _, token in ipairs(tokens) do
    if text:sub(at, at + #token - 1) == token then return token end
  end
end

-- The first special token that a text spells.
local function spelled_in(chat, text)
  local first, found = #text + 1, nil
  for _, group in ipairs(chat.spellings) do
    local at = text:find(group.head, 1, true)
    while at and at < first do
      local token = spelled_at(text, at, group.tokens)
      if token then first, found = at, token end
      at = text:find(group.head, at + 1, true)
    end
  end
  return found
end

-- levels -----------------------------------------------------------------------------------------

local MOST_LEVELS = 255

local function by_weight(a, b)
  if a.response ~= b.response then return a.response < b.response end
  return a.all < b.all
end

-- The level of a pair of weights above another level.
local function level_above(levels, pair, least)
  for i = least + 1, #levels do
    if levels[i].response == pair.response and levels[i].all == pair.all then return i end
  end
  if #levels >= MOST_LEVELS then error('too many different weights of messages', 0) end
  levels[#levels + 1] = { response = pair.response, all = pair.all }
  return #levels
end

-- Segments { from, to, response, all } as marks. Of a token with parts of several levels the
-- highest counts, so levels grow with the weights within a sample. What has no segment is of level
-- 0.
local function marks_of(chat, segments)
  local pairs_of, list = {}, {}
  for _, s in ipairs(segments) do
    local key = ('%.9g %.9g'):format(s.response, s.all)
    if not pairs_of[key] then
      pairs_of[key] = { response = s.response, all = s.all }
      list[#list + 1] = pairs_of[key]
    end
    s.pair = pairs_of[key]
  end
  table.sort(list, by_weight)
  local last = 0
  for _, pair in ipairs(list) do
    if pair.response == 0 and pair.all == 1 then
      pair.level = 0
    else
      last = level_above(chat.levels, pair, last)
      pair.level = last
    end
  end
  local marks = {}
  for _, s in ipairs(segments) do
    if s.pair.level > 0 and s.from < s.to then
      local n = #marks
      marks[n + 1], marks[n + 2], marks[n + 3] = s.from, s.to, s.pair.level
    end
  end
  return marks
end

-- conversations ----------------------------------------------------------------------------------

--- Where a rendering holds what came from the sample, as `encode` takes it. Roles are known words,
--- of which templates make tokens.
--- @param spans integer[]
--- @param sources table[]
--- @return integer[]
function M.plain(spans, sources)
  local plain, n = {}, 0
  for k = 1, #spans, 3 do
    if sources[spans[k + 2]].field ~= 'role' then
      if n > 0 and plain[n] == spans[k] then
        plain[n] = spans[k + 1]
      else
        plain[n + 1], plain[n + 2], n = spans[k], spans[k + 1], n + 2
      end
    end
  end
  return plain
end

local function spelled_in_spans(chat, text, plain)
  for k = 1, #plain, 2 do
    local token = spelled_in(chat, text:sub(plain[k] + 1, plain[k + 1]))
    if token then return token end
  end
end

--- A sample as a conversation, ready to be rendered.
--- @param chat ms_chat
--- @param sample table
--- @return table
function M.conversation(chat, sample)
  local tools = turns.tools(sample.tools)
  local o = { args = chat.options.template_args, own_args = sample.args, tools = tools,
    documents = turns.is_there(sample.documents) and sample.documents or nil }
  local entry = chat.set:choose(tools)
  if tools and not entry:mentions 'tools' then
    fail('what is learnt depends on "tools", which the template does not write')
  end
  if o.documents and not entry:mentions 'documents' then
    fail('what is learnt depends on "documents", which the template does not write')
  end
  local given = sample.messages or turns.of_pair(sample)
  local takes_text = sample.messages ~= nil and entry:mentions 'tool_calls'
    and entry:takes_text(chat.set:given(o))
  entry.calls_as_text = takes_text
  local talk = { entry = entry, o = o, open = sample.ended == false }
  talk.messages, talk.weights, talk.trained = turns.messages(chat, entry, given)
  return talk
end

--- Renders messages of a conversation, see `masks.lua` for what comes out.
--- @param chat ms_chat
--- @param talk table what `conversation` gives
--- @param messages table[]
--- @param prompt boolean an answer is to come
--- @return table
function M.render(chat, talk, messages, prompt)
  local o = talk.o
  local vars = chat.set:given { args = o.args, own_args = o.own_args, tools = o.tools,
    documents = o.documents, add_generation_prompt = prompt }
  vars.messages = messages
  local r = {}
  r.text, r.spans, r.generation, r.sources = talk.entry.compiled:render(vars, chat.now)
  return r
end

local function first_of(messages, count)
  if count == #messages then return messages end
  local list = json.array()
  for i = 1, count do list[i] = messages[i] end
  return list
end

--- What is known of a template with these variables: how turns end (`probe`), and where they were
--- found (`memo`).
--- @param chat ms_chat
--- @param talk table
--- @return { probe: table, memo: table }
function M.known(chat, talk)
  local own = talk.o.own_args
  local key = (own and json.encode(own) or '') .. (talk.o.tools and ' tools' or '')
  local all = talk.entry.known or {}
  talk.entry.known = all
  all[chat.options_key] = all[chat.options_key] or {}
  local known = all[chat.options_key]
  if not known[key] then
    -- tools shape nothing behind an answer, but some templates cannot do without
    local bare = { entry = talk.entry, o = { args = talk.o.args, own_args = own,
      tools = talk.o.tools } }
    known[key] = { memo = {}, probe = masks.probe(function(messages, prompt)
      return M.render(chat, bare, messages, prompt)
    end) }
  end
  return known[key]
end

-- Which of a conversation's messages are learnt.
local function wanted_of(chat, talk, count)
  local wanted, last = {}, nil
  for i = 1, count do
    local role = talk.messages[i].role
    wanted[i] = chat.learnt[role] and talk.trained[i] and talk.weights[i] > 0 or false
    if wanted[i] then last = i end
  end
  if chat.options.turns == 'all' then return wanted, last end
  for i = 1, count do wanted[i] = i == last end
  return wanted, last
end

local function why_nothing(messages, learnt)
  for _, message in ipairs(messages) do
    if learnt[message.role] then return '' end
  end
  local words = {}
  for _, role in ipairs(sorted.keys(learnt)) do words[#words + 1] = json.encode(role) end
  return ': no message has the role ' .. table.concat(words, ' or ')
end

-- What is learnt, with its weight, in the order of the text.
local function learnt_ranges(talk, found, count)
  local list = {}
  for i = 1, count do
    local turn, weight = found[i] or {}, talk.weights[i]
    for k = 1, #turn, 2 do
      list[#list + 1] = { from = turn[k], to = turn[k + 1], response = weight, all = weight }
    end
  end
  table.sort(list, function(a, b) return a.from < b.from end)
  return list
end

-- Where the messages' shares of the text end, in its order, with their weights; nil where all are
-- 1.
local function share_ends(talk, shares, count)
  local list, any = {}, false
  for i = 1, count do
    list[i] = { to = shares[i], weight = talk.weights[i], i = i }
    any = any or talk.weights[i] ~= 1
  end
  if not any then return nil end
  table.sort(list, function(a, b)
    if a.to ~= b.to then return a.to < b.to end
    return a.i < b.i
  end)
  return list
end

-- The ranges of the text with their weights, in order: what is learnt, and where weights differ
-- what lies between.
local function segments_of(talk, found, shares, count)
  local learnt, ends_at = learnt_ranges(talk, found, count), share_ends(talk, shares, count)
  if not ends_at then return learnt end
  local segments, at, k = {}, 0, 1
  local function rest_to(last)
    while ends_at[k] and at < last do
      local to = math.min(last, ends_at[k].to)
      if at < to then
        segments[#segments + 1] = { from = at, to = to, response = 0, all = ends_at[k].weight }
        at = to
      end
      if at >= ends_at[k].to then k = k + 1 end
    end
  end
  for _, range in ipairs(learnt) do
    rest_to(range.from)
    range.from = math.max(range.from, at)
    if range.from < range.to then segments[#segments + 1], at = range, range.to end
  end
  rest_to(math.huge)
  return segments
end

-- An answer that was cut off ends where its last string does.
local function cut_at(talk, found, count)
  if not talk.open then return nil end
  local turn = found[count]
  if not turn or talk.messages[count].role ~= 'assistant' then
    fail('ended is false, and the last message is no answer')
  end
  return turn.cut
end

local function cut_spans(list, step, last)
  local kept = {}
  for k = 1, #list, step do
    if list[k] < last then
      for j = 0, step - 1 do kept[k + j] = list[k + j] end
      kept[k + 1] = math.min(kept[k + 1], last)
    end
  end
  return kept
end

-- How many turns that are learnt have thinking that the template leaves out, as of turns before the
-- last.
local function unwritten_thoughts(messages, r, wanted)
  local written, missing = {}, 0
  for k = 3, #r.spans, 3 do
    local source = r.sources[r.spans[k]]
    if source.message and masks.THOUGHT[source.field] then written[source.message] = true end
  end
  for i, message in ipairs(messages) do
    if wanted[i] and turns.has_thoughts(message) and not written[i] then missing = missing + 1 end
  end
  return missing
end

-- The first `count` messages as a prepared text, of which `wanted` are learnt.
local function prepare_turns(chat, talk, wanted, count)
  local messages, known = first_of(talk.messages, count), M.known(chat, talk)
  local r = M.render(chat, talk, messages, false)
  local c = { messages = messages, wanted = wanted, probe = known.probe, memo = known.memo,
    marked = talk.entry.compiled.has_generation, thinking = chat.options.thinking == 'learn',
    calls = chat.options.tool_calls == 'learn',
    render = function(n, prompt) return M.render(chat, talk, first_of(messages, n), prompt) end }
  local found, shares = masks.turns(c, r)
  local marks = marks_of(chat, segments_of(talk, found, shares, count))
  local plain, text, cut = M.plain(r.spans, r.sources), r.text, cut_at(talk, found, count)
  if cut then
    text, plain, marks = text:sub(1, cut), cut_spans(plain, 2, cut), cut_spans(marks, 3, cut)
  end
  local letters = chat.options.spelled == 'letters'
  return { text = text, plain = letters and plain or nil, marks = marks, bos = false,
    spelled = letters and spelled_in_spans(chat, text, plain) or nil,
    thoughts = unwritten_thoughts(messages, r, wanted) }
end

local function prepare_conversation(chat, sample)
  local talk = M.conversation(chat, sample)
  local n = #talk.messages
  local wanted, last = wanted_of(chat, talk, n)
  if not last then fail('no token is supervised' .. why_nothing(talk.messages, chat.learnt)) end
  if chat.options.turns ~= 'each' then return { prepare_turns(chat, talk, wanted, n) } end
  local list, open = {}, talk.open
  for i = 1, n do
    if chat.learnt[talk.messages[i].role] and talk.trained[i] and talk.weights[i] > 0 then
      talk.open = open and i == n
      list[#list + 1] = prepare_turns(chat, talk, (wanted_of(chat, talk, i)), i)
    end
  end
  return list
end

-- ids of texts ---------------------------------------------------------------------------------

--- A prepared text as a block of its own; what is wrong with it is said without its number there.
--- @param chat ms_chat
--- @param p table
--- @return ms_block
function M.block(chat, p)
  local ok, block = fail.pcall(tokenizer.block, chat.tokenizer, { p })
  if not ok then fail((block:gsub('^block: ', ''):gsub('^text 1 of 1: ', ''))) end
  return block
end

--- The ids of what was prepared, the level of each, and their number; BOS comes before them.
--- @param chat ms_chat
--- @param p table
--- @return ffi.cdata* ids int32_t[n]
--- @return ffi.cdata* levels uint8_t[n]
--- @return integer n
function M.encoded(chat, p)
  if p.ids then return p.ids, p.levels, p.n end
  local block = M.block(chat, p)
  local count, before = tonumber(block.start[1]), p.bos and #chat.bos or 0
  local ids, levels = ints(before + count), bytes(before + count)
  for i = 1, before do ids[i - 1] = chat.bos[i] end
  ffi.copy(ids + before, block.ids, 4 * count)
  ffi.copy(levels + before, block.level, count)
  block:free()
  return ids, levels, before + count
end

-- A prepared text as ids, with one more behind them.
local function exactly(chat, p, last)
  local ids, levels, n = M.encoded(chat, p)
  local more, high = ints(n + 1), bytes(n + 1)
  ffi.copy(more, ids, 4 * n)
  ffi.copy(high, levels, n)
  more[n], high[n] = last, ONE
  return { ids = more, levels = high, n = n + 1, spelled = p.spelled }
end

-- plain texts ------------------------------------------------------------------------------------

local function need_eos(chat)
  if chat.eos[1] then return chat.eos[1] end
  fail('no token ends a text: generation_config.json, config.json and tokenizer_config.json name '
    .. 'none that the tokenizer has')
end

-- Whether a text's end, spelled behind it, becomes its id: one that is normalised may need a space
-- before it.
local function reads_as(chat, eos)
  if chat.reads[eos] == nil then
    local tok, spelled = chat.tokenizer, chat.tokenizer:token(eos) or ''
    local with, alone = tok:ids('a' .. spelled), tok:ids 'a'
    alone[#alone + 1] = eos
    chat.reads[eos] = table.concat(with, ' ') == table.concat(alone, ' ')
  end
  return chat.reads[eos]
end

-- A text with its end, learnt from byte `from` on. An end that no text gives is added as an id.
local function prepare_text(chat, text, from, eos, open)
  local letters = chat.options.spelled == 'letters'
  local p = { text = text, plain = letters and { 0, #text } or nil, bos = true,
    spelled = letters and spelled_in(chat, text) or nil }
  local spell = not open and reads_as(chat, eos)
  if spell then p.text = text .. chat.tokenizer:token(eos) end
  p.marks = { from, #p.text, ONE }
  return (open or spell) and p or exactly(chat, p, eos)
end

-- A text without the BOS and the end that it spells; the end to write behind it.
local function bare(chat, text)
  local eos = need_eos(chat)
  local rest, spelled = ends.without(chat.tokenizer, chat.eos, text)
  return rest, spelled or eos
end

local function prepare_pair(chat, sample)
  local prompt, answer = sample.prompt, sample.answer
  if type(prompt) ~= 'string' then fail('the prompt is not text') end
  if type(answer) ~= 'string' then fail('the answer is not text') end
  for _, key in ipairs { 'system', 'history', 'tools', 'documents' } do
    if turns.is_there(sample[key]) then
      fail('what is learnt depends on "%s", and without a chat template nothing writes it', key)
    end
  end
  if answer == '' then fail('empty answer') end
  local rest, eos = bare(chat, answer)
  prompt = ends.behind(chat.tokenizer, chat.bos, prompt)
  return prepare_text(chat, prompt .. rest, #prompt, eos, sample.ended == false)
end

local function prepare_whole(chat, sample)
  local text = sample.text
  if type(text) ~= 'string' then fail('the text is not text') end
  if text == '' then fail('empty text') end
  local rest, eos = bare(chat, ends.behind(chat.tokenizer, chat.bos, text))
  return prepare_text(chat, rest, 0, eos, sample.ended == false)
end

-- ids --------------------------------------------------------------------------------------------

local function check_ids(chat, name, list)
  local size = chat.tokenizer:size()
  if not json.is_array(list) then fail(name .. ' is no list') end
  if #list == 0 then fail(name .. ' is empty') end
  for i, id in ipairs(list) do
    if type(id) ~= 'number' or id % 1 ~= 0 or id < 0 or id >= size then
      fail('%s: id %d is %s; ids of this tokenizer are integers in 0..%d', name, i,
        tostring(id), size - 1)
    end
  end
  return list
end

local function prepare_answer_ids(chat, sample)
  local prompt = check_ids(chat, 'prompt_ids', sample.prompt_ids)
  local answer = check_ids(chat, 'answer_ids', sample.answer_ids)
  local n = #prompt + #answer
  local p = { ids = ints(n), levels = bytes(n), n = n }
  for i, id in ipairs(prompt) do p.ids[i - 1] = id end
  for i, id in ipairs(answer) do
    p.ids[#prompt + i - 1], p.levels[#prompt + i - 1] = id, ONE
  end
  return p
end

local function of_length(name, list, n)
  if not json.is_array(list) then fail(name .. ' is no list') end
  if #list ~= n then fail('%d %s for %d ids', #list, name, n) end
  return list
end

-- Whether token i is learnt, by a label (-100: not) or an entry of a mask.
local function by_label(label, id, i)
  if label == -100 then return false end
  if label == id then return true end
  fail('label %d is %s, neither -100 nor the id %d', i, tostring(label), id)
end

local function by_mask(value, i)
  if value == true or value == 1 then return true end
  if value == false or value == 0 then return false end
  fail('entry %d of the mask is %s, neither 0 nor 1', i, tostring(value))
end

local function prepare_ids(chat, sample)
  local list = check_ids(chat, 'ids', sample.ids)
  local n = #list
  local labels = sample.labels ~= nil and of_length('labels', sample.labels, n)
  local mask = sample.mask ~= nil and of_length('mask', sample.mask, n)
  local p = { ids = ints(n), levels = bytes(n), n = n }
  for i, id in ipairs(list) do
    local learnt = true
    if labels then learnt = by_label(labels[i], id, i) end
    if mask then learnt = learnt and by_mask(mask[i], i) end
    p.ids[i - 1], p.levels[i - 1] = id, learnt and ONE or 0
  end
  return p
end

-- samples ----------------------------------------------------------------------------------------

--- See `chat:prepare`.
--- @param chat ms_chat
--- @param sample table
--- @return table[]
function M.prepare(chat, sample)
  if sample.prompt_ids ~= nil or sample.answer_ids ~= nil then
    return { prepare_answer_ids(chat, sample) }
  end
  if sample.ids ~= nil then return { prepare_ids(chat, sample) } end
  local is_pair = sample.prompt ~= nil or sample.answer ~= nil
  if sample.messages ~= nil or is_pair then
    if chat.set then return prepare_conversation(chat, sample) end
    if is_pair and sample.messages == nil then return { prepare_pair(chat, sample) } end
    fail('there is no chat template to write messages with, and this tokenizer has no %s and %s, '
      .. 'which ChatML is written with: give prompts and answers, or texts, in columns of their '
      .. 'own, or template=FILE', ends.turn.first, ends.turn.last)
  end
  if sample.text ~= nil then return { prepare_whole(chat, sample) } end
  fail('no messages, no prompt and answer, no text')
end

return M
