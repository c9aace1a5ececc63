--- Kills a run, or lets a system call fail, at every call that touches its output folder; tests/crash
--- says how it is called.

local json = require 'moonstill.base.json'
local tools = require 'tests.support.tools'

-- What is disturbed, and the errors that such a call gives in the world.
local CALLS = {
  { 'openat', 'EIO', 'ENOSPC', 'EMFILE' }, { 'write', 'EIO', 'ENOSPC', 'EINTR' },
  { 'pwrite64', 'EIO' }, { 'ftruncate', 'EIO' }, { 'fsync', 'EIO', 'EINVAL' }, { 'close', 'EIO' },
  { 'rename', 'EIO', 'ENOSPC' }, { 'renameat2', 'EIO', 'EINVAL' }, { 'mkdir', 'EIO', 'ENOSPC' },
  { 'unlink', 'EIO' }, { 'unlinkat', 'EIO', 'EACCES' }, { 'rmdir', 'EIO' },
  { 'flock', 'EINTR', 'ENOLCK', 'EOPNOTSUPP' }, { 'read', 'EIO', 'EINTR' }, { 'pread64', 'EIO' },
  { 'newfstatat', 'EIO', 'EACCES' }, { 'getdents64', 'EIO' }, { 'mmap', 'ENOMEM' },
}
local FROM, TO = 4, 8 -- the checkpoint that the run goes on from, and its end

local function say(...) io.write(string.format(...), '\n') io.flush() end

local function fail(...)
  io.stderr:write('crash: ', string.format(...), '\n')
  os.exit(2)
end

local here = tools.folder()
local out = here .. '/out'

local function shell(command, ...)
  local status, text, err = tools.run(command:format(...))
  if status ~= 0 then fail('%s: %s%s', command:format(...), text, err) end
  return text
end

-- The run, in a fresh process below `wrapper`; its status and what it said.
local function run(steps, wrapper)
  local status, _, err = tools.run(('%s luajit tests/programs/run_recipe.lua output=%s max_steps=%d '
    .. 'checkpoint.every=2'):format(wrapper or '', out, steps))
  return status, err
end

-- What a run gives, without what a clock decides.
local function result()
  local lines = {}
  local ok, why = pcall(function()
    for _, entry in json.lines(out .. '/metrics.jsonl') do
      entry.seconds, entry.tokens_per_second = nil, nil
      lines[#lines + 1] = json.encode(entry)
    end
  end)
  if not ok then return why end
  lines[#lines + 1] = select(2, tools.run(('cd %s && cksum student/* checkpoints/step-*%d/*.safetensors '
    .. '&& ls -A . checkpoints'):format(out, TO)))
  return table.concat(lines, '\n')
end

local function student() return (select(2, tools.run(('cd %s/student && cksum *'):format(out)))) end

-- What somebody else put there.
local MINE = { 'checkpoints/step-00000002.best/model.safetensors', 'checkpoints/step-00000001/notes', 'student.old/a',
  'student.77.tmp', 'mine/.moonstill-owner' }
local function others() return (select(2, tools.run(('cd %s && cat %s'):format(out, table.concat(MINE, ' '))))) end

local function prepare()
  if run(FROM) ~= 0 then fail 'the run fails by itself' end
  for _, name in ipairs(MINE) do
    shell('mkdir -p $(dirname %s/%s)', out, name)
    tools.write(out .. '/' .. name, name)
  end
  shell('mv %s %s/before', out, here)
end

local function fresh()
  shell('rm -rf %s %s.* && cp -a %s/before %s', out, out, here, out)
end

-- Which calls of a kind, counted from 1, touch the output folder.
local function find_calls(name)
  local log, list, n = here .. '/log', {}, 0
  fresh()
  local status, err = run(TO, ('strace -qq -y -s 500 -o %s -e "trace=?%s"'):format(log, name))
  if status ~= 0 then fail('the run fails under strace: %s', err) end
  for line in io.lines(log) do
    if line:find('^' .. name .. '%(') then
      n = n + 1
      if line:find(out, 1, true) then list[#list + 1] = n end
    end
  end
  return list
end

local whole, old_student, new_student -- as they are undisturbed

-- What is wrong with a run that ended with `status` and `said`, and with what it left; nil for nothing.
local function wrong(killed, status, said)
  if killed and status ~= 137 then return ('was not killed: status %d'):format(status) end
  if not killed and (status > 128 or status ~= 0 and not said:find '%S') then
    return ('ended with status %d, saying: %s'):format(status, said)
  end
  local now = student()
  if now ~= old_student and now ~= new_student then return 'the student is neither the old nor the new one' end
  if others() ~= table.concat(MINE) then return 'what is not its own has changed' end
  if said:find('what was there is now ' .. out .. '/student.old.1', 1, true) then -- not removed unseen
    shell('rm -r %s/student.old.1', out)
  end
  if not killed and status == 0 and result() == whole then return nil, 'unharmed' end
  local again, why = run(TO)
  if again ~= 0 then return 'the same command fails afterwards: ' .. why end
  local step = why:find('finished already', 1, true) and TO
    or tonumber(why:match 'resumed after step (%d+)') or 0
  if step < FROM then return 'a checkpoint was lost: ' .. why end
  if result() ~= whole then
    tools.write(here .. '/a', whole)
    tools.write(here .. '/b', result())
    return 'the result is another: ' .. select(2, tools.run(('diff %s/a %s/b'):format(here, here))) .. said
  end
  if others() ~= table.concat(MINE) then return 'what is not its own has changed afterwards' end
  return nil, killed and 'killed' or status == 0 and 'mended' or 'refused'
end

local function disturb(name, how, n)
  fresh()
  local inject = how == 'KILL' and 'signal=KILL' or 'error=' .. how
  local status, said = run(TO, ('strace -qq -o /dev/null -e "trace=%s" -e "inject=%s:%s:when=%d"')
    :format(name, name, inject, n))
  local bad, became = wrong(how == 'KILL', status, said)
  if bad then say('WRONG: %s at %s %d: %s', how, name, n, bad) end
  return bad and 'wrong' or became
end

local function parse()
  local o, names, i = { every = 1, first = 1 }, {}, 1
  while arg[i] do
    local option = arg[i]:match '^%-%-(%a+)$'
    if option then
      i = i + 1
      if not o[option] or not tonumber(arg[i]) then fail('no option --%s N; there are --every, --first', option) end
      o[option] = tonumber(arg[i])
    else
      local known
      for _, kind in ipairs(CALLS) do known = known or kind[1] == arg[i] end
      if not known then fail("no call '%s' in the list of tests/programs/crash.lua", arg[i]) end
      names[arg[i]] = true
    end
    i = i + 1
  end
  return o, names
end

local function main()
  local o, names = parse()
  if tools.run('strace -qq -o /dev/null true') ~= 0 then fail 'strace cannot trace here' end
  prepare()
  fresh()
  old_student = student()
  local status, err = run(TO)
  if status ~= 0 then fail('the run fails by itself: %s', err) end
  whole, new_student = result(), student()
  local COLUMNS = { 'killed', 'unharmed', 'mended', 'refused', 'wrong' }
  say('%-12s %-10s %6s %8s %8s %8s %8s %8s', 'call', 'with', 'calls', unpack(COLUMNS))
  local all, bad = 0, 0
  for _, kind in ipairs(CALLS) do
    local name = kind[1]
    local list = (not next(names) or names[name]) and find_calls(name) or {}
    for k = 1, #list > 0 and #kind or 0 do
      local how, count = k == 1 and 'KILL' or kind[k], {}
      for i = o.first, #list, o.every do
        local became = disturb(name, how, list[i])
        count[became] = (count[became] or 0) + 1
        all, bad = all + 1, bad + (became == 'wrong' and 1 or 0)
      end
      local cells = {}
      for c, column in ipairs(COLUMNS) do cells[c] = count[column] or 0 end
      say('%-12s %-10s %6d %8d %8d %8d %8d %8d', name, how, #list, unpack(cells))
    end
  end
  say('%d disturbed, %d wrong', all, bad)
  return bad == 0
end

local good = main()
tools.remove_folders()
os.exit(good and 0 or 1)
