--- Rows to samples: what is recognised, and what a sample holds.
local fail = require 'moonstill.base.fail'
local fields = require 'moonstill.data.fields'
local json = require 'moonstill.base.json'
local rows = require 'moonstill.data.rows'
local tools = require 'tests.support.tools'

local function everything() return true end

-- The sample of a row (its JSON text, or a table), and its form in words.
local function take(row, o)
  row = json.decode(type(row) == 'string' and row or json.encode(row), 'row', { ordered = true })
  o = o or {}
  local form = rows.asked(o) or rows.detect(row, o)
  rows.parse(row, form)
  fields.new(o.ignore):look(row, form.kind, rows.used(form), rows.lists(row, form), o.reads or everything)
  return rows.sample(row, form), rows.describe(form)
end

-- Asserts what a row is.
local function is(want, words, row, o)
  local sample, said = take(row, o)
  assert.equal(words, said)
  want.ended = true
  assert.same(want, sample)
end

local function refuses(words, row, o) tools.fails(words, fail.pcall and take, row, o) end

local function say(role, content, more)
  local message = { role = role, content = content }
  for key, value in pairs(more or {}) do message[key] = value end
  return message
end
local Q, A = say('user', 'q'), say('assistant', 'a')
local function unlearnt(message) return say(message.role, message.content, { train = false }) end

describe('rows: texts', function()
  it('are a prompt and its answer, with what goes before them', function()
    is({ prompt = 'i\n\nx', answer = 'o', system = 's', history = { { 'a', 'b', train = true } } },
      'prompts in "instruction" and "input", answers in "output", system prompts in "system", turns before in '
      .. '"history"',
      '{"instruction":"i","input":"x","output":"o","system":"s","history":[["a","b"]]}')
    is({ prompt = 'q', answer = 'r' }, 'prompts in "query", answers in "response"',
      '{"query":"q","response":"r","history":[],"system":null}')
    is({ prompt = 'p', answer = 'c', tools = { { type = 'function', ['function'] = { name = 'f' } } },
      args = { enable_thinking = false, x = 1 }, documents = { { title = 't' } } },
      'prompts in "prompt", answers in "completion", tools in "tools", documents in "documents", variables of the '
      .. 'template in "chat_template_kwargs", variables of the template in "enable_thinking"',
      '{"prompt":"p","completion":"c","tools":"[{\\"name\\":\\"f\\"}]","chat_template_kwargs":{"x":1},'
      .. '"enable_thinking":false,"documents":[{"title":"t"}]}')
    is({ prompt = 'q', answer = 'x', history = { { 'a', 'b', train = true } } }, -- as a table has them
      'prompts in "query", answers in "response", turns before in "history"',
      { query = 'q', response = 'x', history = '[["a", "b"]]', system = '' })
    refuses('column "history": entry 2 is no pair of texts', '{"query":"q","response":"r","history":[["a","b"],["c"]]}')
    refuses('column "history" is a string, not a list', '{"query":"q","response":"r","history":"x"}')
    refuses('column "history" is a string, not a list', '{"query":"q","response":"r","history":"[[\\"a\\"]"}')
    -- what is no list of the form's may begin as one does
    is({ text = '[a' }, 'text in "text"', { text = '[a', history = '[x', documents = '[1] a' })
    refuses('column "messages" is a string, not a list', { messages = '[{"role": "user"' })
    refuses('column "system" is a number, not text', '{"query":"q","response":"r","system":5}')
    refuses('"chat_template_kwargs" is a list, not an object',
      '{"query":"q","response":"r","chat_template_kwargs":[1]}')
  end)

  it('are plain, also a response alone', function()
    is({ text = 't' }, 'text in "text"', '{"text":"t","id":null}')
    is({ text = 'r' }, 'text in "response"', '{"response":"r"}')
    refuses('no known columns among query, response', '{"query":null,"response":"r"}')
    is({ text = 'r', id = 7 }, 'text in "text"', '{"text":"r","id":7}')
    is({ text = 'r', id = 'seven' }, 'text in "text"', '{"text":"r","id":"seven"}')
    assert.equal('9007199254740993LL', tostring(take('{"text":"r","id":9007199254740993}').id))
  end)

  it('with addresses of images in them are refused', function()
    refuses('column "query" has an image in it (<img>..</img>), and images are not read',
      '{"query":"<img>https://x/y.jpeg</img>what?","response":"r"}')
    is({ prompt = '<img src="x"> <img>', answer = 'r' }, 'prompts in "query", answers in "response"',
      '{"query":"<img src=\\"x\\"> <img>","response":"r"}')
  end)
end)

describe('rows: conversations', function()
  it("are messages, as they are, in any of the columns", function()
    for _, name in ipairs(rows.conversations) do
      is({ messages = { Q, A } }, ('conversations in "%s"'):format(name), { [name] = { Q, A } })
    end
    is({ messages = { Q, A } }, 'conversations in "messages"', -- a JSON text, where no pair of columns is there
      '{"prompt":"p","messages":"[{\\"role\\":\\"user\\",\\"content\\":\\"q\\"},{\\"role\\":\\"assistant\\",'
      .. '\\"content\\":\\"a\\"}]"}')
    is({ messages = { Q, A } }, 'conversations in "m"', { m = { Q, A } }, { messages_key = 'm' })
  end)

  it('are of ShareGPT and its kin, by whoever speaks', function()
    for from, role in pairs { human = 'user', user = 'user', gpt = 'assistant', assistant = 'assistant',
      chatgpt = 'assistant', bing = 'assistant', bard = 'assistant', system = 'system', tool = 'tool',
      observation = 'tool', GPT = 'assistant' } do
      is({ messages = { say(role, 'x') } }, 'ShareGPT conversations in "conversations"',
        { conversations = { { from = from, value = 'x' } } })
    end
    is({ messages = { say('system', 's'), Q, A } },
      'ShareGPT conversations in "conversations", system prompts in "system"',
      '{"conversations":[{"from":"human","value":"q"},{"from":"gpt","value":"a"}],"system":"s"}')
    is({ messages = { Q, A, say('user', 'c'), say('assistant', 'd') } },
      'conversations of human and assistant in "conversation"',
      '{"conversation":[{"human":"q","assistant":"a"},{"human":"c","assistant":"d"}]}')
    refuses('message 2: nobody speaks as "gtp"; did you mean \'gpt\'?',
      '{"conversations":[{"from":"human","value":"q"},{"from":"gtp","value":"a"}]}')
    refuses('message 1: "from" is no text', '{"conversations":[{"from":5,"value":"q"}]}')
  end)

  it('may have a system prompt in a column, and the same one in a message', function()
    local function row(content) return { messages = { say('system', content), Q, A }, system = 's' } end
    is({ messages = { say('system', 's'), Q, A } }, 'conversations in "messages", system prompts in "system"', row 's')
    refuses('column "system" and a system message that says something else: data.ignore=[system]', row 't')
  end)

  it('have calls of tools, whatever these are called', function()
    local function call(name, arguments)
      return { type = 'function', ['function'] = { name = name, arguments = arguments } }
    end
    local sample = take('{"conversations":[{"from":"human","value":"q"},{"from":"function_call","value":'
      .. '"{\\"name\\":\\"f\\",\\"arguments\\":{\\"z\\":1,\\"a\\":2}}"},{"from":"observation","value":"{}"},'
      .. '{"from":"gpt","value":"a"}],"tools":"[{\\"name\\":\\"f\\",\\"parameters\\":{\\"y\\":1,\\"b\\":{}}}]"}')
    assert.same({ Q, say('assistant', '', { tool_calls = { call('f', { z = 1, a = 2 }) } }), say('tool', '{}'), A },
      sample.messages)
    assert.same({ { type = 'function', ['function'] = { name = 'f', parameters = { y = 1, b = {} } } } }, sample.tools)
    -- in the order of the file
    assert.same({ 'z', 'a' }, json.keys(sample.messages[2].tool_calls[1]['function'].arguments))
    assert.same({ 'y', 'b' }, json.keys(sample.tools[1]['function'].parameters))
    sample = take '{"conversations":[{"from":"function_call","value":"[{\\"name\\":\\"f\\"},{\\"name\\":\\"g\\"}]"}]}'
    assert.same({ call 'f', call 'g' }, sample.messages[1].tool_calls)
    -- OpenAI's older way
    sample = take '{"messages":[{"role":"assistant","content":null,"function_call":{"name":"f","arguments":"{}"}}]}'
    assert.same({ call('f', '{}') }, sample.messages[1].tool_calls)
    assert.is_nil(sample.messages[1].function_call)
    refuses('message 1: function_call: line 1', '{"conversations":[{"from":"function_call","value":"f(x)"}]}')
    refuses('message 1: a call of a function has no "name"',
      '{"conversations":[{"from":"function_call","value":"{}"}]}')
    refuses('column "tools" is no list of tools', '{"messages":[{"role":"user"}],"tools":"{\\"a\\":1}"}')
    refuses('column "tools": line 1', '{"messages":[{"role":"user"}],"tools":"f(x)"}')
  end)

  it('say which turns are learnt, and how much, by many names', function()
    local function learns(text)
      local message = take('{"messages":[{"role":"assistant","content":"a",' .. text .. '}]}').messages[1]
      for key in pairs(message) do
        assert.is_true(key == 'role' or key == 'content' or key == 'train' or key == 'weight', key)
      end
      return { message.train, message.weight }
    end
    for _, name in ipairs { 'train', 'training', 'loss' } do
      for text, value in pairs { ['true'] = true, ['false'] = false, ['1'] = true, ['0'] = false, ['1.0'] = true } do
        assert.same({ value }, learns(('"%s":%s'):format(name, text)))
      end
      refuses('message 1: "' .. name .. '" is neither true nor false',
        { messages = { say('assistant', 'a', { [name] = 'no' }) } })
    end
    for _, name in ipairs { 'loss_weight', 'loss_scale' } do
      assert.same({ false }, learns(('"%s":0.0'):format(name)))
      assert.same({ true }, learns(('"%s":1'):format(name)))
      assert.same({ true, 0.5 }, learns(('"%s":0.5'):format(name)))
    end
    assert.same({ nil, 0 }, learns '"weight":0')
    assert.same({ false, 2 }, learns '"train":false,"loss":false,"weight":2')
    refuses('message 1: it says of "train" both ',
      { messages = { say('assistant', 'a', { train = true, loss = false }) } })
    assert.is_false(take('{"conversations":[{"from":"gpt","value":"a","loss":0}]}').messages[1].train)
  end)

  it('have parts of text, which LLaMA-Factory writes one after the other', function()
    is({ messages = { say('user', { { type = 'text', text = 'q' } }), say('assistant', 'ab') } },
      'conversations in "messages"', '{"messages":[{"role":"user","content":[{"type":"text","text":"q"}]},'
      .. '{"role":"assistant","content":[{"type":"text","value":"a"},{"type":"text","value":"b"}]}]}')
  end)

  it('are a prompt and an answer of messages, of which the prompt is not learnt', function()
    local words = 'prompts in "prompt", answers in "completion"'
    is({ messages = { unlearnt(say('system', 's')), unlearnt(Q), A } }, words,
      { prompt = { say('system', 's'), Q }, completion = { A } })
    is({ messages = { unlearnt(Q), A } }, words, { prompt = 'q', completion = { A } })
    is({ messages = { unlearnt(Q), A } }, words, { prompt = { Q }, completion = 'a' })
    is({ messages = { unlearnt(Q), unlearnt(A), unlearnt(Q), A } }, words, { prompt = { Q, A, Q }, completion = { A } })
    refuses('column "answer" is a list, not text', '{"question":"q","answer":["a"]}')
  end)
end)

describe('rows: better and worse answers', function()
  local chosen = { answer_key = 'chosen' }
  it('are learnt when told which, and else refused with what to say', function()
    for _, row in ipairs { { chosen = { Q, A }, rejected = { Q, A } },
      { prompt = 'q', chosen = 'a', rejected = 'b' } } do
      refuses('data.answer_key=chosen learns the better answers', row)
    end
    refuses('depends on "chosen", "rejected", which nothing reads: data.ignore=[chosen,rejected] goes on without; '
      .. 'data.answer_key=chosen learns those answers', { messages = { Q }, chosen = A, rejected = A })
  end)

  it('are texts or messages, the prompt among them or beside', function()
    is({ prompt = 'q', answer = 'a' }, 'prompts in "prompt", answers in "chosen"',
      { prompt = 'q', chosen = 'a', rejected = 'b' }, chosen)
    is({ prompt = 'q\n\nx', answer = 'a' }, 'prompts in "instruction" and "input", answers in "chosen"',
      { instruction = 'q', input = 'x', chosen = 'a', rejected = 'b' }, chosen)
    is({ messages = { Q, A } }, 'conversations in "chosen"', { chosen = { Q, A }, rejected = { Q } }, chosen)
    is({ messages = { unlearnt(Q), A } }, 'prompts in "prompt", answers in "chosen"',
      { prompt = { Q }, chosen = { A }, rejected = { A } }, chosen)
    is({ messages = { Q, A } }, 'prompts in "prompt", answers in "chosen"',
      { prompt = 'q', chosen = { Q, A }, rejected = { Q } }, chosen)
    is({ messages = { unlearnt(Q), A } }, 'prompts in "conversations", answers in "chosen"',
      '{"conversations":[{"from":"human","value":"q"}],"chosen":{"from":"gpt","value":"a"},'
      .. '"rejected":{"from":"gpt","value":"b"}}', chosen)
    is({ messages = { Q, A } }, 'conversations in "chosen_messages"',
      { chosen_messages = { Q, A }, rejected_messages = { Q } }, { answer_key = 'chosen_messages' })
    is({ messages = { unlearnt(Q), say('assistant', '4') } }, 'prompts in "messages", answers in "ground_truth"',
      '{"prompt":"p","messages":"[{\\"role\\":\\"user\\",\\"content\\":\\"q\\"}]","ground_truth":"4"}',
      { answer_key = 'ground_truth' })
    refuses('no prompts beside "chosen": prompt_key names their column; text_key=chosen learns all of "chosen"',
      { chosen = 'Human: q Assistant: a', rejected = 'b' }, chosen)
    refuses('column "chosen" is missing', { prompt = 'q' }, chosen)
  end)
end)

describe('rows: tokens', function()
  it('are learnt by labels, by masks, or all of them', function()
    is({ ids = { 1, 2, 3 }, labels = { -100, 2, 3 } }, 'tokens in "input_ids", learnt by "labels"',
      '{"input_ids":[1,2,3],"labels":[-100,2,3],"attention_mask":[1,1,1],"position_ids":[0,1,2]}')
    is({ ids = { 1, 2, 3 }, mask = { 0, 1, 0 } },
      'tokens in "input_ids", learnt by "completion_mask" and "assistant_masks"',
      '{"input_ids":[1,2,3],"completion_mask":[0,1,1],"assistant_masks":[1,1,0]}')
    is({ ids = { 1, 2, 3 }, mask = { 0, 1, 1 } }, 'tokens in "input_ids", learnt by "assistant_masks"',
      '{"input_ids":[1,2,3],"assistant_masks":[false,true,true]}')
    is({ ids = { 1, 2 } }, 'tokens in "input_ids", all learnt', { input_ids = '[1, 2]' })
  end)

  it('leave out padding on either side', function()
    is({ ids = { 1, 2 }, labels = { -100, 2 } }, 'tokens in "input_ids", learnt by "labels"',
      '{"input_ids":[0,1,2,0,0],"labels":[-100,-100,2,-100,-100],"attention_mask":[0,1,1,0,0]}')
    is({ ids = { 1, 2 }, mask = { 0, 1 } }, 'tokens in "input_ids", learnt by "completion_mask"',
      '{"input_ids":[0,1,2],"completion_mask":[0,0,1],"attention_mask":[0,1,1]}')
  end)

  it('are refused where the lists do not fit', function()
    refuses('column "labels": entry 2 is 3, and the id there 2: labels are the ids themselves, or -100',
      '{"input_ids":[1,2,3],"labels":[-100,3,-100]}') -- shifted
    refuses('column "labels" has 2 entries for 3 ids', '{"input_ids":[1,2,3],"labels":[1,2]}')
    refuses('column "attention_mask": entry 2 is 0 between tokens', '{"input_ids":[1,2,3],"attention_mask":[1,0,1]}')
    refuses('column "completion_mask": entry 3 is 2, neither 0 nor 1',
      '{"input_ids":[1,2,3],"completion_mask":[0,1,2]}')
    refuses('column "position_ids": entry 3 is 0, not 2: are there several samples in the row?',
      '{"input_ids":[1,2,3],"position_ids":[0,1,0]}')
    refuses('column "input_ids" is a list of lists', '{"input_ids":[[1,2,3]]}')
    refuses('depends on "rejected"', '{"input_ids":[1,2,3],"rejected":"x"}')
  end)
end)

describe('rows: what only a chat reads', function()
  local row = '{"messages":[{"role":"assistant","content":"a","tool_calls":[{}],"name":"n","loss":true}],"tools":[{}]}'
  it('is an error, unless the chat says that it does', function()
    refuses('depends on "tools", "loss" of message 1, "name" of message 1, "tool_calls" of message 1', row,
      { reads = function() return false end })
    local asked = {}
    local sample = take(row, { reads = function(name)
      asked[name] = true
      return true
    end })
    assert.same({ tools = true, name = true, tool_calls = true, train = true }, asked)
    assert.equal('n', sample.messages[1].name)
    refuses('depends on "name" of message 1, which', row, { reads = function(name) return name ~= 'name' end })
    -- the name of a tool that gave a result is in its call
    local named = { messages = { say('tool', 'x', { name = 'f' }) } }
    assert.equal('f', take(named, { reads = function(name) return name ~= 'name' end }).messages[1].name)
    refuses('depends on "name" of message 1', { messages = { say('user', 'x', { name = 'f' }) } },
      { reads = function(name) return name ~= 'name' end })
    -- images are no chat's to read
    refuses('depends on "images"', { messages = { Q }, images = { 'x' } })
  end)
end)
