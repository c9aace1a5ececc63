--- How the prompt prints values.
local numbers = require 'moonstill.base.numbers'
local pretty = require 'moonstill.prompt.pretty'
local tools = require 'tests.support.tools'

local function width(text)
  local widest = 0
  for line in (text .. '\n'):gmatch '(.-)\n' do
    widest = math.max(widest, #(line:gsub('[\128-\191]', '')))
  end
  return widest
end

describe('a number as text', function()
  it('is the shortest that is read back as the same', function()
    for text, x in pairs { ['0.1'] = 0.1, ['0.30000000000000004'] = 0.1 + 0.2, ['1e100'] = 1e100, ['1e-7'] = 1e-7,
      ['-2.5e-10'] = -2.5e-10, ['5e-324'] = 5e-324, ['9007199254740993'] = 2 ^ 53 + 1, ['3'] = 3, ['-0'] = -0.0,
      ['0.6666666666666666'] = 2 / 3, ['1.7976931348623157e308'] = 1.7976931348623157e308, ['inf'] = math.huge,
      ['-inf'] = -math.huge, ['123456789012'] = 123456789012, ['1e15'] = 1e15 } do
      if x == 2 ^ 53 + 1 then text = '9007199254740992' end -- which is what the number is
      assert.equal(text, numbers.text(x))
    end
    for _, nan in ipairs { 0 / 0, -(0 / 0) } do assert.equal('nan', numbers.text(nan)) end
  end)
  it('is so for any number', function()
    for i, x in ipairs { 1 / 3, math.pi, 2 ^ 0.5 } do
      for power = -300, 300, 7 do
        local y = x * 10 ^ power
        local text = numbers.text(y)
        assert.equal(y, tonumber(text))
        local fewer = ('%.' .. #text:gsub('e.*', ''):gsub('[-.]', ''):gsub('^0+', '') - 1 .. 'g'):format(y)
        assert.truthy(tonumber(fewer) ~= y or i == 0, text)
      end
    end
  end)
end)

describe('a printed value', function()
  it('is a text as it is, without control characters, and of a long one the beginning', function()
    assert.equal('a "b"\n\tc', pretty.show('a "b"\n\tc', 80))
    assert.equal('\\x1b[2J', pretty.show('\27[2J', 80))
    local long = pretty.show(('ä'):rep(1e6), 80)
    assert.truthy(#long < 11000 and long:find('ä... (2000000 bytes in all)', 1, true), long:sub(-60))
  end)
  it('is a table in a line where it fits one, and in lines else', function()
    local t = { 1, 'a\n', { b = 0.1 }, [10] = true, x = -(0 / 0), ['a-b'] = 5LL }
    assert.equal([[{ 1, "a\n", { b = 0.1 }, [10] = true, ["a-b"] = 5LL, x = nan }]], pretty.show(t, 80))
    assert.equal('{\n  1,\n  "a\\n",\n  { b = 0.1 },\n  [10] = true,\n  ["a-b"] = 5LL,\n  x = nan\n}',
      pretty.show(t, 40))
    assert.equal('{}', pretty.show({}, 80))
    assert.equal('{ nil }', (pretty.show({ print }, 80):gsub('function: %S+', 'nil')))
  end)
  it('is never wider than the terminal, nor longer than a screen or two', function()
    local deep, wide, long = {}, {}, {}
    local inner = deep
    for i = 1, 100 do
      inner.next, inner.number = {}, i
      inner = inner.next
      wide[i] = { name = ('n'):rep(i), text = ('x'):rep(i * 7), list = { i, i, i, { i } } }
    end
    for i = 1, 1e5 do long[i] = i / 3 end
    for _, columns in ipairs { 40, 60, 80, 200 } do
      for _, t in ipairs { deep, wide, long, { long, wide, deep }, { [('k'):rep(500)] = ('v'):rep(500) } } do
        local text = pretty.show(t, columns)
        assert.truthy(width(text) <= columns, width(text) .. ' of ' .. columns .. ':\n' .. text)
        local _, lines = text:gsub('\n', '')
        assert.truthy(lines <= 150, lines)
      end
    end
    assert.truthy(pretty.show(long, 80):find('... (99976 more)', 1, true))
  end)
  it('ends where a table contains itself', function()
    local t = { 1 }
    t.t = { t }
    assert.equal('{ 1, t = { { ... } } }', pretty.show(t, 80))
  end)
  it('of a million entries comes at once', function()
    local t, clock = {}, os.clock()
    for i = 1, 1e6 do t['k' .. i] = i end
    local made = os.clock() - clock
    clock = os.clock()
    assert.equal('{ ... (1000000 more) }', pretty.show(t, 80))
    assert.truthy(os.clock() - clock <= made + 0.5)
  end)
  it('uses what a value says of itself, also where that fails', function()
    local function with(f) return setmetatable({ 1 }, { __tostring = f }) end
    assert.equal('me', pretty.show(with(function() return 'me' end), 80))
    assert.equal('{ a = me }', pretty.show({ a = with(function() return 'me' end) }, 80))
    tools.says({ 'a table whose __tostring fails: ', 'no luck' },
      pretty.show(with(function() error 'no luck' end), 80))
    tools.says('whose __tostring fails', pretty.show({ with(function() error() end) }, 80))
    assert.equal('{ 1 }', pretty.show(setmetatable({ 1 }, { __index = error, __metatable = 1 }), 80))
  end)
  it('is of a module what it has', function()
    local ms = require 'moonstill'
    tools.says({ 'ms.kd has ', 'objectives, ', '; help(ms.kd) tells more' }, (pretty.show(ms.kd, 80):gsub('\n', ' ')))
    local text = pretty.show(ms.generate, 60)
    tools.says({ 'ms.generate has answer', 'help(ms.generate) tells' }, (text:gsub('\n', ' ')))
    assert.is_nil(pretty.show(ms.tensor, 80):find 'wrap') -- what modules hand to each other
    assert.truthy(width(text) <= 60)
    assert.equal(tostring(ms), pretty.show(ms, 80))
  end)
end)
