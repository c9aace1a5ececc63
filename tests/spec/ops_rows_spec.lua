-- Operations on rows: rmsnorm, rope, embedding, gather and scatter.
local ffi = require 'ffi'
local ms = require 'moonstill'
local tools = require 'tests.support.tools'
local kernels = require 'tests.support.kernels'
local define = require 'tests.support.definitions'
local doubles, fails = kernels.doubles, tools.fails

local shapes = { { 1, 1 }, { 1, 16 }, { 3, 7 }, { 5, 33 }, { 65, 20 }, { 130, 67 }, { 2, 1024 } }

kernels.on_devices('rmsnorm', function(case)
  for _, shape in ipairs(shapes) do
    local rows, cols = unpack(shape)
    for _, dtype in ipairs { 'f32', 'bf16' } do
      local name = ('%dx%d %s'):format(rows, cols, dtype)

      case('forward ' .. name, function(make)
        local x = make('f32', tools.values(rows * cols, 1), rows, cols)
        local w = make(dtype, tools.values(cols, 2), cols)
        local y, rstd = make('f32', nil, rows, cols), make('f32', nil, rows)
        local want, want_rstd = define.rmsnorm(doubles(x), doubles(w), rows, cols, 1e-5)
        ms.ops.rmsnorm(y, rstd, x, w, 1e-5)
        -- the sum of squares has no cancellation: a few ulps whatever the length
        tools.close(doubles(y), want, 'f32', 6)
        tools.close(doubles(rstd), want_rstd, 'f32', 4)
        ms.ops.rmsnorm(x, nil, x, w, 1e-5) -- in place
        assert.equal(kernels.bits(y), kernels.bits(x))
      end)
    end
  end

  for _, shape in ipairs { { 1, 1 }, { 3, 7 }, { 2, 33 }, { 70, 5 } } do
    local rows, cols = unpack(shape)
    for _, dtype in ipairs { 'f32', 'bf16' } do
      case(('backward %dx%d %s'):format(rows, cols, dtype), function(make)
        local n = rows * cols
        local x = make('f32', tools.values(n, 1), rows, cols)
        local w = make(dtype, tools.values(cols, 2), cols)
        local dy, rstd = make('f32', tools.values(n, 3), rows, cols), make('f32', nil, rows)
        local y = make('f32', nil, rows, cols)
        ms.ops.rmsnorm(y, rstd, x, w, 1e-2) -- a large eps, so that a forgotten one shows
        local a, b, r = doubles(x), doubles(w), doubles(dy)
        local function f() return (define.rmsnorm(a, b, rows, cols, 1e-2)) end
        local want_dx = define.gradient(f, a, n, r, n)
        local want_dw = define.gradient(f, b, cols, r, n)
        local start = tools.values(cols, 4)
        for c = 0, cols - 1 do want_dw[c] = want_dw[c] + start[c] end
        local dw, dx = make('f32', start, cols), make('f32', tools.values(n, 5), rows, cols)
        local added = doubles(dx)
        ms.ops.rmsnorm_backward(dx, dw, dy, x, rstd, w, 1)
        for i = 0, n - 1 do added[i] = added[i] + want_dx[i] end
        -- terms of size up to rstd < 10 cancel in dx
        tools.close(doubles(dx), added, 'f32', 4, 40 * tools.eps.f32)
        tools.close(doubles(dw), want_dw, 'f32', 4, 4 * tools.eps.f32 * math.sqrt(rows))
        ms.ops.rmsnorm_backward(dy, nil, dy, x, rstd, w, 0) -- in place, frozen weight
        tools.close(doubles(dy), want_dx, 'f32', 4, 40 * tools.eps.f32)
      end)
    end
  end

  case('adds an offset to its weights', function(make)
    local rows, cols = 70, 37
    local n = rows * cols
    local x, w = make('f32', tools.values(n, 1), rows, cols), make('bf16', tools.values(cols, 2), cols)
    local dy, y = make('f32', tools.values(n, 3), rows, cols), make('f32', nil, rows, cols)
    local rstd = make('f32', nil, rows)
    local a, b, r = doubles(x), doubles(w), doubles(dy)
    local function f() return (define.rmsnorm(a, b, rows, cols, 1e-2, 1)) end
    ms.ops.rmsnorm(y, rstd, x, w, 1e-2, 1)
    tools.close(doubles(y), f(), 'f32', 6)
    local want_dx, want_dw = define.gradient(f, a, n, r, n), define.gradient(f, b, cols, r, n)
    local dw = make('f32', tools.values(cols, 5, 0), cols)
    ms.ops.rmsnorm_backward(dy, dw, dy, x, rstd, w, 0, 1)
    -- as without an offset
    tools.close(doubles(dy), want_dx, 'f32', 4, 40 * tools.eps.f32)
    tools.close(doubles(dw), want_dw, 'f32', 4, 4 * tools.eps.f32 * math.sqrt(rows))
  end)

  case('of zeros is zero, and the gradient finite', function(make)
    local x = make('f32', { 0, 0, 0, 0 }, 1, 4)
    local w, y = make('f32', { 1, 2, 3, 4 }, 4), make('f32', nil, 1, 4)
    local rstd = make('f32', nil, 1)
    ms.ops.rmsnorm(y, rstd, x, w, 1e-6)
    assert.same({ 0, 0, 0, 0 }, y:read())
    tools.close(rstd:read(), { 1000 }, 'f32', 4)
    ms.ops.rmsnorm_backward(y, nil, make('f32', { 1, 1, 1, 1 }, 1, 4), x, rstd, w)
    tools.close(y:read(), { 1000, 2000, 3000, 4000 }, 'f32', 4)
  end)

  case('wrong shapes', function(make)
    local x, w = make('f32', nil, 4, 3), make('f32', nil, 3)
    fails('rmsnorm: w is f32 [4, 3], not f32 or bf16 [3]', ms.ops.rmsnorm, x, nil, x, x, 1)
    fails('rmsnorm: rstd is f32 [3], not f32 [4]', ms.ops.rmsnorm, x, w, x, w, 1)
    fails('rmsnorm: y is missing', ms.ops.rmsnorm, nil, nil, x, w, 1)
    fails('rmsnorm_backward: dy is f32 [3], not f32 [4, 3]', ms.ops.rmsnorm_backward, x, nil, w, x,
      make('f32', nil, 4), w)
  end)
end)

kernels.on_devices('rope', function(case)
  -- tokens, heads, head_dim, pairs: all of the head, part of it, odd numbers of pairs
  for _, shape in ipairs { { 1, 1, 2, 1 }, { 5, 3, 8, 4 }, { 4, 2, 64, 32 }, { 3, 2, 20, 7 },
                           { 2, 1, 96, 37 }, { 6, 1, 128, 16 } } do
    local tokens, heads, dim, n = unpack(shape)
    case(('%d tokens, %d heads of %d, %d pairs'):format(unpack(shape)), function(make)
      local positions = 9
      local angle = tools.values(positions * n, 1, 3)
      local cosine, sine = {}, {}
      for i = 1, positions * n do cosine[i], sine[i] = math.cos(angle[i - 1]), math.sin(angle[i - 1]) end
      local position = tools.integers(tokens, 2, positions)
      local x = make('f32', tools.values(tokens * heads * dim, 3), tokens, heads, dim)
      local tp = make('i32', position, tokens)
      local tc, ts = make('f32', cosine, positions, n), make('f32', sine, positions, n)
      local start = doubles(x)
      ms.ops.rope(x, tp, tc, ts, 1)
      tools.close(doubles(x), define.rope(start, position, angle, tokens, heads, dim, n, 1), 'f32', 1,
        4 * tools.eps.f32)
      local turned = doubles(x)
      ms.ops.rope(x, tp, tc, ts, -1) -- the transpose, which is also the inverse
      tools.close(doubles(x), define.rope(turned, position, angle, tokens, heads, dim, n, -1), 'f32', 1,
        4 * tools.eps.f32)
      tools.close(doubles(x), start, 'f32', 1, 8 * tools.eps.f32)
    end)
  end

  case('wrong calls', function(make)
    local x, c = make('f32', nil, 2, 1, 4), make('f32', nil, 3, 2)
    local function position(...) return make('i32', { ... }, 2) end
    fails('rope: position[1] is 3, not in 0..2', ms.ops.rope, x, position(0, 3), c, c, 1)
    fails('rope: position[0] is -1, not in 0..2', ms.ops.rope, x, position(-1, 0), c, c, 1)
    fails('rope: sign is 0, not 1 or -1', ms.ops.rope, x, position(0, 0), c, c, 0)
    local wide = make('f32', nil, 3, 3)
    fails('rope: 3 pairs in a head of 4', ms.ops.rope, x, position(0, 0), wide, wide, 1)
    fails('rope: sine is f32 [3, 3], not f32 [3, 2]', ms.ops.rope, x, position(0, 0), c, wide, 1)
  end)
end)

kernels.on_devices('embedding', function(case)
  for _, shape in ipairs { { 1, 1, 1 }, { 7, 5, 3 }, { 40, 33, 11 }, { 100, 130, 20 } } do
    local tokens, width, vocab = unpack(shape)
    for _, dtype in ipairs { 'f32', 'bf16' } do
      case(('%d tokens of %d x %d %s'):format(tokens, vocab, width, dtype), function(make)
        local token = tools.integers(tokens, 1, vocab)
        local w = make(dtype, tools.values(vocab * width, 2), vocab, width)
        local y = make('f32', nil, tokens, width)
        ms.ops.embed(y, make('i32', token, tokens), w)
        local got, table = doubles(y), doubles(w)
        for i = 0, tokens * width - 1 do
          assert.equal(table[token[math.floor(i / width)] * width + i % width], got[i])
        end
      end)
    end
    case(('gradient of %d tokens of %d x %d'):format(tokens, vocab, width), function(make)
      local token = tools.integers(tokens, 1, vocab)
      local dw = make('f32', tools.values(vocab * width, 2), vocab, width)
      local dy = make('f32', tools.values(tokens * width, 3), tokens, width)
      local want, d = dw:read(ffi.new('float[?]', vocab * width)), doubles(dy)
      for t = 0, tokens - 1 do -- in f32 and in order of t: bit for bit
        for c = 0, width - 1 do
          local at = token[t] * width + c
          want[at] = want[at] + d[t * width + c]
        end
      end
      ms.ops.embed_dw(dw, dy, make('i32', token, tokens))
      assert.equal(ffi.string(want, ffi.sizeof(want)), kernels.bits(dw))
    end)
  end

  case('is multiplied, and so is its gradient', function(make)
    local tokens, width, vocab, scale = 40, 33, 11, 1.7
    local token = make('i32', tools.integers(tokens, 1, vocab), tokens)
    local w, y = make('f32', tools.values(vocab * width, 2), vocab, width), make('f32', nil, tokens, width)
    local plain, dy = make('f32', nil, tokens, width), make('f32', tools.values(tokens * width, 3), tokens, width)
    ms.ops.embed(plain, token, w)
    ms.ops.embed(y, token, w, scale)
    local want = doubles(plain)
    for i = 0, tokens * width - 1 do want[i] = want[i] * scale end
    tools.close(doubles(y), want, 'f32', 1)
    local dw, zero = make('f32', tools.values(vocab * width, 2, 0), vocab, width), tools.values(vocab * width, 2, 0)
    ms.ops.embed_dw(dw, dy, token)
    want = doubles(dw)
    for i = 0, vocab * width - 1 do want[i] = want[i] * scale end
    ms.ops.embed_dw(dw:write(zero), dy, token, scale)
    tools.close(doubles(dw), want, 'f32', 2, 20 * tools.eps.f32) -- sums of a few terms, in another rounding
  end)

  case('tokens outside the table', function(make)
    local w, y = make('f32', nil, 5, 2), make('f32', nil, 3, 2)
    fails('embed: token[2] is 5, not in 0..4', ms.ops.embed, y, make('i32', { 0, 4, 5 }, 3), w)
    fails('embed_dw: token[0] is -1, not in 0..4', ms.ops.embed_dw, w, y,
      make('i32', { -1, 4, 4 }, 3))
    fails('embed: y is f32 [3, 2], not f32 [2, 2]', ms.ops.embed, y, make('i32', { 0, 1 }, 2), w)
  end)
end)

kernels.on_devices('gather and scatter', function(case)
  case('rows out and back', function(make)
    local x = make('f32', tools.values(7 * 5, 1), 7, 5)
    local row = make('i32', { 0, 2, 3, 6 }, 4)
    local y, z = make('f32', nil, 4, 5), make('f32', tools.values(35, 2), 7, 5)
    local a, before = doubles(x), doubles(z)
    ms.ops.gather(y, x, row)
    ms.ops.scatter(z, y, row)
    local got, back = doubles(y), doubles(z)
    local k = 0
    for r = 0, 6 do
      local chosen = r == 0 or r == 2 or r == 3 or r == 6
      for c = 0, 4 do
        assert.equal(chosen and a[r * 5 + c] or before[r * 5 + c], back[r * 5 + c])
        if chosen then assert.equal(a[r * 5 + c], got[k * 5 + c]) end
      end
      if chosen then k = k + 1 end
    end
  end)

  case('wrong calls', function(make)
    local x, y = make('f32', nil, 7, 5), make('f32', nil, 2, 5)
    fails('gather: row[1] is 7, not in 0..6', ms.ops.gather, y, x, make('i32', { 0, 7 }, 2))
    fails('scatter: row[1] is 3 after 3, not ascending', ms.ops.scatter, x, y,
      make('i32', { 3, 3 }, 2))
  end)
end)
