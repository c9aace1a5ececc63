--- Models: Hugging Face folders in and out, and what is computed with them.
---
--- A model owns memory that the Lua collector cannot see. Free it, or make it inside `ms.scope`;
--- what still uses it then (targets, optimisers) keeps its memory.
--- Layers and positions count from 0, as in the names of the weights.

local ffi = require 'ffi'
local C = require 'moonstill.C'
local absent = require 'moonstill.model.absent'
local callable = require 'moonstill.base.callable'
local chat = require 'moonstill.text.chat'
local check = require 'moonstill.base.check'
local device = require 'moonstill.tensor.device'
local ends = require 'moonstill.text.ends'
local fail = require 'moonstill.base.fail'
local generate = require 'moonstill.model.generate'
local grids = require 'moonstill.base.grid'
local handles = require 'moonstill.base.handle'
local json = require 'moonstill.base.json'
local kd = require 'moonstill.loss.kd'
local ranks = require 'moonstill.base.ranks'
local schema = require 'moonstill.base.schema'
local sorted = require 'moonstill.base.sorted'
local strict = require 'moonstill.base.strict'
local tensor = require 'moonstill.tensor.tensor'
local text = require 'moonstill.base.text'
local option = schema.option

local M = {}

local out = ffi.new 'ms_model *[1]' -- scratch, read at once
local string_out = ffi.new 'char *[1]'
local tensor_out = ffi.new 'ms_tensor *[1]'
local ids_out = ffi.new 'const int32_t *[1]'
local DTYPE = { f32 = C.MS_F32, bf16 = C.MS_BF16, f16 = C.MS_F16, stored = -1 }

local DTYPES = { 'stored', 'f32', 'bf16', 'f16' }

--- How a model is opened. recompute: activations are made again in the backward pass, layer by
--- layer.
M.options = schema.new('model', {
  train = option(false, 'gradients are kept'),
  dtype = schema.one_of(DTYPES, nil, 'of the weights; stored: as in the files'),
  recompute = option(false, 'less memory for activations, a third more time'),
  frozen = option('', 'patterns (* and ?) of parameters that stay as they are: '
    .. '"model.embed* *norm*"', 'string|list'),
  device = option('cpu', 'where models live', 'string|device'),
  head_bytes = option(0, 'workspace of the fused head; 0: its own choice', 'integer >= 0'),
  grid = schema.optional('grid', 'how it lies over ranks, see ms.grid; by default all have all'),
  vocab_cut = option(0, 'with grid.tp: its ids are cut where those of a model with so many are, '
    .. "which a teacher's must be where its student's are; 0: as its own", 'integer >= 0'),
})

--- A model with its weights and, where it is opened with `train = true`, their gradients. It owns
--- memory of the core: free it, or make it inside `ms.scope`. Of one that is cut over ranks all of
--- these make the same calls, with the same batches, and have the same results.
--- @class ms_model
local model = handles.kind('model', 'ms_model', C.ms_model_free)
local methods, pointer = model.methods, model.pointer

-- What the options of the last call point at: the core reads it after `read_options` has returned.
local patterns -- luacheck: ignore

local grid_of = setmetatable({}, { __mode = 'k' }) -- by model

-- A new model, which knows its grid.
local function new(grid)
  local made = model.new(out[0])
  grid_of[made] = grid
  return made
end

-- What the ranks that do not have a model know of it.
local function facts_of(made)
  return json.encode { info = made:info(), config = made:config(), ends = json.array(made:ends()) }
end

-- A model that only some ranks make: the others have one whose calls do nothing. All have it, or
-- none of them.
local function place(grid, make)
  if grid:is_whole() then
    make()
    return new(grid)
  end
  local ok, why, made, facts = true, nil, nil, nil
  if grid.holds then
    ok, why = pcall(function()
      make()
      made = new(grid)
      facts = facts_of(made)
    end)
  end
  grid.world:agree(not ok and tostring(why) or nil)
  facts = grid.world:from(grid.ranks[1], facts)
  return made or absent.new(grid, json.decode(facts, 'model'))
end

-- The grid of a model that is made of another one, whose it is.
local function same_grid(what, from, given)
  local own, asked = from:grid(), type(given) == 'table' and rawget(given, 'grid')
  if asked and not asked:is_same(own) then
    fail('%s: grid is %s, and the model it is made of has %s', what, tostring(asked), tostring(own))
  end
  return own
end

-- The options as the core takes them, and as Lua has them.
local function read_options(what, given, grid)
  local o = schema.take(what, M.options, given)
  o.grid = grid or o.grid or grids.open()
  local frozen = type(o.frozen) == 'table' and table.concat(o.frozen, ' ') or o.frozen
  patterns = frozen
  return ffi.new('ms_model_options', { dtype = DTYPE[o.dtype],
    train = o.train and 1 or 0, recompute = o.recompute and 1 or 0,
    frozen = frozen ~= '' and frozen or nil, head_bytes = o.head_bytes, vocab_cut = o.vocab_cut,
    tp = o.grid.shape.tp > 1 and o.grid.holds and o.grid.tp.group or nil }), o
end

--- Opens a Hugging Face folder: config.json and safetensors. The caller frees the model. What is
--- missing, of another shape, or not understood in config.json is an error that names it.
---
---   local student = ms.model.open('models/small', { train = true })
--- @param path string the folder
--- @param options? table see `options`
--- @return ms_model
function M.open(path, options)
  local c, o = read_options('model.open', options)
  check.path('model.open', path)
  return place(o.grid, function()
    check.file(device.on(o.device, function(dev) return C.ms_model_open(dev, path, c, out) end))
  end)
end

--- A model with random weights: normal ones of the config's `initializer_range`, norms 1, biases 0.
--- The same seed gives the same weights. The caller frees the model.
--- @param config table|string what config.json says, or its text
--- @param seed? integer default 0
--- @param options? table see `options`
--- @return ms_model
function M.create(config, seed, options)
  local c, o = read_options('model.create', options)
  seed = check.integer('model.create', 'seed', seed or 0, 0, check.EXACT)
  local source = type(config) == 'table' and json.encode(config)
    or check.text('model.create', 'config', config)
  return place(o.grid, function()
    check(device.on(o.device, function(dev)
      return C.ms_model_create(dev, source, seed, c, out)
    end))
  end)
end

-- `count` of `layers` layers, evenly apart, the first and the last among them.
local function spread(count, layers)
  local chosen = {}
  for i = 0, count - 1 do
    chosen[i + 1] = count == 1 and 0 or math.floor(i * (layers - 1) / (count - 1) + 0.5)
  end
  return chosen
end

--- What `shrink` takes.
M.shrink_options = schema.new('model.shrink', {
  layers = schema.required('number|list', 'a list of layers, from 0, or how many, taken evenly'),
}, M.options)

--- A student from some layers of a teacher; everything else is copied. The student needs the
--- teacher no longer, and the caller frees it.
---
---   local s = ms.model.shrink(teacher, { layers = { 0, 5, 11 }, train = true })
--- @param teacher ms_model
--- @param options table see `shrink_options`
--- @return ms_model
function M.shrink(teacher, options)
  handles.object('model.shrink', 'teacher', teacher, 'model')
  local layers = schema.take('model.shrink', M.shrink_options, options).layers
  local all = teacher:info().layers
  if layers == nil then
    fail('model.shrink: layers = a list of layers or their number is needed')
  end
  if type(layers) == 'number' then
    layers = spread(check.integer('model.shrink', 'layers', layers, 1, all), all)
  end
  check.integers('model.shrink', 'layers: entry', layers, 0, all - 1)
  local grid = same_grid('model.shrink', teacher, options)
  local c = read_options('model.shrink', schema.part(M.options, options), grid)
  local list = ffi.new('int32_t[?]', math.max(#layers, 1), layers)
  return place(grid, function()
    check(C.ms_model_shrink(pointer(teacher), list, #layers, c, out))
  end)
end

--- A copy of a model on the same device, with options of its own, which the caller frees.
--- @param from ms_model
--- @param options? table see `options`
--- @return ms_model
function M.copy(from, options)
  handles.object('model.copy', 'from', from, 'model')
  local grid = same_grid('model.copy', from, options)
  local c = read_options('model.copy', options, grid)
  return place(grid, function() check(C.ms_model_copy(pointer(from), c, out)) end)
end

local function set_ends(p, list)
  check(C.ms_model_set_ends(p, #list, ffi.new('int32_t[?]', math.max(#list, 1), list)))
end

-- Those that the files of a folder name; without one, of the folder the model came from.
local function find_ends(self, folder)
  local info = self:info()
  folder = folder or (type(info.path) == 'string' and info.path or nil)
  return ends.of_model(folder, self:config(), info.vocab, chat.end_of_turn)
end

--- The ids that end an answer: what config.json, generation_config.json and tokenizer_config.json
--- of the model's folder name, the end of a turn where the tokenizer there has turns, and what
--- `add_ends` added. Generation stops there by default; a saved folder names them.
--- @return integer[]
function methods:ends()
  local p = pointer(self)
  if C.ms_model_ends(p, nil) < 0 then set_ends(p, find_ends(self)) end
  local list, n = {}, C.ms_model_ends(p, ids_out)
  for i = 1, n do list[i] = ids_out[0][i - 1] end
  return list
end

--- Adds ids that end an answer; those that the model has no row for are passed over. A run adds the
--- ends of its data.
--- @param list integer[]
--- @return ms_model self
function methods:add_ends(list)
  local p, all = pointer(self), self:ends()
  check.integers('model:add_ends', 'id', list, 0, check.INT32)
  set_ends(p, ends.union(self:info().vocab, all, list))
  return self
end

--- Has a saved folder hold this text as one of the files that go along with a model (its
--- tokenizer's, its chat template), in place of the carried one; an empty text: none of that name.
--- @param name string such as "chat_template.jinja"
--- @param content string
--- @return ms_model self
function methods:set_text(name, content)
  local p = pointer(self)
  check.text('model:set_text', 'name', name)
  check(C.ms_model_set_text(p, name, check.text('model:set_text', 'text', content)))
  return self
end

--- How a model is saved. dtype: stored is f16 where the weights came so and are not trained.
M.save_options = schema.new('model:save', {
  carry = schema.optional('path',
    'folder whose tokenizer and generation files go along, by default the one it came from'),
  dtype = schema.one_of(DTYPES, nil, 'of the files; stored: as the weights are held'),
  shard_bytes = option(0, 'largest file of weights; 0: its own choice', 'integer >= 0'),
})

--- Writes a folder that transformers loads; it appears as a whole. Its generation_config.json is
--- the carried one, with all ids that end an answer. All ranks that have the model call it: each
--- writes its part, into a folder that all must see, which is the same for every grid.
--- @param path string
--- @param options? table see `save_options`
--- @return ms_model self
function methods:save(path, options)
  local p, o = pointer(self), schema.take('model:save', M.save_options, options)
  local carry = o.carry and check.text('model:save', 'carry', o.carry)
  check.path('model:save', path)
  if ranks.is_writing() then
    fail 'model:save: every rank saves its part, so all must call it: not in what one alone does'
  end
  self:add_ends(carry and find_ends(self, carry) or {})
  check(C.ms_model_save(p, self:grid().dp.group, path, carry, DTYPE[o.dtype], o.shard_bytes))
  return self
end

--- Facts: `family`, `path` of its folder, `parameters` (their number), `dtype` of the weights,
--- `train`, `tied` (whether head and embedding are one); `layers`, `hidden_size`,
--- `intermediate_size`, `heads`, `kv_heads`, `head_dim`, `vocab` (rows of the embedding), `context`
--- (the longest text); `memory` in bytes: of `weights`, `gradients` and `activations`.
--- @return table
function methods:info()
  check(C.ms_model_info(pointer(self), string_out))
  return strict.names('model info', json.decode(text(string_out[0]), 'model info'))
end

--- How it lies over ranks: without a `grid` of its own, whole on each of them.
--- @return ms_grid
function methods:grid()
  pointer(self)
  return grid_of[self]
end

--- A hash of configuration and weights, which tells whether a model has changed.
--- @return string
function methods:hash()
  check(C.ms_model_hash(pointer(self), string_out))
  return text(string_out[0])
end

--- An error that names the first parameter, row and column (from 0) with NaN or infinity in it.
--- @return ms_model self
function methods:check_finite()
  check(C.ms_model_check_finite(pointer(self)))
  return self
end

--- config.json as this model would write it.
--- @return table
function methods:config()
  check(C.ms_model_config(pointer(self), string_out))
  return json.decode(text(string_out[0]), 'config.json')
end

--- Iterates over names, weights and gradients (nil when frozen or not training) of all parameters,
--- as tensors that share the model's memory: `for name, weight, gradient in model:parameters() do`.
--- Of a model that is cut over ranks they are this rank's part of each.
--- @return fun(): string?, ms_tensor?, ms_tensor?
function methods:parameters()
  local i = -1
  pointer(self)
  return function() -- which keeps the model alive
    local p = pointer(self)
    i = i + 1
    if i >= C.ms_model_parameter_count(p) then return nil end
    local gradient
    check(C.ms_model_parameter(p, i, tensor_out))
    local weight = tensor.wrap(tensor_out[0])
    check(C.ms_model_gradient(p, i, tensor_out))
    if tensor_out[0] ~= nil then gradient = tensor.wrap(tensor_out[0]) end
    return ffi.string(C.ms_model_parameter_name(p, i)), weight, gradient
  end
end

--- Sets all gradients to 0.
--- @return ms_model self
function methods:zero_gradients()
  check(C.ms_model_zero_gradients(pointer(self)))
  return self
end

--- Logits of some positions of a batch, for tests, tools and small vocabularies.
--- @param batch ms_batch
--- @param rows? integer[] positions from 0; default all
--- @return ffi.cdata* float[rows * vocab]
--- @return integer vocab
function methods:logits(batch, rows)
  local p, given, vocab = pointer(self), handles.pointer('batch', batch), self:info().vocab
  if rows ~= nil then check.integers('model:logits', 'row', rows, 0, check.INT32) end
  local n = rows and #rows or batch:tokens()
  local list = ffi.new('int32_t[?]', math.max(n, 1))
  for i = 0, n - 1 do list[i] = rows and rows[i + 1] or i end
  local logits = ffi.new('float[?]', math.max(n, 1) * vocab)
  check(C.ms_model_logits(p, given, n, list, logits))
  return logits, vocab
end

--- Runs this model as a teacher over a batch: what a `ms.kd` term takes. The target covers the
--- batch's supervised positions, and keeps the model's memory when it needs it: one of hidden
--- states is refused once the model's head has changed.
--- @param batch ms_batch
--- @param options? table see `ms.kd.options`
--- @return ms_target
function methods:targets(batch, options)
  return kd.ask(self, pointer(self), batch, options)
end

--- One pass forward and backward: adds the gradients of a loss over a batch to the model's. Inside
--- a run's step the means are those of the whole step, however it is split.
--- @param batch ms_batch
--- @param terms ms_term[] made by `ms.ce` and `ms.kd`
--- @return ms_result[] one for each term; see `help "result"`
function methods:learn(batch, terms)
  return kd.run(C.ms_model_learn, pointer(self), batch, terms)
end

--- The losses of a batch, as `learn` gives them, without gradients: nothing changes.
--- @param batch ms_batch
--- @param terms ms_term[]
--- @return ms_result[] one for each term; see `help "result"`
function methods:evaluate(batch, terms)
  return kd.run(C.ms_model_evaluate, pointer(self), batch, terms)
end

--- The same as `evaluate`, and what each segment of the batch has of each term: sums over its
--- positions, `parts[segment][term]`.
---
---   local _, parts = model:evaluate_parts(batch, { ms.ce() })
---   parts[1][1].value / parts[1][1].weight  -- the first sample's loss
--- @param batch ms_batch
--- @param terms ms_term[]
--- @return ms_result[] one for each term; see `help "result"`
--- @return { value: number, weight: number, agree: number }[][] parts
function methods:evaluate_parts(batch, terms)
  return kd.run_parts(pointer(self), batch, terms)
end

--- Answers to prompts: all of them go through the model together, a token each at a time.
--- @param prompts integer[][] lists of ids
--- @param options? table see `ms.generate.options`; without `stop` answers end at `model:ends()`
--- @return integer[][] for each prompt the ids that were made, a stop token included
function methods:generate(prompts, options)
  pointer(self)
  return generate.collect(generate.open(self, prompts, options))
end

--- Generates a step at a time: `for ids in model:stream(prompts) do`, where ids[i] is the next
--- token of prompt i, or -1 once it has ended. The table is the same one in every step.
--- @param prompts integer[][]
--- @param options? table as for `generate`
--- @return fun(): integer[]?
function methods:stream(prompts, options)
  pointer(self)
  local generator, step = generate.open(self, prompts, options), {}
  return function() return generator:next(step) end
end

--- Continues a text, piece by piece: `ms.generate.pieces`.
--- @param tokenizer ms_tokenizer
--- @param prompt string|integer[]
--- @param options? table see `ms.generate.text_options`
--- @param halt? fun(): boolean
--- @return fun(): string?
--- @return table told
function methods:pieces(tokenizer, prompt, options, halt)
  return generate.pieces(self, tokenizer, prompt, options, halt)
end

local function mib(bytes) return ('%.1f MiB'):format(bytes / 2 ^ 20) end

function model.text(self)
  local info, total = self:info(), 0
  for _, bytes in sorted.pairs(info.memory) do total = total + bytes end
  return ('model %s: %.4g M parameters in %d layers, hidden size %d, vocabulary %d, %s, %s in '
    .. 'memory'):format(info.family, info.parameters / 1e6, info.layers, info.hidden_size,
      info.vocab, info.dtype, mib(total))
end

return callable(M, 'open')
