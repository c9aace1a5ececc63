--- Functions of the core as its header explains them, for those that Lua hands on as they are.
local ffi = require 'ffi'
local C = require 'moonstill.C'

local M = {}

-- A parameter in C as a docstring names it: "const ms_tensor *x" is a tensor x.
local function param_of(text)
  local kind, name = text:match '^%s*(.-)([%a_][%w_]*)%s*$'
  if kind:find 'ms_tensor' then kind = 'tensor' end
  if kind:find 'int' then kind = 'integer' end
  if kind:find 'double' or kind:find 'float' then kind = 'number' end
  return ('@param %s %s'):format(name, kind), name
end

-- The comment that stands last before a place, of which other functions may stand between.
local function comment_before(text, place)
  local comment
  for body, last in text:sub(1, place):gmatch '/%*(.-)%*/()' do comment = body end
  return ((comment or ''):gsub('\n%s*%*? ?', '\n'):gsub('^%s+', ''):gsub('%s+$', ''))
end

--- What the header says of a function, as a docstring; nil where it has none.
--- @param name string without "ms_"
--- @return table? entry as docstrings.parse gives it
function M.find(name)
  local header = ffi.string(C.ms_cdef())
  local place, arguments, rest = header:match('\nms_status ()ms_' .. name .. '(%b());([^\n]*)')
  if not place then return nil end
  local lines, list = { rest:match '/%*%s*(.-)%s*%*/' or comment_before(header, place) }, {}
  for text in arguments:sub(2, -2):gmatch '[^,]+' do
    lines[#lines + 1], list[#list + 1] = param_of(text)
  end
  return { how = 'function', name = name, text = table.concat(lines, '\n'), inner = false,
    arguments = '(' .. table.concat(list, ', ') .. ')' }
end

return M
