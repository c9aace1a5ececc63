--- Programs on a pseudo-terminal: keys are written to it, and what comes back is waited for, never slept for.
local ffi = require 'ffi'

local M = {}

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

--- Starts a command line of the shell on a terminal of its own.
--- @param command string
--- @param columns? integer default 80
function M.open(command, columns)
  local master, size = ffi.new 'int[1]', ffi.new('unsigned short[4]', 24, columns or 80)
  command = 'export TERM=xterm LC_ALL=C.UTF-8; ' .. command
  local pid = libc.forkpty(master, nil, nil, size)
  if pid == 0 then
    libc.execl('/bin/sh', 'sh', '-c', command, ffi.cast('char *', nil))
    libc._exit(127)
  end
  assert(pid > 0, 'no pseudo-terminal')
  return setmetatable({ fd = master[0], pid = pid, text = '' }, session)
end

-- What asks the terminal to mark what is pasted shows nothing.
local function visible(text) return (text:gsub('\27%[%?2004[hl]', '')) end

--- Reads until `part` has come, and forgets what was read up to its end; returns that.
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
    self.text = visible(self.text .. ffi.string(buffer, n))
  end
end

--- Types.
function session:keys(text) libc.write(self.fd, text, #text) end

-- The line editor writes its prompt a moment before it has the terminal, which until then would take control
-- keys for itself.
local function await_editor(self)
  local termios, ICANON = ffi.new 'uint32_t[64]', 2
  repeat
    libc.poll(nil, 0, 1)
    libc.tcgetattr(self.fd, termios)
  until bit.band(termios[3], ICANON) == 0
end

--- Ctrl-D at the prompt of the line editor, and the status then.
function session:leave()
  await_editor(self)
  self:keys '\4'
  return self:finish()
end

--- Ctrl-C at the prompt of the line editor.
function session:interrupt()
  await_editor(self)
  self:keys '\3'
end

--- A line typed at the prompt of the line editor, and what is printed until the next prompt.
function session:type(line)
  await_editor(self)
  self:keys(line .. '\n')
  return self:wait '\n> '
end

--- Sends a signal.
function session:signal(number) libc.kill(self.pid, number) end

--- Ends the program, whatever it does.
function session:kill() self:signal(9) end

--- The status as waitpid gives it. What does not end by itself fails the test.
function session:finish()
  local status, WNOHANG = ffi.new 'int[1]', 1
  for _ = 1, PATIENCE / 10 do
    if libc.waitpid(self.pid, status, WNOHANG) == self.pid then
      libc.close(self.fd)
      return status[0]
    end
    libc.poll(nil, 0, 10)
  end
  error('the program does not end', 2)
end

return M
