--- `moonstill plan`: what goes from the teacher's ranks to the student's in a step, for any number
--- of ranks, none of which is started.

local columns = require 'moonstill.base.columns'
local config = require 'moonstill.run.config'
local dataset = require 'moonstill.data.dataset'
local fail = require 'moonstill.base.fail'
local grids = require 'moonstill.base.grid'
local json = require 'moonstill.base.json'
local kd = require 'moonstill.loss.kd'
local text = require 'moonstill.base.layout'
local messages = require 'moonstill.plot.messages'
local packing = require 'moonstill.data.packing'
local plans = require 'moonstill.run.plan'
local progress = require 'moonstill.base.progress'
local ranks_of = require 'moonstill.base.ranks'
local schema = require 'moonstill.base.schema'
local screen = require 'moonstill.base.screen'
local settings = require 'moonstill.run.settings'
local sorted = require 'moonstill.base.sorted'
local steps = require 'moonstill.prompt.planned'

local M = {}

local USAGE = '[RECIPE.lua] [CONFIG.yaml ...] [ranks=N] [key=value ...]'

local ABOUT = [[
Prints where student and teacher lie on so many ranks, and what goes from one to the other in a
step: the phases, in each of which no rank sends twice and none receives twice, their bytes, and
how long they take. No rank is started. The arguments are those of the recipe; without RECIPE.lua
keys that are not about this are passed over. Without data.train equally long samples are assumed.

  moonstill plan recipes/distill.lua recipes/distill.yaml ranks=64 plot=plan.svg
  moonstill plan ranks=6 grid.ranks=2-5 grid.tp=2 teacher_grid.ranks=0-1

What is predicted is simple: a rank sends one message at a time and receives one at a time, each of
them takes its latency and its bytes through its link, and ranks wait for nothing else.]]

local MOST_MODELS, MOST_LANES, MOST_PAIRS = 24, 256, 12

-- What the command itself takes.
local function own_keys()
  local all = {
    ranks = schema.optional('integer >= 1 <= 65536',
      'how many there are; by default as many as the grids ask for'),
    step = schema.option(1, 'which step of the first epoch', 'integer >= 1'),
    sample_tokens = schema.option(512, 'without data.train: tokens of each sample, half of which '
      .. 'are learnt', 'integer >= 2'),
    plot = schema.optional('string', 'an SVG file, for a picture of it'),
    grid = grids.options {}, teacher_grid = grids.options {},
    transfer = { dtype = schema.one_of({ 'f32', 'bf16' }, nil,
      'of the log-probabilities of topk targets on their way') },
  }
  for key, option in sorted.pairs(plans.options) do all[key] = option end
  return all
end

-- Those of recipes that it reads.
local function schema_of_plan()
  local all = own_keys()
  all.student = schema.optional('path', 'as in a recipe; for the tokenizer of the data')
  all.teacher = schema.optional('path', 'as in a recipe')
  all.data = dataset.options { train = schema.optional 'sources' }
  all.batch, all.kd, all.seed = packing.options {}, kd.options {}, settings.common.seed
  return all
end

-- A recipe's keys, none of which has to be given.
local function relaxed(t)
  local all = {}
  for key, value in sorted.pairs(t) do
    if schema.is_option(value) then
      all[key] = value.required and schema.optional(value.kind, value.meaning) or value
    elseif type(value) == 'table' and not json.is_array(value) then
      all[key] = relaxed(value)
    else
      all[key] = value
    end
  end
  return all
end

-- All keys of a recipe, and those of the command, of whose sections it may have its own.
local function schema_of_recipe(path)
  local given, options = config.schema_of(path)
  if not given then config.refuse(path .. ' takes no configuration: it does not call ms.config') end
  if type(given.kd) ~= 'table' then
    config.refuse(path .. ' has no kd: no teacher gives its student anything')
  end
  local all = relaxed(given)
  for key, option in sorted.pairs(own_keys()) do
    if schema.is_option(option) or all[key] == nil then all[key] = option end
  end
  return all, options and options.common
end

-- Sections of recipes of which no key is passed over.
local WHOLE = { data = true, batch = true, grid = true, teacher_grid = true }

-- Keys of recipes: anything else in their files, and on the command line what runs have.
local function is_of_recipe(key, in_file)
  local first = key:match '^[^.]+'
  if WHOLE[first] then return false end
  return in_file or settings.options[first] ~= nil or key ~= first
end

--- The command, for the page of reference: its keys are those of a configuration.
M.command = { name = 'plan', usage = USAGE, about = ABOUT, keys = function()
  return config.list(schema_of_plan(), { others = is_of_recipe })
end }

-- layouts ----------------------------------------------------------------------------------------

-- How many ranks a grid asks for.
local function asked(o)
  local most = (o.dp or 1) * o.tp
  for number in tostring(o.ranks or ''):gmatch '%d+' do
    most = math.max(most, tonumber(number) + 1)
  end
  return most
end

local function layout_of(what, o, size)
  local ok, layout = fail.pcall(grids.layout, o, size)
  if not ok then config.refuse(('%s: %s'):format(what, tostring(layout))) end
  return layout
end

-- Whether a grid says anything.
local function is_given(o) return o.dp ~= nil or o.ranks ~= nil or o.tp ~= 1 end

-- Both layouts, and how many ranks there are. A teacher without a grid lies where the student does.
local function layouts_of(cfg)
  local own = is_given(cfg.teacher_grid) and cfg.teacher_grid or cfg.grid
  local size = cfg.ranks or math.max(asked(cfg.grid), asked(own))
  return { size = size, student = layout_of('grid', cfg.grid, size),
    teacher = layout_of('teacher_grid', own, size) }
end

local function ranks_of_model(layout, model)
  local list = {}
  for t = 1, layout.tp do list[t] = layout.ranks[model * layout.tp + t] end
  return list
end

local function machines_of(list, per_machine)
  local seen, machines = {}, {}
  for _, rank in ipairs(list) do
    local machine = plans.machine(rank, per_machine)
    if not seen[machine] then machines[#machines + 1], seen[machine] = machine, true end
  end
  table.sort(machines)
  return grids.ranges(machines)
end

-- what is printed --------------------------------------------------------------------------------

local function print_table(list, rows)
  for _, line in ipairs(columns.table(list, rows, screen.columns(1))) do print(line) end
end

-- A line that goes on in others where it is too wide.
local function say(...)
  local lines = text.wrap((...):format(select(2, ...)), screen.columns(1) - 2)
  print(table.concat(lines, '\n  '))
end

-- "1.23 ms".
local function time(seconds)
  if seconds < 1e-3 then return ('%.3g us'):format(seconds * 1e6) end
  return seconds < 1 and ('%.3g ms'):format(seconds * 1e3) or ('%.3g s'):format(seconds)
end

local MODELS = { { head = 'model', level = 0 }, { head = 'ranks', level = 0, wraps = 10 },
  { head = 'machines', level = 3, wraps = 8 }, { head = 'samples', align = 'right', level = 1 },
  { head = 'rows', align = 'right', level = 2 } }

-- A row for each model of one side: which ranks have it, and what it has or needs.
local function add_models(rows, name, layout, step, owners, per_machine)
  local samples, count = {}, {}
  for i, model in ipairs(owners) do
    samples[model] = (samples[model] or 0) + 1
    count[model] = (count[model] or 0) + step.rows[i]
  end
  for model = 0, math.min(layout.dp, MOST_MODELS) - 1 do
    local list = ranks_of_model(layout, model)
    rows[#rows + 1] = { ('%s %d'):format(name, model), grids.ranges(list),
      machines_of(list, per_machine), samples[model] or 0, count[model] or 0 }
  end
  if layout.dp > MOST_MODELS then
    rows[#rows + 1] = { ('and %d more'):format(layout.dp - MOST_MODELS) }
  end
end

local function print_models(cfg, at, step)
  say('%d ranks: teacher %s, student %s', at.size, grids.shape_text(at.teacher),
    grids.shape_text(at.student))
  local rows = {}
  add_models(rows, 'teacher', at.teacher, step, step.from, cfg.per_machine)
  add_models(rows, 'student', at.student, step, step.to, cfg.per_machine)
  print_table(MODELS, rows)
end

local PHASES = { { head = 'stage' }, { head = 'phase', align = 'right', level = 0 },
  { head = 'messages', align = 'right', level = 4 }, { head = 'rows', align = 'right', level = 3 },
  { head = 'bytes', align = 'right', level = 0 }, { head = 'begins', align = 'right', level = 2 },
  { head = 'ends', align = 'right', level = 1 }, { head = 'from > to', wraps = 16, level = 5 } }

local STAGES = { 'send', 'exchange' }

-- Phases with what their messages come to.
local function phases_of(list, n)
  local phases, last = {}, nil
  for i = 0, n - 1 do
    local m = list[i]
    if not last or last.stage ~= m.stage or last.phase ~= m.phase then
      last = { stage = m.stage, phase = m.phase, messages = 0, rows = 0, begins = m.begins,
        ends = 0, pairs = {} }
      phases[#phases + 1] = last
    end
    last.messages, last.rows = last.messages + 1, last.rows + tonumber(m.rows)
    last.begins, last.ends = math.min(last.begins, m.begins), math.max(last.ends, m.ends)
    if last.messages <= MOST_PAIRS then
      last.pairs[last.messages] = ('%d>%d'):format(m.from, m.to)
    end
  end
  return phases
end

local function print_phases(phases, row_bytes)
  local rows = {}
  for i, p in ipairs(phases) do
    if p.messages > MOST_PAIRS then p.pairs[#p.pairs + 1] = '..' end
    rows[i] = { STAGES[p.stage + 1], p.phase, p.messages, p.rows,
      progress.bytes(p.rows * row_bytes), time(p.begins), time(p.ends),
      table.concat(p.pairs, ' ') }
  end
  print_table(PHASES, rows)
end

-- How long the rank sends or receives that does so longest: no plan takes less.
local function busiest(list, n)
  local sends, receives, most = {}, {}, 0
  for i = 0, n - 1 do
    local m = list[i]
    local took = m.ends - m.begins
    sends[m.from] = (sends[m.from] or 0) + took
    receives[m.to] = (receives[m.to] or 0) + took
    most = math.max(most, sends[m.from], receives[m.to])
  end
  return most
end

local function print_totals(cfg, phases, list, n, seconds, row_bytes)
  local bytes = { 0, 0 }
  for _, p in ipairs(phases) do
    bytes[p.stage + 1] = bytes[p.stage + 1] + p.rows * row_bytes
  end
  say('%d message%s: %s sent, %s exchanged within the student\'s models; %s predicted, of which '
    .. 'the busiest rank needs %s', n, n == 1 and '' or 's', progress.bytes(bytes[1]),
    progress.bytes(bytes[2]), time(seconds), time(busiest(list, n)))
  say('by %s/s on a machine, %s/s between machines, %s a message', progress.bytes(cfg.within),
    progress.bytes(cfg.between), time(cfg.latency))
end

-- the picture ------------------------------------------------------------------------------------

-- What a rank has of both models: "teacher 0.1" is part 1 of model 0.
local function places_of(at)
  local names = {}
  for _, side in ipairs { 'teacher', 'student' } do
    local layout = at[side]
    for i, rank in ipairs(layout.ranks) do
      local d = math.floor((i - 1) / layout.tp)
      local name = ('%s %d.%d'):format(side, d, (i - 1) % layout.tp)
      names[rank] = names[rank] and names[rank] .. ', ' .. name or name
    end
  end
  return names
end

local function lanes_of(at)
  local names, lanes = places_of(at), {}
  for rank = 0, at.size - 1 do
    if names[rank] and #lanes < MOST_LANES then
      lanes[#lanes + 1] = { of = rank, name = ('%d  %s'):format(rank, names[rank]) }
    end
  end
  return lanes
end

local function picture_of(at, plan, step, seconds)
  local list, n = plan:messages()
  local drawn = {}
  for i = 0, n - 1 do
    local m = list[i]
    drawn[i + 1] = { stage = m.stage + 1, phase = m.phase, from = m.from, to = m.to,
      begins = m.begins, ends = m.ends,
      title = ('%d to %d: %d samples, %d rows, %s; %s phase %d'):format(m.from, m.to, m.samples,
        tonumber(m.rows), progress.bytes(tonumber(m.rows) * step.row_bytes), STAGES[m.stage + 1],
        m.phase) }
  end
  local lanes = lanes_of(at)
  return messages.text { lanes = lanes, seconds = seconds, messages = drawn,
    phases = { plan:phases 'send', plan:phases 'exchange' },
    title = ('teacher %s to student %s'):format(grids.shape_text(at.teacher),
      grids.shape_text(at.student)),
    about = ('%d samples, %d messages, %s%s'):format(#step.rows, n, time(seconds),
      #lanes == MOST_LANES and ('; the first %d ranks'):format(MOST_LANES) or '') }
end

-- The configuration that a command line gives.
local function read(args)
  local about, own = ('moonstill plan %s\n\n%s'):format(USAGE, ABOUT), {}
  local recipe = (args[2] or ''):find '%.lua$' and args[2]
  for i = recipe and 3 or 2, #args do own[#own + 1] = args[i] end
  if not recipe then
    return config(schema_of_plan(), { about = about, args = own, others = is_of_recipe })
  end
  local all, common = schema_of_recipe(recipe)
  return config(all, { about = about, args = own, common = common })
end

local function print_plan(cfg, at, step, plan)
  local seconds = plan:predict(step.row_bytes)
  local list, n = plan:messages()
  print_models(cfg, at, step)
  for _, line in ipairs(step.notes) do say('%s', line) end
  if n == 0 then
    say 'nothing to send: every rank of the student has what it needs'
  else
    local phases = phases_of(list, n)
    print_phases(phases, step.row_bytes)
    print_totals(cfg, phases, list, n, seconds, step.row_bytes)
  end
  if not cfg.plot then return end
  ranks_of.write_file(cfg.plot, picture_of(at, plan, step, seconds))
  say('the picture is in %s', cfg.plot)
end

--- Prints a plan.
--- @param args string[] the command line, whose second word is the first behind "plan"
--- @return integer the exit status
function M.run(args)
  local cfg = read(args)
  local at = layouts_of(cfg)
  local step = steps.of(cfg, at)
  local plan = plans.new(at.teacher, at.student, at.size, schema.part(plans.options, cfg))
  print_plan(cfg, at, step, plan:fill(step.rows, step.from, step.to))
  plan:free()
  return 0
end

return M
