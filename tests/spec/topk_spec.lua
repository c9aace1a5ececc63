--- Which ids a teacher's top-k holds where logits are equal: those with the lower ids, in order.
local ffi = require 'ffi'
local C = require 'moonstill.C'
local heads = require 'tests.support.heads'

local function ids_of(rows, k)
  local target = heads.target(rows, { kind = 'topk', k = k, on = 'all' })
  local id = ffi.new('int32_t[?]', #rows * k)
  assert.equal(0, C.ms_target_read(target, id, nil, nil))
  local list = {}
  for i = 0, #rows * k - 1 do list[i + 1] = id[i] end
  return list
end

-- Largest first, lower ids among equals: by sorting, which the kernel does not do.
local function expected(row, k)
  local order = {}
  for i = 1, #row do order[i] = i end
  table.sort(order, function(a, b) return row[a] > row[b] or (row[a] == row[b] and a < b) end)
  local list = {}
  for i = 1, k do list[i] = order[i] - 1 end
  return list
end

describe('top-k of equal logits', function()
  it('takes the lower ids when all are equal', function()
    local row = {}
    for i = 1, 70 do row[i] = 1 end
    assert.same({ 0, 1, 2, 3, 4 }, ids_of({ row }, 5))
  end)

  it('takes the lower ids at the border, wherever they lie', function()
    for step = 1, 9 do
      local row = {}
      for i = 1, 97 do row[i] = (i * step) % 7 / 2 end -- seven values, each many times
      for _, k in ipairs { 1, 3, 16, 40, 97 } do
        assert.same(expected(row, k), ids_of({ row }, k))
      end
    end
  end)
end)
