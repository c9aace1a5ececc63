--- Ranks that are launched together: what `moonstill -n` starts, how it ends, and what a run of
--- several ranks makes beside that of one.
local json = require 'moonstill.base.json'
local launched = require 'tests.support.launched'
local tools = require 'tests.support.tools'

local program = tools.program()
local missing, environment, run = launched.missing, launched.environment, launched.run

local RECIPE = 'tests/programs/run_recipe.lua'

local function finished(ranks, output, ...)
  local status, out, err = run('-n', ranks, RECIPE, 'output=' .. output, ...)
  assert.equal(0, status, out .. err)
  return output, err
end

local function lines_of(output)
  local list = {}
  for _, entry in json.lines(output .. '/metrics.jsonl') do list[#list + 1] = entry end
  return list
end

-- The numbers of a file of weights.
local function weights_of(path)
  local bytes = tools.read(path)
  local size = 0
  for i = 8, 1, -1 do size = size * 256 + bytes:byte(i) end
  local ffi = require 'ffi'
  local n = (#bytes - 8 - size) / 4
  local values = ffi.new('float[?]', n)
  ffi.copy(values, bytes:sub(9 + size), 4 * n)
  return values, n
end

local function largest_difference(a, b)
  local x, n = weights_of(a .. '/student/model.safetensors')
  local y, m = weights_of(b .. '/student/model.safetensors')
  assert.equal(n, m)
  local most, size = 0, 0
  for i = 0, n - 1 do
    most, size = math.max(most, math.abs(x[i] - y[i])), math.max(size, math.abs(x[i]))
  end
  return most / size
end

local function same_bytes(a, b)
  local status, out, err = tools.run(('cmp %s/student/model.safetensors %s/student/model.safetensors'):format(a, b))
  assert.equal(0, status, out .. err)
end

describe('ranks that are launched together', function()
  if missing then return it('are started', function() pending(missing) end) end

  local folder = tools.folder()

  it('know their places, and the first one prints', function()
    local status, text, err = run('-n', 3, 'ranks')
    assert.equal(0, status, err)
    local processes = {}
    for rank, dp, tp, process in text:gmatch '(%d+) +(%d+) +(%d+) +%S+ +(%d+) +%d+ *\n' do
      assert.same({ #processes, #processes, 0 }, { tonumber(rank), tonumber(dp), tonumber(tp) })
      processes[#processes + 1] = process
    end
    assert.equal(3, #processes, text)
    assert.is_true(processes[1] ~= processes[2] and processes[2] ~= processes[3])
    status, text, err = run('-n', 2, '-e', 'print "once"; io.stderr:write "and\\n"')
    assert.same({ 0, 'once\n', 'and\n' }, { status, text, err })
  end)

  it('end with the status of what they ran', function()
    assert.equal(3, (run('-n', 2, '-e', 'os.exit(3)')))
    local status, _, err = run('-n', 2, '-e', 'ms.nope()')
    assert.equal(1, status)
    tools.says("moonstill has no 'nope'", err)
    assert.is_nil(err:find('rank 1', 1, true), err)
    status, _, err = run('-n', 2, 'generate', 'nowhere')
    assert.equal(2, status)
    tools.says('-n: moonstill generate works in one process: without -n', err)
    for _, wrong in ipairs { {}, { 'two' }, { '0' }, { '1.5' }, { '2' }, { '2', '--logs' } } do
      assert.equal(2, (run('-n', unpack(wrong))))
    end
  end)

  it('all end when one fails, which is said', function()
    local only = 'local r = require "moonstill.base.ranks".world(); if r.rank == 2 then error "its own" end; r:sum{1}'
    local since = os.time()
    local status, _, err = run('-n', 3, '-e', only)
    assert.equal(1, status)
    tools.says('moonstill: rank 2: (command line):1: its own', err)
    assert.is_true(os.time() - since < 10)
  end)

  it('are given what the others would print as files', function()
    local status, out, err = run('-n', 2, '--logs', folder .. '/logs', '-e', 'print "mine"')
    assert.same({ 0, 'mine\n', '' }, { status, out, err })
    assert.equal('mine\n', tools.read(folder .. '/logs/rank-1.log'))
  end)

  it('hand their input to the first one', function()
    local code = 'print(io.read "*a")'
    local words = { environment, program, '-n', 2, '-e', tools.quote(code) }
    local status, out, err = tools.run('printf "one\\ntwo" | timeout -k 5 60 env ' .. table.concat(words, ' '))
    assert.same({ 0, 'one\ntwo\n', '' }, { status, out, err })
  end)

  -- That they may not read each other's memory is what Open MPI complains of where it is not told.
  it('speak where they may not read each other\'s memory', function()
    if require 'ffi'.arch ~= 'x64' then return pending 'the filter is for x86-64' end
    local code = 'local w = require "moonstill.base.ranks".world() print(#w:from(1, ("x"):rep(4e6)))'
    local words = { environment, 'luajit tests/programs/deny.lua', program, '-n', 2, '-e', tools.quote(code) }
    local status, out, err = tools.run('timeout 60 env ' .. table.concat(words, ' '))
    assert.same({ 0, '4000000\n', '' }, { status, out, err })
  end)

  it('get their share of the cores from mpirun, unless it was told to bind them', function()
    local code = 'os.execute("grep Cpus_allowed_list /proc/self/status"); print(require "moonstill.C".ms_threads_get())'
    local mpirun = 'env -u OMP_NUM_THREADS OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 60 '
      .. 'mpirun -n 1 '
    local _, all = tools.run 'grep Cpus_allowed_list /proc/self/status; nproc'
    local _, out, err = tools.run(mpirun .. program .. ' -e ' .. tools.quote(code))
    assert.equal(all, out, err)
    _, out, err = tools.run(mpirun .. '--bind-to core ' .. program .. ' -e ' .. tools.quote(code))
    assert.equal('1', out:match '\n(%d+)\n', err)
  end)

  it('fail alike where the first one fails to write', function()
    local code = [[
      local ranks = require 'moonstill.base.ranks'.world()
      local ok, why = pcall(ranks.write, ranks, function() error('no room', 0) end)
      assert(not ok and tostring(why) == 'no room')
      assert(ranks:write(function() return ranks:write(function() return 7 end) end) == 7)
      assert(ranks:from(1, ranks.rank) == 1)
      assert(ranks:same 'x' and not ranks:same(ranks.rank))]]
    local status, _, err = run('-n', 2, '-e', code)
    assert.equal(0, status, err)
  end)
end)

describe('a run of several ranks', function()
  if missing then return it('is that of one', function() pending(missing) end) end

  local folder = tools.folder()
  local one = folder .. '/one'
  setup(function()
    local status, out, err = run(RECIPE, 'output=' .. one)
    assert.equal(0, status, out .. err)
  end)

  -- Sums of f32 differ in their order alone: losses to 1e-6 at first; AdamW carries it on.
  for ranks = 2, 3 do
    it('is that of one, with ' .. ranks, function()
      local many = finished(ranks, folder .. '/many-' .. ranks)
      local a, b = lines_of(one), lines_of(many)
      assert.equal(#a, #b)
      for i, line in ipairs(a) do
        assert.equal(line.step, b[i].step)
        assert.equal(line.tokens, b[i].tokens)
        assert.is_true(math.abs(line.loss - b[i].loss) <= (i == 1 and 1e-6 or 1e-4) * math.abs(line.loss),
          ('line %d: %.9g, %.9g'):format(i, line.loss, b[i].loss))
      end
      assert.is_true(math.abs(a[1].grad_norm - b[1].grad_norm) <= 1e-5 * a[1].grad_norm)
      assert.is_true(largest_difference(one, many) < 1e-3)
    end)
  end

  it('gives the same bits where ranks share the optimizer\'s memory out, and goes on the other way', function()
    local all, part = finished(3, folder .. '/all'), folder .. '/part'
    finished(3, part, 'optim.shard=optimizer')
    same_bytes(all, part)
    local output = folder .. '/turned'
    local status = run('-n', 3, RECIPE, 'output=' .. output, 'optim.shard=optimizer', 'kill_at=9')
    assert.is_true(status ~= 0)
    finished(3, output)
    same_bytes(all, output)
  end)

  it('goes on with another number, to the same end', function()
    local output = folder .. '/changed'
    local status = run('-n', 2, RECIPE, 'output=' .. output, 'kill_at=9')
    assert.is_true(status ~= 0)
    finished(3, output)
    assert.is_true(largest_difference(one, output) < 1e-3)
  end)

  it('goes on from any layout in any other: parts are shared out otherwise, and were saved by others', function()
    local output = folder .. '/moved'
    local steps = { { 2, 'optimizer', 6 }, { 3, 'optimizer', 10 }, { 1, 'none' } }
    for _, at in ipairs(steps) do
      local words = { '-n', at[1], RECIPE, 'output=' .. output, 'optim.shard=' .. at[2],
        at[3] and 'kill_at=' .. at[3] or nil }
      local status, _, err = run(unpack(words))
      assert.equal(at[3] == nil, status == 0, err)
      if not at[3] then tools.says('resumed after step 8', err) end
    end
    assert.is_true(largest_difference(one, output) < 1e-3)
  end)

  it('keeps what it has when a rank may write no more, and all say why', function()
    local output = folder .. '/full'
    local command = ("trap '' XFSZ; %s timeout -k 5 120 %s -n 2 %s output=%s kill_at=6"):format(environment, program,
      RECIPE, output)
    tools.run(command)
    local kept = select(2, tools.run(('cat %s/checkpoints/step-00000004/* | cksum'):format(output)))
    local limited = folder .. '/limited' -- the second rank may write files of 1 KB only
    tools.write(limited, '#!/bin/bash\ntrap "" XFSZ\ntest "$OMPI_COMM_WORLD_RANK" = 1 && ulimit -f 1\nexec "$@"\n')
    tools.run('chmod +x ' .. limited)
    local status, out, err = tools.run(('%s OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout -k 5 120 '
      .. '$(command -v orterun || command -v mpirun) --oversubscribe -q -np 2 %s %s %s output=%s'):format(environment,
      limited, program, RECIPE, output))
    assert.is_true(status ~= 0)
    tools.says('File too large', err .. out)
    tools.says('rank 1', err .. out)
    assert.equal(kept, select(2, tools.run(('cat %s/checkpoints/step-00000004/* | cksum'):format(output))))
    assert.equal('step-00000004\n', select(2, tools.run(('ls -A %s/checkpoints'):format(output))))
    finished(2, output)
    same_bytes(finished(2, folder .. '/unlimited'), output)
  end)

  it('saves while it goes on, and is the same run: killed after a step, it has the checkpoint before', function()
    local output, plain = folder .. '/aside', folder .. '/waiting'
    local status, _, err = run('-n', 2, RECIPE, 'output=' .. output, 'checkpoint.aside=true', 'kill_at=10')
    assert.is_true(status ~= 0)
    assert.equal('step-00000004\nstep-00000008\n', select(2, tools.run('ls ' .. output .. '/checkpoints')), err)
    _, err = finished(2, output, 'checkpoint.aside=true')
    tools.says('resumed after step 8', err)
    same_bytes(finished(2, plain), output)
    local files = 'cd %s && find . -type f | LC_ALL=C sort'
    assert.equal(select(2, tools.run(files:format(plain))), select(2, tools.run(files:format(output))))
  end)

  it('ends when one rank is killed, and then goes on, bit for bit', function()
    local output, since = folder .. '/killed', os.time()
    local whole = finished(2, folder .. '/whole')
    local status = run('-n', 2, RECIPE, 'output=' .. output, 'kill_at=7', 'on_rank=1')
    assert.is_true(status ~= 0 and os.time() - since < 20)
    finished(2, output)
    same_bytes(whole, output)
  end)

  it('says how each rank goes where that is asked for', function()
    local output = folder .. '/logged'
    local _, err = finished(3, output, 'log=all')
    tools.says('log: ranks 1 to 2 say how they go in ' .. output .. '/logs/rank-N.log', err)
    for rank = 1, 2 do
      local log = tools.read(('%s/logs/rank-%d.log'):format(output, rank))
      tools.says({ ('rank %d of 3, on '):format(rank), '\nstep 1/', 'the student is saved' }, log)
    end
    assert.is_false(tools.exists(output .. '/logs/rank-0.log'))
    same_bytes(one, finished(1, folder .. '/alone', 'log=all'))
    assert.is_false(tools.exists(folder .. '/alone/logs'))
    local status
    status, _, err = run('-n', 2, RECIPE, 'output=' .. output, 'resume=false', 'log=all', 'fail_at=3', 'on_rank=1')
    assert.equal(1, status)
    tools.says('moonstill: rank 1: ', err)
    tools.says('moonstill: tests/programs/run_recipe.lua', tools.read(output .. '/logs/rank-1.log'))
  end)

  it('is saved by Ctrl-C, and then goes on, bit for bit', function()
    local output = folder .. '/stopped'
    local whole = finished(2, folder .. '/undisturbed')
    local command = ('%s %s -n 2 %s output=%s slow=50 >/dev/null 2>%s/errors & p=$!; while ! test -s '
      .. '%s/metrics.jsonl; do sleep 0.1; done; kill -INT $p; wait $p; echo $?'):format(environment, program, RECIPE,
      output, folder, output)
    -- a shell's jobs in the background ignore Ctrl-C unless it controls them
    local _, out = tools.run('bash -mc ' .. tools.quote(command))
    local errors = tools.read(folder .. '/errors')
    assert.equal('130\n', out, errors)
    tools.says('which is saved: the same command goes on from there', errors)
    finished(2, output)
    same_bytes(whole, output)
  end)
end)
