--- What goes by a name: "ms.kd", "model.learn", "run.state", "kd.temperature", "MS_LOG". `help`
--- looks texts up here.

local catalog = require 'moonstill.prompt.catalog'
local docstrings = require 'moonstill.prompt.docstrings'
local names = require 'moonstill.names'
local options_of = require 'moonstill.base.options'
local schema = require 'moonstill.base.schema'
local sorted = require 'moonstill.base.sorted'
local usage = require 'moonstill.prompt.usage'

local M = {}

-- options ----------------------------------------------------------------------------------------

--- Calls `visit(name, options, field)` for the schemas of all public modules: "ms.kd.options".
local function each_schema(visit)
  local ms = require 'moonstill'
  for name, place in sorted.pairs(names) do
    for field, options in sorted.pairs(not place.field and catalog.schemas_of(ms[name]) or {}) do
      visit(('ms.%s.%s'):format(name, field), options, name, field)
    end
  end
end

--- The name of a schema: "ms.kd.options".
--- @param options table
--- @return string?
function M.name_of_schema(options)
  local found
  each_schema(function(name, each)
    if each == options then found = found or name end
  end)
  return found
end

--- What an option is called, by where it is found: "kd.temperature".
--- @param option ms_option
--- @return string[] at least one
function M.names_of_option(option)
  local list, known = {}, {}
  each_schema(function(_, options, name, field)
    local prefix = name == 'run' and '' or field == 'options' and name .. '.'
      or name .. '.' .. field .. '.'
    for _, entry in ipairs(schema.list(options)) do
      local full = prefix .. entry.key
      if entry.option == option and not known[full] then
        list[#list + 1], known[full] = full, true
      end
    end
  end)
  return #list > 0 and list or { 'an option' }
end

--- When an option is used: "where target is topk".
--- @param rule any[] see schema's `beside`
--- @return string
function M.rule_text(rule)
  local key = rule[1]:gsub('|', ' or ')
  if #rule == 1 then return ('where %s is given'):format(key) end
  local values = {}
  for i = 2, #rule do values[#values + 1] = tostring(rule[i]) end
  return ('where %s is %s'):format(key, table.concat(values, ' or '))
end

-- the index --------------------------------------------------------------------------------------

local function add(list, name, entry)
  entry.name = name
  list[#list + 1] = entry
end

local function add_module(list, name, place)
  local value = require 'moonstill'[name]
  if place.field then
    local entry = catalog.of_function(value)
    return add(list, name, { how = 'function', entry = entry, module = place.module })
  end
  local doc = catalog.docs()[place.module]
  add(list, name, { how = 'module', module = place.module, value = value, brief = doc.about })
  for _, entry in ipairs(catalog.functions_of(place.module)) do
    add(list, name .. '.' .. entry.name, { how = 'function', entry = entry,
      module = place.module })
  end
end

local function add_kind(list, name, kind)
  add(list, name, { how = 'kind', kind = kind, brief = docstrings.tags(kind.text).text })
  for _, entry in ipairs(catalog.methods_of(kind)) do
    add(list, name .. '.' .. entry.name, { how = 'function', entry = entry, kind = name,
      module = kind.module })
  end
  for _, field in ipairs(docstrings.tags(kind.text).field) do
    local text = ('%s.%s: %s (%s)'):format(name, field.name, field.meaning, field.type)
    add(list, name .. '.' .. field.name, { how = 'text', text = text, brief = field.meaning })
  end
end

-- Options go by the section of a configuration, "optim.lr"; those of a module that is none by the
-- module's name.
local function add_options(list)
  local known = {}
  local function add_all(options, prefix)
    for _, entry in ipairs(schema.list(options)) do
      local option = entry.option
      if not known[option] then
        add(list, prefix .. entry.key, { how = 'option', option = option, brief = option.meaning })
        known[option] = true
      end
    end
  end
  add_all(require 'moonstill'.run.options, '')
  each_schema(function(_, options, name, field)
    add_all(options, field == 'options' and name .. '.' or name .. '.' .. field .. '.')
  end)
end

local function add_values(list)
  for _, entry in ipairs(schema.list(require 'moonstill'.run.options)) do
    for value, meaning in sorted.pairs(entry.option.meanings or {}) do
      local text = ('%s, a value of %s: %s'):format(tostring(value), entry.key, meaning)
      add(list, entry.key .. '.' .. tostring(value), { how = 'text', text = text, brief = meaning,
        of_value = true })
    end
  end
end

local function add_usage(list)
  for _, row in ipairs(usage.commands) do
    local command = row[1]:match '^%l+ ?%l*%f[%s%z]'
    if command then
      add(list, (command:gsub(' $', '')), { how = 'text', brief = row[2],
        text = ('moonstill %s: %s; --help says more'):format(row[1], row[2]) })
    end
  end
  for _, row in ipairs(usage.environment) do
    add(list, row[1], { how = 'text', text = row[1] .. ': ' .. row[2], brief = row[2] })
  end
end

local entries -- once they are asked for

local function all()
  if entries then return entries end
  local list = {}
  for name, place in sorted.pairs(names) do add_module(list, name, place) end
  for name, kind in sorted.pairs(catalog.kinds()) do add_kind(list, name, kind) end
  add_options(list)
  add_values(list)
  add_usage(list)
  entries = list
  return list
end

--- All names, sorted; each once.
--- @return string[]
function M.names()
  local known = {}
  for _, entry in ipairs(all()) do known[entry.name] = true end
  return sorted.keys(known)
end

-- Entries that `fits(name)` is true of.
local function those(fits)
  local found = {}
  for _, entry in ipairs(all()) do
    if fits(entry.name) then found[#found + 1] = entry end
  end
  return found
end

--- All that goes by a name, or whose last word it is, values of options only where nothing else is;
--- where there is none, also the nearest name.
--- @param text string
--- @return table[] entries
--- @return string? near
function M.find(text)
  local name = text:gsub('^ms%.', ''):gsub(':', '.'):gsub('%(.*', ''):gsub('%s+$', '')
  local found = those(function(each) return each == name end)
  if #found == 0 and name ~= '' then
    found = those(function(each) return each:sub(-#name - 1) == '.' .. name end)
    local others = {}
    for _, entry in ipairs(found) do others[#others + 1] = not entry.of_value and entry or nil end
    if #others > 0 then found = others end
  end
  if #found > 0 then return found end
  local words = {}
  for i, entry in ipairs(all()) do words[i] = entry.name end
  return {}, options_of.nearest(name, words)
end

return M
