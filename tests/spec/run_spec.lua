--- Runs: the same numbers however a step is cut or a run is interrupted. Real processes.
local ffi = require 'ffi'
local ms = require 'moonstill'
local json = require 'moonstill.base.json'
local recipe = require 'tests.programs.run_recipe'
local schema = require 'moonstill.base.schema'
local tools = require 'tests.support.tools'

-- Of processes: modules as here; idle threads do not spin, since the machine may be busy.
local environment = 'OMP_WAIT_POLICY=passive LUA_PATH=' .. tools.quote(package.path)

-- Runs tests/programs/run_recipe.lua.
local function start(threads, ...)
  local words = { ('%s OMP_NUM_THREADS=%d luajit tests/programs/run_recipe.lua'):format(environment, threads) }
  for i = 1, select('#', ...) do words[i + 1] = tools.quote((select(i, ...))) end
  return tools.run(table.concat(words, ' '))
end

local function finished(threads, ...)
  local status, out, err = start(threads, ...)
  assert.equal(0, status, err)
  return err, out
end

-- A run that ends with an error, in which `part` stands.
local function stops(part, ...)
  local status, _, why = start(1, ...)
  assert.equal(1, status, why)
  tools.says(part, why)
  return why
end

local function metrics_of(folder)
  local list = {}
  for _, entry in json.lines(folder .. '/metrics.jsonl') do
    entry.seconds, entry.tokens_per_second = nil, nil -- all that a clock decides
    list[#list + 1] = entry
  end
  return list
end

-- Weights, moments and metrics of two finished runs.
local function assert_same_run(a, b, steps)
  local last = ('/checkpoints/step-%08d/'):format(steps)
  for _, file in ipairs { '/student/model.safetensors', last .. 'model.safetensors',
    last .. 'optimizer.safetensors' } do
    local status, out, err = tools.run(('cmp %s %s'):format(a .. file, b .. file))
    assert.equal(0, status, out .. err)
  end
  assert.same(metrics_of(a), metrics_of(b))
end

local folder = tools.folder()
local whole = {} -- the uninterrupted run of each dtype
local function reference(dtype)
  if not whole[dtype] then
    whole[dtype] = folder .. '/whole-' .. dtype
    finished(1, 'output=' .. whole[dtype], 'dtype=' .. dtype)
  end
  return whole[dtype]
end
local STEPS = 20

describe('a run', function()
  it('leaves a student, metrics and the last checkpoints', function()
    local out = reference 'f32'
    ms.scope(function(own) assert.equal(40, own(ms.model.open(out .. '/student')):info().vocab) end)
    assert.same(tools.read(out .. '/student/model.safetensors'),
      tools.read(out .. '/checkpoints/step-00000020/model.safetensors'))
    local _, names = tools.run('ls -A ' .. out .. ' ' .. out .. '/checkpoints')
    assert.equal(out .. ':\ncheckpoints\nfinished.json\nmetrics.jsonl\nrun.lock\nstudent\n\n' .. out
      .. '/checkpoints:\nstep-00000016\nstep-00000020\n', names)
    local trained, validated = {}, {}
    for _, entry in ipairs(metrics_of(out)) do
      table.insert(entry.kind == 'train' and trained or validated, entry.step)
    end
    assert.equal(STEPS, #trained)
    for i, step in ipairs(trained) do assert.equal(i, step) end
    assert.same({ 5, 10, 15, 20, 20 }, validated) -- the last without the teacher
  end)

  it('lowers the loss', function()
    local m = metrics_of(reference 'f32')
    local first, last
    for _, entry in ipairs(m) do
      if entry.kind == 'validation' and entry.terms.forward_kl then first, last = first or entry, entry end
    end
    assert.is_true(last.terms.forward_kl.loss < 0.9 * first.terms.forward_kl.loss)
  end)

  for _, dtype in ipairs { 'f32', 'bf16' } do
    it('resumed after kill -9 repeats itself bit for bit, with another number of threads: ' .. dtype, function()
      local out = folder .. '/killed-' .. dtype
      local args = { 'output=' .. out, 'dtype=' .. dtype }
      assert.equal(137, (start(2, args[1], args[2], 'kill_at=3'))) -- before the first checkpoint
      assert.equal(137, (start(2, args[1], args[2], 'kill_at=11')))
      local _, names = tools.run('ls ' .. out .. '/checkpoints')
      assert.equal('step-00000004\nstep-00000008\n', names)
      local err = finished(1, args[1], args[2])
      assert.truthy(err:find('resumed after step 8 of 20', 1, true), err)
      assert_same_run(reference(dtype), out, STEPS)
    end)
  end

  it('repeats itself bit for bit with any number of threads', function()
    local out = folder .. '/threads'
    finished(3, 'output=' .. out)
    assert_same_run(reference 'f32', out, STEPS)
  end)

  it('survives kills at any moment', function()
    local out = folder .. '/random'
    for i = 1, 4 do
      tools.run(('%s timeout -s KILL 0.%d luajit tests/programs/run_recipe.lua output=%s slow=10 checkpoint.every=1')
        :format(environment, 1 + 2 * i % 7, out))
      -- what a kill inside a write leaves
      local left = ('%s/checkpoints/.moonstill-%032x'):format(out, i)
      tools.run(('mkdir -p %s/new/half'):format(left))
      tools.write(left .. '/owner', ("moonstill's temporary %032x\nof process 77 on a machine, for\nstep-00000099")
        :format(i))
    end
    finished(1, 'output=' .. out, 'checkpoint.every=1')
    assert_same_run(reference 'f32', out, STEPS)
    local _, names = tools.run('ls -A ' .. out .. '/checkpoints')
    assert.equal('step-00000019\nstep-00000020\n', names)
  end)

  -- The library touches no signal; the executable does.
  it('ends the step and saves when it is asked to end, and says how to go on', function()
    local program = tools.program()
    if not tools.exists(program) then pending('no ' .. program) return end
    for step, signal in pairs { [6] = 2, [8] = 1 } do -- Ctrl-C, a terminal that is closed
      local out = ('%s/interrupted%d'):format(folder, signal)
      local status, _, err = tools.run(('%s %s tests/programs/run_recipe.lua output=%s interrupt_at=%d signal=%d')
        :format(environment, tools.quote(program), out, step, signal))
      assert.equal(128 + signal, status, err)
      assert.truthy(err:find(('interrupted after step %d of 20, which is saved'):format(step), 1, true), err)
      assert.equal(2, #select(2, tools.run('ls ' .. out .. '/checkpoints')):gsub('[^\n]', ''))
      err = finished(1, 'output=' .. out)
      assert.truthy(err:find(('resumed after step %d of 20'):format(step), 1, true), err)
      assert_same_run(reference 'f32', out, STEPS)
    end
  end)

  it('goes on from max_steps, and from a finished run with more epochs', function()
    local out = folder .. '/part'
    finished(1, 'output=' .. out, 'epochs=1')
    local err = finished(1, 'output=' .. out, 'epochs=1')
    assert.truthy(err:find('resumed after step 10 of 10', 1, true), err)
    -- A run that is told of its end later has other schedules: it need not equal the reference.
    err = finished(1, 'output=' .. out, 'epochs=1.5')
    assert.truthy(err:find('saved in .* after 15 steps'), err)
    -- Cosines of warm-up 3: 0.01 (1 + cos(pi 6 / 7)) / 2 in step 10 of 10, 0.01 (1 + cos(pi 7 / 12)) / 2 in 11 of 15.
    assert.truthy(err:find('note: 15 steps in all, 10 when the checkpoint was made: schedules are stretched, and lr '
      .. 'goes from 4.95e-04 in step 10 to 3.71e-03 in step 11\n', 1, true), err)
    assert.is_nil(finished(1, 'output=' .. out, 'epochs=1.5'):find('note:', 1, true))
    finished(1, 'output=' .. out, 'epochs=0', 'max_steps=17')
    assert.equal(17, metrics_of(out)[#metrics_of(out)].step)
  end)

  it('begins anew with resume=false, and puts the old aside', function()
    local out = folder .. '/anew'
    finished(1, 'output=' .. out, 'max_steps=7', 'optim.lr=0.1')
    finished(1, 'output=' .. out, 'resume=false')
    assert_same_run(reference 'f32', out, STEPS)
    assert.truthy(tools.exists(out .. '/checkpoints.old/step-00000007/state.json'))
    -- a second time it takes nothing from the first
    local old = tools.read(out .. '/metrics.jsonl.old')
    local err = finished(1, 'output=' .. out, 'resume=false', 'max_steps=3')
    assert.truthy(err:find(('what was in %s/checkpoints is now in %s/checkpoints.old.1\n'):format(out, out), 1, true),
      err)
    assert.truthy(tools.exists(out .. '/checkpoints.old/step-00000007/state.json'))
    assert.truthy(tools.exists(out .. '/checkpoints.old.1/step-00000020/state.json'))
    assert.equal(old, tools.read(out .. '/metrics.jsonl.old'))
  end)

  it('removes no checkpoint but its own', function()
    local out = folder .. '/own'
    finished(1, 'output=' .. out, 'max_steps=9')
    local dir = out .. '/checkpoints/'
    local theirs = { 'step-00000001', 'step-00000002', 'step-00000008.best', 'step-00000008.1.old', 'notes' }
    -- of another run, made by hand, a copy, somebody's link
    tools.run(('cp -r %s/checkpoints/step-00000016 %sstep-00000001'):format(reference 'f32', dir))
    tools.run(('mkdir %sstep-00000002 && echo 1 > %sstep-00000002/a'):format(dir, dir))
    for i = 3, 5 do tools.run(('cp -r %sstep-00000008 %s'):format(dir, dir .. theirs[i])) end
    tools.write(dir .. 'step-00000008/notes.md', 'mine') -- put into one of its own
    local sums = ('cd %s && cksum %s/* step-00000008/*'):format(dir, table.concat(theirs, '/* '))
    local before = select(2, tools.run(sums))
    local err = finished(1, 'output=' .. out)
    assert.equal(before, select(2, tools.run(sums)))
    for name, why in pairs { ['01'] = 'it is no checkpoint of this run', ['02'] = 'it is no checkpoint of this run',
      ['08'] = dir .. "step-00000008: holds 'notes.md', which is no part of the checkpoint" } do
      local line = ('note: %sstep-000000%s is kept: %s\n'):format(dir, name, why)
      local first, last = err:find(line, 1, true)
      assert.truthy(first, err)
      assert.is_nil(err:find(line, last, true)) -- once
    end
    table.insert(theirs, 'step-00000008')
    table.insert(theirs, 'step-00000016')
    table.insert(theirs, 'step-00000020')
    table.sort(theirs)
    assert.equal(table.concat(theirs, '\n') .. '\n', select(2, tools.run('LC_ALL=C ls -A ' .. dir)))
    -- one that goes on from another's checkpoint does not own what is copied from there
    local other = folder .. '/own2'
    finished(1, 'output=' .. other, 'resume=' .. dir .. 'step-00000016', 'max_steps=17')
    tools.run(('cp -r %sstep-00000016 %s/checkpoints/'):format(dir, other))
    finished(1, 'output=' .. other, 'checkpoint.every=1')
    assert.equal('step-00000016\nstep-00000019\nstep-00000020\n',
      select(2, tools.run('ls -A ' .. other .. '/checkpoints')))
  end)

  it('puts aside what lies in the place of a checkpoint and is none', function()
    local out = folder .. '/placed'
    finished(1, 'output=' .. out, 'max_steps=3')
    tools.run(('mkdir -p %s/checkpoints/step-00000004'):format(out))
    tools.write(out .. '/checkpoints/step-00000004/notes.md', 'mine')
    local err = finished(1, 'output=' .. out, 'max_steps=5')
    assert.truthy(err:find('step-00000004: what was there is now ' .. out .. '/checkpoints/step-00000004.old', 1, true),
      err)
    assert.equal('mine', tools.read(out .. '/checkpoints/step-00000004.old/notes.md'))
    assert.truthy(tools.exists(out .. '/checkpoints/step-00000004/state.json'))
  end)

  it('goes on when its lock or its metrics are removed, and ends when another run has the folder', function()
    local out = folder .. '/robbed'
    local err = finished(1, 'output=' .. out, 'rob_at=6', 'rob=rm %/run.lock %/metrics.jsonl')
    assert.truthy(err:find('/run.lock was removed or replaced: it is taken again\n', 1, true), err)
    assert.truthy(err:find(('note: %s/metrics.jsonl was removed: it begins anew with step 7\n'):format(out), 1, true),
      err)
    assert.equal(7, metrics_of(out)[1].step)
    assert.truthy(tonumber(tools.read(out .. '/run.lock')))
    out = folder .. '/moved' -- replaced: the new one goes on
    finished(1, 'output=' .. out, 'rob_at=6', 'rob=cd % && cp metrics.jsonl m && mv m metrics.jsonl')
    assert_same_run(reference 'f32', out, STEPS)
    out = folder .. '/erased'
    err = finished(1, 'output=' .. out, 'rob_at=6', 'rob=rm -r %')
    assert.truthy(err:find(('note: %s was removed: it begins anew\n'):format(out), 1, true), err)
    assert.truthy(tools.exists(out .. '/checkpoints/step-00000020/state.json'))

    out = folder .. '/taken'
    local status, _, why = start(1, 'output=' .. out, 'rob_at=6',
      'rob=rm %/run.lock; flock -n %/run.lock sleep 30 >/dev/null 2>&1 & echo $! > %/holder; sleep 0.5')
    tools.run('kill ' .. tools.read(out .. '/holder'))
    assert.equal(1, status)
    assert.truthy(why:find(('%s/run.lock was removed, and another run has taken the folder: this one ends in step 7')
      :format(out), 1, true), why)
    assert.equal('step-00000004\n', select(2, tools.run('ls -A ' .. out .. '/checkpoints')))
    assert.equal(6, metrics_of(out)[#metrics_of(out)].step)
  end)

  it('does not follow a link at run.lock', function()
    local out = tools.folder()
    local mine = tools.write(out .. '/mine', 'mine')
    tools.run(('ln -s mine %s/run.lock'):format(out))
    stops('run.lock: cannot open: it is a link', 'output=' .. out)
    assert.equal('mine', tools.read(mine))
  end)

  it('does not end when its clock stands still', function()
    local out = folder .. '/still'
    local status, _, err = tools.run(([[%s luajit -e '
      local C = require "moonstill.C"
      package.loaded["moonstill.C"] = setmetatable({ ms_clock = function() return 7 end }, { __index = C })
      arg = { [0] = "still", "output=%s" }
      local ms = require "moonstill"
      local recipe = require "tests.programs.run_recipe"
      recipe.main(ms.config(recipe.schema))']]):format(environment, out))
    assert.equal(0, status, err)
    assert.truthy(err:find('step 20/20  ce ', 1, true), err)
    assert.is_nil(err:find('inf', 1, true), err)
    for _, entry in json.lines(out .. '/metrics.jsonl') do assert.is_nil(entry.tokens_per_second) end
    assert_same_run(reference 'f32', out, STEPS)
  end)

  it('resumes from a given checkpoint, and says what differs', function()
    local out = folder .. '/given'
    local err = finished(1, 'output=' .. out, 'optim.lr=0.02',
      'resume=' .. reference 'f32' .. '/checkpoints/step-00000016')
    assert.truthy(err:find('resumed after step 16', 1, true), err)
    assert.truthy(err:find('note: optim.lr is 0.02; the checkpoint was made with 0.01\n', 1, true), err)
    assert.is_nil(err:match 'note: .*note: ', err)
    assert.truthy(err:find('  ce %d%.%d+ x 0%.%d+  kd 0%.%d+ x 0%.%d+  lr '), err)
    assert.equal(17, metrics_of(out)[1].step)
  end)

  it('goes back to one of its own checkpoints, and puts the later ones aside', function()
    local out = folder .. '/back'
    finished(1, 'output=' .. out)
    for i = 1, 2 do -- the second time something lies where they go
      local aside = out .. '/checkpoints/step-00000020.old' .. (i > 1 and '.1' or '')
      local err = finished(1, 'output=' .. out, 'resume=' .. out .. '/checkpoints/step-00000016')
      assert.truthy(err:find('resumed after step 16 of 20', 1, true), err)
      assert.truthy(err:find(('%s/checkpoints/step-00000020 is now %s\n'):format(out, aside), 1, true), err)
      assert.same(tools.read(reference 'f32' .. '/checkpoints/step-00000020/model.safetensors'),
        tools.read(aside .. '/model.safetensors'))
      assert_same_run(reference 'f32', out, STEPS)
    end
    -- killed before its next checkpoint, it goes on from there and not from what lay behind
    assert.equal(137, (start(1, 'output=' .. out, 'resume=' .. out .. '/checkpoints/step-00000016', 'kill_at=18')))
    assert.truthy(finished(1, 'output=' .. out):find('resumed after step 16 of 20', 1, true))
    assert_same_run(reference 'f32', out, STEPS)
  end)

  it('passes over a damaged checkpoint, and refuses when none is whole', function()
    local out = folder .. '/damaged'
    finished(1, 'output=' .. out, 'max_steps=9')
    tools.write(out .. '/checkpoints/step-00000009/model.safetensors', 'x')
    local err = finished(1, 'output=' .. out)
    assert.truthy(err:find('damaged checkpoint passed over', 1, true), err)
    assert.truthy(err:find('resumed after step 8', 1, true), err)
    for _, name in ipairs { '16', '20' } do
      tools.write(out .. '/checkpoints/step-000000' .. name .. '/state.json', '{}')
    end
    local status, _, why = start(1, 'output=' .. out)
    assert.equal(1, status)
    assert.truthy(why:find('no checkpoint in .* is complete'), why)
    stops('no complete checkpoint', 'output=' .. folder .. '/nothing', 'resume=true')
  end)

  -- A run that was killed behind its checkpoint of step 4, or of `step`.
  local function cut(out, ...)
    assert.equal(137, (start(1, 'output=' .. out, ...)))
  end

  it('refuses to resume on other data', function()
    local out = folder .. '/data'
    cut(out, 'kill_at=5')
    stops('its training data is not this one (fingerprint 60 samples, shift 0, now 50', 'output=' .. out,
      'samples=50')
    -- as many steps of as many tokens, one of which is another
    stops('its training data is not this one', 'output=' .. out, 'shift=1')
    stops('data, seed or batch sizes have changed', 'output=' .. out, 'batch.tokens=60')
    -- as many steps, of other samples
    stops('seed has changed within an epoch', 'output=' .. out, 'seed=8')
    stops('batch.tokens has changed within an epoch, from 120 to 121', 'output=' .. out, 'batch.tokens=121')
    cut(folder .. '/epoch', 'checkpoint.every=10', 'kill_at=11')
    finished(1, 'output=' .. folder .. '/epoch', 'epochs=1.5', 'seed=8') -- between two it may
    finished(1, 'output=' .. out, 'max_steps=5')
  end)

  it('does not go on with another teacher, unless it is told from where', function()
    local out = folder .. '/teachers'
    cut(out, 'kill_at=5')
    stops('made with teacher = "one", which is "two" now: give another output', 'output=' .. out, 'teacher=two')
    local err = finished(1, 'output=' .. out, 'teacher=two', 'max_steps=5',
      'resume=' .. out .. '/checkpoints/step-00000004')
    assert.truthy(err:find('note: teacher is "two"; the checkpoint was made with "one"', 1, true), err)
    err = finished(1, 'output=' .. out, 'teacher=two', 'max_steps=3')
    assert.truthy(err:find('resumed after step 5 of 3 from .-: it has more steps than were asked for'), err)
  end)

  it('does not take a finished student for one of other settings', function()
    local out = folder .. '/other-settings'
    finished(1, 'output=' .. out, 'max_steps=4')
    local student = tools.read(out .. '/student/model.safetensors')
    stops(('run: %s holds a finished run with kd.temperature = 2, which is 3 now; optim.lr = 0.01, which is 0.02 '
      .. 'now: give another output, or resume=false to begin anew'):format(out), 'output=' .. out, 'max_steps=4',
      'kd.temperature=3', 'optim.lr=0.02')
    stops('teacher = "one", which is "two" now', 'output=' .. out, 'max_steps=4', 'teacher=two')
    stops('other training data', 'output=' .. out, 'max_steps=4', 'shift=1')
    stops('seed = 1, which is 2 now', 'output=' .. out, 'max_steps=5', 'seed=2') -- more steps of another run
    -- what changes no number may differ
    local err = finished(2, 'output=' .. out, 'max_steps=4', 'checkpoint.keep=1', 'threads=1')
    assert.truthy(err:find('finished already after 4 steps', 1, true), err)
    assert.equal(student, tools.read(out .. '/student/model.safetensors'))
    err = finished(1, 'output=' .. out, 'max_steps=4', 'optim.lr=0.02', 'resume=false')
    assert.truthy(err:find('the student is saved', 1, true), err)
  end)

  it('is not repeated once it is finished', function()
    local out = folder .. '/again'
    finished(1, 'output=' .. out)
    local before, student = tools.read(out .. '/metrics.jsonl'), tools.read(out .. '/student/model.safetensors')
    tools.write(out .. '/student/notes.md', 'mine') -- so that a new save would be refused
    local err = finished(1, 'output=' .. out)
    assert.truthy(err:find('finished already after 20 steps: the student is in ' .. out .. '/student', 1, true), err)
    assert.is_nil(err:find('validation', 1, true), err)
    assert.equal(before, tools.read(out .. '/metrics.jsonl'))
    -- killed after the last validation, before the student: measured again, written once
    os.remove(out .. '/finished.json')
    os.remove(out .. '/student/notes.md')
    os.remove(out .. '/student/config.json')
    err = finished(1, 'output=' .. out)
    assert.truthy(err:find('the student is saved in ' .. out .. '/student after 20 steps', 1, true), err)
    assert.equal(before, tools.read(out .. '/metrics.jsonl'))
    assert.equal(student, tools.read(out .. '/student/model.safetensors'))
    -- more to do: no longer finished
    assert.equal(137, (start(1, 'output=' .. out, 'epochs=3', 'kill_at=21')))
    assert.is_false(tools.exists(out .. '/finished.json'))
  end)

  it('that goes on from an earlier checkpoint of a finished one saves the student of that step', function()
    local out = folder .. '/earlier'
    finished(1, 'output=' .. out)
    local step = '/checkpoints/step-00000016'
    local err = finished(1, 'output=' .. out, 'max_steps=16', 'resume=' .. out .. step)
    assert.truthy(err:find('the student is saved in ' .. out .. '/student after 16 steps', 1, true), err)
    assert.equal(tools.read(out .. step .. '/model.safetensors'), tools.read(out .. '/student/model.safetensors'))
  end)

  it('keeps what was good when it diverges, and goes on from there', function()
    for _, every in ipairs { 5, 1 } do -- and with a checkpoint of what is wrecked
      local out = ('%s/diverges-%d'):format(folder, every)
      local words = { 'output=' .. out, 'checkpoint.every=' .. every, 'checkpoint.keep=1', 'wreck_at=11' }
      stops('it has diverged, and no student is saved. The next start goes on from step 10, the last that is sound',
        unpack(words))
      assert.is_false(tools.exists(out .. '/student/config.json'))
      for _ = 1, 2 do -- again and again it begins there, and ends alike
        local status, _, err = start(1, unpack(words))
        assert.equal(1, status)
        assert.truthy(err:find('resumed after step 10 of 20', 1, true), err)
        assert.truthy(err:find('it has diverged', 1, true), err)
      end
      finished(1, unpack(words, 1, 3))
      assert_same_run(reference 'f32', out, STEPS)
    end
  end)

  it('fails when it ends diverged, and begins anew where nothing was sound', function()
    local out = folder .. '/diverges-at-the-end'
    stops('There is no checkpoint from before: the next start begins anew', 'output=' .. out, 'max_steps=4',
      'checkpoint.every=2', 'wreck_at=1')
    assert.equal('', (select(2, tools.run('ls ' .. out .. '/checkpoints'))))
    assert.is_false(tools.exists(out .. '/finished.json'))
    local err = finished(1, 'output=' .. out, 'max_steps=4')
    assert.is_nil(err:find('resumed', 1, true), err)
    -- the last step's weights, of which no loss tells
    out = folder .. '/infinite-at-the-end'
    for _ = 1, 2 do
      stops('The next start goes on from step 16, the last that is sound', 'output=' .. out, 'wreck_at=20',
        'wreck_by=1e40')
      assert.is_false(tools.exists(out .. '/student/config.json'))
      assert.is_false(tools.exists(out .. '/checkpoints/step-00000020/state.json'))
    end
  end)

  it('is alone in its folder', function()
    local out = folder .. '/alone'
    tools.run(('%s luajit tests/programs/run_recipe.lua output=%s wait_at=2 >/dev/null 2>&1 </dev/null & ')
      :format(environment, out)) -- a pipe kept open would be waited for
    for _ = 1, 3000 do
      if tools.exists(out .. '/waiting') then break end
      os.execute 'sleep 0.02'
    end
    local holder = tonumber(tools.read(out .. '/run.lock'))
    stops(('another run is in the folder %s (process %d)'):format(out, holder), 'output=' .. out)
    tools.run('kill -9 ' .. holder) -- the kernel takes the lock back
    finished(1, 'output=' .. out, 'max_steps=3')
  end)

  it('leaves the folder free when it cannot be opened', function()
    local model = ms.model.create(require('tests.support.models').config(), 1, { train = true })
    local cfg = { output = folder .. '/unopened', resume = true, optim = { lr = 1 } }
    local data = { steps = function() return { { { 1 } } } end }
    collectgarbage 'stop' -- which would free it, too, in time
    finally(function() collectgarbage 'restart' end)
    tools.fails('no complete checkpoint', ms.run.open, cfg, { student = model, data = data, quiet = true })
    assert.equal(0, os.execute(('flock -n %s/run.lock true'):format(cfg.output)))
    model:free()
  end)

  it('says what of its state a checkpoint cannot hold, with all else saved', function()
    local out = folder .. '/unfit'
    local status, _, err = start(1, 'output=' .. out, 'unfit_at=6') -- no checkpoint is due there
    assert.equal(1, status)
    assert.truthy(err:find('run.state.mine is a function, which a checkpoint cannot hold; step 6 is saved', 1, true),
      err)
    err = finished(1, 'output=' .. out, 'max_steps=8')
    assert.truthy(err:find('resumed after step 6', 1, true), err)
  end)

  it('skips steps whose gradient is not finite', function()
    local out = folder .. '/nan'
    local err = finished(1, 'output=' .. out, 'nan_from=7', 'nan_to=9')
    assert.truthy(err:find('3 of them skipped', 1, true), err)
    for _, entry in ipairs(metrics_of(out)) do
      if entry.kind == 'train' then
        assert.equal(entry.step >= 7 and entry.step <= 9, entry.skipped)
        assert.equal(entry.skipped, entry.grad_norm == json.null)
      end
    end
    local a = tools.read(out .. '/checkpoints/step-00000016/state.json')
    assert.equal(3, json.decode(a).state.run.skipped)
  end)

  it('stops after so many in a row, with the state saved, and goes on only when something has changed', function()
    local out = folder .. '/nans'
    local args = { 'output=' .. out, 'nan_from=6', 'nan_to=99', 'optim.max_skips=3' }
    local why = stops('not finite in 3 steps in a row, up to step 8: ce ', unpack(args))
    assert.truthy(why:find('saved in ' .. out .. '/checkpoints/step-00000008. A smaller optim.lr', 1, true), why)
    assert.equal(tools.read(out .. '/checkpoints/step-00000004/model.safetensors') ==
      tools.read(out .. '/checkpoints/step-00000008/model.safetensors'), false) -- step 5 is in it
    -- a schedule sees no loss after a skipped step, neither its own nor an older one
    local function loss_of(step)
      return json.read(('%s/checkpoints/step-%08d/state.json'):format(out, step)).state.run.loss
    end
    assert.is_true(loss_of(4) > 0)
    assert.is_nil(loss_of(8))
    for _ = 1, 2 do
      stops(('run: stopped after step 8 of 20, as the gradient was not finite in 3 steps in a row, and nothing has '
        .. 'changed since then: a smaller optim.lr, or optim.clip, may help; resume=%s/checkpoints/step-00000008 '
        .. 'tries again'):format(out), 'output=' .. out, 'optim.max_skips=3', 'threads=1')
    end
    assert.is_false(tools.exists(out .. '/student'))
    -- another rate goes on, with a count that begins anew
    local err = stops('not finite in 3 steps in a row, up to step 11', 'optim.lr=0.005', unpack(args))
    assert.truthy(err:find('resumed after step 8', 1, true), err)
    -- and so does a checkpoint that is named
    err = finished(1, 'output=' .. out, 'optim.max_skips=3', 'resume=' .. out .. '/checkpoints/step-00000011')
    assert.truthy(err:find('after 20 steps (6 of them skipped, as their gradient was not finite)', 1, true), err)
  end)

  it('whose skips reach the limit in its last step has no student, whatever is changed', function()
    local out = folder .. '/last'
    stops('up to step 8', 'output=' .. out, 'max_steps=8', 'nan_from=4', 'nan_to=8')
    stops('run: stopped after step 8 of 8', 'output=' .. out, 'max_steps=8', 'optim.lr=0.001')
    assert.is_false(tools.exists(out .. '/student'))
  end)

  -- A run that fails as often as it is started, without a student.
  local function learns_nothing(name, part, ...)
    local out = folder .. '/' .. name
    for _ = 1, 3 do
      stops(part, 'output=' .. out, ...)
      assert.is_false(tools.exists(out .. '/student'))
      assert.is_false(tools.exists(out .. '/finished.json'))
    end
    return out
  end

  it('that has learnt nothing fails, and again, until something has changed', function()
    local out = learns_nothing('never', 'run: the gradient was not finite in 5 steps in a row, up to step 5: ce ',
      'nan_from=1', 'nan_to=99', 'checkpoint.every=100')
    finished(1, 'output=' .. out, 'max_steps=3') -- the same, mended
    out = learns_nothing('few', 'run: nothing was learnt in 3 steps (3 of them skipped, as their gradient was not '
      .. 'finite), so no student is saved. Look at the weights of student and teacher', 'nan_from=1', 'nan_to=3',
      'max_steps=3')
    finished(1, 'output=' .. out, 'max_steps=3')
    out = learns_nothing('checkpoints', '; then resume=false begins anew', 'nan_from=1', 'nan_to=99',
      'checkpoint.every=1')
    assert.is_true(tools.exists(out .. '/checkpoints/step-00000004'))
    learns_nothing('weightless', 'run: nothing was learnt in 20 steps (20 of them without a position that counts), '
      .. 'so no student is saved. Look at the weights of the data', 'weightless=true')
    finished(1, 'output=' .. folder .. '/rateless', 'optim.lr=0', 'max_steps=3') -- as it was asked
    local err = finished(1, 'output=' .. folder .. '/learns', 'max_steps=7', 'nan_from=1', 'nan_to=4')
    assert.truthy(err:find('after 7 steps (4 of them skipped, as their', 1, true), err)
  end)
end)

-- One step of a run in this process: what it would learn, without its update.
local function first_step(micro_tokens, own)
  local student = own(ms.model.create(recipe.config, 1, { train = true, dtype = 'f32' }))
  local teacher = own(ms.model.create(recipe.config, 2, { dtype = 'f32' }))
  local cfg = { output = tools.folder(), seed = 1, epochs = 1, resume = 'auto', optim = { lr = 0.01 },
    batch = { tokens = 400, micro_tokens = micro_tokens }, kd = { target = 'logits', temperature = 2 } }
  local run = ms.run.open(cfg, { student = student, data = recipe.data(60), quiet = true })
  for step in run:steps() do -- luacheck: ignore 512 (only the first)
    local batches, expected = 0, 0
    for batch in step:micro_batches() do
      local target = teacher:targets(batch, cfg.kd)
      local terms = { ms.ce(0.4), ms.kd(target, 0.5, cfg.kd), ms.ce(0.1, { on = 'all', name = 'all' }) }
      local results = student:learn(batch, terms)
      target:free()
      batches, expected = batches + 1, 0
      for i, term in ipairs(terms) do
        expected = expected + term.weight * (results[i].value / results[i].weight)
      end
    end
    local gradients = {}
    for name, weight, gradient in student:parameters() do
      gradients[name] = gradient:read(ffi.new('float[?]', gradient:count()))
      gradients[#gradients + 1] = { name, gradient:count() }
      gradient:free()
      weight:free()
    end
    step:update()
    local loss = step.loss
    run:close()
    if batches == 1 then tools.close({ loss }, { expected }, 'f64', 4) end
    return loss, gradients, batches
  end
end

describe('a step', function()
  -- DESIGN section 4: losses agree to 1e-6, gradients to 1e-5 of each tensor's largest element.
  it('means the same for every cut into micro-batches', function()
    ms.scope(function(own)
      local loss, gradients, batches = first_step(400, own)
      assert.equal(1, batches)
      for _, micro in ipairs { 30, 70, 150 } do
        local other_loss, other, many = first_step(micro, own)
        assert.is_true(many > 1)
        assert.is_true(math.abs(loss - other_loss) <= 1e-6 * math.abs(loss))
        for _, entry in ipairs(gradients) do
          local name, n = entry[1], entry[2]
          local most, worst = 0, 0
          for i = 0, n - 1 do
            most = math.max(most, math.abs(gradients[name][i]))
            worst = math.max(worst, math.abs(gradients[name][i] - other[name][i]))
          end
          assert.is_true(most > 0 and worst <= 1e-5 * most, ('%s: %g of %g'):format(name, worst, most))
        end
      end
    end)
  end)

  local function open(own, data, schedules, cfg)
    local student = own(ms.model.create(recipe.config, 1, { train = true, dtype = 'f32' }))
    local all = { output = tools.folder(), optim = { lr = 0.01, weight_decay = 0.1 }, batch = { tokens = 100 } }
    for key, value in pairs(cfg or {}) do all[key] = value end
    schema.declare(all, { mine = true }) -- as of a recipe's own keys in what ms.config gives
    return ms.run.open(all, { student = student, data = data, quiet = true, schedules = schedules }), student
  end

  it('says why it cannot go on from a folder that is named', function()
    ms.scope(function(own)
      local path = tools.folder()
      local function refused(words, name)
        return tools.fails(words, open, own, recipe.data(20), nil, { resume = path .. name })
      end
      assert.is_nil(tostring(refused('/nothing', '/nothing')):find('another student', 1, true))
      local student = own(ms.model.create(recipe.config, 1, { train = true, dtype = 'f32' }))
      own(ms.optimizer.new(student)):write(path .. '/mine', student, '{"a":1}')
      refused('/mine: not the checkpoint of a run', '/mine')
      local config = {}
      for key, value in pairs(recipe.config) do config[key] = value end
      config.intermediate_size = 8
      local other = own(ms.model.create(config, 1, { train = true, dtype = 'f32' }))
      own(ms.optimizer.new(other)):write(path .. '/other', other, '{"run":{"step":1}}')
      refused({ path .. '/other', 'it may be of another student than this one: resume=false begins anew' }, '/other')
    end)
  end)

  it('resumes with a group of settings where there was none, or a single value', function()
    ms.scope(function(own)
      local cfg = { output = tools.folder() }
      for k, mine in ipairs { false, { a = 1 }, 3, { a = { b = 1 } }, false } do
        cfg.mine = mine or nil
        local run, student = open(own, recipe.data(20), nil, cfg)
        assert.equal(k - 1, run.state.step)
        for step in run:steps() do -- luacheck: ignore 512 (only the next)
          for batch in step:micro_batches() do student:learn(batch, { ms.ce(1) }) end
          step:update()
          run:checkpoint()
          break
        end
        run:close()
      end
    end)
  end)

  it('keeps out values that no run can mean', function()
    ms.scope(function(own)
      local function refused(want, cfg) tools.fails(want, open, own, recipe.data(20), nil, cfg) end
      refused("run.open: 'epochs' must be number from 0 to 10000, not 1e+15", { epochs = 1e15 })
      refused("run.open: 'optim.lr' must be number from 0 to 10, not 1e+30", { optim = { lr = 1e30 } })
      refused("'optim.final' must be number from 0 to 10, not 1e+300", { optim = { lr = 1, final = 1e300 } })
      refused("run.open: no option 'epoch'; did you mean 'epochs'?", { epoch = 3 })
      refused("run.open: no option 'checkpoints'; did you mean 'checkpoint'?", { checkpoints = { every = 1 } })
      local run = open(own, recipe.data(20), { lr = function() return 1e30 end })
      local next_step, state = run:steps()
      tools.fails("schedule 'lr' gave 1e+30 at step 1, expected number from 0 to 10", next_step, state)
      run:close()
    end)
  end)

  it('knows a finished run by its student and its paths, however they are written', function()
    ms.scope(function(own)
      local made = tools.folder()
      own(ms.model.create(recipe.config, 1)):save(made .. '/a')
      os.execute(('cp -r %s/a %s/b'):format(made, made))
      local function open_again(student, name, recompute)
        return ms.run.open({ output = made .. '/out', student = name, optim = { lr = 0.01 }, max_steps = 1,
          recompute = recompute }, { student = student, data = recipe.data(20), quiet = true }), student
      end
      local function model(name) return own(ms.model.open(made .. name, { train = true })) end
      local run, student = open_again(model '/a', made .. '/a')
      for step in run:steps() do
        for batch in step:micro_batches() do student:learn(batch, { ms.ce(1) }) end
        step:update()
      end
      run:finish()
      os.execute(('ln -s a %s/link'):format(made))
      for _, name in ipairs { '/a', '/./a', '/b/../a', '/link' } do
        run = open_again(model(name), made .. name, name == '/a' or nil)
        assert.is_true(run.finished, name)
        run:close()
      end
      tools.fails(('holds a finished run with student = "%s/a", which is "%s/b" now; the student = "%s/a", '
        .. 'which is'):format(made, made, made), open_again, model '/b', made .. '/b')
      -- where only the object tells
      tools.fails(('run with the student = "%s/a", which is "%s/b" now: give'):format(made, made),
        open_again, model '/b', made .. '/a')
    end)
  end)

  it('shows schedules the step, from the first to the last', function()
    ms.scope(function(own)
      local seen = {}
      local run, student = open(own, recipe.data(20), { look = function(state)
        seen[#seen + 1] = { state.step, state.total, state.progress, state.epoch, state.index }
        return #seen
      end }, { epochs = 1.5 })
      local n = 0
      for step in run:steps() do
        n = n + 1
        assert.equal(n, step.number)
        assert.equal(n, step.look)
        for batch in step:micro_batches() do student:learn(batch, { ms.ce(1) }) end
        step:update()
      end
      run:close()
      assert.equal(6, n) -- one epoch has 4 steps
      for i, s in ipairs(seen) do
        assert.same({ i, 6, (i - 1) / 5, i <= 4 and 0 or 1, i <= 4 and i or i - 4 }, s)
      end
    end)
  end)

  it('without a supervised position updates nothing', function()
    ms.scope(function(own)
      local data = recipe.data(20)
      function data:batch() return ms.batch { { tokens = { 1, 2, 3, 4 } } } end -- weights on `all` only
      local run, student = open(own, data)
      local function weights()
        local parts = {}
        for _, weight in student:parameters() do
          parts[#parts + 1] = ffi.string(weight:read(ffi.new('float[?]', weight:count())), 4 * weight:count())
        end
        return table.concat(parts)
      end
      local before, n = weights(), 0
      local ok, why = pcall(function()
        for step in run:steps() do
          for batch in step:micro_batches() do student:learn(batch, { ms.ce(1) }) end
          step:update()
          assert.equal(0, step.loss)
          assert.equal(before, weights())
          assert.equal(0, run.optimizer:steps())
          n = n + 1
        end
      end)
      assert.is_false(ok)
      assert.truthy(tostring(why):find('nothing was learnt in 4 steps (4 of them without a position', 1, true))
      assert.equal(4, n)
      assert.equal(n, run.state.empty)
    end)
  end)

  it('whose terms have no weight learns nothing, which fails the run', function()
    ms.scope(function(own)
      local run, student = open(own, recipe.data(20))
      local ok, why = pcall(function()
        for step in run:steps() do
          for batch in step:micro_batches() do student:learn(batch, { ms.ce(0) }) end
          step:update()
        end
      end)
      assert.is_false(ok)
      assert.equal(1, why.exit)
      assert.truthy(tostring(why):find('nothing was learnt in 4 steps (4 of them with a gradient of 0)', 1, true))
      run = open(own, recipe.data(20))
      -- no step at all
      tools.fails('nothing was learnt in 0 steps, so no student is saved. Look at the loop', run.finish, run)
    end)
  end)

  it('validates over all batches as over one', function()
    ms.scope(function(own)
      local data, all = recipe.data(20), {}
      local run, student = open(own, data, nil, { batch = { tokens = 100, micro_tokens = 50 } })
      local teacher = own(ms.model.create(recipe.config, 2, { dtype = 'f32' }))
      local got = run:validate { teacher = teacher, data = data }
      for i = 1, 20 do all[i] = i end
      local batch = own(data:batch(all))
      local how = { target = 'hidden', temperature = 1 }
      local r = student:evaluate(batch, { ms.ce(1), ms.kd(own(teacher:targets(batch, how)), 1, how) })
      -- the same f32 values of positions, added up in another order
      local function near(x, y) assert.is_true(math.abs(x - y) <= 1e-6 * math.abs(y), x .. ', ' .. y) end
      near(got.loss, r[1].value / r[1].weight)
      near(got.agree, r[1].agree / r[1].weight)
      near(got.forward_kl, r[2].value / r[2].weight)
      near(got.teacher_agree, r[2].agree / r[2].weight)
      run:close()
    end)
  end)

  it('with a teacher that gives no numbers is an error of the teacher\'s, and keeps its state', function()
    ms.scope(function(own)
      local run = open(own, recipe.data(20))
      local teacher = own(ms.model.create(recipe.config, 2, { dtype = 'f32' }))
      local data = recipe.data(4)
      run:validate { teacher = teacher, data = data }
      assert.is_true(run.state.validation.forward_kl > 0)
      for _, weight in teacher:parameters() do
        local nan = {}
        for i = 1, weight:count() do nan[i] = 0 / 0 end
        weight:write(nan)
      end
      tools.refused('the teacher %(made in memory%) gives hidden states that are not finite',
        run.validate, run, { teacher = teacher, data = data, kd = { target = 'hidden' } })
      assert.is_true(run.state.validation.forward_kl > 0)
      run:close()
    end)
  end)

  it('refuses what comes too early, too late or twice, at the line that does it', function()
    ms.scope(function(own)
      local run, student = open(own, recipe.data(20))
      local function refused(pattern, f) tools.refused('run_spec.lua:%d+: ' .. pattern, f) end
      for step in run:steps() do -- luacheck: ignore 512 (only the first)
        refused('step:update: nothing was learned', function() step:update() end)
        for batch in step:micro_batches() do student:learn(batch, { ms.ce(1) }) end
        local mine = own(ms.batch { { 1, 2 } })
        refused('step:use: the step has learned already', function() step:use { mine } end)
        step:update()
        refused('step:update: called twice, or outside its step', function() step:update() end)
        break
      end
      run:close()
      refused('run: used after finish', function() run:steps() end)
      refused('run: finished already', function() run:finish() end)
    end)
  end)

  it('takes batches of the recipe\'s own', function()
    ms.scope(function(own)
      local run, student = open(own, recipe.data(20))
      for step in run:steps() do -- luacheck: ignore 512 (only the first)
        step:use { ms.batch({ { 1, 2 }, { 3 } }, { { 4, 5, 6 }, { 7 } }) }
        assert.equal(4, step:norm 'response')
        for batch in step:micro_batches() do student:learn(batch, { ms.ce(1) }) end
        step:update()
        assert.equal(7, step.tokens)
        break
      end
      run:close()
    end)
  end)

  it('is not made of a part of its micro-batches, nor of any twice', function()
    ms.scope(function(own)
      -- how often each micro-batch is learned, and with which lists of terms
      local function update(times, lists)
        local run, student = open(own, recipe.data(20), nil, { batch = { tokens = 400, micro_tokens = 60 } })
        local ok, why = pcall(function()
          for step in run:steps() do
            local i = 0
            for batch in step:micro_batches() do
              i = i + 1
              for _ = 1, times(i) do
                for _, terms in ipairs(lists) do student:learn(batch, terms) end
              end
            end
            assert(i > 2)
            step:update()
          end
        end)
        run:close()
        return ok, tostring(why)
      end
      local both = { { ms.ce(1), ms.ce(1, { on = 'all', name = 'all' }) } }
      assert.is_true(update(function() return 1 end, both))
      for _, times in ipairs { function(i) return i == 1 and 1 or 0 end, function(i) return i == 2 and 2 or 1 end } do
        local ok, why = update(times, both)
        assert.is_false(ok)
        assert.matches('the term ce learned from weights of %d+, the step has %d+', why)
      end
      -- one term after the other would be reported as one
      assert.is_false(update(function() return 1 end, { { ms.ce(1) }, { ms.ce(1, { on = 'all' }) } }))
    end)
  end)

  it('says what is wrong with a loop', function()
    ms.scope(function(own)
      local fails = tools.fails
      local run = open(own, recipe.data(20))
      assert.truthy(tostring(run):find '^run in .*, after step 0 of %d+$')
      assert.equal('step 0', tostring(run.step))
      fails('was not called in step 1', function() for _ in run:steps() do end end)
      run:close()
      run = open(own, recipe.data(20))
      fails('nothing was learned', function() for step in run:steps() do step:update() end end)
      run:close()
      fails('cannot be called', function() open(own, recipe.data(20), { norm = function() return 1 end }) end)
      fails('is a number, not a function', function() open(own, recipe.data(20), { x = 1 }) end)
      run = open(own, recipe.data(20), { x = function() return nil end })
      local line = debug.getinfo(1, 'l').currentline - 1 -- where the schedule begins
      fails(("run_spec.lua:%d: run: schedule 'x' gave nil at step 1"):format(line),
        function() for _ in run:steps() do end end)
      run:close()
      run = open(own, recipe.data(20), { lr = function() return 0 / 0 end })
      fails("nan at step 1, not a finite number", function() for _ in run:steps() do end end)
      run:close()
      run = open(own, recipe.data(20), { x = function(state)
        state.total = 3
        return 1
      end })
      fails("schedule 'x' set run.state.total", function() for _ in run:steps() do end end)
      run:close()
      fails('needs max_steps', function() open(own, recipe.data(20), nil, { epochs = 0 }) end)
      fails('checkpoints cannot hold this cfg: JSON has no function (at value.mine)', function()
        open(own, recipe.data(20), nil, { mine = print })
      end)
      fails('gives no step', function() open(own, { steps = function() return {} end }) end)
      fails('after finish', function() run:steps() end)
    end)
  end)
end)
