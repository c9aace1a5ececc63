-- The script that gets packages, on machines that are made up: what answers it are stand-ins.
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

local function bootstrap(folder, words)
  return tools.run(('PATH=%s/bin:$PATH bash %s %s'):format(place, tools.quote(folder .. '/bootstrap'), words))
end

describe('bootstrap', function()
  it('lists the packages, and knows its commands', function()
    local status, out = bootstrap(clone 'plain', '--help')
    assert.equal(0, status)
    for _, name in ipairs { 'libluajit-5.1-dev LuaJIT', 'lua-busted', 'clang-format' } do
      assert(out:find(name, 1, true), name)
    end
    assert.equal(2, (bootstrap(clone 'plain', 'tset')))
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
  end)
end)
