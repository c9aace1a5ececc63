--- Exact answers: what a model answers, greedily, to the prompts of a data set, beside the answers
--- that the data has.
---
--- A sample's answer is the last run of tokens that are learnt, up to the token that ends it; its
--- prompt is what stands before that, token by token as it is learnt. So every form of data, every
--- template and every option that shapes samples is as in training. A sample in which all is learnt
--- has no prompt, and one whose answer has no end in it was cut off: both are left out and counted.

local C = require 'moonstill.C'
local ends = require 'moonstill.text.ends'
local generate = require 'moonstill.model.generate'

local M = {}

--- What a text says for a comparison: what the pattern captures, or all of it, without blanks
--- around it; nil where the pattern does not match.
--- @param text string
--- @param pattern? ms_pattern
--- @return string?
function M.said(text, pattern)
  if pattern then text = pattern:last(text) end
  return text and (text:match '^%s*(.*%S)' or '')
end

-- The ids of a sample between two places, from 0.
local function part(ids, first, last)
  local list = {}
  for t = first, last do list[#list + 1] = ids[t] end
  return list
end

-- The first and the last token of the last run of learnt tokens, from 0; nil without one.
local function last_run(n, weights)
  local last = n - 1
  while last > 0 and not (weights[last - 1] > 0) do last = last - 1 end
  if last == 0 then return nil end
  local first = last
  while first > 1 and weights[first - 2] > 0 do first = first - 1 end
  return first, last
end

-- The prompt and the answer of a sample; or nil and why it has none.
local function question_of(data, i, is_stop)
  local ids, n, weights = data:sample(i)
  local first, last = last_run(n, weights)
  if not first then return nil, 'unlearnt' end
  if first == 1 then return nil, 'without_prompt' end
  for t = first, last do
    if is_stop[ids[t]] then
      return { sample = i, prompt = part(ids, 0, first - 1), answer = part(ids, first, t - 1) }
    end
  end
  return nil, 'cut'
end

--- The questions of some samples of a data set, evenly apart.
--- @param data ms_dataset
--- @param n integer how many samples are looked at
--- @param stop integer[] ids that end an answer
--- @return { sample: integer, prompt: integer[], answer: integer[] }[]
--- @return table<string, integer> left_out how many have none: unlearnt, without_prompt, cut
function M.questions(data, n, stop)
  local list, left_out, is_stop, count = {}, {}, {}, data:count()
  for _, id in ipairs(stop) do is_stop[id] = true end
  n = math.min(n, count)
  for k = 0, n - 1 do
    local question, why = question_of(data, math.floor(k * count / n) + 1, is_stop)
    if question then
      list[#list + 1] = question
    else
      left_out[why] = (left_out[why] or 0) + 1
    end
  end
  return list, left_out
end

--- The longest answer in tokens.
--- @param questions table[]
--- @return integer
function M.longest(questions)
  local most = 0
  for _, question in ipairs(questions) do most = math.max(most, #question.answer) end
  return most
end

-- Generates the answers, some at a time; nil where `halt` gave it up.
local function generated(model, questions, how)
  local all = {}
  for first = 1, #questions, how.together do
    local prompts = {}
    for k = first, math.min(#questions, first + how.together - 1) do
      prompts[#prompts + 1] = questions[k].prompt
    end
    local options = { max_new = how.max_new, stop = how.stop }
    local answers = generate.collect(generate.open(model, prompts, options), how.halt)
    if not answers then return nil end
    for _, ids in ipairs(answers) do all[#all + 1] = ids end
    if how.done then how.done(#all, #questions) end
  end
  return all
end

-- The answers of all ranks, each of which generates those of its part.
local function generated_together(model, questions, how)
  local all, costs, numbers, answers = model:grid().dp, {}, {}, {}
  if all.size == 1 then return generated(model, questions, how) end
  for i, question in ipairs(questions) do
    costs[i], numbers[i] = #question.prompt + how.max_new, i
  end
  local mine, asked, words = all:share(numbers, costs), {}, {}
  for k, i in ipairs(mine) do asked[k] = questions[i] end
  for k, ids in ipairs(generated(model, asked, how)) do
    words[k] = ('%d:%s;'):format(mine[k], table.concat(ids, ' '))
  end
  for _, text in ipairs(all:each(table.concat(words))) do
    for i, ids in (text or ''):gmatch '(%d+):([%d ]*);' do
      local answer = {}
      for id in ids:gmatch '%d+' do answer[#answer + 1] = tonumber(id) end
      answers[tonumber(i)] = answer
    end
  end
  return answers
end

-- One answer beside the one of the data; nil where the pattern finds nothing in that.
local function compared(question, ids, read, is_stop, pattern)
  local reference = read(question.answer)
  local expected = M.said(reference, pattern)
  if not expected then return nil end
  local text = read(ids)
  local got = M.said(text, pattern)
  return { sample = question.sample, reference = reference, answer = text, expected = expected,
    got = got, right = got == expected, ended = is_stop[ids[#ids]] or false, tokens = #ids }
end

--- Asks a model the questions.
--- @param model ms_model
--- @param chat ms_chat
--- @param questions table[] see `questions`
--- @param how { max_new: integer, together: integer, pattern?: ms_pattern,
---   halt?: (fun(): boolean), done?: fun(n: integer, of: integer) }
--- @return table? rows { sample, reference, answer, expected, got, right, ended, tokens } of each
---   question whose reference the pattern matches; nil where `halt` ended it
--- @return { unmatched: integer, tokens: integer, seconds: number, reference?: string } told
---   reference: the first one
function M.ask(model, chat, questions, how)
  local began, told, rows, is_stop = C.ms_clock(), { unmatched = 0, tokens = 0 }, {}, {}
  local stop = ends.union(chat.tokenizer:size(), model:ends(), chat.stop)
  for _, id in ipairs(stop) do is_stop[id] = true end
  local answers = generated_together(model, questions, { max_new = how.max_new,
    together = how.together, stop = stop, halt = how.halt, done = how.done })
  told.seconds = C.ms_clock() - began
  if not answers then return nil, told end
  local read = generate.reader(model, chat.tokenizer)
  for i, ids in ipairs(answers) do
    told.reference = told.reference or read(questions[i].answer)
    local row = compared(questions[i], ids, read, is_stop, how.pattern)
    if row then rows[#rows + 1] = row else told.unmatched = told.unmatched + 1 end
    told.tokens = told.tokens + #ids
  end
  return rows, told
end

return M
