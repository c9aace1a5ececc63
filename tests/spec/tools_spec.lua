local ffi = require 'ffi'
local tools = require 'tests.support.tools'

local function message(...)
  local ok, why = pcall(tools.close, ...)
  return not ok and why or nil
end

describe('tools.close', function()
  it('takes tables, arrays and pointers', function()
    local a = ffi.new('float[3]', { 1, 2, 3 })
    tools.close(a, { 1, 2, 3 }, 'f32')
    tools.close({ 1, 2, 3 }, a, 'f32')
    tools.close(a + 0, { 1, 2, 3 }, 'f32')
    tools.close({ [0] = 1, 2 }, { 1, 2 }, 'f64')
    tools.close(ffi.new('double[?]', 2, { 1, 2 }), { 1, 2 }, 'f64')
  end)
  it('names the worst element', function()
    local why = message({ 1, 2.5, 3.1 }, { 1, 2, 3 }, 'f32', 1, 0.05)
    assert.truthy(why:find('element 1 of 3: got 2.5, want 2', 1, true))
    assert.truthy(why:find('10 times', 1, true) or why:find('9.99', 1, true))
  end)
  it('refuses NaN, infinity and other lengths', function()
    assert.truthy(message({ 0 / 0 }, { 1 }, 'f32', 1e9, 1e9))
    assert.truthy(message({ 1 }, { 0 / 0 }, 'f32', 1e9, 1e9))
    assert.truthy(message({ 1 / 0 }, { 1 }, 'f32', 1e9, 1e9))
    assert.truthy(message({ 1 }, { 1, 2 }, 'f32'))
    assert.falsy(message({ -1 / 0, 0 / 0 }, { -1 / 0, 0 / 0 }, 'f32'))
  end)
  it('counts in the type given', function()
    assert.falsy(message({ 1 + 2 ^ -23 }, { 1 }, 'f32'))
    assert.truthy(message({ 1 + 2 ^ -22 }, { 1 }, 'f32'))
    assert.falsy(message({ 1 + 2 ^ -7 }, { 1 }, 'bf16'))
  end)
end)

describe('tools for errors', function()
  local function raise(what) error(what, 0) end
  local function why(...) return select(2, pcall(...)) end

  it('want an error', function()
    assert.matches('no error, "a" was expected', why(tools.refused, 'a', function() end))
    assert.matches('no error, "a" was expected', why(tools.fails, { 'a', 'b' }, function() end))
  end)
  it('take patterns or plain texts, and want each of them', function()
    assert.equal('row 1.5', tools.refused('%d+%.5', raise, 'row 1.5'))
    assert.equal('row 1.5', tools.fails({ 'row', '1.5' }, raise, 'row 1.5'))
    assert.matches('tools_spec.lua:%d+: "1x5" is expected in: row 1.5', why(function()
      tools.fails({ 'row', '1x5' }, raise, 'row 1.5')
      return nil
    end))
    assert.matches('is expected', why(tools.refused, { 'row', '^1' }, raise, 'row 1.5'))
    assert.matches('is expected', why(tools.fails, '1%.5', raise, 'row 1.5'))
    assert.matches('is expected', why(tools.says, { 'a', 'c' }, 'a b'))
    tools.says({ 'a', 'b' }, 'a b')
  end)
end)

describe('tools', function()
  it('makes repeatable values in [-1, 1)', function()
    local a, b, c = tools.values(1000, 7), tools.values(1000, 7), tools.values(1000, 8)
    local sum, squares, same = 0, 0, 0
    for i = 0, 999 do
      assert.equal(a[i], b[i])
      assert.truthy(a[i] >= -1 and a[i] < 1)
      if a[i] == c[i] then same = same + 1 end
      sum, squares = sum + a[i], squares + a[i] ^ 2
    end
    assert.truthy(same < 3)
    -- mean 0 and mean square 1/3, within four standard deviations of 1000 draws
    assert.truthy(math.abs(sum / 1000) < 4 * math.sqrt(1 / 3 / 1000))
    assert.truthy(math.abs(squares / 1000 - 1 / 3) < 4 * math.sqrt(4 / 45 / 1000))
  end)
  it('runs commands', function()
    local status, out, err = tools.run "echo a; echo b >&2; exit 3"
    assert.same({ 3, 'a\n', 'b\n' }, { status, out, err })
  end)
  it('says why shared data is absent', function()
    local path, why = tools.shared 'no/such/thing'
    assert.is_nil(path)
    assert.truthy(why:find('no/such/thing', 1, true))
  end)
end)
