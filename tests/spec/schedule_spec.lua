--- Schedules against their closed forms.
local schedule = require 'moonstill.train.schedule'

local function values(f, total)
  local list = {}
  for step = 1, total do
    list[step] = f { step = step, total = total, progress = (step - 1) / math.max(1, total - 1) }
  end
  return list
end

-- Values are a handful of operations on doubles.
local function close(want, got)
  assert.equal(#want, #got)
  for i = 1, #want do
    assert.is_true(math.abs(want[i] - got[i]) <= 1e-14, ('%d: %.17g, %.17g'):format(i, want[i], got[i]))
  end
end

describe('schedule', function()
  it('constant', function()
    close({ 3, 3, 3 }, values(schedule.constant(3), 3))
    close({ 0.5, 1, 1, 1 }, values(schedule.constant { lr = 1, warmup = 1 }, 4))
  end)

  it('linear from a value to another, both reached', function()
    close({ 0.9, 0.7, 0.5 }, values(schedule.linear { from = 0.9, to = 0.5 }, 3))
    local v = values(schedule.linear { from = 0.9, to = 0.3 }, 1000)
    assert.equal(0.9, v[1])
    assert.equal(0.3, v[1000])
    close({ 0.9 }, values(schedule.linear { from = 0.9, to = 0.5 }, 1))
  end)

  it('linear from the peak', function()
    close({ 1, 0.75, 0.5, 0.25 }, values(schedule.linear { lr = 1 }, 4))
    close({ 2, 1.6, 1.2, 0.8, 0.4 }, values(schedule.linear { lr = 2 }, 5))
    close({ 1, 0.75 }, values(schedule.linear { lr = 1, final = 0.5 }, 2))
  end)

  it('cosine with warm-up by share or by steps', function()
    local want = {}
    for step = 1, 20 do
      want[step] = step <= 4 and 2 * step / 5
        or 2 * (0.1 + 0.9 * (1 + math.cos(math.pi * (step - 5) / 16)) / 2)
    end
    close(want, values(schedule.cosine { lr = 2, warmup = 0.2, final = 0.1 }, 20))
    close(want, values(schedule.cosine { lr = 2, warmup = 4, final = 0.1 }, 20))
  end)

  it('keeps in the run\'s state what a schedule under a warm-up keeps', function()
    local f = schedule.warmup(function(state)
      state.calls = (state.calls or 0) + 1
      return state.calls
    end, 2)
    local state = { total = 6 }
    for step = 1, 3 do
      state.step = step
      f(state)
    end
    assert.same({ total = 6, step = 3, calls = 3 }, state)
    -- a resume has another object of the same state
    assert.equal(4, f { total = 6, step = 4, calls = 3 })
  end)

  it('counts a share of the steps upwards, without rounding noise', function()
    -- 0.07 * 100 is 7.000000000000001
    assert.equal(1 / 8, values(schedule.constant { lr = 1, warmup = 0.07 }, 100)[1])
    assert.equal(1 / 2, values(schedule.constant { lr = 1, warmup = 0.03 }, 10)[1])
  end)

  it('wsd', function()
    close({ 1 / 3, 2 / 3, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25 },
      values(schedule.wsd { lr = 1, warmup = 2, decay = 0.5 }, 10))
    close({ 1, 1, 1, 0.5 }, values(schedule.wsd { lr = 1, decay = 2 }, 4))
  end)

  it('composes warm-up with any function of the state', function()
    local f = schedule.warmup(function(state) return state.memory + state.step end, 2)
    local list = {}
    for step = 1, 4 do list[step] = f { step = step, total = 4, memory = 10 } end
    close({ 11 / 3, 22 / 3, 11, 12 }, list)
  end)

  it('shows a schedule under a warm-up the steps that are left, as if they were a run', function()
    local seen = {}
    values(schedule.warmup(function(state)
      seen[#seen + 1] = { state.step, state.total, state.progress }
      return 1
    end, 2), 5)
    assert.same({ { 1, 3, 0 }, { 1, 3, 0 }, { 1, 3, 0 }, { 2, 3, 0.5 }, { 3, 3, 1 } }, seen)
    -- nothing is left: the one step there is
    seen = {}
    values(schedule.warmup(function(state)
      seen[#seen + 1] = { state.step, state.total, state.progress }
      return 1
    end, 3), 2)
    assert.same({ { 1, 1, 0 }, { 1, 1, 0 } }, seen)
  end)

  it('copes with runs of one step, and with warm-up longer than the run', function()
    for _, name in ipairs(schedule.names) do
      close({ 5 }, values(schedule[name] { lr = 5 }, 1))
      for _, v in ipairs(values(schedule[name] { lr = 5, warmup = 100 }, 3)) do
        assert.is_true(v >= 0 and v <= 5)
      end
    end
  end)

  it('refuses what is no number', function()
    assert.has_error(function() schedule.cosine {} end)
    assert.has_error(function() schedule.linear { from = 1 } end)
    assert.has_error(function() schedule.cosine { lr = 0 / 0 } end)
    assert.has_error(function() schedule.cosine { lr = 1, warmup = -1 } end)
    assert.has_error(function() schedule.of { schedule = 'sine', lr = 1 } end)
  end)
end)
