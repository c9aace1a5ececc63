--- What a run says while it goes: one line that is drawn over on a terminal, a line now and then
--- elsewhere. Everything goes to stderr, so that a recipe's own output stays clean.
---
--- Such a line is a list of parts, each a table: its text; its rank, 1 for what matters most; and
--- `glue`, what stands before it, by default two blanks.

local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local layout = require 'moonstill.base.layout'
local printable = require 'moonstill.base.printable'
local screen = require 'moonstill.base.screen'

local M = {}

--- The clock, in seconds.
M.clock = C.ms_clock

local SPARSE = { seconds = 30, share = 0.1 } -- between lines where there is no terminal
local INDENT = 2                             -- of what goes on in a line below
local REDRAW = 0.1                           -- seconds between drawings on a terminal
local RANKS = { count = 1, described = 2, left = 3 }

--- "2h03m", "3m12s", "45s".
--- @param seconds number
--- @return string
function M.duration(seconds)
  if seconds ~= seconds or seconds == math.huge then return '?' end
  local s = math.floor(seconds + 0.5)
  if s >= 3600 then return ('%dh%02dm'):format(math.floor(s / 3600), math.floor(s % 3600 / 60)) end
  if s >= 60 then return ('%dm%02ds'):format(math.floor(s / 60), s % 60) end
  return ('%ds'):format(s)
end

--- "1.5 GiB", "12 MiB".
--- @param bytes number
--- @return string
function M.bytes(bytes)
  local units = { 'B', 'KiB', 'MiB', 'GiB', 'TiB' }
  local i = 1
  while bytes >= 1000 and i < #units do bytes, i = bytes / 1024, i + 1 end
  return ((bytes < 10 and i > 1) and '%.1f %s' or '%.0f %s'):format(bytes, units[i])
end

--- "4576", "29.8 k", "135 M".
--- @param n number
--- @return string
function M.count(n)
  local units = { '', ' k', ' M', ' G', ' T' }
  local i = 1
  if n < 10000 then return ('%d'):format(n) end
  while n >= 999.5 and i < #units do n, i = n / 1000, i + 1 end
  return ('%.3g%s'):format(n, units[i])
end

--- A number as it is told: one that is none is "nan", whatever its sign.
--- @param format string
--- @param x number
--- @return string
function M.number(format, x)
  return x ~= x and 'nan' or format:format(x)
end

local function joined(parts)
  local text = parts[1][1]
  for i = 2, #parts do text = text .. (parts[i].glue or '  ') .. parts[i][1] end
  return text
end

-- The parts without those that matter least; nil where these are all of them.
local function without_least(parts)
  local kept, most = {}, 0
  for _, part in ipairs(parts) do most = math.max(most, part[2]) end
  for _, part in ipairs(parts) do
    if part[2] < most then kept[#kept + 1] = part end
  end
  return kept[1] and kept
end

--- A line of parts for so many columns: those that matter least are left out, each as a whole,
--- until the others fit; parts of equal rank go together. What matters most stays, and is cut where
--- it alone is too wide.
--- @param parts table[] see above
--- @param columns number
--- @return string
function M.fit(parts, columns)
  local line = joined(check.table('progress', 'parts', parts))
  while layout.width(line) > columns do
    parts = without_least(parts)
    if not parts then break end
    line = joined(parts)
  end
  return columns == math.huge and line or layout.cut(line, columns)
end

local methods = {}

local drawn -- whose line was drawn last

local function erase(self)
  if self.drawn then io.stderr:write '\r\27[K' end
  self.drawn = false
end

--- Prints a line of its own; on a terminal it is broken between words.
--- @param text string
function methods:say(text)
  if self.quiet then return end
  if self.send then return self.send(text) end
  erase(self)
  io.stderr:write(screen.wrapped(2, printable(text), INDENT), '\n')
  io.stderr:flush()
end

--- How wide a line may be: one that wraps could not be drawn over. Where there is no terminal there
--- is no bound.
--- @return number
function methods:columns() return screen.is_terminal(2) and screen.columns(2) - 1 or math.huge end

-- A text or parts as the line that fits.
local function fitted(self, described)
  local parts = type(described) == 'string' and { { described, 1 } } or described
  for _, part in ipairs(parts) do part[1] = printable(part[1]) end
  return M.fit(parts, self:columns())
end

--- Draws a line over the one before, on a terminal alone, and no more often than the eye sees. What
--- takes less than a second draws nothing. `describe` makes the text, or its parts, given the
--- seconds that have passed.
--- @param describe fun(subject: any, seconds: number): string|table[]
--- @param subject any
function methods:draw(describe, subject)
  if self.quiet or not self.tty then return end
  local now = M.clock()
  if now - math.max(self.began + 1 - REDRAW, self.last_time or 0) < REDRAW then return end
  self.last_time = now
  erase(self)
  io.stderr:write(fitted(self, describe(subject, now - self.began)))
  io.stderr:flush()
  self.drawn, drawn = true, self
end

--- Erases what is drawn.
function methods:clear()
  if not self.drawn then return end
  erase(self)
  io.stderr:flush()
end

-- A clock over the steps of this process: the first one, which warms up, is not counted.
local function remaining(self, step, total, now)
  if not self.first_step then
    self.first_step, self.first_time = step, now
    return '?'
  end
  local pace = (now - self.first_time) / (step - self.first_step)
  return M.duration(pace * (total - step))
end

-- Whether a line is to be drawn now.
local function is_due(self, step, total, now)
  if not self.last_time then return true end
  if self.tty then return now - self.last_time >= REDRAW end
  return now - self.last_time >= SPARSE.seconds or step - self.last_step >= total * SPARSE.share
end

-- The count, what is described, and the time that is left.
local function line_of(self, step, total, described, left)
  local parts = { { ('%s %d/%d'):format(self.word, step, total), RANKS.count } }
  if type(described) == 'string' then described = { { described, RANKS.described } } end
  for _, part in ipairs(described) do parts[#parts + 1] = part end
  if left then parts[#parts + 1] = { 'left ' .. left, RANKS.left } end
  return fitted(self, parts)
end

--- Called after each step. `describe()` makes the parts, or the text, between the count (of rank 1)
--- and the remaining time (of rank 3); it is called only when a line is due.
--- @param step integer
--- @param total integer
--- @param describe fun(subject: any): string|table[]
--- @param subject any
function methods:step(step, total, describe, subject)
  local now = M.clock()
  local left = remaining(self, step, total, now)
  if self.quiet then return end
  local last = step == total
  if not last and not is_due(self, step, total, now) then return end
  self.last_time, self.last_step = now, step
  local line = line_of(self, step, total, describe(subject), not last and left or nil)
  if self.send then return self.send(line) end
  erase(self)
  io.stderr:write(line, self.tty and '' or '\n')
  self.drawn, drawn = self.tty, self
  io.stderr:flush()
end

--- Leaves what is drawn standing.
function methods:finish()
  if self.drawn then io.stderr:write '\n' end
  self.drawn = false
end

--- Leaves standing what is drawn, whoever drew it: something else is to be written.
function M.settle()
  if drawn then drawn:finish() end
end

local class = { __index = methods }

--- @param ranks ms_ranks of which one prints
--- @param options? { quiet?: boolean, word?: string, send?: function } word: what is counted, by
---   default "step"; send: is given lines that another rank prints
--- @return table
function M.new(ranks, options)
  options = options or {}
  return setmetatable({ quiet = options.quiet or not (ranks.prints or options.send),
    send = options.send, tty = not options.send and screen.is_drawn_over(2), began = M.clock(),
    word = options.word or 'step' }, class)
end

return M
