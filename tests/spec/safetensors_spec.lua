local ffi = require 'ffi'
local C = require 'moonstill.C'
local folders = require 'tests.support.folders'
local fuzz = require 'tests.fuzz.models'
local tools = require 'tests.support.tools'

local place = tools.folder() -- written again and again

local function open_with(list, metadata)
  return folders.open(folders.folder(folders.tiny(), folders.safetensors(list, metadata), place))
end

-- The tiny model's tensors with one of them changed.
local function changed(i, fields)
  local list = folders.tiny_tensors()
  for k, v in pairs(fields) do list[i][k] = v end
  return list
end

-- Opens a model whose weights are `file`; expects a failure whose message has all of `words`.
local function refuses(file, ...)
  local path = folders.folder(folders.tiny(), file, place)
  folders.refused({ 'model.safetensors', ... }, C.MS_EIO, folders.open(path))
end

describe('safetensors', function()
  it('are read value by value', function()
    local m = assert(open_with(folders.tiny_tensors()))
    for i, t in ipairs(folders.tiny_tensors()) do
      local got, shape = folders.parameter(m, t[1])
      local count = #t[4] / 4
      assert.are.same(t[3], shape)
      local want = tools.values(count, i)
      for k = 1, count do assert.are.equal(want[k - 1], got[k]) end
    end
  end)

  it('may keep their data at any address, and metadata null', function()
    for pad = 0, 7 do
      local file = folders.safetensors(folders.tiny_tensors(), 'null')
      local header, start = folders.header(file)
      assert(header)
      local text = file:sub(9, start - 1) .. (' '):rep(pad)
      local path = folders.folder(folders.tiny(), folders.length(#text) .. text .. file:sub(start),
        place)
      local m = assert(folders.open(path))
      local want = tools.values(4, 11)
      assert.are.same({ want[0], want[1], want[2], want[3] }, (folders.parameter(m, 'model.norm.weight')))
    end
  end)

  it('are converted exactly where the type can hold them', function()
    -- 1, -2, 65504 (the largest f16), 2^-24 (the smallest)
    local f16 = '\0\60' .. '\0\192' .. '\255\123' .. '\1\0'
    local bf16 = '\128\63' .. '\0\192' .. '\128\71' .. '\128\51' -- 1, -2, 65536, 2^-24
    local m = assert(open_with(changed(11, { [2] = 'F16', [4] = f16 })))
    local got, _, dtype = folders.parameter(m, 'model.norm.weight')
    assert.are.same({ 1, -2, 65504, 2 ^ -24 }, got)
    assert.are.equal(C.MS_F32, dtype)
    m = assert(open_with(changed(11, { [2] = 'BF16', [4] = bf16 })))
    assert.are.same({ 1, -2, 65536, 2 ^ -24 }, (folders.parameter(m, 'model.norm.weight')))
  end)

  it('that are truncated are errors at any length', function()
    local file = folders.safetensors(folders.tiny_tensors())
    refuses('', 'is empty')
    for _, n in ipairs { 1, 7 } do refuses(file:sub(1, n), 'too short') end
    refuses(file:sub(1, 8), 'byte 0', 'header of')
    for _, n in ipairs { 9, 100 } do refuses(file:sub(1, n), 'cut off inside its header', n .. ' bytes') end
    refuses(file:sub(1, -2), 'cut off', 'model.norm.weight', #file - 1 .. ' bytes', 'makes it ' .. #file)
  end)

  it('with an absurd header length are errors', function()
    local file = folders.safetensors(folders.tiny_tensors())
    for _, length in ipairs { ('\255'):rep(8), '\0\0\0\0\0\0\0\128', folders.length(2 ^ 40) } do
      refuses(length .. file:sub(9), 'byte 0')
    end
    refuses(folders.length(#file) .. file:sub(9), 'cut off inside its header')
    refuses(folders.length(0) .. file:sub(9), 'header (at byte 8)')
    refuses(folders.length(2) .. '[]' .. ('x'):rep(10), 'not a JSON object')
    refuses(folders.length(10) .. ('['):rep(10), 'header (at byte 8)', 'line 1')
  end)

  it('with data that overlaps, leaves gaps or goes on are errors', function()
    refuses(folders.safetensors(changed(2, { offsets = '[76,140]' })), 'begins at byte', 'q_proj')
    local list = folders.tiny_tensors()
    table.insert(list, 3, { 'x', 'F32', { 0 }, 'gap!', offsets = '[144,144]' })
    refuses(folders.safetensors(list), 'begins at byte')
    refuses(folders.safetensors(folders.tiny_tensors()) .. 'more', 'the tensors end at byte')
  end)

  it('with offsets that are no range inside the file are errors', function()
    for _, offsets in ipairs { '[-64,0]', '[144,80]', '[80,100000]', '[80]', '[80,144,144]', '80',
      '[80.0,144]', '[80,18446744073709551616]', '[-1e999,144]', '["80","144"]',
      '[9223372036854775807,9223372036854775807]', 'null', '{}' } do
      refuses(folders.safetensors(changed(2, { offsets = offsets })), 'q_proj', 'data_offsets')
    end
    refuses(folders.safetensors(changed(2, { offsets = '[80,140]' })), 'q_proj', 'give 60 bytes', '64')
  end)

  it('with shapes that are none are errors', function()
    for _, shape in ipairs { '[1e999,4]', '[18446744073709551616,4]', '[-4,-4]', '[4,-4]', '[4.0,4]', '["4",4]', '4',
      'null', '[4294967296,4294967296]', '[4611686018427387904,4]', '[1,1,1,1,1,1,1,4,4]' } do
      local entry = '"model.layers.0.self_attn.q_proj.weight":{"dtype":"F32","shape":' .. shape
        .. ',"data_offsets":[80,144]}'
      refuses(folders.safetensors(changed(2, { text = entry })), 'q_proj', 'shape')
    end
    local entry = '"x":{"dtype":"F32","shape":[4,18446744073709551616],"data_offsets":[80,144]}'
    refuses(folders.safetensors(changed(2, { text = entry })), "'x': shape[1] is 1.8446744073709552e19, no count")
  end)

  it('with shapes whose product overflows to what the data are, are errors', function()
    -- 2^64 elements, and 2^62 of 4 bytes: both are 0 in 64 bits
    for _, shape in ipairs { '4294967296,4294967296', '4611686018427387904' } do
      local list = folders.tiny_tensors()
      table.insert(list, 1, { 'x', 'F32', { 0 }, '', text = ('"x":{"dtype":"F32","shape":[%s],'
        .. '"data_offsets":[0,0]}'):format(shape) })
      refuses(folders.safetensors(list), "'x': shape too large")
    end
  end)

  it('with entries that are none are errors', function()
    local name = '"model.layers.0.self_attn.q_proj.weight":'
    for _, entry in ipairs { '3', '[]', '{}', '{"dtype":"F32","shape":[4,4]}',
      '{"dtype":3,"shape":[4,4],"data_offsets":[80,144]}',
      '{"dtype":"F32","shape":[4,4],"data_offsets":[80,144],"more":1}' } do
      refuses(folders.safetensors(changed(2, { text = name .. entry })), 'q_proj', 'not {dtype')
    end
    refuses(folders.safetensors(changed(2, { text = name
      .. '{"dtype":"F31","shape":[4,4],"data_offsets":[80,144]}' })), 'q_proj', "unknown dtype 'F31'")
    refuses(folders.safetensors(folders.tiny_tensors(), '{"a":1}'), "__metadata__ 'a' is no string")
    refuses(folders.safetensors(folders.tiny_tensors(), '[]'), '__metadata__ is no object')
  end)

  it('with a name twice, or one that is not UTF-8, are errors', function()
    local list = folders.tiny_tensors()
    list[12] = { 'model.norm.weight', 'F32', { 4 } }
    refuses(folders.safetensors(list), 'duplicate', 'model.norm.weight')
    refuses(folders.safetensors(changed(2, { 'x\255y' })), 'header (at byte 8)', '0xff')
    refuses(folders.safetensors(changed(2, { 'x\0y' })), 'header (at byte 8)')
  end)

  it('of a type that is no weight are errors that name it', function()
    local path = folders.folder(folders.tiny(), changed(11, { [2] = 'F64', [4] = ('\0'):rep(32) }))
    local m, message, status = folders.open(path)
    assert.is_nil(m)
    assert.are.equal(C.MS_EUNSUPPORTED, status)
    assert(message:find("tensor 'model.norm.weight' (at byte ", 1, true), message)
    assert(message:find('F64', 1, true), message)
  end)

  it('are written with a padded header, end to end, as transformers expects them', function()
    local m = assert(open_with(folders.tiny_tensors()))
    local path = tools.folder() .. '/saved'
    assert(folders.save(m, path))
    local file = tools.read(path .. '/model.safetensors')
    local header, start = folders.header(file)
    assert.are.equal(1, start % 8) -- 1-based
    assert.are.equal('pt', header.__metadata__.format)
    local count, most = 0, 0
    for _, t in ipairs(folders.tiny_tensors()) do
      local e = header[t[1]]
      assert.are.equal('F32', e.dtype)
      local from, to = e.data_offsets[1], e.data_offsets[2]
      assert.are.equal(t[4], file:sub(start + from, start + to - 1))
      count, most = count + to - from, math.max(most, to)
    end
    assert.are.equal(#file - start + 1, count)
    assert.are.equal(count, most)
  end)

  -- Deterministic, so that a failure can be seen again; sanitizer runs give it its teeth.
  it('whose header is mutated never crash and leave nothing behind', function()
    -- nearly every mutation breaks the file; blanks between entries do not
    assert(fuzz.safetensors(4000, 7) > 3200)
  end)
end)

describe('reading with memory that ends', function()
  it('gives an error and leaves nothing behind, wherever it ends', function()
    local path = folders.folder(folders.tiny(), changed(11, { [2] = 'BF16', [4] = ('\0'):rep(8) }))
    local out = ffi.new 'ms_model *[1]'
    local options = folders.options { train = 1, frozen = '*norm*' }
    local n = folders.walk_allocations(function()
      local status = C.ms_model_open(folders.device, path, options, out)
      if status == 0 then C.ms_model_free(out[0]) end
      return status
    end)
    assert(n > 20, n)
  end)
end)
