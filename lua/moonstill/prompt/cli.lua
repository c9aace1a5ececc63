--- The command line of the executable: recipes, code, subcommands, the REPL.
local message_of = require 'moonstill.prompt.message'
local options = require 'moonstill.base.options'
local printable = require 'moonstill.base.printable'
local screen = require 'moonstill.base.screen'
local sorted = require 'moonstill.base.sorted'
local trace = require 'moonstill.base.trace'

local M = {}

local OK, ERROR, WRONG_USE, INTERRUPTED = 0, 1, 2, 128

local terminal -- see core/prompt.h and core/launch.h

-- The exit status of an error: its own, where it has one (base.exit).
local function status_of(why) return type(why) == 'table' and why.exit or ERROR end

local function complain(text)
  local message, number = printable(message_of(text)), require 'moonstill.C'.ms_group_number()
  io.stdout:flush()
  if number > 0 then io.stderr:write('moonstill: ', message, '\n') end -- its log, if any
  if number > 0 and status_of(text) >= INTERRUPTED then return end -- as rank 0 does
  if number >= 0 and not require 'moonstill.base.ranks'.says_why() then return end
  if number > 0 then
    terminal.rank_say(('moonstill: rank %d: %s'):format(number, message))
  else
    io.stderr:write(screen.wrapped(2, 'moonstill: ' .. message, 2), '\n')
  end
end

local function misuse(text)
  complain(text .. '\nTry: moonstill --help')
  return WRONG_USE
end

-- A recipe that watches for signals ends in good order, and the caller learns of it by the status.
local function status_of_success()
  local C = package.loaded['moonstill.C']
  local signal = C and C.ms_interrupted() or 0
  return signal ~= 0 and INTERRUPTED + signal or OK
end

-- A recipe that forgets to finish its run has no student, which must not look like success.
local function left_open()
  local runs = package.loaded['moonstill.run.run']
  local outputs = runs and runs.left_open() or {}
  if #outputs == 0 then return false end
  complain(('the recipe has ended without run:finish(): no student is saved in %s; add '
    .. 'run:finish() (or run:close(), where none is wanted) behind its loop, and start it again')
    :format(table.concat(outputs, ', ')))
  return true
end

--- Runs a chunk with `arg` set to the rest of the command line.
local function run(chunk, name, first)
  local mine = { [0] = name }
  for i = first, #arg do mine[#mine + 1] = arg[i] end
  arg = mine
  local ok, why = xpcall(chunk, trace.handler)
  if ok then return left_open() and ERROR or status_of_success() end
  complain(why)
  return status_of(why)
end

local commands -- by their first word

-- What a word that is neither a command nor a recipe may have meant.
local function hint(word)
  local near = options.nearest(word, sorted.keys(commands))
  return near and ("; did you mean '%s'?"):format(near) or ''
end

local function run_recipe(path)
  local other = require 'moonstill.prompt.mistaken'.instead(path)
  if other then return misuse(('%s %s'):format(path, other)) end
  local file, absent = io.open(path, 'rb')
  if not file then return misuse(('no recipe: %s%s'):format(absent, hint(path))) end
  file:close()
  local chunk, why = loadfile(path)
  if not chunk then
    complain(why)
    return ERROR
  end
  return run(chunk, path, 2)
end

local function run_code(code)
  if not code then return misuse '-e needs code' end
  local chunk, why = loadstring(code, '=(command line)')
  if not chunk then
    complain(why)
    return ERROR
  end
  ms = require 'moonstill'
  return run(chunk, '-e', 3)
end

local function print_version(prompt)
  local ffi, C, text = require 'ffi', require 'moonstill.C', require 'moonstill.base.text'
  local out = ffi.new 'char *[1]'
  require 'moonstill.base.check'(C.ms_version(1, out))
  print(text(out[0]))
  print(prompt.version)
  return OK
end

commands = {
  chat = function(prompt) return require 'moonstill.prompt.talk'.run(prompt, arg) end,
  generate = function() return require 'moonstill.prompt.answers'.run(arg) end,
  data = function() return require 'moonstill.prompt.show'.run(arg) end,
  eval = function() return require 'moonstill.prompt.evaluate'.run(arg) end,
  plan = function() return require 'moonstill.prompt.plan'.run(arg) end,
  inspect = function() return require 'moonstill.prompt.inspect'.run(arg) end,
  ['--help'] = function()
    io.write(require 'moonstill.prompt.usage'.text())
    return OK
  end,
  ['--version'] = print_version,
  ['-n'] = function(prompt) return require 'moonstill.prompt.launch'.run(prompt, arg) end,
  ranks = function() return require 'moonstill.prompt.launch'.list(arg) end,
  ['-e'] = function() return run_code(arg[2]) end,
}
commands['-h'] = commands['--help']

-- A line that is drawn over is left standing before anything else is printed.
local function settling(write)
  return function(...)
    if screen.is_terminal(1) then screen.settle() end
    return write(...)
  end
end

-- What scripts and the prompt have beside Lua's own. Help is loaded when it is asked for.
local function set_globals()
  rawset(_G, 'print', settling(print))
  help = function(...) return require 'moonstill.prompt.help'(...) end
  rawset(coroutine, 'wrap', trace.wrap)
  trace.hint_by(function(...) return require 'moonstill.prompt.slips'(...) end)
end

-- What needs no environment.
local HARMLESS = { ['--help'] = true, ['-h'] = true }

local function main(prompt)
  local first = arg[1]
  set_globals()
  local wrong = not HARMLESS[first] and require 'moonstill.prompt.environment'.wrong()
  if wrong then return misuse(wrong) end
  if not first then return require 'moonstill.prompt.repl'.run(prompt) end
  if commands[first] then
    local ok, status = xpcall(commands[first], trace.handler, prompt)
    if ok then return status end
    complain(status)
    return status_of(status)
  end
  if first:sub(1, 1) == '-' then return misuse('unknown option ' .. first .. hint(first)) end
  return run_recipe(first)
end

-- A rank that has failed ends the others, which would wait for it. One that was asked to end has
-- been so with all others.
local function end_ranks(status)
  if status == OK or status >= INTERRUPTED then return end
  if require 'moonstill.C'.ms_group_number() < 0 then return end
  require 'moonstill.base.ranks'.abort(status)
end

--- Does what `arg` says; main.c calls it.
--- @param prompt table the terminal, see core/prompt.h and core/launch.h
--- @return integer the exit status
function M.main(prompt)
  terminal = prompt
  local status = main(prompt)
  end_ranks(status)
  return status
end

return M
