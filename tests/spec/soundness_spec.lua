-- What a loss is, by the losses before it, and which checkpoint is known to be sound.
local ms = require 'moonstill'
local recipe = require 'tests.programs.run_recipe'
local soundness = require 'moonstill.train.soundness'
local tools = require 'tests.support.tools'

local function new_run()
  local run = { state = { far = 0, ruined = 0, sound = 0, skips = 0, step = 0 }, saved = 0, said = {}, max_skips = 3 }
  function run:say(line) self.said[#self.said + 1] = line end
  return run
end

-- The terms of a step: a number is the cross-entropy, a table has more of them by name.
local function terms_of(losses)
  local list = {}
  for _, name in ipairs(ms.sorted.keys(type(losses) == 'table' and losses or { ce = losses })) do
    list[#list + 1] = { name = name, key = name, mean = type(losses) == 'table' and losses[name] or losses }
  end
  return list
end

-- Steps with these losses; the norm is 1, or what `norms` says. A loss of false: an empty step.
local function judge(run, losses, norms)
  for i, loss in ipairs(losses) do
    run.state.step = run.state.step + 1
    soundness.judge(run, { number = run.state.step, grad_norm = norms and norms[i] or 1, skipped = false,
      tally = { empty = function() return not loss end, judged = function() return terms_of(loss) end } })
  end
  return run.state
end

describe('soundness', function()
  it('follows the losses by a twentieth', function()
    local s = judge(new_run(), { { ce = 4, kd = 40 }, { ce = 2, kd = 60 } })
    assert.near(4 + (2 - 4) / 20, s.levels.ce, 1e-12)
    assert.near(40 + (60 - 40) / 20, s.levels.kd, 1e-12)
    assert.equal(1, s.norm_level)
    judge({ state = s, saved = 0 }, { false }) -- an empty step says nothing
    assert.near(3.9, s.levels.ce, 1e-12)
  end)
  it('tells far and ruined losses from sound ones', function()
    for loss, want in pairs { [7] = { 0, 0 }, [7.1] = { 1, 0 }, [300] = { 1, 0 }, [300.1] = { 0, 1 },
      [math.huge] = { 0, 1 }, [-300.1] = { 0, 1 } } do
      local s = judge(new_run(), { 2, loss })
      assert.same(want, { s.far, s.ruined }, loss)
      s = judge(new_run(), { { ce = 2, kd = 50 }, { ce = loss, kd = 50 } }) -- beside one that is larger
      assert.same(want, { s.far, s.ruined }, loss)
      s = judge(new_run(), { { ce = 50, kd = 2 }, { ce = 50, kd = loss } })
      assert.same(want, { s.far, s.ruined }, loss)
    end
    local s = judge(new_run(), { { ce = 2, kd = 3 }, { ce = 4, kd = 0 / 0 } })
    assert.same({ 0, 1, 2, 3 }, { s.far, s.ruined, s.levels.ce, s.levels.kd }) -- nothing of a ruined step is taken
    assert.equal('kd is nan, and was about 3', s.ruined_by)
    s = judge({ state = s, saved = 0 }, { { ce = 2, kd = 3 } })
    assert.same({ 0, nil }, { s.ruined, s.ruined_by })
    s = judge(new_run(), { 2, 2 }, { 1, 31 })
    assert.equal(1, s.far)
    s = judge(new_run(), { 1e6, 1e6, { ce = 1e6, kd = 1e9 } }) -- the first of each has no history
    assert.same({ 0, 0 }, { s.far, s.ruined })
  end)
  it('says once that a loss is far, and comes to know a new level', function()
    local run = new_run()
    run.saved = 5
    judge(run, { 1, 1 })
    assert.equal(5, run.state.sound)
    run.saved = 10
    judge(run, { 9, 9, 9 })
    assert.equal(5, run.state.sound) -- the checkpoint of step 10 gave these
    assert.same({ 'note: in step 3 ce rose from 1 to 9: the checkpoint of step 5 is kept until that has passed' },
      run.said)
    for _ = 1, 200 do judge(run, { 9 }) end
    assert.same({ 0, 10 }, { run.state.far, run.state.sound })
    run = new_run()
    judge(run, { 1, 9 }, { 1, 40 })
    assert.same({ 'note: in step 2 ce rose from 1 to 9, and the norm rose from 1 to 40: there is no checkpoint '
      .. 'from before' }, run.said)
  end)
  it('takes a checkpoint for sound at the first sound loss behind it, also after a spike', function()
    local run = new_run()
    run.saved = 1
    assert.equal(1, judge(run, { 1 }).sound)
    run.saved = 2
    assert.equal(1, judge(run, { 50 }).sound)
    assert.equal(2, judge(run, { 1 }).sound)
  end)

  -- What a run says of ten steps in which the weight of KD, ten times as large as CE, goes from `from` to `to`.
  local function said_of(own, from, to, objective_at)
    local student = own(ms.model.create(recipe.config, 1, { train = true, dtype = 'f32' }))
    local teacher = own(ms.model.create(recipe.config, 2, { dtype = 'f32' }))
    local run = ms.run.open({ output = tools.folder(), optim = { lr = 1e-5 }, batch = { tokens = 100 }, epochs = 0,
      max_steps = 10 }, { student = student, data = recipe.data(20), quiet = true,
      schedules = { kd = ms.schedule.linear { from = from, to = to } } })
    local lines, sums = {}, {}
    function run:say(line) lines[#lines + 1] = line end -- luacheck: ignore 212
    for step in run:steps() do
      for batch in step:micro_batches() do
        local cfg = { target = 'hidden', t_scale = 40, objective = step.number >= objective_at and 'reverse_kl' or nil }
        student:learn(batch, { ms.ce(1 - step.kd), ms.kd(own(teacher:targets(batch, cfg)), step.kd, cfg),
          ms.ce(0, { name = 'unused', on = 'all' }) })
      end
      step:update()
      sums[#sums + 1] = step.loss
    end
    assert.same(objective_at > 10 and { 'ce', 'kd (forward_kl)' }
      or { 'ce', 'kd (forward_kl)', 'kd (reverse_kl)' }, ms.sorted.keys(run.state.levels))
    run:close()
    return table.concat(lines, '\n'), sums
  end

  it('says nothing where weights move, or an objective changes', function()
    ms.scope(function(own)
      local said, sums = said_of(own, 0.02, 0.95, 99)
      assert.is_nil(said:find('rose from', 1, true), said)
      assert.is_true(sums[10] > 3 * sums[1] + 1) -- of which the sum would have made a divergence
      said = said_of(own, 0.9, 0.5, 5)
      assert.is_nil(said:find('rose from', 1, true), said)
    end)
  end)
end)
