--- On-policy distillation: the student learns on answers of its own, at each token of which it is
--- told its teacher's distribution.
---
---   moonstill recipes/on_policy.lua student=models/small teacher=models/large \
---     data.train=train.jsonl data.valid=valid.jsonl own.share=0.5
---
--- A part of the steps, `own.share`, is on the student's own answers to the prompts of the step's
--- samples; the other steps are on the data's answers, as in distill.lua. At own.share=0 that is
--- all that happens, at 1 the data's answers are never seen. (Papers call the share lambda, and the
--- whole GKD; MiniLLM and others have reverse KL for it.)
---
--- Of an own answer the student learns the divergence from the teacher at each token: the gradient
--- goes through its probabilities there, not through the drawing. Its prompt is not learnt, and
--- neither is an end that did not come, of an answer that was cut off at own.max_new. The labels
--- have no part in it: cross entropy on what oneself has said teaches nothing but to be surer.
local ms = require 'moonstill'

local cfg = ms.config({
  student = ms.optional 'path', teacher = ms.required 'path', layers = 0, output = 'out/on-policy',
  data = ms.dataset.options(), batch = { tokens = 4096, micro_tokens = 2048 }, epochs = 1,
  kd = ms.kd.options { objective = 'reverse_kl', target = 'hidden', temperature = 1,
    weight = ms.option(0.5, 'of the teacher in steps on the data; the labels have the rest') },
  own = {
    first_share = ms.option(0, 'of steps on own answers at first, from where it goes to own.share',
      'number >= 0 <= 1'),
    share = ms.option(0.5, 'of steps on own answers at the end', 'number >= 0 <= 1'),
    max_new = ms.option(128, 'longest answer in tokens', 'integer >= 1'),
    temperature = ms.option(1, 'divides the logits that are drawn from', 'number > 0'),
    top_p = ms.option(1, 'draws from the likeliest tokens of that mass', 'number > 0 <= 1'),
  },
  optim = ms.optimizer.options { warmup = 0.03, clip = 1,
    lr = ms.option(1e-5, 'at the peak; small models want more, up to 5e-3 at 0.5 M') },
  checkpoint = { every = 200, keep = 2 }, validate = 50, recompute = false,
}, { about = 'Distils on the student\'s own answers, as its teacher scores them.',
  smoke = function()
    local values = ms.smoke.distill()
    values.epochs, values.own = 2, { max_new = 24 }
    return values
  end })

local o = ms.setup(cfg, { teachers = { cfg.teacher }, on = cfg.kd.on })
local student, teacher = o.student, o.teachers[1]

local run = ms.run.open(cfg, { student = student, data = o.train, carry = o.carry,
  validation = { data = o.valid, teacher = teacher, vocab = o.vocab },
  schedules = { lr = ms.schedule.of(cfg.optim),
    share = ms.schedule.linear { from = cfg.own.first_share, to = cfg.own.share } } })

--- The tokens of a sample before its last answer, and that answer's weight. weights[t] is that of
--- the position which predicts token t + 1; arrays of the FFI count from 0.
local function prompt_of(i)
  local ids, n, weights = o.train:sample(i)
  local last = n - 1
  while last > 0 and weights[last] == 0 do last = last - 1 end
  local first = last
  while first > 0 and weights[first - 1] > 0 do first = first - 1 end
  local prompt = {}
  for t = 0, first do prompt[t + 1] = tonumber(ids[t]) end
  return prompt, weights[last]
end

--- The student's answers to the prompts. Draws depend on the seed and on the number of the prompt,
--- which counts on through the run and over all ranks: `first` is that of the first one here.
local function answers_to(prompts, first)
  if #prompts == 0 then return {} end
  local answers = student:generate(prompts, { max_new = cfg.own.max_new, top_p = cfg.own.top_p,
    temperature = cfg.own.temperature, seed = cfg.seed, first = first })
  for i, answer in ipairs(answers) do -- the teacher's context may be the shorter one
    for t = #answer, cfg.data.max_tokens - #prompts[i] + 1, -1 do answer[t] = nil end
  end
  return answers
end

--- The batches of a step on own answers, of at most `batch.micro_tokens` tokens each; nil where no
--- sample of the step has a weight. `state.answers` is saved with the run, so a resume draws the
--- same; of several ranks each answers its share of the prompts.
local function own_batches(step, state)
  local prompts, weights = {}, {}
  for _, i in ipairs(step:samples()) do
    local prompt, weight = prompt_of(i)
    if weight > 0 then prompts[#prompts + 1], weights[#weights + 1] = prompt, weight end
  end
  if #prompts == 0 then return nil end
  local mine, before = step:part(prompts)
  local answers = answers_to(mine, state.answers + before)
  state.answers = state.answers + #prompts
  return ms.batch.cut(mine, answers, cfg.batch.micro_tokens, (step:part(weights)))
end

--- Whether a step is on own answers. The share is paid into an account, from which each such step
--- takes 1: so they are spread evenly, and the account lies in the state.
local function is_own(step, state)
  state.account = state.account + step.share
  if state.account < 1 - 1e-9 then return false end -- 10 * 0.1 is less than 1
  state.account = state.account - 1
  return true
end

local function learn(batch, own)
  local target = teacher:targets(batch, cfg.kd)
  if own then -- another loss than on the data, and measured apart
    student:learn(batch, { ms.kd(target, 1, cfg.kd, { name = 'own' }) })
  else
    student:learn(batch, { ms.ce(1 - cfg.kd.weight), ms.kd(target, cfg.kd.weight, cfg.kd) })
  end
  target:free()
end

local state = run.state
state.account, state.answers = state.account or 0, state.answers or 0

for step in run:steps() do
  local own = is_own(step, state) and own_batches(step, state)
  if own then step:use(own) end
  for batch in step:micro_batches() do learn(batch, own) end
  step:update()
end
run:finish()
