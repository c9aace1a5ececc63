--- Environment variables whose value is none that they can have: a slip of the pen there must not
--- go by in silence.

local options = require 'moonstill.base.options'

local M = {}

local VALUES = {
  { 'MS_CPU', { 'avx512', 'avx2', 'portable' } },
  { 'MS_LOG', { 'info', 'none' } },
  { 'MS_GROUP', { 'auto', 'self', 'mpi' } },
}

local function is_one_of(value, list)
  for _, each in ipairs(list) do
    if value == each then return true end
  end
  return false
end

-- OpenMP takes a number for each level of nested parallelism.
local function is_threads(value)
  for part in (value .. ','):gmatch '([^,]*),' do
    local n = part:match '^%s*(%d+)%s*$'
    if not n or tonumber(n) < 1 then return false end
  end
  return true
end

--- What is wrong with the environment, and what to do; nil where nothing is.
--- @param get? fun(name: string): string? default os.getenv
--- @return string?
function M.wrong(get)
  get = get or os.getenv
  for _, entry in ipairs(VALUES) do
    local name, value = entry[1], get(entry[1])
    if value and value ~= '' and not is_one_of(value, entry[2]) then
      local near = options.nearest(value, entry[2])
      return ('%s=%s: there are %s%s'):format(name, value, table.concat(entry[2], ', '),
        near and ("; did you mean '%s'?"):format(near) or '')
    end
  end
  local threads = get 'OMP_NUM_THREADS'
  if threads and threads ~= '' and not is_threads(threads) then
    return ('OMP_NUM_THREADS=%s is no number of threads, from 1 on; without it all cores are used')
      :format(threads)
  end
end

return M
