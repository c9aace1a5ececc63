--- Which variable a name means: Jinja's rules of scope, worked out before anything is rendered.
---
--- A scope is a loop, a macro, a block, or the template itself. Every variable of it has a place in
--- the frame of the *unit* it belongs to: what is run as one function (template, block, macro,
--- recursive loop). When a scope is entered its variables are loaded: as a parameter, from an outer
--- scope, from what the template is given, or not at all.

local bounds = require 'moonstill.jinja.bounds'

local M = {}

-- trees ------------------------------------------------------------------------------------------

local fields = {
  Output = { 'items' }, Binary = { 'left', 'right' }, Unary = { 'node' }, Concat = { 'items' },
  Compare = { 'node', 'ops' }, Operand = { 'node' }, Getattr = { 'node' },
  Getitem = { 'node', 'arg' }, Slice = { 'start', 'stop', 'step' }, Keyword = { 'value' },
  Call = { 'node', 'args', 'kwargs', 'dyn_args', 'dyn_kwargs' },
  Filter = { 'node', 'args', 'kwargs', 'dyn_args', 'dyn_kwargs' },
  Test = { 'node', 'args', 'kwargs', 'dyn_args', 'dyn_kwargs' },
  CondExpr = { 'test', 'yes', 'no' }, Not = { 'node' }, And = { 'left', 'right' },
  Or = { 'left', 'right' }, List = { 'items' }, Tuple = { 'items' }, Dict = { 'items' },
  Pair = { 'key', 'value' }, Assign = { 'target', 'node' },
  AssignBlock = { 'target', 'filter', 'body' }, With = { 'targets', 'inits', 'body' },
  For = { 'target', 'iter', 'body', 'otherwise', 'test' }, If = { 'branches', 'otherwise' },
  Branch = { 'test', 'body' }, Macro = { 'params', 'defaults_list', 'body' },
  CallBlock = { 'call', 'params', 'defaults_list', 'body' },
  Generation = { 'body' }, FilterBlock = { 'body', 'filter' }, Block = { 'body' },
  Autoescape = { 'option', 'body' }, Template = { 'body' },
}

-- Defaults of parameters have holes; here they are a list.
local function child(node, field)
  if field ~= 'defaults_list' then return node[field] end
  local list = {}
  for i = 1, #node.params do list[#list + 1] = node.defaults[i] end
  return list
end

--- Calls visit(node) for each child of a node, in order; `skip` is a field that is left out.
local function each_child(node, visit, skip)
  for _, field in ipairs(fields[node.t] or {}) do
    local value = field ~= skip and child(node, field)
    if value and value.t then
      visit(value)
    elseif value then
      for _, item in ipairs(value) do visit(item) end
    end
  end
end

--- Which of some names are used in nodes before they are set there.
--- @param nodes table[]
--- @param names string[]
--- @return table<string, boolean>
function M.undeclared(nodes, names)
  local open, found = {}, {}
  for _, name in ipairs(names) do open[name] = true end
  local function visit(node)
    if node.t == 'Block' then return end
    if node.t == 'Name' then
      if node.ctx == 'load' and open[node.name] then
        found[node.name] = true
      elseif node.ctx ~= 'load' then
        open[node.name] = nil
      end
      return
    end
    each_child(node, visit)
  end
  for _, node in ipairs(nodes) do visit(node) end
  return found
end

--- Whether any node below some nodes is of a kind that `is` says.
function M.any(nodes, is)
  local function visit(node)
    if is(node) then return true end
    local found = false
    each_child(node, function(inner) found = found or visit(inner) end)
    return found
  end
  for _, node in ipairs(nodes) do
    if visit(node) then return true end
  end
  return false
end

-- symbols ----------------------------------------------------------------------------------------

local Symbols = {}
Symbols.__index = Symbols

--- The names of a scope. `places` are shared by the branches of an `if`: one name, one place.
---   refs, names      where the value of a name is; the names in the order they were found
---   loads, order     how a place is loaded; the places in the order of loading
---   stores, stored   the names that are set, as keys and in order
function M.symbols(parent, unit)
  return setmetatable({ parent = parent, unit = unit, refs = {}, names = {}, loads = {},
    order = {}, stores = {}, stored = {}, places = {} }, Symbols)
end

--- What is run as one function, with a frame of its own.
function M.unit(parent)
  return { parent = parent, depth = parent and parent.depth + 1 or 0, slots = 0 }
end

--- A new place in a unit's frame.
function M.slot(unit)
  unit.slots = unit.slots + 1
  return unit.slots
end

function Symbols:define(name, action, param)
  local ref = self.places[name]
  if not ref then
    ref = { unit = self.unit, slot = M.slot(self.unit) }
    self.places[name] = ref
  end
  self:refer(name, ref)
  self:load_by(ref, { action = action, param = param })
  return ref
end

function Symbols:refer(name, ref)
  if not self.refs[name] then self.names[#self.names + 1] = name end
  self.refs[name] = ref
end

function Symbols:load_by(ref, load)
  if not self.loads[ref] then self.order[#self.order + 1] = ref end
  self.loads[ref] = load
end

function Symbols:note_store(name)
  if not self.stores[name] then self.stored[#self.stored + 1] = name end
  self.stores[name] = true
end

--- Where the value of a name is, or nil.
function Symbols:find(name)
  local symbols = self
  while symbols do
    if symbols.refs[name] then return symbols.refs[name] end
    symbols = symbols.parent
  end
  return nil
end

function Symbols:store(name)
  self:note_store(name)
  if self.refs[name] then return end
  local outer = self.parent and self.parent:find(name)
  if outer then
    self:define(name, 'alias', outer)
  else
    self:define(name, 'missing')
  end
end

function Symbols:declare(name)
  self:note_store(name)
  return self:define(name, 'param')
end

function Symbols:load(name)
  if not self:find(name) then self:define(name, 'resolve', name) end
end

-- What is known here, for a branch of an `if` to add to.
function Symbols:branch()
  bounds.charge(20 * #self.order)
  local new = M.symbols(self.parent, self.unit)
  new.places = self.places
  for i, name in ipairs(self.names) do new.names[i], new.refs[name] = name, self.refs[name] end
  for i, ref in ipairs(self.order) do new.order[i], new.loads[ref] = ref, self.loads[ref] end
  for i, name in ipairs(self.stored) do new.stored[i], new.stores[name] = name, true end
  return new
end

-- Takes over what branches know. A name that is set in one of them but not before may keep its
-- outer value.
function Symbols:merge(branches)
  local set = {}
  for _, branch in ipairs(branches) do
    for _, name in ipairs(branch.stored) do
      if not self.stores[name] then set[#set + 1] = name end
    end
  end
  for _, branch in ipairs(branches) do
    for _, ref in ipairs(branch.order) do self:load_by(ref, branch.loads[ref]) end
    for _, name in ipairs(branch.names) do self:refer(name, branch.refs[name]) end
    for _, name in ipairs(branch.stored) do self:note_store(name) end
  end
  for _, name in ipairs(set) do
    local outer = self.parent and self.parent:find(name)
    self.loads[self:find(name)] = outer and { action = 'alias', param = outer } or
      { action = 'resolve', param = name }
  end
end

--- All names that are set here or around, and their places.
--- @return string[], table[]
function Symbols:visible()
  local names, refs, seen, symbols = {}, {}, {}, self
  while symbols do
    for _, name in ipairs(symbols.stored) do
      if not seen[name] then
        seen[name] = true
        names[#names + 1], refs[#refs + 1] = name, self:find(name)
      end
    end
    symbols = symbols.parent
  end
  return names, refs
end

-- analysis ---------------------------------------------------------------------------------------

local visitors = {}
local visit

local function visit_all(symbols, nodes)
  for _, node in ipairs(nodes or {}) do visit(symbols, node) end
end

function visit(symbols, node)
  local visitor = visitors[node.t]
  if visitor then return visitor(symbols, node) end
  each_child(node, function(inner) visit(symbols, inner) end)
end

function visitors.Name(symbols, node)
  if node.ctx == 'param' then
    symbols:declare(node.name)
  elseif node.ctx == 'store' then
    symbols:store(node.name)
  else
    symbols:load(node.name)
  end
end

function visitors.NSRef(symbols, node) symbols:load(node.name) end
function visitors.Macro(symbols, node) symbols:store(node.name) end
function visitors.For(symbols, node) visit(symbols, node.iter) end
function visitors.CallBlock(symbols, node) visit(symbols, node.call) end
function visitors.FilterBlock(symbols, node) visit(symbols, node.filter) end
function visitors.With(symbols, node) visit_all(symbols, node.inits) end
function visitors.AssignBlock(symbols, node) visit(symbols, node.target) end
function visitors.Generation() end
function visitors.Block() end
function visitors.Autoescape() end

function visitors.Assign(symbols, node)
  visit(symbols, node.node)
  visit(symbols, node.target)
end

-- The body under one condition, as an `if` by itself: what it sets may be unset after.
local function visit_branch(symbols, branch)
  visit(symbols, branch.test)
  local body = symbols:branch()
  visit_all(body, branch.body)
  symbols:merge { body, symbols:branch(), symbols:branch() }
end

function visitors.If(symbols, node)
  visit(symbols, node.branches[1].test)
  local body, others, otherwise = symbols:branch(), symbols:branch(), symbols:branch()
  visit_all(body, node.branches[1].body)
  for i = 2, #node.branches do visit_branch(others, node.branches[i]) end
  visit_all(otherwise, node.otherwise)
  symbols:merge { body, others, otherwise }
end

-- The names in a target are parameters of the loop.
local function declare_target(symbols, target)
  if target.t == 'Name' then symbols:declare(target.name) end
  for _, item in ipairs(target.t == 'Tuple' and target.items or {}) do
    declare_target(symbols, item)
  end
end

--- Finds the names of a scope: what is directly in a node's bodies.
--- @param part? string of a loop: 'body', 'otherwise' or 'test'
function Symbols:analyze(node, part)
  if node.t == 'For' then
    if part ~= 'otherwise' then declare_target(self, node.target) end
    if part == 'test' then return visit(self, node.test) end
    return visit_all(self, node[part])
  end
  if node.t == 'AssignBlock' then return visit_all(self, node.body) end
  if node.t == 'With' then
    visit_all(self, node.targets)
    return visit_all(self, node.body)
  end
  each_child(node, function(inner) visit(self, inner) end, 'call')
end

return M
