-- What is known before a run's first step is said there, and nothing is made or changed by then.
local ms = require 'moonstill'
local C = require 'moonstill.C'
local recipe = require 'tests.programs.run_recipe'
local tools = require 'tests.support.tools'

local folder = tools.folder()
local student = ms.model.create(recipe.config, 1, { train = true })
student:save(folder .. '/model')

local function open(cfg, options)
  local all = { output = folder .. '/out', optim = { lr = 0.01 }, max_steps = 2 }
  for key, value in pairs(cfg or {}) do all[key] = value end
  local given = { student = student, data = recipe.data(5), quiet = true }
  for key, value in pairs(options or {}) do given[key] = value end
  return ms.run.open(all, given)
end

local function refused(part, cfg, options) tools.fails(part, open, cfg, options) end

local function listing(path) return select(2, tools.run('find ' .. path .. ' | sort')) end

local real = require 'moonstill.base.paths'.real

describe('a path', function()
  it('is real: absolute, without links, with what is not there as it is', function()
    local base = select(2, tools.run('realpath ' .. folder)):gsub('\n', '')
    os.execute(('ln -sfn model %s/link'):format(folder))
    assert.equal(base .. '/model', real(folder .. '/link'))
    assert.equal(base .. '/model/not/there', real(folder .. '/link/not/there'))
    assert.equal(base .. '/not', real(folder .. '/model/../not'))
    local here = select(2, tools.run 'pwd -P'):gsub('\n', '')
    assert.equal(here .. '/not-there', real 'not-there')
    assert.equal(here .. '/not-there/a', real 'not-there/a')
    assert.equal(here, real '.')
    assert.equal('/', real '/')
    assert.equal('/not-there', real '/not-there')
  end)
end)

describe('an open run', function()
  it('is known by its output until it is closed, or could not be opened', function()
    assert.same({}, ms.run.left_open())
    refused('is no folder', nil, { carry = 'nowhere' })
    assert.same({}, ms.run.left_open())
    local run = open { output = folder .. '/known' }
    assert.same({ folder .. '/known' }, ms.run.left_open())
    run:close()
    assert.same({}, ms.run.left_open())
  end)
end)

describe('a run refuses', function()
  it('an output that is, lies in or holds a model that it reads', function()
    local before = listing(folder .. '/model')
    for _, key in ipairs { 'student', 'teacher' } do
      local input = { [key] = folder .. '/model' }
      local function try(how, output)
        input.output = output
        refused(('output = %s %s %s (%s/model)'):format(output, how, key, folder), input)
      end
      try('is', folder .. '/model')
      try('is', folder .. '/link')
      try('lies in', folder .. '/model/deeper/out')
      try('holds', folder)
    end
    refused('is the student (', { output = folder .. '/model' }, { student = ms.model.open(folder .. '/model') })
    refused('is carry (', { output = folder .. '/model' }, { carry = folder .. '/model' })
    assert.equal(before, listing(folder .. '/model'))
  end)
  it('to write over a file of its data, and not to share a folder with it', function()
    local out = folder .. '/with-data'
    C.ms_dir_make(out .. '/student')
    tools.write(out .. '/metrics.jsonl', '')
    tools.write(out .. '/student/train.jsonl', '')
    tools.write(out .. '/train.jsonl', '')
    refused('would write over data.train', { output = out, data = { train = out .. '/metrics.jsonl' } })
    refused('would write over data.valid', { output = out, data = { valid = { out .. '/student/train.jsonl' } } })
    os.execute(('rm -r %s/student'):format(out))
    open({ output = out, data = { train = out .. '/train.jsonl' } }):close()
  end)
  it('what stands where its student goes', function()
    local out = folder .. '/stands'
    C.ms_dir_make(out .. '/student')
    tools.write(out .. '/student/README.md', 'mine')
    refused("student: not overwritten: it holds 'README.md', which is no part of a model", { output = out })
    assert.equal('mine', tools.read(out .. '/student/README.md'))
    os.execute(('rm -r %s/student'):format(out))
    tools.write(out .. '/student', 'a file')
    refused('student: not overwritten: it is no folder', { output = out })
    os.remove(out .. '/student')
    open({ output = out }):close()
  end)
  it('a folder to carry that is not there', function()
    refused('carry = nowhere is no folder', nil, { carry = 'nowhere' })
  end)
  it('data that the student cannot read, with the row', function()
    local smoke = ms.smoke.sft(folder .. '/smoke')
    local chat = ms.chat.open(smoke.student)
    local data = ms.dataset.open(smoke.data.train, chat, { quiet = true })
    refused('train.jsonl:', { output = folder .. '/ids' }, { data = data })
    refused('but a model has only the ids below 40', { output = folder .. '/ids' }, { data = data })
    local config = ms.model.open(smoke.student):config()
    config.max_position_embeddings = 16
    local short = ms.model.create(config, 1, { train = true })
    refused('max_tokens = 16 drops or cuts such samples', { output = folder .. '/ids' },
      { data = data, student = short })
    assert.is_false(tools.exists(folder .. '/ids/checkpoints/step-00000001/state.json'))
  end)
  it('data of which nothing counts', function()
    local smoke = ms.smoke.sft(folder .. '/weightless')
    local rows = folder .. '/weightless/rows.jsonl'
    local model = ms.model.open(smoke.student, { train = true })
    local function try(lines)
      tools.write(rows, lines)
      local data = ms.dataset.open(rows, ms.chat.open(smoke.student), { quiet = true, weight_key = 'w' })
      return open({ output = folder .. '/weightless/out' }, { data = data, student = model })
    end
    local ok, why = pcall(try, ('{"prompt": "a b", "answer": "c d", "w": 0}\n'):rep(3))
    assert.is_false(ok)
    assert.equal(rows .. ': no token counts for on = "all": all weights are 0 (those of samples, w, and those of '
      .. 'messages)', why)
    try('{"prompt": "a b", "answer": "c d", "w": 0}\n{"prompt": "a b", "answer": "c d", "w": 1}\n'):close()
  end)
  it('a limit of its files\' size', function()
    local how = 'ulimit -f 10; LUA_PATH=%s luajit tests/programs/run_recipe.lua output=%s/limit max_steps=1'
    local status, _, err = tools.run(how:format(tools.quote(package.path), folder))
    assert.equal(1, status)
    -- 10 blocks of 512 bytes, or of 1024; 4560 parameters have two moments of 4 bytes
    assert.truthy(err:find('no file may be larger than .* here %(ulimit %-f%), but a checkpoint has one of 36 KiB'),
      err)
    assert.is_nil(err:find('step 1', 1, true), err)
    assert.equal(0, (tools.run((how:gsub('10', '1000')):format(tools.quote(package.path), folder))))
  end)
  it('a disk without room, before it begins and before a checkpoint is written', function()
    local disk = tools.folder()
    if tools.run(('mount -t tmpfs -o size=64k none %s'):format(disk)) ~= 0 then
      pending 'no right to mount a small disk here'
      return
    end
    finally(function() os.execute('umount ' .. disk) end)
    refused('no room for a checkpoint and the student in ' .. disk .. '/out', { output = disk .. '/out' })
    os.execute(('mount -o remount,size=400k %s'):format(disk))
    local run = open { output = disk .. '/out' }
    for step in run:steps() do
      for batch in step:micro_batches() do student:learn(batch, { ms.ce(1) }) end
      step:update()
    end
    local full = io.open(disk .. '/full', 'wb')
    full:write(('x'):rep(400 * 1024)) -- as much as goes in
    full:close()
    tools.fails('no room for a checkpoint in ' .. disk, run.finish, run)
    run:close()
    assert.equal('', select(2, tools.run(('ls %s/out/checkpoints'):format(disk))))
  end)
end)
