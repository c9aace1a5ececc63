--- Which settings differ between two configurations of one run.
local C = require 'moonstill.C'
local json = require 'moonstill.base.json'
local sorted = require 'moonstill.base.sorted'

local M = {}

-- What changes no number, and what a run may be given more of.
local free_to_change = { threads = true, resume = true, max_steps = true, epochs = true,
  output = true, checkpoint = true, validate = true, recompute = true, grid = true, log = true,
  trace = true, ['optim.shard'] = true, ['data.quiet'] = true, ['data.cache'] = true }

--- Whether two values of a setting are one: equal, or two names of what is in one place.
--- @param a any
--- @param b any
--- @return boolean
function M.same(a, b)
  if type(a) == 'string' and type(b) == 'string' and C.ms_path_same(a, b) ~= 0 then return true end
  return json.encode(a) == json.encode(b)
end

local function add_changes(list, prefix, now, old)
  for _, key in ipairs(sorted.keys(now, old)) do
    local a, b, path = now[key], old[key], prefix .. tostring(key)
    if json.is_object(a) and json.is_object(b) and not free_to_change[path] then
      add_changes(list, path .. '.', a, b)
    elseif not free_to_change[path] and not M.same(a, b) then
      list[#list + 1] = { key = path, now = json.encode(a), old = json.encode(b) }
    end
  end
  return list
end

--- The settings that differ between two configurations of one run and may change its numbers, inner
--- groups key by key, with their values as JSON.
--- @param now table
--- @param old table
--- @return { key: string, now: string, old: string }[]
function M.between(now, old) return add_changes({}, '', now, old) end

return M
