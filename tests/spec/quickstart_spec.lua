--- The quickstart recipe at its --smoke size, as a user runs it.
local ms = require 'moonstill'
local tools = require 'tests.support.tools'

local root = select(2, tools.run 'pwd'):gsub('\n', '')

describe('recipes/quickstart.lua', function()
  if not tools.exists(tools.program()) then
    pending('needs ' .. tools.program())
    return
  end

  local folder = tools.folder()
  local function run(...)
    local program = tools.program():find '^/' and tools.program() or root .. '/' .. tools.program()
    local words = { 'cd', tools.quote(folder), '&&', 'OMP_WAIT_POLICY=passive', 'OMP_NUM_THREADS=1',
      tools.quote(program), tools.quote(root .. '/recipes/quickstart.lua'), '--smoke', ... }
    return tools.run(table.concat(words, ' '))
  end

  it('trains three models and tells of each', function()
    local status, out, err = run()
    assert.equal(0, status, err)
    local losses = {}
    for _, name in ipairs { 'teacher', 'SFT student', 'distilled student' } do
      local row = out:match('\n' .. name .. ' +(%d+ [^\n]+)')
      assert.truthy(row, 'no row for ' .. name)
      losses[#losses + 1] = tonumber(row:match '^%d+ +%d+ +([%d.]+)')
      assert.truthy(out:find('\n' .. name .. ': ', 1, true), 'no sample of ' .. name)
    end
    assert.equal(3, #losses)
    -- a vocabulary of some 500: all have learnt something, and they are different models
    for _, loss in ipairs(losses) do assert.is_true(loss > 0 and loss < 6) end
    assert.is_true(losses[2] ~= losses[3])
    assert.truthy(out:find 'better in both: %d of 1')
  end)

  it('leaves curves and model folders', function()
    local out = folder .. '/out/quickstart-smoke/seed-1/'
    assert.equal(5, select(2, tools.read(out .. 'curves.svg'):gsub('<polyline', '')))
    ms.scope(function(own)
      local a = own(ms.model.open(out .. 'SFT-student/student'))
      local b = own(ms.model.open(out .. 'distilled-student/student'))
      assert.equal(a:info().parameters, b:info().parameters)
      own(ms.chat.open(a, { b })) -- the tokenizer went along
    end)
  end)

  it('refuses keys of every recipe that it has no use for', function()
    for _, word in ipairs { 'max_steps=3', 'resume=true' } do
      local status, _, err = run(word)
      assert.equal(2, status)
      assert.truthy(err:find('do nothing here: teacher.steps, student.steps', 1, true), err)
    end
  end)

  it('repeats, and takes a teacher that has learnt nothing', function()
    local status, out, err = run('seeds=2', 'teacher.steps=0', 'student.steps=2')
    assert.equal(0, status, err)
    assert.truthy(out:find 'better in both: %d of 2')
    assert.truthy(out:match '\nteacher +%d+ +%- ')
  end)
end)
