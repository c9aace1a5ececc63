--- The statement `for`: plain loops, those that know where they are, and recursive ones.

local bounds = require 'moonstill.jinja.bounds'
local expressions = require 'moonstill.jinja.expressions'
local loops = require 'moonstill.jinja.loops'
local output = require 'moonstill.jinja.output'
local scopes = require 'moonstill.jinja.scopes'
local statements = require 'moonstill.jinja.statements'
local values = require 'moonstill.jinja.values'

local raise, charge = bounds.raise, bounds.charge
local expression, condition = expressions.compile, expressions.condition
local block, inner, enter, assign = statements.block, statements.inner, statements.enter,
  statements.assign
local BREAK = statements.BREAK

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
      local text = output.capture(function(inside) run(inside, v, depth, again) end, own)
      bounds.depth, bounds.at = deep, place_of
      return text
    end
    local v = iterable(f)
    bounds.at = at
    output.emit(again(v, 0))
  end
end

statements.kinds['For'] = function(node, scope)
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

return statements
