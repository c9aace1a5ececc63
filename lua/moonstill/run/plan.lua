--- Plans of transfers: which rank sends which samples to which, where models on some ranks need
--- what others have made on theirs.
---
---   local teacher, student = grid.layout({ tp = 2, ranks = '0-1' }, 6), grid.layout(..)
---   local plan = plans.new(teacher, student, 6)
---   plan:fill(rows, from, to)
---   print(plan:predict(516)) -- seconds, with rows of 516 bytes

local ffi = require 'ffi'
local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local fail = require 'moonstill.base.fail'
local handles = require 'moonstill.base.handle'
local schema = require 'moonstill.base.schema'

local M = {}

local out = ffi.new 'ms_plan *[1]' -- scratch, read at once
local count = ffi.new 'int32_t[1]'
local seconds = ffi.new 'double[1]'
local bytes = ffi.new 'int64_t[1]'

--- What is said of the machines, so that a plan's time can be predicted.
M.options = schema.new('plan', {
  per_machine = schema.option(0, 'how many ranks a machine has; 0: all', 'integer >= 0'),
  within = schema.option(4e9, 'bytes a second of a message that stays on a machine', 'number > 0'),
  between = schema.option(1.25e9, 'bytes a second of one that leaves it', 'number > 0'),
  latency = schema.option(2e-5, 'seconds that any takes before its first byte', 'number >= 0'),
})

--- A plan of what goes from a sender's models to a receiver's, filled for one step at a time.
--- @package
--- @class ms_transfer_plan
local kind = handles.kind('transfer_plan', 'ms_plan', C.ms_plan_free)
local methods, pointer = kind.methods, kind.pointer

local function array(list)
  local a = ffi.new('int32_t[?]', math.max(1, #list))
  for i, x in ipairs(list) do a[i - 1] = x end
  return a
end

local kept = {} -- what the core is pointed at while it makes a plan

-- One side as the core takes it.
local function side_of(what, layout)
  kept[what] = array(layout.ranks)
  return ffi.new('ms_plan_side', { layout.dp, layout.tp, kept[what] })
end

--- The machine of each rank, from 0: so many ranks on each.
--- @param rank integer
--- @param per_machine integer 0: there is one machine
--- @return integer
function M.machine(rank, per_machine)
  return per_machine > 0 and math.floor(rank / per_machine) or 0
end

--- A plan for two layouts, see `ms.grid`, which may have ranks in common.
--- @param from { dp: integer, tp: integer, ranks: integer[] } who has what the others need
--- @param to { dp: integer, tp: integer, ranks: integer[] }
--- @param size integer how many ranks there are
--- @param options? table see `options`
--- @return ms_transfer_plan
function M.new(from, to, size, options)
  local o, p, machines = schema.take('plan', M.options, options), ffi.new 'ms_plan_options', {}
  for rank = 0, size - 1 do machines[rank + 1] = M.machine(rank, o.per_machine) end
  kept.machines = array(machines)
  p.ranks, p.machine = size, kept.machines
  p.within, p.between, p.latency = o.within, o.between, o.latency
  check(C.ms_plan_new(side_of('from', from), side_of('to', to), p, out))
  return kind.new(out[0])
end

--- Fills it for a step.
--- @param rows integer[] of each sample
--- @param from integer[] the model that has it, from 0
--- @param to integer[] the model that needs it, from 0; -1: none
--- @return ms_transfer_plan self
function methods:fill(rows, from, to)
  if #rows ~= #from or #rows ~= #to then
    fail('plan:fill: %d samples, %d that have one, %d that need one', #rows, #from, #to)
  end
  kept.rows, kept.from, kept.to = array(rows), array(from), array(to)
  check(C.ms_plan_fill(pointer(self), #rows, kept.rows, kept.from, kept.to))
  return self
end

--- How long all messages take, as `ms_plan_predict` says it; sets their `begins` and `ends`.
--- @param row_bytes integer
--- @return number seconds
function methods:predict(row_bytes)
  check(C.ms_plan_predict(pointer(self), row_bytes, seconds))
  return seconds[0]
end

--- Its messages in the order in which ranks post them, valid until it is filled again or freed.
--- @return ffi.cdata* `const ms_plan_message *`
--- @return integer how many they are
function methods:messages()
  local list = C.ms_plan_messages(pointer(self), count)
  return list, count[0]
end

--- How many phases a stage has.
--- @param stage '"send"'|'"exchange"'
--- @return integer
function methods:phases(stage)
  return C.ms_plan_phases(pointer(self),
    stage == 'send' and C.MS_PLAN_SEND or C.MS_PLAN_EXCHANGE)
end

function kind.text(self)
  local _, n = self:messages()
  return ('plan of %d messages in %d and %d phases'):format(n, self:phases 'send',
    self:phases 'exchange')
end

local KINDS = { topk = C.MS_TARGET_TOPK, hidden = C.MS_TARGET_HIDDEN, logits = C.MS_TARGET_LOGITS }
local DTYPES = { f32 = C.MS_F32, bf16 = C.MS_BF16 }

--- Bytes of a row of a target.
--- @param target '"topk"'|'"hidden"'|'"logits"'
--- @param width integer k, the size of the hidden state, or the vocabulary
--- @param dtype '"f32"'|'"bf16"' of log-probabilities or hidden states
--- @return integer
function M.row_bytes(target, width, dtype)
  check(C.ms_plan_row_bytes(KINDS[target], width, DTYPES[dtype], bytes))
  return tonumber(bytes[0])
end

return M
