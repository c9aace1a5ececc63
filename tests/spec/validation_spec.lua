--- run:validate: what it measures, and when it measures it again; how many ids take part.
local ms = require 'moonstill'
local bpe = require 'moonstill.text.bpe'
local json = require 'moonstill.base.json'
local recipe = require 'tests.programs.run_recipe'
local tools = require 'tests.support.tools'

local refused = tools.refused

local function model(own, seed, o) return own(ms.model.create(recipe.config, seed, o or { dtype = 'f32' })) end

local function open(own, output)
  local student = model(own, 1, { train = true, dtype = 'f32' })
  return ms.run.open({ output = output or tools.folder(), optim = { lr = 0.01 }, batch = { tokens = 200 },
    max_steps = 2, epochs = 0 }, { student = student, data = recipe.data(20), quiet = true }), student
end

local function write(m, value)
  for _, weight in m:parameters() do
    local list = {}
    for i = 1, weight:count() do list[i] = value(i) end
    weight:write(list)
    weight:free()
  end
end

-- Counts the batches that are made of a data set: none when a known result is given.
local function counted(data)
  local made, batch = 0, data.batch
  function data:batch(...)
    made = made + 1
    return batch(self, ...)
  end
  return data, function()
    local n = made
    made = 0
    return n
  end
end

describe('validation', function()
  it('measures again what has changed, by value, and nothing else', function()
    ms.scope(function(own)
      local run, student = open(own)
      local teacher, data, made = model(own, 2), counted(recipe.data(7))
      local how = { target = 'topk', k = 4, temperature = 1 }
      local function ask(o)
        o.data, o.teacher = o.data or data, o.teacher or teacher
        local result = run:validate(o)
        return result, made() > 0
      end
      -- Validates twice: whether the first one measured, and the result; the second one must not.
      local function fresh(o)
        local result, measured = ask(o)
        local again, twice = ask(o)
        assert.is_false(twice)
        assert.same(result, again)
        return measured, result
      end
      local _, first = fresh { kd = how }
      local same = { target = 'topk', k = 4, temperature = 1 }
      assert.is_false((fresh { kd = same })) -- another table with the same values
      assert.is_false((fresh { kd = how, data = counted(recipe.data(7)) }))
      how.temperature = 4
      local measured, other = fresh { kd = how }
      assert.is_true(measured)
      assert.are_not.equal(first.forward_kl, other.forward_kl)
      how.temperature = 1
      for _, change in ipairs { { 'k', 3 }, { 'tail', 'renormalize' }, { 'objective', 'js' }, { 'vocab', 30 } } do
        how[change[1]] = change[2]
        measured, other = fresh { kd = how }
        assert.is_true(measured, change[1])
        assert.are_not.equal(first.forward_kl, other[how.objective or 'forward_kl'])
        how[change[1]] = nil
        if change[1] == 'k' then how.k = 4 end
      end
      assert.is_true((fresh { kd = how, vocab = 29 }))
      assert.is_true((fresh { vocab = 28 }))
      assert.is_true((fresh { vocab = 27 }))
      assert.is_true((fresh { kd = how, teacher = model(own, 3) }))
      assert.is_false((fresh { kd = how, teacher = model(own, 2) })) -- a second one with the same weights

      -- the result is the caller's own
      local mine = ask { kd = { target = 'hidden' } }
      local seen = { step = 0 }
      for key, value in pairs(mine) do seen[key] = value end
      assert.same(seen, run.state.validation)
      mine.forward_kl = 9
      assert.are_not.equal(9, run.state.validation.forward_kl)
      ask({ kd = how }).forward_kl = 7
      assert.same(first, (ask { kd = how }))
      run.state.validation.forward_kl = 8
      assert.same(first, (ask { kd = how }))

      write(teacher, function(i) return math.sin(i) / 4 end)
      measured, other = fresh { kd = how }
      assert.is_true(measured)
      -- CE sums the top ids of the teacher apart
      assert.is_true(math.abs(first.loss - other.loss) <= 1e-6 * first.loss)
      assert.are_not.equal(first.forward_kl, other.forward_kl)
      write(student, function(i) return math.cos(i) / 4 end) -- without a step
      measured, other = fresh { kd = how }
      assert.is_true(measured)
      assert.are_not.equal(first.loss, other.loss)

      local nameless = recipe.data(7)
      nameless.fingerprint = nil -- it cannot tell itself from others: always measured
      local _, count = counted(nameless)
      run:validate { data = nameless }
      assert.is_true(count() > 0)
      run:validate { data = nameless }
      assert.is_true(count() > 0)
      run:close()
    end)
  end)

  it('is known to the process that finds the run finished, unless something has changed', function()
    ms.scope(function(own)
      local output = tools.folder()
      local function finish(again, teacher_seed, how)
        local run, student = open(own, output)
        local data, made = counted(recipe.data(7))
        for step in run:steps() do
          assert.is_false(again)
          for batch in step:micro_batches() do student:learn(batch, { ms.ce(1) }) end
          step:update()
        end
        local result = run:validate { data = data, teacher = model(own, teacher_seed), kd = how }
        run:finish()
        return made() > 0, result
      end
      local how = { target = 'topk', k = 4 }
      local measured, first = finish(false, 2, how)
      assert.is_true(measured)
      local second
      measured, second = finish(true, 2, { target = 'topk', k = 4 })
      assert.is_false(measured)
      assert.same(first, second)
      assert.is_true((finish(true, 2, { target = 'topk', k = 4, temperature = 2 })))
      assert.is_true((finish(true, 3, how)))
    end)
  end)

  it('that is not finite is told and not kept', function()
    ms.scope(function(own)
      local run, student = open(own)
      local data, made = counted(recipe.data(7))
      assert.is_true(run:validate({ data = data }).loss > 0 and made() > 0)
      write(student, function() return 0 / 0 end)
      for _ = 1, 2 do
        local loss = run:validate({ data = data }).loss
        assert.is_true(loss - loss ~= 0)
        assert.is_true(made() > 0)
        assert.is_nil(run.state.validation) -- a checkpoint holds finite numbers
      end
      run:close()
    end)
  end)

  it('against two teachers has two lines, each with its name', function()
    ms.scope(function(own)
      local run = open(own)
      local names = { 'small', 'large' }
      for i, name in ipairs(names) do
        local v = run:validate { data = recipe.data(7), teacher = model(own, i + 1), kd = { name = name } }
        assert.equal(v[name], run.state.validation[name])
      end
      local lines = {}
      for _, entry in json.lines(run.output .. '/metrics.jsonl') do lines[#lines + 1] = entry end
      assert.equal(2, #lines)
      for i, name in ipairs(names) do
        assert.same({ 'ce', name }, ms.sorted.keys(lines[i].terms))
        assert.equal('forward_kl', lines[i].terms[name].objective)
      end
      assert.is_nil(run.state.validation.small) -- the last one alone
      run:close()
    end)
  end)

  it('of nothing is an error, and of a part is that part', function()
    ms.scope(function(own)
      local run = open(own)
      local teacher, data = model(own, 2), recipe.data(7)
      local batch = data.batch
      data.paths = { 'a.jsonl', 'b.jsonl' }
      function data:batch() return ms.batch { { tokens = { 1, 2, 3, 4 } } } end -- luacheck: ignore 212
      assert.is_nil(run:validate {}) -- a recipe without validation data
      refused('validation: a.jsonl, b.jsonl has nothing to measure', run.validate, run, { data = data })
      refused('nothing to measure', run.validate, run, { data = data, teacher = teacher })
      assert.is_nil(run.state.validation)
      assert.equal('', tools.read(run.output .. '/metrics.jsonl'))
      local lines = {}
      function run:say(line) lines[#lines + 1] = line end -- luacheck: ignore 212
      local result = run:validate { data = data, teacher = teacher, kd = { on = 'all', target = 'hidden' } }
      assert.same({ 'forward_kl', 'teacher_agree' }, ms.sorted.keys(result))
      assert.equal(('validation before step 1: forward KL %.4f to the teacher, agreement %.1f %%'):format(
        result.forward_kl, 100 * result.teacher_agree), lines[1])
      local entry = json.decode(tools.read(run.output .. '/metrics.jsonl'))
      assert.same({ rows = 0, weight = 0 }, entry.terms.ce)
      assert.is_nil(entry.loss)
      data.batch = batch
      function data:fingerprint() return 'other' end -- luacheck: ignore 212
      local whole = run:validate { data = data, teacher = teacher }
      assert.equal(('validation before step 1: loss %.4f, top-1 %.1f %%, forward KL %.4f to the teacher, '
        .. 'agreement %.1f %%'):format(whole.loss, 100 * whole.agree, whole.forward_kl, 100 * whole.teacher_agree),
        lines[#lines])
      local large = run:validate { data = data, teacher = teacher,
        kd = { name = 'large', objective = 'skewed_reverse_kl' } }
      assert.truthy(lines[#lines]:find((', large (skewed reverse KL) %.4f to the teacher, '):format(large.large), 1,
        true), lines[#lines])
      for _, name in ipairs { 'loss', 'ce', 'teacher_agree' } do
        refused("validation: a divergence cannot be called '" .. name, run.validate, run,
          { data = data, teacher = teacher, kd = { name = name } })
      end
      run:close()
    end)
  end)
end)

describe('the ids that take part', function()
  local vocabulary = bpe.learn({ 'one two three two one', 'four and five' }, 270)
  local ids = bpe.size(vocabulary)
  local folder = tools.folder()
  -- A random model with `rows` rows, saved beside the tokenizer, and opened.
  local function with_tokenizer(own, rows, seed, options)
    local path = ('%s/%d-%d'):format(folder, rows, seed)
    bpe.write(path .. '.tokenizer', vocabulary, 64)
    local config = {}
    for key, value in pairs(recipe.config) do config[key] = value end
    config.vocab_size = rows
    ms.model.create(config, seed, { dtype = 'f32' }):save(path, { carry = path .. '.tokenizer' })
    return own(ms.model.open(path, options))
  end
  local function vocab_of(own, m, batch, cfg) return own(m:targets(batch, cfg)):info().vocab end

  it('are the tokenizer\'s where the model has more rows', function()
    ms.scope(function(own)
      local batch = own(ms.batch { { tokens = { 1, 2, 3 }, response = { 1, 1, 0 } } })
      local teacher = with_tokenizer(own, ids + 12, 2)
      local student = with_tokenizer(own, ids + 12, 1)
      assert.equal(ids, vocab_of(own, teacher, batch))
      assert.equal(ids, vocab_of(own, teacher, batch, { target = 'hidden', vocab = 0 }))
      assert.equal(ids + 3, vocab_of(own, teacher, batch, { vocab = ids + 3 }))
      assert.equal(ids, vocab_of(own, own(ms.model.shrink(teacher, { layers = 1 })), batch)) -- it goes with it
      assert.equal(ids - 2, vocab_of(own, with_tokenizer(own, ids - 2, 3), batch))
      local function kl(cfg) return student:evaluate(batch, { ms.kd(own(teacher:targets(batch, cfg))) })[1].value end
      assert.equal(kl { vocab = ids }, kl())
      assert.are_not.equal(kl { vocab = ids + 12 }, kl())
      -- without a tokenizer: the rows
      assert.equal(40, vocab_of(own, model(own, 2), batch, { target = 'hidden' }))
      -- a narrower student says what to do
      local narrow = with_tokenizer(own, ids - 1, 4)
      refused('ask the teacher for the shared ones %(vocab%)', function()
        narrow:evaluate(batch, { ms.kd(own(teacher:targets(batch))) })
      end)

      local run = ms.run.open({ output = tools.folder(), optim = { lr = 1 } }, { quiet = true,
        student = with_tokenizer(own, ids + 12, 1, { train = true }), data = recipe.data(20) })
      local data = recipe.data(7)
      local default = run:validate { data = data, teacher = teacher }
      local kd = run:validate { data = data, teacher = teacher, kd = { target = 'hidden', vocab = ids } }
      assert.equal(kd.forward_kl, default.forward_kl)
      assert.equal(default.forward_kl,
        run:validate({ data = data, teacher = teacher, kd = { target = 'hidden' } }).forward_kl)
      local wide = run:validate { data = data, teacher = teacher, vocab = ids + 12 }
      assert.are_not.equal(wide.forward_kl, default.forward_kl)
      assert.equal(wide.forward_kl, run:validate({ data = data, teacher = teacher, kd = { target = 'hidden' },
        vocab = ids + 12 }).forward_kl)
      refused('validation: vocab = 5, but kd.vocab = 6', run.validate, run,
        { data = data, teacher = teacher, vocab = 5, kd = { vocab = 6 } })
      run:close()
    end)
  end)

  it('are asked for where the tokenizer cannot be read', function()
    ms.scope(function(own)
      local batch = own(ms.batch { { tokens = { 1, 2 }, response = { 1, 0 } } })
      local teacher = with_tokenizer(own, ids + 1, 5)
      tools.write(('%s/%d-5/tokenizer.json'):format(folder, ids + 1), '{')
      refused('tokenizer.json.*without `vocab` the ids that take part are the tokenizer\'s', teacher.targets, teacher,
        batch)
      assert.equal(ids + 1, vocab_of(own, teacher, batch, { vocab = ids + 1 }))
    end)
  end)
end)
