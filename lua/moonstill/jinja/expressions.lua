--- Expressions as functions: each gets the frame of its unit and returns a value.
---
--- A frame is a table of the values of a unit's variables; `up` is the frame of the unit around it.
--- A scope, when compiled in, is { unit, symbols, template, soft, toplevel, buffered }.

local bounds = require 'moonstill.jinja.bounds'
local arithmetic = require 'moonstill.jinja.arithmetic'
local attributes = require 'moonstill.jinja.attributes'
local calls = require 'moonstill.jinja.calls'
local comparing = require 'moonstill.jinja.comparing'
local filters = require 'moonstill.jinja.filters'
local methods = require 'moonstill.jinja.placeholders'
local printing = require 'moonstill.jinja.printing'
local strings = require 'moonstill.jinja.strings'
local tests = require 'moonstill.jinja.tests'
local values = require 'moonstill.jinja.values'

local M = {}

local raise, charge, truth = bounds.raise, bounds.charge, values.truth

local expressions = {}

--- The function of an expression.
local function expression(node, scope)
  local make = expressions[node.t]
  if not make then
    bounds.at = node.at
    raise('a %s cannot stand here', node.t)
  end
  return make(node, scope)
end

--- The functions of several expressions.
local function expression_list(nodes, scope)
  local list = {}
  for i, node in ipairs(nodes) do list[i] = expression(node, scope) end
  return list
end

-- A function that says whether an expression is true.
local function condition(node, scope)
  local test = expression(node, scope)
  return function(f)
    local v = test(f)
    return v == true or v ~= false and truth(v)
  end
end

-- The place of a variable, as (hops outwards, slot).
local function place(scope, ref) return scope.unit.depth - ref.unit.depth, ref.slot end

--- A function that reads a variable: its value, or nil.
local function reader(scope, ref)
  local hops, slot = place(scope, ref)
  if hops == 0 then return function(f) return f[slot] end end
  if hops == 1 then return function(f) return f.up[slot] end end
  return function(f)
    for _ = 1, hops do f = f.up end
    return f[slot]
  end
end

function expressions.Const(node)
  local value = node.value
  return function() return value end
end

function expressions.TemplateData(node)
  local value = node.data
  return function() return value end
end

function expressions.Name(node, scope)
  local read = reader(scope, scope.symbols:find(node.name))
  local missing = values.undefined(("'%s' is undefined"):format(node.name), node.name)
  return function(f)
    local v = read(f)
    if v == nil then return missing end
    return v
  end
end

local function sequence(make)
  return function(node, scope)
    local items = expression_list(node.items, scope)
    local n = #items
    return function(f)
      local list = {}
      for i = 1, n do list[i] = items[i](f) end
      return make(list, n)
    end
  end
end
expressions.List, expressions.Tuple = sequence(values.list), sequence(values.tuple)

function expressions.Dict(node, scope)
  local keys, items = {}, {}
  for i, pair in ipairs(node.items) do
    keys[i], items[i] = expression(pair.key, scope), expression(pair.value, scope)
  end
  return function(f)
    local d = values.dict()
    for i = 1, #keys do
      local key = keys[i](f)
      bounds.at = node.at
      values.dict_set(d, key, items[i](f))
    end
    return d
  end
end

function expressions.And(node, scope)
  local left, right = expression(node.left, scope), expression(node.right, scope)
  return function(f)
    local v = left(f)
    if v == true or v ~= false and truth(v) then return right(f) end
    return v
  end
end

function expressions.Or(node, scope)
  local left, right = expression(node.left, scope), expression(node.right, scope)
  return function(f)
    local v = left(f)
    if v == true or v ~= false and truth(v) then return v end
    return right(f)
  end
end

function expressions.Not(node, scope)
  local test = condition(node.node, scope)
  return function(f) return not test(f) end
end

--- A scope of which only a part may be reached: what it names need not be there.
local function soft(scope)
  return setmetatable({ soft = true }, { __index = scope })
end

function expressions.CondExpr(node, scope)
  local inner = soft(scope)
  local test, yes = condition(node.test, inner), expression(node.yes, inner)
  local no = node.no and expression(node.no, inner)
  local missing = values.undefined('the inline if-expression evaluated to false and no else ' ..
    'section was defined.')
  return function(f)
    if test(f) then return yes(f) end
    if no then return no(f) end
    return missing
  end
end

function expressions.Binary(node, scope)
  local left, right = expression(node.left, scope), expression(node.right, scope)
  local op, at, apply = node.op, node.at, arithmetic.apply
  if op == 'add' then
    return function(f)
      local a, b = left(f), right(f)
      bounds.at = at
      if type(a) == 'string' and type(b) == 'string' then return strings.join2(a, b) end
      if strings.is(a) and strings.is(b) then return strings.join2(a, b) end
      return apply(op, a, b)
    end
  end
  return function(f)
    local a, b = left(f), right(f)
    bounds.at = at
    return apply(op, a, b)
  end
end

function expressions.Unary(node, scope)
  local operand, op, at = expression(node.node, scope), node.op, node.at
  return function(f)
    local a = operand(f)
    bounds.at = at
    return arithmetic.sign(op, a)
  end
end

function expressions.Concat(node, scope)
  local items, at, str = expression_list(node.items, scope), node.at, printing.str
  local n = #items
  return function(f)
    local pieces = {}
    for i = 1, n do
      local v = items[i](f)
      if type(v) ~= 'string' then
        bounds.at = at
        v = str(v)
      end
      pieces[i] = v
    end
    bounds.at = at
    return strings.concat(pieces, n)
  end
end

-- comparisons ------------------------------------------------------------------------------------

local equal, order, contains = comparing.equal, comparing.order, comparing.contains

local compare = {
  eq = equal,
  ne = function(a, b) return not equal(a, b) end,
  ['in'] = function(a, b) return contains(b, a) end,
  notin = function(a, b) return not contains(b, a) end,
}
for _, op in ipairs { 'lt', 'lteq', 'gt', 'gteq' } do
  compare[op] = function(a, b) return order(op, a, b) end
end

-- A text that is written in the template, or nil.
local function constant_text(node)
  return node.t == 'Const' and type(node.value) == 'string' and node.value or nil
end

-- x == 'text', which templates mostly consist of.
local function equals_text(left, text, wanted)
  return function(f)
    local v = left(f)
    if type(v) == 'string' then return (v == text) == wanted end
    return (type(v) == 'table' and v.kind == 'str' and v.s == text) == wanted
  end
end

local function one_comparison(left, operand, scope)
  local op, at = operand.op, operand.at
  local text = constant_text(operand.node)
  if text and (op == 'eq' or op == 'ne') then return equals_text(left, text, op == 'eq') end
  local right, result = expression(operand.node, scope), compare[op]
  return function(f)
    local a, b = left(f), right(f)
    bounds.at = at
    return result(a, b)
  end
end

function expressions.Compare(node, scope)
  local left = expression(node.node, scope)
  if #node.ops == 1 then return one_comparison(left, node.ops[1], scope) end
  local operands = {}
  for i, op in ipairs(node.ops) do operands[i] = expression(op.node, scope) end
  return function(f)
    local a = left(f)
    for i, op in ipairs(node.ops) do
      local b = operands[i](f)
      bounds.at = op.at
      if not compare[op.op](a, b) then return false end
      a = b
    end
    return true
  end
end

-- attributes and elements ------------------------------------------------------------------------

function expressions.Getattr(node, scope)
  local object, name, at = expression(node.node, scope), node.attr, node.at
  local getattr = attributes.getattr
  local is_method = methods.dict[name] or methods.unsafe.dict[name] or name:sub(1, 2) == '__'
  return function(f)
    local v = object(f)
    if not is_method and type(v) == 'table' and v.kind == 'dict' then
      local item = v.map[name]
      if item ~= nil then return item end
    end
    bounds.at = at
    return getattr(v, name)
  end
end

local function slice(node, scope)
  local object, at = expression(node.node, scope), node.at
  local function part(name) return node.arg[name] and expression(node.arg[name], scope) end
  local start, stop, step = part 'start', part 'stop', part 'step'
  return function(f)
    local v = object(f)
    local a, b, c = start and start(f), stop and stop(f), step and step(f)
    bounds.at = at
    return attributes.slice(v, a or nil, b or nil, c or nil)
  end
end

function expressions.Getitem(node, scope)
  if node.arg.t == 'Slice' then return slice(node, scope) end
  local object, key, at = expression(node.node, scope), expression(node.arg, scope), node.at
  local text, getitem = constant_text(node.arg), attributes.getitem
  return function(f)
    local v = object(f)
    if text and type(v) == 'table' and v.kind == 'dict' then
      local item = v.map[text]
      if item ~= nil then return item end
    end
    local k = key(f)
    bounds.at = at
    return getitem(v, k)
  end
end

function expressions.Slice(node)
  bounds.at = node.at
  raise 'a slice cannot stand here'
end

-- calls ------------------------------------------------------------------------------------------

-- Adds what stands behind * to the arguments.
local function spread(args, n, v)
  local items, count = values.elements(v)
  for i = 1, count do args[n + i] = items[i] end
  return n + count
end

-- Adds what stands behind ** to those by name.
local function spread_named(kw, v)
  if values.kind(v) ~= 'dict' then
    raise('argument after ** must be a mapping, not %s', values.type_name(v))
  end
  for i = 1, v.n do
    if not strings.is(values.dict_key(v, i)) then raise 'keywords must be strings' end
    if kw.map[v.keys[i]] ~= nil then
      raise("got multiple values for keyword argument '%s'", v.keys[i])
    end
    values.dict_set(kw, v.keys[i], v.map[v.keys[i]])
  end
end

-- A function that evaluates the arguments of a call: table, number, dict of those by name or nil.
local function arguments(node, scope)
  local items, names, named = expression_list(node.args, scope), {}, {}
  for i, keyword in ipairs(node.kwargs) do
    names[i], named[i] = keyword.key, expression(keyword.value, scope)
  end
  local dyn = node.dyn_args and expression(node.dyn_args, scope)
  local dyn_named = node.dyn_kwargs and expression(node.dyn_kwargs, scope)
  local count = #items
  return function(f)
    local args, n, kw = {}, count, nil
    for i = 1, count do args[i] = items[i](f) end
    if dyn then n = spread(args, n, dyn(f)) end
    if names[1] or dyn_named then
      kw = values.dict()
      for i = 1, #names do
        if kw.map[names[i]] ~= nil then raise("keyword argument repeated: %s", names[i]) end
        values.dict_set(kw, names[i], named[i](f))
      end
      if dyn_named then spread_named(kw, dyn_named(f)) end
    end
    return args, n, kw
  end
end

local function nothing() return nil end

-- The arguments of a call to what is built in, in the places of its parameters; nil where that is
-- to be worked out when it is called.
local function static_arguments(node, scope, sig)
  if sig.raw or node.dyn_args or node.dyn_kwargs then return nil end
  if #node.args > #sig.params then return nil end
  local list = expression_list(node.args, scope)
  local count = #list
  for _, keyword in ipairs(node.kwargs) do
    local at = nil
    for i, param in ipairs(sig.params) do at = param == keyword.key and i or at end
    if not at or list[at] then return nil end
    list[at] = expression(keyword.value, scope)
    count = math.max(count, at)
  end
  for i = 1, math.max(count, sig.required) do
    if not list[i] then
      if i <= sig.required then return nil end
      list[i] = nothing
    end
  end
  return list, count
end

-- What the length of a text costs.
local function price(v)
  if type(v) == 'string' then return 1 + #v / 128 end
  return type(v) == 'table' and v.s and 1 + #v.s / 128 or 1
end

local function built_in(sig, node, scope, value)
  local at, list, count = node.at, static_arguments(node, scope, sig)
  if not list then
    local args = arguments(node, scope)
    return function(f)
      local v = value(f)
      local a, n, kw = args(f)
      bounds.at = at
      charge(price(v))
      return calls.invoke(sig, v, a, n, kw)
    end
  end
  local call, a1, a2 = sig.call, list[1], list[2]
  if count == 0 then
    return function(f)
      local v = value(f)
      bounds.at = at
      charge(price(v))
      return call(v)
    end
  end
  if count <= 2 then
    a2 = a2 or nothing
    return function(f)
      local v, x, y = value(f), a1(f), a2(f)
      bounds.at = at
      charge(price(v))
      return call(v, x, y)
    end
  end
  local a3, a4, a5 = list[3], list[4] or nothing, list[5] or nothing
  return function(f)
    local v, x, y, z, p, q = value(f), a1(f), a2(f), a3(f), a4(f), a5(f)
    bounds.at = at
    charge(price(v))
    return call(v, x, y, z, p, q)
  end
end

-- A filter or test by its name: what is not there is an error at once, or in a branch of a
-- condition when it is reached.
local function named(list, what, node, scope)
  local sig = list[node.name]
  if type(sig) == 'table' then return sig end
  local function fail()
    bounds.at = node.at
    raise("No %s named '%s'.", what, node.name)
  end
  if not scope.soft then fail() end
  return { name = node.name, params = {}, required = 0, raw = fail }
end

function expressions.Filter(node, scope)
  local value = node.node and expression(node.node, scope) or scope.buffered
  return built_in(named(filters, 'filter', node, scope), node, scope, value)
end

function expressions.Test(node, scope)
  return built_in(named(tests, 'test', node, scope), node, scope, expression(node.node, scope))
end

-- object.name(...): a method is called without being made a value.
local function method_call(node, scope)
  local object, name, at = expression(node.node.node, scope), node.node.attr, node.at
  local place_of = node.node.at
  local args = arguments(node, scope)
  local list = expression_list(node.args, scope)
  local n = #list
  local simple = n <= 3 and not node.kwargs[1] and not node.dyn_args and not node.dyn_kwargs
  local a1, a2, a3 = list[1] or nothing, list[2] or nothing, list[3] or nothing
  return function(f)
    local v = object(f)
    local of_kind = methods[type(v) == 'table' and v.kind or type(v) == 'string' and 'str' or
      values.kind(v)]
    local method = simple and of_kind and not strings.is_markup(v) and of_kind[name]
    if method and method.call and n <= #method.params and n >= method.required then
      local x, y, z = a1(f), a2(f), a3(f)
      bounds.at = at
      charge(price(v))
      return method.call(v, x, y, z)
    end
    bounds.at = place_of
    local callee = attributes.getattr(v, name)
    local a, count, kw = args(f)
    bounds.at = at
    charge(price(v))
    return calls.call(callee, a, count, kw)
  end
end

function expressions.Call(node, scope)
  if node.node.t == 'Getattr' then return method_call(node, scope) end
  local callee, args, at = expression(node.node, scope), arguments(node, scope), node.at
  return function(f)
    local v = callee(f)
    local a, n, kw = args(f)
    bounds.at = at
    return calls.call(v, a, n, kw)
  end
end

M.compile, M.list, M.condition = expression, expression_list, condition
M.reader, M.soft, M.arguments = reader, soft, arguments

return M
