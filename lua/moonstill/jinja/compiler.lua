--- A template's tree as Lua functions: each node becomes one, which gets the frame of its unit.
---
--- A frame is a table of the values of a unit's variables; `up` is the frame of the unit around it.
--- Expressions return a value, statements nothing, BREAK or CONTINUE.

local bounds = require 'moonstill.jinja.bounds'
local arithmetic = require 'moonstill.jinja.arithmetic'
local attributes = require 'moonstill.jinja.attributes'
local calls = require 'moonstill.jinja.calls'
local comparing = require 'moonstill.jinja.comparing'
local filters = require 'moonstill.jinja.filters'
local functions = require 'moonstill.jinja.functions'
local loops = require 'moonstill.jinja.loops'
local methods = require 'moonstill.jinja.placeholders'
local printing = require 'moonstill.jinja.printing'
local scopes = require 'moonstill.jinja.scopes'
local strings = require 'moonstill.jinja.strings'
local tests = require 'moonstill.jinja.tests'
local values = require 'moonstill.jinja.values'

local M = {}

local raise, charge, truth = bounds.raise, bounds.charge, values.truth
local BREAK = 1 -- of statements: the loop ends; any other signal: its next element

-- output -----------------------------------------------------------------------------------------

local function emit(v)
  local out = bounds.out
  local n = out.n + 1
  out.n, out[n] = n, v
  local bytes = out.bytes + (type(v) == 'string' and #v or #v.s)
  out.bytes = bytes
  if bytes > bounds.MOST_BYTES then bounds.charge_bytes(bytes) end
end

-- What a body writes, as a text, and its signal.
local function capture(body, f)
  local outer, inner = bounds.out, { n = 0, bytes = 0 }
  bounds.out = inner
  local signal = body(f)
  bounds.out = outer
  return strings.concat(inner, inner.n), signal
end

-- expressions ------------------------------------------------------------------------------------

local expressions = {}

local function expression(node, scope)
  local make = expressions[node.t]
  if not make then
    bounds.at = node.at
    raise('a %s cannot stand here', node.t)
  end
  return make(node, scope)
end

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

-- statements -------------------------------------------------------------------------------------

local statements = {}

-- Several statements as one.
local function block(nodes, scope)
  local list = {}
  for i, node in ipairs(nodes or {}) do list[i] = statements[node.t](node, scope) end
  local n = #list
  if n == 0 then return nothing end
  if n == 1 then return list[1] end
  return function(f)
    for i = 1, n do
      local signal = list[i](f)
      if signal then return signal end
    end
  end
end

local function inner(scope, unit)
  return { unit = unit or scope.unit, template = scope.template,
    symbols = scopes.symbols(scope.symbols, unit or scope.unit) }
end

-- A function that loads the variables of a scope.
local function enter(scope)
  local list = {}
  for _, ref in ipairs(scope.symbols.order) do
    local load, slot = scope.symbols.loads[ref], ref.slot
    if load.action == 'resolve' then
      local name = load.param
      list[#list + 1] = function(f) f[slot] = bounds.resolve(name) end
    elseif load.action == 'alias' then
      local read = reader(scope, load.param)
      list[#list + 1] = function(f) f[slot] = read(f) end
    elseif load.action == 'missing' then
      list[#list + 1] = function(f) f[slot] = nil end
    end
  end
  local n = #list
  if n == 0 then return nothing end
  return function(f)
    for i = 1, n do list[i](f) end
  end
end

local function write(v)
  if type(v) ~= 'string' then v = printing.str(v) end
  emit(v)
end

function statements.Output(node, scope)
  local list = {}
  for i, item in ipairs(node.items) do
    if item.t == 'TemplateData' then
      local data = item.data
      list[i] = function() emit(data) end
    else
      local value, at = expression(item, scope), item.at
      list[i] = function(f)
        local v = value(f)
        bounds.at = at
        write(v)
      end
    end
  end
  local n = #list
  if n == 1 then return list[1] end
  return function(f)
    for i = 1, n do list[i](f) end
  end
end

statements['If'] = function(node, scope)
  local within = soft(scope)
  local tests_of, bodies = {}, {}
  for i, branch in ipairs(node.branches) do
    tests_of[i], bodies[i] = condition(branch.test, within), block(branch.body, within)
  end
  local otherwise, n = block(node.otherwise, within), #tests_of
  return function(f)
    for i = 1, n do
      if tests_of[i](f) then return bodies[i](f) end
    end
    return otherwise(f)
  end
end

-- assignments ------------------------------------------------------------------------------------

local function unpack_into(targets, at)
  local want = #targets
  return function(f, v)
    bounds.at = at
    local step = values.try_iterate(v)
    if not step then raise('cannot unpack non-iterable %s object', values.type_name(v)) end
    local items, n = {}, 0
    for item in step do
      n = n + 1
      if n > want then raise('too many values to unpack (expected %d)', want) end
      items[n] = item
    end
    if n < want then raise('not enough values to unpack (expected %d, got %d)', want, n) end
    for i = 1, want do targets[i](f, items[i]) end
  end
end

-- A function that sets a target to a value.
local function assign(node, scope)
  if node.t == 'Tuple' then
    local targets = {}
    for i, item in ipairs(node.items) do targets[i] = assign(item, scope) end
    return unpack_into(targets, node.at)
  end
  local read_only = scope.symbols:find(node.name)
  if node.t == 'NSRef' then
    local read, name, at = reader(scope, read_only), node.attr, node.at
    return function(f, v)
      local namespace = read(f)
      bounds.at = at
      if namespace == nil then raise("'%s' is undefined", node.name) end
      functions.set_attribute(namespace, name, v)
    end
  end
  local slot, name = read_only.slot, node.name
  if scope.toplevel and scope.template.exports then
    return function(f, v)
      f[slot] = v
      bounds.context.vars[name] = v
    end
  end
  return function(f, v) f[slot] = v end
end

function statements.Assign(node, scope)
  local value, set = expression(node.node, scope), assign(node.target, scope)
  return function(f) set(f, value(f)) end
end

-- A body whose output is a value: a function that returns it, changed by filters, and its signal.
local function captured(node, scope, body_scope)
  local load, body = enter(body_scope), block(node.body, body_scope)
  local filter, slot = nil, scopes.slot(scope.unit)
  if node.filter then
    local around = setmetatable({ buffered = function(f) return f[slot] end },
      { __index = body_scope })
    filter = expression(node.filter, around)
  end
  return function(f)
    load(f)
    local text, signal = capture(body, f)
    if signal or not filter then return text, signal end
    f[slot] = text
    return filter(f)
  end
end

function statements.AssignBlock(node, scope)
  local body_scope = inner(scope)
  body_scope.symbols:analyze(node)
  local value, set = captured(node, scope, body_scope), assign(node.target, scope)
  return function(f)
    local v, signal = value(f)
    if signal then return signal end
    set(f, v)
  end
end

function statements.FilterBlock(node, scope)
  local body_scope = inner(scope)
  body_scope.symbols:analyze(node)
  local value, at = captured(node, scope, body_scope), node.at
  return function(f)
    local v, signal = value(f)
    if signal then return signal end
    bounds.at = at
    write(v)
  end
end

statements['With'] = function(node, scope)
  local body_scope = inner(scope)
  body_scope.symbols:analyze(node)
  local inits, targets = expression_list(node.inits, scope), {}
  for i, target in ipairs(node.targets) do targets[i] = assign(target, body_scope) end
  local load, body, n = enter(body_scope), block(node.body, body_scope), #targets
  return function(f)
    load(f)
    for i = 1, n do targets[i](f, inits[i](f)) end
    return body(f)
  end
end

function statements.Autoescape(node, scope)
  local body_scope = inner(scope)
  body_scope.symbols:analyze(node)
  local option = condition(node.option, body_scope)
  local load, body, at = enter(body_scope), block(node.body, body_scope), node.at
  return function(f)
    load(f)
    if option(f) then
      bounds.at = at
      raise 'autoescape: a chat template is no HTML'
    end
    return body(f)
  end
end

function statements.Signal(node)
  local signal = node.signal
  return function() return signal end
end

-- loops ------------------------------------------------------------------------------------------

-- A function of the elements' function: it gives those that the loop's condition takes. The
-- condition has a frame of its own, with the target's variables.
local function chosen(node, scope)
  if not node.test then return nil end
  local unit = scopes.unit(scope.unit)
  local test_scope = inner(scope, unit)
  test_scope.symbols:analyze(node, 'test')
  local set, load = assign(node.target, test_scope), enter(test_scope)
  local test = condition(node.test, test_scope)
  return function(f, step)
    local own = { up = f }
    load(own)
    return function()
      while true do
        local item = step()
        if item == nil then return nil end
        charge(1)
        set(own, item)
        if test(own) then return item end
      end
    end
  end
end

-- The elements of a value for a loop: `loop` has to know what it is gone over.
local function loop_over(iterable, choose, f, depth, again)
  local step = values.iterate(iterable)
  if choose then
    step = choose(f, step)
    iterable = values.iterator('generator', step)
  end
  return loops.new(iterable, step, depth, again)
end

-- A loop that nobody asks anything.
local function plain_loop(set, load, body, choose)
  return function(f, iterable)
    local step, ran = values.iterate(iterable), false
    if choose then step = choose(f, step) end
    for item in step do
      charge(1)
      set(f, item)
      load(f)
      local signal = body(f)
      if signal == BREAK then break end
      ran = ran or not signal
    end
    return ran
  end
end

-- A loop with `loop` in a slot.
local function extended_loop(set, load, body, choose, slot)
  return function(f, iterable, depth, again)
    local loop, ran = loop_over(iterable, choose, f, depth or 0, again), false
    local item = loop:next()
    while item ~= nil do
      charge(1)
      set(f, item)
      f[slot] = loop
      load(f)
      local signal = body(f)
      if signal == BREAK then break end
      ran = ran or not signal
      item = loop:next()
    end
    return ran
  end
end

local function has_scoped_block(node)
  return scopes.any(node.body, function(n) return n.t == 'Block' and n.scoped end)
end

local function forbid_loop(node)
  for _, target in ipairs(node.target.t == 'Tuple' and node.target.items or { node.target }) do
    if target.name == 'loop' and target.t == 'Name' then
      bounds.at = target.at
      raise "Can't assign to special loop variable in for-loop target"
    end
  end
end

-- The run of a loop in its scope, with its `else`: a function of frame, elements, depth, again.
local function loop_body(node, scope, loop_scope)
  local asks = node.recursive or scopes.undeclared(node.body, { 'loop' }).loop or
    has_scoped_block(node)
  local loop_ref = asks and loop_scope.symbols:declare 'loop'
  loop_scope.symbols:analyze(node, 'body')
  local else_scope = inner(scope, loop_scope.unit)
  if node.otherwise then else_scope.symbols:analyze(node, 'otherwise') end
  local choose = chosen(node, setmetatable({ unit = loop_scope.unit }, { __index = scope }))
  local set, load = assign(node.target, loop_scope), enter(loop_scope)
  local body = block(node.body, loop_scope)
  local run = loop_ref and extended_loop(set, load, body, choose, loop_ref.slot) or
    plain_loop(set, load, body, choose)
  local load_else = enter(else_scope)
  local otherwise = node.otherwise and block(node.otherwise, else_scope)
  return function(f, iterable, depth, again)
    local ran = run(f, iterable, depth, again)
    if otherwise and not ran then
      load_else(f)
      return otherwise(f)
    end
  end
end

local function recursive_loop(node, scope)
  local iterable, at = expression(node.iter, scope), node.at
  local loop_scope = inner(scope, scopes.unit(scope.unit))
  local run = loop_body(node, scope, loop_scope)
  return function(f)
    local function again(v, depth)
      local own, deep, place_of = { up = f }, bounds.depth, bounds.at
      bounds.enter(bounds.MOST_CALLS, 'calls')
      local text = capture(function(inside) run(inside, v, depth, again) end, own)
      bounds.depth, bounds.at = deep, place_of
      return text
    end
    local v = iterable(f)
    bounds.at = at
    emit(again(v, 0))
  end
end

statements['For'] = function(node, scope)
  forbid_loop(node)
  if node.recursive then return recursive_loop(node, scope) end
  local iterable, at = expression(node.iter, scope), node.iter.at
  local run = loop_body(node, scope, inner(scope))
  return function(f)
    local v = iterable(f)
    bounds.at = at
    return run(f, v)
  end
end

-- macros -----------------------------------------------------------------------------------------

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
      return (capture(body, frame))
    end
    return { kind = 'macro', name = name, params = names, arguments = arguments_list, run = run,
      explicit_caller = explicit, caller = asks_caller, catch_kwargs = special.kwargs ~= nil,
      catch_varargs = special.varargs ~= nil }
  end
end

function statements.Macro(node, scope)
  local make = macro(node, scope, node.name)
  local set = assign({ t = 'Name', name = node.name, at = node.at }, scope)
  return function(f) set(f, make(f)) end
end

function statements.CallBlock(node, scope)
  local make, call, at = macro(node, scope, nil), node.call, node.call.at
  local callee, args = expression(call.node, scope), arguments(call, scope)
  return function(f)
    local v = callee(f)
    local a, n, kw = args(f)
    kw = kw or values.dict()
    bounds.at = at
    if kw.map.caller ~= nil then raise 'keyword argument repeated: caller' end
    values.dict_set(kw, 'caller', make(f))
    write(calls.call(v, a, n, kw))
  end
end

-- The bytes of what a generation block writes are noted where that is written to the rendering
-- itself; inside of what is only a part of a text its place is not known.
function statements.Generation(node, scope)
  local make = macro(node, scope, nil)
  return function(f)
    local text = calls.call(make(f), {}, 0)
    local out, context = bounds.out, bounds.context
    local from = out.bytes
    emit(text)
    if out ~= context.root then
      context.lost = true
    else
      local marks = context.generation
      marks[#marks + 1], marks[#marks + 2] = from, out.bytes
    end
  end
end

-- blocks -----------------------------------------------------------------------------------------

-- A block by itself, as a function of nothing: it sees what is set at the top, and what was given.
local function block_body(node, template)
  local unit = scopes.unit()
  local scope = { unit = unit, template = template, symbols = scopes.symbols(nil, unit) }
  scope.symbols:analyze(node)
  local load, body = enter(scope), block(node.body, scope)
  return function()
    local f = {}
    load(f)
    return body(f)
  end
end

function statements.Block(node, scope)
  local run = block_body(node, scope.template)
  scope.template.rendered_blocks[node.name] = run
  if node.required then
    return function()
      bounds.at = node.at
      raise("Required block '%s' not found", node.name)
    end
  end
  local names, refs, readers = {}, {}, {}
  if node.scoped then names, refs = scope.symbols:visible() end
  for i, ref in ipairs(refs) do readers[i] = reader(scope, ref) end
  return function(f)
    local context = bounds.context
    local outer = context.locals
    if node.scoped then
      context.locals = setmetatable({}, { __index = outer })
      for i, name in ipairs(names) do context.locals[name] = readers[i](f) end
    end
    local signal = run()
    context.locals = outer
    return signal
  end
end

--- The value of a name that the template does not set itself: what blocks see, what was given, what
--- is there always; nil for none.
function M.resolve(name)
  local context = bounds.context
  local v = context.locals and context.locals[name]
  if v == nil then v = context.vars[name] end
  if v == nil then v = context.cache[name] end
  if v == nil then
    v = context.value(name)
    if v == nil then v = functions[name] end
    if type(v) == 'function' then v = nil end
    if v == nil and name == 'self' then v = M.self_of(context.template) end
    context.cache[name] = v
  end
  return v
end

--- What `self` is: the blocks of the template, to be called.
function M.self_of(template)
  return { kind = 'object', name = 'TemplateReference', attribute = function(_, name)
    local run = template.rendered_blocks[name]
    return run and { kind = 'function', name = name, params = {}, required = 0, call = function()
      local depth = bounds.depth
      bounds.enter(bounds.MOST_CALLS, 'calls')
      local text = capture(run)
      bounds.depth = depth
      return text
    end }
  end }
end

--- A template's tree as a function that writes to bounds.out.
function M.compile(tree)
  local unit = scopes.unit()
  local template = { rendered_blocks = {}, exports = next(tree.blocks) ~= nil }
  local scope = { unit = unit, template = template, toplevel = true,
    symbols = scopes.symbols(nil, unit) }
  scope.symbols:analyze(tree)
  local load, body = enter(scope), block(tree.body, scope)
  return function()
    bounds.resolve = M.resolve
    bounds.context.template = template
    local f = {}
    load(f)
    body(f)
  end
end

return M
