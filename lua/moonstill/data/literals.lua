--- NaN, Infinity and -Infinity, which JSON has not and Python's json.dumps writes. A row keeps them
--- where nothing reads them; where something does they are an error.

local json = require 'moonstill.base.json'
local sorted = require 'moonstill.base.sorted'

local M = {}

-- What stands for a literal in a decoded row: no value that anything takes.
local MARK = '{"not in JSON":"%s"}'
local MARKED = 'not in JSON'

-- The place behind a string's end, which begins at `at`; nil where it has none.
local function behind_string(text, at)
  repeat
    at = text:find('["\\]', at + 1)
    if not at then return nil end
    local escaped = text:byte(at) == 92
    if escaped then at = at + 1 end
  until not escaped
  return at + 1
end

--- A text of JSON with an object in the place of each literal outside of its strings; nil where
--- there is none.
--- @param text string
--- @return string?
function M.marked(text)
  local parts, from, at = {}, 1, 1
  while at do
    at = text:find('["NI]', at)
    local word = at and (text:match('^NaN', at) or text:match('^Infinity', at))
    if word then
      local first = word == 'Infinity' and text:sub(at - 1, at - 1) == '-' and at - 1 or at
      local last = at + #word - 1
      parts[#parts + 1] = text:sub(from, first - 1) .. MARK:format(text:sub(first, last))
      from, at = last + 1, last + 1
    elseif at and text:byte(at) == 34 then
      at = behind_string(text, at)
    elseif at then
      at = at + 1
    end
  end
  return parts[1] and table.concat(parts) .. text:sub(from) or nil
end

--- An error where a row has a literal in a column that is read.
--- @param row table
--- @param used table<string, boolean> the names of these columns
function M.check(row, used)
  for name in sorted.pairs(used) do
    local value = row[name]
    local literal = json.is_object(value) and value[MARKED]
    if literal then
      error(('column "%s" is %s: JSON has no NaN and no Infinity; write null, or leave the key out')
        :format(name, literal), 0)
    end
  end
end

return M
