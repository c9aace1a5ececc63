--- The core library, declared and loaded once. Every other module gets it here.
--- Inside the executable the symbols are the process's own; under a stock luajit the shared
--- library is opened: MS_LIB names it, otherwise the loader's path is searched.
local ffi = require 'ffi'

local ABI = 11 -- a literal: two halves that were built apart must notice
ffi.cdef 'const char *ms_cdef(void); int ms_abi(void);'
local embedded = pcall(function() return ffi.C.ms_abi end)
local C = embedded and ffi.C or ffi.load(os.getenv 'MS_LIB' or 'moonstill')
assert(C.ms_abi() == ABI, 'moonstill: library and Lua modules differ')
ffi.cdef(ffi.string(C.ms_cdef()))
return C
