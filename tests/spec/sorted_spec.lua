--- The keys of a table in one order, and that nothing else decides an order.
local sorted = require 'moonstill.base.sorted'
local tools = require 'tests.support.tools'

describe('the keys of a table', function()
  it('are numbers by value, then texts', function()
    assert.same({ -1, 2, 10, 'a', 'b', 'c' }, sorted.keys { c = 1, [10] = 1, a = 1, [2] = 1, b = 1, [-1] = 1 })
    assert.same({}, sorted.keys {})
  end)

  it('are those of two tables, each once', function()
    assert.same({ 'a', 'b', 'c' }, sorted.keys({ b = 1, a = false }, { c = 1, a = 2 }))
  end)

  it('come with their values, false too', function()
    local seen = {}
    for key, value in sorted.pairs { b = false, a = 1 } do seen[#seen + 1] = { key, value } end
    assert.same({ { 'a', 1 }, { 'b', false } }, seen)
  end)

  it('may be set and removed on the way', function()
    local t, seen = { a = 1, b = 2, c = 3 }, {}
    for key, value in sorted.pairs(t) do
      seen[#seen + 1] = key .. value
      t.b, t.c, t.d = nil, 4, 5
    end
    assert.same({ 'a1', 'c4' }, seen)
  end)
end)

describe('the Lua sources', function()
  -- json.lua's walk makes no garbage, and its loops decide nothing
  local may = { ['lua/moonstill/base/sorted.lua'] = 4, ['lua/moonstill/base/json.lua'] = 2 }

  it('go over `pairs` in two files, which keep it from the compiler', function()
    local files = io.popen "find lua recipes -name '*.lua' | sort"
    local count = 0
    for path in files:lines() do
      count = count + 1
      local _, n = (' ' .. tools.read(path)):gsub('[^%w_.]pairs%s*%(', '')
      assert.equal(may[path] or 0, n, path .. ': loops over pairs')
    end
    files:close()
    assert.is_true(count > 30)
  end)
end)
