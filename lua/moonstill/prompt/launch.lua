--- `moonstill -n N ...`: the same command line as N ranks on this machine, by Open MPI's mpirun and
--- with the settings that such a start needs; and `moonstill ranks`, which says who is where.

local ffi = require 'ffi'
local C = require 'moonstill.C'
local columns = require 'moonstill.base.columns'
local command = require 'moonstill.prompt.command'
local exit = require 'moonstill.base.exit'
local fail = require 'moonstill.base.fail'
local grids = require 'moonstill.base.grid'
local paths = require 'moonstill.base.paths'
local ranks = require 'moonstill.base.ranks'
local screen = require 'moonstill.base.screen'

ffi.cdef [[
int setenv(const char *name, const char *value, int overwrite);
int getpid(void);
]]

local M = {}

local ABOUT = [[
moonstill -n N [--logs FOLDER] RECIPE.lua [CONFIG.yaml] [key=value ...]

Runs a recipe as N ranks on this machine: each takes its part of every step, and
the first one prints and writes. They share the cores unless OMP_NUM_THREADS
gives each rank its threads. --logs: what the other ranks would print goes to
FOLDER/rank-1.log and so on; log=all, a key of every recipe, keeps it beside the
run. The first one gets the input, unless that is a terminal. Ctrl-C saves, as it
does without ranks.

Open MPI must be there (Debian: openmpi-bin). Ranks on several machines are
started by `mpirun` itself: mpirun -np 8 --hostfile HOSTS moonstill RECIPE.lua
]]

local MOST = 4096

-- Open MPI's mpirun, which has a name of its own too, or nil.
local function find_mpirun()
  for _, name in ipairs { 'orterun', 'mpirun' } do
    for folder in (os.getenv 'PATH' or ''):gmatch '[^:]+' do
      if C.ms_path_kind(folder .. '/' .. name) == 1 then return name end
    end
  end
  return nil
end

-- Commands of one process, which write files or ask a terminal: several would do so side by side.
local ALONE = { chat = true, generate = true, data = true, eval = true, inspect = true }

-- N, and the place of the word after it and its options.
local function read(args)
  local n = tonumber(args[2])
  if not n or n < 1 or n > MOST or n % 1 ~= 0 then
    exit(2, ('-n: a number of ranks from 1 to %d, not %s; moonstill -n 2 RECIPE.lua'):format(MOST,
      args[2] and ("'%s'"):format(args[2]) or 'nothing'))
  end
  if args[3] ~= '--logs' then return n, 3 end
  if not args[4] then exit(2, '--logs: a folder is missing') end
  C.ms_dir_make(args[4])
  if C.ms_path_kind(args[4]) ~= 2 then exit(2, ('--logs: %s is no folder'):format(args[4])) end
  ffi.C.setenv('MS_RANK_LOGS', paths.real(args[4]), 1)
  return n, 5
end

-- Each rank keeps all cores that it may use, for its threads.
local function command_of(mpirun, n)
  return { mpirun, '-q', '-n', tostring(n), '--oversubscribe', '--bind-to', 'none', '--mca',
    'odls_base_sigkill_timeout', '1', paths.real '/proc/self/exe' }
end

--- Starts ranks and waits for them.
--- @param prompt table see core/launch.h
--- @param args string[] the command line
--- @return integer the exit status
function M.run(prompt, args)
  if not args[2] or args[2] == '--help' or args[2] == '-h' then
    io.write(ABOUT)
    return args[2] and 0 or 2
  end
  local n, first = read(args)
  if not args[first] then exit(2, '-n: a recipe is missing; moonstill -n 2 RECIPE.lua') end
  if ALONE[args[first]] then
    exit(2, ('-n: moonstill %s works in one process: without -n'):format(args[first]))
  end
  if os.getenv 'OMPI_COMM_WORLD_SIZE' then
    exit(2, '-n: this is a rank already; mpirun alone gives the number of ranks')
  end
  local mpirun = find_mpirun()
  if not mpirun then
    exit(1, '-n: there is no mpirun here; install Open MPI (Debian: openmpi-bin)')
  end
  for _, name in ipairs { 'OMPI_ALLOW_RUN_AS_ROOT', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM' } do
    ffi.C.setenv(name, '1', 0)
  end
  local words = command_of(mpirun, n)
  for i = first, #args do words[#words + 1] = args[i] end
  local status, signal = prompt.run_command(words)
  return signal ~= 0 and status ~= 0 and 128 + signal or status
end

--- The command `ranks`.
M.command = { name = 'ranks', usage = '[options]', words = { 0, 0 }, options = grids.options,
  about = [[
Says who is where: the machine, the process and the threads of each rank, and its place in a grid,
which the options lay out as a recipe's keys do (--tp 2 is grid.tp=2): the models are numbered by
dp, the parts of each by tp.

  moonstill -n 4 ranks --tp 2]] }

local HEADS = { { head = 'rank', align = 'right' }, { head = 'dp', align = 'right' },
  { head = 'tp', align = 'right' }, { head = 'machine' }, { head = 'process', align = 'right' },
  { head = 'threads', align = 'right' } }

--- Prints a line for each rank.
--- @param args string[] the command line, whose second word is the first behind "ranks"
--- @return integer the exit status
function M.list(args)
  local words, given = command.read(M.command, args, 2)
  if not words then return 0 end
  local ok, grid = fail.pcall(grids.open, given)
  if not ok then command.refuse(M.command, '%s', tostring(grid)) end
  local world, places, rows = grid.world, {}, {}
  for _, place in ipairs(grid:places()) do places[place.rank] = place end
  local mine = ('%s %d %d'):format(ranks.host(), ffi.C.getpid(), C.ms_threads_get())
  for rank = 0, world.size - 1 do
    local name, process, threads = world:from(rank, mine):match '^(%S+) (%d+) (%d+)$'
    local at = places[rank] or { dp = '-', tp = '-' }
    rows[#rows + 1] = { rank, at.dp, at.tp, name, process, threads }
  end
  if not world.prints then return 0 end
  print(grid)
  for _, line in ipairs(columns.table(HEADS, rows, screen.columns(1))) do print(line) end
  return 0
end

return M
