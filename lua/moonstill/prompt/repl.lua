--- The Lua prompt: expressions are printed, unfinished lines go on, `ms` is at hand.
local chunk_of = require 'moonstill.prompt.chunk'
local history = require 'moonstill.prompt.history'
local message_of = require 'moonstill.prompt.message'
local pretty = require 'moonstill.prompt.pretty'
local printable = require 'moonstill.base.printable'
local screen = require 'moonstill.base.screen'
local sorted = require 'moonstill.base.sorted'
local trace = require 'moonstill.base.trace'

local M = {}

local leaving = {} -- the error that ends the session; `status` is then the process's

-- What a session has besides `ms`; `exit`, `quit` and `help` are called by their bare name.
local own = {}

--- Leaves the prompt.
--- @param status? integer of the process, default 0
function own.exit(status)
  leaving.status = tonumber(status) or 0
  error(leaving, 0)
end
own.quit = own.exit

local function complain(why)
  if why == leaving then return true end
  io.stdout:flush()
  io.stderr:write(screen.wrapped(2, printable(message_of(why)), 2), '\n')
  return false
end

local function print_results(ok, ...)
  screen.settle() -- a run that has stopped may have left a line
  if not ok then return complain((...)) end
  local columns, texts = screen.columns(1), {}
  for i = 1, select('#', ...) do
    local value = select(i, ...)
    texts[i] = pretty.show(value, columns)
    _ = value
  end
  if #texts > 0 then io.write(table.concat(texts, '\t'), '\n') end
  return true
end

local function lines_of_file()
  return function() return io.read '*l' end
end

-- A name alone that the session itself has calls it.
local function bare_call(text)
  local name = text:match '^%s*(%a+)%s*;?%s*$'
  local f = name and own[name]
  return f and rawget(_G, name) == f and function() return f() end
end

local pending = '' -- the lines before this one of a text that is not whole

-- What Tab does: in a line that goes on and is blank as yet, it moves in.
local function on_tab(files)
  return function(before, after)
    if pending ~= '' and not before:find '%S' then return 0, '  ' end
    local complete = require 'moonstill.prompt.complete'
    return complete.complete(pending .. before, after, files, screen.columns(1))
  end
end

-- The next whole chunk: a function, or nil and why not, and its text; false where the input ends.
local function read_chunk(read)
  pending = ''
  local text = read '> '
  if text == nil then return false end
  while text do
    local chunk, why, unfinished = chunk_of.compile(text)
    if chunk or not unfinished then return bare_call(text) or chunk, why, text end
    pending = text .. '\n'
    local line = read '>> '
    if line == nil then return nil, why, text end -- the input ends within a statement
    text = line and text .. '\n' .. line
  end
  return function() end, nil, '' -- given up with Ctrl-C
end

-- Says which locals are gone, as they would have been kept elsewhere.
local function tell_locals(text)
  local names = chunk_of.unused_locals(text)
  if #names == 0 then return end
  io.stdout:flush()
  local note = ("note: the local %s ends with %s; without 'local' it stays")
    :format(table.concat(names, ', '), text:find '\n' and 'these lines' or 'this line')
  io.stderr:write(screen.wrapped(2, note), '\n')
end

local function pass(...) return ... end

-- Runs a chunk and prints what it gives.
local function run_chunk(prompt, chunk, text)
  local fine = print_results(prompt.call(trace.handler, chunk, pass))
  if fine then tell_locals(text) end
  return fine
end

--- Reads and runs until the input ends.
--- @param prompt table the terminal, see core/prompt.h
--- @return integer status 1 when something failed in a session without a terminal
function M.run(prompt)
  local talk = prompt.interactive()
  local read = talk and history.lines(prompt, 'moonstill_history') or lines_of_file()
  ms, own.help = require 'moonstill', help
  if talk then prompt.complete(on_tab(prompt.files)) end
  for name, value in sorted.pairs(own) do _G[name] = value end
  if talk then print('moonstill ' .. ms._VERSION .. ', ' .. jit.version .. '. help() helps.') end
  local failed = false
  while not leaving.status do
    local chunk, why, text = read_chunk(read)
    if chunk == false then break end
    local fine
    -- What is typed is not compiled: Ctrl-C would not reach a compiled loop.
    if chunk and talk then jit.off(chunk, true) end
    if chunk then fine = run_chunk(prompt, chunk, text) else fine = complain(why) end
    failed = failed or not fine
  end
  if leaving.status then return leaving.status end
  if talk then io.write '\n' end
  return failed and not talk and 1 or 0
end

return M
