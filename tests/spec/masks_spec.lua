-- Which characters of a rendered conversation are learnt: what stands between « and » is written by
-- hand, from what the template does and what the model has to say itself.
local ms = require 'moonstill'
local json = require 'moonstill.base.json'
local templates = require 'tests.support.turns'
local tools = require 'tests.support.tools'

local learnt, refused = templates.learnt, tools.refused

local function user(content) return { role = 'user', content = content } end
local function assistant(content, more)
  local message = { role = 'assistant', content = content }
  for key, value in pairs(more or {}) do message[key] = value end
  return message
end
local function system(content) return { role = 'system', content = content } end

local folder = templates.folder()
local function chat_of(template, options)
  options = options or {}
  options.template = template
  return ms.chat.open(folder, nil, options)
end

local TWO = { user 'q', assistant 'x', user 'r', assistant 'y' }

describe('masks: the answer and the token that ends its turn, in every turn', function()
  it('by difference and by marks', function()
    local want = '<u>q</s>\n<a>«x</s>»\n<u>r</s>\n<a>«y</s>»\n'
    assert.equal(want, learnt(chat_of(templates.simple), { messages = TWO }))
    assert.equal(want, learnt(chat_of(templates.marked), { messages = TWO }))
  end)

  it('where earlier thinking is removed [the prompt has its beginning]', function()
    local chat = chat_of(templates.thinking)
    assert.equal('<u>q</s>\n<a>«x</s>»\n<u>r</s>\n<a><think>«b</think>y</s>»\n', learnt(chat, { messages = {
      user 'q', assistant('x', { reasoning_content = 'a' }), user 'r', assistant('y', { reasoning_content = 'b' }) } }))
    -- thinking in the content
    assert.equal('<u>q</s>\n<a>«x</s>»\n<u>r</s>\n<a><think>«b</think>y</s>»\n', learnt(chat, { messages = {
      user 'q', assistant 'a</think>x', user 'r', assistant('y', { reasoning_content = 'b' }) } }))
  end)

  it('where the prompt opens what the content writes itself', function()
    local chat = chat_of((templates.simple:gsub("{{%- '<a>' }}", "{{- '<a><think>' }}")))
    assert.equal('<u>q</s>\n<a><think>«b</think>y</s>»\n<u>r</s>\n<a>«<thin>y</s>»\n', learnt(chat, { messages = {
      user 'q', assistant '<think>b</think>y', user 'r', assistant '<thin>y' } }))
  end)

  it('where a block without thinking is inserted: it is the prompt\'s, unless the answer has it itself', function()
    local chat = chat_of(templates.inserting)
    assert.equal('<u>q</s>\n<a>«x</s>»\n<u>r</s>\n<a><think></think>«y</s>»\n', learnt(chat, { messages = TWO }))
    local split = templates.inserting:gsub('m.content %+', "m.content.split('</think>')[-1] +")
    assert.equal('<u>q</s>\n<a>«<think></think>y</s>»\n',
      learnt(chat_of(split), { messages = { user 'q', assistant '<think></think>y' } }))
    assert.equal('<u>q</s>\n<a>«x</s>»\n<u>r</s>\n<a><think></think>«y</s>»\n',
      learnt(chat_of(templates.inserting, { template_args = { enable_thinking = false } }), { messages = TWO }))
    -- a row's own argument goes before
    assert.equal('<u>q</s>\n<a><think></think>«y</s>»\n',
      learnt(chat_of(templates.inserting), { messages = { user 'q', assistant 'y' },
        args = { enable_thinking = false } }))
  end)

  it('where what begins the next turn stands behind the end of each', function()
    local eager = templates.simple:gsub("'</s>\\n'", "'</s><u>'")
    assert.equal('<u>q</s><u><a>«x</s>»<u><u>r</s><u><a>«y</s>»<u>', learnt(chat_of(eager), { messages = TWO }))
  end)

  it('where there is something between each content and the end of its turn', function()
    for _, between in ipairs { ' ', '\n', '.', '"' } do
      local apart = templates.simple:gsub("'</s>\\n'",
        function(ending) return ("'%s' + %s"):format(between, ending) end)
      local function want(text) return (text:gsub('</s>', between .. '</s>')) end
      assert.equal(want '<u>q</s>\n<a>«x</s>»\n<u>r</s>\n<a>«y</s>»\n', learnt(chat_of(apart), { messages = TWO }))
      local eager = apart:gsub("'</s>\\n'", "'</s><u>'")
      assert.equal(want '<u>q</s><u><a>«x</s>»<u><u>r</s><u><a>«y</s>»<u>', learnt(chat_of(eager), { messages = TWO }))
    end
    local quoted = templates.simple:gsub('m.content', '(m.content|tojson)')
    assert.equal('<u>"q"</s>\n<a>«"x"</s>»\n<u>"r"</s>\n<a>«"y"</s>»\n', learnt(chat_of(quoted), { messages = TWO }))
  end)

  it('where turns are merged', function()
    local chat = chat_of(templates.merging)
    assert.equal('<u>q+r</s>\n<a>«x»«+y</s>»\n', (learnt(chat, { messages = { user 'q', user 'r', assistant 'x',
      assistant 'y' } })))
    assert.equal('<u>q</s>\n<a>x«+y</s>»\n', learnt(chat, { messages = { user 'q', assistant('x', { train = false }),
      assistant 'y' } }))
    assert.equal('<u>q</s>\n<a>«x»+y</s>\n', learnt(chat, { messages = { user 'q', assistant 'x',
      assistant('y', { train = false }) } }))
  end)

  it('where the system\'s message moves to a later turn', function()
    assert.equal('[q]«x</s>»[S:r]«y</s>»', learnt(chat_of(templates.moving), { messages = { system 'S',
      unpack(TWO) } }))
  end)

  it('where contents are trimmed and the text ends with a token of its own', function()
    assert.equal('<u>q</s>\n<a>«x</s>»\n<u>r</s>\n<a>«y</s>»\n<e>', learnt(chat_of(templates.trimming), { messages = {
      user ' q\n', assistant '\n x ', user 'r', assistant 'y\194\160' } }))
  end)

  it('where something follows the last turn', function()
    assert.equal('<t><u>q</s><t><a>«x</s>»<t><u>r</s><t><a>«y</s>»<t><e>be brief</s>',
      learnt(chat_of(templates.followed), { messages = TWO }))
  end)

  it('where nothing ends a turn but the end of the text', function()
    assert.equal('<u>q<a>«x»<u>r<a>«y</s>»', learnt(chat_of(templates.endless), { messages = TWO }))
  end)

  it('where an answer comes first', function()
    assert.equal('<a>«x</s>»\n<u>r</s>\n<a>«y</s>»\n', learnt(chat_of(templates.simple), { messages = {
      assistant 'x', user 'r', assistant 'y' } }))
  end)

  it('where contents spell the template\'s own words', function()
    assert.equal('<u><a>q</s></s>\n<a>«<a>x\n</s>»\n<u></s></s>\n<a>«</s>\n<a>y</s>»\n',
      learnt(chat_of(templates.simple),
      { messages = { user '<a>q</s>', assistant '<a>x\n', user '</s>', assistant '</s>\n<a>y' } }))
  end)

  it('in contents of a megabyte, whatever they are made of, in time that grows with them alone', function()
    local chat = chat_of(templates.simple)
    for _, content in ipairs { ('x'):rep(1e6), ('<'):rep(1e6) .. '>', (' '):rep(1e6) .. 'x', ('</think>x'):rep(1e5) } do
      local p = chat:prepare { messages = { user(content), assistant(content), user 'r', assistant(content) } }[1]
      assert.same({ #content + 11, 2 * #content + 15 }, { p.marks[1], p.marks[2] })
    end
  end)

  it('in conversations of any length, with few renderings', function()
    local chat, messages, want = chat_of(templates.simple), {}, {}
    for i = 1, 400 do
      messages[2 * i - 1], messages[2 * i] = user('q' .. i), assistant('x' .. i)
      want[i] = ('<u>q%d</s>\n<a>«x%d</s>»\n'):format(i, i)
    end
    local compiled, count = chat.set:choose(nil).compiled, 0
    local render = compiled.render
    compiled.render = function(...)
      count = count + 1
      return render(...)
    end
    assert.equal(table.concat(want), learnt(chat, { messages = messages }))
    assert.is_true(count <= 3, count)
  end)
end)

describe('masks: tool calls', function()
  local function call(name, arguments)
    return { type = 'function', ['function'] = { name = name, arguments = arguments } }
  end
  local messages = { user 'q', assistant('c', { tool_calls = { call('f', { x = 1 }) } }),
    { role = 'tool', content = '1' }, assistant 'y' }

  it('are learnt with the content', function()
    assert.equal('<u>q</s>\n<a>«c<call>f:{"x": 1}</call></s>»\n<t>1</s>\n<a>«y</s>»\n',
      learnt(chat_of(templates.calling), { messages = messages }))
  end)

  it('end where a tool answers, also where that writes their names again', function()
    local rows = { user 'q', assistant('c', { tool_calls = { call('f', { x = 1 }) } }),
      { role = 'tool', content = '1' }, assistant 'y' }
    assert.equal('<u>q</s>\n<a>«c<call>f</call>»<t>f=1<a>«y</s>»\n', learnt(chat_of(templates.answering),
      { messages = rows }))
  end)

  it('are in the text alone where that is asked for', function()
    assert.equal('<u>q</s>\n<a>«c»<call>f:{"x": 1}</call></s>\n<t>1</s>\n<a>«y</s>»\n',
      learnt(chat_of(templates.calling, { tool_calls = 'mask' }), { messages = messages }))
  end)

  it('have arguments as text of JSON', function()
    assert.equal('{"name": "f"}\n<u>q</s>\n<a>«<call>f:{"x": 1}</call></s>»\n', learnt(chat_of(templates.calling), {
      tools = '[{"name": "f"}]',
      messages = { user 'q', assistant('', { tool_calls = json.array { call('f', '{"x": 1}') } }) } }))
  end)

  it('that the template does not write are an error', function()
    refused('message 2: what is learnt depends on "tool_calls", which the template does not write', learnt,
      chat_of(templates.simple), { messages = messages })
    refused('what is learnt depends on "tools", which the template does not write', learnt,
      chat_of(templates.simple), { tools = { { name = 'f' } }, messages = TWO })
    refused('message 2: the template does not write its tool calls in its turn', learnt,
      chat_of(templates.simple .. '{% if false %}{{ m.tool_calls }}{% endif %}'), { messages = messages })
  end)
end)

describe('masks: options', function()
  local thought = { user 'q', assistant('x', { reasoning_content = 'a' }), user 'r',
    assistant('y', { reasoning_content = 'b' }) }

  it('turns: the last, or each as a sample', function()
    assert.equal('<u>q</s>\n<a>x</s>\n<u>r</s>\n<a>«y</s>»\n',
      learnt(chat_of(templates.simple, { turns = 'last' }), { messages = TWO }))
    assert.same({ '<u>q</s>\n<a><think>«a</think>x</s>»\n',
      '<u>q</s>\n<a>x</s>\n<u>r</s>\n<a><think>«b</think>y</s>»\n' },
      { learnt(chat_of(templates.thinking, { turns = 'each' }), { messages = thought }) })
  end)

  it('turns: each of several is no single sample', function()
    local chat = chat_of(templates.simple, { turns = 'each' })
    refused('turns = each gives 2 samples', chat.encode, chat, { messages = TWO })
    chat:encode { messages = { user 'q', assistant 'x' } }
  end)

  it('learn: other roles', function()
    assert.equal('<u>«q</s>»\n<a>x</s>\n<u>«r</s>»\n<a>y</s>\n',
      learnt(chat_of(templates.simple, { learn = { 'user' } }), { messages = TWO }))
    assert.equal('[«q»]«x</s>»[«S»:«r»]«y</s>»', (learnt(chat_of(templates.moving,
      { learn = { 'user', 'assistant', 'system' } }), { messages = { system 'S', unpack(TWO) } })))
    refused('no token is supervised: no message has the role "tool"', learnt,
      chat_of(templates.simple, { learn = { 'tool' } }), { messages = TWO })
    refused('learn has no role assistent', chat_of, templates.simple, { learn = { 'assistent' } })
    refused('learn is an empty list', chat_of, templates.simple, { learn = json.array() })
  end)

  it('thinking: masked, or left out', function()
    assert.equal('<u>q</s>\n<a>«x</s>»\n<u>r</s>\n<a><think>b</think>«y</s>»\n',
      learnt(chat_of(templates.thinking, { thinking = 'mask' }), { messages = thought }))
    assert.equal('<u>q</s>\n<a>«x</s>»\n', learnt(chat_of(templates.simple, { thinking = 'drop' }), { messages = {
      user 'q', assistant('<think>a</think>\n\nx', { reasoning = 'a' }) } }))
    refused('message 2: what is learnt depends on "reasoning_content", which the template does not write: '
      .. 'thinking = drop', learnt, chat_of(templates.simple), { messages = thought })
  end)

  it('count the thinking that a template leaves out', function()
    assert.equal(1, chat_of(templates.thinking):prepare({ messages = thought })[1].thoughts)
    assert.equal(0, chat_of(templates.thinking, { turns = 'each' }):prepare({ messages = thought })[2].thoughts)
  end)

  it('weights and train of messages', function()
    assert.equal('<u>q</s>\n<a>«0.5:x</s>»\n<u>r</s>\n<a>«y</s>»\n', learnt(chat_of(templates.simple), { messages = {
      user 'q', assistant('x', { weight = 0.5 }), user 'r', assistant 'y' } }))
    assert.equal('<u>q</s>\n<a>x</s>\n<u>r</s>\n<a>«y</s>»\n', learnt(chat_of(templates.simple), { messages = {
      user 'q', assistant('x', { train = false }), user 'r', assistant 'y' } }))
    refused('message 2: train is neither true nor false', learnt, chat_of(templates.simple), { messages = {
      user 'q', assistant('x', { train = 1 }) } })
  end)

  it('ended = false: up to the last character of the answer', function()
    assert.equal('<u>q</s>\n<a>«x»', learnt(chat_of(templates.simple), { ended = false,
      messages = { user 'q', assistant 'x' } }))
    assert.equal('<u>q</s>\n<a>«x»', learnt(chat_of(templates.marked), { ended = false,
      messages = { user 'q', assistant 'x' } }))
    assert.equal('<u>q</s>\n<a>«x</s>»\n<u>r</s>\n<a>«y»', learnt(chat_of(templates.trimming), { ended = false,
      messages = TWO }))
  end)
end)

describe('masks: what is not where it should be is an error that says why', function()
  local cases = {
    ['a content that is left out'] = { "{% for m in messages %}<{{ m.role[0] }}>{{ m.content if m.role == 'user' }}</s>"
      .. '{% endfor %}{% if add_generation_prompt %}<a>{% endif %}', 'message 2: the template writes nothing of it' },
    ['a content of which a part is left out'] = { "{% for m in messages %}<{{ m.role[0] }}>{{ m.content[:1] }}</s>"
      .. '{% endfor %}{% if add_generation_prompt %}<a>{% endif %}',
      'message 2: the template writes only a part of its content' },
    ['marks around nothing'] = { '{% for m in messages %}<{{ m.role[0] }}>{% generation %}{% endgeneration %}'
      .. '{{ m.content }}</s>{% endfor %}', 'message 2: the template writes nothing of it where it is learnt' },
    ['marks around a part'] = { '{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}{% generation %}</s>'
      .. '{% endgeneration %}{% endfor %}', 'message 2: the template does not write its content in its turn' },
    ['a prompt that is another one'] = { "{% for m in messages %}{{ m.content }}"
      .. '{% if loop.last and add_generation_prompt %}!{% else %}?{% endif %}{% endfor %}',
      'message 2: where the answer begins is not found' },
  }
  for name, case in pairs(cases) do
    it(name, function()
      refused(case[2], learnt, chat_of(case[1]), { messages = { user 'qq', assistant 'xx', user 'rr',
        assistant 'yy' } })
    end)
  end
end)

-- real templates ---------------------------------------------------------------------------------

local QWEN = { '<|endoftext|>', '<|im_start|>', '<|im_end|>' }
local real = {
  { 'trl/qwen2_5.jinja', TWO, '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.'
    .. '<|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n«x<|im_end|>»\n<|im_start|>user\nr'
    .. '<|im_end|>\n<|im_start|>assistant\n«y<|im_end|>»\n', tokens = QWEN },
  { 'trl/qwen3.jinja', { user 'q', assistant('x', { reasoning_content = 'a' }), user 'r',
    assistant('y', { reasoning_content = 'b' }) },
    '<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n«x<|im_end|>»\n'
    .. '<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n«<think>\nb\n</think>\n\ny<|im_end|>»\n', tokens = QWEN },
  { 'trl/qwen3.jinja', TWO, '<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n«x<|im_end|>»\n'
    .. '<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n«y<|im_end|>»\n', tokens = QWEN,
    args = { enable_thinking = false } },
  { 'trl/qwen3_5_think.jinja', { user 'q', assistant('x', { reasoning_content = 'a' }), user 'r',
    assistant('y', { reasoning_content = 'b' }) },
    '<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n«x<|im_end|>»\n'
    .. '<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n<think>\n«b\n</think>\n\ny<|im_end|>»\n', tokens = QWEN },
  { 'trl/llama3.jinja', TWO, '<s><|start_header_id|>user<|end_header_id|>\n\nq<|eot_id|><|start_header_id|>assistant'
    .. '<|end_header_id|>\n\n«x<|eot_id|>»<|start_header_id|>user<|end_header_id|>\n\nr<|eot_id|><|start_header_id|>'
    .. 'assistant<|end_header_id|>\n\n«y<|eot_id|>»' },
  { 'trl/gemma.jinja', TWO, '<s><start_of_turn>user\nq<end_of_turn>\n<start_of_turn>model\n«x<end_of_turn>»\n'
    .. '<start_of_turn>user\nr<end_of_turn>\n<start_of_turn>model\n«y<end_of_turn>»\n' },
  { 'trl/phi3.jinja', TWO, '<|user|>\nq<|end|>\n<|assistant|>\n«x<|end|>»\n<|user|>\nr<|end|>\n<|assistant|>\n'
    .. '«y<|end|>»\n</s>' },
  { 'trl/cohere.jinja', TWO, '<s><|START_OF_TURN_TOKEN|><|USER_TOKEN|>q<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|>'
    .. '<|CHATBOT_TOKEN|>«x<|END_OF_TURN_TOKEN|>»<|START_OF_TURN_TOKEN|><|USER_TOKEN|>r<|END_OF_TURN_TOKEN|>'
    .. '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>«y<|END_OF_TURN_TOKEN|>»' },
  { 'llama.cpp/deepseek-ai-DeepSeek-R1-Distill-Llama-8B.jinja', { user 'q', assistant 'a</think>x', user 'r',
    assistant 'y' }, '<s><｜User｜>q<｜Assistant｜>«x<｜end▁of▁sentence｜>»<｜User｜>r<｜Assistant｜>'
    .. '«y<｜end▁of▁sentence｜>»' },
  { 'axolotl/mistral_v3_tekken.jinja', { system 'S', unpack(TWO) },
    '<s>[INST]q[/INST]«x</s>»[INST]r[/INST]«y</s>»' }, -- which has the system's message in prompts alone
  { 'axolotl/metharme.jinja', { system 'S', unpack(TWO) },
    '<s><|system|>S<|user|>q<|model|>«x»<|user|>r<|model|>«y</s>»' },
  { 'axolotl/alpaca.jinja', TWO, '<s>### Instruction:\nq\n\n### Response:\n«x</s>»\n\n### Instruction:\nr\n\n'
    .. '### Response:\n«y</s>»' },
}

describe('masks of real templates', function()
  local base, why = tools.shared 'templates/trl/qwen3.jinja'
  if not base then return pending('of models', why) end
  for i, case in ipairs(real) do
    it(('%d: %s'):format(i, case[1]), function()
      local at = templates.folder({ ['tokenizer_config.json'] = { bos_token = '<s>', eos_token = '</s>' } })
      local path = tools.shared('templates/' .. case[1])
      local chat = ms.chat.open(at, nil, { template = path, template_args = case.args })
      assert.equal(case[3], learnt(chat, { messages = case[2] }))
    end)
  end
end)

-- A template's own marks beside what is found without them. They differ where a template marks what
-- the prompt has already (thinking that it opens, the head of the turn), in space behind the end, and
-- in the cases listed.
local DIFFER = {
  ['deepseekv3_training'] = 'marks the head of the turn',
  ['phi3_training'] = 'marks the end of the text behind that of the turn',
  ['diffusion_gemma_training'] = 'does not mark <|tool_response>, with which a call ends',
}

-- The same rows with contents as lists of parts, which templates for images need.
local function in_parts(rows)
  local list = {}
  for i, row in ipairs(rows) do
    local messages = json.array()
    for k, m in ipairs(row.messages) do
      messages[k] = { role = m.role, content = json.array { { type = 'text', text = m.content } },
        tool_calls = m.tool_calls, reasoning_content = m.reasoning_content }
    end
    list[i] = { messages = messages, tools = row.tools }
  end
  return list
end

local function bare(text)
  text = text:gsub('%s+', ''):gsub('»«', '')
  return (text:gsub('«<think></think>', '<think></think>«'):gsub('«<think>', '<think>«')
    :gsub('<think>«</think>', '<think></think>«'))
end

describe('masks by marks and by difference', function()
  local golden, why = tools.shared 'templates/trl/golden_renders.json'
  if not golden then return pending('agree', why) end
  local data = json.read(golden, { ordered = true })
  local rows = { { messages = { user 'q', assistant('x', { reasoning_content = 'a' }), user 'r',
    assistant('y', { reasoning_content = 'b' }) } } }
  for _, name in ipairs(json.keys(data.conversations)) do
    if name ~= 'trl_prompt_only' then rows[#rows + 1] = data.conversations[name] end
  end
  local at = templates.folder { ['tokenizer_config.json'] = { bos_token = '<s>', eos_token = '</s>' } }
  local names = {}
  for _, case in ipairs(data.cases) do names[case.template:gsub('%.jinja$', '')] = true end
  for _, name in ipairs(require 'moonstill.base.sorted'.keys(names)) do
    local chat = ms.chat.open(at, nil, { template = tools.shared('templates/trl/' .. name .. '.jinja') })
    if chat.set:choose(nil).compiled.has_generation then
      it((DIFFER[name] and 'differ: ' or 'agree: ') .. name, function()
        local compared, different = 0, 0
        local parts = name:find 'idefics' or name:find 'llava'
        for _, row in ipairs(parts and in_parts(rows) or rows) do
          local compiled = chat.set:choose(row.tools).compiled
          local ok, marked = pcall(learnt, chat, row)
          compiled.has_generation = false
          local found, text = pcall(learnt, chat, row)
          compiled.has_generation = true
          assert.equal(ok, found, text)
          if ok then
            compared = compared + 1
            different = different + (bare(marked) ~= bare(text) and 1 or 0)
            if not DIFFER[name] then assert.equal(bare(marked), bare(text)) end
          end
        end
        assert.is_true(compared > 0)
        if DIFFER[name] then assert.is_true(different > 0) end
      end)
    end
  end
end)
