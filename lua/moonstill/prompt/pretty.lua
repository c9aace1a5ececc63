--- How the prompt prints values: strings as they are, tables by their content, on one line where
--- they fit it, and never more than a screen or so.
local layout = require 'moonstill.base.layout'
local numbers = require 'moonstill.base.numbers'
local printable = require 'moonstill.base.printable'
local sorted = require 'moonstill.base.sorted'

local M = {}

local DEEP = 3        -- tables within tables
local ENTRIES = 24    -- of one table
local LINES = 60      -- of all
local LONG = 10000    -- bytes of a text
local SORTED = 10000  -- keys that are put in order: of more, those of the list alone are shown
local LEAST = 4       -- bytes of a text that is cut
local INDENT = 2

-- The first bytes of a text, of whole characters.
local function head(text, bytes)
  while bytes > 0 and text:find('^[\128-\191]', bytes + 1) do bytes = bytes - 1 end
  return text:sub(1, bytes)
end

--- A text as it is, but for control characters; of a long one the beginning.
--- @param text string
--- @return string
function M.text(text)
  if #text <= LONG then return printable(text) end
  return ('%s... (%d bytes in all)'):format(printable(head(text, LONG)), #text)
end

-- In quotes, cut so that it takes no more columns than there is room for; `said`: of its length.
local function quoted(text, room, said)
  local cut = head(text, math.max(room, LEAST))
  while true do
    local shown = printable((('%q'):format(cut):gsub('\\\n', '\\n'):gsub('\t', '\\t')))
    if #cut < #text then shown = ('%s...%s'):format(shown, said and said:format(#text) or '') end
    local beyond = layout.width(shown) - room
    if beyond <= 0 or #cut <= LEAST and not said then return shown end
    if #cut <= LEAST then return quoted(text, room) end
    cut = head(cut, math.max(LEAST, #cut - beyond))
  end
end

local function has_text(value)
  local meta = getmetatable(value)
  return type(meta) == 'table' and rawget(meta, '__tostring') ~= nil
end

local function text_of(value)
  local ok, text = pcall(tostring, value)
  if ok then return text end
  return ('a %s whose __tostring fails: %s'):format(type(value), tostring(text))
end

-- A value that is no table to be taken apart.
local function plain(value, room)
  if type(value) == 'number' then return numbers.text(value) end
  if type(value) == 'string' then return quoted(value, room, ' (%d bytes)') end
  local text = printable(text_of(value)):gsub('\n', ' ')
  return layout.width(text) > room and head(text, math.max(LEAST, room - 3)) .. '...' or text
end

local function key_text(key, room)
  if type(key) ~= 'string' then return '[' .. plain(key, room) .. ']' end
  if #key <= room and key:find '^[%a_][%w_]*$' then return key end
  return '[' .. quoted(key, room) .. ']'
end

-- The keys to show in their order, and how many more there are.
local function keys_of(t)
  local list, count = {}, sorted.count(t)
  if count <= SORTED then
    for i, key in ipairs(sorted.keys(t)) do list[i] = i <= ENTRIES and key or nil end
  else
    for i = 1, ENTRIES do list[i] = rawget(t, i) ~= nil and i or nil end
  end
  return list, count - #list
end

local show

-- The entries of a table as texts.
local function entries_of(t, state, indent)
  local keys, more = keys_of(t)
  local list, last = {}, 0
  for i, key in ipairs(keys) do
    if key == last + 1 then
      last, list[i] = key, show(rawget(t, key), state, indent)
    else
      local name = key_text(key, math.floor((state.columns - indent) / 3))
      list[i] = name .. ' = ' .. show(rawget(t, key), state, indent, #name + 3)
    end
  end
  if more > 0 then list[#list + 1] = ('... (%d more)'):format(more) end
  return list
end

local function show_table(t, state, indent, before)
  if next(t) == nil then return '{}' end
  if state.inside[t] then return '{ ... }' end
  if state.depth >= DEEP or state.lines >= LINES then return '{ ... }' end
  state.inside[t], state.depth = true, state.depth + 1
  local entries = entries_of(t, state, indent + INDENT)
  state.inside[t], state.depth = nil, state.depth - 1
  local line = '{ ' .. table.concat(entries, ', ') .. ' }'
  local columns = indent + before + layout.width(line) + 1 -- with a comma behind it
  if columns <= state.columns and not line:find '\n' then return line end
  state.lines = state.lines + #entries
  local blanks = (' '):rep(indent)
  local step = '\n' .. blanks .. (' '):rep(INDENT)
  return '{' .. step .. table.concat(entries, ',' .. step) .. '\n' .. blanks .. '}'
end

-- `indent`: of the line; `before`: columns of the key before the value.
function show(value, state, indent, before)
  before = before or 0
  if type(value) == 'table' and not has_text(value) then
    return show_table(value, state, indent, before)
  end
  return plain(value, state.columns - indent - before - 1) -- with a comma behind it
end

-- What a user writes for a module: "ms.kd"; nil for all else.
local function module_name(t)
  local ms = package.loaded.moonstill
  if not ms then return nil end
  for name, value in sorted.pairs(ms) do
    if value == t and name ~= '_VERSION' then return 'ms.' .. name end
  end
end

-- A module by what it has.
local function module_text(name, t, columns)
  local complete = require 'moonstill.prompt.complete' -- which is needed here alone
  local list = table.concat(sorted.keys((complete.members(t))), ', ')
  local text = ('%s has %s; help(%s) tells more'):format(name, list, name)
  return table.concat(layout.wrap(text, columns), '\n')
end

--- A value as the prompt prints it.
--- @param value any
--- @param columns integer how wide the terminal is
--- @return string
function M.show(value, columns)
  if type(value) == 'string' then return M.text(value) end
  if type(value) == 'table' and not has_text(value) then
    local name = module_name(value)
    if name then return module_text(name, value, columns) end
    return show(value, { columns = columns, inside = {}, depth = 0, lines = 0 }, 0)
  end
  return type(value) == 'number' and numbers.text(value) or M.text(text_of(value))
end

return M
