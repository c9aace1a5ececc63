--- Writes the page of reference, docs/reference.md: what help, --help and the docstrings say.
--- `./bootstrap docs` calls it; tests/spec/reference_spec.lua compares what it writes.
---   build/moonstill cmake/reference.lua [FILE]          default: stdout
local screen = require 'moonstill.base.screen'
screen.page = function() return 80 end -- not that of a terminal: the page is the same everywhere
local catalog = require 'moonstill.prompt.catalog'
local command_line = require 'moonstill.prompt.command'
local docstrings = require 'moonstill.prompt.docstrings'
local index = require 'moonstill.prompt.index'
local kinds_of = require 'moonstill.base.kinds'
local ms = require 'moonstill'
local names = require 'moonstill.names'
local schema = require 'moonstill.base.schema'
local settings = require 'moonstill.run.settings'
local sorted = require 'moonstill.base.sorted'
local usage = require 'moonstill.prompt.usage'

local out, contents = {}, {}

-- Markdown ---------------------------------------------------------------------------------------

local function add(format, ...)
  out[#out + 1] = select('#', ...) > 0 and format:format(...) or format
end

-- Signs of Markdown are letters, but between backticks.
local function escaped(text)
  local parts, in_code = {}, false
  for part, tick in (text .. '\0'):gmatch '([^`%z]*)([`%z])' do
    parts[#parts + 1] = in_code and part or part:gsub('[*<\\]', '\\%0')
      :gsub('%f[%w_]_', '\\_'):gsub('_%f[^%w_]', '\\_')
    parts[#parts + 1] = tick == '`' and '`' or ''
    in_code = not in_code
  end
  return table.concat(parts)
end

local function code(text) return text == '' and '' or '`' .. text .. '`' end

local function cell(text) return (text:gsub('|', '\\|'):gsub('%s+', ' ')) end

local function add_row(...)
  local cells = {}
  for i = 1, select('#', ...) do cells[i] = cell((select(i, ...))) end
  add('| ' .. table.concat(cells, ' | ') .. ' |')
end

local function add_head(...)
  add_row(...)
  add('|' .. (' --- |'):rep(select('#', ...)))
end

local function flush_code(lines, language)
  while lines[#lines] == '' do lines[#lines] = nil end
  if #lines == 0 then return end
  add('```' .. language)
  for _, line in ipairs(lines) do add((line:gsub('^  ', ''))) end
  add '```'
  add ''
end

-- A docstring's text: its indented lines are code, of Lua unless another language is named.
local function add_text(text, language)
  local lines, is_code = {}, false
  local function flush()
    if is_code then
      flush_code(lines, language or 'lua')
    elseif #lines > 0 then
      for _, line in ipairs(lines) do add(escaped(line)) end
      add ''
    end
    lines = {}
  end
  for line in (text .. '\n'):gmatch '(.-)\n' do
    local indented = line:find '^  ' ~= nil
    if line == '' and is_code then
      lines[#lines + 1] = line
    elseif line == '' then
      flush()
    else
      if indented ~= is_code then
        flush()
        is_code = indented
      end
      lines[#lines + 1] = line
    end
  end
  flush()
end

local function anchor(title)
  return (title:lower():gsub('[^%w%s_-]', ''):gsub('%s', '-'))
end

local function add_section(title)
  contents[#contents + 1] = { title = title, items = {} }
  add('## %s\n', title)
end

local function add_item(title, shown)
  table.insert(contents[#contents].items, ('[%s](#%s)'):format(shown or title, anchor(title)))
  add('### %s\n', title)
end

-- options ----------------------------------------------------------------------------------------

local function default_of(option)
  if option.required then return 'required' end
  if option.default == nil then return '' end
  return code(option.default == '' and '""' or kinds_of.shown(option.default))
end

local function add_options(list, spelled)
  if #list == 0 then return end
  add_head('option', 'default', 'meaning', 'must be')
  for _, entry in ipairs(list) do
    local option = entry.option
    local meaning = escaped(option.meaning or '')
    if option.rule then meaning = meaning .. '; used ' .. escaped(index.rule_text(option.rule)) end
    add_row(code(spelled and spelled(entry.key) or entry.key), default_of(option), meaning,
      escaped(schema.kind_text(option)))
  end
  add ''
end

-- Values of options with their meanings, once each.
local function add_values(options, prefix)
  for _, entry in ipairs(schema.list(options)) do
    local meanings = entry.option.meanings
    if meanings then
      add('`%s`:\n', prefix .. entry.key)
      for _, value in ipairs(entry.option.values) do
        if meanings[value] then add('- `%s`: %s', tostring(value), escaped(meanings[value])) end
      end
      add ''
    end
  end
end

-- functions --------------------------------------------------------------------------------------

local function meaning_of(entry, name)
  return escaped((entry.meaning:gsub('`([%w_]*options)`', '`ms.' .. (name or '?') .. '.%1`')))
end

local function add_function(entry, module, kind)
  local tags, name = docstrings.tags(entry.text), catalog.public_name(module)
  local signature, also = catalog.signature(entry, module, kind)
  add('#### `%s`\n', signature)
  if also then add('Also `%s`.\n', also) end
  add_text(tags.text)
  for _, param in ipairs(tags.param) do
    local meaning = meaning_of(param, name)
    add('- `%s%s`, %s%s', param.name, param.optional and '?' or '', code(param.type),
      meaning ~= '' and ': ' .. meaning or '')
  end
  for _, result in ipairs(tags['return']) do
    local meaning = meaning_of(result, name)
    add('- returns %s%s', code(result.type), meaning ~= '' and ': ' .. meaning or '')
  end
  if #tags.param + #tags['return'] > 0 then add '' end
end

-- modules and objects ----------------------------------------------------------------------------

local function add_kinds_of(module)
  local list = {}
  for name, kind in sorted.pairs(catalog.kinds()) do
    if kind.module == module then list[#list + 1] = ('[%s](#%s)'):format(name, anchor(name)) end
  end
  if #list > 0 then add('Objects: %s\n', table.concat(list, ', ')) end
end

local function add_schemas(name, value)
  for field, options in sorted.pairs(catalog.schemas_of(value)) do
    add('#### `ms.%s.%s`\n', name, field)
    add_options(schema.list(options))
    if name ~= 'run' then add_values(options, '') end
  end
end

local function add_module(name, place)
  local value, module = ms[name], place.module
  add_item('ms.' .. name)
  if type(value) ~= 'function' then add_text(catalog.docs()[module].about) end
  add_kinds_of(module)
  local call = catalog.call_of(value)
  local entry = call and catalog.of_function(call)
  if type(value) == 'function' then
    entry = sorted.copy(entry)
    entry.text = docstrings.tags(entry.text).text == ''
      and catalog.docs()[module].about .. '\n' .. entry.text or entry.text
  end
  if entry then add_function(entry, module) end
  for _, each in ipairs(catalog.functions_of(module)) do
    if not (entry and each.name == entry.name) then add_function(each, module) end
  end
  add_schemas(name, value)
end

local function add_modules()
  add_section 'Modules'
  add 'Each is loaded when `ms.NAME` is first named.\n'
  for name, place in sorted.pairs(names) do
    if not place.field then add_module(name, place) end
  end
  add_item 'Options and keys of recipes'
  for name, place in sorted.pairs(names) do
    if place.field and place.module == 'base.schema' then
      add_function(catalog.of_function(ms[name]), place.module)
    end
  end
end

local function add_kind(name, kind)
  local tags = docstrings.tags(kind.text)
  add_item(name)
  add_text(tags.text)
  if #tags.field > 0 then
    add_head('field', 'type', 'meaning')
    for _, field in ipairs(tags.field) do
      add_row(code(field.name), code(field.type) .. (field.optional and ' or nil' or ''),
        escaped(field.meaning))
    end
    add ''
  end
  for _, entry in ipairs(catalog.methods_of(kind)) do add_function(entry, kind.module, name) end
end

local function add_objects()
  add_section 'Objects'
  for name, kind in sorted.pairs(catalog.kinds()) do add_kind(name, kind) end
end

-- the command line -------------------------------------------------------------------------------

local function add_rows(first, second, rows)
  add_head(first, second)
  for _, row in ipairs(rows) do add_row(code(row[1]), escaped(row[2])) end
  add ''
end

local function add_commands()
  add_section 'Command line'
  local rows = {}
  for i, row in ipairs(usage.commands) do
    rows[i] = { (('moonstill ' .. row[1]):gsub(' $', '')), row[2] }
  end
  add_rows('command', 'what it does', rows)
  for _, module in ipairs(usage.modules) do
    local command = require('moonstill.prompt.' .. module).command
    add_item('moonstill ' .. command.name)
    add('    moonstill %s %s\n', command.name, command.usage)
    add_text(command.about, 'text')
    if command.keys then
      add_options(command.keys())
    else
      local short = {}
      for flag, key in sorted.pairs(command.short or {}) do short[key] = flag .. ', ' end
      add_options(schema.list(command.options), function(key)
        return (short[key] or '') .. command_line.flag(key)
      end)
    end
  end
  add_item 'Exit status'
  add_rows('status', 'meaning', usage.statuses)
  add_item 'Environment'
  add_rows('variable', 'meaning', usage.environment)
  add 'For `./bootstrap`:\n'
  add_rows('variable', 'meaning', usage.build_environment)
end

-- recipes ----------------------------------------------------------------------------------------

-- The keys that a recipe declares, and what its --help says of it: it is run up to there.
local function keys_of(path)
  local found, config = nil, ms.config
  local stop = {}
  rawset(ms, 'config', setmetatable({}, { __index = config, __call = function(_, keys, options)
    found = { list = config.list(keys, options), options = options or {} }
    error(stop, 0)
  end }))
  local ok, why = pcall(assert(loadfile(path)))
  rawset(ms, 'config', config)
  if ok or why ~= stop then error(('%s: %s'):format(path, tostring(why)), 0) end
  return found
end

local function known_option(key)
  local place = settings.options
  for word in key:gmatch '[^.]+' do
    if type(place) ~= 'table' or schema.is_option(place) then return nil end
    place = rawget(place, word)
  end
  return schema.is_option(place) and place or nil
end

-- What a recipe says of a key in its own words, and those that it has as runs have them.
local function add_recipe(path)
  local recipe, shared, own = keys_of(path), {}, {}
  add_item(path)
  add_text((docstrings.parse(assert(io.open(path)):read '*a')).about, 'sh')
  for _, entry in ipairs(recipe.list) do
    local known = known_option(entry.key)
    local list = known and known.meaning == entry.option.meaning and shared or own
    list[#list + 1] = entry
  end
  add_options(own)
  local words = {}
  for i, entry in ipairs(shared) do
    local default = default_of(entry.option)
    words[i] = code(entry.key) .. (default ~= '' and ' ' .. default or '')
  end
  add('As [ms.run](#msrun) has them, with these defaults: %s.\n', table.concat(words, ', '))
end

local function add_recipes(paths)
  add_section 'Recipes'
  add('Keys are given as `key=value` or in YAML files; `--help` lists them as well.%s\n', '')
  for _, path in ipairs(paths) do add_recipe(path) end
end

-- the page ---------------------------------------------------------------------------------------

local function head()
  local lines = { '# Reference', '',
    'What `help`, `--help` and the docstrings say, on one page. It is made by `./bootstrap docs`:',
    'a change belongs into the sources.', '' }
  for _, section in ipairs(contents) do
    lines[#lines + 1] = ('- [%s](#%s)'):format(section.title, anchor(section.title))
    for _, item in ipairs(section.items) do lines[#lines + 1] = '  - ' .. item end
  end
  return table.concat(lines, '\n') .. '\n\n'
end

local function recipes()
  local list, pipe = {}, io.popen 'LC_ALL=C ls recipes/*.lua'
  for path in pipe:lines() do list[#list + 1] = path end
  pipe:close()
  return list
end

add_commands()
add_recipes(recipes())
add_modules()
add_objects()
local page = head() .. table.concat(out, '\n')
page = page:gsub('\n\n\n+', '\n\n'):gsub('%s+$', '') .. '\n'
local file = arg and arg[1] and assert(io.open(arg[1], 'w')) or io.stdout
file:write(page)
assert(file:close() ~= false)
