--- Files: what killed processes left beside a path, locks, hashes.
local ffi = require 'ffi'
local ms = require 'moonstill'
local C = require 'moonstill.C'
local check = require 'moonstill.check'
local json = require 'moonstill.json'
local text = require 'moonstill.text'
local recipe = require 'tests.run_recipe'
local tools = require 'tests.tools'

local folder = tools.folder()
local gone = tonumber((select(2, tools.run 'sh -c "echo \\$\\$"'))) -- a process that has ended

local function names_in(path) return select(2, tools.run('ls -A ' .. path)) end

describe('a save', function()
  -- what is there before, with the numbers of a process that is gone and of one that is not
  local kept = { 'm.1.tmp', 'm.1.old', 'm.GONE.tmpx', 'mm.GONE.tmp', 'm.GONE', 'm.x.tmp', 'm.0.old',
    'm.GONE.tmp.1.tmp' }
  local removed = { 'm.GONE.tmp', 'm.GONE.old', 'm.GONE.tmp.GONE.tmp' }

  for _, how in ipairs { 'model', 'file' } do
    it('removes what a killed one left beside its path, and nothing else: ' .. how, function()
      local here = folder .. '/' .. how
      local model = ms.model.create(recipe.config, 1, { dtype = 'f32' })
      local function save()
        if how == 'model' then model:save(here .. '/m') else json.write(here .. '/m', { 1 }) end
      end
      check(C.ms_dir_make(here))
      save()
      local want = { 'm' }
      for _, list in ipairs { kept, removed } do
        for _, name in ipairs(list) do
          name = name:gsub('GONE', gone)
          check(C.ms_dir_make(here .. '/' .. name))
          tools.write(here .. '/' .. name .. '/half', 'x')
          if list == kept then want[#want + 1] = name end
        end
      end
      save()
      table.sort(want)
      local have = {}
      for name in names_in(here):gmatch '[^\n]+' do have[#have + 1] = name end
      table.sort(have)
      assert.same(want, have)
      model:free()
    end)
  end

  it('goes where a link leads, and not into the place of the link', function()
    local disk, there = tools.folder(), tools.folder() -- as a user who has more room elsewhere
    os.execute(('ln -s %s/model %s/model && ln -s %s/text %s/text'):format(disk, there, disk, there))
    local model = ms.model.create(recipe.config, 1, { dtype = 'f32' })
    for name, save in pairs { model = function(path) model:save(path) end,
      text = function(path) json.write(path, { 1 }) end } do
      local ok, why = pcall(save, there .. '/' .. name)
      assert.is_false(ok)
      assert.truthy(tostring(why):find('a link to nothing', 1, true), tostring(why))
      save(disk .. '/' .. name)
      for _ = 1, 2 do
        assert.equal(0, os.execute(('rm -rf %s/%s/*'):format(disk, name)))
        save(there .. '/' .. name)
        assert.equal(0, os.execute(('test -L %s/%s'):format(there, name)))
      end
    end
    model:free()
    assert.truthy(tools.exists(disk .. '/model/config.json'))
    assert.same({ 1 }, json.read(disk .. '/text'))
  end)

  it('does not put a file in the place of a pipe or a device', function()
    local pipe = folder .. '/pipe'
    tools.run('mkfifo ' .. pipe)
    local ok, why = pcall(json.write, pipe, { 1 })
    assert.is_false(ok)
    assert.truthy(tostring(why):find('pipe: is there and is not a file', 1, true), tostring(why))
    assert.equal(0, (tools.run('test -p ' .. pipe)))
  end)

  it('killed at any moment leaves the old folder or the new one, whole', function()
    local path, of = folder .. '/student', {}
    for seed = 1, 2 do
      local model = ms.model.create(recipe.config, seed, { dtype = 'f32' })
      model:save(path)
      of[tools.read(path .. '/model.safetensors')] = true
      model:free()
    end
    local script = tools.write(folder .. '/save.lua', [[
      local ms, recipe = require 'moonstill', require 'tests.run_recipe'
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
  end)

  it('keeps the only copy of a folder that was being replaced', function()
    local here = folder .. '/only'
    local old = ('%s/m.%d.old'):format(here, gone)
    check(C.ms_dir_make(old))
    local model = ms.model.create(recipe.config, 1, { dtype = 'f32' })
    assert.is_false((pcall(model.save, model, here .. '/m', { carry = here .. '/absent', dtype = 'i8' })))
    assert.equal(2, C.ms_path_kind(old))
    model:free()
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
