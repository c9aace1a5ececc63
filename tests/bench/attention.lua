--- Attention forward and backward: GFLOP/s of the visible half of the scores.
---   luajit tests/bench/attention.lua [threads] [seconds per case]
--- A forward pass counts 2 products of tokens x keys x head_dim, a backward pass 5. Medians, in
--- brackets the best.
local C = require 'moonstill.C'
local ms = require 'moonstill'
local tools = require 'tests.support.tools'

local threads, seconds = tonumber(arg[1]) or 2, tonumber(arg[2]) or 1
assert(C.ms_threads_set(threads) == 0)
local device = ms.device.open 'cpu'

local seed = 0
local function tensor(...)
  local t = ms.tensor(device, ...)
  seed = seed + 1
  return t:write(tools.values(t:count(), seed))
end

-- One thread is timed by the processor's clock, which other processes do not move.
local clock = threads == 1 and os.clock or C.ms_clock

local function rate(work, f)
  local list = {}
  f()
  local stop = C.ms_clock() + seconds
  repeat
    local start = clock()
    f()
    list[#list + 1] = work / (clock() - start) * 1e-9
  until C.ms_clock() > stop and #list >= 5
  table.sort(list)
  return list[math.floor(#list / 2) + 1], list[#list]
end

-- segments x length, heads, kv_heads, head_dim, window
local cases = { { 1, 2048, 9, 3, 64, 0 }, { 50, 160, 9, 3, 64, 0 }, { 1, 2048, 15, 5, 64, 0 },
                { 4, 1024, 14, 2, 64, 0 }, { 1, 2048, 16, 8, 128, 0 }, { 1, 8192, 4, 4, 64, 0 },
                { 1, 4096, 8, 2, 64, 512 }, { 8, 256, 8, 8, 80, 0 } }

print(('%d threads'):format(threads))
print 'segments x length, heads/kv x dim, window      forward        backward'
for _, c in ipairs(cases) do
  local segments, length, heads, kv_heads, dim, window = unpack(c)
  local tokens, start = segments * length, {}
  for i = 0, segments do start[i + 1] = i * length end
  local q, k = tensor(tokens, heads, dim), tensor(tokens, kv_heads, dim)
  local v = tensor(tokens, kv_heads, dim)
  local y, lse = tensor(tokens, heads, dim), tensor(tokens, heads)
  local dq, dk, dv, dy = tensor(tokens, heads, dim), tensor(tokens, kv_heads, dim),
    tensor(tokens, kv_heads, dim), tensor(tokens, heads, dim)
  local starts = ms.tensor(device, 'i32', #start):write(start)
  local pairs_ = 0
  for t = 1, length do pairs_ = pairs_ + (window > 0 and math.min(t, window) or t) end
  local product, scale = 2 * segments * heads * dim * pairs_, dim ^ -0.5
  local f, f_best = rate(2 * product, function()
    ms.ops.attention(y, lse, q, k, v, starts, window, scale)
  end)
  local b, b_best = rate(5 * product, function()
    ms.ops.attention_backward(dq, dk, dv, dy, y, lse, q, k, v, starts, window, scale)
  end)
  print(('%-42s %6.0f (%4.0f)  %6.0f (%4.0f)'):format(('%d x %d, %d/%d x %d, %d'):format(segments,
    length, heads, kv_heads, dim, window), f, f_best, b, b_best))
end
