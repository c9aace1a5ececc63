--- Files: what killed processes left beside a path, locks, hashes.
local ffi = require 'ffi'
local ms = require 'moonstill'
local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local json = require 'moonstill.base.json'
local text = require 'moonstill.base.text'
local recipe = require 'tests.programs.run_recipe'
local tools = require 'tests.support.tools'

local folder = tools.folder()

ffi.cdef [[
  int getpid(void);
  int fileno(void *file);
  int flock(int fd, int how);
]]
local LOCK_EX = 2

local function names_in(path)
  local list = {}
  for name in select(2, tools.run('ls -A ' .. path)):gmatch '[^\n]+' do list[#list + 1] = name end
  return list
end

-- What a process that was killed leaves of a write to `target`: a folder with a marker. Everything in
-- `given` is other than it would be. Returns its path.
local function leave(here, digits, target, given)
  given = given or {}
  local path = ('%s/.moonstill-%s'):format(here, digits)
  check(C.ms_dir_make(path))
  local marker = ("moonstill's temporary %s%s\nof process 77 on a machine, for\n%s")
    :format(given.digits or digits, given.unlocked and ', without a lock' or '', target)
  if not given.unmarked then tools.write(path .. '/owner', given.text or marker) end
  if not given.empty then
    check(C.ms_dir_make(path .. '/new'))
    tools.write(path .. '/new/half', 'x')
  end
  return path
end

describe('a save', function()
  local model = ms.model.create(recipe.config, 1, { dtype = 'f32' })
  local saves = { model = function(path) model:save(path) end,
    file = function(path) json.write(path, { 1 }) end }
  local function digits(n) return ('%032x'):format(n) end

  for how, save in pairs(saves) do
    it('removes what a killed one left in the folder, and nothing else: ' .. how, function()
      local here = folder .. '/' .. how
      check(C.ms_dir_make(here))
      save(here .. '/m')
      local want = { 'm' }
      local function kept(path) want[#want + 1] = path:match '[^/]+$' return path end
      -- ours, of processes that are gone: wherever in their work they were
      leave(here, digits(1), 'm')
      leave(here, digits(2), 'other\nname')
      leave(here, digits(3), 'm', { unmarked = true, empty = true })
      leave(here, digits(4), 'm', { text = '', empty = true })
      leave(here, digits(5), 'm', { empty = true })
      check(C.ms_dir_make(leave(here, digits(6), 'm') .. '/old'))
      -- of one that lives: its marker is locked
      local alive = assert(io.open(kept(leave(here, digits(7), 'm')) .. '/owner'))
      assert.equal(0, ffi.C.flock(ffi.C.fileno(alive), LOCK_EX))
      -- what there is no proof for
      kept(leave(here, digits(8), 'm', { unmarked = true }))
      kept(leave(here, digits(9), 'm', { digits = digits(1) })) -- a copy under another name
      kept(leave(here, digits(10), 'm', { unlocked = true }))
      kept(leave(here, digits(11), 'm', { text = 'mine' }))
      kept(leave(here, digits(12), ''))
      kept(leave(here, digits(13):sub(2), 'm'))
      kept(leave(here, digits(14) .. '0', 'm'))
      kept(leave(here, digits(15):gsub('f$', 'F'), 'm'))
      tools.run(('cd %s && mv owner real && ln -s real owner'):format(kept(leave(here, digits(16), 'm'))))
      tools.write(kept(leave(here, digits(17), 'm')) .. '/mine', 'x') -- somebody's own, put into it
      check(C.ms_dir_make(kept(leave(here, digits(18), 'gone')) .. '/old')) -- the only copy of something
      leave(folder, digits(19), 'm')
      tools.run(('ln -s ../.moonstill-%s %s'):format(digits(19), kept(here .. '/.moonstill-' .. digits(19))))
      -- names that look like somebody's temporaries and backups
      for _, name in ipairs { 'm.1.tmp', 'm.2024.old', 'm.old', 'm.2147483646.tmp', 'm.2147483646.old', 'm.0.old' } do
        check(C.ms_dir_make(kept(here .. '/' .. name)))
        tools.write(here .. '/' .. name .. '/half', 'x')
      end
      save(here .. '/m')
      alive:close()
      table.sort(want)
      local have = names_in(here)
      table.sort(have)
      assert.same(want, have)
      assert.truthy(tools.exists(folder .. '/.moonstill-' .. digits(19) .. '/new/half'))
      assert.truthy(tools.exists(here .. '/.moonstill-' .. digits(17) .. '/mine'))
      for _, n in ipairs { 7, 8, 9, 10, 11, 16, 18 } do
        assert.truthy(tools.exists(('%s/.moonstill-%s/new/half'):format(here, digits(n))), n)
      end
    end)
  end

  it('follows no link that was planted for its temporary', function()
    local here = tools.folder()
    local mine = tools.write(folder .. '/mine', 'mine')
    for name, save in pairs(saves) do
      for _, end_ in ipairs { 'tmp', 'old' } do
        tools.run(('ln -s %s %s/%s.%d.%s'):format(mine, here, name, ffi.C.getpid(), end_))
      end
      for _ = 1, 2 do save(here .. '/' .. name) end
    end
    assert.equal('mine', tools.read(mine))
    assert.equal(6, #names_in(here))
  end)

  it('goes where a link leads, and not into the place of the link', function()
    local disk, there = tools.folder(), tools.folder() -- as a user who has more room elsewhere
    os.execute(('ln -s %s/model %s/model && ln -s %s/file %s/file'):format(disk, there, disk, there))
    for name, save in pairs(saves) do
      tools.fails('a link to nothing', save, there .. '/' .. name)
      save(disk .. '/' .. name)
      for _ = 1, 2 do
        assert.equal(0, os.execute(('rm -rf %s/%s/*'):format(disk, name)))
        save(there .. '/' .. name)
        assert.equal(0, os.execute(('test -L %s/%s'):format(there, name)))
      end
    end
    assert.truthy(tools.exists(disk .. '/model/config.json'))
    assert.same({ 1 }, json.read(disk .. '/file'))
  end)

  it('does not put a file in the place of a pipe or a device', function()
    local pipe = folder .. '/pipe'
    tools.run('mkfifo ' .. pipe)
    tools.fails('pipe: is there and is not a file', json.write, pipe, { 1 })
    assert.equal(0, (tools.run('test -p ' .. pipe)))
  end)

  it('killed at any moment leaves the old folder or the new one, whole', function()
    local path, of = folder .. '/student', {}
    for seed = 1, 2 do
      local m = ms.model.create(recipe.config, seed, { dtype = 'f32' })
      m:save(path)
      of[tools.read(path .. '/model.safetensors')] = true
      m:free()
    end
    local script = tools.write(folder .. '/save.lua', [[
      local ms, recipe = require 'moonstill', require 'tests.programs.run_recipe'
      while true do
        for seed = 1, 2 do ms.model.create(recipe.config, seed, { dtype = 'f32' }):save(arg[1]) end
      end]])
    for i = 1, 5 do
      local status = tools.run(('LUA_PATH=%s timeout -s KILL 0.%d luajit %s %s'):format(tools.quote(package.path),
        20 + 7 * i, script, path))
      assert.equal(137, status)
      assert.is_true(of[tools.read(path .. '/model.safetensors')])
      ms.scope(function(own) own(ms.model.open(path)) end)
    end
    model:save(path)
    for _, name in ipairs(names_in(folder)) do assert.is_nil(name:find '^%.moonstill') end
  end)
end)

describe('a lock', function()
  it('has one holder, also in one process', function()
    local path = folder .. '/lock'
    local first = assert(ms.lock.open(path))
    local second, process = ms.lock.open(path)
    assert.is_nil(second)
    assert.equal(tonumber(tools.read(path)), process)
    first:close()
    first:close()
    second = assert(ms.lock.open(path))
    second = nil -- luacheck: ignore (forgotten, as after an error)
    assert(ms.lock.open(path)):close()
    assert.has_error(function() ms.lock.open(folder .. '/absent/lock') end)
  end)

  it('leaves alone what is no lock: a link, a text, a folder, a pipe', function()
    local path, mine = folder .. '/nolock', tools.write(folder .. '/mine', '7\n')
    local function refused(part)
      tools.fails('nolock: ' .. part, ms.lock.open, path)
      tools.run('rm -r ' .. path)
    end
    tools.run(('ln -s %s %s'):format(mine, path))
    refused 'cannot open: it is a link'
    assert.equal('7\n', tools.read(mine))
    tools.run(('ln -s %s %s'):format(folder .. '/nothing', path))
    refused 'cannot open: it is a link'
    assert.is_false(tools.exists(folder .. '/nothing'))
    for _, mine_too in ipairs { 'my notes', '77 of mine', ('7'):rep(20) } do
      tools.write(path, mine_too)
      tools.fails(path, ms.lock.open, path)
      assert.equal(mine_too, tools.read(path))
      refused 'is there and is no lock'
    end
    check(C.ms_dir_make(path))
    refused 'cannot open'
    tools.run('mkfifo ' .. path)
    refused 'is there and is no lock'
  end)

  it('notices when its file goes, and takes it again unless another has', function()
    local path = folder .. '/kept'
    local lock = assert(ms.lock.open(path))
    assert.equal('kept', lock:keep())
    os.remove(path)
    assert.equal('anew', lock:keep())
    assert.equal('kept', lock:keep())
    assert.is_nil((ms.lock.open(path)))
    os.rename(path, path .. '.moved')
    tools.write(path, '') -- as somebody who wants it to be there
    assert.equal('anew', lock:keep())
    assert.is_nil((ms.lock.open(path)))
    os.remove(path)
    local other = assert(ms.lock.open(path))
    for _ = 1, 2 do
      local state, process = lock:keep()
      assert.equal('lost', state)
      assert.equal(ffi.C.getpid(), process)
    end
    other:close()
    assert.equal('anew', lock:keep())
    lock:close()
    assert.has_error(function() lock:keep() end, 'lock: used after close')
  end)
end)

describe('a hash', function()
  it('of memory is that of a file with the same bytes', function()
    local out, data = ffi.new 'char *[1]', ('moonstill'):rep(1000)
    check(C.ms_file_hash(tools.write(folder .. '/data', data), out))
    local of_file = text(out[0])
    check(C.ms_hash(data, #data, out))
    assert.equal(of_file, text(out[0]))
    check(C.ms_hash(data, #data - 1, out))
    assert.not_equal(of_file, text(out[0]))
  end)
end)
