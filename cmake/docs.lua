--- Gathers the docstrings of modules for `help`: luajit cmake/docs.lua OUT MODULE.lua...
--- OUT is a module: by name below moonstill ("loss.kd"), what prompt/docstrings.lua finds in each.
package.path = 'lua/?.lua;' .. package.path
local docstrings = require 'moonstill.prompt.docstrings'

local function sorted_keys(t)
  local keys = {}
  for key in pairs(t) do keys[#keys + 1] = key end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  return keys
end
jit.off(sorted_keys)

local function write(out, value)
  if type(value) ~= 'table' then
    return out:write(type(value) == 'string' and ('%q'):format(value) or tostring(value))
  end
  out:write '{'
  for _, key in ipairs(sorted_keys(value)) do
    out:write(type(key) == 'number' and ('[%d]='):format(key) or ('[%q]='):format(key))
    write(out, value[key])
    out:write ',\n'
  end
  out:write '}'
end

local all = {}
for i = 2, #arg do
  local file = assert(io.open(arg[i]))
  local name = arg[i]:gsub('^lua/moonstill/', ''):gsub('%.lua$', ''):gsub('/', '.')
  all[name] = docstrings.parse(file:read '*a')
  file:close()
end
local out = assert(io.open(arg[1], 'w'))
out:write 'return '
write(out, all)
out:write '\n'
assert(out:close())
