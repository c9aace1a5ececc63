--- What is typed with a / in `moonstill chat`: commands over a conversation. Each returns what is
--- said of it; an error says why it cannot be done.

local generate = require 'moonstill.model.generate'
local layout = require 'moonstill.base.layout'
local options = require 'moonstill.base.options'
local sampling = require 'moonstill.prompt.sampling'
local schema = require 'moonstill.base.schema'
local screen = require 'moonstill.base.screen'
local sorted = require 'moonstill.base.sorted'

local M = {}

-- by name: { arguments, meaning, run(conversation, rest, show, halt) }
local commands = {}

local function counted(n, what) return n == 1 and '1 ' .. what or ('%d %ss'):format(n, what) end

commands.help = { '', 'this list', function() return M.help() end }
commands.quit = { '', 'leaves, as Ctrl-D does', function() return nil, true end }

commands.reset = { '', 'forgets the conversation, not the system message', function(c)
  local n = #c.turns
  c:reset()
  return counted(n, 'turn') .. ' forgotten'
end }

commands.system = { '[TEXT]', 'the system message from now on; without TEXT there is none',
  function(c, rest)
    if not c:has_turns() then error('this model has no turns, and no system message', 0) end
    c.system = rest ~= '' and rest or nil
    return c.system and 'the system message is set' or 'no system message'
  end }

commands.undo = { '', 'takes the last turn back', function(c)
  local said = c:undo()
  if not said then error('there is no turn to take back', 0) end
  return 'taken back: ' .. said
end }

commands.retry = { '', 'another answer to the last turn', function(c, _, show, halt)
  if c.settings.temperature == 0 and #c.turns > 0 then
    error('at temperature 0 the answer is always the same: /temperature 0.8', 0)
  end
  local why = c:retry(show, halt)
  return why and ('(%s)'):format(why)
end }

local MEANING = { max_new = 'longest answer in tokens', seed = 'of the draws, which begin anew',
  temperature = '0: the likeliest token', top_k = '0: draws from all tokens',
  top_p = '1: draws from all tokens' }

for _, key in ipairs(sampling.keys) do
  local name = key:gsub('_', '-')
  commands[name] = { '[X]', MEANING[key], function(c, rest)
    if rest ~= '' then
      local value = tonumber(rest) or rest
      local why = schema.refused(name, generate.options[key], value)
      if why then error(why, 0) end
      if key == 'seed' then c:sow(value) else c.settings[key] = value end
    end
    return ('%s is %s'):format(name, tostring(c.settings[key]))
  end }
end

-- A file that is there keeps its rows, the last of which must have its end.
local function append(path, lines)
  local file, why = io.open(path, 'ab+')
  if not file then error(why, 0) end
  local size = file:seek 'end'
  if size > 0 then
    file:seek('set', size - 1)
    if file:read(1) ~= '\n' then
      file:close()
      error(path .. ': its last line has no end, so nothing is added', 0)
    end
  end
  local ok, problem = file:write(lines)
  local closed, later = file:close()
  if not ok or not closed then error(('%s: %s'):format(path, problem or later), 0) end
end

commands.save = { 'FILE.jsonl', 'adds the conversation to it as a row that can be trained on',
  function(c, path)
    path = path:gsub('^~/', (os.getenv 'HOME' or '~') .. '/')
    if path == '' then error('a file is needed: /save FILE.jsonl', 0) end
    if not path:find '%.jsonl$' then error(path .. ': the file\'s name ends in .jsonl', 0) end
    local rows, lines = c:rows(), {}
    if #rows == 0 then error('there is nothing to save', 0) end
    for i, row in ipairs(rows) do lines[i] = generate.line(row) end
    append(path, table.concat(lines))
    return ('%s added to %s'):format(counted(#rows, 'row'), path)
  end }

local ALIAS = { exit = 'quit', q = 'quit', h = 'help', ['?'] = 'help', clear = 'reset' }

--- The list that /help shows.
--- @return string
function M.help()
  local rows = {}
  for name, entry in sorted.pairs(commands) do
    rows[#rows + 1] = { ('/%s %s'):format(name, entry[1]), entry[2] }
  end
  rows[#rows + 1] = { '"""', 'begins a text of several lines, and ends it' }
  rows[#rows + 1] = { '\\', 'at the end of a line goes on in the next one' }
  rows[#rows + 1] = { '//', 'at the beginning of a line is a /' }
  return (layout.rows(rows, screen.page()):gsub('\n$', ''))
end

--- Does what a line says that begins with a /.
--- @param conversation ms_conversation
--- @param line string
--- @param show fun(piece: string)
--- @param halt? fun(): boolean
--- @return string? words what is said of it
--- @return boolean? leave
function M.run(conversation, line, show, halt)
  local name, rest = line:match '^/(%S*)%s*(.-)%s*$'
  name = ALIAS[name] or name
  local entry = commands[name]
  if entry then return entry[3](conversation, rest, show, halt) end
  local names = {}
  for known in sorted.pairs(commands) do names[#names + 1] = '/' .. known end
  error(("no command '/%s'; %s"):format(name, options.instead('/' .. name, names)), 0)
end

return M
