--- Data sets that were tokenised before, on disk: `ms.cache.size()`, `ms.cache.clear()`.
---
---   moonstill -e 'print(ms.cache.size())'
---   moonstill -e 'ms.cache.clear()'
---
--- They are in $XDG_CACHE_HOME/moonstill/data or ~/.cache/moonstill/data, each in a folder that is
--- named by a hash of all that shapes its samples: what is in the files (or what `filter` and `map`
--- leave of it), their names, the tokenizer, how turns are written, and the options of the data
--- set. So nothing there is ever out of date, and all of it may be removed at any time. What is
--- damaged is found out and made anew; several processes may make the same one.

local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local paths = require 'moonstill.base.paths'
local schema = require 'moonstill.base.schema'

local M = {}

--- Bytes of files below which `cache = "auto"` keeps nothing: conversations of this size are
--- written by a template and tokenised in about a second.
M.least = 1e6

-- places -----------------------------------------------------------------------------------------

--- The folder of the caches; nil where there is no home.
--- @param option? string|false a data set's `cache`; default "auto"
--- @return string?
function M.folder(option)
  if option == false or option == 'false' then return nil end
  if option ~= nil then check.text('cache', 'option', option) end
  if option and option ~= 'auto' then return option ~= 'off' and option or nil end
  local home, base = os.getenv 'HOME', os.getenv 'XDG_CACHE_HOME'
  if not base or base:sub(1, 1) ~= '/' then base = home and home ~= '' and home .. '/.cache' end
  return base and base .. '/moonstill/data' or nil
end

-- The caches in a folder.
local function list(folder)
  local found = {}
  if not folder or C.ms_path_kind(folder) ~= 2 then return found end
  for _, name in ipairs(paths.list(folder)) do
    if name:find '^%x+$' and #name == 32 then found[#found + 1] = folder .. '/' .. name end
  end
  return found
end

local function bytes_of(path)
  local total = 0
  for _, name in ipairs(paths.list(path)) do
    local file = io.open(path .. '/' .. name, 'rb')
    total = total + (file and file:seek 'end' or 0)
    if file then file:close() end
  end
  return total
end

--- How many bytes the data sets have that are kept, and how many data sets they are.
--- @param folder? string default that of the user
--- @return integer bytes
--- @return integer count
function M.size(folder)
  if folder ~= nil then check.path('cache', folder) end
  local total, found = 0, list(folder or M.folder())
  for _, path in ipairs(found) do total = total + bytes_of(path) end
  return total, #found
end

--- Removes all data sets that are kept; those in use stay with who uses them.
--- @param folder? string default that of the user
--- @return integer bytes that were freed
function M.clear(folder)
  if folder ~= nil then check.path('cache', folder) end
  folder = folder or M.folder()
  local bytes = M.size(folder)
  if folder then C.ms_dir_clean(folder) end
  for _, path in ipairs(list(folder)) do check.file(C.ms_cache_remove(path)) end
  return bytes
end

--- A data set's option.
M.option = schema.option('auto', 'where tokenised data sets are kept, to be found again: a folder, '
  .. 'the user\'s own (auto; for large files), or nowhere (off)', 'auto|off|false|string')

return M
