--- str.format and str.format_map: fields in braces, looked up by the sandbox's rules.

local bounds = require 'moonstill.jinja.bounds'
local attributes = require 'moonstill.jinja.attributes'
local formatting = require 'moonstill.jinja.formatting'
local methods = require 'moonstill.jinja.methods'
local printing = require 'moonstill.jinja.printing'
local strings = require 'moonstill.jinja.strings'
local values = require 'moonstill.jinja.values'

local raise, text = bounds.raise, strings.text

local function argument(state, name)
  if name == '' then
    if state.manual then
      raise 'cannot switch from manual field specification to automatic field numbering'
    end
    state.auto = (state.auto or -1) + 1
    name = tostring(state.auto)
  elseif name:find '^%d+$' then
    if state.auto then
      raise 'cannot switch from automatic field numbering to manual field specification'
    end
    state.manual = true
  end
  if name:find '^%d+$' then
    local index = tonumber(name)
    if index >= state.n then
      raise('Replacement index %d out of range for positional args tuple', index)
    end
    return state.args[index + 1]
  end
  local value = state.kw and values.dict_get(state.kw, name)
  if value == nil then raise("KeyError: '%s'", name) end
  return value
end

-- The value of "name.attribute[element]".
local function field(state, path)
  local name, rest = path:match '^([^.%[]*)(.*)$'
  local value = argument(state, name)
  while rest ~= '' do
    local attribute, after = rest:match '^%.([^.%[]+)(.*)$'
    local element, behind = rest:match '^%[([^%]]+)%](.*)$'
    if attribute then
      value, rest = attributes.getattr(value, attribute), after
    elseif element then
      local key = element:find '^%d+$' and tonumber(element) or element
      value, rest = attributes.getitem(value, key), behind
    else
      raise 'Empty attribute in format string'
    end
  end
  return value
end

local converters = { r = printing.repr, s = printing.str, a = printing.repr }

local expand

-- One field without its braces: "path!conversion:spec".
local function replace(state, inner, depth)
  local path, behind = inner, ''
  local at = inner:find '[!:]'
  if at then path, behind = inner:sub(1, at - 1), inner:sub(at) end
  local value = field(state, path)
  local conversion = behind:match '^!(.)'
  if conversion then
    if not converters[conversion] then
      raise("Unknown conversion specifier '%s'", conversion == '%' and '%%' or conversion)
    end
    value, behind = converters[conversion](value), behind:sub(3)
  end
  if behind ~= '' and behind:sub(1, 1) ~= ':' then
    raise "expected ':' after conversion specifier"
  end
  local spec = behind:sub(2)
  if spec:find('{', 1, true) then spec = text(expand(state, spec, depth + 1)) end
  return formatting.with_spec(value, spec)
end

-- The place of the brace that closes the one before byte i.
local function closing(s, i)
  local depth = 1
  while true do
    local at = s:find('[{}]', i)
    if not at then raise "expected '}' before end of string" end
    depth = depth + (s:sub(at, at) == '{' and 1 or -1)
    if depth == 0 then return at end
    i = at + 1
  end
end

function expand(state, v, depth)
  if depth > 2 then raise 'Max string recursion exceeded' end
  local s, pieces, i = text(v), {}, 1
  while true do
    local at = s:find('[{}]', i)
    pieces[#pieces + 1] = strings.sub(v, i, (at or #s + 1) - 1)
    if not at then break end
    bounds.charge(1)
    local brace = s:sub(at, at)
    if s:sub(at + 1, at + 1) == brace then
      pieces[#pieces + 1] = strings.sub(v, at, at)
      i = at + 2
    elseif brace == '}' then
      raise "Single '}' encountered in format string"
    else
      if at == #s then raise "Single '{' encountered in format string" end
      local stop = closing(s, at + 1)
      pieces[#pieces + 1] = replace(state, s:sub(at + 1, stop - 1), depth)
      i = stop + 1
    end
  end
  return strings.concat(pieces)
end

methods.str.format = { name = 'format', raw = function(v, args, n, kw)
  return expand({ args = args, n = n, kw = kw }, v, 1)
end }

methods.str.format_map = { name = 'format_map', params = { 'mapping' }, required = 1,
  call = function(v, mapping)
    if values.kind(mapping) ~= 'dict' then raise 'format_map() takes a mapping' end
    return expand({ args = {}, n = 0, kw = mapping }, v, 1)
  end }

return methods
