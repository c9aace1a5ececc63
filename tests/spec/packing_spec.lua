local ffi = require 'ffi'
local ms = require 'moonstill'
local C = require 'moonstill.C'
local tools = require 'tests.support.tools'

local function show(plan)
  local steps = {}
  for step in plan:each() do
    local micros = {}
    for m, micro in ipairs(step) do micros[m] = table.concat(micro, ' ') end
    steps[#steps + 1] = table.concat(micros, ' | ')
  end
  return table.concat(steps, ' // ')
end

local function plan(lengths, tokens, micro_tokens, order)
  if not order then
    order = {}
    for i = 1, #lengths do order[i] = i end
  end
  return ms.packing.plan(lengths, order, #order, 1, { tokens = tokens, micro_tokens = micro_tokens })
end

describe('packing', function()
  it('cuts steps by tokens and keeps the last part', function()
    assert.equal('1 2 // 3 // 4', show(plan({ 4, 6, 7, 5 }, 10, 10)))
    assert.equal('1 2 3 4', show(plan({ 4, 6, 7, 5 }, 22, 22)))
    assert.equal('4 3 // 2 1', show(plan({ 4, 6, 7, 3 }, 10, 10, { 4, 3, 2, 1 })))
    assert.equal('', show(plan({}, 10, 10)))
  end)

  it('gives a sample that is too long a step or a micro-batch of its own', function()
    assert.equal('1 // 2 // 3', show(plan({ 4, 30, 7 }, 10, 10)))
    assert.equal('1 3 | 2', show(plan({ 2, 9, 3 }, 100, 5)))
  end)

  it('leaves samples and micro-batches in the order of the step', function()
    assert.equal('1 | 2', show(plan({ 2, 8 }, 100, 9))) -- the longer one is dealt out first
    assert.equal('1 | 2 3', show(plan({ 9, 2, 3 }, 100, 5))) -- and one that is too long last
    assert.equal('2 3 | 1', show(plan({ 9, 2, 3 }, 100, 5, { 2, 1, 3 })))
  end)

  it('balances micro-batches by cost, not by number', function()
    -- 8 and 2 + 2 + 2 + 2: equal tokens; in order they would be 8 2 and 2 2 2
    assert.equal('1 | 2 3 4 5', show(plan({ 8, 2, 2, 2, 2 }, 100, 10)))
    -- with costs of 9 + 81 width 1, and 4 + 16: long ones apart
    local order = { 1, 2, 3, 4 }
    local p = ms.packing.plan({ 9, 9, 4, 4 }, order, 4, 1, { tokens = 99, micro_tokens = 14, width = 1 })
    assert.equal('1 3 | 2 4', show(p))
  end)

  it('weighs attention by the square of lengths', function()
    assert.equal(3 * 10 + 9, ms.packing.cost(3, 10))
    local p = ms.packing.plan({ 3, 5, 2 }, { 3, 1, 2 }, 3, 1, { tokens = 5, micro_tokens = 5, width = 10 })
    assert.same({ 30 + 9 + 20 + 4, 50 + 25, 0 }, p:costs { { 1, 3 }, { 2 }, {} })
    assert.same({ 2, 0 }, ms.packing.as_plan({ { { 1, 3 } } }):costs { { 1, 3 }, {} }) -- of no known lengths
  end)

  it('gives several ranks as many micro-batches each, where there are enough samples', function()
    local lengths, order = {}, {}
    for i = 1, 12 do lengths[i], order[i] = 10, i end
    lengths[12] = 50 -- one of its own
    local p = ms.packing.plan(lengths, order, 12, 1, { tokens = 1000, micro_tokens = 40 })
    for parts, count in ipairs { 4, 4, 6, 4, 5 } do -- of 110 tokens and the long one
      local step, seen = p:step(1, parts), {}
      assert.equal(count, #step, parts .. ' parts')
      for _, micro in ipairs(step) do
        assert.is_true(#micro > 0)
        for _, i in ipairs(micro) do seen[i] = (seen[i] or 0) + 1 end
      end
      for i = 1, 12 do assert.equal(1, seen[i]) end
    end
    assert.equal(12, #p:step(1, 40))
    assert.same(p:step(1), p:step(1, 1))
  end)

  it('has one hash for equal plans, and another for any other', function()
    local function hash(list, first, tokens, micro_tokens)
      local cells = ffi.new('int32_t[?]', #list + first, list)
      if first > 0 then cells[0], cells[#list] = 99, list[#list] end
      return ms.packing.plan({ 4, 4, 4, 5 }, cells, #list, 0, { tokens = tokens, micro_tokens = micro_tokens }):hash()
    end
    local one = hash({ 1, 2, 3, 4 }, 0, 8, 8)
    assert.equal(one, hash({ 1, 2, 3, 4 }, 0, 8, 4)) -- micro-batches are no part of the steps
    assert.is_true(one ~= hash({ 2, 1, 3, 4 }, 0, 8, 8))
    assert.is_true(one ~= hash({ 1, 2, 3, 4 }, 0, 9, 8)) -- the last one is a step of its own, then not
    assert.is_true(one ~= hash({ 1, 2, 3 }, 0, 8, 8))
    local listed = ms.packing.as_plan { { { 1, 2 } }, { { 3 } } }
    assert.equal(listed:hash(), ms.packing.as_plan({ { { 1, 2 } }, { { 3 } } }):hash())
    assert.is_true(listed:hash() ~= ms.packing.as_plan({ { { 1 } }, { { 2, 3 } } }):hash())
  end)

  for _, case in ipairs { { 1, 700, 2048, 512 }, { 2, 150, 300, 64 }, { 3, 2000, 8192, 2048 } } do
    local seed, n, tokens, micro_tokens = unpack(case)
    it(('has every sample once, within its limits, balanced: %d samples'):format(n), function()
      local values = tools.integers(n, seed, 400)
      local lengths, order = {}, ffi.new('int32_t[?]', n)
      for i = 1, n do lengths[i] = values[i - 1] + 2 end
      assert(C.ms_permutation(seed, 0, n, order) == 0)
      for i = 0, n - 1 do order[i] = order[i] + 1 end
      local p = ms.packing.plan(lengths, order, n, 0, { tokens = tokens, micro_tokens = micro_tokens })
      local seen, count = {}, 0
      for step in p:each() do
        local total, samples, dearest, cost = 0, 0, 0, 0
        for _, micro in ipairs(step) do
          local sum, c = 0, 0
          for _, i in ipairs(micro) do
            assert.is_nil(seen[i])
            seen[i] = true
            sum, c = sum + lengths[i], c + ms.packing.cost(lengths[i], 8192)
          end
          count, samples, total = count + #micro, samples + #micro, total + sum
          dearest, cost = math.max(dearest, c), cost + c
          assert.is_true(#micro == 1 or sum <= micro_tokens)
        end
        assert.is_true(samples == 1 or total <= tokens)
        -- no micro-batch costs more than the mean and the dearest sample together
        assert.is_true(dearest <= cost / #step + ms.packing.cost(402, 8192))
      end
      assert.equal(n, count)
      local again = ms.packing.plan(lengths, order, n, 0, { tokens = tokens, micro_tokens = micro_tokens })
      assert.equal(show(p), show(again))
    end)
  end

  it('has the defaults of a configuration, and says what is out of bounds', function()
    local lengths, order = { 3000, 3000, 3000 }, { 1, 2, 3 }
    assert.same({ { { 1 }, { 2 } }, { { 3 } } }, ms.packing.plan(lengths, order, 3, 1):all())
    assert.same({ { { 1, 2 } }, { { 3 } } }, ms.packing.plan(lengths, order, 3, 1, { micro_tokens = 6000 }):all())
    for name, bad in pairs { tokens = 0, micro_tokens = 0.5, width = -1 } do
      tools.fails(("packing: '%s' must be "):format(name), ms.packing.plan, { 1 }, { 1 }, 1, 1, { [name] = bad })
    end
  end)
end)
