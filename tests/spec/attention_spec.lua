-- Causal attention over packed segments, forward, backward and against caches.
local ms = require 'moonstill'
local tools = require 'tests.support.tools'
local kernels = require 'tests.support.kernels'
local define = require 'tests.support.definitions'
local doubles, fails = kernels.doubles, tools.fails

local function shape(start, heads, kv_heads, dim, window, scale, cap)
  return { tokens = start[#start], start = start, heads = heads, kv_heads = kv_heads, dim = dim,
           window = window or 0, scale = scale or 1 / math.sqrt(dim), cap = cap }
end

local function title(s)
  return ('{%s}, %d/%d heads of %d, window %d, cap %s'):format(table.concat(s.start, ' '), s.heads,
    s.kv_heads, s.dim, s.window, s.cap)
end

-- Inputs of standard deviation 1 or more, so that the softmax is far from uniform.
local function inputs(make, s)
  local n, m = s.tokens * s.heads * s.dim, s.tokens * s.kv_heads * s.dim
  return make('f32', tools.values(n, 1, 2), s.tokens, s.heads, s.dim),
    make('f32', tools.values(m, 2, 2), s.tokens, s.kv_heads, s.dim),
    make('f32', tools.values(m, 3, 2), s.tokens, s.kv_heads, s.dim),
    make('i32', s.start, #s.start)
end

-- One row, odd dims, several segments (empty ones too), grouped heads, windows that are shorter
-- than, equal to and longer than a segment, lengths around the kernels' block sizes, and key rows a
-- multiple of 1 KB apart, which the kernels copy.
local forward = {
  shape({ 0, 1 }, 1, 1, 1), shape({ 0, 3 }, 2, 1, 5), shape({ 0, 7, 8, 8, 20 }, 4, 2, 16),
  shape({ 0, 33 }, 3, 3, 64), shape({ 0, 5, 40 }, 6, 2, 20, 4), shape({ 0, 30 }, 2, 1, 8, 1),
  shape({ 0, 30 }, 2, 1, 8, 30), shape({ 0, 30 }, 2, 1, 8, 31), shape({ 0, 64, 129 }, 3, 1, 64),
  shape({ 0, 130 }, 2, 1, 128), shape({ 0, 200 }, 2, 2, 32, 70), shape({ 0, 65 }, 1, 1, 256),
  shape({ 0, 20, 300 }, 2, 1, 64), shape({ 0, 270 }, 4, 1, 40, 129), shape({ 0, 40 }, 7, 1, 33),
  shape({ 0, 150 }, 9, 3, 72, 64), shape({ 0, 100 }, 1, 1, 100, 0, 2.5),
  shape({ 0, 9, 75 }, 4, 2, 128), shape({ 0, 40 }, 32, 32, 40, 20),
  shape({ 0, 20, 150 }, 4, 2, 20, 0, 0.3, 1.5), shape({ 0, 90 }, 2, 1, 16, 30, 0.25, 50),
}

kernels.on_devices('attention', function(case)
  for _, s in ipairs(forward) do
    case('forward ' .. title(s), function(make)
      local q, k, v, start = inputs(make, s)
      local y, lse = make('f32', nil, s.tokens, s.heads, s.dim), make('f32', nil, s.tokens, s.heads)
      local want, want_lse = define.attention(doubles(q), doubles(k), doubles(v), s)
      ms.ops.attention(y, lse, q, k, v, start, s.window, s.scale, s.cap or 0)
      -- scores of size s.scale * 4 dim at most carry an absolute error of some eps times that,
      -- which is a relative one of the probabilities; values are within 2
      local room = tools.eps.f32 * (8 + 2 * s.scale * 4 * math.sqrt(s.dim) * 2)
      tools.close(doubles(lse), want_lse, 'f32', 4, room)
      tools.close(doubles(y), want, 'f32', 4, 2 * room)
      local again = make('f32', nil, s.tokens, s.heads, s.dim)
      ms.ops.attention(again, nil, q, k, v, start, s.window, s.scale, s.cap or 0)
      assert.equal(kernels.bits(y), kernels.bits(again))
    end)
  end

  for _, s in ipairs {
    shape({ 0, 1 }, 1, 1, 1), shape({ 0, 3 }, 2, 1, 5), shape({ 0, 6, 7, 7, 12 }, 4, 2, 3),
    shape({ 0, 9 }, 2, 1, 17, 3), shape({ 0, 12 }, 1, 1, 4, 1), shape({ 0, 5, 11 }, 3, 1, 8, 4),
    shape({ 0, 4, 11 }, 2, 1, 5, 0, 0.6, 1.2) } do
    case('backward against differences ' .. title(s), function(make)
      local q, k, v, start = inputs(make, s)
      local n, m = s.tokens * s.heads * s.dim, s.tokens * s.kv_heads * s.dim
      local function like(t) return make('f32', nil, t:shape()) end
      local y, lse = like(q), make('f32', nil, s.tokens, s.heads)
      local dy, dq, dk, dv = like(q):write(tools.values(n, 4)), like(q), like(k), like(v)
      ms.ops.attention(y, lse, q, k, v, start, s.window, s.scale, s.cap or 0)
      ms.ops.attention_backward(dq, dk, dv, dy, y, lse, q, k, v, start, s.window, s.scale, s.cap or 0)
      local a, b, c, r = doubles(q), doubles(k), doubles(v), doubles(dy)
      local function f() return (define.attention(a, b, c, s)) end
      -- gradients are sums of a few terms of size up to about 4
      tools.close(doubles(dq), define.gradient(f, a, n, r, n), 'f32', 8, 100 * tools.eps.f32)
      tools.close(doubles(dk), define.gradient(f, b, m, r, n), 'f32', 8, 100 * tools.eps.f32)
      tools.close(doubles(dv), define.gradient(f, c, m, r, n), 'f32', 8, 100 * tools.eps.f32)
    end)
  end

  -- Too long for differences of every element: the definition's own formulas in double, which the
  -- short cases above hold against differences.
  for _, s in ipairs(forward) do
    case('backward against formulas ' .. title(s), function(make)
      local q, k, v, start = inputs(make, s)
      local function like(t) return make('f32', nil, t:shape()) end
      local y, lse = like(q), make('f32', nil, s.tokens, s.heads)
      local dy, dq, dk, dv = like(q):write(tools.values(q:count(), 4)), like(q), like(k), like(v)
      ms.ops.attention(y, lse, q, k, v, start, s.window, s.scale, s.cap or 0)
      ms.ops.attention_backward(dq, dk, dv, dy, y, lse, q, k, v, start, s.window, s.scale, s.cap or 0)
      local wq, wk, wv = define.attention_backward(doubles(dy), doubles(q), doubles(k), doubles(v), s)
      -- Scores reach about `score`; their error, some eps of that, is a relative one of p. dk and dv
      -- sum over the queries of each of the group's heads.
      local score = s.scale * 4 / 3 * math.sqrt(s.dim) * 4
      local ulps = 8 + 2 * score
      local room = tools.eps.f32 * (50 + 4 * score) * math.max(1, s.scale) * math.sqrt(s.heads / s.kv_heads)
      tools.close(doubles(dq), wq, 'f32', ulps, room)
      tools.close(doubles(dk), wk, 'f32', ulps, room)
      tools.close(doubles(dv), wv, 'f32', ulps, room)
    end)
  end

  -- One visible key has all of the weight whatever q and k are: both products in ds must be summed in
  -- one order, or their difference is rounding that scores may make large.
  for _, s in ipairs { shape({ 0, 70 }, 3, 1, 20, 1, 30), shape({ 0, 1, 2, 66, 67 }, 2, 2, 256, 1),
    shape({ 0, 40 }, 4, 2, 100, 1, 1, 5), shape({ 0, 1 }, 1, 1, 36) } do
    case('backward of one key is exactly 0 ' .. title(s), function(make)
      local q, k, v, start = inputs(make, s)
      local function like(t) return make('f32', nil, t:shape()) end
      local y, lse = like(q), make('f32', nil, s.tokens, s.heads)
      local dy, dq, dk, dv = like(q):write(tools.values(q:count(), 4)), like(q), like(k), like(v)
      ms.ops.attention(y, lse, q, k, v, start, s.window, s.scale, s.cap or 0)
      ms.ops.attention_backward(dq, dk, dv, dy, y, lse, q, k, v, start, s.window, s.scale, s.cap or 0)
      for _, t in ipairs { dq, dk } do assert.equal(0, ms.ops.sum_squares(t)) end
      assert.is_true(ms.ops.sum_squares(dv) > 0)
    end)
  end

  case('packed is the same as apart, bit for bit', function(make)
    local s = shape({ 0, 70, 75, 140 }, 4, 2, 24)
    local q, k, v, start = inputs(make, s)
    local y = make('f32', nil, s.tokens, s.heads, s.dim)
    ms.ops.attention(y, nil, q, k, v, start, 0, s.scale)
    for g = 1, 3 do
      local from, n = s.start[g], s.start[g + 1] - s.start[g]
      local function part(t, heads) return t:view(from * heads * s.dim, n, heads, s.dim) end
      local one = make('f32', nil, n, s.heads, s.dim)
      ms.ops.attention(one, nil, part(q, 4), part(k, 2), part(v, 2), make('i32', { 0, n }, 2), 0,
        s.scale)
      assert.equal(kernels.bits(part(y, 4)), kernels.bits(one))
    end
  end)

  case('survives scores of +-1000', function(make)
    local s = shape({ 0, 100 }, 1, 1, 4, 0, 250)
    local q, k, v, start = inputs(make, s)
    local y, lse = make('f32', nil, 100, 1, 4), make('f32', nil, 100, 1)
    ms.ops.attention(y, lse, q, k, v, start, 0, s.scale)
    for _, x in ipairs(y:read()) do assert.is_true(math.abs(x) <= 2) end
    local dq, dk, dv = make('f32', nil, 100, 1, 4), make('f32', nil, 100, 1, 4), make('f32', nil, 100, 1, 4)
    ms.ops.attention_backward(dq, dk, dv, y, y, lse, q, k, v, start, 0, s.scale)
    for _, t in ipairs { dq, dk, dv } do assert.is_true(ms.ops.sum_squares(t) < 1e12) end
  end)

  -- Equal weights: row t is the mean of the values up to it. All are near 1, so that a sum that is
  -- rounded at every key is off by 1e-6 and more: its rounding is the same way for a long time.
  case('errors do not grow with the number of keys', function(make)
    local n, dim = 8192, 3
    local values, zero = tools.values(n * dim, 5, 0.01), make('f32', tools.values(n * dim, 1, 0), n, 1, dim)
    for i = 0, n * dim - 1 do values[i] = 1 + values[i] end
    local v, y = make('f32', values, n, 1, dim), make('f32', nil, n, 1, dim)
    local want, sum, held = {}, { 0, 0, 0 }, doubles(v)
    for i = 0, n * dim - 1 do
      local c = i % dim + 1
      sum[c] = sum[c] + held[i]
      want[i] = sum[c] / (math.floor(i / dim) + 1)
    end
    ms.ops.attention(y, nil, zero, zero, v, make('i32', { 0, n }, 2), 0, 1)
    tools.close(doubles(y), want, 'f32', 8)
    local cache = function(t) return t:view(0, 1, n, 1, dim) end
    local last = make('f32', nil, 1, 1, dim)
    ms.ops.attention_cached(last, zero:view(0, 1, 1, dim), cache(zero), cache(v),
      make('i32', { 0 }, 1), make('i32', { 0 }, 1), make('i32', { n }, 1), 1)
    for c = 0, dim - 1 do
      assert(math.abs(doubles(last)[c] - want[(n - 1) * dim + c]) <= 8 * tools.eps.f32)
    end
  end)

  -- rows, cache rows, capacity, heads, kv_heads, dim, soft cap
  for _, c in ipairs { { 1, 1, 1, 1, 1, 1 }, { 3, 2, 20, 4, 2, 16 }, { 5, 3, 150, 6, 2, 20 },
                       { 1, 2, 300, 9, 3, 64 }, { 2, 2, 70, 2, 2, 128 }, { 2, 1, 90, 7, 1, 33 },
                       { 3, 2, 150, 4, 2, 24, 1.3 } } do
    local rows, slots, capacity, heads, kv_heads, dim, cap = unpack(c)
    case('against a cache ' .. table.concat(c, ' '), function(make)
      local q = make('f32', tools.values(rows * heads * dim, 1, 2), rows, heads, dim)
      local n = slots * capacity * kv_heads * dim
      local k = make('f32', tools.values(n, 2, 2), slots, capacity, kv_heads, dim)
      local v = make('f32', tools.values(n, 3, 2), slots, capacity, kv_heads, dim)
      local slot, first = tools.integers(rows, 4, slots), tools.integers(rows, 5, capacity)
      local length, y = {}, make('f32', nil, rows, heads, dim)
      for r = 0, rows - 1 do length[r] = r % 2 == 0 and capacity - first[r] or 1 end
      local scale = 1 / math.sqrt(dim)
      local counts = {}
      for r = 0, rows - 1 do counts[r + 1] = length[r] end
      ms.ops.attention_cached(y, q, k, v, make('i32', slot, rows), make('i32', first, rows),
        make('i32', counts, rows), scale, cap or 0)
      local want = define.attention_cached(doubles(q), doubles(k), doubles(v), slot, first, length,
        rows, capacity, heads, kv_heads, dim, scale, cap)
      tools.close(doubles(y), want, 'f32', 4, 60 * tools.eps.f32)
    end)
  end

  case('wrong calls', function(make)
    local q, k = make('f32', nil, 6, 4, 8), make('f32', nil, 6, 2, 8)
    local function starts(...) return make('i32', { ... }, select('#', ...)) end
    local attention = ms.ops.attention
    fails('attention: segments go from 0 to 5, not from 0 to 6', attention, q, nil, q, k, k,
      starts(0, 5), 0, 1)
    fails('attention: segment 1 goes from 4 to 2', attention, q, nil, q, k, k, starts(0, 4, 2, 6), 0, 1)
    fails('attention: k is f32 [6, 4, 7], not f32 [6, *, 8]', attention, q, nil, q,
      make('f32', nil, 6, 4, 7), k, starts(0, 6), 0, 1)
    fails('attention: v is f32 [6, 4, 8], not f32 [6, 2, 8]', attention, q, nil, q, k, q,
      starts(0, 6), 0, 1)
    local three = make('f32', nil, 6, 3, 8)
    fails('attention: 4 heads over 3 kv_heads', attention, q, nil, q, three, three, starts(0, 6), 0, 1)
    fails('attention: window = -1', attention, q, nil, q, k, k, starts(0, 6), -1, 1)
    fails('attention: soft_cap -1', attention, q, nil, q, k, k, starts(0, 6), 0, 1, -1)
    local wide = make('f32', nil, 1, 1, 257)
    fails('attention: head_dim 257 over 256', attention, wide, nil, wide, wide, wide, starts(0, 1), 0, 1)
    local cache = make('f32', nil, 2, 5, 2, 8)
    local one = make('f32', nil, 1, 4, 8)
    local cached = ms.ops.attention_cached
    fails('attention_cached: slot[0] is 2, not in 0..1', cached, one, one, cache, cache, starts(2),
      starts(0), starts(1), 1)
    fails('attention_cached: row 0 sees 4 keys from 2 of 5', cached, one, one, cache, cache, starts(1),
      starts(2), starts(4), 1)
    fails('attention_cached: row 0 sees 0 keys from 2 of 5', cached, one, one, cache, cache, starts(1),
      starts(2), starts(0), 1)
  end)
end)
