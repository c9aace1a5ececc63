--- JSON, YAML and lines of JSON, as Lua values.
---
---   for n, row in ms.json.lines 'out/run/metrics.jsonl' do print(n, row.loss) end
---   ms.json.write('facts.json', { a = 1, list = ms.json.array {} })
---
--- Objects become tables, arrays become tables that `json.is_array` knows, null becomes
--- `json.null`. Numbers are doubles: integers are exact up to 2^53. The parsers are the core's,
--- with limits on size and depth; a duplicate key is an error.
---
--- What a Lua table cannot say is kept beside it where it is asked for (`ordered`): the order of an
--- object's keys, which numbers were written as floats, integers beyond 2^53. It lies in the
--- metatables, so the values are the same plain tables.

local ffi = require 'ffi'
local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local fail = require 'moonstill.base.fail'
local known = require 'moonstill.base.options'.known
local paths = require 'moonstill.base.paths'
local ranks = require 'moonstill.base.ranks'
local sorted = require 'moonstill.base.sorted'
local stream = require 'moonstill.base.stream'

local M = {}

--- What null is in decoded values: false-like only by comparison, `x == json.null`.
M.null = setmetatable({}, {
  __tostring = function() return 'null' end,
  __newindex = function() fail('json.null cannot be changed') end,
})

-- Metatables: of arrays as such, and of values that were decoded with what belongs to them.
--   array   whether it is an array
--   keys    of an object: its keys, in their order
--   floats  key to number, of those that were written as floats
--   exact   key to int64_t, of those that no double holds
local array_type = { array = true }

--- Marks a table as an array, which matters when it is empty. Returns it.
--- @param t table?
--- @return table
function M.array(t) return setmetatable(t or {}, array_type) end

--- Whether a value is an array: decoded as one, marked as one, or with a first element.
--- @param t any
--- @return boolean
function M.is_array(t)
  if type(t) ~= 'table' or t == M.null then return false end
  local mt = getmetatable(t)
  if type(mt) == 'table' and (rawget(mt, 'array') or rawget(mt, 'keys')) then return mt.array end
  return t[1] ~= nil
end

--- Whether a value is an object: a table that is neither null nor an array.
--- @param t any
--- @return boolean
function M.is_object(t) return type(t) == 'table' and t ~= M.null and not M.is_array(t) end

-- decoding ---------------------------------------------------------------------------------------

local NULL, FALSE, TRUE = C.MS_DOC_NULL, C.MS_DOC_FALSE, C.MS_DOC_TRUE
local NUMBER, INTEGER, STRING = C.MS_DOC_NUMBER, C.MS_DOC_INTEGER, C.MS_DOC_STRING
local ARRAY, OBJECT, LARGEST = C.MS_DOC_ARRAY, C.MS_DOC_OBJECT, 2 ^ 53
local out = ffi.new 'ms_doc *[1]'
local total = ffi.new 'int64_t[1]'

--- The value that starts at node `i`, and the index after it.
local function build(nodes, i)
  local n = nodes[i]
  local kind = n.kind
  if kind == STRING then return ffi.string(n.text, n.bytes), i + 1 end
  if kind == INTEGER or kind == NUMBER then return n.number, i + 1 end
  if kind == NULL then return M.null, i + 1 end
  if kind == TRUE or kind == FALSE then return kind == TRUE, i + 1 end
  local t, count = {}, tonumber(n.count)
  i = i + 1
  if kind == ARRAY then
    for k = 1, count do t[k], i = build(nodes, i) end
    return setmetatable(t, array_type), i
  end
  for _ = 1, count do
    local key = ffi.string(nodes[i].text, nodes[i].bytes)
    t[key], i = build(nodes, i + 1)
  end
  return t, i
end

-- Objects with the same keys in the same order share one metatable. The tree of keys is begun anew
-- when it has grown large.
local MOST_SHAPES = 20000
local shapes, shape_count = {}, 0

local function next_shape(at, key)
  local child = at[key]
  if child then return child end
  if shape_count >= MOST_SHAPES then shapes, shape_count = {}, 0 end
  child, shape_count = {}, shape_count + 1
  at[key] = child
  return child
end

-- The metatable of an object of these keys; they are a key of the last shape that no text can be.
local function shape_of(at, keys)
  at[1] = at[1] or { array = false, keys = keys }
  return at[1]
end

-- What a double does not say of the number at node `n`.
local function note_number(side, n, key)
  if n.kind == NUMBER then
    side = side or {}
    side.floats = side.floats or {}
    side.floats[key] = n.number
  elseif n.kind == INTEGER and (n.number >= LARGEST or n.number <= -LARGEST) then
    side = side or {}
    side.exact = side.exact or {}
    side.exact[key] = ffi.new('int64_t', n.integer)
  end
  return side
end

local function with_side(t, mt, side)
  if not side then return setmetatable(t, mt) end
  side.array, side.keys = mt.array, mt.keys
  return setmetatable(t, side)
end

local build_ordered

-- By object of YAML, where its keys are: line and column.
local places = setmetatable({}, { __mode = 'k' })

-- As `build`, and remembers where keys are.
local function build_placed(nodes, i)
  local kind, count = nodes[i].kind, tonumber(nodes[i].count)
  if kind ~= ARRAY and kind ~= OBJECT then return build(nodes, i) end
  local t, at = {}, {}
  i = i + 1
  for k = 1, count do
    local key = k
    if kind == OBJECT then
      key, at[ffi.string(nodes[i].text, nodes[i].bytes)] =
        ffi.string(nodes[i].text, nodes[i].bytes), { nodes[i].line, nodes[i].column }
      i = i + 1
    end
    t[key], i = build_placed(nodes, i)
  end
  if kind == ARRAY then return setmetatable(t, array_type), i end
  places[t] = at
  return t, i
end

local function ordered_array(nodes, i, count)
  local t, side = {}, nil
  for k = 1, count do
    side = note_number(side, nodes[i], k)
    t[k], i = build_ordered(nodes, i)
  end
  return with_side(t, array_type, side), i
end

local function ordered_object(nodes, i, count)
  local t, keys, shape, side = {}, {}, shapes, nil
  for k = 1, count do
    local key = ffi.string(nodes[i].text, nodes[i].bytes)
    keys[k], shape = key, next_shape(shape, key)
    side = note_number(side, nodes[i + 1], key)
    t[key], i = build_ordered(nodes, i + 1)
  end
  return with_side(t, shape_of(shape, keys), side), i
end

-- As `build`, with what a plain table cannot say.
function build_ordered(nodes, i)
  local kind, count = nodes[i].kind, tonumber(nodes[i].count)
  if kind == ARRAY then return ordered_array(nodes, i + 1, count) end
  if kind == OBJECT then return ordered_object(nodes, i + 1, count) end
  return build(nodes, i)
end

local function decode(parse, text, name, builder)
  if type(text) ~= 'string' then fail('text expected, got ' .. type(text)) end
  check(parse(check.text('json', 'name', name), text, #text, out))
  local doc = out[0]
  local ok, value = pcall(builder or build, C.ms_doc_nodes(doc, total), 0)
  C.ms_doc_free(doc)
  if not ok then error(value, 0) end
  return value
end

local function builder_of(options)
  if options == nil then return build end
  return known('json', { ordered = true }, options).ordered and build_ordered or build
end

--- The value of a JSON text. `ordered` keeps what plain tables cannot say: `json.keys`,
--- `json.is_float` and `json.exact` ask for it.
--- @param text string
--- @param name? string what errors call it; default "JSON"
--- @param options? { ordered?: boolean }
--- @return any
function M.decode(text, name, options)
  return decode(C.ms_doc_parse_json, text, name or 'JSON', builder_of(options))
end

--- The value of a YAML text: one document, YAML 1.2's core schema. An empty one is null.
--- @param text string
--- @param name? string what errors call it; default "YAML"
--- @return any
function M.decode_yaml(text, name) return decode(C.ms_doc_parse_yaml, text, name or 'YAML') end

-- what was written --------------------------------------------------------------------------------

local function side_of(t, what)
  local mt = getmetatable(t)
  return type(mt) == 'table' and rawget(mt, what) or nil
end

-- Those of `old` that the object still has, then all others, sorted.
local function merged_keys(t, old)
  local keys, listed = {}, {}
  for _, key in ipairs(old) do
    listed[key] = true
    if rawget(t, key) ~= nil then keys[#keys + 1] = key end
  end
  for _, key in ipairs(sorted.keys(t)) do
    if not listed[key] then keys[#keys + 1] = key end
  end
  return keys
end

--- The keys of an object: those it was decoded with (`ordered`) and still has, in the order they
--- were written in; then all others, sorted. The list is not to be changed.
--- @param t table
--- @return string[]
function M.keys(t)
  local old = side_of(check.table('json', 'object', t), 'keys')
  if not old then return sorted.keys(t) end
  for i = 1, #old do
    if rawget(t, old[i]) == nil then return merged_keys(t, old) end
  end
  return sorted.count(t) == #old and old or merged_keys(t, old)
end

--- Whether a number was written as a float (1.0, 1e3). Known of values that were decoded with
--- `ordered` and are still the ones decoded.
--- @param t table
--- @param key string|integer
--- @return boolean
function M.is_float(t, key)
  local floats = side_of(t, 'floats')
  return floats ~= nil and floats[key] ~= nil and floats[key] == t[key]
end

--- The exact value of an integer that no double holds, an int64_t; nil where the number itself is
--- exact. Known of values that were decoded with `ordered` and are still the ones decoded.
--- @param t table
--- @param key string|integer
--- @return ffi.cdata*?
function M.exact(t, key)
  local exact = side_of(t, 'exact')
  local value = exact and exact[key]
  return value and tonumber(value) == rawget(t, key) and value or nil
end

-- files ------------------------------------------------------------------------------------------

--- A text without the byte order mark that some programs put before it.
--- @param text string
--- @return string
function M.without_mark(text)
  if type(text) ~= 'string' then fail('text expected, got ' .. type(text)) end
  return text:sub(1, 3) == '\239\187\191' and text:sub(4) or text
end

local CHUNK = 65536
local MOST = 256 * 2 ^ 20 -- bytes of a text or a line: the core reads no longer ones

-- A file may have no end, as devices do.
local function read_all(path)
  check.path('json', path)
  if C.ms_path_kind(path) == 2 then fail(path .. ': is a folder') end
  local file, why = io.open(path, 'rb')
  if not file then fail(why) end
  local parts, bytes, part, problem = {}, 0, nil, nil
  repeat
    part, problem = file:read(16 * CHUNK)
    parts[#parts + 1] = part
    bytes = bytes + (part and #part or 0)
  until not part or bytes > MOST
  file:close()
  if problem then fail(path .. ': ' .. problem) end
  if bytes > MOST then fail('%s: longer than %d bytes, the limit', path, MOST) end
  return M.without_mark(table.concat(parts))
end

-- What a file is that cannot be read says more than where a parser stopped.
local function decode_file(parse, path, builder)
  local ok, value = fail.pcall(decode, parse, read_all(path), path, builder)
  if ok then return value end
  local guess = paths.guess(path)
  error(guess and path .. ': ' .. guess or value, 0)
end

--- The value of a JSON file.
--- @param path string
--- @param options? table as for `decode`
--- @return any
function M.read(path, options)
  return decode_file(C.ms_doc_parse_json, path, builder_of(options))
end

--- The value of a YAML file. `json.place` knows where its keys are.
--- @param path string
--- @return any
function M.read_yaml(path) return decode_file(C.ms_doc_parse_yaml, path, build_placed) end

--- Where a key of an object stands that was read from a YAML file; nil where that is not known.
--- @param t table
--- @param key string
--- @return integer? line
--- @return integer? column
function M.place(t, key)
  local at = places[t] and places[t][key]
  if at then return at[1], at[2] end
end

-- lines ------------------------------------------------------------------------------------------

--- Iterates over the lines of a file, with their numbers and without their ends; any byte may occur
--- in a line, and the file, which may be compressed, is never held as a whole. The third value is
--- true for a line that ended: the last one may not have.
--- @param path string
--- @return fun(): integer?, string?, boolean?
function M.text_lines(path)
  check.path('json', path)
  if C.ms_path_kind(path) == 2 then fail(path .. ': is a folder') end
  local file = stream.open(path)
  local chunk, at, number = '', 1, 0
  local parts = {} -- of a line that spans chunks: joined once, so long lines cost no more

  local function too_long()
    file:close()
    file = nil
    fail('%s: line %d is longer than %d bytes, the limit', path, number + 1, MOST)
  end

  local function line(text, ended)
    if #parts > 0 then
      parts[#parts + 1] = text
      text = table.concat(parts)
      parts = {}
    end
    number = number + 1
    return number, number == 1 and M.without_mark(text) or text, ended
  end

  return function()
    while file do
      local stop = chunk:find('\n', at, true)
      if stop then
        local text = chunk:sub(at, stop - 1)
        at = stop + 1
        return line(text, true)
      end
      if at <= #chunk then parts[#parts + 1] = chunk:sub(at) end
      if #parts > MOST / CHUNK then too_long() end
      local more = file:read(CHUNK)
      chunk, at = more or '', 1
      if not more then
        file:close()
        file = nil
        if #parts > 0 then return line('', false) end
      end
    end
  end
end

--- Iterates over a file of JSON values, one a line: line number and value. Empty lines are passed
--- over; a malformed one is an error that names file and line.
--- @param path string
--- @param options? table as for `decode`
--- @return fun(): integer?, any
function M.lines(path, options)
  check.path('json', path)
  local next_line, builder = M.text_lines(path), builder_of(options)
  return function()
    while true do
      local number, text = next_line()
      if not number then return nil end
      if text:find '%S' then
        local name = path .. ': record on line ' .. number
        return number, decode(C.ms_doc_parse_json, text, name, builder)
      end
    end
  end
end

-- encoding ---------------------------------------------------------------------------------------

local escapes = { ['"'] = '\\"', ['\\'] = '\\\\', ['\b'] = '\\b', ['\f'] = '\\f', ['\n'] = '\\n',
  ['\r'] = '\\r', ['\t'] = '\\t' }
local function escape(c) return escapes[c] or ('\\u%04x'):format(c:byte()) end

local function quote(s) return '"' .. s:gsub('[%c"\\\127]', escape) .. '"' end

local function number_text(x, where)
  if x ~= x or x == math.huge or x == -math.huge then
    fail('JSON has no %s (at %s)', x, where)
  end
  if x == math.floor(x) and math.abs(x) <= 2 ^ 53 then
    return x == 0 and 1 / x < 0 and '-0.0' or ('%d'):format(x)
  end
  local short = ('%.15g'):format(x)
  return tonumber(short) == x and short or ('%.17g'):format(x)
end

--- Keys of an object: those that `order` lists, in its order, then the others, sorted.
local function sorted_keys(t, order, where)
  local keys, listed = {}, {}
  for _, key in ipairs(order or {}) do
    if rawget(t, key) ~= nil and not listed[key] then
      keys[#keys + 1] = key
      listed[key] = true
    end
  end
  for _, key in ipairs(sorted.keys(t)) do
    if type(key) ~= 'string' then
      fail('JSON keys are strings, not %s (at %s)', tostring(key), where)
    end
    if not listed[key] then keys[#keys + 1] = key end
  end
  return keys
end

local write

-- What a table holds under a key. Numbers that were decoded with more than a double says keep it.
local function write_member(w, t, key, where)
  local value = t[key]
  if w.ordered and type(value) == 'number' then
    local exact = M.exact(t, key)
    if exact then return w:put((tostring(exact):gsub('U?LL$', ''))) end
    if value % 1 == 0 and math.abs(value) < 2 ^ 53 and M.is_float(t, key) then
      return w:put(('%.1f'):format(value))
    end
  end
  write(w, value, where)
end

--- Writes `count` parts between brackets, each by `part(i)`, indented when asked to.
local function write_list(w, open, close, count, part)
  if count == 0 then return w:put(open .. close) end
  w:put(open)
  w.depth = w.depth + 1
  if w.depth > 1000 then fail('JSON: nested more than 1000 deep, or in a circle') end
  for i = 1, count do
    if i > 1 then w:put(w.indent and ',' or w.comma) end
    if w.indent then w:put('\n' .. (' '):rep(w.indent * w.depth)) end
    part(i)
  end
  w.depth = w.depth - 1
  if w.indent then w:put('\n' .. (' '):rep(w.indent * w.depth)) end
  w:put(close)
end

function write(w, value, where)
  local kind = type(value)
  if value == nil or value == M.null then return w:put 'null' end
  if kind == 'string' then return w:put(quote(value)) end
  if kind == 'number' then return w:put(number_text(value, where)) end
  if kind == 'boolean' then return w:put(tostring(value)) end
  if kind ~= 'table' then fail('JSON has no %s (at %s)', kind, where) end
  if M.is_array(value) then
    for key in pairs(value) do
      if type(key) ~= 'number' or key < 1 or key > #value or key ~= math.floor(key) then
        fail('an array with the key %s (at %s)', tostring(key), where)
      end
    end
    return write_list(w, '[', ']', #value, function(i)
      write_member(w, value, i, where .. '[' .. i .. ']')
    end)
  end
  local keys = w.ordered and side_of(value, 'keys') and M.keys(value)
    or sorted_keys(value, w.order, where)
  write_list(w, '{', '}', #keys, function(i)
    w:put(quote(keys[i]) .. w.colon)
    write_member(w, value, keys[i], where .. '.' .. keys[i])
  end)
end

-- What of a value JSON cannot hold, found on a walk that makes no garbage where there is nothing.
-- path[1 .. depth]: the keys that lead to the table that is looked at.
local function note(w, holder, key, why)
  local words = { w.name }
  for d = 1, w.depth + 1 do
    local k = d <= w.depth and w.path[d] or key
    words[#words + 1] = type(k) == 'string' and '.' .. k or '[' .. tostring(k) .. ']'
  end
  w.found = w.found or {}
  w.found[#w.found + 1] = { path = table.concat(words), why = why, holder = holder, key = key }
end

-- What is wrong with a value that is no table, or nil.
local function fault(value)
  local kind = type(value)
  if kind == 'number' then return value - value ~= 0 and tostring(value) or nil end
  if kind == 'string' then
    if value:find '[\128-\255]' and not pcall(M.decode, quote(value)) then return 'not UTF-8' end
    return nil
  end
  return kind ~= 'boolean' and 'a ' .. kind or nil
end

local function bad_key(key, count)
  if not count then return type(key) ~= 'string' and 'under a key that is no string' or nil end
  if type(key) == 'number' and key >= 1 and key <= count and key % 1 == 0 then return nil end
  return 'under a key that is no place in an array'
end

local function walk(w, t)
  local count = M.is_array(t) and #t or nil
  w.open[t] = true
  for key, value in pairs(t) do
    local why = bad_key(key, count)
    if not why and value ~= M.null then
      if type(value) ~= 'table' then
        why = fault(value)
      elseif w.open[value] then
        why = 'a table that holds itself'
      elseif w.depth >= 900 then
        why = 'nested too deep'
      else
        w.depth = w.depth + 1
        w.path[w.depth] = key
        walk(w, value)
        w.depth = w.depth - 1
      end
    end
    if why then note(w, t, key, why) end
  end
  w.open[t] = nil
end


-- They go over `pairs` in every step; sorted.lua says why that is not compiled.
jit.off(write)
jit.off(walk)

local walker = { path = {}, open = {} }

--- What of a table `encode` would refuse, or a parser would: nil, or a list sorted by path of what
--- it is ('run.state.f'), why ('a function'), and the table and the key that hold it.
--- @param t table
--- @param name string what paths begin with
--- @return { path: string, why: string, holder: table, key: any }[]?
function M.unfit(t, name)
  check.table('json', 'value', t)
  check.text('json', 'name', name)
  walker.name, walker.depth, walker.found = name, 0, nil
  walk(walker, t)
  local found = walker.found
  if found then table.sort(found, function(a, b) return a.path < b.path end) end
  return found
end

--- The JSON text of a value. Keys are sorted, so equal values give equal texts.
--- @param value any
--- @param options? { indent?: integer, order?: string[], ordered?: boolean } order: keys that come
---   first, at any depth; ordered: what was decoded so keeps the order of its keys and how its
---   numbers were written
--- @return string
function M.encode(value, options)
  options = known('json', { indent = true, order = true, ordered = true }, options)
  if options.indent then check.integer('json', 'indent', options.indent, 0, 80) end
  if options.order ~= nil then check.table('json', 'order', options.order) end
  local w = { n = 0, depth = 0, indent = options.indent, order = options.order,
    ordered = options.ordered, comma = ',', colon = options.indent and ': ' or ':' }
  function w:put(s)
    self.n = self.n + 1
    self[self.n] = s
  end
  write(w, value, 'value')
  return table.concat(w, '', 1, w.n)
end

--- Writes a value to a file, as a whole or not at all.
--- @param path string
--- @param value any
--- @param options? table as for `encode`
function M.write(path, value, options)
  check.path('json', path)
  local text = M.encode(value, options) .. '\n'
  ranks.write_file(path, text)
end

--- Writes a file of lines, as a whole or not at all; its folder is made where there is none.
--- @param path string
--- @param lines string[] JSON texts, as `encode` gives them
function M.write_lines(path, lines)
  check.path('json', path)
  local text = table.concat(check.table('json', 'lines', lines), '\n') .. (lines[1] and '\n' or '')
  local folder = path:match '^(.*)/'
  if folder and folder ~= '' then check.file(C.ms_dir_make(folder)) end
  ranks.write_file(path, text)
end

return M
