--- What the recipes' --smoke sizes run on: tiny models with their tokenizer, and some
--- worked problems. Everything is made on the spot, in a few seconds.

local C = require 'moonstill.C'
local bpe = require 'moonstill.text.bpe'
local chat = require 'moonstill.text.chat'
local check = require 'moonstill.base.check'
local dataset = require 'moonstill.data.dataset'
local kd = require 'moonstill.loss.kd'
local model = require 'moonstill.model.model'
local runs = require 'moonstill.run.run'
local toy = require 'moonstill.toy.toy'

local M = {}

local CONTEXT = 256

--- A small llama's config.json.
--- @param vocab integer
--- @param width integer a multiple of 16
--- @param layers integer
--- @return table
function M.config(vocab, width, layers)
  check.integer('smoke', 'vocab', vocab, #bpe.special, check.INT32)
  check.integer('smoke', 'width', width, 1, check.INT32)
  check.integer('smoke', 'layers', layers, 1, check.INT32)
  local roles = bpe.roles(vocab)
  return { model_type = 'llama', architectures = { 'LlamaForCausalLM' }, vocab_size = vocab,
    hidden_size = width, intermediate_size = 3 * width, num_hidden_layers = layers,
    num_attention_heads = width / 16, num_key_value_heads = width / 16, rms_norm_eps = 1e-5,
    max_position_embeddings = CONTEXT, tie_word_embeddings = true, hidden_act = 'silu',
    initializer_range = 0.05, torch_dtype = 'float32',
    eos_token_id = roles.eos_token_id, pad_token_id = roles.pad_token_id }
end

local function make_model(path, vocabulary, width, layers, seed)
  local m = model.create(M.config(bpe.size(vocabulary), width, layers), seed, { dtype = 'f32' })
  m:save(path)
  m:free()
  bpe.write(path, vocabulary, CONTEXT)
end

local FOLDER = 'out/smoke'

-- Tokenizer, data and a random student; returns a configuration of recipes/sft.lua.
local function make(folder)
  check(C.ms_dir_make(check.text('smoke', 'folder', folder)))
  local problems = toy.problems('train', 300)
  local vocabulary = bpe.learn(toy.texts(problems), 512)
  make_model(folder .. '/student', vocabulary, 32, 1, 1)
  toy.write(folder .. '/train.jsonl', problems)
  toy.write(folder .. '/valid.jsonl', toy.problems('valid', 40))
  return { student = folder .. '/student', output = folder .. '/result', resume = false,
    data = { train = folder .. '/train.jsonl', valid = folder .. '/valid.jsonl',
      max_tokens = CONTEXT }, epochs = 3,
    batch = { tokens = 2048, micro_tokens = 1024 }, optim = { lr = 3e-3 }, validate = 6 },
    vocabulary
end

-- A teacher that knows a little: a larger model after a few passes over the same data. Returns its
-- folder. Other seeds give other teachers.
local function train_teacher(folder, name, values, vocabulary, seed, epochs)
  local path, output = ('%s/%s-untrained'):format(folder, name), ('%s/%s'):format(folder, name)
  make_model(path, vocabulary, 64, 2, 1 + seed)
  local teacher = model.open(path, { train = true })
  local run = runs.open({ output = output, epochs = epochs, resume = false, seed = seed,
    batch = values.batch, optim = { lr = 3e-3, clip = 1 } }, { student = teacher, quiet = true,
    data = dataset.open(values.data.train, chat.open(path), { quiet = true }) })
  local terms = { kd.ce(1) }
  for step in run:steps() do
    for batch in step:micro_batches() do teacher:learn(batch, terms) end
    step:update()
  end
  run:finish()
  teacher:free()
  return output .. '/student'
end

--- Makes a student and its data, and returns a configuration of recipes/sft.lua for them.
--- @param folder? string default 'out/smoke'
--- @return table
function M.sft(folder) return (make(folder or FOLDER)) end

--- The same with a teacher, for recipes/distill.lua.
--- @param folder? string
--- @return table
function M.distill(folder)
  folder = folder or FOLDER
  local values, vocabulary = make(folder)
  values.teacher = train_teacher(folder, 'teacher', values, vocabulary, 1, 6)
  return values
end

--- The same with two teachers, for recipes/two_teachers.lua.
--- @param folder? string
--- @return table
function M.two_teachers(folder)
  folder = folder or FOLDER
  local values, vocabulary = make(folder)
  values.teacher = train_teacher(folder, 'teacher', values, vocabulary, 1, 6)
  values.epochs = 2
  values.second = train_teacher(folder, 'second', values, vocabulary, 2, 3)
  return values
end

return M
