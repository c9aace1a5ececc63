--- The rows of files as JSON, for comparison with other readers: `luajit tests/programs/read_rows.lua
--- FILE..` writes a line for each file, {"rows": [..]} or {"error": ".."}. A name of `-` reads the
--- names from the standard input.
local fail = require 'moonstill.base.fail'
local json = require 'moonstill.base.json'
local readers = require 'moonstill.data.readers'

local function rows_of(path)
  local rows = json.array()
  readers.read(path, function(_, where, value, decode)
    local ok, row = fail.pcall(decode, value, where)
    if not ok then error(where .. ': ' .. row, 0) end
    rows[#rows + 1] = row
  end)
  return rows
end

local names = arg
if arg[1] == '-' then
  names = {}
  for name in io.lines() do names[#names + 1] = name end
end
for _, path in ipairs(names) do
  local ok, rows = pcall(rows_of, path)
  print(json.encode(ok and { rows = rows } or { error = rows }))
end
