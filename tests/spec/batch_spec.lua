local ffi = require 'ffi'
local ms = require 'moonstill'
local C = require 'moonstill.C'

local refused = require 'tests.support.tools'.refused

local function ints(...) return ffi.new('int32_t[?]', select('#', ...), { ... }) end

describe('batch', function()
  it('sums weights of predicting positions, never of a last one', function()
    local b = ms.batch { { tokens = { 5, 6, 7 }, response = { 0, 1, 1 } }, { 1, 2 }, { 9 } }
    assert.equal(6, b:tokens())
    assert.equal(1, b:weight()) -- the weight on token 7 predicts nothing
    assert.equal(3, b:weight 'all') -- 2 + 1 + 0
    b:free()
  end)

  it('multiplies by the weight of a segment', function()
    local b = ms.batch { { tokens = { 1, 2, 3 }, response = { 1, 0.5, 0 }, weight = 2 } }
    assert.equal(3, b:weight())
    assert.equal(4, b:weight 'all')
    b:free()
  end)

  it('supervises the answers of prompts', function()
    local b = ms.batch({ { 1, 2, 3 }, { 4 } }, { { 5, 6 }, { 7 } })
    assert.equal(7, b:tokens())
    assert.equal(3, b:weight()) -- 5, 6 and 7 are predicted
    b:free()
    b = ms.batch.from({ { 1, 2 }, { 3 } }, { { 4 }, { 5, 6, 7 } }, { 10, 1 })
    assert.equal(13, b:weight())
    b:free()
    b = ms.batch.from({ { 1, 2 } }, { {} }) -- an empty answer is nothing to learn from
    assert.equal(0, b:weight())
    b:free()
  end)

  it('takes arrays of the FFI', function()
    local ids, weight = ints(4, 5, 6), ffi.new('float[3]', 1, 1, 1)
    local b = ms.batch { { tokens = ids, count = 3, response = weight } }
    assert.equal(2, b:weight())
    b:free()
    refused('cdata tokens need `count`', ms.batch, { { tokens = ids } })
  end)

  it('says what it is, and what is wrong', function()
    local b = ms.batch { { tokens = { 1, 2 }, response = { 1, 0 } } }
    assert.equal('batch of 2 tokens, weight 1 on responses', tostring(b))
    refused('expected "response" or "all"', b.weight, b, 'answers')
    b:free()
    b:free()
    assert.equal('batch (freed)', tostring(b))
    refused('used after free', b.tokens, b)
    refused('list of segments', ms.batch, 3)
    refused('2 response weights for 3 tokens', ms.batch, { { tokens = { 1, 2, 3 }, response = { 1, 1 } } })
    refused('segment 1: weight is a string, expected a number', ms.batch, { { tokens = { 1, 2 }, weight = '2' } })
    refused('segment 1: response weight 2 is a boolean', ms.batch, { { tokens = { 1, 2 }, response = { 1, true } } })
    refused('1 prompts and 2 answers', ms.batch.from, { { 1 } }, { { 1 }, { 2 } })
    refused('0 tokens', ms.batch, {})
    refused('segment 1: token 2 = %-3, expected an integer in 0%.%.2147483647', ms.batch, { { 1, -3 } })
    refused('segment 1 runs from 2 to 2', ms.batch, { { 1, 2 }, {}, { 3 } })
    refused('token %-3 at position 1', ms.batch, { { tokens = ints(1, -3), count = 2 } }) -- which Lua does not look at
    refused('response%[1%] is %-?nan', ms.batch, { { tokens = { 1, 2 }, response = { 1, 0 / 0 } } })
    refused('response%[0%] is %-1', ms.batch, { { tokens = { 1, 2 }, response = { -1, 0 } } })
    refused('all%[0%] is inf', ms.batch, { { tokens = { 1, 2 }, all = { math.huge, 0 } } })
  end)

  it('checks where segments start', function()
    local ids = ints(1, 2, 3)
    refused('segment_start%[0%] is 1', ms.batch.new, ids, 3, ints(1, 3), 1)
    refused('segment 1 runs from 2 to 1', ms.batch.new, ids, 3, ints(0, 2, 1), 2)
    refused('segment 0 runs from 0 to 9', ms.batch.new, ids, 3, ints(0, 9), 1)
    refused('end at 2, not at 3', ms.batch.new, ids, 3, ints(0, 2), 1)
    refused('4 segments for 3 tokens', ms.batch.new, ids, 3, ints(0, 1, 2, 3, 3), 4)
  end)

  it('survives every failing allocation', function()
    local live, fails = C.ms_test_live(), 0
    for nth = 1, 20 do
      C.ms_test_fail_alloc(nth)
      local ok, b = pcall(ms.batch, { { 1, 2, 3 } })
      assert.equal(ok, C.ms_test_fail_alloc(0) > 0) -- passed over where not
      if ok then
        b:free()
        break
      end
      fails = fails + 1
      assert.matches('no memory', b)
    end
    assert.equal(6, fails) -- the batch and its five arrays
    assert.equal(live, C.ms_test_live())
  end)
end)
