--- The quickstart recipe at its --smoke size, as a user runs it.
local json = require 'moonstill.base.json'
local ms = require 'moonstill'
local tools = require 'tests.support.tools'

local root = select(2, tools.run 'pwd -P'):gsub('\n', '') -- as the program says where it is
local recipe = root .. '/recipes/quickstart.lua'

describe('recipes/quickstart.lua', function()
  if not tools.exists(tools.program()) then
    pending('needs ' .. tools.program())
    return
  end

  local program = select(2, tools.run('realpath ' .. tools.quote(tools.program()))):gsub('\n', '')

  -- Words of a command line in a folder; returns status, stdout, stderr.
  local function command(folder, ...)
    local words = { 'cd', tools.quote(folder), '&& COLUMNS=80 OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1',
      tools.quote(program), ... }
    return tools.run(table.concat(words, ' '))
  end
  local function run(folder, ...) return command(folder, recipe, '--smoke', ...) end

  -- What is told of the models, without what depends on the clock.
  local function told(out)
    return (out:match '\nValidation loss.*':gsub('(\n%a[%w ]-  +[%d.]+ %a) +%S+', '%1'))
  end

  local function weights(folder, name)
    return tools.read(('%s/out/quickstart-smoke/%s/student/model.safetensors'):format(folder, name))
  end

  local function list(folder) return select(2, tools.run('cd ' .. folder .. ' && find . | sort')) end

  local folder = tools.folder()
  local status, first, err = run(folder)

  it('trains three models and tells of each', function()
    assert.equal(0, status, err)
    local losses = {}
    for i, name in ipairs { 'teacher', 'SFT student', 'distilled student' } do
      assert.truthy(first:find(('\nstage %d of 3: the %s\n'):format(i, name), 1, true), first)
      local row = first:match('\n' .. name .. ' +(%d[^\n]+)')
      assert.truthy(row, 'no row for ' .. name)
      losses[#losses + 1] = tonumber(row:match '^%S+ k +%d+ +([%d.]+)')
      local _, samples = first:gsub('\n  ' .. name .. ' +wrong  ', '')
      assert.equal(3, samples)
    end
    assert.equal(3, #losses)
    -- a vocabulary of some 500: all have learnt something, and they are different models
    for _, loss in ipairs(losses) do assert.is_true(loss > 0 and loss < 6) end
    assert.is_true(losses[2] ~= losses[3])
    local worse = losses[3] > losses[2] and 'worse than' or 'better than'
    tools.says({ 'The distilled student is ' .. worse .. ' the SFT student by its validation loss',
      'learns 300 such problems', 'learns 100 of them', 'the same 100 from the', '10 % of the steps are worked' },
      first)
  end)

  it('fits the terminal', function()
    for _, columns in ipairs { 60, 80 } do
      local out = select(2, tools.run(('cd %s && COLUMNS=%d %s %s --smoke'):format(folder, columns, program, recipe)))
      for line in out:gmatch '[^\n]+' do
        assert.is_true(#line <= columns or line:find(program, 1, true) ~= nil, line)
      end
      assert.truthy(out:find '\nSFT student[ %d%.k]+  0.0 %%\n')
      assert.equal(columns == 80, out:find 'tokens/s' ~= nil)
    end
  end)

  it('leaves curves, data and model folders', function()
    local out = folder .. '/out/quickstart-smoke/'
    assert.equal(5, select(2, tools.read(out .. 'curves.svg'):gsub('<polyline', '')))
    ms.scope(function(own)
      local a = own(ms.model.open(out .. 'sft/student'))
      local b = own(ms.model.open(out .. 'distilled/student'))
      assert.equal(a:info().parameters, b:info().parameters)
      local chat = own(ms.chat.open(a, { b })) -- the tokenizer went along
      for name, rows in pairs { ['train.jsonl'] = 100, ['train-teacher.jsonl'] = 300, ['valid.jsonl'] = 20 } do
        assert.equal(rows, ms.dataset.open(out .. name, chat, { quiet = true }):count())
      end
    end)
    for line in first:match 'What to do next:\n(.*)':gmatch '[^\n]+' do
      assert.equal(0, (tools.run(('cd %s && %s </dev/null'):format(folder, line))), line)
    end
  end)

  it('shows the result again and trains nothing', function()
    local before = list(folder)
    local again, out, errors = run(folder)
    assert.same({ 0, '' }, { again, errors })
    assert.equal(told(first), told(out))
    assert.equal(before, list(folder))
  end)

  it('trains again what is not there any more', function()
    local before = weights(folder, 'sft')
    os.execute('rm -r ' .. folder .. '/out/quickstart-smoke/sft')
    local _, out, errors = run(folder)
    assert.equal(told(first), told(out))
    tools.says('sft/student after 10 steps', errors)
    assert.falsy(errors:find 'distilled' or errors:find 'teacher/')
    assert.is_true(before == weights(folder, 'sft'))
    os.remove(folder .. '/out/quickstart-smoke/distilled/result.json') -- killed before it was written
    _, out, errors = run(folder)
    assert.equal(told(first), told(out))
    tools.says('finished already after 10 steps', errors)
    assert.falsy(errors:find 'step %d+/')
  end)

  it('goes on where it was, in each stage, whatever stopped it', function()
    local other, out = tools.folder(), nil
    for _, stop in ipairs { { 'teacher', 4, 2, 130 }, { 'teacher', 8, 9, 137 }, { 'sft', 5, 2, 130 },
      { 'distilled', 2, 9, 137 }, { 'distilled', 9, 15, 143 } } do
      local name, step, signal, want = unpack(stop)
      status, out, err = command(other, root .. '/tests/programs/interrupt.lua', name, step, signal, recipe, '--smoke')
      assert.equal(want, status, err)
      assert.falsy(out:find 'What to do next')
      if signal ~= 9 then
        tools.says(('after step %d of 10, which is saved: the same command goes on from there'):format(step), err)
      end
    end
    tools.says({ 'stage 1 of 3: the teacher, which is trained already', 'stage 2 of 3: the SFT student, which' }, out)
    status, out, err = run(other)
    assert.equal(0, status, err)
    tools.says('resumed after step 9 of 10', err)
    assert.equal(told(first), told(out))
    for _, name in ipairs { 'teacher', 'sft', 'distilled' } do
      assert.is_true(weights(folder, name) == weights(other, name), name)
    end
    assert.equal(list(folder), list(other))
  end)

  it('refuses other settings than those of what is there', function()
    local before = list(folder)
    local wrong, out, errors = run(folder, 'data.slips=0.2', 'student.steps=11')
    assert.same({ 1, '' }, { wrong, out })
    tools.says({ 'smoke holds one with data.slips = 0.1, which is 0.2 now; student.steps = 10, which is 11',
      'give another output, or resume=false to begin anew' }, errors)
    assert.equal(before, list(folder))
    assert.equal(0, (run(folder, 'threads=1', 'resume=true')))
  end)

  it('begins anew with resume=false, and keeps what was there', function()
    local other, files = tools.folder(), nil
    run(other, 'student.steps=3', 'teacher.steps=3')
    local ok, _, errors = run(other, 'student.steps=4', 'teacher.steps=3', 'resume=false')
    assert.equal(0, ok, errors)
    tools.says({ 'what was in out/quickstart-smoke is now in out/quickstart-smoke.old', 'teacher/student after 3',
      'distilled/student after 4' }, errors)
    files = list(other)
    assert.truthy(files:find('./out/quickstart-smoke.old/sft/student/model.safetensors', 1, true))
    assert.falsy(files:find 'checkpoints.old')
    ok, _, errors = command(other, root .. '/tests/programs/interrupt.lua', 'teacher', 2, 2, recipe, '--smoke',
      'resume=false')
    assert.equal(130, ok)
    tools.says('the same command with resume=auto goes on from there', errors)
  end)

  it('writes nothing into a folder that holds something else', function()
    local other = tools.folder()
    tools.write(other .. '/train.jsonl', 'mine')
    for _, words in ipairs { '', 'resume=false' } do
      local wrong, _, errors = run(other, 'output=.', words)
      assert.equal(1, wrong)
      tools.says('trial: . holds something else (train.jsonl): give another output', errors)
    end
    assert.equal('mine', tools.read(other .. '/train.jsonl'))
    assert.equal(2, select(2, list(other):gsub('\n', '')))
  end)

  it('refuses keys of every recipe that it has no use for', function()
    for words, want in pairs { ['max_steps=3'] = 'does nothing here: teacher.steps, student.steps',
      ['data.student=301'] = "'data.student' is more than 'data.teacher'",
      ['resume=.'] = "'resume' cannot be a folder here" } do
      local wrong, _, errors = run(tools.folder(), words)
      assert.equal(2, wrong)
      tools.says(want, errors)
    end
  end)

  it('repeats, and takes a teacher that has learnt nothing', function()
    local other = tools.folder()
    local ok, out, errors = run(other, 'teacher.steps=0', 'student.steps=2')
    assert.equal(0, ok, errors)
    assert.falsy(out:find 'better in both')
    ok, out, errors = run(other, 'seeds=2', 'teacher.steps=0', 'student.steps=2')
    assert.equal(0, ok, errors)
    tools.says({ 'seed 2\n', 'better in both: ', ' of 2\n', 'seed-2/curves.svg' }, out)
    assert.truthy(out:match '\nteacher +[%d.]+ k +%- ')
    assert.falsy(errors:find('quickstart-smoke/sft', 1, true)) -- the first one was there already
  end)
end)

describe('ms.comparison', function()
  -- An entry of which these problems are right, and a loss.
  local function entry(name, loss, right)
    local e = { name = name, parameters = 1234567, steps = { 0 }, loss = { loss }, right = {}, answers = {} }
    for i = 1, #right do e.right[i] = right:sub(i, i) == '1' end
    return e
  end

  it('never calls better what is not', function()
    local verdict = ms.comparison.verdict
    local a = entry('A', 0.5, '1100')
    tools.says({ 'The B is better than the A in both measures: validation loss 0.4000 against 0.5000, exact answers to '
      .. '3 of 4 problems against 2. It alone is right in 1 problems, the A alone in 0: chance may make such' },
      verdict(a, entry('B', 0.4, '1110')))
    for want, b in pairs {
      ['The B is worse than the A in both measures'] = entry('B', 0.6, '1000'),
      ['The B is like the A in both measures'] = entry('B', 0.5, '0011'),
      ['The B is worse than the A by its validation loss, better than it in exact'] = entry('B', 0.6, '1111'),
      ['The B is better than the A by its validation loss, worse than it in exact'] = entry('B', 0.4, '0000'),
      ['The B is better than the A by its validation loss, like it in exact'] = entry('B', 0.4, '0110') } do
      tools.says(want, verdict(a, b))
    end
  end)

  -- 10 against 2: |8| > 1.96 sqrt(12) = 6.79; 9 against 3: |6| is less
  it('says where chance may make the difference', function()
    local a = entry('A', 1, ('0'):rep(10) .. ('1'):rep(2))
    assert.falsy(ms.comparison.verdict(a, entry('B', 1, ('1'):rep(10) .. ('0'):rep(2))):find 'chance')
    a = entry('A', 1, ('0'):rep(9) .. ('1'):rep(3))
    tools.says('chance', ms.comparison.verdict(a, entry('B', 1, ('1'):rep(9) .. ('0'):rep(3))))
  end)

  it('leaves the least important columns out', function()
    local list = { entry('some model', 0.5, '1100') }
    list[1].kl, list[1].tokens, list[1].seconds = { 0.25 }, 3000, 2
    local function with(width) return '\n' .. ms.comparison.table(list, width) .. '\n' end
    assert.equal([[

            weights  tokens/s  validation loss  KL to the teacher  exact answers
some model   1.23 M      1500           0.5000             0.2500         50.0 %
]], with(80))
    assert.equal([[

            weights  tokens/s  validation  KL to the    exact
                                     loss    teacher  answers
some model   1.23 M      1500      0.5000     0.2500   50.0 %
]], with(61))
    assert.equal([[

            weights   validation     KL to the         exact
                            loss       teacher       answers
some model   1.23 M       0.5000        0.2500        50.0 %
]], with(60))
    assert.equal('\n            exact answers\nsome model         50.0 %\n', with(30))
  end)

  it('shows long answers and words in lines that fit', function()
    local list = { entry('A', 0.5, '10') }
    list[1].answers = { ('.'):rep(300), 'So the answer: 2' }
    local problems = { { answer = 1, messages = { { role = 'user', content = 'one two three' } } },
      { answer = 2, messages = { { role = 'user', content = 'four' } } } }
    local text = ms.comparison.sample(list, problems, 1, 40)
    for line in text:gmatch '[^\n]+' do assert.is_true(#line <= 40, line) end
    assert.equal('problem 2: four\n  expected         2\n  A         wrong  So the\n                   answer: 2',
      ms.comparison.sample(list, problems, 2, 30))
  end)
end)

describe('ms.trial', function()
  it('takes a result for one only where its student is', function()
    local trial = ms.trial.open(tools.folder() .. '/new', { a = 1 })
    os.execute('mkdir -p ' .. trial:path 'one/student')
    assert.same({ x = 1 }, trial:keep('one', { x = 1 }))
    assert.is_nil(trial:result 'one')
    tools.write(trial:path 'one/student/config.json', '{}')
    assert.same({ x = 1 }, trial:result 'one')
    tools.write(trial:path 'one/result.json', '{"x": ')
    assert.is_nil(trial:result 'one')
    assert.same({ settings = { a = 1 } }, json.read(trial:path 'trial.json'))
    ms.trial.open(trial.folder, { a = 1 }, true)
    tools.fails('holds one with a = 1, which is 2 now', ms.trial.open, trial.folder, { a = 2 })
    tools.fails('expected auto, true or false', ms.trial.open, trial.folder, {}, 'x')
    tools.fails('there is none in', ms.trial.open, tools.folder(), {}, true)
  end)
end)
