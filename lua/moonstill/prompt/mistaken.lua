--- What stands in the place of a recipe on the command line and is none: a configuration, a folder,
--- data, weights. Each has a command of its own, which is said.

local C = require 'moonstill.C'
local paths = require 'moonstill.base.paths'

local M = {}

local FILE, FOLDER = 1, 2
local DATA = { jsonl = true, ndjson = true, json = true, csv = true, tsv = true, txt = true }
local WEIGHTS = { safetensors = true, gguf = true, bin = true, pt = true, pth = true }

local function ending_of(path)
  local rest = path:lower():gsub('%.gz$', ''):gsub('%.zst$', '')
  return rest:match '%.(%w+)$' or ''
end

-- The recipe to stand before a configuration: the one that lies beside it under its name.
local function recipe_for(path)
  local own = path:gsub('%.%w+$', '.lua')
  return C.ms_path_kind(own) == FILE and own or 'RECIPE.lua'
end

local function of_folder(path)
  if C.ms_path_kind(path .. '/config.json') ~= FILE then
    return 'is a folder, and no model is in it (config.json); a recipe is a .lua file'
  end
  return ('is the folder of a model: moonstill chat %s talks to it, moonstill inspect %s says what '
    .. 'it is, moonstill eval %s DATA how good'):format(path, path, path)
end

--- What a path is that was given as a recipe, and what to do with it, to stand behind it; nil where
--- it may be one, or is not there.
--- @param path string
--- @return string?
function M.instead(path)
  local kind, ending = C.ms_path_kind(path), ending_of(path)
  if kind == 0 and C.ms_path_kind(path .. '.lua') == FILE then
    return ('is not there; did you mean %s.lua?'):format(path)
  end
  if kind == FOLDER then return of_folder(path) end
  if kind ~= FILE or ending == 'lua' then return nil end
  if ending == 'yaml' or ending == 'yml' then
    return ('is a configuration, which stands behind a recipe: moonstill %s %s'):format(
      recipe_for(path), path)
  end
  if DATA[ending] then
    return ('is data: moonstill data show %s model=FOLDER shows it as it is learnt; a recipe takes '
      .. 'it as data.train=%s'):format(path, path)
  end
  local guess = paths.guess(path)
  if WEIGHTS[ending] then
    return guess or ('holds weights: give the folder of the model to a command, as in moonstill '
      .. 'chat %s'):format(path:match '^(.*)/[^/]*$' or '.')
  end
  return guess
end

return M
