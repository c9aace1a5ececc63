-- Operations that need scratch report when there is none, and leave nothing behind.
local C = require 'moonstill.C'
local ms = require 'moonstill'
local tools = require 'tests.support.tools'
local kernels = require 'tests.support.kernels'

kernels.on_devices('without memory', function(case)
  -- The n-th allocation fails, for n from 1 until the operation succeeds: at least `least` times.
  local function walk(least, f)
    local failures = 0
    local before = tonumber(C.ms_test_live())
    for nth = 1, 50 do
      C.ms_test_fail_alloc(nth)
      local good, message = pcall(f)
      assert.equal(good, C.ms_test_fail_alloc(0) > 0) -- passed over where not
      assert.equal(before, tonumber(C.ms_test_live()))
      if good then break end
      assert.truthy(message:find('no memory', 1, true), message)
      failures = failures + 1
    end
    assert.is_true(failures >= least, failures .. ' allocations failed')
    f()
  end

  case('products of bf16 weights', function(make)
    local x, w = make('f32', nil, 40, 300), make('bf16', nil, 600, 300)
    local y = make('f32', nil, 40, 600)
    walk(1, function() ms.ops.linear(y, x, w) end)
    walk(1, function() ms.ops.linear_dx(x, y, w) end)
  end)

  case('attention', function(make)
    local q, lse = make('f32', tools.values(200 * 64, 1), 200, 2, 32), make('f32', nil, 200, 2)
    local y, start = make('f32', nil, 200, 2, 32), make('i32', { 0, 50, 200 }, 3)
    walk(2, function() ms.ops.attention(y, lse, q, q, q, start, 0, 1) end)
    local dq, dk, dv = make('f32', nil, 200, 2, 32), make('f32', nil, 200, 2, 32),
      make('f32', nil, 200, 2, 32)
    walk(2, function()
      ms.ops.attention_backward(dq, dk, dv, q, y, lse, q, q, q, start, 0, 1)
    end)
  end)

  case('norm gradients and the squared norm', function(make)
    local x, w, rstd = make('f32', nil, 100, 8), make('f32', nil, 8), make('f32', nil, 100)
    local dw = make('f32', nil, 8)
    walk(1, function() ms.ops.rmsnorm_backward(x, dw, x, x, rstd, w) end)
    walk(1, function() ms.ops.sum_squares(x) end)
  end)

  case('indices that are checked', function(make)
    local w, y = make('f32', nil, 5, 2), make('f32', nil, 3, 2)
    local token = make('i32', { 0, 1, 2 }, 3)
    walk(1, function() ms.ops.embed(y, token, w) end)
  end)
end)
