--- Jinja, as Hugging Face's chat templates use it: a template is compiled once and rendered often.
---
--- What it means is what Python's Jinja2 makes of it in the environment of transformers: the
--- immutable sandbox with trim_blocks and lstrip_blocks, break and continue, {% generation %},
--- tojson, raise_exception and strftime_now. A rendering knows which of its bytes came from the
--- sample: from the variables `messages`, `tools` and `documents`.
---
--- Templates are not trusted: they reach nothing but the values they are given, and what they may
--- do is bounded.

local bounds = require 'moonstill.jinja.bounds'
local check = require 'moonstill.base.check'
local compiler = require 'moonstill.jinja.compiler'
local known = require 'moonstill.base.options'.known
local parser = require 'moonstill.jinja.parser'
local strings = require 'moonstill.jinja.strings'
local variables = require 'moonstill.jinja.variables'

local M = {}

--- Bytes of a template; the largest known have 40,000.
M.MOST_SOURCE = 2 ^ 20

local Template = {}
Template.__index = Template

-- "NAME: line L, column C: " of a byte of the source.
local function place(self, at)
  local before = self.source:sub(1, math.max(at, 1) - 1)
  local _, lines = before:gsub('\n', '')
  local column = strings.length(before:sub(before:match '^.*\n()' or 1)) + 1
  return ('%s: line %d, column %d: '):format(self.name, lines + 1, column)
end

-- Runs a step of the work on a template; what goes wrong names the template and the place.
local function guarded(self, step, ...)
  bounds.steps, bounds.depth, bounds.at = bounds.MOST_STEPS, 0, 1
  local ok, result = pcall(step, ...)
  if ok then return result end
  if bounds.is_fault(result) then error(place(self, result.at) .. result.words, 0) end
  local words = tostring(result)
  if words:find 'stack overflow' then words = 'nested too deep' end
  error(place(self, bounds.at) .. words, 0)
end

--- Compiles a template. A mistake in it is an error that names it, line and column.
--- @param source string
--- @param name string what errors call it
--- @param options? { trim_blocks?: boolean, lstrip_blocks?: boolean } both true by default
function M.compile(source, name, options)
  check.text('jinja', 'name', name)
  local o = known('jinja', { trim_blocks = true, lstrip_blocks = true }, options)
  local self = setmetatable({ name = name, source = source }, Template)
  local zero = type(source) == 'string' and source:find('%z')
  if zero then error(place(self, zero) .. 'a zero byte', 0) end
  check.text('jinja', 'source', source)
  if #source > M.MOST_SOURCE then
    error(('%s: %d bytes of template, the limit is %d'):format(name, #source, M.MOST_SOURCE), 0)
  end
  guarded(self, function()
    local tree = parser.parse(source, { trim_blocks = o.trim_blocks ~= false,
      lstrip_blocks = o.lstrip_blocks ~= false })
    self.source, self.words, self.has_generation = tree.source, tree.words, tree.has_generation
    self.run = compiler.compile(tree)
  end)
  return self
end

--- Whether the template names a variable, an attribute or a text like this one anywhere.
--- @param word string
--- @return boolean
function Template:mentions(word) return self.words[word] == true end

--- Renders the template. Texts of `messages`, `tools` and `documents` keep their origin.
--- @param given table<string, any> the variables, plain Lua values
--- @param options? { now?: table } now: year, month, day, hour, min, sec of strftime_now; by
---   default the present local time
--- @return string text
--- @return integer[] spans from, to, source, ... : 0-based byte ranges of what came from the sample
--- @return integer[]? generation from, to, ... of generation blocks; nil where one stands inside of
---   a macro or of a text that is put together first
--- @return table[] sources of each source the message and its field, or the variable as field
function Template:render(given, options)
  check.table('jinja', 'variables', given)
  local o = known('jinja', { now = true }, options)
  local out, sources = { n = 0, bytes = 0 }, {}
  local context = { vars = {}, cache = {}, root = out, generation = {},
    value = function(name) return variables.value(given, name, sources) end }
  bounds.out, bounds.context, bounds.now = out, context, o.now
  local text = guarded(self, function()
    self.run()
    return strings.concat(out, out.n)
  end)
  local spans = {}
  if type(text) ~= 'string' then
    spans = text.src and { 0, #text.s, text.src } or text.spans
    text = text.s
  end
  return text, spans, not context.lost and context.generation or nil, sources
end

return M
