--- Curves: as an SVG file, and sketched in the terminal.
---
--- A panel is a table: `title`, `x_label`, `y_label`, `log` (a logarithmic y axis), `y_min`,
--- `y_max`, and `series`, a list of { name, x = {..}, y = {..} } whose x ascend; `style`, a number,
--- gives a series the same look in several panels (default: its place): a colour and dashes,
--- beyond six of them with marks on the line. Points that are not finite, beyond 1e300, below
--- 1e-280 on a logarithmic axis, or null in JSON are left out; values that agree in 12 digits are
--- drawn as equal. The SVG needs no font, script or style from elsewhere.
local axes = require 'moonstill.plot.axes'
local check = require 'moonstill.base.check'
local fail = require 'moonstill.base.fail'
local panels_of = require 'moonstill.plot.panels'
local ranks = require 'moonstill.base.ranks'
local schema = require 'moonstill.base.schema'
local screen = require 'moonstill.base.screen'
local sketch = require 'moonstill.plot.sketch'
local svg = require 'moonstill.plot.svg'

local M = {}

--- What `svg` and `write` take.
M.options = schema.new('plot', {
  width = schema.option(560, 'of one panel in pixels', 'integer >= 160 <= 10000'),
  height = schema.option('auto', 'of one panel in pixels; auto: 360, more where the names of many '
    .. 'series ask for it', 'auto|integer >= 160 <= 10000'),
})
--- What `sketch` takes.
M.sketch_options = schema.new('plot', {
  columns = schema.option('auto', 'of the area inside; auto: as the terminal is wide',
    'auto|integer >= 1 <= 1000'),
  rows = schema.option(14, 'of the area inside', 'integer >= 1 <= 1000'),
})

local function picture(panels, options)
  if type(panels) ~= 'table' then fail('plot: a panel needs a list of series') end
  if panels.series or #panels == 0 then panels = { panels } end
  local o = schema.take('plot', M.options, options)
  for _, panel in ipairs(panels) do panels_of.check(panel) end
  return svg.text(panels, o.width, o.height ~= 'auto' and o.height or nil)
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
  ranks.write_file(path, text)
end

--- A panel as lines of text, for a terminal: one letter a series, the later ones on top.
--- @param panel table
--- @param options? table see `sketch_options`
--- @return string
function M.sketch(panel, options)
  panels_of.check(panel)
  local o = schema.take('plot', M.sketch_options, options)
  return sketch.text(panel, o.columns ~= 'auto' and o.columns or nil, o.rows, screen.page())
end

--- Round numbers from `low` to `high`, both ends widened to one of them.
--- @param low number
--- @param high number
--- @param most integer how many steps at most, between the given ends
--- @return number[] ticks ascending
--- @return number step
function M.ticks(low, high, most)
  check.number('plot', 'low', low, -axes.LARGEST, axes.LARGEST)
  check.number('plot', 'high', high, -axes.LARGEST, axes.LARGEST)
  check.integer('plot', 'most', most, 1, 1000)
  return axes.ticks(low, high, most)
end

--- A tick's text: no more digits than its step needs.
--- @param value number
--- @param step? number default: the value's own
--- @return string
function M.label(value, step)
  check.number('plot', 'value', value, -1e308, 1e308)
  if step then check.number('plot', 'step', step, 1e-308, 1e308) end
  return axes.label(value, step)
end

return M
