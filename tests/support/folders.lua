--- Small model folders, made by hand: what the specs of config, weights and saving share.
local ffi = require 'ffi'
local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local json = require 'moonstill.base.json'
local text = require 'moonstill.base.text'
local tools = require 'tests.support.tools'

local M = {}

local device = ffi.new 'ms_device *[1]'
check(C.ms_device_open('cpu', device))
M.device = device[0]

--- The options of a model; fields not given are "as stored", not training.
function M.options(fields)
  local o = ffi.new 'ms_model_options'
  o.dtype = -1
  for k, v in pairs(fields or {}) do o[k] = v end
  return o
end

--- Asserts that `model, message, status` of `open` are a failure whose message has all of `words`.
function M.refused(words, status, model, message, got)
  if model then error('no error, "' .. words[1] .. '" was expected', 2) end
  if got ~= status then error(('status %d, not %d: %s'):format(got, status, message), 2) end
  tools.says(words, message)
end

local out = ffi.new 'ms_model *[1]'
local function result(status)
  if status ~= 0 then return nil, ffi.string(C.ms_last_error()), status end
  return ffi.gc(out[0], C.ms_model_free)
end

--- Each returns a model, or nil, the message and the status.
function M.open(path, options)
  return result(C.ms_model_open(M.device, path, M.options(options), out))
end
function M.create(config, seed, options)
  if type(config) == 'table' then config = json.encode(config) end
  return result(C.ms_model_create(M.device, config, seed or 1, M.options(options), out))
end
function M.shrink(model, layers, options)
  local list = ffi.new('int32_t[?]', #layers, layers)
  return result(C.ms_model_shrink(model, list, #layers, M.options(options), out))
end
function M.copy(model, options) return result(C.ms_model_copy(model, M.options(options), out)) end

--- Frees it now, as `ms_model_free` alone would leave the finalizer behind.
function M.free(model) C.ms_model_free(ffi.gc(model, nil)) end

--- Returns true, or nil, the message and the status.
function M.save(model, path, options)
  local o = options or {}
  local status = C.ms_model_save(model, nil, path, o.carry, o.dtype or -1, o.shard_bytes or 0)
  if status ~= 0 then return nil, ffi.string(C.ms_last_error()), status end
  return true
end

local chars = ffi.new 'char *[1]'
function M.info(model)
  check(C.ms_model_info(model, chars))
  return json.decode(text(chars[0]))
end
function M.config(model)
  check(C.ms_model_config(model, chars))
  return json.decode(text(chars[0]))
end

--- Names in order.
function M.names(model)
  local list = {}
  for i = 0, C.ms_model_parameter_count(model) - 1 do
    list[i + 1] = ffi.string(C.ms_model_parameter_name(model, i))
  end
  return list
end

local tensor = ffi.new 'ms_tensor *[1]'
--- Values, shape and dtype of the parameter of this name; nil when there is none.
function M.parameter(model, name)
  for i, each in ipairs(M.names(model)) do
    if each == name then
      check(C.ms_model_parameter(model, i - 1, tensor))
      local t, shape, values = tensor[0], {}, {}
      local n = tonumber(C.ms_tensor_size(t, -1))
      local buffer = ffi.new('double[?]', n)
      check(C.ms_tensor_read_double(t, buffer, n))
      for k = 0, n - 1 do values[k + 1] = buffer[k] end
      for k = 1, C.ms_tensor_rank(t) do shape[k] = tonumber(C.ms_tensor_size(t, k - 1)) end
      local dtype = C.ms_tensor_dtype(t)
      C.ms_tensor_free(t)
      return values, shape, dtype
    end
  end
end

--- Eight bytes, little-endian.
function M.length(n)
  local bytes = {}
  for i = 1, 8 do
    bytes[i] = string.char(n % 256)
    n = math.floor(n / 256)
  end
  return table.concat(bytes)
end

local widths = { F32 = 4, BF16 = 2, F16 = 2, F64 = 8, U8 = 1, I64 = 8, U32 = 4 }

--- A safetensors file. `list` holds { name, dtype, shape, data } in order of the data; a field
--- `offsets` overrides what follows from the shape, `text` the whole entry.
function M.safetensors(list, metadata)
  local entries, data, at = {}, {}, 0
  if metadata then entries[1] = '"__metadata__":' .. metadata end
  for _, t in ipairs(list) do
    local count = 1
    for _, n in ipairs(t[3]) do count = count * n end
    local bytes = t[4] or ('\0'):rep(count * widths[t[2]])
    local offsets = t.offsets or ('[%d,%d]'):format(at, at + #bytes)
    entries[#entries + 1] = t.text or ('"%s":{"dtype":"%s","shape":[%s],"data_offsets":%s}')
      :format(t[1], t[2], table.concat(t[3], ','), offsets)
    data[#data + 1] = bytes
    at = at + #bytes
  end
  local header = '{' .. table.concat(entries, ',') .. '}'
  return M.length(#header) .. header .. table.concat(data)
end

--- The header of a safetensors file as a table, and where its data begins (1-based).
function M.header(file)
  local n = 0
  for i = 8, 1, -1 do n = n * 256 + file:byte(i) end
  return json.decode(file:sub(9, 8 + n)), 9 + n
end

--- f32 values as bytes.
function M.floats(values)
  local buffer = ffi.new('float[?]', #values, values)
  return ffi.string(buffer, 4 * #values)
end

--- The smallest llama: 1 layer, width 4, vocabulary 5.
function M.tiny(changes)
  local c = { model_type = 'llama', vocab_size = 5, hidden_size = 4, intermediate_size = 3,
    num_hidden_layers = 1, num_attention_heads = 2, num_key_value_heads = 1,
    max_position_embeddings = 16, tie_word_embeddings = true, torch_dtype = 'float32' }
  for k, v in pairs(changes or {}) do
    if v == M.absent then c[k] = nil else c[k] = v end
  end
  return c
end
M.absent = {} -- as a change: the key is left out

--- Its tensors, with the values of `tools.values`; `dtype` F32.
function M.tiny_tensors()
  local list = {}
  local function add(name, ...)
    local count = 1
    for _, n in ipairs { ... } do count = count * n end
    local data = ffi.string(tools.values(count, #list + 1), 4 * count)
    list[#list + 1] = { name, 'F32', { ... }, data }
  end
  add('model.embed_tokens.weight', 5, 4)
  local layer = 'model.layers.0.'
  add(layer .. 'self_attn.q_proj.weight', 4, 4)
  add(layer .. 'self_attn.k_proj.weight', 2, 4)
  add(layer .. 'self_attn.v_proj.weight', 2, 4)
  add(layer .. 'self_attn.o_proj.weight', 4, 4)
  add(layer .. 'mlp.gate_proj.weight', 3, 4)
  add(layer .. 'mlp.up_proj.weight', 3, 4)
  add(layer .. 'mlp.down_proj.weight', 4, 3)
  add(layer .. 'input_layernorm.weight', 4)
  add(layer .. 'post_attention_layernorm.weight', 4)
  add('model.norm.weight', 4)
  return list
end

--- Writes a file anew. A file that is cut to nothing and written again costs some file systems a
--- flush, a new one does not: that is seconds for thousands of files.
function M.replace(path, content)
  os.remove(path)
  return tools.write(path, content)
end

--- A folder with config.json and model.safetensors (from a list, or the file's text).
function M.folder(config, weights, path)
  path = path or tools.folder()
  if type(config) == 'table' then config = json.encode(config) end
  if type(weights) == 'table' then weights = M.safetensors(weights) end
  M.replace(path .. '/config.json', config)
  if weights then M.replace(path .. '/model.safetensors', weights) end
  return path
end

--- Walks an allocation failure through `call`, which returns a status: each must be "no memory"
--- with a message, and leave as many objects alive as before, until the call needs no more
--- allocations. One that succeeds although an allocation failed has lost something. Returns how many
--- allocations it took.
function M.walk_allocations(call)
  for n = 1, 100000 do
    local before = C.ms_test_live()
    C.ms_test_fail_alloc(n)
    local status = call()
    local left = C.ms_test_fail_alloc(0)
    assert(C.ms_test_live() == before, ('allocation %d: %d objects alive, %d before')
      :format(n, tonumber(C.ms_test_live()), tonumber(before)))
    if left > 0 then
      assert(status == 0, status)
      return n - 1
    end
    assert(status == C.MS_ENOMEM, ('allocation %d: status %d: %s')
      :format(n, status, ffi.string(C.ms_last_error())))
  end
  error 'no end of allocations'
end

return M
