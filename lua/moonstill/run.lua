--- Runs: the loop of optimiser steps, with everything that has to survive it.
---
---   local run = ms.run.open(cfg, { student = student, data = train, schedules = { kd = ... } })
---   for step in run:steps() do
---     for batch in step:micro_batches() do student:learn(batch, { ms.ce(1) }) end
---     step:update()
---   end
---   run:finish()
---
--- The output folder holds `student/`, which appears as a whole at the end (`finish`),
--- `checkpoints/` and `metrics.jsonl`; `finished.json` once there is nothing left to do, and
--- `run.lock`, by which a second run in the same folder is refused. A run that was stopped at any
--- moment goes on from its last checkpoint and repeats, bit for bit, what it would have done:
--- whatever a step depends on is the configuration, the data, the checkpoint and `run.state`.

local C = require 'moonstill.C'
local check = require 'moonstill.check'
local json = require 'moonstill.json'
local kd = require 'moonstill.kd'
local leave = require 'moonstill.leave'
local ledger = require 'moonstill.ledger'
local lock = require 'moonstill.lock'
local metrics = require 'moonstill.metrics'
local options_of = require 'moonstill.options'
local optimizer = require 'moonstill.optimizer'
local progress = require 'moonstill.progress'
local schedule = require 'moonstill.schedule'
local tally = require 'moonstill.tally'
local text = require 'moonstill.text'
local ffi = require 'ffi'

local M = {}

-- What a configuration need not say.
local DEFAULT = {
  batch = { tokens = 8192, micro_tokens = 2048 },
  optim = { max_skips = 5 },
  checkpoint = { every = 200, keep = 2 },
}
local function setting(cfg, group, key)
  local value = cfg[group] and cfg[group][key]
  if value == nil then value = DEFAULT[group][key] end
  return value
end

-- Settings that are integers, with the least that each may be. every: 0 saves at the end only.
local INTEGERS = { { 'batch', 'tokens', 1 }, { 'batch', 'micro_tokens', 1 },
  { 'checkpoint', 'every', 0 }, { 'checkpoint', 'keep', 0 }, { 'optim', 'max_skips', 1 } }

local function check_settings(cfg, level)
  for _, group in ipairs { 'batch', 'checkpoint' } do
    options_of.known('run.open: ' .. group, DEFAULT[group], cfg[group], level + 1)
  end
  options_of.known('run.open: optim', optimizer.keys, cfg.optim, level + 1)
  for _, s in ipairs(INTEGERS) do
    check.integer('run.open', s[1] .. '.' .. s[2], setting(cfg, s[1], s[2]), s[3], check.EXACT,
      level + 1)
  end
  for _, name in ipairs { 'seed', 'max_steps' } do
    if cfg[name] ~= nil then
      check.integer('run.open', name, cfg[name], 0, check.EXACT, level + 1)
    end
  end
  local epochs = cfg.epochs or 1
  if type(epochs) ~= 'number' or not (epochs >= 0 and epochs < math.huge) then
    error(('run.open: epochs = %s, expected a number from 0 on'):format(tostring(epochs)),
      level + 1)
  end
end

-- a step -----------------------------------------------------------------------------------------

--- One optimiser step. There is one object for all steps of a run. `number` counts from 1; each
--- schedule's value has its schedule's name; after `update` there are `loss`, `grad_norm`,
--- `skipped`.
--- @class ms_step
local step_methods = {}

--- The sum of the weights of all micro-batches, which a term's loss is divided by.
--- @param on '"response"'|'"all"'
function step_methods:norm(on) return self.norms[on] end

--- For `model:learn`: adds up what each term gave.
function step_methods:record(terms, results) self.tally:add(terms, results, self.norms) end

local function next_batch(self)
  self.at = self.at + 1
  return self.batches[self.at]
end

--- Iterates over the step's batches, whose sizes are those of `batch.micro_tokens`.
function step_methods:micro_batches()
  self.at = 0
  return next_batch, self
end

local function drop_batches(self)
  for i = #self.batches, 1, -1 do
    ledger.bind(self.batches[i], nil)
    self.batches[i]:free()
    self.batches[i] = nil
  end
end

local function take_batch(self, batch)
  ledger.bind(batch, self)
  self.batches[#self.batches + 1] = batch
  self.norms.response = self.norms.response + batch:weight 'response'
  self.norms.all = self.norms.all + batch:weight 'all'
  self.tokens = self.tokens + batch:tokens()
end

--- Puts other batches in place of the planned ones, such as those made of a student's own answers;
--- the step frees them. To be called before anything is learned.
--- @param batches ms_batch[]
function step_methods:use(batches)
  if self.tally.calls > 0 then error('step:use: the step has learned already', 2) end
  drop_batches(self)
  self.norms.response, self.norms.all, self.tokens = 0, 0, 0
  for _, batch in ipairs(batches) do take_batch(self, batch) end
end

--- True in every n-th step; never for 0.
--- @param n integer
function step_methods:every(n)
  check.integer('step:every', 'n', n, 0, check.EXACT)
  return n > 0 and self.number % n == 0
end

local function too_many_skips(run)
  run:checkpoint()
  local step = run.state.step
  run.state.skips = 0
  run:close()
  leave(1, ('run: the gradient was not finite in %d steps in a row, up to step %d; the weights '
    .. 'before them are saved in %s. A smaller optim.lr, or optim.clip, may help')
    :format(run.max_skips, step, run:checkpoint_path(step)))
end

--- The optimiser's update, at `step.lr`; the gradients are zeroed. A step in which no position was
--- supervised, or whose gradient is not finite, updates nothing.
function step_methods:update()
  local run, state = self.run, self.run.state
  if not self.open then error('step:update: called twice, or outside its step', 2) end
  if self.tally.calls == 0 then error('step:update: nothing was learned in this step', 2) end
  local name, seen, all = self.tally:incomplete()
  if name then -- losses are divided by the whole step's weights
    error(('step:update: the term %s learned from weights of %g, the step has %g: every '
      .. 'micro-batch is to be learned once, with all terms in one call')
      :format(name, seen, all), 2)
  end
  self.loss = self.tally:loss()
  self.skipped, self.grad_norm = false, 0
  if self.tally:empty() then
    run.student:zero_gradients()
    state.empty = state.empty + 1
  else
    self.grad_norm, self.skipped = run.optimizer:step(self.lr)
  end
  state.skipped = state.skipped + (self.skipped and 1 or 0)
  state.skips = self.skipped and state.skips + 1 or 0
  state.tokens = state.tokens + self.tokens
  state.loss = not self.skipped and self.loss - self.loss == 0 and self.loss or nil
  self.seconds = C.ms_clock() - self.began
  self.open = false
  drop_batches(self)
  run:report(self)
  if state.skips >= run.max_skips then too_many_skips(run) end
  return self
end

-- planning ---------------------------------------------------------------------------------------

local function plan_epoch(run, epoch)
  if run.plan_epoch ~= epoch then
    run.plan = run.data:steps(run.cfg.seed or 0, epoch, run.batch_size)
    run.plan_epoch = epoch
    if #run.plan == 0 then error('run: the data gives no step', 0) end
  end
  return run.plan
end

--- How many steps the run has in all: by epochs, the last of which may be a part, and max_steps.
local function count_steps(run)
  local most, epochs = run.cfg.max_steps or 0, run.cfg.epochs or 1
  if epochs == 0 then
    if most == 0 then error('run: epochs = 0 needs max_steps', 0) end
    return most
  end
  local total, epoch = 0, 0
  while epoch < epochs and (most == 0 or total < most) do
    local n, part = #plan_epoch(run, epoch), math.min(1, epochs - epoch)
    total = total + (part == 1 and n or math.max(1, math.floor(part * n + 0.5)))
    epoch = epoch + 1
  end
  return most > 0 and math.min(most, total) or total
end

local function make_batches(run, step)
  step.norms.response, step.norms.all, step.tokens = 0, 0, 0
  for _, samples in ipairs(run.plan[run.state.index]) do
    take_batch(step, run.data:batch(samples))
  end
end

local function begin_step(run)
  local state, step = run.state, run.step
  if state.index >= #plan_epoch(run, state.epoch) then
    state.epoch, state.index = state.epoch + 1, 0
    plan_epoch(run, state.epoch)
  end
  state.index, state.step = state.index + 1, state.step + 1
  state.progress = (state.step - 1) / math.max(1, state.total - 1)
  step.number, step.began, step.open = state.step, C.ms_clock(), true
  step.tally:clear()
  make_batches(run, step)
  for _, name in ipairs(run.schedule_names) do
    local value = run.schedules[name](state)
    if type(value) ~= 'number' then
      error(("run: schedule '%s' gave %s at step %d"):format(name, tostring(value), state.step), 0)
    end
    step[name] = value
  end
  return step
end

local function after_step(run)
  local state = run.state
  local due = run.every > 0 and state.step % run.every == 0
  if state.step > run.saved and (due or json.unfit(state, 'run.state')) then run:checkpoint() end
  if C.ms_interrupted() == 0 then return end
  run:checkpoint()
  run:close()
  leave(130, ('interrupted after step %d of %d, which is saved: the same command goes on from '
    .. 'there'):format(state.step, state.total))
end

-- Nothing may be left undone when a step is over.
local function check_closed(step, level)
  if not step.open then return end
  error('run: step:update() was not called in step ' .. step.number, level + 1)
end

local function next_step(run)
  check_closed(run.step, 2)
  after_step(run)
  if run.state.step >= run.state.total then return nil end
  return begin_step(run)
end

-- a run ------------------------------------------------------------------------------------------

--- @class ms_run
local methods = {}

--- Iterates over the steps that are left. Ctrl-C ends the process after the current one, with
--- everything saved.
--- @return fun(): ms_step?
function methods:steps()
  if not self.optimizer then error('run: used after finish', 2) end
  C.ms_interrupt_watch(1)
  return next_step, self
end

local function describe(step)
  local parts = { ('loss %.4f'):format(step.loss) }
  step.tally:describe(parts)
  parts[#parts + 1] = ('lr %.2e'):format(step.lr)
  parts[#parts + 1] = step.skipped and 'SKIPPED' or ('norm %.2f'):format(step.grad_norm)
  parts[#parts + 1] = ('%.0f tok/s'):format(step.tokens / step.seconds)
  return table.concat(parts, '  ')
end

--- A step's line of metrics, and of progress.
function methods:report(step)
  local state = self.state
  local entry = { step = state.step, kind = 'train', loss = metrics.number(step.loss),
    epoch = state.epoch + state.index / #self.plan, terms = step.tally:entry(),
    grad_norm = metrics.number(step.grad_norm), tokens = step.tokens, skipped = step.skipped,
    seconds = step.seconds, tokens_per_second = step.tokens / step.seconds }
  for _, name in ipairs(self.schedule_names) do entry[name] = metrics.number(step[name]) end
  self.metrics:write(entry)
  if not self.activations then -- known once a step was run
    self.activations = self.student:info().memory.activations
    self:say('activations: ' .. progress.bytes(self.activations))
  end
  self.progress:step(state.step, state.total, describe, step)
end

--- Prints a line, above the progress line where there is one.
--- @param line string
function methods:say(line) self.progress:say(line) end

function methods:checkpoint_path(step) return ('%s/step-%08d'):format(self.checkpoints, step) end

-- Folders of checkpoints and what a kill left of them, oldest first.
local function list_checkpoints(path)
  local steps, rest = {}, {}
  if C.ms_path_kind(path) ~= 2 then return steps, rest end
  local out = ffi.new 'char *[1]'
  check(C.ms_dir_list(path, out))
  for name in text(out[0]):gmatch '[^\n]+' do
    if name:find '^step%-%d+$' then
      steps[#steps + 1] = tonumber(name:match '%d+')
    elseif name:find '^step%-%d+%.' then -- step-7.PID.tmp, and the model's temporary beside it
      rest[#rest + 1] = name
    end
  end
  table.sort(steps)
  return steps, rest
end

-- Renamed before it is removed: what a kill leaves half removed must not look like a checkpoint.
local function remove_checkpoint(path)
  local old = path .. '.0.old'
  local ok, why = os.rename(path, old)
  if not ok then error(why, 0) end
  check(C.ms_dir_remove(old))
end

local function prune(run)
  local steps = list_checkpoints(run.checkpoints)
  for i = 1, #steps - math.max(1, run.keep) do remove_checkpoint(run:checkpoint_path(steps[i])) end
end

-- Counters of the run itself: without them a checkpoint is none.
local VITAL = { step = true, epoch = true, index = true, progress = true, tokens = true,
  total = true, skips = true, skipped = true, empty = true }

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

--- Saves everything the run needs to go on; older checkpoints than the last few are removed. It
--- happens by itself every `checkpoint.every` steps. What `run.state` has that JSON cannot hold is
--- an error once all the rest is saved; it is looked for after every step.
function methods:checkpoint()
  local state = self.state
  if self.saved == state.step then return end
  local unfit = drop_unfit(state)
  local all = json.encode { run = state, config = self.cfg, epoch_steps = #self.plan,
    data = self.fingerprint }
  self.optimizer:write(self:checkpoint_path(state.step), self.student, all)
  self.saved = state.step
  prune(self)
  if not unfit then return end
  self:close()
  error(('run: %s, which a checkpoint cannot hold; step %d is saved without it in %s')
    :format(unfit, state.step, self:checkpoint_path(state.step)), 0)
end

-- Keys that may change between a run and its resume without a word.
local free_to_change = { threads = true, resume = true, max_steps = true, epochs = true,
  output = true, checkpoint = true }

local function note_changes(run, old)
  for _, key in ipairs(tally.sorted_keys(run.cfg, old)) do
    if not free_to_change[key] and json.encode(run.cfg[key]) ~= json.encode(old[key]) then
      run:say(("note: '%s' is not what the checkpoint was made with: %s, not %s"):format(key,
        json.encode(run.cfg[key]), json.encode(old[key])))
    end
  end
end

local function resume_from(run, path)
  local saved = json.decode(run.optimizer:read(path, run.student), path)
  if type(saved.run) ~= 'table' or type(saved.run.step) ~= 'number' then
    error(path .. ': not the checkpoint of a run', 0)
  end
  note_changes(run, saved.config or {})
  if saved.data and run.fingerprint and saved.data ~= run.fingerprint then
    error(('%s: its training data is not this one (fingerprint %s, now %s): samples, or how they '
      .. 'become tokens, have changed. The old data goes on from here; resume=false begins anew')
      :format(path, saved.data, run.fingerprint), 0)
  end
  local state = saved.run
  state.total = run.state.total
  run.state, run.saved = state, state.step
  if #plan_epoch(run, state.epoch) ~= saved.epoch_steps then
    error(('%s: its epoch has %d steps, this one %d: data, seed or batch sizes have changed')
      :format(path, saved.epoch_steps, #run.plan), 0)
  end
  run:say(('resumed after step %d of %d from %s'):format(state.step, state.total, path))
end

local function set_aside(run)
  for _, name in ipairs { 'checkpoints', 'metrics.jsonl' } do
    local path = run.output .. '/' .. name
    if C.ms_path_kind(path) ~= 0 then
      check(C.ms_dir_remove(path .. '.old'))
      local ok, why = os.rename(path, path .. '.old')
      if not ok then error(why, 0) end
      run:say(('resume=false: what was in %s is now in %s.old'):format(path, path))
    end
  end
end

-- Checkpoints after the one that a run was told to go on from are of another future.
local function set_later_aside(run)
  local steps = list_checkpoints(run.checkpoints)
  for _, step in ipairs(steps) do
    if step > run.state.step then
      local path = run:checkpoint_path(step)
      local aside = ('%s.old/step-%08d'):format(run.checkpoints, step)
      check(C.ms_dir_make(run.checkpoints .. '.old'))
      check(C.ms_dir_remove(aside))
      local ok, why = os.rename(path, aside)
      if not ok then error(why, 0) end
      run:say(('%s is now %s'):format(path, aside))
    end
  end
end

local function resume(run)
  local wanted = run.cfg.resume
  if wanted == nil then wanted = 'auto' end
  if wanted == false then return set_aside(run) end
  local path = wanted
  if wanted == true or wanted == 'auto' then path = optimizer.find(run.checkpoints) end
  if not path then
    local where = run.checkpoints
    if wanted == true then error('run: resume=true, but no complete checkpoint in ' .. where, 0) end
    if #list_checkpoints(where) > 0 then
      error(('run: no checkpoint in %s is complete; resume=false begins anew'):format(where), 0)
    end
    return
  end
  resume_from(run, path)
  if path == wanted then set_later_aside(run) end
  prune(run) -- a kill may have come between a checkpoint and its pruning
end

-- finished.json says of which step the student is, and what was validated after it, so that a run
-- which is started again after its end finds nothing left to do. It is removed before a next step.
local function marker_path(run) return run.output .. '/finished.json' end

local function read_marker(run)
  local path = marker_path(run)
  if C.ms_path_kind(path) ~= 1 then return nil end
  local ok, marker = pcall(json.read, path)
  return ok and type(marker) == 'table' and marker or nil
end

local function finish_or_go_on(run)
  local marker, state = read_marker(run), run.state
  local whole = marker and marker.step == state.step and state.step >= state.total
    and C.ms_path_kind(run.student_path .. '/config.json') == 1
  if whole then
    run.finished, run.validated = true, marker.validations or {}
    run:say(('finished already after %d steps: the student is in %s; resume=false begins anew')
      :format(state.step, run.student_path))
  elseif marker or C.ms_path_kind(marker_path(run)) ~= 0 then
    check(C.ms_dir_remove(marker_path(run)))
  end
end

local function write_marker(run)
  local list, last = {}, run.last_validations
  for _, v in ipairs(last and last.step == run.state.step and last or {}) do
    if v.key then list[#list + 1] = { key = v.key, result = v.result } end
  end
  json.write(marker_path(run), { step = run.state.step, student = 'student',
    validations = json.array(list) }, { indent = 2 })
end

local function memory_line(run)
  local info = run.student:info()
  local parts = {}
  for _, name in ipairs { 'weights', 'gradients' } do
    parts[#parts + 1] = ('%s %s'):format(name, progress.bytes(info.memory[name]))
  end
  return ('%s, %.4g M parameters, %d steps; memory: %s; optimizer %s'):format(info.family,
    info.parameters / 1e6, run.state.total, table.concat(parts, ', '),
    progress.bytes(run.optimizer:bytes(run.student)))
end

local function open_schedules(run, given)
  run.schedules, run.schedule_names = {}, {}
  for name, f in pairs(given or {}) do
    if run.step[name] ~= nil or step_methods[name] then
      error(("run: a schedule cannot be called '%s'"):format(name), 3)
    end
    if type(f) ~= 'function' then
      error(("run: schedule '%s' is a %s, not a function"):format(name, type(f)), 3)
    end
    run.schedules[name] = f
  end
  run.schedules.lr = run.schedules.lr or schedule.of(run.cfg.optim or {})
  for name in pairs(run.schedules) do run.schedule_names[#run.schedule_names + 1] = name end
  table.sort(run.schedule_names)
end

local OPTIONS = { student = true, data = true, schedules = true, carry = true, quiet = true }

local class = { __index = methods }
local step_class = { __index = step_methods }

local function new_run(cfg, options)
  local run = setmetatable({ cfg = cfg, student = options.student, data = options.data,
    carry = options.carry, output = cfg.output, checkpoints = cfg.output .. '/checkpoints',
    student_path = cfg.output .. '/student', saved = 0, validated = {},
    fingerprint = options.data.fingerprint and options.data:fingerprint(),
    every = setting(cfg, 'checkpoint', 'every'),
    keep = setting(cfg, 'checkpoint', 'keep'), max_skips = setting(cfg, 'optim', 'max_skips'),
    progress = progress.new { quiet = options.quiet },
    batch_size = { tokens = setting(cfg, 'batch', 'tokens'),
      micro_tokens = setting(cfg, 'batch', 'micro_tokens') } }, class)
  run.step = setmetatable({ run = run, norms = { response = 0, all = 0 }, batches = {}, at = 0,
    tokens = 0, seconds = 0, number = 0, open = false, tally = tally.new(), loss = 0, grad_norm = 0,
    skipped = false, began = 0 }, step_class)
  run.state = { step = 0, epoch = 0, index = 0, progress = 0, tokens = 0, skips = 0, skipped = 0,
    empty = 0 }
  return run
end

local function take_lock(run, level)
  check(C.ms_dir_make(run.output))
  local held, process = lock.open(run.output .. '/run.lock')
  run.lock = held
  if held then return end
  error(('run.open: another run is in the folder %s%s: wait for its end, or give another output')
    :format(run.output, process > 0 and (' (process %d)'):format(process) or ''), level + 1)
end

--- Opens a run, and resumes it when its output folder has a checkpoint (`cfg.resume`).
--- One run at a time may have an output folder.
--- @param cfg table output; seed, epochs, max_steps, resume; batch = { tokens, micro_tokens };
---   optim = { lr, warmup, clip, .. }; checkpoint = { every, keep }
--- @param options table student: the model that learns; data: its data set; schedules: functions of
---   the run's state by name, of which `lr` comes from `cfg.optim` unless given; carry: the folder
---   whose tokenizer goes along with the result; quiet: nothing is printed
--- @return ms_run
function M.open(cfg, options)
  options_of.known('run.open', OPTIONS, options, 2)
  for _, name in ipairs { 'student', 'data' } do
    if not options[name] then error('run.open: ' .. name .. ' is needed', 2) end
  end
  if type(cfg.output) ~= 'string' then error('run.open: cfg.output must name a folder', 2) end
  check_settings(cfg, 2)
  local ok, why = pcall(json.encode, cfg)
  if not ok then error('run.open: checkpoints cannot hold this cfg: ' .. tostring(why), 2) end
  local run = new_run(cfg, options)
  take_lock(run, 2)
  open_schedules(run, options.schedules)
  run.state.total = count_steps(run)
  run.optimizer = optimizer.new(run.student, cfg.optim)
  local _, rest = list_checkpoints(run.checkpoints)
  for _, name in ipairs(rest) do check(C.ms_dir_remove(run.checkpoints .. '/' .. name)) end
  resume(run)
  check(C.ms_dir_make(run.checkpoints))
  plan_epoch(run, run.state.epoch)
  run.metrics = metrics.open(run.output .. '/metrics.jsonl', run.state.step)
  finish_or_go_on(run)
  run:say(memory_line(run))
  return run
end

-- validation -------------------------------------------------------------------------------------

local function validation_plan(run, data)
  run.validation = run.validation or setmetatable({}, { __mode = 'k' })
  if not run.validation[data] then
    local n = run.batch_size.micro_tokens
    run.validation[data] = data:steps(0, 0, { tokens = n, micro_tokens = n })
  end
  return run.validation[data]
end

local VALIDATION = { data = true, teacher = true, kd = true, vocab = true }

-- What is measured unless the caller says otherwise: the whole vocabulary at T = 1, which does not
-- change with what is trained on.
local function measure_of(run, options)
  if options.kd or not options.teacher then return options.kd end
  local vocab = options.vocab or math.min(run.student:info().vocab, options.teacher:info().vocab)
  return { objective = 'forward_kl', temperature = 1, target = 'hidden', vocab = vocab }
end

-- What was asked, for a later process: data, teacher and measure. nil when the data or the teacher
-- does not tell itself from others.
local function validation_key(options)
  local data, teacher = options.data, options.teacher
  local path = teacher and teacher:info().path
  if not data.fingerprint or (teacher and type(path) ~= 'string') then return nil end
  local ok, key = pcall(json.encode, { data = data:fingerprint(), kd = options.kd,
    vocab = options.vocab, teacher = path })
  return ok and key or nil
end

-- The result of the same validation after the same step: of this process, or of the one that
-- finished the run.
local function find_validation(run, options, key)
  local last = run.last_validations
  for _, v in ipairs(last and last.step == run.state.step and last or {}) do
    if v.data == options.data and v.teacher == options.teacher and v.kd == options.kd
      and v.vocab == options.vocab then return v.result end
  end
  for _, v in ipairs(run.finished and run.validated or {}) do
    if key and v.key == key then return v.result end
  end
end

local function keep_validation(run, options, key, result)
  local last = run.last_validations
  if not last or last.step ~= run.state.step then
    last = { step = run.state.step }
    run.last_validations = last
  end
  local finite = true
  for _, x in pairs(result) do finite = finite and x - x == 0 end
  last[#last + 1] = { data = options.data, teacher = options.teacher, kd = options.kd,
    vocab = options.vocab, key = finite and key or nil, result = result }
end

local function evaluate_batch(run, teacher, measure, batch, sums)
  local terms, target = { kd.ce(1) }, nil
  if teacher then
    target = teacher:targets(batch, measure)
    terms[2] = kd.term(target, 1, measure)
  end
  sums:add(terms, run.student:evaluate(batch, terms))
  if target then target:free() end
end

--- Losses over a whole validation set, with the same normalisation as in training: CE, and with a
--- teacher the divergence from it.
--- @param options table data: the set, without which nothing happens; teacher; kd: what to measure,
---   as for `ms.kd`, by default forward KL at T = 1 over all shared ids, of which there are `vocab`
---   (by default those that both models have). Asked again in the same step it does nothing new.
--- @return table? { loss, agree, kl?, kl_agree? }
function methods:validate(options)
  options_of.known('run:validate', VALIDATION, options, 2)
  local data = options.data
  if not data then return nil end
  local key = validation_key(options)
  local known = find_validation(self, options, key)
  if known then return known end
  local sums, measure = tally.new(), measure_of(self, options)
  for _, step in ipairs(validation_plan(self, data)) do
    for _, samples in ipairs(step) do
      local batch = data:batch(samples)
      local ok, why = pcall(evaluate_batch, self, options.teacher, measure, batch, sums)
      batch:free()
      if not ok then error(why, 0) end
    end
  end
  local ce, kl = sums:mean(1), sums:mean(2)
  local result = { loss = ce.value, agree = ce.agree }
  if kl then result.kl, result.kl_agree = kl.value, kl.agree end
  keep_validation(self, options, key, result)
  local both = ce.value + (kl and kl.value or 0)
  self.state.validation = both - both == 0 and result or nil -- a checkpoint holds finite numbers
  self.metrics:write { step = self.state.step, kind = 'validation', loss = metrics.number(ce.value),
    terms = sums:entry() }
  local line = ('validation after step %d: loss %.4f, top-1 %.1f %%'):format(self.state.step,
    ce.value, 100 * ce.agree)
  if kl then
    line = line .. (', %s %.4f, agreement with the teacher %.1f %%'):format(
      options.kd and 'kd' or 'KL to the teacher', kl.value, 100 * kl.agree)
  end
  self:say(line)
  return result
end

-- the end ----------------------------------------------------------------------------------------

--- Frees what the run holds, and gives Ctrl-C back. `finish` does it.
function methods:close()
  if not self.optimizer then return end
  drop_batches(self.step)
  self.progress:finish()
  self.metrics:close()
  self.optimizer:free()
  self.optimizer = nil
  self.lock:close()
  C.ms_interrupt_watch(0)
end

--- Saves a last checkpoint, and the student in the folder `student` of the output folder: there is
--- the one that was there or the new one, whole, at any moment.
function methods:finish()
  if not self.optimizer then error('run: finished already', 2) end
  check_closed(self.step, 2)
  if not self.finished then
    self:checkpoint()
    self.student:save(self.student_path, self.carry and { carry = self.carry } or nil)
    write_marker(self)
    self:say(('the student is saved in %s after %d steps, %.3g M tokens%s'):format(
      self.student_path, self.state.step, self.state.tokens / 1e6, self.state.skipped > 0
        and (', %d of them skipped'):format(self.state.skipped) or ''))
  end
  self:close()
end

return M
