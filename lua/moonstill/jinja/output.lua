--- What a template writes: pieces, to the rendering or to a text that is put together first.

local bounds = require 'moonstill.jinja.bounds'
local printing = require 'moonstill.jinja.printing'
local strings = require 'moonstill.jinja.strings'

local M = {}

--- Writes a text.
function M.emit(v)
  local out = bounds.out
  local n = out.n + 1
  out.n, out[n] = n, v
  local bytes = out.bytes + (type(v) == 'string' and #v or #v.s)
  out.bytes = bytes
  if bytes > bounds.MOST_BYTES then bounds.charge_bytes(bytes) end
end

--- What a body writes when it is called with a frame, as a text, and its signal.
function M.capture(body, f)
  local outer, inner = bounds.out, { n = 0, bytes = 0 }
  bounds.out = inner
  local signal = body(f)
  bounds.out = outer
  return strings.concat(inner, inner.n), signal
end

--- Writes a value.
function M.write(v)
  if type(v) ~= 'string' then v = printing.str(v) end
  M.emit(v)
end

return M
