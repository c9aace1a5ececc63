--- What Tab completes at the prompt: names, fields and methods of what there is, options within a
--- call's table and the words that they take, files within quotes. It reads fields and runs nothing
--- of the user's: of their tables only what lies there, and tables that these inherit from.
local catalog = require 'moonstill.prompt.catalog'
local docstrings = require 'moonstill.prompt.docstrings'
local layout = require 'moonstill.base.layout'
local public = require 'moonstill.names'
local schema = require 'moonstill.base.schema'
local sorted = require 'moonstill.base.sorted'
local words = require 'moonstill.prompt.words'

local M = {}

local MOST = 200     -- candidates that are shown
local KEYS = 10000   -- of a table with more nothing is completed
local PARENTS = 20   -- tables that a table inherits from
local IDENTIFIER = '^[%a_\128-\255][%w_\128-\255]*$'

-- reading ----------------------------------------------------------------------------------------

local function index(x, name) return x[name] end

local function is_library(x)
  return x == package.loaded.moonstill or catalog.kind_of(x) or catalog.module_of(x)
end

-- The tables that a table's fields come from, itself first.
local function lineage(t)
  local list = {}
  while type(t) == 'table' and #list < PARENTS do
    list[#list + 1] = t
    local meta = debug.getmetatable(t)
    t = type(meta) == 'table' and rawget(meta, '__index') or nil
  end
  return list
end

local function field(x, name)
  if type(x) == 'string' then return string[name] end
  if type(x) ~= 'table' and type(x) ~= 'cdata' then return nil end
  if is_library(x) then
    local ok, value = pcall(index, x, name)
    return ok and value or nil
  end
  for _, t in ipairs(lineage(x)) do
    local value = rawget(t, name)
    if value ~= nil then return value end
  end
end

local function literal(word)
  if word.kind == 'number' then return tonumber(word.text) end
  return word.kind == 'string' and word.text:match '^["\'](.*)["\']$' or nil
end

local function is_sign(word, text) return word and word.kind == 'sign' and word.text == text end

-- Names that the text itself declares: what they are is not known before it runs.
local function locals_of(list)
  local names = {}
  for i = 2, #list - 1 do
    local before = list[i - 1].text
    local declared = before == 'local' or before == 'for' or before == 'function'
      or is_sign(list[i - 1], ',') and names[list[i - 2].text]
    if declared and list[i].kind == 'name' then names[list[i].text] = true end
  end
  return names
end

-- The value of the chain of names that ends with a word: a.b[1].c; nil where it is another
-- expression, or not known.
local function value_of(list, last)
  local word = list[last]
  if not word then return nil end
  if is_sign(word, ']') and is_sign(list[last - 2], '[') then
    local key, base = literal(list[last - 1]), value_of(list, last - 3)
    return key ~= nil and field(base, key) or nil
  end
  if word.kind == 'string' then return '' end
  if word.kind ~= 'name' then return nil end
  local before = list[last - 1]
  if is_sign(before, '.') or is_sign(before, ':') then
    return field(value_of(list, last - 2), word.text)
  end
  if locals_of(list)[word.text] then return nil end
  return rawget(_G, word.text)
end

-- candidates -------------------------------------------------------------------------------------

-- A candidate is a text in the place of what was typed.

local function add_keys(found, t, accept)
  if sorted.count(t) > KEYS then return end
  for key in sorted.pairs(t) do
    if type(key) == 'string' and key:find(IDENTIFIER) and accept(rawget(t, key)) then
      found[key] = true
    end
  end
end

local function is_function(x) return type(x) == 'function' end
local function is_any() return true end
local function is_no_function(x) return type(x) ~= 'function' end

-- Fields and methods of an object of the library that is documented.
local function of_kind(kind, fields, methods)
  local known = catalog.kinds()[kind]
  if not known then return false end
  for _, entry in ipairs(docstrings.tags(known.text).field) do fields[entry.name] = true end
  for _, entry in ipairs(catalog.methods_of(known)) do methods[entry.name] = true end
  return true
end

local function of_module(module, x, fields)
  for _, entry in ipairs(catalog.functions_of(module)) do fields[entry.name] = true end
  if type(x) == 'table' then add_keys(fields, x, is_no_function) end
end

--- The names that may follow a value behind a dot, and those behind a colon.
--- @param x any
--- @return table<string, true> fields
--- @return table<string, true> methods
function M.members(x)
  local fields, methods, kind = {}, {}, catalog.kind_of(x)
  local module = catalog.module_of(x)
  if x == package.loaded.moonstill then
    add_keys(fields, public, is_any)
  elseif module then
    of_module(module, x, fields)
  elseif type(x) == 'string' then
    add_keys(methods, string, is_function)
  elseif not (kind and of_kind(kind, fields, methods)) and type(x) == 'table' then
    for _, t in ipairs(lineage(x)) do
      add_keys(fields, t, is_any)
      add_keys(methods, t, is_function)
    end
  end
  return fields, methods
end

local function add_beginning(found, names, prefix, before, behind)
  for name in sorted.pairs(names) do
    if name:sub(1, #prefix) == prefix then
      found[#found + 1] = { text = before .. name .. behind, shown = name }
    end
  end
end

-- What may stand in the place of ".na" or ":na" behind a value: a method behind a dot, too, of an
-- object that has no such field, with its colon.
local function member_candidates(x, separator, prefix)
  local fields, methods = M.members(x)
  local found, others = {}, {}
  if separator == ':' then
    add_beginning(found, methods, prefix, ':', '')
    return found
  end
  add_beginning(found, fields, prefix, '.', '')
  for name in sorted.pairs(methods) do others[name] = not fields[name] or nil end
  local first = #found + 1
  add_beginning(found, others, prefix, ':', '')
  for i = first, #found do found[i].shown = found[i].text end
  return found
end

local function name_candidates(list, prefix)
  local names, found = locals_of(list), {}
  add_keys(names, _G, is_any)
  for _, word in ipairs(words.KEYWORDS) do names[word] = true end
  add_beginning(found, names, prefix, '', '')
  return found, prefix
end

-- options ----------------------------------------------------------------------------------------

-- The schema that a docstring names: "ms.kd.options", or one of its own module.
local function schema_of(name, module)
  local x = package.loaded['moonstill.' .. module]
  if name:find '^ms%.' then x = package.loaded.moonstill end
  for word in name:gsub('^ms%.', ''):gmatch '[^.]+' do x = field(x, word) end
  return x
end

local function function_called(name, module)
  for _, entry in ipairs(catalog.docs()[module].functions) do
    if entry.name == name then return entry end
  end
end

-- The options of a parameter: a schema, or a table of the names in its docstring.
local function options_of_parameter(param, module)
  local name = param.meaning:match '`([%w_.]*options)`'
  if name then return schema_of(name, module) end
  local other = function_called(param.meaning:match '^as for `(%w+)`', module)
  for _, each in ipairs(other and docstrings.tags(other.text).param or {}) do
    if each.name == param.name then return options_of_parameter(each, module) end
  end
  local names = {}
  for word in param.type:gmatch '([%a_]+)%??: ' do names[word] = true end
  for word in ('; ' .. param.meaning):gmatch '; ([%a_]+): ' do names[word] = true end
  return names
end

-- Those of an argument of a function.
local function options_of(f, number)
  if schema.is_schema(f) then return f end
  f = type(f) == 'function' and f or catalog.call_of(f)
  if type(f) ~= 'function' then return nil end
  local entry, module = catalog.of_function(f)
  local param = entry and docstrings.tags(entry.text).param[number]
  return param and options_of_parameter(param, module)
end

-- The brackets that are open at the end of a text, each with the place of its word and how many
-- commas stand in it.
local function open_brackets(list)
  local stack = {}
  for i, word in ipairs(list) do
    if word.kind == 'sign' or word.kind == 'keyword' then
      local top = stack[#stack]
      if words.OPENS[word.text] then
        stack[#stack + 1] = { at = i, commas = 0 }
      elseif words.CLOSES[word.text] then
        stack[#stack] = nil
      elseif top and word.text == ',' then
        top.commas = top.commas + 1
      end
    end
  end
  return stack
end

-- The options that a table takes which is open at `depth`: those of the function that it is given
-- to, or those below a key of the table around it.
local function options_at(list, stack, depth)
  local frame = stack[depth]
  if not frame or list[frame.at].text ~= '{' then return nil end
  local before, outer = list[frame.at - 1], stack[depth - 1]
  if not before then return nil end
  if is_sign(before, '=') and outer then
    local options, key = options_at(list, stack, depth - 1), list[frame.at - 2]
    local inner = options and key and options[key.text]
    return schema.is_schema(inner) and inner or nil
  end
  if outer and (is_sign(before, ',') or is_sign(before, '(')) and list[outer.at].text == '(' then
    return options_of(value_of(list, outer.at - 1), outer.commas + 1)
  end
  return options_of(value_of(list, frame.at - 1), 1)
end

-- Keys that the innermost table has already.
local function given_keys(list, frame)
  local given, depth = {}, list[frame.at].depth + 1
  for i = frame.at + 1, #list - 1 do
    if list[i].depth == depth and is_sign(list[i + 1], '=') then given[list[i].text] = true end
  end
  return given
end

-- The option whose value stands where the text ends behind word `last`: `key = `.
local function option_at(list, last, stack)
  if not is_sign(list[last], '=') then return nil end
  local options = options_at(list, stack, #stack)
  local option = options and list[last - 1] and options[list[last - 1].text]
  return schema.is_option(option) and option or nil
end

local function option_candidates(list, last, stack, prefix)
  local before, frame = list[last], stack[#stack]
  if not frame or not (is_sign(before, '{') or is_sign(before, ',') or is_sign(before, ';')) then
    return {}
  end
  local options = options_at(list, stack, #stack)
  local names, given, found = {}, given_keys(list, frame), {}
  for key in sorted.pairs(options or {}) do names[key] = not given[key] or nil end
  add_beginning(found, names, prefix, '', ' = ')
  return found, prefix
end

local function value_candidates(option, prefix, before, behind)
  local names, found = {}, {}
  for _, value in ipairs(option.values or {}) do
    if type(value) == 'string' then names[value] = true end
  end
  add_beginning(found, names, prefix, before, behind)
  return found, prefix
end

-- files ------------------------------------------------------------------------------------------

local function file_candidates(prefix, quote, files)
  local folder, begun = prefix:match '^(.-)([^/]*)$'
  local found = {}
  for _, name in ipairs(files(folder == '' and '.' or folder)) do
    local fits = name:sub(1, #begun) == begun and (begun ~= '' or name:sub(1, 1) ~= '.')
    if fits and not name:find '["\'\\%c]' then
      local behind = name:sub(-1) == '/' and '' or quote
      found[#found + 1] = { text = folder .. name .. behind, shown = name }
    end
  end
  return found, prefix
end

-- Within a string that is open at the end: words of an option, else files.
local function quoted_candidates(list, after, files)
  local word = list[#list]
  local quote, prefix = word.text:match '^(["\'])(.*)$'
  if not quote or prefix:find '[\\\n]' then return {} end
  local closing = after:sub(1, 1) == quote and '' or quote
  local option = option_at(list, #list - 1, open_brackets(list))
  if option and option.values then return value_candidates(option, prefix, '', closing) end
  return file_candidates(prefix, closing, files)
end

-- ------------------------------------------------------------------------------------------------

local function candidates_of(text, after, files)
  local list = words.of(text)
  local last = list[#list]
  if last and last.kind == 'comment' and (last.open or last.to == #text) then return {} end
  list = words.code(text)
  last = list[#list]
  if last and last.open then return quoted_candidates(list, after, files) end
  local in_word = last and last.to == #text and (last.kind == 'name' or last.kind == 'keyword')
  local prefix, before = in_word and last.text or '', in_word and #list - 1 or #list
  local sign = list[before]
  if is_sign(sign, '.') or is_sign(sign, ':') then
    return member_candidates(value_of(list, before - 1), sign.text, prefix), text:sub(sign.from)
  end
  local stack = open_brackets(list)
  local option = option_at(list, before, stack)
  if option and option.values and prefix == '' then
    return value_candidates(option, '', '"', '"')
  end
  local found, typed = option_candidates(list, before, stack, prefix)
  if #found > 0 then return found, typed end
  return name_candidates(list, prefix)
end

-- What all candidates begin with.
local function common(found)
  local text = found[1].text
  for _, each in ipairs(found) do
    while each.text:sub(1, #text) ~= text do text = text:sub(1, -2) end
  end
  while text:find '[\192-\255][\128-\191]*$' and #found > 1 do -- whole characters
    local cut = text:match '^(.-)[\192-\255][\128-\191]*$'
    local whole = true
    for _, each in ipairs(found) do
      whole = whole and not each.text:find('^[\128-\191]', #text + 1)
    end
    if whole then break end
    text = cut
  end
  return text
end

--- Names below each other in columns, as many as fit.
--- @param names string[]
--- @param width integer of the terminal
--- @return string
function M.in_columns(names, width)
  local widest, lines = 1, {}
  for _, name in ipairs(names) do widest = math.max(widest, layout.width(name) + 2) end
  local across = math.max(1, math.floor((width + 1) / widest))
  local rows = math.ceil(#names / across)
  for i, name in ipairs(names) do
    local row = (i - 1) % rows + 1
    local filled = name .. (' '):rep(widest - layout.width(name))
    lines[row] = (lines[row] or '') .. (i + rows <= #names and filled or name)
  end
  return table.concat(lines, '\n')
end

local function listing(found, width)
  local names = {}
  for i, each in ipairs(found) do names[i] = i <= MOST and each.shown or nil end
  local more = #found > MOST and ('\n... (%d more)'):format(#found - MOST) or ''
  return M.in_columns(names, width) .. more
end

--- What Tab does.
--- @param text string all that was typed of a statement up to the cursor
--- @param after string the rest of the line
--- @param files fun(folder: string): string[] what a folder holds, names of folders with a slash
--- @param width integer of the terminal
--- @return integer? back how many characters before the cursor go
--- @return string? insert what stands in their place; nil: nothing is known
--- @return string? list what may come, to be shown
function M.complete(text, after, files, width)
  local found, typed = candidates_of(text, after, files)
  if #found == 0 then return nil end
  local begun = common(found)
  if #found == 1 or #begun > #typed then return layout.width(typed), begun end
  return 0, '', listing(found, width)
end

return M
