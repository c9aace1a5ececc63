--- AdamW against torch.optim.AdamW on identical gradients, and what it does when it must not step.
local ffi = require 'ffi'
local ms = require 'moonstill'
local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local json = require 'moonstill.base.json'
local tools = require 'tests.support.tools'

local fixture = json.read 'tests/fixtures/adamw.json'
local names = { 'model.embed_tokens.weight', 'input_layernorm.weight', 'self_attn.q_proj.weight',
  'self_attn.k_proj.weight', 'self_attn.v_proj.weight', 'self_attn.o_proj.weight',
  'post_attention_layernorm.weight', 'mlp.gate_proj.weight', 'mlp.up_proj.weight',
  'mlp.down_proj.weight', 'model.norm.weight' }
local place = {} -- of each name in the generator's list, from 0
for i, name in ipairs(names) do
  place[name:find '^model' and name or 'model.layers.0.' .. name] = i - 1
end

-- The generator's formula.
local function wave(n, a, scale)
  local v = ffi.new('double[?]', n)
  for i = 0, n - 1 do v[i] = ((i * 37 + a * 101) % 257 - 128) / 128 * (scale or 1) end
  return v
end

-- What the core says of options that the schema would not let through.
local function core_refuses(words, model, key, value)
  local options = ffi.new('ms_adamw_options', { beta1 = 0.9, beta2 = 0.999, eps = 1e-8 })
  options[key] = value
  tools.fails(words, check, C.ms_optimizer_new(model.p, C.ms_group_self(), options, ffi.new 'ms_optimizer *[1]'))
end

local function fill(t, values) check(C.ms_tensor_write_double(t.p, values, tonumber(C.ms_tensor_size(t.p, -1)))) end
local function content(t)
  local n = tonumber(C.ms_tensor_size(t.p, -1))
  local v = ffi.new('double[?]', n)
  check(C.ms_tensor_read_double(t.p, v, n))
  return v, n
end

local function new_model(dtype, frozen)
  local model = ms.model.create(fixture.config, 1, { train = true, dtype = dtype or 'f32',
    frozen = frozen or {} })
  for name, weight in model:parameters() do
    local _, n = content(weight)
    fill(weight, wave(n, place[name]))
    weight:free()
  end
  return model
end

local function set_gradients(model, step, scale)
  for name, weight, gradient in model:parameters() do
    local k = place[name]
    local _, n = content(weight)
    if gradient then
      fill(gradient, wave(n, 7 * step + 3 * k + 1, 0.25 ^ (k % 3) * (scale or 1)))
      gradient:free()
    end
    weight:free()
  end
end

local function options(clip)
  local o = { clip = clip }
  for key, value in pairs(fixture.options) do o[key] = value end
  return o
end

-- All bits of weights and moments, to be compared.
local function bits(model, optimizer)
  local parts, i = {}, 0
  for _, weight, gradient in model:parameters() do
    local v, n = content(weight)
    parts[#parts + 1] = ffi.string(v, 8 * n)
    weight:free()
    if gradient then
      for _, m in ipairs { optimizer:moments(i) } do
        parts[#parts + 1] = ffi.string(content(m), 8 * n)
        m:free()
      end
      gradient:free()
    end
    i = i + 1
  end
  return table.concat(parts)
end

describe('AdamW', function()
  for _, case in ipairs(fixture.cases) do
    it('equals torch.optim.AdamW, clip ' .. case.clip, function()
      ms.scope(function(own)
        local model = own(new_model())
        local optimizer = own(ms.optimizer.new(model, options(case.clip)))
        for step, lr in ipairs(fixture.rates) do
          set_gradients(model, step - 1)
          local norm, skipped = optimizer:step(lr)
          assert.is_false(skipped)
          -- the gradients are exact in f32, the sums in double
          tools.close({ norm }, { case.norms[step] }, 'f64', 64)
        end
        assert.equal(#fixture.rates, optimizer:steps())
        local i = 0
        for name, weight in model:parameters() do
          local want = case.values[name]
          local first, second = optimizer:moments(i)
          -- Five updates of some roundings each; a weight near 0 has those of its neighbours' size.
          tools.close(content(weight), want.w, 'f32', 16, 5e-7)
          tools.close(content(first), want.m, 'f32', 16, 1e-7)
          tools.close(content(second), want.v, 'f32', 16, 1e-9)
          first:free() second:free() weight:free()
          i = i + 1
        end
      end)
    end)
  end

  it('zeroes the gradients it used', function()
    ms.scope(function(own)
      local model = own(new_model())
      local optimizer = own(ms.optimizer.new(model))
      set_gradients(model, 1)
      optimizer:step(1e-2)
      for _, _, gradient in model:parameters() do
        local g, n = content(gradient)
        for i = 0, n - 1 do assert.equal(0, g[i]) end
      end
    end)
  end)

  it('makes no update with a gradient that is not finite', function()
    ms.scope(function(own)
      local model = own(new_model())
      local optimizer = own(ms.optimizer.new(model, options(1)))
      set_gradients(model, 1)
      optimizer:step(1e-2)
      local before = bits(model, optimizer)
      for _, bad in ipairs { 0 / 0, math.huge, -math.huge } do
        set_gradients(model, 2)
        for name, _, gradient in model:parameters() do
          if name == 'model.norm.weight' then
            local g = content(gradient)
            g[5] = bad
            fill(gradient, g)
          end
        end
        local norm, skipped = optimizer:step(1e-2)
        assert.is_true(skipped)
        assert.is_false(norm - norm == 0)
        assert.equal(before, bits(model, optimizer))
        assert.equal(1, optimizer:steps())
        for _, _, gradient in model:parameters() do assert.equal(0, content(gradient)[0]) end
      end
      -- nor with one whose square is not, unless it is clipped
      local plain = own(ms.optimizer.new(model, options(0)))
      set_gradients(model, 1, 1e22)
      local weights = bits(model, plain)
      local norm, skipped = plain:step(1e-2)
      assert.is_true(skipped and norm > 1e19 and norm < math.huge)
      assert.equal(weights, bits(model, plain))
      set_gradients(model, 1, 1e22)
      assert.is_false(select(2, optimizer:step(0)))
      -- and goes on as if nothing had been
      set_gradients(model, 3)
      assert.is_false(select(2, optimizer:step(1e-2)))
    end)
  end)

  it('clips the norm of the whole gradient, not of each tensor', function()
    ms.scope(function(own)
      local a, b = own(new_model()), own(new_model())
      local clipped, plain = own(ms.optimizer.new(a, options(1.5))), own(ms.optimizer.new(b, options(0)))
      set_gradients(a, 1)
      local norm = clipped:step(1e-2)
      assert.is_true(norm > 1.5)
      set_gradients(b, 1, 1.5 / norm)
      plain:step(1e-2)
      local i = 0
      for _ = 1, #names do
        local first, second = clipped:moments(i)
        local f, s = plain:moments(i)
        -- the same products, rounded once more
        tools.close(content(first), content(f), 'f32', 4)
        tools.close(content(second), content(s), 'f32', 8)
        i = i + 1
      end
      -- a small gradient is left alone
      set_gradients(a, 1, 1e-3)
      set_gradients(b, 1, 1e-3)
      assert.equal(clipped:step(0), plain:step(0))
    end)
  end)

  it('keeps f32 masters for bf16 weights', function()
    ms.scope(function(own)
      local model, wide = own(new_model 'bf16'), own(new_model 'f32')
      local optimizer, other = own(ms.optimizer.new(model)), own(ms.optimizer.new(wide))
      -- Steps far below a bf16 weight's spacing: without masters nothing would ever move. The
      -- starting values are multiples of 1/128 up to 1, exact in bf16.
      for step = 1, 100 do
        set_gradients(model, 1)
        set_gradients(wide, 1)
        optimizer:step(1e-4)
        other:step(1e-4)
      end
      local next_wide = wide:parameters()
      for _, weight in model:parameters() do
        local _, w = next_wide()
        tools.close(content(weight), content(w), 'bf16', 0.5, 1e-30) -- half a unit: rounded once
      end
    end)
  end)

  it('leaves frozen parameters alone', function()
    ms.scope(function(own)
      local model = own(new_model('f32', 'model.norm.* *mlp*'))
      local optimizer = own(ms.optimizer.new(model, options(0)))
      set_gradients(model, 1)
      optimizer:step(1e-2)
      local i = 0
      for name, weight, gradient in model:parameters() do
        local frozen = name == 'model.norm.weight' or name:find 'mlp' ~= nil
        local v, n = content(weight)
        local same = ffi.string(v, 8 * n) == ffi.string(wave(n, place[name]), 8 * n)
        assert.equal(frozen, same, name)
        assert.equal(frozen, gradient == nil)
        if frozen then assert.has_error(function() optimizer:moments(i) end) end
        i = i + 1
      end
    end)
  end)

  it('refuses models and options that cannot be', function()
    ms.scope(function(own)
      local model = own(ms.model.create(fixture.config, 1, {}))
      assert.has_error(function() ms.optimizer.new(model) end, 'optimizer: the model was not opened to train')
      model = own(ms.model.create(fixture.config, 1, { train = true, frozen = '*' }))
      assert.has_error(function() ms.optimizer.new(model) end, 'optimizer: all parameters of the model are frozen')
      model = own(new_model())
      for key, value in pairs { beta1 = 1, beta2 = -0.1, eps = 0, clip = -1, weight_decay = 0 / 0 } do
        tools.fails(("optimizer: '%s' must be number"):format(key), ms.optimizer.new, model, { [key] = value })
        core_refuses('AdamW', model, key, value)
      end
      local optimizer = own(ms.optimizer.new(model))
      assert.has_error(function() optimizer:step(-1) end)
      assert.has_error(function() optimizer:step(0 / 0) end)
      optimizer:free()
      optimizer:free()
      assert.has_error(function() optimizer:step(1) end)
    end)
  end)

  for _, dtype in ipairs { 'f32', 'bf16' } do -- which has masters besides
    it('gives everything back, in any order and without memory: ' .. dtype, function()
      collectgarbage()
      collectgarbage()
      local live = C.ms_test_live()
      local model = new_model(dtype)
      for n = 1, 10 do
        C.ms_test_fail_alloc(n)
        local ok, optimizer = pcall(ms.optimizer.new, model)
        assert.equal(ok, C.ms_test_fail_alloc(0) > 0) -- passed over where not
        if ok then optimizer:free() break end
      end
      local optimizer = ms.optimizer.new(model)
      local first, second = optimizer:moments(0)
      model:free()
      optimizer:free()
      assert.equal(0, content(first)[0])
      first:free()
      second:free()
      collectgarbage()
      collectgarbage()
      assert.equal(live, C.ms_test_live())
    end)
  end
end)
