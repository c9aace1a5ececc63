--- The text of an error for its reader: without the traceback and without a line of moonstill's own
--- modules before it (a line of the recipe stays), unless MS_TRACE is set.
local fail = require 'moonstill.base.fail'

--- @param message any an error's value
--- @return string
return function(message)
  local text = tostring(message)
  if os.getenv 'MS_TRACE' then return text end
  text = text:gsub('\nstack traceback:.*', '')
  local file, rest = text:match '^(lua/moonstill/[%w_/]+%.lua):%d+: (.*)$'
  return file and fail.is_ours('@' .. file) and rest or text
end
