--- The user's own lines at an error: `trace.handler` is a message handler, for xpcall, that notes
--- them and leaves the error as it is; `trace.lines` gives them for an error that was noted. What
--- catches an error and raises it again (`ms.scope`, a coroutine) so loses nothing.
local fail = require 'moonstill.base.fail'

local M = {}

local MOST = 100          -- frames that are looked at
local FIRST, LAST = 8, 3  -- lines that are shown

local noted = {} -- the last error: value, thread, lines

-- Of a function that the library called the name is the library's.
local function function_text(frame, caller)
  if frame.what == 'main' then return 'main chunk' end
  if frame.name and not frame.name:find ' ' and caller and not fail.is_ours(caller.source) then
    return ("function '%s'"):format(frame.name)
  end
  return ('function <%s:%d>'):format(frame.short_src, frame.linedefined)
end

-- The frame at a level of a thread: of this one as the caller sees it.
local function frame_at(thread, level, what)
  if thread then return (debug.getinfo(thread, level, what)) end
  return (debug.getinfo(level + 2, what)) -- no tail call, which would be a level less
end

-- The user's own lines from a level on, innermost first.
local function lines_from(thread, level)
  local lines, frame = {}, frame_at(thread, level, 'Sln')
  while frame and #lines < MOST do
    local caller = frame_at(thread, level + 1, 'Sln')
    if frame.what ~= 'C' and frame.currentline > 0 and not fail.is_ours(frame.source) then
      lines[#lines + 1] = { place = ('%s:%d: '):format(frame.short_src, frame.currentline),
        text = 'in ' .. function_text(frame, caller) }
    end
    frame, level = caller, level + 1
  end
  return lines
end

-- Whether lines are the last ones of others.
local function ends_with(all, lines)
  local before = #all - #lines
  for i, line in ipairs(lines) do
    local other = all[before + i]
    if not other or line.place ~= other.place or line.text ~= other.text then return false end
  end
  return true
end

-- Notes the lines of an error in a thread. One that was caught and is raised again has the lines
-- that it had: those of a coroutine stand before its resumer's.
local function note(value, thread, lines)
  local known = noted.lines and rawequal(noted.value, value)
  if known and noted.thread == thread and ends_with(noted.lines, lines) then return end
  if known and noted.thread ~= thread then
    for _, line in ipairs(lines) do table.insert(noted.lines, line) end
    noted.thread = thread
  else
    noted = { value = value, thread = thread, lines = lines }
  end
end

-- A message that begins with a line of the library's begins with the user's.
local function with_place(value, lines)
  if type(value) ~= 'string' then return value end
  local file, rest = value:match '^([%w_./-]+%.lua):%d+: (.*)$'
  if not file or not fail.is_ours('@' .. file) then return value end
  return (lines[1] and lines[1].place or '') .. rest
end

-- The first argument of the function at a level, as `frame_at` of the caller counts.
local function first_argument(thread, level)
  if thread then return (select(2, debug.getlocal(thread, level, 1))) end
  return (select(2, debug.getlocal(level + 2, 1)))
end

-- The library's function that the user's innermost line has called, with its first argument as
-- `first`; nil where it has called none.
local function called(thread)
  local level, before = thread and 0 or 1, nil
  while true do
    local frame = frame_at(thread, level, 'Snlf')
    if not frame then return nil end
    if frame.what ~= 'C' and frame.currentline > 0 and not fail.is_ours(frame.source) then break end
    before = frame.what ~= 'C' and frame or nil
    if before then before.first = first_argument(thread, level) end
    level = level + 1
  end
  return before and before.func ~= M.handler and before or nil
end

local hint -- see `hint_by`

--- Gives a function that says what to add to a message, given that and the frame of the library's
--- function that the user's own line had called, if any.
--- @param f fun(message: string, frame?: table): string
function M.hint_by(f) hint = f end

local function with_hint(value, thread)
  if not hint or type(value) ~= 'string' or rawequal(noted.value, value) then return value end
  local ok, more = pcall(hint, value, called(thread))
  return ok and value .. more or value
end

--- Notes the user's own lines at an error and returns its value; a message that begins with a line
--- of the library begins with the user's then, and ends with what may have been meant. With
--- MS_TRACE it gets a whole traceback.
--- @param value any
--- @return any
function M.handler(value)
  if type(value) == 'string' and value:find('stack overflow', 1, true) then
    return value -- there is no room to look at it
  end
  if os.getenv 'MS_TRACE' then
    if type(value) ~= 'string' or value:find('\nstack traceback:', 1, true) then return value end
    return (debug.traceback(value, 2)) -- no tail call, which would be a level less
  end
  local lines = lines_from(nil, 1)
  value = with_hint(with_place(value, lines))
  note(value, coroutine.running() or 'main', lines)
  return value
end

-- Whether lines tell nothing: one alone, which the message has or which was typed just now.
local function is_plain(all, message)
  local place = #all == 1 and all[1].place
  return place and (message:sub(1, #place) == place or place == 'prompt:1: '
    or place == '(command line):1: ')
end

--- The user's own lines at an error that was noted, as texts, where there are more of them than the
--- message has itself.
--- @param value any the error's
--- @param message string
--- @return string[]
function M.lines(value, message)
  local all, texts = rawequal(noted.value, value) and noted.lines or {}, {}
  noted = {} -- an equal one comes from elsewhere
  if is_plain(all, message) then return texts end
  for i, line in ipairs(all) do
    if i <= FIRST or i > #all - LAST then
      texts[#texts + 1] = line.place .. line.text
    elseif i == FIRST + 1 then
      texts[#texts + 1] = ('... (%d more)'):format(#all - FIRST - LAST)
    end
  end
  return texts
end

-- The results of a coroutine, or its error with the lines that it has left.
local function resumed(co, ok, ...)
  if ok then return ... end
  local value = ...
  if not os.getenv 'MS_TRACE' then
    local lines = lines_from(co, 0)
    value = with_hint(with_place(value, lines), co)
    note(value, co, lines)
  end
  error(value, 0)
end

--- As `coroutine.wrap`, but an error inside stays as it is, with the lines that led to it.
--- @param f function
--- @return function
function M.wrap(f)
  local co = coroutine.create(f)
  return function(...) return resumed(co, coroutine.resume(co, ...)) end
end

return M
