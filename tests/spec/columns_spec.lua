--- Tables that fit a terminal.
local columns = require 'moonstill.base.columns'
local layout = require 'moonstill.base.layout'
local tools = require 'tests.support.tools'

describe('columns.table', function()
  local LIST = { { head = 'name' }, { head = 'loss', align = 'right' },
    { head = 'bytes', align = 'right', level = 9 }, { head = 'speed', align = 'right' } }
  local ROWS = { { 'small', 1.5, 1000000, '12/s' }, { '日本', 20, 5 } }

  it('aligns its columns', function()
    assert.same({
      'name   loss    bytes  speed',
      'small   1.5  1000000   12/s',
      '日本     20        5',
    }, (columns.table(LIST, ROWS, 80)))
  end)

  it('leaves out the least important, and says which', function()
    local lines, out = columns.table(LIST, ROWS, 26)
    assert.same({ 'name   loss  speed', 'small   1.5   12/s', '日本     20' }, lines)
    assert.same({ 'bytes' }, out)
    lines, out = columns.table(LIST, ROWS, 12)
    assert.same({ 'name   loss', 'small   1.5', '日本     20' }, lines)
    assert.same({ 'speed', 'bytes' }, out)
    assert.same({ 'name', 'small', '日本' }, (columns.table(LIST, ROWS, 5)))
    assert.same({ 'nam', 'e', 'sma', 'll', '日', '本' }, (columns.table(LIST, ROWS, 3)))
  end)

  it('wraps what may wrap before that', function()
    local list = { { head = 'key' }, { head = 'meaning', wraps = 8 }, { head = 'n', align = 'right' } }
    local rows = { { 'a', 'what this one is', 7 }, { 'b', 'short', 10 } }
    assert.same({ 'key  meaning            n', 'a    what this one is   7', 'b    short             10' },
      (columns.table(list, rows, 25)))
    assert.same({ 'key  meaning     n', 'a    what this   7', '     one is', 'b    short      10' },
      (columns.table(list, rows, 18)))
    local lines, out = columns.table(list, rows, 16)
    assert.same({ 'key  meaning', 'a    what this', '     one is', 'b    short' }, lines)
    assert.same({ 'n' }, out)
  end)

  it('keeps what must stay, and breaks its words where even that is too wide', function()
    local list = { {}, { level = 1 }, { level = 0 } }
    local rows = { { 'model.weight', 'f32', '[520, 128]' } }
    assert.same({ 'model.weight  f32  [520, 128]' }, (columns.table(list, rows, 29)))
    assert.same({ 'model.weight  [520, 128]' }, (columns.table(list, rows, 28)))
    assert.same({ 'model.wei  [520,', 'ght        128]' }, (columns.table(list, rows, 20)))
  end)

  it('has no heading where none is given, and may be indented', function()
    assert.same({ '  a  1', '  b  2' }, (columns.table({ {}, {} }, { { 'a', 1 }, { 'b', 2 } }, 80, 2)))
    assert.same({}, (columns.table({ {}, {} }, {}, 80)))
  end)

  it('keeps each row on a line of its own', function()
    assert.same({ 'a b c  1' }, (columns.table({ {}, {} }, { { 'a\nb\tc', 1 } }, 80)))
  end)

  it('fits any width', function()
    for most = 2, 40 do
      for _, line in ipairs((columns.table(LIST, ROWS, most))) do
        assert.is_true(layout.width(line) <= most, line)
      end
    end
  end)

  it('reports wrong calls', function()
    tools.fails("columns: column 1: no option 'hed'; did you mean 'head'?", columns.table, { { hed = 'x' } }, {}, 80)
    tools.fails('columns: most = 0, expected an integer', columns.table, LIST, ROWS, 0)
  end)
end)
