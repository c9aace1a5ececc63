--- What the commands print at the widths of terminals, through pipes, and on a terminal that can do nothing.
local layout = require 'moonstill.base.layout'
local ms = require 'moonstill'
local talkers = require 'tests.support.talkers'
local terminal = require 'tests.support.terminal'
local tools = require 'tests.support.tools'

local program = tools.program()
if not tools.exists(program) then
  pending('the commands', program .. ' is not built')
  return
end
program = tools.quote(program)

local folder = tools.folder()
local says_abc = talkers.turns { [10] = 97, [97] = 98, [98] = 99, [99] = 301 }
local CONTROL = '[%z\1-\8\11\12\14-\31\127]'

-- stdout of a command at a width, through a pipe.
local function piped(columns, command)
  local status, out, err = tools.run(('COLUMNS=%d %s %s'):format(columns, program, command))
  assert.equal(0, status, err)
  return out
end

local function check_lines(text, columns, what)
  local count = 0
  for line in text:gmatch '[^\r\n]+' do
    count = count + 1
    line = line:gsub('\27%[[%d;?]*[%a]', '')
    assert.is_true(layout.width(line) <= columns, ('%s at %d: %s'):format(what, columns, line))
  end
  assert.is_true(count > 0, what)
end

describe('at any width', function()
  for _, columns in ipairs { 80, 60, 40 } do
    it('moonstill inspect: ' .. columns, function()
      local out = piped(columns, 'inspect tests/fixtures/qwen3 --weights')
      check_lines(out, columns, 'inspect')
      assert.equal(columns == 80, out:find('f32  [56, 32]', 1, true) ~= nil)
      assert.truthy(out:find('[56, 32]', 1, true)) -- the shape stays longer than the dtype
      assert.equal(columns >= 60, out:find('model.layers.0.post_attention_layernorm.weight ', 1, true) ~= nil)
    end)

    it('moonstill data show: ' .. columns, function()
      local student = ms.smoke.sft(folder .. '/' .. columns).student
      local rows = {}
      for i = 1, 30 do rows[i] = ('{"prompt": "日本語", "completion": "%s"}\n'):format(('a '):rep(i * 5)) end
      local path = tools.write(folder .. '/wide.jsonl', table.concat(rows))
      local out = piped(columns, ('data show %s model=%s n=0 2>/dev/null'):format(path, student))
      check_lines(out, columns, 'data show')
      assert.equal(columns >= 40, out:find('median  mean  p95  max', 1, true) ~= nil)
    end)

    it('moonstill --version: ' .. columns, function() check_lines(piped(columns, '--version'), columns, 'version') end)
  end

  it('moonstill chat says what it says in whole words', function()
    for _, columns in ipairs { 80, 60, 40 } do
      local chat = terminal.open(('%s chat %s'):format(program, says_abc), columns)
      local text = chat:wait '> '
      check_lines(text:gsub('> $', ''), columns, 'chat')
      local plain = text:gsub('\27%[[%d;?]*%a', ''):gsub('%s+', ' ')
      assert.truthy(plain:find('/help lists the commands; Ctrl-C stops an answer, Ctrl-D leaves', 1, true), plain)
      assert.truthy(plain:find('[%d.]+ ?k? parameters, context %d+'), plain)
      chat:keys '/nonsense\r'
      text = chat:wait '/undo)'
      check_lines(text:match '%(no command.*', columns, 'chat')
      chat:keys '/help\r'
      check_lines(chat:wait 'is a /', columns, '/help')
      assert.equal(0, chat:leave())
    end
  end)

  it('errors are told in whole words, at the prompt as well, and without control characters', function()
    local words = 'one two three four five six seven eight nine ten eleven twelve'
    -- what is typed comes back as well, and is none of it
    local code = ("error(('%s'):gsub('-', ' ') .. ' \\27[2J', 0)"):format((words:gsub(' ', '-')))
    local run = terminal.open(('%s -e %s; echo done'):format(program, tools.quote(code)), 40)
    local text = run:wait 'done\r\n'
    run:finish()
    local repl = terminal.open(program, 40)
    repl:wait '> '
    repl:keys(code .. '\n')
    repl:wait '\r\n'
    for _, said in ipairs { text, repl:wait('x1b[2J') } do
      local message = said:match 'one two.*\\x1b%[2J'
      assert.truthy(message, said)
      for line in message:gmatch '[^\r\n]+' do assert.is_true(#line <= 40, line) end
      assert.equal(words .. ' \\x1b[2J', (message:gsub('%s+', ' ')))
    end
    repl:leave()
  end)

  it('moonstill generate says what it says in whole words', function()
    local prompts = tools.write(folder .. '/prompts.txt', 'Hi\nthere\n')
    local out = folder .. '/answers.jsonl'
    local run = terminal.open(('%s generate %s --prompts %s -o %s'):format(program, says_abc, prompts, out), 40)
    local text = run:wait ' of them'
    for line in text:gsub('\27%[K', ''):gmatch '[^\r\n]+' do
      assert.is_true(layout.width(line) <= 40 or line:find '^%S+$' ~= nil, line) -- a path is not broken
    end
    run:finish()
  end)
end)

describe('a terminal that can do nothing', function()
  it('gets text alone of chat', function()
    local chat = terminal.open(('TERM=dumb %s chat %s'):format(program, says_abc), 60)
    local text = chat:wait '> '
    chat:keys 'Hi\r'
    text = text .. chat:wait 'abc\r\n'
    chat:keys '/help\r'
    text = text .. chat:wait 'is a /'
    assert.is_nil(text:find(CONTROL), text)
    chat:keys '\4' -- the terminal's own end of input: there is no line editor
    assert.equal(0, chat:finish())
  end)

  it('gets text alone of inspect, data show and a sketch', function()
    local student = ms.smoke.sft(folder .. '/dumb').student
    for _, command in ipairs { 'inspect ' .. student .. ' --weights',
      'data show ' .. tools.quote(folder .. '/dumb/train.jsonl') .. ' n=1 model=' .. student,
      '-e \'print(ms.plot.sketch { series = { { x = { 1, 2 }, y = { 3, 4 } } } })\'', '--help', '--version' } do
      local run = terminal.open(('TERM=dumb %s %s; echo done'):format(program, command), 60)
      local text = run:wait 'done\r\n'
      assert.is_nil(text:find(CONTROL), text)
      run:finish()
    end
  end)
end)
