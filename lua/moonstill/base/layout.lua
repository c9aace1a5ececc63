--- Texts laid out for a width: lines broken between words, and rows below each other. Widths are
--- those that a terminal shows.

local ffi = require 'ffi'
local C = require 'moonstill.C'
local check = require 'moonstill.base.check'

local M = {}

--- A blank at which no line ends.
M.TIE = '\194\160'

local INDENT = 6  -- of a row's last cell where there is no room beside the others
local LEAST = 24  -- columns that a last cell needs beside the others
local WIDEST = 24 -- of the other cells: a longer text stands out
local DOTS = '\226\128\166' -- …

local width_out = ffi.new 'int64_t[1]' -- scratch, read at once

--- The part of a text that fits into so many columns, how many it takes, and the rest.
--- @param text string
--- @param columns integer
--- @return string part
--- @return integer width
--- @return string rest
function M.fitting(text, columns)
  local bytes = tonumber(C.ms_text_fit(text, #text, columns, width_out))
  return text:sub(1, bytes), tonumber(width_out[0]), text:sub(bytes + 1)
end

--- How many columns of a terminal a text takes: a Chinese character two, an accent by itself none.
--- @param text string
--- @return integer
function M.width(text)
  if not text:find '[^ -~]' then return #text end
  local _, width = M.fitting(text, check.EXACT)
  return width
end

--- A text of at most so many columns: one that is longer ends with dots.
--- @param text string
--- @param columns integer
--- @return string
function M.cut(text, columns)
  if M.width(text) <= columns then return text end
  return columns < 1 and '' or (M.fitting(text, columns - 1)) .. DOTS
end

--- A text with blanks up to a width.
--- @param text string
--- @param columns integer
--- @param align? string 'left' (the default), 'right', 'middle'
--- @return string
function M.padded(text, columns, align)
  local room = math.max(0, columns - M.width(text))
  local left = align == 'right' and room or align == 'middle' and math.floor(room / 2) or 0
  return (' '):rep(left) .. text .. (' '):rep(room - left)
end

--- A text as lines of at most so many columns, broken between words; blanks and line breaks are all
--- alike. A word that is longer stands out.
--- @param text string
--- @param columns integer
--- @return string[] at least one
function M.wrap(text, columns)
  local lines, line = {}, nil
  for word in text:gmatch '%S+' do
    local longer = line and line .. ' ' .. word
    if longer and M.width(longer) > columns then
      lines[#lines + 1] = line
      longer = nil
    end
    line = longer or word
  end
  lines[#lines + 1] = line or ''
  for i, each in ipairs(lines) do lines[i] = each:gsub(M.TIE, ' ') end
  return lines
end

local function add_wrapped(lines, paragraph, columns)
  if #paragraph == 0 then return end
  for _, line in ipairs(M.wrap(table.concat(paragraph, ' '), columns)) do
    lines[#lines + 1] = line
  end
end

--- A text of paragraphs: lines that begin with a blank, such as code, and empty ones stay as they
--- are, all others are filled up to the width.
--- @param text string
--- @param columns integer
--- @param indent? integer blanks before each line, within the width
--- @return string without a line break at its end
function M.paragraphs(text, columns, indent)
  local lines, paragraph, before = {}, {}, (' '):rep(indent or 0)
  columns = columns - #before
  for line in (text .. '\n'):gmatch '(.-)\n' do
    if line:find '^%S' then
      paragraph[#paragraph + 1] = line
    else
      add_wrapped(lines, paragraph, columns)
      lines[#lines + 1], paragraph = line, {}
    end
  end
  add_wrapped(lines, paragraph, columns)
  for i, line in ipairs(lines) do lines[i] = line == '' and '' or before .. line end
  return table.concat(lines, '\n')
end

-- How wide each cell but the last is.
local function widths_of(rows)
  local widths = {}
  for _, row in ipairs(rows) do
    for c = 1, #row - 1 do
      widths[c] = math.max(widths[c] or 0, math.min(M.width(row[c]), WIDEST))
    end
  end
  return widths
end

local function add_row(lines, row, widths, start, columns)
  local head = ' '
  for c = 1, #row - 1 do head = head .. ' ' .. M.padded(row[c], widths[c]) .. ' ' end
  for i, line in ipairs(M.wrap(row[#row], columns - start)) do
    if i == 1 and start > INDENT and M.width(head) <= start then
      lines[#lines + 1] = M.padded(head, start) .. line
    else
      if i == 1 then lines[#lines + 1] = head end
      if line ~= '' then lines[#lines + 1] = (' '):rep(start) .. line end
    end
  end
end

--- Rows of cells below each other, indented by two. The last cell is wrapped below itself; where it
--- has no room beside the others it begins in a line of its own.
--- @param rows string[][] all with as many cells
--- @param columns integer
--- @return string a line break at its end, unless there is no row
function M.rows(rows, columns)
  local widths, lines, start = widths_of(rows), {}, 2
  for _, width in ipairs(widths) do start = start + width + 2 end
  if columns - start < LEAST then start = INDENT end
  for _, row in ipairs(rows) do add_row(lines, row, widths, start, columns) end
  for i, line in ipairs(lines) do lines[i] = line:gsub('%s+$', '') .. '\n' end
  return table.concat(lines)
end

return M
