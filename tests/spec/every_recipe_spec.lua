--- What holds for every recipe in recipes/, whichever there are: it opens with what it shows, has
--- help, runs its --smoke size, and a run that is stopped goes on as if it had not been.
local json = require 'moonstill.base.json'
local tools = require 'tests.support.tools'

local root = select(2, tools.run 'pwd'):gsub('\n', '')
local program = tools.program():find '^/' and tools.program() or root .. '/' .. tools.program()

local function run(folder, ...)
  local words = { 'cd', tools.quote(folder), '&&', 'OMP_WAIT_POLICY=passive', 'OMP_NUM_THREADS=1', 'COLUMNS=',
    tools.quote(program) }
  for i = 1, select('#', ...) do words[#words + 1] = tools.quote((select(i, ...))) end
  return tools.run(table.concat(words, ' '))
end

-- What a run has measured, but for what depends on the clock.
local function metrics_of(output)
  local lines = {}
  for _, line in json.lines(output .. '/metrics.jsonl') do
    line.seconds, line.tokens_per_second = nil, nil
    lines[#lines + 1] = line
  end
  return lines
end

-- The last checkpoint's state: what the run and the recipe keep, and the configuration.
local function state_of(output)
  local _, names = tools.run('ls ' .. tools.quote(output .. '/checkpoints'))
  return json.read(('%s/checkpoints/%s/state.json'):format(output, names:match '(step%-%d+)%s*$')).state
end

local RESULT = 'out/smoke/result'

-- Stops the recipe after a step, goes on, and compares with the run that was not stopped.
local function stop_and_go_on(folder, path, whole)
  local state = state_of(whole)
  local config = state.config
  config.resume, config.output = nil, nil
  local words = { tools.write(folder .. '/config.json', json.encode(config)), 'output=out/stopped' }
  local step = math.floor(0.6 * state.run.step)
  local status, _, err = run(folder, root .. '/tests/programs/stopped_recipe.lua', path, step, unpack(words))
  assert.equal(130, status, err)
  tools.says(('interrupted after step %d of %d'):format(step, state.run.step), err)
  status, _, err = run(folder, path, unpack(words))
  assert.equal(0, status, err)
  tools.says(('step-%08d'):format(step), err)
  local cut = folder .. '/out/stopped'
  for _, file in ipairs { 'student/model.safetensors', ('checkpoints/step-%08d/optimizer.safetensors')
    :format(state.run.step) } do
    assert.is_true(tools.read(whole .. '/' .. file) == tools.read(cut .. '/' .. file), file)
  end
  local again = state_of(cut)
  state.run.sound, again.run.sound = nil, nil -- which checkpoints there are
  assert.same(state.run, again.run)
  assert.same(metrics_of(whole), metrics_of(cut))
end

local names = {}
for name in select(2, tools.run 'ls recipes'):gmatch '(%S+)%.lua\n' do names[#names + 1] = name end

describe('recipes/', function()
  it('holds those that the README names', function()
    local text = tools.read 'README.md'
    for _, name in ipairs(names) do assert.truthy(text:find(('recipes/%s.lua'):format(name), 1, true), name) end
    for name in text:gmatch 'recipes/([%w_]+)%.lua' do
      assert.truthy(tools.exists(('recipes/%s.lua'):format(name)), name)
    end
  end)
end)

for _, name in ipairs(names) do
  local path = ('%s/recipes/%s.lua'):format(root, name)
  describe(('recipes/%s.lua'):format(name), function()
    if not tools.exists(tools.program()) then
      pending('needs ' .. tools.program())
      return
    end
    local folder = tools.folder()

    it('opens with what it shows and how it is called', function()
      local text = tools.read(path)
      local head = text:match '^(%-%-%- .-)\n[^-]'
      assert.truthy(head, 'no docstring')
      local first = head:gsub('\n%-%-%- ?', ' '):match '^%-%-%- (.-%.)%s'
      assert.truthy(first and #first > 30, first)
      tools.says(('---   moonstill recipes/%s.lua'):format(name), head)
    end)

    it('has help that fits 80 columns', function()
      local status, text, err = run(folder, path, '--help')
      assert.same({ 0, '' }, { status, err })
      tools.says('--smoke', text)
      for line in text:gmatch '[^\n]+' do
        assert.is_true(#line <= 80, ('%d columns: %s'):format(#line, line))
      end
    end)

    it('runs its --smoke size, and goes on where it was stopped', function()
      local status, _, err = run(folder, path, '--smoke')
      assert.equal(0, status, err)
      local whole = ('%s/%s'):format(folder, RESULT)
      if not tools.exists(whole .. '/metrics.jsonl') then return end
      stop_and_go_on(folder, path, whole)
    end)
  end)
end
