--- Text for a terminal: names in files of others may hold control characters, which would move the
--- cursor or change what is on the screen, and bytes that are no text.
local ffi = require 'ffi'
local C = require 'moonstill.C'

local function escape(c) return ('\\x%02x'):format(c:byte(-1)) end

-- Bytes that are no UTF-8 as "\xff".
local function whole(text)
  local parts, from, bytes = {}, 0, ffi.cast('const char *', text)
  while true do
    local n = tonumber(C.ms_text_check(bytes + from, #text - from))
    if n < 0 then break end
    parts[#parts + 1] = text:sub(from + 1, from + n)
    parts[#parts + 1] = escape(text:sub(from + n + 1, from + n + 1))
    from = from + n + 1
  end
  return table.concat(parts) .. text:sub(from + 1)
end

--- Control characters as "\x1b", and bytes that are no UTF-8; line ends and tabs stay.
--- @param text string
--- @return string
return function(text)
  text = text:gsub('[%z\1-\8\11-\31\127]', escape):gsub('\194[\128-\159]', escape)
  return text:find '[\128-\255]' and whole(text) or text
end
