-- What the objectives are worth: published values, exactness, ends of parameters, infinite logits,
-- tiny masses. The grid against the reference is in head_spec.
local ffi = require 'ffi'
local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local heads = require 'tests.support.heads'
local tools = require 'tests.support.tools'

local huge = math.huge

-- One row or more: the value of one KD term and the gradient of its logits.
-- o: kind, k, objective, parameter, T, Tt, tail, t_scale, vocab, label (adds CE of weight 0)
local function kd(y, z, o)
  local target = heads.target(y, { kind = o.kind or (o.k and 'topk' or 'logits'), k = o.k, T = o.T, Tt = o.Tt,
    vocab = o.vocab, on = 'all', made = o.made, soft_cap = o.soft_cap, scale = o.scale })
  local list = { { objective = o.objective or 'forward_kl', parameter = o.parameter, T = o.T, tail = o.tail,
    t_scale = o.t_scale, on = 'all', target = target } }
  if o.ce then list[2] = { on = 'all', weight = 0 } end
  local got, g = heads.run(z, list, { label = o.ce, soft_cap = o.soft_cap, scale = o.scale, budget = o.budget })
  return got[1].value, g, got[1]
end

-- Values are exact to a few roundings of f32 probabilities: 4 eps of 1 where terms cancel.
local function near(want, got, k) tools.close({ got }, { want }, 'f32', k or 4, 4 * 2 ^ -23) end
local function near_row(want, got, k) tools.close(got, want, 'f32', k or 4, 4 * 2 ^ -23) end

local function random_row(n, seed, scale)
  local v, row = tools.values(n, seed, scale), {}
  for i = 1, n do row[i] = v[i - 1] end
  return row
end

describe('objectives: values computed elsewhere', function()
  -- Six ids, parameters at their defaults, no factor of T; gradients in the student's logits.
  local y, z = { { 2, 1, 0, -1, -2, -3 } }, { { 0.5, 1.5, -0.5, 0, 1, -1 } }
  local top4 = {
    forward_kl = { 0.464760228, { -0.430817, 0.342376, -0.008750, 0.097191, 0, 0 } },
    reverse_kl = { 0.454219607, { -0.332440, 0.254853, -0.043904, 0.121490, 0, 0 } },
    adaptive_kl = { 0.459385005, { -0.380649, 0.297743, -0.026677, 0.109583, 0, 0 } },
    skewed_forward_kl = { 0.362168734, { -0.307876, 0.246907, -0.013484, 0.074452, 0, 0 } },
    skewed_reverse_kl = { 0.357344005, { -0.266574, 0.212366, -0.028654, 0.082862, 0, 0 } },
    js = { 0.109535445, { -0.086231, 0.069382, -0.006470, 0.023318, 0, 0 } },
  }
  local whole = {
    forward_kl = { 0.727437434, { -0.481358, 0.180963, -0.029720, 0.060845, 0.239549, 0.029720 }, 0.133121742 },
    reverse_kl = { 0.938874524, { -0.360172, -0.150878, -0.076459, 0.012532, 0.536377, 0.038600 }, 0.140519627 },
    adaptive_kl = { 0.839303766, { -0.417241, 0.005394, -0.054449, 0.035284, 0.396594, 0.034419 }, 0.137053130 },
    skewed_forward_kl = { 0.563121706, { -0.315743, 0.100371, -0.030021, 0.040954, 0.182402, 0.022037 }, 0.107354474 },
    skewed_reverse_kl = { 0.606458729, { -0.256977, 0.008484, -0.043282, 0.031250, 0.234610, 0.025914 }, 0.110596320 },
    js = { 0.175220924, { -0.084658, 0.017151, -0.011178, 0.010887, 0.060812, 0.006987 }, 0.033392796 },
  }
  local PRINTED = 6e-7 -- half of the last printed digit, and rounding

  for name, want in pairs(top4) do
    it(name .. ' over the top 4, renormalised', function()
      local d, g = kd(y, z, { objective = name, k = 4, tail = 'renormalize', t_scale = 1 })
      near(want[1], d)
      tools.close(g[1], want[2], 'f32', 4, PRINTED)
    end)
  end
  for name, want in pairs(whole) do
    it(name .. ' over the whole vocabulary', function()
      for _, o in ipairs { { k = 6 }, { kind = 'logits' }, { kind = 'hidden' } } do
        o.objective, o.t_scale = name, 1
        local d, g = kd(y, z, o)
        near(want[1], d)
        tools.close(g[1], want[2], 'f32', 4, PRINTED)
        o.T, o.Tt = 2, 1.5
        near(want[3], (kd(y, z, o)))
      end
    end)
  end

  -- Four ids.
  local t, s = { { 2, 1, 0, -1 } }, { { 0.5, 0.5, 1, -0.5 } }
  it('the second set of values', function()
    local function value(name, T, o)
      o = o or {}
      o.objective, o.T, o.t_scale = name, T, 1
      return (kd(t, s, o))
    end
    near(0.431385430786, value('forward_kl', 1))
    near(0.122418557904, value('forward_kl', 2))
    near(0.508091899614, value('reverse_kl', 1))
    near(0.125746694232, value('reverse_kl', 2))
    near(0.109805261157, value('js', 1))
    near(0.030550405087, value('js', 2))
    near(0.394947516182, value('tvd', 1))
    near(0.216993246907, value('tvd', 2))
    near(0.347030902900, value('skewed_forward_kl', 1))
    near(0.377452291122, value('skewed_reverse_kl', 1))
    local d, g = kd(t, s, { T = 1 })
    near(0.431385430786, d)
    near_row({ -0.394947516182, 0.012083925616, 0.323332447302, 0.059531143264 }, g[1])
    d, g = kd(t, s, { T = 2 }) -- times T^2
    near(0.489674231617, d)
    near_row({ -0.396043136124, -0.037943357691, 0.325262757213, 0.108723736602 }, g[1])
    -- top 2 of 4
    local _, _, r = kd(t, s, { k = 2 })
    near(0.880797077978, r.teacher_mass)
    tools.close({ r.student_mass, value('forward_kl', 1, { k = 2 }), value('forward_kl', 1,
      { k = 2, tail = 'renormalize' }) }, { 0.497933, 0.428689, 0.110944 }, 'f32', 4, PRINTED)
  end)
end)

describe('objectives: exactness', function()
  local V = 9001 -- several cache blocks and a part of a vector
  for _, name in ipairs(heads.objectives) do
    it(name .. ': equal models give exactly 0', function()
      for _, T in ipairs { 0.05, 1, 2 } do
        for _, o in ipairs { { kind = 'logits' }, { kind = 'hidden' }, { k = 64 }, { k = 1 }, { kind = 'hidden',
          soft_cap = 5, scale = 0.5 }, { k = 64, tail = 'renormalize', soft_cap = 5 }, { k = 64, vocab = V - 129 },
          { k = 64, vocab = V - 129, ce = { V - 1 } }, { kind = 'hidden', vocab = V - 129, ce = { V - 1 } } } do
          local row = { random_row(V, 3, 9) }
          o.objective, o.T = name, T
          local d, g = kd(row, row, o)
          assert.equal(0, d)
          for i = 1, V do
            if g[1][i] ~= 0 then error(('gradient %g at %d, T = %g'):format(g[1][i], i, T)) end
          end
        end
      end
    end)

    it(name .. ': equal weights by different routes stay below 1e-5 / T', function()
      local R, W, H = 12, 700, 40
      local hidden, head = heads.tensor(tools.values(R * H, 1, 2), R, H), heads.tensor(tools.values(W * H, 2), W, H)
      local out = ffi.new 'ms_target *[1]'
      for _, T in ipairs { 0.05, 1, 2 } do
        for _, o in ipairs { { kind = 'topk', k = 20 }, { kind = 'topk', k = W }, { kind = 'hidden' },
          { kind = 'logits' } } do
          o.T, o.on = T, 'all'
          check(C.ms_target_new(heads.options(o), hidden.p, head.p, 1, 0, 5000, out))
          local got = heads.call(hidden, head, { { objective = name, T = T, t_scale = 1, on = 'all',
            target = ffi.gc(out[0], C.ms_target_free) } }, { budget = 16000 })
          assert.is_true(math.abs(got[1].value) <= R * 1e-5 / T)
        end
      end
      hidden:free()
      head:free()
    end)

    it(name .. ': is never negative, and its gradient sums to 0', function()
      for seed = 1, 20 do
        local y, z = { random_row(200, seed, seed) }, { random_row(200, 50 + seed, seed) }
        for _, o in ipairs { { kind = 'logits' }, { k = 5 }, { k = 5, tail = 'renormalize' } } do
          o.objective = name
          local d, g = kd(y, z, o)
          local sum, size = 0, 0
          for i = 1, 200 do sum, size = sum + g[1][i], size + math.abs(g[1][i]) end
          assert.is_true(d >= 0)
          -- each element is h - q H, rounded to f32, and the q add up to 1 within 1e-7 or so
          assert.is_true(math.abs(sum) <= 1e-6 * (size + d))
        end
      end
    end)
  end

  it('bitwise equal log-probabilities from a cache give exactly 0', function()
    local lp = ffi.new('float[4]', { math.log(0.25), math.log(0.25), math.log(0.25), math.log(0.25) })
    local out, id = ffi.new 'ms_target *[1]', ffi.new('int32_t[4]', { 2, 0, 3, 1 })
    for _, k in ipairs { 3, 4 } do
      local rest = ffi.new('float[1]', { k == 4 and -huge or math.log(0.25) })
      check(C.ms_target_topk(heads.options { kind = 'topk', k = k, vocab = 4, on = 'all' }, 1, id, lp, rest, out))
      local target = ffi.gc(out[0], C.ms_target_free)
      for _, name in ipairs(heads.objectives) do
        local got, g = heads.run({ { 7, 7, 7, 7 } }, { { objective = name, on = 'all', target = target } }, {})
        assert.equal(0, got[1].value)
        assert.same({ 0, 0, 0, 0 }, g[1])
      end
    end
  end)
end)

describe('objectives: parameters and factors', function()
  local y, z = { random_row(50, 1, 3) }, { random_row(50, 2, 3) }

  it('js at beta 0 and 1, skewed ones at lambda 0', function()
    for _, o in ipairs { { kind = 'logits' }, { k = 5 }, { k = 5, tail = 'renormalize' } } do
      local function same(name, parameter, other)
        o.objective, o.parameter = name, parameter
        local d, g = kd(y, z, o)
        o.objective, o.parameter = other, nil
        local e, h = kd(y, z, o)
        assert.equal(e, d)
        assert.same(h, g)
      end
      same('js', 0, 'forward_kl')
      same('js', 1, 'reverse_kl')
      same('skewed_forward_kl', 0, 'forward_kl')
      same('skewed_reverse_kl', 0, 'reverse_kl')
    end
  end)

  it('parameters near their ends', function()
    for _, case in ipairs { { 'js', 1e-9 }, { 'js', 1 - 1e-9 }, { 'js', 0.9 }, { 'skewed_forward_kl', 0.999 },
      { 'skewed_reverse_kl', 0.999 }, { 'skewed_forward_kl', 1e-9 }, { 'skewed_reverse_kl', 1e-9 } } do
      local d, g = kd(y, z, { objective = case[1], parameter = case[2] })
      local want = heads.kd_row({ objective = case[1], T = 1, vocab = 50, parameter = case[2] }, z[1], y[1])
      near(want, d, 30) -- lambda itself is rounded to f32: 1 - 0.999 to 3e-5 of itself
      for i = 1, 50 do assert.is_true(g[1][i] == g[1][i]) end
    end
  end)

  it('t_scale: T^2, T for tvd, none, a number; never Tt', function()
    for _, name in ipairs(heads.objectives) do
      local plain = kd(y, z, { objective = name, T = 3, Tt = 2, t_scale = 1 })
      local scaled, g = kd(y, z, { objective = name, T = 3, Tt = 2 })
      local _, h = kd(y, z, { objective = name, T = 3, Tt = 2, t_scale = 1 })
      local factor = name == 'tvd' and 3 or 9
      near(plain * factor, scaled)
      for i = 1, 50 do near(h[1][i] * factor, g[1][i]) end
      near(plain * 0.5, (kd(y, z, { objective = name, T = 3, Tt = 2, t_scale = 0.5 })))
    end
  end)

  it('adaptive_kl: ties go by id, alpha 0 is forward, alpha 1 is reverse', function()
    -- two equal largest ids: the first one alone reaches 1 - alpha
    local a, b = { { 2, 2, 0, 0 } }, { { 1, 0, 0, 0.5 } }
    local half = math.exp(2) / (2 * math.exp(2) + 2)
    for _, alpha in ipairs { 1 - half + 0.01, 1 - half - 0.01, 0.3 } do
      for _, o in ipairs { { kind = 'logits' }, { k = 4 }, { k = 3 } } do
        o.objective, o.parameter = 'adaptive_kl', alpha
        near((heads.kd_row({ objective = 'adaptive_kl', T = 1, vocab = 4, parameter = alpha, k = o.k }, b[1], a[1])),
          (kd(a, b, o)))
      end
    end
    -- more equal ids than a vector holds, the head's end among them, and others between
    local c, d, V = { {} }, { random_row(200, 4, 2) }, 200
    for i = 1, V do c[1][i] = i % 3 == 0 and 0 or 1 end
    for _, alpha in ipairs { 0.9, 0.5, 0.3, 0.1 } do
      for _, o in ipairs { { kind = 'logits' }, { k = V } } do
        o.objective, o.parameter = 'adaptive_kl', alpha
        near((heads.kd_row({ objective = 'adaptive_kl', T = 1, vocab = V, parameter = alpha, k = o.k }, d[1], c[1])),
          (kd(c, d, o)), 20) -- the weights are sums of 200 gaps, each rounded to f32
      end
    end
    for _, o in ipairs { { kind = 'logits' }, { k = 50 } } do
      o.objective, o.parameter = 'adaptive_kl', 0
      near((kd(y, z, { kind = o.kind, k = o.k })), (kd(y, z, o)))
      o.parameter = 1
      near((kd(y, z, { kind = o.kind, k = o.k, objective = 'reverse_kl' })), (kd(y, z, o)))
    end
    -- the largest p rounds to 1, and yet is not all
    local sharp, other = { { 50, 0, 0, 0 } }, { { 0, 9, 3, 0 } }
    for _, kind in ipairs { 'logits', 'topk' } do
      near((kd(sharp, other, { kind = kind, k = 4 })),
        (kd(sharp, other, { kind = kind, k = 4, objective = 'adaptive_kl', parameter = 0 })))
    end
  end)

  it('adaptive_kl: a head whose mass meets 1 - alpha takes no more', function()
    -- One of two ids: the gaps are equal, so the value is the mean of forward's and reverse's.
    local equal, two = { 0, 0 }, { 2, 0 }
    for _, o in ipairs { { kind = 'logits' }, { kind = 'hidden' }, { k = 2 }, { k = 2, tail = 'renormalize' } } do
      o.objective = 'adaptive_kl'
      near(0.380797078, (kd({ equal }, { two }, o)))
      o.parameter = 0.5 - 0.9e-6 -- within the slack of sums
      near(0.380797078, (kd({ equal }, { two }, o)))
      o.parameter = 0.5 - 1.5e-6 -- and out of it: both ids
      near(0.433780830, (kd({ equal }, { two }, o)))
      o.parameter = 1 - 0.5e-6 -- no id
      near(0.327813326, (kd({ equal }, { two }, o)))
    end
    -- a head without ids, after one that had some
    local target = heads.target({ equal }, { kind = 'logits', on = 'all' })
    local function term(alpha) return { objective = 'adaptive_kl', parameter = alpha, on = 'all', target = target } end
    local got = heads.run({ two }, { term(0.5), term(1 - 0.5e-6) }, {})
    near(0.380797078, got[1].value)
    near(0.327813326, got[2].value)
    -- m of n equal ids, each sum of which is rounded n times: the first m, counted and not summed
    for _, n in ipairs { 3, 10, 100, 5000 } do
      local even, other, q = {}, random_row(n, n, 2), {}
      local log_sum = heads.ce_row(other, 0) + other[1]
      for i = 1, n do even[i], q[i] = 0, math.exp(other[i] - log_sum) end
      for _, m in ipairs { 1, math.floor(n / 3), math.floor(n / 2), n - 1 } do
        local gap = { 0, 0 }
        for i = 1, n do
          local side = i <= m and 1 or 2
          gap[side] = gap[side] + math.abs(q[i] - 1 / n)
        end
        local weights = { gap[1] / (gap[1] + gap[2]), gap[2] / (gap[1] + gap[2]) }
        local want = heads.kd_row({ objective = 'adaptive_kl', T = 1, vocab = n }, other, even, weights)
        for _, o in ipairs { { kind = 'logits' }, { kind = 'hidden' }, { k = n } } do
          o.objective, o.parameter = 'adaptive_kl', 1 - m / n
          near(want, (kd({ even }, { other }, o)), 20) -- sums of up to 5000 gaps, each rounded to f32
        end
      end
    end
  end)

  it('tvd has no sign where the two agree to 1e-5', function()
    local base = { { 1, 0, -1, 0.5 } }
    local close = { { 1 + 2e-6, 0, -1, 0.5 } }
    local d, g = kd(base, close, { objective = 'tvd' })
    assert.is_true(d > 0)
    assert.same({ 0, 0, 0, 0 }, g[1])
    local _, far = kd(base, { { 1 + 1e-3, 0, -1, 0.5 } }, { objective = 'tvd' })
    assert.is_true(far[1][1] > 0.05)
  end)

  it('tvd has no sign where the two agree to 1e-5 max(1, 1 / T)', function()
    -- one id's logit differs by d: |lq - lp| is 3/4 d / T for that id and less for the others
    local function slope(d, T)
      local _, g = kd({ { 0, 0, 0, 0 } }, { { d, 0, 0, 0 } }, { objective = 'tvd', T = T, t_scale = 1 })
      return g[1]
    end
    for _, T in ipairs { 0.01, 0.1, 0.5, 1, 2, 10 } do
      local width = 1e-5 * math.max(1, 1 / T)
      -- lp and lq are rounded to 1e-7, a hundredth of the width
      assert.same({ 0, 0, 0, 0 }, slope(1.2 * width * T, T), 'T = ' .. T)
      assert.is_true(slope(1.5 * width * T, T)[1] > 0.01 / T, 'T = ' .. T)
    end
  end)

  it('refuses what has no meaning', function()
    local function refused(pattern, o) tools.refused(pattern, kd, y, z, o) end
    refused('beta = 1.5 not in', { objective = 'js', parameter = 1.5 })
    refused('lambda = 1 not in', { objective = 'skewed_forward_kl', parameter = 1 })
    refused('alpha = %-0.1 not in', { objective = 'adaptive_kl', parameter = -0.1 })
    refused('temperature is 0, not in 0.001..1000', { T = 0 })
    refused('temperature', { T = huge })
    refused('teacher_temperature', { Tt = -1 })
    refused('k = 51 not in 1%.%.50', { k = 51 })
  end)
end)

-- Logits are scaled, then capped, on both sides: cap tanh(scale z / cap), and either may be alone.
describe('objectives: scale and soft cap', function()
  local V = 37
  local y, z = random_row(V, 1, 4), random_row(V, 2, 4)
  local function finished(row, scale, cap)
    local got, slope = {}, {}
    for i, x in ipairs(row) do
      local u = scale * x
      got[i], slope[i] = u, scale
      if cap > 0 then
        local e = math.exp(2 * u / cap)
        local t = (e - 1) / (e + 1)
        got[i], slope[i] = cap * t, scale * (1 - t * t)
      end
    end
    return got, slope
  end
  for _, pair in ipairs { { 0.5, 0 }, { 1, 3 }, { 2, 0 }, { 0.5, 3 }, { -1, 0 } } do
    local scale, cap = unpack(pair)
    it(('%g, %g'):format(scale, cap), function()
      local fy, fz, slope = finished(y, scale, cap), finished(z, scale, cap) -- z's slope
      for _, o in ipairs { { kind = 'hidden' }, { k = 5 } } do
        local how = { kind = o.kind, k = o.k, T = 2, scale = scale, soft_cap = cap, ce = { 7 } }
        local d, g, r = kd({ y }, { z }, how)
        local want = heads.kd_row({ objective = 'forward_kl', T = 2, vocab = V, k = o.k }, fz, fy)
        tools.close({ d }, { want }, 'f32', 50) -- capped logits carry some eps of the cap
        local _, plain = kd({ fy }, { fz }, { kind = o.kind, k = o.k, T = 2 })
        for i = 1, V do plain[1][i] = plain[1][i] * slope[i] end
        tools.close(g[1], plain[1], 'f32', 50, 2e-6)
        assert.equal(1, r.rows)
      end
      local got = heads.run({ z }, { { on = 'all' } }, { label = { 7 }, scale = scale, soft_cap = cap })
      near(heads.ce_row(fz, 7), got[1].value, 20)
    end)
  end
end)

describe('objectives: the bucket', function()
  it('bounds the full value from below and tends to it', function()
    local y, z = { random_row(60, 1, 3) }, { random_row(60, 2, 3) }
    for _, name in ipairs(heads.objectives) do
      local full, before = kd(y, z, { objective = name }), -1
      for _, k in ipairs { 1, 2, 5, 15, 40, 59, 60 } do
        local d = kd(y, z, { objective = name, k = k })
        if name ~= 'adaptive_kl' then
          assert.is_true(d >= before - 1e-6)
          before = d
        end
      end
      near(full, (kd(y, z, { objective = name, k = 60 })))
      if name ~= 'adaptive_kl' then near(full, before) end
    end
  end)

  -- One id has all but 1e-10 of the mass on one side or both. 1 - sum would lose the rest; here it
  -- has to come out to 1e-5 of itself, and so have the gradients of the ids outside.
  it('keeps leftovers of 1e-10', function()
    local n, sharp, soft = 64, {}, {}
    for i = 1, n do
      sharp[i] = i == 5 and 23 + math.log(n) or (i % 7) / 8
      soft[i] = (i % 5) / 4
    end
    for _, name in ipairs(heads.objectives) do
      for _, pair in ipairs { { sharp, soft }, { soft, sharp }, { sharp, sharp, 0.5 } } do
        local y, z = pair[1], {}
        for i = 1, n do z[i] = pair[2][i] + (i == 5 and pair[3] or 0) end
        local term = { objective = name, T = 1, vocab = n, k = 2 }
        local d, g = kd({ y }, { z }, { objective = name, k = 2 })
        local want, weights = heads.kd_row(term, z, y)
        tools.close({ d }, { want }, 'f32', 100) -- 1e-5 of itself
        local step = 1e-3
        -- tvd has no sign where the large masses agree to 1e-5, which the differences do not know
        for _, id in ipairs(name == 'tvd' and {} or { 1, 5, 40 }) do
          local keep = z[id]
          z[id] = keep + step
          local up = heads.kd_row(term, z, y, weights)
          z[id] = keep - step
          local slope = (up - heads.kd_row(term, z, y, weights)) / (2 * step)
          z[id] = keep
          -- differences: step^2 / 6 of the slope, and 1e-16 * loss / step; the large id's gradient is
          -- h - q H with q = 1 - 1e-10, so it is known to the rounding of H
          tools.close({ g[1][id] }, { slope }, 'f32', 100, 2e-13 + (id == 5 and 1e-7 * want or 0))
        end
      end
    end
  end)

  it('a leftover that underflows on the student\'s side still gets its gradient', function()
    -- at T = 0.05 the student's ids outside have e^-1200 of its mass, the teacher's a third
    local y, z = { { 0, 0, 0 } }, { { 30, -30, -30 + 1 / 128 } }
    local d, g = kd(y, z, { k = 1, T = 0.05, t_scale = 1 })
    local want = heads.kd_row({ objective = 'forward_kl', T = 0.05, vocab = 3, k = 1 }, z[1], y[1])
    tools.close({ d }, { want / 0.05 ^ 2 }, 'f32', 4)
    -- -p_B exp(lq_j - lq_B) / T: 2/3 * 20 shared in the ratio 1 : e^(20/128)
    local e = math.exp(20 / 128)
    tools.close({ g[1][1], g[1][2], g[1][3] },
      { 20 * 2 / 3, -20 * 2 / 3 / (1 + e), -20 * 2 / 3 * e / (1 + e) }, 'f32', 20)
  end)
end)

describe('objectives: infinite logits and extremes', function()
  local function finite(x) return x == x and math.abs(x) < huge end

  it('an id that is -inf on either side leaves both softmaxes', function()
    local y = { 1, 0.5, -huge, 2, 0, -huge, -1, 0.25 }
    local z = { 0.5, -huge, 1, 1, 0, -huge, 2, -0.5 }
    for _, name in ipairs(heads.objectives) do
      for _, T in ipairs { 0.05, 1, 2 } do
        for _, k in ipairs { false, 1, 3, 6, 8 } do
          for _, tail in ipairs { 'bucket', 'renormalize' } do
            local term = { objective = name, T = T, vocab = 8, k = k or nil, tail = tail }
            local d, g = kd({ y }, { z }, { objective = name, T = T, k = k or nil, tail = tail })
            local want, weights = heads.kd_row(term, z, y)
            tools.close({ d }, { want }, 'f32', 20, 1e-6)
            for i = 1, 8 do
              local keep, step = z[i], 1e-4 * T
              local slope = 0
              if keep > -huge then
                z[i] = keep + step
                local up = heads.kd_row(term, z, y, weights)
                z[i] = keep - step
                slope = (up - heads.kd_row(term, z, y, weights)) / (2 * step)
                z[i] = keep
              end
              -- where the masses agree to 1e-5 tvd has no sign: up to 1e-5 of gradient / T
              tools.close({ g[1][i] }, { slope }, 'f32', 20, name == 'tvd' and 1e-4 or 1e-6)
            end
          end
        end
      end
    end
  end)

  it('an id that the student cannot say gets nothing from CE, nor from the leftover of another term', function()
    local y, z, label = { 2, 1, 0, -1, 0.5 }, { 0.5, -huge, 1, 0, -1 }, 2
    local function both(student)
      local list = { [3] = { on = 'all' } }
      for k = 1, 2 do
        list[k] = { objective = 'forward_kl', on = 'all' }
        list[k].target = heads.target({ y }, { kind = 'topk', k = k, on = 'all' })
      end
      return heads.run({ student }, list, { label = { label } })
    end
    local got, g = both(z)
    near(heads.ce_row(z, label), got[3].value)
    local slopes, step = {}, 1e-4
    for i = 1, 5 do
      local function loss(x)
        local keep = z[i]
        z[i] = x
        local sum = heads.ce_row(z, label)
        for _, k in ipairs { 1, 2 } do
          sum = sum + heads.kd_row({ objective = 'forward_kl', T = 1, vocab = 5, k = k }, z, y)
        end
        z[i] = keep
        return sum
      end
      slopes[i] = z[i] == -huge and 0 or (loss(z[i] + step) - loss(z[i] - step)) / (2 * step)
    end
    tools.close(g[1], slopes, 'f32', 20, 1e-6) -- differences: step^2, and rounding of the sums
    assert.equal(0, g[1][2])
  end)

  it('is 0 when nothing, or one id, is left', function()
    for _, name in ipairs(heads.objectives) do
      for _, o in ipairs { { kind = 'logits' }, { k = 1 }, { k = 2 }, { k = 3 }, { k = 1, tail = 'renormalize' } } do
        o.objective = name
        for _, pair in ipairs { { { 1, -huge, -huge }, { -huge, 1, 2 } }, { { 1, -huge, -huge }, { 3, 1, 2 } },
          { { 1, 2, 3 }, { -huge, -huge, 0 } } } do
          local full = o.kind or o.k == 3
          local d, g = kd({ pair[1] }, { pair[2] }, o)
          if full or pair[1][2] == -huge then
            assert.equal(0, d)
            assert.same({ 0, 0, 0 }, g[1])
          else
            assert.is_true(finite(d))
          end
        end
      end
    end
  end)

  it('gives no NaN, whatever the logits and T', function()
    local rows = { random_row(100, 1, 1000), random_row(100, 2, 30), random_row(100, 3, 0), random_row(100, 4, 1e-3) }
    rows[5], rows[6] = { 1e30 }, { -1e30 }
    for i = 2, 100 do
      rows[5][i], rows[6][i] = -1e30, i % 2 == 0 and 1e4 or -1e4
    end
    for _, name in ipairs(heads.objectives) do
      for i = 1, #rows do
        for j = 1, #rows do
          for _, o in ipairs { { kind = 'logits' }, { k = 1 }, { k = 7 }, { k = 100 },
            { k = 7, tail = 'renormalize' } } do
            for _, T in ipairs { 0.05, 1 } do
              o.objective, o.T = name, T
              local d, g = kd({ rows[i] }, { rows[j] }, o)
              assert.is_true(d == d and d >= 0)
              if i < 5 and j < 5 then assert.is_true(finite(d)) end
              for v = 1, 100 do
                if g[1][v] ~= g[1][v] then error(('%s: rows %d and %d, T = %g: NaN'):format(name, i, j, T)) end
              end
            end
          end
        end
      end
    end
  end)
end)

local abs, max = math.abs, math.max -- for loops over whole vocabularies

-- A sure row: one id has all but some 1e-4 of the mass, which is spread over 151,935 others, and its
-- own gradient is no larger than theirs together. Neither the sums of so many small numbers nor the
-- difference of large ones may lose it, whichever side is sure.
describe('objectives: sure rows of a large vocabulary', function()
  local V, SURE = 151936, 5000
  local function rows(T, teacher, student, apart)
    local y, z = random_row(V, 1, 2 * T), random_row(V, 2, 2 * T)
    for i = 1, V do z[i] = tonumber(ffi.new('float', y[i] + apart * (z[i] - y[i]))) end
    y[SURE], z[SURE] = teacher * T, student * T
    return y, z
  end
  -- Log-probabilities are rounded to f32 twice, which is up to 2e-6 where they are -20: of a gradient
  -- that lives on how far the sides' logits are apart it is that part. The rest, exponentials and sums
  -- of f32 in blocks, stays below 1e-5.
  for _, case in ipairs { { 'both', 1, 20.5, 19.75, 0.4 }, { 'both, T = 2', 2, 22.5, 22, 0.4 },
    { 'the student', 1, 0.5, 20, 0.4 }, { 'both, nearly equal', 1, 21, 21.01, 0.01 } } do
    local what, T, teacher, student, apart = unpack(case)
    it(what, function()
      local y, z = rows(T, teacher, student, apart)
      local room = 1e-5 + 2e-6 / apart
      local hidden, head = heads.product { z }
      local targets = { heads.target({ y }, { kind = 'logits', T = T, on = 'all' }),
        heads.target({ y }, { kind = 'topk', k = V, T = T, on = 'all' }) }
      for _, name in ipairs(heads.objectives) do
        local want, weights, stats = heads.kd_row({ objective = name, T = T, vocab = V }, z, y)
        local slope, most = heads.slopes(name, T, z, y, weights), 0
        for i = 1, V do most = max(most, abs(slope[i])) end
        for i, target in ipairs(targets) do
          local label = name .. (i == 1 and ', logits' or ', top-k')
          local got, _, g = heads.call(hidden, head, { { objective = name, T = T, on = 'all', target = target } }, {})
          local off, worst = abs(got[1].value / want - 1), 0
          for v = 1, V do worst = max(worst, abs(g[v - 1] - slope[v]) / most) end
          if not (off <= room and worst <= room) then
            error(('%s: value off by %.2g, gradient by %.2g of its largest element'):format(label, off, worst))
          end
          tools.close({ got[1].teacher_entropy, got[1].student_entropy, got[1].teacher_mass, got[1].student_mass },
            { stats.p, stats.q, 1, 1 }, 'f32', 8)
        end
      end
      hidden:free()
      head:free()
    end)
  end
end)

describe('objectives: what else is returned', function()
  it('masses, entropies, agreement', function()
    local y = { random_row(40, 1, 3), random_row(40, 2, 3), random_row(40, 3, 3) }
    local z = { random_row(40, 1, 2), random_row(40, 4, 3), random_row(40, 3, 1) }
    local weight = { 0.5, 2, 1 }
    local function top(row, n)
      local best = 1
      for i = 2, n do if row[i] > row[best] then best = i end end
      return best
    end
    for _, o in ipairs { { kind = 'logits', vocab = 40 }, { k = 4, vocab = 40 }, { k = 4, vocab = 30 },
      { k = 4, vocab = 40, tail = 'renormalize' }, { kind = 'hidden', vocab = 30, T = 2 },
      { k = 4, vocab = 30, T = 2 } } do
      local T = o.T or 1
      local target = heads.target(y, { kind = o.kind or 'topk', k = o.k, vocab = o.vocab, T = T })
      local got = heads.run(z, { { objective = 'forward_kl', tail = o.tail, T = T, target = target }, {} },
        { response = weight, label = { top(z[1], 40) - 1, 0, 39 } })
      local want = { agree = 0, p = 0, q = 0, hp = 0, hq = 0, ce = 0 }
      for r = 1, 3 do
        local term = { objective = 'forward_kl', T = T, vocab = o.vocab, k = o.k, tail = o.tail }
        local _, _, stats = heads.kd_row(term, z[r], y[r])
        want.hp, want.hq = want.hp + weight[r] * stats.p, want.hq + weight[r] * stats.q
        if top(z[r], o.vocab) == top(y[r], o.vocab) then want.agree = want.agree + weight[r] end
        local order, sp, sq, kp, kq = {}, 0, 0, 0, 0
        for i = 1, o.vocab do
          order[i] = i
          sp, sq = sp + math.exp(y[r][i] / T), sq + math.exp(z[r][i] / T)
        end
        table.sort(order, function(a, b) return y[r][a] > y[r][b] end)
        for j = 1, o.k or o.vocab do
          kp, kq = kp + math.exp(y[r][order[j]] / T), kq + math.exp(z[r][order[j]] / T)
        end
        want.p, want.q = want.p + weight[r] * kp / sp, want.q + weight[r] * kq / sq
      end
      local kdr = got[1]
      assert.equal(3, kdr.rows)
      assert.equal(3.5, kdr.weight)
      tools.close({ kdr.agree, kdr.teacher_mass, kdr.student_mass, kdr.teacher_entropy, kdr.student_entropy },
        { want.agree, want.p, want.q, want.hp, want.hq }, 'f32', 10)
      assert.equal(0.5, got[2].agree) -- the first label is the student's choice
      assert.equal(3.5, got[2].teacher_mass)
      local mass = 0
      for r, l in ipairs { top(z[1], 40), 1, 40 } do mass = mass + weight[r] * math.exp(-heads.ce_row(z[r], l - 1)) end
      near(mass, got[2].student_mass)
    end
  end)

  it('ties of the top choice go to the lower id, in the support or out of it', function()
    local z = { { 1, 2, 2, 0 } }
    for best = 1, 4 do
      for k = 1, 4 do
        local y = { { 0, 0, 0, 0 } }
        y[1][best] = 1
        local _, _, r = kd(y, z, { k = k })
        assert.equal(best == 2 and 1 or 0, r.agree)
      end
      local y = { { 0, 0, 0, 0 } }
      y[1][best] = 1
      local _, _, r = kd(y, z, {})
      assert.equal(best == 2 and 1 or 0, r.agree)
    end
  end)
end)

describe('objectives: top-k selection', function()
  local function read(y, k, o)
    o = o or {}
    local t = heads.target(y, { kind = 'topk', k = k, vocab = o.vocab, T = o.T, Tt = o.Tt, soft_cap = o.soft_cap })
    local rows = tonumber(C.ms_target_rows(t))
    local id, lp, rest = ffi.new('int32_t[?]', rows * k), ffi.new('float[?]', rows * k), ffi.new('float[?]', rows)
    check(C.ms_target_read(t, id, lp, rest))
    return id, lp, rest
  end

  it('equals a sort, with log-probabilities and leftover', function()
    for _, n in ipairs { 1, 5, 16, 33, 5000, 9001 } do
      local row, order = random_row(n, n, 8), {}
      for i = 1, n do
        row[i] = math.floor(row[i] * 64) / 64 -- many ties
        order[i] = i
      end
      table.sort(order, function(a, b) if row[a] ~= row[b] then return row[a] > row[b] end return a < b end)
      for _, k in ipairs { 1, 3, 16, 64, n } do
        if k <= n then
          local id, lp, rest = read({ row }, k, { T = 2, Tt = 0.75 })
          local sum, left = 0, 0
          for i = n, 1, -1 do
            local e = math.exp((row[order[i]] - row[order[1]]) / 1.5)
            sum = sum + e
            if i > k then left = left + e end
          end
          for j = 1, k do
            assert.equal(order[j] - 1, id[j - 1])
            tools.close({ lp[j - 1] }, { (row[order[j]] - row[order[1]]) / 1.5 - math.log(sum) }, 'f32', 4, 2e-7)
          end
          if k == n then assert.equal(-huge, rest[0])
          else tools.close({ rest[0] }, { math.log(left / sum) }, 'f32', 4, 2e-7) end
        end
      end
    end
  end)

  it('keeps the leftover\'s log when its mass is nothing', function()
    local row = { 100 }
    for i = 2, 50 do row[i] = -100 end
    local _, lp, rest = read({ row }, 1, { T = 0.05 })
    assert.equal(0, lp[0])
    tools.close({ rest[0] }, { -4000 + math.log(49) }, 'f32', 1)
  end)

  it('fills k with -inf when fewer are finite', function()
    local id, lp, rest = read({ { -huge, 3, -huge, 1 } }, 3)
    assert.same({ 1, 3, 0 }, { id[0], id[1], id[2] })
    assert.equal(-huge, lp[2])
    assert.equal(-huge, rest[0])
  end)

  it('refuses values that are no distribution', function()
    local ms = require 'moonstill'
    local third = math.log(1 / 3)
    local function refused(pattern, ids, lp, rest, vocab)
      tools.refused(pattern, ms.target.topk, ids, lp, rest, { vocab = vocab or 5 })
    end
    refused('has id 5, not in 0..4', { { 0, 5 } }, { { third, third } }, { third })
    refused('row 1: id 2 = %-1', { { 0, -1 } }, { { third, third } }, { third })
    refused('has id 3 twice', { { 3, 3 } }, { { third, third } }, { third })
    refused('has mass 0.666667', { { 0, 3 } }, { { third, third } }, { -huge })
    refused('mass', { { 0, 3 } }, { { third, 0 / 0 } }, { third })
    refused('row 1 has a string at 2', { { 0, 3 } }, { { third, '1' } }, { third })
    refused('log_rest 1 is a string', { { 0, 3 } }, { { third, third } }, { '1' })
    refused('k = 2 not in 1..1', { { 0, 3 } }, { { third, third } }, { third }, 1)
    local t = ms.target.topk({ { 0, 3 } }, { { third, third } }, { third }, { vocab = 5 })
    local ids, lp, rest = t:read()
    assert.same({ { 0, 3 } }, ids)
    tools.close({ lp[1][1], lp[1][2], rest[1] }, { third, third, third }, 'f32', 1)
    t:free()
  end)
end)
