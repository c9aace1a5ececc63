--- Axes of a plot: which values have a place on them, round ticks and their texts.

local M = {}

-- What has a place on an axis: arithmetic with it stays finite, and finer than its steps.
M.LARGEST, M.SMALLEST = 1e300, 1e-280
local LARGEST, SMALLEST = M.LARGEST, M.SMALLEST

local function finite(v) return type(v) == 'number' and v >= -LARGEST and v <= LARGEST end

--- Whether a point has a place on the axes of a panel.
--- @param panel table
--- @param s table a series of it
--- @param i integer
--- @return boolean
function M.has_place(panel, s, i)
  local y = s.y[i]
  return finite(s.x[i]) and finite(y) and (not panel.log or y >= SMALLEST)
end

-- A range with room between its ends: ends that agree in 12 digits, and such as are almost 0, are
-- one value, which comes to stand in the middle.
local function widened(low, high)
  local size = math.max(math.abs(low), math.abs(high))
  local zero = size < SMALLEST
  if not zero and high - low > 1e-12 * size then return low, high end
  local room = zero and 1 or 0.1 * size
  return low - room, high + room
end

-- A step of 1, 2 or 5 times a power of ten that cuts `range` into at most `most` parts.
local function nice_step(range, most)
  local raw = range / most
  local power = 10 ^ math.floor(math.log10(raw))
  for _, factor in ipairs { 1, 2, 5, 10 } do
    if factor * power >= raw * (1 - 1e-9) then return factor * power end
  end
end

--- See `plot.ticks`.
--- @package
--- @param low number
--- @param high number
--- @param most integer
--- @return number[]
--- @return number
function M.ticks(low, high, most)
  low, high = widened(low, high)
  local step = nice_step(high - low, most)
  local list = {}
  local first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
  for i = first, last do list[#list + 1] = i * step end
  return list, step
end

-- Each `every`th power of ten between two numbers and around them, times the factors.
local function powers(low, high, every, factors)
  local first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
  local list = {}
  for power = first, last + every - 1, every do
    if power > last and power - last > 0.3 * every then list[#list] = nil end -- they would meet
    for _, factor in ipairs(factors) do list[#list + 1] = factor * 10 ^ math.min(power, last) end
  end
  while #list > 2 and list[2] <= low do table.remove(list, 1) end
  while #list > 2 and list[#list - 1] >= high do table.remove(list) end
  return list
end

-- Decades; where there are few, 2 and 5 between them, where there are many, some of them; where all
-- is within a factor of 3, even steps, which are smaller than `low`. `room` is how many have room.
local function log_ticks(low, high, room)
  local decades = math.log10(high) - math.log10(low) -- the quotient may be infinite
  if high < 3 * low then return M.ticks(low, high, math.min(math.max(1, room), 5)) end
  if decades < 2.5 and 3 * decades + 1 <= room then return powers(low, high, 1, { 1, 2, 5 }) end
  return powers(low, high, math.ceil((decades + 1) / math.max(1, math.min(room, 12))), { 1 })
end

-- How many digits a number has from its first one to that of the step.
local function digits_of(size, step)
  return math.floor(math.log10(size) + 1e-9) - math.floor(math.log10(step) + 1e-9) + 1
end

--- See `plot.label`.
--- @package
--- @param value number
--- @param step? number
--- @return string
function M.label(value, step)
  if value == 0 then return '0' end
  local size = math.abs(value)
  if size >= 1e6 or size < 1e-4 then
    local digits = math.max(3, math.min(16, step and digits_of(size, step) or 3))
    return (('%.' .. digits .. 'g'):format(value):gsub('e([+-])0*(%d)', function(sign, digit)
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
      if M.has_place(panel, s, i) then
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

-- The texts of ticks, and how wide the widest is.
local function labels_of(values, step)
  local list, widest = {}, 0
  for i, value in ipairs(values) do
    list[i] = M.label(value, step)
    widest = math.max(widest, #list[i])
  end
  return list, widest
end

--- The axes of a panel: `xs` and `ys`, their ticks; `x_labels` and `y_labels`, the ticks' texts;
--- `x_widest` and `y_widest`, the lengths of the longest ones; `x` and `y`, which map values to
--- 0 .. 1; `x_low` and `x_high`, where x ends: where the data end.
--- @package
--- @param panel table
--- @param x_most integer how many steps x has about at most
--- @param y_most integer the same of y
--- @param y_room integer how many texts have room below each other
--- @return table
function M.of(panel, x_most, y_most, y_room)
  local x0, x1, y0, y1 = extent(panel)
  x0, x1 = widened(x0, x1)
  local xs, x_step = M.ticks(x0, x1, x_most)
  local room = 1e-3 * (x1 - x0) -- less than can be seen
  while #xs > 0 and xs[#xs] > x1 + room do xs[#xs] = nil end
  while #xs > 0 and xs[1] < x0 - room do table.remove(xs, 1) end
  local ys, y_step
  if panel.log then
    ys, y_step = log_ticks(y0, y1, y_room)
  else
    ys, y_step = M.ticks(y0, y1, y_most)
  end
  local function level(y) return panel.log and math.log(y) or y end
  local low, high = level(ys[1]), level(ys[#ys])
  local y_labels, y_widest = labels_of(ys, y_step)
  local x_labels, x_widest = labels_of(xs, x_step)
  return {
    xs = xs, ys = ys, x_labels = x_labels, y_labels = y_labels, y_widest = y_widest,
    x_widest = x_widest, x_low = x0, x_high = x1,
    x = function(v) return (v - x0) / (x1 - x0) end,
    y = function(v) return (level(v) - low) / (high - low) end,
  }
end

return M
