--- What a template finds without being given it: range, dict, namespace, cycler, joiner,
--- raise_exception, strftime_now.

local bounds = require 'moonstill.jinja.bounds'
local attributes = require 'moonstill.jinja.attributes'
local clock = require 'moonstill.jinja.clock'
local printing = require 'moonstill.jinja.printing'
local strings = require 'moonstill.jinja.strings'
local values = require 'moonstill.jinja.values'

local M = {}

local raise, text = bounds.raise, strings.text
local MOST_RANGE = 100000 -- of Jinja's sandbox

local function def(name, params, call, required)
  M[name] = { kind = 'function', name = name, params = params, call = call,
    required = required or 0 }
end

local function raw(name, call)
  M[name] = { kind = 'function', name = name, params = {},
    raw = function(_, args, n, kw) return call(args, n, kw) end }
end

def('range', { 'start', 'stop', 'step' }, function(_, start, stop, step)
  if stop == nil then start, stop = 0, start end
  local from, to = values.index(start, 'range()'), values.index(stop, 'range()')
  local by = step == nil and 1 or values.index(step, 'range()')
  if by == 0 then raise 'range() arg 3 must not be zero' end
  local range = attributes.range(from, to, by)
  if range.n > MOST_RANGE then
    raise('Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).', MOST_RANGE)
  end
  return range
end, 1)

local function pairs_into(d, v)
  local items, n = values.elements(v)
  for i = 1, n do
    local pair, length = values.elements(items[i])
    if length ~= 2 then
      raise('dictionary update sequence element #%d has length %d; 2 is required', i - 1, length)
    end
    values.dict_set(d, pair[1], pair[2])
  end
end

local function dict_of(args, n, kw)
  if n > 1 then raise('dict expected at most 1 argument, got %d', n) end
  local d = n == 1 and values.kind(args[1]) == 'dict' and values.dict_copy(args[1]) or values.dict()
  if n == 1 and values.kind(args[1]) ~= 'dict' then
    pairs_into(d, values.kind(args[1]) == 'namespace' and args[1].attrs or args[1])
  end
  for i = 1, kw and kw.n or 0 do values.dict_set(d, values.dict_key(kw, i), kw.map[kw.keys[i]]) end
  return d
end

local function fromkeys(_, keys, value)
  local d, items, n = values.dict(), values.elements(keys)
  if value == nil then value = values.NONE end
  for i = 1, n do values.dict_set(d, items[i], value) end
  return d
end

local function builtin(name, params, call)
  return { kind = 'function', name = name, params = params, required = 0,
    call = call }
end

M.dict = { kind = 'object', name = 'TemplateDict',
  call = function(_, args, n, kw) return dict_of(args, n, kw) end,
  attribute = function(_, name)
    return name == 'fromkeys' and builtin(name, { 'iterable', 'value' }, fromkeys) or nil
  end }

local function check_name(name)
  if type(name) == 'string' and name:sub(1, 1) == '_' then
    raise("Chat templates cannot store underscore-prefixed attributes on a namespace, but got " ..
      "'%s'. Please rename the attribute.", name)
  end
end

raw('namespace', function(args, n, kw)
  local attrs = dict_of(args, n, kw)
  for i = 1, attrs.n do check_name(attrs.keys[i]) end
  return { kind = 'namespace', attrs = attrs }
end)

--- Sets an attribute of a namespace.
function M.set_attribute(namespace, name, value)
  if values.kind(namespace) ~= 'namespace' then
    raise 'cannot assign attribute on non-namespace object'
  end
  check_name(name)
  values.dict_set(namespace.attrs, name, value)
end

raw('cycler', function(args, n)
  if n == 0 then raise 'at least one item has to be provided' end
  local items, at = {}, 1
  for i = 1, n do items[i] = args[i] end
  return { kind = 'object', name = 'Cycler', attribute = function(_, name)
    if name == 'current' then return items[at] end
    if name == 'next' then
      return builtin(name, {}, function()
        local item = items[at]
        at = at % n + 1
        return item
      end)
    end
    if name == 'reset' then
      return builtin(name, {}, function()
        at = 1
        return values.NONE
      end)
    end
  end }
end)

def('joiner', { 'sep' }, function(_, sep)
  local used = false
  if sep == nil then sep = ', ' end
  return { kind = 'object', name = 'Joiner', attribute = function() end, call = function()
    if not used then
      used = true
      return ''
    end
    return sep
  end }
end)

def('lipsum', { 'n', 'html', 'min', 'max' }, function()
  raise 'lipsum: a chat template that draws by chance cannot be learnt from'
end)

def('raise_exception', { 'message' }, function(_, message)
  raise('%s', text(printing.str(message)))
end, 1)

def('strftime_now', { 'format' }, function(_, format)
  if not strings.is(format) then
    raise('strftime() argument 1 must be str, not %s', values.type_name(format))
  end
  return clock.format(text(format), bounds.now or clock.now())
end, 1)

return M
