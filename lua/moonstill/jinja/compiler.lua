--- A template's tree as one function; its blocks, and what a name means that it does not set.

local bounds = require 'moonstill.jinja.bounds'
local expressions = require 'moonstill.jinja.expressions'
local functions = require 'moonstill.jinja.functions'
local output = require 'moonstill.jinja.output'
local scopes = require 'moonstill.jinja.scopes'
local statements = require 'moonstill.jinja.statements'
require 'moonstill.jinja.looping'
require 'moonstill.jinja.macros'

local M = {}

local raise = bounds.raise
local reader, block, enter = expressions.reader, statements.block, statements.enter

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

function statements.kinds.Block(node, scope)
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
      local text = output.capture(run)
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
