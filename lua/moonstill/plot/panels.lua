--- Panels as users give them: what is wrong with one, and how each series looks.
local axes = require 'moonstill.plot.axes'
local check = require 'moonstill.base.check'
local fail = require 'moonstill.base.fail'
local json = require 'moonstill.base.json'
local options_of = require 'moonstill.base.options'
local printable = require 'moonstill.base.printable'

local M = {}

-- checks -----------------------------------------------------------------------------------------

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

--- An error unless a value is a panel.
--- @package
--- @param panel any
function M.check(panel)
  if type(panel) ~= 'table' or type(panel.series) ~= 'table' or #panel.series == 0 then
    fail('plot: a panel needs a list of series')
  end
  options_of.known('plot: panel', OF_PANEL, panel)
  for _, end_of in ipairs { 'y_min', 'y_max' } do
    if panel[end_of] ~= nil then
      local least = panel.log and axes.SMALLEST or -axes.LARGEST
      check.number('plot', end_of, panel[end_of], least, axes.LARGEST)
    end
  end
  if panel.y_min and panel.y_max and panel.y_min >= panel.y_max then
    fail('plot: y_min = %g is not below y_max = %g', panel.y_min, panel.y_max)
  end
  for i, s in ipairs(panel.series) do check_series(i, s) end
end

-- looks ------------------------------------------------------------------------------------------

-- Colours that the colour-blind can tell apart; the dashes repeat the difference.
local COLOURS = { '#0072b2', '#d55e00', '#009e73', '#cc79a7', '#8a6d00', '#56b4e9' }
local DASHES = { '', '7 3', '2 3', '9 3 2 3', '4 2', '1 2' }
-- On the lines beyond as many as there are colours: each group of these has its own.
local SHAPES = { false, 'circle', 'square', 'triangle', 'diamond', 'cross' }
-- In a terminal. Letters that look like one of the first signs are left out.
local MARKS = 'o+x*#@ABCDEFGHIJKLMNPQRSTUVWYZ%&$=~'

--- How a series is drawn: its colour, dashes ('' for none), the shape of its marks (false for
--- none), and the letter that stands for it in a terminal. The first 36 look different, and the
--- first 35 letters are.
--- @package
--- @param s table
--- @param place integer of the series in its panel
--- @return { colour: string, dash: string, shape: string|false, mark: string }
function M.look(s, place)
  local i = (s.style or place) - 1
  local group, at = math.floor(i / #COLOURS), i % #MARKS + 1
  return { colour = COLOURS[i % #COLOURS + 1], dash = DASHES[(i + group) % #DASHES + 1],
    shape = SHAPES[group % #SHAPES + 1], mark = MARKS:sub(at, at) }
end

--- A text as it may stand anywhere: in one line, without control characters.
--- @package
--- @param text any
--- @return string
function M.text(text) return (printable((tostring(text):gsub('%s+', ' ')))) end

--- The name of a series.
--- @package
--- @param s table
--- @param place integer of the series in its panel
--- @return string
function M.name(s, place) return M.text(s.name == nil and 'series ' .. place or s.name) end

return M
