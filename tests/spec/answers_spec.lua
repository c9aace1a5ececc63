-- Answers that a model generates become data, and what is learnt of that data is what was generated:
-- for every kind of tokenizer, as ids and as text.
local ffi = require 'ffi'
local ms = require 'moonstill'
local json = require 'moonstill.base.json'
local models = require 'tests.support.models'
local small = require 'tests.support.tokenizers'
local tools = require 'tests.support.tools'

local refused = tools.refused

-- The ids of a sample, and those of them that some position learns.
local function learnt(data, i)
  local ids, n, weights = data:sample(i)
  local all, list = {}, {}
  for t = 0, n - 1 do
    all[t + 1] = ids[t]
    if t > 0 and weights[t - 1] > 0 then list[#list + 1] = ids[t] end
  end
  return all, list
end

local function joined(a, b)
  local all = {}
  for _, list in ipairs { a, b } do
    for _, id in ipairs(list) do all[#all + 1] = id end
  end
  return all
end

local function read(path, chat) return ms.dataset.open(path, chat, { quiet = true, max_tokens = 4096 }) end

-- A model of random words in which `stop` comes about once in ten tokens: column 0 of the embedding
-- is large for every token and only the row of `stop` in the head looks at it.
local function babbler(vocab, stop)
  local config = models.config { vocab_size = vocab, hidden_size = 16, intermediate_size = 8,
    num_hidden_layers = 1, num_attention_heads = 2, num_key_value_heads = 2,
    max_position_embeddings = 256, initializer_range = 0.02 }
  local model = ms.model.create(config, 3, { dtype = 'f32' })
  for name, weight in model:parameters() do
    local embedding, head = name == 'model.embed_tokens.weight', name == 'lm_head.weight'
    if embedding or head then
      local values = ffi.new('float[?]', weight:count())
      weight:read(values)
      for i = 0, vocab - 1 do values[i * 16] = embedding and 10 or 0 end
      -- the norm makes column 0 sqrt(16) = 4: exp(4 x) = vocab / 9
      if head then values[stop * 16] = math.log(vocab / 9) / 4 end
      weight:write(values)
    end
    weight:free()
  end
  return model
end

-- Kinds of tokenizers: a folder, and the token that ends an answer where no file names one.
local KINDS = { { 'tokenizers/falcon', '<|endoftext|>' }, { 'tokenizers/gpt-neox-20b', '<|endoftext|>' },
  { 'tokenizers/gpt2', '<|endoftext|>' }, { 'tokenizers/mistral-v1-minueza-32m-chat' },
  { 'tokenizers/phi-3-mini' }, { 'tokenizers/qwen3' }, { 'tokenizers/torchtune-assets', '<|endoftext|>' },
  { 'models/tinystories-656k' } }
for _, name in ipairs { 'bytelevel_noregex', 'bytelevel', 'digits_bytelevel', 'metaspace', 'split_cl100k',
  'split_o200k', 'split_qwen2' } do
  KINDS[#KINDS + 1] = { 'tokenizers/tiny-neural-api/tiny_bpe_' .. name .. '_tokenizer.json' }
end

local PROMPTS = { 'Once upon a time', 'Sum: ', 'x', 'naïve – 你好', 'a\n\n', '<s>b' }

-- Opens the tokenizer in a folder of its own, whose config.json names `token` where that is given.
local function chat_of(path, token)
  if not token then return ms.chat.open(path) end
  local folder, tok = tools.folder(), ms.tokenizer.open(path)
  tools.run('cp ' .. path .. '/tokenizer.json ' .. folder)
  -- some of the small ones have no such token: any id will do
  tools.write(folder .. '/config.json', json.encode { eos_token_id = tok:id(token) or tok:size() - 1 })
  tok:free()
  return ms.chat.open(folder)
end

-- What a model answers, a few prompts at a time as `rows` takes them.
local function generated(model, prompts, how)
  local answers = {}
  for first = 1, #prompts, how.together do
    local part = { unpack(prompts, first, math.min(#prompts, first + how.together - 1)) }
    for _, answer in ipairs(model:generate(part, { temperature = how.temperature, seed = how.seed,
      max_new = how.max_new, stop = how.stop, first = first - 1 })) do answers[#answers + 1] = answer end
  end
  return answers
end

local function check_ids(model, chat, prompts, given, answers, how, stop)
  local file, ended = tools.folder() .. '/answers.jsonl', 0
  local report = ms.generate.write(file, model, chat, prompts, how)
  local data = read(file, chat)
  assert.equal(#prompts, data:count())
  for i = 1, #prompts do
    local all, list = learnt(data, i)
    assert.same(answers[i], list) -- the end where it came, and only there
    assert.same(joined(given[i], answers[i]), all)
    if list[#list] == stop then ended = ended + 1 end
  end
  assert.same({ ended = ended, empty = 0, differ = 0 }, report)
  assert.is_true(ended >= #prompts / 3 and ended < #prompts, ended .. ' ended')
end

-- Whether ids have a text.
local function has_text(chat, ids, stop)
  local list = {}
  for _, id in ipairs(ids) do
    if id ~= stop then list[#list + 1] = id end
  end
  return chat.tokenizer:decode(list, { skip_special = true }) ~= ''
end

-- Random tokens seldom are those that their text gives: what differs must be counted.
local function check_text(model, chat, prompts, given, answers, how, stop)
  local is_stop = {}
  for _, id in ipairs(chat.stop) do is_stop[id] = true end
  how.form = 'text'
  local file, differ, k = tools.folder() .. '/answers.jsonl', 0, 0
  local report = ms.generate.write(file, model, chat, prompts, how)
  local data = read(file, chat)
  for i, answer in ipairs(answers) do
    if has_text(chat, answer, stop) then
      k = k + 1
      local all, list = learnt(data, k)
      -- of a prompt and an answer in one text either may be other tokens
      local same = table.concat(list, ' ') == table.concat(answer, ' ')
        and table.concat(all, ' ', 1, #given[i] + #answer) == table.concat(joined(given[i], answer), ' ')
      differ = differ + (same and 0 or 1)
      assert.equal(answer[#answer] == stop, is_stop[list[#list]] or false, 'the end of answer ' .. i)
    end
  end
  assert.equal(k, data:count())
  assert.equal(#prompts - k, report.empty)
  assert.equal(differ, report.differ)
end

local function check_kind(path, token)
  local chat = chat_of(path, token)
  local stop = chat.stop[1] or chat.tokenizer:size() - 1
  local model = babbler(chat.tokenizer:size(), stop)
  local how = { temperature = 1, seed = 5, max_new = 12, together = 4, quiet = true,
    stop = #chat.stop == 0 and { stop } or nil }
  local prompts, given = {}, {}
  for i = 1, 32 do
    prompts[i] = PROMPTS[i % #PROMPTS + 1]
    given[i] = chat:prompt(prompts[i])
  end
  local answers = generated(model:add_ends(chat.stop), given, how)
  check_ids(model, chat, prompts, given, answers, how, stop)
  if chat.eos[1] then check_text(model, chat, prompts, given, answers, how, stop) end
  model:free()
  chat:free()
end

describe('answers as data', function()
  for _, kind in ipairs(KINDS) do
    local path, why = tools.shared(kind[1])
    if not path then pending(kind[1], why) else
      it('train what was generated: ' .. kind[1], function() check_kind(path, kind[2]) end)
    end
  end
end)

-- A model that answers "bc" and ends, over a tokenizer of bytes.
local VOCAB = 304
local function chain(tokens, eos, last)
  local folder = tools.folder()
  tools.write(folder .. '/tokenizer.json', json.encode(small.byte_level { added = tokens }))
  tools.write(folder .. '/config.json', json.encode { eos_token_id = eos })
  local chat = ms.chat.open(folder)
  -- whatever the prompt's last token is
  local follows = { [97] = 98, [10] = 98, [98] = 99, [99] = last or chat.stop[#chat.stop] }
  return models.chain(follows, VOCAB):add_ends(chat.stop), chat
end
local function plain(last)
  return chain({ small.added(300, '<s>'), small.added(301, '</s>', { special = false }) }, 301, last)
end
local function chatml(last)
  return chain({ small.added(300, '<|im_start|>'), small.added(301, '<|im_end|>'),
    small.added(302, '<|endoftext|>') }, 302, last)
end

describe('rows of answers', function()
  it('are ids with their text, or text', function()
    local model, chat = plain()
    local rows, report = ms.generate.rows(model, chat, { 'a', 'xa' })
    assert.same({ { prompt_ids = { 97 }, answer_ids = { 98, 99, 301 }, answer = 'bc', ended = true },
      { prompt_ids = { 120, 97 }, answer_ids = { 98, 99, 301 }, answer = 'bc', ended = true } }, rows)
    assert.same({ ended = 2, empty = 0, differ = 0 }, report)
    rows, report = ms.generate.rows(model, chat, { 'a' }, { form = 'text' })
    assert.same({ { prompt = 'a', answer = 'bc', ended = true } }, rows)
    assert.same({ ended = 1, empty = 0, differ = 0 }, report)
    assert.same({ 97 }, ms.generate.rows(model, chat, { { 97 } })[1].prompt_ids)
    refused("prompt 2 is a list of ids, which form = 'text' cannot write", ms.generate.rows, model, chat,
      { 'a', { 97 } }, { form = 'text' })
    refused("generate: 'form' must be one of ids, text, not x", ms.generate.rows, model, chat, { 'a' }, { form = 'x' })
    refused("no option 'max_mew'; did you mean 'max_new'", ms.generate.rows, model, chat, { 'a' }, { max_mew = 1 })
    refused("'together' must be integer >= 1, not 0", ms.generate.rows, model, chat, { 'a' },
      { together = 0 })
    model:free()
  end)

  -- what is learnt of rows in either form
  local function round(model, chat, prompts, options)
    local file = tools.folder() .. '/rows.jsonl'
    options.quiet = true
    local report = ms.generate.write(file, model, chat, prompts, options)
    local _, list = learnt(read(file, chat), 1)
    return list, report
  end

  for _, form in ipairs { 'ids', 'text' } do
    it('train what was generated, turns too: ' .. form, function()
      local model, chat = plain()
      assert.same({ 98, 99, 301 }, (round(model, chat, { 'a' }, { form = form })))
      model:free()
      model, chat = chatml()
      for _, prompt in ipairs { 'Hi', { { role = 'system', content = 'S' }, { role = 'user', content = 'Hi' } } } do
        local list, report = round(model, chat, { prompt }, { form = form })
        assert.same({ 98, 99, 301 }, list)
        assert.equal(0, report.differ)
      end
      model:free()
    end)

    it('of an answer that was cut off learn no end: ' .. form, function()
      for _, make in ipairs { plain, chatml } do
        local model, chat = make()
        local list, report = round(model, chat, { 'a' }, { form = form, max_new = 2 })
        assert.same({ 98, 99 }, list)
        assert.same({ ended = 0, empty = 0, differ = 0 }, report)
        model:free()
      end
    end)
  end

  it('count a text that trains other tokens', function()
    -- ChatML's end is written, whichever the model's was
    local model, chat = chatml(302)
    local list, report = round(model, chat, { 'a' }, { form = 'text' })
    assert.same({ 98, 99, 301 }, list)
    assert.same({ ended = 1, empty = 0, differ = 1 }, report)
    list, report = round(model, chat, { 'a' }, { form = 'ids' })
    assert.same({ 98, 99, 302 }, list)
    assert.same({ ended = 1, empty = 0, differ = 0 }, report)
    model:free()
  end)

  it('leave out what is empty', function()
    local model, chat = plain()
    local rows, report = ms.generate.rows(model, chat, { 'c', 'a' }, { form = 'text' })
    assert.equal(1, #rows)
    assert.same({ ended = 1, empty = 1, differ = 0 }, report)
    rows, report = ms.generate.rows(model, chat, { 'c' }) -- as ids the end alone is an answer
    assert.same({ 301 }, rows[1].answer_ids)
    assert.same({ ended = 1, empty = 0, differ = 0 }, report)
    model:free()
  end)

  it('do not depend on how many prompts go together', function()
    local model, chat = plain()
    local prompts, all = {}, {}
    for i = 1, 7 do prompts[i] = 'a' end
    for i, together in ipairs { 1, 3, 7 } do
      all[i] = ms.generate.rows(model, chat, prompts, { together = together, temperature = 3, max_new = 9,
        seed = 1, first = 100 })
    end
    assert.same(all[1], all[2])
    assert.same(all[1], all[3])
    assert.not_same(all[1][1].answer_ids, all[1][4].answer_ids)
    assert.not_same(all[1], ms.generate.rows(model, chat, prompts, { temperature = 3, max_new = 9, seed = 1 }))
    model:free()
  end)

  it('come in parts, from any prompt on, until it is enough', function()
    local model, chat = plain()
    local prompts, how = { 'a', 'c', 'a', 'a', 'a' }, { temperature = 3, max_new = 9, seed = 1, form = 'text' }
    local whole = ms.generate.rows(model, chat, prompts, how)
    for from = 1, 5 do
      local places, list, asked = {}, {}, 0
      how.from, how.together = from, 2
      local next_part, report = ms.generate.parts(model, chat, prompts, how, function()
        asked = asked + 1
        return false
      end)
      for last, rows in next_part do
        places[#places + 1] = last
        for _, row in ipairs(rows) do list[#list + 1] = row end
      end
      assert.equal(5, places[#places])
      assert.equal(math.min(5, from + 1), places[1])
      assert.is_true(asked >= 5 - from)
      -- the last ones of all, since an empty answer has no row
      for k = 0, #list - 1 do assert.same(whole[#whole - k], list[#list - k] or nil) end
      assert.equal(6 - from, #list + report.empty)
    end
    local times = 0
    local next_part = ms.generate.parts(model, chat, prompts, { together = 2 }, function()
      times = times + 1
      return times == 5 -- in the second part
    end)
    assert.equal(2, (next_part()))
    assert.is_nil(next_part())
    assert.is_nil(next_part())
    assert.equal(5, times)
    model:free()
  end)

  it('come piece by piece, behind ids as well, and tell why they ended', function()
    local model, chat = plain()
    local tok = chat.tokenizer
    local function all(prompt, options, halt)
      local next_piece, told = ms.generate.pieces(model, tok, prompt, options, halt)
      local parts = {}
      for piece in next_piece do parts[#parts + 1] = piece end
      return { table.concat(parts), told }
    end
    assert.same({ 'bc', { ended = true, halted = false, count = 3 } }, all 'a')
    assert.same(all 'a', all(chat:prompt 'a'))
    assert.same({ 'bc', { ended = false, halted = false, count = 2 } }, all('a', { max_new = 2 }))
    local left = 1
    local halted = all('a', {}, function()
      left = left - 1
      return left < 0
    end)
    assert.same({ 'b', { ended = false, halted = true, count = 1 } }, halted)
    model:free()
  end)

  it('of a chat come piece by piece too, with the message to go on with', function()
    local model, chat = chatml()
    local messages, shown = { { role = 'user', content = 'Hi' } }, {}
    for _, prompt in ipairs { messages, chat:prompt(messages) } do
      local text, message, told = chat:reply(model, prompt, {}, function(piece) shown[#shown + 1] = piece end)
      assert.same({ 'bc', { role = 'assistant', content = 'bc' } }, { text, message })
      assert.same({ ended = true, halted = false, count = 3, prompt = 21 }, told)
    end
    assert.same({ 'b', 'c', 'b', 'c' }, shown)
    local text, _, told = chat:reply(model, 'Hi', { max_new = 1 })
    assert.same({ 'b', false }, { text, told.ended })
    text, _, told = chat:reply(model, 'Hi', {}, nil, function() return true end)
    assert.same({ '', true }, { text, told.halted })
    assert.same({ 'bc' }, { ms.generate.answer(model, chat, 'Hi') })
    assert.equal('bc', ms.generate.answer(model, chat, messages))
    assert.equal('b', ms.generate.answer(model, chat, 'Hi', { max_new = 1 }))
    refused("no option 'max_ne'", ms.generate.answer, model, chat, 'Hi', { max_ne = 1 })
    refused('chat is nothing', ms.generate.answer, model, nil, 'Hi')
    refused('model', ms.generate.answer, chat, chat, 'Hi')
    model:free()
  end)

  it('of the project\'s own toy tokenizer train what was generated', function()
    local values = ms.smoke.sft(tools.folder() .. '/smoke')
    local chat, model = ms.chat.open(values.student), ms.model.open(values.student)
    local prompts, given = {}, {}
    for i, p in ipairs(ms.toy.problems('valid', 20)) do
      prompts[i] = p.messages[1].content
      given[i] = chat:prompt(prompts[i])
    end
    local how = { temperature = 1, max_new = 40, together = 20, quiet = true }
    local answers = generated(model, given, how)
    local file = tools.folder() .. '/toy.jsonl'
    ms.generate.write(file, model, chat, prompts, how)
    local data = read(file, chat)
    for i = 1, 20 do assert.same(answers[i], select(2, learnt(data, i))) end
    model:free()
  end)

  it('say what is in the file', function()
    local folder = tools.folder()
    local values = ms.smoke.sft(folder .. '/smoke')
    local script = tools.write(folder .. '/write.lua', ([[
local ms = require 'moonstill'
local model, chat = ms.model.open '%s', ms.chat.open '%s'
ms.generate.write('%s/rows.jsonl', model, chat, { 'a', 'b' }, { max_new = 3, form = 'text' })
]]):format(values.student, values.student, folder))
    local status, _, err = tools.run(tools.quote(tools.program()) .. ' ' .. script)
    assert.equal(0, status, err)
    assert.matches('rows.jsonl: 2 answers, 0 of them ended', err)
  end)
end)

describe('rows of ids', function()
  local _, chat = plain()
  local function open(text) return read(tools.write(tools.folder() .. '/rows.jsonl', text), chat) end

  it('are refused with file and line', function()
    local good = '{"prompt_ids": [97], "answer_ids": [98, 301]}\n'
    for text, pattern in pairs {
      ['{"prompt_ids": [97], "answer_ids": [98, 302]}'] =
        'answer_ids: id 2 is 302; ids of this tokenizer are integers in 0%.%.301',
      ['{"prompt_ids": [97.5], "answer_ids": [98]}'] = 'prompt_ids: id 1 is 97%.5',
      ['{"prompt_ids": [97], "answer_ids": []}'] = 'answer_ids is empty',
      ['{"prompt_ids": [97]}'] = 'answer_ids is no list',
      ['{"prompt_ids": null, "answer_ids": [98]}'] = 'prompt_ids is no list',
      ['{"prompt_ids": [97], "answer_ids": [98], "ended": 1}'] = 'column "ended" is neither true nor false',
    } do
      refused('rows.jsonl:2: ' .. pattern, open, good .. text .. '\n')
    end
  end)

  it('may carry text and columns beside, and say whether they ended', function()
    local data = open '{"prompt": "x", "answer": "y", "prompt_ids": [97], "answer_ids": [98], "ended": null}\n'
    assert.same({ 98 }, select(2, learnt(data, 1)))
  end)

  it('of text learn an end unless they were cut off', function()
    local data = open('{"prompt": "x", "answer": "b", "ended": true}\n{"prompt": "x", "answer": "b"}\n'
      .. '{"prompt": "x", "answer": "b", "ended": false}\n')
    assert.same({ 98, 301 }, select(2, learnt(data, 1)))
    assert.same({ 98, 301 }, select(2, learnt(data, 2)))
    assert.same({ 98 }, select(2, learnt(data, 3)))
    assert.equal(1, data.report.open)
    assert.same({ '1 row with "ended": false, of which no end is learnt' }, data.report:lines {})
  end)
end)
