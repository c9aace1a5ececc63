--- Rows that are tokenised already: `input_ids`, and which of them are learnt, by `labels` (-100:
--- not) or by masks. All lists are of one length; where `attention_mask` is 0 there is padding.

local json = require 'moonstill.base.json'

local M = {}

--- The columns that are read.
M.columns = { 'input_ids', 'labels', 'completion_mask', 'assistant_masks', 'attention_mask',
  'position_ids' }

local MASKS = { 'completion_mask', 'assistant_masks' }

local function list_of(row, name, count)
  local list = row[name]
  if list == nil or list == json.null then return nil end
  if not json.is_array(list) then error(('column "%s" is no list'):format(name), 0) end
  if json.is_array(list[1]) then
    error(('column "%s" is a list of lists: a row holds one sample'):format(name), 0)
  end
  if count and #list ~= count then
    error(('column "%s" has %d entries for %d ids'):format(name, #list, count), 0)
  end
  return list
end

local function is_on(value, name, i)
  if value == 1 or value == true then return true end
  if value == 0 or value == false then return false end
  error(('column "%s": entry %d is %s, neither 0 nor 1'):format(name, i, tostring(value)), 0)
end

-- The first and the last token that are no padding.
local function range_of(row, count)
  local list = list_of(row, 'attention_mask', count)
  if not list then return 1, count end
  local first, last = count + 1, 0
  for i = 1, count do
    if is_on(list[i], 'attention_mask', i) then
      first, last = math.min(first, i), i
    end
  end
  for i = first, last do
    if not is_on(list[i], 'attention_mask', i) then
      error(('column "attention_mask": entry %d is 0 between tokens'):format(i), 0)
    end
  end
  return first, last
end

-- Several samples in one row begin anew with their positions.
local function check_positions(row, first, last, count)
  local list = list_of(row, 'position_ids', count)
  for i = first, list and last or 0 do
    if list[i] ~= i - first then
      error(('column "position_ids": entry %d is %s, not %d: are there several samples in the row?')
        :format(i, tostring(list[i]), i - first), 0)
    end
  end
end

local function part(list, first, last)
  if first == 1 and last == #list then return list end
  local some = json.array()
  for i = first, last do some[#some + 1] = list[i] end
  return some
end

local function check_labels(labels, ids)
  for i, label in ipairs(labels) do
    if label ~= -100 and label ~= ids[i] then
      error(('column "labels": entry %d is %s, and the id there %s: labels are the ids themselves, '
        .. 'or -100'):format(i, tostring(label), tostring(ids[i])), 0)
    end
  end
  return labels
end

-- What all masks say.
local function mask_of(row, count)
  local mask
  for _, name in ipairs(MASKS) do
    local list = list_of(row, name, count)
    for i = 1, list and count or 0 do
      mask = mask or {}
      mask[i] = is_on(list[i], name, i) and mask[i] ~= 0 and 1 or 0
    end
  end
  return mask and json.array(mask)
end

--- The sample of a row.
--- @param row table
--- @return { ids: integer[], labels?: integer[], mask?: integer[] }
function M.sample(row)
  local ids = list_of(row, 'input_ids') or error('column "input_ids" is missing', 0)
  local labels, mask = list_of(row, 'labels', #ids), mask_of(row, #ids)
  local first, last = range_of(row, #ids)
  check_positions(row, first, last, #ids)
  local sample = { ids = part(ids, first, last) }
  if labels then
    sample.labels = check_labels(part(labels, first, last), sample.ids)
  elseif mask then
    sample.mask = part(mask, first, last)
  end
  return sample
end

--- What of a row says which tokens are learnt, in words.
--- @param row table
--- @return string
function M.describe(row)
  local names = {}
  for _, name in ipairs { 'labels', 'completion_mask', 'assistant_masks' } do
    if row[name] ~= nil and row[name] ~= json.null then
      names[#names + 1] = ('"%s"'):format(name)
      if name == 'labels' then break end
    end
  end
  if #names == 0 then return 'tokens in "input_ids", all learnt' end
  return ('tokens in "input_ids", learnt by %s'):format(table.concat(names, ' and '))
end

return M
