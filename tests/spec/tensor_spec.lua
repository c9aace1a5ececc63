local ffi = require 'ffi'
local ms = require 'moonstill'
local tools = require 'tests.support.tools'

for _, spec in ipairs(tools.devices) do
  local ok, device = pcall(ms.device.open, spec)

  describe('tensors on ' .. spec, function()
    if not ok then return pending('all', device) end
    local function within(body)
      return function() ms.scope(function(own) body(own) end) end
    end

    it('reads back what was written, from tables, nested tables and arrays', within(function(own)
      local t = own(ms.tensor(device, 2, 3))
      assert.same({ 1, 2, 3, 4, 5, 6 }, t:write({ 1, 2, 3, 4, 5, 6 }):read())
      assert.same({ 6, 5, 4, 3, 2, 1 }, t:write({ { 6, 5, 4 }, { 3, 2, 1 } }):read())
      assert.same({ 7, 8, 9, 10, 11, 12 }, t:write(ffi.new('float[6]', { 7, 8, 9, 10, 11, 12 })):read())
      assert.same({ 1, 1, 1, 1, 1, 0.5 }, t:write(ffi.new('double[6]', { 1, 1, 1, 1, 1, 0.5 })):read())
      local into = t:read(ffi.new('float[6]'))
      assert.equal(0.5, into[5])
    end))

    it('reads every NaN as a number, whatever its bits', within(function(own)
      local bits = ffi.new('uint32_t[4]', 0xffffffff, 0xfffc0001, 0x7fffffff, 0xff800001)
      local floats = ffi.new 'float[4]'
      ffi.copy(floats, bits, 16)
      for _, x in ipairs(own(ms.tensor(device, 4)):write(floats):read()) do
        assert.equal('number', type(x))
        assert.is_true(x ~= x)
      end
      assert.equal(4, #own(ms.tensor(device, 4)):write(floats):read())
    end))

    it('holds every dtype', within(function(own)
      for dtype, values in pairs { f32 = { 1.5, -2 ^ -140, 2 ^ 127 }, bf16 = { 1.5, -2 ^ -130, 2 ^ 127 },
                                   f16 = { 1.5, -2 ^ -24, 65504 }, i32 = { 1, -2 ^ 31, 2 ^ 31 - 1 },
                                   i64 = { 1, -2 ^ 40, 2 ^ 50 }, u8 = { 0, 7, 255 } } do
        local t = own(ms.tensor(device, dtype, 3)):write(values)
        assert.equal(dtype, t:dtype())
        assert.same(values, t:read(), dtype)
      end
    end))

    it('rounds to nearest even', within(function(own)
      local one = 1 + 2 ^ -8 -- halfway between two bf16
      local t = own(ms.tensor(device, 'bf16', 4)):write { one, one + 2 ^ -7, one + 2 ^ -20, -one }
      assert.same({ 1, 1 + 2 ^ -6, 1 + 2 ^ -7, -1 }, t:read())
      local h = 1 + 2 ^ -11
      t = own(ms.tensor(device, 'f16', 4)):write { h, h + 2 ^ -10, 65520, 2 ^ -25 }
      assert.same({ 1, 1 + 2 ^ -9, math.huge, 0 }, t:read())
    end))

    it('converts between all float dtypes', within(function(own)
      local n = 67 -- vectors and a tail
      local x = own(ms.tensor(device, 'f32', n)):write(tools.values(n, 3))
      for _, a in ipairs { 'f32', 'bf16', 'f16' } do
        for _, b in ipairs { 'f32', 'bf16', 'f16' } do
          local ta = own(ms.tensor(device, a, n)):copy(x)
          local tb = own(ms.tensor(device, b, n)):copy(ta)
          tools.close(tb:read(), ta:read(), b, 0.5)
        end
      end
    end))

    it('keeps infinities and NaN through every dtype', within(function(own)
      for _, dtype in ipairs { 'f32', 'bf16', 'f16' } do
        local got = own(ms.tensor(device, dtype, 3)):write({ 1 / 0, -1 / 0, 0 / 0 }):read()
        assert.same({ 1 / 0, -1 / 0 }, { got[1], got[2] })
        assert.is_true(got[3] ~= got[3], dtype)
      end
    end))

    it('views share memory and keep it alive', within(function(own)
      local t = ms.tensor(device, 2, 3):write { 1, 2, 3, 4, 5, 6 }
      local v = own(t:view(2, 2, 2))
      t:free()
      assert.same({ 3, 4, 5, 6 }, v:read())
      local w = own(v:view(3, 1))
      w:write { 60 }
      assert.same({ 3, 4, 5, 60 }, v:read())
    end))

    it('zeros are zeros', within(function(own)
      assert.same({ 0, 0, 0 }, own(ms.tensor(device, 'bf16', 3)):read())
      assert.same({ 0 }, own(ms.tensor(device, 1)):read())
      collectgarbage()
      collectgarbage 'stop'
      local before = collectgarbage 'count'
      local large = own(ms.tensor(device, 'u8', 2 ^ 25))
      assert.is_true(collectgarbage 'count' - before < 1024) -- KiB: nothing of it passes through Lua
      collectgarbage 'restart'
      assert.equal(0, large:view(2 ^ 25 - 1, 1):read()[1])
    end))

    it('shows itself', within(function(own)
      local t = own(ms.tensor(device, 9, 8)):write(tools.values(72, 1))
      local text = tostring(t)
      assert.truthy(text:find('^tensor f32 %[9, 8%] on ' .. spec .. '\n'))
      local _, lines = text:gsub('\n', '')
      assert.equal(7, lines)
      assert.truthy(text:find('...', 1, true))
      t:free()
      assert.equal('tensor (freed)', tostring(t))
    end))

    it('reports wrong calls', within(function(own)
      local t = own(ms.tensor(device, 2, 3))
      local fails = tools.fails
      fails('tensor write: 2 elements of 6', t.write, t, { 1, 2 })
      fails('number expected, got string', t.write, t, { 'x' })
      fails("no dtype 'f8'", ms.tensor, device, 'f8', 2)
      fails('tensor: size 2 = 0, expected an integer in 1..2^53', ms.tensor, device, 2, 0)
      fails('size 1 = -3', ms.tensor, device, -3)
      fails('size 1 = 1.5, expected an integer', ms.tensor, device, 1.5)
      fails('size 1 = nil', ms.tensor, device)
      fails('rank 9 not in 1..8', ms.tensor, device, 1, 1, 1, 1, 1, 1, 1, 1, 1)
      fails('makes it too large', ms.tensor, device, 2 ^ 40, 2 ^ 40)
      fails('view: [4] at 3 is not inside [2, 3]', t.view, t, 3, 4)
      fails('offset = -1, expected an integer in 0', t.view, t, -1, 4)
      fails('tensor copy: [3] to [2, 3]', t.copy, t, own(ms.tensor(device, 3)))
      fails('tensor expected, got number', t.copy, t, 3)
      fails('device expected, got nil', ms.tensor, nil, 3)
      local gone = ms.tensor(device, 1)
      gone:free()
      gone:free()
      fails('used after free', gone.read, gone)
    end))
  end)
end

describe('devices', function()
  it('that do not exist are errors that name them', function()
    tools.fails("'abacus'", ms.device.open, 'abacus')
  end)

  it('may be closed before their tensors', function()
    local device = ms.device.open 'cpu'
    local t = ms.tensor(device, 2):write { 1, 2 }
    device:close()
    device:close()
    assert.same({ 1, 2 }, t:read())
    t:free()
    assert.has_error(function() ms.tensor(device, 1) end)
    assert.equal('device (closed)', tostring(device))
  end)

  it('leave nothing alive', function()
    local C = require 'moonstill.C'
    collectgarbage()
    collectgarbage()
    local before = C.ms_test_live()
    local device = ms.device.open 'cpu'
    local t = ms.tensor(device, 4, 4)
    local v = t:view(4, 4)
    t:free()
    device:close()
    v:free()
    assert.equal(tonumber(before), tonumber(C.ms_test_live()))
  end)

  it('report an allocation that fails, and leave nothing behind', function()
    local C = require 'moonstill.C'
    local device = ms.device.open 'cpu'
    local before = tonumber(C.ms_test_live())
    for nth = 1, 2 do
      C.ms_test_fail_alloc(nth)
      tools.fails('no memory for', ms.tensor, device, 8)
      C.ms_test_fail_alloc(0)
      assert.equal(before, tonumber(C.ms_test_live()))
    end
    device:close()
  end)
end)
