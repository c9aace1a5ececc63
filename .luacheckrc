-- luacheck: unused and undefined names, in modules, recipes and specs alike.
std = 'luajit'
max_line_length = 100
-- methods that do not use self, and arguments named for their reader
self = false
unused_args = false
ignore = {
  '311', -- a variable set to nil: the collector may have it
  '581', -- `not (x <= y)` is not `x > y`: NaN
}

-- tables of cases and the texts of long messages
files['tests/fuzz'] = { max_line_length = 120 }
files['tests'] = { max_line_length = 120 }
files['tests/spec'] = { std = '+busted', globals = { 'ms' }, max_line_length = 120 }
files['tests/support/handler.lua'] = { std = '+busted' }
-- the command line and the prompt hand these to the user
files['lua/moonstill/prompt/cli.lua'] = { globals = { 'ms', 'arg', 'help' } }
files['lua/moonstill/prompt/repl.lua'] = { globals = { 'ms', 'help', '_' } }
