-- `moonstill generate`: answers to a file of prompts.
local ms = require 'moonstill'
local json = require 'moonstill.base.json'
local archives = require 'tests.support.archives'
local talkers = require 'tests.support.talkers'
local terminal = require 'tests.support.terminal'
local tools = require 'tests.support.tools'

local program = tools.program()
if not tools.exists(program) then
  pending('moonstill generate', program .. ' is not built')
  return
end

local folder = tools.folder()
local out = folder .. '/out.jsonl'
local part = out .. '.part'
local END = 301
local says_abc = talkers.turns { [10] = 97, [97] = 98, [98] = 99, [99] = END }
-- A text goes on by its last letter: "a" with "bc", "b" with "c"; "c" ends it at once.
local base = talkers.texts { [97] = 98, [98] = 99, [99] = END }

local function command(model, prompts, options)
  return ('OMP_NUM_THREADS=1 exec %s generate %s --prompts %s %s'):format(tools.quote(program), model,
    tools.quote(prompts), options)
end
local function generate(...) return tools.run(command(...)) end

local function prompts(name, text) return tools.write(folder .. '/' .. name, text) end

local function rows_of(path)
  local rows = {}
  for _, row in json.lines(path) do rows[#rows + 1] = row end
  return rows
end

before_each(function()
  os.remove(out)
  os.remove(part)
end)

describe('moonstill generate', function()
  it('answers lines of a text, in order, as rows that train what was generated', function()
    local status, said, err = generate(base, prompts('p.txt', 'xa\r\n\nb'), '-o ' .. out)
    assert.same({ 0, '', out .. ': 2 answers, 2 of them ended\n' }, { status, said, err })
    local rows = rows_of(out)
    assert.same({ { prompt_ids = { 120, 97 }, answer_ids = { 98, 99, END }, answer = 'bc', ended = true },
      { prompt_ids = { 98 }, answer_ids = { 99, END }, answer = 'c', ended = true } }, rows)
    assert.equal(2, ms.dataset.open(out, ms.chat.open(base), { quiet = true }):count())
    assert.is_false(tools.exists(part))
  end)
  it('answers rows of messages, of prompts and of texts, and keeps their ids', function()
    local path = prompts('p.jsonl', [[
{"id": "one", "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "old"}]}
{"id": 7, "prompt": "Hi"}
{"prompt": [{"role": "system", "content": "own"}, {"role": "user", "content": "Hi"}]}
{"text": "Hi", "id": 9007199254740993}
{"question": "Hi", "answer": "old"}
]])
    assert.equal(0, (generate(says_abc, path, '-o ' .. out .. ' --text')))
    local function messages(...)
      local list = { ... }
      for i = 1, #list do list[i] = { role = list[i][1], content = list[i][2] } end
      return list
    end
    local hi = { prompt = 'Hi', answer = 'abc', ended = true }
    local large = { id = '9007199254740993', prompt = 'Hi', answer = 'abc', ended = true }
    local system = messages({ 'system', 'own' }, { 'user', 'Hi' }, { 'assistant', 'abc' })
    assert.same({ { id = 'one', messages = messages({ 'user', 'Hi' }, { 'assistant', 'abc' }), ended = true },
      { id = 7, prompt = 'Hi', answer = 'abc', ended = true }, { messages = system, ended = true }, large, hi },
      rows_of(out))
    os.remove(out)
    assert.equal(0, (generate(says_abc, path, '-o ' .. out .. ' --text --system S')))
    local rows = rows_of(out)
    assert.same({ role = 'system', content = 'S' }, rows[2].messages[1])
    assert.same(system, rows[3].messages)
  end)
  it('answers rows of other forms: what is before the answer, with its system message and its turns', function()
    local path = prompts('p.jsonl', [[
{"conversations": [{"from": "system", "value": "S"}, {"from": "human", "value": "Hi"}, {"from": "gpt", "value": "old"}]}
{"instruction": "Hi", "input": "there", "output": "old"}
{"instruction": "Hi", "input": "there"}
{"prompt": "Hi", "system": "S", "history": [ ["one", "two"] ]}
{"prompt": [{"role": "user", "content": "Hi"}], "completion": [{"role": "assistant", "content": "old"}]}
{"prompt_ids": [300, 97, 10], "answer_ids": [1]}
]])
    local chat = ms.chat.open(says_abc)
    local function turns(...)
      local list = { ... }
      for i = 1, #list do list[i] = { role = list[i][1], content = list[i][2] } end
      return chat:prompt(list)
    end
    assert.equal(0, (generate(says_abc, path, '-o ' .. out)))
    local want = { turns({ 'system', 'S' }, { 'user', 'Hi' }), turns { 'user', 'Hi\n\nthere' },
      turns { 'user', 'Hi\n\nthere' },
      turns({ 'system', 'S' }, { 'user', 'one' }, { 'assistant', 'two' }, { 'user', 'Hi' }), turns { 'user', 'Hi' },
      { 300, 97, 10 } }
    for i, row in ipairs(rows_of(out)) do assert.same(want[i], row.prompt_ids, i) end
    os.remove(out)
    local status, _, err = generate(says_abc, path, '-o ' .. out .. ' --text')
    assert.equal(1, status)
    tools.says("prompt 6 is a list of ids, which form = 'text' cannot write", err)
  end)
  -- Writes tools before the turns, and takes no system message.
  local TURNS = '{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}'
    .. '{% if m.role == "system" %}{{ raise_exception("no system messages") }}{% endif %}'
    .. '<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}'
    .. '{% if add_generation_prompt %}<|im_start|>assistant\n{{ mood }}{% endif %}'
  local function with_template()
    return talkers.turns({ [10] = 97, [97] = 98, [98] = 99, [99] = END }, nil,
      { ['tokenizer_config.json'] = { chat_template = TURNS } })
  end

  it('gives the template the tools of rows, and its variables; rows of texts keep them', function()
    local model = with_template()
    local tool = '{"type": "function", "function": {"name": "f", "description": "d", "b": 1.0, "a": []}}'
    local messages = '[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "abc"}, '
      .. '{"role": "user", "content": "go on"}]'
    local path = prompts('p.jsonl', ('{"messages": %s, "tools": [%s]}\n'):format(messages, tool))
    assert.equal(0, (generate(model, path, '-o ' .. out)))
    local tok = ms.tokenizer.open(model)
    local rendered = tok:decode(rows_of(out)[1].prompt_ids)
    assert.equal('[' .. tool .. ']', rendered:match '^(.-)<|im_start|>')
    local chat = ms.chat.open(model)
    local function encoded()
      return chat:encode(select(2, json.lines(out, { ordered = true })()))
    end
    local ids, n, weights = encoded()
    os.remove(out)
    assert.equal(0, (generate(model, path, '-o ' .. out .. ' --text')))
    local text_ids, text_n, text_weights = encoded()
    for t = 0, n - 1 do assert.equal(ids[t], text_ids[t]) end
    for t = 0, n - 2 do assert.equal(weights[t], text_weights[t]) end -- what was said before is not learnt
    assert.equal(n + 1, text_n) -- the newline behind a turn
    os.remove(out)
    assert.equal(0, (generate(model, path, '-o ' .. out .. " --template-args '{mood: happy}'")))
    assert.matches('assistant\nhappy$', tok:decode(rows_of(out)[1].prompt_ids))
  end)
  it('names the row that a template refuses', function()
    local path = prompts('p.jsonl', '{"prompt": "a"}\n{"prompt": "a", "system": "b"}\n')
    local status, _, err = generate(with_template(), path, '-o ' .. out)
    assert.equal(1, status)
    tools.says({ 'p.jsonl:2: ', 'no system messages' }, err)
  end)
  it('reads compressed files', function()
    for _, way in ipairs(archives.ways) do
      os.remove(out)
      assert.equal(0, (generate(base, prompts('p.txt.' .. way[1], way[2] 'xa\nb\n'), '-o ' .. out)))
      assert.equal(2, #rows_of(out))
    end
  end)
  it('writes to stdout, and nothing else', function()
    local status, said, err = generate(base, prompts('p.txt', 'xa\nb'), '-o - --text')
    assert.same({ 0, '{"prompt":"xa","answer":"bc","ended":true}\n{"prompt":"b","answer":"c","ended":true}\n', '' },
      { status, said, err })
  end)
  it('leaves empty answers out, and says so', function()
    local _, _, err = generate(base, prompts('p.txt', 'a\nc\na'), '-o ' .. out .. ' --text')
    assert.equal(out .. ': 2 answers, 2 of them ended, 1 empty ones left out\n', err)
    assert.equal(2, #rows_of(out))
  end)
  it('writes nothing over', function()
    local path = prompts('p.txt', 'a')
    tools.write(out, 'mine')
    local status, _, err = generate(base, path, '-o ' .. out)
    assert.equal(1, status)
    tools.says(out .. ': is there already, and nothing is written over', err)
    assert.equal('mine', tools.read(out))
    os.remove(out)
    for _, text in ipairs { 'mine', 'mine\n', '{}\n', '' } do
      tools.write(part, text)
      status, _, err = generate(base, path, '-o ' .. out)
      assert.equal(1, status)
      tools.says(part .. ': is in the way', err)
      assert.equal(text, tools.read(part))
    end
  end)

  it('refuses to go on with what another call has left', function()
    local asked = { prompts = 1, tokens = 'x', temperature = 0 }
    tools.write(part, json.encode(asked) .. '\n')
    local status, _, err = generate(base, prompts('p.txt', 'a'), '-o ' .. out)
    assert.equal(1, status)
    tools.says(part .. ': another call has left it: ', err)
  end)
  it('names file and line of what is wrong, before it begins', function()
    local function fails(path, words, model)
      local status, said, err = generate(model or says_abc, path, '-o ' .. out)
      assert.same({ 1, '' }, { status, said })
      tools.says(words, err)
      assert.is_false(tools.exists(out) or tools.exists(part))
    end
    fails(prompts('p.jsonl', '{"prompt": "a"}\n\n{"prompt": 1}\n'), 'p.jsonl:3: column "prompt" is a number, not text')
    fails(prompts('p.jsonl', '{"prompt": "a"}\n{"prompt": ""}\n'), 'p.jsonl:2: the prompt is empty')
    fails(prompts('p.jsonl', '{"prompt": "a"}\n{"prompt"'), 'p.jsonl:2')
    fails(prompts('p.jsonl', '{"promt": "a"}\n'), 'p.jsonl:1: no known columns among promt')
    fails(prompts('p.jsonl', '{"messages": [{"role": "assistant", "content": "a"}]}\n'),
      'p.jsonl:1: no message before the answer')
    fails(prompts('p.txt', 'a\n\n' .. ('b'):rep(300)),
      'p.txt:3: 319 tokens, and the context of the model is 256: no room for an answer')
    fails(prompts('p.txt', '\n \n'), 'p.txt: no prompts')
    fails(folder .. '/absent.txt', 'absent.txt')
    fails(prompts('p.jsonl', '{"messages": [{"role": "user", "content": "a"}]}'), 'p.jsonl:1: ', base)
  end)
  it('refuses wrong command lines', function()
    local path = prompts('p.txt', 'a')
    local function refused(options, words)
      local status, _, err = tools.run(('%s generate %s'):format(tools.quote(program), options))
      assert.equal(2, status)
      tools.says({ words, 'Try: moonstill generate --help' }, err)
    end
    refused(base, 'generate: --prompts FILE is needed')
    refused(base .. ' --prompts ' .. path, 'generate: -o FILE is needed; -o - is stdout')
    refused('', 'more words are needed: moonstill generate FOLDER')
    refused(base .. ' x', "'x' is one word too many")
    refused(base .. ' --max-mew 3', "no option '--max-mew'; did you mean '--max-new'?")
    refused(base .. ' --max-new', '--max-new needs a value: integer >= 1')
    refused(base .. ' --max-new=0', "'--max-new' must be integer >= 1, not 0")
    refused(base .. ' --seed 1 --seed 2', '--seed is given twice')
  end)
  it('shows its progress on a terminal, stops at Ctrl-C and goes on from there', function()
    local path = prompts('p.txt', ('a\n'):rep(800))
    local options = ' --together 1 --temperature 2 -o ' .. out
    local session = terminal.open(command(base, path, options))
    session:wait 'prompt 1/800'
    session:wait ' ended'
    session:keys '\3'
    session:wait 'of 800 prompts; the same command goes on from there'
    assert.equal(128 + 2, bit.rshift(session:finish(), 8))
    assert.is_false(tools.exists(out))
    local first = tools.read(part)
    local whole = first:match '^[^\n]*\n'
    assert.is_true(#first > #whole)
    tools.write(part, first .. '{"torn') -- what a kill leaves
    local status, _, err = generate(base, path, options)
    assert.equal(0, status)
    tools.says('of 800 prompts are answered; going on', err)
    local in_two = tools.read(out)
    os.remove(out)
    assert.equal(0, (generate(base, path, options)))
    assert.equal(tools.read(out), in_two)
    tools.write(part, first)
    os.remove(out)
    local refusal = select(3, generate(base, path, options .. ' --seed 3'))
    tools.says('another call has left it: seed was 0 and is 3. Remove it', refusal)
    tools.says('the prompts are other ones', select(3, generate(base, prompts('p.txt', ('b\n'):rep(800)), options)))
    assert.equal(first, tools.read(part))
  end)
end)
