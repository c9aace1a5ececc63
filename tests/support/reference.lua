--- Reads a model's reference (tests/fixtures/README.md): `local ref = read 'qwen3'`.
local ffi = require 'ffi'

local here = debug.getinfo(1, 'S').source:match '^@(.*)support/reference%.lua$'

local function bytes_of(path)
  local f = assert(io.open(path, 'rb'))
  local data = f:read '*a'
  f:close()
  return data
end

--- @param name string a folder of tests/fixtures
--- @return table ref the table of reference.lua, with `folder`, `tokens`, `vocab` and
---   `ref.get(array)`: `float *` and its count; nil when there is no such array
return function(name)
  local folder = here .. 'fixtures/' .. name
  local ref = dofile(folder .. '/reference.lua')
  local data = bytes_of(folder .. '/reference.bin')
  ref.folder = folder
  ref.tokens = #ref.token
  ref.vocab = ref.arrays.logits[2] / ref.tokens

  function ref.get(array)
    local at = ref.arrays[array]
    if not at then return nil end
    local values = ffi.new('float[?]', at[2])
    ffi.copy(values, data:sub(at[1] * 4 + 1, (at[1] + at[2]) * 4), at[2] * 4)
    return values, at[2]
  end

  return ref
end
