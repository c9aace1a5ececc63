--- Regular expressions (PCRE2) that are looked for in texts: what of an answer counts.

local ffi = require 'ffi'
local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local handles = require 'moonstill.base.handle'

local M = {}

local out = ffi.new 'ms_pattern *[1]' -- scratch, read at once
local bounds = ffi.new 'int64_t[2]'

--- @class ms_pattern
--- @package
local kind = handles.kind('pattern', 'ms_pattern', C.ms_pattern_free)

--- Compiles a regular expression.
--- @param text string
--- @return ms_pattern
function M.new(text)
  check.text('pattern', 'pattern', text)
  check.file(C.ms_pattern_new(text, #text, out))
  return kind.new(out[0])
end

--- What the last match in a text captures: the first of its groups that took part, or all of it
--- where none did; nil where there is no match. An empty match is none.
--- @param text string
--- @return string?
function kind.methods:last(text)
  local p = kind.pointer(self)
  if type(text) ~= 'string' then check.text('pattern', 'text', text) end
  check.file(C.ms_pattern_last(p, text, #text, bounds, bounds + 1))
  local first, last = tonumber(bounds[0]), tonumber(bounds[1])
  return first >= 0 and text:sub(first + 1, last) or nil
end

return M
