local ffi = require 'ffi'
local ms = require 'moonstill'
local json = require 'moonstill.base.json'
local models = require 'tests.support.models'
local read = require 'tests.support.reference'
local tools = require 'tests.support.tools'

local function open(name, options)
  local o = { train = true, dtype = 'f32' }
  for key, value in pairs(options or {}) do o[key] = value end
  return ms.model.open(type(name) == 'table' and name.folder or name, o)
end

-- |got - want| <= 1e-5 max(1, |want|): what the design promises for f32 against double precision.
local function assert_logits(got, want, n)
  local worst, at = 0, 0
  for i = 0, n - 1 do
    local off = math.abs(got[i] - want[i]) / (1e-5 * math.max(1, math.abs(want[i])))
    if not (off <= worst) then worst, at = off, i end
  end
  if not (worst <= 1) then
    error(('logit %d: %.9g, want %.9g: %.3g times the tolerance'):format(at, got[at], want[at], worst), 2)
  end
end

-- Every gradient within 1e-4 of its tensor's norm.
local function assert_gradients(model, ref, loss)
  local seen = 0
  for name, g in pairs(models.gradients(model)) do
    local want, n = ref.get(loss .. ':' .. name)
    assert(want, 'no reference for ' .. name)
    assert.equal(n, g.n)
    local off = models.distance(g.values, want, n)
    if not (off <= 1e-4) then error(('%s of %s: off by %.3g'):format(loss, name, off), 2) end
    seen = seen + 1
  end
  local expected = 0
  for array in pairs(ref.arrays) do
    if array:sub(1, #loss + 1) == loss .. ':' then expected = expected + 1 end
  end
  assert.equal(expected, seen)
end

-- The terms of the reference's losses; `target` is that of its teacher.
local function losses(ref, target)
  local kd = { kd = target, temperature = ref.temperature }
  return { ce = { {} }, kd = { kd },
           mix = { { weight = 0.5 }, { kd = target, temperature = ref.temperature, weight = 0.5 } } }
end

local function reference_target(ref)
  local teacher, n = ref.get 'teacher'
  return models.logits_target(teacher, n / ref.vocab, ref.vocab, ref.temperature)
end

describe('decoder against transformers', function()
  for _, family in ipairs(models.families) do
    it(family .. ': logits', function()
      local ref = read(family)
      local model, batch = open(ref), models.reference_batch(ref)
      local got = model:logits(batch)
      local want, n = ref.get 'logits'
      assert_logits(got, want, n)
      batch:free()
      model:free()
    end)

    for _, loss in ipairs { 'ce', 'kd', 'mix' } do
      it(family .. ': gradients of ' .. loss, function()
        local ref = read(family)
        local model, batch = open(ref), models.reference_batch(ref)
        local target, free = reference_target(ref)
        local values = models.run('learn', model, batch, losses(ref, target)[loss])
        local total = loss == 'mix' and 0.5 * values[1] + 0.5 * values[2] or values[1]
        -- sums of a few dozen rows of logits that are good to 1e-5
        assert.is_true(math.abs(total - ref.loss[loss]) <= 2e-5 * math.max(1, ref.loss[loss]))
        assert_gradients(model, ref, loss)
        free()
        batch:free()
        model:free()
      end)
    end
  end
end)

-- The small models of another project, with logits by transformers in f32: tiny weights, so this
-- proves that files in the wild are read, more than that everything is computed.
describe('decoder against models in the wild', function()
  for _, name in ipairs { 'llama', 'mistral', 'qwen2', 'qwen3', 'smollm2', 'phi3', 'gemma', 'gemma2', 'granite' } do
    local folder, why = tools.shared('models/tiny-hf-logits/' .. name)
    local test = function()
      local base, at = folder .. '/tiny_' .. name, tools.folder()
      tools.write(at .. '/config.json', tools.read(base .. '_config.json'))
      tools.write(at .. '/model.safetensors', tools.read(base .. '.safetensors'))
      local reference = json.read(base .. '_logits.json')
      local model = open(at)
      for s, ids in ipairs(reference.sequences) do
        local batch = ms.batch { ids }
        local got, vocab = model:logits(batch)
        local want, n = {}, 0
        for _, row in ipairs(reference.logits[s]) do
          for _, z in ipairs(row) do
            want[n] = z
            n = n + 1
          end
        end
        assert.equal(#ids * vocab, n)
        assert_logits(got, want, n)
        batch:free()
      end
      model:free()
    end
    if folder then it(name, test) else pending(name, why) end
  end
end)

describe('packing', function()
  local ref, whole

  -- Each segment as a batch of its own.
  local function apart(each)
    for i = 1, #ref.segment_start - 1 do
      local from, to = ref.segment_start[i], ref.segment_start[i + 1]
      local segment = { tokens = {}, response = {} }
      for t = from + 1, to do
        segment.tokens[#segment.tokens + 1] = ref.token[t]
        segment.response[#segment.response + 1] = ref.weight[t]
      end
      local batch = ms.batch { segment }
      each(batch, from, to - from)
      batch:free()
    end
  end

  for _, family in ipairs { 'qwen3', 'mistral' } do
    it('does not change logits: ' .. family, function()
      ref = read(family)
      local model = open(ref)
      local batch = models.reference_batch(ref)
      whole = model:logits(batch)
      apart(function(one, from, n)
        local got = model:logits(one)
        -- another number of rows may make the matrix products add in another order: 1e-6 of the
        -- logits' size, an order below what the reference allows
        tools.close(got, ffi.cast('float *', whole) + from * ref.vocab, 'f32', 0, 3e-5)
        assert.equal(n, one:tokens())
      end)
      batch:free()
      model:free()
    end)

    it('does not change gradients: ' .. family, function()
      ref = read(family)
      local model = open(ref)
      local batch = models.reference_batch(ref)
      local norm = batch:weight()
      models.run('learn', model, batch, { { norm = norm } })
      local packed = models.gradients(model)
      model:zero_gradients()
      apart(function(one) models.run('learn', model, one, { { norm = norm } }) end)
      for name, g in pairs(models.gradients(model)) do
        -- sums in another order, of terms that partly cancel
        local off = models.distance(g.values, packed[name].values, g.n)
        assert.is_true(off <= 1e-5, ('%s: %.3g'):format(name, off))
      end
      batch:free()
      model:free()
    end)
  end

  it('hides segments from each other, bit for bit', function()
    ref = read 'qwen3'
    local model = open(ref)
    local first, second = models.ids(9, 1, ref.vocab), models.ids(11, 2, ref.vocab)
    local other = models.ids(9, 3, ref.vocab)
    local a, b = ms.batch { first, second }, ms.batch { other, second }
    local za, zb = model:logits(a), model:logits(b)
    local at, n = 9 * ref.vocab, 11 * ref.vocab
    assert.is_true(models.same_bits(za + at, zb + at, n))
    assert.is_false((models.same_bits(za, zb, at)))
    a:free()
    b:free()
    model:free()
  end)
end)
