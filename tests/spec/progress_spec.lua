--- Lines of progress: parts that fit a terminal, and no control characters where there is none.
local progress = require 'moonstill.base.progress'
local terminal = require 'tests.support.terminal'
local tools = require 'tests.support.tools'

local STEP = { { 'step 12/400', 1 }, { 'ce 2.1034', 2 }, { 'x 0.3', 6, glue = ' ' }, { 'kd 0.4011', 2.5 },
  { 'x 0.7', 6, glue = ' ' }, { 'lr 2.0e-05', 7 }, { 'norm 1.20', 5 }, { '210 tok/s', 4 }, { 'left 3m12s', 3 } }

describe('parts of a line', function()
  it('are left out as a whole, the least important ones first', function()
    local whole = 'step 12/400  ce 2.1034 x 0.3  kd 0.4011 x 0.7  lr 2.0e-05  norm 1.20  210 tok/s  left 3m12s'
    assert.equal(whole, progress.fit(STEP, math.huge))
    assert.equal(whole, progress.fit(STEP, #whole))
    for columns, want in pairs {
      [#whole - 1] = 'step 12/400  ce 2.1034 x 0.3  kd 0.4011 x 0.7  norm 1.20  210 tok/s  left 3m12s',
      [79] = 'step 12/400  ce 2.1034 x 0.3  kd 0.4011 x 0.7  norm 1.20  210 tok/s  left 3m12s',
      [78] = 'step 12/400  ce 2.1034  kd 0.4011  norm 1.20  210 tok/s  left 3m12s',
      [59] = 'step 12/400  ce 2.1034  kd 0.4011  210 tok/s  left 3m12s',
      [39] = 'step 12/400  ce 2.1034  kd 0.4011', [30] = 'step 12/400  ce 2.1034', [12] = 'step 12/400' } do
      assert.equal(want, progress.fit(STEP, columns))
    end
    assert.equal('step 12\226\128\166', progress.fit(STEP, 8)) -- there is no other way
    assert.equal(9, #STEP)
  end)

  it('are as wide as a terminal shows them', function()
    assert.equal('\230\151\165\230\156\172', progress.fit({ { '\230\151\165\230\156\172', 1 }, { 'x', 2 } }, 6))
    assert.equal('\230\151\165\230\156\172  x', progress.fit({ { '\230\151\165\230\156\172', 1 }, { 'x', 2 } }, 7))
  end)
end)

describe('a number that is none', function()
  it('is nan, whatever its sign', function()
    assert.equal('nan nan 1.50 inf', ('%s %s %s %s'):format(progress.number('%.2f', 0 / 0),
      progress.number('%.2f', -(0 / 0)), progress.number('%.2f', 1.5), progress.number('%.2f', math.huge)))
  end)
end)

-- What three steps and a sentence of a run show.
local script = tools.write(tools.folder() .. '/shows.lua', [[
  local now, progress = 0, require 'moonstill.base.progress'
  progress.clock = function() return now end
  local shown = progress.new(require('moonstill.base.ranks').world())
  shown:say('note: ' .. ('words that are many '):rep(5) .. '/a/path/' .. ('x'):rep(40))
  for step = 1, 40 do
    now = now + 1
    shown:step(step, 40, function() return { { 'ce 2.1034', 2 }, { 'lr 2.0e-05', 7 }, { 'norm 1.20', 5 } } end)
  end
  shown:finish()
  io.stderr:write 'over\n'
]])
local command = ("LUA_PATH=%s luajit %s"):format(tools.quote(package.path), script)

local function shown_on(columns, before)
  local session = terminal.open((before or '') .. command, columns)
  local text = session:wait 'over'
  session:finish()
  return text
end

describe('what a run shows', function()
  it('fits the terminal', function()
    for columns, want in pairs { [80] = 'step 9/40  ce 2.1034  lr 2.0e-05  norm 1.20  left 31s',
      [40] = 'step 9/40  ce 2.1034  left 31s', [20] = 'step 9/40' } do
      local text = shown_on(columns)
      assert.truthy(text:find('\r\27[K' .. want .. '\r\27[K', 1, true), text)
      for line in text:gsub('\r\27%[K', '\n'):gmatch '[^\r\n]+' do
        assert.is_true(#line <= columns or line:find 'xxxx' ~= nil, line)
      end
    end
    local text = shown_on(60)
    assert.truthy(text:find('words that\r\n  are many', 1, true), text) -- a sentence is broken between words
    assert.truthy(text:find('\r\n  /a/path/' .. ('x'):rep(40) .. '\r\n', 1, true), text)
  end)

  it('has no control character in a pipe or where the terminal knows none', function()
    local _, _, piped = tools.run(command)
    local dumb = shown_on(60, 'export TERM=dumb; '):gsub('\r\n', '\n')
    for _, text in ipairs { piped, dumb } do
      assert.is_nil(text:find('[%c]', 1) and text:find '[^\n%C]', text)
      assert.truthy(text:find('\nstep 1/40  ce 2.1034  lr 2.0e-05  norm 1.20  left ?\nstep 5/40', 1, true), text)
      assert.truthy(text:find('\nstep 40/40  ce 2.1034  lr 2.0e-05  norm 1.20\n', 1, true), text)
    end
    assert.truthy(piped:find(('words that are many '):rep(5), 1, true)) -- whole
  end)
end)
