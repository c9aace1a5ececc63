--- Devices: where tensors live and what computes on them.
local ffi = require 'ffi'
local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local handles = require 'moonstill.base.handle'

local M = {}

local out = ffi.new 'ms_device *[1]' -- scratch, read at once

local kind = handles.kind('device', C.ms_device_close, 'close')

--- @class ms_device
local methods = {}

--- Closes the device. Tensors on it keep what they need, so it may be closed first.
function methods:close() kind.free(self) end
methods.free = methods.close

local handle = ffi.metatype('struct { ms_device *p; }', {
  __index = methods,
  __gc = methods.close,
  __tostring = function(self)
    return 'device ' .. (self.p ~= nil and ffi.string(C.ms_device_spec(self.p)) or '(closed)')
  end,
})
kind.type = handle

--- Opens a device.
--- @param spec? string 'cpu' (the default)
--- @return ms_device
function M.open(spec)
  check(C.ms_device_open(check.text('device', 'spec', spec == nil and 'cpu' or spec), out))
  return handle(out[0])
end

--- The core's pointer; an error when the device is closed or is no device.
--- @package
--- @param device ms_device
function M.pointer(device) return kind.pointer(device) end

return M
