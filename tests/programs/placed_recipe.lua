--- A small run whose student and teachers lie on ranks of their own: what its specs start on one rank and on
--- several. It says nothing of ranks but the grids.
local ffi = require 'ffi'
local ms = require 'moonstill'
local recipe = require 'tests.programs.run_recipe'
local tools = require 'tests.support.tools'

local M = {}

M.schema = { output = 'out', grid = ms.grid.options {}, teacher_grid = ms.grid.options {},
  second_grid = ms.grid.options {}, transfer = ms.transfer.settings {}, models = ms.required 'path', two = false,
  epochs = 0, max_steps = 5, validate = 0, validation = '', samples = 40,
  resume = ms.option('auto', nil, 'auto|boolean'), seed = 3, batch = { tokens = 150, micro_tokens = 60 },
  kd = ms.kd.options { k = 6 }, ce = 0.3, objectives = false,
  optim = { lr = 0.01, warmup = 0, clip = 1, weight_decay = 0.1, max_skips = 3, shard = 'none' },
  checkpoint = { every = 4, keep = 2 }, follow = false, gradients = '',
  stop_at = 0, stop_below = 0, kill_at = 0, interrupt_at = 0, fail_at = 0, nan_from = 0, on_rank = -1,
  slow_teacher = 0, slow_student = 0, own_transfer = 0, lead = false, before = 0, teacher = 'teacher' }

ffi.cdef 'int getpid(void); int kill(int pid, int signal); int usleep(unsigned usec);'

--- A config with `layers` layers and a vocabulary of its own.
function M.config(layers, vocab, tied)
  local config = {}
  for key, value in pairs(recipe.config) do config[key] = value end
  config.num_hidden_layers, config.vocab_size, config.tie_word_embeddings = layers, vocab, tied
  return config
end

-- Whose logits go through a cap.
local function capped()
  local config = M.config(2, 44, true)
  config.model_type, config.architectures, config.hidden_act = 'gemma2', { 'Gemma2ForCausalLM' }, nil
  config.head_dim, config.query_pre_attn_scalar, config.sliding_window = 8, 8, 8
  config.final_logit_softcapping, config.attn_logit_softcapping = 2, 50
  return config
end

--- Writes the models that all runs of a spec open.
function M.save_models(folder)
  for name, of in pairs { student = { 1, 40, true, 1 }, teacher = { 2, 44, false, 2 }, second = { 1, 40, true, 3 } } do
    local model = ms.model.create(M.config(of[1], of[2], of[3]), of[4], { dtype = 'f32' })
    model:save(folder .. '/' .. name)
    model:free()
  end
  local model = ms.model.create(capped(), 5, { dtype = 'f32' })
  model:save(folder .. '/capped')
  model:free()
end

-- All gradients, as text, one number in a line.
local function write_gradients(student, path)
  local lines = {}
  for name, weight, gradient in student:parameters() do
    if gradient then
      local n = gradient:count()
      local g = gradient:read(ffi.new('float[?]', n))
      for i = 0, n - 1 do lines[#lines + 1] = ('%s %.9g'):format(name, g[i]) end
      gradient:free()
    end
    weight:free()
  end
  if #lines > 0 and student:grid().all.rank == 0 then tools.write(path, table.concat(lines, '\n')) end
end

-- What is special about some steps.
local function disturb(cfg, run, step, student)
  local rank = run.grid.world.rank
  if step.number >= cfg.nan_from and cfg.nan_from > 0 then
    if student:grid().holds then recipe.poison(student) end
  end
  if cfg.on_rank ~= rank then return end
  if step.number == cfg.kill_at then ffi.C.kill(ffi.C.getpid(), 9) end
  if step.number == cfg.interrupt_at then ffi.C.kill(ffi.C.getpid(), 2) end
  if step.number == cfg.fail_at then error 'this rank fails' end
end

-- How many steps the teacher's rank is ahead of the student's.
local function look_ahead(cfg, step, student)
  if not student:grid().holds then return tools.write(cfg.output .. '/at', tostring(step.number)) end
  local lead = (tonumber(tools.exists(cfg.output .. '/at') and tools.read(cfg.output .. '/at') or 0) or 0) - step.number
  local most = tools.exists(cfg.output .. '/lead') and tonumber(tools.read(cfg.output .. '/lead')) or 0
  tools.write(cfg.output .. '/lead', tostring(math.max(lead, most)))
end

function M.main(cfg)
  if cfg.before > 0 then -- another run in the same processes, which is left early
    local first = {}
    for key, value in pairs(cfg) do first[key] = value end
    first.before, first.stop_at, first.output, first.gradients = 0, cfg.before, cfg.output .. '-before', ''
    M.main(first)
  end
  local grid = ms.grid(cfg.grid)
  local function placed(given) return (given.ranks or given.dp) and ms.grid(given) or grid end
  local student = ms.model.open(cfg.models .. '/student', { train = true, grid = grid })
  local teacher = ms.model.open(cfg.models .. '/' .. cfg.teacher, { grid = placed(cfg.teacher_grid), vocab_cut = 40 })
  local second = cfg.two and ms.model.open(cfg.models .. '/second', { grid = placed(cfg.second_grid) })
  local transfer = cfg.own_transfer > 0
    and ms.transfer { from = teacher, to = student, depth = cfg.own_transfer, backend = cfg.transfer.backend } or nil
  local settings = {}
  for key, value in pairs(cfg) do
    if ms.run.options[key] then settings[key] = value end
  end
  cfg.kd.vocab = 40
  local run = ms.run.open(settings, { student = student, data = recipe.data(cfg.samples), quiet = true,
    validation = cfg.validation == 'itself' and { data = recipe.data(9), teacher = teacher, vocab = 40 } or nil,
    schedules = { memory = cfg.follow and function(state)
      state.mine = (state.mine or 0) * 0.5 + (state.loss or 0)
      return 1 / (1 + state.mine)
    end or nil } })
  for step in run:steps() do
    local weight = cfg.follow and step.memory or 1 - cfg.ce
    for batch in step:micro_batches() do
      if cfg.slow_teacher > 0 and teacher:grid().holds then ffi.C.usleep(cfg.slow_teacher * 1000) end
      local target = teacher:targets(batch, cfg.kd)
      if cfg.slow_student > 0 and student:grid().holds then ffi.C.usleep(cfg.slow_student * 1000) end
      local terms = { ms.ce(cfg.ce), ms.kd(target, weight, cfg.kd) }
      for i, name in ipairs(cfg.objectives and ms.kd.objectives or {}) do
        terms[#terms + 1] = ms.kd(target, 0.1 * i, cfg.kd, { objective = name, name = name })
      end
      local other
      if second then
        other = second:targets(batch, { target = 'topk', k = 5, vocab = 40 })
        terms[#terms + 1] = ms.kd(other, 0.2, { name = 'second' })
      end
      student:learn(batch, terms)
      target:free()
      if other then other:free() end
    end
    if cfg.lead then look_ahead(cfg, step, student) end
    disturb(cfg, run, step, student)
    if step.number == cfg.max_steps and cfg.gradients ~= '' then write_gradients(student, cfg.gradients) end
    step:update()
    if cfg.validation == 'asked' and step:every(2) then
      run:validate { data = recipe.data(9), teacher = teacher, vocab = 40,
        kd = { objective = 'reverse_kl', target = 'topk', k = 8 } }
    end
    if cfg.stop_at == step.number then break end
    if cfg.stop_below > 0 and step.loss < cfg.stop_below then break end
  end
  if transfer then
    for i, info in ipairs(transfer:info()) do
      tools.write(('%s/transfer-%d-%d.json'):format(cfg.output, i, grid.world.rank), ms.json.encode(info))
    end
  end
  run:finish()

end

if arg and arg[0] and arg[0]:find 'placed_recipe' then M.main(ms.config(M.schema)) end

return M
