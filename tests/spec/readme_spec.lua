-- The README's tour and recipe are run as they stand: the tour with what a small quickstart leaves, the
-- recipe with a real model in place of its folder.
local tools = require 'tests.support.tools'

local program, teacher = tools.program(), 'models/tinystories-656k'
if not tools.exists(program) then
  pending('README.md', program .. ' is not built')
  return
end
local root = select(2, tools.run 'pwd'):gsub('\n', '')
if not program:find '^/' then program = root .. '/' .. program end

-- Lines typed at the prompt in a folder; returns status, stdout, stderr.
local function type_in(place, lines)
  return tools.run(('cd %s && %s <%s'):format(place, tools.quote(program), tools.write(place .. '/typed', lines)))
end

describe('the tour', function()
  local place = tools.folder()
  -- of the shape that README names, and trained so far that it answers
  local status, _, err = tools.run(('cd %s && OMP_NUM_THREADS=1 %s %s/recipes/quickstart.lua --smoke '
    .. 'output=out/quickstart teacher.layers=4 teacher.width=64 teacher.steps=100'):format(place,
    tools.quote(program), root))
  assert(status == 0, err)

  it('of README.md runs with what the quickstart leaves', function()
    local tour = assert(tools.read 'README.md':match '```lua\n(.-)```')
    local out
    status, out, err = type_in(place, tour)
    assert.equal(0, status)
    assert.equal('', (err:gsub('dataset[^\n]*\n', ''))) -- what it holds is said
    local answer, ce, kl, model = out:match '^([^\n]+)\n([%d.]+)\n([%d.]+)\n([^\n]+)\n$'
    assert.truthy(answer and answer:find 'answer: %d+$', out)
    assert.is_true(tonumber(ce) > 0 and tonumber(ce) < 7 and tonumber(kl) > 0 and tonumber(kl) < 7)
    assert.truthy(model:find('in 2 layers', 1, true))
    for _, name in ipairs { 'model.safetensors', 'tokenizer.json', 'generation_config.json' } do
      assert.truthy(tools.exists(place .. '/out/shrunk/' .. name))
    end
  end)

  it('is gone on with by the command that distils, whose student learns', function()
    local words = assert(tools.read 'README.md':match '\n    moonstill (recipes/distill%.lua recipes[^\n]+[^\\\n])\n')
    words = words:gsub('recipes/', root .. '/%0')
    status, _, err = tools.run(('cd %s && OMP_NUM_THREADS=1 %s %s'):format(place, tools.quote(program), words))
    assert.equal(0, status, err)
    local before = err:match 'validation before step 1: loss ([%d.]+)'
    local after = err:match '.*validation after step %d+: loss ([%d.]+)'
    assert.is_true(tonumber(after) < tonumber(before), err)
    assert.truthy(tools.exists(place .. '/out/small/student/model.safetensors'))
  end)

  it('of the prompt\'s help runs as well', function()
    local help = select(2, tools.run(tools.quote(program) .. " -e 'ms.help()'"))
    local start = assert(help:match '\nA start.-(\n  .*)')
    local out
    status, out = type_in(place, start)
    assert.equal(0, status)
    assert.truthy(out:match '^[^\n]+\n[%d.]+\nmodel llama', out)
  end)
end)

local folder, why = tools.shared(teacher .. '/config.json')
if not folder then
  pending('the recipe', why)
  return
end

describe('README.md', function()
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
