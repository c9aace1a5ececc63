--- Applies the mutations of tests/mutation/mutations.lua to a copy of the tree, one at a time; tests/mutate
--- makes the copy and calls this.

local tree = table.remove(arg, 1)
local TIMEOUT = 240 -- seconds a spec may take before it counts as hanging, which is caught

local function read(path)
  local file = assert(io.open(path, 'rb'))
  local text = file:read '*a'
  file:close()
  return text
end

local function write(path, text)
  local file = assert(io.open(path, 'wb'))
  assert(file:write(text))
  assert(file:close())
end

local function say(...) io.write(string.format(...), '\n') io.flush() end

local function fail(...)
  io.stderr:write('mutate: ', string.format(...), '\n')
  os.exit(2)
end

--- Runs a command in the tree; its output goes to the log. True when it ended well.
local function run(command)
  return os.execute(("cd '%s' && ( %s ) >log 2>&1"):format(tree, command)) == 0
end

local function count(text, part)
  local n, at = 0, 1
  while true do
    local first, last = text:find(part, at, true)
    if not first then return n end
    n, at = n + 1, last + 1
  end
end

local function wanted(name)
  if #arg == 0 then return true end
  for _, pattern in ipairs(arg) do if name:find(pattern) then return true end end
  return false
end

--- The mutations that were asked for; a text that is not there exactly once is a mistake in the
--- list, and so is a name that comes twice.
local function load_list()
  local list, seen = {}, {}
  for _, m in ipairs(dofile(tree .. '/tests/mutation/mutations.lua')) do
    if seen[m.name] then fail("'%s' is listed twice", m.name) end
    seen[m.name] = true
    local n = count(read(tree .. '/' .. m.file), m.old)
    if n ~= 1 then
      fail("'%s': its text occurs %d times in %s, not once:\n%s", m.name, n, m.file, m.old)
    end
    if m.old == m.new then fail("'%s' changes nothing", m.name) end
    if wanted(m.name) then list[#list + 1] = m end
  end
  return list
end

local function configure()
  local jobs = os.getenv 'MS_JOBS' and ('-j' .. os.getenv 'MS_JOBS') or ''
  local build = 'ninja -C build ' .. jobs
  if not run('cmake -S . -B build -G Ninja && ' .. build) then
    fail('the copy does not build; see %s/log', tree)
  end
  return build
end

-- `learn` is tests/spec/learn_spec.lua, `gemm.c` is tests/c/gemm.c.
local function file_of(spec)
  return spec:find '%.c$' and 'tests/c/' .. spec or ('tests/spec/%s_spec.lua'):format(spec)
end

local function passes(spec) return run(('MS_TIMEOUT=%d tests/run %s'):format(TIMEOUT, file_of(spec))) end

--- Every spec that is to notice something must pass as long as nothing is broken.
local function check_specs(list)
  local seen = {}
  for _, m in ipairs(list) do
    for _, spec in ipairs(m.specs) do
      if not seen[spec] and not passes(spec) then
        fail('%s fails with nothing broken; see %s/log', file_of(spec), tree)
      end
      seen[spec] = true
    end
  end
end

local function try(m, build)
  local path = tree .. '/' .. m.file
  local before = read(path)
  local first, last = before:find(m.old, 1, true)
  write(path, before:sub(1, first - 1) .. m.new .. before:sub(last + 1))
  local caught
  if not m.file:find '^recipes/' and not run(build) then -- the executable holds the Lua modules
    write(path, before)
    fail("'%s' does not compile; see %s/log", m.name, tree)
  end
  for _, spec in ipairs(m.specs) do
    if not passes(spec) then caught = spec break end
  end
  write(path, before)
  return caught
end

local list = load_list()
if #list == 0 then fail('no mutation matches %s', table.concat(arg, ' ')) end
local build = configure()
check_specs(list)
local caught, survived = 0, {}
for i, m in ipairs(list) do
  local by = try(m, build)
  caught = caught + (by and 1 or 0)
  if not by then survived[#survived + 1] = m.name end
  say('%3d/%d %-50s %s', i, #list, m.name, by and 'caught by ' .. by or 'SURVIVED')
end
run(build) -- leaves the copy whole
say('%d of %d mutations caught', caught, #list)
for _, name in ipairs(survived) do say('survived: %s', name) end
os.exit(#survived == 0 and 0 or 1)
