--- The folder `checkpoints` of a run, `step-00000200` and so on: what is kept there, and how a run
--- goes on from it.
local ffi = require 'ffi'
local C = require 'moonstill.C'
local changes = require 'moonstill.run.changes'
local check = require 'moonstill.base.check'
local fail = require 'moonstill.base.fail'
local json = require 'moonstill.base.json'
local learning = require 'moonstill.train.learning'
local optimizer = require 'moonstill.train.optimizer'
local packing = require 'moonstill.data.packing'
local paths = require 'moonstill.base.paths'
local schema = require 'moonstill.base.schema'
local sorted = require 'moonstill.base.sorted'
local strict = require 'moonstill.base.strict'
local text = require 'moonstill.base.text'

local M = {}

--- The `checkpoint` of a configuration.
M.options = schema.new('checkpoints', {
  every = schema.option(200, 'steps between checkpoints; 0: at the end only', 'integer >= 0'),
  keep = schema.option(2, 'checkpoints kept', 'integer >= 0'),
  aside = schema.option('auto', 'written while the next step is learnt; auto: where it has 64 MB',
    'auto|boolean'),
})

local out = ffi.new 'char *[1]' -- scratch, read at once

-- The steps of which there are checkpoints, oldest first.
local function list_checkpoints(path)
  local steps = {}
  if C.ms_path_kind(path) == 0 then return steps end
  for _, name in ipairs(paths.list(path)) do
    local digits = name:match '^step%-(%d+)$'
    if digits then steps[#steps + 1] = tonumber(digits) end
  end
  table.sort(steps)
  return steps
end

-- Whether a checkpoint is this run's own: its state has the run's `id`, which no other run has.
local function is_own(run, path)
  local ok, all = pcall(json.read, path .. '/state.json')
  return ok and type(all) == 'table' and type(all.state) == 'table' and all.state.id == run.id
end

-- Says why something in the folder is kept, once for each path.
local function note(run, path, why)
  run.noted = run.noted or {}
  if run.noted[path] then return end
  run.noted[path] = true
  run:say(('note: %s is kept: %s'):format(path, why))
end

--- Removes all but the last `run.keep` checkpoints of the run's own; at least one is kept, and
--- the last one that is known to be sound. What cannot be removed, or is not the run's, stays,
--- and is said.
function M.prune(run)
  if not run.ranks.writes then return end
  local own = {}
  for _, step in ipairs(list_checkpoints(run.checkpoints)) do
    local path = run:checkpoint_path(step)
    if is_own(run, path) then
      own[#own + 1] = path
    else
      note(run, path, 'it is no checkpoint of this run')
    end
  end
  local sound = run:checkpoint_path(run.state.sound)
  for i = 1, #own - math.max(1, run.keep) do
    if own[i] ~= sound then
      local ok, why = pcall(check.file, C.ms_checkpoint_remove(own[i]))
      if not ok then note(run, own[i], tostring(why)) end
    end
  end
end

--- Removes what killed processes left of checkpoints that they were writing or removing.
function M.clean(run)
  if run.ranks.writes then C.ms_dir_clean(run.checkpoints) end
end

local function unique()
  check(C.ms_unique(out))
  return text(out[0])
end

-- Gives a run an identity, by which its checkpoints are known: that of those it goes on from, if
-- they are in its own folder (`named` ones may not be), otherwise a new one.
local function identify(run, saved, path, named)
  local own = saved and (not named or C.ms_path_same(path .. '/..', run.checkpoints) ~= 0)
  if own and type(saved.id) == 'string' then
    run.id = saved.id
  else
    run.id = run.ranks:write(unique)
  end
end

-- what a checkpoint holds of the run -------------------------------------------------------------

-- What the run itself keeps in its state: a checkpoint must hold all of it.
local VITAL = { step = true, epoch = true, index = true, progress = true, tokens = true,
  total = true, skips = true, skipped = true, empty = true, still = true, far = true,
  ruined = true, ruined_by = true, sound = true, validated = true,
  validated_first = true, levels = true,
  norm_level = true }

--- What the run itself keeps in its state, apart from what recipes keep there.
--- @return table<string, number>
function M.own(state)
  local own = {}
  for key in sorted.pairs(VITAL) do own[key] = state[key] end
  return own
end

-- Takes out of the state what JSON cannot hold; returns what that was, or nil.
local function drop_unfit(state)
  local words = {}
  for _ = 1, 100 do -- what is left may show new ones
    local found = json.unfit(state, 'run.state')
    if not found then break end
    for _, f in ipairs(found) do
      words[#words + 1] = ('%s is %s'):format(f.path, f.why)
      if f.holder == state and VITAL[f.key] then
        error(('run: %s: this value is the run\'s own'):format(words[#words]), 0)
      end
      f.holder[f.key] = json.is_array(f.holder) and type(f.key) == 'number' and json.null or nil
    end
  end
  return words[1] and table.concat(words, ', ')
end

--- The run as JSON, and in words what of its state is left out because JSON cannot hold it.
--- @return string, string? # nil where nothing is
function M.encode(run)
  local unfit = drop_unfit(run.state)
  return json.encode { id = run.id, run = run.state, config = run.cfg,
    epoch_steps = run.plan:count(), data = run.fingerprint }, unfit
end

-- going on ---------------------------------------------------------------------------------------

-- Says which settings have changed, and whether any has.
local function note_changes(run, old)
  local list = changes.between(run.cfg, old)
  for _, c in ipairs(list) do
    run:say(('note: %s is %s; the checkpoint was made with %s'):format(c.key, c.now, c.old))
  end
  return #list > 0
end

local function tokens_of(cfg)
  return cfg.batch and cfg.batch.tokens or packing.options.tokens.default
end

-- The rest of an epoch must be the rest of the one that began.
local function check_epoch(run, saved, path)
  local plan = run:plan_epoch(run.state.epoch)
  if plan:count() ~= saved.epoch_steps then
    error(('%s: its epoch has %d steps, this one %d: data, seed or batch sizes have changed; '
      .. 'resume=false begins anew'):format(path, saved.epoch_steps, plan:count()), 0)
  end
  local old = saved.config or {}
  for _, part in ipairs { { 'the seed', old.seed or 0, run.cfg.seed or 0 }, { 'batch.tokens',
    tokens_of(old), tokens_of(run.cfg) } } do
    if part[2] ~= part[3] and run.state.index < plan:count() then
      error(('%s: %s has changed within an epoch, from %s to %s: samples would come twice, or not '
        .. 'at all; resume=false begins anew'):format(path, unpack(part)), 0)
    end
  end
end

-- Another run may have used the same folder, most often by a default: an error unless its models
-- are this one's.
local function check_models(run, old, path)
  for _, key in ipairs { 'student', 'teacher', 'layers' } do
    local now = run.cfg[key]
    if not changes.same(now, old[key]) then
      error(('%s: made with %s = %s, which is %s now: give another output, or resume=false to '
        .. 'begin anew, or resume=%s to go on from it all the same'):format(path, key,
        json.encode(old[key]), json.encode(now), path), 0)
    end
  end
end

local function resume_from(run, path, named)
  local ok, state_text = fail.pcall(run.optimizer.read, run.optimizer, path, run.student)
  if not ok then
    if C.ms_path_kind(path .. '/state.json') == 0 then error(state_text, 0) end
    error(('%s; it may be of another student than this one: resume=false begins anew')
      :format(state_text), 0)
  end
  local saved = json.decode(state_text, path)
  if type(saved.run) ~= 'table' or type(saved.run.step) ~= 'number' then
    error(path .. ': not the checkpoint of a run', 0)
  end
  if not named then check_models(run, saved.config or {}, path) end
  local changed = note_changes(run, saved.config or {})
  if saved.data and run.fingerprint and saved.data ~= run.fingerprint then
    error(('%s: its training data is not this one (fingerprint %s, now %s): samples, or how they '
      .. 'become tokens, have changed. The old data goes on from here; resume=false begins anew')
      :format(path, saved.data, run.fingerprint), 0)
  end
  identify(run, saved, path, named)
  local state = strict.mark('state', saved.run)
  for key, value in sorted.pairs(run.state) do
    if state[key] == nil then state[key] = value end
  end
  run.total_before, state.total = state.total, run.state.total
  run.state, run.saved = state, state.step
  check_epoch(run, saved, path)
  learning.resume(run, path, named or changed)
  run:say(('resumed after step %d of %d from %s%s'):format(state.step, state.total, path,
    state.step > state.total and ': it has more steps than were asked for' or ''))
end

-- On the rank that writes.
local function set_all_aside(run)
  for _, name in ipairs { 'checkpoints', 'metrics.jsonl' } do
    local path = run.output .. '/' .. name
    if C.ms_path_kind(path) ~= 0 then
      run:say(('resume=false: what was in %s is now in %s'):format(path,
        paths.set_aside(path)))
    end
  end
end

--- Puts the checkpoints after a step aside: the run goes on from that step, and they hold what it
--- will not repeat.
--- @param run ms_run
--- @param last integer
function M.set_aside_after(run, last)
  if not run.ranks.writes then return end
  for _, step in ipairs(list_checkpoints(run.checkpoints)) do
    if step > last then
      local path = run:checkpoint_path(step)
      run:say(('%s is now %s'):format(path, paths.set_aside(path)))
    end
  end
end

-- The newest checkpoint that is whole. Where one can only not be read just now, an older one would
-- undo what it holds.
local function find(run)
  local ok, found = fail.pcall(optimizer.find, run.checkpoints)
  if ok then return found end
  error(('%s; once it can be read, the same command goes on from there; resume=FOLDER goes on from '
    .. 'another checkpoint'):format(found), 0)
end

-- The configuration that a JSON file holds under `config`, or under `state` and there; or nil.
local function config_in(path)
  if C.ms_path_kind(path) ~= 1 then return nil end
  local ok, value = pcall(json.read, path)
  if not ok or not json.is_object(value) then return nil end
  local holder = json.is_object(value.state) and value.state or value
  return json.is_object(holder.config) and holder.config or nil
end

--- The configuration with which a run in this folder was started before, if `resume` (as in a
--- configuration) goes on with it; nil where it begins anew.
--- @param output string
--- @param resume string|boolean|nil
--- @return table?
function M.saved_config(output, resume)
  if resume == false then return nil end
  if type(resume) == 'string' and resume ~= 'auto' then
    return config_in(resume .. '/state.json')
  end
  local ok, found = pcall(optimizer.find, output .. '/checkpoints')
  local config = ok and found and config_in(found .. '/state.json')
  return config or config_in(output .. '/finished.json')
end

--- Brings the run and its student to where a checkpoint was made: the newest, or the one that
--- `cfg.resume` names. With `resume = false` what is in the folder is put aside.
function M.resume(run)
  local wanted = run.cfg.resume
  if wanted == nil then wanted = 'auto' end
  identify(run)
  if wanted == false then return run.ranks:write(set_all_aside, run) end
  local path = wanted
  if wanted == true or wanted == 'auto' then path = run.ranks:write(find, run) end
  if not path then
    local where = run.checkpoints
    if wanted == true then error('run: resume=true, but no complete checkpoint in ' .. where, 0) end
    if #list_checkpoints(where) > 0 then
      error(('run: no checkpoint in %s is complete; resume=false begins anew'):format(where), 0)
    end
    return
  end
  resume_from(run, path, path == wanted)
  if path == wanted then M.set_aside_after(run, run.state.step) end
  M.prune(run) -- a kill may have come between a checkpoint and its pruning
end

return M
