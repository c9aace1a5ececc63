--- A small run that the run's tests start as a process, interrupt, kill and resume. It has all that
--- a recipe has: two models, a schedule with memory, validation.
local ffi = require 'ffi'
local ms = require 'moonstill'
local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local tools = require 'tests.support.tools'

local M = {}

M.config = { model_type = 'llama', architectures = { 'LlamaForCausalLM' }, vocab_size = 40,
  hidden_size = 16, intermediate_size = 24, num_hidden_layers = 2, num_attention_heads = 2,
  num_key_value_heads = 1, max_position_embeddings = 64, tie_word_embeddings = true,
  rms_norm_eps = 1e-5, hidden_act = 'silu', initializer_range = 0.3 }

-- Cuts a list of samples, one after the other, into parts of at most so many tokens.
local function cut(samples, list, most)
  local parts, room = {}, 0
  for _, i in ipairs(list) do
    local length = #samples[i].tokens
    if #parts == 0 or length > room then parts[#parts + 1], room = {}, most end
    table.insert(parts[#parts], i)
    room = room - length
  end
  return parts
end

--- A data set in memory, of segments as `ms.batch` takes them, in another order in each epoch.
--- @param samples table[]
--- @param name string by which it is known from other data
function M.set(samples, name)
  local data, n = {}, #samples
  function data:fingerprint() return name end -- luacheck: ignore 212

  function data:steps(seed, epoch, size)
    local order, list = ffi.new('int32_t[?]', n), {}
    check(C.ms_permutation(seed, epoch, n, order))
    for i = 1, n do list[i] = order[i - 1] + 1 end
    local steps = cut(samples, list, size.tokens)
    for i, step in ipairs(steps) do steps[i] = cut(samples, step, size.micro_tokens) end
    return steps
  end

  function data:batch(list)
    local segments = {}
    for k, i in ipairs(list) do segments[k] = samples[i] end
    return ms.batch(segments)
  end
  return data
end

--- A data set of `n` samples: of 4 to 30 tokens, the second half of each an answer.
--- `shift` changes a token of the first one, and nothing that a plan depends on; `weightless` ones
--- have no weight.
function M.data(n, shift, weightless)
  local samples = {}
  for i = 1, n do
    local length = 4 + i * 7 % 27
    local ids, tokens, response = tools.integers(length, i, M.config.vocab_size), {}, {}
    for t = 1, length do
      tokens[t] = ids[t - 1]
      response[t] = t >= length / 2 and t < length and 1 or 0
    end
    samples[i] = { tokens = tokens, response = response,
      weight = weightless and 0 or 1 + i % 3 }
  end
  samples[1].tokens[1] = (samples[1].tokens[1] + (shift or 0)) % M.config.vocab_size
  return M.set(samples, ('%d samples, shift %d'):format(n, shift or 0))
end

M.schema = { output = 'out', teacher = 'one', epochs = 2, validate = 0, dtype = ms.one_of { 'f32', 'bf16' },
  batch = { tokens = 120, micro_tokens = 60 }, kd = { target = 'logits', temperature = 2 },
  optim = { lr = 0.01, warmup = 3, clip = 1, weight_decay = 0.1, max_skips = 5,
    shard = ms.one_of { 'none', 'optimizer' } },
  checkpoint = { every = 4, keep = 2, aside = false }, samples = 60,
  shift = 0, weightless = false,
  itself = false } -- whether the run validates by itself
-- What disturbs some steps: no part of the run's settings.
M.disturbances = { rob_at = 0, rob = '', wait_at = 0, kill_at = 0, unfit_at = 0, interrupt_at = 0, signal = 2,
  nan_from = 0, nan_to = 0, wreck_at = 0, wreck_by = 1e6, slow = 0, fail_at = 0, interrupt_in = -1,
  on_rank = -1 }
for key, value in pairs(M.disturbances) do M.schema[key] = value end

ffi.cdef 'int getpid(void); int kill(int pid, int signal); int usleep(unsigned usec);'

-- What is special about some steps.
local function disturb(cfg, step)
  if cfg.on_rank >= 0 and cfg.on_rank ~= step.run.ranks.rank then return end
  if step.number == cfg.wait_at then -- until the tester lets go on
    tools.write(cfg.output .. '/waiting', '')
    while tools.exists(cfg.output .. '/waiting') do ffi.C.usleep(10000) end
  end
  if step.number == cfg.unfit_at then step.run.state.mine = print end
  if cfg.slow > 0 then ffi.C.usleep(cfg.slow * 1000) end
  if step.number == cfg.kill_at then ffi.C.kill(ffi.C.getpid(), 9) end
  if step.number == cfg.fail_at then error 'as it was told' end
  if step.number == cfg.rob_at then os.execute((cfg.rob:gsub('%%', cfg.output))) end
  if step.number == cfg.interrupt_at then ffi.C.kill(ffi.C.getpid(), cfg.signal) end
end

-- Validation data that sends a signal when its second batch is made after step `interrupt_in`.
local function validation_data(cfg, run_of)
  local data, batch, made = M.data(7), nil, 0
  batch = data.batch
  function data:batch(list)
    made = made + 1
    local run = run_of()
    if run.state.step == cfg.interrupt_in and made % 2 == 0 then ffi.C.kill(ffi.C.getpid(), cfg.signal) end
    return batch(self, list)
  end
  return data
end

function M.main(cfg)
  local settings = {}
  for key, value in pairs(cfg) do
    if ms.run.options[key] then settings[key] = value end
  end
  local student = ms.model.create(M.config, 1, { train = true, dtype = cfg.dtype })
  local teacher = ms.model.create(M.config, 2, { dtype = 'f32' })
  local data = M.data(cfg.samples, cfg.shift, cfg.weightless)
  local run
  local valid = validation_data(cfg, function() return run end)
  run = ms.run.open(settings, { student = student, data = data, validation = cfg.itself and { data = valid,
    teacher = teacher, kd = cfg.kd } or nil, schedules = {
    kd = ms.schedule.linear { from = 0.9, to = 0.5 },
    memory = function(state) -- depends on all losses so far
      state.mine = (state.mine or 0) * 0.9 + (state.loss or 0)
      return 1 / (1 + state.mine)
    end,
    plateau = function(state) return state.validation and state.validation.loss or 0 end } })
  for step in run:steps() do
    for batch in step:micro_batches() do
      local target = teacher:targets(batch, cfg.kd)
      student:learn(batch, { ms.ce((1 - step.kd) * step.memory), ms.kd(target, step.kd, cfg.kd) })
      target:free()
    end
    if step.number >= cfg.nan_from and step.number <= cfg.nan_to then M.poison(student) end
    step:update()
    if step.number == cfg.wreck_at then M.wreck(student, cfg.wreck_by) end
    if not cfg.itself and step:every(5) then run:validate { teacher = teacher, data = valid, kd = cfg.kd } end
    disturb(cfg, step)
  end
  if not cfg.itself then run:validate { data = valid } end
  run:finish()
end

--- Multiplies the weights of one parameter, as a far too large step would.
function M.wreck(student, by)
  local _, weight, gradient = student:parameters()()
  local n = weight:count()
  local w = weight:read(ffi.new('float[?]', n))
  for i = 0, n - 1 do w[i] = w[i] * by end
  weight:write(w)
  gradient:free()
  weight:free()
end

--- Makes one element of a gradient infinite.
function M.poison(student)
  local _, weight, gradient = student:parameters()()
  local n = gradient:count()
  local g = gradient:read(ffi.new('float[?]', n))
  g[n - 1] = math.huge
  gradient:write(g)
  gradient:free()
  weight:free()
end

if arg and arg[0] and arg[0]:find 'run_recipe' then M.main(ms.config(M.schema)) end

return M
