--- How the commands draw tokens: options of `ms.generate` with the model's own values as defaults,
--- those of its generation_config.json where that says that it draws (`do_sample`).

local ends = require 'moonstill.text.ends'
local generate = require 'moonstill.model.generate'
local schema = require 'moonstill.base.schema'

local M = {}

--- What can be set, in the order in which it is said.
M.keys = { 'temperature', 'top_p', 'top_k', 'seed', 'max_new' }
local DRAWN = { 'temperature', 'top_p', 'top_k' }

--- The options of commands, with another default of `max_new`.
--- @param max_new integer
--- @return table<string, ms_option>
function M.options(max_new)
  local all = {}
  for _, key in ipairs(M.keys) do all[key] = generate.options[key] end
  all.max_new = schema.over(all.max_new, max_new)
  return all
end

-- What the model's folder says of drawing; a value that cannot be one says nothing.
local function of_folder(folder)
  local file, own = ends.settings(folder, 'generation_config.json'), {}
  if file.do_sample ~= true then return own end
  own.temperature = 1
  for _, key in ipairs(DRAWN) do
    local value = file[key]
    if value ~= nil and schema.kind_of(generate.options[key], value) then own[key] = value end
  end
  return own
end

--- Sets what was not given: as the model's folder says, then by default. The second result says
--- what that is, where the folder says something.
--- @param what string what errors begin with
--- @param options table<string, ms_option>
--- @param given table
--- @param folder string the model's
--- @return table
--- @return string? words
function M.take(what, options, given, folder)
  local own, words = of_folder(folder), {}
  for _, key in ipairs(DRAWN) do
    if given[key] == nil and own[key] ~= nil then
      given[key] = own[key]
      words[#words + 1] = ('%s %s'):format(key, tostring(own[key]))
    end
  end
  return schema.take(what, options, given),
    #words > 0 and table.concat(words, ', ') .. ' (generation_config.json)' or nil
end

return M
