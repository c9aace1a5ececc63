--- The text of an error for its reader: the message without a line of moonstill's own modules
--- before it, and below it the user's own lines that led there; with MS_TRACE all lines there are.
local fail = require 'moonstill.base.fail'
local pretty = require 'moonstill.prompt.pretty'
local screen = require 'moonstill.base.screen'
local trace = require 'moonstill.base.trace'

local function text_of(value)
  if value == nil then return 'an error without a message' end
  if type(value) == 'table' and not getmetatable(value) then
    return 'an error that is no text: ' .. pretty.show(value, screen.columns(2))
  end
  local ok, text = pcall(tostring, value)
  return ok and text or 'an error whose __tostring fails: ' .. tostring(text)
end

--- @param value any an error's
--- @return string
return function(value)
  local text = text_of(value)
  if os.getenv 'MS_TRACE' then return text end
  text = text:gsub('\nstack traceback:.*', '')
  local file, rest = text:match '^(lua/moonstill/[%w_/]+%.lua):%d+: (.*)$'
  if file and fail.is_ours('@' .. file) then text = rest end
  -- what ends with a status of its own was meant for its reader
  if type(value) == 'table' and value.exit then return text end
  for _, line in ipairs(trace.lines(value, text)) do text = text .. '\n  ' .. line end
  return text
end
