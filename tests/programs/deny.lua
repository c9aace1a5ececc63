--- Runs a command that may not read other processes' memory, as in many containers:
---   luajit tests/programs/deny.lua COMMAND ...   (x86-64)
local ffi = require 'ffi'

ffi.cdef [[
typedef struct { uint16_t code; uint8_t jt, jf; uint32_t k; } filter;
typedef struct { unsigned short length; filter *filters; } program;
int prctl(int option, ...);
int execvp(const char *file, const char *const *argv);
]]

local LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06 -- of the number of a call, which is its first field
local READ, WRITE = 310, 311                 -- process_vm_readv, process_vm_writev
local ALLOW, NOT_PERMITTED = 0x7fff0000, 0x00050001

local filters = ffi.new('filter[5]', { { LOAD, 0, 0, 0 }, { EQUAL, 1, 0, READ }, { EQUAL, 0, 1, WRITE },
  { RETURN, 0, 0, NOT_PERMITTED }, { RETURN, 0, 0, ALLOW } })
local program = ffi.new('program', 5, filters)
local function number(x) return ffi.cast('unsigned long', x) end
assert(ffi.C.prctl(38, number(1), number(0), number(0), number(0)) == 0) -- no new privileges
assert(ffi.C.prctl(22, number(2), program) == 0)                         -- seccomp

local words = ffi.new('const char *[?]', #arg + 1) -- the last one is NULL
for i = 1, #arg do words[i - 1] = arg[i] end
ffi.C.execvp(arg[1], words)
error('cannot start ' .. arg[1])
