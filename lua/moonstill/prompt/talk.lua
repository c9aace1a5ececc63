--- `moonstill chat FOLDER`: a conversation with a model, at a terminal or through pipes.

local C = require 'moonstill.C'
local chats = require 'moonstill.text.chat'
local command = require 'moonstill.prompt.command'
local conversation = require 'moonstill.prompt.conversation'
local history = require 'moonstill.prompt.history'
local layout = require 'moonstill.base.layout'
local message_of = require 'moonstill.prompt.message'
local models = require 'moonstill.model.model'
local printable = require 'moonstill.base.printable'
local progress = require 'moonstill.base.progress'
local sampling = require 'moonstill.prompt.sampling'
local schema = require 'moonstill.base.schema'
local screen = require 'moonstill.base.screen'
local slash = require 'moonstill.prompt.slash'
local thoughts = require 'moonstill.prompt.thoughts'

local M = {}

--- What the command line may say.
M.options = schema.new('chat', {
  system = schema.optional('string', 'the system message'),
  template = chats.options.template, template_args = chats.options.template_args,
  device = models.options.device, dtype = models.options.dtype,
}, sampling.options(1024))

--- The command, as `command.read` takes it.
M.command = { name = 'chat', usage = 'FOLDER [options]', words = { 1, 1 },
  options = M.options, about = [[
Talks to the model in FOLDER. An answer is shown as it comes; Ctrl-C stops it, and leaves when
pressed twice at the empty prompt. Lines of a pipe are turns. Commands begin with a /:

]] .. slash.help() .. [[


What is not given is as the folder's generation_config.json says, then as here.]] }

local FENCE = '"""'

-- turns ------------------------------------------------------------------------------------------

-- Lines up to one that ends with the fence; `first` stands behind the fence that began.
local function read_fenced(read, first)
  local lines, line = {}, first
  while line do
    if line:sub(-#FENCE) == FENCE then
      lines[#lines + 1] = line:sub(1, -#FENCE - 1)
      break
    end
    lines[#lines + 1] = line
    line = read '>> '
  end
  if line == false then return false end -- given up with Ctrl-C
  if lines[1] == '' then table.remove(lines, 1) end
  if lines[#lines] == '' then lines[#lines] = nil end
  return table.concat(lines, '\n')
end

-- Lines as long as they end with a backslash.
local function read_continued(read, line)
  local lines = {}
  while line and line:sub(-1) == '\\' do
    lines[#lines + 1] = line:sub(1, -2)
    line = read '>> '
  end
  if line == false then return false end
  lines[#lines + 1] = line
  return table.concat(lines, '\n')
end

-- The next turn or command: a text and whether it is a command; nil at the end of the input; false
-- and what was typed after Ctrl-C.
local function read_turn(read)
  local line, typed = read '> '
  if not line then return line, typed end
  if line:sub(1, #FENCE) == FENCE then return read_fenced(read, line:sub(#FENCE + 1)), false end
  if line:sub(1, 2) == '//' then return read_continued(read, line:sub(2)), false end
  if line:sub(1, 1) == '/' then return line, true end
  return read_continued(read, line), false
end

-- answers ----------------------------------------------------------------------------------------

-- What writes an answer, and ends its line.
local function new_writer(terminal)
  local last, writer, painter = '\n', {}, thoughts.new(screen.dim)
  function writer.show(piece)
    if piece == '' then return end
    last = piece:sub(-1)
    io.stdout:write(screen.is_terminal(1) and painter.add(printable(piece)) or piece)
    io.stdout:flush()
  end
  function writer.finish()
    io.stdout:write(painter.finish(), last ~= '\n' and '\n' or '')
    last = '\n'
    io.stdout:flush()
  end
  -- What is no answer: beside it at a terminal, on stderr otherwise.
  local function put(text, paint)
    local stream = terminal and io.stdout or io.stderr
    text = screen.wrapped(terminal and 1 or 2, printable(text))
    stream:write(paint and terminal and paint(text) or text, '\n')
    stream:flush()
  end
  function writer.say(text) put(text) end
  function writer.note(text) put(text, screen.dim) end
  return writer
end

local function halted() return C.ms_interrupted() ~= 0 end

-- Does what was said. Returns whether it went well, and whether to leave.
local function answer(talk, text, is_command, halt)
  local writer, leave = talk.writer, nil
  local ok, words = pcall(function()
    if not is_command then return talk.conversation:say(text, writer.show, halt) end
    local said
    said, leave = slash.run(talk.conversation, text, writer.show, halt)
    return said
  end)
  writer.finish()
  if words and ok and is_command then
    writer.say(words)
  elseif words then
    writer.note(('(%s)'):format(message_of(words)))
  end
  return ok, leave
end

-- at a terminal ----------------------------------------------------------------------------------

-- From here to the answer's end Ctrl-C is watched, and asks for the end of the answer.
local function answer_watched(talk, text, is_command)
  C.ms_interrupt_watch(1)
  local _, leave = answer(talk, text, is_command, halted)
  local signal = C.ms_interrupted()
  C.ms_interrupt_watch(0)
  if signal ~= 0 and signal ~= 2 then return 128 + signal end -- not Ctrl-C: the process is to end
  return leave and 0 or nil
end

-- Ctrl-C gives up what was typed; at the empty prompt a second one leaves.
local function converse(talk, read)
  local leaving = false
  while true do
    local text, more = read_turn(read)
    if text == nil then
      io.stdout:write '\n'
      return 0
    elseif text == false then
      if leaving and more == '' then return 0 end
      leaving = more == ''
      if leaving then talk.writer.note 'Ctrl-C again or Ctrl-D leaves; /help lists the commands' end
    else
      leaving = false
      local status = text:find '%S' and answer_watched(talk, text, more)
      if status then return status end
    end
  end
end

-- through pipes ----------------------------------------------------------------------------------

local function read_line() return io.read '*l' end

local function converse_plainly(talk)
  local failed = false
  while true do
    local text, is_command = read_turn(read_line)
    if not text then return failed and 1 or 0 end
    if text:find '%S' then
      local fine, leave = answer(talk, text, is_command)
      failed = failed or not fine
      if leave then return failed and 1 or 0 end
    end
  end
end

-- the command ------------------------------------------------------------------------------------

local function introduce(talk, folder, drawn)
  local info, note = talk.conversation.model:info(), talk.writer.note
  note(('%s: %s, %s parameters, context %d'):format(folder, info.family,
    progress.count(info.parameters):gsub(' ', layout.TIE), info.context))
  if talk.conversation:has_turns() then note('turns are ' .. talk.conversation.chat:describe()) end
  if drawn then note(drawn) end
  note '/help lists the commands; Ctrl-C stops an answer, Ctrl-D leaves'
end

-- A base model is no partner of conversations, which is said wherever it is.
local function say_base(talk)
  if talk.conversation:has_turns() then return end
  talk.writer.note 'no chat template: each line is a text that the model goes on with'
end

--- @param prompt table the terminal, see core/prompt.h
--- @param args string[] the command line, whose second word is the first behind "chat"
--- @return integer the exit status
function M.run(prompt, args)
  local words, given = command.read(M.command, args, 2)
  if not words then return 0 end
  local folder = words[1]
  local system = given.system
  local settings, drawn = sampling.take('chat', M.options, given, folder)
  local chat = chats.open(folder, nil, schema.part(chats.options, given))
  local model = models.open(folder, { device = settings.device, dtype = settings.dtype })
  local talk = { conversation = conversation.new(model, chat, settings),
    writer = new_writer(prompt.interactive()) }
  if system and not talk.conversation:has_turns() then
    command.refuse(M.command, '--system: this model has no turns, and no system message')
  end
  talk.conversation.system = system
  for _, why in ipairs(chat:warnings()) do talk.writer.note('note: ' .. why) end
  if not prompt.interactive() then
    say_base(talk)
    return converse_plainly(talk)
  end
  introduce(talk, folder, drawn)
  say_base(talk)
  return converse(talk, history.lines(prompt, 'moonstill_chat_history'))
end

return M
