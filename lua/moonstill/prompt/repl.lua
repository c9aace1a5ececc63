--- The Lua prompt: expressions are printed, unfinished lines go on, `ms` is at hand.
local history = require 'moonstill.prompt.history'
local message_of = require 'moonstill.prompt.message'
local sorted = require 'moonstill.base.sorted'

local M = {}

local DEEP, LONG = 3, 24 -- how far tables are printed

local is_word = '^[%a_][%w_]*$'

local function key_text(key)
  if type(key) == 'string' and key:find(is_word) then return key end
  return '[' .. (type(key) == 'string' and ('%q'):format(key) or tostring(key)) .. ']'
end

local show

local function show_table(t, depth, seen)
  if seen[t] then return '{ ... }' end
  seen[t] = true
  local parts, list = {}, #t
  for i, key in ipairs(sorted.keys(t)) do
    if i > LONG or depth >= DEEP then
      parts[#parts + 1] = '...'
      break
    end
    local value = show(t[key], depth + 1, seen)
    local in_list = type(key) == 'number' and key >= 1 and key <= list and key % 1 == 0
    parts[#parts + 1] = in_list and value or key_text(key) .. ' = ' .. value
  end
  seen[t] = nil
  if #parts == 0 then return '{}' end
  return '{ ' .. table.concat(parts, ', ') .. ' }'
end

function show(value, depth, seen)
  if type(value) == 'string' then
    return depth == 0 and value or ('%q'):format(value):gsub('\\\n', '\\n')
  end
  local meta = type(value) == 'table' and getmetatable(value)
  if type(value) ~= 'table' or (type(meta) == 'table' and meta.__tostring) then
    return tostring(value)
  end
  return show_table(value, depth, seen)
end

--- How the prompt prints a value: strings as they are, tables by their content.
--- @param value any
--- @return string
function M.show(value) return (show(value, 0, {})) end

-- "'<eof>' expected near 'x'" is the other way round: there is too much.
local function ends_early(why) return why:find("near '<eof>'", 1, true) ~= nil end

--- Compiles what was typed: as an expression where it is one.
--- @return function? chunk
--- @return string? why not
--- @return boolean? unfinished more lines could make it whole
function M.compile(text)
  local source = text:gsub('^%s*=', 'return ', 1)
  local chunk, not_value = loadstring('return ' .. source, '=prompt')
  if chunk then return chunk end
  local why
  chunk, why = loadstring(source, '=prompt')
  if chunk then return chunk end
  return nil, why, ends_early(not_value) or ends_early(why)
end

local function complain(why)
  io.stdout:flush()
  io.stderr:write(message_of(why), '\n')
  return false
end

local function print_results(ok, ...)
  if not ok then return complain((...)) end
  for i = 1, select('#', ...) do
    local value = select(i, ...)
    io.write(i > 1 and '\t' or '', M.show(value))
    _ = value
  end
  if select('#', ...) > 0 then io.write '\n' end
  return true
end

local function lines_of_file()
  return function() return io.read '*l' end
end

-- The next whole chunk: a function, or nil and why not; false at the end of the input.
local function read_chunk(read)
  local text = read '> '
  if text == nil then return false end
  while text do
    local chunk, why, unfinished = M.compile(text)
    if chunk or not unfinished then return chunk, why end
    local line = read '>> '
    if line == nil then return nil, why end -- the input ends within a statement
    text = line and text .. '\n' .. line
  end
  return function() end -- given up with Ctrl-C
end

--- Reads and runs until the input ends.
--- @param prompt table the terminal, see core/prompt.h
--- @return integer status 1 when something failed in a session without a terminal
function M.run(prompt)
  local talk = prompt.interactive()
  local read = talk and history.lines(prompt, 'moonstill_history') or lines_of_file()
  ms, help = require 'moonstill', require 'moonstill.prompt.help'
  if talk then print('moonstill ' .. ms._VERSION .. ', ' .. jit.version .. '. help() helps.') end
  local failed = false
  while true do
    local chunk, why = read_chunk(read)
    if chunk == false then break end
    local fine
    -- What is typed is not compiled: Ctrl-C would not reach a compiled loop.
    if chunk and talk then jit.off(chunk, true) end
    if chunk then fine = print_results(prompt.call(chunk)) else fine = complain(why) end
    failed = failed or not fine
  end
  if talk then io.write '\n' end
  return failed and not talk and 1 or 0
end

return M
