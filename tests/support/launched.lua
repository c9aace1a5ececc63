--- moonstill as several ranks, for specs: with what is compared before each call, and threads that
--- leave the machine's few cores to all of them.
local tools = require 'tests.support.tools'

local M = {}

local program = tools.program()

M.program = program

--- Why no ranks can be started here; nil where they can.
M.missing = tools.run 'command -v orterun || command -v mpirun' ~= 0 and 'no mpirun here'
  or not tools.exists(program:gsub('[^/]*$', '') .. 'moonstill-mpi.so') and 'built without Open MPI'
  or os.getenv 'MS_SANITIZED' and 'the sanitizers make each rank slow' or nil

--- What stands before `moonstill` in a command line.
M.environment = 'MS_GROUP_CHECK=1 OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1 LUA_PATH=' .. tools.quote(package.path)

--- Runs moonstill with words.
--- @return integer status
--- @return string what it printed
--- @return string errors
function M.run(...)
  local words = { M.environment, program }
  for i = 1, select('#', ...) do words[i + 2] = tools.quote((select(i, ...))) end
  return tools.run('timeout -k 5 120 env ' .. table.concat(words, ' '))
end

return M
