--- `moonstill -n N ...`: the same command line as N ranks, by Open MPI's mpirun and with the
--- settings that such a start needs; and `moonstill ranks`, which says who is where.

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
local usage = require 'moonstill.prompt.usage'

ffi.cdef [[
int setenv(const char *name, const char *value, int overwrite);
int getpid(void);
]]

local M = {}

local ABOUT = [[
moonstill -n N [--hostfile FILE] [--logs FOLDER] RECIPE.lua [CONFIG.yaml]
  [key=value ...]

Runs a recipe as N ranks: each takes its part of every step, and the first one
prints and writes. Those of a machine share its cores unless OMP_NUM_THREADS
gives each rank its threads. --hostfile: they run on the machines that the file
names, a line each ("node1 slots=4"), which ssh reaches without a password and
which have this program, the models, the data and the output in the same
places; without it, on this one. --logs: what the other ranks would print goes to
FOLDER/rank-1.log and so on; log=all, a key of every recipe, keeps it beside the
run. The first one gets the input, unless that is a terminal. Ctrl-C saves, as it
does without ranks.

Open MPI must be there (Debian: openmpi-bin).
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
local ALONE = { chat = true, generate = true, data = true, eval = true, inspect = true,
  plan = true }

-- A path that an option gives, which must be there.
local function path_of(option, path, kind, what)
  if not path then exit(2, ('%s: a %s is missing'):format(option, what)) end
  if option == '--logs' then C.ms_dir_make(path) end
  if C.ms_path_kind(path) ~= kind then exit(2, ('%s: %s is no %s'):format(option, path, what)) end
  return paths.real(path)
end

-- N, the file of machines if there is one, and the place of the word after these.
local function read(args)
  local n = tonumber(args[2])
  if not n or n < 1 or n > MOST or n % 1 ~= 0 then
    exit(2, ('-n: a number of ranks from 1 to %d, not %s; moonstill -n 2 RECIPE.lua'):format(MOST,
      args[2] and ("'%s'"):format(args[2]) or 'nothing'))
  end
  local first, hosts = 3, nil
  while args[first] == '--logs' or args[first] == '--hostfile' do
    if args[first] == '--logs' then
      ffi.C.setenv('MS_RANK_LOGS', path_of('--logs', args[first + 1], 2, 'folder'), 1)
    else
      hosts = path_of('--hostfile', args[first + 1], 1, 'file')
    end
    first = first + 2
  end
  return n, hosts, first
end

-- What each machine and terminal has of its own.
local OWN = { PATH = true, HOME = true, TERM = true, COLUMNS = true, NO_COLOR = true }

-- Each rank keeps all cores that it may use, for its threads. Other machines have the environment
-- that they are told of.
local function command_of(mpirun, n, hosts)
  local words = { mpirun, '-q', '-n', tostring(n), '--oversubscribe', '--bind-to', 'none', '--mca',
    'odls_base_sigkill_timeout', '1' }
  local function add(...)
    for i = 1, select('#', ...) do words[#words + 1] = (select(i, ...)) end
  end
  if hosts then add('--hostfile', hosts) end
  for _, row in ipairs(usage.environment) do
    if not OWN[row[1]] and os.getenv(row[1]) then add('-x', row[1]) end
  end
  add(paths.real '/proc/self/exe')
  return words
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
  local n, hosts, first = read(args)
  if not args[first] then exit(2, '-n: a recipe is missing; moonstill -n 2 RECIPE.lua') end
  if ALONE[args[first]] then
    exit(2, ('-n: moonstill %s works in one process: without -n'):format(args[first]))
  end
  if C.ms_group_number() >= 0 then
    exit(2, '-n: this is a rank already; mpirun alone gives the number of ranks')
  end
  local mpirun = find_mpirun()
  if not mpirun then
    exit(1, '-n: there is no mpirun here; install Open MPI (Debian: openmpi-bin)')
  end
  for _, name in ipairs { 'OMPI_ALLOW_RUN_AS_ROOT', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM' } do
    ffi.C.setenv(name, '1', 0)
  end
  local words = command_of(mpirun, n, hosts)
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
