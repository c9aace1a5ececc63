--- Runs a recipe, and ends it as Ctrl-C would after one of its steps: RECIPE STEP WORD...
local ms = require 'moonstill'
local C = require 'moonstill.C'

local recipe, last = arg[1], tonumber(arg[2])
local words = { [0] = recipe, unpack(arg, 3) }

local open = ms.run.open
function ms.run.open(...)
  local run = open(...)
  local report = run.report
  function run.report(self, step)
    report(self, step)
    if step.number == last then C.ms_interrupt(2) end
  end
  return run
end

_G.arg = words
dofile(recipe)
