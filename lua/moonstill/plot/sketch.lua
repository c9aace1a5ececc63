--- Curves as lines of text, for a terminal.
local axes_of = require 'moonstill.plot.axes'
local layout = require 'moonstill.base.layout'
local panels = require 'moonstill.plot.panels'

local M = {}

local BESIDE = 2 -- columns of the axis: " |"

-- marks ------------------------------------------------------------------------------------------

-- y of a series at x by straight lines between its points, or nil outside or beside a gap.
local function value_at(panel, s, x)
  for i = 1, #s.x - 1 do
    if axes_of.has_place(panel, s, i) and axes_of.has_place(panel, s, i + 1) then
      local a, b = s.x[i], s.x[i + 1]
      if x >= a and x <= b then
        return b == a and s.y[i] or s.y[i] + (s.y[i + 1] - s.y[i]) * ((x - a) / (b - a))
      end
    end
  end
end

local function blank(columns, rows)
  local cells = {}
  for r = 1, rows do
    cells[r] = {}
    for c = 1, columns do cells[r][c] = ' ' end
  end
  return cells
end

local function draw_mark(axes, cells, c, y, mark)
  local at, rows = axes.y(y), #cells
  if at < -0.5 / rows or at > 1 + 0.5 / rows then return end
  local r = rows - math.floor(at * (rows - 1) + 0.5)
  cells[math.max(1, math.min(rows, r))][c] = mark
end

local function draw_point(axes, cells, s, i, mark)
  draw_mark(axes, cells, 1 + math.floor(axes.x(s.x[i]) * (#cells[1] - 1) + 0.5), s.y[i], mark)
end

-- A line where there is one. A point alone is in no line, and a line that rises between two columns
-- meets none of them.
local function draw_series(panel, axes, cells, s, mark)
  local columns, met = #cells[1], false
  for c = 1, columns do
    local part = columns > 1 and (c - 1) / (columns - 1) or 0
    local y = value_at(panel, s, axes.x_low + (axes.x_high - axes.x_low) * part)
    if y then draw_mark(axes, cells, c, y, mark) end
    met = met or y ~= nil
  end
  for i = 1, #s.x do
    local alone = not (axes_of.has_place(panel, s, i - 1) or axes_of.has_place(panel, s, i + 1))
    if axes_of.has_place(panel, s, i) and (alone or not met) then
      draw_point(axes, cells, s, i, mark)
    end
  end
end

-- around them ------------------------------------------------------------------------------------

-- The lines of the title and of the names, which begin anew where the next one does not fit.
local function put_head(lines, panel, width)
  if panel.title then
    for _, line in ipairs(layout.wrap(panels.text(panel.title), width)) do
      lines[#lines + 1] = line
    end
  end
  local line
  for i, s in ipairs(panel.series) do
    local name = panels.look(s, i).mark .. ' ' .. panels.name(s, i)
    local longer = line and line .. '   ' .. name
    if longer and layout.width(longer) > width then
      lines[#lines + 1] = line
      longer = nil
    end
    line = longer or name
    if layout.width(line) > width then line = layout.cut(line, width) end
  end
  lines[#lines + 1] = line
end

local function y_labels(axes, rows)
  local labels = {}
  for i, v in ipairs(axes.ys) do
    labels[rows - math.floor(axes.y(v) * (rows - 1) + 0.5)] = axes.y_labels[i]
  end
  return labels
end

local function x_line(axes, columns, margin)
  local line = (' '):rep(margin)
  for i, v in ipairs(axes.xs) do
    local text = axes.x_labels[i]
    local at = margin + math.floor(axes.x(v) * (columns - 1) + 0.5) - math.floor((#text - 1) / 2)
    at = math.max(margin, math.min(at, margin + columns - #text))
    if at >= #line + (#line > margin and 1 or 0) or #line == margin then
      line = line .. (' '):rep(at - #line) .. text
    end
  end
  return line
end

-- The label of x: behind its ticks, or below them where there is no room.
local function put_x_label(lines, label, width)
  label = panels.text(label)
  if layout.width(lines[#lines]) + 2 + layout.width(label) <= width then
    lines[#lines] = lines[#lines] .. '  ' .. label
    return
  end
  for _, line in ipairs(layout.wrap(label, width)) do
    lines[#lines + 1] = layout.padded(line, width, 'right')
  end
end

-- The axes of an area of so many columns, or of one that fits `width` with what stands beside it.
local function arrange(panel, columns, rows, width)
  local y_most, y_room = math.max(2, math.floor(rows / 3)), math.floor(rows / 2)
  local function axes_for(area)
    return axes_of.of(panel, math.max(2, math.floor(area / 10)), y_most, y_room)
  end
  if columns then return axes_for(columns), columns end
  columns = math.max(1, width - BESIDE - axes_for(width).y_widest)
  return axes_for(columns), columns
end

--- A panel as lines of text: one letter a series, the later ones on top.
--- @package
--- @param panel table
--- @param columns? integer of the area inside; nil: so many that all fits the width
--- @param rows integer of the area inside
--- @param width integer columns of a line
--- @return string
function M.text(panel, columns, rows, width)
  local axes
  axes, columns = arrange(panel, columns, rows, width)
  local margin = axes.y_widest + BESIDE
  width = math.max(width, margin + columns)
  local cells, lines = blank(columns, rows), {}
  for i, s in ipairs(panel.series) do
    draw_series(panel, axes, cells, s, panels.look(s, i).mark)
  end
  put_head(lines, panel, width)
  local labels = y_labels(axes, rows)
  for r = 1, rows do
    local label = layout.padded(labels[r] or '', axes.y_widest, 'right')
    lines[#lines + 1] = (label .. ' |' .. table.concat(cells[r])):gsub('%s+$', '')
  end
  lines[#lines + 1] = (' '):rep(axes.y_widest) .. ' +' .. ('-'):rep(columns)
  lines[#lines + 1] = x_line(axes, columns, margin)
  if panel.x_label then put_x_label(lines, panel.x_label, width) end
  return table.concat(lines, '\n') .. '\n'
end

return M
