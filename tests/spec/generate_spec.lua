local ffi = require 'ffi'
local ms = require 'moonstill'
local C = require 'moonstill.C'
local models = require 'tests.support.models'
local read = require 'tests.support.reference'
local tools = require 'tests.support.tools'

local MARGIN = 1e-3 -- between the two largest logits: below it, rounding may decide

local refused = tools.refused

local function joined(a, b)
  local all = {}
  for _, x in ipairs(a) do all[#all + 1] = x end
  for _, x in ipairs(b) do all[#all + 1] = x end
  return all
end

-- The largest logit of each position of `ids`, and its margin over the next.
local function best_of(model, ids)
  local batch = ms.batch { ids }
  local z, vocab = model:logits(batch)
  local best, margin = {}, {}
  for t = 1, #ids do
    local first, second, at = -math.huge, -math.huge, -1
    for i = 0, vocab - 1 do
      local x = z[(t - 1) * vocab + i]
      if x > first then first, second, at = x, first, i
      elseif x > second then second = x end
    end
    best[t], margin[t] = at, first - second
  end
  batch:free()
  return best, margin
end

-- Every generated token is what a full forward pass over all before it prefers.
local function assert_greedy(model, prompt, answer)
  local best, margin = best_of(model, joined(prompt, answer))
  local sure = 0
  for i, id in ipairs(answer) do
    local t = #prompt + i - 1
    if margin[t] > MARGIN then
      assert.equal(best[t], id, ('token %d'):format(i))
      sure = sure + 1
    end
  end
  assert.is_true(sure >= 0.9 * #answer) -- otherwise this proves nothing
end

describe('generation', function()
  for _, family in ipairs(models.families) do
    it('with a cache is generation without one: ' .. family, function()
      local ref = read(family)
      local model = ms.model.open(ref.folder)
      -- of unlike lengths: shorter and longer than the windows, and one of a single token
      local prompts = { models.ids(11, 1, ref.vocab), models.ids(1, 2, ref.vocab),
                        models.ids(4, 3, ref.vocab) }
      local answers = model:generate(prompts, { max_new = 20, stop = {} })
      for i, prompt in ipairs(prompts) do
        assert.equal(20, #answers[i])
        assert_greedy(model, prompt, answers[i])
      end
      model:free()
    end)
  end

  it('gives a prompt the same tokens alone and among others', function()
    local ref = read 'qwen2-window'
    local model = ms.model.open(ref.folder)
    local prompts = { models.ids(3, 4, ref.vocab), models.ids(9, 5, ref.vocab) }
    for _, options in ipairs { { max_new = 12 }, { max_new = 12, temperature = 0.8, seed = 7 } } do
      local both = model:generate(prompts, options)
      assert.same(both[1], model:generate({ prompts[1] }, options)[1])
    end
    model:free()
  end)

  it('stops at stop tokens, at max_new and at the end of the context', function()
    local ref = read 'llama'
    local model = ms.model.open(ref.folder)
    local prompt = models.ids(5, 6, ref.vocab)
    local free_run = model:generate({ prompt }, { max_new = 10 })[1]
    local stop = free_run[4]
    local stopped = model:generate({ prompt, prompt }, { max_new = 10, stop = stop })
    local first = 1
    while free_run[first] ~= stop do first = first + 1 end
    for _, answer in ipairs(stopped) do
      assert.equal(first, #answer) -- the stop token is the last one
      assert.equal(stop, answer[first])
    end
    assert.same({ free_run[1] }, model:generate({ prompt }, { max_new = 1 })[1])
    local context = model:info().context
    local long = models.ids(context - 3, 7, ref.vocab)
    local full = models.ids(context, 8, ref.vocab)
    local answers = model:generate({ long, prompt, full }, { max_new = 6 })
    assert.equal(3, #answers[1])
    assert.same({ unpack(free_run, 1, 6) }, answers[2]) -- the end of another changes nothing
    assert.equal(0, #answers[3])
    -- the cache has room for the context, whatever is asked for: one of 2^31 positions fits nowhere
    assert.equal(context - 5, #model:generate({ prompt }, { max_new = 2 ^ 31 - 1 })[1])
    model:free()
  end)

  it('streams step by step', function()
    local ref = read 'qwen3'
    local model = ms.model.open(ref.folder)
    local prompts = { models.ids(3, 4, ref.vocab), models.ids(6, 5, ref.vocab) }
    local want = model:generate(prompts, { max_new = 6 })
    local stop, steps = want[1][2], 0
    for ids in model:stream(prompts, { max_new = 6, stop = { stop } }) do
      steps = steps + 1
      assert.equal(steps <= 2 and want[1][steps] or -1, ids[1])
    end
    assert.is_true(steps >= 2 and steps <= 6)
    model:free()
  end)

  it('goes on while the model learns, without disturbing it and without more memory each time', function()
    local ref = read 'qwen3'
    local model = ms.model.open(ref.folder, { train = true, dtype = 'f32' })
    local batch, prompts = models.reference_batch(ref), { models.ids(30, 1, ref.vocab), models.ids(2, 2, ref.vocab) }
    local want = ms.generate.collect(ms.generate.open(model, prompts, { max_new = 9, stop = {} }))
    models.run('learn', model, batch, { {} })
    local gradients, bytes = models.gradients(model), nil
    for _ = 1, 3 do
      local generator, got = ms.generate.open(model, prompts, { max_new = 9, stop = {} }), { {}, {} }
      for token in function() return generator:next() end do
        for i = 1, 2 do if token[i] >= 0 then table.insert(got[i], token[i]) end end
        model:zero_gradients()
        models.run('learn', model, batch, { {} })
        models.assert_same_gradients(gradients, models.gradients(model))
      end
      assert.same(want, got)
      generator:free()
      bytes = bytes or model:info().memory.activations
      assert.equal(bytes, model:info().memory.activations)
    end
    batch:free()
    model:free()
  end)

  it('asks for no memory at a token', function()
    for _, family in ipairs { 'llama', 'gemma2' } do
      local ref = read(family)
      local model = ms.model.open(ref.folder)
      local generator = ms.generate.open(model, { models.ids(5, 1, ref.vocab), models.ids(3, 2, ref.vocab) },
        { max_new = 20, stop = {} })
      local token = generator:next(generator:next()) -- that of the prompts, and a first step
      for _ = 1, 10 do
        C.ms_test_fail_alloc(1000)
        token = generator:next(token)
        assert.equal(1000, tonumber(C.ms_test_fail_alloc(0)), family)
      end
      generator:free()
      model:free()
    end
  end)

  it('frees its cache, also when it is abandoned and the model freed first', function()
    local ref = read 'llama'
    collectgarbage()
    collectgarbage()
    local live = C.ms_test_live()
    local model = ms.model.open(ref.folder)
    local next_ids = model:stream({ { 1, 2, 3 } }, { max_new = 9 })
    assert.equal(1, #next_ids())
    model:free()
    assert.equal(1, #next_ids())
    next_ids = nil
    collectgarbage()
    collectgarbage()
    assert.equal(live, C.ms_test_live())
  end)

  it('refuses what makes no sense, naming it', function()
    local ref = read 'llama'
    local model = ms.model.open(ref.folder)
    local function try(prompts, options) return function() model:generate(prompts, options) end end
    refused('0 prompts', try({}))
    refused('prompt 2 is empty', try({ { 1 }, {} }))
    refused('prompt 1 is a number', try({ 1, 2 }))
    refused('prompt 2: id 2 is 61, outside the model.s vocabulary of 61', try({ { 1 }, { 0, 61 } }))
    refused('generate: prompt 1 has 129 tokens, the model.s context is 128', try({ models.ids(129, 1, 61) }))
    refused("'temperature' must be number >= 0, not %-1", try({ { 1 } }, { temperature = -1 }))
    refused("'top_p' must be number > 0 <= 1, not 0", try({ { 1 } }, { top_p = 0 }))
    refused("'top_k' must be integer >= 0, not %-2", try({ { 1 } }, { top_k = -2 }))
    refused("'max_new' must be integer >= 1, not 0", try({ { 1 } }, { max_new = 0 }))
    refused("no option 'temprature'; did you mean 'temperature'", try({ { 1 } }, { temprature = 1 }))
    model:free()
  end)

  it('survives every failing allocation', function()
    local ref = read 'qwen3'
    collectgarbage()
    local model = ms.model.open(ref.folder)
    local live, fails = nil, 0
    for nth = 1, 5000 do
      C.ms_test_fail_alloc(nth)
      local ok, message = pcall(model.generate, model, { { 1, 2, 3 }, { 4 } }, { max_new = 3 })
      assert.equal(ok, C.ms_test_fail_alloc(0) > 0) -- passed over where not
      if ok then break end
      assert.matches('no memory', message)
      fails = fails + 1
    end
    assert.is_true(fails >= 8 and fails < 5000)
    model:free()
    collectgarbage()
    collectgarbage()
    live = C.ms_test_live()
    model = ms.model.open(ref.folder)
    model:generate({ { 1, 2 } }, { max_new = 2 })
    model:free()
    assert.equal(live, C.ms_test_live())
  end)
end)

-- A trained model: what it writes are words.
describe('text', function()
  local folder, why = tools.shared 'models/tinystories-656k'
  local function it_writes(name, body)
    if folder then
      it(name, function()
        local model, tok = ms.model.open(folder), ms.tokenizer.open(folder)
        body(model, tok)
        tok:free()
        model:free()
      end)
    else
      pending(name, why)
    end
  end

  it_writes('continues a story', function(model, tok)
    local prompt = 'Once upon a time'
    local text = ms.generate.text(model, tok, prompt, { max_new = 40 })
    assert.matches('^, .* girl named Lily', text)
    local ids = tok:ids(prompt, { special = true })
    local answer = model:generate({ ids }, { max_new = 40 })[1]
    local all = joined(ids, answer)
    -- the whole at once, and piece by piece
    assert.equal(tok:decode(all, { skip_special = true }):sub(-#text), text)
    assert_greedy(model, ids, answer)
  end)

  it_writes('ends where the config says, or where it is told', function(model, tok)
    local long = ms.generate.text(model, tok, 'One day', { max_new = 400, stop = {} })
    local story = ms.generate.text(model, tok, 'One day', { max_new = 400 })
    assert.is_true(#story < #long)
    assert.equal(story, long:sub(1, #story))
    local ids = model:generate({ tok:ids('One day', { special = true }) }, { max_new = 9 })[1]
    local stop, first = ids[8], 1
    while ids[first] ~= stop do first = first + 1 end
    assert.equal(ms.generate.text(model, tok, 'One day', { max_new = first - 1, stop = {} }),
      ms.generate.text(model, tok, 'One day', { stop = stop }))
  end)
end)

-- Draws against the distribution itself: a model whose next-token probabilities are known.
describe('sampling', function()
  local ref, model, p, vocab
  local prompt = { 5, 9, 2 }
  local DRAWS = 4000

  local function probabilities(temperature)
    local batch = ms.batch { prompt }
    local z, v = model:logits(batch, { 2 })
    local list, total = {}, 0
    for i = 0, v - 1 do
      list[i + 1] = { id = i, p = math.exp((z[i] - z[0]) / temperature) }
      total = total + list[i + 1].p
    end
    for _, e in ipairs(list) do e.p = e.p / total end
    table.sort(list, function(a, b) return a.p > b.p end)
    batch:free()
    return list, v
  end

  -- How often each id comes, over DRAWS prompts that are all the same.
  local function counts(options)
    local prompts, seen = {}, {}
    for i = 1, DRAWS do prompts[i] = prompt end
    options.max_new, options.seed = 1, options.seed or 3
    for _, answer in ipairs(model:generate(prompts, options)) do
      seen[answer[1]] = (seen[answer[1]] or 0) + 1
    end
    return seen
  end

  -- |seen - n p| within 4.5 standard deviations for each of the kept ids; nothing else comes.
  local function assert_drawn(seen, kept)
    local mass, rest = 0, 0
    for _, e in ipairs(kept) do mass = mass + e.p end
    for _, n in pairs(seen) do rest = rest + n end
    for _, e in ipairs(kept) do
      local q, n = e.p / mass, seen[e.id] or 0
      assert.is_true(math.abs(n - DRAWS * q) <= 4.5 * math.sqrt(DRAWS * q * (1 - q)) + 1,
        ('id %d: %d of %g'):format(e.id, n, DRAWS * q))
      rest = rest - n
    end
    assert.equal(0, rest)
  end

  setup(function()
    ref = read 'llama'
    model = ms.model.open(ref.folder)
    p, vocab = probabilities(4)
  end)
  teardown(function() model:free() end)

  it('draws from the softmax', function()
    assert_drawn(counts { temperature = 4 }, p)
    assert.equal(vocab, #p)
  end)

  it('draws from the k largest', function()
    assert_drawn(counts { temperature = 4, top_k = 5 }, { unpack(p, 1, 5) })
    assert_drawn(counts { temperature = 4, top_k = 1 }, { p[1] })
    assert_drawn(counts { temperature = 4, top_k = 1000 }, p)
  end)

  it('draws from the fewest that have the mass', function()
    local kept, mass = {}, 0
    for _, e in ipairs(p) do
      kept[#kept + 1] = e
      mass = mass + e.p
      if mass >= 0.6 then break end
    end
    assert.is_true(#kept > 2 and #kept < vocab)
    assert_drawn(counts { temperature = 4, top_p = 0.6 }, kept)
    assert_drawn(counts { temperature = 4, top_p = 1e-9 }, { p[1] })
  end)

  it('takes top_p of what top_k leaves', function()
    local five = p[1].p + p[2].p + p[3].p + p[4].p + p[5].p
    local kept, mass = {}, 0
    for i = 1, 5 do
      kept[i] = p[i]
      mass = mass + p[i].p
      if mass >= 0.7 * five then break end
    end
    assert.is_true(#kept < 5)
    assert_drawn(counts { temperature = 4, top_p = 0.7, top_k = 5 }, kept)
  end)

  it('takes the lowest id among equals', function()
    local flat = ms.model.create(models.config(), 1, { dtype = 'f32' })
    for name, weight in flat:parameters() do
      if name == 'lm_head.weight' then weight:write(ffi.new('double[?]', weight:count())) end
      weight:free()
    end
    assert.same({ 0, 0 }, flat:generate({ prompt }, { max_new = 2 })[1])
    local seen = {}
    for _, id in ipairs(flat:generate({ prompt }, { max_new = 50, temperature = 1, top_k = 3 })[1]) do
      seen[id] = true
    end
    assert.same({ [0] = true, [1] = true, [2] = true }, seen)
    flat:free()
  end)

  it('cuts nothing and draws with seed 0 unless told', function()
    local function run(o) return model:generate({ prompt, prompt }, o) end
    assert.same(run { temperature = 4, top_k = 0, top_p = 1, seed = 0, max_new = 64 }, run { temperature = 4 })
    assert.same(run { temperature = 0, max_new = 64 }, run {})
  end)

  it('repeats with its seed, and changes with it', function()
    local function run(seed) return model:generate({ prompt, prompt }, { temperature = 4, seed = seed }) end
    local a, b = run(11), run(11)
    assert.same(a, b)
    assert.not_same(a, run(12))
    assert.not_same(a[1], a[2]) -- prompts draw apart
    -- and so do steps: where all ids are equally likely, many come
    local seen, different = {}, 0
    for _, id in ipairs(model:generate({ prompt }, { temperature = 1e6, max_new = 40 })[1]) do
      if not seen[id] then different = different + 1 end
      seen[id] = true
    end
    assert.is_true(different > 20)
  end)
end)
