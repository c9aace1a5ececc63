--- Errors that blame whoever called the library: the message begins with the file and line of the
--- first frame that is no module of lua/moonstill, whatever lies between. The stack is looked at
--- when an error is raised, never before.
---
--- An error about what a file holds names that file, where the line of the caller says nothing: it
--- is raised with Lua's `error(message, 0)`.

local M = {}

-- How the modules' chunks are called, up to their folder: "@/usr/share/lua/moonstill/", or in the
-- executable "@lua/moonstill/".
local ROOT = debug.getinfo(1, 'S').source:match '^(.*)base/fail%.lua$'

--- Whether a chunk is the library's: a module that is loaded. A recipe may lie in a folder whose
--- name is the modules'.
--- @param source string as debug.getinfo gives it
--- @return boolean
function M.is_ours(source)
  if source:sub(1, #ROOT) ~= ROOT then return false end
  local name = 'moonstill.' .. source:sub(#ROOT + 1):gsub('%.lua$', ''):gsub('/', '.')
  return package.loaded[name] ~= nil or name == 'moonstill.init'
end

-- "recipe.lua:12: ", or nothing where all frames are the library's.
local function place()
  local level = 3 -- whoever called `fail`
  while true do
    local frame = debug.getinfo(level, 'Slf')
    if not frame or frame.func == M.pcall then return '' end
    if frame.currentline > 0 and not M.is_ours(frame.source) then
      return ('%s:%d: '):format(frame.short_src, frame.currentline)
    end
    level = level + 1
  end
end

--- An error of what a function of the caller's gave, which blames the line where the function
--- begins: it has returned. Of the library's own functions, that of the caller.
--- @param f function
--- @param format string
--- @param ... any
function M.at(f, format, ...)
  local info = debug.getinfo(f, 'S')
  local own = info.linedefined > 0 and not M.is_ours(info.source)
  local before = own and ('%s:%d: '):format(info.short_src, info.linedefined) or place()
  error(before .. format:format(...), 0)
end

local function results(...) return ... end

--- Calls a function in protected mode, for a caller that says itself where what is wrong is found:
--- errors inside have no line before them.
--- @param f function
--- @param ... any its arguments
--- @return boolean ok
--- @return any ... its results, or the error
function M.pcall(f, ...)
  return results(pcall(f, ...)) -- no tail call of pcall: this frame is what `place` meets
end

--- As `pcall` above, for what may go wrong without harm. That memory has ended is an error all the
--- same: what was tried says nothing then.
--- @param f function
--- @param ... any its arguments
--- @return boolean ok
--- @return any result its first result, or the error
function M.attempt(f, ...)
  local ok, result = M.pcall(f, ...)
  if not ok and tostring(result):find('no memory', 1, true) then error(result, 0) end
  return ok, result
end

--- `fail(format, ...)` raises an error; without further arguments the format is the message.
return setmetatable(M, {
  __call = function(_, format, ...)
    local message = select('#', ...) > 0 and format:format(...) or format
    error(place() .. message, 0)
  end,
})
