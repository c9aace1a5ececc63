--- Mutated model folders: whatever a config.json, a safetensors header or an index says, opening it
--- must end in a model or an error, and leave nothing behind. The specs run a few thousand rounds
--- with a fixed seed; for longer, best with the sanitizers (CONTRIBUTING has the environment):
---
---     luajit tests/fuzz/models.lua SECONDS [SEED]
local C = require 'moonstill.C'
local json = require 'moonstill.base.json'
local folders = require 'tests.support.folders'
local tools = require 'tests.support.tools'

local M = {}

local BYTES = '\0\255"{}[]:,-0195eE.\\uSTnf \127'

-- Replaces a byte, inserts one, or cuts some out; `pick` holds four integers from `i` on.
local function mutate(text, pick, i)
  local at = 1 + pick[i] % #text
  local k = 1 + pick[i + 1] % #BYTES
  local how = pick[i + 2] % 3
  local cut = how == 2 and 1 + pick[i + 3] % 40 or how == 1 and 0 or 1
  return text:sub(1, at - 1) .. (how == 2 and '' or BYTES:sub(k, k)) .. text:sub(at + cut)
end

-- Writes mutants of `texts` to `path` and opens the folder each time; returns how many were
-- refused.
local function run(place, path, texts, rounds, seed)
  local pick = tools.integers(rounds * 4, seed, 2 ^ 24)
  local refused = 0
  collectgarbage() -- models of before
  local live = C.ms_test_live()
  for i = 0, rounds - 1 do
    local text = texts[1 + i % #texts]
    folders.replace(path, mutate(text[1], pick, 4 * i) .. (text[2] or ''))
    local model = folders.open(place)
    if model then folders.free(model) else refused = refused + 1 end
  end
  assert(C.ms_test_live() == live, ('seed %d: %d objects alive, %d before')
    :format(seed, tonumber(C.ms_test_live()), tonumber(live)))
  return refused
end

--- The header of a file of weights, its length included.
function M.safetensors(rounds, seed)
  local place = folders.folder(folders.tiny(), folders.tiny_tensors())
  local file = tools.read(place .. '/model.safetensors')
  local _, start = folders.header(file)
  return run(place, place .. '/model.safetensors', { { file:sub(1, start - 1), file:sub(start) } },
    rounds, seed)
end

--- config.json of several families. The weights stay: a config that makes a larger model is refused
--- before memory is taken.
function M.config(rounds, seed)
  local texts = {}
  for i, changes in ipairs {
    { rope_theta = 1e4, head_dim = 2, hidden_act = 'silu' },
    { model_type = 'qwen2', use_sliding_window = true, sliding_window = 3, max_window_layers = 0,
      layer_types = json.array { 'sliding_attention' } },
    { rope_parameters = { rope_type = 'llama3', factor = 8, low_freq_factor = 1,
      high_freq_factor = 4, original_max_position_embeddings = 8 } },
    { model_type = 'phi3', partial_rotary_factor = 0.5 },
  } do
    texts[i] = { json.encode(folders.tiny(changes)) }
  end
  local place = folders.folder('', folders.tiny_tensors())
  return run(place, place .. '/config.json', texts, rounds, seed)
end

--- The index of two shards.
function M.index(rounds, seed)
  local place = folders.folder(folders.tiny())
  local list, first, rest, map = folders.tiny_tensors(), {}, {}, {}
  for i, t in ipairs(list) do
    local file = i < 4 and 'a.safetensors' or 'b.safetensors'
    map[t[1]] = file
    table.insert(i < 4 and first or rest, t)
  end
  tools.write(place .. '/a.safetensors', folders.safetensors(first))
  tools.write(place .. '/b.safetensors', folders.safetensors(rest))
  local text = json.encode { weight_map = map }
  return run(place, place .. '/model.safetensors.index.json', { { text } }, rounds, seed)
end

if arg and arg[0] and arg[0]:find 'fuzz/models%.lua$' then
  local stop, seed = os.time() + tonumber(arg[1] or 60), tonumber(arg[2] or 1)
  local rounds, refused = 0, 0
  while os.time() < stop do
    for _, name in ipairs { 'safetensors', 'config', 'index' } do
      refused = refused + M[name](1000, seed)
      rounds = rounds + 1000
    end
    tools.remove_folders()
    seed = seed + 1
  end
  print(('%d rounds, %d refused, seeds up to %d'):format(rounds, refused, seed - 1))
end

return M
