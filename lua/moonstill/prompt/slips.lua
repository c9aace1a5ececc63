--- What the most frequent slips of the pen meant, for errors that do not say what to do: a dot in
--- the place of a colon, arguments of another kind, a name that nothing has.
local catalog = require 'moonstill.prompt.catalog'
local options = require 'moonstill.base.options'
local public = require 'moonstill.names'
local sorted = require 'moonstill.base.sorted'

-- The module of a function of the library, by its source.
local function module_of(frame)
  local module = frame.source:match 'lua/moonstill/(.*)%.lua$'
  return module and module:gsub('/', '.') or nil
end

-- The documented one of a name in a module: a method, or a function of the module.
local function named(name, module, how)
  for _, entry in ipairs(catalog.docs()[module].functions) do
    local fits = how and entry.how == how or not how and entry.how ~= 'local'
    if entry.name == name and not entry.inner and fits then return entry end
  end
end

-- The only method of a name.
local function only_method(name)
  local found, of
  for module in sorted.pairs(catalog.docs()) do
    local entry = named(name, module, 'method')
    if entry and found then return nil end
    if entry then found, of = entry, module end
  end
  return found, of
end

-- The docstring by which the library's function is known that was called, and its module; of a call
-- of a module, true. It may have ended with a call of another function, which then is the frame's.
local function entry_of(frame, module)
  if not catalog.docs()[module] then return nil end
  if frame.name and catalog.public_name(module) == frame.name then return true, module end
  local entry = catalog.of_function(frame.func)
  if entry and not entry.inner then return entry, module end
  entry = named(frame.name, module)
  if entry then return entry, module end
  local place = public[frame.name]
  if place and catalog.call_of(package.loaded['moonstill.' .. place.module]) then
    return true, place.module
  end
  return only_method(frame.name)
end

-- The name of `ms` for a function of a module: some stand there themselves.
local function name_of(entry, module)
  for name, place in sorted.pairs(public) do
    if place.module == module and place.field == entry.name then return 'ms.' .. name end
  end
  local holder = 'ms.' .. (catalog.public_name(module) or module)
  return entry.how == 'function' and holder .. '.' .. entry.name or holder
end

-- How users write it: what they call, and what explains it.
local function names_of(entry, module)
  if entry ~= true and entry.how == 'method' then
    local kind = entry.class or 'x'
    return kind .. ':' .. entry.name, ('help "%s.%s"'):format(kind, entry.name)
  end
  local name = entry == true and 'ms.' .. catalog.public_name(module) or name_of(entry, module)
  return name, ('help(%s)'):format(name)
end

-- A method that was called with a dot, or a function of a module with a colon.
local function sign_slip(frame, entry, name)
  local is_method = type(entry) == 'table' and entry.how == 'method'
  if is_method and frame.namewhat ~= 'method' then
    local kind = catalog.kind_of(frame.first)
    if kind and (kind == entry.class or not entry.class) then return nil end
    return ('; it is called with a colon: %s(...)'):format(name)
  end
  if not is_method and frame.namewhat == 'method' then
    return ('; it is called with a dot: %s(...)'):format(name)
  end
end

local ABOUT_ARGUMENTS = { 'expected', 'is needed', 'is missing', 'must be given', 'needs a ',
  'attempt to ', ' is a number, got ', 'bad argument' }

local function is_about_arguments(message)
  local rest = message:gsub('^.-:%d+: ', '', 1)
  if rest:find ':%d+: ' then return false end -- another place is named: what is wrong is there
  for _, words in ipairs(ABOUT_ARGUMENTS) do
    if message:find(words, 1, true) then return true end
  end
  return false
end

-- An error of the library about what it was called with.
local function of_call(message, frame)
  local entry, module = entry_of(frame, module_of(frame))
  if not entry then return nil end
  local name, help = names_of(entry, module)
  local slip = sign_slip(frame, entry, name)
  if slip then return slip end
  if not is_about_arguments(message) then return nil end
  local why = message:find('attempt to ', 1, true) and ', where an argument may be missing' or ''
  return ('%s; %s says what it takes'):format(why, help)
end

-- A global that nothing has.
local function of_global(message)
  local name = message:match "attempt to %l+ global '([^']+)' %(a nil value%)"
  if not name then return nil end
  if name == 'ms' then return "; a recipe begins with: local ms = require 'moonstill'" end
  if public[name] then return ("; did you mean 'ms.%s'?"):format(name) end
  local near = #name > 3 and options.nearest(name, sorted.keys(_G)) -- short ones are all alike
  return near and ("; did you mean '%s'?"):format(near) or '; nothing has that name'
end

--- What to add to a message that does not say what to do; '' where nothing is known.
--- @param message string
--- @param frame? table the library's function that the user's own line had called, as debug.getinfo
---   gives it, with its first argument as `first`; nil where it had called none
--- @return string
return function(message, frame)
  if message:find '; ' then return '' end
  return frame and of_call(message, frame) or not frame and of_global(message) or ''
end
