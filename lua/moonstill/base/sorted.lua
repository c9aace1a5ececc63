--- The keys of a table in one order. What is done key by key is then done alike in every process
--- and on every rank, where the order of `pairs` is another each time.
---
--- It also stands in for `pairs` itself: the LuaJIT of Debian 12 (2.1.0-beta3 of 2022) sometimes
--- gives a wrong key where a loop over `pairs` is compiled into a hot caller, so the loop here is
--- kept from the compiler.
local M = {}

-- By type, numbers by value, all else by its text.
local function precedes(a, b)
  local kind, other = type(a), type(b)
  if kind ~= other then return kind < other end
  if kind == 'number' then return a < b end
  return tostring(a) < tostring(b)
end

--- All keys of a table, or of two: numbers before texts.
--- @param t table
--- @param other? table
--- @return any[]
function M.keys(t, other)
  local keys = {}
  for key in pairs(t) do keys[#keys + 1] = key end
  for key in pairs(other or {}) do
    if rawget(t, key) == nil then keys[#keys + 1] = key end
  end
  table.sort(keys, precedes)
  return keys
end
jit.off(M.keys)

--- How many keys a table has.
--- @param t table
--- @return integer
function M.count(t)
  local n = 0
  for _ in pairs(t) do n = n + 1 end
  return n
end
jit.off(M.count)

--- A table with the same keys and values, and the same metatable.
--- @param t table
--- @return table
function M.copy(t)
  local copy = {}
  for key, value in pairs(t) do copy[key] = value end
  return setmetatable(copy, getmetatable(t))
end
jit.off(M.copy)

--- As Lua's own, in the order of `keys`. The loop may change the table: it goes over the keys that
--- there were, and leaves out those that are gone.
--- @param t table
--- @return fun(): any, any
function M.pairs(t)
  local keys, i = M.keys(t), 0
  return function()
    repeat i = i + 1 until keys[i] == nil or rawget(t, keys[i]) ~= nil
    return keys[i], rawget(t, keys[i])
  end
end

return M
