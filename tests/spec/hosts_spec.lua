--- Ranks on several machines, which are namespaces of this one: networks, host names, processes,
--- /tmp and /dev/shm of their own, and a folder that they share.
local json = require 'moonstill.base.json'
local launched = require 'tests.support.launched'
local placed = require 'tests.programs.placed_recipe'
local tools = require 'tests.support.tools'

local RECIPE = 'tests/programs/run_recipe.lua'
local HOSTS = 'tests/programs/hosts'

-- Why there can be no such machines here; nil where there can.
local function missing()
  if launched.missing then return launched.missing end
  local status, _, err = tools.run(('timeout -k 5 20 %s a %s true'):format(HOSTS, tools.folder()))
  if status == 0 then return nil end
  return 'no namespaces here: ' .. (err:match '[^\n]+' or 'unshare fails')
end

describe('ranks of several machines', function()
  local why = missing()
  if why then return it('are started', function() pending(why) end) end

  local folder = tools.folder()
  local file = tools.write(folder .. '/hosts', 'front slots=1\na slots=1\nb slots=2\n')

  -- A line of the shell on the machine `front`, beside which there are a and b.
  local function on_hosts(line)
    local script = tools.write(folder .. '/script', 'export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1\n'
      .. line)
    return tools.run(('timeout -k 5 120 %s "a b" %s bash -m %s'):format(HOSTS, folder, script))
  end

  local function command(...)
    local words = { 'env', launched.environment, launched.program, '-n', 4, '--hostfile', file }
    for _, word in ipairs { ... } do words[#words + 1] = tools.quote(word) end
    return table.concat(words, ' ')
  end

  local function run(...) return on_hosts(command(...)) end

  local function finished(output)
    local status, out, err = run(RECIPE, 'output=' .. output)
    assert.equal(0, status, out .. err)
    return output
  end

  local function same_bytes(a, b)
    assert.is_true(tools.read(a .. '/student/model.safetensors') == tools.read(b .. '/student/model.safetensors'))
  end

  local whole = folder .. '/whole'
  setup(function()
    local status, out, err = launched.run('-n', 4, RECIPE, 'output=' .. whole)
    assert.equal(0, status, out .. err)
  end)

  it('say who is where', function()
    local status, out, err = run 'ranks'
    assert.equal(0, status, err)
    local machines = {}
    for machine in out:gmatch '\n +%d+ +%d+ +%d+ +(%S+) +%d+ +%d+' do machines[#machines + 1] = machine end
    assert.same({ 'front', 'a', 'b', 'b' }, machines, out)
  end)

  it('make a run bit for bit as on one', function() same_bytes(whole, finished(folder .. '/run')) end)

  it('end with the status of what they ran', function()
    local status, _, err = run('-e', 'local w = require "moonstill.base.ranks".world(); if w.rank == 3 then error '
      .. '"its own" end; w:sum { 1 }')
    assert.equal(1, status)
    tools.says('moonstill: rank 3: (command line):1: its own', err)
  end)

  it('all end when one is killed', function()
    local output = folder .. '/killed'
    local status, out, err = on_hosts(('%s; echo "$? $(date +%%s.%%N) $(stat -c %%.Y %s/metrics.jsonl)"'):format(
      command(RECIPE, 'output=' .. output, 'kill_at=7', 'on_rank=3'), output))
    assert.equal(0, status, err)
    local ended, at, last = out:match '^(%d+) (%S+) (%S+)'
    assert.is_true(ended ~= '0' and at - last < 10, out)
  end)

  it('share memory on each, and send messages to others', function()
    local output, models = folder .. '/placed', folder .. '/models'
    tools.run('mkdir -p ' .. models)
    placed.save_models(models)
    local function words(to)
      return 'tests/programs/placed_recipe.lua', 'output=' .. to, 'models=' .. models, 'own_transfer=2',
        'teacher_grid.ranks=2', 'grid.ranks=1,3', 'max_steps=3'
    end
    local status, out, err = run(words(output))
    assert.equal(0, status, out .. err)
    local shared, sent = {}, {}
    for rank = 1, 3 do
      local info = json.read(('%s/transfer-1-%d.json'):format(output, rank))
      shared[rank], sent[rank] = info.shared, 0
      for _, way in ipairs { 'sent', 'received' } do
        for _, bytes in pairs(info[way]) do sent[rank] = sent[rank] + bytes end
      end
    end
    assert.same({ 0, sent[3], sent[3] }, shared) -- rank 1 is on another machine than 2 and 3
    assert.is_true(sent[1] > 0 and sent[3] > 0 and sent[2] == sent[1] + sent[3])
    status, out, err = launched.run('-n', 4, words(output .. '-near'))
    assert.equal(0, status, out .. err)
    same_bytes(output .. '-near', output)
  end)

  it('are saved by Ctrl-C, and the run then goes on, bit for bit', function()
    local output = folder .. '/stopped'
    local status, out, err = on_hosts(('%s & p=$!; while ! test -s %s/metrics.jsonl; do sleep 0.1; done; '
      .. 'kill -INT $p; wait $p'):format(command(RECIPE, 'output=' .. output, 'slow=50'), output))
    assert.equal(130, status, out .. err)
    tools.says('which is saved: the same command goes on from there', err)
    assert.is_nil(err:find('rank %d+: interrupted'), err)
    same_bytes(whole, finished(output))
  end)

  it('need a folder that all of them see', function()
    local status, _, err = on_hosts('mkdir /tmp/mine\n' .. command(RECIPE, 'output=/tmp/mine'))
    assert.equal(1, status)
    tools.says('run.open: rank 3, on b, does not see what rank 0, on front, writes into /tmp/mine: the output must be '
      .. 'a folder that all machines share', err)
  end)

  -- What each rank does, given as Lua code; the errors of all.
  local function waiting(code)
    local status, out, err = on_hosts('export MS_GROUP_TIMEOUT=3 MS_GROUP_CHECK=\n' .. command('-e',
      "local w = require 'moonstill.base.ranks'.world() " .. code):gsub('MS_GROUP_CHECK=1', '-u MS_GROUP_CHECK'))
    return status, out, err
  end

  it('wait for one that works, wherever it is', function()
    local status, out, err = waiting('if w.rank == 2 then local t = os.clock() while os.clock() < t + 5 do end end '
      .. 'print(w:sum { 1 }[1])')
    assert.same({ 0, '4\n' }, { status, out }, err)
  end)

  it('say of one that does nothing what it began last', function()
    local status, _, err = waiting "if w.rank == 2 then require 'ffi'.C.usleep(3e7) end w:sum { 1 }"
    assert.equal(1, status)
    tools.says({ 'nothing came for 3 s (MS_GROUP_TIMEOUT): rank 0 waits in all_reduce (sum) of 1 f64, call ',
      'rank 2 does something else since all_gather' }, err)
  end)

  it('say what all wait in where none can go on', function()
    local status, _, err = waiting 'w:from(w.rank == 2 and 3 or 2, 1)'
    assert.equal(1, status)
    tools.says({ 'no rank goes on, since every rank waits for another: rank 0 waits in',
      'rank 2 waits in broadcast of 4 u8 from rank 3' }, err)
  end)
end)
