local ffi = require 'ffi'
local ms = require 'moonstill'
local C = require 'moonstill.C'
local models = require 'tests.support.models'
local read = require 'tests.support.reference'
local tools = require 'tests.support.tools'

local VOCAB = 37

local refused = tools.refused

-- Three segments with weights here and there, and a target for them.
local function example(vocab)
  local segments = { models.segment(13, 1, vocab), models.segment(2, 2, vocab), models.segment(9, 3, vocab) }
  segments[1].response[4], segments[1].response[5], segments[3].response[1] = 0, 0.25, 2
  segments[1].response[13] = 0
  local batch = ms.batch(segments)
  local rows = 13 - 2 + 1 + 8
  local target, free = models.logits_target(tools.values(rows * vocab, 4, 3), rows, vocab, 2)
  return batch, { { weight = 0.3 }, { kd = target, weight = 0.7, temperature = 2 } }, function()
    free()
    batch:free()
  end
end

local function create(changes, options)
  local o = { train = true, dtype = 'f32' }
  for key, value in pairs(options or {}) do o[key] = value end
  return ms.model.create(models.config(changes), 5, o)
end

-- Gradients of one `learn` over the example.
local function gradients_of(changes, options)
  local model = create(changes, options)
  local batch, terms, free = example(VOCAB)
  local values = models.run('learn', model, batch, terms)
  local gradients = models.gradients(model)
  free()
  model:free()
  return gradients, values
end

-- Every kind of layer there is.
local kinds = {
  plain = {},
  ['tied, windows'] = { model_type = 'mistral', sliding_window = 5, tie_word_embeddings = true },
  ['q/k norms'] = { model_type = 'qwen3', head_dim = 10 },
  ['biases'] = { attention_bias = true, mlp_bias = true },
  ['fused weights'] = { model_type = 'phi3', sliding_window = 6, pad_token_id = 0 },
  ['1 + w, gelu'] = { model_type = 'gemma', head_dim = 10, hidden_act = 'gelu' },
  ['four norms, caps'] = { model_type = 'gemma2', head_dim = 10, hidden_act = 'gelu_pytorch_tanh',
    sliding_window = 5, query_pre_attn_scalar = 7, attn_logit_softcapping = 1.5, final_logit_softcapping = 4 },
  ['norms after blocks'] = { model_type = 'olmo2' },
  ['multipliers'] = { model_type = 'granite', embedding_multiplier = 2, residual_multiplier = 0.4,
    attention_multiplier = 0.7, logits_scaling = 0.8 },
}

describe('learning', function()
  for name, changes in pairs(kinds) do
    it('with recomputation gives the same bits: ' .. name, function()
      local kept, values = gradients_of(changes)
      local again, same = gradients_of(changes, { recompute = true })
      assert.same(values, same)
      models.assert_same_gradients(again, kept)
    end)

    it('is the derivative of the loss: ' .. name, function()
      local model = create(changes)
      local batch, terms, free = example(VOCAB)
      local function loss()
        local v = models.run('evaluate', model, batch, terms)
        return 0.3 * v[1] + 0.7 * v[2]
      end
      models.run('learn', model, batch, terms)
      for parameter, weight, gradient in model:parameters() do
        local n = weight:count()
        local w, g = weight:read(ffi.new('double[?]', n)), gradient:read(ffi.new('double[?]', n))
        local norm = 0
        for i = 0, n - 1 do norm = norm + g[i] ^ 2 end
        norm = math.sqrt(norm)
        assert.is_true(norm > 1e-4, parameter .. ' has no gradient')
        -- Along the gradient the slope is its norm. Two steps, extrapolated: the larger one is
        -- large enough for the loss's own rounding (1e-6), the smaller one for its curvature.
        local function slope_at(step)
          local pair = {}
          for k, sign in ipairs { 1, -1 } do
            local moved = ffi.new('double[?]', n)
            for i = 0, n - 1 do moved[i] = w[i] + sign * step * g[i] / norm end
            weight:write(moved)
            pair[k] = loss()
          end
          return (pair[1] - pair[2]) / (2 * step)
        end
        local step = 0.01 / math.max(1, norm)
        local slope = (4 * slope_at(step) - slope_at(2 * step)) / 3
        weight:write(w)
        assert.is_true(math.abs(slope - norm) <= 5e-3 * norm + 5e-4,
          ('%s: slope %.6g, gradient %.6g'):format(parameter, slope, norm))
        weight:free()
        gradient:free()
      end
      free()
      model:free()
    end)
  end

  it('leaves frozen parameters out and changes nothing for the rest', function()
    local all = gradients_of(kinds['biases'])
    for _, frozen in ipairs {
      'model.embed_tokens.weight', 'lm_head.weight', '*norm*', '*mlp*', '*self_attn*', '*.q_proj.*',
      '*.bias', '*_proj.weight', 'model.layers.0.* model.embed_tokens.*',
      'model.layers.0.* model.layers.1.* model.embed_tokens.*',
      'model.embed_tokens.* model.layers.0.mlp.* model.layers.0.post*',
      'model.embed_tokens.* model.layers.0.self_attn.* model.layers.0.input*',
      'model.embed_tokens.* model.layers.0.self_attn.?_proj.* model.layers.0.*norm*',
      'model.embed_tokens.* *norm*', 'model.embed_tokens.* *norm* *self_attn*',
      'model.layers.* model.embed*', 'model.layers.* model.embed* model.norm.*', 'model.*',
      'lm_head* model.norm* model.layers*',
    } do
      local some = gradients_of(kinds['biases'], { frozen = frozen })
      local left = 0
      for name, g in pairs(some) do
        assert(all[name])
        local same, at = models.same_bits(g.values, all[name].values, g.n)
        assert.is_true(same, ('%s with %s frozen: [%s]'):format(name, frozen, tostring(at)))
        left = left + 1
      end
      assert.is_true(left > 0)
      local total = 0
      for _ in pairs(all) do total = total + 1 end
      assert.is_true(left < total, frozen .. ' froze nothing')
    end
  end)

  for _, kind in ipairs { 'biases', 'q/k norms', 'four norms, caps', 'norms after blocks' } do
    it('trains any one parameter alone: ' .. kind, function()
      local all = gradients_of(kinds[kind])
      for alone, g in pairs(all) do
        local frozen = {}
        for name in pairs(all) do
          if name ~= alone then frozen[#frozen + 1] = name end
        end
        local one = gradients_of(kinds[kind], { frozen = frozen })
        assert.equal(alone, (next(one)))
        assert.is_nil(next(one, alone))
        assert.is_true(models.same_bits(one[alone].values, g.values, g.n), alone)
      end
    end)
  end

  it('does nothing, and fails at nothing, when all is frozen', function()
    local gradients, values = gradients_of({}, { frozen = '*' })
    assert.is_nil(next(gradients))
    local _, want = gradients_of {}
    assert.same(want, values)
  end)

  it('adds to the gradients that are there', function()
    local model = create()
    local batch, terms, free = example(VOCAB)
    models.run('learn', model, batch, terms)
    local once = models.gradients(model)
    models.run('learn', model, batch, terms)
    for name, g in pairs(models.gradients(model)) do
      for i = 0, g.n - 1 do g.values[i] = g.values[i] / 2 end
      assert.is_true(models.distance(g.values, once[name].values, g.n) <= 1e-6, name)
    end
    model:zero_gradients()
    models.run('learn', model, batch, terms)
    models.assert_same_gradients(models.gradients(model), once)
    free()
    model:free()
  end)

  it('gives the same bits with any number of threads', function()
    local before = C.ms_threads_get()
    local config = { hidden_size = 96, intermediate_size = 160, max_position_embeddings = 512,
                     model_type = 'qwen3', head_dim = 32, sliding_window = 100,
                     use_sliding_window = true, max_window_layers = 1 }
    local segments = { models.segment(301, 1, VOCAB), models.segment(64, 2, VOCAB), models.segment(150, 3, VOCAB) }
    local want, want_values
    for _, threads in ipairs { 1, 2, 3 } do
      C.ms_threads_set(threads)
      local model, batch = create(config), ms.batch(segments)
      local values = models.run('learn', model, batch, { {}, { weight = 0.5, on = C.MS_ON_ALL } })
      local got = models.gradients(model)
      if want then
        assert.same(want_values, values)
        models.assert_same_gradients(got, want)
      end
      want, want_values = got, values
      batch:free()
      model:free()
    end
    C.ms_threads_set(before)
  end)

  for _, kind in ipairs { 'plain', 'four norms, caps', 'multipliers' } do
    it('cuts the rows of the MLP without a trace: ' .. kind, function()
      -- more rows than go through it at once, in segments that straddle the cut
      local config = { num_hidden_layers = 2 }
      for key, value in pairs(kinds[kind]) do config[key] = value end
      local segments, parts = {}, { {}, {}, {} }
      for i = 1, 45 do
        segments[i] = models.segment(60, i, VOCAB)
        table.insert(parts[math.ceil(i / 15)], segments[i])
      end
      local model, batch = create(config), ms.batch(segments)
      local whole = model:logits(batch)
      local norm = batch:weight()
      models.run('learn', model, batch, { { norm = norm } })
      local packed = models.gradients(model)
      model:zero_gradients()
      local at = 0
      for _, part in ipairs(parts) do
        local one = ms.batch(part)
        models.run('learn', model, one, { { norm = norm } })
        -- other sizes, other order of sums
        tools.close(model:logits(one), ffi.cast('float *', whole) + at * VOCAB, 'f32', 0, 3e-5)
        at = at + one:tokens()
        one:free()
      end
      for name, g in pairs(models.gradients(model)) do
        local off = models.distance(g.values, packed[name].values, g.n)
        assert.is_true(off <= 1e-5, ('%s: %.3g'):format(name, off))
      end
      batch:free()
      model:free()
    end)
  end
end)

describe('evaluating', function()
  for name, changes in pairs(kinds) do
    it('gives the values of learning, bit for bit, and no gradients: ' .. name, function()
      local model = create(changes)
      local plain = create(changes, { train = false })
      local batch, terms, free = example(VOCAB)
      local _, want = models.run('learn', model, batch, terms)
      local before = models.gradients(model)
      for _, m in ipairs { model, plain } do
        local _, got = models.run('evaluate', m, batch, terms)
        assert.equal(ffi.string(want, ffi.sizeof(want)), ffi.string(got, ffi.sizeof(got)))
      end
      models.assert_same_gradients(models.gradients(model), before)
      free()
      plain:free()
      model:free()
    end)
  end

  it('grows with the batches: tables of positions, activations', function()
    local config = { max_position_embeddings = 1024 }
    local grown, fresh = create(config), create(config)
    local short, long = ms.batch { models.ids(3, 1, VOCAB) }, ms.batch { models.ids(700, 2, VOCAB) }
    local first = grown:logits(short)
    local want, n = fresh:logits(long), 700 * VOCAB
    assert.is_true(models.same_bits(grown:logits(long), want, n))
    assert.is_true(models.same_bits(grown:logits(short), first, 3 * VOCAB)) -- and does not shrink
    for _, x in ipairs { short, long, grown, fresh } do x:free() end
  end)

  it('saves no activations; recomputation saves few', function()
    local bytes = {}
    local segment = models.segment(512, 1, VOCAB)
    for key, options in pairs { saved = {}, recompute = { recompute = true }, frozen = { train = false } } do
      local model = create({ num_hidden_layers = 12, max_position_embeddings = 512 }, options)
      local batch = ms.batch { segment }
      models.run(options.train == false and 'evaluate' or 'learn', model, batch, { {} })
      bytes[key] = model:info().memory.activations
      models.run('evaluate', model, batch, { {} })
      assert.equal(bytes[key], model:info().memory.activations) -- the arena is shared
      batch:free()
      model:free()
    end
    -- a layer saves 3 hidden + 2 q + 2 kv + 2 intermediate = 224 floats a token here, its input is 24
    assert.is_true(bytes.recompute < bytes.saved / 3)
    assert.is_true(bytes.frozen < bytes.recompute / 1.5)
  end)
end)

describe('bf16 weights', function()
  it('compute what f32 ones of the same value do', function()
    for _, family in ipairs { 'qwen3', 'llama-bias', 'phi3' } do
      local ref = read(family)
      local at = tools.folder() .. '/model'
      local half = ms.model.open(ref.folder, { dtype = 'bf16', train = true })
      half:save(at)
      local wide = ms.model.open(at, { dtype = 'f32', train = true })
      local batch = models.reference_batch(ref)
      local a, b = half:logits(batch), wide:logits(batch)
      local n = ref.tokens * ref.vocab
      -- products by panels may add in another order
      tools.close(a, b, 'f32', 0, 3e-5)
      -- A weight moves by up to 2^-9 of itself; these sharp models (weights of 0.3 and more) pass
      -- that on through a few dozen terms in each of two or three layers.
      local want = ref.get 'logits'
      assert.is_true(models.distance(a, want, n) <= 0.02)
      assert.is_true(models.distance(a, want, n) >= 1e-4) -- they were rounded
      models.run('learn', half, batch, { {} })
      models.run('learn', wide, batch, { {} })
      local gradients = models.gradients(wide)
      for name, g in pairs(models.gradients(half)) do
        assert.is_true(models.distance(g.values, gradients[name].values, g.n) <= 1e-5, name)
      end
      batch:free()
      half:free()
      wide:free()
    end
  end)
end)

describe('rows', function()
  it('without any weight give zeros and leave the gradients alone', function()
    local model = create()
    local batch, terms, free = example(VOCAB)
    models.run('learn', model, batch, terms)
    local before = models.gradients(model)
    local none = ms.batch { models.ids(5, 1, VOCAB) }
    local result = ffi.new('ms_term_result[1]')
    ffi.fill(result, ffi.sizeof(result), 0xff)
    local t = models.terms { {} }
    for _, what in ipairs { 'learn', 'evaluate' } do
      assert.equal(0, models.call(what, model, none, 1, t, result))
      assert.equal(('\0'):rep(ffi.sizeof(result)), ffi.string(result, ffi.sizeof(result)))
    end
    models.assert_same_gradients(models.gradients(model), before)
    none:free()
    free()
    model:free()
  end)

  it('of each term are its own', function()
    local model = create()
    local segment = models.segment(8, 1, VOCAB)
    for i = 1, 8 do segment.response[i] = i > 5 and 1 or 0 end
    local batch = ms.batch { segment }
    local both, r = models.run('evaluate', model, batch, { {}, { on = C.MS_ON_ALL } })
    assert.equal(2, r[0].rows)
    assert.equal(7, r[1].rows)
    assert.equal(models.run('evaluate', model, batch, { {} })[1], both[1])
    -- the mean over all positions against the logits
    local z, vocab = model:logits(batch)
    local sum = 0
    for t = 0, 6 do
      local total = 0
      for i = 0, vocab - 1 do total = total + math.exp(z[t * vocab + i]) end
      sum = sum + math.log(total) - z[t * vocab + segment.tokens[t + 2]]
    end
    assert.is_true(math.abs(sum / 7 - both[2]) <= 1e-5)
    batch:free()
    model:free()
  end)

  it('of a target must be the batch\'s', function()
    local model = create()
    local batch, terms, free = example(VOCAB)
    local other = ms.batch { models.segment(4, 1, VOCAB) }
    refused('term 2: the target has 20 rows, the batch 3', models.run, 'learn', model, other, terms)
    terms[2].on = C.MS_ON_ALL
    refused('term 2: the target has 20 rows, the batch 21', models.run, 'learn', model, batch, terms)
    other:free()
    free()
    model:free()
  end)
end)

describe('a batch that a model cannot take', function()
  it('is refused, with the place', function()
    local model, frozen = create(), create({}, { train = false })
    local function run(what, m, segments)
      local batch = ms.batch(segments)
      local ok, message = pcall(models.run, what, m, batch, { { on = C.MS_ON_ALL } })
      batch:free()
      if not ok then error(message, 0) end
    end
    refused('token 37 at position 4 %(segment 1, 1%) .* vocabulary of 37', run, 'learn', model,
      { { 1, 2, 3 }, { 4, 37 } })
    refused('segment 0 has 65 tokens, the model.s context 64', run, 'evaluate', model, { models.ids(65, 1, VOCAB) })
    refused('opened without train', run, 'learn', frozen, { { 1, 2 } })
    refused('on is 7', function()
      local batch = ms.batch { { 1, 2 } }
      models.run('learn', model, batch, { { on = 7 } })
    end)
    local batch = ms.batch { { 1, 2, 3 } }
    refused('row%[1%] is 3, not in 0..2', model.logits, model, batch, { 0, 3 })
    refused('model:logits: row 1 = %-1', model.logits, model, batch, { -1 })
    refused('0 rows of 3', model.logits, model, batch, {})
    batch:free()
    frozen:free()
    model:free()
  end)

  it('or memory that runs out, leaves a model that works', function()
    collectgarbage()
    collectgarbage()
    local live = C.ms_test_live()
    local batch, terms, free = example(VOCAB)
    local fails, want = 0, gradients_of(kinds['q/k norms'])
    for nth = 1, 200 do
      local model = create(kinds['q/k norms'])
      C.ms_test_fail_alloc(nth)
      local ok, message = pcall(models.run, 'learn', model, batch, terms)
      assert.equal(ok, C.ms_test_fail_alloc(0) > 0) -- passed over where not
      if ok then
        model:free()
        break
      end
      fails = fails + 1
      assert.matches('no memory', message)
      model:zero_gradients()
      models.run('learn', model, batch, terms)
      models.assert_same_gradients(models.gradients(model), want)
      model:free()
    end
    assert.is_true(fails >= 6 and fails < 200)
    free()
    collectgarbage()
    collectgarbage()
    assert.equal(live, C.ms_test_live())
  end)
end)
