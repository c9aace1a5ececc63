-- The three matrix products of training, and the bias.
local ms = require 'moonstill'
local tools = require 'tests.support.tools'
local kernels = require 'tests.support.kernels'
local define = require 'tests.support.definitions'
local doubles, fails = kernels.doubles, tools.fails

-- rows x in x out: degenerate, one row (decoding), odd, wide, and past every block size by one.
local shapes = { { 1, 1, 1 }, { 1, 7, 3 }, { 1, 64, 256 }, { 2, 33, 17 }, { 5, 64, 31 },
                 { 8, 130, 70 }, { 15, 96, 49 }, { 16, 64, 64 }, { 17, 65, 129 }, { 33, 1, 5 },
                 { 64, 100, 1 }, { 50, 257, 33 }, { 130, 48, 200 }, { 3, 40, 1100 }, { 300, 20, 30 },
                 -- long enough for two panels of widened weights, forward and backward
                 { 20, 3000, 100 }, { 20, 100, 3000 } }

-- A sum of `n` products in [-1, 1) walks to about sqrt(n) / 3. Rounding each step by up to half an
-- ulp of that adds up, at random, to an error of about eps n / 8; the bound is four times that.
local function room(n) return tools.eps.f32 * (4 + n / 2) end

kernels.on_devices('matrix products', function(case)
  for _, shape in ipairs(shapes) do
    local rows, inner, out = unpack(shape)
    for _, dtype in ipairs { 'f32', 'bf16' } do
      for add = 0, 1 do
        local name = ('%dx%dx%d %s%s'):format(rows, inner, out, dtype, add == 1 and ' added' or '')

        local function check(y, want, n, start)
          if add == 1 then
            for i = 0, y:count() - 1 do want[i] = want[i] + start[i] end
          end
          tools.close(doubles(y), want, 'f32', 2, room(n))
        end

        case('linear ' .. name, function(make)
          local start = tools.values(rows * out, 9)
          local x = make('f32', tools.values(rows * inner, 1), rows, inner)
          local w = make(dtype, tools.values(out * inner, 2), out, inner)
          local y = make('f32', start, rows, out)
          ms.ops.linear(y, x, w, add)
          check(y, define.linear(doubles(x), doubles(w), rows, inner, out), inner, start)
        end)

        case('linear_dx ' .. name, function(make)
          local start = tools.values(rows * inner, 9)
          local dy = make('f32', tools.values(rows * out, 1), rows, out)
          local w = make(dtype, tools.values(out * inner, 2), out, inner)
          local dx = make('f32', start, rows, inner)
          ms.ops.linear_dx(dx, dy, w, add)
          check(dx, define.linear_dx(doubles(dy), doubles(w), rows, inner, out), out, start)
        end)

        if dtype == 'f32' then
          case('linear_dw ' .. name, function(make)
            local start = tools.values(out * inner, 9)
            local dy = make('f32', tools.values(rows * out, 1), rows, out)
            local x = make('f32', tools.values(rows * inner, 2), rows, inner)
            local dw = make('f32', start, out, inner)
            ms.ops.linear_dw(dw, dy, x, add)
            check(dw, define.linear_dw(doubles(dy), doubles(x), rows, inner, out), rows, start)
          end)
        end
      end
    end
  end

  -- The definition in Lua is slow, so a realistic size is spot-checked by rows of a product with a
  -- vector: x (w z) = (x w^T)^T .. holds for any z.
  for _, dtype in ipairs { 'f32', 'bf16' } do
    case('linear 300x576x1536 ' .. dtype, function(make)
      local rows, inner, out = 300, 576, 1536
      local x = make('f32', tools.values(rows * inner, 1), rows, inner)
      local w = make(dtype, tools.values(out * inner, 2), out, inner)
      local y = make('f32', nil, rows, out)
      ms.ops.linear(y, x, w)
      local got, a, b = doubles(y), doubles(x), doubles(w)
      for _, r in ipairs { 0, 1, 15, 16, 127, 128, 255, 256, 299 } do
        for o = 0, out - 1 do
          local sum = 0
          for i = 0, inner - 1 do sum = sum + a[r * inner + i] * b[o * inner + i] end
          assert(math.abs(got[r * out + o] - sum) <= room(inner),
            ('row %d, column %d: %g, not %g'):format(r, o, got[r * out + o], sum))
        end
      end
    end)
  end

  case('infinities and NaN stay in their row', function(make)
    local x = make('f32', { 1, 2, 1 / 0, 1, 0 / 0, 1, 3, 4 }, 4, 2)
    local w = make('f32', { 1, 1, 2, 3, 4, 5 }, 3, 2)
    local y = make('f32', nil, 4, 3)
    ms.ops.linear(y, x, w)
    local got = y:read()
    assert.same({ 3, 8, 14, 1 / 0, 1 / 0, 1 / 0 }, { unpack(got, 1, 6) })
    assert.is_true(got[7] ~= got[7] and got[9] ~= got[9])
    assert.same({ 7, 18, 32 }, { unpack(got, 10, 12) })
  end)

  case('setting does not read what was there', function(make)
    local nan = { 0 / 0, 0 / 0, 0 / 0, 0 / 0 }
    local x, w = make('f32', { 1, 2, 3, 4 }, 2, 2), make('f32', { 1, 0, 0, 1 }, 2, 2)
    for _, dtype in ipairs { 'f32', 'bf16' } do
      local v = make(dtype, { 1, 0, 0, 1 }, 2, 2)
      local y = make('f32', nan, 2, 2)
      ms.ops.linear(y, x, v)
      assert.same({ 1, 2, 3, 4 }, y:read())
      ms.ops.linear_dx(y:write(nan), x, v)
      assert.same({ 1, 2, 3, 4 }, y:read())
    end
    local y = make('f32', nan, 2, 2)
    ms.ops.linear_dw(y, w, x)
    assert.same({ 1, 2, 3, 4 }, y:read())
  end)

  case('wrong shapes', function(make)
    local x, w, y = make('f32', nil, 4, 3), make('f32', nil, 5, 3), make('f32', nil, 4, 5)
    fails('linear: w is f32 [4, 5], not f32 or bf16 [*, 3]', ms.ops.linear, y, x, y)
    fails('linear: y is f32 [5, 3], not f32 [4, 5]', ms.ops.linear, w, x, w)
    fails('linear: w is i32 [5, 3]', ms.ops.linear, y, x, make('i32', nil, 5, 3))
    fails('linear_dx: dy is f32 [4, 3], not f32 [4, 5]', ms.ops.linear_dx, x, x, w)
    fails('linear_dw: dw is bf16 [5, 3], not f32 [*, 3]', ms.ops.linear_dw,
      make('bf16', nil, 5, 3), y, x)
    fails('linear: x is missing', ms.ops.linear, y, nil, w)
    fails('bias: b is f32 [4], not f32 or bf16 [5]', ms.ops.bias, y, make('f32', nil, 4))
    fails('bias_db: db is f32 [4], not f32 [5]', ms.ops.bias_db, make('f32', nil, 4), y)
  end)

  for _, shape in ipairs { { 1, 1 }, { 3, 7 }, { 65, 33 }, { 200, 70 } } do
    local rows, cols = unpack(shape)
    for _, dtype in ipairs { 'f32', 'bf16' } do
      case(('bias %dx%d %s'):format(rows, cols, dtype), function(make)
        local y = make('f32', tools.values(rows * cols, 1), rows, cols)
        local b = make(dtype, tools.values(cols, 2), cols)
        local want, v = doubles(y), doubles(b)
        for i = 0, rows * cols - 1 do want[i] = want[i] + v[i % cols] end
        ms.ops.bias(y, b)
        tools.close(doubles(y), want, 'f32', 0.5)
      end)
    end
    case(('bias_db %dx%d'):format(rows, cols), function(make)
      local dy = make('f32', tools.values(rows * cols, 1), rows, cols)
      local db = make('f32', tools.values(cols, 2), cols)
      local want, d = doubles(db), doubles(dy)
      for i = 0, rows * cols - 1 do want[i % cols] = want[i % cols] + d[i] end
      ms.ops.bias_db(db, dy)
      tools.close(doubles(db), want, 'f32', 2, room(rows))
    end)
  end
end)
