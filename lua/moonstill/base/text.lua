--- Takes a `char *` that the core handed over, as a Lua string.
local ffi = require 'ffi'
local C = require 'moonstill.C'
local fail = require 'moonstill.base.fail'

local chars = ffi.typeof 'char *'

--- @param p ffi.cdata* `char *`, freed here; NULL gives nil
--- @param bytes? integer its length; default up to the terminator
--- @return string?
return function(p, bytes)
  if p == nil then return nil end
  if not ffi.istype(chars, p) then fail 'text: it is not of the core' end
  local s = bytes and ffi.string(p, bytes) or ffi.string(p)
  C.ms_text_free(p)
  return s
end
