--- `help`: how the prompt works; what a module, an object, a function or an option is and does;
--- what goes by a name, as in `help "kd.temperature"`.
local catalog = require 'moonstill.prompt.catalog'
local docstrings = require 'moonstill.prompt.docstrings'
local fail = require 'moonstill.base.fail'
local index = require 'moonstill.prompt.index'
local kinds = require 'moonstill.base.kinds'
local layout = require 'moonstill.base.layout'
local schema = require 'moonstill.base.schema'
local screen = require 'moonstill.base.screen'
local sorted = require 'moonstill.base.sorted'

local PROMPT = [[
An expression is printed, a statement is run; an unfinished line goes on in the
next one. Tab completes. Ctrl-C gives up a line, or stops what runs.
exit or Ctrl-D leaves.]]

local WAYS = {
  { 'help(ms.model)', 'a module: what it has' },
  { 'help(m)', 'a model, a batch, a run, a result, ..: what it can do' },
  { 'help(ms.model.shrink)', 'a function, in full' },
  { 'help(ms.kd.options)', 'options, their defaults and meanings; .k: one of them' },
  { 'help "run.state"', 'what goes by a name; "learn", "kd.k", "chat", "MS_LOG"' },
  { '_', 'the last value printed' },
}

local MODULES = {
  { 'ms.model ms.generate', 'model folders, students, training, generation' },
  { 'ms.tokenizer ms.chat', 'texts to ids and back; conversations' },
  { 'ms.dataset ms.batch', 'files to samples; tokens in segments' },
  { 'ms.kd', 'terms of a loss (ms.ce, ms.kd), targets' },
  { 'ms.run ms.schedule', 'the training loop; ms.optimizer' },
  { 'ms.config', "a recipe's keys" },
  { 'ms.eval', 'how good models are on data' },
  { 'ms.plot ms.json', 'curves; JSON' },
  { 'ms.tensor ms.ops', 'tensors, single operations; ms.scope frees them' },
}

local START = [[
A start, with what ./bootstrap quickstart leaves, or a model and conversations
of your own:
  m = ms.model.open "out/quickstart/teacher/student"
  chat = ms.chat.open(m)
  q = "Mia has 7 pens. Mia finds 5 more. How many pens does Mia have now?"
  ms.generate.answer(m, chat, q)
  s = ms.model.shrink(m, { layers = 2 })
  data = ms.dataset.open("out/quickstart/valid.jsonl", chat)
  b = data:batch { 1, 2, 3 }
  r = s:evaluate(b, { ms.ce(), ms.kd(m:targets(b)) })
  r[2].value / r[2].weight
  s:save "out/shrunk"]]

local function say(line) io.write(line, '\n') end

local function write_filled(text, indent)
  if text ~= '' then io.write(layout.paragraphs(text, screen.page(), indent), '\n') end
end

local function write_rows(rows) io.write(layout.rows(rows, screen.page())) end

local function write_head(head)
  io.write('\n')
  write_filled(head)
end

-- options ----------------------------------------------------------------------------------------

local function write_values(option)
  local rows = {}
  for _, value in ipairs(option.values or {}) do
    local meaning = option.meanings and option.meanings[value]
    if meaning then rows[#rows + 1] = { tostring(value), meaning } end
  end
  write_rows(rows)
  return #rows > 0
end

local function write_options(name, options)
  write_filled(name .. ': option, default, meaning (what it must be)')
  local list = schema.list(options)
  io.write(schema.help(list))
  for _, entry in ipairs(list) do
    if entry.option.meanings then
      write_head(entry.key .. ':')
      write_values(entry.option)
    end
  end
end

local function write_option(names, option)
  write_filled(('%s: %s'):format(table.concat(names, ', '), option.meaning or ''))
  local rows = { { 'default', option.required and 'none: it must be given'
    or option.default == nil and 'none' or kinds.shown(option.default) },
    { 'must be', schema.kind_text(option) } }
  if option.rule then rows[3] = { 'used', index.rule_text(option.rule) } end
  write_rows(rows)
  if option.meanings then
    io.write '\n'
    write_values(option)
  end
end

-- functions --------------------------------------------------------------------------------------

-- "see `options`" names the options of the docstring's own module.
local function meaning_of(entry, name)
  local meaning = entry.meaning:gsub('`([%w_]*options)`', 'ms.' .. (name or '?') .. '.%1')
  return entry.type .. (meaning ~= '' and ': ' .. meaning or '')
end

local function rows_of(tags, name)
  local rows = {}
  for _, param in ipairs(tags.param) do
    rows[#rows + 1] = { param.name .. (param.optional and '?' or ''), meaning_of(param, name) }
  end
  for i, result in ipairs(tags['return']) do
    rows[#rows + 1] = { i == 1 and 'returns' or '', meaning_of(result, name) }
  end
  return rows
end

local function write_function(entry, module, kind)
  local tags, name = docstrings.tags(entry.text), catalog.public_name(module)
  local signature, also = catalog.signature(entry, module, kind)
  say(signature)
  if also then say(also) end
  write_filled(tags.text)
  local rows = rows_of(tags, name)
  if #rows > 0 then io.write '\n' end
  write_rows(rows)
end

local function first_sentence(text)
  text = docstrings.tags(text).text:gsub('\n\n.*', ''):gsub('%s+', ' ')
  return text:match '^(.-[^.]%.)%s' or text
end

local function write_list(list, module, kind)
  for _, entry in ipairs(list) do
    say((catalog.signature(entry, module, kind)))
    write_filled(first_sentence(entry.text), 4)
  end
end

-- What is known of a function that is none of the library's: the place, and the comment above it.
local function write_foreign(f)
  local info = debug.getinfo(f, 'S')
  if info.what == 'C' then return say 'no text for this function: it is Lua\'s own' end
  say(('a function defined in %s:%d'):format(info.short_src, info.linedefined))
  local file = info.source:sub(1, 1) == '@' and io.open(info.source:sub(2))
  if not file then return end
  local doc = docstrings.parse(file:read '*a')
  file:close()
  for _, entry in ipairs(doc.functions) do
    if entry.line == info.linedefined then
      io.write '\n'
      return write_filled(entry.text)
    end
  end
end

local function write_any_function(f)
  local entry, module = catalog.of_function(f)
  if entry then return write_function(entry, module) end
  write_foreign(f)
end

-- modules and objects ----------------------------------------------------------------------------

local function write_kinds_of(module)
  local rows = {}
  for name, kind in sorted.pairs(catalog.kinds()) do
    if kind.module == module then
      rows[#rows + 1] = { ('help "%s"'):format(name), 'what can be done with a ' .. name }
    end
  end
  if #rows > 0 then io.write '\n' end
  write_rows(rows)
end

local function write_module(module, value)
  local doc, name = catalog.docs()[module], catalog.public_name(module) or module
  write_filled(doc.about)
  local call = catalog.call_of(value)
  local entry = call and catalog.of_function(call)
  if entry then
    io.write '\n'
    write_function(entry, module)
  end
  local list = {}
  for _, each in ipairs(catalog.functions_of(module)) do
    if each ~= entry then list[#list + 1] = each end
  end
  if #list > 0 then io.write '\n' end
  write_list(list, module)
  write_kinds_of(module)
  for field, options in sorted.pairs(catalog.schemas_of(value)) do
    io.write '\n'
    write_options(('ms.%s.%s'):format(name, field), options)
  end
end

local WIDEST = 20 -- of a field's value

local function value_of(x, name)
  local ok, value = pcall(function() return x[name] end)
  if not ok or type(value) == 'function' or value == nil then return '' end
  if type(value) == 'number' then return ('%.6g'):format(value) end
  local text = kinds.shown(value)
  if type(value) == 'table' and #text > WIDEST then return 'table' end
  return layout.cut(text:gsub('%s+', ' '), WIDEST)
end

-- What a plain object has beside the fields that are documented.
local function add_others(rows, known, x)
  for name, value in sorted.pairs(type(x) == 'table' and x or {}) do
    if type(name) == 'string' and not known[name] then
      rows[#rows + 1] = { name, value_of(x, name), ('(%s)'):format(type(value)) }
    end
  end
end

-- The fields of a kind of object: of one that is at hand with their values.
local function write_fields(tags, x, is_plain)
  local rows, known = {}, {}
  for _, field in ipairs(tags.field) do
    known[field.name] = true
    rows[#rows + 1] = { field.name, ('%s (%s%s)'):format(field.meaning, field.type,
      field.optional and ', or nil' or '') }
    if x ~= nil then table.insert(rows[#rows], 2, value_of(x, field.name)) end
  end
  if is_plain then add_others(rows, known, x) end
  if #rows == 0 then return end
  say 'Fields:'
  write_rows(rows)
end

local function write_kind(kind, x)
  local tags, methods = docstrings.tags(kind.text), catalog.methods_of(kind)
  write_filled(tags.text)
  if #methods > 0 then
    if tags.text ~= '' then io.write '\n' end
    write_list(methods, kind.module, kind.name)
    write_head(('help "%s.%s" shows one of them in full.'):format(kind.name, methods[1].name))
  end
  if #tags.field > 0 and (#methods > 0 or tags.text ~= '') then io.write '\n' end
  write_fields(tags, x, #methods == 0)
end

local function write_object(x, name)
  local kind = catalog.kinds()[name]
  say(tostring(x):match '^table: ' and name or tostring(x))
  io.write '\n'
  if kind then return write_kind(kind, x) end
  say('no text for a ' .. name)
end

local function write_configuration(cfg)
  local rows = {}
  for i, entry in ipairs(schema.listed(cfg)) do
    local value = cfg
    for word in entry.key:gmatch '[^.]+' do value = rawget(value, word) end
    rows[i] = { entry.key, kinds.shown(value), entry.option.meaning or '' }
  end
  say 'key, value, meaning'
  write_rows(rows)
end

local function write_table(t)
  local rows = {}
  for key, value in sorted.pairs(t) do
    rows[#rows + 1] = { tostring(key), type(value), type(value) == 'table' and ''
      or tostring(value) }
  end
  write_rows(rows)
end

-- names ------------------------------------------------------------------------------------------

local writers = {
  module = function(e) write_module(e.module, e.value) end,
  ['function'] = function(e) write_function(e.entry, e.module, e.kind) end,
  kind = function(e) write_kind(e.kind) end,
  option = function(e) write_option(index.names_of_option(e.option), e.option) end,
  text = function(e) write_filled(e.text) end,
}

local function write_brief(e)
  if e.how == 'function' then return write_list({ e.entry }, e.module, e.kind) end
  say(('help "%s"'):format(e.name))
  write_filled(e.brief or '', 4)
end

local MOST = 3 -- of what goes by one name, in full

local function write_named(text)
  local found, near = index.find(text)
  if #found == 0 then
    fail("help: nothing is called '%s'%s", text,
      near and ("; did you mean '%s'?"):format(near) or '')
  end
  for i, e in ipairs(found) do
    if i > 1 then io.write '\n' end
    if #found <= MOST then writers[e.how](e) else write_brief(e) end
  end
end

-- ------------------------------------------------------------------------------------------------

local function write_value(x)
  local module, kind = catalog.module_of(x), catalog.kind_of(x)
  if type(x) == 'string' then return write_named(x) end
  if schema.is_option(x) then return write_option(index.names_of_option(x), x) end
  if schema.is_schema(x) and not module then
    return write_options(index.name_of_schema(x) or 'options', x)
  end
  if module then return write_module(module, x) end
  if type(x) == 'function' then return write_any_function(x) end
  if kind == 'configuration' then return write_configuration(x) end
  if kind then return write_object(x, kind) end
  if type(x) == 'table' then return write_table(x) end
  fail('help: nothing to say about a %s%s', type(x),
    x == nil and ': is there anything of that name?' or '')
end

local function write_start()
  write_filled(PROMPT)
  io.write '\n'
  write_rows(WAYS)
  io.write '\nThe modules, loaded when first named:\n'
  write_rows(MODULES)
  io.write '\n'
  write_filled(START)
end

--- Explains what it is given: a module, an object, a function, options; or what goes by a name,
--- "run.state", of which the last word is enough. Without an argument it says how the prompt works.
--- @param about? any
return function(...)
  local about = ...
  if select('#', ...) == 0 or about == package.loaded.moonstill then
    write_start()
    return
  end
  write_value(about)
end
