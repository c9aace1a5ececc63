--- Curves as the text of an SVG picture. How wide its texts are is not known: wide letters are
--- assumed, so that they stay inside with any font.
local axes_of = require 'moonstill.plot.axes'
local layout = require 'moonstill.base.layout'
local panels = require 'moonstill.plot.panels'

local M = {}

-- In pixels: how wide a letter of a text is, and how far apart its lines are.
local TITLE = { letter = 9, line = 19, anchor = 'start', class = 'title' }
local LABEL = { letter = 7.2, line = 16, anchor = 'middle', class = 'label' }
local NAME = { letter = 6.6, line = 17, anchor = 'start', class = 'tick' }
local DIGIT = 7.6          -- width of one, of ticks
local LEFT, RIGHT = 72, 24 -- beside the curves; left is more where ticks are long
local HEAD, FOOT = 28, 52  -- of the title's first line; below the curves
local KEY = 32             -- of a series in the legend: its line, before its name
local NAME_LINES = 3       -- at most, of one name in the legend
local BETWEEN_MARKS = 48
local HEIGHT, HIGHEST = 360, 1080 -- where no height is given

-- texts ------------------------------------------------------------------------------------------

local escapes = { ['&'] = '&amp;', ['<'] = '&lt;', ['>'] = '&gt;', ['"'] = '&quot;' }

-- A text for XML, which has no place for the two last characters of Unicode's first plane.
local function escape(text)
  return (panels.text(text):gsub('\239\191[\190\191]', '\239\191\189'):gsub('[&<>"]', escapes))
end

local function pen()
  local out = {}
  local function put(text, ...)
    out[#out + 1] = select('#', ...) > 0 and text:format(...) or text
  end
  return put, out
end

local function put_text(put, x, y, anchor, class, text, more)
  put('<text x="%.1f" y="%.1f" text-anchor="%s" class="%s"%s>%s</text>', x, y, anchor, class,
    more or '', escape(text))
end

-- A text in at most so many lines, none wider than `width`; what does not fit is cut off with dots.
local function lines_of(text, kind, width, most)
  if text == nil then return {} end
  local columns = math.max(1, math.floor(width / kind.letter))
  local lines = layout.wrap(panels.text(text), columns)
  if #lines > most then
    lines[most] = table.concat(lines, ' ', most)
    for i = #lines, most + 1, -1 do lines[i] = nil end
  end
  for i, line in ipairs(lines) do lines[i] = layout.cut(line, columns) end
  return lines
end

local function put_lines(put, lines, kind, x, y)
  for i, line in ipairs(lines) do
    put_text(put, x, y + (i - 1) * kind.line, kind.anchor, kind.class, line)
  end
end

-- legend -----------------------------------------------------------------------------------------

-- The names of a panel's series with their places, and how many lines that are. Where they are more
-- than `most`, the last line says how many names are left out.
local function legend_of(panel, width, most)
  local list, x, line, height = {}, 0, 0, 0
  for i, s in ipairs(panel.series) do
    local names, letters = lines_of(panels.name(s, i), NAME, width - KEY, NAME_LINES), 0
    for _, name in ipairs(names) do letters = math.max(letters, layout.width(name)) end
    local wide = KEY + NAME.letter * letters
    if x > 0 and x + wide > width then x, line, height = 0, line + height, 0 end
    height = math.max(height, #names)
    if line + height > most then break end
    list[i] = { names = names, x = x, line = line, look = panels.look(s, i) }
    x = x + wide + 16
  end
  if #list == #panel.series then return list, line + height end
  while #list > 0 and list[#list].line + #list[#list].names > most - 1 do list[#list] = nil end
  local more = ('%d more'):format(#panel.series - #list)
  list[#list + 1] = { names = { more }, x = -KEY, line = most - 1 }
  return list, most
end

-- A mark of a shape.
local function put_shape(put, shape, x, y, colour)
  local path = {
    circle = 'M-3.4,0a3.4,3.4 0 1,0 6.8,0a3.4,3.4 0 1,0 -6.8,0z', square = 'M-3,-3h6v6h-6z',
    triangle = 'M0,-4.2l4,7h-8z', diamond = 'M0,-4.6l4.2,4.6l-4.2,4.6l-4.2,-4.6z',
    cross = 'M-3.6,-2.4l1.2,-1.2l2.4,2.4l2.4,-2.4l1.2,1.2l-2.4,2.4l2.4,2.4l-1.2,1.2l-2.4,-2.4'
      .. 'l-2.4,2.4l-1.2,-1.2l2.4,-2.4z',
  }
  put('<path d="%s" transform="translate(%.1f %.1f)" fill="%s" class="mark %s"/>', path[shape],
    x, y, colour, shape)
end

local function dashes(look)
  return look.dash ~= '' and (' stroke-dasharray="%s"'):format(look.dash) or ''
end

local function put_legend(put, legend, lines, box)
  for _, entry in ipairs(legend) do
    local x, y = box.left + entry.x, box.top - 12 - NAME.line * (lines - 1 - entry.line)
    local look = entry.look
    if look then
      put('<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"%s class="line"/>', x, y - 4,
        x + KEY - 6, y - 4, look.colour, dashes(look))
      if look.shape then put_shape(put, look.shape, x + KEY / 2 - 3, y - 4, look.colour) end
    end
    put_lines(put, entry.names, NAME, x + KEY, y)
  end
end

-- axes -------------------------------------------------------------------------------------------

local function put_y_axis(put, axes, box, lines)
  for i, v in ipairs(axes.ys) do
    local y = box.bottom - axes.y(v) * box.height
    put('<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="grid"/>', box.left, y, box.right, y)
    put_text(put, box.left - 8, y + 4, 'end', 'tick', axes.y_labels[i])
  end
  local y = (box.top + box.bottom) / 2
  for i, line in ipairs(lines) do
    local x = box.left - box.beside - (#lines - i) * LABEL.line
    put_text(put, x, y, 'middle', 'label', line,
      (' transform="rotate(-90 %.1f %.1f)"'):format(x, y))
  end
end

local function put_x_axis(put, axes, box, lines)
  for i, v in ipairs(axes.xs) do
    local x, text = box.left + axes.x(v) * box.width, axes.x_labels[i]
    put('<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="axis"/>', x, box.bottom, x,
      box.bottom + 4)
    local inside = box.right + RIGHT - DIGIT * #text / 2
    put_text(put, math.min(x, inside), box.bottom + 18, 'middle', 'tick', text)
  end
  put('<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="axis"/>', box.left, box.bottom,
    box.right, box.bottom)
  put_lines(put, lines, LABEL, (box.left + box.right) / 2, box.bottom + 38)
end

-- curves -----------------------------------------------------------------------------------------

-- The line of a series; a point that cannot be drawn breaks it, and a point alone is a dot. Marks
-- stand on it at some distance, those of series beside each other not in the same places.
local function put_series(put, panel, axes, box, s, place)
  local look, run, marked = panels.look(s, place), {}, -math.huge
  local function finish()
    if #run == 1 then
      put('<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>', run[1].x, run[1].y, look.colour)
    elseif #run > 1 then
      local points = {}
      for i, point in ipairs(run) do points[i] = ('%.1f,%.1f'):format(point.x, point.y) end
      put('<polyline points="%s" stroke="%s"%s class="line"/>', table.concat(points, ' '),
        look.colour, dashes(look))
    end
    for _, point in ipairs(look.shape and run or {}) do
      local first = marked < 0 and (place * 13) % BETWEEN_MARKS or marked + BETWEEN_MARKS
      if #run == 1 or point.x - box.left >= first then
        marked = point.x - box.left
        put_shape(put, look.shape, point.x, point.y, look.colour)
      end
    end
    run = {}
  end
  for i = 1, #s.x do
    if axes_of.has_place(panel, s, i) then
      run[#run + 1] = { x = box.left + axes.x(s.x[i]) * box.width,
        y = box.bottom - math.max(-0.02, math.min(1.02, axes.y(s.y[i]))) * box.height }
    else
      finish()
    end
  end
  finish()
end

-- panels -----------------------------------------------------------------------------------------

-- The axes of a box, with ticks as far apart as their texts are long.
local function axes_for(panel, box)
  local y_most, y_room = math.max(2, math.floor(box.height / 45)), math.floor(box.height / 18)
  local axes = axes_of.of(panel, math.max(2, math.floor(box.width / 75)), y_most, y_room)
  local apart = DIGIT * axes.x_widest + 16
  if apart <= 75 then return axes end
  return axes_of.of(panel, math.max(1, math.floor(box.width / apart)), y_most, y_room)
end

-- Where all of a panel stands, the place-th from the left, with so much beside its curves.
local function arrange(panel, place, width, height, left)
  local box = { left = (place - 1) * width + left, right = place * width - RIGHT }
  box.width = box.right - box.left
  local most = math.max(1, math.floor(height / 120)) -- lines of the title and of a label
  local title = lines_of(panel.title, TITLE, box.width, most)
  local x_label = lines_of(panel.x_label, LABEL, box.width, most)
  local top = HEAD + math.max(0, #title - 1) * TITLE.line + 13
  box.bottom = height - FOOT - math.max(0, #x_label - 1) * LABEL.line
  local rows = math.max(1, math.floor((box.bottom - top) / 2 / NAME.line)) -- the curves keep half
  local legend, lines = legend_of(panel, box.width, rows)
  box.top = top + NAME.line * lines
  box.height = box.bottom - box.top
  local y_label = lines_of(panel.y_label, LABEL, box.height, math.max(1, math.floor(width / 180)))
  local axes = axes_for(panel, box)
  box.beside = math.max(46, 8 + DIGIT * axes.y_widest + 8)
  local needed = math.max(8 + DIGIT * axes.y_widest + 4,
    #y_label > 0 and box.beside + 16 + (#y_label - 1) * LABEL.line or 0)
  return { box = box, axes = axes, title = title, x_label = x_label, y_label = y_label,
    legend = legend, lines = lines, needed = math.min(math.ceil(needed), width - RIGHT - 40) }
end

local function put_panel(put, panel, place, width, height)
  local all = arrange(panel, place, width, height, LEFT)
  if all.needed > LEFT then all = arrange(panel, place, width, height, all.needed) end
  put_y_axis(put, all.axes, all.box, all.y_label)
  put_x_axis(put, all.axes, all.box, all.x_label)
  put_lines(put, all.title, TITLE, all.box.left, HEAD)
  for k, s in ipairs(panel.series) do put_series(put, panel, all.axes, all.box, s, k) end
  put_legend(put, all.legend, all.lines, all.box)
end

-- The height that leaves the curves their half below all names.
local function height_for(list, width)
  local height = HEIGHT
  for _, panel in ipairs(list) do
    local inner = width - LEFT - RIGHT
    local _, lines = legend_of(panel, inner, math.floor(HIGHEST / 2 / NAME.line))
    local most = math.floor(HEIGHT / 120)
    local above = HEAD + 13 + (#lines_of(panel.title, TITLE, inner, most) - 1) * TITLE.line
    local below = FOOT + (#lines_of(panel.x_label, LABEL, inner, most) - 1) * LABEL.line
    height = math.max(height, above + below + 2 * NAME.line * (lines + 1))
  end
  return math.min(height, HIGHEST)
end

local STYLE = [[<style>
text{font-family:Helvetica,Arial,"DejaVu Sans",sans-serif;fill:#222}
.title{font-size:15px;font-weight:bold}.label{font-size:13px}.tick{font-size:12px;fill:#444}
.grid{stroke:#e4e4e4}.axis{stroke:#555}
.line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
</style>]]

--- The text of a picture: panels side by side.
--- @package
--- @param list table[] panels that were checked
--- @param width integer of one panel in pixels
--- @param height? integer nil: enough for all names, within bounds
--- @return string
function M.text(list, width, height)
  local put, out = pen()
  height = height or height_for(list, width)
  put('<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d">',
    width * #list, height, width * #list, height)
  put(STYLE)
  put '<rect width="100%" height="100%" fill="#fff"/>'
  for i, panel in ipairs(list) do put_panel(put, panel, i, width, height) end
  put '</svg>\n'
  return table.concat(out, '\n')
end

return M
