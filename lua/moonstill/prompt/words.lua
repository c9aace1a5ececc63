--- Lua source as a list of its words, also where it is unfinished: what the prompt must know of a
--- line before it can be compiled.

local M = {}

--- What may not be a name.
M.KEYWORDS = {}
for word in ([[and break do else elseif end false for function goto if in local nil not or repeat
  return then true until while]]):gmatch '%S+' do table.insert(M.KEYWORDS, word) end

local is_keyword = {}
for _, word in ipairs(M.KEYWORDS) do is_keyword[word] = true end

--- What brackets and blocks begin and end with.
M.OPENS = { ['('] = true, ['['] = true, ['{'] = true, ['function'] = true, ['do'] = true,
  ['if'] = true, ['repeat'] = true }
M.CLOSES = { [')'] = true, [']'] = true, ['}'] = true, ['end'] = true, ['until'] = true }

--- @class ms_word
--- @field kind string 'name', 'keyword', 'number', 'string', 'comment' or 'sign'
--- @field text string
--- @field from integer where it begins
--- @field to integer
--- @field depth integer how many brackets and blocks are open before it
--- @field open? boolean a string or comment that does not end

-- Where a long bracket that begins at `at` ends; nil where it does not, false where there is none.
local function long_end(text, at)
  local level = text:match('^%[(=*)%[', at)
  if not level then return false end
  local _, to = text:find(']' .. level .. ']', at, true)
  return to
end

local function string_end(text, at)
  local quote, i = text:sub(at, at), at + 1
  while true do
    i = text:find('[\\\n' .. quote .. ']', i)
    local c = i and text:sub(i, i)
    if c == quote then return i end
    if c ~= '\\' then return nil end
    i = i + 2
  end
end

-- The end of a line that goes on, or of the whole text.
local function rest_of_line(text, at) return (text:find('\n', at, true) or #text + 1) - 1 end

local function number_end(text, at)
  local _, to = text:find('^%.?%d[%w.]*', at)
  local exponent = to and text:sub(to, to):lower()
  local is_hex = to and text:find('^0[xX]', at)
  if exponent == (is_hex and 'p' or 'e') then
    local _, further = text:find('^[+-]%w*', to + 1)
    to = further or to
  end
  return to
end

local SIGNS = { '^%.%.%.', '^%.%.', '^[=~<>]=', '^::', '^.' }

-- The kind and the end of the word at a place, and whether it is open.
local function word_at(text, at)
  local comment = text:find('^%-%-', at)
  local to = long_end(text, comment and at + 2 or at)
  if to then return comment and 'comment' or 'string', to end
  if to == nil then return comment and 'comment' or 'string', #text, true end
  if comment then return 'comment', rest_of_line(text, at) end
  if text:find('^["\']', at) then
    to = string_end(text, at)
    return 'string', to or rest_of_line(text, at), not to
  end
  to = number_end(text, at)
  if to then return 'number', to end
  local name = text:match('^[%a_\128-\255][%w_\128-\255]*', at)
  if name then return is_keyword[name] and 'keyword' or 'name', at + #name - 1 end
  for _, sign in ipairs(SIGNS) do
    local _, last = text:find(sign, at)
    if last then return 'sign', last end
  end
end

--- The words of a text, comments among them.
--- @param text string
--- @return ms_word[]
function M.of(text)
  local list, at, depth = {}, text:find '%S', 0
  while at do
    local kind, to, open = word_at(text, at)
    local word = { kind = kind, text = text:sub(at, to), from = at, to = to, open = open }
    local bare = kind == 'sign' or kind == 'keyword'
    if bare and M.CLOSES[word.text] then depth = math.max(0, depth - 1) end
    word.depth = depth
    if bare and M.OPENS[word.text] then depth = depth + 1 end
    list[#list + 1] = word
    at = text:find('%S', to + 1)
  end
  return list
end

--- The same without comments.
--- @param text string
--- @return ms_word[]
function M.code(text)
  local list = {}
  for _, word in ipairs(M.of(text)) do
    if word.kind ~= 'comment' then list[#list + 1] = word end
  end
  return list
end

return M
