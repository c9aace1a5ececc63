--- What the specs share: repeatable values, comparison with a stated tolerance, the data beside the
--- repository, temporary folders. Nothing here decides what is right: every spec writes its own
--- expectation from the definition.
local ffi = require 'ffi'

local M = {}

--- The devices a spec runs on. More are named by MS_DEVICES, separated by spaces; one that cannot
--- be opened makes its tests pending.
M.devices = {}
for spec in (os.getenv 'MS_DEVICES' or 'cpu'):gmatch '%S+' do M.devices[#M.devices + 1] = spec end

-- xorshift64*: good enough for test values, the same on every machine, and not the generator that
-- the library uses.
local function generator(seed)
  local x = ffi.new('uint64_t', 88172645463325252ULL) + ffi.cast('uint64_t', seed) * 2654435761ULL
  return function()
    x = bit.bxor(x, bit.rshift(x, 12))
    x = bit.bxor(x, bit.lshift(x, 25))
    x = bit.bxor(x, bit.rshift(x, 27))
    return tonumber(bit.rshift(x * 2685821657736338717ULL, 40)) * 2 ^ -24
  end
end

--- `n` values in [-1, 1), exact in f32, as `float[n]` (0-based).
--- @param n integer
--- @param seed integer
--- @param scale? number multiplies them
function M.values(n, seed, scale)
  local next_value, v = generator(seed), ffi.new('float[?]', n)
  for i = 0, n - 1 do v[i] = (next_value() * 2 - 1) * (scale or 1) end
  return v
end

--- `n` integers in 0 .. below - 1, as `int32_t[n]` (0-based).
function M.integers(n, seed, below)
  local next_value, v = generator(seed), ffi.new('int32_t[?]', n)
  for i = 0, n - 1 do v[i] = math.floor(next_value() * below) end
  return v
end

--- A function that gives integers in 1 .. its argument, the same ones for a seed on every machine.
--- @param seed integer
--- @return fun(below: integer): integer
function M.random(seed)
  local next_value = generator(seed)
  return function(below) return math.floor(next_value() * below) + 1 end
end

--- The distance from 1 to the next number of each type.
M.eps = { f64 = 2 ^ -52, f32 = 2 ^ -23, f16 = 2 ^ -10, bf16 = 2 ^ -7 }

-- First index and number of values: arrays of the FFI start at 0, tables at 1 unless they have a 0.
-- The length of an FFI pointer is not known: nil.
local function span(x)
  if type(x) == 'table' then
    local first = x[0] ~= nil and 0 or 1
    return first, #x - first + 1
  end
  local cell = tostring(ffi.typeof(x)):match '^ctype<(.-) %[.-%]>$'
  return 0, cell and ffi.sizeof(x) / ffi.sizeof(cell) or nil
end

--- Asserts |got - want| <= atol + k eps(dtype) |want| for every element; NaN fails unless both are.
--- `got` and `want` are tables or FFI arrays; the message names the worst element in multiples of
--- its tolerance.
--- @param got any
--- @param want any
--- @param dtype string 'f64', 'f32', 'f16' or 'bf16'
--- @param k? number default 1: grows with the length of a reduction, with a reason beside it
--- @param atol? number default 0
function M.close(got, want, dtype, k, atol)
  local eps = assert(M.eps[dtype], 'tools.close: no such type: ' .. tostring(dtype))
  k, atol = k or 1, atol or 0
  local g0, n = span(got)
  local w0, m = span(want)
  n, m = n or m, m or n
  assert(n and n == m, ('tools.close: %s values, %s expected'):format(tostring(n), tostring(m)))
  local worst, at = 0, nil
  for i = 0, n - 1 do
    local g, w = tonumber(got[g0 + i]), tonumber(want[w0 + i])
    local room = atol + k * eps * math.abs(w)
    local far = math.abs(g - w)
    if not (far <= room) and g ~= w and not (g ~= g and w ~= w) then
      local times = far / room
      if times ~= times then times = math.huge end
      if times >= worst then worst, at = times, i end
    end
  end
  if at then
    local g, w = tonumber(got[g0 + at]), tonumber(want[w0 + at])
    error(('element %d of %d: got %.9g, want %.9g, off by %.3g: %.3g times the tolerance '
      .. '(%s, k = %g, atol = %g)'):format(at, n, g, w, math.abs(g - w), worst, dtype, k, atol), 2)
  end
end

-- Asserts that a message has all of `wanted`: a text or a list of texts, or patterns unless `plain`.
-- `level` is that of the spec's line.
local function expect(message, wanted, plain, level)
  for _, want in ipairs(type(wanted) == 'table' and wanted or { wanted }) do
    if not tostring(message):find(want, 1, plain) then
      error(('"%s" is expected in: %s'):format(want, tostring(message)), level + 1)
    end
  end
end

local function expect_error(wanted, plain, f, ...)
  local ok, raised = pcall(f, ...)
  if ok then
    error(('no error, "%s" was expected'):format(type(wanted) == 'table' and wanted[1] or wanted), 3)
  end
  expect(raised, wanted, plain, 3)
  return raised
end

--- Asserts that a call raises an error whose message matches a pattern, or each pattern of a list.
--- @param pattern string|string[]
--- @param f function
--- @param ... any its arguments
--- @return any raised
function M.refused(pattern, f, ...) return (expect_error(pattern, false, f, ...)) end

--- Asserts that a call raises an error in whose message a text stands, or each text of a list.
--- @param text string|string[]
--- @param f function
--- @param ... any its arguments
--- @return any raised
function M.fails(text, f, ...) return (expect_error(text, true, f, ...)) end

--- Asserts that a text, or each of a list, stands in a message that was not raised: what a program
--- wrote, or the second result of a function.
function M.says(text, message) expect(message, text, true, 2) end

--- A file's content; an error names the file.
function M.read(path)
  local f = assert(io.open(path, 'rb'))
  local text = f:read '*a'
  f:close()
  return text
end

--- Writes `text` to `path` and returns `path`.
function M.write(path, text)
  local f = assert(io.open(path, 'wb'))
  assert(f:write(text))
  assert(f:close())
  return path
end

--- Whether something lies at `path`.
function M.exists(path)
  local f = io.open(path, 'rb')
  if f then f:close() end
  return f ~= nil
end

--- The path of something below ../shared/data, such as 'tokenizers/gpt2'; nil and the reason where
--- it is absent, for `pending`.
function M.shared(path)
  local full = (os.getenv 'MS_SHARED' or '../shared') .. '/data/' .. path
  if M.exists(full) then return full end
  return nil, full .. ' is not on this machine'
end

--- A new empty folder, `in_memory` where there is such a place: for tests that write so often that
--- waiting for a disk is most of their time. `M.remove_folders()` removes all of them; the runner's
--- process does so when it ends.
local folders = {}
function M.folder(in_memory)
  local shm = in_memory and M.run 'test -w /dev/shm' == 0
  local parent = shm and '/dev/shm' or '${TMPDIR:-/tmp}'
  local pipe = assert(io.popen('mktemp -d "' .. parent .. '/moonstill-test.XXXXXX"'))
  local path = pipe:read '*l'
  pipe:close()
  assert(path, 'mktemp gave no folder')
  folders[#folders + 1] = path
  return path
end

function M.remove_folders()
  for _, path in ipairs(folders) do os.execute("rm -rf '" .. path .. "'") end
  folders = {}
end

-- A proxy's finalizer runs when the state closes.
M.guard = newproxy(true)
getmetatable(M.guard).__gc = M.remove_folders

--- Walks an allocation failure through `call`: each must be a Lua error that says so and leave as
--- many objects alive as before, until the call needs no more allocations. A call that comes to its
--- end although an allocation failed has lost something, and one that succeeds must give `want`,
--- whatever failed before it. Returns how many allocations it took.
--- @param call fun(): any what is to be compared with `want`, a string
--- @param want string
--- @param tidies? boolean the call ends with housekeeping, whose failure is a warning and no error
function M.walk_memory(call, want, tidies)
  local C = require 'moonstill.C'
  for n = 1, 1e5 do
    collectgarbage()
    collectgarbage()
    local before = C.ms_test_live()
    C.ms_test_fail_alloc(n)
    local ok, got = pcall(call)
    local failed = C.ms_test_fail_alloc(0) <= 0
    assert(ok ~= failed or (ok and tidies), ('allocation %d: %s'):format(n, failed and 'its failure was passed over'
      or tostring(got)))
    collectgarbage()
    collectgarbage()
    assert(C.ms_test_live() == before, ('allocation %d: %d objects alive, %d before'):format(n,
      tonumber(C.ms_test_live()), tonumber(before)))
    if ok then assert(got == want, ('got %s, want %s'):format(tostring(got), tostring(want))) end
    if not failed then return n - 1 end
    assert(ok or tostring(got):find('no memory', 1, true), ('allocation %d: %s'):format(n, tostring(got)))
  end
  error 'no end of allocations'
end

--- Quotes a word for the shell.
function M.quote(word) return "'" .. tostring(word):gsub("'", "'\\''") .. "'" end

--- Runs a command line; returns its exit status, its stdout and its stderr.
function M.run(command)
  local err = os.tmpname()
  local pipe = assert(io.popen('( ' .. command .. '\n) 2>' .. err .. '; echo "=$?"'))
  local out = pipe:read '*a'
  pipe:close()
  local text, status = out:match '^(.*)=(%d+)\n$'
  local errors = M.read(err)
  os.remove(err)
  return tonumber(status), text, errors
end

--- The executable that was built with the library under test.
function M.program()
  local lib = os.getenv 'MS_LIB' or 'build/libmoonstill.so'
  return (os.getenv 'MS_PROGRAM' or lib:gsub('[^/]*$', '') .. 'moonstill')
end

return M
