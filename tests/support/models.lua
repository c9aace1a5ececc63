--- What the specs of models share: losses through the core's own structs, gradients by name, and
--- tiny models made on the spot.
local ffi = require 'ffi'
local ms = require 'moonstill'
local C = require 'moonstill.C'
local check = require 'moonstill.base.check'

local M = {}

-- These models are too small for threads to help, and threads that wait in turn slow the machine
-- down; what is tested with several sets their number itself.
C.ms_threads_set(1)

M.families = { 'llama', 'llama3-rope', 'llama-bias', 'smollm2', 'mistral', 'qwen2', 'qwen2-window',
               'qwen3', 'phi3', 'gemma', 'gemma2', 'olmo2', 'granite' }

local NAN = 0 / 0

--- `ms_term[n]`: each entry a table { kd = target, weight=, on=, temperature=, norm= }; without `kd`
--- it is cross-entropy.
function M.terms(list)
  local t = ffi.new('ms_term[?]', #list)
  for i, e in ipairs(list) do
    t[i - 1] = { kind = e.kd and C.MS_TERM_KD or C.MS_TERM_CE, objective = 0,
                 on = e.on or C.MS_ON_RESPONSE, weight = e.weight or 1, parameter = NAN,
                 temperature = e.temperature or 1, t_scale = NAN, norm = e.norm or 0,
                 target = e.kd or nil }
  end
  return t, #list
end

--- `learn` of the core, or `evaluate`, which takes no group.
function M.call(what, model, batch, n, t, result)
  if what == 'evaluate' then return C.ms_model_evaluate(model.p, batch.p, n, t, result) end
  return C.ms_model_learn(model.p, batch.p, n, t, nil, result)
end

--- Runs `learn` (or `evaluate`) with such a list; returns the values of the terms over their own
--- weights, and the result structs.
function M.run(what, model, batch, list)
  local t, n = M.terms(list)
  local result = ffi.new('ms_term_result[?]', n)
  check(M.call(what, model, batch, n, t, result))
  local values = {}
  for i = 1, n do values[i] = result[i - 1].value / math.max(result[i - 1].weight, 1e-300) end
  return values, result
end

--- A target of kind `logits`, and a function that frees it.
function M.logits_target(logits, rows, vocab, temperature)
  local o = ffi.new('ms_target_options', { kind = C.MS_TARGET_LOGITS, on = C.MS_ON_RESPONSE,
    vocab = vocab, temperature = temperature or 1, teacher_temperature = 1 })
  local out = ffi.new 'ms_target *[1]'
  check(C.ms_target_logits(o, rows, logits, out))
  local p = out[0]
  return p, function() C.ms_target_free(p) end
end

local function copy_of(tensor)
  local n = tensor:count()
  local values = tensor:read(ffi.new('float[?]', n))
  tensor:free()
  return values
end

--- All gradients: name -> { values = float[n], n = n }; frozen ones are left out.
function M.gradients(model)
  local all = {}
  for name, weight, gradient in model:parameters() do
    weight:free()
    if gradient then
      local n = gradient:count()
      all[name] = { values = copy_of(gradient), n = n }
    end
  end
  return all
end

--- |a - b| / |b| of two arrays of n numbers.
function M.distance(a, b, n)
  local diff, norm = 0, 0
  for i = 0, n - 1 do
    diff = diff + (a[i] - b[i]) ^ 2
    norm = norm + b[i] ^ 2
  end
  return math.sqrt(diff) / math.max(math.sqrt(norm), 1e-30)
end

--- Whether two arrays of n floats have the same bits.
function M.same_bits(a, b, n)
  local x, y = ffi.cast('const int32_t *', a), ffi.cast('const int32_t *', b)
  for i = 0, n - 1 do
    if x[i] ~= y[i] then return false, i end
  end
  return true
end

--- Asserts that two sets of gradients have the same names and bits.
function M.assert_same_gradients(a, b)
  for name, g in pairs(a) do
    assert(b[name], name .. ' has no gradient')
    local same, at = M.same_bits(g.values, b[name].values, g.n)
    if not same then
      error(('%s[%d]: %.9g and %.9g'):format(name, at, g.values[at], b[name].values[at]), 2)
    end
  end
  for name in pairs(b) do assert(a[name], name .. ' has a gradient on one side only') end
end

--- A batch of the reference's tokens with its weights on responses.
function M.reference_batch(ref)
  local n, segments = ref.tokens, #ref.segment_start - 1
  return ms.batch.new(ffi.new('int32_t[?]', n, ref.token), n,
    ffi.new('int32_t[?]', segments + 1, ref.segment_start), segments,
    ffi.new('float[?]', n, ref.weight))
end

--- The config of a tiny model; `changes` go over it.
function M.config(changes)
  local c = { model_type = 'llama', vocab_size = 37,
              hidden_size = 24, intermediate_size = 40, num_hidden_layers = 3,
              num_attention_heads = 4, num_key_value_heads = 2, max_position_embeddings = 64,
              rms_norm_eps = 1e-5, rope_theta = 10000, hidden_act = 'silu',
              tie_word_embeddings = false, initializer_range = 0.3 }
  for key, value in pairs(changes or {}) do c[key] = value end
  return c
end

--- A model that says what a table says: after token i the likeliest is follows[i], or 0. One layer
--- adds nothing to the embedding, which is a row of the identity.
--- @param follows table<integer, integer>
--- @param vocab integer even
--- @param changes? table over its config
function M.chain(follows, vocab, changes)
  local config = M.config { vocab_size = vocab, hidden_size = vocab, intermediate_size = 2,
    num_hidden_layers = 1, num_attention_heads = 1, num_key_value_heads = 1, head_dim = 2,
    max_position_embeddings = 256 }
  for key, value in pairs(changes or {}) do config[key] = value end
  local model = ms.model.create(config, 1, { dtype = 'f32' })
  for name, weight in model:parameters() do
    local values = ffi.new('float[?]', weight:count())
    if name == 'model.embed_tokens.weight' then
      for i = 0, vocab - 1 do values[i * vocab + i] = 1 end
    elseif name == 'lm_head.weight' then
      for i = 0, vocab - 1 do values[(follows[i] or 0) * vocab + i] = 1 end
    end
    if not name:find 'norm' then weight:write(values) end
    weight:free()
  end
  return model
end

--- `n` token ids below `vocab`, as a list, the same for the same seed.
function M.ids(n, seed, vocab)
  local tools = require 'tests.support.tools'
  local v, list = tools.integers(n, seed, vocab), {}
  for i = 1, n do list[i] = v[i - 1] end
  return list
end

--- A segment of `n` random ids with a weight of 1 on every predicting position.
function M.segment(n, seed, vocab)
  local response = {}
  for i = 1, n do response[i] = 1 end
  return { tokens = M.ids(n, seed, vocab), response = response }
end

return M
