-- The prompt on a terminal.
local terminal = require 'tests.support.terminal'
local tools = require 'tests.support.tools'

local program = tools.program()
if not tools.exists(program) then
  pending('the prompt', program .. ' is not built')
  return
end

local function open(state) return terminal.open('XDG_STATE_HOME=' .. state .. ' exec ' .. tools.quote(program)) end

describe('the prompt on a terminal', function()
  local folder = tools.folder()
  local it_is

  before_each(function()
    it_is = open(folder)
    it_is:wait 'help() helps.'
    it_is:wait '> '
  end)
  after_each(function() it_is:kill() end)

  it('prints, and ends with Ctrl-D', function()
    assert.truthy(it_is:type('1 + 1'):find('\n2\r', 1, true))
    assert.truthy(it_is:type('"ä€" .. _'):find('\nä€2\r', 1, true))
    assert.equal(0, it_is:leave())
  end)
  it('goes on in the next line', function()
    it_is:keys 'for i = 1, 2 do\n'
    it_is:wait '>> '
    assert.truthy(it_is:type('print(i * 7) end'):find('7\r\n14\r\n', 1, true))
    it_is:keys '20 +\n' -- a value that is unfinished, not a statement
    it_is:wait '>> '
    assert.truthy(it_is:type('3'):find('\n23\r', 1, true))
    assert.truthy(it_is:type('a = 5 end'):find("expected near 'end'", 1, true)) -- what is too much
  end)
  it('gives a line up at Ctrl-C', function()
    it_is:keys 'error "never run"'
    it_is:wait 'run"'
    it_is:keys '\3'
    it_is:wait '^C\r\n> '
    assert.truthy(it_is:type('7'):find('\n7\r', 1, true))
    it_is:keys 'for i = 1, 2 do\n'
    it_is:wait '>> '
    it_is:keys '\3'
    it_is:wait '\n> '
    assert.truthy(it_is:type('8'):find('\n8\r', 1, true))
  end)
  it('stops what runs at Ctrl-C', function()
    it_is:keys 'function spin() for i = 1, math.huge do end end\n'
    it_is:wait '\n> '
    for _, code in ipairs { 'while true do end', 'spin()' } do
      it_is:keys(('print "go" %s\n'):format(code))
      it_is:wait '\ngo\r\n'
      it_is:keys '\3'
      it_is:wait 'interrupted'
      it_is:wait '\n> '
    end
    assert.truthy(it_is:type('9'):find('\n9\r', 1, true))
  end)
  it('keeps a history over sessions', function()
    it_is:type '1234 + 1'
    it_is:leave()
    local again = open(folder)
    again:wait '> '
    again:keys '\27[A\n' -- arrow up
    again:wait '\n1235\r'
    again:wait '\n> '
    assert.equal(0, again:leave())
    assert.truthy(tools.exists(folder .. '/moonstill_history'))
  end)
end)
