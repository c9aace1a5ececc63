--- Names that are not there are errors, which say what may have been meant: of what users touch, a
--- slip of the pen is never nil.

local check = require 'moonstill.base.check'
local fail = require 'moonstill.base.fail'
local options_of = require 'moonstill.base.options'
local sorted = require 'moonstill.base.sorted'

local M = {}

-- `told`: the names to list where none is near.
local function refuse(what, name, names, told)
  local near = options_of.nearest(name, names)
  fail("%s has no '%s'; %s", what, name, near and ("did you mean '%s'?"):format(near)
    or 'there are ' .. table.concat(told, ', '))
end

--- Makes reading any other name than those of a table an error. Only texts are names: a number is
--- nil, which ends a loop.
--- @param what string how errors call whatever has the names
--- @param t table it keeps its metatable
--- @return table t
function M.names(what, t)
  local mt = getmetatable(check.table('strict', 't', t)) or {}
  function mt.__index(_, name)
    if type(name) ~= 'string' then return nil end
    local names = sorted.keys(t)
    refuse(what, name, names, names)
  end
  return setmetatable(t, mt)
end

-- What errors list: fields, then methods; nil where neither is known.
local function told_of(methods, fields)
  local told = {}
  for _, name in ipairs(fields or {}) do told[#told + 1] = name end
  for _, name in ipairs(sorted.keys(methods)) do told[#told + 1] = name end
  return told[1] and told
end

--- A metatable for objects: beside their fields, which anyone may add, they have methods; reading
--- any other name is an error.
--- @param what string how errors call such an object
--- @param methods table
--- @param absent? table<string, true> fields that may be nil
--- @param fields? string[] those that are there to be read, which errors list before the methods
--- @return table
function M.class(what, methods, absent, fields)
  return { what = what, __index = function(self, name)
    local method = methods[name]
    if method ~= nil or type(name) ~= 'string' or absent and absent[name] then return method end
    local names = sorted.keys(self, methods)
    for _, each in ipairs(sorted.keys(absent or {})) do
      if rawget(self, each) == nil then names[#names + 1] = each end
    end
    refuse(what, name, names, told_of(methods, fields) or names)
  end }
end

local marked = setmetatable({}, { __mode = 'k' }) -- by plain table: what errors and help call it

--- Says what a plain table is, of which any name may be asked.
--- @param what string
--- @param t table
--- @return table t
function M.mark(what, t)
  marked[t] = what
  return t
end

--- What an object is called: "step"; nil where it is none.
--- @param x any
--- @return string?
function M.what(x)
  if type(x) ~= 'table' then return nil end
  local mt = getmetatable(x)
  return marked[x] or type(mt) == 'table' and rawget(mt, 'what') or nil
end

return M
