--- `moonstill data show`: samples as they are learnt, and how long they are.

local chats = require 'moonstill.text.chat'
local config = require 'moonstill.run.config'
local dataset = require 'moonstill.data.dataset'
local exit = require 'moonstill.base.exit'
local json = require 'moonstill.base.json'
local lengths = require 'moonstill.prompt.lengths'
local marked = require 'moonstill.prompt.marked'
local options_of = require 'moonstill.base.options'
local schema = require 'moonstill.base.schema'
local screen = require 'moonstill.base.screen'
local settings = require 'moonstill.run.settings'

local M = {}

local USAGE = '[CONFIG.yaml|FILE ...] [key=value ...]'

local ABOUT = [[
Prints samples of a recipe's data as they are learnt, and how long all of them are. CONFIG.yaml and
key=value are those of the recipe, whose other keys are passed over; files of data may be given as
they are:

  moonstill data show recipes/distill.yaml teacher=FOLDER data.train=train.jsonl
  moonstill data show train.jsonl model=models/teacher n=1 tokens=true

What is learnt is green on a terminal and stands in brackets elsewhere, with its weight where that
is not 1; special tokens are bold.]]

local function schema_of_show()
  return {
    model = schema.optional('path', 'folder of the tokenizer and template; student or teacher do'),
    student = schema.optional('path', 'as in a recipe'),
    teacher = schema.optional('path', 'as in a recipe'),
    data = dataset.options(),
    seed = settings.common.seed,
    part = schema.one_of({ 'train', 'valid' }, nil, 'which of the data'),
    on = schema.one_of({ 'response', 'all' }, nil, 'what is learnt: answers, or everything'),
    n = schema.option(3, 'how many samples are printed', 'integer >= 0'),
    from = schema.option(1, 'number of the first one', 'integer >= 1'),
    tokens = schema.option(false, 'lines between tokens'),
    colours = schema.option('auto', 'auto: on a terminal', 'auto|boolean'),
  }
end

-- the command line -------------------------------------------------------------------------------

-- Keys of recipes: anything else in their files, and on the command line what runs have.
local function is_of_recipe(key, in_file)
  local first = key:match '^[^.]+'
  if first == 'data' then return false end
  return in_file or settings.options[first] ~= nil or key ~= first
end

--- The command, for the page of reference: its keys are those of a configuration.
M.command = { name = 'data show', usage = USAGE, about = ABOUT, keys = function()
  return config.list(schema_of_show(), { others = is_of_recipe })
end }

local function is_config(word)
  return word:find '^%-' or word:find '^[%a_][%w_.]*=' or word:find '%.ya?ml$'
end

-- The arguments as configurations take them: files of data are the key data.train.
local function arguments(args, first)
  local list, files = {}, json.array()
  for i = first, #args do
    if is_config(args[i]) then list[#list + 1] = args[i] else files[#files + 1] = args[i] end
  end
  if #files > 0 then list[#list + 1] = 'data.train=' .. json.encode(files) end
  return list
end

local function chat_of(cfg)
  local first = cfg.model or cfg.student or cfg.teacher
  if not first then
    config.refuse 'model=FOLDER is needed: whose tokenizer and template (student or teacher do)'
  end
  return chats.open(first, { not cfg.model and cfg.teacher or nil }, cfg.data)
end

-- what is printed --------------------------------------------------------------------------------

local function print_sample(data, i, cfg, how)
  local ids, n, response, all = data:sample(i)
  local weights, learnt = cfg.on == 'all' and all or response, 0
  for t = 0, n - 2 do learnt = learnt + (weights[t] > 0 and 1 or 0) end
  local head = ('sample %d of %d: %d tokens, %d learnt'):format(i, data:count(), n, learnt)
  print(how.colours and ('\27[1m%s\27[0m'):format(head) or head)
  local text = marked.text(data.chat.tokenizer, ids, n, weights, how)
  io.write(text, text:sub(-1) == '\n' and '' or '\n', '\n')
end

-- How many tokens each sample has, and how many of them are learnt.
local function count_all(data, on)
  local tokens, learnt = {}, {}
  for i = 1, data:count() do
    local _, n, response, all = data:sample(i)
    local weights, count = on == 'all' and all or response, 0
    for t = 0, n - 2 do
      if weights[t] > 0 then count = count + 1 end
    end
    tokens[i], learnt[i] = n, count
  end
  return tokens, learnt
end

-- The part of the data that was asked for, as a recipe has it.
local function data_of(cfg)
  local o = cfg.data
  local splits = o.split and not o.valid
  if not o[cfg.part] and not splits then
    config.refuse(("'data.%s' is not given"):format(cfg.part))
  end
  local chat = chat_of(cfg)
  o.max_tokens = lengths.longest(chat, cfg)
  if not splits then return dataset.open(o[cfg.part], chat, o) end
  local train, valid = dataset.sets(o, chat, { seed = cfg.seed })
  return cfg.part == 'train' and train or valid
end

local function show(cfg)
  local data = data_of(cfg)
  if cfg.from > data:count() then
    config.refuse(('from = %d, but there are %d samples'):format(cfg.from, data:count()))
  end
  local colours = cfg.colours
  if colours == 'auto' then colours = screen.has_colours(1) end
  for i = cfg.from, math.min(data:count(), cfg.from + cfg.n - 1) do
    print_sample(data, i, cfg, { colours = colours, tokens = cfg.tokens })
  end
  local tokens, learnt = count_all(data, cfg.on)
  for _, line in ipairs(lengths.lines(tokens, learnt, screen.columns(1))) do print(line) end
end

local HELP = [[
moonstill data COMMAND

  show   samples as they are learnt, and how long they are

moonstill data COMMAND --help says more.
]]

--- @param args string[] the command line, whose second word is the first behind "data"
--- @return integer the exit status
function M.run(args)
  local word = args[2]
  if word == '--help' or word == '-h' then
    io.write(HELP)
    return 0
  end
  if word ~= 'show' then
    exit(2, ('data: %s\nTry: moonstill data --help'):format(word
      and ("no command '%s'; %s"):format(word, options_of.instead(word, { 'show' }))
      or 'which command? there is show'))
  end
  local about = ('moonstill data show %s\n\n%s'):format(USAGE, ABOUT)
  show(config(schema_of_show(), { about = about, args = arguments(args, 3),
    others = is_of_recipe }))
  return 0
end

return M
