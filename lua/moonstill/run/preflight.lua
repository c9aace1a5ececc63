--- What can be known before a run's first step, and is better said then than after its last.
local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local fail = require 'moonstill.base.fail'
local no_data = require 'moonstill.data.none'
local paths = require 'moonstill.base.paths'
local progress = require 'moonstill.base.progress'
local sorted = require 'moonstill.base.sorted'

local M = {}

-- Whether `path` is `folder` or lies in it; both are real paths.
local function lies_in(path, folder)
  return path == folder or path:sub(1, #folder + 1) == (folder == '/' and '/' or folder .. '/')
end

-- inputs -----------------------------------------------------------------------------------------

local function add(list, name, path)
  if type(path) == 'table' then
    if path.path then add(list, name, path.path) end
    for _, one in ipairs(path) do add(list, name, one) end
  elseif type(path) == 'string' and path ~= '' and C.ms_path_kind(path) ~= 0 then
    list[#list + 1] = { name = name, path = path, folder = C.ms_path_kind(path) == 2 }
  end
end

-- What a run reads, as far as it is told: a recipe's keys, the student's folder, the data's files.
local function inputs_of(cfg, options)
  local list, data = {}, type(cfg.data) == 'table' and cfg.data or {}
  add(list, 'student', cfg.student)
  add(list, 'teacher', cfg.teacher)
  add(list, 'the student', options.student:info().path)
  add(list, 'carry', options.carry)
  add(list, 'data.train', data.train)
  add(list, 'data.valid', data.valid)
  for name, set in sorted.pairs { ['the data'] = options.data or no_data,
    ['the validation data'] = options.validation and options.validation.data or no_data } do
    add(list, name, set.paths)
  end
  return list
end

-- What a run writes or removes in its output folder.
local OWN = { 'student', 'checkpoints', 'metrics.jsonl', 'finished.json', 'run.lock' }

local function clash(output, input)
  local path = paths.real(input.path)
  if lies_in(output, path) then return path == output and 'is' or 'lies in' end
  if input.folder then return lies_in(path, output) and 'holds' or nil end
  for _, name in ipairs(OWN) do
    if lies_in(path, output .. '/' .. name) then return 'would write over' end
  end
end

--- An error when the output folder is, holds or lies in what the run reads, and may write over.
--- @param cfg table
--- @param options table of `run.open`
function M.apart(cfg, options)
  local output = paths.real(cfg.output)
  for _, input in ipairs(inputs_of(cfg, options)) do
    local how = clash(output, input)
    if how then
      fail('run.open: output = %s %s %s (%s), which the run reads: give another output',
        cfg.output, how, input.name, input.path)
    end
  end
end

-- the disk ---------------------------------------------------------------------------------------

local function writable(path)
  if C.ms_path_kind(path) ~= 0 and C.ms_path_writable(path) == 0 then
    error(('run: %s cannot be written: change its permissions, or give another output')
      :format(path), 0)
  end
end

local function room(run, bytes, what)
  local free = tonumber(C.ms_disk_free(run.output))
  if free < 0 or free >= bytes then return end
  error(('run: no room for %s in %s: %s are needed and %s are free. Remove what is not needed '
    .. 'there, or give an output on another disk'):format(what, run.output, progress.bytes(bytes),
    progress.bytes(free)), 0)
end

-- Bytes of the whole student's weights, and of its moments and masters: of all parts together.
local function sizes_of(run)
  local info = run.student:info()
  local sums = run.grid.tp:sum { info.memory.weights, info.memory.gradients }
  return { weights = sums[1], moments = sums[2] * (info.dtype == 'f32' and 2 or 3) }
end

-- A shell's `ulimit -f`; the largest file is that of the optimiser's moments.
local function file_size(sizes)
  local most, bytes = tonumber(C.ms_file_limit()), math.max(sizes.weights, sizes.moments)
  if most < 0 or most >= bytes then return end
  error(('run: no file may be larger than %s here (ulimit -f), but a checkpoint has one of %s: '
    .. 'raise the limit'):format(progress.bytes(most), progress.bytes(bytes)), 0)
end

--- An error when the disk has no room for the next checkpoint; otherwise its bytes.
--- @return number
function M.room(run)
  local sizes = sizes_of(run)
  local bytes = sizes.weights + sizes.moments
  run.ranks:write(room, run, bytes, 'a checkpoint')
  return bytes
end

-- Of the rank that writes.
local function check_places(run, sizes)
  check.file(C.ms_model_save_check(run.student_path))
  for _, name in ipairs { '', '/checkpoints', '/student', '/metrics.jsonl' } do
    writable(run.output .. name)
  end
  room(run, 2 * sizes.weights + sizes.moments, 'a checkpoint and the student')
  file_size(sizes)
end

--- An error when a run that is not finished cannot come to its end: something stands where its
--- student goes, a folder cannot be written, the disk is full, files may not be large enough, the
--- student cannot read a sample, or no sample has a weight.
function M.check(run)
  run.ranks:write(check_places, run, sizes_of(run))
  if run.carry and C.ms_path_kind(run.carry) ~= 2 then
    error(('run: carry = %s is no folder'):format(run.carry), 0)
  end
  if run.data.fits then run.data:fits(run.student) end
  if run.data.counts and not run.data:counts 'response' then run.data:check_counts 'all' end
end

return M
