--- Runs: the loop of optimiser steps, with everything that has to survive it.
---
---   local run = ms.run.open(cfg, {
---     student = student, data = train, schedules = { kd = ... },
---     validation = { data = valid, teacher = teacher } })
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
---
--- All ranks make a run together (`base/ranks.lua`); of those that have the student one writes and
--- prints. Those of the student's `grid.dp` share each step; what is counted over samples is summed
--- over them, and what all must do alike is asked of all. Ranks without the student make the same
--- steps, for their teacher's part, and hear the rest by letter (`run/others.lua`).

local C = require 'moonstill.C'
local callable = require 'moonstill.base.callable'
local check = require 'moonstill.base.check'
local checkpoints = require 'moonstill.run.checkpoints'
local departures = require 'moonstill.run.departures'
local fail = require 'moonstill.base.fail'
local finished = require 'moonstill.run.finished'
local folder = require 'moonstill.run.folder'
local grids = require 'moonstill.base.grid'
local handles = require 'moonstill.base.handle'
local json = require 'moonstill.base.json'
local learning = require 'moonstill.train.learning'
local no_data = require 'moonstill.data.none'
local exit = require 'moonstill.base.exit'
local metrics = require 'moonstill.run.metrics'
local options_of = require 'moonstill.base.options'
local optimizer = require 'moonstill.train.optimizer'
local others = require 'moonstill.run.others'
local packing = require 'moonstill.data.packing'
local preflight = require 'moonstill.run.preflight'
local progress = require 'moonstill.base.progress'
local ranks = require 'moonstill.base.ranks'
local schedule = require 'moonstill.train.schedule'
local schema = require 'moonstill.base.schema'
local settings = require 'moonstill.run.settings'
local sorted = require 'moonstill.base.sorted'
local soundness = require 'moonstill.train.soundness'
local steps = require 'moonstill.train.step'
local strict = require 'moonstill.base.strict'
local telling = require 'moonstill.run.telling'
local timeline = require 'moonstill.run.timeline'
local transfer = require 'moonstill.loss.transfer'
local validation = require 'moonstill.train.validation'

local M = {}

--- What a run's configuration may hold, beside keys that a recipe has declared for itself.
M.options = settings.options

-- The output folders of runs that are open: paths only, so that a forgotten run can be collected.
local open_outputs = {}

--- The output folders of the runs that were neither finished nor closed.
--- @return string[]
function M.left_open() return sorted.keys(open_outputs) end

--- A run that is open: the loop over its steps, and what has to survive it. See `ms.run.open`.
--- @class ms_run
--- @field cfg table the configuration it was opened with
--- @field student ms_model the model that learns
--- @field data ms_dataset what it learns from
--- @field grid ms_grid how the student lies over ranks, which share each step
--- @field output string the folder of the run
--- @field student_path string the folder where `finish` saves the student
--- @field state ms_state how far it is; what a recipe adds to it is kept with checkpoints
--- @field step ms_step the step that is under way, or was last
local methods = {}
-- What a run has at times.
local class = strict.class('run', methods, { activations = true, away = true, carry = true,
  closed = true, finished = true, fingerprint = true, id = true, last_validations = true,
  lock = true, locked = true, messages = true, metrics = true, noted = true, optimizer = true,
  plan = true, planned = true, quiet = true, schedules = true, schedule_names = true,
  timeline = true, total_before = true, validation = true, writing = true },
  { 'state', 'step', 'output', 'student_path', 'student', 'data', 'cfg' })

function class:__tostring()
  return ('run in %s, after step %d of %d'):format(self.output, self.state.step,
    self.state.total)
end

-- planning ---------------------------------------------------------------------------------------

-- Ranks whose samples come in other orders would learn some twice, and others never.
local function check_plan(run)
  if run.ranks.size == 1 or run.ranks:same(run.plan:hash()) then return end
  error(('run: the ranks have different plans of epoch %d: what the seed and the batch sizes are, '
    .. 'and what the data is, may not differ between them'):format(run.planned + 1), 0)
end

--- The steps of an epoch, counted from 0.
--- @package
function methods:plan_epoch(epoch)
  if self.planned ~= epoch then
    self.plan = packing.as_plan(self.data:steps(self.cfg.seed or 0, epoch, self.batch_size))
    self.planned = epoch
    check_plan(self)
    if self.plan:count() == 0 then error('run: the data gives no step', 0) end
  end
  return self.plan
end

-- The steps of a part of an epoch that has `n`: all, or at least one.
local function steps_of_part(run, part, n)
  if part == 1 then return n end
  local made = math.max(1, math.floor(part * n + 0.5))
  run.part = { asked = part * n, made = made }
  return made
end

--- How many steps the run has in all: by epochs, the last of which may be a part, and max_steps.
local function count_steps(run)
  local most, epochs = run.cfg.max_steps or 0, run.cfg.epochs or 1
  if run.dataless then
    if most == 0 then error('run: without data, max_steps says how many steps there are', 0) end
    return most
  end
  if epochs == 0 then
    if most == 0 then error('run: epochs = 0 needs max_steps', 0) end
    return most
  end
  local total, epoch = 0, 0
  while epoch < epochs and (most == 0 or total < most) do
    local n, part = run:plan_epoch(epoch):count(), math.min(1, epochs - epoch)
    total = total + steps_of_part(run, part, n)
    epoch = epoch + 1
  end
  return most > 0 and math.min(most, total) or total
end

-- A schedule's value for the step that begins. It may keep numbers in the state, but under none of
-- the names that the run uses there.
local function scheduled(run, name)
  local state, f = run.state, run.schedules[name]
  local before = run.away and {} or checkpoints.own(state)
  local value = f(state)
  if type(value) ~= 'number' or value - value ~= 0 then
    fail.at(f, "run: schedule '%s' gave %s at step %d, not a finite number", name, tostring(value),
      run.step.number)
  end
  local lr = optimizer.options.lr
  if name == 'lr' and not schema.kind_of(lr, value) then
    fail.at(f, "run: schedule 'lr' gave %g at step %d, expected %s", value, run.step.number,
      schema.kind_text(lr))
  end
  for key, was in sorted.pairs(before) do
    if state[key] ~= was then
      fail.at(f, "run: schedule '%s' set run.state.%s, which is the run's own: "
        .. 'give it another name', name, key)
    end
  end
  return value
end

local function begin_step(run)
  local state, step = run.state, run.step
  if state.index >= run:plan_epoch(state.epoch):count() then
    state.epoch, state.index = state.epoch + 1, 0
    run:plan_epoch(state.epoch)
  end
  state.index, state.step = state.index + 1, state.step + 1
  state.progress = (state.step - 1) / math.max(1, state.total - 1)
  steps.begin(step, state.step)
  steps.plan(step, run.plan, state.index, run)
  if not run.away then steps.measure(step) end
  for _, name in ipairs(run.schedule_names) do step[name] = scheduled(run, name) end
  return step
end

-- The command that goes on where this run was stopped; a `resume` that begins anew, or elsewhere,
-- would do that again.
local function going_on(run)
  local resume = run.cfg.resume
  if resume == nil or resume == true or resume == 'auto' then return 'the same command' end
  return 'the same command with resume=auto'
end

local function after_step(run)
  local state = run.state
  -- weights that give no sound loss are not worth keeping
  local due = run.every > 0 and state.step % run.every == 0 and state.ruined == 0
  if state.step > run.saved and (due or json.unfit(state, 'run.state')) then
    run:due_checkpoint()
  end
  local signal = run.ranks:first(C.ms_interrupted())
  if signal == 0 then return end
  run:checkpoint()
  run:leave(128 + signal, state.step == 0
    and 'interrupted before the first step: the same command begins anew'
    or ('interrupted after step %d of %d, which is saved: %s goes on from there')
      :format(state.step, state.total, going_on(run)))
end

local function next_step(run)
  steps.check_closed(run.step)
  local over = run.state.step >= run.state.total
  if over and not run.away then
    learning.check_end(run)
    soundness.check(run, true)
  end
  validation.between_steps(run, over) -- before the step's checkpoint, which has it
  if not run.away then after_step(run) end
  return not over and begin_step(run) or nil
end

-- a run ------------------------------------------------------------------------------------------

--- Iterates over the steps that are left. Ctrl-C, or what else asks the executable to end, ends the
--- process after the current one, with everything saved; a validation that the run makes by itself
--- is left for when it goes on.
--- @return fun(): ms_step?
function methods:steps()
  if not self:is_open() then fail('run: used after finish') end
  C.ms_interrupt_watch(1)
  return next_step, self
end

--- Appends a line to metrics.jsonl.
--- @param entry table
function methods:record(entry)
  if self.away then return end
  folder.hold(self)
  self.metrics:write(entry)
end

--- A step's line of metrics, and of progress.
--- @package
function methods:report(step)
  local state = self.state
  local entry = { step = state.step, kind = 'train', loss = metrics.number(step.loss),
    epoch = not self.dataless and state.epoch + state.index / self.plan:count() or nil,
    terms = step.tally:entry(),
    grad_norm = metrics.number(step.grad_norm), tokens = step.tokens, skipped = step.skipped,
    seconds = step.seconds, tokens_per_second = telling.rate(step) }
  if self.grid.dp.size > 1 then entry.sent = step.sent end
  if step.tally:empty() then entry.loss, entry.grad_norm = nil, nil end -- neither was measured
  entry.transfer = transfer.entry(self.carriers)
  for _, name in ipairs(self.schedule_names) do entry[name] = metrics.number(step[name]) end
  self:record(entry)
  if not self.activations then -- known once a step was run
    self.activations = self.student:info().memory.activations
    self:say('activations: ' .. progress.bytes(self.activations))
  end
  local whole = not step.skipped and not step.tally:empty()
  if whole and not self.messages and self.grid.dp.size > 1 then
    self.messages = telling.messages(self)
    self:say(self.messages)
  end
  self.progress:step(state.step, state.total, telling.step, step)
end

--- Prints a line, above the progress line where there is one.
--- @param line string
function methods:say(line) self.progress:say(line) end

--- Puts the checkpoints of all steps after `step` aside.
--- @package
function methods:set_aside_after(step) checkpoints.set_aside_after(self, step) end

--- The folder of a step's checkpoint.
--- @package
function methods:checkpoint_path(step) return ('%s/step-%08d'):format(self.checkpoints, step) end

-- Once the checkpoint of a step is there. What it cannot hold ends the run.
local function is_saved(run, step, unfit)
  run.saved = step
  checkpoints.prune(run)
  if not unfit then return end
  run:close()
  error(('run: %s, which a checkpoint cannot hold; step %d is saved without it in %s')
    :format(unfit, step, run:checkpoint_path(step)), 0)
end

local NOTICEABLE = 0.5 -- seconds that training waited, from which on it is said

--- Puts a checkpoint that is being written in its place, if it is done; `wait`: once it is.
--- @package
--- @param wait boolean
function methods:finish_checkpoint(wait)
  local begun, since = self.writing, C.ms_clock()
  if not begun then return end
  local there, waited = self.optimizer:finish_write(wait)
  local now = C.ms_clock()
  begun.spent = begun.spent + now - since
  if not there then return end
  self.writing = nil
  is_saved(self, begun.step)
  local stall = begun.spent + waited
  if stall < NOTICEABLE then return end
  self:say(('checkpoint of step %d: training waited for %.1f of the %.1f seconds that it took')
    :format(begun.step, stall, now - begun.since))
end

-- Whether a checkpoint of so many bytes is written while the next step is learnt.
local function goes_aside(run, bytes)
  if run.aside == 'auto' then return bytes >= 64e6 end
  return run.aside
end

-- `now`: it is to be there when this returns.
local function write_checkpoint(run, now)
  if run.away then return end
  run:finish_checkpoint(true)
  local state, since = run.state, C.ms_clock()
  if run.saved == state.step then return end
  soundness.check_weights(run)
  folder.hold(run)
  local bytes = preflight.room(run)
  local all, unfit = checkpoints.encode(run)
  local path = run:checkpoint_path(state.step)
  if now or unfit or not goes_aside(run, bytes) then
    run.optimizer:write(path, run.student, all)
    return is_saved(run, state.step, unfit)
  end
  run.optimizer:begin_write(path, run.student, all)
  run.writing = { step = state.step, since = since, spent = C.ms_clock() - since }
end

--- Saves everything the run needs to go on; older checkpoints than the last few are removed. It
--- happens by itself every `checkpoint.every` steps. What `run.state` has that JSON cannot hold is
--- an error once all the rest is saved; it is looked for after every step.
function methods:checkpoint() write_checkpoint(self, true) end

--- The same, which may go on while the next step is learnt, until its update.
--- @package
function methods:due_checkpoint() write_checkpoint(self, false) end

local function open_schedules(run, given)
  run.schedules = {}
  for name, f in sorted.pairs(given or {}) do
    if steps.has(run.step, name) then
      fail("run: a schedule cannot be called '%s'", name)
    end
    if type(f) ~= 'function' then
      fail("run: schedule '%s' is a %s, not a function", name, type(f))
    end
    run.schedules[name] = f
  end
  run.schedules.lr = run.schedules.lr or schedule.of(run.cfg.optim or {})
  run.schedule_names = sorted.keys(run.schedules)
end

--- How far a run is. What schedules and recipes add to it, numbers, texts and tables of these, is
--- saved with each checkpoint, and is there again when the run goes on.
--- @class ms_state
--- @field step integer steps that have begun, over all epochs
--- @field total integer steps that the run has
--- @field epoch integer the epoch, from 0
--- @field index integer the step in its epoch, from 1
--- @field progress number share of the run that lies before the step: 0 at the first, 1 at the last
--- @field tokens integer tokens that were learnt from, on all ranks
--- @field loss? number the last step's; nil before the first, and after one that was skipped
--- @field validation? table what was validated last: `loss`, `agree` and so on, and the `step`
---   after which it was; nil before the first
--- @field skipped integer steps whose gradient was not finite
--- @field skips integer how many of these came last, in a row
--- @field empty integer steps in which no position had a weight

local OPTIONS = { student = true, data = true, schedules = true, carry = true, quiet = true,
  validation = true }

local function new_run(cfg, o, options)
  local grid = options.student:grid()
  local of = grid.all or ranks.none()
  local data = options.data or no_data
  local run = setmetatable({ cfg = cfg, student = options.student, data = data,
    dataless = data == no_data, validation = options.validation, carry = options.carry,
    output = cfg.output, checkpoints = cfg.output .. '/checkpoints',
    student_path = cfg.output .. '/student', saved = 0, validated = {}, part = {}, ranks = of,
    grid = grid, others = grid:others(), carriers = {},
    fingerprint = data.fingerprint and data:fingerprint(),
    every = o.checkpoint.every, keep = o.checkpoint.keep, aside = o.checkpoint.aside,
    max_skips = o.optim.max_skips,
    quiet = options.quiet, batch_size = o.batch }, class)
  run.progress = progress.new(of, { quiet = options.quiet, send = others.printer(run) })
  if not grid.holds then run.away = others.new(run) end
  run.step = steps.new(run)
  run.state = strict.mark('state', { step = 0, epoch = 0, index = 0, progress = 0, tokens = 0,
    skips = 0, skipped = 0, empty = 0, still = 0, far = 0, ruined = 0, sound = 0 })
  return run
end

local function make_folder(path) check.file(C.ms_dir_make(path)) end

-- What each rank but the first says goes into a file of its own.
local function open_logs(run)
  local all, logs = run.ranks, run.output .. '/logs'
  if run.cfg.log ~= 'all' or all.size == 1 then return end
  all:write(make_folder, logs)
  run:say(('log: ranks 1 to %d say how they go in %s'):format(all.size - 1,
    ranks.log_path(logs, 'N')))
  local head = ranks.log_in(logs)
  if not head then return end
  run.progress = progress.new(all, { quiet = run.quiet })
  run:say(head)
end

-- The student's folder, and those of checkpoints, say how the data's turns are written.
local function keep_template(run)
  local chat, path = run.data.chat, run.student:info().path
  local carry = run.carry or (type(path) == 'string' and path or nil)
  for name, content in sorted.pairs(chat and chat:files(carry) or {}) do
    run.student:set_text(name, content)
  end
end

-- Ranks that read other files, or the same ones in another state, would each go their own way.
local function check_ranks(run)
  if run.ranks:same(run.fingerprint or '') then return end
  error('run: the ranks have different training data: are its files the same on all machines, and '
    .. 'was none changed just now?', 0)
end

-- Everything that can fail once the folder is the run's.
local function start(run)
  open_logs(run)
  check_ranks(run)
  run.state.total = count_steps(run)
  run.student:add_ends(run.data.chat and run.data.chat.stop or {})
  keep_template(run)
  run.optimizer = optimizer.new(run.student, run.cfg.optim, run.grid.dp)
  checkpoints.clean(run)
  finished.check(run)
  checkpoints.resume(run)
  run.ranks:write(make_folder, run.checkpoints)
  run:plan_epoch(run.state.epoch)
  run.metrics = metrics.open(run.output .. '/metrics.jsonl', run.state.step, run.ranks,
    function(line) run:say(line) end)
  finished.look(run)
  if run.finished then return end
  preflight.check(run)
  departures.say(run)
  run:say(telling.size(run))
end

-- A recipe's configuration as a table of which any key may be asked.
local function plain(cfg)
  local copy = {}
  for key, value in sorted.pairs(cfg) do copy[key] = schema.plain(value) end
  return copy
end

-- A grid that was asked for, and a student that knows nothing of it.
local function check_grid(cfg, student)
  local asked, own = cfg.grid and grids.open(cfg.grid), student:grid()
  if not asked or asked:is_same(own) then return end
  fail('run.open: cfg.grid is %s, but the student was opened with %s: ms.model.open(folder, { grid '
    .. '= ms.grid(cfg.grid), train = true })', tostring(asked), tostring(own))
end

-- What ranks with the student do.
local function open_here(run)
  if run.away then return true end
  return pcall(function()
    folder.take(run)
    open_outputs[run.output] = true
    start(run)
  end)
end

--- Opens a run, and resumes it when its output folder has a checkpoint (`cfg.resume`).
--- One run at a time may have an output folder.
--- @param cfg table a recipe's configuration, see `options`; output is needed
--- @param options table student: the model that learns; data: its data set, without which
---   every step must be given its batches (`step:use`) and `cfg.max_steps` is needed; schedules:
---   functions of the run's state by name, of which `lr` comes from `cfg.optim` unless given;
---   validation: what is measured before the first step, in every step that `cfg.validate` divides
---   and after the last one, as for `run:validate`: { data =, teacher =, vocab =, kd = }, without
---   data nothing; carry: the folder whose tokenizer goes along with the result; quiet: nothing is
---   printed
--- @return ms_run
function M.open(cfg, options)
  local taken = schema.take('run.open', M.options, check.table('run.open', 'cfg', cfg))
  cfg = plain(cfg)
  options = options_of.known('run.open', OPTIONS, options)
  if options.student == nil then fail 'run.open: student is needed' end
  handles.object('run.open', 'student', options.student, 'model')
  local data = options.data
  if data ~= nil then handles.object('run.open', 'data', data, 'dataset', 'steps') end
  if options.validation ~= nil then validation.check('run.open: validation', options.validation) end
  if type(cfg.output) ~= 'string' or cfg.output == '' then
    fail('run.open: cfg.output must name a folder')
  end
  check_grid(cfg, options.student)
  preflight.apart(cfg, options)
  local ok, why = fail.pcall(json.encode, cfg)
  if not ok then fail('run.open: checkpoints cannot hold this cfg: ' .. tostring(why)) end
  local run = new_run(cfg, taken, options)
  if run.dataless and #run.others > 0 then
    fail('run.open: a run without data needs its student on all ranks, which lies on some: %s',
      tostring(run.grid))
  end
  open_schedules(run, options.schedules)
  ok, why = open_here(run)
  if #run.others > 0 then
    local agreed, other = pcall(others.agree, run, not ok and tostring(why) or nil)
    if ok then ok, why = agreed, other end
  end
  if ok and not run.finished then ok, why = pcall(timeline.start, run) end
  if ok then return run end
  run:close() -- in a session that goes on, the folder must be free for the next try
  error(why, 0)
end

--- Losses over a whole validation set, with the same normalisation as in training: CE, and with a
--- teacher the divergence from it, under the name of the objective. For loops that choose
--- themselves when to measure; otherwise see the `validation` of `run.open`.
--- @param options table data: the set, without which nothing happens; teacher; kd: what to measure,
---   as for `ms.kd`, by default forward KL at T = 1; `vocab`: how many ids the models share, by
---   default those that both and their tokenizers have. Asked again in the same step, of the same
---   data, weights and measure, it does nothing new.
--- @return table? { loss?, agree?, forward_kl?, teacher_agree? } what is not there was not
---   measured: no position had a weight. An error when nothing was.
function methods:validate(options) return validation.validate(self, options) end

-- the end ----------------------------------------------------------------------------------------

--- Whether it was neither finished nor closed.
--- @package
function methods:is_open() return self.optimizer ~= nil or self.away ~= nil and not self.closed end

--- Drops the step's batches, and what came for them.
--- @package
function methods:drop_step() steps.drop_batches(self.step) end

--- Frees what the run holds, and gives Ctrl-C back. `finish` does it.
function methods:close()
  if self.away then
    self.closed = true
    C.ms_interrupt_watch(0)
  end
  if not self.locked then return end
  steps.drop_batches(self.step)
  self.progress:finish()
  if self.optimizer then self.optimizer:free() end -- and with it what is being written
  self.optimizer, self.writing = nil, nil
  folder.give_back(self)
  timeline.drop(self)
  open_outputs[self.output] = nil
  C.ms_interrupt_watch(0)
end

--- Ends the run on all ranks, those without the student as well, and where a status is given the
--- process.
--- @package
--- @param status? integer
--- @param message? string
function methods:leave(status, message)
  others.leave(self, status, message)
  timeline.finish(self)
  self:close()
  if status then exit(status, message) end
end

local function save_student(run)
  run.student:save(run.student_path, run.carry and { carry = run.carry } or nil)
  run.ranks:write(finished.write, run)
end

--- Saves a last checkpoint, and the student in the folder `student` of the output folder: there is
--- the one that was there or the new one, whole, at any moment.
function methods:finish()
  if not self:is_open() then fail('run: finished already') end
  steps.check_closed(self.step)
  if self.away then
    if not self.finished then validation.between_steps(self, true) end
    return self.away:finish()
  end
  if not self.finished then
    learning.check_end(self)
    soundness.check(self, true)
    validation.between_steps(self, true) -- where the loop was left early
    self:checkpoint()
    folder.hold(self)
    save_student(self)
    local unlearnt = learning.describe(self.state)
    self:say(('the student is saved in %s after %d steps%s, %s tokens'):format(self.student_path,
      self.state.step, unlearnt and (' (%s)'):format(unlearnt) or '',
      progress.count(self.state.tokens)))
    local carried = transfer.words(self.carriers)
    if carried then self:say(carried) end
  end
  self:leave()
end

return callable(M, 'open')
