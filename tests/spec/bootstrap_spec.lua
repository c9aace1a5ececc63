-- The script that gets packages, on machines that are made up: what answers it are stand-ins.
local terminal = require 'tests.support.terminal'
local tools = require 'tests.support.tools'

local place = tools.folder()

-- A folder with a copy of the script; `bin` holds programs that are found before the machine's.
local function clone(name)
  local folder = place .. '/' .. name
  assert(os.execute('mkdir -p ' .. tools.quote(folder)) == 0)
  tools.write(folder .. '/bootstrap', tools.read 'bootstrap')
  return folder
end

local function program(name, text)
  os.execute('mkdir -p ' .. place .. '/bin')
  tools.write(place .. '/bin/' .. name, '#!/bin/sh\n' .. text .. '\n')
  os.execute('chmod +x ' .. place .. '/bin/' .. name)
end

local function command(folder, words)
  return ('unset MS_CMAKE_ARGS MS_JOBS; PATH=%s/bin:$PATH bash %s %s'):format(place,
    tools.quote(folder .. '/bootstrap'), words)
end

local function bootstrap(folder, words) return tools.run(command(folder, words)) end

-- What comes on a terminal of so many columns.
local function at_terminal(folder, words, columns, term)
  local session = terminal.open(('TERM=%s; %s; echo "status $?"'):format(term, command(folder, words)), columns)
  local text = session:wait 'status ' .. session:wait '\n'
  session:finish()
  return text
end

-- A folder that has all packages and is configured.
local function ready(name)
  local folder = clone(name)
  os.execute('mkdir -p ' .. folder .. '/.prefix ' .. folder .. '/build')
  local names = {}
  for line in tools.read('bootstrap'):gmatch '\n    %l+ *: (%S+)' do names[#names + 1] = line end
  assert(#names > 10)
  tools.write(folder .. '/.prefix/packages', table.concat(names, '\n') .. '\n')
  tools.write(folder .. '/build/build.ninja', '')
  return folder
end

describe('bootstrap', function()
  it('lists the packages, and knows its commands', function()
    local status, out = bootstrap(clone 'plain', '--help')
    assert.equal(0, status)
    for _, name in ipairs { 'libluajit-5.1-dev LuaJIT', 'lua-busted', 'clang-format' } do
      assert(out:find(name, 1, true), name)
    end
    for line in out:gmatch '[^\n]+' do assert.is_true(#line <= 80, line) end
    assert.same({ 0, out, '' }, { bootstrap(clone 'plain', 'build --help') })
  end)

  it('asks which word was meant', function()
    local folder = clone 'plain'
    os.execute('mkdir -p ' .. folder .. '/recipes')
    tools.write(folder .. '/recipes/distill.lua', '')
    for words, want in pairs { tset = 'no command tset; did you mean test?',
      quikstart = 'did you mean quickstart?', ['--hlep'] = 'did you mean help?',
      xyzzy = 'no command xyzzy; --help lists', ['build relase'] = 'did you mean release?',
      ['install bulid'] = 'did you mean build?', ['run distil'] = 'did you mean recipes/distill.lua?',
      run = 'which recipe? recipes/distill.lua' } do
      local status, out, err = bootstrap(folder, words)
      assert.same({ 2, '' }, { status, out })
      tools.says(want, err)
    end
  end)

  it('shows how far compiling is, and errors in full', function()
    local folder = ready 'ready'
    program('ninja', [[
      printf '[0/2] Re-checking globs\n[1/12] one\n[2/12] two\n'
      printf 'FAILED: x.o\nx.c:3: error: 100%% wrong\n[3/12] three\n'; exit 1]])
    local status, out, err = bootstrap(folder, 'build')
    assert.same({ 1, '' }, { status, out })
    assert.equal('bootstrap: compiling into build/: 1 of 12\nFAILED: x.o\nx.c:3: error: 100% wrong\n'
      .. 'bootstrap: the build failed\n', err)
    local seen = at_terminal(folder, 'build', 39, 'xterm') -- no line is longer than 38
    tools.says({ '\rbootstrap: compiling into build/: 1 of\27[K\r',
      '\r\27[KFAILED: x.o\r\nx.c:3: error: 100% wrong\r\n', '\r\27[Kbootstrap: the build failed', 'status 1' }, seen)
    seen = at_terminal(folder, 'build', 39, 'dumb')
    assert.equal(err .. 'status 1\n', (seen:gsub('\r\n', '\n')))
    program('ninja', "echo '[0/2] Re-checking globs'; echo 'ninja: no work to do.'")
    assert.same({ 0, '', '' }, { bootstrap(folder, 'build') })
  end)

  it('shows how far installing is', function()
    program('id', 'echo 0')
    program('dpkg-query', ':')
    program('apt-get', [[
      case "$*" in *-s*) exit 0;; esac
      echo 'Reading package lists'; echo 'pmstatus:libyaml-dev:40.5:Unpacking libyaml-dev' >&3]])
    program('cmake', 'echo "CMake Error: none here"; exit 1')
    local status, out, err = bootstrap(clone 'bare', 'build')
    assert.same({ 1, '' }, { status, out })
    tools.says({ 'libjansson-dev     JSON\n', 'bootstrap: installing, 40 %: Unpacking libyaml-dev\n',
      'CMake Error: none here\nbootstrap: CMake failed' }, err)
    assert.falsy(err:find 'Reading' or err:find '[\r\27]')
  end)

  it('without root refuses a path with blanks before it fetches anything', function()
    program('id', 'echo 1000')
    program('dpkg-query', ':')
    program('apt-get', 'echo asked >>' .. place .. '/asked; exit 1')
    local status, _, err = bootstrap(clone 'a b', 'build')
    assert.equal(1, status)
    assert(err:find('its name has blanks', 1, true), err)
    assert.is_false(tools.exists(place .. '/asked'))
    assert.is_false(tools.exists(place .. '/a b/.prefix'))
    status, _, err = bootstrap(clone 'plain', 'build') -- there it tries
    assert.equal(1, status)
    assert.is_true(tools.exists(place .. '/asked'))
    assert(err:find('apt-get update failed', 1, true), err)
    for line in err:gmatch '[^\n]+' do assert.is_true(#line <= 80, line) end
    local lines = err:match 'could run instead:\n(.-)\nbootstrap':gsub(' *\\\n *', ' ')
    assert.equal('  apt-get install --no-install-recommends gcc libc6-dev cmake', lines:sub(1, 61))
  end)
end)
