--- Tables that fit a terminal, each row on a line of its own where that is wide enough.
---
---   for _, line in ipairs(columns.table({
---     { head = 'model' },                              -- the first column stays
---     { head = 'loss', align = 'right' },
---     { head = 'bytes', align = 'right', level = 9 },  -- the first to go where it is narrow
---     { head = 'what it is', wraps = 20 },             -- goes on in a line below before that
---   }, rows, screen.columns(1))) do print(line) end

local check = require 'moonstill.base.check'
local layout = require 'moonstill.base.layout'
local options = require 'moonstill.base.options'
local printable = require 'moonstill.base.printable'

local M = {}

local GAP = 2 -- between columns

local OF_COLUMN = { head = true, align = true, level = true, wraps = true }

-- A column with its cells and its width.
local function column_of(given, place, rows)
  options.known('columns: column ' .. place, OF_COLUMN, given)
  local column = { head = given.head, align = given.align, level = given.level or place - 1,
    wraps = given.wraps, cells = {}, widest = layout.width(given.head or '') }
  for r, row in ipairs(rows) do
    local cell = row[place]
    column.cells[r] = cell == nil and '' or printable((tostring(cell):gsub('%s+', ' ')))
    column.widest = math.max(column.widest, layout.width(column.cells[r]))
  end
  return column
end

-- Gives columns their widths: their own, or less for those that wrap (`all`: for all), of the
-- widest first. Returns whether they fit.
local function squeeze(list, most, all)
  local over = GAP * (#list - 1) - most
  for _, column in ipairs(list) do
    column.width = column.widest
    over = over + column.width
  end
  while over > 0 do
    local widest
    for _, column in ipairs(list) do
      local least = all and 1 or column.wraps
      local may = least and column.width > least
      if may and not (widest and widest.width >= column.width) then widest = column end
    end
    if not widest then return false end
    widest.width, over = widest.width - 1, over - 1
  end
  return true
end

local function least_important(list)
  local at
  for i, column in ipairs(list) do
    if column.level > 0 and not (at and list[at].level > column.level) then at = i end
  end
  return at
end

-- Leaves columns out until the others fit. Returns the heads of those that are left out.
local function fit(list, most)
  local left_out = {}
  while not squeeze(list, most) do
    local at = least_important(list)
    if not at then
      squeeze(list, most, true)
      break
    end
    table.insert(left_out, 1, table.remove(list, at).head)
  end
  return left_out
end

-- The lines of a cell. A word that is wider than its column is broken, as nothing else can be done.
local function lines_of(text, width)
  local lines = {}
  for _, line in ipairs(layout.wrap(text, width)) do
    while layout.width(line) > width do
      local part, _, rest = layout.fitting(line, width)
      if part == '' then break end -- a wide character in one column
      lines[#lines + 1], line = part, rest
    end
    lines[#lines + 1] = line
  end
  return lines
end

-- Adds the lines of one row.
local function add_row(lines, list, cell_of, indent)
  local texts, height = {}, 1
  for c, column in ipairs(list) do
    texts[c] = lines_of(cell_of(column), column.width)
    height = math.max(height, #texts[c])
  end
  for k = 1, height do
    local parts = {}
    for c, column in ipairs(list) do
      parts[c] = layout.padded(texts[c][k] or '', column.width, column.align)
    end
    lines[#lines + 1] = (indent .. table.concat(parts, (' '):rep(GAP))):gsub(' +$', '')
  end
end

--- A table as lines none of which is wider than `most`. Where the columns are wider together, those
--- with `wraps` are made narrower, down to so many columns, and go on in lines below; then the one
--- with the highest level is left out (of equals the last), and so on. Those of level 0, as the
--- first one is unless it says otherwise, stay: where they do not fit their words are broken.
--- @param list table[] a column each: `head`, its heading; `align`, see `layout.padded`; `level`,
---   how unimportant it is, default 0 for the first, 1 for the second and so on; `wraps`
--- @param rows any[][] of each row what its columns hold; nil is an empty cell
--- @param most integer columns of the terminal
--- @param indent? integer blanks before each line
--- @return string[] lines
--- @return string[] left_out the headings of the columns that did not fit
function M.table(list, rows, most, indent)
  check.integer('columns', 'most', most, 1, check.INT32)
  local shown, headed = {}, false
  for place, given in ipairs(list) do
    shown[place] = column_of(given, place, rows)
    headed = headed or given.head ~= nil
  end
  local before, lines = (' '):rep(indent or 0), {}
  local left_out = fit(shown, most - #before)
  if headed then add_row(lines, shown, function(column) return column.head or '' end, before) end
  for r = 1, #rows do
    add_row(lines, shown, function(column) return column.cells[r] end, before)
  end
  return lines, left_out
end

return M
