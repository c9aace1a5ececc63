--- Models as teachers: which one a target is of, and how many ids take part where nobody says it.

local C = require 'moonstill.C'
local fail = require 'moonstill.base.fail'
local tokenizer = require 'moonstill.text.tokenizer'

local M = {}

local class = {}
class.__index = class
function class.__tostring(self) return self.name end

local known = setmetatable({}, { __mode = 'k' }) -- by model
local count = 0

--- Stands for a model in this process, without keeping it alive: the same table each time.
--- @param model ms_model
--- @return table
function M.of(model)
  local who = known[model]
  if not who then
    count = count + 1
    local path = model:info().path
    local name = type(path) == 'string' and path or 'no folder'
    who = setmetatable({ name = ('model %d (%s)'):format(count, name) }, class)
    known[model] = who
  end
  return who
end

-- The largest id of the tokenizer in a model's folder, and one more; nil without one.
local function ids_of(path)
  if type(path) ~= 'string' or C.ms_path_kind(path .. '/tokenizer.json') ~= 1 then return nil end
  local ok, found = fail.pcall(tokenizer.open, path)
  if not ok then
    fail('%s; without `vocab` the ids that take part are the tokenizer\'s', found)
  end
  local size = found:size()
  found:free()
  return size
end

--- How many ids of a model mean something: its rows, or fewer where the tokenizer of its folder has
--- fewer. The folder is looked at once.
--- @param model ms_model
--- @return integer
function M.vocab(model)
  local who = M.of(model)
  if not who.vocab then
    local info = model:info()
    who.vocab = math.min(info.vocab, ids_of(info.path) or info.vocab)
  end
  return who.vocab
end

return M
