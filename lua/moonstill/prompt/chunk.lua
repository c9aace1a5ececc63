--- What is typed at the prompt as a function: an expression gives its values, and so does a last
--- expression behind statements.
local words = require 'moonstill.prompt.words'

local M = {}

local NAME = '=prompt' -- how errors call the chunk

-- A call in the place of an expression's value must not be a tail call, which would leave no line
-- to blame: the values go through the chunk's first argument, a function that returns them.
local PASS = 'return (...)(%s)'

-- The text up to the last word that is neither a comment nor a semicolon.
local function trimmed(text)
  local list = words.code(text)
  local last = #list
  while last > 0 and list[last].text == ';' do last = last - 1 end
  return last > 0 and text:sub(1, list[last].to) or ''
end

local function load_expression(before, text)
  local chunk, why = loadstring(before .. 'return ' .. text, NAME)
  if not chunk then return nil, why end
  return loadstring(before .. PASS:format(trimmed(text)), NAME) or chunk
end

local VALUES = { ['nil'] = true, ['true'] = true, ['false'] = true, ['end'] = true, [')'] = true,
  [']'] = true, ['}'] = true, ['...'] = true }

-- Whether a statement may end with a word.
local function may_end(word)
  return word.kind == 'name' or word.kind == 'number' or word.kind == 'string' or VALUES[word.text]
    or word.text == 'break'
end

-- Whether a word cannot go on with what stands before it: there a statement begins.
local function begins(word, before)
  return before.text == ';' or word.kind == 'name' and may_end(before)
end

-- Whether it may begin an expression: only where the text is no chunk as it stands.
local function may_begin(word, before)
  return begins(word, before)
    or may_end(before) and (word.text == '#' or word.kind ~= 'sign' and word.kind ~= 'string')
end

-- Splits statements from a last expression: a function, or nil and whether more lines could help.
local function load_split(text, is_start)
  local list, unfinished = words.code(text), false
  for i = #list, 2, -1 do
    local word = list[i]
    if word.depth == 0 and is_start(word, list[i - 1]) then
      local before = text:sub(1, word.from - 1)
      local chunk, why = load_expression('', text:sub(word.from))
      local early = not chunk and why:find("near '<eof>'", 1, true)
      if (chunk or early) and loadstring(before, NAME) then
        if chunk then return load_expression(before, text:sub(word.from)) end
        unfinished = true
      end
    end
  end
  return nil, unfinished
end

-- "'<eof>' expected near 'x'" is the other way round: there is too much. A string in quotes ends
-- with its line.
local function ends_early(why)
  return why:find("near '<eof>'", 1, true) and not why:find('unfinished string', 1, true) and true
end

--- Compiles what was typed.
--- @param text string
--- @return function? chunk its first argument returns what it is given
--- @return string? why not
--- @return boolean? unfinished more lines could make it whole
function M.compile(text)
  local source = text:gsub('^%s*=', '', 1)
  local chunk, not_value = load_expression('', source)
  if chunk or #source < #text then return chunk, not_value, not_value and ends_early(not_value) end
  local whole, why = loadstring(text, NAME)
  local split, unfinished = load_split(text, whole and begins or may_begin)
  if split or whole then return split or whole end
  local first = words.code(text)[1]
  -- a statement's error at the first word says nothing of an expression
  if first and why:find('near ' .. ("'%s'"):format(first.text), 1, true) then why = not_value end
  return nil, why, unfinished or ends_early(not_value) or ends_early(why)
end

-- The names that a local statement declares, and its word behind them; `i` is that of `local`.
local function declared(list, i)
  local names = {}
  if list[i + 1] and list[i + 1].text == 'function' then i = i + 1 end
  repeat
    i = i + 1
    names[#names + 1] = list[i] and list[i].text
    i = i + 1
  until not list[i] or list[i].text ~= ','
  return names, i
end

--- The locals of a whole text that nothing in it uses, in their order: they end with it.
--- @param text string
--- @return string[]
function M.unused_locals(text)
  local list, order, unused, i = words.code(text), {}, {}, 1
  while list[i] do
    local word = list[i]
    if word.depth == 0 and word.text == 'local' then
      local names
      names, i = declared(list, i)
      for _, name in ipairs(names) do order[#order + 1], unused[name] = name, true end
    else
      if word.kind == 'name' and list[i - 1] and list[i - 1].text ~= '.' then
        unused[word.text] = nil
      end
      i = i + 1
    end
  end
  local left = {}
  for _, name in ipairs(order) do
    if unused[name] then left[#left + 1], unused[name] = name, nil end
  end
  return left
end

return M
