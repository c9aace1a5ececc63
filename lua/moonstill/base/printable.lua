--- Text for a terminal: names in files of others may hold control characters, which would move the
--- cursor or change what is on the screen.

local function escape(c) return ('\\x%02x'):format(c:byte(-1)) end

--- Control characters as "\x1b"; line ends and tabs stay.
--- @param text string
--- @return string
return function(text)
  return (text:gsub('[%z\1-\8\11-\31\127]', escape):gsub('\194[\128-\159]', escape))
end
