--- Dates as texts: Python's strftime in the C locale.

local bounds = require 'moonstill.jinja.bounds'

local M = {}

local DAYS = { 'Sunday', 'Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday' }
local MONTHS = { 'January', 'February', 'March', 'April', 'May', 'June', 'July', 'August',
  'September', 'October', 'November', 'December' }

-- Days since 1970-01-01 of a date.
local function days_of(year, month, day)
  local y = month <= 2 and year - 1 or year
  local era = math.floor(y / 400)
  local yoe = y - era * 400
  local doy = math.floor((153 * ((month + 9) % 12) + 2) / 5) + day - 1
  return era * 146097 + yoe * 365 + math.floor(yoe / 4) - math.floor(yoe / 100) + doy - 719468
end

-- What of a date the others are computed from: day of the week (0 is Sunday) and of the year.
local function derive(now)
  local days = days_of(now.year, now.month, now.day)
  local yday = days - days_of(now.year, 1, 1) + 1
  return { year = now.year, month = now.month, day = now.day, hour = now.hour or 0,
    min = now.min or 0, sec = now.sec or 0, days = days, wday = (days + 4) % 7, yday = yday }
end

-- Year and number of the week by ISO 8601.
local function iso_week(t)
  local weekday = (t.wday + 6) % 7
  local thursday = t.days - weekday + 3
  local year = t.year
  if thursday < days_of(year, 1, 1) then year = year - 1 end
  if thursday >= days_of(year + 1, 1, 1) then year = year + 1 end
  return year, math.floor((thursday - days_of(year, 1, 1)) / 7) + 1
end

local function two(x) return ('%02d'):format(x) end
local function hour12(t) return (t.hour + 11) % 12 + 1 end

local codes
codes = {
  a = function(t) return DAYS[t.wday + 1]:sub(1, 3) end,
  A = function(t) return DAYS[t.wday + 1] end,
  b = function(t) return MONTHS[t.month]:sub(1, 3) end,
  B = function(t) return MONTHS[t.month] end,
  c = function(t) return M.format('%a %b %e %H:%M:%S %Y', t) end,
  C = function(t) return two(math.floor(t.year / 100)) end,
  d = function(t) return two(t.day) end,
  D = function(t) return M.format('%m/%d/%y', t) end,
  e = function(t) return ('%2d'):format(t.day) end,
  f = function() return '000000' end,
  F = function(t) return M.format('%Y-%m-%d', t) end,
  g = function(t) return two(iso_week(t) % 100) end,
  G = function(t) return ('%04d'):format((iso_week(t))) end,
  H = function(t) return two(t.hour) end,
  I = function(t) return two(hour12(t)) end,
  j = function(t) return ('%03d'):format(t.yday) end,
  k = function(t) return ('%2d'):format(t.hour) end,
  l = function(t) return ('%2d'):format(hour12(t)) end,
  m = function(t) return two(t.month) end,
  M = function(t) return two(t.min) end,
  n = function() return '\n' end,
  p = function(t) return t.hour < 12 and 'AM' or 'PM' end,
  P = function(t) return t.hour < 12 and 'am' or 'pm' end,
  r = function(t) return M.format('%I:%M:%S %p', t) end,
  R = function(t) return M.format('%H:%M', t) end,
  S = function(t) return two(t.sec) end,
  t = function() return '\t' end,
  T = function(t) return M.format('%H:%M:%S', t) end,
  u = function(t) return tostring((t.wday + 6) % 7 + 1) end,
  U = function(t) return two(math.floor((t.yday + 6 - t.wday) / 7)) end,
  V = function(t) return two((select(2, iso_week(t)))) end,
  w = function(t) return tostring(t.wday) end,
  W = function(t) return two(math.floor((t.yday + 6 - (t.wday + 6) % 7) / 7)) end,
  x = function(t) return M.format('%m/%d/%y', t) end,
  X = function(t) return M.format('%H:%M:%S', t) end,
  y = function(t) return two(t.year % 100) end,
  Y = function(t) return tostring(t.year) end,
  z = function() return '' end, -- of a time without a zone
  Z = function() return '' end,
  ['%'] = function() return '%' end,
}
codes.h = codes.b

-- "-d": without the zero before it, and the other flags of glibc.
local function flagged(flag, text)
  if flag == '-' then
    local bare = text:gsub('^[0 ]+(.)', '%1')
    return bare
  end
  if flag == '_' then return (text:gsub('^0+(.)', function(c) return c end)) end
  if flag == '^' then return text:upper() end
  return text
end

--- A date in a format of strftime.
--- @param format string
--- @param now table year, month, day; hour, min and sec, by default 0
function M.format(format, now)
  local t = now.wday and now.days and now or derive(now)
  return (format:gsub('%%([-_^0#]?)(.?)', function(flag, code)
    local make = codes[code]
    if not make then
      if code == '' then return '%' .. flag end
      bounds.raise("strftime_now: the code %%%s%s is not known", flag, code)
    end
    return flagged(flag, make(t))
  end))
end

--- The present local time.
function M.now()
  local t = os.date '*t'
  return { year = t.year, month = t.month, day = t.day, hour = t.hour, min = t.min, sec = t.sec }
end

return M
