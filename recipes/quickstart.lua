--- The main job in minutes, with no download: a small teacher learns worked problems, then two
--- equal students start alike and make the same steps on the same few samples: one learns from the
--- labels alone, the other from the teacher's distributions as well.
---
---   moonstill recipes/quickstart.lua [seeds=3] [teacher.steps=0]
---
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
    steps = ms.option(800, 'optimiser steps', 'integer >= 0'),
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

if cfg.resume ~= 'auto' or cfg.max_steps ~= 0 then
  ms.config.refuse "'resume' and 'max_steps' do nothing here: teacher.steps, student.steps"
end

local CONTEXT = 256
local HEADS = 4

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

--- The files of one repetition: a tokenizer and the three sets of problems, opened.
local function prepare(folder, seed)
  local problems = ms.toy.problems('train', cfg.data.teacher, 100 + seed, cfg.data.slips)
  local valid = ms.toy.problems('valid', cfg.data.valid, 100 + seed)
  local vocabulary = ms.bpe.learn(ms.toy.texts(head_of(problems, 1000)), 2000)
  local work = { folder = folder, seed = seed, problems = valid, vocab = ms.bpe.size(vocabulary),
    tokenizer = folder .. '/tokenizer' }
  ms.bpe.write(work.tokenizer, vocabulary, CONTEXT)
  work.chat = ms.chat.open(work.tokenizer)
  local function set(name, list)
    local path = ('%s/%s.jsonl'):format(folder, name)
    ms.toy.write(path, list)
    return ms.dataset.open(path, work.chat, { max_tokens = CONTEXT, quiet = true })
  end
  work.train, work.valid = set('train', problems), set('valid', valid)
  work.few = set('few', head_of(problems, cfg.data.student))
  return work
end

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

--- Trains a model and returns what is told of it: rate, and the curves of validation loss and KL.
--- `teacher` is whom the KL is measured to; `distil` says whether it teaches.
local function train(work, name, model, data, plan, teacher, distil)
  local entry = { name = name, model = model, x = {}, loss = {}, kl = {} }
  local seconds, tokens = 0, 0
  local optim = { lr = plan.lr, warmup = 0.1, final = 0.05, clip = 1, weight_decay = 0.01,
    beta2 = 0.95 }
  local folder = ('%s/%s'):format(work.folder, (name:gsub('[^%w]+', '-')))
  local run = ms.run.open({ output = folder, seed = work.seed, resume = false, epochs = 0,
    max_steps = plan.steps, batch = { tokens = plan.tokens, micro_tokens = plan.tokens },
    optim = optim, checkpoint = { every = plan.steps } }, { student = model, data = data,
    carry = work.tokenizer, schedules = { lr = ms.schedule.cosine(optim) } })
  local function validate(step)
    local v = run:validate { data = work.valid, teacher = teacher }
    entry.x[#entry.x + 1], entry.loss[#entry.loss + 1] = step, v.loss
    entry.kl[#entry.kl + 1] = v.kl or 0
  end
  validate(0)
  for step in run:steps() do
    learn(step, model, distil and teacher)
    seconds, tokens = seconds + step.seconds, tokens + step.tokens
    if step:every(math.ceil(plan.steps / 10)) and step.number < plan.steps then
      validate(step.number)
    end
  end
  validate(plan.steps)
  run:finish()
  entry.rate = seconds > 0 and tokens / seconds or nil
  return entry
end

--- Answers of a model to all held-out problems: the share that is exact, and the first text.
local function examine(work, entry)
  local prompts, right = {}, 0
  for i, p in ipairs(work.problems) do prompts[i] = work.chat:prompt(p.messages[1].content) end
  local answers = entry.model:generate(prompts, { max_new = 96 })
  for i, ids in ipairs(answers) do
    local text = work.chat.tokenizer:decode(ids, { skip_special = true })
    if ms.toy.answer(text) == work.problems[i].answer then right = right + 1 end
    if i == 1 then entry.sample = text end
  end
  entry.exact = right / #work.problems
end

--- A teacher that is not trained (teacher.steps=0): no curve, only its loss.
local function untrained(work, name, model)
  local value, weight = 0, 0
  local plan = work.valid:steps(0, 0, { tokens = 2048, micro_tokens = 2048 })
  for step in plan:each() do
    local batch = work.valid:batch(step[1])
    local r = model:evaluate(batch, { ms.ce(1) })
    value, weight = value + r[1].value, weight + r[1].weight
    batch:free()
  end
  return { name = name, model = model, x = { 0 }, loss = { value / weight }, kl = { 0 } }
end

--- One repetition: the entries of teacher, SFT student and distilled student.
local function repetition(seed)
  local work = prepare(('%s/seed-%d'):format(cfg.output, seed), seed)
  local held = { train = true, dtype = cfg.dtype, device = cfg.device }
  local teacher = ms.model.create(config(work.vocab, cfg.teacher), seed, held)
  local first = cfg.teacher.steps > 0 and train(work, 'teacher', teacher, work.train, cfg.teacher)
    or untrained(work, 'teacher', teacher)
  local entries = { first }
  local plan = { steps = cfg.student.steps, tokens = cfg.student.tokens }
  for i, name in ipairs { 'SFT student', 'distilled student' } do
    local student = ms.model.create(config(work.vocab, cfg.student), seed + 1000, held)
    plan.lr = i == 1 and cfg.student.lr or cfg.student.lr_distilled
    entries[i + 1] = train(work, name, student, work.few, plan, teacher, i == 2)
  end
  for _, entry in ipairs(entries) do
    examine(work, entry)
    entry.parameters = entry.model:info().parameters
    entry.model:free()
    entry.model = nil
  end
  work.chat:free()
  return entries, work
end

-- telling ----------------------------------------------------------------------------------------

local function last(list) return list[#list] end

local function print_table(entries)
  print(('\n%-20s %11s %9s %16s %18s %15s'):format('', 'parameters', 'tokens/s', 'validation loss',
    'KL to the teacher', 'exact answers'))
  for i, e in ipairs(entries) do
    print(('%-20s %11d %9s %16.4f %18s %13.1f %%'):format(e.name, e.parameters,
      e.rate and ('%.0f'):format(e.rate) or '-', last(e.loss), i > 1 and ('%.4f'):format(last(e.kl))
      or '-', 100 * e.exact))
  end
end

local function curves(entries, what, title)
  local panel = { title = title, x_label = 'step', y_label = 'nats per token', log = true,
    series = {} }
  for i, e in ipairs(entries) do
    if what == 'loss' or i > 1 then
      panel.series[#panel.series + 1] = { name = e.name, style = i, x = e.x,
        y = e[what] }
    end
  end
  return panel
end

local function print_samples(entries, problem)
  print('\nproblem: ' .. problem.messages[1].content)
  for _, e in ipairs(entries) do print(('%-18s %s'):format(e.name .. ':', e.sample)) end
end

local function tell(entries, work)
  local loss = curves(entries, 'loss', 'Validation loss')
  local kl = curves(entries, 'kl', 'KL to the teacher')
  local path = work.folder .. '/curves.svg'
  ms.plot.write(path, { loss, kl })
  print('\n' .. ms.plot.sketch(loss))
  print_table(entries)
  print_samples(entries, work.problems[1])
  print('\ncurves: ' .. path)
end

--- Smallest, mean and largest of what the repetitions gave.
local function spread(list)
  local low, high, sum = math.huge, -math.huge, 0
  for _, v in ipairs(list) do low, high, sum = math.min(low, v), math.max(high, v), sum + v end
  return low, sum / #list, high
end

local function tell_margins(losses, exacts)
  local wins = 0
  for i = 1, #losses do if losses[i] > 0 and exacts[i] > 0 then wins = wins + 1 end end
  print('\nmargin of the distilled student over the SFT student (smallest, mean, largest):')
  print(('  validation loss lower by    %7.4f %7.4f %7.4f'):format(spread(losses)))
  print(('  exact answers more by       %6.1f %% %5.1f %% %5.1f %%'):format(spread(exacts)))
  print(('  better in both: %d of %d'):format(wins, #losses))
end

local losses, exacts, began = {}, {}, os.time()
for i = 1, cfg.seeds do
  local entries, work = repetition(cfg.seed + i - 1)
  tell(entries, work)
  losses[i] = last(entries[2].loss) - last(entries[3].loss)
  exacts[i] = 100 * (entries[3].exact - entries[2].exact)
end
tell_margins(losses, exacts)
print(('%d s in all'):format(os.time() - began))
