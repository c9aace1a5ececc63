--- A few of the many runs of tests/crash: a run that is killed, or given an error, at a system call.
local tools = require 'tests.support.tools'

describe('tests/crash', function()
  local traced = tools.run 'strace -qq -o /dev/null true' == 0
  local why = not traced and 'strace is not here, or may not trace'
    or os.getenv 'MS_SANITIZED' and 'the sanitizers run make each run slow'
  local name = 'a run survives kills and errors at calls of several kinds, and the result is the same'
  if why then pending(name, why) else
    it(name, function()
      -- every run flushes its files: in memory, where there is such a place
      local status, out, err = tools.run('test -d /dev/shm && export TMPDIR=/dev/shm; '
        .. 'tests/crash --every 60 --first 11 write fsync unlinkat mkdir openat')
      assert.equal(0, status, out .. err)
      local all = tonumber(out:match '(%d+) disturbed, 0 wrong\n$')
      assert.is_true(all and all >= 15, out)
    end)
  end

  it('says how it is called, and what it does not know', function()
    local status, out = tools.run 'tests/crash --help'
    assert.equal(0, status)
    assert.truthy(out:find('--every N', 1, true), out)
    if why then return end
    for words, said in pairs { ['--evry 3'] = 'no option --evry', renam = "no call 'renam'" } do
      local failed, _, err = tools.run('tests/crash ' .. words)
      assert.equal(2, failed)
      assert.truthy(err:find(said, 1, true), err)
    end
  end)
end)
