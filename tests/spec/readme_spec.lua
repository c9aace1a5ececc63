-- The README's tour is run as it stands, with a real model in place of its folder.
local tools = require 'tests.tools'

local program, teacher = tools.program(), 'models/tinystories-656k'
local folder, why = tools.shared(teacher .. '/config.json')
if not tools.exists(program) then folder, why = nil, program .. ' is not built' end
if not folder then
  pending('the tour', why)
  return
end

describe('README.md', function()
  it('has a tour that runs', function()
    local place = tools.folder()
    local tour = assert(tools.read 'README.md':match '```lua\n(.-)```')
    tour = tour:gsub('"models/teacher"', '"' .. folder:gsub('/config.json$', '') .. '"')
    tour = tour:gsub('"models/student"', '"' .. place .. '/student"')
    local status, out, err = tools.run(program .. ' <' .. tools.write(place .. '/tour', tour))
    assert.same({ 0, '' }, { status, err })
    local kl = tonumber(out:match '\n(%d+%.%d+)\n')
    assert.truthy(kl and kl > 0 and kl < 20, out)
    assert.truthy(tools.exists(place .. '/student/model.safetensors'))
    assert.truthy(tools.exists(place .. '/student/tokenizer.json'))
  end)
end)
