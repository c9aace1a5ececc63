--- What README says of recipes: its commands run with what the quickstart leaves, and its examples
--- are the recipes' own lines.
local json = require 'moonstill.base.json'
local tools = require 'tests.support.tools'

local text = tools.read 'README.md'
local root = select(2, tools.run 'pwd'):gsub('\n', '')
local program = tools.program():find '^/' and tools.program() or root .. '/' .. tools.program()

local function section(title)
  return assert(text:match('\n## ' .. title .. '\n(.-)\n## '), 'no section ' .. title)
end

-- The lines of a text without the blanks before them, and without empty ones.
local function bare(lines)
  return ('\n' .. lines):gsub('\n%s+', '\n'):gsub('%s+$', ''):gsub('\n+', '\n'):sub(2)
end

describe('README.md', function()
  it('shows of runs, steps and their state what stands in recipes', function()
    local recipes, count = {}, 0
    for name in select(2, tools.run 'ls recipes/*.lua'):gmatch '%S+' do
      recipes[#recipes + 1] = bare(tools.read(name))
    end
    for block in section('Runs, steps and their state'):gmatch '```lua\n(.-)```' do
      local found = false
      for _, recipe in ipairs(recipes) do found = found or recipe:find(bare(block), 1, true) ~= nil end
      assert.is_true(found, 'in no recipe: ' .. block)
      count = count + 1
    end
    assert.is_true(count >= 5)
  end)

  it('has code that fits 80 columns there, and commands', function()
    for block in section('Runs, steps and their state'):gmatch '```lua\n(.-)```' do
      for line in block:gmatch '[^\n]+' do assert.is_true(#line <= 80, line) end
    end
    for line in section('Recipes'):gmatch '\n(    [^\n]+)' do
      local command = line:find 'moonstill' or line:find '=' and not line:find '[(;]'
      assert.is_true(not command or #line <= 80, line)
    end
  end)

  if not tools.exists(tools.program()) then
    pending('needs ' .. tools.program())
    return
  end

  it('has commands for recipes that run with what the quickstart leaves', function()
    local folder = tools.folder()
    local env = ('cd %s && OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1 '):format(tools.quote(folder))
    local function run(words)
      local status, out, err = tools.run(env .. tools.quote(program) .. ' ' .. words)
      assert.equal(0, status, words .. '\n' .. err)
      return out, err
    end
    tools.run(('ln -s %s/recipes %s/recipes'):format(root, folder))
    -- a teacher of as many layers as the quickstart's, which README takes some of
    run 'recipes/quickstart.lua --smoke output=out/quickstart teacher.layers=4'
    local commands = section 'Recipes':gsub('\\\n%s*', '')
    local count = 0
    for words in commands:gmatch '\n    moonstill (recipes/[^\n]+)' do
      if not words:find 'models/' then -- the reader's own
        count = count + 1
        local _, err = run(words .. (words:find 'filter_data' and '' or ' max_steps=2'))
        if words:find 'small.yaml' then tools.says('validation before step 1: ', err) end
      end
    end
    assert.is_true(count >= 6)
    for _, output in ipairs { 'small', 'scheduled', 'two-teachers', 'on-policy', 'sft' } do
      local last
      for _, line in json.lines(('%s/out/%s/metrics.jsonl'):format(folder, output)) do last = line end
      assert.equal(2, last.step, output)
    end
  end)
end)
