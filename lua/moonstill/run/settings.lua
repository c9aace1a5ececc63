--- The settings that runs read from a configuration: what they are when it does not say, and which
--- values they may have.
local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local config = require 'moonstill.run.config'
local fail = require 'moonstill.base.fail'
local json = require 'moonstill.base.json'
local options = require 'moonstill.base.options'
local optimizer = require 'moonstill.train.optimizer'
local sorted = require 'moonstill.base.sorted'

local M = {}

local DEFAULT = {
  batch = { tokens = 8192, micro_tokens = 2048 },
  optim = { max_skips = 5 },
  checkpoint = { every = 200, keep = 2 },
}

--- What a setting is when a configuration does not say.
--- @param group '"batch"'|'"optim"'|'"checkpoint"'
--- @param key string
function M.default(group, key) return DEFAULT[group][key] end

--- @param cfg table
--- @param group '"batch"'|'"optim"'|'"checkpoint"'
--- @param key string
--- @return any
function M.get(cfg, group, key)
  local value = cfg[group] and cfg[group][key]
  if value == nil then value = M.default(group, key) end
  return value
end

-- Settings that are integers, with the least that each may be. every: 0 saves at the end only.
local INTEGERS = { { 'batch', 'tokens', 1 }, { 'batch', 'micro_tokens', 1 },
  { 'checkpoint', 'every', 0 }, { 'checkpoint', 'keep', 0 }, { 'optim', 'max_skips', 1 } }

local function check_number(path, value)
  local kind = value ~= nil and config.refused(path, value)
  if not kind then return end
  fail('run.open: %s = %s, expected %s', path, tostring(value), kind)
end

--- An error when a run cannot be made of this configuration.
function M.check(cfg)
  for _, group in ipairs { 'batch', 'checkpoint' } do
    options.known('run.open: ' .. group, DEFAULT[group], cfg[group])
  end
  options.known('run.open: optim', optimizer.keys, cfg.optim)
  for _, s in ipairs(INTEGERS) do
    check.integer('run.open', s[1] .. '.' .. s[2], M.get(cfg, s[1], s[2]), s[3], check.EXACT)
  end
  for _, name in ipairs { 'seed', 'max_steps' } do
    if cfg[name] ~= nil then
      check.integer('run.open', name, cfg[name], 0, check.EXACT)
    end
  end
  check_number('epochs', cfg.epochs)
  for name, value in sorted.pairs(cfg.optim or {}) do
    check_number('optim.' .. name, value)
  end
end

-- changes ----------------------------------------------------------------------------------------

-- What changes no number, and what a run may be given more of.
local free_to_change = { threads = true, resume = true, max_steps = true, epochs = true,
  output = true, checkpoint = true, validate = true, recompute = true }

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
function M.changes(now, old) return add_changes({}, '', now, old) end

return M
