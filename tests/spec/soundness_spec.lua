-- What a loss is, by the losses before it, and which checkpoint is known to be sound.
local soundness = require 'moonstill.train.soundness'

local function new_run()
  local run = { state = { far = 0, ruined = 0, sound = 0, skips = 0, step = 0 }, saved = 0, said = {}, max_skips = 3 }
  function run:say(line) self.said[#self.said + 1] = line end
  return run
end

-- Steps with these losses; the norm is 1, or what `norms` says. A loss of false: an empty step.
local function judge(run, losses, norms)
  for i, loss in ipairs(losses) do
    run.state.step = run.state.step + 1
    soundness.judge(run, { number = run.state.step, loss = loss or 0, grad_norm = norms and norms[i] or 1,
      skipped = false, tally = { empty = function() return not loss end } })
  end
  return run.state
end

describe('soundness', function()
  it('follows the losses by a twentieth', function()
    local s = judge(new_run(), { 4, 2 })
    assert.near(4 + (2 - 4) / 20, s.loss_level, 1e-12)
    assert.equal(1, s.norm_level)
    judge({ state = s, saved = 0 }, { false }) -- an empty step says nothing
    assert.near(3.9, s.loss_level, 1e-12)
  end)
  it('tells far and ruined losses from sound ones', function()
    for loss, want in pairs { [7] = { 0, 0 }, [7.1] = { 1, 0 }, [300] = { 1, 0 }, [300.1] = { 0, 1 },
      [math.huge] = { 0, 1 }, [-300.1] = { 0, 1 } } do
      local s = judge(new_run(), { 2, loss })
      assert.same(want, { s.far, s.ruined }, loss)
    end
    local s = judge(new_run(), { 2, 0 / 0 })
    assert.same({ 0, 1, 2 }, { s.far, s.ruined, s.loss_level }) -- nothing of a ruined one is taken
    s = judge(new_run(), { 2, 2 }, { 1, 31 })
    assert.equal(1, s.far)
    s = judge(new_run(), { 1e6, 1e6 }) -- the first has no history
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
    assert.same({ 'note: step 3 has a loss of 9 and a norm of 1, after 1 and 1 before: the checkpoint of step 5 is '
      .. 'kept until that has passed' }, run.said)
    for _ = 1, 200 do judge(run, { 9 }) end
    assert.same({ 0, 10 }, { run.state.far, run.state.sound })
  end)
  it('takes a checkpoint for sound at the first sound loss behind it, also after a spike', function()
    local run = new_run()
    run.saved = 1
    assert.equal(1, judge(run, { 1 }).sound)
    run.saved = 2
    assert.equal(1, judge(run, { 50 }).sound)
    assert.equal(2, judge(run, { 1 }).sound)
  end)
end)
