--- Texts compressed with gzip and zstd, by the libraries themselves.
local ffi = require 'ffi'
local bit = require 'bit'

local M = {}

ffi.cdef [[
  int compress2(uint8_t *to, unsigned long *bytes, const uint8_t *from, unsigned long n, int level);
  unsigned long compressBound(unsigned long n);
  unsigned long crc32(unsigned long crc, const uint8_t *from, unsigned n);
  size_t ZSTD_compress(void *to, size_t room, const void *from, size_t n, int level);
  size_t ZSTD_compressBound(size_t n);
]]
local zlib, zstd = ffi.load 'libz.so.1', ffi.load 'libzstd.so.1'

local function word(x)
  local parts = {}
  for i = 0, 3 do parts[i + 1] = string.char(bit.band(bit.rshift(x, 8 * i), 255)) end
  return table.concat(parts)
end

--- One member of a gzip file.
--- @param text string
--- @return string
function M.gzip(text)
  local bytes = ffi.new('unsigned long[1]', zlib.compressBound(#text))
  local to = ffi.new('uint8_t[?]', bytes[0])
  assert(zlib.compress2(to, bytes, text, #text, 6) == 0)
  local body = ffi.string(to, bytes[0]):sub(3, -5) -- without the beginning and the sum of zlib's own format
  return '\31\139\8\0\0\0\0\0\0\255' .. body .. word(tonumber(zlib.crc32(0, text, #text))) .. word(#text)
end

--- One frame of a zstd file.
--- @param text string
--- @return string
function M.zstd(text)
  local room = zstd.ZSTD_compressBound(#text)
  local to = ffi.new('uint8_t[?]', room)
  return ffi.string(to, zstd.ZSTD_compress(to, room, text, #text, 3))
end

--- A frame that readers of zstd pass over.
--- @param text string
--- @return string
function M.skipped(text) return '\80\42\77\24' .. word(#text) .. text end

--- Both ways, by the endings of names.
M.ways = { { 'gz', M.gzip, 'gzip' }, { 'zst', M.zstd, 'zstd' } }

return M
