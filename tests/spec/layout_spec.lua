--- Texts laid out for a width, and everything that `--help` prints at the widths of terminals.
local layout = require 'moonstill.base.layout'
local sorted = require 'moonstill.base.sorted'
local tools = require 'tests.support.tools'
local usage = require 'moonstill.prompt.usage'

local ACUTE, JOINER, SELECTOR = '\204\129', '\226\128\141', '\239\184\143'

describe('a text for a width', function()
  it('is as wide as a terminal shows it', function()
    for text, width in pairs {
      [''] = 0, abc = 3, ['a~ b'] = 4, ['ä€…'] = 3,
      ['h\195\169'] = 2, ['he' .. ACUTE] = 2,         -- é, and e with an accent of its own
      ['日本'] = 4, ['ﾊﾝ'] = 2, ['Ａ'] = 2, ['한'] = 2,  -- wide, half and full width
      ['😀'] = 2, ['❤'] = 1, ['❤' .. SELECTOR] = 2, [JOINER] = 0,
      ['🇩🇪'] = 2, ['⟦x⟧'] = 3,
      ['a\255b'] = 3, ['\228\184'] = 2,               -- no UTF-8: a column for each byte
    } do
      assert.equal(width, layout.width(text), text)
    end
  end)
  it('ends with dots where it is too long, between characters', function()
    assert.equal('abc', layout.cut('abc', 3))
    assert.equal('ab…', layout.cut('abcd', 3))
    assert.equal('日…', layout.cut('日本語', 4))
    assert.equal('e' .. ACUTE .. '…', layout.cut('e' .. ACUTE .. 'fg', 2))
    assert.equal('…', layout.cut('日本', 1))
    assert.equal('', layout.cut('日本', 0))
  end)
  it('is filled up with blanks', function()
    assert.equal('日  ', layout.padded('日', 4))
    assert.equal('  日', layout.padded('日', 4, 'right'))
    assert.equal(' 日 ', layout.padded('日', 4, 'middle'))
    assert.equal('long', layout.padded('long', 2))
  end)
  it('is broken between words, each line as full as it can be', function()
    assert.same({ 'ab cd', 'ef', 'longer-than-it', 'g' }, layout.wrap('ab  cd\nef longer-than-it g', 5))
    assert.same({ 'ä€ ä€', 'ä' }, layout.wrap('ä€ ä€ ä', 5))
    assert.same({ '日本', '語' }, layout.wrap('日本 語', 6))
    assert.same({ '' }, layout.wrap(' \n ', 5))
    assert.same({ 'a >= 1' }, layout.wrap('a >=' .. layout.TIE .. '1', 80))
    assert.same({ 'a', '>= 1' }, layout.wrap('a >=' .. layout.TIE .. '1', 5))
  end)
  it('keeps what is indented, and the lines between paragraphs', function()
    assert.equal('a b c\nd\n\n  code   as it is, however long\n\ne', layout.paragraphs(
      'a\nb c d\n\n  code   as it is, however long\n\ne', 6))
  end)
  it('may be indented within its width', function()
    assert.equal('    ab\n\n    cd', layout.paragraphs('ab\n\ncd', 7, 4))
    assert.equal('    ab\n    cd', layout.paragraphs('ab cd', 8, 4))
  end)
end)

describe('rows', function()
  it('have their last cell below itself', function()
    local text = 'one two three four five six seven eight'
    assert.equal('  key  v   one two three four five\n           six seven eight\n  k    vw\n',
      layout.rows({ { 'key', 'v', text }, { 'k', 'vw', '' } }, 36))
  end)
  it('begin it in a line of its own where there is no room beside the others', function()
    assert.equal('  key  v\n      one two three four\n', layout.rows({ { 'key', 'v', 'one two three four' } }, 30))
    local long = ('x'):rep(30)
    assert.equal(('  %s\n%sy\n  z%sw\n'):format(long, (' '):rep(28), (' '):rep(25)),
      layout.rows({ { long, 'y' }, { 'z', 'w' } }, 80))
    assert.equal('', layout.rows({}, 80))
  end)
end)

local program = tools.program()
if not tools.exists(program) then
  pending('--help', program .. ' is not built')
  return
end

local function lines_of(command, columns)
  local status, out, err = tools.run(('COLUMNS=%s %s %s'):format(columns or '', tools.quote(program), command))
  assert.same({ 0, '' }, { status, err }, command)
  return out
end

describe('--help', function()
  local commands = { '', 'data' }
  for _, module in ipairs(usage.modules) do
    commands[#commands + 1] = require('moonstill.prompt.' .. module).command.name
  end
  local _, recipes = tools.run 'ls recipes/*.lua'
  for recipe in recipes:gmatch '%S+' do commands[#commands + 1] = recipe end
  for _, command in ipairs(commands) do
    it('of ' .. (command == '' and 'moonstill' or command) .. ' is as wide as the terminal at most', function()
      local wide
      for _, columns in ipairs { '', '60' } do
        local text = lines_of(command .. ' --help', columns)
        for line in text:gmatch '[^\n]+' do
          -- what may be typed is not broken
          local typed = line:find '^moonstill ' or line:find '^  moonstill '
          local most = (columns == '' or typed) and 80 or 60
          assert.is_true(layout.width(line) <= most, ('%d columns: %s'):format(most, line))
        end
        wide = wide or text
      end
      assert.equal(wide, lines_of(command .. ' --help', '80'))
    end)
  end
  it('names every variable of the environment that is asked for', function()
    local _, list = tools.run "grep -rhoE \"getenv ?[(]?['\\\"][A-Z_]+\" lua core kernels"
    local known, count = {}, 0
    for _, row in ipairs(usage.environment) do known[row[1]] = true end
    for name in list:gmatch '[A-Z_]+' do
      count = count + 1
      local launcher = name:find '^OMPI_' or name:find '^PMI' -- by these who launches ranks tells them who they are
      assert.is_true(known[name] or launcher ~= nil, name)
    end
    assert.is_true(count > 8, count)
    local text = lines_of '--help'
    for name in sorted.pairs(known) do tools.says(name, text) end
  end)
end)
