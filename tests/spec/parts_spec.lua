--- model:evaluate_parts: what each segment of a batch has of the terms of a loss.
local models = require 'tests.support.models'
local ms = require 'moonstill'

local VOCAB = 40

local function model(seed, options)
  return ms.model.create(models.config { vocab_size = VOCAB }, seed, options or { dtype = 'f32' })
end

-- A batch of samples of 3 to 24 tokens, or some of them; the second half of each is its answer.
local function batch_of(list)
  local segments = {}
  for k, i in ipairs(list) do
    local n = 3 * i
    local response = {}
    for t = 1, n do response[t] = t >= n / 2 and t < n and 1 or 0 end
    segments[k] = { tokens = models.ids(n, i, VOCAB), response = response, weight = i % 3 + 1 }
  end
  return ms.batch(segments)
end

describe('parts of an evaluation', function()
  it('are what each sample has alone, and change no bit of the sums', function()
    ms.scope(function(own)
      local student, teacher = own(model(1, { dtype = 'f32', head_bytes = 20000 })), own(model(2)) -- several chunks
      local all = own(batch_of { 1, 2, 3, 4, 5, 6, 7, 8 })
      local target = own(teacher:targets(all, { target = 'hidden' }))
      local terms = { ms.ce(), ms.kd(target), ms.ce(1, { on = 'all' }) }
      local plain, results, parts = student:evaluate(all, terms), student:evaluate_parts(all, terms)
      assert.equal(8, #parts)
      for i = 1, 3 do
        for _, name in ipairs { 'value', 'weight', 'agree', 'rows' } do
          assert.equal(plain[i][name], results[i][name])
        end
        local value, weight = 0, 0
        for k = 1, 8 do value, weight = value + parts[k][i].value, weight + parts[k][i].weight end
        assert.is_true(math.abs(value - plain[i].value) < 1e-12 * value) -- the same doubles in another order
        assert.equal(plain[i].weight, weight)
      end
      for k = 1, 8 do
        local one = own(batch_of { k })
        local r = student:evaluate(one, { terms[1], terms[3] })
        for i, part in ipairs { parts[k][1], parts[k][3] } do
          -- f32 products of other shapes
          assert.is_true(math.abs(part.value - r[i].value) <= 1e-5 * r[i].value)
          assert.same({ r[i].weight, r[i].agree }, { part.weight, part.agree })
        end
      end
    end)
  end)
  it('has nothing of segments without weight', function()
    ms.scope(function(own)
      local batch = own(ms.batch { { tokens = { 1, 2 } }, { tokens = { 1, 2 }, response = { 1, 0 } } })
      local _, parts = own(model(1)):evaluate_parts(batch, { ms.ce() })
      assert.same({ { value = 0, weight = 0, agree = 0 } }, parts[1])
      assert.equal(1, parts[2][1].weight)
      local none = own(ms.batch { { tokens = { 1, 2 } } })
      local results
      results, parts = own(model(1)):evaluate_parts(none, { ms.ce() })
      assert.same({ 0, { { { value = 0, weight = 0, agree = 0 } } } }, { results[1].weight, parts })
    end)
  end)
end)
