--- Devices: where tensors live and what computes on them.
local ffi = require 'ffi'
local C = require 'moonstill.C'
local callable = require 'moonstill.base.callable'
local check = require 'moonstill.base.check'
local handles = require 'moonstill.base.handle'

local M = {}

local out = ffi.new 'ms_device *[1]' -- scratch, read at once

--- A device that is open. `close` gives it back; tensors on it keep what they need.
--- @class ms_device
local device = handles.kind('device', 'ms_device', C.ms_device_close, { verb = 'close' })
local methods = device.methods

--- Closes the device. Tensors on it keep what they need, so it may be closed first.
function methods:close() methods.free(self) end

function device.text(self) return 'device ' .. ffi.string(C.ms_device_spec(self.p)) end

--- Opens a device. Wherever one is taken its text may be given as well: `ms.tensor("cpu", 2, 3)`.
--- @param spec? string 'cpu' (the default), the only one there is
--- @return ms_device
function M.open(spec)
  check(C.ms_device_open(check.text('device', 'spec', spec == nil and 'cpu' or spec), out))
  return device.new(out[0])
end

--- Calls f(device, ...) with the core's pointer of a device, which may be given by its text; what f
--- makes holds the device. Returns what f returns.
--- @package
--- @param dev ms_device|string
--- @param f fun(p: ffi.cdata*, ...): any
--- @param ... any
--- @return any
function M.on(dev, f, ...)
  if type(dev) ~= 'string' then return f(device.pointer(dev), ...) end
  local opened = M.open(dev)
  local ok, result = pcall(f, opened.p, ...)
  opened:close()
  if not ok then error(result, 0) end
  return result
end

return callable(M, 'open')
