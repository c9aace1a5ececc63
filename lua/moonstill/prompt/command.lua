--- Command lines of subcommands: words, and options that a schema declares: `max_new` is --max-new.
---
---   local words, given = command.read(COMMAND, arg, 2)
---   if not words then return 0 end -- --help was asked for, and is printed
---
--- COMMAND = { name = 'chat', usage = 'FOLDER [options]', about = 'What it does.',
---   words = { 1, 1 }, -- at least and at most
---   options = a schema, short = { ['-o'] = 'output' } }

local exit = require 'moonstill.base.exit'
local fail = require 'moonstill.base.fail'
local json = require 'moonstill.base.json'
local layout = require 'moonstill.base.layout'
local options = require 'moonstill.base.options'
local schema = require 'moonstill.base.schema'
local screen = require 'moonstill.base.screen'
local sorted = require 'moonstill.base.sorted'

local M = {}

--- Ends a subcommand whose command line is wrong: exit status 2.
--- @param command table
--- @param format string
--- @param ... any
function M.refuse(command, format, ...)
  exit(2, ('%s: %s\nTry: moonstill %s --help'):format(command.name, format:format(...),
    command.name))
end

--- How an option is written on the command line.
--- @param key string
--- @return string
function M.flag(key) return '--' .. key:gsub('_', '-') end

-- Texts stay as they were written; what is no text is read as YAML reads it: 12, true, {a: 1}.
local function decode(option, raw)
  if schema.kind_of(option, raw) then return raw end
  local ok, value = fail.pcall(json.decode_yaml, raw, 'an option')
  if ok and value ~= json.null then return value end
  return raw
end

-- The key of an option as it was written, or nil.
local function key_of(command, flag)
  local short = command.short and command.short[flag]
  if short then return short end
  for _, entry in ipairs(schema.list(command.options)) do
    if M.flag(entry.key) == flag then return entry.key end
  end
end

local function unknown(command, flag)
  local flags = { '--help' }
  for _, entry in ipairs(schema.list(command.options)) do flags[#flags + 1] = M.flag(entry.key) end
  M.refuse(command, "no option '%s'; %s", flag, options.instead(flag, flags))
end

local function assign(command, given, flag, key, raw)
  local option = command.options[key]
  if given[key] ~= nil then M.refuse(command, '%s is given twice', flag) end
  local value = decode(option, raw)
  local why = schema.refused(flag, option, value)
  if why then M.refuse(command, '%s', why) end
  given[key] = value
end

-- Reads the option at args[i]; returns the place of the last word that belongs to it.
local function read_option(command, given, args, i)
  local flag, raw = args[i]:match '^(%-%-[^=]+)=(.*)$'
  flag = flag or args[i]
  local key = key_of(command, flag) or unknown(command, flag)
  local option = command.options[key]
  if option.kind == 'boolean' and not raw then
    given[key] = true
    return i
  end
  if not raw then
    i, raw = i + 1, args[i + 1]
    if not raw then M.refuse(command, '%s needs a value: %s', flag, schema.kind_text(option)) end
  end
  assign(command, given, flag, key, raw)
  return i
end

--- The text that --help prints.
--- @param command table
--- @return string
function M.help(command)
  local list, of = {}, {}
  for flag, key in sorted.pairs(command.short or {}) do of[key] = flag .. ', ' end
  for i, entry in ipairs(schema.list(command.options)) do
    list[i] = { key = (of[entry.key] or '') .. M.flag(entry.key), option = entry.option }
  end
  local about = layout.paragraphs(command.about, screen.page())
  return ('moonstill %s %s\n\n%s\n\n%s'):format(command.name, command.usage, about,
    schema.help(list))
end

local function check_words(command, words)
  local least, most = command.words[1], command.words[2]
  if #words < least then
    M.refuse(command, 'more words are needed: moonstill %s %s', command.name, command.usage)
  end
  local more = words[most + 1]
  if not more then return end
  local key, value = more:match '^([%w_-]+)=(.*)$'
  key = key and key:gsub('-', '_')
  if key and command.options[key] then
    M.refuse(command, "'%s': write %s %s", more, M.flag(key), value)
  end
  M.refuse(command, "'%s' is one word too many", more)
end

--- Reads a command line. With --help anywhere before a `--` it prints the help.
--- @param command table see above
--- @param args string[]
--- @param first integer the first argument behind the command
--- @return string[]? words those that are no options; nil when help was asked for
--- @return table given the options that were given, by key
function M.read(command, args, first)
  local words, given, i = {}, {}, first
  for k = first, #args do
    if args[k] == '--' then break end
    if args[k] == '--help' or args[k] == '-h' then
      io.write(M.help(command))
      return nil, given
    end
  end
  while i <= #args and args[i] ~= '--' do
    if args[i]:find '^%-.' then
      i = read_option(command, given, args, i)
    else
      words[#words + 1] = args[i]
    end
    i = i + 1
  end
  for k = i + 1, #args do words[#words + 1] = args[k] end -- behind `--`
  check_words(command, words)
  return words, given
end

return M
