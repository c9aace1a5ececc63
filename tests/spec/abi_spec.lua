-- The compiler and LuaJIT's FFI read one header; do they see the same thing?
local ffi = require 'ffi'
local C = require 'moonstill.C'
local tools = require 'tests.support.tools'

local program = tools.program():gsub('[^/]*$', '') .. 'tests/abi'
if not tools.exists(program) then
  pending('the ABI', program .. ' is not built')
  return
end

describe('the ABI', function()
  local _, seen = tools.run(tools.quote(program))

  it('has structs and constants of the same size, offset and value', function()
    local structs, fields, constants = 0, 0, 0
    for name, size in seen:gmatch 'struct (%S+) (%d+)' do
      structs = structs + 1
      assert.same({ name, tonumber(size) }, { name, ffi.sizeof(name) })
    end
    for name, field, offset, size in seen:gmatch 'field (%S+) (%S+) (%d+) (%d+)' do
      fields = fields + 1
      local value = ffi.new(name)
      assert.same({ name, field, tonumber(offset) }, { name, field, ffi.offsetof(name, field) })
      local kind = type(value[field]) -- int64_t and pointers are cdata with a size of their own
      local mine = kind == 'cdata' and ffi.sizeof(value[field]) or tonumber(size)
      assert.same({ name, field, tonumber(size) }, { name, field, mine })
    end
    for name, value in seen:gmatch 'constant (%S+) (%-?%d+)' do
      constants = constants + 1
      assert.same({ name, tonumber(value) }, { name, tonumber(C[name]) })
    end
    -- the header had these many when this was written: fewer means that abi.lua lost some
    assert.truthy(structs >= 8 and fields >= 58 and constants >= 34, structs .. ' ' .. fields .. ' ' .. constants)
  end)

  it('numbers agree: header, library, Lua', function()
    local lua = tonumber(tools.read 'lua/moonstill/C.lua':match 'local ABI = (%d+)')
    assert.equal(lua, C.ms_abi())
    assert.equal(lua, tonumber(C.MS_ABI))
  end)

  it('is refused when the halves differ', function()
    local folder = tools.folder()
    local lua = tools.read 'lua/moonstill/C.lua':gsub('local ABI = %d+', 'local ABI = 0')
    tools.write(folder .. '/C.lua', lua)
    local status, _, err = tools.run('luajit ' .. folder .. '/C.lua')
    assert.equal(1, status)
    assert.truthy(err:find('library and Lua modules differ', 1, true))
  end)

  it('exports every function that the header declares', function()
    local text = ffi.string(C.ms_cdef()):gsub('/%*.-%*/', ' '):gsub('%b{}', ' ')
    local missing, count = {}, 0
    for name in text:gmatch '(ms_[%w_]+)%s*%(' do
      count = count + 1
      if not pcall(function() return C[name] end) then missing[#missing + 1] = name end
    end
    assert.truthy(count > 80)
    assert.same({}, missing)
  end)
end)
