-- Model folders in and out: which tensors are wanted, where they may lie, what is written.
local ffi = require 'ffi'
local C = require 'moonstill.C'
local json = require 'moonstill.base.json'
local sorted = require 'moonstill.base.sorted'
local folders = require 'tests.support.folders'
local tools = require 'tests.support.tools'

local HEAD, EMBED, NORM = 'lm_head.weight', 'model.embed_tokens.weight', 'model.norm.weight'
local absent = folders.absent

-- The tiny model's tensors, with additions; a field of `changes` named like a tensor replaces it.
local function tensors(additions, changes)
  local list = {}
  for _, t in ipairs(folders.tiny_tensors()) do
    local new = changes and changes[t[1]]
    if new ~= absent then list[#list + 1] = new or t end
  end
  for _, t in ipairs(additions or {}) do list[#list + 1] = t end
  return list
end

local place = tools.folder()
local function open(config, list, options)
  return folders.open(folders.folder(config, list, place), options)
end

local function refuses(config, list, ...) folders.refused({ ... }, C.MS_EIO, open(config, list)) end

-- Every parameter of two models has the same name, shape and values.
local function same(a, b)
  assert.are.same(folders.names(a), folders.names(b))
  for _, name in ipairs(folders.names(a)) do
    local x, x_shape = folders.parameter(a, name)
    local y, y_shape = folders.parameter(b, name)
    assert.are.same(x_shape, y_shape)
    assert.are.same(x, y)
  end
end

local function copy_of(t, name, change)
  local data = change and t[4]:sub(1, -2) .. '\1' or t[4]
  return { name, t[2], t[3], data }
end

local fixtures = {}
for path in io.popen('ls -d tests/fixtures/*/config.json'):lines() do
  fixtures[#fixtures + 1] = path:match '^(.*)/config.json$'
end

describe('weights', function()
  it('that are missing or unknown are errors', function()
    refuses(folders.tiny(), tensors(nil, { [NORM] = absent }), "'" .. NORM .. "' is missing")
    refuses(folders.tiny(), tensors { { 'model.layers.0.mlp.gate_proj.bias', 'F32', { 3 } } },
      'model.safetensors', "'model.layers.0.mlp.gate_proj.bias' (at byte ", 'llama')
    refuses(folders.tiny(), tensors { { 'model.layers.1.input_layernorm.weight', 'F32', { 4 } } },
      'model.layers.1')
    refuses(folders.tiny { num_hidden_layers = 2 }, tensors(), 'model.layers.1', 'missing')
  end)

  it('of another shape are errors with both shapes', function()
    refuses(folders.tiny { vocab_size = 6 }, tensors(), EMBED, '(at byte ', '[5, 4]', '[6, 4]')
    refuses(folders.tiny(), tensors(nil, { [NORM] = { NORM, 'F32', { 4, 1 } } }), '[4, 1]', '[4]')
  end)

  it('may come with the buffers that old versions stored', function()
    assert(open(folders.tiny(), tensors {
      { 'model.layers.0.self_attn.rotary_emb.inv_freq', 'F32', { 1 } } }))
    refuses(folders.tiny(), tensors { { 'inv_freq', 'F32', { 1 } } }, 'inv_freq')
  end)

  it('of a tied head lie under either name, or under both alike', function()
    local embed = folders.tiny_tensors()[1]
    local head = copy_of(embed, HEAD)
    local one = assert(open(folders.tiny(), tensors()))
    for _, list in ipairs { tensors({ head }, { [EMBED] = absent }), tensors { head } } do
      local m = assert(open(folders.tiny(), list))
      assert.are.equal(EMBED, folders.names(m)[1])
      same(one, m)
    end
    refuses(folders.tiny(), tensors { copy_of(embed, HEAD, true) }, HEAD, 'differs', EMBED)
    refuses(folders.tiny(), tensors { { HEAD, 'F32', { 4, 5 } } }, HEAD, '[4, 5]')
    refuses(folders.tiny(), tensors(nil, { [EMBED] = absent }), EMBED, 'missing')
  end)

  it('of a head that is not tied must be there', function()
    local config = folders.tiny { tie_word_embeddings = false }
    refuses(config, tensors(), HEAD, 'missing')
    local m = assert(open(config, tensors { copy_of(folders.tiny_tensors()[1], HEAD, true) }))
    assert.are.equal(HEAD, folders.names(m)[12])
  end)

  it('are held as stored: bf16 when all are, f32 otherwise', function()
    local half = {}
    for i, t in ipairs(folders.tiny_tensors()) do
      half[i] = { t[1], 'BF16', t[3], ('\128\63'):rep(#t[4] / 4) }
    end
    assert.are.equal('bf16', folders.info(assert(open(folders.tiny(), half))).dtype)
    assert.are.equal('f32', folders.info(assert(open(folders.tiny(), half, { dtype = C.MS_F32 }))).dtype)
    half[11] = folders.tiny_tensors()[11]
    assert.are.equal('f32', folders.info(assert(open(folders.tiny(), half))).dtype)
    half[11] = { NORM, 'F16', { 4 }, ('\0\60'):rep(4) }
    assert.are.equal('f32', folders.info(assert(open(folders.tiny(), half))).dtype)
    assert.are.equal('bf16', folders.info(assert(open(folders.tiny(), half, { dtype = C.MS_BF16 }))).dtype)
    local m, message = open(folders.tiny(), half, { dtype = C.MS_F16 })
    assert.is_nil(m)
    assert(message:find('held as f16, only as f32, bf16', 1, true), message)
  end)

  it('that are not finite are errors with the first place', function()
    local floats = { ['nan'] = '\0\0\192\127', ['inf'] = '\0\0\128\127', ['-inf'] = '\0\0\128\255' }
    local function with(name, at, value)
      local list = tensors()
      for _, t in ipairs(list) do
        if t[1] == name then t[4] = t[4]:sub(1, 4 * at) .. value .. t[4]:sub(4 * at + 5) end
      end
      return list
    end
    for _, value in sorted.pairs(floats) do
      refuses(folders.tiny(), with(EMBED, 13, value), 'model.safetensors', "'" .. EMBED .. "'",
        'holds NaN or infinity, first at row 3, column 1:', 'earlier')
      refuses(folders.tiny(), with(NORM, 2, value), "'" .. NORM .. "'", 'first at index 2:')
    end
    local huge = with(NORM, 0, '\255\255\127\127') -- the largest f32, beyond bf16
    assert(open(folders.tiny(), huge))
    local m, message = open(folders.tiny(), huge, { dtype = C.MS_BF16 })
    assert.is_nil(m)
    assert(message:find("'" .. NORM .. "'", 1, true), message)
  end)

  it('in a folder that is none, or has none, are errors', function()
    local _, message = folders.open(place .. '/nowhere')
    assert(message:find('nowhere: no such folder', 1, true), message)
    local empty = tools.folder()
    _, message = folders.open(empty)
    assert(message:find('is an empty folder: config.json is needed', 1, true), message)
    folders.folder(folders.tiny(), nil, empty)
    _, message = folders.open(empty)
    assert(message:find('neither model.safetensors', 1, true), message)
  end)

  it('in a pipe are errors and not waited for', function()
    local at = folders.folder(folders.tiny(), nil, tools.folder())
    local script = tools.write(at .. '/open.lua',
      "print(select(2, require 'tests.support.folders'.open(arg[1])))")
    local function opened()
      local _, said = tools.run(("LUA_PATH='%s' timeout 60 luajit %s %s"):format(package.path, script, at))
      return said
    end
    for _, name in ipairs { 'model.safetensors', 'config.json' } do
      os.remove(at .. '/' .. name)
      os.execute('mkfifo ' .. at .. '/' .. name)
      local said = opened()
      assert(said:find(name .. ': not a file', 1, true), said)
    end
  end)
end)

describe('weights in shards', function()
  local path = tools.folder()
  -- The tensors in two files, with an index from a table of changes.
  local function shards(changes, first, second)
    local list = folders.tiny_tensors()
    local a, b, map = { list[1], list[2], list[3] }, {}, {}
    for i = 4, #list do b[#b + 1] = list[i] end
    for i, t in ipairs(list) do map[t[1]] = i < 4 and 'a.safetensors' or 'b-2.safetensors' end
    for k, v in pairs(changes or {}) do map[k] = v ~= absent and v or nil end
    tools.write(path .. '/config.json', json.encode(folders.tiny()))
    folders.replace(path .. '/a.safetensors', folders.safetensors(first and first(a) or a))
    folders.replace(path .. '/b-2.safetensors', folders.safetensors(second and second(b) or b))
    folders.replace(path .. '/model.safetensors.index.json',
      (json.encode { metadata = { total_size = 1 }, weight_map = map }:gsub(':1}', ':1e999}'))) -- read by nobody
    return folders.open(path)
  end
  local function refused(word, ...) folders.refused({ word }, C.MS_EIO, shards(...)) end

  it('are read through the index', function()
    same(assert(open(folders.tiny(), tensors())), assert(shards()))
  end)

  it('must hold what the index says and nothing else', function()
    refused('is not in a.safetensors', { [NORM] = 'a.safetensors' })
    refused('the index lacks it', { [NORM] = absent })
    refused("tensor 'more' is not in", { more = 'b-2.safetensors' })
    refused('the index has it in b-2.safetensors', nil,
      function(a) a[4] = folders.tiny_tensors()[11] return a end)
    refused('names missing.safetensors, which is not beside it', { [NORM] = 'missing.safetensors' })
  end)

  it('must be files beside it', function()
    for _, name in ipairs { '../a.safetensors', '/etc/passwd', 'x/a.safetensors', 'a.bin', '',
      '.safetensors', '.hidden.safetensors', 3, json.null, { 'a.safetensors' } } do
      refused('no name of a .safetensors file', { [NORM] = name })
    end
  end)

  it('need an index that has a map', function()
    shards()
    for _, text in ipairs { '{}', '[]', '{"weight_map": 3}' } do
      folders.replace(path .. '/model.safetensors.index.json', text)
      local _, message = folders.open(path)
      assert(message:find("no 'weight_map'", 1, true), message)
    end
  end)
end)

describe('a model from a config', function()
  it('is drawn from the seed alone, norms 1, biases 0', function()
    local c = folders.tiny { vocab_size = 3000, attention_bias = true, mlp_bias = true,
      initializer_range = 0.5 }
    local m = assert(folders.create(c, 7))
    local threads = C.ms_threads_get()
    C.ms_threads_set(1)
    local again = assert(folders.create(c, 7))
    C.ms_threads_set(threads)
    same(m, again)
    local x = folders.parameter(m, EMBED)
    local sum, squares = 0, 0
    for _, v in ipairs(x) do sum, squares = sum + v, squares + v * v end
    local n = #x
    -- four standard deviations of mean and mean square
    assert(math.abs(sum / n) < 4 * 0.5 / math.sqrt(n), sum / n)
    assert(math.abs(squares / n - 0.25) < 4 * 0.25 * math.sqrt(2 / n), squares / n)
    local other = folders.parameter(assert(folders.create(c, 8)), EMBED)
    assert.are_not.equal(x[1], other[1])
    assert.are_not.equal(x[1], folders.parameter(m, 'model.layers.0.self_attn.q_proj.weight')[1])
    for _, name in ipairs(folders.names(m)) do
      local want = name:find 'norm' and 1 or name:find 'bias$' and 0
      for _, v in ipairs(want and folders.parameter(m, name) or {}) do assert.are.equal(want, v) end
    end
  end)

  it('draws every value by its place, however many there are', function()
    local few = folders.parameter(assert(folders.create(folders.tiny { vocab_size = 3000 }, 7)), EMBED)
    local many = folders.parameter(assert(folders.create(folders.tiny { vocab_size = 70000 }, 7)), EMBED)
    for i = 1, #few do assert.are.equal(few[i], many[i]) end
    -- values are made in parts of 2^18: the second does not repeat the first
    local repeated = 0
    for i = 2 ^ 18 + 1, #many do
      if many[i] == many[i - 2 ^ 18] then repeated = repeated + 1 end
    end
    assert(repeated < 10, repeated)
  end)

  it('that is rounded to bf16 is the same numbers rounded', function()
    local c = folders.tiny { initializer_range = 1 }
    local m = assert(folders.create(c, 3))
    local low = assert(folders.create(c, 3, { dtype = C.MS_BF16 }))
    tools.close(folders.parameter(low, EMBED), folders.parameter(m, EMBED), 'bf16', 0.5)
    assert.are.equal('bf16', folders.info(low).dtype)
    c.torch_dtype = 'bfloat16'
    assert.are.equal('bf16', folders.info(assert(folders.create(c, 3))).dtype)
  end)

  it('larger than the machine is an error before any memory is taken', function()
    local m, message, status = folders.create(folders.tiny { vocab_size = 2 ^ 31 - 1,
      hidden_size = 2 ^ 24, head_dim = 2 })
    assert.is_nil(m)
    assert.are.equal(C.MS_ENOMEM, status)
    assert(message:find('weights: no memory for %d+ bytes: the machine has %d+; dtype = bf16'), message)
    local _
    _, message, status = folders.create(folders.tiny { num_hidden_layers = 4096,
      num_attention_heads = 2 ^ 16, head_dim = 2 ^ 8, hidden_size = 2 ^ 24, intermediate_size = 2 ^ 24 })
    assert.are.equal(C.MS_ENOMEM, status)
    assert(message:find('address space', 1, true), message)
  end)

  it('says what it is and what it takes', function()
    local m = assert(folders.create(folders.tiny { max_position_embeddings = 99 }, 1, { train = 1 }))
    local info = folders.info(m)
    for key, value in pairs { family = 'llama', layers = 1, hidden_size = 4, intermediate_size = 3,
      vocab = 5, heads = 2, kv_heads = 1, head_dim = 2, dtype = 'f32', tied = true, context = 99,
      -- by hand: 20 + 16 + 8 + 8 + 16 + 12 + 12 + 12 + 4 + 4 + 4
      parameters = 116 } do
      assert.are.equal(value, info[key], key)
    end
    -- parameters at multiples of 32 elements, of which none of the 11 has more
    assert.are.equal(11 * 32 * 4, info.memory.weights)
    assert.are.equal(info.memory.weights, info.memory.gradients)
  end)
end)

describe('gradients', function()
  local function gradient(m, name)
    local t = ffi.new 'ms_tensor *[1]'
    for i, each in ipairs(folders.names(m)) do
      if each == name then
        assert.are.equal(0, C.ms_model_gradient(m, i - 1, t))
        return t[0]
      end
    end
  end

  it('exist for what is trained and not frozen', function()
    local m = assert(folders.create(folders.tiny(), 1,
      { train = 1, frozen = 'model.embed* model.layers.0.*.?_proj.weight  *nor?.weight' }))
    for _, name in ipairs(folders.names(m)) do
      local g = gradient(m, name)
      local free = name:find 'gate_proj' or name:find 'up_proj' or name:find 'down_proj'
      assert.are.equal(free ~= nil, g ~= nil, name)
      C.ms_tensor_free(g)
    end
    assert.are.equal(3 * 32 * 4, folders.info(m).memory.gradients)
    m = assert(folders.create(folders.tiny(), 1))
    assert(gradient(m, NORM) == nil)
    assert.are.equal(0, folders.info(m).memory.gradients)
  end)

  it('are f32 views, begin at zero and are zeroed', function()
    local m = assert(folders.create(folders.tiny(), 1, { train = 1, dtype = C.MS_BF16 }))
    local g = gradient(m, NORM)
    assert.are.equal(C.MS_F32, C.ms_tensor_dtype(g))
    local values = ffi.new('float[4]', 9)
    assert.are.equal(0, C.ms_tensor_read(g, values, 16))
    assert.are.equal(0, values[0])
    values[3] = 5
    assert.are.equal(0, C.ms_tensor_write(g, values, 16))
    assert.are.equal(0, C.ms_model_zero_gradients(m))
    assert.are.equal(0, C.ms_tensor_read(g, values, 16))
    assert.are.equal(0, values[3])
    C.ms_tensor_free(g)
  end)

  it('with a pattern that names nothing are an error', function()
    for _, pattern in ipairs { 'nothing', 'model', '*norm* x*', 'model.norm.weight?' } do
      local m, message, status = folders.create(folders.tiny(), 1, { train = 1, frozen = pattern })
      assert.is_nil(m)
      assert.are.equal(C.MS_EINVAL, status)
      assert(message:find(pattern:match '%S+$', 1, true), message)
    end
    assert(folders.create(folders.tiny(), 1, { train = 1, frozen = ' ' }))
  end)

  it('and weights outlive the model in their views', function()
    collectgarbage()
    local live = C.ms_test_live()
    local m = assert(folders.create(folders.tiny(), 1, { train = 1 }))
    local g = gradient(m, NORM)
    folders.free(m)
    local values = ffi.new('float[4]', 9)
    assert.are.equal(0, C.ms_tensor_read(g, values, 16))
    assert.are.equal(0, values[0])
    C.ms_tensor_free(g)
    assert.are.equal(tonumber(live), tonumber(C.ms_test_live()))
  end)
end)

describe('a student', function()
  local qwen = folders.tiny { model_type = 'qwen2', num_hidden_layers = 5, vocab_size = 7,
    use_sliding_window = true, sliding_window = 3, max_window_layers = 2 }

  it('has the chosen layers and everything else', function()
    local teacher = assert(folders.create(folders.tiny { num_hidden_layers = 4,
      tie_word_embeddings = false }, 5))
    local student = assert(folders.shrink(teacher, { 1, 3 }))
    assert.are.equal(2, folders.info(student).layers)
    for _, name in ipairs(folders.names(student)) do
      local of = name:gsub('layers%.(%d)', function(i) return 'layers.' .. 2 * i + 1 end)
      assert.are.same((folders.parameter(teacher, of)), (folders.parameter(student, name)), name)
    end
    assert.are.equal(2, folders.config(student).num_hidden_layers)
  end)

  it('keeps the windows of its layers', function()
    local student = assert(folders.shrink(assert(folders.create(qwen)), { 0, 3, 4 }))
    local c = folders.config(student)
    assert.are.equal(1, c.max_window_layers)
    assert.are.equal(3, c.num_hidden_layers)
    local types = {}
    for i = 1, 5 do types[i] = i % 2 == 0 and 'sliding_attention' or 'full_attention' end
    qwen.layer_types = json.array(types)
    student = assert(folders.shrink(assert(folders.create(qwen)), { 1, 2, 4 }))
    c = folders.config(student)
    assert.are.same({ 'sliding_attention', 'full_attention', 'full_attention' },
      { c.layer_types[1], c.layer_types[2], c.layer_types[3] })
    assert.are.equal(3, #c.layer_types)
    local gemma2 = folders.tiny { model_type = 'gemma2', num_hidden_layers = 5, head_dim = 2, sliding_window = 7 }
    c = folders.config(assert(folders.shrink(assert(folders.create(gemma2)), { 1, 2, 3 })))
    assert.are.same({ 'full_attention', 'sliding_attention', 'full_attention' },
      { c.layer_types[1], c.layer_types[2], c.layer_types[3] }) -- by their places in the teacher
  end)

  it('of layers that are none, or out of order, is an error', function()
    local teacher = assert(folders.create(folders.tiny { num_hidden_layers = 3 }))
    for _, layers in ipairs { {}, { 3 }, { -1 }, { 1, 1 }, { 2, 0 } } do
      local m, message, status = folders.shrink(teacher, layers)
      assert.is_nil(m)
      assert.are.equal(C.MS_EINVAL, status)
      assert(message:find('shrink: ', 1, true), message)
    end
  end)

  it('and a copy are held as the options say', function()
    local teacher = assert(folders.create(folders.tiny { num_hidden_layers = 2 }, 2))
    same(teacher, assert(folders.copy(teacher)))
    local low = assert(folders.copy(teacher, { dtype = C.MS_BF16, train = 1 }))
    tools.close(folders.parameter(low, EMBED), folders.parameter(teacher, EMBED), 'bf16', 0.5)
    assert.are.equal('bf16', folders.info(assert(folders.copy(low))).dtype)
    assert(folders.info(low).memory.gradients > 0)
    -- back in f32 the values are those of bf16
    same(low, assert(folders.shrink(low, { 0, 1 }, { dtype = C.MS_F32 })))
  end)
end)

describe('a saved model', function()
  local root = tools.folder()

  for _, fixture in ipairs(fixtures) do
    it('has the bytes that were read: ' .. fixture:match '[^/]*$', function()
      local m = assert(folders.open(fixture))
      local path = root .. '/' .. fixture:match '[^/]*$'
      assert(folders.save(m, path))
      local old, new = tools.read(fixture .. '/model.safetensors'), tools.read(path .. '/model.safetensors')
      local a, from = folders.header(old)
      local b, to = folders.header(new)
      for name, t in pairs(a) do
        if name ~= '__metadata__' then
          local u = assert(b[name], name)
          assert.are.same(t.shape, u.shape)
          assert.are.equal(t.dtype, u.dtype)
          assert.are.equal(old:sub(from + t.data_offsets[1], from + t.data_offsets[2] - 1),
            new:sub(to + u.data_offsets[1], to + u.data_offsets[2] - 1), name)
        end
      end
      for name in pairs(b) do assert(a[name], name) end
      -- the configuration is what it was, key by key
      local c, d = json.decode(tools.read(fixture .. '/config.json')), json.decode(tools.read(path .. '/config.json'))
      for key, value in pairs(c) do assert.are.same(value, d[key], key) end
    end)
  end

  it('in shards is the same model', function()
    local m = assert(folders.create(folders.tiny { tie_word_embeddings = false }, 4))
    local path = root .. '/shards'
    assert(folders.save(m, path, { shard_bytes = 200 }))
    local index = json.decode(tools.read(path .. '/model.safetensors.index.json'))
    assert.are.equal(4 * (116 + 20), index.metadata.total_size)
    local files, most = {}, 0
    for _, file in pairs(index.weight_map) do files[file] = true end
    for file in pairs(files) do
      local _, start = folders.header(tools.read(path .. '/' .. file))
      most = math.max(most, #tools.read(path .. '/' .. file) - start + 1)
      assert(file:find '^model%-0000%d%-of%-00003%.safetensors$', file)
    end
    assert(most <= 200, most)
    assert(not tools.exists(path .. '/model.safetensors'))
    same(m, assert(folders.open(path)))
  end)

  it('is written as it was stored, f16 too, unless it is trained', function()
    for _, name in ipairs { 'float16', 'bfloat16', 'float32' } do
      local there, back = root .. '/as-' .. name, root .. '/back-' .. name
      local dtype = ({ float16 = C.MS_F16, bfloat16 = C.MS_BF16, float32 = C.MS_F32 })[name]
      assert(folders.save(assert(folders.create(folders.tiny(), 4)), there, { dtype = dtype }))
      local m = assert(folders.open(there))
      assert(folders.save(m, back))
      for _, file in ipairs { '/model.safetensors', '/config.json' } do
        assert.is_true(tools.read(there .. file) == tools.read(back .. file), name .. file)
      end
    end
    local half = root .. '/as-float16'
    assert(folders.save(assert(folders.open(half, { train = 1 })), root .. '/trained'))
    assert(folders.save(assert(folders.open(half, { dtype = C.MS_F32 })), root .. '/full'))
    for _, path in ipairs { '/trained', '/full' } do
      assert.are.equal('float32', json.decode(tools.read(root .. path .. '/config.json')).torch_dtype)
      same(assert(folders.open(half)), assert(folders.open(root .. path)))
    end
  end)

  it('is written in the dtype asked for, and says so', function()
    local m = assert(folders.create(folders.tiny { torch_dtype = absent, dtype = 'float32' }, 4))
    for name, dtype in pairs { float16 = C.MS_F16, bfloat16 = C.MS_BF16, float32 = C.MS_F32 } do
      local path = root .. '/' .. name
      assert(folders.save(m, path, { dtype = dtype }))
      assert.are.equal(name, json.decode(tools.read(path .. '/config.json')).dtype)
      local back = assert(folders.open(path))
      local type = name == 'bfloat16' and 'bf16' or name == 'float16' and 'f16' or 'f32'
      -- half a unit in the last place; 2^-25 is that of f16's smallest numbers
      tools.close(folders.parameter(back, EMBED), folders.parameter(m, EMBED), type, 0.5, 2 ^ -25)
    end
    local large = assert(open(folders.tiny(), tensors(nil,
      { [NORM] = { NORM, 'F32', { 4 }, folders.floats { 1, 2, 70000, 3 } } })))
    local ok, message = folders.save(large, root .. '/large', { dtype = C.MS_F16 })
    assert.is_nil(ok)
    assert(message:find(NORM, 1, true) and message:find('f16 cannot hold', 1, true), message)
    assert.are.equal(0, C.ms_path_kind(root .. '/large'))
  end)

  it('takes the tokenizer along, from its own folder or another', function()
    folders.folder(folders.tiny(), tensors(), place)
    for _, name in ipairs { 'tokenizer.json', 'generation_config.json', 'chat_template.jinja' } do
      tools.write(place .. '/' .. name, 'content of ' .. name)
    end
    tools.write(place .. '/README.md', 'stays')
    local m = assert(folders.open(place))
    local student = assert(folders.shrink(m, { 0 }))
    for i, each in ipairs { m, student, assert(folders.create(folders.tiny())) } do
      local path = root .. '/carry' .. i
      assert(folders.save(each, path, { carry = i == 3 and place or nil }))
      assert.are.equal('content of tokenizer.json', tools.read(path .. '/tokenizer.json'))
      assert.are.equal('content of chat_template.jinja', tools.read(path .. '/chat_template.jinja'))
      assert(tools.exists(path .. '/generation_config.json'))
      assert(not tools.exists(path .. '/README.md'))
    end
  end)

  it('spells out what its config left to defaults', function()
    local m = assert(folders.create { model_type = 'mistral', hidden_size = 64, vocab_size = 9,
      intermediate_size = 5, num_hidden_layers = 1, num_key_value_heads = 8 })
    local c = folders.config(m)
    for key, value in pairs { num_attention_heads = 32, sliding_window = 4096, rope_theta = 1e4,
      rms_norm_eps = 1e-6, max_position_embeddings = 131072, tie_word_embeddings = false,
      torch_dtype = 'float32', hidden_act = 'silu' } do
      assert.are.equal(value, c[key], key)
    end
    assert.are.equal('MistralForCausalLM', c.architectures[1])
  end)

  it('replaces one that moonstill wrote, and nothing else', function()
    local a = assert(folders.create(folders.tiny(), 1))
    local b = assert(folders.create(folders.tiny(), 2))
    local path = root .. '/replaced'
    assert(folders.save(a, path, { shard_bytes = 100 }))
    assert(folders.save(b, path .. '/'))
    same(b, assert(folders.open(path)))
    assert(not tools.exists(path .. '/model.safetensors.index.json'))
    -- nothing is left beside it
    local list = io.popen('ls ' .. root .. ' | grep "^replaced"')
    assert.are.equal('replaced\n', list:read '*a')
    list:close()

    local function kept(word)
      local ok, message, status = folders.save(a, path)
      assert.is_nil(ok)
      assert.are.equal(C.MS_EINVAL, status)
      assert(message:find('not overwritten', 1, true) and message:find(word, 1, true), message)
      same(b, assert(folders.open(path)))
    end
    tools.write(path .. '/notes.txt', 'mine')
    kept 'notes.txt'
    os.remove(path .. '/notes.txt')
    tools.write(path .. '/state.json', '{}')
    kept 'state.json'
    os.remove(path .. '/state.json')
    folders.replace(path .. '/model.safetensors', folders.safetensors(tensors()))
    b = assert(folders.open(path))
    kept 'moonstill did not write model.safetensors'
    os.remove(path .. '/model.safetensors')
    local _, message = folders.save(a, path)
    assert(message:find('no weights', 1, true), message)
    _, message = folders.save(a, place .. '/config.json')
    assert(message:find('no folder', 1, true), message)
    assert(folders.save(a, tools.folder())) -- an empty one may be filled
    assert(folders.save(a, root .. '/new/below/it'))
    _, message = folders.save(a, root .. '/' .. ('x'):rep(256)) -- before anything is written
    assert(message:find('cannot be there: File name too long', 1, true), message)
  end)

  it('is whole or not there when the disk is full', function()
    local path = root .. '/full'
    local script = tools.write(root .. '/full.lua', ([[
      local folders = require 'tests.support.folders'
      local m = assert(folders.create(folders.tiny { vocab_size = 5000 }, 2))
      local ok, message = folders.save(m, %q)
      print(ok or message)
    ]]):format(path))
    assert(folders.save(assert(folders.create(folders.tiny(), 1)), path))
    local before = tools.read(path .. '/model.safetensors')
    -- a limit on the size of files stands for the disk: the write ends in an error
    local _, out = tools.run(("trap '' XFSZ; ulimit -f 8; LUA_PATH='%s' exec luajit %s")
      :format(package.path, script))
    assert(out:find('model.safetensors', 1, true) and out:find('cannot write', 1, true), out)
    assert.are.equal(before, tools.read(path .. '/model.safetensors'))
    local list = io.popen('ls -d ' .. path .. '*')
    assert.are.equal(path .. '\n' .. path .. '.lua\n', list:read '*a')
    list:close()
  end)

  local real, why = tools.shared 'models/tinystories-656k/config.json'
  if not real then pending('of a real model, stored under the head\'s name only', why) else
    it('of a real model, stored under the head\'s name only', function()
      local m = assert(folders.open((real:gsub('/config.json', ''))))
      local path = root .. '/tinystories'
      assert(folders.save(m, path))
      local header = folders.header(tools.read(path .. '/model.safetensors'))
      assert(header[EMBED] and not header[HEAD])
      assert.are.equal(tools.read((real:gsub('config.json', 'tokenizer.json'))),
        tools.read(path .. '/tokenizer.json'))
      same(m, assert(folders.open(path)))
    end)
  end
end)

describe('models made with memory that ends', function()
  it('say which part found none, and what needs less', function()
    local out, options = ffi.new 'ms_model *[1]', folders.options { train = 1 }
    local config, seen = json.encode(folders.tiny()), {}
    folders.walk_allocations(function()
      local status = C.ms_model_create(folders.device, config, 1, options, out)
      if status == 0 then C.ms_model_free(out[0]) else seen[#seen + 1] = ffi.string(C.ms_last_error()) end
      return status
    end)
    local all = table.concat(seen, '\n')
    for _, want in ipairs { 'weights: no memory for %d+ bytes; dtype = bf16',
      'gradients: no memory for %d+ bytes; frozen parameters' } do
      assert(all:find(want), want .. ' is not in\n' .. all)
    end
  end)

  it('are errors that leave nothing behind, wherever it ends', function()
    local out = ffi.new 'ms_model *[1]'
    local options = folders.options { train = 1 }
    local config = json.encode(folders.tiny())
    local m = assert(folders.create(folders.tiny { num_hidden_layers = 2 }))
    local layers = ffi.new('int32_t[1]', 1)
    -- every try flushes its files: in memory, where there is such a place
    local memory = C.ms_path_kind '/dev/shm' == 2 and '/dev/shm/' or tools.folder() .. '/'
    local path = memory .. 'moonstill-saved-' .. tostring(options):match '%x+$'
    local function freed(status)
      if status == 0 then C.ms_model_free(out[0]) end
      return status
    end
    folders.walk_allocations(function()
      return freed(C.ms_model_create(folders.device, config, 1, options, out))
    end)
    folders.walk_allocations(function()
      return freed(C.ms_model_shrink(m, layers, 1, options, out))
    end)
    folders.walk_allocations(function() return freed(C.ms_model_copy(m, options, out)) end)
    folders.walk_allocations(function()
      return C.ms_model_save(m, nil, path, nil, C.MS_BF16, 100)
    end)
    -- what was there is removed only once it is seen to be ours, for which memory may be missing
    for _, name in ipairs { '', '.old', '.old.1', '.old.2' } do C.ms_dir_remove(path .. name) end
  end)
end)
