--- Names that there are and words that are none of them: what was meant, and errors that say it.
local fail = require 'moonstill.base.fail'
local sorted = require 'moonstill.base.sorted'

-- Edits (insert, delete, replace, swap neighbours) from `a` to `b`.
local function distance(a, b)
  local two, one = {}, {}
  for j = 0, #b do one[j] = j end
  for i = 1, #a do
    local row = { [0] = i }
    for j = 1, #b do
      local same = a:byte(i) == b:byte(j)
      row[j] = math.min(one[j] + 1, row[j - 1] + 1, one[j - 1] + (same and 0 or 1))
      if i > 1 and j > 1 and a:byte(i) == b:byte(j - 1) and a:byte(i - 1) == b:byte(j) then
        row[j] = math.min(row[j], two[j - 2] + 1)
      end
    end
    two, one = one, row
  end
  return one[#b]
end

local function last_word(name) return name:match '[^.]*$' end

--- The one of `names` that a word which is none of them may have meant, or nil. Of names with dots
--- the last word may have been meant alone; a beginning is as good as one edit.
--- @param word string
--- @param names string[]
--- @return string?
local function nearest(word, names)
  local best, least = nil, math.min(3, #word) -- of short words too much may be changed
  for _, name in ipairs(names) do
    local d = math.min(distance(word, name), distance(last_word(word), last_word(name)) + 0.5)
    if #word > 1 and name:sub(1, #word) == word then d = math.min(d, 1) end
    if d < least then best, least = name, d end
  end
  return best
end

--- What to say of a word that is none of `names`: the one that was meant, or which there are.
--- @param word any
--- @param names string[]
--- @return string
local function instead(word, names)
  local near = nearest(tostring(word), names)
  return near and ("did you mean '%s'?"):format(near) or 'there are ' .. table.concat(names, ', ')
end

local function unknown(what, there_are, key)
  local names = sorted.keys(there_are)
  return ("%s: no option '%s'; %s"):format(what, tostring(key), instead(key, names))
end

--- An error when `given` has a key that is none of `names`: for options without a fixed default.
--- @param what string what errors begin with
--- @param names table<string, any> the keys there are
--- @param given? table
--- @return table given, or an empty table
local function known(what, names, given)
  if given == nil then return {} end
  if type(given) ~= 'table' then
    fail('%s: options are a %s, not a table', what, type(given))
  end
  for key in sorted.pairs(given) do
    if names[key] == nil then fail(unknown(what, names, key)) end
  end
  return given
end

return { known = known, nearest = nearest, instead = instead }
