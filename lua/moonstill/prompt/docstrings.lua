--- The docstrings of Lua sources: blocks of lines that begin with `---`, and what stands below
--- them.
---
--- `parse` gives of a source its head (`about`); `functions`, each with the line by which LuaJIT
--- knows it; `classes`, the kinds of objects that `--- @class ms_NAME` begins; and `values`, what
--- else of a module is documented. What modules hand to each other (`--- @package`) is `inner`.
--- `tags` takes a text apart: what it says, and its `@param`, `@return` and `@field` lines.

local M = {}

local function text_of(block)
  local lines = {}
  for i, line in ipairs(block) do lines[i] = line:gsub('^%s*%-%-%- ?', '') end
  return table.concat(lines, '\n')
end

-- What a line defines: `how` is 'function' (M.f), 'method' (methods:f, of a `holder`), 'local' or
-- 'value' (M.x).
local function defined(line)
  local name, arguments = line:match '^function M%.([%a_][%w_]*)(%b())'
  if name then return 'function', name, arguments end
  local holder
  holder, name, arguments = line:match '^%s*function ([%a_][%w_.]*):([%a][%w_]*)(%b())'
  if name then return 'method', name, arguments, holder end
  name, arguments = line:match '^%s*local function ([%a_][%w_]*)(%b())'
  if name then return 'local', name, arguments end
  arguments = line:match '^return function(%b())'
  if arguments then return 'local', '', arguments end
  name = line:match '^M%.([%a_][%w_]*) ='
  if name then return 'value', name end
end

local function add_class(doc, text)
  local name = text:match '%f[^\n%z]@class ms_([%w_]+)'
  if not name then return false end
  doc.classes[#doc.classes + 1] = { name = name, text = (text:gsub('@class [^\n]*\n?', '')),
    inner = text:find '%f[^\n%z]@package' ~= nil }
  return true
end

local INNER = '%f[^\n%z]@package'

-- The class whose methods a holder has: that above the holder's definition, or the one begun last
-- when it was first met.
local function class_of(doc, holder)
  local none = { inner = false }
  if not holder then return none end
  holder = holder:match '^[%w_]+'
  doc.holders[holder] = doc.holders[holder] or doc.classes[#doc.classes] or none
  return doc.holders[holder]
end

-- What a line defines, with the block above it.
local function add(doc, block, line, number)
  local how, name, arguments, holder = defined(line)
  local text, class = text_of(block), class_of(doc, holder)
  if how and how ~= 'function' and how ~= 'method' and #block == 0 then return end
  if how then
    table.insert(how == 'value' and doc.values or doc.functions, { line = number, how = how,
      name = name, arguments = arguments, text = text, class = class.name,
      inner = text:find(INNER) ~= nil or class.inner })
  elseif #block > 0 and add_class(doc, text) then
    local holder_of_class = line:match '^local ([%w_]+) ='
    if holder_of_class then doc.holders[holder_of_class] = doc.classes[#doc.classes] end
  elseif #block > 0 then
    doc.about = doc.about or text
  end
  if #block > 0 then doc.about = doc.about or '' end
end

--- What a source documents.
--- @param source string
--- @return { about: string, functions: table[], classes: table[], values: table[] }
function M.parse(source)
  local doc, block, number = { functions = {}, classes = {}, values = {}, holders = {} }, {}, 0
  for line in (source .. '\n'):gmatch '(.-)\n' do
    number = number + 1
    if line:find '^%s*%-%-%-' and not line:find '^%s*%-%-%-%-' then
      block[#block + 1] = line
    else
      add(doc, block, line, number)
      block = {}
    end
  end
  doc.about, doc.holders = doc.about or '', nil
  return doc
end

-- tags -------------------------------------------------------------------------------------------

local PAIRS = { ['('] = ')', ['{'] = '}', ['<'] = '>', ["'"] = "'" }

-- Where a type ends that a text begins with: at the first blank outside of brackets and quotes,
-- unless it stands behind the colon or comma of a function's results.
local function end_of_type(text)
  local open = {}
  for i = 1, #text do
    local c = text:sub(i, i)
    if c == open[#open] then
      open[#open] = nil
    elseif PAIRS[c] and open[#open] ~= "'" then
      open[#open + 1] = PAIRS[c]
    elseif c == ' ' and #open == 0 and not text:sub(i - 1, i - 1):find '[:,]' then
      return i - 1
    end
  end
  return #text
end

-- A type as its reader knows it: ms_model is a model, '"all"' is "all".
local function plain(kind)
  return (kind:gsub('%f[%w_]ms_', ''):gsub("'", ''):gsub('ffi%.cdata%*', 'cdata'))
end

local NAMED = { param = true, field = true }

local function read_tag(tag, text)
  local entry = { name = '' }
  if NAMED[tag] then
    entry.name, entry.optional, text = text:match '^(%S-)(%??)%s+(.*)$'
    if not entry.name then return nil end
    entry.optional = entry.optional == '?'
  end
  local last = end_of_type(text)
  entry.type = plain(text:sub(1, last))
  entry.meaning = text:sub(last + 1):gsub('^%s+', '')
  return entry
end

--- Takes a docstring apart.
--- @param text string
--- @return { text: string, param: table[], ['return']: table[], field: table[] } each entry with
---   its `type` and `meaning`, and but for results its `name` and whether it is `optional`
function M.tags(text)
  local lines, tags, last = {}, { param = {}, ['return'] = {}, field = {} }, nil
  for line in (text .. '\n'):gmatch '(.-)\n' do
    local tag, rest = line:match '^@(%l+)%s*(.*)$'
    if tag then
      last = { tag = tag, text = rest }
      tags[#tags + 1] = last
    elseif last and line:find '^  ' then
      last.text = last.text .. ' ' .. line:gsub('^%s+', '')
    else
      lines[#lines + 1], last = line, nil
    end
  end
  for i, each in ipairs(tags) do
    local list = tags[each.tag]
    if list then list[#list + 1] = read_tag(each.tag, each.text) end
    tags[i] = nil
  end
  tags.text = table.concat(lines, '\n'):gsub('%s+$', '')
  return tags
end

return M
