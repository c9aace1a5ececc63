--- JSON written, and files of JSON lines.
local C = require 'moonstill.C'
local json = require 'moonstill.base.json'
local tools = require 'tests.support.tools'

local function with_file(text, body)
  local path = os.tmpname()
  local file = assert(io.open(path, 'wb'))
  file:write(text)
  file:close()
  local ok, why = pcall(body, path)
  os.remove(path)
  if not ok then error(why, 0) end
end

local function collect(...)
  local list = {}
  for number, value in ... do list[#list + 1] = { number, value } end
  return list
end

describe('json.decode', function()
  it('takes numbers of any size', function()
    for text, value in pairs { ['1000000000000000019884624838656'] = 1000000000000000019884624838656,
      ['9223372036854775807'] = 2 ^ 63, ['9223372036854775808'] = 2 ^ 63,
      ['-9223372036854775809'] = -2 ^ 63, ['18446744073709551615'] = 2 ^ 64,
      ['12345678901234567891'] = 12345678901234567891, ['1e999'] = 1e308, ['-1.5E+400'] = -1e308,
      ['1e-999'] = 0, [('9'):rep(400)] = 1e308, ['-' .. ('9'):rep(300)] = -1e300 } do
      assert.equal(value, json.decode(text), text)
      assert.same({ a = { value, 1 } }, json.decode('{"a":[' .. text .. ',1]}'))
    end
  end)

  it('takes them without memory or not at all', function()
    local function again() return json.encode(json.decode '{"a":[1e999,99999999999999999999],"b":1}') end
    local live = C.ms_test_live()
    assert.is_true(tools.walk_memory(again, '{"a":[1e+308,1e+20],"b":1}') > 3)
    assert.equal(live, C.ms_test_live())
  end)

  it('leaves digits in texts and the places of errors as they are', function()
    local digits = ('9'):rep(30)
    assert.same({ [digits] = 1e30, b = '\\"' .. digits, c = '\\' },
      json.decode(([[{"%s": %s, "b": "\\\"%s", "c": "\\"}]]):format(digits, digits, digits)))
    tools.fails('line 1, column 34', json.decode, '[' .. digits .. ', x]')
  end)
end)

describe('json.decode, ordered', function()
  local function ordered(text) return json.decode(text, 'text', { ordered = true }) end

  it('is written in its own order where that is asked for', function()
    local t = json.decode('{"z": {"d": 1, "c": []}, "role": 1, "a": 2}', 't', { ordered = true })
    t.k = { y = 1, x = 2 }
    local numbers = '{"z":1.0,"a":[2.0,3,-0.0,1e+300],"n":9007199254740993,"m":-9223372036854775808}'
    local decoded = json.decode(numbers, 't', { ordered = true })
    assert.equal(numbers, json.encode(decoded, { ordered = true }))
    decoded.z = 2
    assert.matches('"z":2,', json.encode(decoded, { ordered = true }))
    assert.equal('{"role":1,"a":2,"k":{"x":2,"y":1},"z":{"c":[],"d":1}}', json.encode(t, { order = { 'role' } }))
    assert.equal('{"z":{"d":1,"c":[]},"role":1,"a":2,"k":{"x":2,"y":1}}',
      json.encode(t, { order = { 'role' }, ordered = true }))
  end)
  it('keeps the order of keys, also after changes', function()
    local t = ordered '{"z":1,"a":{"c":1,"b":[]},"m":null}'
    assert.same({ 'z', 'a', 'm' }, json.keys(t))
    assert.same({ 'c', 'b' }, json.keys(t.a))
    t.k, t.b, t.z = 1, 2, nil
    assert.same({ 'a', 'm', 'b', 'k' }, json.keys(t))
    t.b = nil
    assert.same({ 'a', 'm', 'k' }, json.keys(t))
    t.a.a = 1
    assert.same({ 'c', 'b', 'a' }, json.keys(t.a))
    assert.same({ 'a', 'b' }, json.keys { b = 1, a = 2 })
    assert.same({ 'm', 'z', 'a' }, json.keys(ordered '{"m":0,"z":1,"a":2}'))
    assert.same({ 'a', 'm', 'z' }, json.keys(json.decode '{"z":1,"a":2,"m":0}'))
  end)

  it('gives the same values as without', function()
    local text = '{"b":[1,2.0,{"x":[]},{}],"a":"t","c":null,"d":true,"e":9007199254740993,"f":1e3}'
    assert.same(json.decode(text), ordered(text))
    assert.equal(json.encode(json.decode(text)), json.encode(ordered(text)))
  end)

  it('tells floats from integers', function()
    local t = ordered '{"a":1,"b":1.0,"c":[1,2.0,3e0,4],"d":-0.0,"e":99999999999999999999}'
    assert.same({ false, true, true, true },
      { json.is_float(t, 'a'), json.is_float(t, 'b'), json.is_float(t, 'd'), json.is_float(t, 'e') })
    assert.same({ false, true, true, false }, { json.is_float(t.c, 1), json.is_float(t.c, 2),
      json.is_float(t.c, 3), json.is_float(t.c, 4) })
    t.b, t.c[2] = 2, 5
    assert.is_false(json.is_float(t, 'b') or json.is_float(t.c, 2) or json.is_float({ 1 }, 1))
  end)

  it('keeps integers that no double holds', function()
    local t = ordered '{"a":9007199254740993,"b":[-9223372036854775808,9223372036854775807,7],"c":9007199254740991}'
    assert.equal('9007199254740993LL', tostring(json.exact(t, 'a')))
    assert.equal('-9223372036854775808LL', tostring(json.exact(t.b, 1)))
    assert.equal('9223372036854775807LL', tostring(json.exact(t.b, 2)))
    assert.is_nil(json.exact(t.b, 3) or json.exact(t, 'c') or json.exact({ 1 }, 1))
    t.a = 1
    assert.is_nil(json.exact(t, 'a'))
  end)

  it('keeps empty objects and arrays apart', function()
    local t = ordered '{"o":{},"a":[],"f":[1.5]}'
    assert.is_true(json.is_object(t.o) and json.is_array(t.a) and json.is_array(t.f) and json.is_object(t))
    t.o[1] = 'x'
    assert.is_true(json.is_object(t.o))
  end)

  it('holds for files and lines too, and knows its options', function()
    with_file('{"b":1.0,"a":2}\n{"b":2,"a":1}\n', function(path)
      for number, row in json.lines(path, { ordered = true }) do
        assert.same({ 'b', 'a' }, json.keys(row))
        assert.equal(number == 1, json.is_float(row, 'b'))
      end
    end)
    with_file('{"b":1,"a":2}', function(path)
      assert.same({ 'b', 'a' }, json.keys(json.read(path, { ordered = true })))
    end)
    tools.fails("no option 'order'", json.decode, '1', 'x', { order = true })
  end)
end)

describe('json.encode', function()
  it('sorts keys, or takes an order', function()
    local t = { b = 1, a = { d = 'x', c = json.array() }, e = json.null }
    assert.equal('{"a":{"c":[],"d":"x"},"b":1,"e":null}', json.encode(t))
    assert.equal('{"e":null,"a":{"d":"x","c":[]},"b":1}', json.encode(t, { order = { 'e', 'd' } }))
    assert.equal('{\n  "a": [\n    1,\n    2\n  ],\n  "b": {}\n}',
      json.encode({ a = { 1, 2 }, b = {} }, { indent = 2 }))
  end)

  it('keeps numbers', function()
    for _, x in ipairs { 0, 1, -1, 2 ^ 53, -2 ^ 53, 0.1, 1 / 3, 1e300, 5e-324, 123456789.125, 2 ^ 60 } do
      assert.equal(x, json.decode(json.encode(x)), tostring(x))
    end
    assert.equal('9007199254740992', json.encode(2 ^ 53))
    assert.equal(-math.huge, 1 / json.decode(json.encode(-0.0)))
  end)

  it('keeps texts', function()
    for _, s in ipairs { '', '"\\/\b\f\n\r\t', '\0\1\31\127', 'é😀', ('x'):rep(1000) } do
      assert.equal(s, json.decode(json.encode(s)))
      assert.same({ [s] = 1 }, s:find '%z' and { [s] = 1 } or json.decode(json.encode { [s] = 1 }))
    end
  end)

  it('refuses what JSON cannot say', function()
    local circle = {}
    circle.me = circle
    for _, case in ipairs { { { a = 0 / 0 }, 'value.a' }, { { 1, { math.huge } }, 'value[2][1]' },
      { { [1] = 1, x = 2 }, 'key x' }, { { [1] = 1, [3] = 2 }, 'key 3' }, { { [true] = 1 }, 'true' },
      { print, 'function' }, { circle, 'circle' } } do
      tools.fails(case[2], json.encode, case[1])
    end
  end)
end)

describe('json.lines', function()
  it('numbers the lines and passes over empty ones', function()
    with_file('\239\187\191{"a":1}\r\n\n  \n[2]\n"x"', function(path)
      assert.same({ { 1, { a = 1 } }, { 4, { 2 } }, { 5, 'x' } }, collect(json.lines(path)))
    end)
    with_file('', function(path) assert.same({}, collect(json.lines(path))) end)
  end)

  it('reads lines longer than its buffer, and bytes of any value', function()
    local long = ('y'):rep(200000)
    with_file(('"%s"\n1\n"%s"\n'):format(long, long:sub(1, 65533)), function(path)
      assert.same({ { 1, long }, { 2, 1 }, { 3, long:sub(1, 65533) } }, collect(json.lines(path)))
    end)
    with_file('a\0b\n\0\nc', function(path)
      assert.same({ { 1, 'a\0b' }, { 2, '\0' }, { 3, 'c' } }, collect(json.text_lines(path)))
    end)
  end)

  it('names file and line of a malformed record, and files that are not there', function()
    with_file('{"a":1}\n{"a":\n', function(path)
      tools.fails(path .. ': record on line 2', collect, json.lines(path))
    end)
    assert.has_error(function() json.lines '/nowhere/at/all' end)
    assert.has_error(function() json.lines '/' end)
    assert.has_error(function() json.read '/' end)
  end)
end)

describe('json.unfit', function()
  it('finds what cannot be written and read again, with its path', function()
    assert.is_nil(json.unfit({ a = 1, b = { 1, 2, { c = 'é\0\127', d = json.null } }, e = json.array(),
      f = true }, 's'))
    local circle = { x = 1 }
    circle.back = { circle }
    local bad = { a = { 1, { f = print } }, b = 0 / 0, c = math.huge, d = circle, e = '\255', g = { 1, x = 2 },
      h = { [7] = true }, i = 5LL, j = { k = io.stdout } }
    local words = {}
    for i, f in ipairs(json.unfit(bad, 's')) do words[i] = f.path .. ': ' .. f.why:gsub('^%-nan', 'nan') end
    assert.same({ 's.a[2].f: a function', 's.b: nan', 's.c: inf', 's.d.back[1]: a table that holds itself',
      's.e: not UTF-8', 's.g.x: under a key that is no place in an array', 's.h[7]: under a key that is no string',
      's.i: a cdata', 's.j.k: a userdata' }, words)
    assert.is_false((pcall(json.encode, bad)))
    local deep = {}
    for _ = 1, 950 do deep = { deep } end
    assert.equal(1, #json.unfit(deep, 's'))
  end)
end)
