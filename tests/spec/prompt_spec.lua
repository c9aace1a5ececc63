-- The prompt on a terminal: a pseudo-terminal is opened, keys are written to it, and what comes back
-- is waited for, never slept for.
local ffi = require 'ffi'
local tools = require 'tests.support.tools'

local program = tools.program()
if not tools.exists(program) then
  pending('the prompt', program .. ' is not built')
  return
end

ffi.cdef [[
int forkpty(int *master, char *name, const void *termios, const void *size);
int execl(const char *path, const char *arg0, ...);
void _exit(int status);
long read(int fd, void *buffer, size_t bytes);
long write(int fd, const void *buffer, size_t bytes);
int close(int fd);
int waitpid(int pid, int *status, int options);
int kill(int pid, int signal);
struct moonstill_pollfd { int fd; short events, revents; };
int tcgetattr(int fd, void *termios);
int poll(struct moonstill_pollfd *fds, unsigned long count, int timeout);
]]
local libc = ffi.C

local PATIENCE = 60000 -- milliseconds without a word, on a machine however busy

local session = {}
session.__index = session

local function open(state)
  local master = ffi.new 'int[1]'
  local command = 'TERM=xterm LC_ALL=C.UTF-8 XDG_STATE_HOME=' .. state .. ' exec ' .. tools.quote(program)
  local pid = libc.forkpty(master, nil, nil, nil)
  if pid == 0 then
    libc.execl('/bin/sh', 'sh', '-c', command, ffi.cast('char *', nil))
    libc._exit(127)
  end
  assert(pid > 0, 'no pseudo-terminal')
  return setmetatable({ fd = master[0], pid = pid, text = '' }, session)
end

-- Reads until `part` has come, and forgets what was read up to its end; returns that.
function session:wait(part)
  local buffer, poll = ffi.new 'char[4096]', ffi.new('struct moonstill_pollfd', { self.fd, 1, 0 })
  while true do
    local _, to = self.text:find(part, 1, true)
    if to then
      local seen = self.text:sub(1, to)
      self.text = self.text:sub(to + 1)
      return seen
    end
    local n = libc.poll(poll, 1, PATIENCE) > 0 and libc.read(self.fd, buffer, 4096) or 0
    if n <= 0 then error(('%q has not come, only:\n%s'):format(part, self.text), 2) end
    self.text = self.text .. ffi.string(buffer, n)
  end
end

function session:keys(text) libc.write(self.fd, text, #text) end

-- Ctrl-D, once the line editor has the terminal: it writes its prompt a moment earlier, and until then
-- the terminal would take the key for itself.
function session:leave()
  local termios, ICANON = ffi.new 'uint32_t[64]', 2
  repeat
    libc.poll(nil, 0, 1)
    libc.tcgetattr(self.fd, termios)
  until bit.band(termios[3], ICANON) == 0
  self:keys '\4'
  return self:finish()
end

-- A line typed, and what is printed until the next prompt.
function session:type(line)
  self:keys(line .. '\n')
  return self:wait '\n> '
end

-- The status as waitpid gives it. What does not end by itself fails the test.
function session:finish()
  local status, WNOHANG = ffi.new 'int[1]', 1
  for _ = 1, PATIENCE / 10 do
    if libc.waitpid(self.pid, status, WNOHANG) == self.pid then
      libc.close(self.fd)
      return status[0]
    end
    libc.poll(nil, 0, 10)
  end
  error('the prompt does not end', 2)
end

describe('the prompt on a terminal', function()
  local folder = tools.folder()
  local it_is

  before_each(function()
    it_is = open(folder)
    it_is:wait 'help() helps.'
    it_is:wait '> '
  end)
  after_each(function() libc.kill(it_is.pid, 9) end)

  it('prints, and ends with Ctrl-D', function()
    assert.truthy(it_is:type('1 + 1'):find('\n2\r', 1, true))
    assert.truthy(it_is:type('"ä€" .. _'):find('\nä€2\r', 1, true))
    assert.equal(0, it_is:leave())
  end)
  it('goes on in the next line', function()
    it_is:keys 'for i = 1, 2 do\n'
    it_is:wait '>> '
    assert.truthy(it_is:type('print(i * 7) end'):find('7\r\n14\r\n', 1, true))
    it_is:keys '20 +\n' -- a value that is unfinished, not a statement
    it_is:wait '>> '
    assert.truthy(it_is:type('3'):find('\n23\r', 1, true))
    assert.truthy(it_is:type('a = 5 end'):find("expected near 'end'", 1, true)) -- what is too much
  end)
  it('gives a line up at Ctrl-C', function()
    it_is:keys 'error "never run"'
    it_is:wait 'run"'
    it_is:keys '\3'
    it_is:wait '^C\r\n> '
    assert.truthy(it_is:type('7'):find('\n7\r', 1, true))
    it_is:keys 'for i = 1, 2 do\n'
    it_is:wait '>> '
    it_is:keys '\3'
    it_is:wait '\n> '
    assert.truthy(it_is:type('8'):find('\n8\r', 1, true))
  end)
  it('stops what runs at Ctrl-C', function()
    it_is:keys 'function spin() for i = 1, math.huge do end end\n'
    it_is:wait '\n> '
    for _, code in ipairs { 'while true do end', 'spin()' } do
      it_is:keys(('print "go" %s\n'):format(code))
      it_is:wait '\ngo\r\n'
      it_is:keys '\3'
      it_is:wait 'interrupted'
      it_is:wait '\n> '
    end
    assert.truthy(it_is:type('9'):find('\n9\r', 1, true))
  end)
  it('keeps a history over sessions', function()
    it_is:type '1234 + 1'
    it_is:leave()
    local again = open(folder)
    again:wait '> '
    again:keys '\27[A\n' -- arrow up
    again:wait '\n1235\r'
    again:wait '\n> '
    assert.equal(0, again:leave())
    assert.truthy(tools.exists(folder .. '/moonstill_history'))
  end)
end)
