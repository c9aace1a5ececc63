-- `moonstill eval`: its command line, its table and its files.
local json = require 'moonstill.base.json'
local layout = require 'moonstill.base.layout'
local scores = require 'moonstill.prompt.scores'
local talkers = require 'tests.support.talkers'
local terminal = require 'tests.support.terminal'
local tools = require 'tests.support.tools'

local program = tools.program()
if not tools.exists(program) then
  pending('moonstill eval', program .. ' is not built')
  return
end

local folder = tools.folder()
local says_abc = talkers.turns { [10] = 97, [97] = 98, [98] = 99, [99] = 301 }
local says_b = talkers.turns { [10] = 98, [98] = 301 }
local rows = tools.write(folder .. '/rows.jsonl', '{"prompt": "x", "answer": "abc"}\n'
  .. '{"prompt": "y", "answer": "b"}\n{"prompt": "z", "answer": "abc"}\n')

local function eval(...)
  local words = {}
  for i = 1, select('#', ...) do words[i] = tools.quote((select(i, ...))) end
  return tools.run(('%s eval %s </dev/null'):format(tools.quote(program), table.concat(words, ' ')))
end

local function new(name)
  local path = folder .. '/' .. name
  os.remove(path)
  return path
end

describe('moonstill eval', function()
  it('prints a table: a column for each model, and what differs', function()
    local status, out, err = eval(says_abc, says_b, rows, 'teacher=' .. says_abc)
    assert.same({ 0, '' }, { status, err:match 'moonstill:.*' or '' })
    tools.says({ 'A        ' .. says_abc, 'B        ' .. says_b, 'teacher  ' .. says_abc, 'data     ' .. rows,
      '3 samples, 10 of', 'forward KL to the teacher', 'B less A  loss +' }, out)
    assert.truthy(out:find 'exact answers +66.7 %% ±33.3 %% +33.3 %% ±33.3 %% +66.7 %% ±33.3 %%\n', out)
    assert.truthy(out:find 'forward KL to the teacher +0.0000 ±0.0000 +%d+%.%d+ ±%d%.%d+ +%-\n')
    assert.truthy(out:find 'exact answers %-33%.3 %% ±66%.7 %%')
    for line in out:gmatch '[^\n]+' do
      if not line:find '/' then assert.is_true(layout.width(line) <= 80, line) end
    end
  end)
  it('writes all numbers as JSON, and the answers beside those of the data', function()
    local numbers, answers = new 'numbers.json', new 'answers.jsonl'
    local status, out = eval(says_abc, rows, 'json=' .. numbers, 'answers=' .. answers)
    assert.equal(0, status)
    tools.says('student', out)
    local report = json.read(numbers)
    assert.same({ 3, 10, 3 }, { report.data.samples, report.data.measured, report.data.rows })
    local e = report.students[1]
    assert.equal(2 / 3, e.exact)
    assert.equal(math.exp(e.loss), e.perplexity)
    assert.same({ nil, nil, nil }, { report.teacher, e.forward_kl, e.teacher_agree })
    local list = {}
    for _, row in json.lines(answers) do list[#list + 1] = row end
    assert.same({ answer = 'abc', ended = true, expected = 'b', got = 'abc', model = says_abc, reference = 'b',
      right = false, sample = 2, tokens = 4 }, list[2])
    assert.same({ 3, true, true }, { #list, list[1].right, list[3].right })
    -- alone on stdout
    status, out = eval(says_abc, rows, '--json', 'exact=0')
    assert.equal(0, status)
    local again = json.decode(out)
    assert.same({ e.loss, nil }, { again.students[1].loss, again.students[1].exact })
  end)
  it('says that a model has another template than the first one, whose turns all are given', function()
    local TURNS = '{% for m in messages %}<|im_start|>{{ m.role }}!\n{{ m.content }}<|im_end|>{% endfor %}'
      .. '{% if add_generation_prompt %}<|im_start|>assistant!\n{% endif %}'
    local other = talkers.turns({ [10] = 97, [97] = 301 }, nil,
      { ['tokenizer_config.json'] = { chat_template = TURNS } })
    local note = ('note: turns are written as %s has them, and %s has another template\n'):format(says_abc, other)
    tools.says(note, (select(3, eval(says_abc, other, rows, 'exact=0'))))
    tools.says(note, (select(3, eval(says_abc, rows, 'teacher=' .. other, 'exact=0'))))
    for _, same in ipairs { { says_abc, says_b, rows }, { says_abc, other, rows, 'data.template=chatml' } } do
      local status, _, err = eval(unpack(same))
      assert.same({ 0, nil }, { status, (err:find 'another template') })
    end
  end)
  it('takes a recipe\'s file, whose other keys are passed over', function()
    local yaml = tools.write(folder .. '/c.yaml', ('student: %s\nteacher: %s\nepochs: 3\nkd: {weight: 0.5}\n'
      .. 'data: {train: %s, split: 1, max_tokens: 64}\n'):format(says_abc, says_b, rows))
    local status, out, err = eval(yaml, '--json', 'exact=0')
    assert.equal(0, status, err)
    local report = json.decode(out)
    assert.same({ 1, says_abc, says_b }, { report.data.samples, report.students[1].name, report.teacher.name })
    assert.equal(2, (eval(yaml, 'epochs=3')))
  end)
  it('says what is wrong with a command line, with status 2, before anything is loaded', function()
    local there = tools.write(folder .. '/there.json', '')
    for _, case in ipairs {
      { { }, 'eval: which model? moonstill eval STUDENT DATA' },
      { { says_abc }, 'eval: on which data?' },
      { { says_abc, 'nope.jsonl' }, 'eval: nope.jsonl: no such file or folder' },
      { { says_abc, rows, 'exakt=3' }, "no option 'exakt'; did you mean 'exact'?" },
      { { says_abc, rows, 'micro_tokens=3' }, "did you mean 'batch.micro_tokens'?" },
      { { says_abc, rows, 'exact=-1' }, "'exact' must be integer >= 0 or all, not -1" },
      { { says_abc, rows, 'json=' .. there }, 'there.json is there already, and nothing is written over' },
      { { says_abc, rows, 'answers=' .. folder .. '/no/a.jsonl' }, 'answers: there is no folder' },
      { { says_abc, rows, 'answers=a.jsonl', 'exact=0' }, "'answers' needs exact answers" },
      { { says_abc, rows, 'match=(' }, "match: the pattern '(' is no regular expression: missing closing" },
      { { says_abc, rows, 'objective=kl' }, "'objective' must be one of forward_kl" },
      { { says_abc .. '/model.safetensors', rows }, 'give the folder of the model, not a file in it' },
      { { says_abc, 'data.train=' .. rows }, 'data.train is what is learnt' },
      { { says_abc, 'data.split=2' }, 'data.split is a part of data.train, which is not given' },
    } do
      local status, out, err = eval(unpack(case[1]))
      assert.same({ 2, '' }, { status, out }, case[2])
      tools.says(case[2], err)
    end
    assert.equal('', tools.read(there))
  end)
  it('ends with an error where a model cannot read the data', function()
    local small = talkers.turns({ [10] = 97, [97] = 301 }, { max_position_embeddings = 64 })
    local row = '{"prompt": "%s", "answer": "abc"}\n'
    local long = tools.write(folder .. '/long.jsonl', row:format(('x'):rep(90)))
    local status, _, err = eval(small, long)
    assert.equal(1, status)
    tools.says('no samples in', err)
  end)
  it('leaves in good order on Ctrl-C', function()
    local endless, numbers = talkers.turns { [10] = 97, [97] = 97 }, new 'stopped.json'
    -- enough of them that nobody waits for the end
    local many = tools.write(folder .. '/many.jsonl', ('{"prompt": "x", "answer": "abc"}\n'):rep(30000))
    local session = terminal.open(('exec %s eval %s %s exact=all max_new=200 together=1 json=%s'):format(
      tools.quote(program), endless, many, numbers))
    session:wait 'answers'
    session:keys '\3'
    session:wait 'eval: stopped; nothing is written'
    assert.equal(130 * 256, session:finish())
    assert.is_false(tools.exists(numbers))
  end)
end)

describe('the table of an evaluation', function()
  local function entry(name, loss, more)
    local e = { name = name, loss = loss, loss_error = 0.01, perplexity = math.exp(loss), agree = 0.5,
      parameters = 1234567, tokens_per_second = 1000 }
    for key, value in pairs(more or {}) do e[key] = value end
    return e
  end
  local function report_of(n)
    local report = { data = { files = { 'a.jsonl' }, samples = 4, tokens = 100, measured = 50 }, students = {},
      differences = {}, objective = 'js', temperature = 2 }
    for i = 1, n do
      report.students[i] = entry('m' .. i, i, { js = 0.25, js_error = 0.02, teacher_agree = 0.9, exact = 0.5,
        exact_error = 0.1, answers = { of = 2, ended = 1, tokens_per_second = 10 } })
      if i > 1 then
        report.differences[i - 1] = { loss = 1, loss_error = 0.5, js = -0.25, js_error = 0.125, exact = 0,
          exact_error = 0 }
      end
    end
    report.teacher = entry('t', 0.5)
    return report
  end
  it('has a line for each number, and a - for what a model has not', function()
    assert.equal([[
student  m1
teacher  t
data     a.jsonl
         4 samples, 50 of 100 tokens learnt

                                 student         teacher
loss, nats a token        1.0000 ±0.0100  0.5000 ±0.0100
perplexity                         2.718           1.649
top-1 is the label                50.0 %          50.0 %
JS to the teacher, T = 2  0.2500 ±0.0200               -
top-1 is the teacher's            90.0 %               -
exact answers, of 2       50.0 % ±10.0 %               -
answers that ended                50.0 %               -
tokens a second, read               1000            1000
tokens a second, written              10               -
parameters                        1.23 M          1.23 M

An answer is exact where its whole text is the data's; match='...' says which
part counts.]],
      table.concat(scores.lines(report_of(1), 80), '\n'))
  end)
  it('fits its columns: without errors first, then cut into several', function()
    for _, columns in ipairs { 100, 80, 60, 50 } do
      for n = 1, 6 do
        local lines = scores.lines(report_of(n), columns)
        for _, line in ipairs(lines) do assert.is_true(layout.width(line) <= columns, line) end
        local all, seen = table.concat(lines, '\n'), 0
        for _ in all:gmatch '%d%.0000' do seen = seen + 1 end
        assert.is_true(seen >= n, all) -- no model is lost
      end
    end
    assert.is_nil(table.concat(scores.lines(report_of(1), 50), '\n'):find('±', 1, true))
    local lines = table.concat(scores.lines(report_of(2), 50), '\n')
    assert.equal('B less A  loss +1.0000 ±0.5000,\n          JS -0.2500 ±0.1250,\n'
      .. '          exact answers 0.0 % ±0.0 %', lines:match 'B less.*')
  end)
end)
