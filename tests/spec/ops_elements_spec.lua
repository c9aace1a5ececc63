-- Operations element by element: swiglu, geglu, add, the squared norm, AdamW.
local ms = require 'moonstill'
local tools = require 'tests.support.tools'
local kernels = require 'tests.support.kernels'
local define = require 'tests.support.definitions'
local doubles, fails = kernels.doubles, tools.fails

local counts = { 1, 3, 16, 33, 1000 }

kernels.on_devices('swiglu and geglu', function(case)
  for _, name in ipairs { 'swiglu', 'geglu' } do
    local forward, backward, definition = ms.ops[name], ms.ops[name .. '_backward'], define[name]
    for _, n in ipairs(counts) do
      case(name .. ' of ' .. n .. ' elements', function(make)
        local gate = make('f32', tools.values(n, 1, 6), n)
        local up, y = make('f32', tools.values(n, 2), n), make('f32', nil, n)
        local a, b = doubles(gate), doubles(up)
        forward(y, gate, up)
        -- gelu's argument is rounded before its exp: up to 10 here for what is not lost in 1e-6
        tools.close(doubles(y), definition(a, b, n), 'f32', name == 'geglu' and 40 or 4)

        local dy = make('f32', tools.values(n, 3), n)
        local r = doubles(dy)
        local function f() return definition(a, b, n) end
        local want_gate, want_up = define.gradient(f, a, n, r, n), define.gradient(f, b, n, r, n)
        backward(gate, up, dy, gate, up) -- over its inputs, the harder case
        -- central differences are good to 1e-9 here; 1 + g (1 - sigmoid) cancels near g = -1.3
        tools.close(doubles(gate), want_gate, 'f32', name == 'geglu' and 40 or 6, 1e-6)
        tools.close(doubles(up), want_up, 'f32', name == 'geglu' and 40 or 6, 1e-8)
      end)
    end

    -- Both have one exp: this walks it over its range, to both ends.
    case(name .. ' is accurate from -104 to 104 and gives no NaN outside', function(make)
      local n = 20801
      local x = {}
      for i = 1, n do x[i] = (i - 10401) / 100 end
      local gate, one = make('f32', x, n), make('f32', nil, n)
      for i = 1, n do x[i] = 1 end
      one:write(x)
      local y = make('f32', nil, n)
      forward(y, gate, one)
      -- left of -88.7 the exp overflows, and a sigmoid below 2^-127 becomes 0; the argument of gelu's is
      -- rounded, and at most that
      tools.close(doubles(y), definition(doubles(gate), doubles(one), n), 'f32', name == 'geglu' and 90 or 4,
        104 * 2 ^ -127)
      local ends = make('f32', { -1e4, 1e4, -3e38, 3e38 }, 4)
      local got = make('f32', nil, 4)
      forward(got, ends, make('f32', { 1, 1, 1, 1 }, 4))
      tools.close(got:read(), { 0, 1e4, 0, 3e38 }, 'f32', 1)
      local dg, du = make('f32', nil, 4), make('f32', nil, 4)
      backward(dg, du, make('f32', { 1, 1, 1, 1 }, 4), ends, make('f32', { 1, 1, 1, 1 }, 4))
      tools.close(dg:read(), { 0, 1, 0, 1 }, 'f32', 1)
      local nan = make('f32', { 0 / 0 }, 1)
      forward(nan, nan, make('f32', { 1 }, 1))
      assert.is_true(nan:read()[1] ~= nan:read()[1])
    end)
  end

  case('wrong calls', function(make)
    local x, y = make('f32', nil, 3), make('f32', nil, 4)
    fails('swiglu: up is [4], not [3]', ms.ops.swiglu, x, x, y)
    fails('swiglu: gate is bf16, not f32', ms.ops.swiglu, x, make('bf16', nil, 3), x)
    fails('geglu_backward: d_up is [4], not [3]', ms.ops.geglu_backward, x, y, x, x, x)
    fails('swiglu_backward: d_up is [4], not [3]', ms.ops.swiglu_backward, x, y, x, x, x)
    fails('add: x is [4], not [3]', ms.ops.add, x, y)
    fails('add: x is missing', ms.ops.add, x, nil)
  end)
end)

kernels.on_devices('sums', function(case)
  for _, n in ipairs(counts) do
    case('add ' .. n, function(make)
      local y, x = make('f32', tools.values(n, 1), n), make('f32', tools.values(n, 2), n)
      local want, b = doubles(y), doubles(x)
      for i = 0, n - 1 do want[i] = want[i] + b[i] end
      ms.ops.add(y, x)
      tools.close(doubles(y), want, 'f32', 0.5)
      for i = 0, n - 1 do want[i] = want[i] - 0.3 * b[i] end
      ms.ops.add(y, x, -0.3)
      tools.close(doubles(y), want, 'f32', 2, 4 * tools.eps.f32) -- terms of size 1 that may cancel
    end)
  end

  for _, n in ipairs { 1, 15, 17, 100000 } do
    case('squares of ' .. n, function(make)
      local x = make('f32', tools.values(n, 1, 1e20), n) -- squares beyond f32
      local a, want = doubles(x), 0
      for i = 0, n - 1 do want = want + a[i] * a[i] end
      tools.close({ ms.ops.sum_squares(x) }, { want }, 'f64', n)
    end)
  end

  case('one bad element shows, wherever it is', function(make)
    for _, n in ipairs { 1, 40, 70001 } do
      for _, bad in ipairs { 1 / 0, -1 / 0, 0 / 0 } do
        for _, at in ipairs { 0, math.floor(n / 2), n - 1 } do
          local v = tools.values(n, 1)
          v[at] = bad
          local x = make('f32', v, n)
          local sum = ms.ops.sum_squares(x)
          assert.is_true(sum ~= sum or sum == 1 / 0)
          assert.equal(at, ms.ops.not_finite(x))
          assert.equal(at, ms.ops.not_finite(make('bf16', v, n)))
        end
      end
      local v = tools.values(n, 1)
      v[n - 1] = 3.4e38 -- large, but finite
      assert.is_true(ms.ops.sum_squares(make('f32', v, n)) < 1e78)
      assert.is_nil(ms.ops.not_finite(make('f32', v, n)))
      v[n - 1] = -3.38e38 -- of bf16 too
      assert.is_nil(ms.ops.not_finite(make('bf16', v, n)))
    end
  end)
end)

kernels.on_devices('the first bad element', function(case)
  case('is the first of several', function(make)
    local n = 200001
    for _, dtype in ipairs { 'f32', 'bf16' } do
      local v = tools.values(n, 1)
      for _, at in ipairs { n - 1, 150000, 70000, 16384, 16383 } do
        v[at] = at % 2 == 0 and 0 / 0 or 1 / 0
        assert.equal(at, ms.ops.not_finite(make(dtype, v, n)))
      end
    end
  end)

  case('is looked for in floats alone', function(make)
    fails('not_finite: x is i32', ms.ops.not_finite, make('i32', nil, 3))
  end)
end)

kernels.on_devices('AdamW', function(case)
  for _, n in ipairs(counts) do
    case(n .. ' elements, three steps', function(make)
      local lr, beta1, beta2, eps, decay = 1e-2, 0.9, 0.999, 1e-8, 0.1
      local w, m, v = make('f32', tools.values(n, 1), n), make('f32', nil, n), make('f32', nil, n)
      local low = make('bf16', nil, n)
      for i = 1, 2 do (i == 1 and m or v):write(define.new(n)) end
      local a, am, av = doubles(w), doubles(m), doubles(v)
      for step = 1, 3 do
        local g = make('f32', tools.values(n, 10 + step), n)
        local d = doubles(g)
        for i = 0, n - 1 do d[i] = d[i] * 0.25 end
        ms.ops.adamw(w, low, m, v, g, step, lr, beta1, beta2, eps, decay, 0.25)
        define.adamw(a, am, av, d, n, step, lr, beta1, beta2, eps, decay)
      end
      -- a step is about lr whatever the gradient: its few ulps count in lr, not in w
      tools.close(doubles(w), a, 'f32', 4, 16 * tools.eps.f32 * lr)
      -- the first moment may cancel
      tools.close(doubles(m), am, 'f32', 8, tools.eps.f32 * 0.1)
      tools.close(doubles(v), av, 'f32', 8)
      local rounded = make('bf16', nil, n):copy(w)
      assert.same(rounded:read(), low:read())
      ms.ops.adamw(w, nil, m, v, make('f32', tools.values(n, 9), n), 4, lr, beta1, beta2, eps, 0, 1)
      assert.same(rounded:read(), low:read())
    end)
  end

  case('a zero gradient with fresh moments leaves w but for decay', function(make)
    local w = make('f32', { 1, -2 }, 2)
    local m, v, g = make('f32', { 0, 0 }, 2), make('f32', { 0, 0 }, 2), make('f32', { 0, 0 }, 2)
    ms.ops.adamw(w, nil, m, v, g, 1, 0.1, 0.9, 0.999, 1e-8, 0, 1)
    assert.same({ 1, -2 }, w:read())
    ms.ops.adamw(w, nil, m, v, g, 1, 0.5, 0.9, 0.999, 1e-8, 0.5, 1)
    assert.same({ 0.75, -1.5 }, w:read())
  end)

  case('wrong calls', function(make)
    local w, x = make('f32', nil, 3), make('f32', nil, 4)
    fails('adamw: m is [4], not [3]', ms.ops.adamw, w, nil, x, w, w, 1, 1, 0, 0, 0, 0, 1)
    fails('adamw: low is not bf16 of 3 elements', ms.ops.adamw, w, w, w, w, w, 1, 1, 0, 0, 0, 0, 1)
    fails('adamw: step = 0, expected an integer in 1..2^53', ms.ops.adamw, w, nil, w, w, w, 0, 1, 0, 0, 0, 0, 1)
  end)
end)
