--- Checkpoints: bit for bit, complete or not there, and damage is noticed.
local ffi = require 'ffi'
local ms = require 'moonstill'
local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local json = require 'moonstill.base.json'
local sorted = require 'moonstill.base.sorted'
local tools = require 'tests.support.tools'

local config = json.read('tests/fixtures/adamw.json').config

local function content(t)
  local n = tonumber(C.ms_tensor_size(t.p, -1))
  local v = ffi.new('double[?]', n)
  check(C.ms_tensor_read_double(t.p, v, n))
  return v, n
end

-- Some updates on gradients that depend on the step alone.
local function train(model, optimizer, from, to)
  for step = from, to do
    local seed = 100 * step
    for _, weight, gradient in model:parameters() do
      local n = tonumber(C.ms_tensor_size(weight.p, -1))
      seed = seed + 1
      local values = tools.values(n, seed)
      check(C.ms_tensor_write(gradient.p, values, 4 * n))
      gradient:free()
      weight:free()
    end
    optimizer:step(1e-2 / step)
  end
end

local function bits(model, optimizer)
  local parts, i = { tostring(optimizer:steps()) }, 0
  for _, weight, gradient in model:parameters() do
    for _, t in ipairs { weight, optimizer:moments(i) } do
      local v, n = content(t)
      parts[#parts + 1] = ffi.string(v, 8 * n)
      t:free()
    end
    gradient:free()
    i = i + 1
  end
  return table.concat(parts)
end

local function pair(own, dtype, seed)
  local model = own(ms.model.create(config, seed or 1, { train = true, dtype = dtype or 'f32' }))
  return model, own(ms.optimizer.new(model, { weight_decay = 0.1, clip = 1 }))
end

-- Flips one bit in the middle of a file.
local function damage(path)
  local text = tools.read(path)
  local at = math.floor(#text / 2)
  tools.write(path, text:sub(1, at - 1) .. string.char(bit.bxor(text:byte(at), 1)) .. text:sub(at + 1))
end

local environment = 'LUA_PATH=' .. tools.quote(package.path)

-- In a process of its own, whose warnings are caught.
local function find(folder)
  local code = ("print(require 'moonstill'.optimizer.find %q)"):format(folder)
  local status, out, err = tools.run(environment .. ' luajit -e ' .. tools.quote(code))
  assert.equal(0, status, err)
  return (out:gsub('\n$', '')), err
end

for _, dtype in ipairs { 'f32', 'bf16' } do
  describe('a checkpoint of a model in ' .. dtype, function()
    it('gives everything back, and the same steps follow', function()
      ms.scope(function(own)
        local path = tools.folder() .. '/step-00000003'
        local state = '{"a":[1,2.5,"é"],"b":0.1}'
        local model, optimizer = pair(own, dtype)
        train(model, optimizer, 1, 3)
        optimizer:write(path, model, state)
        local saved = bits(model, optimizer)
        train(model, optimizer, 4, 6)
        local model2, optimizer2 = pair(own, dtype, 2)
        train(model2, optimizer2, 1, 1)
        assert.same(json.decode(state), json.decode(optimizer2:read(path, model2)))
        assert.equal(saved, bits(model2, optimizer2))
        -- the masters cannot be seen from here but by what follows
        train(model2, optimizer2, 4, 6)
        assert.equal(bits(model, optimizer), bits(model2, optimizer2))
      end)
    end)
  end)
end

describe('checkpoints', function()
  it('list every file with size and hash, and open as a model', function()
    ms.scope(function(own)
      local path = tools.folder() .. '/step-1'
      local model, optimizer = pair(own)
      optimizer:write(path, model, '{}')
      local state = json.read(path .. '/state.json')
      for _, name in ipairs { 'config.json', 'model.safetensors', 'optimizer.safetensors' } do
        assert.equal(#tools.read(path .. '/' .. name), state.files[name].bytes)
        assert.truthy(state.files[name].xxh3:find '^%x+$')
      end
      assert.equal(11, own(ms.model.open(path)):info().vocab)
    end)
  end)

  it('are found by number, and damaged ones passed over', function()
    ms.scope(function(own)
      local folder = tools.folder()
      local model, optimizer = pair(own)
      assert.is_nil(ms.optimizer.find(folder))
      assert.is_nil(ms.optimizer.find(folder .. '/absent'))
      for _, name in ipairs { 'step-9', 'step-00000010', 'step-00000200', 'step-300.77.tmp', 'other' } do
        optimizer:write(folder .. '/' .. name, model, '{}')
      end
      assert.equal(folder .. '/step-00000200', ms.optimizer.find(folder))
      damage(folder .. '/step-00000200/model.safetensors')
      local found, err = find(folder)
      assert.equal(folder .. '/step-00000010', found)
      assert.truthy(err:find('step-00000200/model.safetensors: is not what was written', 1, true), err)
      os.remove(folder .. '/step-00000010/optimizer.safetensors')
      damage(folder .. '/step-00000200/model.safetensors') -- back
      tools.write(folder .. '/step-00000200/state.json', tools.read(folder .. '/step-00000200/state.json'):sub(1, -20))
      assert.equal(folder .. '/step-9', (find(folder)))
      tools.write(folder .. '/step-9/config.json', 'x')
      assert.equal('nil', (find(folder)))
    end)
  end)

  it('hold no NaN and no infinity: weights, moments, masters', function()
    local function set(t, at, value)
      local values = t:read()
      values[at + 1] = value
      t:write(values):free()
    end
    local function weight(model, value)
      for name, w, gradient in model:parameters() do
        if name == 'model.norm.weight' then set(w, 3, value) else w:free() end
        gradient:free()
      end
    end
    local function moment(optimizer, which)
      for i = 1, 2 do
        local t = select(i, optimizer:moments(0))
        if i == which then set(t, 9, 1 / 0) else t:free() end -- the embedding has 8 columns
      end
    end
    local spoil = {
      ['model.safetensors: tensor \'model.norm.weight\' .* first at index 3'] =
        function(model) weight(model, 0 / 0) end,
      ['optimizer.safetensors: tensor \'first.model.embed_tokens.weight\' .* row 1, column 1'] =
        function(_, optimizer) moment(optimizer, 1) end,
      ['optimizer.safetensors: tensor \'second.model.embed_tokens.weight\' .* row 1, column 1'] =
        function(_, optimizer) moment(optimizer, 2) end,
      ['optimizer.safetensors: tensor \'master.model.norm.weight\' .* first at index 3'] =
        function(model, _, own)
          weight(model, 0 / 0)
          local optimizer = own(ms.optimizer.new(model, {})) -- its masters are the weights of now
          weight(model, 1)
          return optimizer
        end,
    }
    for message, f in sorted.pairs(spoil) do
      ms.scope(function(own)
        local path = tools.folder() .. '/step-1'
        local model, optimizer = pair(own, 'bf16')
        optimizer = f(model, optimizer, own) or optimizer
        optimizer:write(path, model, '{}')
        local model2, optimizer2 = pair(own, 'bf16')
        local ok, why = pcall(optimizer2.read, optimizer2, path, model2)
        assert.is_false(ok, message)
        assert.truthy(why:find(message), why)
      end)
    end
  end)

  it('refuse to be read by a model that computes otherwise, in whatever way', function()
    ms.scope(function(own)
      local path = tools.folder() .. '/step-1'
      local model, optimizer = pair(own)
      optimizer:write(path, model, '{}')
      -- A model with other keys in its config.json, of other weights, and what is to bring it to the checkpoint.
      local function other(changes)
        local changed = {}
        for key, value in sorted.pairs(config) do changed[key] = value end
        for key, value in sorted.pairs(changes) do changed[key] = value end
        local m = own(ms.model.create(changed, 2, { train = true, dtype = 'f32' }))
        local o = own(ms.optimizer.new(m))
        return m, function() return o:read(path, m) end
      end
      for key, value in sorted.pairs { hidden_size = 16, num_attention_heads = 4, rope_theta = 5e5, rms_norm_eps = 0.5,
        rope_scaling = { rope_type = 'linear', factor = 2 }, max_position_embeddings = 17 } do
        local m, read = other { [key] = value }
        local before = m:hash()
        tools.fails(("step-1/config.json: '%s' is "):format(key), read)
        assert.equal(before, m:hash())
      end
      -- what changes nothing may be another
      local m, read = other { transformers_version = '9', use_cache = false, initializer_range = 1,
        attention_dropout = 0, rope_scaling = json.null }
      local before = m:hash()
      read()
      assert.are_not.equal(before, m:hash())
    end)
  end)

  it('refuse to be read where other parameters are frozen', function()
    ms.scope(function(own)
      local path = tools.folder() .. '/step-'
      local function held(frozen)
        local m = own(ms.model.create(config, 1, { train = true, dtype = 'f32', frozen = frozen }))
        return m, own(ms.optimizer.new(m))
      end
      local all, of_all = held()
      local most, of_most = held 'model.norm.*'
      of_all:write(path .. 1, all, '{}')
      of_most:write(path .. 2, most, '{}')
      tools.fails('step-1/optimizer.safetensors: has 22 tensors, but 10 parameters are trained with 2 each',
        of_most.read, of_most, path .. 1, most)
      tools.fails('step-2/optimizer.safetensors: no tensor first.model.norm.weight', of_all.read, of_all, path .. 2,
        all)
      of_most:read(path .. 2, most)
    end)
  end)

  it('refuse to be read when damaged, or by another model', function()
    ms.scope(function(own)
      local path = tools.folder() .. '/step-1'
      local model, optimizer = pair(own)
      optimizer:write(path, model, '{}')
      local before = bits(model, optimizer)
      local other = {}
      for key, value in pairs(config) do other[key] = value end
      other.hidden_size = 16
      local big = own(ms.model.create(other, 1, { train = true, dtype = 'f32' }))
      local big_optimizer = own(ms.optimizer.new(big))
      tools.fails("'hidden_size' is 8, the model's is 16", big_optimizer.read, big_optimizer, path, big)
      assert.has_error(function() big_optimizer:read(path, model) end)
      local half, half_optimizer = pair(own, 'bf16')
      assert.has_error(function() half_optimizer:read(path, half) end)
      half_optimizer:write(path .. '-half', half, '{}')
      tools.fails('is BF16, the model holds f32', optimizer.read, optimizer, path .. '-half', model)
      damage(path .. '/optimizer.safetensors')
      tools.fails('optimizer.safetensors: is not what was written', optimizer.read, optimizer, path, model)
      assert.equal(before, bits(model, optimizer))
    end)
  end)

  it('notice every bit that is another in state.json', function()
    ms.scope(function(own)
      local path = tools.folder() .. '/step-1'
      local model, optimizer = pair(own)
      optimizer:write(path, model, '{"a":1}')
      local whole = tools.read(path .. '/state.json')
      for i = 1, #whole do
        local changed = bit.bxor(whole:byte(i), bit.lshift(1, i % 8))
        tools.write(path .. '/state.json', whole:sub(1, i - 1) .. string.char(changed) .. whole:sub(i + 1))
        local ok, why = pcall(optimizer.read, optimizer, path, model)
        assert.is_false(ok, 'byte ' .. i)
        assert.truthy(why:find('state.json: is not what was written', 1, true)
          or why:find('state.json: no checkpoint of version 2', 1, true), why)
      end
      for _, text in ipairs { '', '{', whole:sub(1, 20), whole:sub(1, -2), whole .. ' ', '{"version": 2}' } do
        tools.write(path .. '/state.json', text)
        assert.is_false((pcall(optimizer.read, optimizer, path, model)))
      end
      tools.write(path .. '/state.json', whole)
      assert.equal('{"a":1}', optimizer:read(path, model))
    end)
  end)

  it('are not passed over when they only cannot be read', function()
    ms.scope(function(own)
      local folder = tools.folder()
      local model, optimizer = pair(own)
      for i = 1, 2 do optimizer:write(folder .. '/step-' .. i, model, '{}') end
      local refused = 0
      for n = 1, 200 do
        C.ms_test_fail_alloc(n)
        local ok, found = pcall(ms.optimizer.find, folder)
        C.ms_test_fail_alloc(0)
        if ok then
          assert.equal(folder .. '/step-2', found)
          break
        end
        refused = refused + 1
      end
      assert.is_true(refused > 3)
      -- a loop of links stands for an error of the disk
      tools.run(('cd %s/step-2 && rm config.json && ln -s config.json config.json'):format(folder))
      tools.fails('step-2/config.json: Too many levels of symbolic links', ms.optimizer.find, folder)
    end)
  end)

  it('are removed or replaced as what they are, damaged or not, and nothing else is', function()
    ms.scope(function(own)
      local folder = tools.folder()
      local path = folder .. '/step-1'
      local model, optimizer = pair(own)
      local function names() return select(2, tools.run('ls -A ' .. folder)) end
      local function kept(part)
        tools.fails(part, check, C.ms_checkpoint_remove(path))
      end
      for i = 1, 3 do
        optimizer:write(path, model, '{"n":1}')
        if i == 1 then damage(path .. '/model.safetensors') end
        if i == 2 then os.remove(path .. '/optimizer.safetensors') end
        optimizer:write(path, model, '{"n":2}')
        assert.equal('step-1\n', names())
        if i == 1 then damage(path .. '/config.json') end
        check(C.ms_checkpoint_remove(path))
        assert.equal('', names())
      end
      kept 'step-1: is no folder'
      optimizer:write(path, model, '{"n":3}')
      tools.write(path .. '/notes', 'mine')
      kept "step-1: holds 'notes', which is no part of the checkpoint"
      os.remove(path .. '/notes')
      tools.run(('rm %s/config.json; mkdir %s/config.json'):format(path, path))
      kept "step-1: 'config.json' is a folder"
      tools.run(('rmdir %s/config.json; mv %s %s.real; ln -s %s.real %s'):format(path, path, path, path, path))
      kept 'step-1: is no folder'
      os.remove(path)
      tools.run(('mkdir %s'):format(path))
      kept 'step-1/state.json: is missing'
      tools.run(('mv %s.real/state.json %s; rm -r %s.real'):format(path, path, path))
      damage(path .. '/state.json')
      kept 'state.json: is not what was written'
      optimizer:write(path, model, '{"n":4}')
      assert.equal('step-1\nstep-1.old\n', names())
    end)
  end)

  it('refuse a state that is no JSON, and leave nothing behind', function()
    ms.scope(function(own)
      local folder = tools.folder()
      local model, optimizer = pair(own)
      assert.has_error(function() optimizer:write(folder .. '/step-1', model, '{') end)
      local _, names = tools.run('ls -A ' .. folder)
      assert.equal('', names)
    end)
  end)

  -- A process that may write only so much into a file stands for a full disk: the same error path.
  it('leave the previous one intact when a write fails', function()
    ms.scope(function(own)
      local folder = tools.folder()
      local model, optimizer = pair(own)
      train(model, optimizer, 1, 1)
      optimizer:write(folder .. '/step-1', model, '{"n":1}')
      local hash = select(2, tools.run('cat ' .. folder .. '/step-1/* | cksum'))
      local code = ([[
        local ms, json = require 'moonstill', require 'moonstill.base.json'
        local config = json.read('tests/fixtures/adamw.json').config
        local model = ms.model.create(config, 1, { train = true, dtype = 'f32' })
        local optimizer = ms.optimizer.new(model)
        for _, name in ipairs { 'step-1', 'step-2' } do
          local ok, why = pcall(optimizer.write, optimizer, %q .. name, model, '{"n":2}')
          print(ok, why)
        end]]):format(folder .. '/')
      for _, limit in ipairs { 1, 4 } do -- kilobytes: in the weights, in the moments
        local status, out, err = tools.run(("trap '' XFSZ; ulimit -f %d; %s luajit -e %s")
          :format(limit, environment, tools.quote(code)))
        assert.equal(0, status, err)
        assert.falsy(out:find('true', 1, true), out)
        assert.truthy(out:find('File too large', 1, true), out)
        local _, names = tools.run('ls -A ' .. folder)
        assert.equal('step-1\n', names)
        assert.equal(hash, select(2, tools.run('cat ' .. folder .. '/step-1/* | cksum')))
      end
      assert.equal('{"n":1}', optimizer:read(folder .. '/step-1', model))
    end)
  end)

  it('fail with a message where nothing can be written', function()
    ms.scope(function(own)
      local model, optimizer = pair(own)
      tools.fails('/proc/nowhere', optimizer.write, optimizer, '/proc/nowhere/step-1', model, '{}')
    end)
  end)

  it('give memory back when there is none', function()
    ms.scope(function(own)
      local folder = tools.folder(true)
      local model, optimizer = pair(own)
      optimizer:write(folder .. '/step-1', model, '{"n":1}')
      collectgarbage()
      collectgarbage()
      for _, call in ipairs { function() optimizer:write(folder .. '/step-2', model, '{}') end,
        function() optimizer:read(folder .. '/step-1', model) end } do
        local live, ended = C.ms_test_live(), false
        for n = 1, 10000 do
          C.ms_test_fail_alloc(n)
          local ok, why = pcall(call)
          local failed = C.ms_test_fail_alloc(0) <= 0
          assert.equal(live, C.ms_test_live(), 'allocation ' .. n)
          assert.equal(failed, not ok, 'allocation ' .. n)
          if ok then ended = true break end
          assert.truthy(tostring(why):find('memory', 1, true), why)
          if C.ms_path_kind(folder .. '/step-2') ~= 0 then -- failed after the last rename: complete
            assert.equal(folder .. '/step-2', ms.optimizer.find(folder))
            check(C.ms_dir_remove(folder .. '/step-2'))
          end
        end
        assert.is_true(ended)
      end
    end)
  end)
end)
