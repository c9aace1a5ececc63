--- Models that are open, measured on a data set: losses with their errors, exact answers, and the
--- differences of models. `train/eval.lua` says what the numbers mean.

local ffi = require 'ffi'
local exact = require 'moonstill.train.exact'
local generate = require 'moonstill.model.generate'
local json = require 'moonstill.base.json'
local kd = require 'moonstill.loss.kd'
local measuring = require 'moonstill.train.measuring'
local objectives = require 'moonstill.loss.objectives'
local patterns = require 'moonstill.text.pattern'
local progress = require 'moonstill.base.progress'
local schema = require 'moonstill.base.schema'
local sorted = require 'moonstill.base.sorted'
local strict = require 'moonstill.base.strict'
local option, optional = schema.option, schema.optional

local M = {}

-- What the divergence from a teacher is.
local DIVERGENCE = {
  objective = schema.one_of(kd.objectives, nil, 'divergence from the teacher, over all ids'),
  temperature = option(1, 'T of both distributions in it, which has the factor T^2 then (tvd: T)',
    'number >= 0.001 <= 1000'),
}
for name, parameter in sorted.pairs(objectives.options) do DIVERGENCE[name] = parameter end

--- What is measured.
M.options = schema.new('eval', {
  samples = optional('integer >= 1', 'how many are measured, evenly apart; by default all'),
  exact = option(100, 'how many of the samples each model answers, greedily, for the share of '
    .. 'exact answers: the slow part; all, or 0: none', 'integer >= 0|all'),
  match = optional('string', 'regular expression (PCRE2) whose last match in an answer counts, its '
    .. "group where it has one: 'answer: (\\d+)'; by default the whole text, trimmed"),
  max_new = optional('integer >= 1 <= 2147483647', 'longest answer in tokens; by default twice the '
    .. 'longest of the data, and at least 64'),
  together = generate.row_options.together,
}, DIVERGENCE)

-- errors -----------------------------------------------------------------------------------------

-- The standard error of a mean by the sums of each sample; `other` has those of the mean that is
-- taken away from it.
local function error_of(samples, mean, other, other_mean)
  local n, weight, sum = #samples, 0, 0
  for i, of in ipairs(samples) do
    local u = of.value - mean * of.weight
    if other then u = u - (other[i].value - other_mean * other[i].weight) end
    weight, sum = weight + of.weight, sum + u ^ 2
  end
  if n < 2 or not (weight > 0) then return nil end
  return math.sqrt(n / (n - 1) * sum) / weight
end

-- The mean of a list of numbers and its standard error.
local function mean_of(list)
  local n, sum, squares = #list, 0, 0
  for _, x in ipairs(list) do sum = sum + x end
  for _, x in ipairs(list) do squares = squares + (x - sum / n) ^ 2 end
  return sum / n, n > 1 and math.sqrt(squares / (n - 1) / n) or nil
end

-- losses -----------------------------------------------------------------------------------------

-- What is measured of a model, by name: which term, and which of its sums.
local function measured_of(job, of)
  local kept = { loss = { 1, 'value' }, agree = { 1, 'agree' } }
  if of.teacher then
    kept[job.objective], kept.teacher_agree = { 2, 'value' }, { 2, 'agree' }
  end
  return kept
end

local function by_number(a, b) return a.number < b.number end

-- The sums of all ranks' samples, in the order of the samples.
local function of_all(all, list)
  if all.size == 1 then return list end
  local own, joined = ffi.new('double[?]', 3 * #list + 1), {}
  for i, of in ipairs(list) do
    own[3 * i - 3], own[3 * i - 2], own[3 * i - 1] = of.number, of.value, of.weight
  end
  for _, bytes in ipairs(all:each(ffi.string(own, 24 * #list))) do
    local x = ffi.cast('const double *', ffi.cast('const char *', bytes))
    for i = 0, #bytes / 24 - 1 do
      joined[#joined + 1] = { number = x[3 * i], value = x[3 * i + 1], weight = x[3 * i + 2] }
    end
  end
  table.sort(joined, by_number)
  return joined
end

-- Measures a model; the sums of each sample are kept for the errors.
local function measure_one(job, of)
  local measured, began, samples = measured_of(job, of), progress.clock(), {}
  local all = of.model:grid().dp
  for name in sorted.pairs(measured) do samples[name] = {} end
  local result, terms = measuring.measure { ranks = all, student = of.model,
    data = job.data, teacher = of.teacher, kd = of.teacher and job.kd, vocab = of.vocab,
    micro_tokens = job.micro_tokens, progress = job.progress, stop = job.halt,
    each = function(parts, numbers)
      for name, from in sorted.pairs(measured) do
        for i, part in ipairs(parts) do
          local sums = part[from[1]]
          table.insert(samples[name], { number = numbers[i], value = sums[from[2]],
            weight = sums.weight })
        end
      end
    end }
  if not result then job.halted() end
  for name, list in sorted.pairs(samples) do samples[name] = of_all(all, list) end
  local entry = of.entry
  for name in sorted.pairs(measured) do
    entry[name] = rawget(result, name)
    entry[name .. '_error'] = entry[name] and error_of(samples[name], entry[name])
  end
  entry.perplexity = entry.loss and math.exp(entry.loss)
  entry.seconds = progress.clock() - began
  entry.tokens_per_second = entry.seconds > 0 and job.data:tokens() / entry.seconds or nil
  of.samples, job.measured = samples, terms.ce.rows
end

-- exact answers ----------------------------------------------------------------------------------

local REASONS = { { 'cut', 'whose answer was cut off' }, { 'without_prompt', 'without a prompt' },
  { 'unlearnt', 'of which nothing is learnt' } }

-- Why some samples cannot be asked for, in words.
local function left_out_words(left_out)
  local words = {}
  for _, reason in ipairs(REASONS) do
    local n = left_out[reason[1]]
    if n then words[#words + 1] = ('%d %s'):format(n, reason[2]) end
  end
  return table.concat(words, ', ')
end

local function ask_all(job)
  local count = job.exact == 'all' and job.data:count() or job.exact
  if count == 0 then return end
  local questions, left_out = exact.questions(job.data, count, job.chat.stop)
  job.left_out = left_out
  if #questions == 0 then
    return job.say(('note: no exact answers are measured: %s'):format(left_out_words(left_out)))
  end
  if next(left_out) then
    job.say(('note: exact answers: left out are samples: %s'):format(left_out_words(left_out)))
  end
  job.questions = questions
  job.max_new = job.max_new or math.max(64, 2 * exact.longest(questions))
end

-- The place of an answer that the pattern does not match, for errors.
local function refuse_match(job, reference)
  error(("eval: match: '%s' matches none of the %d answers of the data, such as %q"):format(
    job.match, #job.questions, reference:sub(1, 200)), 0)
end

local function describe(at)
  return { { ('%d of %d answers'):format(at.done, at.total), 1 }, { at.name, 2 } }
end

local function ask(job, of)
  local at = { name = of.entry.name }
  local rows, told = exact.ask(of.model, job.chat, job.questions, { max_new = job.max_new,
    together = job.together, pattern = job.pattern, halt = job.halt,
    done = function(n, all)
      at.done, at.total = n, all
      job.progress:draw(describe, at)
    end })
  job.progress:clear()
  if not rows then job.halted() end
  if #rows == 0 then refuse_match(job, told.reference) end
  local right, ended, hits = 0, 0, {}
  for i, row in ipairs(rows) do
    hits[i] = row.right and 1 or 0
    right, ended = right + hits[i], ended + (row.ended and 1 or 0)
  end
  local entry = of.entry
  entry.exact, entry.exact_error = mean_of(hits)
  entry.answers = { right = right, of = #rows, ended = ended, unmatched = told.unmatched,
    tokens = told.tokens, seconds = told.seconds,
    tokens_per_second = told.seconds > 0 and told.tokens / told.seconds or nil }
  of.hits, of.rows = hits, rows
end

-- differences ------------------------------------------------------------------------------------

-- What a model has less another one, with errors of the difference.
local function difference(of, from)
  local d = { model = of.entry.name, less = from.entry.name }
  for name, samples in sorted.pairs(of.samples) do
    local a, b = of.entry[name], from.entry[name]
    if a and b then
      d[name], d[name .. '_error'] = a - b, error_of(samples, a, from.samples[name], b)
    end
  end
  if of.hits and from.hits then
    local list = {}
    for i, hit in ipairs(of.hits) do list[i] = hit - from.hits[i] end
    d.exact, d.exact_error = mean_of(list)
  end
  return d
end

local function differences(job)
  local list = json.array()
  for i = 2, #job.students do list[i - 1] = difference(job.students[i], job.students[1]) end
  return list
end

-- the report -------------------------------------------------------------------------------------

-- What became of the rows of the data, as far as anything did.
local COUNTS = { 'rows', 'dropped', 'truncated', 'endless', 'split', 'pieces', 'filtered',
  'skipped', 'open' }

local function data_of(job)
  local data, report = job.data, job.data.report
  local told = { files = json.array(data.names), samples = data:count(), tokens = data:tokens(),
    measured = job.measured }
  for _, name in ipairs(COUNTS) do
    if report[name] > 0 then told[name] = report[name] end
  end
  return told
end

local function strict_entry(job, of)
  local absent = {}
  for name in sorted.pairs(measured_of(job, of)) do
    absent[name], absent[name .. '_error'] = true, true
  end
  for _, name in ipairs { 'perplexity', 'tokens_per_second', 'folder' } do absent[name] = true end
  if job.exact ~= 0 then
    for _, name in ipairs { 'exact', 'exact_error', 'answers' } do absent[name] = true end
  end
  return setmetatable(of.entry, strict.class('what was measured', {}, absent))
end

local class = strict.class('evaluation', {}, { teacher = true, temperature = true, match = true,
  max_new = true, objective = true })

local function report_of(job)
  local report = setmetatable({ data = data_of(job), students = json.array(),
    differences = differences(job), match = job.match,
    max_new = job.questions and job.max_new or nil }, class)
  for i, of in ipairs(job.students) do report.students[i] = strict_entry(job, of) end
  if job.teacher then
    report.teacher = strict_entry(job, job.teacher)
    report.objective, report.temperature = job.objective, job.kd.temperature
  end
  return report
end

-- the work ---------------------------------------------------------------------------------------

local function entry_of(model, name)
  local info = model:info()
  local path = type(info.path) == 'string' and info.path or nil
  return { model = model, entry = { name = path or name, folder = path,
    parameters = info.parameters } }
end

-- What divergence is asked for, as `ms.kd` takes it.
local function kd_of(o)
  local measure = { target = 'hidden' }
  for name in sorted.pairs(DIVERGENCE) do measure[name] = o[name] end
  return measure
end

--- Measures models that are open.
--- @param students ms_model[]
--- @param teacher? ms_model
--- @param data ms_dataset
--- @param o table of `measure_options`, and micro_tokens
--- @param how { progress: table, say: fun(line: string), halt?: (fun(): boolean),
---   halted: function }
--- @return table report
--- @return table[] models { entry, rows } of each, the teacher last
function M.measure(students, teacher, data, o, how)
  local job = { data = o.samples and data:some(o.samples) or data, chat = data.chat,
    students = {}, kd = kd_of(o), objective = o.objective, exact = o.exact, match = o.match,
    max_new = o.max_new, together = o.together, micro_tokens = o.micro_tokens,
    pattern = o.match and patterns.new(o.match), progress = how.progress, say = how.say,
    halt = how.halt, halted = how.halted }
  job.teacher = teacher and entry_of(teacher, 'teacher')
  for i, model in ipairs(students) do
    local of = entry_of(model, #students > 1 and 'student ' .. i or 'student')
    of.teacher, of.vocab = teacher, teacher and job.chat:vocab(model, teacher)
    job.students[i] = of
  end
  job.data:fits(unpack(students))
  if teacher then job.data:fits(teacher) end
  job.data:check_counts 'response'
  ask_all(job) -- what is wrong with the questions is said before the long work
  local all = sorted.copy(job.students)
  all[#all + 1] = job.teacher
  for _, of in ipairs(all) do measure_one(job, of) end
  for _, of in ipairs(job.questions and all or {}) do ask(job, of) end
  return report_of(job), all
end

return M
