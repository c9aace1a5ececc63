--- The main job in minutes, with no download: a small teacher learns worked problems, then two
--- equal students start alike and make the same steps on the same few samples: one learns from the
--- labels alone, the other from the teacher's distributions as well.
---
---   moonstill recipes/quickstart.lua [seeds=3] [teacher.steps=0]
---
--- Ctrl-C saves, and the same command goes on from there; after the end it shows the result again.
--- With a teacher that has learnt nothing (teacher.steps=0) the distilled student must lose.
local ms = require 'moonstill'

-- The learning rates were tuned on other problems and weights than the default's, for both students
-- over the same grid with all else equal: 500 problems without slips, 500 steps, validation loss of
-- the SFT student and of the distilled one 0.373 and 0.332 at 3e-3, 0.342 and 0.286 at 5e-3, 0.546
-- and 0.442 at 8e-3; after 800 steps 0.486 and 0.301 at 3e-3, 0.485 and 0.281 at 5e-3. So both have
-- 5e-3. Where a teacher helps was looked for as well. It does where labels are few or not to be
-- trusted: hence 600 of the 8000 problems, and slips. With all 8000 and no slips both students end
-- alike (0.195 and 0.198 after 800 steps).
local cfg = ms.config({
  output = 'out/quickstart',
  seeds = ms.option(1, 'how often all is repeated, with other weights and problems',
    'integer >= 1'),
  data = {
    teacher = ms.option(8000, 'problems the teacher learns from', 'integer >= 1'),
    student = ms.option(600, 'problems the students learn from, the first of those',
      'integer >= 1'),
    valid = ms.option(300, 'held-out problems', 'integer >= 1'),
    slips = ms.option(0.1, 'share of steps worked out wrong in what is learned from',
      'number >= 0 < 1'),
  },
  teacher = { width = ms.option(128, 'of the hidden states', 'integer >= 1'),
    layers = ms.option(4, 'of the transformer', 'integer >= 1'),
    steps = ms.option(800, 'optimiser steps', 'integer >= 0'),
    tokens = ms.option(2048, 'of an optimiser step', 'integer >= 1'),
    lr = ms.option(3e-3, 'peak learning rate', 'number >= 0') },
  student = { width = ms.option(64, 'of the hidden states', 'integer >= 1'),
    layers = ms.option(3, 'of the transformer', 'integer >= 1'),
    steps = ms.option(800, 'optimiser steps', 'integer >= 1'),
    tokens = ms.option(1024, 'of an optimiser step', 'integer >= 1'),
    lr = ms.option(5e-3, 'of the student that learns from labels', 'number >= 0'),
    lr_distilled = ms.option(5e-3, 'of the one that is distilled', 'number >= 0') },
  kd = ms.kd.options { temperature = 1, weight = 0.9, k = 32 },
}, {
  about = 'Trains a small teacher on worked problems and distils it; no files are needed.',
  smoke = function()
    return { output = 'out/quickstart-smoke', data = { teacher = 300, student = 100, valid = 20 },
      teacher = { width = 32, layers = 1, steps = 10 },
      student = { width = 16, layers = 1, steps = 10 } }
  end,
})

if cfg.max_steps ~= 0 then
  ms.config.refuse "'max_steps' does nothing here: teacher.steps, student.steps"
elseif cfg.trace then
  ms.config.refuse "'trace' does nothing here: there are several runs"
elseif type(cfg.resume) == 'string' and cfg.resume ~= 'auto' then
  ms.config.refuse "'resume' cannot be a folder here: auto, true or false"
elseif cfg.data.student > cfg.data.teacher then
  ms.config.refuse "'data.student' is more than 'data.teacher', of which they are the first"
end

local CONTEXT = 256
local HEADS = 4
local SAMPLES = 3 -- of the held-out problems, whose answers are shown

local width = ms.comparison.width()
local function say(text) print(text) io.stdout:flush() end
local function tell(text, ...) say(ms.comparison.wrap(text:format(...), width)) end

-- data and models --------------------------------------------------------------------------------

local function config(vocab, shape)
  local roles = ms.bpe.roles(vocab)
  return { model_type = 'llama', architectures = { 'LlamaForCausalLM' }, vocab_size = vocab,
    hidden_size = shape.width, intermediate_size = math.floor(shape.width / 3) * 8,
    num_hidden_layers = shape.layers, num_attention_heads = HEADS,
    num_key_value_heads = HEADS, max_position_embeddings = CONTEXT, rms_norm_eps = 1e-5,
    rope_theta = 10000, tie_word_embeddings = true, hidden_act = 'silu', initializer_range = 0.05,
    torch_dtype = 'float32', eos_token_id = roles.eos_token_id,
    pad_token_id = roles.pad_token_id }
end

local function head_of(list, n)
  local part = {}
  for i = 1, math.min(n, #list) do part[i] = list[i] end
  return part
end

--- The files of one repetition: a tokenizer, and the problems that the teacher learns from, the
--- students learn from, and nobody learns from. What is there already stays.
local function prepare(trial, seed, valid)
  local problems = ms.toy.problems('train', cfg.data.teacher, 100 + seed, cfg.data.slips)
  local work = { trial = trial, seed = seed, problems = valid, tokenizer = trial:path 'tokenizer' }
  if not trial:has 'tokenizer/generation_config.json' then
    local vocabulary = ms.bpe.learn(ms.toy.texts(head_of(problems, 1000)), 2000)
    ms.bpe.write(work.tokenizer, vocabulary, CONTEXT)
  end
  work.chat = ms.chat.open(work.tokenizer)
  local function set(name, list)
    if not trial:has(name) then ms.toy.write(trial:path(name), list) end
    return ms.dataset.open(trial:path(name), work.chat, { max_tokens = CONTEXT, quiet = true })
  end
  work.all, work.valid = set('train-teacher.jsonl', problems), set('valid.jsonl', valid)
  work.few = set('train.jsonl', head_of(problems, cfg.data.student))
  return work
end

-- training ---------------------------------------------------------------------------------------

--- One optimiser step's micro-batches, with a teacher or without.
local function learn(step, student, teacher)
  for batch in step:micro_batches() do
    if teacher then
      local target = teacher:targets(batch, cfg.kd)
      student:learn(batch, { ms.ce(1 - cfg.kd.weight), ms.kd(target, cfg.kd.weight, cfg.kd) })
      target:free()
    else
      student:learn(batch, { ms.ce(1) })
    end
  end
  step:update()
end

--- Trains a model in a folder. `teacher` is whom the KL is measured to; `distil` says whether it
--- teaches.
local function train(work, folder, model, data, plan, teacher, distil)
  local optim = { lr = plan.lr, warmup = 0.1, final = 0.05, clip = 1, weight_decay = 0.01,
    beta2 = 0.95 }
  local run = ms.run.open({ output = folder, seed = work.seed, epochs = 0, max_steps = plan.steps,
    resume = cfg.resume ~= false and 'auto', log = cfg.log,
    batch = { tokens = plan.tokens, micro_tokens = plan.tokens }, optim = optim,
    validate = math.ceil(plan.steps / 10),
    checkpoint = { every = math.ceil(plan.steps / 4), keep = 1 } }, { student = model, data = data,
    carry = work.tokenizer, schedules = { lr = ms.schedule.of(optim) },
    validation = { data = work.valid, teacher = teacher } })
  for step in run:steps() do learn(step, model, distil and teacher) end
  run:finish()
end

--- What a run has written of itself: tokens, seconds, and its validations.
local function read_metrics(entry, folder)
  entry.tokens, entry.seconds = 0, 0
  for _, line in ms.json.lines(folder .. '/metrics.jsonl') do
    if line.kind == 'train' then
      entry.tokens, entry.seconds = entry.tokens + line.tokens, entry.seconds + line.seconds
    else
      table.insert(entry.steps, line.step)
      table.insert(entry.loss, line.loss)
      if entry.kl then table.insert(entry.kl, line.terms.forward_kl.loss) end
    end
  end
end

--- The validation loss of a teacher that is not trained (teacher.steps=0).
local function untrained(work, model)
  local value, weight = 0, 0
  local plan = work.valid:steps(0, 0, { tokens = 2048, micro_tokens = 2048 })
  for step in plan:each() do
    local batch = work.valid:batch(step[1])
    local r = model:evaluate(batch, { ms.ce(1) })
    value, weight = value + r[1].value, weight + r[1].weight
    batch:free()
  end
  return value / weight
end

--- Has a model answer all held-out problems: which it gets right, and its first answers.
local function examine(work, entry, model)
  local prompts = {}
  for i, p in ipairs(work.problems) do prompts[i] = work.chat:prompt(p.messages[1].content) end
  for i, ids in ipairs(model:generate(prompts, { max_new = 96 })) do
    local text = work.chat.tokenizer:decode(ids, { skip_special = true })
    entry.right[i] = ms.toy.answer(text) == work.problems[i].answer
    if i <= SAMPLES then entry.answers[i] = text end
  end
end

-- stages -----------------------------------------------------------------------------------------

-- Three models, in the order in which they are trained: the name of each, its folder, which data
-- it learns from, what its weights begin with, and what a newcomer is told.
local stages = {
  { name = 'teacher', folder = 'teacher', data = 'all', plan = cfg.teacher, seed = 0,
    short = 'learns %d such problems by their labels',
    about = 'It learns to predict the worked answers of %d problems, its labels.' },
  { name = 'SFT student', folder = 'sft', data = 'few', plan = cfg.student, seed = 1000,
    short = 'is smaller, and learns %d of them by their labels',
    about = 'A smaller model, to compare with: it learns from %d of the labels alone, which is '
      .. 'called supervised fine-tuning (SFT).' },
  { name = 'distilled student', folder = 'distilled', data = 'few', plan = cfg.student, seed = 1000,
    short = 'is its twin, and learns the same %d from the teacher as well',
    about = 'It begins with the SFT student\'s weights and makes as many steps on the same %d '
      .. 'problems. But at each word it also learns how likely the teacher finds each next one.' },
}

local function problems_of(stage)
  return stage.data == 'all' and cfg.data.teacher or cfg.data.student
end

--- One stage: the model's entry for the table, known from an earlier call or made.
local function do_stage(work, i, stage, teacher)
  local folder = work.trial:path(stage.folder)
  local held = { train = true, dtype = cfg.dtype, device = cfg.device }
  local model = ms.model.create(config(work.chat.tokenizer:size(), stage.plan),
    work.seed + stage.seed, held)
  local entry = { name = stage.name, parameters = model:info().parameters, steps = {}, loss = {},
    kl = teacher and {}, right = {}, answers = {} }
  if stage.plan.steps > 0 then
    local plan = { steps = stage.plan.steps, tokens = stage.plan.tokens,
      lr = i == 3 and cfg.student.lr_distilled or stage.plan.lr }
    train(work, folder, model, work[stage.data], plan, teacher, i == 3)
    read_metrics(entry, folder)
  else
    model:save(folder .. '/student', { carry = work.tokenizer })
    entry.steps[1], entry.loss[1] = 0, untrained(work, model)
  end
  tell('Now it answers the %d problems that nobody learns from.', #work.problems)
  examine(work, entry, model)
  model:free()
  return work.trial:keep(stage.folder, entry)
end

--- One repetition: the entries of the three models.
local function repetition(trial, seed, valid)
  local entries, work, teacher = {}, nil, nil
  for i, stage in ipairs(stages) do
    entries[i] = trial:result(stage.folder)
    say ''
    tell('stage %d of %d: the %s%s', i, #stages, stage.name,
      entries[i] and ', which is trained already' or '')
    if not entries[i] then
      tell(stage.about, problems_of(stage))
      work = work or prepare(trial, seed, valid)
      if i > 1 and not teacher then
        teacher = ms.model.open(trial:path 'teacher/student', { device = cfg.device })
      end
      entries[i] = do_stage(work, i, stage, teacher)
    end
  end
  if teacher then teacher:free() end
  if work then work.chat:free() end
  return entries
end

-- telling ----------------------------------------------------------------------------------------

local function introduce(example)
  tell 'Three small language models learn, from random weights, to work out problems such as this:'
  say(('\n%s\n'):format(ms.comparison.wrap(example.messages[1].content, width, '  ')))
  for _, stage in ipairs(stages) do
    say(ms.comparison.wrap(stage.short:format(problems_of(stage)), width,
      ('  the %-18s '):format(stage.name)))
  end
  say ''
  tell('%s A teacher helps where labels are few or not to be trusted; with 8000 problems for all '
    .. 'and no wrong step, both students end alike. They are compared by %d other problems, worked '
    .. 'out right.', cfg.data.slips == 0 and 'All that they learn is worked out right.'
    or ('In what they learn, %.3g %% of the steps are worked out wrong, on purpose.'):format(100
    * cfg.data.slips), cfg.data.valid)
  tell 'Ctrl-C saves; the same command goes on from there, and shows the result again at the end.'
end

local function tell_result(trial, entries, valid)
  local path = trial:path 'curves.svg'
  ms.plot.write(path, ms.comparison.curves(entries))
  say('\n' .. ms.comparison.sketch(entries))
  say(ms.comparison.table(entries, width) .. '\n')
  tell('Validation loss: cross entropy of the held-out answers, in nats a token. KL to the '
    .. 'teacher: how far what a student finds likely is from what the teacher does. Exact: the '
    .. 'right number at the end.')
  for i = 1, math.min(SAMPLES, #valid) do
    say('\n' .. ms.comparison.sample(entries, valid, i, width))
  end
  say ''
  tell('%s', ms.comparison.verdict(entries[2], entries[3]))
  tell('The curves are in %s', path)
end

-- Commands for the folder in which this one was given.
local function tell_next()
  local program, place = ms.trial.program(), arg[0]:gsub('[^/]*$', '')
  say '\nWhat to do next:'
  for _, line in ipairs { { ('chat %s/distilled/student'):format(cfg.output), 'ask it a problem' },
    { place .. 'distill.lua --help', 'distil your own model' },
    { '', 'the prompt, see README' } } do
    local words = ('  %s %s'):format(program, line[1]):gsub(' $', '')
    local all = ('%-54s  # %s'):format(words, line[2])
    say(#all <= width and all or words)
  end
end

local losses, exacts = {}, {}
local settings = ms.trial.settings(cfg, { 'seeds' })
local trial = ms.trial.open(cfg.output, settings, cfg.resume)
for i = 1, cfg.seeds do
  local seed = cfg.seed + i - 1
  local valid = ms.toy.problems('valid', cfg.data.valid, 100 + seed)
  if i == 1 then introduce(valid[1]) else say(('\nseed %d'):format(seed)) end
  local one = i == 1 and trial or trial:inner('seed-' .. seed)
  local entries = repetition(one, seed, valid)
  tell_result(one, entries, valid)
  losses[i], exacts[i] = ms.comparison.margin(entries[2], entries[3])
end
if cfg.seeds > 1 then
  say '\nMargin of the distilled student over the SFT student:'
  say(ms.comparison.margins(losses, exacts))
end
tell_next()
