--- What is typed at the prompt as a function: its values, what is unfinished, which locals are lost.
local chunk = require 'moonstill.prompt.chunk'
local tools = require 'tests.support.tools'

local function pass(...) return ... end

-- The values of a text as a list with their number `n`.
local function values(text)
  local f, why = chunk.compile(text)
  assert(f, why)
  return { n = select('#', f(pass)), f(pass) }
end

describe('a text at the prompt', function()
  it('gives the values of an expression, as it would in a program', function()
    for text, want in pairs {
      ['1 + 1'] = { n = 1, 2 }, ['1, nil, 3'] = { n = 3, 1, nil, 3 }, ['= 5'] = { n = 1, 5 },
      ['"a" -- why'] = { n = 1, 'a' }, ['5;'] = { n = 1, 5 }, ["('%d%%'):format(4)"] = { n = 1, '4%' },
      ['-- nothing'] = { n = 0 }, [''] = { n = 0 }, ['return 4, 5'] = { n = 2, 4, 5 },
      ['(function(...) return select("#", ...) end)(nil, nil)'] = { n = 1, 2 },
    } do assert.same(want, values(text), text) end
  end)

  it('gives those of a last expression behind statements, and none of a last statement', function()
    for text, want in pairs {
      ['local x = 1; x'] = { n = 1, 1 }, ['local x = 1 x'] = { n = 1, 1 }, ['local x = 1; -x; -- why'] = { n = 1, -1 },
      ['local x = 1; local y = 2'] = { n = 0 }, ['local z = 3; z * 2, z'] = { n = 2, 6, 3 },
      ['local f = function() return 7 end f()'] = { n = 1, 7 }, ['local x = 1; [[a]]'] = { n = 1, 'a' },
      ['local x = 5 % 3; x % 2'] = { n = 1, 0 }, ['do end math.abs(-2)'] = { n = 1, 2 },
      ['for i = 1, 2 do math.abs(i) end'] = { n = 0 }, ["local x = 1; ('%d'):format(x)"] = { n = 1, '1' },
      ['local t = {}\nfor i = 1, 3 do\n  t[i] = i\nend\n#t'] = { n = 1, 3 },
    } do assert.same(want, values(text), text) end
  end)

  it('is split nowhere but where Lua ends a statement', function()
    tools.says('ambiguous syntax', select(2, chunk.compile 'local x = math.abs\n(-3)'))
    assert.same({ n = 0 }, values 'local x = ("a")\n.. "b"')
    assert.is_nil(chunk.compile '1) + (2')
    assert.is_nil(chunk.compile 'x y')
  end)

  it('leaves the lines of calls to be blamed', function()
    local function line() return debug.getinfo(3, 'l').currentline end
    rawset(_G, 'whose', function() return (line()) end)
    assert.same({ n = 1, 1 }, values 'whose()')
    assert.same({ n = 1, 3 }, values 'local a = 1\n\nwhose()')
    for text, want in pairs { ['nothing_at_all.x'] = 1, ['local a = 1\nnothing_at_all.x -- why'] = 2, ['-nil'] = 1 } do
      tools.fails(('prompt:%d: attempt to'):format(want), chunk.compile(text), pass)
    end
    rawset(_G, 'whose', nil)
  end)

  it('is unfinished where more lines could make it whole', function()
    for _, text in ipairs { '20 +', 'for i = 1, 2 do', 'f(', 'x = {', '[[a', 'x = 1; y +', 'if a then', 'x = 1; [[a',
      'local function f()' } do
      local f, why, unfinished = chunk.compile(text)
      assert.same({ nil, true }, { f, unfinished }, text)
      assert.truthy(why:find '^prompt:%d+: ')
    end
    for _, text in ipairs { 'a = 5 end', '1 +* 2', 'x y', '"abc', "x = 'abc", ')', 'goto a' } do
      assert.falsy(select(3, chunk.compile(text)), text)
    end
  end)

  it('is refused where it is wrong, as an expression where it begins like one', function()
    assert.equal("prompt:1: unexpected symbol near '*'", select(2, chunk.compile '1 +* 2'))
    assert.equal("prompt:1: '=' expected near 'y'", select(2, chunk.compile 'x y'))
    assert.equal("prompt:1: '<eof>' expected near 'end'", select(2, chunk.compile 'a = 5 end'))
  end)

  it('loses the locals that it does not use itself', function()
    for text, want in pairs {
      ['local z = 3'] = { 'z' }, ['local a, b = 1, 2; print(a)'] = { 'b' }, ['local function f() end'] = { 'f' },
      ['local z = 3; z * 2'] = {}, ['do local z = 3 end'] = {}, ['f = function() local z = 3 end'] = {},
      ['local a = 1\nlocal function f() return a end\nf()'] = {}, ['x = "local z = 3"'] = {}, ['-- local z = 3'] = {},
      ['local z = 3; a.z = 1'] = { 'z' }, ['local z = 3 local z = 4'] = { 'z' },
    } do assert.same(want, chunk.unused_locals(text), text) end
  end)

  it('of a thousand lines is compiled at once', function()
    local lines = {}
    for i = 1, 1000 do lines[i] = ('do local v = { %d, "%d" } end math.abs(%d)'):format(i, i, i) end
    local clock = os.clock()
    assert.truthy(chunk.compile(table.concat(lines, '\n')))
    assert.falsy(chunk.compile(table.concat(lines, '\n') .. '\nx y'))
    assert.truthy(os.clock() - clock < 2, os.clock() - clock) -- a reader's patience
  end)
end)
