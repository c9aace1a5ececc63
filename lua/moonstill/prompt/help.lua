--- `help` at the prompt: how it works, and the docstrings of modules, objects and functions.
local fail = require 'moonstill.base.fail'
local schema = require 'moonstill.base.schema'
local sorted = require 'moonstill.base.sorted'

local HELP = [[
An expression is printed, a statement is run; an unfinished line goes on in the next one.
Ctrl-C gives up a line, or stops what runs; Ctrl-D leaves.

  help(ms.model)          what a module has
  help(m)                 what can be done with a model, a batch, a tokenizer, ...
  help(ms.model.shrink)   a function, in full
  help(ms.kd.options)     options, with their kinds, defaults and meanings
  _                       the last value printed

The modules, loaded when first named:
  ms.model ms.generate            model folders, students, training, generation
  ms.tokenizer ms.chat            texts to ids and back; conversations
  ms.dataset ms.batch             files to samples; tokens in segments
  ms.kd                           terms of a loss (ms.ce, ms.kd), targets of a teacher
  ms.run ms.schedule ms.optimizer the training loop
  ms.config                       a recipe's keys
  ms.plot ms.json                 curves; JSON
  ms.tensor ms.ops ms.scope       tensors, single operations; what frees them

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
  s:save "out/small"
]]

-- Made when moonstill is built (cmake/docs.lua); a stock LuaJIT has none.
local function docs()
  local ok, all = pcall(require, 'moonstill.docs')
  return ok and all or {}
end

local function first_sentence(text)
  text = text:gsub('\n@.*', ''):gsub('^@.*', ''):gsub('%s+', ' ')
  return text:match '^(.-%.)%s' or text
end

-- The docstring of a function, found by where it was defined.
local function find_function(f)
  local info = debug.getinfo(f, 'S')
  local name = info.source:match '([%w_]+)%.lua$'
  for _, doc in ipairs(docs()[name] and docs()[name].functions or {}) do
    if doc.line == info.linedefined then return doc, name end
  end
end

-- What a user writes for a function: some stand in `ms` itself.
local function signature(doc, module, f)
  if doc.method then return 'x:' .. doc.name .. doc.arguments end
  for name, value in sorted.pairs(f and package.loaded.moonstill or {}) do
    if value == f then return 'ms.' .. name .. doc.arguments end
  end
  return 'ms.' .. module .. '.' .. doc.name .. doc.arguments
end

local function print_list(list, module)
  for _, doc in ipairs(list) do
    print(signature(doc, module))
    local words = first_sentence(doc.text)
    if words ~= '' then print('    ' .. words) end
  end
end

local function module_of(t)
  for name, doc in sorted.pairs(docs()) do
    if package.loaded[doc.path] == t then return name end
  end
end

local function print_options(options)
  io.write('option, default, meaning (what it must be)\n', schema.help(schema.list(options)))
end

-- The functions of a module, and what options they take.
local function print_module(name, module)
  local doc, list = docs()[name], {}
  if type(module) == 'function' then return print(doc.about) end -- as ms.scope is
  print(doc.about .. '\n')
  for _, f in ipairs(doc.functions) do
    if not f.method then list[#list + 1] = f end
  end
  print_list(list, name)
  for field, value in sorted.pairs(module) do
    if schema.is_schema(value) then
      io.write(('\nms.%s.%s: '):format(name, field))
      print_options(value)
    end
  end
end

local function print_names(t)
  for key, value in sorted.pairs(t) do print(tostring(key), type(value)) end
end

local function field(x, name)
  local ok, value = pcall(function() return x[name] end)
  return ok and value or nil
end

-- The methods of an object: those documented ones that it answers to.
local function methods_of(x)
  local list = {}
  for _, doc in sorted.pairs(docs()) do
    for _, f in ipairs(doc.functions) do
      local value = f.method and field(x, f.name)
      if type(value) == 'function' and find_function(value) == f then list[#list + 1] = f end
    end
  end
  return list
end

local function print_function(f)
  local doc, name = find_function(f)
  if not doc then return print 'no text for this function' end
  print(signature(doc, name, f))
  print(doc.text)
end

--- @param about? any a module, an object, a function; nothing: how the prompt works
return function(about)
  if about == nil or about == package.loaded.moonstill then
    io.write(HELP)
    return
  end
  if schema.is_schema(about) then return print_options(about) end -- a module may be one
  local name = module_of(about)
  if name then return print_module(name, about) end
  if type(about) == 'function' then return print_function(about) end
  local methods = methods_of(about)
  if #methods > 0 then
    print(tostring(about) .. '\n')
    return print_list(methods)
  end
  if type(about) == 'table' then return print_names(about) end
  fail('help: nothing to say about a ' .. type(about))
end
