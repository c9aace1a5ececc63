--- Grids: how ranks are laid out, and what goes wrong with it.
local ms = require 'moonstill'
local launched = require 'tests.support.launched'
local tools = require 'tests.support.tools'

describe('a grid of one process', function()
  it('is this process', function()
    local grid = ms.grid()
    assert.equal('grid of 1 rank: dp 1 x tp 1', tostring(grid))
    assert.same({ 1, 1, 1, true }, { grid.dp.size, grid.tp.size, grid.world.size, grid.holds })
    assert.same({ { rank = 0, dp = 0, tp = 0 } }, grid:places())
    assert.same({ 1 / 3, 7 }, grid.dp:sum { 1 / 3, 7 })
    assert.equal(tostring(ms.grid { dp = 1, tp = 1, ranks = 0 }), tostring(grid))
  end)

  it('is refused where numbers do not go together', function()
    local function refused(options, words)
      local ok, why = pcall(ms.grid, options)
      assert.is_false(ok)
      tools.says(words, tostring(why))
    end
    refused({ tp = 2 }, 'grid: tp = 2 does not divide the ranks: there are 1')
    refused({ dp = 3, tp = 2 }, 'grid: dp 3 x tp 2 are 6 ranks, and there are 1: moonstill -n 6 starts as many')
    refused({ ranks = '0-1' }, "grid: ranks = '0-1', but there are 1 ranks, 0 to 0")
    refused({ ranks = '0,0' }, "grid: ranks = '0,0' has rank 0 twice")
    refused({ ranks = '1-0' }, "'1-0' is no number, nor a range such as 0-3")
    refused({ ranks = 'all' }, "'all' is no number")
    refused({ ranks = '0,' }, "'' is no number")
    refused({ ranks = '0', dp = 2 }, "dp 2 x tp 1 are 2 ranks, and ranks = '0' are 1")
    for _, key in ipairs { 'pp', 'cp', 'ep' } do
      refused({ [key] = 2 }, ("grid: '%s' ("):format(key))
      refused({ [key] = 2 }, 'is not there yet; dp and tp are')
    end
    refused({ tp = 0 }, "'tp' must be integer >= 1, not 0")
    refused({ td = 2 }, "no option 'td'")
  end)

  it('is what every model has that was given none, and those that are made of it', function()
    local config = require 'tests.programs.run_recipe'.config
    local one = ms.model.create(config, 1, { dtype = 'f32' })
    local copy, small = ms.model.copy(one), ms.model.shrink(one, { layers = 1 })
    for _, model in ipairs { one, copy, small } do
      assert.equal('grid of 1 rank: dp 1 x tp 1', tostring(model:grid()))
      model:free()
    end
  end)
end)

describe('a grid of several ranks', function()
  if launched.missing then return it('is laid out', function() pending(launched.missing) end) end

  -- Lua code, run by all ranks; what the first one prints.
  local function said(ranks, code)
    local status, out, err = launched.run('-n', ranks, '-e', code)
    assert.equal(0, status, err)
    return out
  end

  local SHOW = [[
    local world = ms.grid().world
    local function show(grid)
      local mine = grid.holds and ('%d/%d %d/%d'):format(grid.dp.rank, grid.dp.size, grid.tp.rank, grid.tp.size) or '-'
      local sums = grid.holds and grid.dp:sum { 2 ^ world.rank }[1] .. ' ' .. grid.tp:sum { 2 ^ world.rank }[1] or '-'
      for rank = 0, world.size - 1 do print(world:from(rank, mine), world:from(rank, sums)) end
    end
  ]]

  it('has tp as its fastest, and sums over each of its groups', function()
    local want = { '0/2 0/2\t5 3', '0/2 1/2\t10 3', '1/2 0/2\t5 12', '1/2 1/2\t10 12' }
    assert.equal(table.concat(want, '\n') .. '\n', said(4, SHOW .. 'show(ms.grid { tp = 2 })'))
    want = { '0/1 0/3\t1 7', '0/1 1/3\t2 7', '0/1 2/3\t4 7' }
    assert.equal(table.concat(want, '\n') .. '\n', said(3, SHOW .. 'show(ms.grid { dp = 1, tp = 3 })'))
    want = { '0/3 0/1\t7 1', '1/3 0/1\t7 2', '2/3 0/1\t7 4' }
    assert.equal(table.concat(want, '\n') .. '\n', said(3, SHOW .. 'show(ms.grid())'))
  end)

  it('may be of some of them, in any order; the others know that they are none', function()
    local want = { '-\t-', '0/1 1/2\t2 6', '0/1 0/2\t4 6' }
    assert.equal(table.concat(want, '\n') .. '\n', said(3, SHOW .. "show(ms.grid { ranks = '2,1', tp = 2 })"))
    local out = said(3, [[
      local grid = ms.grid { ranks = '0,2', dp = 2 }
      local ok, why = pcall(ms.model.open, 'nowhere', { grid = grid })
      print(grid, grid.world:from(1, ok and 'open' or why))]])
    tools.says({ 'grid of 2 ranks of 3: 0, 2: dp 2 x tp 1', 'nowhere: no such folder' }, out)
  end)

  it('shares the groups of one that was made alike', function()
    assert.equal('true\ttrue\tfalse\n', said(4, [[
      local a, b = ms.grid { tp = 2 }, ms.grid { dp = 2, tp = 2, ranks = '0-3' }
      local c = ms.grid { ranks = '1,0,2,3', tp = 2 }
      print(a.tp.group == b.tp.group, a.dp.group == b.dp.group, a.tp.group == c.tp.group)]]))
  end)

  it('is printed, rank by rank', function()
    local status, out, err = launched.run('-n', 4, 'ranks', '--tp', '2')
    assert.equal(0, status, err)
    tools.says('grid of 4 ranks: dp 2 x tp 2', out)
    for _, line in ipairs { '0 +0 +0 ', '1 +0 +1 ', '2 +1 +0 ', '3 +1 +1 ' } do
      assert.truthy(out:find('\n +' .. line), out)
    end
    status, out, err = launched.run('-n', 2, 'ranks', '--dp', '3')
    assert.same({ 2, '' }, { status, out })
    tools.says('ranks: grid: dp 3 x tp 1 are 3 ranks, and there are 2', err)
  end)

  it('is asked for by configurations, where it is checked before anything is opened', function()
    local status, _, err = launched.run('-n', 2, 'recipes/sft.lua', '--smoke', 'grid.dp=3')
    assert.equal(2, status)
    tools.says('grid: dp 3 x tp 1 are 3 ranks, and there are 2', err)
    status, _, err = launched.run('recipes/sft.lua', '--smoke', 'grid.cp=2')
    assert.equal(2, status)
    tools.says("command line: grid: 'cp' (a text cut over ranks) is not there yet; dp and tp are", err)
  end)
end)

describe('a run', function()
  local recipe = require 'tests.programs.run_recipe'

  it('whose grid is not its student\'s is refused', function()
    local student = ms.model.create(recipe.config, 1, { train = true, dtype = 'f32' })
    local ok, why = pcall(ms.run.open, { output = tools.folder(), grid = { tp = 2 } }, { student = student })
    assert.is_false(ok)
    tools.says('grid: tp = 2 does not divide the ranks', tostring(why))
    student:free()
  end)

  it('whose ranks have different plans ends, before samples are learnt twice', function()
    if launched.missing then return pending(launched.missing) end
    local status, _, err = launched.run('-n', 2, '-e', ([[
      local recipe, world = require 'tests.programs.run_recipe', ms.grid().world
      local student = ms.model.create(recipe.config, 1, { train = true, dtype = 'f32' })
      ms.run.open({ output = %q, seed = world.rank + 1, optim = { lr = 1 } },
        { student = student, data = recipe.data(20) })]])
      :format(tools.folder() .. '/out'))
    assert.equal(1, status)
    tools.says('run: the ranks have different plans of epoch 1', err)
  end)
end)
