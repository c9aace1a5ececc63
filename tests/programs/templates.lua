--- Counts the cases of chat templates of other projects, and lists those that are not taken as they
--- stand, with the reason.
---
---   MS_LIB=build/libmoonstill.so LUA_PATH='lua/?.lua;lua/?/init.lua;?.lua;;' \
---     luajit tests/programs/templates.lua
local jinja = require 'moonstill.jinja.jinja'
local templates = require 'tests.support.templates'

local notes = {}

local function note(case, why) notes[#notes + 1] = ('%s: %s: %s'):format(case.group, case.name, why) end

local function count(cases)
  local n = { all = #cases, as_it_stands = 0, changed = 0, wrong = 0, failed = 0 }
  for _, case in ipairs(cases) do
    local fine, seen = templates.try(jinja, case)
    local kind = not fine and 'failed' or case.wrong and 'wrong' or case.changed and 'changed' or 'as_it_stands'
    n[kind] = n[kind] + 1
    if not fine then note(case, 'FAILED: ' .. seen) end
    if case.wrong or case.changed then note(case, case.wrong or case.changed) end
  end
  return n
end

-- Every template once: how many compile, and have generation marks.
local function compiled(all)
  local n, marks = 0, 0
  for _, each in ipairs(all) do
    local ok, template = pcall(jinja.compile, each.source, each.name)
    if ok then n = n + 1 end
    if ok and template.has_generation then marks = marks + 1 end
  end
  return n, marks
end

local form = '%-16s %6s %10s %10s %14s %8s'
print(form:format('group', 'cases', 'as given', 'changed', 'Jinja2 differs', 'failed'))
for _, group in ipairs(templates.groups) do
  local cases, why = templates.cases(group)
  if cases then
    local n = count(cases)
    print(form:format(group[1], n.all, n.as_it_stands, n.changed, n.wrong, n.failed))
  else
    print(group[1], why)
  end
end
local all = templates.all()
if all then
  local n, marks = compiled(all)
  print(('\n%d templates, each once: %d compile, %d have generation marks'):format(#all, n, marks))
end
print '\nCases that are changed, or whose expectation is not what Jinja2 gives:'
for _, line in ipairs(notes) do print('  ' .. line) end
