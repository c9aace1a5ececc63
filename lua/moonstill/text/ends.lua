--- Where texts begin and end: the ids that the files of a model folder name, and those of the
--- markup of turns. Training, generation and saving ask here.
---
--- What a file says that is no id of the tokenizer (-1, null, a number as text) says nothing.

local C = require 'moonstill.C'
local fail = require 'moonstill.base.fail'
local json = require 'moonstill.base.json'
local ranks = require 'moonstill.base.ranks'
local sorted = require 'moonstill.base.sorted'
local tokenizer = require 'moonstill.text.tokenizer'

local M = {}

--- What turns are written with: <|im_start|>, role, newline, content, <|im_end|>, newline.
M.turn = { first = '<|im_start|>', last = '<|im_end|>' }

-- files ------------------------------------------------------------------------------------------

--- The path of a file beside others; `folder` may be one of those itself.
--- @param folder string
--- @param name string
--- @return string
function M.file_of(folder, name)
  if C.ms_path_kind(folder) ~= 2 then folder = folder:gsub('[^/]*$', ''):gsub('^$', '.') end
  return folder .. '/' .. name
end
local file_of = M.file_of

local noted = {} -- what was said of files, once each

local function note(text)
  if noted[text] then return end
  noted[text] = true
  ranks.world():say(('note: %s; the tokens that it names are not known'):format(text))
end

--- What a JSON file of a folder says. One that cannot be read says nothing here, which is noted,
--- but for config.json, without which there is no model.
--- @param folder? string or a file in it
--- @param name string
--- @return table
function M.settings(folder, name)
  local path = folder and file_of(folder, name)
  if not path or C.ms_path_kind(path) ~= 1 then return {} end
  local ok, value = fail.pcall(json.read, path)
  if ok and type(value) == 'table' and not json.is_array(value) then return value end
  local why = ok and path .. ': not a JSON object' or value
  if name == 'config.json' or why:find('no memory', 1, true) then error(why, 0) end
  note(why)
  return {}
end
local settings = M.settings

--- What a file of a model's folder says; an empty table where there is none that can be read.
--- @param folder? string or a file in it
--- @param name string such as "generation_config.json"
--- @return table
function M.settings(folder, name) return settings(folder, name) end

-- Adds an id, or a list of them, to a list that names each once (`seen`); ids are below `size`.
local function add(list, seen, value, size)
  for _, id in ipairs(type(value) == 'table' and value or { value }) do
    local fits = type(id) == 'number' and id >= 0 and id < size and id % 1 == 0
    if fits and not seen[id] then
      list[#list + 1] = id
      seen[id] = true
    end
  end
end

-- The id of a token as tokenizer_config.json names it: its text, or a table that has it.
local function named(value, tok)
  if type(value) == 'table' then value = value.content end
  return tok and type(value) == 'string' and tok:id(value) or nil
end

-- The files that name tokens, in the order of their say. `config`: config.json's content, if it is
-- not to be read.
local function files_of(folder, config)
  return { settings(folder, 'generation_config.json'), config or settings(folder, 'config.json'),
    settings(folder, 'tokenizer_config.json') }
end

-- ends -------------------------------------------------------------------------------------------

--- Ids below `size` from ids and lists of them, each once, in the order given.
--- @param size integer
--- @param ... integer|integer[]|nil
--- @return integer[]
function M.union(size, ...)
  local all, seen = {}, {}
  for i = 1, select('#', ...) do add(all, seen, (select(i, ...)), size) end
  return all
end

--- The ids that end a text, by all files of a folder; the first of them is the one to write.
--- @param folder? string or a file in it
--- @param tok? ms_tokenizer without it tokens that are named by their text say nothing
--- @param size? integer ids are below it; default the tokenizer's size
--- @param config? table what config.json says, if it is not to be read
--- @return integer[]
function M.of_text(folder, tok, size, config)
  size = size or tok:size()
  local files = files_of(folder, config)
  return M.union(size, files[1].eos_token_id, files[2].eos_token_id,
    named(files[3].eos_token, tok))
end

--- The ids of the turns' markup, or nothing: a tokenizer that lacks one of them has no turns.
--- @param tok ms_tokenizer
--- @return integer? first
--- @return integer? last
function M.of_turn(tok)
  local first, last = tok:id(M.turn.first), tok:id(M.turn.last)
  if first and last then return first, last end
end

--- The ids at which a generated answer ends: those that end a text, and the one that ends a turn.
--- @param eos integer[]
--- @param tok ms_tokenizer
--- @return integer[]
function M.of_answer(eos, tok)
  local _, last = M.of_turn(tok)
  return M.union(tok:size(), eos, last)
end

--- The same for a model, by the files of the folder it came from; a tokenizer there that cannot be
--- read says nothing.
--- @param folder? string
--- @param config table what config.json says
--- @param rows integer the model's vocabulary
--- @param of_turn? fun(folder: string, tok: ms_tokenizer): integer? what else ends a turn there
--- @return integer[]
function M.of_model(folder, config, rows, of_turn)
  local tok = folder and C.ms_path_kind(file_of(folder, 'tokenizer.json')) == 1
    and tokenizer.try(folder)
  local list = M.of_text(folder, tok or nil, rows, config)
  if not tok then return list end
  list = M.union(rows, M.of_answer(list, tok), of_turn and of_turn(folder, tok))
  tok:free()
  return list
end

-- Whether an id stands for text: ordinary text gives it.
local function is_text(tok, id)
  if tok:is_added(id) then return false end
  local ids = tok:ids(tok:decode { id }, { parse = false })
  return #ids == 1 and ids[1] == id
end

--- Ids that are no text, whether tokenizer.json calls them special or not: all that the files of a
--- folder name as a token of some role (its BOS, padding and so on). An id of ordinary text is none
--- of them: files name such ones by mistake, as a 0 for padding where 0 is "!".
--- @param folder? string
--- @param tok ms_tokenizer
--- @return table<integer, true>
function M.roles(folder, tok)
  local all, list, set = files_of(folder), {}, {}
  for i = 1, 2 do
    for key, value in sorted.pairs(all[i]) do
      if tostring(key):find '_token_id$' then add(list, set, value, tok:size()) end
    end
  end
  for key, value in sorted.pairs(all[3]) do
    if tostring(key):find '_token$' then add(list, set, named(value, tok), tok:size()) end
  end
  for _, id in ipairs(list) do set[id] = not is_text(tok, id) or nil end
  return set
end

-- text that spells them --------------------------------------------------------------------------

--- A text without the end that it spells at its end, and the id of that end; the text itself where
--- it spells none.
--- @param tok ms_tokenizer
--- @param ids integer[]
--- @param text string
--- @return string
--- @return integer?
function M.without(tok, ids, text)
  for _, id in ipairs(ids) do
    local spelled = tok:token(id)
    if spelled and spelled ~= '' and text:sub(-#spelled) == spelled then
      return text:sub(1, -#spelled - 1), id
    end
  end
  return text
end

--- How many bytes at the end of a text may become an end that is spelled: the longest of its ends
--- with which one of the spellings begins.
--- @param tok ms_tokenizer
--- @param ids integer[]
--- @param text string
--- @return integer
function M.may_spell(tok, ids, text)
  local most = 0
  for _, id in ipairs(ids) do
    local spelled = tok:token(id) or ''
    for n = math.min(#spelled, #text), most + 1, -1 do
      if text:sub(-n) == spelled:sub(1, n) then
        most = n
        break
      end
    end
  end
  return most
end

-- beginnings -------------------------------------------------------------------------------------

--- What the tokenizer puts before a text (BOS): what comes before the ids that the text has alone.
--- @param tok ms_tokenizer
--- @return integer[]
function M.bos(tok)
  local with, plain = tok:ids('a', { special = true }), tok:ids 'a'
  for before = 0, #with - #plain do
    local same = true
    for i = 1, #plain do same = same and with[before + i] == plain[i] end
    if same then
      local list = {}
      for i = 1, before do list[i] = with[i] end
      return list
    end
  end
  error('the tokenizer gives "a" other ids when its special tokens are added', 0)
end

--- A text without the BOS that it begins with, spelled out.
--- @param tok ms_tokenizer
--- @param bos integer[]
--- @param text string
--- @return string
function M.behind(tok, bos, text)
  local parts = {}
  for i, id in ipairs(bos) do parts[i] = tok:token(id) end
  local spelled = table.concat(parts)
  return text:sub(1, #spelled) == spelled and text:sub(#spelled + 1) or text
end

--- The ids of a text that is to be gone on with: BOS once, whether the text spells it or not. Other
--- special tokens that it spells are their ids.
--- @param tok ms_tokenizer
--- @param text string
--- @return integer[]
function M.begin(tok, text)
  local ids = M.bos(tok)
  for _, id in ipairs(tok:ids(M.behind(tok, ids, text))) do ids[#ids + 1] = id end
  return ids
end

return M
