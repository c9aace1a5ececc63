--- What the kernel specs share: a block per device, tensors of test values.
local ffi = require 'ffi'
local ms = require 'moonstill'
local tools = require 'tests.support.tools'

local M = {}

--- describe(name on device) for every device; `body(case, device)` adds tests by `case(name, f)`,
--- where `f(make)` gets tensors by make(dtype, values or nil, ...shape), freed when it ends.
function M.on_devices(name, body)
  local spec_file = getfenv(2) -- Busted's words are there, not in the globals
  local describe, it, pending = spec_file.describe, spec_file.it, spec_file.pending
  for _, spec in ipairs(tools.devices) do
    local ok, device = pcall(ms.device.open, spec)
    describe(name .. ' on ' .. spec, function()
      local function case(title, f)
        if not ok then return pending(title, device) end
        it(title, function()
          ms.scope(function(own)
            f(function(dtype, values, ...)
              local t = own(ms.tensor(device, dtype, ...))
              if values then t:write(values) end
              return t
            end)
          end)
        end)
      end
      body(case, device)
    end)
  end
end

--- A tensor's content as `double[n]`: for bf16 weights, what the kernel sees after rounding.
function M.doubles(t) return t:read(ffi.new('double[?]', t:count())) end

--- A tensor's bytes as a string, to compare bit for bit.
function M.bits(t)
  local cells = { f32 = 'float[?]', i32 = 'int32_t[?]' }
  local v = t:read(ffi.new(cells[t:dtype()] or 'double[?]', t:count()))
  return ffi.string(v, ffi.sizeof(v))
end

return M
