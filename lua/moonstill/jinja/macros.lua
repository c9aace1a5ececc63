--- Macros, call blocks and generation blocks: bodies that are called.

local bounds = require 'moonstill.jinja.bounds'
local calls = require 'moonstill.jinja.calls'
local expressions = require 'moonstill.jinja.expressions'
local output = require 'moonstill.jinja.output'
local scopes = require 'moonstill.jinja.scopes'
local statements = require 'moonstill.jinja.statements'
local values = require 'moonstill.jinja.values'

local raise = bounds.raise
local expression, arguments = expressions.compile, expressions.arguments
local block, inner, enter, assign = statements.block, statements.inner, statements.enter,
  statements.assign

-- The names of the parameters, and where the special ones are that a body asks for.
local function declare_special(node, scope)
  local asked = scopes.undeclared(node.body, { 'caller', 'kwargs', 'varargs' })
  local names, special = {}, {}
  local given = {}
  for i, param in ipairs(node.params) do
    names[i] = param.name
    given[param.name] = i
  end
  for _, name in ipairs { 'caller', 'kwargs', 'varargs' } do
    if asked[name] and not given[name] then special[name] = scope.symbols:declare(name) end
  end
  if asked.caller and given.caller and not node.defaults[given.caller] then
    bounds.at = node.at
    raise('When defining macros or call blocks the special "caller" argument must be omitted or ' ..
      'be given a default.')
  end
  return names, special, asked.caller == true
end

-- Functions that give a parameter its value where none was passed.
local function defaults_of(node, scope)
  local list = {}
  for i, param in ipairs(node.params) do
    local name = param.name
    list[i] = node.defaults[i] and expression(node.defaults[i], scope)
    if not list[i] then
      local missing = values.undefined(("parameter '%s' was not provided"):format(name), name)
      list[i] = function() return missing end
    end
  end
  return list
end

local function name_list(names)
  local copy = {}
  for i, name in ipairs(names) do copy[i] = name end
  return values.tuple(copy, #copy)
end

-- A function of the frame that makes the macro of a node with params and body.
local function macro(node, scope, name)
  local own = inner(scope, scopes.unit(scope.unit))
  own.symbols:analyze(node)
  local names, special, asks_caller = declare_special(node, own)
  local slots, defaults = {}, defaults_of(node, own)
  for i, param in ipairs(names) do slots[i] = own.symbols:find(param).slot end
  local load, body = enter(own), block(node.body, own)
  local arguments_list = name_list(names)
  local explicit = false
  for _, param in ipairs(names) do explicit = explicit or param == 'caller' end
  return function(f)
    local function run(bound, caller, rest, varargs)
      local frame = { up = f }
      for i = 1, #slots do frame[slots[i]] = bound[i] end
      if special.caller then frame[special.caller.slot] = caller end
      if special.kwargs then frame[special.kwargs.slot] = rest end
      if special.varargs then frame[special.varargs.slot] = varargs end
      load(frame)
      for i = 1, #slots do
        if frame[slots[i]] == nil then frame[slots[i]] = defaults[i](frame) end
      end
      return (output.capture(body, frame))
    end
    return { kind = 'macro', name = name, params = names, arguments = arguments_list, run = run,
      explicit_caller = explicit, caller = asks_caller, catch_kwargs = special.kwargs ~= nil,
      catch_varargs = special.varargs ~= nil }
  end
end

function statements.kinds.Macro(node, scope)
  local make = macro(node, scope, node.name)
  local set = assign({ t = 'Name', name = node.name, at = node.at }, scope)
  return function(f) set(f, make(f)) end
end

function statements.kinds.CallBlock(node, scope)
  local make, call, at = macro(node, scope, nil), node.call, node.call.at
  local callee, args = expression(call.node, scope), arguments(call, scope)
  return function(f)
    local v = callee(f)
    local a, n, kw = args(f)
    kw = kw or values.dict()
    bounds.at = at
    if kw.map.caller ~= nil then raise 'keyword argument repeated: caller' end
    values.dict_set(kw, 'caller', make(f))
    output.write(calls.call(v, a, n, kw))
  end
end

-- The bytes of what a generation block writes are noted where that is written to the rendering
-- itself; inside of what is only a part of a text its place is not known.
function statements.kinds.Generation(node, scope)
  local make = macro(node, scope, nil)
  return function(f)
    local text = calls.call(make(f), {}, 0)
    local out, context = bounds.out, bounds.context
    local from = out.bytes
    output.emit(text)
    if out ~= context.root then
      context.lost = true
    else
      local marks = context.generation
      marks[#marks + 1], marks[#marks + 2] = from, out.bytes
    end
  end
end

return statements
