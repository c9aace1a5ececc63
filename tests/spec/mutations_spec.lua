-- The list of mutations follows the sources: a text that a change has moved must move there too.
local tools = require 'tests.support.tools'

local function count(text, part)
  local n, at = 0, 1
  while true do
    local first, last = text:find(part, at, true)
    if not first then return n end
    n, at = n + 1, last + 1
  end
end

describe('tests/mutation/mutations.lua', function()
  local list, texts = dofile 'tests/mutation/mutations.lua', {}
  it('names texts that are in their files exactly once', function()
    local wrong = {}
    for _, m in ipairs(list) do
      texts[m.file] = texts[m.file] or tools.read(m.file)
      local n = count(texts[m.file], m.old)
      if n ~= 1 then wrong[#wrong + 1] = ('%s: %d times in %s'):format(m.name, n, m.file) end
    end
    assert.same({}, wrong)
  end)
  it('names specs that exist', function()
    for _, m in ipairs(list) do
      for _, spec in ipairs(m.specs) do
        local path = spec:find '%.c$' and 'tests/c/' .. spec or 'tests/spec/' .. spec .. '_spec.lua'
        assert.truthy(tools.exists(path), m.name .. ': ' .. path)
      end
    end
  end)
  it('is asked for by patterns that match something', function()
    local status, _, err = tools.run 'luajit tests/mutation/mutate.lua . "no such mutation"'
    assert.equal(2, status)
    assert.truthy(err:find('no mutation matches', 1, true), err)
  end)
end)
