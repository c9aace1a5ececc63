--- Documents: JSON and YAML texts as values, and what is refused.
local ffi = require 'ffi'
local C = require 'moonstill.C'
local json = require 'moonstill.base.json'
local tools = require 'tests.support.tools'

local function fails(text, what, parse)
  tools.fails({ what, 'the-file' }, parse or json.decode_yaml, text, 'the-file')
end

describe('YAML', function()
  it('reads scalars by the core schema of YAML 1.2', function()
    local cases = {
      { 'null', json.null }, { '~', json.null }, { '', json.null }, { 'true', true },
      { 'False', false }, { 'yes', 'yes' }, { 'off', 'off' }, { '12', 12 }, { '-7', -7 },
      { '+3', 3 }, { '0x1F', 31 }, { '0o17', 15 }, { '017', 17 }, { '1.5', 1.5 }, { '.5', 0.5 },
      { '2.', 2 }, { '2e-5', 2e-5 }, { '1_000', '1_000' }, { '1.2.3', '1.2.3' }, { '.', '.' },
      { '1e', '1e' }, { '0x', '0x' }, { '-', { json.null } }, { '.inf', math.huge },
      { '-.Inf', -math.huge }, { '"12"', '12' }, { "'true'", 'true' }, { '!!str 12', '12' },
      { '!!float 12', 12 }, { '12:30', '12:30' }, { '"a\\u00e9\\0b"', 'a\195\169\0b' },
      { '9007199254740992', 2 ^ 53 },
    }
    for _, case in ipairs(cases) do assert.same(case[2], json.decode_yaml(case[1]), case[1]) end
    local nan = json.decode_yaml '.nan'
    assert.is_true(nan ~= nan)
  end)

  it('reads blocks, flows, folded text and comments', function()
    local text = [[
# a comment
a: {b: [1, two, null], c: {}}
d:
  - x: 1
    y: |
      two
      lines
  - []
1: one
]]
    assert.same({
      a = { b = { 1, 'two', json.null }, c = {} }, d = { { x = 1, y = 'two\nlines\n' }, {} },
      ['1'] = 'one' }, json.decode_yaml(text))
    assert.is_true(json.is_array(json.decode_yaml(text).d[2]))
    assert.is_false(json.is_array(json.decode_yaml(text).a.c))
  end)

  it('copies anchored nodes, the last of a name', function()
    assert.same({ a = { 1 }, b = { 1 }, c = 2, d = 2 },
      json.decode_yaml 'a: &x [1]\nb: *x\nc: &x 2\nd: *x\n')
  end)

  it('gives lines to nodes', function()
    local out, count = ffi.new 'ms_doc *[1]', ffi.new 'int64_t[1]'
    local text = 'a: 1\n\nb:\n  - 2\n'
    assert.equal(0, C.ms_doc_parse_yaml('t', text, #text, out))
    local nodes = C.ms_doc_nodes(out[0], count)
    local lines = {}
    for i = 0, tonumber(count[0]) - 1 do lines[#lines + 1] = nodes[i].line end
    C.ms_doc_free(out[0])
    assert.same({ 1, 1, 1, 3, 4, 4 }, lines)
  end)

  it('refuses what it does not read, with the place', function()
    fails('a: 1\nb: {x: 1}\na: 3\n', "line 3, column 1: duplicate key 'a' (first on line 1)")
    fails('a: {x: 1, y: 2, x: 3}', "line 1, column 17: duplicate key 'x'")
    fails('a: 1\n b: 2\n', 'line 2')
    fails('a: *x', 'not there')
    fails('a: &x [*x]', 'inside its own anchor')
    fails('<<: {a: 1}', 'merge keys')
    fails('[1]: 2', 'key must be a scalar')
    fails('? \n: 2', 'empty key')
    fails('!!int x', 'tag')
    fails('!thing x', 'tags other')
    fails('a: 1\n---\nb: 2\n', 'second document')
    fails('9007199254740993000', '2^53')
    fails('a: \255', 'byte 3')
    fails(('['):rep(200) .. (']'):rep(200), 'nested')
  end)

  it('names the slips that are made most often, with the place and what to do', function()
    local TAB = 'a tab: YAML is indented with blanks alone'
    fails('a:\n\tb: 1\n', 'line 2, column 1: ' .. TAB)
    fails('a:\n  b: 1\n  \tc: 2\n', 'line 3, column 3: ' .. TAB)
    fails('\tx: 1', 'line 1, column 1: ' .. TAB)
    fails('a: 1\n\n# \tno\nb:\n    c: 2\n\t  d: 3', 'line 6, column 1: ' .. TAB)
    local BLANK = 'a blank belongs behind the colon of a key: value'
    fails('epochs:2\nb: 3\n', 'line 1, column 8: ' .. BLANK)
    fails('b: 3\nepochs:2\n', 'line 2, column 8: ' .. BLANK)
    fails('a:\n  x: 1\n  kd.k:3\n', 'line 3, column 8: ' .. BLANK)
    fails('a: "x\nb: 2\n', 'line 1, column 4: the quote that begins here is not closed')
    fails("a: 1\nb: 'x\n", 'line 2, column 4: the quote that begins here is not closed')
    fails('a: [1, 2\n', 'line 1, column 4: the bracket that begins here is not closed')
    fails('x: 1\na: {b: 1, c: 2\nd: 3\n', 'line 2, column 4: the bracket that begins here is not closed')
    fails('a: b: c\n', 'line 1, column 5: a colon where no key is: a value that holds \': \' is put in quotes')
    fails('\xEF\xBB\xBFa:\n\tb: 1', 'line 2') -- behind a byte order mark
    -- what is none of them
    assert.same({ a = 'x:y', b = 'http://c', c = 'a\tb' }, json.decode_yaml 'a: x:y\nb: http://c\nc: a\tb\n')
  end)

  it('knows where the keys of a file are', function()
    local path = tools.write(tools.folder() .. '/a.yaml', 'a: 1\nb:\n  - {x: 1, "y z": 2}\n  - 3\nc:\n  d: [1]\n')
    local t = json.read_yaml(path)
    local function at(of, key) return { json.place(of, key) } end
    assert.same({ { 1, 1 }, { 2, 1 }, { 5, 1 }, {} }, { at(t, 'a'), at(t, 'b'), at(t, 'c'), at(t, 'x') })
    assert.same({ { 3, 6 }, { 3, 12 }, { 6, 3 } }, { at(t.b[1], 'x'), at(t.b[1], 'y z'), at(t.c, 'd') })
    assert.same({ a = 1, b = { { x = 1, ['y z'] = 2 }, 3 }, c = { d = { 1 } } }, t)
    assert.same({}, at(json.decode_yaml 'a: 1', 'a'))
  end)

  it('bounds what aliases may grow to', function()
    local text = { 'a0: &a0 [x, x, x, x, x, x, x, x, x, x]' }
    for i = 1, 9 do
      local ref = ('*a%d'):format(i - 1)
      text[i + 1] = ('a%d: &a%d [%s]'):format(i, i, table.concat({ ref, ref, ref, ref, ref, ref, ref,
        ref, ref, ref }, ', '))
    end
    fails(table.concat(text, '\n'), 'more than 1048576 nodes')
  end)

  it('survives broken texts', function()
    local whole = 'a: &x {b: [1, "two\\n", null], c: {}}\nd:\n  - x: 1\n    y: |\n      t\n  - *x\n' ..
      "e: 'it''s'\n? f\n: !!str 1\n"
    local live = C.ms_test_live()
    for i = 1, #whole do pcall(json.decode_yaml, whole:sub(1, i)) end
    local word = ffi.new 'uint32_t[4]'
    for round = 1, 3000 do
      C.ms_philox(7, 1, round, word)
      local at, by = word[0] % #whole + 1, string.char(word[1] % 256)
      local cut = whole:sub(1, at - 1) .. by .. whole:sub(at + word[2] % 3)
      pcall(json.decode_yaml, cut)
    end
    assert.equal(live, C.ms_test_live())
  end)

  it('gives memory back when there is none', function()
    local text = 'a: &x [1, {b: two}]\nc: *x\n'
    local function again() return json.encode(json.decode_yaml(text)) end
    assert.is_true(tools.walk_memory(again, '{"a":[1,{"b":"two"}],"c":[1,{"b":"two"}]}') > 3)
  end)
end)

describe('JSON', function()
  it('reads values', function()
    local v = json.decode '{"a": [1, -2.5e3, true, false, null, "\\u00e9\\ud83d\\ude00\\u0000"], "b": {}}'
    assert.same({ 1, -2500, true, false, json.null, 'é😀\0' }, v.a)
    assert.is_true(json.is_array(v.a))
    assert.is_false(json.is_array(v.b))
    assert.same({ false, true, false, false, false },
      { json.is_object(v.a), json.is_object(v.b), json.is_object(json.null), json.is_object 'a', json.is_object() })
    assert.is_true(json.is_array(json.decode '[]'))
    assert.equal(2 ^ 53, json.decode '9007199254740992')
    assert.equal('x', json.decode '"x"')
  end)

  it('refuses malformed texts, with the place', function()
    for _, case in ipairs { { '{"a":1,"a":2}', 'duplicate' }, { '[1,\n2', 'line 2' }, { '[1] x', 'line 1' },
      { '', 'line 1' }, { '"\255"', 'byte' }, { '[01]', 'line 1' }, { '[1e999 x]', 'column 8' },
      { '[01e999]', 'line 1' }, { '[1.e999]', 'line 1' }, { '[1e999-5]', 'line 1' }, { '[-]', 'line 1' },
      { '[1e999\n,,', 'line 2, column 2 (byte 9)' }, { '{"a":1e999,"a":1}', 'duplicate' },
      { '["\n1e999"]', 'line 1' }, { '[1e999,' .. ('e'):rep(2 ^ 22), 'line 1' }, -- in time linear in its length
      { ('['):rep(5000), 'depth' } } do
      fails(case[1], case[2], json.decode)
    end
  end)

  it('survives broken texts', function()
    local whole = '{"a": [1, -2.5e3, true, null, "\\u00e9\\ud83d\\ude00"], "b": {"c": {}}}'
    local live = C.ms_test_live()
    local word = ffi.new 'uint32_t[4]'
    for round = 1, 3000 do
      C.ms_philox(8, 1, round, word)
      local at, by = word[0] % #whole + 1, string.char(word[1] % 256)
      pcall(json.decode, whole:sub(1, at - 1) .. by .. whole:sub(at + word[2] % 3))
    end
    assert.equal(live, C.ms_test_live())
  end)
end)
