--- What there is to be explained: the public modules, functions, kinds of objects with their
--- methods and fields, and options. `help` prints it, and the page of reference is made of it.

local docstrings = require 'moonstill.prompt.docstrings'
local handles = require 'moonstill.base.handle'
local names = require 'moonstill.names'
local prototypes = require 'moonstill.prompt.prototypes'
local schema = require 'moonstill.base.schema'
local sorted = require 'moonstill.base.sorted'
local strict = require 'moonstill.base.strict'

local M = {}

-- docstrings -------------------------------------------------------------------------------------

-- How this module's chunk is called, up to the folder of the modules.
local ROOT = debug.getinfo(1, 'S').source:match '^(.*)prompt/catalog%.lua$'

-- The docstrings of a module, and of those that it requires, from their sources.
local function read_source(docs, name)
  local path = not docs[name] and package.searchpath('moonstill.' .. name, package.path)
  local file = path and io.open(path)
  if not file then return end
  local source = file:read '*a'
  file:close()
  docs[name] = docstrings.parse(source)
  for other in source:gmatch "require%s*%(?%s*['\"]moonstill%.([%w_.]+)['\"]" do
    read_source(docs, other)
  end
end

local all -- once they are asked for

--- All docstrings by the names of the modules below moonstill: `docs()['loss.kd']`. The executable
--- has them with its modules (cmake/docs.lua); elsewhere they are read from the sources.
--- @return table<string, table> see docstrings.parse
function M.docs()
  if all then return all end
  local ok, built_in = pcall(require, 'moonstill.docs')
  all = ok and built_in or {}
  if not ok then
    for _, place in sorted.pairs(names) do read_source(all, place.module) end
  end
  return all
end

-- Functions that are made of the core's own are explained by its header.
local function of_the_core(f)
  local module = package.loaded['moonstill.tensor.ops']
  for name, value in sorted.pairs(module or {}) do
    if value == f then return prototypes.find(name), 'tensor.ops' end
  end
end

--- The docstring of a function, and its module.
--- @param f function
--- @return table? entry
--- @return string? module
function M.of_function(f)
  local info = debug.getinfo(f, 'S')
  if info.source:sub(1, #ROOT) ~= ROOT then return nil end
  local module = info.source:sub(#ROOT + 1):gsub('%.lua$', ''):gsub('/', '.')
  for _, entry in ipairs(M.docs()[module] and M.docs()[module].functions or {}) do
    if entry.line == info.linedefined then return entry, module end
  end
  return of_the_core(f)
end

-- public names -----------------------------------------------------------------------------------

--- The name of `ms` that stands for a module: "kd" for "loss.kd"; nil where none does.
--- @param module string
--- @return string?
function M.public_name(module)
  for name, place in sorted.pairs(names) do
    if place.module == module and not place.field then return name end
  end
end

--- The module that a value is, by its name below moonstill.
--- @param x any
--- @return string?
function M.module_of(x)
  for name in sorted.pairs(M.docs()) do
    if x ~= nil and package.loaded['moonstill.' .. name] == x then return name end
  end
end

--- The function that a call of a module is, if it may be called: `ms.kd(..)` is `ms.kd.term(..)`.
--- @param x any a module
--- @return function?
--- @return string? name of it in the module, where it has one
function M.call_of(x)
  if type(x) == 'function' then return x end
  local mt = getmetatable(x)
  if type(mt) ~= 'table' or not mt.__call or schema.is_schema(x) then return nil end
  local name = rawget(mt, 'calls')
  if name then return x[name], name end
  return mt.__call
end

--- The functions of a module that users may call, in the order of its source.
--- @param module string
--- @return table[] entries
function M.functions_of(module)
  local list, known = {}, {}
  for _, entry in ipairs(M.docs()[module].functions) do
    if entry.how == 'function' and not entry.inner then
      list[#list + 1], known[entry.name] = entry, true
    end
  end
  if module ~= 'tensor.ops' then return list end
  for name, f in sorted.pairs(require 'moonstill.tensor.ops') do
    list[#list + 1] = not known[name] and of_the_core(f) or nil
  end
  return list
end

--- The schemas of a module, by field: `options`, `shrink_options`.
--- @param x any a module
--- @return table<string, table>
function M.schemas_of(x)
  local found = {}
  for field, value in sorted.pairs(type(x) == 'table' and x or {}) do
    if schema.is_schema(value) then found[field] = value end
  end
  return found
end

-- kinds of objects -------------------------------------------------------------------------------

--- All kinds of objects that users meet, by name.
--- @return table<string, { name: string, text: string, module: string }>
function M.kinds()
  local found = {}
  for module, doc in sorted.pairs(M.docs()) do
    local of_users = not module:find '^prompt%.' -- those of the prompt are its own
    for _, class in ipairs(doc.classes) do
      local more = class.text == '' -- of a kind that another module has
      if of_users and not class.inner and not more then
        found[class.name] = { name = class.name, text = class.text, module = module }
      end
    end
  end
  return found
end

-- What all handles can do.
local function of_handles()
  local list = {}
  for _, entry in ipairs(M.docs()['base.handle'].functions) do
    if entry.how == 'method' and not entry.inner then list[#list + 1] = entry end
  end
  return list
end

-- Adds the methods of a kind of object that a module's source has.
local function add_methods(list, modules, kind, module)
  for _, entry in ipairs(M.docs()[module].functions) do
    if entry.how == 'method' and entry.class == kind.name and not entry.inner then
      list[#list + 1], modules[#modules + 1] = entry, module
    end
  end
end

--- The methods of a kind of object, in the order of its source and of others that have more.
--- @param kind table one of `kinds`
--- @return table[] entries
--- @return string[] modules of each
function M.methods_of(kind)
  local list, modules = {}, {}
  add_methods(list, modules, kind, kind.module)
  for module in sorted.pairs(M.docs()) do
    if module ~= kind.module then add_methods(list, modules, kind, module) end
  end
  require('moonstill.' .. kind.module)
  for _, entry in ipairs(handles.has(kind.name) and of_handles() or {}) do
    list[#list + 1], modules[#modules + 1] = entry, 'base.handle'
  end
  return list, modules
end

--- The kind of object that a value is, by its name; nil where it is none.
--- @param x any
--- @return string?
function M.kind_of(x)
  if type(x) == 'cdata' then
    local what = handles.what(x)
    return handles.has(what) and what or nil
  end
  if schema.is_option(x) then return 'option' end
  if schema.listed(x) then return 'configuration' end
  return strict.what(x)
end

-- signatures -------------------------------------------------------------------------------------

--- What stands between the brackets of a call: the arguments that a docstring names where the
--- source says `...` alone.
--- @param entry table
--- @return string
function M.arguments(entry)
  local list = {}
  for _, param in ipairs(docstrings.tags(entry.text).param) do list[#list + 1] = param.name end
  if not entry.arguments:find('...', 1, true) or #list == 0 then
    return (entry.arguments:gsub('^%(_, ', '('):gsub('^%(_%)', '()'))
  end
  return '(' .. table.concat(list, ', ') .. ')'
end

--- How a function is called: "ms.kd(target, weight, options)", "model:learn(batch, terms)".
--- @param entry table
--- @param module string
--- @param kind? string of the object whose method it is
--- @return string
--- @return string? also by its name in the module, where that is what a call of the module is
function M.signature(entry, module, kind)
  local arguments = M.arguments(entry)
  if entry.how == 'method' then
    return ('%s:%s%s'):format(kind or entry.class or 'x', entry.name, arguments)
  end
  for name, place in sorted.pairs(names) do
    if place.module == module and place.field == entry.name then
      return 'ms.' .. name .. arguments
    end
  end
  local name = M.public_name(module)
  local holder = name and 'ms.' .. name or 'moonstill.' .. module
  if entry.how == 'local' then return holder .. arguments end
  local _, called = M.call_of(package.loaded['moonstill.' .. module])
  local full = ('%s.%s%s'):format(holder, entry.name, arguments)
  if called == entry.name then return holder .. arguments, full end
  return full
end

return M
