--- Single elements of tensors, sums and extremes, tables in and out: what users do at the prompt.
local ms = require 'moonstill'
local tools = require 'tests.support.tools'

-- Values that each dtype holds exactly.
local VALUES = { f32 = { 1.5, -2 ^ -140, 3, 2 ^ 100, 0, -7 }, bf16 = { 1.5, -2 ^ -130, 3, 2 ^ 100, 0, -7 },
  f16 = { 1.5, -2 ^ -24, 3, 65504, 0, -7 }, i32 = { 1, -2 ^ 31, 3, 2 ^ 31 - 1, 0, -7 },
  i64 = { 1, -2 ^ 40, 3, 2 ^ 50, 0, -7 }, u8 = { 1, 2, 3, 255, 0, 7 } }

for _, spec in ipairs(tools.devices) do
  local ok, device = pcall(ms.device.open, spec)

  describe('elements of tensors on ' .. spec, function()
    if not ok then return pending('all', device) end
    local function within(body)
      return function() ms.scope(function(own) body(own) end) end
    end

    for dtype, values in pairs(VALUES) do
      it('of ' .. dtype .. ' are read and written one at a time, counted from 1', within(function(own)
        local t = own(ms.tensor(device, dtype, 2, 3)):write(values)
        for i, want in ipairs(values) do
          local row, column = math.floor((i - 1) / 3) + 1, (i - 1) % 3 + 1
          assert.equal(want, t:at(row, column))
          assert.equal(want, t[row][column])
        end
        for i, value in ipairs(values) do
          t:set(2, 3, value)
          assert.equal(value, t:at(2, 3))
          t[1][i % 3 + 1] = value
          assert.equal(value, t:at(1, i % 3 + 1))
        end
        assert.equal(values[4], t:at(2, 1)) -- its neighbours stay
        assert.equal(values[5], t:at(2, 2))
      end))
    end

    it('have as many indices as there are axes', within(function(own)
      local one = own(ms.tensor(device, { 5, 6, 7 }))
      assert.equal(7, one[3])
      one[3] = 8
      assert.same({ 5, 6, 8 }, one:read())
      local three = own(ms.tensor(device, { { { 1, 2 }, { 3, 4 } }, { { 5, 6 }, { 7, 8 } } }))
      assert.equal(6, three:at(2, 1, 2))
      assert.equal(6, three[2][1][2])
      assert.same({ { 5, 6 }, { 7, 8 } }, own(three[2]):table())
    end))

    it('are set by rows as well', within(function(own)
      local t = own(ms.tensor(device, 'f32', 3, 2))
      t[2] = { 1, 2 }
      t[3] = own(ms.tensor(device, 'bf16', { 3, 4 }))
      assert.same({ { 0, 0 }, { 1, 2 }, { 3, 4 } }, t:table())
    end))

    it('of a view are the same memory, which a row keeps alive', within(function(own)
      local t = ms.tensor(device, { { 1, 2 }, { 3, 4 }, { 5, 6 } })
      local v = own(t:view(1, 4)) -- from the second element on, across rows
      assert.equal(2, v[1])
      assert.equal(5, v:at(4))
      v[2] = 30
      assert.equal(30, t:at(2, 1))
      local row = own(t[2])
      t:free()
      assert.same({ 30, 4 }, row:read())
      row[2] = 40
      assert.equal(40, v[3])
    end))

    it('are counted by # along the first axis', within(function(own)
      assert.equal(4, #own(ms.tensor(device, 4)))
      assert.equal(2, #own(ms.tensor(device, 2, 5)))
      assert.equal(5, #own(own(ms.tensor(device, 2, 5))[1]))
    end))

    it('have sum, mean, greatest and least, over any number of parts', within(function(own)
      local t = own(ms.tensor(device, { { 1, -5, 3 }, { 4, 9, 9 } }))
      assert.equal(21, t:sum())
      assert.equal(3.5, t:mean())
      assert.same({ 9, 2, 2 }, { t:max() }) -- the first of equal ones
      assert.same({ -5, 1, 2 }, { t:min() })
      local n = 3 * 65536 + 5
      local list = {}
      for i = 1, n do list[i] = i % 1000 end
      list[n], list[131073], list[2] = 5000, -3, 0.5
      local long = own(ms.tensor(device, 'f32', n)):write(list)
      local sum = 0
      for _, x in ipairs(list) do sum = sum + x end
      assert.equal(sum, long:sum()) -- exact: halves far below 2^53
      assert.same({ 5000, n }, { long:max() })
      assert.same({ -3, 131073 }, { long:min() })
      assert.equal(sum / n, long:mean())
    end))

    it('of all dtypes have them', within(function(own)
      for dtype, values in pairs(VALUES) do
        local t, sum = own(ms.tensor(device, dtype, 6)):write(values), 0
        for _, x in ipairs(values) do sum = sum + x end
        assert.equal(sum, t:sum(), dtype)
        assert.same({ math.max(unpack(values)), 4 }, { t:max() }, dtype)
        assert.equal(math.min(unpack(values)), (t:min()), dtype)
      end
    end))

    it('that are NaN are neither hidden nor hide anything before them', within(function(own)
      local t = own(ms.tensor(device, { 1, 0 / 0, 5, 1 / 0, 0 / 0 }))
      for _, name in ipairs { 'max', 'min' } do
        local value, at = t[name](t)
        assert.is_true(value ~= value)
        assert.equal(2, at)
      end
      assert.is_true(t:sum() ~= t:sum())
      assert.same({ 1 / 0, 1 }, { own(ms.tensor(device, { 1 / 0, 3 })):max() })
    end))

    it('come from nested tables and become them', within(function(own)
      for _, x in ipairs { { 7 }, { 1, 2, 3 }, { { 1, 2 }, { 3, 4 }, { 5, 6 } },
                           { { { 1 }, { 2 } }, { { 3 }, { 4 } } } } do
        assert.same(x, own(ms.tensor(device, x)):table())
      end
      local t = own(ms.tensor(spec, 'i32', { { 1, 2 }, { 3, 4 } }))
      assert.equal('i32', t:dtype())
      assert.same({ 2, 2 }, { t:shape() })
      assert.same({ 1, 2, 3 }, own(ms.tensor(device, { [0] = 1, 2, 3 })):read()) -- arrays from 0 on
      assert.same({ 2, 3 }, { own(ms.tensor(spec, 2, 3)):shape() })
      assert.same({ 0, 0 }, own(ms.tensor(spec, 2)):read())
      assert.same({ 1, 2 }, own(ms.tensor.new(spec, { 1, 2 })):read())
    end))

    it('that are not there are errors with index and shape', within(function(own)
      local t, fails = own(ms.tensor(device, { { 1, 2, 3 }, { 4, 5, 6 } })), tools.fails
      fails('tensor: index 1 = 0, expected an integer in 1..2 for [2, 3]', t.at, t, 0, 1)
      fails('tensor: index 2 = 4, expected an integer in 1..3 for [2, 3]', t.at, t, 2, 4)
      fails('tensor: index 2 = 1.5, expected an integer in 1..3 for [2, 3]', t.at, t, 2, 1.5)
      fails('tensor: index 1 = x, expected an integer in 1..2', t.at, t, 'x', 1)
      fails('index 1 = nan', t.at, t, 0 / 0, 1)
      fails('tensor: 1 index for [2, 3], which has 2 axes', t.at, t, 1)
      fails('tensor: 3 indices for [2, 3], which has 2 axes', t.at, t, 1, 1, 1)
      fails('tensor: 0 indices for [2, 3]', t.at, t)
      fails('tensor: 0 indices for [2, 3]', t.set, t)
      fails('tensor: 1 index for [2, 3]', t.set, t, 1, 2)
      fails('tensor: set: the value is a nil, not a number', t.set, t, 1, 2, nil)
      fails('tensor: set: the value is a table, not a number', t.set, t, 1, 2, {})
      fails('index 1 = 3, expected an integer in 1..2 for [2, 3]', function() return t[3] end)
      fails('index 1 = -1', function() return t[-1] end)
      fails('index 1 = true', function() return t[true] end)
      fails('index 1 = 4, expected an integer in 1..3 for [3]', function() return t[1][4] end)
      fails('index 1 = 9', function() t[9] = { 1, 2, 3 } end)
      fails('tensor write: 2 elements of 3', function() t[1] = { 1, 2 } end)
      fails('a table or an FFI array expected, got nil', function() t[1] = nil end)
      fails('the value is a string, not a number', function() t[1][1] = 'x' end)
      fails("tensor: no 'name' can be set", function() t.name = 1 end)
      fails("did you mean 'shape'", function() return t.shap end)
      local i = own(ms.tensor(device, 'u8', 2, 2))
      fails({ 'tensor: element [2, 1] of [2, 2]', '256, which no u8 is' }, i.set, i, 2, 1, 256)
      fails('element 3: number expected, got string', t.write, t, { 1, 2, 'x' })
    end))

    it('of tables that are none are errors with their place', function()
      local fails = tools.fails
      local function make(...) return ms.tensor(device, ...) end
      fails('tensor: [2] has 1 element, and the first one there 2', make, { { 1, 2 }, { 3 } })
      fails('tensor: [2][1] has 2 elements, and the first one there 1', make, { { { 1 } }, { { 1, 2 } } })
      fails('tensor: [2] is a number, and the first one there a table', make, { { 1 }, 2 })
      fails('tensor: [2] is a table, not a number', make, { 1, { 2 } })
      fails('tensor: [1][2] is a string, not a number', make, { { 1, 'x' } })
      fails('tensor: a table without elements', make, {})
      fails('tensor: a table without elements', make, 'f32', { {} })
      local endless = {}
      endless[1] = endless
      fails('more than 8 deep', make, endless)
    end)

    it('of what was freed are errors', function()
      local t = ms.tensor(device, { 1, 2 })
      t:free()
      for _, use in ipairs {
        function() return t[1] end, function() t[1] = 2 end, function() return #t end,
        function() return t:at(1) end, function() t:set(1, 2) end, function() return t:sum() end,
        function() return t:mean() end, function() return t:max() end, function() return t:min() end,
        function() return t:table() end, function() return t:length() end,
      } do
        tools.fails('tensor: used after free', use)
      end
    end)

    it('leave nothing alive', function()
      local C = require 'moonstill.C'
      collectgarbage()
      collectgarbage()
      local before = tonumber(C.ms_test_live())
      local t = ms.tensor(spec, { { 1, 2 }, { 3, 4 } })
      t:at(1, 1)
      t:set(1, 1, 5)
      t[1] = { 1, 2 }
      t:sum()
      t:max()
      pcall(t.at, t, 5, 5)
      pcall(t.set, t, 1, 1, 'x')
      pcall(function() t[1] = { 1 } end)
      t:free()
      assert.equal(before, tonumber(C.ms_test_live()))
    end)
  end)
end

describe('a tensor', function()
  it('prints whole numbers as such, and as many as the terminal is wide', function()
    ms.scope(function(own)
      local t = own(ms.tensor('cpu', 'i32', { 123456789, -2 }))
      assert.equal('tensor i32 [2] on cpu\n 123456789         -2', tostring(t))
    end)
    local code = [[local t = ms.tensor('cpu', 2, 50) print(t)]]
    for columns, elements in pairs { [80] = 7, [60] = 5, [40] = 3 } do
      local status, text = tools.run(('COLUMNS=%d %s -e "%s"'):format(columns, tools.program(), code))
      assert.equal(0, status)
      local line = text:match '\n([^\n]*)\n'
      assert.equal(elements, select(2, line:gsub('%S+', '')))
      assert.is_true(#line <= columns, line)
    end
  end)

  it('whose device is given by a text holds it alone', function() -- nothing else has it open there
    local code = [[local C = require 'moonstill.C' local before = C.ms_test_live() ms.tensor('cpu', 2):free()
      print(tonumber(C.ms_test_live() - before))]]
    local status, out = tools.run(('%s -e "%s"'):format(tools.program(), code))
    assert.same({ 0, '0\n' }, { status, out })
  end)

  it('has help for all that it can do, wherever that stands', function()
    local catalog, methods = require 'moonstill.prompt.catalog', {}
    for _, entry in ipairs(catalog.methods_of(catalog.kinds().tensor)) do methods[entry.name] = true end
    for _, name in ipairs { 'write', 'view', 'at', 'set', 'sum', 'max', 'table', 'free' } do
      assert.is_true(methods[name], name)
    end
  end)

  it('takes a device as an object or a text, and nothing else', function()
    tools.fails('device expected, got nil', ms.tensor, nil, 3)
    tools.fails('device expected, got number', ms.tensor, 3)
    tools.fails('device expected, got table', ms.tensor, { 1, 2 })
    tools.fails("device 'abacus'", ms.tensor, 'abacus', 3)
    local device = ms.device 'cpu'
    device:close()
    tools.fails('device: used after close', ms.tensor, device, 3)
    tools.fails("no dtype 'f23'; did you mean 'f32'?", ms.tensor, 'cpu', 'f23', 3)
    tools.fails('size 1 = nil', ms.tensor, 'cpu')
    tools.fails('size 2 = table', ms.tensor, 'cpu', 2, {})
  end)
end)
