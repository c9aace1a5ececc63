-- Results are the same, bit for bit, for any number of threads.
local ffi = require 'ffi'
local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local losses = require 'tests.support.heads'
local ms = require 'moonstill'
local tools = require 'tests.support.tools'
local kernels = require 'tests.support.kernels'

-- What `body` returns (a string) with 2, 3 and 4 threads must be what it is with 1.
local function same(what, body)
  local before, first = C.ms_threads_get(), nil
  for threads = 1, 4 do
    assert(C.ms_threads_set(threads) == 0)
    local bits = body()
    first = first or bits
    if bits ~= first then
      C.ms_threads_set(before)
      error(what .. ': other bits with ' .. threads .. ' threads than with 1', 2)
    end
  end
  C.ms_threads_set(before)
end

-- rows, in, out: small and odd, one row, tall and skinny, flat and deep; those on which a library
-- that splits by threads is known to differ are deep with few rows and columns.
local products = {
  { 1, 576, 1536 }, { 1, 4864, 896 }, { 2, 1000, 77 }, { 3, 4096, 16 }, { 4, 64, 4864 },
  { 8, 896, 4864 }, { 15, 333, 514 }, { 16, 576, 576 }, { 31, 257, 129 }, { 32, 2048, 48 },
  { 48, 4864, 64 }, { 64, 64, 64 }, { 100, 300, 200 }, { 128, 576, 1536 }, { 129, 1536, 576 },
  { 200, 896, 128 }, { 256, 64, 1024 }, { 300, 65, 1000 }, { 512, 576, 192 }, { 777, 48, 50 },
  { 1024, 32, 96 }, { 2000, 16, 24 }, { 6, 8000, 6 }, { 40, 40, 3000 }, { 3000, 40, 40 } }

local function rows_of(t, first, n)
  local _, cols = t:shape()
  return t:view(first * cols, n, cols)
end

kernels.on_devices('any number of threads gives the same', function(case, device)
  for _, p in ipairs(products) do
    local rows, inner, out = unpack(p)
    case(('products %dx%dx%d'):format(rows, inner, out), function(make)
      local x = make('f32', tools.values(rows * inner, 1), rows, inner)
      local dy = make('f32', tools.values(rows * out, 2), rows, out)
      local y, dx = make('f32', nil, rows, out), make('f32', nil, rows, inner)
      local dw = make('f32', nil, out, inner)
      for _, dtype in ipairs { 'f32', 'bf16' } do
        local w = make(dtype, tools.values(out * inner, 3), out, inner)
        same('linear ' .. dtype, function() ms.ops.linear(y, x, w) return kernels.bits(y) end)
        same('linear_dx ' .. dtype, function() ms.ops.linear_dx(dx, dy, w) return kernels.bits(dx) end)
      end
      same('linear_dw', function() ms.ops.linear_dw(dw, dy, x) return kernels.bits(dw) end)
    end)
  end

  -- Packing, micro-batches and chunks of the head change how many rows and columns stand together.
  for _, p in ipairs { { 700, 600, 300 }, { 61, 1100, 90 }, { 150, 40, 1200 } } do
    local rows, inner, out = unpack(p)
    case(('part of a product %dx%dx%d is the same as in the whole'):format(rows, inner, out),
      function(make)
        local x = make('f32', tools.values(rows * inner, 1), rows, inner)
        local w = make('f32', tools.values(out * inner, 2), out, inner)
        local dy = make('f32', tools.values(rows * out, 3), rows, out)
        local y, dx = make('f32', nil, rows, out), make('f32', nil, rows, inner)
        local dw = make('f32', nil, out, inner)
        ms.ops.linear(y, x, w)
        ms.ops.linear_dx(dx, dy, w)
        ms.ops.linear_dw(dw, dy, x)
        for _, part in ipairs { { 0, 9 }, { 7, 50 }, { 13, 33 } } do
          local first, n = unpack(part)
          local y1, dx1 = make('f32', nil, n, out), make('f32', nil, n, inner)
          ms.ops.linear(y1, rows_of(x, first, n), w)
          assert.equal(kernels.bits(rows_of(y, first, n)), kernels.bits(y1))
          ms.ops.linear_dx(dx1, rows_of(dy, first, n), w)
          assert.equal(kernels.bits(rows_of(dx, first, n)), kernels.bits(dx1))
          -- y's columns, and dw's rows
          local y2 = make('f32', nil, rows, n)
          ms.ops.linear(y2, x, rows_of(w, first, n))
          local whole, few = kernels.doubles(y), kernels.doubles(y2)
          for r = 0, rows - 1 do
            for o = 0, n - 1 do assert(whole[r * out + first + o] == few[r * n + o]) end
          end
        end
      end)
  end

  for _, s in ipairs { { { 0, 300 }, 6, 2, 64, 0 }, { { 0, 100, 130, 420 }, 9, 3, 64, 0 },
                       { { 0, 257 }, 4, 1, 40, 70 }, { { 0, 1, 2, 3, 200 }, 2, 2, 128, 0 } } do
    local start, heads, kv_heads, dim, window = unpack(s)
    local tokens = start[#start]
    case(('attention over %d tokens, %d heads of %d'):format(tokens, heads, dim), function(make)
      local n, m = tokens * heads * dim, tokens * kv_heads * dim
      local q = make('f32', tools.values(n, 1), tokens, heads, dim)
      local k = make('f32', tools.values(m, 2), tokens, kv_heads, dim)
      local v = make('f32', tools.values(m, 3), tokens, kv_heads, dim)
      local y, lse = make('f32', nil, tokens, heads, dim), make('f32', nil, tokens, heads)
      local dq, dk, dv = make('f32', nil, q:shape()), make('f32', nil, k:shape()), make('f32', nil, k:shape())
      local starts = make('i32', start, #start)
      same('forward', function()
        ms.ops.attention(y, lse, q, k, v, starts, window, 0.3)
        return kernels.bits(y) .. kernels.bits(lse)
      end)
      same('backward', function()
        ms.ops.attention_backward(dq, dk, dv, q, y, lse, q, k, v, starts, window, 0.3)
        return kernels.bits(dq) .. kernels.bits(dk) .. kernels.bits(dv)
      end)
    end)
  end

  case('attention against a cache', function(make)
    local q = make('f32', tools.values(3 * 6 * 64, 1), 3, 6, 64)
    local k = make('f32', tools.values(2 * 400 * 128, 2), 2, 400, 2, 64)
    local slot, first, length = make('i32', { 1, 0, 1 }, 3), make('i32', { 0, 5, 7 }, 3),
      make('i32', { 400, 300, 1 }, 3)
    local y = make('f32', nil, 3, 6, 64)
    same('y', function()
      ms.ops.attention_cached(y, q, k, k, slot, first, length, 0.2)
      return kernels.bits(y)
    end)
  end)

  case('norm, bias and embedding gradients', function(make)
    local rows, cols = 700, 200 -- above the size at which other threads are woken
    local x = make('f32', tools.values(rows * cols, 1), rows, cols)
    local dy = make('f32', tools.values(rows * cols, 2), rows, cols)
    local w, rstd = make('f32', tools.values(cols, 3), cols), make('f32', nil, rows)
    local y, token = make('f32', nil, rows, cols), make('i32', tools.integers(rows, 4, 9), rows)
    same('rmsnorm', function()
      ms.ops.rmsnorm(y, rstd, x, w, 1e-5)
      return kernels.bits(y)
    end)
    same('rmsnorm_backward', function()
      local dw = make('f32', tools.values(cols, 5), cols)
      ms.ops.rmsnorm_backward(y, dw, dy, x, rstd, w)
      return kernels.bits(y) .. kernels.bits(dw)
    end)
    same('bias_db', function()
      local db = make('f32', tools.values(cols, 5), cols)
      ms.ops.bias_db(db, dy)
      return kernels.bits(db)
    end)
    same('embed_dw', function()
      local dw = make('f32', tools.values(9 * cols, 5), 9, cols)
      ms.ops.embed_dw(dw, dy, token)
      return kernels.bits(dw)
    end)
  end)

  case('top-k of rows of several blocks', function()
    local rows, width, vocab, k = 96, 4, 5000, 40
    local hidden = losses.tensor(tools.values(rows * width, 1, 3), rows, width)
    local head = losses.tensor(tools.values(vocab * width, 2), vocab, width)
    local out = ffi.new 'ms_target *[1]'
    local id, lp = ffi.new('int32_t[?]', rows * k), ffi.new('float[?]', rows * k)
    local rest = ffi.new('float[?]', rows)
    same('topk', function()
      local parts = {}
      for i = 1, 12 do -- threads that stand in each other's way need not do so every time
        check(C.ms_target_new(losses.options { kind = 'topk', k = k, on = 'all' }, hidden.p, head.p, 1, 0, 0, out))
        check(C.ms_target_read(out[0], id, lp, rest))
        C.ms_target_free(out[0])
        parts[i] = ffi.string(id, rows * k * 4) .. ffi.string(lp, rows * k * 4) .. ffi.string(rest, rows * 4)
      end
      for i = 2, 12 do assert.is_true(parts[i] == parts[1]) end
      return parts[1]
    end)
    hidden:free()
    head:free()
  end)

  case('squared norm, swiglu and AdamW', function(make)
    local n = 200003
    local x, y, z = make('f32', tools.values(n, 1), n), make('f32', nil, n), make('f32', nil, n)
    local values = tools.values(n, 1)
    values[70000], values[150000] = 0 / 0, 0 / 0 -- in blocks of two threads
    local bad = make('f32', values, n)
    same('sum_squares', function()
      return ffi.string(ffi.new('double[1]', ms.ops.sum_squares(x)), 8)
    end)
    same('not_finite', function() return tostring(ms.ops.not_finite(bad)) end)
    same('swiglu', function()
      ms.ops.swiglu(y, x, x)
      ms.ops.swiglu_backward(y, z, y, x, x)
      return kernels.bits(y) .. kernels.bits(z)
    end)
    same('geglu', function()
      ms.ops.geglu(y, x, x)
      ms.ops.geglu_backward(y, z, y, x, x)
      return kernels.bits(y) .. kernels.bits(z)
    end)
    same('adamw', function()
      local w, m = make('f32', tools.values(n, 2), n), make('f32', tools.values(n, 3), n)
      local v, low = ms.tensor(device, n), make('bf16', nil, n)
      ms.ops.adamw(w, low, m, v, x, 3, 0.01, 0.9, 0.99, 1e-8, 0.1, 1)
      return kernels.bits(w) .. kernels.bits(m) .. kernels.bits(low)
    end)
  end)
end)

-- OpenMP's threads may wait in the library's code when a Lua state that loaded it is closed.
it('the library stays loaded', function()
  local script = tools.write(tools.folder() .. '/load.lua', [[
    local lib = require 'ffi'.load(os.getenv 'MS_LIB')
    lib = nil
    collectgarbage() collectgarbage()
    local loaded = false
    for line in io.lines '/proc/self/maps' do loaded = loaded or line:find 'libmoonstill' ~= nil end
    assert(loaded, 'the library was unloaded')]])
  local status, _, err = tools.run('luajit ' .. tools.quote(script))
  assert.same({ 0, '' }, { status, err })
end)
