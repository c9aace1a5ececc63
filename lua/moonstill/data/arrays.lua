--- Growing arrays outside LuaJIT's memory, which ends at 1 or 2 GB on some machines.

local ffi = require 'ffi'

local M = {}

ffi.cdef 'void *realloc(void *p, size_t bytes); void free(void *p);'

--- @class ms_array
--- @package
--- @field p ffi.cdata* the elements, from 0; another pointer after each `reserve` or `add`
--- @field count integer
--- @field size integer bytes of an element
local methods = {}
local class = { __index = methods }

--- Makes room for `n` more elements.
--- @param n integer
function methods:reserve(n)
  if self.count + n <= self.room then return end
  local room = math.max(1024, self.count + n, math.floor(1.5 * self.room))
  local p = ffi.C.realloc(self.block, room * self.size)
  if p == nil then error(('dataset: no memory for %d bytes'):format(room * self.size), 0) end
  if self.block then ffi.gc(self.block, nil) end
  self.block, self.room = ffi.gc(p, ffi.C.free), room
  self.p = ffi.cast(self.pointer, p)
end

--- Appends one element.
--- @param value any
function methods:add(value)
  self:reserve(1)
  self.p[self.count] = value
  self.count = self.count + 1
end

--- How many bytes its elements have.
--- @return integer
function methods:bytes() return self.count * self.size end

--- An empty array.
--- @param ctype string of an element
--- @return ms_array
function M.new(ctype)
  local a = setmetatable({ count = 0, room = 0, size = ffi.sizeof(ctype),
    pointer = ffi.typeof(ctype .. ' *') }, class)
  a:reserve(1)
  return a
end

--- An array over memory that another object owns, which is kept with it. It cannot grow.
--- @param data ffi.cdata*
--- @param bytes integer
--- @param ctype string
--- @param owner any
--- @return ms_array
function M.over(data, bytes, ctype, owner)
  local count = math.floor(bytes / ffi.sizeof(ctype))
  return setmetatable({ count = count, room = count, size = ffi.sizeof(ctype), owner = owner,
    p = ffi.cast('const ' .. ctype .. ' *', data) }, class)
end

return M
