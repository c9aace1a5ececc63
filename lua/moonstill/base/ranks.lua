--- Ranks: processes that work on one run, each making the same calls in the same order. They alone
--- answer whether this process writes (`ranks.writes`, `ranks:write`) and whether it prints
--- (`ranks.prints`, `ranks:say`): the first one does both, and others print into files of their own
--- where they are asked for (`log_in`).
---
--- What depends on more than the configuration, the data and the run's state (a clock, a signal,
--- what is in a folder) may differ between ranks: all take what the first has, `ranks:first`.

local ffi = require 'ffi'
local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local printable = require 'moonstill.base.printable'
local screen = require 'moonstill.base.screen'
local strict = require 'moonstill.base.strict'
local text = require 'moonstill.base.text'

ffi.cdef [[
int usleep(unsigned microseconds);
int fileno(void *file);
int dup2(int old, int new);
int gethostname(char *name, size_t size);
]]

local M = {}

local numbers, room = nil, 0           -- scratch, read at once
local length = ffi.new 'int32_t[1]'
local group = ffi.new 'ms_group *[1]'
local letter = ffi.new 'char *[1]'

--- Some ranks that do things together: those of a grid that share a step's samples (`grid.dp`),
--- those over which a model is cut (`grid.tp`), or all (`grid.world`). Each of them makes the same
--- calls, in the same order.
---
---   local counted = grid.dp:sum { right, of } -- numbers of each rank's samples
--- @class ms_ranks
--- @field rank integer this process's number among them, from 0
--- @field size integer how many they are
--- @field writes boolean whether this process is the first of them
--- @field prints boolean whether this process prints: the first of all there are, or one with a log
local methods = {}

local class = strict.class('ranks', methods, nil, { 'rank', 'size', 'writes', 'prints' })

-- The ranks of a group of the core.
local function ranks_of(of, prints)
  local rank = C.ms_group_rank(of)
  return setmetatable({ group = of, rank = rank, size = C.ms_group_size(of), writes = rank == 0,
    prints = prints }, class)
end

--- This process's number among them, from 0.
--- @package
--- @return integer
function methods:number() return self.rank end

--- Adds a list of numbers up over the ranks, in place.
--- @param list number[]
--- @return number[] list
function methods:sum(list)
  local n = #list
  if n > room then numbers, room = ffi.new('double[?]', 2 * n), 2 * n end
  for i = 1, n do numbers[i - 1] = list[i] end
  check(C.ms_group_sum(self.group, numbers, n))
  for i = 1, n do list[i] = numbers[i - 1] end
  return list
end

--- The largest of the numbers that ranks call this with.
--- @param x number
--- @return number
function methods:most(x)
  local all = {}
  for rank = 0, self.size - 1 do all[rank + 1] = rank == self.rank and x or 0 end
  return math.max(unpack(self:sum(all)))
end

--- The number of the last rank that calls this with false; nil where none does.
--- @package
--- @param yes boolean
--- @return integer?
function methods:lacking(yes)
  local last = self:most(yes and -1 or self.rank)
  return last >= 0 and last or nil
end

-- A value as bytes, of which the first tells its type.
local function pack(value)
  if value == nil then return '' end
  if type(value) == 'number' then return ('n%.17g'):format(value) end
  return 's' .. value
end

local function unpack_value(bytes)
  if bytes == '' then return nil end
  local rest = bytes:sub(2)
  return bytes:byte() == ('n'):byte() and tonumber(rest) or rest
end

--- What the rank of a number calls this with, for all.
--- @param rank integer from 0
--- @param value string|number|nil
--- @return string|number|nil
function methods:from(rank, value)
  local bytes = pack(value)
  length[0] = #bytes
  check(C.ms_group_broadcast(self.group, length, 4, rank))
  local n = length[0]
  local data = ffi.new('char[?]', n + 1)
  ffi.copy(data, bytes, math.min(n, #bytes))
  check(C.ms_group_broadcast(self.group, data, n, rank))
  return unpack_value(ffi.string(data, n))
end

--- What the first rank calls this with, for all: what may differ between ranks, such as a clock's.
--- @param value string|number|nil
--- @return string|number|nil
function methods:first(value) return self:from(0, value) end

--- What each rank calls this with, in the order of ranks.
--- @package
--- @param value string|number|nil
--- @return (string|number|nil)[]
function methods:each(value)
  local list = {}
  for rank = 0, self.size - 1 do list[rank + 1] = self:from(rank, value) end
  return list
end

--- Whether all ranks call this with the same.
--- @param value string|number|nil
--- @return boolean # the same on all
function methods:same(value)
  return self:sum { self:first(value) == value and 0 or 1 }[1] == 0
end

--- An error on all ranks where one of them calls this with a message: that of the first one.
--- @package
--- @param why? string
function methods:agree(why)
  local first = self:most(why and self.size - self.rank or 0)
  if first == 0 then return end
  error(self:from(self.size - first, why), 0)
end

--- Sends a rank a text, and goes on at once; `hear` is how that rank gets it, the first one first.
--- @package
--- @param to integer
--- @param bytes string
function methods:tell(to, bytes) check(C.ms_letter_send(self.group, to, bytes, #bytes)) end

--- The next text that a rank has sent, once it is there.
--- @package
--- @param from integer
--- @return string
function methods:hear(from)
  check(C.ms_letter_receive(self.group, from, letter))
  return text(letter[0])
end

local writing = false -- whether a body runs: what it calls is this rank's alone

--- Calls `body` on the rank that writes. All ranks wait for it, and get what it returns, or fail as
--- it failed. Within a body it is only called.
--- @param body fun(...): string|number|nil
--- @return string|number|nil
function methods:write(body, ...)
  if writing or M.world().size == 1 then return body(...) end
  local ok, value = true, nil
  if self.writes then
    writing = true
    ok, value = pcall(body, ...)
    writing = false
  end
  local failed = self:first(not ok and tostring(value) or nil)
  if failed then error(self.writes and value or failed, 0) end
  return self:first(value)
end

--- Whether this is called in the body of a `ranks:write`: the other ranks do not call it.
--- @package
--- @return boolean
function M.is_writing() return writing end

--- Prints a line on stderr.
--- @param line string
function methods:say(line)
  if self.prints then io.stderr:write(screen.wrapped(2, printable(line), 2), '\n') end
end

--- Bytes that this rank has sent to the others so far, by kind of call: { all_reduce = 4096, .. }.
--- A rank that is alone has sent nothing.
--- @return table<string, integer>
function methods:sent()
  local kinds = {}
  for kind = 0, math.huge do
    local name, bytes = C.ms_group_call(kind), 0
    if name == nil then return kinds end
    for dtype = 0, C.MS_F64 do
      bytes = bytes + tonumber(C.ms_group_sent(self.group, kind, dtype))
    end
    if bytes > 0 then kinds[ffi.string(name)] = bytes end
  end
end

--- The number of the one that takes each entry of a list, of so many that share them. The costs of
--- the entries are given: the dearest ones go first, each to the one that has the least so far. A
--- function of its arguments alone.
--- @package
--- @param costs number[]
--- @param size integer
--- @return integer[] # from 0, for each entry
--- @return integer # how many entries the one has that has most of them
function M.deal(costs, size)
  local order, cost, count, takes, most = {}, {}, {}, {}, 0
  for i = 1, #costs do order[i] = i end
  table.sort(order, function(a, b)
    if costs[a] ~= costs[b] then return costs[a] > costs[b] end
    return a < b
  end)
  for rank = 0, size - 1 do cost[rank], count[rank] = 0, 0 end
  for _, i in ipairs(order) do
    local best = 0
    for rank = 1, size - 1 do
      if cost[rank] < cost[best] then best = rank end
    end
    takes[i], cost[best], count[best] = best, cost[best] + costs[i], count[best] + 1
    most = math.max(most, count[best])
  end
  return takes, most
end

--- This rank's part of a list whose entries cost something, in the order of the list: all ranks
--- have about the same to do.
--- @param list table
--- @param costs number[] of each entry
--- @return table
--- @return integer # how many entries the rank has that has most of them
function methods:share(list, costs)
  local part, takes, most = {}, M.deal(costs, self.size)
  for i, entry in ipairs(list) do
    if takes[i] == self.rank then part[#part + 1] = entry end
  end
  return part, most
end

--- This rank's part of a list: neighbours, about as many for each rank.
--- @param list table
--- @return table
--- @return integer # how many entries lie before it
function methods:part(list)
  local part, first = {}, math.floor(#list * self.rank / self.size)
  local last = math.floor(#list * (self.rank + 1) / self.size)
  for i = first + 1, last do part[i - first] = list[i] end
  return part, first
end

--- The ranks of one colour as ranks of their own, ordered by key. All ranks call it.
--- @package
--- @param colour integer below 0: this rank is in none
--- @param key integer
--- @return ms_ranks? # nil for a rank that is in none
function methods:split(colour, key)
  check(C.ms_group_split(self.group, colour, key, group))
  return group[0] ~= nil and ranks_of(group[0], self.prints) or nil
end

function class:__tostring() return ('rank %d of %d'):format(self.rank, self.size) end

local world

--- All ranks that this process works with: those that it was launched with, or it alone. The first
--- call joins them.
--- @return ms_ranks
function M.world()
  if not world then
    check(C.ms_group_world(group))
    world = ranks_of(group[0], C.ms_group_rank(group[0]) == 0)
  end
  return world
end

--- This process alone, for what every rank works out by itself and in whole.
--- @return ms_ranks
function M.alone() return ranks_of(C.ms_group_self(), M.world().prints) end

local machine

--- The ranks of this process's machine, those that share its memory. All ranks make the first call
--- together.
--- @package
--- @return ms_ranks
function M.machine()
  local all = M.world()
  if all.size == 1 then return all end
  machine = machine or all:split(C.ms_group_machine(), all.rank)
  return machine
end

--- No ranks: what neither writes nor prints.
--- @package
--- @return ms_ranks
function M.none()
  local none = M.alone()
  none.writes, none.prints = false, false
  return none
end

local CHANNELS = 9
local channels

--- Groups of all ranks, for messages of two of them which must not be mixed up with others: made
--- once, before any rank works ahead of another, since all of them make groups together.
--- @package
--- @return ms_ranks[] and `apart`: why ranks of one machine cannot share memory, if so
function M.channels()
  if channels and channels.world == M.world() then return channels end
  channels = { world = M.world() }
  for i = 1, CHANNELS do channels[i] = channels.world:split(0, channels.world.rank) end
  if C.ms_group_share(channels.world.group) ~= C.MS_OK then
    channels.apart = ffi.string(C.ms_last_error())
  end
  return channels
end

--- The number of this process among those it was launched with, which is known before it joins
--- them.
--- @return integer
function M.number() return math.max(0, C.ms_group_number()) end

--- Whether this rank, which fails, is to say why: what goes wrong on one goes wrong on most, and
--- one of them says it, the first one where it is among them. Takes a moment on the others.
--- @return boolean
function M.says_why()
  if M.number() == 0 then return C.ms_group_fails() ~= 0 end
  ffi.C.usleep(2e5)
  local first = C.ms_group_fails()
  if first == -1 then ffi.C.usleep(2e6) end -- where rank 0 says it, this one is ended by then
  return first ~= 0
end

--- The name of this machine.
--- @return string
function M.host()
  local name = ffi.new 'char[256]'
  return ffi.C.gethostname(name, 255) == 0 and ffi.string(name) or '?'
end

--- A name that nothing has yet.
--- @package
--- @return string
function M.random_name()
  local source = assert(io.open('/dev/urandom', 'rb'))
  local bytes = source:read(12)
  source:close()
  return (bytes:gsub('.', function(c) return ('%02x'):format(c:byte()) end))
end

--- The log of a rank.
--- @package
--- @param folder string
--- @param rank integer|string
--- @return string path
function M.log_path(folder, rank) return ('%s/rank-%s.log'):format(folder, rank) end

-- What this process prints goes into a file from now on, behind what is there.
local function print_into(path)
  local file, why = io.open(path, 'ab')
  if not file then error('log: ' .. why, 0) end
  for _, stream in ipairs { io.stdout, io.stderr } do
    stream:flush()
    ffi.C.dup2(ffi.C.fileno(file), ffi.C.fileno(stream))
  end
  file:close()
  io.stdout:setvbuf 'line' -- what a rank that is killed has printed is there
end

--- Has all ranks but the first, which prints as ever, print into files of a folder that is there.
--- All ranks call it, before they make what prints.
--- @package
--- @param folder string
--- @return string? # with a file: a line that says who and where this is
function M.log_in(folder)
  local all = M.world()
  if all.rank == 0 then return nil end
  print_into(M.log_path(folder, all.rank))
  all.prints = true
  return ('rank %d of %d, on %s, %s'):format(all.rank, all.size, M.host(),
    os.date '%Y-%m-%d %H:%M:%S')
end

--- Writes a file, as a whole or not at all, on the rank that writes; all wait for it.
--- @param path string
--- @param bytes string
function M.write_file(path, bytes)
  M.world():write(function() check(C.ms_file_write(path, bytes, #bytes)) end)
end

--- Ends all ranks that this one has joined, with a status; alone it does nothing.
--- @param status integer
function M.abort(status) C.ms_group_abort(status) end

return M
