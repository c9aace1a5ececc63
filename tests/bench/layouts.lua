--- How far layouts over ranks are from one process: the largest deviation of the first step's loss, of its
--- gradients, and of the weights after five steps, over all objectives and kinds of targets.
---   moonstill tests/bench/layouts.lua [pattern of layouts]
local ms = require 'moonstill'
local json = require 'moonstill.base.json'
local launched = require 'tests.support.launched'
local placed = require 'tests.programs.placed_recipe'
local tools = require 'tests.support.tools'
local ffi = require 'ffi'

if launched.missing then return print(launched.missing) end

local LAYOUTS = {
  { 2, 'dp 2' }, { 3, 'dp 3' }, { 4, 'dp 4' }, { 4, 'dp 4, shard=optimizer', 'optim.shard=optimizer' },
  { 2, 'tp 2', 'grid.tp=2' }, { 3, 'tp 3', 'grid.tp=3' }, { 4, 'tp 4', 'grid.tp=4' },
  { 4, 'dp 2 x tp 2', 'grid.tp=2' }, { 4, 'dp 2 x tp 2, shard=optimizer', 'grid.tp=2', 'optim.shard=optimizer' },
  { 6, 'dp 3 x tp 2, shard=optimizer', 'grid.tp=2', 'optim.shard=optimizer' }, { 8, 'dp 2 x tp 4', 'grid.tp=4' },
  { 8, 'dp 4 x tp 2, shard=optimizer', 'grid.tp=2', 'optim.shard=optimizer' },
  { 2, 'teacher 0 | student 1', 'teacher_grid.ranks=0', 'grid.ranks=1' },
  { 3, 'teacher 0-1 | student 2', 'teacher_grid.ranks=0-1', 'grid.ranks=2' },
  { 3, 'teacher 0 | student dp 2 on 1-2', 'teacher_grid.ranks=0', 'grid.ranks=1-2' },
  { 3, 'teacher 0-1 | student dp 2 on 1-2', 'teacher_grid.ranks=0-1', 'grid.ranks=1-2' },
  { 4, 'teacher tp 2 | student tp 2', 'teacher_grid.ranks=0-1', 'teacher_grid.tp=2', 'grid.ranks=2-3', 'grid.tp=2' },
  { 5, 'teacher dp 2 | student tp 3', 'teacher_grid.ranks=0-1', 'grid.ranks=2-4', 'grid.tp=3' },
  { 6, 'teacher tp 2 | student dp 2 x tp 2', 'teacher_grid.ranks=0-1', 'teacher_grid.tp=2', 'grid.ranks=2-5',
    'grid.tp=2' },
  { 8, 'teacher dp 2 x tp 2 | student tp 4, shard=optimizer', 'teacher_grid.ranks=0-3', 'teacher_grid.tp=2',
    'grid.ranks=4-7', 'grid.tp=4', 'optim.shard=optimizer' },
}

local models = tools.folder()
for name, of in pairs { student = { 1, 40, true, 1 }, teacher = { 2, 44, false, 2 } } do
  local config = placed.config(of[1], of[2], of[3])
  config.hidden_size, config.intermediate_size, config.num_attention_heads, config.num_key_value_heads = 48, 40, 6, 2
  local model = ms.model.create(config, of[4], { dtype = 'f32' })
  model:save(models .. '/' .. name)
  model:free()
end

-- The small run's folder after so many steps.
local function run(layout, steps, kind, objective)
  local out = tools.folder()
  local words = { 'models=' .. models, 'output=' .. out .. '/out', 'checkpoint.every=1',
    'max_steps=' .. steps, 'kd.target=' .. kind, 'kd.objective=' .. objective }
  for i = 3, #layout do words[#words + 1] = layout[i] end
  local status, _, err = launched.run('-n', layout[1], 'tests/programs/placed_recipe.lua', unpack(words))
  if status ~= 0 then error(('%s, %s %s: %s'):format(layout[2], kind, objective, err), 0) end
  return out
end

local function loss_of(out)
  for _, entry in json.lines(out .. '/out/metrics.jsonl') do
    if entry.loss then return entry.loss end
  end
end

-- The tensors of a file of f32, by name, as lists of numbers.
local function tensors_of(path)
  local text, by = tools.read(path), {}
  local length = tonumber(ffi.cast('const uint64_t *', text)[0])
  for name, entry in pairs(json.decode(text:sub(9, 8 + length))) do
    if name ~= '__metadata__' then
      local from, list = entry.data_offsets[1], {}
      local x = ffi.cast('const float *', ffi.cast('const char *', text) + 8 + length + from)
      for i = 1, (entry.data_offsets[2] - from) / 4 do list[i] = x[i - 1] end
      by[name] = list
    end
  end
  return by
end

-- The first moments after one step are its gradients, but for a factor, and whole in any layout.
local function gradients_of(out)
  local by = tensors_of(out .. '/out/checkpoints/step-00000001/optimizer.safetensors')
  for name in pairs(by) do
    if not name:find '^first%.' then by[name] = nil end
  end
  return by
end

local function weights_of(out) return tensors_of(out .. '/out/student/model.safetensors') end

-- The largest deviation, in parts of each tensor's largest element.
local function apart(want, got)
  local worst = 0
  for name, list in pairs(want) do
    local most, off = 0, 0
    assert(got[name] and #got[name] == #list, name)
    for i, x in ipairs(list) do
      most, off = math.max(most, math.abs(x)), math.max(off, math.abs(x - got[name][i]))
    end
    if off > 0 then worst = math.max(worst, off / most) end
  end
  return worst
end

local function cases()
  local list = {}
  for _, kind in ipairs { 'topk', 'hidden', 'logits' } do
    for _, objective in ipairs(ms.kd.objectives) do list[#list + 1] = { kind, objective } end
  end
  return list
end

local alone = {}
local function one_process(kind, objective)
  local key = kind .. ' ' .. objective
  if not alone[key] then
    local first, last = run({ 1, 'one' }, 1, kind, objective), run({ 1, 'one' }, 5, kind, objective)
    alone[key] = { loss = loss_of(first), gradients = gradients_of(first), weights = weights_of(last) }
  end
  return alone[key]
end

print(('%-56s %8s %9s %10s %10s'):format('layout', 'cases', 'loss', 'gradients', 'weights'))
for _, layout in ipairs(LAYOUTS) do
  if layout[2]:find(arg[1] or '') then
    local n, loss, gradients, weights, refused = 0, 0, 0, 0, {}
    for _, case in ipairs(cases()) do
      local want = one_process(unpack(case))
      local ok, first = pcall(run, layout, 1, unpack(case))
      if ok then
        local last = run(layout, 5, unpack(case))
        n = n + 1
        loss = math.max(loss, math.abs(loss_of(first) / want.loss - 1))
        gradients = math.max(gradients, apart(want.gradients, gradients_of(first)))
        weights = math.max(weights, apart(want.weights, weights_of(last)))
        tools.run('rm -rf ' .. first .. ' ' .. last)
      else
        refused[#refused + 1] = first:match '[^\n]*'
      end
    end
    print(('%-56s %8d %9.1e %10.1e %10.1e'):format(layout[2], n, loss, gradients, weights))
    for _, why in ipairs(refused) do print('  not: ' .. why) end
    io.stdout:flush()
  end
end
