--- What is amiss with templates and rows, and is said before anything is learnt from them.
local json = require 'moonstill.base.json'
local literals = require 'moonstill.data.literals'
local ms = require 'moonstill'
local template = require 'moonstill.text.template'
local small = require 'tests.support.tokenizers'
local tools = require 'tests.support.tools'

local fails = tools.fails

-- A folder whose tokenizer has the tokens of ChatML, and a template of its own.
local function folder_of(source)
  local folder = tools.folder()
  tools.write(folder .. '/tokenizer.json', json.encode(small.byte_level { added = { small.added(300, '<|im_start|>'),
    small.added(301, '<|im_end|>'), small.added(302, '</s>') } }))
  tools.write(folder .. '/generation_config.json', json.encode { eos_token_id = 302 })
  if source then tools.write(folder .. '/chat_template.jinja', source) end
  return folder
end

local TURNS = '{%% for m in messages %%}<|im_start|>{{ m.role }}\n{{ m.content }}%s{%% endfor %%}'
local PROMPT = '{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}'

local function warnings(source) return ms.chat.open(folder_of(source)):warnings() end

describe('a chat', function()
  it('says that a template ends answers with what is no token', function()
    assert.same({}, warnings(TURNS:format '<|im_end|>\n' .. PROMPT))
    assert.same({}, warnings(TURNS:format '</s>' .. PROMPT))
    local words = 'the template ends answers with %s, which is no token of this tokenizer: it is learnt as letters, '
      .. 'and no answer that is generated ends there'
    for _, tag in ipairs { '<|eot_id|>', '<end_of_turn>', '[/E]' } do
      assert.same({ words:format(json.encode(tag)) }, warnings(TURNS:format(tag .. '\n') .. PROMPT))
    end
    -- an end that is no tag may be meant
    assert.same({}, warnings('{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}'
      .. '{% if add_generation_prompt %}assistant: {% endif %}'))
  end)
  it('says that a template does not write the head of an answer to come', function()
    local words = 'the template does not write "<|im_start|>assistant" where an answer is to come '
      .. '(add_generation_prompt): it is learnt with each answer'
    assert.same({ words }, warnings(TURNS:format '<|im_end|>\n'))
    -- what it marks as generated is learnt, and no more
    assert.same({}, warnings('{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == "assistant" %}'
      .. '{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}'
      .. '{% endfor %}'))
    -- no head, nothing to write
    assert.same({}, warnings('{% for m in messages %}{% if m.role == "user" %}<|im_start|>{{ m.content }}<|im_end|>'
      .. '{% else %}{{ m.content }}</s>{% endif %}{% endfor %}'))
    assert.same({}, ms.chat.open(folder_of()):warnings()) -- ChatML of our own
    assert.same({}, ms.chat.open(folder_of(), nil, { template = 'none' }):warnings())
  end)
  it('says it of data as well, and of a template that a recipe gives', function()
    local folder = folder_of()
    local path = tools.write(folder .. '/rows.jsonl', '{"prompt": "a", "answer": "b"}\n')
    local script = tools.write(folder .. '/open.lua', ([[local ms = require 'moonstill'
      ms.dataset.open(%q, ms.chat.open(%q), { template = %q, quiet = arg[1] == 'quiet' })]]):format(path, folder,
      TURNS:format '<|eot_id|>' .. PROMPT))
    local function said(word)
      return select(3, tools.run(('LUA_PATH=%s luajit %s %s'):format(tools.quote(package.path), script, word or '')))
    end
    tools.says('\nnote: the template ends answers with "<|eot_id|>"', said())
    assert.equal('', said 'quiet')
  end)
end)

describe('a template that there is not', function()
  it('is refused by the configuration, with status 2', function()
    local folder = folder_of(TURNS:format '<|im_end|>' .. PROMPT)
    local function read(...)
      return ms.config({ student = ms.required 'path', data = ms.dataset.options() },
        { args = { 'student=' .. folder, 'data.train=' .. folder .. '/tokenizer.json', ... } })
    end
    local why = fails("command line: 'data.template': no template 'chatlm': it is no file, and has no {% or {{; "
      .. "did you mean 'chatml'?", read, 'data.template=chatlm')
    assert.equal(2, why.exit)
    for _, fine in ipairs { 'chatml', 'none', 'default', folder .. '/chat_template.jinja', '{{ messages }}' } do
      assert.equal(fine, read('data.template=' .. fine).data.template)
    end
    assert.is_nil(template.refused('default', folder))
    fails("chat: no template 'nope'", ms.chat.open, folder, nil, { template = 'nope' })
  end)
end)

describe('rows', function()
  local folder = folder_of()
  local chat = ms.chat.open(folder)
  local function open(text, options)
    options = options or {}
    options.quiet = true
    return ms.dataset.open(tools.write(folder .. '/rows.jsonl', text .. '\n'), chat, options)
  end
  it('may have NaN and Infinity where nothing reads them', function()
    local data = open '{"prompt": "NaN \\" NaN", "answer": "-Infinity", "s": NaN, "t": [{"u": -Infinity}, Infinity]}'
    local plain = open '{"prompt": "NaN \\" NaN", "answer": "-Infinity"}'
    assert.equal(plain:fingerprint(), data:fingerprint())
    assert.same({ 's', 't' }, { data.report.fields[1].name, data.report.fields[2].name })
  end)
  it('may not where something does', function()
    local words = ': JSON has no NaN and no Infinity; write null, or leave the key out'
    fails({ 'rows.jsonl:1: column "answer" is NaN' .. words }, open, '{"prompt": "a", "answer": NaN}')
    fails({ 'column "w" is -Infinity' .. words }, open, '{"prompt": "a", "answer": "b", "w": -Infinity}',
      { weight_key = 'w' })
    fails('content is not text', open, '{"messages": [{"role": "user", "content": NaN}]}')
    local data = open('{"prompt": "a", "answer": NaN}\n{"prompt": "a", "answer": "b"}', { on_error = 'skip' })
    assert.same({ 1, 1 }, { data:count(), data.report.skipped })
    fails("near 'nan'", open, '{"prompt": "a", "answer": "b", "s": nan}')
  end)
  it('have no literals inside of strings', function()
    assert.is_nil(literals.marked '{"a": "NaN", "Infinity": "\\"NaN\\\\"}')
    assert.is_nil(literals.marked '{"a": "NaN')
    assert.equal('{"a": {"not in JSON":"NaN"}, "b": "NaN"}', literals.marked '{"a": NaN, "b": "NaN"}')
    assert.equal('[{"not in JSON":"-Infinity"},-1,{"not in JSON":"Infinity"}]',
      literals.marked '[-Infinity,-1,Infinity]')
  end)
  it('say who was meant, and what is not read', function()
    local function message(role, content)
      local row = '{"messages": [{"role": "%s", "content": %s}, {"role": "assistant", "content": "b"}]}'
      return row:format(role, content)
    end
    fails("message 1: no role \"human\"; did you mean 'user'?", open, message('human', '"a"'))
    fails("no role \"GPT\"; did you mean 'assistant'?", open, message('GPT', '"a"'))
    fails('no role "x"; there are system', open, message('x', '"a"'))
    local text = '{"type": "text", "text": "a"}'
    fails('part 1 of the content is not text but has "image_url"; images are not read', open,
      message('user', '[{"image_url": {"url": "x"}}, ' .. text .. ']'))
    fails('part 2 of the content is not text but of type "input_audio"; sounds are not read', open,
      message('user', '[' .. text .. ', {"type": "input_audio", "x": 1}]'))
    fails('part 1 of the content is not text; its type is missing: {"type": "text", "text": ..}', open,
      message('user', '[{"text": "a"}]'))
    fails('part 1 of the content is not text but of type "other"', open, message('user', '[{"type": "other"}]'))
  end)
end)
