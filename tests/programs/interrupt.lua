-- Runs a recipe and sends this process a signal in one step of one of its runs:
--   moonstill tests/programs/interrupt.lua OUTPUT STEP SIGNAL RECIPE [arguments of the recipe]
-- OUTPUT is the last word of the run's output folder.
local ffi = require 'ffi'
local ms = require 'moonstill'

ffi.cdef 'int kill(int pid, int signal); int getpid(void);'

local output, step, signal, recipe = arg[1], tonumber(arg[2]), tonumber(arg[3]), arg[4]
local rest = { [0] = recipe }
for i = 5, #arg do rest[i - 4] = arg[i] end
rawset(_G, 'arg', rest)

local open = ms.run.open
ms.run.open = function(cfg, options)
  local lr = options.schedules.lr
  if cfg.output:match '[^/]*$' == output then
    options.schedules.lr = function(state)
      if state.step == step then ffi.C.kill(ffi.C.getpid(), signal) end
      return lr(state)
    end
  end
  return open(cfg, options)
end

dofile(recipe)
