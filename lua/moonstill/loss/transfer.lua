--- Transfers: targets of a teacher that come from the ranks which have it to those which have the
--- student. A run makes them where its recipe does not; who asks for other settings does:
---
---   ms.transfer { from = teacher, to = student, depth = 3 }
---
--- The first `targets` of a step runs the teacher over all of its samples, each rank that has it
--- over its part, in the teacher's own packing. A plan says which ranks send which rows to which;
--- what comes is kept by sample until the step is over, and each `targets` takes the rows of its
--- batch. Ranks that have only the teacher do not wait for the student: they are up to `depth`
--- steps ahead of it.

local ffi = require 'ffi'
local C = require 'moonstill.C'
local callable = require 'moonstill.base.callable'
local check = require 'moonstill.base.check'
local device = require 'moonstill.tensor.device'
local fail = require 'moonstill.base.fail'
local handles = require 'moonstill.base.handle'
local json = require 'moonstill.base.json'
local plans = require 'moonstill.run.plan'
local progress = require 'moonstill.base.progress'
local ranks = require 'moonstill.base.ranks'
local schema = require 'moonstill.base.schema'
local sorted = require 'moonstill.base.sorted'
local strict = require 'moonstill.base.strict'
local targets = require 'moonstill.loss.target'
local teachers = require 'moonstill.loss.teacher'
local text = require 'moonstill.base.text'

local M = {}

local DTYPE = { f32 = C.MS_F32, bf16 = C.MS_BF16 }

--- The `transfer` of a configuration.
M.settings = schema.new('transfer', {
  depth = schema.option(2, 'how many steps ahead of the student a teacher on other ranks may be',
    'integer >= 1 <= 64'),
  dtype = schema.one_of({ 'f32', 'bf16' }, nil, 'of the log-probabilities of topk targets on their '
    .. 'way; bf16 is fewer bytes, and less exact'),
  backend = schema.one_of({ 'auto', 'mpi', 'shm' }, nil, 'what carries them: shm, memory that the '
    .. 'ranks of a machine share, and messages between machines; mpi, messages; auto, shm where it '
    .. 'can be'),
})

--- What `ms.transfer` takes.
M.options = schema.new('transfer', {
  from = schema.required('model', 'the teacher'),
  to = schema.required('model', 'the student'),
}, M.settings)

--- What a teacher's targets go through from its ranks to those of a student.
--- @class ms_transfer
--- @field depth integer how many steps the teacher's ranks may be ahead
local methods = {}
local class = strict.class('transfer', methods, nil, { 'depth' })

local made = setmetatable({}, { __mode = 'k' }) -- by teacher, then by student

--- Says how targets go from a teacher to a student that lie on other ranks: before the first are
--- asked for. Without it a run has its own, with the settings of its configuration.
--- @param options table see `options`
--- @return ms_transfer
function M.open(options)
  local o = schema.take('transfer', M.options, options)
  handles.object('transfer', 'from', o.from, 'model')
  handles.object('transfer', 'to', o.to, 'model')
  local x = setmetatable({ depth = o.depth, dtype = o.dtype, backend = o.backend,
    grid = o.from:grid(), carriers = {}, list = {} }, class) -- it keeps neither model alive
  made[o.from] = made[o.from] or setmetatable({}, { __mode = 'k' })
  made[o.from][o.to] = x
  return x
end

--- The transfer between two models: that of `ms.transfer`, or a new one.
--- @package
--- @param teacher ms_model
--- @param student ms_model
--- @param settings? table a configuration's `transfer`
--- @return ms_transfer
function M.between(teacher, student, settings)
  local known = made[teacher] and made[teacher][student]
  if known then return known end
  local o = schema.take('transfer', M.settings, settings)
  return M.open { from = teacher, to = student, depth = o.depth, dtype = o.dtype,
    backend = o.backend }
end

function class:__tostring()
  return ('transfer from %s, %d steps ahead at most'):format(tostring(self.grid),
    self.depth)
end

--- What has gone through it: a table for each kind of target that was asked for, with `kind`; bytes
--- by tensor, `sent` by this rank and `received`, and of all of them those that were `shared` in a
--- machine's memory; `messages`; `seconds` by phase (`pack`: rows into messages; `wait`: for those
--- of others; `exchange`: within the student's groups; `take`: targets out of them); bytes `held`
--- now, and the `most` at any time.
--- @return table[]
function methods:info()
  local list = {}
  for i, c in ipairs(self.list) do list[i] = c:told() end
  return list
end

-- carriers: targets of one kind ------------------------------------------------------------------

local out = ffi.new 'ms_transfer *[1]' -- scratch, read at once
local model_out = ffi.new 'ms_model *[1]'
local target_out = ffi.new 'ms_target *[1]'
local string_out = ffi.new 'char *[1]'
local count = ffi.new 'int32_t[1]'
local ints = ffi.typeof 'int32_t[?]'

local carrier = {}
local carrier_class = { __index = carrier }

local free_channels -- numbers, the next one last

-- The channels are taken and given back in the same order on all ranks: by their one program.
local function take_channel(teacher)
  if not free_channels then
    free_channels = {}
    for i = #ranks.channels(), 2, -1 do table.insert(free_channels, i) end -- 1 is for letters
  end
  local number = table.remove(free_channels)
  if not number then
    fail('transfer: of teachers on other ranks at most %d kinds of targets can be asked for in a '
      .. 'run; %s asks for one more', #ranks.channels() - 1, tostring(teacher))
  end
  return number
end

local function layout_of(grid)
  return { dp = grid.shape.dp, tp = grid.shape.tp, ranks = grid.ranks }
end

-- The teacher's head on a rank that does not have the teacher, or not all of it: cut where the
-- student's is.
local function open_head(model, run)
  local info = model:info()
  if type(info.path) ~= 'string' then
    fail('targets: hidden targets need the head of the teacher on the ranks of the student, which '
      .. 'is read from its folder, and it has none: save it and open that, or ask for topk')
  end
  local cut = run.grid.shape.tp > 1
  local o = ffi.new('ms_model_options', { dtype = DTYPE[info.dtype], head_only = 1,
    tp = cut and run.grid.tp.group or nil, vocab_cut = cut and run.student:info().vocab or 0 })
  check.file(device.on(run.cfg.device or 'cpu', function(dev)
    return C.ms_model_open(dev, info.path, o, model_out)
  end))
  return model_out[0]
end

local function width_of(o, info)
  if o.target == 'topk' then return o.k end
  return o.target == 'hidden' and info.hidden_size or info.vocab
end

-- A carrier's core: `own` is the model of the teacher on this rank, if it is here.
local function new_core(group, model, own, o, run)
  local head
  local needs = o.target == 'hidden' and run.grid.holds
  local from, to = model:grid(), run.grid
  -- ranks of a student that is cut open heads together, or none does
  local whole = own and from.shape.tp == 1 and (to.shape.tp == 1 or from:has_all(to))
  if needs and not whole then head = open_head(model, run) end
  local status = C.ms_transfer_new(group, targets.pack(o), width_of(o, model:info()),
    DTYPE[o.wire], needs and (head or own) or nil, out)
  if head then C.ms_model_free(head) end
  check(status)
  return ffi.gc(out[0], C.ms_transfer_free)
end

local serial = 0 -- of carriers: the same on all ranks, by their one program

-- Ranks of a machine pass each other rows in memory.
local function share(self, core)
  serial = serial + 1
  local apart = ranks.channels().apart
  if self.backend == 'shm' and apart then
    fail("transfer: backend 'shm', but ranks cannot share memory here: %s; 'auto' sends messages",
      apart)
  end
  if self.backend ~= 'mpi' and not apart then
    check(C.ms_transfer_share(core, serial, self.depth))
  end
end

local function new_carrier(self, run, model, own, o)
  if o.target == 'logits' and model:grid().shape.tp > 1 then
    fail('targets: logits of a teacher that is cut over ranks (%s) do not come to other ranks: ask '
      .. 'for hidden, which is the same', tostring(model:grid()))
  end
  local channel = take_channel(model)
  local c = setmetatable({ channel = channel, model = model, own = own, options = o,
    from = model:grid(), to = run.grid, transfer = self, read = 0 }, carrier_class)
  o.wire = self.dtype
  c.plan = plans.new(layout_of(c.from), layout_of(c.to), c.from.world.size)
  c.core = new_core(ranks.channels()[channel].group, model, own, o, run)
  share(self, c.core)
  c.row_bytes = plans.row_bytes(o.target, width_of(o, model:info()),
    o.target == 'hidden' and o.dtype or o.wire)
  return c
end

local KEYS = { 'target', 'k', 'on', 'dtype', 'vocab', 'temperature', 'teacher_temperature' }

local function carrier_of(self, run, model, own, o)
  local words = {}
  for i, key in ipairs(KEYS) do words[i] = tostring(o[key]) end
  local key = table.concat(words, ' ')
  local c = self.carriers[key]
  if not c then
    c = new_carrier(self, run, model, own, o)
    self.carriers[key] = c
    self.list[#self.list + 1] = c
    run.carriers[#run.carriers + 1] = c
  end
  return c
end

-- What has come of a kind since this was asked last.
local function news(self)
  local now, before = self:told(), self.before
  self.before = now
  local entry = { kind = now.kind, received = {}, wait = now.seconds.wait, take = now.seconds.take }
  for name, bytes in sorted.pairs(now.received) do
    entry.received[name] = bytes - (before and before.received[name] or 0)
  end
  for _, phase in ipairs { 'wait', 'take' } do
    entry[phase] = now.seconds[phase] - (before and before.seconds[phase] or 0)
  end
  return entry
end

--- What a step's line of metrics says of what has come for it: bytes by tensor, and the seconds
--- that were waited for it. nil where nothing is carried.
--- @package
--- @param carriers table[] of a run
--- @return table[]?
function M.entry(carriers)
  if #carriers == 0 then return nil end
  local list = json.array()
  for i, c in ipairs(carriers) do list[i] = news(c) end
  return list
end

--- The same of all that came and was sent, in words.
--- @package
--- @param carriers table[] of a run
--- @return string?
function M.words(carriers)
  local words = {}
  for i, c in ipairs(carriers) do
    local info, came = c:told(), 0
    for _, bytes in sorted.pairs(info.received) do came = came + bytes end
    words[i] = ('%s: %s came, waited for %.2f s'):format(info.kind, progress.bytes(came),
      info.seconds.wait)
  end
  return words[1] and 'targets of other ranks: ' .. table.concat(words, '; ')
end

--- What has gone through it.
--- @package
--- @return table
function carrier:told()
  if not self.core then return self.last end
  check(C.ms_transfer_info(self.core, string_out))
  local info = json.decode(text(string_out[0]), 'transfer')
  info.kind = self.options.target
  return info
end

-- Which model takes each sample.
local function takers(packing, n)
  local list = {}
  for m, places in ipairs(packing.places) do
    for _, place in ipairs(places) do list[place + 1] = packing.takes[m] end
  end
  assert(#list == n)
  return list
end

-- How many rows each sample of a round has.
local function rows_of(round, on)
  local all, list = round:all(), {}
  if #all == 0 then return list end
  local rows, batch = ints(#all), round.data:batch(all)
  check(C.ms_batch_rows(handles.pointer('batch', batch), on == 'all' and 1 or 0, rows))
  batch:free()
  for i = 1, #all do list[i] = rows[i - 1] end
  return list
end

-- Runs the teacher over this rank's part of a round.
local function make(self, round, ask)
  local packing, me = round:packing(self.from.shape.dp), self.from:model()
  for m, samples in ipairs(packing.micro) do
    if packing.takes[m] == me then
      local batch = round.data:batch(samples)
      local ok, why = pcall(function()
        local target = ask(batch)
        check(C.ms_transfer_add(self.core, handles.pointer('target', target), #samples,
          ints(#samples, packing.places[m])))
        target:free()
      end)
      batch:free()
      if not ok then error(why, 0) end
    end
  end
end

-- Remembers what this rank has sent for a step, for the case that nobody reads it.
local function log_sent(self, round)
  local list, messages = {}, self.plan:messages()
  local plan = handles.pointer('transfer_plan', self.plan)
  local mine = C.ms_plan_of_rank(plan, self.from:here(), count)
  for i = 0, count[0] - 1 do
    local m = messages[mine[i]]
    if m.from == self.from:here() and m.stage == C.MS_PLAN_SEND
        and C.ms_transfer_shares(self.core, m.to) == 0 then
      list[#list + 1] = { to = m.to, bytes = tonumber(m.rows) * self.row_bytes }
    end
  end
  round.run.away:log(self.channel, round.number, list)
end

local function run_round(self, round, ask)
  local rows = rows_of(round, self.options.on)
  local n = #rows
  local made_by = takers(round:packing(self.from.shape.dp), n)
  local needed_by = takers(round:packing(self.to.shape.dp), n)
  local from, to, own = self.from:model(), self.to:model(), ffi.new('uint8_t[?]', math.max(n, 1))
  for i = 1, n do own[i - 1] = made_by[i] == from and needed_by[i] == to and 1 or 0 end
  self.plan:fill(rows, made_by, needed_by)
  check(C.ms_transfer_begin(self.core, handles.pointer('transfer_plan', self.plan), n,
    ints(math.max(n, 1), rows), own))
  if self.from.holds then make(self, round, ask) end
  check(C.ms_transfer_send(self.core))
  if round.number and round.run.away then log_sent(self, round) end
  if not self.to.holds then return end
  check(C.ms_transfer_receive(self.core))
  if round.number then self.read = round.number end
end

--- Ends a round on this rank.
function carrier:finish() check(C.ms_transfer_end(self.core)) end

--- Waits until all is read that this rank has sent, and gives its channel back.
function carrier:close()
  check(C.ms_transfer_settle(self.core))
  self.last, self.transfer.carriers = self:told(), {}
  C.ms_transfer_free(ffi.gc(self.core, nil))
  self.core = nil
  table.insert(free_channels, self.channel)
  table.sort(free_channels, function(a, b) return a > b end)
  self.own, self.model = nil, nil
end

--- A target of a batch of a round, whose rows come from the ranks that have the teacher.
--- @package
--- @param round table
--- @param micro? integer the batch's place among the student's; nil: it has no samples
--- @param model ms_model the teacher
--- @param own? ffi.cdata* the core's, where this rank has it
--- @param batch ms_batch
--- @param o table of `targets.options`, checked
--- @param ask fun(batch: ms_batch): ms_target makes one here
--- @return ms_target
function M.target(round, micro, model, own, batch, o, ask)
  local run = round.run
  local self = M.between(model, run.student, rawget(run.cfg, 'transfer'))
  local c = carrier_of(self, run, model, own, o)
  if not round.seen[c] then
    if round.number and run.away then run.away:approach(round.number, self.depth) end
    run_round(c, round, ask)
    round.seen[c] = true
    table.insert(round.seen, c)
  end
  local places = micro and round:packing(c.to.shape.dp).places[micro] or {}
  check(C.ms_transfer_take(c.core, handles.pointer('batch', batch), #places,
    ints(math.max(#places, 1), places), target_out))
  return targets.wrap(target_out[0], teachers.of(model))
end

--- A target of no rows, for ranks that neither make nor learn from one.
--- @package
--- @param model ms_model
--- @param batch ms_batch in which nothing counts
--- @param o table of `targets.options`, checked
--- @return ms_target
function M.nothing(model, batch, o)
  check(C.ms_transfer_new(C.ms_group_self(), targets.pack(o), width_of(o, model:info()), C.MS_F32,
    nil, out))
  local core = out[0]
  local status = C.ms_transfer_take(core, handles.pointer('batch', batch), 0, ints(1), target_out)
  C.ms_transfer_free(core)
  check(status)
  return targets.wrap(target_out[0], teachers.of(model))
end

return callable(M, 'open')
