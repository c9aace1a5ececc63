--- What grows out of a small text is bounded, and the error says what grew and the limit.
local json = require 'moonstill.json'
local ms = require 'moonstill'
local tools = require 'tests.tools'
local folders = require 'tests.folders'

local function refused(want, f, ...)
  local ok, why = pcall(f, ...)
  assert.is_false(ok)
  assert.truthy(tostring(why):find(want), why)
end

describe('growth: JSON', function()
  it('may take memory in relation to its bytes', function()
    local objects = '[' .. ('{},'):rep(2e6) .. '1]'
    refused('objects: the values in 6000003 bytes of JSON take more than 355109008 bytes of memory',
      json.decode, objects, 'objects')
    assert.equal(1e6, #json.decode('[' .. ('1,'):rep(1e6 - 1) .. '1]'))
    assert.equal(2e5, #json.decode('[' .. ('{"a":1},'):rep(2e5 - 1) .. '{}]'))
  end)

  it('is bounded by size where a file has a known one', function()
    local folder = folders.folder(folders.tiny(), nil)
    tools.write(folder .. '/config.json', '{"a": "' .. ('x'):rep(2 ^ 20) .. '"}')
    refused('config.json: 1048585 bytes, limit 1048576', ms.model.open, folder)
  end)
end)
