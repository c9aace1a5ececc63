--- Rows of files, whatever these are: what is read, and where what is wrong is said to be.
local archives = require 'tests.support.archives'
local fail = require 'moonstill.base.fail'
local json = require 'moonstill.base.json'
local readers = require 'moonstill.data.readers'
local fuzz = require 'tests.fuzz.rows'
local tools = require 'tests.support.tools'

local folder = tools.folder(true)

-- The rows of a file, and their places; with `skip`, errors of single rows in the place of these.
local function read(name, content, skip)
  local rows, places = {}, {}
  local path = content and tools.write(folder .. '/' .. name, content) or folder .. '/' .. name
  readers.read(path, function(_, where, value, decode)
    local ok, row = fail.pcall(decode, value, where)
    if not ok and row:sub(1, #where + 2) == where .. ': ' then row = row:sub(#where + 3) end
    if not ok and not skip then error(where .. ': ' .. row, 0) end
    rows[#rows + 1] = row
    places[#places + 1] = where:sub(#folder + 2)
  end)
  return rows, places
end

-- A file is refused in a message that begins with its place.
local function refuses(place, words, name, content)
  local why = tools.fails(words, read, name, content)
  assert.equal(folder .. '/' .. place .. ': ', why:sub(1, #folder + #place + 3))
end

local ROW, OTHER = '{"a":"x","b":[1,{"c":"]\\"}"}]}', '{"a":"\\\\","b":2}'
local WANT = { json.decode(ROW), json.decode(OTHER), json.decode(ROW) }

describe('rows of JSON', function()
  -- The three rows, as people write them down.
  local pretty = '{\n  "a": "x",\n  "b": [1,\n    {"c": "]\\"}"}\n  ]\n}'
  local WAYS = {
    ('%s\n%s\n%s\n'):format(ROW, OTHER, ROW), ('%s\r\n\r\n %s\n\n%s'):format(ROW, OTHER, ROW),
    ('[%s,%s,%s]'):format(ROW, OTHER, ROW), ('[\n  %s,\n%s\n,\n%s ] \n'):format(pretty, OTHER, pretty),
    ('%s\n%s\n%s'):format(pretty, OTHER, pretty), ('%s%s %s'):format(pretty, OTHER, ROW),
    ('{"version": 1, "data": [%s, %s, %s]}'):format(ROW, OTHER, ROW),
    ('{"train": [\n%s,\n%s,\n%s\n]}\n'):format(ROW, OTHER, ROW),
  }

  it('may follow each other in any way, under any of the names', function()
    for i, text in ipairs(WAYS) do
      for _, ending in ipairs { 'json', 'jsonl', 'ndjson' } do
        assert.same({ i, WANT }, { i, (read('w.' .. ending, text)) })
        assert.same(WANT, (read('w.' .. ending, '\239\187\191' .. text)))
      end
    end
    assert.same({}, (read('w.json', ' [ ]\n')))
    assert.same({ WANT[1] }, (read('w.json', pretty)))
    assert.same({ WANT[1] }, (read('w.json', ROW)))
    -- a list of rows under a name of another kind is a part of a row
    for _, text in ipairs { '{"messages":[{"a":1}]}', '{"data":"x"}', '{"data":[1]}', '{"data":[]}' } do
      assert.same({ json.decode(text) }, (read('w.json', text)))
    end
    refuses('w.json', 'with two lists of rows, "data" and "rows"', 'w.json', '{"data":[{}],"rows":[{}]}')
  end)

  it('keep the order of their keys', function()
    for _, text in ipairs { '{"z":1,"a":{"y":1,"b":2}}', '[{"z":1,"a":{"y":1,"b":2}}]',
      '{"data":[{"z":1,"a":{"y":1,"b":2}}]}' } do
      local row = read('o.json', text)[1]
      assert.same({ 'z', 'a' }, json.keys(row))
      assert.same({ 'y', 'b' }, json.keys(row.a))
    end
  end)

  it('have a place: file, line, and the number in an array', function()
    local function places(text) return (select(2, read('p.json', text))) end
    assert.same({ 'p.json:1', 'p.json:3', 'p.json:5' }, places(WAYS[1]:gsub('\n', '\n\n')))
    assert.same({ 'p.json:1: row 1', 'p.json:1: row 2', 'p.json:1: row 3' }, places(WAYS[3]))
    assert.same({ 'p.json:2: row 1', 'p.json:8: row 2', 'p.json:10: row 3' }, places(WAYS[4]))
    assert.same({ 'p.json:1', 'p.json:7', 'p.json:8' }, places(WAYS[5]))
    assert.same({ 'p.json: row 1 of "data"', 'p.json: row 2 of "data"', 'p.json: row 3 of "data"' }, places(WAYS[7]))
  end)

  it('may be of any length, over the pieces in which a file is read', function()
    for _, size in ipairs { 65530, 65536, 200000 } do
      local rows, texts = {}, {}
      for i = 1, 5 do
        rows[i] = { a = ('"\\]'):rep(math.floor(size / 3) + i) }
        texts[i] = json.encode(rows[i])
      end
      assert.same(rows, (read('l.json', '[' .. table.concat(texts, ',') .. ']')))
      assert.same(rows, (read('l.json', '{\n' .. table.concat(texts, '\n'):sub(2))))
      assert.same(rows, (read('l.jsonl', table.concat(texts, '\n'))))
    end
  end)

  it('are passed over one by one where each is wrong in itself', function()
    local rows, at = read('s.json', "[{\"a\":1},\n{'a':1}, 5, [2], nul, {\"a\" 2}, {\"a\":3}]", true)
    assert.same({ a = 1 }, rows[1])
    assert.same({ a = 3 }, rows[7])
    assert.matches("Python's way to print", rows[2])
    assert.equal('a row is an object, not a number', rows[3])
    assert.equal('a row is an object, not a list', rows[4])
    assert.equal('s.json:2: row 6', at[6])
  end)

  it('are refused at the line and column that is wrong', function()
    refuses('x.json:3: row 2', 'x.json:3: row 2: line 4, column 5 ', 'x.json', '[{"a": 1},\n\n{\n"b" 2}]')
    refuses('x.json:1: row 1', '.json:1: row 1: column 6 ', 'x.json', '[{"b" 2}]')
    refuses('x.json', 'line 2, column 9: a comma stands behind the last row', 'x.json', '[{"a":1},\n{"a":1},]')
    refuses('x.json', "line 2, column 2: a ',' or the end of the array", 'x.json', '[{"a":1}\n {"a":1}]')
    refuses('x.json', 'line 1, column 11: more stands behind the array', 'x.json', '[{"a":1}] {"a":1}')
    refuses('x.json', 'line 1, column 10: a value is expected', 'x.json', '[{"a":1},,{}]')
    for _, text in ipairs { '[', '[{"a":1}', '[{"a":1},', '[{"a":1},{"a', '[{"a":1},{"a":"\\' } do
      refuses('x.json', 'the file ends too early: was its download or copy cut off?', 'x.json', text)
    end
    refuses('x.json:2: row 2', 'it is not UTF-8', 'x.json', '[{"a":1},\n{"a":"\255"}]')
  end)
end)

describe('rows of a table', function()
  local function csv(text, ending) return (read('t.' .. (ending or 'csv'), text)) end

  it('are fields between commas or tabs, under the names of the first line', function()
    assert.same({ { a = '1', b = 'x y' }, { a = '', b = '' } }, csv 'a,b\n1,x y\n,\n')
    assert.same({ { a = '1', b = 'x, y' } }, csv('a\tb\n1\tx, y', 'tsv'))
    assert.same({ { ['col 1'] = ' 1 ' } }, csv 'col 1\n 1 \n')
    for _, ending in ipairs { '\n', '\r\n', '\r' } do
      assert.same({ { a = '1', b = '2' }, { a = '3', b = '4' } }, csv((('a,b%s%s1,2%s3,4'):gsub('%%s', ending))))
    end
    assert.same({ { a = '1' } }, csv '\239\187\191a\n1\n')
    assert.same({}, csv 'a,b\n')
    assert.same({ { a = '1' }, { a = '2', b = '3' } }, csv 'a,b\n1\n2,3\n') -- columns that are not reached
  end)

  it('may hold quotes, ends of lines and delimiters in quotes', function()
    assert.same({ { a = 'x, "y"', b = '1\n2\r\n3' }, { a = '', b = '"' } },
      csv 'a,b\n"x, ""y""","1\n2\r\n3"\n"",""""\n')
    assert.same({ { a = 'x"y', b = 'xy"z' } }, csv 'a,b\nx"y,"x"y"z\n') -- as Python's csv
    assert.same({ { ['a,"b'] = '1' } }, csv '"a,""b"\n1')
    for _, size in ipairs { 65533, 65534, 65535, 65536, 300000 } do -- over the pieces of a file
      local text = ('x'):rep(size)
      assert.is_true(csv('a,b\n"' .. text .. '""y",2\r\n3,4\n')[1].a == text .. '"y')
      assert.same({ a = '3', b = '4' }, csv('a,b\r\n' .. text .. ',2\r\n3,4\n')[2])
    end
  end)

  it('have the line in which they begin', function()
    local _, places = read('t.csv', 'a,b\n\n1,"x\r\ny\rz\n"\n2,3\n\r\n4,5')
    assert.same({ 't.csv:3', 't.csv:7', 't.csv:9' }, places)
    for size = 65525, 65536 do -- an end of a line in two pieces of the file
      _, places = read('t.csv', 'a,b\r\n1,' .. ('x'):rep(size) .. '\r\n2,3\r\n')
      assert.same({ 't.csv:2', 't.csv:3' }, places)
    end
  end)

  it('are refused with their line', function()
    refuses('t.csv:3', '3 fields, and the header names 2 columns', 't.csv', 'a,b\n1,2\n1,2,3\n')
    refuses('t.csv:4', 'a quote (") that opens here is never closed', 't.csv', 'a,b\n1,2\n1,"\n2","3\n')
    refuses('t.csv:1', 'the columns 1 and 3 have one name, "a"', 't.csv', 'a,b,a\n')
    refuses('t.csv:1', "the columns seem to be separated by ';'", 't.csv', 'a;b\n1;2\n')
    refuses('t.tsv:1', "the columns seem to be separated by ','", 't.tsv', 'a,b\n1,2\n')
    local rows = read('t.csv', 'a,b\n1,2,3\n4,5\n', true)
    assert.same({ '3 fields, and the header names 2 columns', { a = '4', b = '5' } }, rows)
  end)
end)

describe('rows of compressed files', function()
  local FILES = { { 'jsonl', ROW .. '\n' .. OTHER .. '\n' .. ROW .. '\n' }, { 'txt', 'a text' },
    { 'json', '[' .. ROW .. ',\n' .. OTHER .. ',' .. ROW .. ']' }, { 'csv', 'a,b\n1,2\n' }, { 'tsv', 'a\tb\n1\t2\n' } }

  it('are those of the files, whatever is compressed and however it is called', function()
    for _, file in ipairs(FILES) do
      local want, places = read('p.' .. file[1], file[2])
      assert.is_true(#want > 0)
      for _, way in ipairs(archives.ways) do
        for _, name in ipairs { 'p.' .. file[1] .. '.' .. way[1], 'p.' .. file[1], 'P.' .. file[1]:upper() .. '.GZ' } do
          local rows, at = read(name, way[2](file[2]))
          assert.same(want, rows)
          assert.equal(places[1]:gsub('^p%.%a+', ''), (at[1]:sub(#name + 1)))
        end
      end
      assert.same(want, (read('p.' .. file[1] .. '.gz', file[2]))) -- a browser has unpacked it
    end
  end)

  it('that end too early or are damaged are refused', function()
    for _, file in ipairs(FILES) do
      for _, way in ipairs(archives.ways) do
        local name = ('p.%s.%s'):format(file[1], way[1])
        local whole = way[2](file[2])
        refuses(name, 'in the middle of its ' .. way[3] .. ' data', name, whole:sub(1, -2))
        refuses(name, 'data are damaged', name, whole .. 'x is not of it')
      end
    end
  end)
end)

describe('files of data that were changed at random', function()
  it('are read alike, compressed or not, or refused by their name', function()
    local accepted, refused = fuzz(1, 600, folder)
    assert.is_true(accepted > 60 and refused > 300)
  end)
end)
