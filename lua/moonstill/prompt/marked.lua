--- A sample as a text in which what is learnt stands out: in green on a terminal, in ⟦ ⟧ elsewhere.
--- Weights other than 0 and 1 stand before what they weigh.

local printable = require 'moonstill.base.printable'

local M = {}

-- SGR codes. Special tokens are bold: letters that spell one are not.
local PLAIN, LEARNT, WEIGHED, BOLD, FAINT = '0', '32', '33', '1', '2'
local OPEN, CLOSE, BORDER, LINE = '⟦', '⟧', '│', '↵'

-- The tokens as { text, weight, special }. A character of several tokens is the last one's text.
local function cells_of(tok, ids, n, weights)
  local cells, detokenizer = {}, tok:detokenizer()
  for t = 0, n - 1 do
    cells[t + 1] = { text = printable(detokenizer:add(ids[t])), special = tok:is_special(ids[t]),
      weight = t > 0 and weights[t - 1] or 0 }
  end
  cells[n].text = cells[n].text .. printable(detokenizer:finish())
  detokenizer:free()
  return cells
end

local function weight_text(weight) return ('%.4g'):format(weight) end

local function painted(codes, text)
  return text == '' and '' or ('\27[%sm%s\27[0m'):format(codes, text)
end

-- A cell in colours. Each line has codes of its own, as pagers want them; an end of a line that is
-- learnt, or a token by itself, is seen.
local function coloured(cell, tokens)
  local weight = cell.weight
  local codes = weight == 0 and PLAIN or weight == 1 and LEARNT or WEIGHED
  if cell.special then codes = codes .. ';' .. BOLD end
  local mark = (weight ~= 0 or tokens) and LINE or ''
  local parts = {}
  for line, ending in (cell.text .. '\0'):gmatch '([^\n%z]*)([\n%z])' do
    parts[#parts + 1] = painted(codes, ending == '\n' and line .. mark or line)
    parts[#parts + 1] = ending == '\n' and '\n' or ''
  end
  return table.concat(parts)
end

local function in_colours(cells, tokens)
  local parts, before = {}, 0
  for i, cell in ipairs(cells) do
    if tokens and i > 1 then parts[#parts + 1] = painted(FAINT, BORDER) end
    if cell.weight ~= before and cell.weight ~= 0 and cell.weight ~= 1 then
      parts[#parts + 1] = painted(WEIGHED .. ';7', ' ' .. weight_text(cell.weight) .. ' ')
    end
    before = cell.weight
    parts[#parts + 1] = coloured(cell, tokens)
  end
  return table.concat(parts)
end

local function opening(weight)
  return weight == 1 and OPEN or OPEN .. weight_text(weight) .. ': '
end

local function in_brackets(cells, tokens)
  local parts, before = {}, 0
  for i, cell in ipairs(cells) do
    local change = cell.weight ~= before
    if change and before ~= 0 then parts[#parts + 1] = CLOSE end
    if tokens and i > 1 then parts[#parts + 1] = BORDER end
    if change and cell.weight ~= 0 then parts[#parts + 1] = opening(cell.weight) end
    before = cell.weight
    parts[#parts + 1] = tokens and cell.text:gsub('\n', LINE .. '\n') or cell.text
  end
  if before ~= 0 then parts[#parts + 1] = CLOSE end
  return table.concat(parts)
end

--- A sample's text, for a terminal or a file; control characters are escaped.
--- @param tok ms_tokenizer
--- @param ids ffi.cdata* int32_t[n]
--- @param n integer
--- @param weights ffi.cdata* float[n], of the predicting positions
--- @param options { colours: boolean, tokens: boolean } tokens: a line between any two
--- @return string
function M.text(tok, ids, n, weights, options)
  local cells = cells_of(tok, ids, n, weights)
  return (options.colours and in_colours or in_brackets)(cells, options.tokens)
end

return M
