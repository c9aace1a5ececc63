--- Statements as functions: each gets the frame of its unit, and returns nothing or the signal that
--- ends what it is in: BREAK a loop, any other its present round.

local bounds = require 'moonstill.jinja.bounds'
local expressions = require 'moonstill.jinja.expressions'
local functions = require 'moonstill.jinja.functions'
local output = require 'moonstill.jinja.output'
local scopes = require 'moonstill.jinja.scopes'
local values = require 'moonstill.jinja.values'

local M = {}

local raise = bounds.raise
local expression, expression_list = expressions.compile, expressions.list
local condition, reader, soft = expressions.condition, expressions.reader, expressions.soft

--- The signal that ends a loop.
M.BREAK = 1

local function nothing() end

local statements = {} -- by the type of their node; other modules add to it

--- Several statements as one.
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

--- A scope in another one.
local function inner(scope, unit)
  return { unit = unit or scope.unit, template = scope.template,
    symbols = scopes.symbols(scope.symbols, unit or scope.unit) }
end

--- A function that loads the variables of a scope.
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

function statements.Output(node, scope)
  local list = {}
  for i, item in ipairs(node.items) do
    if item.t == 'TemplateData' then
      local data = item.data
      list[i] = function() output.emit(data) end
    else
      local value, at = expression(item, scope), item.at
      list[i] = function(f)
        local v = value(f)
        bounds.at = at
        output.write(v)
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

--- A function that sets a target to a value.
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

-- The scope of a statement's own names inside of another.
local function inside(node, scope)
  local body_scope = inner(scope)
  body_scope.symbols:analyze(node)
  return body_scope
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
    local text, signal = output.capture(body, f)
    if signal or not filter then return text, signal end
    f[slot] = text
    return filter(f)
  end
end

function statements.AssignBlock(node, scope)
  local body_scope = inside(node, scope)
  local value, set = captured(node, scope, body_scope), assign(node.target, scope)
  return function(f)
    local v, signal = value(f)
    if signal then return signal end
    set(f, v)
  end
end

function statements.FilterBlock(node, scope)
  local body_scope = inside(node, scope)
  local value, at = captured(node, scope, body_scope), node.at
  return function(f)
    local v, signal = value(f)
    if signal then return signal end
    bounds.at = at
    output.write(v)
  end
end

statements['With'] = function(node, scope)
  local body_scope = inside(node, scope)
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
  local body_scope = inside(node, scope)
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

M.block, M.inner, M.enter, M.assign, M.kinds = block, inner, enter, assign, statements

return M
