-- Which config.json is accepted, and what is said where it is not. tests/c/model_config.c tests what
-- the accepted ones mean.
local C = require 'moonstill.C'
local json = require 'moonstill.base.json'
local folders = require 'tests.support.folders'
local fuzz = require 'tests.fuzz.models'
local tools = require 'tests.support.tools'

local place = tools.folder()
local absent = folders.absent

-- The tiny model's weights fit every llama that is accepted here.
local function open(changes)
  return folders.open(folders.folder(folders.tiny(changes), folders.tiny_tensors(), place))
end

local function accepts(changes)
  local m, message = open(changes)
  assert(m, message)
end

-- `status` nil: malformed; 'unsupported': understood, but not built.
local function refuses(changes, status, ...)
  folders.refused({ 'config.json', ... }, status == 'unsupported' and C.MS_EUNSUPPORTED or C.MS_EIO, open(changes))
end

describe('config.json', function()
  it('may have keys that change nothing', function()
    accepts { architectures = json.array { 'LlamaForCausalLM' }, transformers_version = '5.24.0',
      bos_token_id = 1, eos_token_id = json.array { 1, 2 }, use_cache = true, pretraining_tp = 1,
      attention_dropout = 0.1, hidden_act = 'silu', auto_map = { AutoConfig = 'x.y' },
      ['transformers.js_config'] = { dtype = 'q4' }, is_llama_config = true,
      rope_interleaved = false, unknown_but_off = false, unknown_but_null = json.null }
    accepts { architectures = json.null, hidden_act = 'swish', mlp_bias = false,
      pruned_heads = {}, torch_dtype = absent, dtype = 'float32' }
  end)

  it('that asks for what is not built is refused by name', function()
    for key, value in pairs { num_experts = 8, quantization_config = { bits = 4 },
      quantization = { bits = 4 }, pretraining_tp = 2, hidden_act = 'gelu',
      rope_interleaved = true, logit_scale = 0.5, use_qk_norm = true,
      sliding_window = 7, some_new_feature = 'on', final_logit_softcapping = 30,
      text_config = { model_type = 'llama' }, torch_dtype = 'float64',
      architectures = json.array { 'LlamaForSequenceClassification' },
      partial_rotary_factor = 0.5, ['use_cache bos_token_id'] = 1 } do
      refuses({ [key] = value }, 'unsupported', "'" .. key .. "'")
    end
    refuses({ attention_dropout = 1 }, nil, 'attention_dropout', '[0, 1)')
    refuses({ model_type = 'gemma3_text' }, 'unsupported', 'gemma3_text', 'llama, mistral')
    refuses({ layer_types = json.array { 'linear_attention' } }, 'unsupported', 'linear_attention')
  end)

  it('has the keys of its own family alone', function()
    local function gemma2(changes)
      changes.model_type = 'gemma2'
      return changes
    end
    refuses({ attn_logit_softcapping = 50 }, 'unsupported', 'attn_logit_softcapping')
    refuses({ residual_multiplier = 0.5 }, 'unsupported', 'residual_multiplier')
    refuses({ model_type = 'gemma', query_pre_attn_scalar = 4 }, 'unsupported', 'query_pre_attn_scalar')
    refuses({ model_type = 'gemma', use_bidirectional_attention = true }, 'unsupported',
      'use_bidirectional_attention')
    refuses({ model_type = 'olmo2', clip_qkv = 8 }, 'unsupported', 'clip_qkv')
    for _, key in ipairs { 'embedding_multiplier', 'residual_multiplier', 'attention_multiplier',
      'logits_scaling' } do
      refuses({ model_type = 'granite', [key] = 0 }, nil, key)
      refuses({ model_type = 'granite', [key] = '1' }, nil, key)
    end
    refuses(gemma2 { attn_logit_softcapping = 0 }, nil, 'attn_logit_softcapping')
    refuses(gemma2 { query_pre_attn_scalar = -1 }, nil, 'query_pre_attn_scalar')
    refuses(gemma2 { hidden_activation = 'gelu' }, 'unsupported', 'hidden_activation') -- erf, not tanh
    refuses(gemma2 { hidden_act = 'silu' }, 'unsupported', 'hidden_act', 'other keys')
    refuses({ model_type = 'gemma', hidden_act = 'gelu', hidden_activation = 'silu' }, 'unsupported',
      'hidden_activation', 'other keys')
    refuses(gemma2 { sliding_window = 7, sliding_window_size = 8 }, 'unsupported', 'sliding_window_size')
    refuses(gemma2 { sliding_window = json.null }, nil, 'sliding_window')
  end)

  it('with rope scaling that is not built is refused by name', function()
    for _, kind in ipairs { 'yarn', 'dynamic', 'longrope', 'su', 'mrope', 'proportional' } do
      refuses({ rope_scaling = { type = kind, factor = 2 } }, 'unsupported', kind)
      refuses({ rope_parameters = { rope_type = kind, factor = 2 } }, 'unsupported', kind)
    end
    for _, kind in ipairs { 'longrope', 'su', 'linear', 'llama3' } do
      refuses({ model_type = 'phi3', rope_scaling = { type = kind, factor = 2 } }, 'unsupported', kind)
    end
    refuses({ rope_parameters = { full_attention = { rope_theta = 1e4 } } }, 'unsupported',
      'full_attention')
    refuses({ rope_scaling = { rope_type = 'linear', factor = 2, attention_factor = 2 } },
      'unsupported', 'attention_factor')
    refuses({ rope_scaling = { rope_type = 'linear' } }, nil, 'factor')
    refuses({ rope_scaling = { rope_type = 'llama3', factor = 2, low_freq_factor = 4,
      high_freq_factor = 4 } }, nil, 'high_freq_factor')
    refuses({ rope_scaling = { rope_type = 'linear', factor = 0.5 } }, nil, 'factor')
    refuses({ rope_scaling = 3 }, nil, 'rope_scaling')
  end)

  it('may give rope in the old spelling, the new one, or both alike', function()
    accepts { rope_theta = 1e6, rope_scaling = json.null }
    accepts { rope_theta = 1e6, rope_parameters = { rope_theta = 1e6, rope_type = 'default' } }
    accepts { rope_scaling = { type = 'linear', rope_type = 'linear', factor = 2 },
      rope_parameters = { rope_type = 'linear', factor = 2.0 } }
    refuses({ rope_theta = 1e5, rope_parameters = { rope_theta = 1e6 } }, nil, 'rope_theta', 'twice')
    refuses({ rope_scaling = { type = 'linear', rope_type = 'llama3' } }, nil, 'rope_type', 'twice')
    refuses({ rope_scaling = { type = 'linear', factor = 2 },
      rope_parameters = { rope_type = 'linear', factor = 4 } }, nil, 'factor', 'twice')
  end)

  it('with a value of the wrong type is refused', function()
    for key, value in pairs { vocab_size = '5', hidden_size = 4.5, num_hidden_layers = json.null,
      num_attention_heads = {}, num_key_value_heads = 1.5, head_dim = 'two', rms_norm_eps = '1e-6',
      tie_word_embeddings = 1, rope_theta = '1e4', hidden_act = 42, architectures = 'Llama',
      layer_types = 'full_attention', torch_dtype = 32, model_type = 3, attention_bias = 'no' } do
      refuses({ [key] = value }, nil, "'" .. key .. "'")
    end
    refuses({ model_type = absent }, nil, 'model_type')
  end)

  it('may hold numbers of any size where nobody reads them', function()
    local function opens(key, number)
      local text = json.encode(folders.tiny()):gsub('^{', '{"' .. key .. '":' .. number .. ',')
      return folders.open(folders.folder(text, folders.tiny_tensors(), place))
    end
    for _, number in ipairs { '1000000000000000019884624838656', '9223372036854775808', '1e999',
      '-99999999999999999999', '[1e400]' } do
      local model = assert(opens('model_max_length', number))
      assert(folders.save(model, place .. '-saved')) -- and what is written is read again
      assert(folders.open(place .. '-saved'))
      for _, key in ipairs { 'intermediate_sizes', 'hidden_sizes' } do -- of keys that are not known
        local none, message = opens(key, number)
        assert.is_nil(none)
        assert(message:find(key, 1, true) and message:find('not known', 1, true), message)
      end
    end
    local config = folders.tiny { rope_theta = absent }
    local text = json.encode(config):gsub('^{', '{"rope_theta":1e999,')
    local none, message = folders.open(folders.folder(text, folders.tiny_tensors(), place))
    assert.is_nil(none)
    assert(message:find("'rope_theta' is 1e+308", 1, true), message)
    text = json.encode(folders.tiny { vocab_size = absent }):gsub('^{',
      '{"vocab_size":1000000000000000019884624838656,')
    none, message = folders.open(folders.folder(text, folders.tiny_tensors(), place))
    assert.is_nil(none)
    assert(message:find("'vocab_size' is 1e30", 1, true) or message:find("'vocab_size' is 1e+30", 1, true),
      message)
  end)

  it('may name dtypes as old folders do', function()
    accepts { torch_dtype = 'auto' }
    for _, name in ipairs { 'float32', 'bfloat16', 'float16' } do
      accepts { torch_dtype = 'torch.' .. name }
    end
    refuses({ torch_dtype = 'torch.float64' }, 'unsupported', 'torch_dtype')
    for _, key in ipairs { 'dtype', 'torch_dtype' } do
      local low = assert(folders.create(folders.tiny { torch_dtype = absent, [key] = 'torch.bfloat16' }))
      assert.are.equal('bf16', folders.info(low).dtype)
      assert.are.equal('bfloat16', folders.config(low)[key])
      -- auto: as the weights are stored
      assert(folders.save(low, place .. '-auto'))
      local path = folders.folder(folders.tiny { torch_dtype = absent, [key] = 'auto' },
        tools.read(place .. '-auto/model.safetensors'), place)
      local back = assert(folders.open(path))
      assert.are.equal('bf16', folders.info(back).dtype)
      assert.are.equal('bfloat16', folders.config(back)[key])
    end
  end)

  it('with a value out of range is refused', function()
    for key, value in pairs { vocab_size = -5, hidden_size = 0, num_hidden_layers = 5000,
      num_attention_heads = 0, num_key_value_heads = 2 ^ 40, head_dim = -2, intermediate_size = 2 ^ 31,
      rms_norm_eps = 1e39, rope_theta = 1e39, max_position_embeddings = 0, initializer_range = -1 } do
      refuses({ [key] = value }, nil, "'" .. key .. "'")
    end
    refuses({ rms_norm_eps = 0 }, nil, 'rms_norm_eps')
    refuses({ num_attention_heads = 3, num_key_value_heads = 2, head_dim = 2 }, nil, 'no multiple')
    refuses({ num_attention_heads = 3, num_key_value_heads = 1 }, nil, 'head_dim')
    refuses({ head_dim = 3 }, nil, 'odd')
    refuses({ head_dim = 258 }, 'unsupported', 'heads of 258', 'at most 256') -- attention takes no more
    refuses({ hidden_size = 576, num_attention_heads = 2, num_key_value_heads = 2 }, 'unsupported',
      'heads of 288', 'at most 256')
    refuses({ hidden_size = 2 ^ 17, num_attention_heads = 1, num_key_value_heads = 1 }, nil,
      'makes no head_dim in 1..65536')
    for part, rotated in pairs { [0.75] = 3, [0.25] = 1 } do -- of head_dim 4: pairs cannot be made of it
      refuses({ model_type = 'phi3', architectures = absent, head_dim = 4, partial_rotary_factor = part }, nil,
        ('rotates %d dimensions'):format(rotated))
    end
  end)

  it('with layer_types that do not fit is refused', function()
    accepts { layer_types = json.array { 'full_attention' } }
    refuses({ layer_types = json.array { 'full_attention', 'full_attention' } }, nil, 'layer_types')
    refuses({ layer_types = json.array { 3 } }, nil, 'layer_types')
    refuses({ layer_types = json.array { 'sliding_attention' } }, nil, 'no window')
    refuses({ model_type = 'mistral', sliding_window = 7,
      layer_types = json.array { 'full_attention' } }, 'unsupported', 'mistral')
    refuses({ model_type = 'mistral', sliding_window = 0 }, nil, 'sliding_window')
  end)

  it('that is no JSON object is refused with its place', function()
    for _, text in ipairs { '[1, 2]', '3', '"x"', 'null' } do
      local m, message = folders.open(folders.folder(text, folders.tiny_tensors(), place))
      assert.is_nil(m)
      assert(message:find('not a JSON object', 1, true), message)
    end
    local _, message = folders.open(folders.folder('{"a": 1,\n x}', folders.tiny_tensors(), place))
    assert(message:find('config.json: line 2, column', 1, true), message)
    _, message = folders.open(folders.folder('{"a": 1, "a": 2}', folders.tiny_tensors(), place))
    assert(message:find('duplicate', 1, true), message)
  end)

  local mlxd, why = tools.shared 'models/mlxd-configs'
  if not mlxd then pending('of other projects are refused or read, never a crash', why) else
    it('of other projects are refused or read, never a crash', function()
      local list = io.popen('ls ' .. tools.quote(mlxd))
      local read = { model_config = true, model_config_eos_array = true, model_config_gen_bad = true,
        model_config_llama3 = true, model_config_mistral = true, model_config_qwen3 = true,
        model_config_rope_type_alias = true, model_config_too_many_layers = true,
        model_config_window_null = true }
      local count = 0
      for name in list:lines() do
        if tools.exists(mlxd .. '/' .. name .. '/config.json') then
          local m, message = folders.open(mlxd .. '/' .. name)
          assert.is_nil(m)
          -- none of them has weights: those whose config is read stop there
          local good = message:find('neither model.safetensors', 1, true) ~= nil
          assert.are.equal(read[name] or false, good, name .. ': ' .. message)
          assert(good or message:find('config.json: ', 1, true), message)
          count = count + 1
        end
      end
      list:close()
      assert(count > 40)
    end)
  end

  -- What transformers 5.24 writes for a default configuration of each family.
  for family, more in pairs {
    llama = { attention_bias = false, mlp_bias = false, head_dim = 2, pretraining_tp = 1 },
    mistral = { head_dim = 2, sliding_window = 4096 },
    qwen2 = { use_sliding_window = false, sliding_window = json.null, max_window_layers = 28,
      layer_types = json.array { 'full_attention' } },
    qwen3 = { use_sliding_window = false, sliding_window = json.null, max_window_layers = 28,
      layer_types = json.array { 'full_attention' }, attention_bias = false, head_dim = 2 },
    phi3 = { embd_pdrop = 0.0, resid_pdrop = 0.0, sliding_window = json.null,
      original_max_position_embeddings = 4096,
      rope_parameters = { rope_theta = 1e4, rope_type = 'default', partial_rotary_factor = 1.0 } },
    gemma = { attention_bias = false, head_dim = 2, hidden_act = 'gelu_pytorch_tanh',
      use_bidirectional_attention = json.null },
    gemma2 = { attention_bias = false, head_dim = 2, hidden_act = 'gelu_pytorch_tanh', sliding_window = 4096,
      hidden_activation = 'gelu_pytorch_tanh', query_pre_attn_scalar = 256,
      attn_logit_softcapping = 50.0, final_logit_softcapping = 30.0,
      layer_types = json.array { 'sliding_attention' }, use_bidirectional_attention = json.null },
    olmo2 = { attention_bias = false },
    granite = { attention_bias = false, mlp_bias = false, embedding_multiplier = 1.0,
      logits_scaling = 1.0, residual_multiplier = 1.0, attention_multiplier = 1.0 },
  } do
    it('as transformers writes it is read: ' .. family, function()
      local c = folders.tiny { model_type = family, attention_dropout = 0.0, hidden_act = 'silu',
        bos_token_id = 1, eos_token_id = json.null, pad_token_id = json.null,
        initializer_range = 0.02, use_cache = true, dtype = 'float32', torch_dtype = absent,
        rope_parameters = { rope_theta = 1e4, rope_type = 'default' } }
      for k, v in pairs(more) do c[k] = v end
      local m, message = folders.create(c)
      assert(m, message)
      assert.are.equal(family, folders.info(m).family)
    end)
  end

  -- Model types, names of checkpoints and the keys that they have beside the usual ones. There are no
  -- weights: what is read stops there.
  for name, keys in pairs {
    ['Llama-3.2-1B'] = { rope_theta = 500000.0, head_dim = 64, rope_scaling = { factor = 32.0,
      high_freq_factor = 4.0, low_freq_factor = 1.0, original_max_position_embeddings = 8192,
      rope_type = 'llama3' }, tie_word_embeddings = true, mlp_bias = false, attention_bias = false,
      pretraining_tp = 1, eos_token_id = json.array { 128001, 128008, 128009 } },
    ['SmolLM2-135M'] = { is_llama_config = true, rope_interleaved = false, rope_scaling = json.null,
      pretraining_tp = 1, ['transformers.js_config'] = { kv_cache_dtype = { q4f16 = 'float16' } } },
    ['Mistral-7B-v0.3'] = { model_type = 'mistral', sliding_window = json.null, rope_theta = 1e6,
      attention_dropout = 0.0, architectures = json.array { 'MistralForCausalLM' } },
    ['Qwen2.5-0.5B'] = { model_type = 'qwen2', use_mrope = false, use_sliding_window = false,
      sliding_window = 32768, max_window_layers = 24, rope_theta = 1e6, tie_word_embeddings = true },
    ['Qwen3-0.6B'] = { model_type = 'qwen3', attention_bias = false, head_dim = 128,
      max_window_layers = 28, rope_scaling = json.null, sliding_window = json.null,
      use_sliding_window = false },
    ['Phi-3-mini-4k-instruct'] = { model_type = 'phi3', attention_bias = false, embd_pdrop = 0.0,
      resid_pdrop = 0.0, original_max_position_embeddings = 4096, sliding_window = 2047,
      rope_scaling = json.null, auto_map = { AutoConfig = 'configuration_phi3.Phi3Config' } },
    ['gemma-2b'] = { model_type = 'gemma', hidden_act = 'gelu', hidden_activation = json.null, head_dim = 256,
      attention_bias = false, rope_scaling = json.null, rope_theta = 1e4 },
    ['gemma-2-2b'] = { model_type = 'gemma2', hidden_act = 'gelu_pytorch_tanh',
      hidden_activation = 'gelu_pytorch_tanh', head_dim = 256, attention_bias = false,
      attn_logit_softcapping = 50.0, final_logit_softcapping = 30.0, query_pre_attn_scalar = 256,
      cache_implementation = 'hybrid', sliding_window = 4096, sliding_window_size = 4096 },
    ['OLMo-2-0425-1B'] = { model_type = 'olmo2', attention_bias = false, rope_scaling = json.null,
      rope_theta = 500000 },
    ['granite-3.1-2b'] = { model_type = 'granite', attention_bias = false, attention_multiplier = 0.015625,
      embedding_multiplier = 12.0, logits_scaling = 8.0, residual_multiplier = 0.22, mlp_bias = false,
      rope_theta = 5000000.0, rope_scaling = json.null, tie_word_embeddings = true },
  } do
    it('as checkpoints have it is read: ' .. name, function()
      local path = folders.folder(folders.tiny(keys), nil, tools.folder())
      local _, message = folders.open(path)
      assert(message:find('neither model.safetensors', 1, true), message)
    end)
  end

  it('and an index that are mutated never crash and leave nothing behind', function()
    assert(fuzz.config(3000, 11) > 1500)
    assert(fuzz.index(1000, 12) > 800)
  end)
end)
