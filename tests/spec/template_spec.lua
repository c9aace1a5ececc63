-- Which chat template writes a model's turns, what it is given, and how a saved folder says it.
local ms = require 'moonstill'
local json = require 'moonstill.base.json'
local template = require 'moonstill.text.template'
local templates = require 'tests.support.turns'
local tools = require 'tests.support.tools'

local refused = tools.refused
local CONFIG, FILE, JSON = 'tokenizer_config.json', 'chat_template.jinja', 'chat_template.json'

-- A template that writes a word, and what is asked of it.
local function word(name) return name .. '{% for m in messages %}{{ m.content }}{% endfor %}' end
local function named(list)
  local all = json.array()
  for i, name in ipairs(list) do all[i] = { name = name, template = word(name) } end
  return { chat_template = all }
end

local ASKED = { { role = 'user', content = 'q' } }
local function written(files, options, given)
  local chat = ms.chat.open(templates.folder(files), nil, options)
  return (chat:render(ASKED, given)), chat.template_name
end

describe('the chat template of a folder', function()
  it('is that of tokenizer_config.json', function()
    assert.same({ 'aq', 'default' }, { written { [CONFIG] = { chat_template = word 'a' } } })
    assert.same({ 'default' .. 'q', 'default' }, { written { [CONFIG] = named { 'x', 'default' } } })
  end)

  it('is a file of its own before that', function()
    assert.same({ 'bq', 'default' }, { written { [CONFIG] = { chat_template = word 'a' }, [FILE] = word 'b' } })
    assert.same({ 'bq', 'default' }, { written { [CONFIG] = { chat_template = word 'a' }, [FILE] = word 'b',
      [JSON] = { chat_template = word 'c' } } })
  end)

  it('is that of chat_template.json where nothing else says one', function()
    assert.same({ 'cq', 'default' }, { written { [JSON] = { chat_template = word 'c' } } })
    assert.same({ 'aq', 'default' }, { written { [CONFIG] = { chat_template = word 'a' },
      [JSON] = { chat_template = word 'c' } } })
  end)

  it('is chosen by tools among named ones', function()
    local given = { tools = { { name = 'f' } } }
    local tool_use = { name = 'tool_use', template = word 't' .. '{% if tools %}{% endif %}' }
    local list = { chat_template = json.array { tool_use, { name = 'default', template = word 'd' } } }
    assert.equal('dq', (written { [CONFIG] = list }))
    assert.equal('tq', (written({ [CONFIG] = list }, nil, given)))
    assert.equal('tq', (written({ [FILE] = word 'd', ['additional_chat_templates/tool_use.jinja'] = tool_use.template },
      nil, given)))
    assert.equal('dq', (written { [FILE] = word 'd',
      ['additional_chat_templates/tool_use.jinja'] = tool_use.template }))
    refused('has the chat templates x, y, and none of them is the default: template = one of them', written,
      { [CONFIG] = named { 'x', 'y' } })
  end)

  it('is the one that is asked for', function()
    local files = { [CONFIG] = named { 'x', 'default' } }
    assert.same({ 'xq', 'x' }, { written(files, { template = 'x' }) })
    assert.same({ 'hereq', 'given' }, { written(files, { template = word 'here' }) })
    local path = tools.write(tools.folder() .. '/own.jinja', word 'own')
    assert.same({ 'ownq', path }, { written(files, { template = path }) })
    assert.same('<|im_start|>user\nq<|im_end|>\n', (ms.chat.open(templates.folder(files,
      { '<|im_start|>', '<|im_end|>' }), nil, { template = 'chatml' }):render(ASKED)))
    assert.is_nil(ms.chat.open(templates.folder(files), nil, { template = 'none' }).template)
    refused("no template 'defaults': it is no file, and has no {%% or {{; did you mean 'default'?", written, files,
      { template = 'defaults' })
    refused('this tokenizer has no <|im_start|> and <|im_end|>', written, files, { template = 'chatml' })
  end)

  it('is ChatML where there is none and the tokenizer has its tokens', function()
    local chat = ms.chat.open(templates.folder(nil, { '<|im_start|>', '<|im_end|>' }))
    assert.equal('chatml', chat.template_name)
    assert.equal('<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n', (chat:render(ASKED,
      { add_generation_prompt = true })))
    refused('there is no chat template', function() ms.chat.open(templates.folder()):render(ASKED) end)
    refused('messages is a number, expected a table', function() chat:render(3) end)
    refused('messages is a number, expected a table', function() chat:prompt(3) end)
    refused('there is no chat template to write messages with', function()
      ms.chat.open(templates.folder()):encode { messages = ASKED }
    end)
  end)

  it('is an error with its place where it is none', function()
    refused('tokenizer_config.json: chat_template is neither a text nor a list', written,
      { [CONFIG] = { chat_template = 5 } })
    refused('tokenizer_config.json: chat_template: entry 1 has no name and template', written,
      { [CONFIG] = { chat_template = json.array { { name = 'x' } } } })
    refused('chat_template.jinja: line 1, column', written, { [FILE] = '{% if %}' })
  end)
end)

describe('a chat template is given', function()
  it('the names of special tokens, and variables of the recipe over them', function()
    local files = { [CONFIG] = { bos_token = '<s>', eos_token = { content = '</s>' },
      chat_template = '{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ x }}' }, ['special_tokens_map.json'] = {
        pad_token = '<pad>', bos_token = '<other>' } }
    assert.equal('<s></s><pad>', (written(files)))
    assert.equal('<b></s><pad>1', (written(files, { template_args = { bos_token = '<b>', x = 1 } })))
    assert.equal('<b></s><pad>2', (written(files, { template_args = { bos_token = '<b>', x = 1 } },
      { args = { x = 2 } })))
  end)

  it('no tools or documents as none, nulls of messages not at all', function()
    local source = '{{ tools is none }}{{ documents is none }}'
      .. '{{ messages[0].name is defined }}{{ messages[0].weight is defined }}'
    local chat = ms.chat.open(templates.folder(), nil, { template = source })
    assert.equal('TrueTrueFalseFalse', (chat:render { { role = 'user', content = 'q', name = json.null, weight = 2 } }))
  end)

  it('thinking by all of its names', function()
    local source = '{{ messages[0].reasoning_content }}{{ messages[0].thinking }}'
    local chat = ms.chat.open(templates.folder(), nil, { template = source })
    for _, name in ipairs { 'reasoning_content', 'thinking', 'reasoning' } do
      assert.equal('tt', (chat:render { { role = 'assistant', content = 'q', [name] = 't' } }))
    end
  end)

  it('the arguments of calls as it can take them', function()
    local function call(arguments)
      local f = { name = 'f', arguments = arguments }
      return { { role = 'assistant', content = '', tool_calls = { { ['function'] = f } } } }
    end
    local pre = '{% for m in messages %}{% for c in m.tool_calls or [] %}'
    local post = '{% endfor %}{% endfor %}'
    local objects = ms.chat.open(templates.folder(), nil, { template = pre .. '{{ c.function.arguments.x }}' .. post })
    local texts = ms.chat.open(templates.folder(), nil, { template = pre .. "{{ '' + c.function.arguments }}" .. post })
    for _, given in ipairs { { x = 5 }, '{"x":5}' } do
      assert.equal('5', (objects:render(call(given))))
      assert.equal('{"x":5}', (texts:render(call(given))))
    end
  end)

  it('a date that is fixed', function()
    local options = { template = "{{ strftime_now('%d %b %Y %H') }}" }
    assert.equal(os.date '%d %b %Y 00', (written({}, options)))
    options.date = '2024-02-29'
    assert.equal('29 Feb 2024 00', (written({}, options)))
    options.date = '2024-02-29 13:05:06'
    assert.equal('29 Feb 2024 13', (written({}, options)))
    for _, date in ipairs { '2023-02-29', '2024-13-01', 'today', '2024-02-29 24:00:00', '2024-2-9' } do
      options.date = date
      refused('chat: date = ', written, {}, options)
    end
  end)
end)

describe('a reply', function()
  local models = require 'tests.support.models'
  -- after the head of an answer come b, </s>; after the u of a user nothing
  local function reply(source, follows, options)
    local at = templates.folder()
    local chat, model = ms.chat.open(at, nil, { template = source }), models.chain(follows, 304)
    local text, message = chat:reply(model, { { role = 'user', content = 'q' } }, options)
    model:free()
    return { text, message }
  end

  it('is the text of the answer, without its end, and the message to go on with', function()
    assert.same({ 'bc', { role = 'assistant', content = 'bc' } },
      reply(templates.simple, { [302] = 98, [98] = 99, [99] = 300 }, { max_new = 9 }))
    assert.same({ 'b', { role = 'assistant', content = 'b' } },
      reply(templates.simple, { [302] = 98, [98] = 99, [99] = 300 }, { max_new = 1 }))
    assert.same({ 'bc', { role = 'assistant', content = 'bc' } }, -- another stop
      reply(templates.simple, { [302] = 98, [98] = 99, [99] = 303 }, { stop = 303 }))
  end)

  it('keeps thinking apart in the message', function()
    local chat, model = ms.chat.open(templates.folder(), nil, { template = templates.simple }), nil
    local told, shown = {}, {}
    model = { ends = function() return {} end, pieces = function(_, _, prompt, how)
      told.prompt, told.stop = prompt, how.stop
      return ('<think>\na b\n</think>\n\nc'):gmatch '.', { ended = true }
    end }
    local text, message, how = chat:reply(model, 'q', { args = { x = 1 } },
      function(piece) shown[#shown + 1] = piece end)
    assert.same({ ended = true, prompt = 5 }, how)
    assert.equal(text, table.concat(shown))
    assert.equal('<think>\na b\n</think>\n\nc', text)
    assert.same({ role = 'assistant', content = 'c', reasoning_content = 'a b' }, message)
    assert.same({ 301, 113, 300, 10, 302 }, told.prompt)
    assert.same({ 300 }, told.stop)
  end)
end)

describe('a chat with other options', function()
  local chat = ms.chat.open(templates.folder(), nil, { template = templates.simple, turns = 'last' })
  it('keeps what is not given', function()
    assert.equal(chat, chat:with {})
    assert.equal(chat, chat:with { turns = 'last', max_tokens = 5 })
    local other = chat:with { learn = { 'user' } }
    assert.same({ 'last', { 'user' } }, { other.options.turns, other.options.learn })
    assert.equal(chat.template, other.template)
    assert.same({ 'assistant' }, chat.options.learn)
    assert.equal(chat.levels, other.levels)
    assert.is_nil(chat:with { template = 'none' }.template)
  end)
  it('refuses what is none', function()
    refused("'turns' must be one of all, last, each, not first", chat.with, chat, { turns = 'first' })
  end)
end)

describe('tokens', function()
  local function ids_of(options, messages)
    local ids, n = ms.chat.open(templates.folder(), nil, options):encode { messages = messages }
    local list = {}
    for i = 0, n - 1 do list[i + 1] = ids[i] end
    return list
  end
  local function talk(q, a) return { { role = 'user', content = q }, { role = 'assistant', content = a } } end

  it('are what a template makes, also of roles, and letters what contents spell', function()
    assert.same({ 301, 113, 300, 10, 302, 97, 300, 10 }, ids_of({ template = templates.simple }, talk('q', 'a')))
    assert.same({ 301, 60, 47, 115, 62, 300, 10, 302, 97, 300, 10 },
      ids_of({ template = templates.simple }, talk('</s>', 'a')))
    assert.same({ 301, 300, 300, 10, 302, 97, 300, 10 },
      ids_of({ template = templates.simple, spelled = 'tokens' }, talk('</s>', 'a')))
  end)

  it('across a border are learnt', function()
    local small = require 'tests.support.tokenizers'
    local at = templates.folder()
    tools.write(at .. '/tokenizer.json', json.encode(small.byte_level { added = { small.added(300, '</s>') },
      merges = { { ':', 'x' } } }))
    local chat = ms.chat.open(at, nil, { template =
      '{% for m in messages %}{{ m.role[0] }}:{{ m.content }}{% if m.role == "assistant" %}</s>{% endif %}{% endfor %}'
      .. '{% if add_generation_prompt %}a:{% endif %}' })
    local ids, n, weights = chat:encode { messages = talk('q', 'xy') }
    assert.equal('u:qa:xy</s>', chat.tokenizer:decode(ids, n))
    assert.equal(256, ids[4]) -- ":x"
    assert.same({ 0, 0, 0, 1, 1, 1, 0 }, { weights[0], weights[1], weights[2], weights[3], weights[4], weights[5],
      weights[6] })
  end)

  it('of BOS come once: a template writes its own, or none', function()
    local small = require 'tests.support.tokenizers'
    local function first(source)
      local at = templates.folder()
      tools.write(at .. '/tokenizer.json', json.encode(small.byte_level { added = { small.added(300, '</s>'),
        small.added(301, '<s>') }, post_processor = small.template({ '<s>', 'A' }, { ['<s>'] = 301 }) }))
      local ids = ms.chat.open(at, nil, { template = source }):encode { messages = talk('q', 'a') }
      return { ids[0], ids[1] }
    end
    assert.same({ 301, 60 }, first('<s>' .. templates.simple))
    assert.same({ 60, 117 }, first(templates.simple))
  end)
end)

describe('a run', function()
  local folder = tools.folder()
  local values = ms.smoke.sft(folder)

  local function student_of(chat, name, carry)
    local data = ms.dataset.open(values.data.train, chat, { quiet = true, limit = 20 })
    local student = ms.model.open(values.student, { train = true })
    local run = ms.run.open({ output = folder .. '/' .. name, max_steps = 1, batch = { tokens = 64 },
      optim = { lr = 1e-3 } }, { student = student, data = data, quiet = true, carry = carry })
    for step in run:steps() do
      for batch in step:micro_batches() do student:learn(batch, { ms.ce(1) }) end
      step:update()
    end
    run:finish()
    student:free()
    return folder .. '/' .. name .. '/student', data
  end

  it('saves the template that its data was written with, in both places', function()
    local chat = ms.chat.open(values.student, nil, { template = 'chatml' })
    local student = student_of(chat, 'a')
    assert.equal(chat.template, tools.read(student .. '/' .. FILE))
    local config, old = json.read(student .. '/' .. CONFIG), json.read(values.student .. '/' .. CONFIG)
    assert.equal(chat.template, config.chat_template)
    assert.not_equal(old.chat_template, config.chat_template)
    config.chat_template, old.chat_template = nil, nil
    assert.same(old, config)
    -- who opens it learns the same
    local rows = { messages = ASKED }
    rows.messages[2] = { role = 'assistant', content = 'a' }
    local ids, n = chat:encode(rows)
    local again, m = ms.chat.open(student):encode(rows)
    assert.equal(n, m)
    for i = 0, n - 1 do assert.equal(ids[i], again[i]) end
    assert.equal(chat.template, tools.read(folder .. '/a/checkpoints/step-00000001/' .. FILE))
  end)

  it('saves several named ones in the one place that holds them', function()
    local from = tools.folder() .. '/model'
    tools.run(('cp -r %s %s'):format(values.student, from))
    tools.write(from .. '/' .. CONFIG, json.encode { chat_template = json.array {
      { name = 'default', template = templates.marked }, { name = 'tool_use', template = templates.calling } } })
    local student = student_of(ms.chat.open(from), 'b', from)
    assert.is_false(tools.exists(student .. '/' .. FILE))
    local list = json.read(student .. '/' .. CONFIG).chat_template
    assert.equal('tool_use', list[2].name)
    assert.equal(templates.calling, list[2].template)
  end)

  local python = os.getenv 'MS_PYTHON' or 'python3'
  it('leaves a folder in which transformers writes the same', function()
    if tools.run(python .. ' -c "import transformers, jinja2"') ~= 0 then
      return pending 'no Python with transformers here (MS_PYTHON names one)'
    end
    local chat = ms.chat.open(values.student, nil, { template = 'chatml' })
    local student = student_of(chat, 'c')
    local script = tools.write(folder .. '/ids.py', [==[
import sys, transformers
tok = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
print(tok.apply_chat_template(messages, return_dict=False))
]==])
    local status, out, err = tools.run(python .. ' ' .. script .. ' ' .. student)
    assert.equal(0, status, err)
    local ids, n = chat:encode { messages = { { role = 'user', content = 'q' },
      { role = 'assistant', content = 'a' } } }
    local list = {}
    for i = 0, n - 1 do list[i + 1] = ids[i] end
    assert.equal('[' .. table.concat(list, ', ') .. ']\n', out)
  end)

  it('tells templates the date of its first start', function()
    local output = tools.folder()
    local function date(...)
      return ms.config({ output = output, data = { date = ms.dataset.options.date } }, { args = { ... } }).data.date
    end
    assert.equal(os.date '%Y-%m-%d', date())
    tools.write(output .. '/finished.json', json.encode { config = { data = { date = '2020-01-02' } } })
    assert.equal('2020-01-02', date())
    assert.equal('2021-03-04', date 'data.date=2021-03-04')
    assert.equal(os.date '%Y-%m-%d', date 'resume=false')
    tools.write(output .. '/finished.json', json.encode { config = { data = { train = 'x' } } })
    assert.is_nil(rawget(ms.config({ output = output, data = { date = ms.dataset.options.date } }, { args = {} }).data,
      'date'))
  end)
end)

describe('what shapes samples', function()
  local function identity(options) return ms.chat.open(templates.folder(), nil, options):identity() end
  local asks = templates.simple .. "{{ strftime_now('%Y') }}"
  it('is the template, its variables and what is learnt', function()
    local first = identity { template = templates.simple }
    assert.equal(first, identity { template = templates.simple, date = '2020-01-01' })
    for _, other in ipairs { { template = templates.marked }, { template = templates.simple, turns = 'last' },
      { template = templates.simple, template_args = { x = 1 } }, { template = 'none' } } do
      assert.not_equal(first, identity(other))
    end
  end)
  it('is the date where a template asks for it', function()
    local first = identity { template = asks, date = '2020-01-01' }
    assert.not_equal(first, identity { template = asks, date = '2020-01-02' })
  end)
end)

describe('the ids that end an answer', function()
  it('have the one that the template writes behind an answer', function()
    local function stop(source) return ms.chat.open(templates.folder(), nil, { template = source }).stop end
    assert.same({ 300 }, stop(templates.simple))
    assert.same({ 300, 303 }, stop((templates.simple:gsub('</s>', '<e>'))))
    assert.same({ 300 }, stop((templates.simple:gsub('</s>', 'END'))))
    assert.same({ 300 }, stop(templates.endless))
  end)
end)

describe('a JSON text with another member', function()
  for i, case in ipairs {
    { '{}', '{\n  "k": "v"}' },
    { '{"a": 1}', '{"a": 1,\n  "k": "v"}' },
    { '{"a": [{"k": 1}], "k": "old" , "b": 1e999}', '{"a": [{"k": 1}], "k": "v" , "b": 1e999}' },
    { '{"k":{"k":"}\\"]"},"x\\"k":[]}', '{"k":"v","x\\"k":[]}' },
    { '{"a\\\\":"\\"k\\":", "k": null\n}', '{"a\\\\":"\\"k\\":", "k": "v"\n}' },
    { '{"\\u006b": [1, [2, "]"]]}', '{"\\u006b": "v"}' },
    { ' {\n "a": 12345678901234567890123456789\n}\n', ' {\n "a": 12345678901234567890123456789,\n  "k": "v"\n}\n' },
  } do
    it('is the same all around ' .. i, function() assert.equal(case[2], template.with_member(case[1], 'k', 'v')) end)
  end
end)
