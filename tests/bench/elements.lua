--- Operations bound by memory: GB/s of what they must read and write, beside a copy in the same run.
---   luajit tests/bench/elements.lua [threads] [rows] [cols] [seconds per case]
--- Medians; one thread is timed by the processor's clock, which other processes do not move.
local C = require 'moonstill.C'
local ms = require 'moonstill'
local tools = require 'tests.support.tools'

local threads, rows = tonumber(arg[1]) or 2, tonumber(arg[2]) or 2048
local cols, seconds = tonumber(arg[3]) or 1536, tonumber(arg[4]) or 0.3
assert(C.ms_threads_set(threads) == 0)
local clock = threads == 1 and os.clock or C.ms_clock
local device = ms.device.open 'cpu'
local n = rows * cols

local seed = 0
local function tensor(dtype, ...)
  local t = ms.tensor(device, dtype, ...)
  seed = seed + 1
  return t:write(dtype == 'i32' and tools.integers(t:count(), seed, rows)
    or tools.values(t:count(), seed))
end

local function time(f)
  local list = {}
  f()
  local stop = C.ms_clock() + seconds
  repeat
    local start = clock()
    f()
    list[#list + 1] = clock() - start
  until C.ms_clock() > stop and #list >= 5
  table.sort(list)
  return list[math.floor(#list / 2) + 1]
end

local x, y, z = tensor('f32', rows, cols), tensor('f32', rows, cols), tensor('f32', rows, cols)
local u, v = tensor('f32', rows, cols), tensor('f32', rows, cols)
local low, w, rstd = tensor('bf16', rows, cols), tensor('f32', cols), tensor('f32', rows)
local index, dw = tensor('i32', rows), tensor('f32', cols)
local heads = tensor('f32', rows, cols / 64, 64)
local cosine, sine = tensor('f32', rows, 32), ms.tensor(device, rows, 32)
cosine:write((require 'ffi').new('float[?]', rows * 32, 1)) -- turns by nothing, so that values stay
ms.ops.rmsnorm(y, rstd, x, w, 1e-5)
local m, second = ms.tensor(device, rows, cols), ms.tensor(device, rows, cols)

-- name, bytes an element must move, what to run
local cases = {
  { 'copy', 8, function() y:copy(x) end },
  { 'f32 to bf16', 6, function() low:copy(x) end },
  { 'bf16 to f32', 6, function() y:copy(low) end },
  { 'add', 12, function() ms.ops.add(z, x) end },
  { 'rmsnorm', 8, function() ms.ops.rmsnorm(y, rstd, x, w, 1e-5) end },
  { 'rmsnorm_backward', 12, function() ms.ops.rmsnorm_backward(z, dw, y, x, rstd, w) end },
  { 'rope', 8, function() ms.ops.rope(heads, index, cosine, sine, 1) end },
  { 'swiglu', 12, function() ms.ops.swiglu(z, x, y) end },
  { 'swiglu_backward', 20, function() ms.ops.swiglu_backward(u, v, z, x, y) end },
  { 'bias', 8, function() ms.ops.bias(z, w) end },
  { 'bias_db', 4, function() ms.ops.bias_db(dw, y) end },
  { 'embed', 8, function() ms.ops.embed(y, index, x) end },
  { 'embed_dw', 12, function() ms.ops.embed_dw(z, y, index) end },
  { 'gather', 8, function() ms.ops.gather(y, x, index) end },
  { 'sum_squares', 4, function() ms.ops.sum_squares(x) end },
  { 'adamw with bf16', 30, function()
    ms.ops.adamw(y, low, m, second, x, 3, 1e-4, 0.9, 0.99, 1e-8, 0.01, 1)
  end },
}

print(('%d threads, %d x %d, %.1f MB an array'):format(threads, rows, cols, n * 4e-6))
print 'operation                  us     GB/s  of copy'
local copy
for _, c in ipairs(cases) do
  local name, bytes, f = c[1], c[2], c[3]
  local t = time(f)
  local rate = n * bytes / t * 1e-9
  copy = copy or rate
  print(('%-20s %8.0f %8.1f %8.2f'):format(name, t * 1e6, rate, rate / copy))
end
