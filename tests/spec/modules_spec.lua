--- The Lua modules and what they require of each other.
local sorted = require 'moonstill.base.sorted'
local tools = require 'tests.support.tools'

-- By module, those that its source requires anywhere, in a function as well. init.lua loads what is
-- named, when it is named: it is no part of the order among modules.
local function requirements()
  local _, list = tools.run 'find lua/moonstill -name "*.lua"'
  local of = {}
  for path in list:gmatch '[^\n]+' do
    local name = path:gsub('^lua/', ''):gsub('%.lua$', ''):gsub('/', '.')
    if name ~= 'moonstill.init' then
      of[name] = {}
      for other in tools.read(path):gmatch "require%s*%(?%s*['\"](moonstill%.[%w_.]+)['\"]" do
        table.insert(of[name], other)
      end
    end
  end
  return of
end

-- The first circle that is met: "a -> b -> a"; nil where there is none.
local function circle(of)
  local done, path = {}, {}
  local function visit(name)
    path[#path + 1] = name
    for i = 1, #path - 1 do
      if path[i] == name then return table.concat(path, ' -> ', i) end
    end
    for _, other in ipairs(done[name] and {} or of[name] or {}) do
      local found = visit(other)
      if found then return found end
    end
    done[name], path[#path] = true, nil
  end
  for name in sorted.pairs(of) do
    local found = visit(name)
    if found then return found end
  end
end

describe('the Lua modules', function()
  it('require each other in no circle', function()
    assert.equal('b -> c -> b', circle { a = { 'b' }, b = { 'c' }, c = { 'b' } })
    local of, count = requirements(), 0
    for name, list in sorted.pairs(of) do
      for _, other in ipairs(list) do
        count = count + 1
        assert.truthy(of[other] or other == 'moonstill.C' or other == 'moonstill.docs', name .. ' requires ' .. other)
      end
    end
    assert.is_true(count > 100, count)
    assert.is_nil(circle(of))
  end)
end)
