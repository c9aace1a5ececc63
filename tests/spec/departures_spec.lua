-- Where a run departs from what was asked: one line each, and none where it does not.
local departures = require 'moonstill.run.departures'
local json = require 'moonstill.base.json'
local schedule = require 'moonstill.train.schedule'
local tools = require 'tests.support.tools'

-- A student as far as it is asked: where it came from, what its config.json says.
local function student(path, config)
  return { info = function() return { path = path } end, config = function() return config or {} end }
end

-- The lines for a run of 20 steps in 2 epochs, but for what `changes` says.
local function lines(changes)
  local said = {}
  local run = { cfg = { epochs = 2 }, state = { step = 0, total = 20 }, part = {}, every = 5, keep = 2, data = {},
    student = student(json.null), batch_size = { tokens = 1000, micro_tokens = 500 },
    schedules = { lr = schedule.cosine { lr = 0.1, warmup = 0.1 }, kd = schedule.linear { from = 0.9, to = 0.5 } },
    schedule_names = { 'kd', 'lr' }, say = function(_, line) said[#said + 1] = line end }
  for key, value in pairs(changes) do run[key] = value end
  departures.say(run)
  return said
end

local function is_said(line, changes) assert.same({ 'note: ' .. line }, lines(changes)) end
local function is_not_said(changes) assert.same({}, lines(changes)) end

local function with_lr(f) return { schedules = { lr = f, kd = function() return 1 end } } end

local function with_sample(tokens)
  return { data = { longest = function() return tokens, 'train.jsonl:7' end } }
end

describe('a run says', function()
  it('nothing when it does what was asked', function()
    is_not_said {}
    is_not_said { cfg = {} }
    is_not_said { cfg = { epochs = 2, max_steps = 20 } }
    is_not_said { cfg = { epochs = 0, max_steps = 20 } }
  end)
  it('which rate a small student may want, where it has that of large ones', function()
    local function with_rate(lr, parameters, step)
      return { cfg = { epochs = 2, optim = { lr = lr } }, state = { step = step or 0, total = 20 },
        student = { info = function() return { path = json.null, parameters = parameters } end,
          config = function() return {} end } }
    end
    -- 0.003239 - 0.0001395 ln 135e6 = 6.3e-4
    is_said('optim.lr = 2e-05 is a rate for large models; for 135 M parameters a guess is 6e-05 for a student that '
      .. 'was trained before, 6e-04 from random weights', with_rate(2e-5, 135e6))
    is_said('optim.lr = 1e-05 is a rate for large models; for 29.8 k parameters a guess is 2e-04 for a student that '
      .. 'was trained before, 2e-03 from random weights', with_rate(1e-5, 29800))
    is_not_said(with_rate(2e-5, 1.7e9))
    is_not_said(with_rate(2e-5, 700e6)) -- 4e-4: a tenth is what it has twice
    is_not_said(with_rate(3e-5, 29800))
    is_not_said(with_rate(0, 29800))
    is_not_said(with_rate(2e-5, 29800, 5)) -- once, before the first step
    is_not_said { cfg = { epochs = 2, optim = {} } }
  end)
  it('that there are fewer steps than max_steps', function()
    is_said('the data gives 20 steps in 2 epochs, so max_steps = 21 is not reached; epochs=0 goes on until it is',
      { cfg = { epochs = 2, max_steps = 21 } })
  end)
  it('that a part of an epoch is rounded, by more than a hundredth of the run', function()
    local cfg = { epochs = 1.96 }
    is_said('the last part of epochs = 1.96 would be 9.6 steps: it has 10',
      { cfg = cfg, part = { asked = 9.6, made = 10 } })
    is_not_said { cfg = cfg, part = { asked = 9.8, made = 10 } }
    is_not_said { cfg = { epochs = 1.96, max_steps = 20 }, part = { asked = 9.6, made = 10 } }
  end)
  it('that another number of steps stretches the schedules', function()
    local lr = schedule.linear { lr = 1 }
    local state = { step = 10, total = 20 }
    is_said('20 steps in all, 10 when the checkpoint was made: schedules are stretched, and lr goes from 1.00e-01 in '
      .. 'step 10 to 5.00e-01 in step 11', { state = state, total_before = 10, schedules = { lr = lr },
      schedule_names = { 'lr' } })
    -- fewer steps, a rate that stays, one of which nothing is known
    is_said('20 steps in all, 40 when the checkpoint was made: schedules are stretched, and lr goes from 7.75e-01 in '
      .. 'step 10 to 5.00e-01 in step 11', { state = state, total_before = 40, schedules = { lr = lr },
      schedule_names = { 'lr' } })
    local line = '20 steps in all, 10 when the checkpoint was made: schedules are stretched'
    for _, f in ipairs { schedule.constant(0.1), function() error 'not to be asked' end } do
      local changes = with_lr(f)
      changes.state, changes.total_before = state, 10
      is_said(line, changes)
    end
    is_not_said { state = state, total_before = 20 }
    is_not_said { state = { step = 20, total = 20 }, total_before = 10 } -- no step is left
  end)
  it('that a pass is no larger than its step', function()
    local batch_size = { tokens = 1000, micro_tokens = 1001 }
    is_said('batch.micro_tokens = 1001, but a step has 1000 tokens (batch.tokens), and so has a pass',
      { cfg = { batch = { micro_tokens = 1001 } }, batch_size = batch_size })
    is_not_said { cfg = { batch = { micro_tokens = 1000 } }, batch_size = { tokens = 1000, micro_tokens = 1000 } }
    is_not_said { cfg = { batch = { micro_tokens = 2048 } }, batch_size = { tokens = 1000, micro_tokens = 2048 } }
  end)
  it('that a sample is longer than its step or its pass', function()
    is_said('train.jsonl:7 has 1001 tokens, more than batch.tokens = 1000: such samples are steps of their own',
      with_sample(1001))
    is_said('train.jsonl:7 has 501 tokens, more than batch.micro_tokens = 500: such samples are passes of their own, '
      .. 'and take their memory', with_sample(501))
    is_not_said(with_sample(500))
  end)
  it('that only prompts count, and that no tokenizer goes along', function()
    local function counts(list)
      return { data = { counts = function(_, on) return list[on] end } }
    end
    is_said('all weights of answers are 0: only terms with on = "all" learn', counts { response = false, all = true })
    is_not_said(counts { response = true, all = true })
    local line = 'no tokenizer goes along with the student: give run.open the folder of one as carry'
    is_said(line, { data = { chat = {} }, student = student(json.null) })
    is_said(line, { data = { chat = {} }, student = student 'tests/fixtures' })
    is_said(line, { data = { chat = {} }, student = student(json.null), carry = 'tests/fixtures' })
    is_not_said { student = student(json.null) } -- ids without a text
    local folder = tools.folder()
    tools.write(folder .. '/tokenizer.json', '{}')
    is_not_said { data = { chat = {} }, student = student(folder) }
    is_not_said { data = { chat = {} }, student = student(json.null), carry = folder }
  end)
  it('that dropout is not done', function()
    local config = { attention_dropout = 0.1, resid_pdrop = 0, vocab_size = 9 }
    is_said("the student's config.json has attention_dropout = 0.1: no dropout is applied",
      { student = student(json.null, config) })
    is_not_said { student = student(json.null, { attention_dropout = 0, dropout = json.null }) }
  end)
  it('that a warm-up is as long as the run, of whatever schedule', function()
    -- the first of a linear schedule's 1 remaining step is its peak, of which step 20 of 20 has 20 / 21
    is_said('lr warms up in 20 steps, but the run has 20: it rises to 9.52e-01, and no further',
      with_lr(schedule.linear { lr = 1, warmup = 20 }))
    is_said('kd warms up in 30 steps, but the run has 20: it rises to 9.52e-01, and no further',
      { schedules = { lr = schedule.constant(1), kd = schedule.constant { lr = 1, warmup = 30 } } })
    is_not_said(with_lr(schedule.linear { lr = 1, warmup = 19 }))
    is_not_said(with_lr(schedule.linear { lr = 1, warmup = 0.99 }))
  end)
  it('that a fall is longer than what follows the warm-up', function()
    is_said('lr falls in the last 16 steps, but the run has 15 after its warm-up: it falls in all of them',
      with_lr(schedule.wsd { lr = 1, warmup = 5, decay = 16 }))
    is_not_said(with_lr(schedule.wsd { lr = 1, warmup = 5, decay = 15 }))
    is_not_said(with_lr(schedule.wsd { lr = 1, warmup = 5, decay = 0.99 }))
    is_not_said(with_lr(schedule.cosine { lr = 1, decay = 30 })) -- which has none
  end)
  it('what becomes of checkpoints', function()
    is_said('checkpoint.every = 21, but the run has 20 steps: it is saved at its end only', { every = 21 })
    is_not_said { every = 20 }
    is_not_said { every = 200 } -- when nothing is said
    is_said('checkpoint.keep = 0 keeps one, from which the run can go on', { keep = 0 })
  end)
end)
