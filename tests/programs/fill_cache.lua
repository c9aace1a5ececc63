-- Opens a data set with a cache, as a process of its own: fill_cache.lua PATH TOKENIZER CACHE [DEATH]
-- prints its fingerprint and where its samples are. At row DEATH the process kills itself.
local ffi = require 'ffi'
local ms = require 'moonstill'

ffi.cdef 'int getpid(void); int kill(int pid, int signal);'
require('moonstill.data.samples').chunk = 64

local death, row = tonumber(arg[4]), 0
local data = ms.dataset.open(arg[1], ms.chat.open(arg[2]), { cache = arg[3], map = death and function(r)
  row = row + 1
  if row == death then ffi.C.kill(ffi.C.getpid(), 9) end
  return r
end or nil })
print(data:fingerprint(), data.samples.path or 'memory')
