--- Files read from their beginning to their end, a piece at a time. What gzip or zstd compressed is
--- decompressed on the way; a file's first bytes tell, not its name.

local ffi = require 'ffi'
local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local handles = require 'moonstill.base.handle'

local M = {}

local kind = handles.kind('stream', 'ms_stream', C.ms_stream_close, { verb = 'close' })
local out = ffi.new 'ms_stream *[1]'
local count = ffi.new 'int64_t[1]'
local room, buffer = 0, nil -- where a piece is before it is a string

--- Opens a file.
--- @param path string
--- @return ms_stream
function M.open(path)
  check.file(C.ms_stream_open(check.path('stream', path), out))
  return kind.new(out[0])
end

--- The next piece, of up to `bytes`: what is at hand. nil at the end.
--- @param bytes integer
--- @return string?
function kind.methods:read(bytes)
  check.integer('stream', 'bytes', bytes, 1, 2 ^ 30)
  if bytes > room then room, buffer = bytes, ffi.new('char[?]', bytes) end
  check.file(C.ms_stream_read(kind.pointer(self), buffer, bytes, count))
  local n = tonumber(count[0])
  return n > 0 and ffi.string(buffer, n) or nil
end

--- What it is compressed with: "gzip", "zstd", or nil.
--- @return string?
function kind.methods:compression()
  local name = ffi.string(C.ms_stream_kind(kind.pointer(self)))
  return name ~= '' and name or nil
end

--- Closes the file. A second call does nothing; any other use is an error.
kind.methods.close = kind.methods.free

return M
