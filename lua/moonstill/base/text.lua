--- Takes a `char *` that the core handed over, as a Lua string.
local ffi = require 'ffi'
local C = require 'moonstill.C'

--- @param p ffi.cdata* `char *`, freed here; NULL gives nil
--- @param bytes? integer its length; default up to the terminator
--- @return string?
return function(p, bytes)
  if p == nil then return nil end
  local s = bytes and ffi.string(p, bytes) or ffi.string(p)
  C.ms_text_free(p)
  return s
end
