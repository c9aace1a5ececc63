-- `moonstill chat`, through pipes and at a terminal.
local ms = require 'moonstill'
local thoughts = require 'moonstill.prompt.thoughts'
local json = require 'moonstill.base.json'
local talkers = require 'tests.support.talkers'
local terminal = require 'tests.support.terminal'
local tools = require 'tests.support.tools'

local program = tools.program()
if not tools.exists(program) then
  pending('moonstill chat', program .. ' is not built')
  return
end

local folder = tools.folder()
local ABC, END = { [10] = 97, [97] = 98, [98] = 99, [99] = 301 }, 301 -- answers "abc"
local says_abc = talkers.turns(ABC)

-- Thinks "a" and says "b": each letter has one that follows.
local THINKS, text = { [10] = 97, [97] = ('<'):byte(), [('>'):byte()] = 98, [98] = END }, '</think>'
for i = 1, #text - 1 do THINKS[text:byte(i)] = text:byte(i + 1) end
local TURNS = '{% for m in messages %}<|im_start|>{{ m.role }}\n'
  .. '{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{{ m.content }}<|im_end|>\n{% endfor %}'
  .. '{% if add_generation_prompt %}<|im_start|>assistant\n{{ opening }}{% endif %}'
local thinker = talkers.turns(THINKS, nil, { ['tokenizer_config.json'] = { chat_template = TURNS } })
local opening = ' --template-args \'{opening: "<think>\\n"}\''

-- What the command makes of lines: status, stdout, stderr.
local function talk(lines, model, options)
  local input = tools.write(folder .. '/input', table.concat(lines, '\n'))
  return tools.run(('%s chat %s %s <%s'):format(tools.quote(program), model or says_abc, options or '', input))
end

describe('moonstill chat through pipes', function()
  it('answers each line, and nothing else is on stdout', function()
    assert.same({ 0, 'abc\nabc\n', '' }, { talk { 'Hi', '', 'again' } })
  end)
  it('keeps the conversation, and saves it as a row that trains it', function()
    local path = folder .. '/saved.jsonl'
    os.remove(path)
    local status, out, err = talk({ 'Hi', 'x', '/save ' .. path, '/undo', '/save ' .. path }, nil, '--system S')
    assert.same({ 0, 'abc\nabc\n' }, { status, out })
    tools.says({ '1 row added to ' .. path, 'taken back: x' }, err)
    local rows = {}
    for number, row in json.lines(path) do rows[number] = row end
    local function message(role, content) return { role = role, content = content } end
    local first = { message('system', 'S'), message('user', 'Hi'), message('assistant', 'abc') }
    assert.same({ messages = first }, rows[2])
    first[4], first[5] = message('user', 'x'), message('assistant', 'abc')
    assert.same({ messages = first }, rows[1])
    local data = ms.dataset.open(path, ms.chat.open(says_abc), { quiet = true })
    local _, n, weights = data:sample(1)
    local learnt = 0
    for t = 0, n - 2 do learnt = learnt + weights[t] end
    assert.equal(8, learnt) -- abc and its end, twice
  end)
  it('gives the model what was said before', function()
    -- a prompt is 21 tokens long, an answer and what ends its turn 5
    local small_context = talkers.turns(ABC, { max_position_embeddings = 64 })
    local status, out, err = talk({ 'Hi', 'Hi', 'Hi' }, small_context)
    assert.equal(1, status)
    assert.equal('abc\nabc\n', out)
    tools.says('the conversation has 73 tokens, and the context of the model is 64: this turn is not kept; /undo takes '
      .. 'an earlier one back, /reset begins anew', err)
    status, out = talk({ 'Hi', 'Hi', '/reset', 'Hi' }, small_context)
    assert.same({ 0, 'abc\nabc\nabc\n' }, { status, out })
  end)
  it('says where an answer was cut off', function()
    local endless = talkers.turns({ [10] = 97, [97] = 97 }, { max_position_embeddings = 64 })
    local _, out, err = talk({ 'Hi' }, endless, '--max-new 5')
    assert.equal('aaaaa\n', out)
    assert.equal('(cut off after 5 tokens; max-new = 5)\n', err)
    _, out, err = talk({ 'Hi' }, endless)
    assert.equal(('a'):rep(64 - 21) .. '\n', out) -- behind the prompt's 21 tokens
    tools.says('(the context of 64 tokens is full: /undo takes a turn back, /reset begins anew)', err)
  end)
  it('saves no end of an answer that was cut off', function()
    local endless, path = talkers.turns({ [10] = 97, [97] = 97 }, nil), folder .. '/cut.jsonl'
    os.remove(path)
    talk({ 'Hi', 'Hi', '/save ' .. path }, endless, '--max-new 2')
    local row = select(2, json.lines(path)())
    assert.is_false(row.ended)
    assert.equal(0, row.messages[2].weight)
    assert.is_nil(row.messages[4].weight)
    talk({ '/save ' .. path, 'Hi', '/save ' .. folder .. '/x.txt' }, endless)
    local _, _, err = talk({ '/save ' .. path, 'Hi', '/save ' .. folder .. '/x.txt', '/save' }, endless)
    tools.says({ '(there is nothing to save)', "x.txt: the file's name ends in .jsonl)", '(a file is needed' }, err)
    tools.write(path, '{"torn": ')
    tools.says('its last line has no end', select(3, talk({ 'Hi', '/save ' .. path }, endless)))
    assert.equal('{"torn": ', tools.read(path))
  end)
  it('takes texts of several lines', function()
    local path = folder .. '/lines.jsonl'
    local inputs = { ['one\ntwo'] = { 'one\\', 'two' }, ['a\n\n  b'] = { '"""', 'a', '', '  b', '"""' },
      ['x\ny'] = { '"""x', 'y"""' }, ['/etc'] = { '//etc' }, ['one line'] = { '"""one line"""' } }
    for want, lines in pairs(inputs) do
      os.remove(path)
      lines[#lines + 1] = '/save ' .. path
      assert.equal(0, (talk(lines)))
      assert.equal(want, select(2, json.lines(path)()).messages[1].content)
    end
    assert.same({ 0, 'abc\n', '' }, { talk { '"""never', 'ended' } })
  end)
  it('sets how answers are drawn', function()
    local wild = talkers.turns {} -- one logit is 17, all others 0
    local function drawn(lines, options) return select(2, talk(lines, wild, '--max-new 8 ' .. (options or ''))) end
    local one, two = drawn { '/seed 1', '/temperature 9', 'Hi' }, drawn { '/seed 2', '/temperature 9', 'Hi' }
    assert.not_equal(one, two)
    assert.equal(one, drawn({ 'Hi' }, '--seed 1 --temperature 9'))
    local both = drawn({ 'Hi', '/undo', '/seed 1', 'Hi' }, '--seed 1 --temperature 9')
    assert.equal(one .. one, both)
    local again = drawn({ 'Hi', '/retry' }, '--seed 1 --temperature 9')
    assert.equal(one, again:sub(1, #one))
    assert.not_equal(one .. one, again)
    tools.says({ 'temperature is 0.5', "('temperature' must be number >= 0, not x)", 'top-k is 3', 'max-new is 1024' },
      select(3, talk { '/temperature 0.5', '/temperature x', '/top-k 3', '/max-new' }))
    tools.says('at temperature 0 the answer is always the same', select(3, talk { 'Hi', '/retry' }))
  end)
  it('draws as the folder says, unless it is told', function()
    local own = { do_sample = true, temperature = 0.7, top_p = 0.9, top_k = 'many', eos_token_id = 302 }
    local model = talkers.turns(ABC, nil, { ['generation_config.json'] = own })
    local lines = { '/temperature', '/top-p', '/top-k' }
    assert.equal('temperature is 0.7\ntop-p is 0.9\ntop-k is 0\n', select(3, talk(lines, model)))
    assert.equal('temperature is 0\ntop-p is 0.9\ntop-k is 4\n',
      select(3, talk(lines, model, '--temperature=0 --top-k 4')))
  end)
  it('names the nearest command', function()
    local status, _, err = talk { '/rest' }
    assert.same({ 1, "(no command '/rest'; did you mean '/reset'?)\n" }, { status, err })
    tools.says('/temperature [X]', select(3, talk { '/help' }))
    assert.same({ 0, '', '' }, { talk { '/quit', 'Hi' } })
  end)
  it('goes on with texts where the model is a base model', function()
    local base = talkers.texts { [97] = 98, [98] = END }
    local status, out, err = talk({ 'a', '/system x' }, base)
    assert.same({ 1, 'b\n' }, { status, out })
    tools.says({ 'no chat template', 'each line is a text that the model goes on with',
      '(this model has no turns, and no system message)' }, err)
    local refusal = { talk({}, base, '--system x') }
    assert.equal(2, refusal[1])
    tools.says('--system: this model has no turns', refusal[3])
    local path = folder .. '/base.jsonl'
    os.remove(path)
    talk({ 'a', '/save ' .. path }, base)
    assert.same({ prompt = 'a', answer = 'b', ended = true }, select(2, json.lines(path)()))
  end)
  it('shows what is thought, also where the template has begun it, and keeps it apart from the answer', function()
    assert.same({ 0, 'a</think>b\n', '' }, { talk({ 'Hi' }, thinker) })
    local path = folder .. '/thought.jsonl'
    os.remove(path)
    local status, out = talk({ 'Hi', 'Hi', '/save ' .. path }, thinker, opening)
    assert.same({ 0, '<think>\na</think>b\n<think>\na</think>b\n' }, { status, out })
    local row = select(2, json.lines(path)())
    assert.same({ role = 'assistant', content = 'b', reasoning_content = 'a' }, row.messages[4])
  end)
  it('writes turns by the template that is asked for', function()
    local _, _, err = talk({ 'Hi' }, says_abc, "--template '{{ oops('")
    tools.says('line 1, column', err)
    local base = talkers.texts { [97] = 98, [98] = END }
    local own = "--template '{% for m in messages %}{{ m.content }}{% endfor %}'"
    assert.same({ 0, 'b\n', '' }, { talk({ 'a' }, base, own) }) -- now it has turns
    local status, out = talk({ 'a' }, talkers.turns { [97] = 98, [98] = END }, '--template none')
    assert.same({ 0, 'b\n' }, { status, out })
  end)
  it('keeps no turn without an answer', function()
    local silent = talkers.turns { [10] = END }
    local _, out, err = talk({ 'Hi', '/undo' }, silent)
    assert.equal('', out)
    tools.says({ '(an empty answer is not kept)', '(there is no turn to take back)' }, err)
  end)
  it('writes what the model says as it is, and escapes it on a terminal', function()
    local rude = talkers.turns { [10] = 27, [27] = 99, [99] = END } -- ESC c resets a terminal
    assert.equal('\27c\n', select(2, talk({ 'Hi' }, rude)))
    local session = terminal.open(('echo Hi | %s chat %s'):format(tools.quote(program), rude))
    session:wait '\\x1bc\r\n'
    assert.equal(0, session:finish())
  end)
end)

describe('thoughts', function()
  it('are painted whatever pieces they come in', function()
    local whole = 'x<think>one<think\n</thin></think>two<think>three'
    for size = 1, #whole do
      local painter, parts = thoughts.new(string.upper), {}
      for at = 1, #whole, size do parts[#parts + 1] = painter.add(whole:sub(at, at + size - 1)) end
      parts[#parts + 1] = painter.finish()
      assert.equal('x<THINK>ONE<THINK\n</THIN></THINK>two<THINK>THREE', table.concat(parts))
      assert.equal('a', painter.add 'a') -- the next answer begins outside
    end
  end)
end)

describe('moonstill chat on a terminal', function()
  local it_is
  local function open(model, options)
    it_is = terminal.open(('XDG_STATE_HOME=%s exec %s chat %s %s'):format(folder, tools.quote(program), model,
      options or ''))
    it_is:wait 'Ctrl-D leaves'
    it_is:wait '> '
  end
  after_each(function() it_is:kill() end)

  it('introduces itself, answers, and ends with Ctrl-D', function()
    open(says_abc)
    assert.truthy(it_is:type('Hi'):find('\nabc\r\n', 1, true))
    assert.truthy(it_is:type('/temperature 2'):find('temperature is 2', 1, true))
    assert.equal(0, it_is:leave())
  end)
  it('stops an answer at Ctrl-C and keeps what was said', function()
    open(talkers.turns({ [10] = 97, [97] = 97 }, { max_position_embeddings = 1000000 }), '--max-new 900000')
    it_is:keys 'Hi\n'
    it_is:wait 'aaaaaaaaaa'
    it_is:keys '\3'
    it_is:wait '(stopped)'
    it_is:wait '\n> '
    it_is:type '/temperature 0.01'
    it_is:keys '/retry\n'
    it_is:wait 'aaaaaaaaaa'
    it_is:keys '\3'
    it_is:wait '(stopped)'
    it_is:wait '\n> '
    local path = folder .. '/stopped.jsonl'
    os.remove(path)
    it_is:type('/save ' .. path)
    local row = select(2, json.lines(path)())
    assert.is_false(row.ended)
    assert.matches('^aaaaaaaaaa+$', row.messages[2].content)
    assert.equal(0, it_is:leave())
  end)
  it('leaves at the second Ctrl-C of an empty prompt', function()
    open(says_abc)
    it_is:keys 'half a line'
    it_is:wait 'line'
    it_is:interrupt()
    it_is:wait '^C\r\n> ' -- given up, and no word of leaving
    it_is:interrupt()
    it_is:wait 'Ctrl-C again or Ctrl-D leaves'
    it_is:wait '\n> '
    it_is:type 'Hi' -- after which the first one is forgotten
    it_is:interrupt()
    it_is:wait 'Ctrl-C again or Ctrl-D leaves'
    it_is:wait '\n> '
    it_is:interrupt()
    assert.equal(0, it_is:finish())
  end)
  it('takes lines of one text, which Ctrl-C gives up', function()
    open(says_abc)
    it_is:keys '"""\n'
    it_is:wait '>> '
    it_is:interrupt()
    it_is:wait '\n> '
    it_is:keys 'one\\\n'
    it_is:wait '>> '
    assert.truthy(it_is:type('two'):find('\nabc\r\n', 1, true))
    assert.equal(0, it_is:leave())
  end)
  it('shows thinking faintly', function()
    open(thinker, opening)
    local seen = it_is:type 'Hi'
    assert.equal('<think>\na</think>b', (seen:match '<think>.*b':gsub('\27%[%d*m', ''):gsub('\r', '')))
    assert.matches('\27%[2m<think>\r?\na</think>\27%[0mb', (seen:gsub('\27%[0m\27%[2m', '')))
  end)
  it('keeps a history of its own', function()
    open(says_abc)
    it_is:type 'remember'
    it_is:leave()
    open(says_abc)
    it_is:keys '\27[A' -- arrow up
    it_is:wait 'remember'
    assert.truthy(tools.exists(folder .. '/moonstill_chat_history'))
  end)
  it('says that a base model goes on with texts', function()
    it_is = terminal.open(('exec %s chat %s'):format(tools.quote(program), talkers.texts { [97] = 98, [98] = END }))
    it_is:wait 'each line is a text'
    it_is:wait '> '
    assert.truthy(it_is:type('a'):find('\nb\r\n', 1, true))
  end)
  it('ends when it is asked to', function()
    open(talkers.turns({ [10] = 97, [97] = 97 }, { max_position_embeddings = 1000000 }), '--max-new 900000')
    it_is:keys 'Hi\n'
    it_is:wait 'aaaaaaaaaa'
    it_is:signal(15)
    assert.equal(128 + 15, bit.rshift(it_is:finish(), 8))
  end)
end)
