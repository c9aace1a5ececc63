--- Losses: the list of terms that `student:learn` takes, and what to ask of a teacher.
---
---   local target = teacher:targets(batch, cfg.kd)
---   student:learn(batch, { ms.ce(0.5), ms.kd(target, 0.5, cfg.kd) })
---
--- The loss is sum_i weight_i * (mean of term i over its positions); any number of terms, also of
--- several teachers, in a step each with a name of its own (`{ name = 'large' }`). A term may be
--- kept and used again: `term:set(weight, target)` makes no garbage.

local ffi = require 'ffi'
local C = require 'moonstill.C'
local callable = require 'moonstill.base.callable'
local check = require 'moonstill.base.check'
local fail = require 'moonstill.base.fail'
local handles = require 'moonstill.base.handle'
local objectives = require 'moonstill.loss.objectives'
local results = require 'moonstill.loss.result'
local rounds = require 'moonstill.loss.rounds'
local schema = require 'moonstill.base.schema'
local sorted = require 'moonstill.base.sorted'
local step_of = require 'moonstill.loss.step_of'
local strict = require 'moonstill.base.strict'
local targets = require 'moonstill.loss.target'
local teacher = require 'moonstill.loss.teacher'
local transfer = require 'moonstill.loss.transfer'
local option = schema.option

local M = {}

--- The objectives, in the order of the core's numbers: the first one is the default.
M.objectives = objectives.names
--- What becomes of the mass outside a topk target: one more symbol, or left out on both sides.
M.tails = { 'bucket', 'renormalize' }
--- The positions a term looks at.
M.positions = targets.positions
M.targets = targets.kinds

local OWN = {
  objective = schema.one_of(M.objectives, nil, 'divergence from the teacher',
    objectives.meanings),
  weight = option(0.5, 'of the distillation term; the labels have the rest', 'number >= 0 <= 1'),
  tail = schema.one_of(M.tails, nil, 'what happens to the mass outside the top k', {
    bucket = 'it counts as one more symbol, on both sides',
    renormalize = 'it is left out, and both sides are scaled to sum to 1 without it',
  }):beside('target', 'topk'),
  t_scale = option('auto', 'factor of the term; auto: T^2 where the objective needs it',
    'auto|false|number > 0 <= 1e6'),
}
for name, parameter in sorted.pairs(objectives.options) do OWN[name] = parameter end

--- The `kd` of a configuration: what a teacher is asked for, and what a term makes of it. weight is
--- not read here: it is an argument of a term. t_scale: auto is T^2, and T for tvd. alpha: the head
--- of adaptive_kl are the fewest largest p with mass >= 1 - alpha - 1e-6.
M.options = schema.new('kd', OWN, targets.options)

-- What a term takes beside its weight: the `kd` of a configuration, and a name of its own, which no
-- configuration has.
local TERM = schema.new('kd', {
  name = schema.optional('string', 'what metrics and progress call it, by default kd'),
}, M.options)

local NAN = 0 / 0

--- The options of a term: `options`, and its `name`.
--- @package
--- @return table<string, ms_option>
function M.term_options() return TERM end

-- The core's number of a name: its place in the list, from 0.
local function number_of(list, name)
  for i, known in ipairs(list) do
    if known == name then return i - 1 end
  end
end

local function scale_of(t_scale)
  if t_scale == 'auto' then return NAN end
  return t_scale == false and 1 or t_scale
end

local function check_weight(weight)
  if type(weight) ~= 'number' then
    fail('the weight of a term is a number, got %s', type(weight))
  end
  return weight
end

-- What a term's options may say of its target, and what the target calls it. Another target means
-- other numbers. k may differ: a target made of values has its own.
local CARRIED = { { 'target', 'kind' }, { 'temperature', 'temperature' },
                  { 'teacher_temperature', 'teacher_temperature' }, { 'vocab', 'vocab' } }

local function asked_of(cfg)
  local asked
  for _, pair in ipairs(CARRIED) do
    local value = cfg and rawget(cfg, pair[1]) -- a configuration is strict
    if value ~= nil and value ~= 0 then -- vocab 0: the target's
      asked = asked or {}
      asked[pair[2]] = value
    end
  end
  return asked
end

local function check_target(target, asked)
  handles.pointer('target', target)
  if not asked then return end
  local info = target:info()
  for _, pair in ipairs(CARRIED) do
    local want, has = asked[pair[2]], info[pair[2]]
    -- a target without a temperature takes the term's
    if want ~= nil and want ~= has and (has ~= nil or pair[2] ~= 'temperature') then
      fail('kd: the term asks for %s = %s, its target has %s', pair[1], tostring(want),
        tostring(has))
    end
  end
end

--- One term of a loss, made by `ms.ce` or `ms.kd`. It may be kept and used again.
--- @class ms_term
--- @field kind string "ce" or "kd"
--- @field on string the positions it looks at: "response" or "all"
--- @field weight number what its mean is multiplied with; it may be set
--- @field target? ms_target what the teacher said; it may be set, see `set`
--- @field name? string what metrics and progress call it; nil: its kind
local methods = {}
local ABSENT = { weight = true, target = true, asked = true, name = true }
local term = strict.class('term', methods, ABSENT, { 'kind', 'on', 'weight', 'target', 'name' })

function term:__newindex(name, value)
  if not ABSENT[name] then fail("term: no '%s' can be set", tostring(name)) end
  rawset(self, name, value)
end

--- Changes weight and, for KD, target (nil: as it was).
--- @param weight number
--- @param target? ms_target
--- @return ms_term self
function methods:set(weight, target)
  self.weight = check_weight(weight)
  if target then
    if self.kind ~= 'kd' then fail('a CE term has no target') end
    check_target(target, self.asked)
    self.target = target
  end
  return self
end

--- What metrics and progress call the term: its name, or its kind.
--- @return string
function methods:called() return self.name or self.kind end

--- What the term measures, whatever its weight: where two terms differ in any of it, they are not
--- one and the same.
--- @return table<string, any>
function methods:meaning()
  if self.kind == 'ce' then return { kind = 'ce', on = self.on } end
  local c, info = self.c, self.target:info()
  local name = M.objectives[c.objective + 1]
  local meaning = { kind = 'kd', on = self.on, objective = name, target = info.kind, k = info.k,
    dtype = info.dtype, vocab = info.vocab, teacher_temperature = info.teacher_temperature,
    temperature = info.temperature or 1, teacher = targets.teacher(self.target) }
  if c.temperature == c.temperature then meaning.temperature = c.temperature end
  meaning.t_scale = c.t_scale == c.t_scale and c.t_scale or 'auto'
  if info.k then meaning.tail = M.tails[c.tail + 1] end
  local parameter = objectives.parameter[name]
  if parameter then meaning[parameter] = c.parameter end
  return meaning
end

function term:__tostring()
  if self.kind == 'ce' then return ('%g * ce (%s)'):format(self.weight, self.on) end
  return ('%g * %s (%s) against %s'):format(self.weight, M.objectives[self.c.objective + 1],
    self.on, tostring(self.target))
end

local function new_term(kind, weight, on, name)
  if name == '' then fail('the name of a term is a word, not an empty text') end
  local c = ffi.new 'ms_term'
  c.kind = kind == 'ce' and C.MS_TERM_CE or C.MS_TERM_KD
  c.on = number_of(M.positions, on)
  c.temperature, c.t_scale, c.parameter = NAN, NAN, NAN
  local fields = { kind = kind, weight = check_weight(weight), on = on, c = c, name = name }
  return setmetatable(fields, term)
end

--- The options of `ms.ce`.
M.ce_options = schema.new('ce', {
  on = targets.options.on,
  name = schema.optional('string', 'what metrics and progress call it, by default ce'),
})

-- Weight and options of a term. A weight that is left out is 1; one that is nil may be a slip of
-- the pen, and is an error later.
local function arguments(...)
  if select('#', ...) == 0 then return 1 end
  return ...
end

--- A term of a loss: the cross-entropy of the labels, over the student's whole vocabulary, at T =
--- 1.
--- @param weight? number of the term, default 1; one that is nil is an error
--- @param options? table see `ce_options`
--- @return ms_term
function M.ce(...)
  local weight, options = arguments(...)
  local o = schema.take('ce', M.ce_options, options)
  return new_term('ce', weight, o.on, o.name)
end

-- A term's options: those of `more` over those of `cfg`.
local function over(cfg, more)
  if more == nil then return cfg end
  schema.check('kd', TERM, cfg)
  schema.check('kd', TERM, more)
  local all = schema.part(TERM, cfg or {})
  for key, value in sorted.pairs(more) do all[key] = value end
  return all
end

local function new_divergence(target, ...)
  local weight, cfg, more = arguments(...)
  cfg = over(cfg, more)
  local o, asked = schema.take('kd', TERM, cfg), asked_of(cfg)
  check_target(target, asked)
  local t = new_term('kd', weight, o.on, o.name)
  t.target, t.asked = target, asked
  t.c.objective, t.c.tail = number_of(M.objectives, o.objective), number_of(M.tails, o.tail)
  t.c.temperature, t.c.t_scale = o.temperature or NAN, scale_of(o.t_scale)
  local parameter = objectives.parameter[o.objective]
  if parameter then t.c.parameter = o[parameter] end
  return t
end

--- A term of a loss: the divergence of the student from what a teacher says, see `objective` below.
--- An error where the options ask for another temperature, vocabulary or kind of target than the
--- target has. In a step every term has a name of its own; what `more` has goes before what
--- `options` has, so that two terms can share a recipe's section:
--- `ms.kd(target, 0.5, cfg.kd, { name = 'large' })`.
--- @param target ms_target what `teacher:targets` or `ms.target` gives
--- @param weight? number of the term, default 1; one that is nil is an error
--- @param options? table see `options`; name: what metrics and progress call it, by default kd
--- @param more? table such as { name = 'large' }, over `options`
--- @return ms_term
function M.term(target, ...) return new_divergence(target, ...) end

local out = ffi.new 'ms_target *[1]' -- scratch, read at once

--- `model:targets`: runs a teacher over a batch, or takes what the ranks that have it say of that.
--- @package
--- @param model ms_model
--- @param p? ffi.cdata* `ms_model *`; nil: this rank does not have it
--- @param b ms_batch
--- @param cfg? table see `options`; a term's `name` is passed over
--- @return ms_target
function M.ask(model, p, b, cfg)
  local o, who = schema.take('kd', TERM, cfg), teacher.of(model)
  if o.vocab == 0 then o.vocab = teacher.vocab(model) end
  local function here(batch)
    local began = C.ms_trace_begin()
    check(C.ms_model_target(p, handles.pointer('batch', batch), targets.pack(o), out))
    C.ms_trace_end(began, C.MS_TRACE_WORK, 'targets')
    return targets.wrap(out[0], who)
  end
  local round, micro = rounds.get(b)
  if round and round:carries(model) then
    return transfer.target(round, micro, model, p, b, o, here)
  end
  if p then return here(b) end
  if b:weight(o.on) == 0 then return transfer.nothing(model, b, o) end
  fail('targets: other ranks have the teacher (%s); what it says comes here for the batches of a '
    .. "run's steps and validations only", tostring(model:grid()))
end

-- Scratch that grows: the core copies terms during a call.
local capacity, c_terms = 0, nil

local function pack(terms, step)
  local n = #terms
  if n > capacity then
    capacity = math.max(8, n)
    c_terms = ffi.new('ms_term[?]', capacity)
  end
  for i = 1, n do
    local t, c = terms[i], c_terms + (i - 1)
    if getmetatable(t) ~= term then
      fail('term %d is a %s, not made by ms.ce or ms.kd', i, type(t))
    end
    if t.weight ~= t.weight then fail('term %d: weight nan, not a finite number', i) end
    ffi.copy(c, t.c, ffi.sizeof 'ms_term')
    c.weight, c.norm = check_weight(t.weight), step and step:norm(t.on) or 0
    if t.target then c.target = handles.pointer('target', t.target) end
  end
  return n
end

--- `model:learn` and `model:evaluate`: runs `call` over a list of terms. Inside a step the norms
--- are those of the whole step, and what the terms give is added to it.
--- @package
--- @param call function of the core
--- @param model ffi.cdata* `ms_model *`
--- @param b ms_batch
--- @param terms ms_term[]
--- @return ms_result[]
function M.run(call, model, b, terms)
  local c_batch, step = handles.pointer('batch', b), step_of.get(b)
  check.table('model', 'terms', terms)
  local n = pack(terms, step)
  local list, memory = results.list(terms)
  local began, learns = C.ms_trace_begin(), call == C.ms_model_learn
  -- before the call: terms that do not belong to this step must not add to its gradients
  if learns then
    local last = step and step:record(b, terms, list) or nil
    check(call(model, c_batch, n, c_terms, last, memory))
    if step then step:learnt(b) end
  else
    check(call(model, c_batch, n, c_terms, memory))
  end
  C.ms_trace_end(began, C.MS_TRACE_WORK, learns and 'learn' or 'evaluate')
  return list
end

--- `model:evaluate_parts`: what each segment of a batch has of the terms.
--- @package
--- @param model ffi.cdata* `ms_model *`
--- @param b ms_batch
--- @param terms ms_term[]
--- @return ms_result[] see `ms.result`
--- @return { value: number, weight: number, agree: number }[][] parts by segment, then by term
function M.run_parts(model, b, terms)
  local c_batch, parts = handles.pointer('batch', b), {}
  check.table('model', 'terms', terms)
  local n = pack(terms, nil)
  local list, memory = results.list(terms)
  local segments = tonumber(C.ms_batch_segments(c_batch))
  local part = ffi.new('ms_segment_result[?]', math.max(segments * n, 1))
  check(C.ms_model_evaluate_parts(model, c_batch, n, c_terms, memory, part))
  for k = 1, segments do
    parts[k] = {}
    for i = 1, n do
      local of = part[(k - 1) * n + i - 1]
      parts[k][i] = { value = of.value, weight = of.weight, agree = of.agree }
    end
  end
  return list, parts
end

return callable(M, 'term')
