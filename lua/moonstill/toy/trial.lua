--- A trial: several runs that are done one after another in one folder, and compared. Called again
--- it goes on where it was: what is done is known from files, and shown again without any work.
---
---   local trial = ms.trial.open('out/quickstart', settings, cfg.resume)
---   local known = trial:result 'teacher'  -- nil: still to be done
---   trial:keep('teacher', { loss = .. })  -- it is done, and this is known of it
---
--- `trial.json` in the folder holds the settings, with which alone it goes on. Each run has a
--- folder of its own there, with what is known of it in `result.json`.

local C = require 'moonstill.C'
local changes = require 'moonstill.run.changes'
local check = require 'moonstill.base.check'
local fail = require 'moonstill.base.fail'
local json = require 'moonstill.base.json'
local paths = require 'moonstill.base.paths'
local ranks = require 'moonstill.base.ranks'
local schema = require 'moonstill.base.schema'
local sorted = require 'moonstill.base.sorted'
local strict = require 'moonstill.base.strict'

local M = {}


--- Runs that are done one after another in one folder: see `ms.trial.open`.
--- @class ms_trial
--- @field folder string where all of it is
local methods = {}
local class = strict.class('trial', methods)

local function settings_path(folder) return folder .. '/trial.json' end

--- The folder of a run, or a file of the trial's.
--- @param name string
--- @return string
function methods:path(name) return ('%s/%s'):format(self.folder, name) end

--- Whether a file or folder of the trial's is there.
--- @param name string
--- @return boolean
function methods:has(name) return C.ms_path_kind(self:path(name)) ~= 0 end

--- A trial in a folder of this one's, which goes on with it.
--- @param name string
--- @return ms_trial
function methods:inner(name)
  check.file(C.ms_dir_make(self:path(name)))
  return setmetatable({ folder = self:path(name) }, class)
end

local function read_object(path)
  if C.ms_path_kind(path) ~= 1 then return nil end
  local ok, value = pcall(json.read, path)
  return ok and json.is_object(value) and value or nil
end

--- What is known of a run that is done: what `keep` was given. nil when it is not, or when its
--- student is not there any more.
--- @param name string
--- @return table?
function methods:result(name)
  if C.ms_path_kind(self:path(name) .. '/student/config.json') ~= 1 then return nil end
  return read_object(self:path(name) .. '/result.json')
end

--- Notes that a run is done, and what is known of it.
--- @param name string
--- @param result table
--- @return table result
function methods:keep(name, result)
  ranks.world():write(json.write, self:path(name) .. '/result.json', result, { indent = 1 })
  return result
end

-- opening ----------------------------------------------------------------------------------------

-- What of every recipe's configuration changes no number.
local FREE = { output = true, resume = true, threads = true, max_steps = true, grid = true,
  log = true, trace = true }

--- The part of a configuration that may change what comes out.
--- @param cfg table
--- @param free string[] keys of the recipe's own that do not
--- @return table
function M.settings(cfg, free)
  local settings = {}
  check.table('trial', 'free', free)
  for key, value in sorted.pairs(check.table('trial', 'cfg', cfg)) do
    if not FREE[key] then settings[key] = schema.plain(value) end
  end
  for _, key in ipairs(free) do settings[key] = nil end
  return settings
end

-- Something in the folder that no trial has put there, or nil. What a killed process was writing
-- goes with the next write.
local function foreign(folder)
  if C.ms_path_kind(folder) == 0 then return nil end
  for _, name in ipairs(paths.list(folder)) do
    if name:sub(1, 11) ~= '.moonstill-' then return name end
  end
end

local function check_settings(folder, now, old)
  local words = {}
  for _, c in ipairs(changes.between(now, old)) do
    words[#words + 1] = ('%s = %s, which is %s now'):format(c.key, c.old, c.now)
  end
  if #words == 0 then return end
  error(('trial: %s holds one with %s: give another output, or resume=false to begin anew')
    :format(folder, table.concat(words, '; ')), 0)
end

local function set_aside(folder)
  ranks.world():say(('resume=false: what was in %s is now in %s'):format(folder,
    paths.set_aside(folder)))
end

-- The settings of the trial that is in a folder, where it goes on.
local function find(folder, resume)
  local file = read_object(settings_path(folder))
  if file and resume == false then return set_aside(folder) end
  if file then return file.settings end
  local name = foreign(folder)
  if name then
    error(('trial: %s holds something else (%s): give another output'):format(folder, name), 0)
  elseif resume == true then
    error('trial: resume=true, but there is none in ' .. folder, 0)
  end
end

-- On the rank that writes.
local function take(folder, settings, resume)
  local old = find(folder, resume)
  if old then return check_settings(folder, settings, old) end
  check.file(C.ms_dir_make(folder))
  json.write(settings_path(folder), { settings = settings }, { indent = 1 })
end

--- Opens the trial in a folder, which is made when missing. Other settings than those of the one
--- that is there are an error, and so is a folder that holds something else.
--- @param folder string
--- @param settings table what may change any of its numbers
--- @param resume? string|boolean 'auto'; true: there must be one; false: it begins anew, and what
---   was there is set aside as a whole
--- @return ms_trial
function M.open(folder, settings, resume)
  check.path('trial', folder)
  check.table('trial', 'settings', settings)
  if resume ~= nil and type(resume) ~= 'boolean' and resume ~= 'auto' then
    fail('trial: resume = %s, expected auto, true or false', tostring(resume))
  end
  settings = json.decode(json.encode(settings)) -- as it will be read
  ranks.world():write(take, folder, settings, resume)
  return setmetatable({ folder = folder }, class)
end

--- How this program is started from the folder that one is in: its path, or its name.
--- @return string
function M.program()
  local ok, path = pcall(paths.real, '/proc/self/exe')
  if not ok or not path:find '/moonstill$' then return 'moonstill' end
  local here = paths.real '.' .. '/'
  if path:sub(1, #here) ~= here then return path end
  path = path:sub(#here + 1)
  return path:find '/' and path or './' .. path -- a name alone is looked for elsewhere
end

return M
