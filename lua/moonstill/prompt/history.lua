--- Where the lines typed at a prompt are kept over sessions.
local M = {}

local function path_of(name)
  local state, home = os.getenv 'XDG_STATE_HOME', os.getenv 'HOME'
  if state and state ~= '' then return state .. '/' .. name end
  return home and home ~= '' and ('%s/.%s'):format(home, name) or nil
end

--- The reader of a terminal's lines, with the history of that name.
--- @param prompt table the terminal, see core/prompt.h
--- @param name string of the file
--- @return fun(prompt: string): string|false|nil
function M.lines(prompt, name)
  local path = path_of(name)
  if path then prompt.history(path) end
  return prompt.read
end

return M
