--- One rendering's state: where in the template it is, what it has written, what it may still do.
---
--- There is one rendering at a time, so the parts of the engine share this table. Every loop, call
--- and copy is charged for, which is what stops templates that would never end.

local M = {
  at = 0, -- offset in the template of what is being done, for errors
  out = nil, -- pieces written so far, to the innermost buffer; `out.n` of them
  steps = 0, -- what may still be done
  depth = 0, -- macros, recursive loops and nested values that are being worked on
}

--- Steps of one rendering: a second of work or two. A long conversation takes some 100,000.
M.MOST_STEPS = 5000000
--- Bytes of a rendering, and of any one text in it.
M.MOST_BYTES = 64 * 2 ^ 20
--- Calls of macros and recursive loops inside each other.
M.MOST_CALLS = 150
--- Lists in lists, when they are printed or compared.
M.MOST_NESTED = 500
--- Expressions or statements inside each other in a template.
M.MOST_DEEP = 150

local fault = {}

--- Raises an error of the template: the renderer adds template, line and column.
--- @param format string
--- @param ... any
function M.raise(format, ...)
  local words = select('#', ...) > 0 and format:format(...) or format
  error(setmetatable({ words = words, at = M.at }, fault), 0)
end

--- Whether an error was made by `raise`.
--- @param e any
--- @return boolean
function M.is_fault(e) return type(e) == 'table' and getmetatable(e) == fault end

--- Pays for n steps.
--- @param n number
function M.charge(n)
  local left = M.steps - n
  M.steps = left
  if left < 0 then M.raise('more than %d steps: the template does too much', M.MOST_STEPS) end
end

--- Pays for a text of so many bytes before it is made.
--- @param bytes number
function M.charge_bytes(bytes)
  if bytes > M.MOST_BYTES then
    M.raise('a text of %.0f bytes; the limit is %d', bytes, M.MOST_BYTES)
  end
  M.charge(1 + bytes / 64)
end

--- Goes one deeper into calls or nested values; `M.depth` is set back by the caller.
--- @param most integer
--- @param what string what is too deep
function M.enter(most, what)
  M.depth = M.depth + 1
  if M.depth > most then M.raise('%s more than %d deep', what, most) end
end

return M
