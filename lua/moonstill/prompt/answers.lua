--- `moonstill generate FOLDER --prompts FILE -o FILE`: a model's answers to many prompts, as rows
--- that can be trained on.

local C = require 'moonstill.C'
local chats = require 'moonstill.text.chat'
local check = require 'moonstill.base.check'
local command = require 'moonstill.prompt.command'
local ends = require 'moonstill.text.ends'
local fail = require 'moonstill.base.fail'
local ffi = require 'ffi'
local generate = require 'moonstill.model.generate'
local json = require 'moonstill.base.json'
local models = require 'moonstill.model.model'
local printable = require 'moonstill.base.printable'
local progress = require 'moonstill.base.progress'
local prompts_of = require 'moonstill.prompt.prompts'
local ranks = require 'moonstill.base.ranks'
local sampling = require 'moonstill.prompt.sampling'
local schema = require 'moonstill.base.schema'
local screen = require 'moonstill.base.screen'
local text_of = require 'moonstill.base.text'
local unfinished = require 'moonstill.prompt.unfinished'

local M = {}

--- What the command line may say.
M.options = schema.new('generate', {
  prompts = schema.required('path', 'file of prompts: .txt (one on each line), .jsonl, .json, '
    .. '.csv, .tsv'),
  output = schema.required('path', 'file of the answers (.jsonl); -: stdout'),
  text = schema.option(false, 'rows hold texts for readers, not the tokens themselves'),
  system = schema.optional('string', 'a system message before each prompt that has none'),
  template = chats.options.template, template_args = chats.options.template_args,
  together = generate.row_options.together,
  device = models.options.device, dtype = models.options.dtype,
}, sampling.options(512))

--- The command, as `command.read` takes it.
M.command = { name = 'generate', usage = 'FOLDER --prompts FILE -o FILE [options]',
  words = { 1, 1 }, options = M.options, short = { ['-o'] = 'output' }, about = [[
Writes the answers of the model in FOLDER to many prompts as JSON lines, in their order; training on
them learns what was generated. Rows of prompts hold messages, a prompt or a text, and may have
an id, which the answer's row gets. An empty answer gives no row.

A call that was stopped goes on where it was when it is made again. A file that is there is never
written over.

What is not given is as the folder's generation_config.json says, then as here.]] }

local out = ffi.new 'char *[1]'

local function hash_of(text)
  check(C.ms_hash(text, #text, out))
  return text_of(out[0])
end

local function say(format, ...)
  io.stderr:write(screen.wrapped(2, printable(format:format(...))), '\n')
end

-- prompts ----------------------------------------------------------------------------------------

local function check_ids(ids, info)
  if #ids >= info.context then
    error(('%d tokens, and the context of the model is %d: no room for an answer'):format(#ids,
      info.context), 0)
  end
  for _, id in ipairs(ids) do
    if id >= info.vocab then
      error(("token id %d, but the model has only the ids below %d: another tokenizer?"):format(id,
        info.vocab), 0)
    end
  end
end

-- Finds what is wrong with any prompt before the first is answered. Returns a hash of all
-- tokens and ids.
local function check_prompts(list, chat, info)
  local parts = {}
  for i, entry in ipairs(list) do
    local ok, why = fail.pcall(function()
      local ids = generate.prompt_ids(chat, entry.prompt)
      check_ids(ids, info)
      parts[i] = hash_of(('%s %s'):format(table.concat(ids, ' '), tostring(entry.id)))
    end)
    if not ok then error(('%s: %s'):format(entry.where, tostring(why)), 0) end
  end
  return hash_of(table.concat(parts))
end

-- What a call is about: another one does not go on with its rows.
local function asked_of(job, hash)
  local asked = { prompts = #job.list, tokens = hash, model = job.model:hash(),
    form = job.options.form, stop = json.array(job.options.stop) }
  for _, key in ipairs(sampling.keys) do asked[key] = job.options[key] end
  return asked
end

-- the work ---------------------------------------------------------------------------------------

local function halted() return C.ms_interrupted() ~= 0 end

local function describe(report) return ('%d ended'):format(report.ended) end

-- Answers the prompts behind the first `done`; `put` gets the lines of each part. Returns how many
-- are done.
local function answer(job, done, put)
  local shown = progress.new(ranks.world(), { word = 'prompt', quiet = not screen.is_terminal(2) })
  local prompts = {}
  for i, entry in ipairs(job.list) do prompts[i] = entry.prompt end
  job.options.from = done + 1
  local next_part, report = generate.parts(job.model, job.chat, prompts, job.options, halted)
  for last, rows in next_part do
    local lines = {}
    for i, row in ipairs(rows) do
      if row then row.id = job.list[done + i].id end
      lines[i] = row and generate.line(row) or false
    end
    put(lines)
    done = last
    shown:step(done, #prompts, describe, report)
  end
  shown:finish()
  return done
end

-- Calls a function while signals ask it to end in good order; returns its result and the signal.
local function watched(f)
  C.ms_interrupt_watch(1)
  local ok, result = pcall(f)
  local signal = C.ms_interrupted()
  C.ms_interrupt_watch(0)
  if not ok then error(result, 0) end
  return result, signal
end

local function to_stdout(job)
  local done, signal = watched(function()
    return answer(job, 0, function(lines)
      for _, line in ipairs(lines) do io.stdout:write(line or '') end
      if not io.stdout:flush() then error('stdout: cannot be written', 0) end
    end)
  end)
  if signal == 0 then return 0 end
  say('stopped after %d of %d prompts', done, #job.list)
  return 128 + signal
end

local function to_file(job, output, asked)
  local part = output .. '.part'
  local before = unfinished.take_up(part, asked)
  if before > 0 then say('%s: %d of %d prompts are answered; going on', part, before, #job.list) end
  local file = assert(io.open(part, 'ab'))
  local done, signal = watched(function()
    return answer(job, before, function(lines)
      for _, line in ipairs(lines) do
        if not file:write(line or 'null\n') then error(part .. ': cannot be written', 0) end
      end
      if not file:flush() then error(part .. ': cannot be written', 0) end
    end)
  end)
  file:close()
  if signal ~= 0 and done < #job.list then
    say('stopped after %d of %d prompts; the same command goes on from there (%s)', done, #job.list,
      part)
    return 128 + signal
  end
  local report = unfinished.finish(part, output)
  say('%s: %d answers, %d of them ended%s', output, report.rows, report.ended,
    report.empty > 0 and (', %d empty ones left out'):format(report.empty) or '')
  return 0
end

-- the command ------------------------------------------------------------------------------------

local function check_files(given)
  if not given.prompts then command.refuse(M.command, '--prompts FILE is needed') end
  if not given.output then command.refuse(M.command, '-o FILE is needed; -o - is stdout') end
  if given.output ~= '-' and C.ms_path_kind(given.output) ~= 0 then
    error(given.output .. ': is there already, and nothing is written over: remove it, or give '
      .. 'another -o', 0)
  end
end

local function open_job(folder, given)
  local list = prompts_of.read(given.prompts)
  for _, entry in ipairs(list) do
    entry.prompt = prompts_of.with_system(entry.prompt, given.system)
  end
  local settings, drawn = sampling.take('generate', M.options, given, folder)
  local chat = chats.open(folder, nil, schema.part(chats.options, given))
  local model = models.open(folder, { device = settings.device, dtype = settings.dtype })
  if drawn then say('%s', drawn) end
  for _, why in ipairs(chat:warnings()) do say('note: %s', why) end
  local options = { form = given.text and 'text' or 'ids', together = settings.together,
    stop = ends.union(chat.tokenizer:size(), model:ends(), chat.stop) }
  for _, key in ipairs(sampling.keys) do options[key] = settings[key] end
  return { list = list, chat = chat, model = model, options = options }
end

--- @param args string[] the command line, whose second word is the first behind "generate"
--- @return integer the exit status
function M.run(args)
  local words, given = command.read(M.command, args, 2)
  if not words then return 0 end
  check_files(given)
  local job = open_job(words[1], given)
  local hash = check_prompts(job.list, job.chat, job.model:info())
  if given.output == '-' then return to_stdout(job) end
  return to_file(job, given.output, asked_of(job, hash))
end

return M
