--- Matrix products against a library's threaded sgemm, interleaved in one run.
--   luajit tests/bench/gemm.lua [threads] [seconds per shape] [pattern of shapes] [library]
-- The library is oneDNN (Debian: libdnnl2), or openblas (libopenblas0-openmp; it reads
-- OPENBLAS_CORETYPE and OPENBLAS_NUM_THREADS when it is loaded). Columns: our GFLOP/s, the library's
-- (medians; in brackets the best), and the median of the ratios of neighbouring runs. On a busy
-- machine only the ratios mean something. MS_CPU caps our instruction set, ONEDNN_MAX_CPU_ISA its.
local ffi = require 'ffi'
local C = require 'moonstill.C'
local ms = require 'moonstill'
local tools = require 'tests.support.tools'
local pointer = function(x) return require 'moonstill.base.handle'.pointer('tensor', x) end

local threads, seconds = tonumber(arg[1]) or 2, tonumber(arg[2]) or 1
local only, library = arg[3], arg[4] or 'dnnl'
assert(C.ms_threads_set(threads) == 0)

ffi.cdef [[
int dnnl_sgemm(char ta, char tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
  int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);
void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda,
  const float *b, int ldb, float beta, float *c, int ldc);
int posix_memalign(void **p, size_t align, size_t bytes);
]]
local loaded = ffi.load(library)

-- y = a b in row-major form, of m x n and k; 'T' where an operand is stored transposed.
local function peer(ta, tb, m, n, k, a, lda, b, ldb, y)
  if library == 'dnnl' then
    loaded.dnnl_sgemm(ta:byte(), tb:byte(), m, n, k, 1, a, lda, b, ldb, 0, y, n)
  else
    local code = { N = 111, T = 112 }
    loaded.cblas_sgemm(101, code[ta], code[tb], m, n, k, 1, a, lda, b, ldb, 0, y, n)
  end
end
local device = ms.device.open 'cpu'

local function buffer(n)
  local p = ffi.new 'void *[1]'
  assert(ffi.C.posix_memalign(p, 4096, n * 4) == 0)
  local v = ffi.cast('float *', p[0])
  for i = 0, n - 1 do v[i] = (i * 7 % 13 - 6) / 6 end
  return v
end

-- Repeats a few values: making millions of random ones would take longer than the products.
local function tensor(dtype, rows, cols)
  local n, few = rows * cols, tools.values(8191, 1)
  local v = ffi.new('float[?]', n)
  for i = 0, n - 1, 8191 do ffi.copy(v + i, few, 4 * math.min(8191, n - i)) end
  local t = ms.tensor(device, 'f32', rows, cols):write(v)
  return dtype == 'f32' and t or ms.tensor(device, dtype, rows, cols):copy(t)
end

local function median(list)
  table.sort(list)
  return list[math.floor(#list / 2) + 1]
end

-- One thread is timed by the processor's clock, which other processes do not move.
local clock = threads == 1 and os.clock or C.ms_clock

local function timed(f)
  local start = clock()
  f()
  return clock() - start
end

-- Runs ours and theirs in turn for `seconds`; small products several times, for the clock's sake.
local function compare(work, once, theirs_once)
  local times = math.ceil(2e7 / work)
  local function ours() for _ = 1, times do once() end end
  local function theirs() for _ = 1, times do theirs_once() end end
  local a, b, ratio = {}, {}, {}
  work = work * times
  for _ = 1, 3 do ours() theirs() end
  local stop = C.ms_clock() + seconds
  repeat
    local x, y = timed(ours), timed(theirs)
    a[#a + 1], b[#b + 1], ratio[#ratio + 1] = work / x * 1e-9, work / y * 1e-9, y / x
  until C.ms_clock() > stop and #a >= 5
  local ma, mb, mr = median(a), median(b), median(ratio)
  return ma, a[#a], mb, b[#b], mr
end

local logs, smallest = {}, math.huge
local function report(name, ...)
  local a, a_best, b, b_best, ratio = ...
  print(('%-26s %6.0f (%4.0f) %6.0f (%4.0f)  %5.2f  %5.2f'):format(name, a, a_best, b, b_best,
    ratio, a_best / b_best))
  io.stdout:flush()
  logs[#logs + 1] = math.log(ratio)
  smallest = math.min(smallest, ratio)
end

-- The C function itself: the library is called so, too.
local function ours(f, ...)
  local tensors = { ... }
  local y, a, b = pointer(tensors[1]), pointer(tensors[2]), pointer(tensors[3])
  return function() return tensors, f(y, a, b, 0) end
end

local forms = {
  F = function(rows, inner, out, dtype)
    local x, w = tensor('f32', rows, inner), tensor(dtype, out, inner)
    local y = tensor('f32', rows, out)
    local a, b, c = buffer(rows * inner), buffer(out * inner), buffer(rows * out)
    return ours(C.ms_linear, y, x, w), function()
      peer('N', 'T', rows, out, inner, a, inner, b, inner, c)
    end, { a, b, c }
  end,
  D = function(rows, inner, out, dtype)
    local dy, w = tensor('f32', rows, out), tensor(dtype, out, inner)
    local dx = tensor('f32', rows, inner)
    local a, b, c = buffer(rows * out), buffer(out * inner), buffer(rows * inner)
    return ours(C.ms_linear_dx, dx, dy, w), function()
      peer('N', 'N', rows, inner, out, a, out, b, inner, c)
    end, { a, b, c }
  end,
  W = function(rows, inner, out)
    local dy, x = tensor('f32', rows, out), tensor('f32', rows, inner)
    local dw = tensor('f32', out, inner)
    local a, b, c = buffer(rows * out), buffer(rows * inner), buffer(out * inner)
    return ours(C.ms_linear_dw, dw, dy, x), function()
      peer('T', 'N', out, inner, rows, a, out, b, inner, c)
    end, { a, b, c }
  end,
}
ffi.cdef 'void free(void *p);'

-- tokens x in x out, as in the tables of the machine's limits.
local shapes = { { 512, 576, 1536 }, { 512, 896, 896 }, { 512, 896, 4864 }, { 512, 1536, 8960 },
                 { 512, 2048, 8192 }, { 2048, 576, 1536 }, { 2048, 896, 4864 }, { 1, 64, 256 },
                 { 1, 896, 4864 }, { 8, 896, 4864 }, { 16, 64, 64 }, { 64, 64, 64 }, { 64, 64, 256 },
                 { 64, 256, 256 }, { 128, 128, 128 }, { 128, 128, 512 }, { 256, 256, 1024 },
                 { 512, 64, 512 } }

print(('%d threads, %s; tokens x in x out'):format(threads, ffi.string(C.ms_cpu_isa())))
print '                                ours         library    ratio  of bests'
for _, dtype in ipairs { 'f32', 'bf16' } do
  for _, s in ipairs(shapes) do
    for _, form in ipairs { 'F', 'D', 'W' } do
      local name = ('%dx%dx%d %s %s'):format(s[1], s[2], s[3], form, dtype)
      if (dtype == 'f32' or form ~= 'W') and (not only or name:find(only)) then
        local mine, theirs, hold = forms[form](s[1], s[2], s[3], dtype)
        report(name, compare(2 * s[1] * s[2] * s[3], mine, theirs))
        for _, p in ipairs(hold) do ffi.C.free(p) end
        collectgarbage()
      end
    end
  end
end
local sum = 0
for _, x in ipairs(logs) do sum = sum + x end
print(('geometric mean of ratios %.2f, smallest %.2f'):format(math.exp(sum / #logs), smallest))
