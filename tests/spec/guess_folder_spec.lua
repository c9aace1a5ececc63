-- Folders that people give in the place of others: what the error says they are, and what to do.
local ffi = require 'ffi'
local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local folders = require 'tests.support.folders'
local json = require 'moonstill.base.json'
local ms = require 'moonstill'
local tools = require 'tests.support.tools'

-- A folder of files, by their paths in it; a text that is a link begins with "->".
local function place(files, name)
  local path = tools.folder() .. (name and '/' .. name or '')
  check(C.ms_dir_make(path))
  for file, content in pairs(files) do
    local at = path .. '/' .. file
    check(C.ms_dir_make((at:gsub('/[^/]*$', ''))))
    if content:find '^%->' then
      os.execute(("ln -s '%s' '%s'"):format(content:sub(3), at))
    elseif file:sub(-1) ~= '/' then
      tools.write(at, content)
    end
  end
  return path
end

-- Expects an error about `path` that has all of `words`; HERE in them is the path.
local function says(path, call, ...)
  local words = { path }
  for i, word in ipairs { ... } do words[i + 1] = word:gsub('HERE', function() return path end) end
  tools.fails(words, call, path)
end

local CONFIG = json.encode(folders.tiny())
local WEIGHTS = folders.safetensors(folders.tiny_tensors())
local PEFT = '{"peft_type": "LORA", "base_model_name_or_path": "org/Base-1\\u001b[31m"}'

-- name, files, words of the error
local MODELS = {
  { 'an empty folder', {}, 'HERE: is an empty folder: config.json is needed' },
  { 'an adapter', { ['adapter_config.json'] = PEFT, ['adapter_model.safetensors'] = WEIGHTS,
    ['tokenizer.json'] = '{}' }, 'HERE: is an adapter', 'of org/Base-1?[31m', 'merge_and_unload' },
  { 'an adapter with a config', { ['adapter_config.json'] = '[1', ['adapter_model.safetensors'] = WEIGHTS,
    ['config.json'] = CONFIG }, 'is an adapter', 'PEFT), and no whole model', 'merge_and_unload' },
  { 'an adapter\'s weights', { ['config.json'] = CONFIG, ['adapter_model.bin'] = '' }, 'is an adapter', 'merge' },
  { 'a folder of GGUF', { ['x-q4.gguf'] = 'GGUF', ['README.md'] = '' }, 'llama.cpp (x-q4.gguf)',
    'original folder is needed' },
  { 'GGUF with a config', { ['x-q4.gguf'] = 'GGUF', ['config.json'] = CONFIG }, 'llama.cpp (x-q4.gguf)' },
  { 'a hub\'s cache', { ['snapshots/abc/config.json'] = CONFIG, ['snapshots/zzz/config.json'] = CONFIG,
    ['refs/main'] = 'abc', ['blobs/1'] = '' }, 'hub\'s cache', 'give', 'HERE/snapshots/abc' },
  { 'a hub\'s cache without a main', { ['snapshots/abc/config.json'] = CONFIG }, 'HERE/snapshots/abc' },
  { 'a hub\'s whole cache', { ['models--a--b/snapshots/abc/config.json'] = CONFIG },
    'HERE/models--a--b/snapshots/abc' },
  { 'a hub\'s cache without a version', { ['snapshots/'] = '' }, 'without a version', 'download' },
  { 'links to nothing', { ['config.json'] = '->../../blobs/1' },
    'its config.json is a link to ../../blobs/1, which is not there', 'cp -L' },
  { 'weights that are links to nothing', { ['config.json'] = CONFIG, ['model.safetensors'] = '->../../blobs/2' },
    'its model.safetensors is a link to ../../blobs/2', 'cp -L' },
  { 'the output of a run', { ['metrics.jsonl'] = '', ['student/config.json'] = CONFIG,
    ['checkpoints/step-00000002/config.json'] = CONFIG }, 'output of a run', 'give the student', 'HERE/student' },
  { 'the output of a run that was stopped', { ['metrics.jsonl'] = '',
    ['checkpoints/step-00000002/config.json'] = CONFIG }, 'has not ended', 'HERE/checkpoints/step-00000002' },
  { 'the output of a run that only began', { ['run.lock'] = '1' }, 'neither a student nor a checkpoint' },
  { 'a student without a model', { ['student/README.md'] = '', ['checkpoints/'] = '' },
    'neither a student nor a checkpoint' },
  { 'a run\'s checkpoints', { ['step-00000001/config.json'] = CONFIG }, 'give HERE/step-00000001' },
  { 'the output of a trainer', { ['checkpoint-500/config.json'] = CONFIG,
    ['checkpoint-1000/config.json'] = CONFIG }, 'give HERE/checkpoint-1000' },
  { 'Meta\'s format', { ['params.json'] = '{}', ['consolidated.00.pth'] = 'PK\3\4', ['tokenizer.model'] = '' },
    'Meta\'s own format', 'convert_llama_weights_to_hf' },
  { 'Mistral AI\'s format', { ['params.json'] = '{}', ['consolidated.safetensors'] = WEIGHTS },
    'Mistral AI\'s own format', 'convert_mistral_weights_to_hf' },
  { 'an image pipeline', { ['model_index.json'] = '{}' }, 'diffusers', 'no text' },
  { 'an embedding model', { ['config.json'] = '{"model_type": "bert"}', ['modules.json'] = '[]' },
    "'model_type' is", 'sentence-transformers', 'causal language model' },
  { 'a vision model', { ['config.json'] = '{"model_type": "clip"}', ['preprocessor_config.json'] = '{}' },
    'model of images or sound', 'causal language model' },
  { 'quantised weights', { ['config.json'] =
    json.encode(folders.tiny { quantization_config = { quant_method = 'gptq' } }) },
    'quantization_config', 'The folder has quantised weights (gptq)', 'the model before that' },
  { 'pickled weights', { ['config.json'] = CONFIG, ['pytorch_model.bin'] = '\128\2' },
    'pytorch_model.bin, which is not read', 'from_pretrained("HERE").save_pretrained("new", safe_serialization=True)' },
  { 'pickled shards', { ['config.json'] = CONFIG, ['pytorch_model-00001-of-00002.bin'] = '',
    ['training_args.bin'] = '' }, 'in pytorch_model-00001-of-00002.bin' },
  { 'an index of pickles', { ['config.json'] = CONFIG, ['pytorch_model.bin.index.json'] = '{}' },
    'in pytorch_model.bin.index.json' },
  { 'weights of TensorFlow', { ['config.json'] = CONFIG, ['tf_model.h5'] = '' },
    'from_pretrained("HERE", from_tf=True)' },
  { 'weights of Flax', { ['config.json'] = CONFIG, ['flax_model.msgpack'] = '' }, 'from_flax=True' },
  { 'weights in a .pth', { ['config.json'] = CONFIG, ['consolidated.00.pth'] = '' }, 'consolidated.00.pth, which' },
  { 'pickled weights alone', { ['model.pt'] = '\128\2' }, 'weights in model.pt', 'no config.json' },
  { 'a trainer\'s leftovers', { ['config.json'] = CONFIG, ['training_args.bin'] = '', ['optimizer.pt'] = '' },
    'has a config.json and no weights' },
  { 'weights alone', { ['model.safetensors'] = WEIGHTS }, 'has weights (model.safetensors) but no config.json' },
  { 'weights of another name', { ['config.json'] = CONFIG, ['best.safetensors'] = WEIGHTS },
    'no model.safetensors but best.safetensors', 'rename' },
  { 'shards without their index', { ['config.json'] = CONFIG, ['model-00001-of-00002.safetensors'] = WEIGHTS },
    'no model.safetensors.index.json' },
  { 'a config alone', { ['config.json'] = CONFIG }, 'no weights', 'neither model.safetensors' },
  { 'a tokenizer alone', { ['tokenizer.json'] = '{}', ['tokenizer_config.json'] = '{}' },
    'has a tokenizer (tokenizer.json) and no model' },
  { 'a download that only began', { ['.cache/huggingface/download/Zx.ab.incomplete'] = '' },
    'not whole', 'Zx.ab.incomplete', 'start it again' },
  { 'a download of another file', { ['config.json'] = CONFIG, ['weights.part'] = '' },
    'download of weights.part has not ended' },
  { 'a download by aria2', { ['model-1.safetensors.aria2'] = '' }, 'model-1.safetensors.aria2 has not ended' },
  { 'the config\'s download', { ['config.json.part'] = '', ['x.gguf'] = '' },
    'config.json.part is: its download has not ended' },
  { 'a folder of anything', { a = '', b = '', c = '', d = '', e = '', f = '' },
    'has no config.json: there are a, b, c, d, e, ..' },
  { 'a folder of one file', { ['notes\27.txt'] = '' }, 'there is only notes?.txt' },
}

describe('a folder that is no model', function()
  for _, case in ipairs(MODELS) do
    it('is known for ' .. case[1], function()
      says(place(case[2]), ms.model.open, unpack(case, 3))
    end)
  end

  it('is known by where it lies', function()
    says(place({ ['abc/config.json'] = CONFIG }, 'snapshots'), ms.model.open, 'give one, HERE/abc')
    says(place({ ['../config.json'] = CONFIG, ['params.json'] = '{}', ['consolidated.00.pth'] = '' }, 'original'),
      ms.model.open, 'the folder above it, HERE/..')
    says(place({ ['README.md'] = '', ['../../blobs/1.incomplete'] = '' }, 'snapshots/abc'), ms.model.open,
      'not whole', '1.incomplete')
  end)

  it('is a file', function()
    local path = place { ['x.gguf'] = 'GGUF\3\0\0\0', ['model.safetensors'] = WEIGHTS, ['x.bin'] = '\128\2}q' }
    says(path .. '/x.gguf', ms.model.open, 'HERE: is a GGUF file', 'original folder')
    says(path .. '/model.safetensors', ms.model.open, 'HERE: is a file, where a folder is needed')
    says(path .. '/x.bin', ms.model.open, 'HERE: is a pickle')
  end)

  it('is not there', function()
    local path = place {}
    says(path .. '/none', ms.model.open, 'HERE: no such folder')
    says('Qwen/Qwen2.5-0.5B', ms.model.open, 'HERE: no such folder', 'nothing is downloaded here',
      'hf download HERE --local-dir Qwen2.5-0.5B')
    says('https://example.org/model', ms.model.open, 'no such folder: nothing is downloaded here')
    says('~/model', ms.model.open, 'no such folder: ~ is not replaced here')
    os.execute(("ln -s nowhere '%s/link'"):format(path))
    says(path .. '/link', ms.model.open, 'HERE: is a link to nowhere')
  end)

  it('lacks a file that its index names', function()
    local index = json.encode { weight_map = { a = 'model-2.safetensors' } }
    local path = place { ['config.json'] = CONFIG, ['model.safetensors.index.json'] = index }
    says(path, ms.model.open, "index.json: names model-2.safetensors, which is not beside it", 'download')
    tools.write(path .. '/model-2.safetensors.incomplete', '')
    says(path, ms.model.open, 'model-2.safetensors.incomplete is: its download has not ended')
  end)

  it('is nothing said of where it is one', function()
    local path = place { ['config.json'] = CONFIG, ['model.safetensors'] = WEIGHTS, ['x.gguf'] = 'GGUF',
      ['modules.json'] = '[]', ['adapter_config.json'] = PEFT, ['pytorch_model.bin'] = '' }
    ms.model.open(path):free()
    says(place { ['config.json'] = '{"model_type": "bert"}' }, ms.model.open, "there is llama")
  end)
end)

local BERT = { ['config.json'] = CONFIG, ['vocab.txt'] = '[PAD]\n' }
local TOKENIZERS = {
  { 'an empty folder', {}, 'is an empty folder: tokenizer.json is needed' },
  { 'SentencePiece', { ['config.json'] = CONFIG, ['tokenizer.model'] = '' }, 'in tokenizer.model (SentencePiece)',
    'AutoTokenizer.from_pretrained("HERE", use_fast=True).save_pretrained("HERE")' },
  { 'SentencePiece of another name', { ['spiece.model'] = '' }, 'in spiece.model (SentencePiece)' },
  { 'BPE in two files', { ['config.json'] = CONFIG, ['vocab.json'] = '{}', ['merges.txt'] = '' },
    'in vocab.json and merges.txt', 'use_fast=True' },
  { 'half of BPE in two files', { ['vocab.json'] = '{}' }, 'in vocab.json', 'use_fast=True' },
  { 'weights that are downloading', { ['tokenizer.json.part'] = '', ['vocab.json'] = '' },
    'tokenizer.json.part is: its download has not ended' },
  { 'tiktoken', { ['qwen.tiktoken'] = '' }, 'in qwen.tiktoken (tiktoken)' },
  { 'WordPiece', BERT, 'in vocab.txt (WordPiece', 'only BPE' },
  { 'a model without one', { ['config.json'] = CONFIG }, 'is a model without tokenizer.json' },
  { 'an adapter', { ['adapter_config.json'] = PEFT }, 'is an adapter' },
  { 'the output of a run', { ['metrics.jsonl'] = '', ['student/config.json'] = CONFIG }, 'HERE/student' },
  { 'a link to nothing', { ['tokenizer.json'] = '->../../blobs/1' }, 'its tokenizer.json is a link' },
  { 'anything', { ['a.txt'] = '' }, 'has no tokenizer.json: there is only a.txt' },
}

describe('a folder without a tokenizer.json', function()
  for _, case in ipairs(TOKENIZERS) do
    it('is known for ' .. case[1], function()
      local path = place(case[2])
      says(path, ms.tokenizer.open, unpack(case, 3))
      says(path, ms.chat.open, unpack(case, 3))
    end)
  end

  it('is not there', function()
    says('org/name', ms.tokenizer.open, 'no such folder', 'hf download org/name')
    says(tools.folder() .. '/tokenizer.json', ms.tokenizer.open, 'HERE: no such file')
  end)

  for _, case in ipairs {
    { '[1, 2]', 'a JSON array' }, { '3', 'no object of JSON' }, { '{"version": "1.0"}', "an object without 'model'" },
    { CONFIG, 'a model\'s config.json' }, { '{"a": 0, "b": 1}', 'a vocab.json' },
    { '{"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>"}', 'a tokenizer_config.json' },
    { '{"weight_map": {}}', 'an index of weights' }, { '{}', "an object without 'model'" },
    { '{"bos_token": "<s>"}', 'a special_tokens_map.json' }, { '{"eos_token_id": 1}', 'a generation_config.json' },
  } do
    it('but with another file of that name: ' .. case[1], function()
      says(place { ['tokenizer.json'] = case[1] }, ms.tokenizer.open, 'tokenizer.json: is no tokenizer but ' .. case[2])
    end)
  end
end)

describe('a folder that is no checkpoint', function()
  local model = ms.model.create(folders.tiny(), 1, { train = true })
  local optimizer = ms.optimizer.new(model)
  local function read(path) optimizer:read(path, model) end
  for _, case in ipairs {
    { 'the output of a run', { ['checkpoints/step-00000002/state.json'] = '',
      ['checkpoints/step-00000010/state.json'] = '' },
      'HERE: is the output of a run', 'HERE/checkpoints/step-00000010' },
    { 'checkpoints', { ['step-00000002/state.json'] = '' }, 'HERE/step-00000002' },
    { 'a trainer\'s', { ['config.json'] = CONFIG, ['trainer_state.json'] = '{}' }, 'transformers\' Trainer' },
    { 'a model', { ['config.json'] = CONFIG }, 'is a model and no checkpoint', 'student' },
    { 'nothing', {}, 'empty folder: state.json' },
    { 'anything', { a = '' }, 'has no state.json: there is only a' },
  } do
    it('is known for ' .. case[1], function() says(place(case[2]), read, unpack(case, 3)) end)
  end

  it('is not there', function() says(tools.folder() .. '/none', read, 'HERE: no such folder') end)

  it('but a checkpoint is a model', function()
    local path = tools.folder() .. '/step-1'
    optimizer:write(path, model, '{}')
    ms.model.open(path):free()
    says(path, ms.tokenizer.open, 'tokenizer.json')
  end)
end)

describe('why there is nothing at a path', function()
  local out = ffi.new 'char *[1]'
  it('is the same for all that ask', function()
    check(C.ms_path_missing('org/name', 'file', out))
    local text = require 'moonstill.base.text' (out[0])
    assert.equal(text, require 'moonstill.base.paths'.missing 'org/name')
    for path, hub in pairs { ['a-b/c_d.e-1.5'] = true, ['a/b.json'] = false, ['./a/b'] = false,
      ['a/b/c'] = false, ['-a/b'] = false, ['a/'] = false, ['/a/b'] = false, ['a/b.v2'] = false,
      ['Qwen/Qwen2.5-0.5B'] = true, ['a/b c'] = false } do
      local said = require 'moonstill.base.paths'.missing(path)
      assert.equal(hub, said:find('hub', 1, true) ~= nil, path .. ': ' .. said)
    end
  end)
end)
