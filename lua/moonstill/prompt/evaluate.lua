--- `moonstill eval STUDENT .. DATA`: how good models are on data, as a table and as JSON.

local C = require 'moonstill.C'
local chats = require 'moonstill.text.chat'
local check = require 'moonstill.base.check'
local config = require 'moonstill.run.config'
local dataset = require 'moonstill.data.dataset'
local exit = require 'moonstill.base.exit'
local fail = require 'moonstill.base.fail'
local json = require 'moonstill.base.json'
local models = require 'moonstill.model.model'
local packing = require 'moonstill.data.packing'
local paths = require 'moonstill.base.paths'
local patterns = require 'moonstill.text.pattern'
local progress = require 'moonstill.base.progress'
local ranks = require 'moonstill.base.ranks'
local schema = require 'moonstill.base.schema'
local scope = require 'moonstill.base.scope'
local scoring = require 'moonstill.train.scoring'
local scores = require 'moonstill.prompt.scores'
local screen = require 'moonstill.base.screen'
local settings = require 'moonstill.run.settings'
local sorted = require 'moonstill.base.sorted'

local M = {}

local USAGE = 'STUDENT [STUDENT ...] DATA [teacher=FOLDER] [key=value ...]'
local ABOUT = [[
Says how good models are on data: loss, agreement with the labels, the divergence from a teacher,
and how many of the answers that they generate are exact. STUDENT is a model's folder, DATA a file
of samples; a recipe's YAML and its keys may give both (student, data.valid or data.split), and its
other keys are passed over.

  moonstill eval out/distilled/student valid.jsonl teacher=models/teacher
  moonstill eval out/sft out/small test.jsonl match='#### (.*)' exact=all

Behind a ± is the standard error. What run:validate measures is measured alike. --json prints JSON
in the place of the table.]]

local function schema_of_eval()
  local keys = {
    student = schema.optional('paths', 'model folders: those in front of DATA'),
    teacher = schema.optional('path', 'model folder to compare with; it is measured as well'),
    data = dataset.options { train = schema.optional('sources', 'with data.split: what a part is '
      .. 'held out of'), valid = schema.optional('sources', 'samples: DATA') },
    batch = { micro_tokens = packing.options.micro_tokens },
    seed = settings.common.seed, threads = settings.options.threads,
    device = models.options.device, dtype = models.options.dtype,
    json = schema.optional('string', 'file for all numbers; -: stdout, without the table'),
    answers = schema.optional('string', 'file for what was answered (.jsonl), with exact'),
  }
  for name, option in sorted.pairs(scoring.options) do keys[name] = option end
  return keys
end

local function of_another(_, in_file) return in_file end

--- The command, for the page of reference: its keys are those of a configuration.
M.command = { name = 'eval', usage = USAGE, about = ABOUT, keys = function()
  return config.list(schema_of_eval(), { others = of_another })
end }

-- the command line -------------------------------------------------------------------------------

local function refuse(format, ...)
  exit(2, ('eval: %s\nTry: moonstill eval --help'):format(format:format(...)))
end

local function is_config(word)
  return word:find '^%-' or word:find '^[%a_][%w_.]*=' or word:find '%.ya?ml$'
end

-- Adds a word that is a path to the folders of models or to the files of data.
local function take_path(word, folders, files)
  local kind = C.ms_path_kind(word)
  if kind == 0 then refuse('%s: %s', word, paths.missing(word, 'file or folder')) end
  local list = kind == 2 and folders or files
  list[#list + 1] = word
  if word:find '%.safetensors$' then
    refuse('%s: give the folder of the model, not a file in it', word)
  end
end

-- The arguments as configurations take them.
local function arguments(args, first)
  local list, folders, files = {}, json.array(), json.array()
  for i = first, #args do
    if args[i] == '--json' then
      list[#list + 1] = 'json=-'
    elseif is_config(args[i]) then
      list[#list + 1] = args[i]
    else
      take_path(args[i], folders, files)
    end
  end
  if #folders > 0 then list[#list + 1] = 'student=' .. json.encode(folders) end
  if #files > 0 then list[#list + 1] = 'data.valid=' .. json.encode(files) end
  return list
end

-- A file is made at the end of the work: what would keep it from being there is said before.
local function check_new(path, key)
  if not path or path == '-' then return end
  if C.ms_path_kind(path) ~= 0 then
    refuse('%s: %s is there already, and nothing is written over: remove it, or give another name',
      key, path)
  end
  local folder = path:match '^(.*)/[^/]*$'
  if folder and folder ~= '' and C.ms_path_kind(folder) ~= 2 then
    refuse('%s: there is no folder %s', key, folder)
  end
end

local function check_config(cfg)
  if not cfg.student then refuse 'which model? moonstill eval STUDENT DATA' end
  if not cfg.data.valid and not cfg.data.split then
    refuse(cfg.data.train and 'data.train is what is learnt: give DATA, data.valid or data.split'
      or 'on which data? moonstill eval STUDENT DATA')
  end
  if cfg.data.split and not cfg.data.valid and not cfg.data.train then
    refuse 'data.split is a part of data.train, which is not given'
  end
  if cfg.answers and cfg.exact == 0 then refuse "'answers' needs exact answers, and exact=0" end
  local ok, why = fail.pcall(patterns.new, cfg.match or '')
  if not ok then refuse('match: %s', why) end
  check_new(cfg.json, 'json')
  check_new(cfg.answers, 'answers')
end

-- the work ---------------------------------------------------------------------------------------

-- All models are given the turns of the first one, which some may not have been taught.
local function note_templates(chat, folders, options)
  for i = 2, options.template and 0 or #folders do
    local other = chats.open(folders[i], nil, options)
    if other.template ~= chat.template then
      ranks.world():say(('note: turns are written as %s has them, and %s has another template')
        :format(folders[1], folders[i]))
    end
    other:free()
  end
end

local function open_data(own, cfg, folders)
  local opened = {}
  for i, folder in ipairs(folders) do
    opened[i] = own(models.open(folder, { device = cfg.device, dtype = cfg.dtype }))
  end
  local chat = own(chats.open(folders[1], { unpack(folders, 2) }, cfg.data))
  note_templates(chat, folders, cfg.data)
  local o = schema.plain(cfg.data)
  o.max_tokens = chat:longest(o.max_tokens, unpack(opened))
  if o.valid then return opened, dataset.open(o.valid, chat, o) end
  local _, held = dataset.sets(o, chat, { seed = cfg.seed })
  return opened, held
end

-- Ctrl-C, or what else asks for the end, ends the work at the next batch or token.
local function leave()
  exit(128 + C.ms_interrupted(), 'eval: stopped; nothing is written')
end

local function measure(cfg)
  local folders = type(cfg.student) == 'string' and { cfg.student } or sorted.copy(cfg.student)
  local count = #folders
  folders[count + 1] = cfg.teacher
  return scope(function(own)
    local opened, data = open_data(own, cfg, folders)
    local o = schema.part(scoring.options, cfg)
    o.micro_tokens = cfg.batch.micro_tokens
    local shown = progress.new(ranks.world())
    local report, all = scoring.measure({ unpack(opened, 1, count) }, opened[count + 1], data, o, {
      progress = shown, say = function(line) ranks.world():say(line) end,
      halt = function() return C.ms_interrupted() ~= 0 end, halted = leave })
    shown:clear()
    return report, all
  end)
end

-- what comes out ---------------------------------------------------------------------------------

local ORDER = { order = { 'data', 'students', 'teacher', 'differences', 'name', 'folder', 'model',
  'less', 'sample' }, indent = 2 }

local function write(path, text) check.file(C.ms_file_write(path, text, #text)) end

local ROW = { order = { 'model', 'sample', 'right', 'expected', 'got', 'reference', 'answer' } }

local function answer_lines(all)
  local lines = {}
  for _, of in ipairs(all) do
    for _, row in ipairs(of.rows or {}) do
      row.model = of.entry.name
      lines[#lines + 1] = json.encode(row, ROW) .. '\n'
    end
  end
  return table.concat(lines)
end

local function give(cfg, report, all)
  if cfg.answers then write(cfg.answers, answer_lines(all)) end
  local text = cfg.json and json.encode(report, ORDER) .. '\n'
  if cfg.json == '-' then
    io.write(text)
    return
  end
  if text then write(cfg.json, text) end
  for _, line in ipairs(scores.lines(report, screen.columns(1))) do print(line) end
end

--- @param args string[] the command line, whose second word is the first behind "eval"
--- @return integer the exit status
function M.run(args)
  local cfg = config(schema_of_eval(), { args = arguments(args, 2), others = of_another,
    about = ('moonstill eval %s\n\n%s'):format(USAGE, ABOUT) })
  check_config(cfg)
  C.ms_interrupt_watch(1)
  local ok, report, all = fail.pcall(measure, cfg)
  local signal = C.ms_interrupted()
  C.ms_interrupt_watch(0)
  if not ok then error(report, 0) end
  if signal ~= 0 then exit(128 + signal, 'eval: stopped; nothing is written') end
  give(cfg, report, all)
  return 0
end

return M
