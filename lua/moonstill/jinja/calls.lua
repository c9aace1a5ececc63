--- Calls: of macros, functions, methods and what else a template can call.
---
--- Arguments come as a table of n values and a dict of those by name, or nil. What is built in says
--- the names of its parameters, and gets a Lua argument for each, nil for those not given; or it
--- is `raw`, and gets table, number and dict.

local bounds = require 'moonstill.jinja.bounds'
local markup = require 'moonstill.jinja.markup'
local strings = require 'moonstill.jinja.strings'
local values = require 'moonstill.jinja.values'

local M = {}

local raise = bounds.raise

local MOST = 8 -- parameters of anything built in

-- Where a parameter stands in a signature, or nil.
local function place_of(sig, name)
  for i, param in ipairs(sig.params) do
    if param == name then return i end
  end
  return nil
end

--- The arguments of a call in the places of the parameters, from `first` on.
--- @param sig { name: string, params: string[], required: integer }
function M.bind(sig, args, n, kw)
  if n > #sig.params then
    raise('%s() takes at most %d arguments (%d given)', sig.name, #sig.params, n)
  end
  local bound = {}
  for i = 1, n do bound[i] = args[i] end
  for i = 1, kw and kw.n or 0 do
    local name = kw.keys[i]
    local at = place_of(sig, name)
    if not at then raise("%s() got an unexpected keyword argument '%s'", sig.name, name) end
    if bound[at] ~= nil then raise("%s() got multiple values for argument '%s'", sig.name, name) end
    bound[at] = kw.map[name]
  end
  for i = 1, sig.required or 0 do
    if bound[i] == nil then raise("%s() missing argument '%s'", sig.name, sig.params[i]) end
  end
  return bound
end

--- Calls what is built in, with the values before the arguments (the object, or nothing).
function M.invoke(sig, self, args, n, kw)
  bounds.charge(1)
  if sig.raw then return sig.raw(self, args, n, kw) end
  local b = M.bind(sig, args, n, kw)
  return sig.call(self, unpack(b, 1, MOST))
end

-- A macro ----------------------------------------------------------------------------------------

local function macro_arguments(macro, args, n, kw)
  local bound, count, used = {}, #macro.params, 0
  for i = 1, math.min(n, count) do bound[i] = args[i] end
  local has_caller = n >= count and macro.explicit_caller
  for i = n + 1, count do
    local name = macro.params[i]
    local value = kw and kw.map[name]
    if value ~= nil then
      bound[i], used = value, used + 1
      bounds.charge(1)
    end
    has_caller = has_caller or name == 'caller'
  end
  return bound, used, has_caller
end

-- The arguments by name that no parameter took.
local function rest_of(macro, n, kw, takes_caller)
  local rest, taken = values.dict(), {}
  for i = n + 1, #macro.params do taken[macro.params[i]] = true end
  for i = 1, kw and kw.n or 0 do
    local name = kw.keys[i]
    if not taken[name] and not (takes_caller and name == 'caller') then
      values.dict_set(rest, name, kw.map[name])
    end
  end
  return rest
end

local function extra(args, from, n)
  local list = {}
  for i = from, n do list[#list + 1] = args[i] end
  return values.tuple(list, #list)
end

local function call_macro(macro, args, n, kw)
  local bound, _, has_caller = macro_arguments(macro, args, n, kw)
  local caller
  if macro.caller and not has_caller then
    caller = kw and kw.map.caller
    if caller == nil then caller = values.undefined('No caller defined', 'caller') end
  end
  local rest = rest_of(macro, n, kw, caller ~= nil)
  if not macro.catch_kwargs and rest.n > 0 then
    if rest.map.caller ~= nil then
      raise("macro '%s' was invoked with two values for the special caller argument. This is " ..
        'most likely a bug.', tostring(macro.name))
    end
    raise("macro '%s' takes no keyword argument '%s'", tostring(macro.name), rest.keys[1])
  end
  if not macro.catch_varargs and n > #macro.params then
    raise("macro '%s' takes not more than %d argument(s)", tostring(macro.name), #macro.params)
  end
  local depth, at = bounds.depth, bounds.at
  bounds.enter(bounds.MOST_CALLS, 'calls')
  local result = macro.run(bound, caller, rest,
    macro.catch_varargs and extra(args, #macro.params + 1, n) or nil)
  bounds.depth, bounds.at = depth, at
  return result
end

local callers = {
  macro = call_macro,
  ['function'] = function(f, args, n, kw) return M.invoke(f, nil, args, n, kw) end,
  method = function(m, args, n, kw)
    if not strings.is_markup(m.self) then return M.invoke(m.method, m.self, args, n, kw) end
    args, kw = markup.arguments(m.name, args, n, kw)
    return markup.keep(M.invoke(m.method, strings.plain(m.self), args, n, kw))
  end,
  loop = function(loop, args, n, kw) return loop:recurse(args, n, kw) end,
  object = function(o, args, n, kw)
    if not o.call then raise("'%s' object is not callable", o.name) end
    return o:call(args, n, kw)
  end,
  undefined = function(v) values.fail_undefined(v) end,
}

--- Calls a value.
--- @param args any[] n of them
--- @param n integer
--- @param kw? table a dict
function M.call(v, args, n, kw)
  local caller = callers[values.kind(v)]
  if not caller then raise("'%s' object is not callable", values.type_name(v)) end
  bounds.charge(1)
  return caller(v, args, n, kw)
end

--- Whether a value can be called.
function M.is_callable(v)
  local kind = values.kind(v)
  if kind == 'object' then return v.call ~= nil end
  return callers[kind] ~= nil
end

return M
