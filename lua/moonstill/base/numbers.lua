--- Numbers as readers see them.

local M = {}

local SMALLEST_NORMAL = 2 ^ -1022 -- below, a number has fewer digits

--- The shortest text that Lua reads back as the same number: 0.1, 1e100, 0.30000000000000004; nan
--- has no sign.
--- @param x number
--- @return string
function M.text(x)
  if x ~= x then return 'nan' end
  if x == math.huge or x == -math.huge then return x > 0 and 'inf' or '-inf' end
  local digits, text = math.abs(x) < SMALLEST_NORMAL and 1 or 15, nil
  repeat -- 17 are always enough
    text = ('%.' .. digits .. 'g'):format(x)
    digits = digits + 1
  until tonumber(text) == x
  return (text:gsub('e%+?(%-?)0*(%d)', 'e%1%2'))
end

return M
