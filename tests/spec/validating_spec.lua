--- What a run measures by itself: before its first step, every so many steps and after the last one; each once,
--- however often it is stopped. And runs whose loop gives every batch.
local ms = require 'moonstill'
local json = require 'moonstill.base.json'
local recipe = require 'tests.programs.run_recipe'
local tools = require 'tests.support.tools'

local environment = 'OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1 LUA_PATH=' .. tools.quote(package.path)

-- tests/programs/run_recipe.lua, which validates by itself every 4 steps, by `program`.
local function start(program, out, ...)
  local words = { environment, tools.quote(program), 'tests/programs/run_recipe.lua', 'output=' .. out, 'itself=true',
    'validate=4' }
  for i = 1, select('#', ...) do words[#words + 1] = tools.quote((select(i, ...))) end
  return tools.run(table.concat(words, ' '))
end

local function finished(out, ...)
  local status, _, err = start('luajit', out, ...)
  assert.equal(0, status, err)
  return err
end

local function metrics_of(out)
  local list = {}
  for _, entry in json.lines(out .. '/metrics.jsonl') do
    entry.seconds, entry.tokens_per_second = nil, nil
    list[#list + 1] = entry
  end
  return list
end

local function validated(out)
  local steps = {}
  for _, entry in ipairs(metrics_of(out)) do
    if entry.kind == 'validation' then steps[#steps + 1] = entry.step end
  end
  return steps
end

local function assert_same_run(a, b)
  for _, file in ipairs { '/student/model.safetensors', '/finished.json' } do
    local text = { tools.read(a .. file), tools.read(b .. file) }
    if file == '/finished.json' then -- which has the names of the folders
      text[1], text[2] = json.encode(json.decode(text[1]).validations), json.encode(json.decode(text[2]).validations)
    end
    assert.is_true(text[1] == text[2], file)
  end
  assert.same(metrics_of(a), metrics_of(b))
end

local folder, whole = tools.folder(), nil
local function reference()
  if not whole then
    whole = folder .. '/whole'
    finished(whole)
  end
  return whole
end

describe('a run that validates by itself', function()
  it('does it before the first step, every so many, and after the last', function()
    local err = finished(folder .. '/nine', 'max_steps=9')
    assert.same({ 0, 4, 8, 9 }, validated(folder .. '/nine'))
    for _, words in ipairs { 'before step 1: loss ', 'after step 4: loss ', 'after step 9: loss ' } do
      assert.truthy(err:find('validation ' .. words, 1, true), err)
    end
    -- a schedule sees them
    for _, entry in ipairs(metrics_of(reference())) do
      if entry.kind == 'train' then assert.is_true(entry.plateau > 0) end
    end
    assert.same({ 0, 4, 8, 12, 16, 20 }, validated(reference())) -- one after the last step
    finished(folder .. '/none', 'max_steps=3', 'validate=0')
    assert.same({ 0, 3 }, validated(folder .. '/none'))
  end)

  it('repeats itself after kills, and measures nothing twice', function()
    local out = folder .. '/killed'
    for _, at in ipairs { 2, 4, 8, 11, 20 } do -- 8: behind the step and before its checkpoint
      local status, _, err = start('luajit', out, 'kill_at=' .. at)
      assert.equal(137, status, err)
      if at == 2 then assert.equal(1, #validated(out)) end
      if at == 20 then -- the checkpoint has what was measured after its step
        assert.truthy(err:find('resumed after step 8 of 20', 1, true), err)
        assert.is_nil(err:find('validation after step 8:', 1, true), err)
      end
    end
    local err = finished(out)
    assert.is_nil(err:find('before step 1', 1, true), err)
    assert_same_run(reference(), out)
    err = finished(out) -- nothing is left to do
    assert.is_nil(err:find('validation ', 1, true), err)
    assert_same_run(reference(), out)
    -- more steps: the last one of before is no other
    finished(out, 'max_steps=0', 'epochs=2.2')
    assert.same({ 0, 4, 8, 12, 16, 20, 22 }, validated(out))
  end)

  it('ends soon when it is asked to end in a validation, which is made when it goes on', function()
    local program = tools.program()
    if not tools.exists(program) then pending('no ' .. program) return end
    for at, words in pairs { [0] = 'interrupted before the first step: the same command begins anew',
      [8] = 'interrupted after step 8 of 20, which is saved',
      [20] = 'interrupted after step 20 of 20, which is saved' } do
      local out = ('%s/interrupted%d'):format(folder, at)
      local status, _, err = start(program, out, 'interrupt_in=' .. at, 'batch.micro_tokens=40')
      assert.equal(130, status, err)
      assert.truthy(err:find(words, 1, true), err)
      for _, step in ipairs(validated(out)) do assert.is_true(step < at) end
      finished(out, 'batch.micro_tokens=40')
      if not tools.exists(folder .. '/small/student') then finished(folder .. '/small', 'batch.micro_tokens=40') end
      assert_same_run(folder .. '/small', out)
    end
  end)

  it('does it at the end of a loop that was left early, and not for nothing', function()
    ms.scope(function(own)
      local function run_of(validation, validate)
        local student = own(ms.model.create(recipe.config, 1, { train = true, dtype = 'f32' }))
        local run = ms.run.open({ output = tools.folder() .. '/out', optim = { lr = 0.01 }, batch = { tokens = 100 },
          validate = validate }, { student = student, data = recipe.data(20), quiet = true, validation = validation })
        for step in run:steps() do
          for batch in step:micro_batches() do student:learn(batch, { ms.ce(1) }) end
          step:update()
          if step.number == 3 then break end
        end
        run:finish()
        return run
      end
      local run = run_of({ data = recipe.data(7) }, 2)
      assert.same({ 0, 2, 3 }, validated(run.output))
      assert.equal(3, run.state.validation.step)
      assert.same({}, validated(run_of({ teacher = own(ms.model.create(recipe.config, 2)) }, 2).output))
      assert.same({}, validated(run_of(nil, 2).output))
      tools.refused("run.open: validation: no option 'dat'; did you mean 'data'?", run_of, { dat = recipe.data(7) })
    end)
  end)
end)

describe('the last line of a run', function()
  it('says that the student is worse on the validation data, by what it was taught', function()
    ms.scope(function(own)
      local function said_by(weight, with_teacher)
        local student = own(ms.model.create(recipe.config, 1, { train = true, dtype = 'f32' }))
        local teacher = own(ms.model.create(recipe.config, 2, { dtype = 'f32' }))
        local run = ms.run.open({ output = tools.folder() .. '/out', optim = { lr = 0.003 }, batch = { tokens = 100 },
          epochs = 0, max_steps = 12 }, { student = student, data = recipe.data(20), quiet = true,
          validation = { data = recipe.data(7), teacher = with_teacher and teacher or nil } })
        local lines = {}
        function run:say(line) lines[#lines + 1] = line end -- luacheck: ignore 212
        for step in run:steps() do
          for batch in step:micro_batches() do
            local target = with_teacher and own(teacher:targets(batch, { target = 'hidden' }))
            student:learn(batch, { target and ms.kd(target, weight) or ms.ce(weight) })
          end
          step:update()
        end
        run:close()
        return table.concat(lines, '\n')
      end
      for _, taught in ipairs { false, true } do
        local worse = said_by(-1, taught)
        assert.truthy(worse:find('note: on the validation data the ' .. (taught and 'forward KL' or 'loss')
          .. ' is worse than before the first step, %d+%.%d+ after %d+%.%d+: a smaller optim.lr'), worse)
        local better = said_by(1, taught)
        assert.is_nil(better:find('worse', 1, true), better)
      end
    end)
  end)
end)

describe('a run without data', function()
  local function open(own, o, output)
    local student = own(ms.model.create(recipe.config, 1, { train = true, dtype = 'f32' }))
    local cfg = { output = output or tools.folder() .. '/out', optim = { lr = 0.01 }, max_steps = 5,
      checkpoint = { every = 2 } }
    for key, value in pairs(o or {}) do cfg[key] = value end
    return ms.run.open(cfg, { student = student, quiet = true }), student
  end
  local function batches(step)
    local n = step.number
    return { ms.batch({ { n, 2, 3, 4 } }, { { 5, n, 7 } }), ms.batch { { 7, 6, n, 1 } } }
  end
  local function go_on(run, student, last)
    for step in run:steps() do
      step:use(batches(step))
      for batch in step:micro_batches() do student:learn(batch, { ms.ce(1, { on = 'all' }) }) end
      step:update()
      if step.number == last then return end
    end
  end

  it('has the steps that it is told, and learns what the loop gives', function()
    ms.scope(function(own)
      local run, student = open(own)
      go_on(run, student)
      run:finish()
      local list = metrics_of(run.output)
      assert.equal(5, #list)
      for i, entry in ipairs(list) do
        assert.equal(i, entry.step)
        assert.is_nil(entry.epoch)
        assert.equal(11, entry.tokens)
      end
      -- stopped after step 3, it goes on from step 2 and ends alike
      local second, again = open(own)
      local output = second.output
      go_on(second, again, 3)
      second:close()
      second, again = open(own, nil, output)
      assert.equal(2, second.state.step)
      go_on(second, again)
      assert.equal(student:hash(), again:hash())
      second:finish()
      assert.same(list, metrics_of(output))
    end)
  end)

  it('says what is missing', function()
    ms.scope(function(own)
      tools.fails('run: without data, max_steps says how many steps there are', open, own, { max_steps = 0 })
      local run = open(own)
      for step in run:steps() do -- luacheck: ignore 512 (only the first)
        tools.refused('step:micro_batches: the run has no data: step:use { batches } comes first', step.micro_batches,
          step)
        tools.refused('step:use: batches', step.use, step)
        tools.refused('step:update: nothing was learned', step.update, step)
        break
      end
      run:close()
    end)
  end)

  it('may give a step no batch, of which nothing is learnt', function()
    ms.scope(function(own)
      local run, student = open(own)
      for step in run:steps() do
        local empty = step.number == 2
        step:use(empty and {} or batches(step))
        for batch in step:micro_batches() do student:learn(batch, { ms.ce(1, { on = 'all' }) }) end
        local before = student:hash()
        step:update()
        assert.equal(empty, before == student:hash())
      end
      assert.equal(1, run.state.empty)
      tools.refused('step:use: outside its step', run.step.use, run.step, {})
      run:finish()
      assert.is_nil(metrics_of(run.output)[2].loss)
    end)
  end)
end)
