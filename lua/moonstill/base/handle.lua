--- Handles: the objects that stand for memory of the core. `kind` makes all of them alike: the
--- core's pointer comes out of `pointer`, which is an error for what was freed and for what is
--- none; `free` frees once, and so does the collector; a name that is no method is an error.
---
--- A handle that needs another one in the core keeps it there (the core counts); what Lua hands out
--- beside handles keeps what it points at in its closure.

local ffi = require 'ffi'
local fail = require 'moonstill.base.fail'
local sorted = require 'moonstill.base.sorted'
local strict = require 'moonstill.base.strict'

local M = {}

local kinds = {} -- by name

--- What a value is, for errors: "batch", "string".
--- @param value any
--- @return string
function M.what(value)
  if type(value) ~= 'cdata' then return type(value) end
  for what, kind in sorted.pairs(kinds) do
    if ffi.istype(kind.type, value) then return what end
  end
  return tostring(ffi.typeof(value)):match '^ctype<(.*)>$'
end

--- A kind of handle. `kind.new(p)` makes one of what the core gave, `kind.pointer(x)` gives that
--- back; `kind.methods` is for the module to fill, and `kind.text(x)`, what a handle prints as.
--- @param what string how errors call one, as in 'tensor'
--- @param ctype string the core's type, as in 'ms_tensor'
--- @param free fun(p: ffi.cdata*) the core's function
--- @param options? { verb?: string, fields?: string, length?: string, element?: function,
---   assign?: function } verb: how errors call what `free` does, default "free"; fields: more of
---   them, in C, whose values `new` takes; length: the method that `#` calls; element, assign:
---   what `x[key]` and `x[key] = value` do where the key is no text
--- @return table
function M.kind(what, ctype, free, options)
  options = options or {}
  local verb, length, methods, handle = options.verb or 'free', options.length, {}, nil
  local kind = { methods = methods, text = function() return what end }

  local function check(x)
    if not ffi.istype(handle, x) then fail('%s expected, got %s', what, M.what(x)) end
  end

  local pointer = ffi.typeof(ctype .. ' *')
  function kind.new(p, ...)
    if not ffi.istype(pointer, p) then fail('%s: %s is not of the core', what, M.what(p)) end
    return handle(p, ...)
  end

  function kind.pointer(x)
    check(x)
    if x.p == nil then fail('%s: used after %s', what, verb) end
    return x.p
  end

  --- Frees what it holds now. A second call does nothing; any other use is an error.
  function methods:free()
    check(self)
    if self.p ~= nil then
      free(self.p)
      self.p = nil
    end
  end

  -- What a Lua table can do and a handle cannot, in words that name it.
  local function refuse(why) return function() fail('%s: %s', what, why) end end

  local element, assign = options.element, options.assign
  local function index(x, key)
    if type(key) == 'string' then return methods[key] end
    return element(x, key)
  end
  local function put(x, key, value)
    if type(key) == 'string' or not assign then
      fail("%s: no '%s' can be set", what, tostring(key))
    end
    assign(x, key, value)
  end

  strict.names(what, methods)
  handle = ffi.metatype(('struct { %s *p; %s }'):format(ctype, options.fields or ''), {
    methods = methods,
    __index = element and index or methods,
    __newindex = put,
    __gc = methods.free,
    __len = length and function(x) return methods[length](x) end or refuse 'it has no length',
    __pairs = refuse 'it is no table to iterate over',
    __ipairs = refuse 'it is no list to iterate over',
    __call = refuse 'it is no function to call',
    __tostring = function(x)
      return x.p == nil and ('%s (%sd)'):format(what, verb) or kind.text(x)
    end,
  })
  kind.type = handle
  kinds[what] = kind
  return kind
end

--- Whether there are handles of that name: those of modules that are loaded.
--- @param what string
--- @return boolean
function M.has(what) return kinds[what] ~= nil end

--- Whether a value is a handle of a kind, freed or not.
--- @param what string
--- @param x any
--- @return boolean
function M.is(what, x) return kinds[what] ~= nil and ffi.istype(kinds[what].type, x) end

--- An error unless a value is an object of a kind: a handle that is not freed, one of
--- `strict.class`, or a table of somebody's own with a method that tells it.
--- @param what string what errors begin with
--- @param name string of the argument or option
--- @param x any
--- @param kind string
--- @param method? string of objects that may take the place of the kind's own
function M.object(what, name, x, kind, method)
  local of = strict.what(x)
  if of == kind then return end
  if method and not of and type(x) == 'table' and type(x[method]) == 'function' then return end
  if not M.is(kind, x) then
    fail('%s: %s is a %s, expected a %s', what, name, of or M.what(x), kind)
  end
  kinds[kind].pointer(x)
end

--- The core's pointer of a handle.
--- @param what string its kind
--- @param x any
--- @return ffi.cdata*
function M.pointer(what, x)
  if not kinds[what] then fail('%s expected, got %s', what, M.what(x)) end -- none is there yet
  return kinds[what].pointer(x)
end

return M
