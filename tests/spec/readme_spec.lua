-- The README's tour and recipe are run as they stand, with a real model in place of their folder.
local tools = require 'tests.support.tools'

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
    local status, out, err = tools.run(tools.quote(program) .. ' <' .. tools.write(place .. '/tour', tour))
    assert.same({ 0, '' }, { status, err })
    local kl = tonumber(out:match '\n(%d+%.%d+)\n')
    assert.truthy(kl and kl > 0 and kl < 20, out)
    assert.truthy(tools.exists(place .. '/student/model.safetensors'))
    assert.truthy(tools.exists(place .. '/student/tokenizer.json'))
  end)

  it('has a recipe that runs', function()
    local place = tools.folder()
    local recipe = assert(tools.read 'README.md':match '```lua\n.-```.-```lua\n(.-)```')
    recipe = recipe:gsub('"models/teacher"', '"' .. folder:gsub('/config.json$', '') .. '"')
    for name in pairs { ['train.jsonl'] = true, ['out/own'] = true } do
      recipe = recipe:gsub('"' .. name, '"' .. place .. '/' .. name)
    end
    local row = '{"prompt": "Once upon a time,", "completion": " there was a dog %d."}\n'
    local rows = {}
    for i = 1, 60 do rows[i] = row:format(i) end
    tools.write(place .. '/train.jsonl', table.concat(rows))
    local status, _, err = tools.run(tools.quote(program) .. ' ' .. tools.write(place .. '/own.lua', recipe))
    assert.equal(0, status, err)
    assert.truthy(tools.exists(place .. '/out/own/student/tokenizer.json'))
    local json, steps, first, last = require 'moonstill.base.json', 0, nil, nil
    for _, line in json.lines(place .. '/out/own/metrics.jsonl') do
      steps, first, last = steps + 1, first or line, line
    end
    assert.is_true(steps > 1 and last.terms.ce.loss < first.terms.ce.loss, err)
    assert.equal(1e-4, first.lr)
    assert.equal(0.5, last.kd)
    assert.truthy(tools.read(place .. '/out/own/ce.svg'):find('<polyline', 1, true))
  end)

  it('has a command line that runs', function()
    local code = assert(tools.read 'README.md':match '(local cfg = ms.config.-)```')
    local recipe = tools.write(tools.folder() .. '/cfg.lua', ([[local ms = require 'moonstill'
      local recipe = require 'tests.programs.run_recipe'
      local teacher, student = ms.model.create(recipe.config, 1), ms.model.create(recipe.config, 2, { train = true })
      local batch = ms.batch { { tokens = { 1, 2, 3 }, response = { 1, 1, 0 } } }
      %s print(target:info().k, cfg.kd.first_weight)]]):format(code:gsub('k = 32', 'k = 3')))
    local status, out, err = tools.run(('LUA_PATH=%s luajit %s kd.k=2'):format(tools.quote(package.path), recipe))
    assert.same({ 0, '2\t0.9\n', '' }, { status, out, err })
    assert.truthy(code:find('k = 32', 1, true))
  end)
end)
