--- A recipe's configuration: one table gives the keys, their types, defaults and help.
---
---   local cfg = ms.config {
---     student = ms.required 'path',
---     epochs = 1,                                    -- a number, by default 1
---     optim = { lr = ms.option(2e-5, 'peak learning rate') },
---   }
---
--- The command line follows: YAML files and `key=value`, later ones over earlier ones, keys of
--- inner tables with dots. Unknown keys, wrong types and missing files are errors before anything
--- is loaded.

local C = require 'moonstill.C'
local callable = require 'moonstill.base.callable'
local check = require 'moonstill.base.check'
local checkpoints = require 'moonstill.run.checkpoints'
local fail = require 'moonstill.base.fail'
local grid = require 'moonstill.base.grid'
local json = require 'moonstill.base.json'
local exit = require 'moonstill.base.exit'
local kinds = require 'moonstill.base.kinds'
local layout = require 'moonstill.base.layout'
local options_of = require 'moonstill.base.options'
local paths = require 'moonstill.base.paths'
local ranks = require 'moonstill.base.ranks'
local schemas = require 'moonstill.base.schema'
local screen = require 'moonstill.base.screen'
local settings = require 'moonstill.run.settings'
local sorted = require 'moonstill.base.sorted'
local strict = require 'moonstill.base.strict'
local template = require 'moonstill.text.template'
local trace = require 'moonstill.base.trace'

local M = {}

local reserved = { ['--help'] = true, ['-h'] = true, ['--smoke'] = true }

local function refuse(format, ...)
  exit(2, (select('#', ...) > 0 and format:format(...) or format))
end

--- Ends a recipe whose values do not go together: exit status 2, as for any wrong configuration.
--- @param message string
function M.refuse(message) exit(2, message) end

-- the schema -------------------------------------------------------------------------------------

local function is_group(value)
  return type(value) == 'table' and not schemas.is_option(value) and not json.is_array(value)
end

local function check_name(prefix, key)
  if type(key) == 'string' and key:find '^[%a_][%w_]*$' then return end
  fail('config: %s%s is no name for a key', prefix, tostring(key))
end

local function add_option(state, path, option)
  if option.default ~= nil and not schemas.kind_of(option, option.default) then
    fail("config: the default of '%s' is not %s", path,
      schemas.kind_text(option, option.default))
  end
  state.list[#state.list + 1] = { key = path, option = option }
  state.map[path], state.value[path] = option, option.default
end

--- Adds the keys of a recipe's table: those of inner tables with dots, in order of the alphabet.
--- What they do not say of themselves is that of `known`, the options of a module, where there are
--- any of that name.
local function add_keys(state, t, prefix, known)
  local own = {}
  state.groups[#state.groups + 1], state.own[prefix] = prefix, own
  for key, value in sorted.pairs(t) do
    check_name(prefix, key)
    own[key] = true
    local base = known and known[key]
    local inner = schemas.is_schema(base)
    if is_group(value) then
      add_keys(state, value, prefix .. key .. '.', inner and base or nil)
    elseif prefix == '' or not known then
      add_option(state, prefix .. key, schemas.over(not inner and base or nil, value))
    else
      add_option(state, prefix .. key, schemas.declared(known, key, value))
    end
  end
end

-- layers -----------------------------------------------------------------------------------------

local function words_of(list)
  local words = {}
  for i, entry in ipairs(list) do words[i] = entry.key end
  return words
end

-- A key that the schema has not: an error, unless it is another's and to be passed over.
local function unknown(state, key, source)
  if state.others and state.others(key, source ~= 'command line') then return end
  local to_come = grid.not_yet(key:match '^grid%.(.*)$')
  if to_come then refuse('%s: grid: %s', source, to_come) end
  local words = words_of(state.list)
  for _, prefix in ipairs(state.groups) do words[#words + 1] = prefix:match '^(.+)%.$' end
  local near = options_of.nearest(key, words)
  refuse("%s: no option '%s'%s", source, key, near and ("; did you mean '%s'?"):format(near) or '')
end

--- Sets one key, after checking its type. `raw` is the text of a value from the command line, which
--- a key that takes text may have as it was written.
local function assign(state, key, value, source, raw)
  local option = state.map[key]
  if not option then return unknown(state, key, source) end
  if value == json.null then
    if option.required or option.default ~= nil then
      if raw == '' then
        refuse("%s: '%s' has no value; write %s=VALUE, without blanks", source, key, key)
      end
      refuse("%s: '%s' cannot be null", source, key)
    end
    state.value[key] = nil
    return
  end
  if raw and not schemas.kind_of(option, value) then -- "a: b" and "12" are texts too
    local text = schemas.kind_of(option, raw)
    -- a path is not a list that went wrong
    if text and (text == 'string' or type(value) ~= 'table') then value = raw end
  end
  local why = schemas.refused(key, option, value)
  if why then refuse('%s: %s', source, why) end
  state.value[key], state.source[key] = value, source
end

-- What to say of a text in the place of a table of keys.
local function lacks_blank(value)
  local key, rest = tostring(value):match '^([%a_][%w_.]*):(%S%S?)'
  return key and rest ~= '//' and '; a blank belongs behind the colon' or ''
end

-- Where a key of a file stands: the file, its line and its column.
local function placed(source, t, key)
  local line, column = json.place(t, key)
  return line and ('%s: line %d, column %d'):format(source, line, column) or source
end

--- Sets what a nested table says; `place` is where the table's own key stands.
local function assign_all(state, t, prefix, source, place)
  if type(t) ~= 'table' or t == json.null or json.is_array(t) then
    refuse("%s: %s must be a table of keys, not %s%s", place or source,
      prefix == '' and 'all of it' or ("'%s'"):format(prefix:sub(1, -2)), schemas.shown(t),
      lacks_blank(t))
  end
  for key, value in sorted.pairs(t) do
    local path, at = prefix .. key, placed(source, t, key)
    if state.map[path] then
      assign(state, path, value, at)
    elseif state.own[path .. '.'] then
      assign_all(state, value, path .. '.', source, at)
    else
      unknown(state, path, at)
    end
  end
end

-- How a key is written that was given in another way: "epochs =2", "--epochs 2".
local function written(state, word)
  local key = word:match '^%-*([%a_][%w_.-]*)'
  key = key and key:gsub('-', '_')
  if key and state.map[key] then return ('; write %s=VALUE, without blanks'):format(key) end
  return word:find '^=' and '; write KEY=VALUE, without blanks' or ''
end

local function read_file(state, path)
  if C.ms_path_kind(path) ~= 1 then
    refuse('%s: no such file (arguments are YAML files and key=value)%s', path,
      written(state, path))
  end
  local ok, value = fail.pcall(json.read_yaml, path)
  if not ok then refuse('%s', tostring(value)) end
  local guess = type(value) ~= 'table' and paths.guess(path) -- a pointer file is a text of YAML too
  if guess then refuse('%s: %s', path, guess) end
  if value ~= json.null then assign_all(state, value, '', path) end
end

-- Every text of a decoded value with `from` as `to`, which is a letter.
local function put_back(value, from, to)
  if type(value) == 'string' then return (value:gsub(from, to)) end
  if type(value) ~= 'table' or value == json.null then return value end
  local t = json.is_array(value) and json.array() or {}
  for key, v in sorted.pairs(value) do t[put_back(key, from, to)] = put_back(v, from, to) end
  return t
end

-- A value from the command line, where nobody writes comments: "#" is a letter. For YAML's parser
-- another letter stands for it, one that the text has not.
local function decode_argument(raw, name)
  if not raw:find('#', 1, true) then return json.decode_yaml(raw, name) end
  for i = 128, 191 do
    local letter = '\238\128' .. string.char(i) -- U+E000 and on, of private use
    if not raw:find(letter, 1, true) then
      return put_back(json.decode_yaml(raw:gsub('#', letter), name), letter, '#')
    end
  end
  error(name .. ": too strange a text with '#'", 0)
end

-- Unless it is quoted, a text is what was written: YAML drops blanks, tags and anchors.
local as_written = { string = true, path = true, paths = true, sources = true }
local function plain_text(option, value, raw)
  if type(value) ~= 'string' or raw:find '^%s*["\']' then return value end
  return as_written[schemas.kind_of(option, raw)] and raw or value
end

local function read_argument(state, text)
  local key, raw = text:match '^([%a_][%w_.]*)=(.*)$'
  if not key then return read_file(state, text) end
  local ok, value = fail.pcall(decode_argument, raw, 'command line: ' .. key)
  local option = state.map[key]
  if not option then
    if state.own[key .. '.'] and ok then
      return assign_all(state, value, key .. '.', 'command line')
    end
    return unknown(state, key, 'command line')
  end
  if not ok then
    if not schemas.kind_of(option, raw) then refuse('%s', tostring(value)) end
    value = raw
  end
  value = plain_text(option, value, raw)
  if raw == '' then value = schemas.kind_of(option, '') and '' or json.null end
  assign(state, key, value, 'command line', raw)
end

local function check_files(source, key, option, value)
  for _, path in ipairs(kinds.paths(value)) do
    if C.ms_path_kind(path) == 0 then
      local meant = schemas.meant_boolean(option, value)
      refuse("%s: '%s': %s: %s%s", source, key, path, paths.missing(path, 'file or folder'),
        meant and ("; did you mean '%s'?"):format(meant) or '')
    end
  end
end

local FILES = { path = true, paths = true, sources = true }

--- What must be there, is: keys and files.
local function check_complete(state)
  for _, entry in ipairs(state.list) do
    local key, option = entry.key, entry.option
    local value = state.value[key]
    if value == nil and option.required then
      refuse("'%s' must be given (%s): %s=…%s", key, schemas.kind_text(option), key,
        option.meaning and '  # ' .. option.meaning or '')
    end
    local kind = value ~= nil and schemas.kind_of(option, value)
    if state.source[key] and FILES[kind] then
      check_files(state.source[key], key, option, value)
    end
  end
end

-- A template that there is not is said before models are loaded.
local function check_template(state)
  local asked, source = state.value['data.template'], state.source['data.template']
  local folder = state.value.model or state.value.student or state.value.teacher
  if type(folder) == 'table' then folder = folder[1] end
  if not source or not asked or type(folder) ~= 'string' then return end
  local why = template.refused(asked, folder)
  if why then refuse("%s: 'data.template': %s", source, why) end
end

-- Whether one of the options beside it that a rule names has one of the rule's values; `group` is
-- before their names.
local function is_used(state, group, rule)
  local unknown_to_recipe = true
  for name in rule[1]:gmatch '[^|]+' do
    local value = state.value[group .. name]
    if state.map[group .. name] then unknown_to_recipe = false end
    if #rule == 1 and value ~= nil then return true end
    for i = 2, #rule do
      if value == rule[i] then return true end
    end
  end
  return unknown_to_recipe
end

-- What was asked for and does nothing.
local function note_unused(state)
  for _, entry in ipairs(state.list) do
    local source, rule = state.source[entry.key], entry.option.rule
    local group = entry.key:gsub('[^.]*$', '')
    if source and rule and not is_used(state, group, rule) then
      local other = group .. rule[1]:match '^[^|]*'
      local value = state.value[other]
      ranks.world():say(("note: %s: '%s' is not used: %s is %s"):format(source, entry.key, other,
        value == nil and 'not given' or kinds.shown(value)))
    end
  end
end

-- What chat templates are told of the date is a part of the data: that of the run's first start. Of
-- one that was started before there was a date, nothing is said.
local function first_date(output, resume)
  local saved = checkpoints.saved_config(output, resume)
  if not saved then return os.date '%Y-%m-%d' end
  local date = json.is_object(saved.data) and saved.data.date
  return type(date) == 'string' and date or nil
end

local function set_date(state)
  local key, output = 'data.date', state.value.output
  if not state.map[key] or state.value[key] ~= nil or not output then return end
  state.value[key] = ranks.world():write(first_date, output, state.value.resume)
end

-- The values as a table of tables, which remember what their recipe has declared; any other key is
-- an error.
local function nest(state)
  local tables = {}
  for _, prefix in ipairs(state.groups) do -- outer ones come first
    tables[prefix] = {}
    schemas.declare(tables[prefix], state.own[prefix], prefix == '' and state.list or nil)
    local outer, last = prefix:match '^(.-)([^.]+)%.$'
    if last then tables[outer][last] = tables[prefix] end
    local what = last and ("the configuration's %s"):format(prefix:sub(1, -2)) or 'configuration'
    setmetatable(tables[prefix], strict.class(what, {}, state.own[prefix]))
  end
  for _, entry in ipairs(state.list) do
    local prefix, last = entry.key:match '^(.-)([^.]+)$'
    tables[prefix][last] = state.value[entry.key]
  end
  return tables['']
end

local function new_state(recipe, options)
  local all, others = {}, options.others
  local common = not others and options.common ~= false and settings.common or {}
  for key, value in sorted.pairs(common) do all[key] = value end
  for key, value in sorted.pairs(recipe) do all[key] = value end
  -- list: all options in order, by key in `map`; value, source: of each, and who set it; groups:
  -- prefixes of the tables; own: by prefix, the names of its keys
  local state = { list = {}, map = {}, value = {}, source = {}, groups = {}, own = {},
    others = others }
  add_keys(state, all, '', settings.options)
  return state
end

-- help -------------------------------------------------------------------------------------------

local function help(state, options)
  local lines = {}
  if options.about then lines[1] = options.about .. '\n' end
  lines[#lines + 1] = 'Arguments: YAML files and key=value, in any number; later ones win.'
  if options.smoke then lines[#lines + 1] = '--smoke runs a toy size that needs nothing.' end
  return ('%s\n\n%s'):format(layout.paragraphs(table.concat(lines, '\n'), screen.page()),
    schemas.help(state.list))
end

--- The options that a recipe declares, those of runs among them.
--- @package
--- @param schema table
--- @param options? table as for the call
--- @return { key: string, option: ms_option }[]
function M.list(schema, options)
  return new_state(check.table('config', 'schema', schema), options or {}).list
end

--- The text that --help prints.
--- @param schema table
--- @param options? table as for the call
--- @return string
function M.help(schema, options)
  check.table('config', 'schema', schema)
  options = options == nil and {} or check.table('config', 'options', options)
  return help(new_state(schema, options), options)
end

local function has(args, ...)
  for _, word in ipairs(args) do
    for i = 1, select('#', ...) do
      if word == (select(i, ...)) then return true end
    end
  end
  return false
end

-- An option that there is not: what was meant by it.
local function refuse_flag(state, text, options)
  local hint = written(state, text:match '^[^=]*')
  if hint == '' then
    local flags = { '--help', options.smoke and '--smoke' or nil }
    local near = options_of.nearest(text, flags)
      or options_of.nearest((text:gsub('^%-+', ''):gsub('=.*', '')), words_of(state.list))
    hint = near and ("; did you mean '%s'?"):format(near) or ''
  end
  refuse('unknown option %s (arguments are YAML files, key=value, --help%s)%s', text,
    options.smoke and ', --smoke' or '', hint)
end

local function read_arguments(state, args, options)
  if has(args, '--smoke') then
    if not options.smoke then refuse 'this recipe has no --smoke size' end
    local smoke = options.smoke
    if type(smoke) == 'function' then smoke = smoke() end
    assign_all(state, smoke, '', '--smoke')
  end
  for _, text in ipairs(args) do
    if text:sub(1, 1) == '-' and not reserved[text] then
      refuse_flag(state, text, options)
    elseif not reserved[text] then
      read_argument(state, text)
    end
  end
end

local asking -- what is given the next schema, see schema_of

--- What a recipe calls `config` with, found by running it up to there.
--- @package
--- @param path string
--- @return table? schema nil where the recipe ends without it
--- @return table? options
function M.schema_of(path)
  local chunk, why = loadfile(path)
  if not chunk then error(why, 0) end
  local found, stop, outer = {}, {}, arg
  asking = function(...)
    found.schema, found.options = ...
    error(stop, 0)
  end
  rawset(_G, 'arg', { [0] = path })
  local ok, message = xpcall(chunk, function(e) return e == stop and e or trace.handler(e) end)
  asking = nil
  rawset(_G, 'arg', outer)
  if not ok and message ~= stop then error(message, 0) end
  return found.schema, found.options
end

--- Reads the command line by a schema: `ms.config { output = "out" }`. With --help it prints the
--- keys and ends the process.
--- @param schema table keys, with defaults or declared options; inner tables for groups
--- @param options? { about?: string, smoke?: table|fun(): table, args?: string[],
---   common?: boolean, others?: fun(key: string, in_file: boolean): boolean } about: what the
---   recipe does; smoke: values of the --smoke size; args: instead of the global `arg`; common:
---   false: without the keys that every recipe has, for one that trains nothing; others: which keys
---   that the schema has not are another recipe's, and passed over
--- @return table the values, nested as in the schema
function M.read(schema, options)
  if type(schema) ~= 'table' then fail('config: a table of keys is needed') end
  if asking then asking(schema, options) end
  options = options_of.known('config', { about = true, smoke = true, args = true, common = true,
    others = true }, options)
  local args = options.args or arg or {}
  local state = new_state(schema, options)
  if has(args, '--help', '-h') then
    os.exit(io.write(help(state, options)) and io.stdout:flush() and 0 or 1)
  end
  read_arguments(state, args, options)
  check_complete(state)
  check_template(state)
  note_unused(state)
  set_date(state)
  local cfg = nest(state)
  if state.map.threads and cfg.threads > 0 then check(C.ms_threads_set(cfg.threads)) end
  return cfg
end

return callable(M, 'read')
