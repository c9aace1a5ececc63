--- What the command line may say and what is around it: commands, exit statuses, environment
--- variables, each with its meaning. `moonstill --help` prints them; `help "MS_CPU"` and the page
--- of reference ask for them.

local layout = require 'moonstill.base.layout'
local screen = require 'moonstill.base.screen'

local M = {}

--- What may stand behind `moonstill`, and what it does.
M.commands = {
  { 'RECIPE.lua [CONFIG.yaml] [key=value ...]', 'run a recipe; its own --help lists its keys' },
  { '-n N RECIPE.lua ...', 'run a recipe as N ranks' },
  { '', 'a Lua prompt; help() there' },
  { '-e CODE [ARGUMENT ...]', 'run Lua code, with `ms` at hand' },
  { 'chat FOLDER [options]', 'talk to a model' },
  { 'generate FOLDER --prompts FILE -o FILE', "a model's answers to many prompts, as data" },
  { 'data show CONFIG.yaml|FILE [key=value ...]', 'samples as they are learnt, and their lengths' },
  { 'eval STUDENT .. DATA [teacher=FOLDER]', 'loss, KL, agreement and exact answers of models' },
  { 'inspect FOLDER [--weights]', 'what a model folder holds' },
  { 'plan [RECIPE.lua] [CONFIG.yaml] [ranks=N] ...', 'what teacher and student send, and when' },
  { 'ranks [options]', 'the machine and the process of each rank, and its place in a grid' },
  { '--version', 'this build and its libraries' },
  { '--help', 'this text' },
}

--- The modules of `prompt/` that are commands, in this order; each has its `command`.
M.modules = { 'talk', 'answers', 'show', 'evaluate', 'inspect', 'plan', 'launch' }

M.statuses = {
  { '0', 'done' },
  { '1', 'an error ended it' },
  { '2', 'a wrong command line or configuration' },
  { '128 + N', 'ended by signal N (130: Ctrl-C); a run has saved its last step' },
}

M.environment = {
  { 'MS_CPU', 'avx512, avx2 or portable: the highest instruction set that is used' },
  { 'OMP_NUM_THREADS', 'threads; results do not depend on their number' },
  { 'MS_TRACE', '1: errors have a traceback, and say where in the core they arose' },
  { 'MS_LOG', 'info: the core says what it does (files, memory, kernels); none: it leaves out '
    .. 'its warnings too' },
  { 'MS_GROUP', 'self: a process alone, though it was launched as a rank; mpi: a rank of MPI' },
  { 'MS_GROUP_TIMEOUT', 'seconds that a rank waits for one that does nothing; 600 without it' },
  { 'MS_GROUP_CHECK', '1: what ranks call is compared before each call' },
  { 'MS_RANK_LOGS', 'folder for what ranks but the first print; -n N --logs FOLDER sets it' },
  { 'MS_MPI_LIB', 'path of moonstill-mpi.so; beside the program without it' },
  { 'PATH', 'where mpirun is looked for' },
  { 'MS_LIB', 'under a stock LuaJIT: the path of libmoonstill.so' },
  { 'NO_COLOR', '1: no colours' },
  { 'TERM', 'dumb: no colours, and nothing is written over' },
  { 'COLUMNS', 'how wide lines may be where there is no terminal; 80 without it' },
  { 'XDG_STATE_HOME', "where the prompt's history is kept; the home folder without it" },
  { 'XDG_CACHE_HOME', 'where tokenised data sets are kept; ~/.cache without it' },
  { 'TMPDIR', 'where ranks share encoded data if /dev/shm has no room; /tmp without it' },
  { 'HOME', 'the folder that ~ stands for' },
  { 'GOMP_SPINCOUNT', 'how long idle threads of OpenMP spin; the program sets 2000 where neither '
    .. 'it nor OMP_WAIT_POLICY is given' },
  { 'OMP_WAIT_POLICY', 'see GOMP_SPINCOUNT' },
}

--- Those of `bootstrap`.
M.build_environment = {
  { 'MS_CMAKE_ARGS', 'more arguments for CMake' },
  { 'MS_JOBS', 'how many files are compiled at once' },
}

local function commands()
  local rows = {}
  for i, row in ipairs(M.commands) do
    rows[i] = { (('moonstill ' .. row[1]):gsub(' $', '')), row[2] }
  end
  return rows
end

--- The text that `moonstill --help` prints.
--- @return string
function M.text()
  local columns = screen.page()
  local function filled(text) return layout.paragraphs(text, columns) end
  return table.concat { filled [[
moonstill distils large language models, scripted in Lua.

]], layout.rows(commands(), columns), filled [[

Each command has a --help of its own. A recipe finds its arguments in the global `arg`; one that is
named like a command is run by its path, as in ./chat.
]], '\nExit status:\n', layout.rows(M.statuses, columns),
    '\nEnvironment:\n', layout.rows(M.environment, columns) }
end

return M
