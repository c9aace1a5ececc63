--- Curves: as an SVG file, and sketched in the terminal.
---
--- A panel is a table: `title`, `x_label`, `y_label`, `log` (a logarithmic y axis), `y_min`,
--- `y_max`, and `series`, a list of { name, x = {..}, y = {..} } whose x ascend; `style`, a number,
--- gives a series the same look in several panels (default: its place). Points that are not finite,
--- beyond 1e300, below 1e-280 on a logarithmic axis, or null in JSON are left out; values that
--- agree in 12 digits are drawn as equal. The SVG needs no font, script or style from elsewhere.

local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local fail = require 'moonstill.base.fail'
local json = require 'moonstill.base.json'
local options_of = require 'moonstill.base.options'
local printable = require 'moonstill.base.printable'
local ranks = require 'moonstill.base.ranks'
local schema = require 'moonstill.base.schema'

local M = {}

--- What `svg` and `write` take.
M.options = schema.new('plot', {
  width = schema.option(560, 'of one panel in pixels', 'integer >= 160 <= 10000'),
  height = schema.option(360, 'of one panel in pixels', 'integer >= 160 <= 10000'),
})
--- What `sketch` takes.
M.sketch_options = schema.new('plot', {
  columns = schema.option(64, 'of the area inside', 'integer >= 1 <= 1000'),
  rows = schema.option(14, 'of the area inside', 'integer >= 1 <= 1000'),
})

-- Colours that the colour-blind can tell apart; the dashes repeat the difference.
local colours = { '#0072b2', '#d55e00', '#009e73', '#cc79a7', '#8a6d00', '#56b4e9' }
local dashes = { '', '7 3', '2 3', '9 3 2 3', '4 2', '1 2' }
local marks = { 'o', '+', 'x', '*', '#', '@' }

-- axes -------------------------------------------------------------------------------------------

-- What has a place on an axis: arithmetic with it stays finite, and finer than its steps.
local LARGEST, SMALLEST = 1e300, 1e-280

local function finite(v) return type(v) == 'number' and v >= -LARGEST and v <= LARGEST end

local function usable(panel, y) return finite(y) and (not panel.log or y >= SMALLEST) end

-- A range with room between its ends: ends that agree in 12 digits, and such as are almost 0, are
-- one value, which comes to stand in the middle.
local function widened(low, high)
  local size = math.max(math.abs(low), math.abs(high))
  local zero = size < SMALLEST
  if not zero and high - low > 1e-12 * size then return low, high end
  local room = zero and 1 or 0.1 * size
  return low - room, high + room
end

--- A step of 1, 2 or 5 times a power of ten that cuts `range` into at most `most` parts.
local function nice_step(range, most)
  local raw = range / most
  local power = 10 ^ math.floor(math.log10(raw))
  for _, factor in ipairs { 1, 2, 5, 10 } do
    if factor * power >= raw * (1 - 1e-9) then return factor * power end
  end
end

-- See M.ticks.
local function ticks(low, high, most)
  low, high = widened(low, high)
  local step = nice_step(high - low, most)
  local list = {}
  local first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
  for i = first, last do list[#list + 1] = i * step end
  return list, step
end

--- Round numbers from `low` to `high`, both ends widened to one of them.
--- @param low number
--- @param high number
--- @param most integer how many steps at most, between the given ends
--- @return number[] ticks ascending
--- @return number step
function M.ticks(low, high, most)
  check.number('plot', 'low', low, -LARGEST, LARGEST)
  check.number('plot', 'high', high, -LARGEST, LARGEST)
  check.integer('plot', 'most', most, 1, 1000)
  return ticks(low, high, most)
end

-- Decades; where there are few, 2 and 5 between them, where there are many, some of them; where all
-- is within a factor of 3, even steps, which are smaller than `low`.
local function log_ticks(low, high)
  if high < 3 * low then return ticks(low, high, 5) end
  local factors = math.log10(high / low) < 2.5 and { 1, 2, 5 } or { 1 }
  local first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
  local every = math.ceil((last - first) / 12)
  local list = {}
  for power = first, last + every - 1, every do
    for _, factor in ipairs(factors) do list[#list + 1] = factor * 10 ^ math.min(power, last) end
  end
  while #list > 2 and list[2] <= low do table.remove(list, 1) end
  while #list > 2 and list[#list - 1] >= high do table.remove(list) end
  return list
end

--- A tick's text: no more digits than its step needs.
--- @param value number
--- @param step? number default: the value's own
--- @return string
function M.label(value, step)
  check.number('plot', 'value', value, -1e308, 1e308)
  if step then check.number('plot', 'step', step, 1e-308, 1e308) end
  if value == 0 then return '0' end
  local size = math.abs(value)
  if size >= 1e6 or size < 1e-4 then
    return (('%.3g'):format(value):gsub('e([+-])0*(%d)', function(sign, digit)
      return 'e' .. (sign == '-' and '-' or '') .. digit
    end))
  end
  local power = math.floor(math.log10(step or size) + 1e-9)
  local digits = power < 0 and math.min(-power, 20) or 0
  return ('%.' .. digits .. 'f'):format(value)
end

local function extent(panel)
  local x0, x1, y0, y1 = math.huge, -math.huge, math.huge, -math.huge
  for _, s in ipairs(panel.series) do
    for i = 1, #s.x do
      if finite(s.x[i]) and usable(panel, s.y[i]) then
        x0, x1 = math.min(x0, s.x[i]), math.max(x1, s.x[i])
        y0, y1 = math.min(y0, s.y[i]), math.max(y1, s.y[i])
      end
    end
  end
  if x0 > x1 then x0, x1, y0, y1 = 0, 1, panel.log and 0.1 or 0, 1 end
  -- An end that was asked for stays; the other gives way.
  y0, y1 = panel.y_min or y0, panel.y_max or y1
  if y0 > y1 and panel.y_min then y1 = y0 else y0 = math.min(y0, y1) end
  return x0, x1, y0, y1
end

-- Ticks and the map from values to 0 .. 1 of both axes. x ends where the data end.
local function axes_of(panel, x_most, y_most)
  local x0, x1, y0, y1 = extent(panel)
  x0, x1 = widened(x0, x1)
  local xs, x_step = ticks(x0, x1, x_most)
  local room = 1e-3 * (x1 - x0) -- less than can be seen
  while #xs > 0 and xs[#xs] > x1 + room do xs[#xs] = nil end
  while #xs > 0 and xs[1] < x0 - room do table.remove(xs, 1) end
  local ys, y_step
  if panel.log then ys, y_step = log_ticks(y0, y1) else ys, y_step = ticks(y0, y1, y_most) end
  local function level(y) return panel.log and math.log(y) or y end
  local low, high = level(ys[1]), level(ys[#ys])
  return {
    xs = xs, ys = ys, x_step = x_step, y_step = y_step, x_low = x0, x_high = x1,
    x = function(v) return (v - x0) / (x1 - x0) end,
    y = function(v) return (level(v) - low) / (high - low) end,
  }
end

local function check_value(i, s, axis, k)
  local v = s[axis][k]
  if type(v) ~= 'number' and v ~= json.null then
    fail("plot: series %d ('%s'): %s[%d] is a %s, not a number", i, tostring(s.name), axis,
      k, type(v))
  end
end

local OF_PANEL = { title = true, x_label = true, y_label = true, log = true, y_min = true,
  y_max = true, series = true }
local OF_SERIES = { name = true, x = true, y = true, style = true }

local function check_series(i, s)
  if type(s) ~= 'table' or type(s.x) ~= 'table' or type(s.y) ~= 'table' or #s.x ~= #s.y then
    local name = type(s) == 'table' and s.name
    fail("plot: series %d ('%s') needs x and y of equal length", i, tostring(name))
  end
  options_of.known(('plot: series %d'):format(i), OF_SERIES, s)
  if s.style ~= nil then check.integer('plot', 'style', s.style, 1, check.INT32) end
  for k = 1, #s.x do check_value(i, s, 'x', k) check_value(i, s, 'y', k) end
end

local function check_panel(panel)
  if type(panel) ~= 'table' or type(panel.series) ~= 'table' or #panel.series == 0 then
    fail('plot: a panel needs a list of series')
  end
  options_of.known('plot: panel', OF_PANEL, panel)
  for _, end_of in ipairs { 'y_min', 'y_max' } do
    if panel[end_of] ~= nil then
      local least = panel.log and SMALLEST or -LARGEST
      check.number('plot', end_of, panel[end_of], least, LARGEST)
    end
  end
  if panel.y_min and panel.y_max and panel.y_min >= panel.y_max then
    fail('plot: y_min = %g is not below y_max = %g', panel.y_min, panel.y_max)
  end
  for i, s in ipairs(panel.series) do check_series(i, s) end
end

-- SVG --------------------------------------------------------------------------------------------

local escapes = { ['&'] = '&amp;', ['<'] = '&lt;', ['>'] = '&gt;', ['"'] = '&quot;' }
local function escape(text) return (printable(tostring(text)):gsub('[&<>"]', escapes)) end

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

local function put_axes(put, panel, axes, box)
  for _, v in ipairs(axes.ys) do
    local y = box.bottom - axes.y(v) * box.height
    put('<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="grid"/>', box.left, y, box.right, y)
    put_text(put, box.left - 8, y + 4, 'end', 'tick', M.label(v, axes.y_step))
  end
  for _, v in ipairs(axes.xs) do
    local x = box.left + axes.x(v) * box.width
    put('<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="axis"/>', x, box.bottom, x,
      box.bottom + 4)
    put_text(put, x, box.bottom + 18, 'middle', 'tick', M.label(v, axes.x_step))
  end
  put('<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="axis"/>', box.left, box.bottom,
    box.right, box.bottom)
  if panel.title then put_text(put, box.left, box.head, 'start', 'title', panel.title) end
  if panel.x_label then
    put_text(put, (box.left + box.right) / 2, box.bottom + 38, 'middle', 'label', panel.x_label)
  end
  if panel.y_label then
    local x, y = box.left - 46, (box.top + box.bottom) / 2
    put_text(put, x, y, 'middle', 'label', panel.y_label,
      (' transform="rotate(-90 %.1f %.1f)"'):format(x, y))
  end
end

local function look_of(s, place)
  local i = (s.style or place) - 1
  return colours[i % #colours + 1], dashes[i % #dashes + 1]
end

-- The line of a series; a point that cannot be drawn breaks it, and a point alone is a dot.
local function put_series(put, panel, axes, box, s, colour, dash)
  local run = {}
  local function finish()
    if #run == 1 then
      local x, y = run[1]:match '([^,]+),(.+)'
      put('<circle cx="%s" cy="%s" r="3" fill="%s"/>', x, y, colour)
    elseif #run > 1 then
      put('<polyline points="%s" stroke="%s"%s class="line"/>', table.concat(run, ' '), colour,
        dash ~= '' and (' stroke-dasharray="%s"'):format(dash) or '')
    end
    run = {}
  end
  for i = 1, #s.x do
    if finite(s.x[i]) and usable(panel, s.y[i]) then
      local x = box.left + axes.x(s.x[i]) * box.width
      local y = box.bottom - math.max(-0.02, math.min(1.02, axes.y(s.y[i]))) * box.height
      run[#run + 1] = ('%.1f,%.1f'):format(x, y)
    else
      finish()
    end
  end
  finish()
end

local LETTER, LINE = 6.6, 17 -- of the legend, in pixels

-- A text of at most `most` characters, cut at the end.
local function shortened(text, most)
  local first, count = {}, 0
  for letter in text:gmatch '[%z\1-\127\192-\255][\128-\191]*' do
    count = count + 1
    if count < most then first[count] = letter end
  end
  return count <= most and text or table.concat(first) .. '\226\128\166', math.min(count, most)
end

-- The names of a panel's series with their places, in as many lines as `width` asks for, and how
-- many lines those are. Where that is more than `most`, the last line says how many are left out.
local function legend_of(panel, width, most)
  local list, x, line = {}, 0, 0
  local letters_most = math.max(1, math.floor((width - 32) / LETTER))
  for i, s in ipairs(panel.series) do
    local name, letters = shortened(tostring(s.name or ('series ' .. i)), letters_most)
    local wide = 32 + LETTER * letters
    if x > 0 and x + wide > width then x, line = 0, line + 1 end
    if line == most then break end
    list[i] = { name = name, x = x, line = line }
    x = x + wide + 16
  end
  if line < most then return list, line + 1 end
  while #list > 0 and list[#list].line == most - 1 do list[#list] = nil end
  list[#list + 1] = { name = ('%d more'):format(#panel.series - #list), x = 0, line = most - 1,
    more = true }
  return list, most
end

local function put_legend(put, panel, legend, box)
  for i, entry in ipairs(legend) do
    local x, y = box.left + entry.x, box.top - 12 - LINE * (legend[#legend].line - entry.line)
    local colour, dash = look_of(panel.series[i], i)
    if not entry.more then
      put('<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"%s class="line"/>', x, y - 4,
        x + 26, y - 4, colour, dash ~= '' and (' stroke-dasharray="%s"'):format(dash) or '')
    end
    put_text(put, entry.more and x or x + 32, y, 'start', 'tick', entry.name)
  end
end

local style = [[<style>
text{font-family:Helvetica,Arial,"DejaVu Sans",sans-serif;fill:#222}
.title{font-size:15px;font-weight:bold}.label{font-size:13px}.tick{font-size:12px;fill:#444}
.grid{stroke:#e4e4e4}.axis{stroke:#555}
.line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
</style>]]

-- One panel, the place-th from the left.
local function put_panel(put, panel, place, width, height)
  local box = { left = (place - 1) * width + 72, right = place * width - 24, bottom = height - 52 }
  box.head = 28
  local top = box.head + 13
  local most = math.max(1, math.floor((box.bottom - top) / 2 / LINE)) -- the curves keep half
  local legend, lines = legend_of(panel, box.right - box.left, most)
  box.top = top + LINE * lines
  box.width, box.height = box.right - box.left, box.bottom - box.top
  local axes = axes_of(panel, math.max(2, math.floor(box.width / 75)),
    math.max(2, math.floor(box.height / 45)))
  put_axes(put, panel, axes, box)
  for k, s in ipairs(panel.series) do
    put_series(put, panel, axes, box, s, look_of(s, k))
  end
  put_legend(put, panel, legend, box)
end

local function picture(panels, options)
  if type(panels) ~= 'table' then fail('plot: a panel needs a list of series') end
  if panels.series or #panels == 0 then panels = { panels } end
  local o = schema.take('plot', M.options, options)
  local width, height = o.width, o.height
  for _, panel in ipairs(panels) do check_panel(panel) end
  local put, out = pen()
  put('<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d">',
    width * #panels, height, width * #panels, height)
  put(style)
  put '<rect width="100%" height="100%" fill="#fff"/>'
  for i, panel in ipairs(panels) do put_panel(put, panel, i, width, height) end
  put '</svg>\n'
  return table.concat(out, '\n')
end

--- The text of an SVG picture: panels side by side.
--- @param panels table a panel, or a list of panels
--- @param options? table see `options`
--- @return string
function M.svg(panels, options) return picture(panels, options) end

--- Writes an SVG file.
--- @param path string
--- @param panels table a panel, or a list of panels
--- @param options? table as for `svg`
function M.write(path, panels, options)
  local text = picture(panels, options)
  check.path('plot', path)
  if ranks.world().writes then check(C.ms_file_write(path, text, #text)) end
end

-- terminal ---------------------------------------------------------------------------------------

local function drawable(panel, s, i) return finite(s.x[i]) and usable(panel, s.y[i]) end

-- y of a series at x by straight lines between its points, or nil outside or beside a gap.
local function value_at(panel, s, x)
  for i = 1, #s.x - 1 do
    if drawable(panel, s, i) and drawable(panel, s, i + 1) then
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
    local alone = not (drawable(panel, s, i - 1) or drawable(panel, s, i + 1))
    if drawable(panel, s, i) and (alone or not met) then draw_point(axes, cells, s, i, mark) end
  end
end

local function y_labels(axes, rows)
  local labels, width = {}, 0
  for _, v in ipairs(axes.ys) do
    local r = rows - math.floor(axes.y(v) * (rows - 1) + 0.5)
    labels[r] = M.label(v, axes.y_step)
    width = math.max(width, #labels[r])
  end
  return labels, width
end

local function x_line(axes, columns, margin)
  local line = (' '):rep(margin)
  for _, v in ipairs(axes.xs) do
    local text = M.label(v, axes.x_step)
    local at = margin + math.floor(axes.x(v) * (columns - 1) + 0.5) - math.floor((#text - 1) / 2)
    at = math.min(at, margin + columns - #text)
    if at >= #line + (#line > margin and 1 or 0) or #line == margin then
      line = line .. (' '):rep(at - #line) .. text
    end
  end
  return line
end

--- A panel as lines of text, for a terminal: one mark a series, the later ones on top.
--- @param panel table
--- @param options? table see `sketch_options`
--- @return string
function M.sketch(panel, options)
  check_panel(panel)
  local o = schema.take('plot', M.sketch_options, options)
  local columns, rows = o.columns, o.rows
  local axes = axes_of(panel, math.max(2, math.floor(columns / 10)),
    math.max(2, math.floor(rows / 3)))
  local cells = blank(columns, rows)
  local names = {}
  for i, s in ipairs(panel.series) do
    local mark = marks[((s.style or i) - 1) % #marks + 1]
    draw_series(panel, axes, cells, s, mark)
    names[i] = mark .. ' ' .. tostring(s.name or ('series ' .. i))
  end
  local labels, width = y_labels(axes, rows)
  local lines = { printable((panel.title and panel.title .. '   ' or '')
    .. table.concat(names, '   ')) }
  for r = 1, rows do
    lines[#lines + 1] = (('%' .. width .. 's'):format(labels[r] or '') .. ' |'
      .. table.concat(cells[r])):gsub('%s+$', '')
  end
  lines[#lines + 1] = (' '):rep(width) .. ' +' .. ('-'):rep(columns)
  lines[#lines + 1] = x_line(axes, columns, width + 2)
    .. (panel.x_label and '  ' .. panel.x_label or '')
  return table.concat(lines, '\n') .. '\n'
end

return M
