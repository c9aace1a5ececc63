--- `ms.eval`: what it measures equals a run's validation and the definitions; errors, exact answers.
local ffi = require 'ffi'
local exact = require 'moonstill.train.exact'
local heads = require 'tests.support.heads'
local json = require 'moonstill.base.json'
local launched = require 'tests.support.launched'
local models = require 'tests.support.models'
local ms = require 'moonstill'
local small = require 'tests.support.tokenizers'
local sorted = require 'moonstill.base.sorted'
local talkers = require 'tests.support.talkers'
local tools = require 'tests.support.tools'

local fails = tools.fails

local VOCAB = 304
local TURNS = { small.added(300, '<|im_start|>'), small.added(301, '<|im_end|>'), small.added(302, '<|endoftext|>') }

-- A tokenizer of bytes with the tokens of ChatML, in a folder of its own.
local bytes = tools.folder()
tools.write(bytes .. '/tokenizer.json', json.encode(small.byte_level { added = TURNS }))
tools.write(bytes .. '/generation_config.json', json.encode { eos_token_id = 302 })

local function model(seed, changes, options)
  local config = models.config { vocab_size = VOCAB, max_position_embeddings = 256 }
  for key, value in sorted.pairs(changes or {}) do config[key] = value end
  return ms.model.create(config, seed, options or { dtype = 'f32' })
end

local ROWS = {}
for i, text in ipairs { 'a', 'some words', 'x y z', 'the end of it', 'two\nlines', 'b', 'more', 'and more of it' } do
  ROWS[i] = { prompt = ('say %d'):format(i), answer = text }
end

local function data_of(rows, options)
  options = options or {}
  options.quiet = true
  return ms.dataset.open(rows, ms.chat.open(bytes), options)
end

local QUIET = { exact = 0, quiet = true }
local function with(more)
  local o = sorted.copy(QUIET)
  for key, value in sorted.pairs(more) do o[key] = value end
  return o
end

-- The logits of a sample's positions as a list of rows, from 1.
local function logits_of(m, ids, n)
  local batch = ms.batch.new(ids, n, ffi.new('int32_t[2]', 0, n), 1)
  local z, vocab = m:logits(batch)
  batch:free()
  local rows = {}
  for t = 1, n do
    rows[t] = {}
    for v = 1, vocab do rows[t][v] = z[(t - 1) * vocab + v - 1] end
  end
  return rows
end

local function log_softmax(row, id)
  local top, sum = -math.huge, 0
  for _, x in ipairs(row) do top = math.max(top, x) end
  for _, x in ipairs(row) do sum = sum + math.exp(x - top) end
  return row[id] - top - math.log(sum)
end

-- Whether the largest of a row is this id, from 1; the first of equal ones.
local function is_top(row, id)
  local best = 1
  for v = 2, #row do if row[v] > row[best] then best = v end end
  return best == id, best
end

-- By the definitions, in doubles: sums of each sample.
local function defined(data, student, teacher, term)
  local samples = {}
  for i = 1, data:count() do
    local ids, n, weights = data:sample(i)
    local z, y = logits_of(student, ids, n), teacher and logits_of(teacher, ids, n)
    local s = { weight = 0, loss = 0, agree = 0, kd = 0, teacher_agree = 0 }
    for t = 1, n - 1 do
      local a = weights[t - 1]
      if a > 0 then
        local label = ids[t] + 1
        s.weight, s.loss = s.weight + a, s.loss - a * log_softmax(z[t], label)
        s.agree = s.agree + (is_top(z[t], label) and a or 0)
        if y then
          s.kd = s.kd + a * heads.kd_row(term, z[t], y[t])
          local _, best = is_top(y[t], 1)
          s.teacher_agree = s.teacher_agree + (is_top(z[t], best) and a or 0)
        end
      end
    end
    samples[i] = s
  end
  return samples
end

local function mean(samples, name)
  local sum, weight = 0, 0
  for _, s in ipairs(samples) do sum, weight = sum + s[name], weight + s.weight end
  return sum / weight, weight
end

-- The standard error of a ratio of sums, or of the difference of two.
local function error_of(samples, name, others)
  local m, weight = mean(samples, name)
  local other = others and mean(others, name)
  local sum, n = 0, #samples
  for i, s in ipairs(samples) do
    local u = s[name] - m * s.weight
    if others then u = u - (others[i][name] - other * others[i].weight) end
    sum = sum + u * u
  end
  return math.sqrt(n / (n - 1) * sum) / weight
end

describe('ms.eval', function()
  it('gives what the definitions say, and their errors over samples', function()
    ms.scope(function(own)
      local student, teacher, data = own(model(1)), own(model(2)), data_of(ROWS)
      for _, how in ipairs { { objective = 'forward_kl' }, { objective = 'js', beta = 0.3 },
        { objective = 'reverse_kl', temperature = 2 } } do
        local term = { objective = how.objective, T = how.temperature or 1, vocab = data.chat:vocab(student, teacher),
          parameter = how.beta }
        local want = defined(data, student, teacher, term)
        how.teacher = teacher
        local e = ms.eval(student, data, with(how)).students[1]
        -- the head sums f32 log-probabilities, right to 1e-5 (kernels/head.h); agreements count rows
        local function close(got, wanted) tools.close({ got }, { wanted }, 'f64', 1, 1e-5 * math.abs(wanted)) end
        close(e.loss, (mean(want, 'loss')))
        close(e[how.objective], (mean(want, 'kd')))
        close(e.agree, (mean(want, 'agree')))
        close(e.teacher_agree, (mean(want, 'teacher_agree')))
        close(e.perplexity, math.exp((mean(want, 'loss'))))
        -- errors are sums of differences that nearly cancel
        tools.close({ e.loss_error, e[how.objective .. '_error'], e.agree_error },
          { error_of(want, 'loss'), error_of(want, 'kd'), error_of(want, 'agree') }, 'f64', 1, 1e-5)
      end
    end)
  end)

  it('equals a run\'s validation to the last bit', function()
    ms.scope(function(own)
      local student, teacher = own(model(1, nil, { train = true, dtype = 'f32' })), own(model(2))
      local data = data_of(ROWS)
      local batch = { tokens = 64, micro_tokens = 48 } -- several micro-batches
      local run = ms.run.open({ output = tools.folder(), batch = batch, optim = { lr = 0 },
        max_steps = 1, epochs = 0 },
        { student = student, data = data, quiet = true })
      local v = run:validate { data = data, teacher = teacher, vocab = data.chat:vocab(student, teacher) }
      local e = ms.eval(student, data, with { teacher = teacher, batch = batch }).students[1]
      assert.same({ v.loss, v.agree }, { e.loss, e.agree })
      assert.same({ v.forward_kl, v.teacher_agree }, { e.forward_kl, e.teacher_agree })
      run:close()
      -- the layout is in the last bits
      local other = ms.eval(student, data, QUIET).students[1]
      assert.is_true(math.abs(other.loss - e.loss) < 1e-6 * e.loss)
    end)
  end)

  it('compares models, with the error of the difference', function()
    ms.scope(function(own)
      local a, b, teacher, data = own(model(1)), own(model(3)), own(model(2)), data_of(ROWS)
      local report = ms.eval({ a, b }, data, with { teacher = teacher })
      local term = { objective = 'forward_kl', T = 1, vocab = data.chat:vocab(a, teacher) }
      local of_a, of_b = defined(data, a, teacher, term), defined(data, b, teacher, term)
      local d = report.differences[1]
      assert.equal(1, #report.differences)
      assert.equal(report.students[2].loss - report.students[1].loss, d.loss)
      tools.close({ d.loss_error, d.forward_kl_error }, { error_of(of_b, 'loss', of_a), error_of(of_b, 'kd', of_a) },
        'f64', 1, 1e-5) -- as above
      -- the teacher is measured as well, and has no divergence from itself
      local own_loss = (mean(defined(data, teacher), 'loss'))
      tools.close({ report.teacher.loss }, { own_loss }, 'f64', 1, 1e-5 * own_loss)
      fails("what was measured has no 'forward_kl'", function() return report.teacher.forward_kl end)
      -- a model less itself is nothing, and that is certain
      d = ms.eval({ a, a }, data, with { teacher = teacher }).differences[1]
      assert.same({ 0, 0, 0 }, { d.loss, d.loss_error, d.forward_kl_error })
    end)
  end)

  it('opens folders and files itself', function()
    local folder = talkers.turns({ [10] = 97, [97] = 301 })
    local path = tools.folder() .. '/rows.jsonl'
    tools.write(path, '{"prompt": "x", "answer": "a"}\n{"prompt": "y", "answer": "b"}\n')
    local report = ms.eval(folder, path, { quiet = true })
    assert.same({ folder, 2, 0.5, 4 }, { report.students[1].name, report.data.samples, report.students[1].exact,
      report.data.measured })
    fails('max_tokens', ms.eval, folder, path, { data = { max_tokens = 0 } })
    fails({ "eval: no option 'exakt'", "'exact'" }, ms.eval, folder, path, { exakt = 1 })
    fails('eval: no model', ms.eval, {}, path)
    fails('model expected, got boolean', ms.eval, true, path)
  end)

  it('measures some of the samples, evenly apart', function()
    ms.scope(function(own)
      local student, data = own(model(1)), data_of(ROWS)
      local part = data_of { ROWS[1], ROWS[3], ROWS[6] } -- 8 / 3 apart
      local report = ms.eval(student, data, with { samples = 3 })
      assert.equal(3, report.data.samples)
      assert.equal(ms.eval(student, part, QUIET).students[1].loss, report.students[1].loss)
      assert.equal(8, ms.eval(student, data, with { samples = 9 }).data.samples)
    end)
  end)

  it('says what there is nothing of by leaving it out', function()
    ms.scope(function(own)
      local student = own(model(1))
      local e = ms.eval(student, data_of { ROWS[1] }, QUIET).students[1]
      assert.is_nil(e.loss_error) -- of one sample
      fails("what was measured has no 'exact'", function() return e.exact end) -- not asked for
      local report = ms.eval(student, data_of(ROWS), QUIET)
      assert.is_nil(report.teacher)
      assert.same({}, report.differences)
    end)
  end)
end)

describe('exact answers', function()
  local ABC, END = { [10] = 97, [97] = 98, [98] = 99, [99] = 301 }, 301 -- says "abc"
  local says_abc = talkers.turns(ABC)

  local function ask(rows, options, folder, how)
    options = options or {}
    options.quiet, options.data = true, how
    local lines = {}
    for i, row in ipairs(rows) do lines[i] = json.encode(row) .. '\n' end
    local path = tools.write(tools.folder() .. '/rows.jsonl', table.concat(lines))
    return ms.eval(folder or says_abc, path, options).students[1]
  end

  it('are equal texts, without the blanks around them', function()
    local e = ask { { prompt = 'x', answer = 'abc' }, { prompt = 'y', answer = ' abc\n' },
      { prompt = 'z', answer = 'abd' }, { prompt = 'u', answer = 'abc.' } }
    assert.equal(0.5, e.exact)
    tools.close({ e.exact_error }, { math.sqrt(0.5 * 0.5 / 3) }, 'f64', 4) -- a root and a few sums
    assert.same({ 2, 4, 4, 0 }, { e.answers.right, e.answers.of, e.answers.ended, e.answers.unmatched })
    assert.equal(4 * 4, e.answers.tokens) -- abc and its end
  end)
  it('are those of the last turn, behind the turns before it', function()
    local function turns(...)
      local list = json.array()
      for i, text in ipairs { ... } do
        list[i] = { role = i % 2 == 1 and 'user' or 'assistant', content = text }
      end
      return { messages = list }
    end
    assert.equal(0.5, ask({ turns('x', 'no', 'y', 'abc'), turns('x', 'abc', 'y', 'no') }).exact)
  end)
  it('are what a pattern captures, the last time that it matches', function()
    assert.equal('7', exact.said('1 2 7 ', require 'moonstill.text.pattern'.new '\\d+'))
    local rows = { { prompt = 'x', answer = 'c and b' }, { prompt = 'x', answer = 'ab' },
      { prompt = 'x', answer = 'x' } }
    local e = ask(rows, { match = '([bc])' })
    -- the model says c; the first row's last is b, so is the second's, and the third has none
    assert.same({ 0, 2, 1 }, { e.exact, e.answers.of, e.answers.unmatched })
    rows[2].answer = 'abc'
    assert.equal(0.5, ask(rows, { match = '([bc])' }).exact)
    fails("match: 'q' matches none of the 3 answers of the data, such as \"c and b\"", ask, rows, { match = 'q' })
    fails('no regular expression', ask, rows, { match = '(' })
    assert.equal(0, ask({ { prompt = 'x', answer = 'q' }, rows[2] }, { match = 'q' }).exact) -- nothing in the answer
  end)
  it('are as long as they may be', function()
    local endless = talkers.turns { [10] = 97, [97] = 97 }
    local e = ask({ { prompt = 'x', answer = 'aaa' } }, nil, endless)
    assert.same({ 64, 0, 0 }, { e.answers.tokens, e.answers.ended, e.exact })
    assert.equal(80, ask({ { prompt = 'x', answer = ('a'):rep(40) } }, nil, endless).answers.tokens)
    e = ask({ { prompt = 'x', answer = 'aaa' } }, { max_new = 3 }, endless)
    assert.same({ 3, 0, 1 }, { e.answers.tokens, e.answers.ended, e.exact })
  end)
  it('are asked for in parts, which changes nothing', function()
    local rows = {}
    for i = 1, 5 do rows[i] = { prompt = ('x'):rep(i), answer = i % 2 == 0 and 'abc' or 'b' } end
    assert.equal(ask(rows, { together = 16 }).exact, ask(rows, { together = 2 }).exact)
    assert.equal(0.4, ask(rows, { together = 2 }).exact)
    assert.equal(2, ask(rows, { exact = 2 }).answers.of)
    assert.equal(5, ask(rows, { exact = 'all' }).answers.of)
  end)
  it('leave out what has no prompt or no end', function()
    local rows = { { prompt = 'x', answer = 'abc' }, { prompt = 'x', answer = 'abc', ended = false } }
    assert.equal(1, ask(rows).answers.of)
    local e = ask { { text = 'abc' } }
    assert.is_nil(e.exact)
    local long = { prompt = 'x', answer = ('abc'):rep(30) }
    e = ask({ long, rows[1] }, nil, nil, { max_tokens = 60, over_long = 'truncate' })
    assert.equal(1, e.answers.of)
  end)
  it('begin where the sample\'s own tokens say', function()
    local chat = ms.chat.open(says_abc)
    local data = ms.dataset.open({ { prompt = 'x', answer = 'abc' } }, chat, { quiet = true })
    local questions = exact.questions(data, 1, { END })
    assert.same({ 1, 1 }, { #questions, questions[1].sample })
    assert.same(chat:prompt 'x', questions[1].prompt)
    assert.same({ 97, 98, 99 }, questions[1].answer)
  end)
end)

describe('ms.eval of several ranks', function()
  if launched.missing then return it('is shared', function() pending(launched.missing) end) end

  -- Each rank counts the samples and the prompts that it works on; the first one tells.
  local CODE = [[
    local ms, models = require 'moonstill', require 'tests.support.models'
    local kd, generate = require 'moonstill.loss.kd', require 'moonstill.model.generate'
    local world = require 'moonstill.base.ranks'.world()
    local measured, asked = 0, 0
    local run_parts, open = kd.run_parts, generate.open
    kd.run_parts = function(...)
      local results, parts = run_parts(...)
      for _, part in ipairs(parts) do
        if part[1].weight > 0 then measured = measured + 1 end
      end
      return results, parts
    end
    generate.open = function(model, prompts, ...)
      asked = asked + #prompts
      return open(model, prompts, ...)
    end
    local config = models.config { vocab_size = 304, max_position_embeddings = 256 }
    local a, b, teacher = ms.model.create(config, 1, { dtype = 'f32' }), ms.model.create(config, 2, { dtype = 'f32' }),
      ms.model.create(config, 3, { dtype = 'f32' })
    local rows = {}
    for i = 1, 11 do rows[i] = { prompt = 'say ' .. i, answer = ('word '):rep(i * i % 7 + 1) } end
    local data = ms.dataset.open(rows, ms.chat.open(arg[1]), { quiet = true, cache = 'off' })
    local report = ms.eval({ a, b }, data, { teacher = teacher, exact = 7, max_new = 5, quiet = true,
      batch = { tokens = 40, micro_tokens = 40 } })
    local function tell(x)
      for _, key in ipairs(require 'moonstill.base.sorted'.keys(x)) do
        if type(x[key]) == 'number' and not key:find 'second' then
          io.write(key, ' ', ('%.17g'):format(x[key]), '\n')
        end
      end
    end
    for _, x in ipairs { report.students[1], report.students[2], report.teacher, report.differences[1] } do tell(x) end
    local counts = {}
    for rank = 0, world.size - 1 do
      counts[rank + 1] = world:from(rank, measured) .. ' ' .. world:from(rank, asked)
    end
    print('counts ' .. table.concat(counts, ', '))]]

  it('is that of one, and each has its part', function()
    local function told(n)
      local status, out, err = launched.run('-n', n, '-e', CODE, bytes)
      assert.equal(0, status, err)
      return out
    end
    local one, three = told(1), told(3)
    local values, n = {}, 0
    local lines = one:match '^(.-)counts'
    for key, value in lines:gmatch '(%S+) (%S+)\n' do values[#values + 1] = { key, tonumber(value) } end
    for key, value in three:match '^(.-)counts':gmatch '(%S+) (%S+)\n' do
      n = n + 1
      assert.equal(values[n][1], key)
      -- sums in double over other orders of 11 samples
      assert.is_true(math.abs(values[n][2] - tonumber(value)) <= 1e-12 * (1 + math.abs(values[n][2])),
        ('%s: %.17g, %s'):format(key, values[n][2], value))
    end
    assert.equal(#values, n)
    assert.is_true(n > 20)
    local measured, asked = 0, 0
    for m, a in three:match 'counts ([^\n]+)':gmatch '(%d+) (%d+)' do
      assert.is_true(tonumber(m) > 0 and tonumber(m) < 33 and tonumber(a) > 0 and tonumber(a) < 21, three)
      measured, asked = measured + m, asked + a
    end
    assert.same({ 33, 21 }, { measured, asked }) -- 3 models, 11 samples, 7 questions
  end)
end)
