local ms = require 'moonstill'
local json = require 'moonstill.base.json'
local tools = require 'tests.support.tools'
local small = require 'tests.support.tokenizers'

local refused = tools.refused

local folder = tools.folder()
local function write(name, rows)
  local lines = {}
  for i, row in ipairs(rows) do lines[i] = type(row) == 'string' and row or json.encode(row) end
  return tools.write(folder .. '/' .. name, table.concat(lines, '\n') .. '\n')
end

tools.write(folder .. '/tokenizer.json', json.encode(small.byte_level { added = {
  small.added(300, '<|im_start|>'), small.added(301, '<|im_end|>'), small.added(302, '<|endoftext|>') } }))
tools.write(folder .. '/config.json', '{"eos_token_id": 302}')
local chat = ms.chat.open(folder)
-- the same without turns: prompt, answer, end
local bare = tools.folder()
tools.write(bare .. '/tokenizer.json', json.encode(small.byte_level { added = { small.added(302, '</s>') } }))
tools.write(bare .. '/config.json', '{"eos_token_id": 302}')
local plain = ms.chat.open(bare)

local function open(path, chat_, options)
  options = options or {}
  options.quiet = true
  return ms.dataset.open(path, chat_, options)
end

-- What opening a data set writes to stderr.
local function said(path, chat_folder, options)
  local script = tools.write(folder .. '/say.lua', ([[
    local ms = require 'moonstill'
    ms.dataset.open(%q, ms.chat.open(%q), %s)]]):format(path, chat_folder, options))
  local status, _, errors = tools.run(("LUA_PATH='lua/?.lua;lua/?/init.lua;;' luajit %s"):format(script))
  assert.equal(0, status, errors)
  return errors
end

-- A sample as text, what is learnt in [ ]: where answers are, or with `all` where everything is.
local function mask(data, i, everything)
  local ids, n, weights, all = data:sample(i)
  if everything then weights = all end
  local parts = {}
  for t = 0, n - 1 do
    local token = ids[t] < 256 and string.char(ids[t]) or data.chat.tokenizer:token(ids[t])
    local w = t > 0 and weights[t - 1] or 0
    parts[#parts + 1] = w == 0 and token or w == 1 and '[' .. token .. ']' or ('[%s*%g]'):format(token, w)
  end
  assert(weights[n - 1] == 0, 'the last position predicts nothing')
  return table.concat(parts)
end
local function masks(data)
  local list = {}
  for i = 1, data:count() do list[i] = mask(data, i) end
  return list
end

describe('dataset: rows', function()
  it('have messages', function()
    local data = open(write('m.jsonl', { { messages = { { role = 'user', content = 'a' },
      { role = 'assistant', content = 'b' } } } }), chat)
    assert.same({ '<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[b][<|im_end|>]\n' }, masks(data))
  end)

  it('have a prompt and an answer under known names, which are said', function()
    for _, pair in ipairs(ms.dataset.pairs) do
      local data = open(write('p.jsonl', { { [pair[1]] = 'ab', [pair[2]] = 'c', other = 1 } }), plain)
      assert.same({ 'ab[c][</s>]' }, masks(data))
    end
    local path = write('q.jsonl', { { question = 'a', answer = 'b', weight = 3 }, { question = 'a', answer = 'b' } })
    assert.equal(('dataset: %s:1: prompts in "question", answers in "answer", as plain text\n'
      .. 'dataset: 1 row has "weight" (weight_key = "weight" uses it), which is not used\n'
      .. 'dataset of 2 samples, 6 tokens\n'):format(path), said(path, bare, '{}'))
    assert.equal(('dataset: %s:1: text in "answer", weights in "weight"\n'
      .. 'dataset: 2 rows have "question", which is not used\n'
      .. 'dataset: 1 row without "weight" (weight_key), whose weight is 1\n'
      .. 'dataset of 2 samples, 4 tokens\n'):format(path),
      said(path, bare, '{ text_key = "answer", weight_key = "weight" }'))
    assert.equal('', said(path, bare, '{ quiet = true }'))
  end)

  it('have other names when told', function()
    local path = write('n.jsonl', { { q = 'a', a = 'b', t = 'text', m = { { role = 'assistant', content = 'x' } } } })
    assert.same({ 'a[b][</s>]' }, masks(open(path, plain, { prompt_key = 'q', answer_key = 'a' })))
    assert.same({ 't[e][x][t][</s>]' }, masks(open(path, plain, { text_key = 't' })))
    assert.same({ '<|im_start|>assistant\n[x][<|im_end|>]\n' }, masks(open(path, chat, { messages_key = 'm' })))
    refused('n.jsonl:1: column "messages" is missing', open, path, chat, { messages_key = 'messages' })
    refused('no known columns among a, m, q, t', open, path, plain)
    refused('belong together', open, path, plain, { prompt_key = 'q' })
  end)

  it("may have an instruction's input", function()
    local data = open(write('i.jsonl', { { instruction = 'a', input = 'b', output = 'c' },
      { instruction = 'a', input = '', output = 'c' } }), plain)
    assert.same({ 'a\n\nb[c][</s>]', 'a[c][</s>]' }, masks(data))
  end)

  it('may have a weight, of predicting positions and of all', function()
    local data = open(write('w.jsonl', { { prompt = 'ab', answer = 'c', w = 0.5 }, { prompt = 'ab', answer = 'c' } }),
      plain, { weight_key = 'w' })
    assert.equal('ab[c*0.5][</s>*0.5]', mask(data, 1))
    local b = data:batch { 1, 2 }
    assert.equal(0.5 * 2 + 2, b:weight())
    assert.equal(0.5 * 3 + 3, b:weight 'all')
    b:free()
    data = open(write('w.jsonl', { { prompt = 'ab', answer = 'c', w = 0 }, { prompt = 'ab', answer = 'c', w = 2 } }),
      plain, { weight_key = 'w' })
    assert.same({ 'abc</s>', 'ab[c*2][</s>*2]' }, masks(data)) -- 0 is a weight
    refused('no sample 3: they are numbered from 1 to 2', data.batch, data, { 1, 3 })
  end)

  it('have weights that f32 holds, or are refused with their line', function()
    local ok = '{"prompt":"a","answer":"b","w":%s}'
    for _, bad in ipairs { '"x"', '-1', '-1e-9', '1e39', '1e308', '3.4028236e38', '1e-46', 'true', '[1]', '{}' } do
      refused('w.jsonl:2: column "w": weight .* is no number from 0 on that f32 holds', open,
        write('w.jsonl', { ok:format '1', ok:format(bad) }), plain, { weight_key = 'w' })
      refused('m.jsonl:1: message 1: weight .* is no number from 0 on that f32 holds', open,
        write('m.jsonl', { ('{"messages":[{"role":"assistant","content":"a","weight":%s}]}'):format(bad) }), chat)
    end
    for _, good in ipairs { '0', '3.4028234e38', '1e-45', 'null' } do
      open(write('w.jsonl', { ok:format '1', ok:format(good) }), plain, { weight_key = 'w' })
    end
    -- and so is the product of a sample's and its message's
    for _, case in ipairs { { 1e20, 1e20 }, { 1e-30, 1e-30 } } do
      refused("p.jsonl:1: the sample's and its message's, multiplied: weight .* is no number from 0 on", open,
        write('p.jsonl', { { w = case[1], messages = { { role = 'assistant', content = 'a', weight = case[2] } } } }),
        chat, { weight_key = 'w' })
      refused("p.jsonl:1: the sample's and its message's, multiplied", open, write('p.jsonl', { { w = case[1],
        messages = { { role = 'user', content = 'q', weight = case[2] }, { role = 'assistant', content = 'a' } } } }),
        chat, { weight_key = 'w' })
    end
  end)

  local function turn(role, text, weight) return { role = role, content = text, weight = weight } end
  local function answer(text, weight) return turn('assistant', text, weight) end

  it('keep the weights of turns', function()
    local data = open(write('tw.jsonl', { { messages = { answer('a', 0.25), answer('b', 0), answer 'c' } } }), chat)
    assert.equal('<|im_start|>assistant\n[a*0.25][<|im_end|>*0.25]\n<|im_start|>assistant\nb<|im_end|>\n'
      .. '<|im_start|>assistant\n[c][<|im_end|>]\n', mask(data, 1))
  end)

  it('keep them where everything is learnt, of whole turns and of prompts', function()
    local path = write('all.jsonl', { { w = 4, messages = { turn('user', 'q', 0.5), answer('a', 0) , answer 'b' } },
      { messages = { turn('user', 'q'), answer('c', 0.25) } } })
    local data = open(path, chat, { weight_key = 'w' })
    local function whole(text, w)
      local parts = {}
      for token in text:gsub('<|[a-z_]*|>', function(t) return t == '<|im_end|>' and '\2' or '\1' end):gmatch '.' do
        parts[#parts + 1] = w == 0 and token or w == 1 and '[' .. token .. ']' or ('[%s*%g]'):format(token, w)
      end
      return (table.concat(parts):gsub('[\1\2]', { ['\1'] = '<|im_start|>', ['\2'] = '<|im_end|>' }))
    end
    local want = whole('<|im_start|>user\nq<|im_end|>\n', 2):gsub('^%[<|im_start|>%*2%]', '<|im_start|>')
      .. whole('<|im_start|>assistant\na<|im_end|>\n', 0) .. whole('<|im_start|>assistant\nb<|im_end|>\n', 4)
    assert.equal(want, mask(data, 1, 'all')) -- no position predicts the first token
    assert.equal('<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n<|im_start|>assistant\n'
      .. '[b*4][<|im_end|>*4]\n', mask(data, 1))
    want = whole('<|im_start|>user\nq<|im_end|>\n', 1):gsub('^%[<|im_start|>%]', '<|im_start|>')
      .. whole('<|im_start|>assistant\nc<|im_end|>\n', 0.25)
    assert.equal(want, mask(data, 2, 'all'))
    local b = data:batch { 2, 1 }
    assert.equal(2 * 0.25 + 2 * 4, b:weight())
    -- turns of a user are 9 tokens, of the assistant 14; the first of a sample is not predicted
    assert.equal(8 + 14 * 0.25 + 8 * 2 + 14 * 0 + 14 * 4, b:weight 'all')
    b:free()
  end)

  it('may come in several files and in an array', function()
    local a = write('a.jsonl', { { prompt = 'a', answer = 'b' }, '', { prompt = 'c', answer = 'd' } })
    local b = write('b.json', { '[{"prompt": "e", "answer": "f"}]' })
    local data = open({ a, b }, plain)
    assert.same({ 'a[b][</s>]', 'c[d][</s>]', 'e[f][</s>]' }, masks(data))
    assert.equal(3, data.report.rows)
    assert.equal(9, data:tokens())
    assert.same({ 'a[b][</s>]', 'c[d][</s>]' }, masks(open({ a, b }, plain, { limit = 2 })))
  end)
end)

describe('dataset: columns and fields that nothing reads', function()
  local function chat_row(more, message)
    local row = { messages = { { role = 'user', content = 'q' }, { role = 'assistant', content = 'a' } } }
    for key, value in pairs(more or {}) do row[key] = value end
    for key, value in pairs(message or {}) do row.messages[2][key] = value end
    return row
  end

  it('are said once, with their count', function()
    local rows = {}
    for i = 1, 5 do
      rows[i] = chat_row({ number = i, source = i > 3 and 'web' or json.null, tags = json.array() }, { time = 7 })
    end
    rows[6] = chat_row(nil, { content = json.array { { type = 'text', text = 'a', cache_control = { x = 1 } } } })
    local path = write('unused.jsonl', rows)
    assert.equal(('dataset: %s:1: conversations in "messages", written as ChatML turns\n'
      .. 'dataset: 5 rows have "number", 2 rows have "source", 1 part of a content has "cache_control", '
      .. '5 messages have "time", which is not used\n'
      .. 'dataset of 6 samples, 138 tokens\n'):format(path), said(path, folder, '{}'))
    assert.same({ { what = 'row', name = 'number', count = 5, ignored = false },
      { what = 'row', name = 'source', count = 2, ignored = false },
      { what = 'part of a content', name = 'cache_control', count = 1, ignored = false },
      { what = 'message', name = 'time', count = 5, ignored = false } }, open(path, chat).report.fields)
  end)

  it('are followed by how many rows spell special tokens', function()
    local row = { text = '<|im_start|>user\nq<|im_end|>\n' }
    local path = write('spelled.jsonl', { row, { text = 'a' }, row, { text = 'b<|endoftext|>' } })
    assert.matches('text in "text"\ndataset: 2 rows with special tokens spelled in text, such as "<|im_start|>": those '
      .. 'are read as letters %(spelled = tokens reads them as tokens%)\n', said(path, folder, '{}'))
  end)

  -- What people's files have, by where it comes from.
  local IN_ROWS = { 'tools', 'functions', 'tool_choice', 'parallel_tool_calls', 'system', 'system_prompt', 'history',
    'documents', 'images', 'image', 'videos', 'audios', 'chosen', 'rejected', 'rejected_response', 'chat_template',
    'chat_template_kwargs', 'enable_thinking', 'reasoning', 'reasoning_content', 'thinking', 'train_on_inputs', 'mask',
    'loss_mask', 'completion_mask', 'assistant_masks', 'input_ids', 'labels', 'attention_mask', 'weights' }
  local IN_MESSAGES = { 'tool_calls', 'function_call', 'tool_call_id', 'name', 'refusal', 'reasoning',
    'reasoning_content', 'thinking', 'thoughts', 'train_detail',
    'mask', 'tools', 'images', 'audio', 'recipient', 'channel' }
  local VALUES = { 'text', 0, true, json.array { 1 }, { a = 1 } }

  it('are an error where they change what is learnt, with file, line and the way on', function()
    for i, name in ipairs(IN_ROWS) do
      local value = VALUES[i % #VALUES + 1]
      local want = ('dep.jsonl:2: what is learnt depends on "%s", which nothing reads: data.ignore=[%s] goes')
        :format(name, name):gsub('%[', '%%['):gsub('%]', '%%]')
      if not name:find '^system' then -- which a conversation takes
        refused(want, open, write('dep.jsonl', { chat_row(), chat_row { [name] = value } }), chat)
      end
      refused(want, open, write('dep.jsonl', { { prompt = 'a', answer = 'b' },
        { prompt = 'a', answer = 'b', [name] = value } }), plain)
      assert.equal(2, open(folder .. '/dep.jsonl', plain, { ignore = { name } }):count())
    end
    for i, name in ipairs(IN_MESSAGES) do
      local path = write('dep.jsonl', { chat_row(), chat_row(nil, { [name] = VALUES[i % #VALUES + 1] }) })
      refused(('dep.jsonl:2: what is learnt depends on "%s" of message 2, which nothing reads: data.ignore=%%[%s%%] ')
        :format(name, name), open, path, chat)
      assert.equal(2, open(path, chat, { ignore = { name } }):count())
    end
    -- all of a row at once, each name once
    local row = chat_row({ tools = 'x', id = 1 }, { tool_calls = 'x', name = 'n' })
    row.messages[3] = { role = 'assistant', content = 'b', name = 'n', tool_calls = 'y' }
    refused('depends on "tools", "name" of message 2, "tool_calls" of message 2, which nothing reads: '
      .. 'data.ignore=%[tools,name,tool_calls%]', open, write('dep.jsonl', { row }), chat)
  end)

  it('depend on the form: a text holds all that it says, a label is a class or a verdict', function()
    local function fine(row, options) open(write('form.jsonl', { row }), plain, options) end
    fine { text = 'a', system = 's', context = 'c', label = true, input = 'i' }
    fine { prompt = 'a', answer = 'b', label = 3 }
    for _, case in ipairs { { 'label', { prompt = 'a', completion = 'b', label = false } }, -- KTO
      { 'context', { instruction = 'a', context = 'b', response = 'c' } },                  -- Dolly
      { 'context', { question = 'a', context = 'b', answer = 'c' } },                       -- SQuAD
      { 'input', { query = 'a', input = 'b', response = 'c' } }, { 'images', { text = 'a', images = { 'x' } } },
      { 'history', { instruction = 'a', input = 'b', output = 'c', history = { { 'd', 'e' } } } } } do
      refused('form.jsonl:1: what is learnt depends on "' .. case[1] .. '", which', fine, case[2])
    end
    -- the first row has no instruction, so nothing would read those of the others
    local function alpaca(instruction) return { instruction = instruction, input = 'a', output = 'b' } end
    refused('form.jsonl:2: what is learnt depends on "instruction", which', open,
      write('form.jsonl', { alpaca(json.null), alpaca 'c' }), plain)
    open(write('form.jsonl', { { prompt_ids = { 1 }, answer_ids = { 2 }, answer = 'x', system = 's' } }), plain)
    refused('depends on "rejected"', open,
      write('form.jsonl', { { prompt_ids = { 1 }, answer_ids = { 2 }, rejected = 'x' } }), plain)
    -- beside conversations these are only their parts
    open(write('form.jsonl', { chat_row { input = 'q', context = 'c' } }), chat)
  end)

  it('are not there when they are null or empty', function()
    for _, nothing in ipairs { json.null, '', ' ', '[]', '{}', json.array(), {} } do
      local row = chat_row({ tools = nothing, history = nothing, id = nothing },
        { tool_calls = nothing, name = nothing })
      assert.same({}, open(write('empty.jsonl', { row }), chat).report.fields)
    end
    local data = open(write('null.jsonl', {
      '{"messages":null,"prompt":null,"completion":null,"question":"a","answer":"b","text":null}',
      '{"prompt":null,"question":"c","answer":"d","w":null}' }), plain, { weight_key = 'w' })
    assert.same({ 'a[b][</s>]', 'c[d][</s>]' }, masks(data))
    assert.equal(2, data.report.unweighted)
    data = open(write('null.jsonl', { '{"instruction":"a","input":null,"output":"c"}' }), plain)
    assert.same({ 'a[c][</s>]' }, masks(data))
    refused('no known columns among prompt, response', open, write('null.jsonl', { '{"prompt":"a","response":null}' }),
      plain)
    refused('null.jsonl:1: column "input" is a number, not text', open,
      write('null.jsonl', { { instruction = 'a', input = 5, output = 'c' } }), plain)
  end)

  it('are left out when told to, and so is what would be read', function()
    local rows = { chat_row({ source = 1, tools = 'x' }, { name = 'n', weight = 3 }), chat_row(nil, { name = 'm' }) }
    local path = write('ignore.jsonl', rows)
    local data = open(path, chat, { ignore = { 'tools', 'name', 'weight' } })
    assert.same({ '<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n[a][<|im_end|>]\n' }, { mask(data, 1) })
    assert.matches('dataset: 1 row has "source", which is not used\ndataset: 1 row has "tools", 2 messages have "name"'
      .. ', '
      .. '1 message has "weight", which is ignored as asked\ndataset: ignore names "nmae", which nothing has\n',
      said(path, folder, '{ ignore = { "tools", "name", "weight", "nmae" } }'))
    data = open(write('alpaca.jsonl', { { instruction = 'a', input = 'b', output = 'c' } }), plain,
      { ignore = { 'input' } })
    assert.same({ 'a[c][</s>]' }, masks(data))
    for _, wrong in ipairs { 'tools', 5 } do
      refused("'ignore' must be list, not ", open, path, chat, { ignore = wrong })
    end
    for _, wrong in ipairs { { 1 }, { { 'a' } } } do
      refused('ignore is a list of names', open, path, chat, { ignore = wrong })
    end
    refused('ignore names "x", which is the weight_key', open, path, chat, { ignore = { 'x' }, weight_key = 'x' })
  end)

  it('say what a row without known columns has', function()
    refused('no known columns among chosen, rejected: .*; data.answer_key=chosen learns the better answers$', open,
      write('form.jsonl', { { chosen = 'a', rejected = 'b' } }), plain)
    refused('no known columns among messages, prompt: .*$', open,
      write('form.jsonl', { { messages = '', prompt = 'a' } }), chat)
    refused('no known columns among refused, tools: .*; nothing reads "tools"$', open,
      write('form.jsonl', { { tools = 'x', refused = 'y' } }), chat)
    refused('the turns of "conversations" have no "role" and "content", and no "from" and "value"', open,
      write('form.jsonl', { { conversations = { { who = 'human', says = 'a' } } } }), chat)
    refused('column "question" is an object, not text', open,
      write('form.jsonl', { { question = 'a', answer = 'c' }, { question = { a = 1 }, answer = 'b' } }), plain)
  end)
end)

describe('dataset: many rows', function()
  local rows = {}
  for i = 1, 2500 do
    rows[i] = i % 3 == 0 and { text = ('t%d'):format(i):rep(i % 5 + 1) }
      or { messages = { { role = 'user', content = 'q' .. i, weight = i % 4 / 2 },
        { role = 'assistant', content = ('a'):rep(i % 50 + 1) .. i, weight = i % 7 / 8 + 0.5 } } }
  end
  local texts, talks = {}, {}
  for _, row in ipairs(rows) do table.insert(row.text and texts or talks, row) end
  local paths = { write('many-talks.jsonl', talks), write('many-texts.jsonl', texts) }

  it('are encoded together as each would be alone', function()
    local data = open(paths, chat)
    assert.equal(2500, data:count())
    for i, row in ipairs(talks) do
      if i % 37 == 1 then
        local ids, n, weights, all = chat:encode { messages = row.messages }
        local got, m, gw, ga = data:sample(i)
        assert.equal(n, m)
        for t = 0, n - 1 do assert.same({ ids[t], weights[t], all[t] }, { got[t], gw[t], ga[t] }) end
      end
    end
    local ids, n = chat:encode(texts[500])
    local got, m = data:sample(#talks + 500)
    assert.equal(n, m)
    for t = 0, n - 1 do assert.equal(ids[t], got[t]) end
  end)

  it('are the same for any number of threads', function()
    local C = require 'moonstill.C'
    local before, want = C.ms_threads_get(), open(paths, chat):fingerprint()
    finally(function() C.ms_threads_set(before) end)
    for _, threads in ipairs { 1, 2, 5 } do
      C.ms_threads_set(threads)
      assert.equal(want, open(paths, chat):fingerprint())
    end
  end)

  it('are refused in their order, whatever is wrong with them', function()
    local bad = { [1200] = '{"text": 5}', [1100] = { text = 'a<\255' }, [1300] = { text = '' } }
    local lines = {}
    for i = 1, 1500 do
      local row = bad[i] or { text = 'text ' .. i }
      lines[i] = type(row) == 'string' and row or json.encode { text = row.text:gsub('\255', '\\u00ff') }
    end
    local path = write('many-bad.jsonl', lines)
    refused('many%-bad.jsonl:1200: column "text" is a number', open, path, chat)
    local report = open(path, chat, { on_error = 'skip' }).report
    assert.equal(2, report.skipped)
    assert.matches(':1200: column "text" is a number', report.errors[1])
    assert.matches(':1300: empty text', report.errors[2])
    -- what cannot be encoded is found in the middle of a block
    local all = {}
    for i = 1, 1500 do all[i] = { text = 'text ' .. i .. (i == 700 and '\255' or '') } end
    refused('row 700: tokenizer: text is not UTF%-8 at byte 8', open, all, chat)
    local data = open(all, chat, { on_error = 'skip' })
    assert.equal(1499, data:count())
    assert.matches('^row 700: tokenizer: text is not UTF%-8', data.report.errors[1])
  end)
end)

describe('dataset: long reading', function()
  -- Each row takes 5 ms, of a clock of its own.
  local script = tools.write(folder .. '/slow.lua', ([[
    local filling, C = require 'moonstill.data.filling', require 'moonstill.C'
    local progress = require 'moonstill.base.progress'
    local now = 0
    progress.clock = function() return now end
    local ms = require 'moonstill'
    ms.dataset.open(%q, ms.chat.open(%q), { map = function(row) now = now + 0.005 return row end })
  ]]):format(write('slow.jsonl', (function()
    local rows = {}
    for i = 1, 2560 do rows[i] = { prompt = 'a', answer = 'b' } end
    return rows
  end)()), bare))
  local command = ("LUA_PATH='lua/?.lua;lua/?/init.lua;;' luajit %s"):format(script)

  it('shows how far it is on a terminal, in a line that it erases', function()
    local status, text = tools.run(('script -qec %s /dev/null < /dev/null'):format(tools.quote(command)))
    assert.equal(0, status, text)
    assert.truthy(text:find('\r\27[K' .. folder .. '/slow.jsonl: 2048 rows, 80%, left 3s', 1, true), text)
    assert.matches('\27%[Kdataset of 2560 samples', text) -- nothing of it is left
  end)

  it('says nothing but what it found elsewhere', function()
    local status, _, errors = tools.run(command)
    assert.equal(0, status)
    assert.matches('^dataset: [^\n]*\ndataset of 2560 samples, 7680 tokens\n$', errors)
  end)
end)

describe('dataset: rows in the forms of the field', function()
  local function ends(role, text) return ('<|im_start|>%s\n%s<|im_end|>\n'):format(role, text) end
  local Q = ends('user', 'q')
  local A = '<|im_start|>assistant\n[a][<|im_end|>]\n'

  it('are written as the turns that they are', function()
    local function is(want, row, options)
      assert.same({ want }, masks(open(write('field.jsonl', { row }), chat, options)))
    end
    is(ends('system', 's') .. Q .. A,
      '{"system":"s","conversations":[{"from":"human","value":"q"},{"from":"gpt","value":"a"}]}')
    is(Q .. ends('assistant', 'b') .. Q .. A, '{"conversations":[{"from":"human","value":"q"},{"from":"gpt",'
      .. '"value":"b","loss":false},{"from":"human","value":"q"},{"from":"gpt","value":"a"}]}')
    is(Q .. ends('assistant', 'b') .. Q .. A, '{"prompt":[{"role":"user","content":"q"},{"role":"assistant",'
      .. '"content":"b"},{"role":"user","content":"q"}],"completion":[{"role":"assistant","content":"a"}]}')
    is(ends('system', 's') .. Q .. '<|im_start|>assistant\n[b][<|im_end|>]\n' .. Q .. A,
      '{"instruction":"q","output":"a","system":"s","history":[["q","b"]]}')
    is(Q .. A, '{"prompt":"q","chosen":"a","rejected":"b"}', { answer_key = 'chosen' })
    is('a[b][c]', '{"input_ids":[97,98,99,0],"labels":[-100,98,99,0],"attention_mask":[1,1,1,0]}')
    is('ab[c]', '{"input_ids":[97,98,99],"completion_mask":[0,0,1]}')
  end)

  it('have tools where the template writes them', function()
    local path = write('tools.jsonl', { '{"tools":"[{\\"name\\":\\"f\\"}]","conversations":[{"from":"human",'
      .. '"value":"q"},'
      .. '{"from":"function_call","value":"{\\"name\\":\\"f\\",\\"arguments\\":{\\"z\\":1,\\"a\\":2}}"},'
      .. '{"from":"observation","value":"o"},{"from":"gpt","value":"a"}]}' })
    refused('depends on "tools", which nothing reads: data.ignore=%[tools%] goes on', open, path, chat)
    local template = '{% if tools %}T{{ tools | tojson }}\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n'
      .. '{% if m.tool_calls %}{{ m.tool_calls[0].function.arguments | tojson }}{% else %}{{ m.content }}{% endif %}'
      .. '<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}'
    local called = ('{"z": 1, "a": 2}'):gsub('.', '[%0]')
    assert.same({ 'T[{"type": "function", "function": {"name": "f"}}]\n' .. Q .. '<|im_start|>assistant\n' .. called
      .. '[<|im_end|>]\n' .. ends('tool', 'o') .. A }, masks(open(path, chat, { template = template })))
  end)
end)

describe('dataset: plain text', function()
  it('is cut into blocks in which every token is predicted once', function()
    local data = open(tools.write(folder .. '/t.txt', 'abcdefgh'), plain, { max_tokens = 4 })
    assert.same({ 'a[b][c][d]', 'd[e][f][g]', 'g[h][</s>]' }, masks(data))
    data = open(tools.write(folder .. '/t.txt', 'abcdef'), plain, { max_tokens = 4 })
    assert.same({ 'a[b][c][d]', 'd[e][f][</s>]' }, masks(data)) -- nothing is left over
    data = open(write('t.jsonl', { { text = 'abcdef' }, { text = 'x' } }), plain, { max_tokens = 6 })
    assert.same({ 'a[b][c][d][e][f]', 'f[</s>]', 'x[</s>]' }, masks(data))
  end)

  it('does not begin with a byte order mark, whatever the file', function()
    local mark, want = '\239\187\191', { 'a[b][</s>]' }
    assert.same(want, masks(open(tools.write(folder .. '/b.txt', mark .. 'ab'), plain)))
    assert.same(want, masks(open(tools.write(folder .. '/b.json', mark .. '[{"text":"ab"}]'), plain)))
    assert.same(want, masks(open(tools.write(folder .. '/b.jsonl', mark .. '{"text":"ab"}\n'), plain)))
  end)
end)

describe('dataset: samples over max_tokens [truncated silently]', function()
  local path = write('long.jsonl', { { prompt = 'ab', answer = 'cde' }, { prompt = 'a', answer = 'b' },
    { prompt = 'abcdefgh', answer = 'i' } })
  it('are dropped and counted', function()
    local data = open(path, plain, { max_tokens = 5 })
    assert.same({ 'a[b][</s>]' }, masks(data))
    assert.equal(2, data.report.dropped)
    assert.equal('dataset of 1 samples, 3 tokens, 2 dropped as over long', tostring(data))
    assert.equal(2, open(path, plain, { max_tokens = 6 }):count()) -- just long enough
  end)
  it('are an error with the place', function()
    refused('long.jsonl:1: 6 tokens, max_tokens is 5', open, path, plain, { max_tokens = 5, over_long = 'error' })
  end)
  it('are cut, without an end that was not there, while something is left to learn', function()
    local data = open(path, plain, { max_tokens = 5, over_long = 'truncate' })
    assert.same({ 'ab[c][d][e]', 'a[b][</s>]' }, masks(data))
    assert.equal(1, data.report.truncated)
    assert.equal(1, data.report.dropped)
  end)
end)

describe('dataset: samples over max_tokens, cut in other ways', function()
  local path = write('cut.jsonl', { { prompt = 'ab', answer = 'cdefghij' }, { prompt = 'a', answer = 'b' } })

  it('that lose their end are counted and said', function()
    local data = open(path, plain, { max_tokens = 6, over_long = 'truncate' })
    assert.same({ 'ab[c][d][e][f]', 'a[b][</s>]' }, masks(data))
    assert.same({ 1, 1 }, { data.report.truncated, data.report.endless })
    assert.matches('dataset: 1 sample truncated before the end of what is learnt %(max_tokens = 6%): no end is learnt',
      said(path, bare, '{ max_tokens = 6, over_long = "truncate" }'))
    -- what lies behind the cut here is a newline that nobody learns
    local turns = write('turn.jsonl', { { messages = { { role = 'assistant', content = 'a' } } } })
    data = open(turns, chat, { max_tokens = 13, over_long = 'truncate' })
    assert.same({ '<|im_start|>assistant\n[a][<|im_end|>]' }, masks(data))
    assert.same({ 1, 0 }, { data.report.truncated, data.report.endless })
  end)

  it('keep their end and the token that begins every text', function()
    assert.same({ '[f][g][h][i][j][</s>]', 'a[b][</s>]' },
      (function()
        local list = masks(open(path, plain, { max_tokens = 7, over_long = 'truncate_left' }))
        list[1] = list[1]:gsub('^e', '')
        return list
      end)())
    local begun = tools.folder()
    tools.write(begun .. '/tokenizer.json', json.encode(small.byte_level {
      added = { small.added(302, '</s>'), small.added(303, '<s>') },
      post_processor = small.template({ '<s>', 'A' }, { ['<s>'] = 303 }) }))
    tools.write(begun .. '/config.json', '{"eos_token_id": 302}')
    local data = open(path, ms.chat.open(begun), { max_tokens = 5, over_long = 'truncate_left' })
    assert.same({ '<s>h[i][j][</s>]', '<s>a[b][</s>]' }, masks(data))
    assert.equal('<s>h[i][j][</s>]', mask(data, 1, 'all')) -- "h" does not follow "<s>"
    assert.same({ 1, 0 }, { data.report.truncated, data.report.endless })
  end)

  it('become pieces, in which each token is predicted once and behind others', function()
    local data = open(path, plain, { max_tokens = 4, over_long = 'split' })
    assert.same({ 'ab[c][d]', 'd[e][f][g]', 'g[h][i][j]', 'j[</s>]', 'a[b][</s>]' }, masks(data))
    data = open(path, plain, { max_tokens = 8, over_long = 'split' })
    assert.same({ 'ab[c][d][e][f][g][h]', 'gh[i][j][</s>]', 'a[b][</s>]' }, masks(data))
    assert.equal('a[b][c][d][e][f][g][h]', mask(data, 1, 'all'))
    assert.equal('gh[i][j][</s>]', mask(data, 2, 'all'))
    assert.same({ 1, 2 }, { data.report.split, data.report.pieces })
    assert.equal('dataset of 3 samples, 16 tokens, 1 split into 2', tostring(data))
    data = open(write('w.jsonl', { { prompt = ('p'):rep(20), answer = 'a', w = 0.5 } }), plain,
      { max_tokens = 8, over_long = 'split', weight_key = 'w' })
    local learnt = 0
    for i = 1, data:count() do
      local _, n, _, all = data:sample(i)
      for t = 0, n - 1 do learnt = learnt + all[t] end
      assert.is_true(n <= 8)
    end
    assert.equal(0.5 * 21, learnt) -- 22 tokens, of which the first is not predicted
  end)
end)

describe('dataset: bad rows', function()
  local path = write('bad.jsonl', { { prompt = 'a', answer = 'b' }, '{"prompt": "a", ', { prompt = 'a', answer = '' },
    { prompt = 'a' }, '[1]', { prompt = 'a', answer = 5 }, { prompt = 'x', answer = json.null },
    { prompt = 'c', answer = 'd' } })
  it('end everything with file and line', function()
    refused('bad.jsonl:2: column 16 ', open, path, plain)
    for line, why in pairs { [3] = 'empty answer', [4] = 'column "answer" is missing', [5] = 'a row is an object',
      [6] = 'column "answer" is a number, not text', [7] = 'column "answer" is null, not text' } do
      local rows, k = {}, 0
      for text in tools.read(path):gmatch '[^\n]+' do
        k = k + 1
        if k == 1 or k == line then rows[#rows + 1] = text end
      end
      refused('/one.jsonl:2: ' .. why, open, write('one.jsonl', rows), plain)
    end
  end)
  it('are counted when told to skip', function()
    local data = open(path, plain, { on_error = 'skip' })
    assert.same({ 'a[b][</s>]', 'c[d][</s>]' }, masks(data))
    assert.equal(6, data.report.skipped)
    assert.equal(8, data.report.rows)
    assert.equal(6, #data.report.errors)
    assert.matches('bad.jsonl:3: empty answer$', data.report.errors[2])
    assert.matches('6 skipped with errors', tostring(data))
  end)
  it('are said: the first ten with place and reason, then how many there are of each reason', function()
    local text = said(path, bare, '{ on_error = "skip" }')
    assert.matches('dataset: 6 rows skipped:\ndataset:   [^\n]*bad.jsonl:2: column 16 [^\n]*\n'
      .. 'dataset:   [^\n]*bad.jsonl:3: empty answer\ndataset:   [^\n]*bad.jsonl:4: column "answer" is missing\n', text)
    assert.matches('bad.jsonl:7: column "answer" is null, not text\ndataset of 2 samples', text)
    local rows = { { prompt = 'a', answer = 'b' } }
    for i = 1, 8 do rows[#rows + 1] = ('{"prompt": "%s", '):format(('x'):rep(i)) end
    for _ = 1, 5 do rows[#rows + 1] = { prompt = 'a', answer = '' } end
    rows[#rows + 1] = '[2]'
    text = said(write('many.jsonl', rows), bare, '{ on_error = "skip" }')
    assert.matches('dataset: 14 rows skipped:\n', text)
    assert.matches('many.jsonl:11: empty answer\ndataset: by reason:\ndataset:   8 rows: column 16 [^\n]*\n'
      .. 'dataset:   5 rows: empty answer\ndataset:   1 row: a row is an object, not a list\ndataset of 1 sample', text)
    assert.not_matches('many.jsonl:12', text)
    local report = open(folder .. '/many.jsonl', plain, { on_error = 'skip' }).report
    assert.equal(10, #report.errors)
    assert.same({ { reason = 'empty answer', count = 5 }, { reason = 'a row is an object, not a list', count = 1 } },
      { report.reasons[2], report.reasons[3] })
    -- as many reasons as rows are not all kept
    rows = { { messages = { { role = 'assistant', content = 'a' } } } }
    for i = 1, 120 do
      rows[#rows + 1] = { messages = { { role = ('x'):rep(i + 20), content = 'a' } } }
    end
    report = open(write('roles.jsonl', rows), chat, { on_error = 'skip' }).report
    assert.equal(51, #report.reasons)
    assert.same({ reason = 'other reasons', count = 70 }, report.reasons[1])
  end)
  it('are those whose id a row before had, file by file', function()
    local function row(id) return { id = id, prompt = 'a', answer = 'b' } end
    local file = write('ids.jsonl', { row 'x', row(1), row(json.null), row '', row 'y', row 'x', row(1), row(1.5),
      '{"id":9007199254740993,"prompt":"a","answer":"b"}', '{"id":9007199254740992,"prompt":"a","answer":"b"}' })
    refused('ids.jsonl:6: duplicate id "x": row 1 has it too; data.ignore=%[id%] takes ids as not there', open, file,
      plain)
    local data = open(file, plain, { on_error = 'skip' })
    assert.equal(8, data:count())
    local reason = 'duplicate id "x": row 1 has it too; data.ignore=[id] takes ids as not there'
    assert.same({ { reason = reason, count = 2 } }, data.report.reasons)
    assert.equal(10, open(file, plain, { ignore = { 'id' } }):count())
    local other = write('other.jsonl', { row 'x', row 'y' })
    assert.equal(10, open({ file, other }, plain, { on_error = 'skip' }):count())
    local many = {}
    for i = 1, 5000 do many[i] = row(i % 4999) end
    data = open(write('many.jsonl', many), plain, { on_error = 'skip' })
    assert.same({ 4999, 1 }, { data:count(), data.report.skipped })
  end)
  it('in conversations: nothing supervised [all zeros]', function()
    local m = write('none.jsonl', { { messages = { { role = 'user', content = 'a' } } } })
    refused('none.jsonl:1: no token is supervised', open, m, chat)
    refused('no samples in .*/none.jsonl: 1 rows, 1 skipped with errors, the first: .*none.jsonl:1', open, m,
      chat, { on_error = 'skip' })
  end)
  it('leave nothing: the files are named, and why', function()
    local empty = tools.write(folder .. '/empty.jsonl', '\n \n')
    refused('no samples in .*/empty.jsonl: 0 rows$', open, empty, plain)
    local long = write('longer.jsonl', { { prompt = 'abc', answer = 'd' } })
    refused('no samples in .*/empty.jsonl, .*/longer.jsonl: 1 rows, 1 dropped as longer than max_tokens = 4$',
      open, { empty, long }, plain, { max_tokens = 4 })
  end)
  it('in conversations that the tokenizer has no turns for', function()
    refused('turns.jsonl:1: there is no chat template to write messages with, and this tokenizer has no <|im_start|>',
      open,
      write('turns.jsonl', { { messages = { { role = 'assistant', content = 'a' } } } }), plain)
  end)
  it('and wrong calls', function()
    refused('no such file', open, folder .. '/nothing.jsonl', plain)
    refused('b.json:1: no known columns among a, b', open, write('b.json', { '{"b": 1, "a": 2}' }), plain)
    refused('b.json:1: a row is an object, not a string', open, write('b.json', { '"text"' }), plain)
    refused("'over_long' must be one of drop, truncate, truncate_left, split, error, not cut", open, path, plain,
      { over_long = 'cut' })
    refused("'max_tokens' must be integer >= 2, not 1", open, path, plain, { max_tokens = 1 })
    local data = open(path, plain, { on_error = 'skip' })
    refused('no sample 3: they are numbered from 1 to 2', data.sample, data, 3)
    refused('no sample 0: they are numbered from 1 to 2', data.batch, data, { 1, 0 })
    refused('a batch of no samples', data.batch, data, {})
    refused('not UTF%-8 at byte 1', open, tools.write(folder .. '/u.txt', 'a\255'), plain)
  end)
end)

describe('dataset: files that people have in the place of others', function()
  local row = '{"prompt":"a","answer":"b"}'
  local function names(name, content, ...)
    local path = content and tools.write(folder .. '/' .. name, content) or name
    local why = tools.fails({ path, ... }, open, path, plain)
    assert.is_nil(why:find('%.lua:%d'), why)
  end
  local POINTER = 'version https://git-lfs.github.com/spec/v1\noid sha256:'
    .. ('4d7a'):rep(16) .. '\nsize 33417\n'
  local function utf16(text) return '\255\254' .. text:gsub('.', '%0\0') end

  it('are recognised by their first bytes, whatever their name', function()
    for _, ending in ipairs { 'jsonl', 'ndjson', 'json', 'txt' } do
      names('x.' .. ending, POINTER, 'is a pointer file of Git LFS', 'git lfs pull')
      names('x.' .. ending, '<!DOCTYPE html>\n<html><head>', 'is an HTML page')
      names('x.' .. ending, '\31\139\8\0' .. ('x'):rep(50), 'the gzip data are damaged before byte')
      names('x.' .. ending, 'PK\3\4' .. ('\0'):rep(22) .. '\4\0\0\0data' .. ('x'):rep(50), 'is a zip archive')
      names('x.' .. ending, 'PAR1' .. ('x'):rep(50), 'is a Parquet file')
      names('x.' .. ending, 'ARROW1\0\0' .. ('x'):rep(50), 'is an Arrow file')
      names('x.' .. ending, utf16(row), 'is text in UTF-16', 'iconv')
      names('x.' .. ending, (utf16(row):sub(3)), 'is text in UTF-16LE')
      names('x.' .. ending, '', 'is empty')
      names('x.' .. ending, 'Entry not found', "is a server's answer")
    end
    -- and a row that says "error" is a row
    assert.equal(1, open(tools.write(folder .. '/x.jsonl', '{"error":"e","prompt":"a","answer":"b"}'), plain):count())
  end)

  it('are named by their ending', function()
    names('x.parquet', 'PAR1', 'read_parquet(..).to_json(')
    names('train', row, 'files end in .jsonl, .json, .csv, .tsv or .txt, and .gz or .zst behind that')
    names('train.gz', row, 'files end in .jsonl')
    names('train', '\31\139\8\0' .. ('x'):rep(50), 'files end in .jsonl', 'is compressed with gzip')
    names('x.jsonl.xz', '\253\55zXZ\0' .. ('x'):rep(50), 'files end in .jsonl', 'is compressed with xz: decompress it')
    os.execute('mkdir -p ' .. folder .. '/set ' .. folder .. '/none')
    tools.write(folder .. '/set/README.md', '')
    names(folder .. '/none', nil, 'is a folder, where a file is expected')
    tools.write(folder .. '/set/train.jsonl', row)
    names(folder .. '/set', nil, 'is a folder: give its files, such as ' .. folder .. '/set/train.jsonl')
  end)

  it('are not there: addresses and names on a hub', function()
    names('https://example.org/train.jsonl', nil, 'no such file: nothing is downloaded here')
    names('hf://datasets/openai/gsm8k', nil, 'no such file: nothing is downloaded here')
    for _, name in ipairs { 'openai/gsm8k', 'a-b/c_d.e-1.5' } do
      names(name, nil, 'no such file; if it is a name on a hub: nothing is downloaded here')
    end
    for _, path in ipairs { 'data/train.jsonl', folder .. '/nothing', './a/b', 'a/b/c' } do
      refused('no such file$', open, path, plain)
    end
  end)

  it('hold rows in another way', function()
    for _, name in ipairs { 'x.jsonl', 'x.json' } do
      names(name, row .. '\n{\n  "prompt": "a"\n}\n', ':2: ', 'a row stands on one line, as json.dumps writes it')
      names(name, row .. ',\n' .. row .. '\n', ':1: ', 'without commas behind them')
      names(name, 'prompt,answer\na,b\n', ':1: ', 'a table is named .csv or .tsv, and a plain text .txt')
      names(name, '"prompt"\t"answer"\n', ':1: ', 'a table is named .csv or .tsv')
      names(name, 'Once upon a time\n', ':1: ', 'a plain text .txt')
    end
    for _, file in ipairs { { 'x.jsonl', '%s' }, { 'x.json', '[%s]' } } do
      local function bad(text, ...) names(file[1], file[2]:format(text) .. '\n', ...) end
      bad("{'prompt': 'a', 'answer': 'b'}", "Python's way to print, not JSON: json.dumps writes JSON")
      for _, word in ipairs { 'None', 'True', 'False' } do
        bad('{"prompt": ' .. word .. '}', "Python's way to print")
      end
      for _, word in ipairs { 'NaN', 'Infinity', '-Infinity' } do
        bad('{"prompt": "a", "answer": ' .. word .. '}', 'column "answer" is ' .. word,
          'JSON has no NaN and no Infinity; write null, or leave the key out')
        bad('{"prompt": "a", "answer": ' .. word, 'JSON has no NaN and no Infinity') -- and no end
      end
      bad('{"prompt": "\233t\233", "answer": "b"}', 'it is not UTF-8: save it as UTF-8')
    end
  end)

  it('are cut off in their last row', function()
    for _, n in ipairs { 2, 9, 12, #row - 1 } do
      names('x.jsonl', row .. '\n' .. row:sub(1, n), 'x.jsonl:2: ',
        'the file ends in the middle of this row: was its download or copy cut off?')
      names('x.json', '[' .. row .. ',\n' .. row:sub(1, n),
        'the file ends too early: was its download or copy cut off?')
    end
    -- a last line without its end is no fault
    assert.equal(2, open(tools.write(folder .. '/x.jsonl', row .. '\n' .. row), plain):count())
    local why = tools.fails('x.jsonl', open, tools.write(folder .. '/x.jsonl', row:sub(1, 9) .. '\n' .. row), plain)
    assert.is_nil(why:find 'cut off', why) -- in the middle of a file it is something else
    local half = tools.write(folder .. '/x.jsonl', row .. '\n' .. row:sub(1, 9))
    local report = open(half, plain, { on_error = 'skip' }).report
    assert.matches('x.jsonl:2: .*cut off', report.errors[1])
  end)
end)

describe('dataset: what a model must be able to take', function()
  it('is the longest sample and the largest id, with the first row that has it', function()
    local long = write('e1.jsonl', { { prompt = 'a', answer = 'b' }, { prompt = 'abc', answer = 'd' },
      { prompt = 'abcdefghijkl', answer = 'dropped' }, { prompt = 'bcd', answer = 'e' } })
    local data = open({ long, write('e2.jsonl', { '', { prompt = 'a', answer = 'bcd' } }) }, plain,
      { max_tokens = 8 })
    assert.same({ 5, folder .. '/e1.jsonl:2' }, { data:longest() })
    assert.same({ 302, folder .. '/e1.jsonl:1' }, { data:largest_id() })
    -- the end of a text is in its last block; a cut answer has none
    data = open({ write('e3.jsonl', { { prompt = 'z', answer = 'abcdef' } }), write('e4.jsonl',
      { { prompt = 'a', answer = 'b' } }) }, plain, { max_tokens = 4, over_long = 'truncate' })
    assert.same({ 302, folder .. '/e4.jsonl:1' }, { data:largest_id() })
    assert.same({ 4, folder .. '/e3.jsonl:1' }, { data:longest() })
    data = open(tools.write(folder .. '/e5.txt', 'abcdef'), plain, { max_tokens = 4 })
    assert.same({ 302, folder .. '/e5.txt' }, { data:largest_id() })
    assert.same({ 4, folder .. '/e5.txt' }, { data:longest() })
  end)
  it('is a token that counts, of an answer or of anything', function()
    local function counts(list, options)
      local data = open(write('counts.jsonl', list), plain, options)
      return { data:counts 'response', data:counts 'all' }
    end
    local weighed = { weight_key = 'w' }
    assert.same({ true, true }, counts { { prompt = 'a', answer = 'b' } })
    assert.same({ false, false }, counts({ { prompt = 'a', answer = 'b', w = 0 } }, weighed))
    assert.same({ true, true }, counts({ { prompt = 'a', answer = 'b', w = 0 }, { prompt = 'a', answer = 'b', w = 2 } },
      weighed))
    local data = open(write('counts.jsonl', { { prompt_ids = { 1 }, answer_ids = { 2 } } }), plain)
    data.samples.levels.response[1] = 0
    assert.same({ false, true }, { data:counts 'response', data:counts 'all' })
    data.samples.levels.all[1] = 0 -- nothing follows the last token, whose level is another
    assert.same({ false, false }, { data:counts 'response', data:counts 'all' })
    assert.equal(folder .. '/counts.jsonl: no token counts for on = "all": all weights are 0 (those of samples, which '
      .. 'data.weight_key names, and those of messages)', tools.fails('on = "all"', data.check_counts, data, 'all'))
    refused('dataset_spec.lua:%d+: dataset:counts: on = some, not response or all',
      function() return (data:counts 'some') end)
  end)
end)

describe('dataset: batches', function()
  local rows = {}
  for i = 1, 40 do rows[i] = { prompt = ('p'):rep(i % 7 + 1), answer = ('a'):rep(i % 11 + 1) } end
  local data = open(write('batch.jsonl', rows), plain)

  it('are the samples one after another, which do not teach across borders [packing]', function()
    local whole, sum, tokens, all = data:batch { 5, 1, 9 }, 0, 0, 0
    for _, i in ipairs { 5, 1, 9 } do
      local one = data:batch { i }
      sum, tokens, all = sum + one:weight(), tokens + one:tokens(), all + one:weight 'all'
      assert.equal(i % 11 + 2, one:weight()) -- answer and end
      assert.equal(one:tokens() - 1, one:weight 'all')
      one:free()
    end
    assert.equal(sum, whole:weight())
    assert.equal(all, whole:weight 'all')
    assert.equal(tokens, whole:tokens())
    whole:free()
    local part = data:batch({ 5, 1, 9 }, 2, 2)
    assert.equal(select(2, data:sample(1)), part:tokens())
    part:free()
  end)

  it('have a fingerprint: of tokens, cuts and weights, not of what they are called', function()
    local function samples(changes)
      local list = {}
      for i = 1, 40 do list[i] = { prompt = 'abc', answer = ('answer %d'):format(i) } end
      for i, row in pairs(changes or {}) do list[i] = row end
      return list
    end
    local seen, count = {}, 0
    local function new(list, options)
      options = options or { weight_key = 'weight' }
      local print = open(write('f.jsonl', list), plain, options):fingerprint()
      assert.is_nil(seen[print], 'the fingerprint of other data')
      seen[print], count = true, count + 1
      return print
    end
    local first = new(samples())
    assert.equal(first, open(write('g.jsonl', samples()), plain):fingerprint())
    for _, i in ipairs { 1, 20, 40 } do
      new(samples { [i] = { prompt = 'abd', answer = 'answer ' .. i } })
      new(samples { [i] = { prompt = 'abc', answer = ('answer %d'):format(i + 50) } })
      new(samples { [i] = { prompt = 'abc', answer = 'answer ' .. i, weight = 2 } })
      new(samples { [i] = { prompt = 'ab', answer = ('canswer %d'):format(i) } }) -- the answer begins a token earlier
    end
    new(samples { [20] = { prompt = 'abc', answer = 'answer 21' }, [21] = { prompt = 'abc', answer = 'answer 20' } })
    new(samples { [41] = { prompt = 'abc', answer = 'answer 41' } })
    new(samples(), { max_tokens = 9, over_long = 'truncate' })
    -- the same answers, prompts of other weights
    for _, weight in ipairs { 0, 1, 3 } do
      local user, assistant = { role = 'user', content = 'q', weight = weight }, { role = 'assistant', content = 'a' }
      local print = open(write('f.jsonl', { { messages = { user, assistant } } }), chat):fingerprint()
      assert.is_nil(seen[print])
      seen[print] = true
    end
    -- the same tokens, cut elsewhere: texts in blocks
    new({ { text = ('x'):rep(60) } }, { max_tokens = 20 })
    new({ { text = ('x'):rep(60) } }, { max_tokens = 30 })
    assert.equal(18, count)
  end)

  it('are planned by seed and epoch', function()
    local options = { tokens = 60, micro_tokens = 25 }
    local seen, order = {}, {}
    for step in data:steps(7, 0, options):each() do
      for _, micro in ipairs(step) do
        for _, i in ipairs(micro) do
          seen[i] = (seen[i] or 0) + 1
          order[#order + 1] = i
        end
      end
    end
    assert.equal(40, #order)
    for i = 1, 40 do assert.equal(1, seen[i]) end
    local function all(seed, epoch) return data:steps(seed, epoch, options):all() end
    assert.same(all(7, 0), all(7, 0))
    assert.are_not.same(all(7, 0), all(7, 1))
    assert.are_not.same(all(7, 0), all(8, 0))
  end)

  local model_path, why = tools.shared 'models/tinystories-656k'
  if not model_path then pending('have the loss of their samples alone [packing]', why) else
    it('have the loss of their samples alone [packing]', function()
      local model = ms.model.open(model_path)
      local stories = open(write('s.jsonl', { { text = 'Once upon a time there was a cat.' },
        { text = 'Tom was sad. He lost his ball.' }, { text = 'The end' } }), ms.chat.open(model))
      local function loss(samples)
        local b = stories:batch(samples)
        local value = model:evaluate(b, { ms.ce(1) })[1].value
        b:free()
        return value
      end
      local apart = loss { 1 } + loss { 2 } + loss { 3 }
      assert.is_true(apart > 10)
      -- sums of about 25 terms in f32, computed in another order
      tools.close({ loss { 1, 2, 3 }, loss { 3, 1, 2 } }, { apart, apart }, 'f32', 50)
      model:free()
    end)
  end
end)
