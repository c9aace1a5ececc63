--- The tree of a template, from its tokens: the grammar of Jinja's parser.
---
--- A node is a table with its type in `t` and the byte of the source it begins at in `at`; the
--- other fields are as in the functions that make it.

local bounds = require 'moonstill.jinja.bounds'
local lexer = require 'moonstill.jinja.lexer'
local printing = require 'moonstill.jinja.printing'
local values = require 'moonstill.jinja.values'

local M = {}
local P = {} -- the parser's methods
P.__index = P

-- tokens -----------------------------------------------------------------------------------------

local words = { block_begin = 'begin of statement block', block_end = 'end of statement block',
  variable_begin = 'begin of print statement', variable_end = 'end of print statement',
  data = 'template data / text', eof = 'end of template' }

function P:fail(at, format, ...)
  bounds.at = at
  bounds.raise(format, ...)
end

function P:type() return self.types[self.i] end
function P:place() return self.at[self.i] end

-- What the present token is called in messages.
function P:described()
  local type = self:type()
  return words[type] or printing.str(self.values[self.i])
end

function P:next()
  local i = self.i
  if i < self.count then self.i = i + 1 end
  return self.values[i], self.at[i]
end

function P:is_name(name)
  return self.types[self.i] == 'name' and self.values[self.i] == name
end

function P:next_is_name(name)
  return self.types[self.i + 1] == 'name' and self.values[self.i + 1] == name
end

function P:skip(type)
  if self.types[self.i] ~= type then return false end
  self:next()
  return true
end

function P:skip_name(name)
  if not self:is_name(name) then return false end
  self:next()
  return true
end

function P:expect(type, word)
  if self:type() == type then return self:next() end
  local got = self:described()
  if self:type() == 'eof' then
    self:fail(self:place(), "unexpected end of template, expected '%s'.", word or type)
  end
  self:fail(self:place(), "expected token '%s', got '%s'", word or type, got)
end

function P:expect_name(name)
  if self:is_name(name) then return self:next() end
  self:fail(self:place(), "expected token '%s', got '%s'", name, self:described())
end

-- Goes one deeper into the grammar; the result is what `leave` takes.
function P:enter()
  self.depth = self.depth + 1
  if self.depth > bounds.MOST_DEEP then
    self:fail(self:place(), 'nested more than %d deep', bounds.MOST_DEEP)
  end
end

function P:leave(node)
  self.depth = self.depth - 1
  return node
end

-- primary expressions ----------------------------------------------------------------------------

local constants = { ['true'] = true, ['True'] = true, ['false'] = false, ['False'] = false,
  none = values.NONE, None = values.NONE }

function P:name_or_constant(with_namespace)
  local name, at = self:next()
  if constants[name] ~= nil then return { t = 'Const', at = at, value = constants[name] } end
  if with_namespace and self:skip 'dot' then
    return { t = 'NSRef', at = at, name = name, attr = self:expect('name') }
  end
  return { t = 'Name', at = at, name = name, ctx = 'load' }
end

function P:string()
  local at, parts = self:place(), {}
  while self:type() == 'string' do parts[#parts + 1] = self:next() end
  return { t = 'Const', at = at, value = table.concat(parts) }
end

-- What stands between commas up to a closing token, which a comma may stand before.
function P:items(close, sign, item)
  local items = {}
  while self:type() ~= close do
    if #items > 0 then self:expect('comma', ',') end
    if self:type() == close then break end
    items[#items + 1] = item(self)
  end
  self:expect(close, sign)
  return items
end

function P:list()
  local _, at = self:expect('lbracket', '[')
  return { t = 'List', at = at, items = self:items('rbracket', ']', self.expression) }
end

function P:pair()
  local key = self:expression()
  self:expect('colon', ':')
  return { t = 'Pair', at = key.at, key = key, value = self:expression() }
end

function P:dict()
  local _, at = self:expect('lbrace', '{')
  return { t = 'Dict', at = at, items = self:items('rbrace', '}', self.pair) }
end

function P:primary(with_namespace)
  local type, at = self:type(), self:place()
  if type == 'name' then return self:name_or_constant(with_namespace) end
  if type == 'string' then return self:string() end
  if type == 'integer' or type == 'float' then
    return { t = 'Const', at = at, value = (self:next()) }
  end
  if type == 'lparen' then
    self:next()
    local node = self:tuple { parentheses = true }
    self:expect('rparen', ')')
    return node
  end
  if type == 'lbracket' then return self:list() end
  if type == 'lbrace' then return self:dict() end
  self:fail(at, "unexpected '%s'", self:described())
end

function P:is_tuple_end(last)
  local type = self:type()
  return type == 'variable_end' or type == 'block_end' or type == 'rparen' or
    last ~= nil and self:is_name(last)
end

-- An expression, or several with commas, which are a tuple. Options: parentheses (may be empty),
-- simple (targets of assignments), namespace, no_condition, last (the word that ends it).
function P:tuple(o)
  o = o or {}
  local at, items, is_tuple = self:place(), {}, false
  while true do
    if #items > 0 then self:expect('comma', ',') end
    if self:is_tuple_end(o.last) then break end
    items[#items + 1] = o.simple and self:primary(o.namespace) or
      not o.simple and self:expression(o.no_condition)
    if self:type() ~= 'comma' then break end
    is_tuple = true
  end
  if not is_tuple then
    if items[1] then return items[1] end
    if not o.parentheses then
      self:fail(self:place(), "Expected an expression, got '%s'", self:described())
    end
  end
  return { t = 'Tuple', at = at, items = items }
end

-- what follows a primary expression --------------------------------------------------------------

function P:slice_or_index()
  local at, first, stop, step = self:place(), nil, nil, nil
  if self:type() ~= 'colon' then
    first = self:expression()
    if self:type() ~= 'colon' then return first end
  end
  self:expect('colon', ':')
  local function ends() return self:type() == 'rbracket' or self:type() == 'comma' end
  if self:type() ~= 'colon' and not ends() then stop = self:expression() end
  if self:skip 'colon' and not ends() then step = self:expression() end
  return { t = 'Slice', at = at, start = first, stop = stop, step = step }
end

function P:subscript(node)
  local sign, at = self:next()
  if sign == '.' then
    local type = self:type()
    if type ~= 'name' and type ~= 'integer' then
      self:fail(self:place(), 'expected name or number')
    end
    local value, place = self:next()
    if type == 'name' then return { t = 'Getattr', at = at, node = node, attr = value } end
    return { t = 'Getitem', at = at, node = node,
      arg = { t = 'Const', at = place, value = value } }
  end
  local args = {}
  while self:type() ~= 'rbracket' do
    if #args > 0 then self:expect('comma', ',') end
    args[#args + 1] = self:slice_or_index()
  end
  self:expect('rbracket', ']')
  local arg = #args == 1 and args[1] or { t = 'Tuple', at = at, items = args }
  return { t = 'Getitem', at = at, node = node, arg = arg }
end

-- One argument of a call, into `call`.
function P:argument(call, at)
  local function ensure(ok)
    if not ok then self:fail(at, 'invalid syntax for function call expression') end
  end
  if self:type() == 'mul' then
    ensure(not call.dyn_args and not call.dyn_kwargs)
    self:next()
    call.dyn_args = self:expression()
  elseif self:type() == 'pow' then
    ensure(not call.dyn_kwargs)
    self:next()
    call.dyn_kwargs = self:expression()
  elseif self:type() == 'name' and self.types[self.i + 1] == 'assign' then
    ensure(not call.dyn_kwargs)
    local key, place = self:next()
    self:next()
    call.kwargs[#call.kwargs + 1] = { t = 'Keyword', at = place, key = key,
      value = self:expression() }
  else
    ensure(not call.dyn_args and not call.dyn_kwargs and #call.kwargs == 0)
    call.args[#call.args + 1] = self:expression()
  end
end

-- The arguments between parentheses, as fields of `call`.
function P:arguments(call)
  local _, at = self:expect('lparen', '(')
  local comma = false
  while self:type() ~= 'rparen' do
    if comma then
      self:expect('comma', ',')
      if self:type() == 'rparen' then break end
    end
    self:argument(call, at)
    comma = true
  end
  self:expect('rparen', ')')
  return call
end

function P:call(node)
  local at = node.t == 'Name' and node.at or self:place()
  return self:arguments { t = 'Call', at = at, node = node, args = {}, kwargs = {} }
end

-- A tree that grows by what follows may not grow deeper than one that is nested.
function P:deeper(node, inner)
  node.deep = (inner and inner.deep or 0) + 1
  if node.deep > bounds.MOST_DEEP then
    self:fail(node.at, 'more than %d operations on one another', bounds.MOST_DEEP)
  end
  return node
end

function P:postfix(node)
  while true do
    local type = self:type()
    if type == 'dot' or type == 'lbracket' then
      node = self:deeper(self:subscript(node), node)
    elseif type == 'lparen' then
      node = self:deeper(self:call(node), node)
    else
      return node
    end
  end
end

function P:dotted_name()
  local name = self:expect 'name'
  while self:skip 'dot' do name = name .. '.' .. self:expect 'name' end
  return name
end

function P:filter(node)
  local at = self:place()
  local call = { t = 'Filter', at = at, node = node, name = self:dotted_name(), args = {},
    kwargs = {} }
  if self:type() == 'lparen' then self:arguments(call) end
  return self:deeper(call, node)
end

local begins_argument = { name = true, string = true, integer = true, float = true, lparen = true,
  lbracket = true, lbrace = true }

function P:test(node)
  local _, at = self:next()
  local negated = self:skip_name 'not'
  local call = { t = 'Test', at = at, node = node, name = self:dotted_name(), args = {},
    kwargs = {} }
  local words_after = self:is_name 'else' or self:is_name 'or' or self:is_name 'and'
  if self:type() == 'lparen' then
    self:arguments(call)
  elseif begins_argument[self:type()] and not words_after then
    if self:is_name 'is' then self:fail(at, 'You cannot chain multiple tests with is') end
    call.args[1] = self:postfix(self:primary())
  end
  self:deeper(call, node)
  return negated and { t = 'Not', at = at, node = call, deep = call.deep } or call
end

function P:filters_and_tests(node)
  while true do
    if self:type() == 'pipe' then
      self:next()
      node = self:filter(node)
    elseif self:is_name 'is' then
      node = self:test(node)
    elseif self:type() == 'lparen' then
      node = self:deeper(self:call(node), node)
    else
      return node
    end
  end
end

-- operators --------------------------------------------------------------------------------------

function P:unary(without_filters)
  local type, at, node = self:type(), self:place(), nil
  self:enter()
  if type == 'sub' or type == 'add' then
    self:next()
    node = { t = 'Unary', at = at, op = type, node = self:unary(true) }
  else
    node = self:primary()
  end
  node = self:postfix(node)
  if not without_filters then node = self:filters_and_tests(node) end
  return self:leave(node)
end

-- Operators that stand between operands of the next level, taken from the left.
local function left(level, ops)
  return function(self)
    local node = self[level](self)
    while ops[self:type()] do
      local op, at = self:type(), self:place()
      self:next()
      node = self:deeper({ t = 'Binary', at = at, op = op, left = node,
        right = self[level](self) }, node)
    end
    return node
  end
end

P.power = left('unary', { pow = true })
P.product = left('power', { mul = true, div = true, floordiv = true, mod = true })

function P:concat()
  local at, first = self:place(), self:product()
  if self:type() ~= 'tilde' then return first end
  local items = { first }
  while self:skip 'tilde' do items[#items + 1] = self:product() end
  return { t = 'Concat', at = at, items = items }
end

P.sum = left('concat', { add = true, sub = true })

local comparisons = { eq = true, ne = true, lt = true, lteq = true, gt = true, gteq = true }

function P:comparison()
  local first, ops = self:sum(), {}
  while true do
    local op, at = self:type(), self:place()
    if comparisons[op] then
      self:next()
    elseif self:skip_name 'in' then
      op = 'in'
    elseif self:is_name 'not' and self:next_is_name 'in' then
      self:next()
      self:next()
      op = 'notin'
    else
      break
    end
    ops[#ops + 1] = { t = 'Operand', at = at, op = op, node = self:sum() }
  end
  return #ops == 0 and first or { t = 'Compare', at = ops[1].at, node = first, ops = ops }
end

function P:negation()
  if not self:is_name 'not' then return self:comparison() end
  local _, at = self:next()
  self:enter()
  return self:leave { t = 'Not', at = at, node = self:negation() }
end

local function logical(level, word)
  return function(self)
    local node = self[level](self)
    while self:is_name(word) do
      local _, at = self:next()
      node = self:deeper({ t = word == 'or' and 'Or' or 'And', at = at, left = node,
        right = self[level](self) }, node)
    end
    return node
  end
end

P.conjunction = logical('negation', 'and')
P.disjunction = logical('conjunction', 'or')

function P:condition()
  local node = self:disjunction()
  while self:is_name 'if' do
    local _, at = self:next()
    local test, otherwise = self:disjunction(), nil
    if self:skip_name 'else' then
      self:enter()
      otherwise = self:leave(self:condition())
    end
    node = self:deeper({ t = 'CondExpr', at = at, test = test, yes = node, no = otherwise }, node)
  end
  return node
end

function P:expression(no_condition)
  self:enter()
  return self:leave(no_condition and self:disjunction() or not no_condition and self:condition())
end

-- statements -------------------------------------------------------------------------------------

-- Names in a target are stored, or are parameters.
local function set_context(node, ctx)
  if node.t == 'Name' then node.ctx = ctx end
  for _, item in ipairs(node.t == 'Tuple' and node.items or {}) do set_context(item, ctx) end
end

local reserved = { ['true'] = true, ['false'] = true, none = true, True = true, False = true,
  None = true }
local called = { Const = 'const', List = 'list', Dict = 'dict' }

-- What may be assigned to: names, attributes of namespaces, tuples of them.
local function is_target(node)
  if node.t == 'Tuple' then
    for _, item in ipairs(node.items) do
      if not is_target(item) then return false end
    end
    return true
  end
  return node.t == 'NSRef' or node.t == 'Name' and not reserved[node.name]
end

function P:target(o)
  o = o or {}
  local node
  if o.name_only then
    local name, at = self:expect 'name'
    node = { t = 'Name', at = at, name = name, ctx = 'store' }
  else
    node = self:tuple { simple = true, last = o.last, namespace = o.namespace }
    set_context(node, 'store')
  end
  if not is_target(node) then
    self:fail(node.at, "can't assign to '%s'", called[node.t] or node.t:lower())
  end
  return node
end

-- "'a' or 'b'"
local function quoted(list) return "'" .. table.concat(list, "' or '") .. "'" end

function P:fail_tag(name, at)
  local ends, parts = self.ends[#self.ends], {}
  parts[1] = name and ("Encountered unknown tag '%s'."):format(name) or
    'Unexpected end of template.'
  local expected = false
  for _, list in ipairs(self.ends) do
    for _, word in ipairs(list) do expected = expected or word == name end
  end
  if ends and expected then
    parts[#parts + 1] = 'You probably made a nesting mistake. Jinja is expecting this tag, but ' ..
      'currently looking for ' .. quoted(ends) .. '.'
  elseif ends then
    parts[#parts + 1] = 'Jinja was looking for the following tags: ' .. quoted(ends) .. '.'
  end
  if #self.tags > 0 then
    parts[#parts + 1] = ("The innermost block that needs to be closed is '%s'.")
      :format(self.tags[#self.tags])
  end
  self:fail(at, '%s', table.concat(parts, ' '))
end

-- The statements up to one of the words in `ends`, which is the present token then.
function P:statements(ends)
  self:skip 'colon'
  self:expect('block_end', 'end of statement block')
  self.ends[#self.ends + 1] = ends
  self:enter()
  local body = self:leave(self:body(ends))
  if self:type() == 'eof' then self:fail_tag(nil, self:place()) end
  self.ends[#self.ends] = nil
  return body
end

-- The statements up to one word, which is passed.
function P:statements_to(word)
  local body = self:statements { word }
  self:next()
  return body
end

-- A body that is called: loops outside of it are not its own.
function P:called_body(word)
  local loops = self.loops
  self.loops = 0
  local body = self:statements_to(word)
  self.loops = loops
  return body
end

local tags = {}

function tags.set(self, at)
  local target = self:target { namespace = true }
  if self:skip 'assign' then
    return { t = 'Assign', at = at, node = self:tuple(), target = target }
  end
  local filter = nil
  while self:skip 'pipe' do filter = self:filter(filter) end
  return { t = 'AssignBlock', at = at, target = target, filter = filter,
    body = self:statements_to 'endset' }
end

tags['for'] = function(self, at)
  local target = self:target { last = 'in' }
  self:expect_name 'in'
  local iter = self:tuple { no_condition = true, last = 'recursive' }
  local test = self:skip_name 'if' and self:expression() or nil
  local recursive = self:skip_name 'recursive'
  self.loops = self.loops + 1
  local body, otherwise = self:statements { 'endfor', 'else' }, nil
  self.loops = self.loops - 1
  if self:next() == 'else' then otherwise = self:statements_to 'endfor' end
  return { t = 'For', at = at, target = target, iter = iter, test = test, recursive = recursive,
    body = body, otherwise = otherwise }
end

tags['if'] = function(self, at)
  local ends = { 'elif', 'else', 'endif' }
  local node = { t = 'If', at = at, branches = {} }
  local word = 'elif'
  while word == 'elif' do
    local test = self:tuple { no_condition = true }
    node.branches[#node.branches + 1] = { t = 'Branch', at = test.at, test = test,
      body = self:statements(ends) }
    word = self:next()
  end
  if word == 'else' then node.otherwise = self:statements_to 'endif' end
  return node
end

tags['with'] = function(self, at)
  local targets, inits = {}, {}
  while self:type() ~= 'block_end' do
    if #targets > 0 then self:expect('comma', ',') end
    targets[#targets + 1] = self:target()
    set_context(targets[#targets], 'param')
    self:expect('assign', '=')
    inits[#inits + 1] = self:expression()
  end
  return { t = 'With', at = at, targets = targets, inits = inits,
    body = self:statements_to 'endwith' }
end

function tags.autoescape(self, at)
  local option = self:expression()
  return { t = 'Autoescape', at = at, option = option, body = self:statements_to 'endautoescape' }
end

function tags.block(self, at)
  local name = self:expect 'name'
  local scoped, required = self:skip_name 'scoped', self:skip_name 'required'
  if self:type() == 'sub' then
    self:fail(self:place(), 'Block names in Jinja have to be valid Python identifiers and may ' ..
      'not contain hyphens, use an underscore instead.')
  end
  local node = { t = 'Block', at = at, name = name, scoped = scoped, required = required,
    body = self:called_body 'endblock' }
  if self.blocks[name] then self:fail(at, "block '%s' defined twice", name) end
  self.blocks[name] = node
  self:skip_name(name)
  return node
end

for _, word in ipairs { 'extends', 'include', 'import', 'from' } do
  tags[word] = function(self, at)
    self:fail(at, "'%s': a chat template stands alone, there is no other one to load", word)
  end
end

tags['print'] = function(self, at)
  local items = {}
  while self:type() ~= 'block_end' do
    if #items > 0 then self:expect('comma', ',') end
    items[#items + 1] = self:expression()
  end
  return { t = 'Output', at = at, items = items }
end

-- The parameters of a macro or call block, into `node`.
function P:signature(node)
  self:expect('lparen', '(')
  while self:type() ~= 'rparen' do
    if #node.params > 0 then self:expect('comma', ',') end
    local param = self:target { name_only = true }
    param.ctx = 'param'
    if self:skip 'assign' then
      node.defaults[#node.params + 1] = self:expression()
      node.has_default = true
    elseif node.has_default then
      self:fail(self:place(), 'non-default argument follows default argument')
    end
    node.params[#node.params + 1] = param
  end
  self:expect('rparen', ')')
  return node
end

function tags.macro(self, at)
  local name = self:target({ name_only = true }).name
  local node = self:signature { t = 'Macro', at = at, name = name, params = {}, defaults = {} }
  node.body = self:called_body 'endmacro'
  return node
end

function tags.call(self, at)
  local node = { t = 'CallBlock', at = at, params = {}, defaults = {} }
  if self:type() == 'lparen' then self:signature(node) end
  node.call = self:expression()
  if node.call.t ~= 'Call' then self:fail(at, 'expected call') end
  node.body = self:called_body 'endcall'
  return node
end

function tags.filter(self, at)
  local filter = self:filter(nil)
  while self:skip 'pipe' do filter = self:filter(filter) end
  return { t = 'FilterBlock', at = at, filter = filter, body = self:statements_to 'endfilter' }
end

function tags.generation(self, at)
  self.has_generation = true
  return { t = 'Generation', at = at, params = {}, defaults = {},
    body = self:called_body 'endgeneration' }
end

for word, signal in ipairs { 'break', 'continue' } do
  tags[signal] = function(self, at)
    if self.loops == 0 then self:fail(at, "'%s' outside of a loop", signal) end
    return { t = 'Signal', at = at, signal = word }
  end
end

function P:statement()
  if self:type() ~= 'name' then self:fail(self:place(), 'tag name expected') end
  local name, at = self.values[self.i], self:place()
  if not tags[name] then self:fail_tag(name, at) end
  self:next()
  self.tags[#self.tags + 1] = name
  local node = tags[name](self, at)
  self.tags[#self.tags] = nil
  return node
end

local function is_any(self, ends)
  for _, word in ipairs(ends or {}) do
    if self:is_name(word) then return true end
  end
  return false
end

function P:body(ends)
  local body = {}
  local function output(node)
    local last = body[#body]
    if not last or last.t ~= 'Output' then
      last = { t = 'Output', at = node.at, items = {} }
      body[#body + 1] = last
    end
    last.items[#last.items + 1] = node
  end
  while self:type() ~= 'eof' do
    local type = self:type()
    if type == 'data' then
      local text, at = self:next()
      output { t = 'TemplateData', at = at, data = text }
    elseif type == 'variable_begin' then
      self:next()
      output(self:tuple())
      self:expect('variable_end', 'end of print statement')
    else
      self:expect('block_begin', 'begin of statement block')
      if is_any(self, ends) then return body end
      body[#body + 1] = self:statement()
      self:expect('block_end', 'end of statement block')
    end
  end
  return body
end

--- The tree of a template.
--- @param source string
--- @param options { trim_blocks: boolean, lstrip_blocks: boolean }
--- @return table { t = 'Template', body, blocks, words, has_generation, source }
function M.parse(source, options)
  local tokens = lexer.read(source, options)
  local self = setmetatable({ types = tokens.types, values = tokens.values, at = tokens.at,
    count = tokens.count, i = 1, depth = 0, loops = 0, ends = {}, tags = {}, blocks = {} }, P)
  local body = self:body()
  return { t = 'Template', at = 1, body = body, blocks = self.blocks, words = tokens.words,
    has_generation = self.has_generation or false, source = tokens.source }
end

return M
