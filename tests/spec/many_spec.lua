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
{"text": "Hi"}
{"question": "Hi", "answer": "old"}
]])
    assert.equal(0, (generate(says_abc, path, '-o ' .. out .. ' --text')))
    local function messages(...)
      local list = { ... }
      for i = 1, #list do list[i] = { role = list[i][1], content = list[i][2] } end
      return list
    end
    local hi = { prompt = 'Hi', answer = 'abc', ended = true }
    local system = messages({ 'system', 'own' }, { 'user', 'Hi' }, { 'assistant', 'abc' })
    assert.same({ { id = 'one', messages = messages({ 'user', 'Hi' }, { 'assistant', 'abc' }), ended = true },
      { id = 7, prompt = 'Hi', answer = 'abc', ended = true }, { messages = system, ended = true }, hi, hi },
      rows_of(out))
    os.remove(out)
    assert.equal(0, (generate(says_abc, path, '-o ' .. out .. ' --text --system S')))
    local rows = rows_of(out)
    assert.same({ role = 'system', content = 'S' }, rows[2].messages[1])
    assert.same(system, rows[3].messages)
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
    fails(prompts('p.jsonl', '{"prompt": "a"}\n\n{"prompt": 1}\n'), 'p.jsonl:3: the prompt is neither')
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
