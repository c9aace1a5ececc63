--- Schemas: what options a module has, each with its kind, bounds, default and meaning, as one
--- value (`ms.kd.options`). The module checks with it what it is given, a configuration what the
--- command line says, and help prints it.
---
---   M.options = schema.new('kd', {
---     k = schema.option(64, 'entries of a topk target', 'integer >= 1'):beside('target', 'topk'),
---   })
---   local o = schema.take('kd', M.options, given)      -- what is given over the defaults
---   ms.config { kd = ms.kd.options { k = 32 } }        -- all of it, with another default
local fail = require 'moonstill.base.fail'
local kinds = require 'moonstill.base.kinds'
local json = require 'moonstill.base.json'
local layout = require 'moonstill.base.layout'
local options = require 'moonstill.base.options'
local screen = require 'moonstill.base.screen'
local sorted = require 'moonstill.base.sorted'

local M = {}

-- one option -------------------------------------------------------------------------------------

--- One option of a module, or key of a configuration: what it must be, its default and its meaning.
--- @class ms_option
--- @field kind? string as for `ms.option`; nil: that of the default
--- @field default? any what it is where it is not given
--- @field meaning? string what help says of it
--- @field values? any[] one of these, in place of a kind
--- @field meanings? table<any, string> what each of them means
--- @field required? boolean a configuration must give it
--- @field rule? string[] see `beside`
local methods = {}
local record = { __index = methods }

local function declare(fields) return setmetatable(fields, record) end

--- Whether a value is a declared option.
--- @param x any
--- @return boolean
function M.is_option(x) return type(x) == 'table' and getmetatable(x) == record end

--- An option with a default and a meaning. `kind` is that of the default unless given;
--- alternatives are separated by `|`: path, paths (one or a list), string, number, integer,
--- boolean, list, table; any other word stands for itself ("auto|false|number"). Bounds may follow
--- ("integer >= 1", "number >= 0 < 1").
--- @param default any
--- @param meaning? string
--- @param kind? string
--- @return ms_option
function M.option(default, meaning, kind)
  return declare { default = default, meaning = meaning, kind = kind }
end

--- An option that a configuration must give.
--- @param kind string as for `option`; a path must exist
--- @param meaning? string
--- @return ms_option
function M.required(kind, meaning)
  return declare { required = true, meaning = meaning, kind = kind }
end

--- An option that may be absent: nil then.
--- @param kind string
--- @param meaning? string
--- @return ms_option
function M.optional(kind, meaning) return declare { meaning = meaning, kind = kind } end

--- One of a list of values; the first one is the default unless another is given.
--- @param values any[]
--- @param default? any
--- @param meaning? string
--- @param meanings? table<any, string> what each value means, for help
--- @return ms_option
function M.one_of(values, default, meaning, meanings)
  if type(values) ~= 'table' or values[1] == nil then fail('one_of: a list is needed') end
  if default == nil then default = values[1] end
  return declare { values = values, default = default, meaning = meaning, meanings = meanings }
end

--- Says that the option does something only where another one beside it has one of these values, or
--- any value where none is named; of several, "a|b", one is enough. Returns the option.
--- @param key string
--- @param ... any
--- @return ms_option self
function methods:beside(key, ...)
  self.rule = { key, ... }
  return self
end

local function kind_of_default(default)
  return json.is_array(default) and 'list' or type(default)
end

-- Whether an option can be what the other one was declared to be, with its own default. A number or
-- a text that is out of bounds there is a slip of the pen, and no option of another kind.
local function takes(base, default)
  return default == nil or type(default) == 'number' or type(default) == 'string' and base.values
    or M.kind_of(base, default) ~= nil
end

--- An option that a recipe declares, by a default alone or in full, over the module's of that name:
--- what it does not say is the module's.
--- @param base? ms_option
--- @param own any
--- @return ms_option
function M.over(base, own)
  local o = M.is_option(own) and own or M.option(own)
  local all = declare { default = o.default, meaning = o.meaning, kind = o.kind, values = o.values,
    meanings = o.meanings, required = o.required, rule = o.rule }
  if base then
    all.meaning, all.rule = o.meaning or base.meaning, o.rule or base.rule
    if not o.kind and not o.values and takes(base, o.default) then
      all.kind, all.values, all.meanings = base.kind, base.values, base.meanings
    end
  end
  if not all.values then all.kind = all.kind or kind_of_default(all.default) end
  return all
end

--- What a value is by an option, a word of its kind; nil where the option cannot be that.
--- @param option ms_option
--- @param value any
--- @return string?
function M.kind_of(option, value)
  if not option.values then return kinds.of(option.kind, value) end
  for _, allowed in ipairs(option.values) do
    if value == allowed then return 'one of' end
  end
  return nil
end

local function words_of(values)
  local words = {}
  for i, value in ipairs(values) do words[i] = tostring(value) end
  return words
end

--- What an option must be: "number from 0 to 10", "one of topk, hidden, logits".
--- @param option ms_option
--- @param value? any one that it is not
--- @return string
function M.kind_text(option, value)
  if not option.values then return kinds.text(option.kind, value) end
  return 'one of ' .. table.concat(words_of(option.values), ', ')
end

--- A value as errors show it: a text that looks like something else is the one that puzzles.
--- @param value any
--- @return string
function M.shown(value)
  if type(value) ~= 'string' or not (tonumber(value) or value == 'true' or value == 'false') then
    return kinds.shown(value)
  end
  return ('"%s" in quotes, which is a text'):format(value)
end

-- What other YAML than 1.2's core schema takes for true and false.
local BOOLEANS = { yes = 'true', on = 'true', y = 'true', no = 'false', off = 'false', n = 'false' }

--- What to write in the place of a value that was meant to be true or false, or nil.
--- @param option ms_option
--- @param value any
--- @return string?
function M.meant_boolean(option, value)
  local word = type(value) == 'string' and BOOLEANS[value:lower()]
  return word and M.kind_of(option, true) and word or nil
end

--- What is wrong with a value: "'k' must be integer >= 1, not 0"; nil where nothing is.
--- @param key string
--- @param option ms_option
--- @param value any
--- @return string?
function M.refused(key, option, value)
  if M.kind_of(option, value) then return nil end
  local near = type(value) == 'string' and option.values
    and options.nearest(value, words_of(option.values))
  local meant = M.meant_boolean(option, value) or near
  return ("'%s' must be %s, not %s%s"):format(key, M.kind_text(option, value), M.shown(value),
    meant and ("; did you mean '%s'?"):format(meant) or '')
end

-- tables of options ------------------------------------------------------------------------------

local schemas = setmetatable({}, { __mode = 'k' }) -- by schema: what errors call it

--- Whether a value is a schema.
--- @param x any
--- @return boolean
function M.is_schema(x) return type(x) == 'table' and schemas[x] ~= nil end

--- What a recipe says of one option of a module, see `over`. A key that the module has not is the
--- recipe's own where it is declared in full; otherwise it is a slip of the pen, and an error.
--- @param schema table<string, ms_option>
--- @param key string
--- @param own any
--- @return ms_option
function M.declared(schema, key, own)
  if schema[key] or M.is_option(own) then return M.over(schema[key], own) end
  fail("%s: no option '%s'; %s (ms.option declares a key of one's own)", schemas[schema],
    tostring(key), options.instead(key, sorted.keys(schema)))
end

-- All options of a schema, with what a recipe says over them.
local function section(schema, own)
  local all = {}
  for key, option in sorted.pairs(schema) do all[key] = option end
  for key, value in sorted.pairs(own == nil and {} or own) do
    all[key] = M.declared(schema, key, value)
  end
  return all
end

local class = { __call = section }

--- A schema: a table of options by name, of which some may be schemas themselves. A default alone
--- declares an option as well. Called with a table, a schema gives a section of a recipe's
--- configuration: all options, those of the table with another default, kind or meaning; keys
--- that the schema has not are the recipe's own and declared with `ms.option` and its kin.
--- @param what string what errors call it
--- @param list table<string, any>
--- @param more? table<string, ms_option> options of another schema, which belong to this one too
--- @return table<string, ms_option>
function M.new(what, list, more)
  local schema = {}
  for key, option in sorted.pairs(more or {}) do schema[key] = option end
  for key, option in sorted.pairs(list) do
    schema[key] = M.is_schema(option) and option or M.over(nil, option)
  end
  schemas[schema] = what
  return setmetatable(schema, class)
end

local declared = setmetatable({}, { __mode = 'k' }) -- by table: keys that a recipe has declared
local lists = setmetatable({}, { __mode = 'k' })    -- by table: its options, see `list`

--- Remembers which keys of a configuration's table a recipe has declared: a module that is given
--- the table takes those it knows and passes over the others, which are the recipe's.
--- @param t table
--- @param keys table<string, boolean>
--- @param list? { key: string, option: ms_option }[] what help says of them
function M.declare(t, keys, list) declared[t], lists[t] = keys, list end

--- The options of a configuration's table; nil for any other value.
--- @param t any
--- @return { key: string, option: ms_option }[]?
function M.listed(t) return lists[t] end

--- A configuration's table as one of which any key may be asked, and so are its inner tables; what
--- the recipe has declared goes along. Anything else is returned as it is.
--- @param t any
--- @return any
function M.plain(t)
  local keys = type(t) == 'table' and declared[t]
  if not keys then return t end
  local copy = {}
  for key, value in sorted.pairs(t) do copy[key] = M.plain(value) end
  M.declare(copy, keys)
  return copy
end

--- An error unless `given` has options of the schema alone, each of its kind. Inner tables are
--- those of inner schemas.
--- @param what string what errors begin with
--- @param schema table<string, ms_option>
--- @param given? table
--- @param prefix? string of the keys in errors, such as "batch."
function M.check(what, schema, given, prefix)
  if given == nil then return end
  prefix = prefix or ''
  local place = prefix == '' and what or what .. ': ' .. prefix:sub(1, -2)
  if type(given) ~= 'table' then options.known(place, schema, given) end
  local own = declared[given]
  for key, value in sorted.pairs(given) do
    local option = schema[key]
    if M.is_schema(option) then
      M.check(what, option, value, prefix .. key .. '.')
    elseif option then
      local why = M.refused(prefix .. key, option, value)
      if why then fail('%s: %s', what, why) end
    elseif not (own and own[key]) then
      options.known(place, schema, { [key] = true })
    end
  end
end

--- Checks `given` and returns a new table: what is given, over the defaults.
--- @param what string what errors begin with
--- @param schema table<string, ms_option>
--- @param given? table
--- @return table
function M.take(what, schema, given)
  M.check(what, schema, given)
  local taken = {}
  for key, option in sorted.pairs(schema) do
    local value = given and rawget(given, key) -- a configuration is strict
    if M.is_schema(option) then
      taken[key] = M.take(what, option, value)
    elseif value == nil then
      taken[key] = option.default
    else
      taken[key] = value
    end
  end
  return taken
end

--- Those of a table's values that a schema knows, in a new table.
--- @param schema table<string, ms_option>
--- @param given table
--- @return table
function M.part(schema, given)
  local part = {}
  for key in sorted.pairs(schema) do part[key] = rawget(given, key) end
  return part
end

-- help -------------------------------------------------------------------------------------------

--- The options of a schema in order, those of inner ones with their place: { key, option }.
--- @param schema table
--- @return { key: string, option: ms_option }[]
function M.list(schema)
  local list = {}
  local function add(t, prefix)
    for key, option in sorted.pairs(t) do
      if M.is_option(option) then
        list[#list + 1] = { key = prefix .. key, option = option }
      else
        add(option, prefix .. key .. '.')
      end
    end
  end
  add(schema, '')
  return list
end

-- What an option means, and what it must be: the values that there are, or its kind, of which a
-- bound stays in one line.
local function meaning_of(option)
  local meaning, tie = option.meaning or '', layout.TIE
  if option.values then
    return (meaning == '' and '' or meaning .. ': ') .. table.concat(words_of(option.values), ', ')
  end
  local kind = kinds.text(option.kind):gsub(' ?([<>]=?) ', tie .. '%1' .. tie)
    :gsub(' from (%S+) to ', ('%sfrom%s%%1%sto%s'):format(tie, tie, tie, tie))
  return ('%s (%s)'):format(meaning, kind)
end

local function default_of(option)
  return option.required and 'required' or kinds.shown(option.default)
end

--- Rows that explain options: name, default, meaning with what the option must be.
--- @param list { key: string, option: ms_option }[]
--- @param columns? integer default those of a page
--- @return string
function M.help(list, columns)
  local rows = {}
  for i, entry in ipairs(list) do
    rows[i] = { entry.key, default_of(entry.option), meaning_of(entry.option) }
  end
  return layout.rows(rows, columns or screen.page())
end

return M
