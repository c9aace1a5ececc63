-- The prompt on a terminal.
local terminal = require 'tests.support.terminal'
local tools = require 'tests.support.tools'

local program = tools.program()
if not tools.exists(program) then
  pending('the prompt', program .. ' is not built')
  return
end

local function open(state, before, columns)
  return terminal.open(('XDG_STATE_HOME=%s %s exec %s'):format(state, before or '', tools.quote(program)), columns)
end

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
  it('prints a last expression, and says which locals are lost', function()
    assert.truthy(it_is:type('x = 1; x'):find('\n1\r', 1, true))
    assert.truthy(it_is:type('x = 1; y = 2'):find '^[^\n]+\n> $')
    local note = "note: the local z ends with this line; without 'local' it stays\r\n"
    assert.truthy(it_is:type('local z = 3'):find('\r\n' .. note, 1, true))
    assert.truthy(it_is:type('z'):find('\nnil\r', 1, true))
    assert.falsy(it_is:type('local z = 3; z'):find('note', 1, true))
    assert.truthy(it_is:type('0.1 + 0.2, 0/0'):find('\n0.30000000000000004\tnan\r', 1, true))
  end)
  it('has words that leave and help, unless they are the user\'s', function()
    assert.truthy(it_is:type('help'):find('Ctrl-D leaves', 1, true))
    assert.equal('help = 4; quit = 5\r\n> ', it_is:type('help = 4; quit = 5'))
    assert.truthy(it_is:type('help'):find('\n4\r', 1, true))
    assert.truthy(it_is:type('quit'):find('\n5\r', 1, true))
    it_is:keys 'exit\n'
    assert.equal(0, it_is:finish())
    for line, status in pairs { ['quit()'] = 0, ['exit(3)'] = 3 * 256, ['for i = 1, 2 do exit(i) end'] = 256 } do
      local again = open(folder)
      again:wait '> '
      again:keys(line .. '\n')
      assert.equal(status, again:finish())
    end
  end)
  it('takes what is pasted as one text, with its tabs', function()
    it_is:keys '\27[200~local q = 5\nprint(#"\t", q)\nif q then\n\tq = q + 1\nend\nq * 2\n\27[201~'
    it_is:wait '\r\n1\t5\r\n12\r\n> '
    it_is:keys '\27[200~"a\tä" .. \27[201~"b"\n' -- within a line, which then goes on
    it_is:wait '\r\na\täb\r\n> '
  end)
  it('completes with Tab, and lists what there is', function()
    it_is:keys 'ms.model.shr\t'
    it_is:wait 'ink' -- the line is not drawn anew
    it_is:keys '(m, { la\t'
    it_is:wait 'yers = '
    it_is:interrupt()
    it_is:wait '\n> '
    it_is:keys 'ms.kd.o'
    it_is:wait 'ms.kd.o'
    it_is:keys '\t'
    it_is:wait 'objectives  options\r\n'
    it_is:wait '> ms.kd.o'
    it_is:keys 'pt\t'
    it_is:wait 'ions'
    it_is:keys '.k.default\n'
    it_is:wait '\r\n64\r\n> '
    it_is:keys 'x = "tests/supp\t'
    it_is:wait 'ort/'
    it_is:keys '"; x\n'
    it_is:wait '\r\ntests/support/\r\n> '
  end)
  it('completes no tab that was pasted, and moves in where a line is blank', function()
    it_is:keys '#"\27[200~pri\tx\27[201~"\n'
    it_is:wait '\r\n5\r\n> '
    it_is:keys 'if true then pri\tnt "tab" end\n' -- all at once: there is more to be read behind the tab
    tools.says("'=' expected near 'nt'", it_is:wait '\n> ')
    it_is:keys 'if true then\n'
    it_is:wait '>> '
    it_is:keys '\t'
    assert.truthy(it_is:type('print(2) end'):find('\n2\r', 1, true))
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
  it('lets a run that is interrupted save itself, and goes on', function()
    it_is:type "R = dofile 'tests/programs/run_recipe.lua'"
    it_is:type "s = ms.model.create(R.config, 1, { train = true, dtype = 'f32' })"
    it_is:type(("run = ms.run.open({ output = '%s/run', max_steps = 1e6, epochs = 0, optim = { lr = 1e-3 } }, "
      .. '{ student = s, data = R.data(20) })'):format(folder))
    it_is:keys 'for step in run:steps() do for b in step:micro_batches() do s:learn(b, { ms.ce() }) end '
    it_is:keys 'step:update() end\n'
    it_is:wait '/1000000' -- steps are drawn
    it_is:keys '\3'
    it_is:wait 'interrupted after step '
    it_is:wait '\n> '
    it_is:type 'progress = require "moonstill.base.progress".new({ prints = true })' -- which a run may leave drawn
    it_is:keys 'progress:step(1, 2, function() return "half" end)\n'
    it_is:wait 'half  left ?\r\n> '
    it_is:keys 'print "go" while true do end\n' -- the run watches no more
    it_is:wait '\ngo\r\n'
    it_is:keys '\3'
    it_is:wait 'prompt:1: interrupted'
    it_is:wait '\n> '
    assert.truthy(it_is:type('run.state.step > 0'):find('\ntrue\r', 1, true))
    assert.equal(0, it_is:leave())
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

describe('the prompt on a narrow terminal', function()
  it('breaks what it says between words', function()
    local it_is = open(tools.folder(), '', 40)
    it_is:wait '> '
    assert.truthy(it_is:type('local z = 3'):find('ends with this line;\r\nwithout', 1, true))
    assert.truthy(it_is:type('ms.batch(1)'):find('expected; help(ms.batch) says what it\r\n  takes\r\n', 1, true))
    assert.falsy(it_is:type('error "\\27[2J"'):find('\27[2J', 1, true)) -- no control character goes through
    assert.equal(0, it_is:leave())
  end)
end)

describe('the prompt on a terminal that is dumb', function()
  it('writes no control characters, and does all else', function()
    local it_is = open(tools.folder(), 'TERM=dumb')
    local seen = it_is:wait '> '
    for _, keys in ipairs { '1 +\n', '"4"\n', 'x = {\n', '\3', 'error "no"\n' } do
      it_is:keys(keys)
      seen = seen .. it_is:wait '> '
    end
    tools.says({ '>> "4"\r\n5\r\n> ', 'prompt:1: no' }, seen)
    assert.is_nil(seen:find '[%z\1-\8\11\12\14-\31\127]')
    it_is:keys '\4'
    assert.equal(0, it_is:finish())
  end)
end)
