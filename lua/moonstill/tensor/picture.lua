--- What a tensor prints as: its dtype and shape, and the first and last of its elements.
local ffi = require 'ffi'
local C = require 'moonstill.C'
local screen = require 'moonstill.base.screen'

local M = {}

local CELL = 11 -- columns of an element, with the blank before it
local MOST = 3  -- elements and rows at each end

-- Which of n things to show: all, or the first and last few with a gap (0) between.
local function shown(n, ends)
  local list = {}
  for i = 1, n do
    if n <= 2 * ends + 1 or i <= ends or i > n - ends then
      list[#list + 1] = i
    elseif i == ends + 1 then
      list[#list + 1] = 0
    end
  end
  return list
end

local function text_of(value, dtype)
  local whole = (dtype == 'i32' or dtype == 'i64' or dtype == 'u8') and math.abs(value) < 1e9
  return (whole and '%10d' or '%10.5g'):format(value)
end

-- One row of `cols` elements from `offset`; reads only what it shows.
local function row_text(t, offset, cols, ends)
  local words, dtype = {}, t:dtype()
  for k, i in ipairs(shown(cols, ends)) do
    if i == 0 then words[k] = '...'
    else
      local one = t:view(offset + i - 1, 1)
      words[k] = text_of(one:read()[1], dtype)
      one:free()
    end
  end
  return table.concat(words, ' ')
end

--- "tensor f32 [512, 896] on cpu", and up to seven rows of the last axis, as many elements of each
--- as the terminal is wide.
--- @param t ms_tensor
--- @return string
function M.text(t)
  local sizes = { t:shape() }
  local cols = sizes[#sizes]
  local ends = math.max(1, math.min(MOST, math.floor((screen.columns(1) / CELL - 1) / 2)))
  local lines = { ('tensor %s [%s] on %s'):format(t:dtype(), table.concat(sizes, ', '),
    ffi.string(C.ms_device_spec(C.ms_tensor_device(t.p)))) }
  for _, r in ipairs(shown(t:count() / cols, MOST)) do
    lines[#lines + 1] = r == 0 and '       ...' or row_text(t, (r - 1) * cols, cols, ends)
  end
  return table.concat(lines, '\n')
end

return M
