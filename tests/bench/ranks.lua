--- moonstill's side of tests/bench/ranks.py: a line on stdin is the number of a batch.
---   moonstill [-n 2] tests/bench/ranks.lua FOLDER BATCH one|dp|shard
local ms = require 'moonstill'
local C = require 'moonstill.C'
local json = require 'moonstill.base.json'
local step_of = require 'moonstill.loss.step_of'

local folder, size, how = arg[1], tonumber(arg[2]), arg[3]
local KD = { target = 'hidden', temperature = 2 }
local LR, CLIP = 1e-5, 1

local grid = ms.grid()
local student = ms.model.open(folder .. '/student', { train = true, dtype = 'f32' })
local teacher = ms.model.open(folder .. '/teacher', { dtype = 'f32' })
local optimizer = ms.optimizer.new(student, { clip = CLIP,
  shard = how == 'shard' and 'optimizer' or 'none' })

local function peak()
  for line in io.lines '/proc/self/status' do
    local kb = line:match '^VmHWM:%s+(%d+)'
    if kb then return tonumber(kb) * 1024 end
  end
end

-- Lines of `prompt tokens, then all ids`, as segments.
local function read_samples()
  local list = {}
  for line in io.lines(folder .. '/samples.txt') do
    local tokens, response, prompt = {}, {}, nil
    for word in line:gmatch '%d+' do
      if prompt then tokens[#tokens + 1] = tonumber(word) else prompt = tonumber(word) end
    end
    for t = 1, #tokens do response[t] = t >= prompt and t < #tokens and 1 or 0 end
    list[#list + 1] = { tokens = tokens, response = response }
  end
  return list
end

local samples = read_samples()

-- This rank's part of batch `number`, and what the losses of all of it are divided by.
local function batch_of(number)
  local segments, positions, tokens = {}, 0, 0
  for i = 1, size do
    local sample = samples[number * size + i]
    if (i - 1) % grid.dp.size == grid.dp.rank then segments[#segments + 1] = sample end
    tokens = tokens + #sample.tokens
    for _, weight in ipairs(sample.response) do positions = positions + weight end
  end
  return ms.batch(segments), positions, tokens
end

-- What a batch asks of its step: it is the last one, and losses are divided by what all ranks have.
local whole = { positions = 0 }
function whole:norm() return self.positions end
function whole.record() return grid.dp.group end
function whole.learnt() end

local function step(number)
  local batch, positions, tokens = batch_of(number)
  whole.positions = positions
  step_of.set(batch, whole)
  local target = teacher:targets(batch, KD)
  local result = student:learn(batch, { ms.ce(0.5), ms.kd(target, 0.5, KD) })
  local loss = grid.dp:sum { 0.5 * (result[1].value + result[2].value) / positions }[1]
  target:free()
  batch:free()
  optimizer:step(LR)
  return loss, tokens
end

print(json.encode { bare = 0 })
io.flush()
while true do
  local line = grid.world:first(grid.world.rank == 0 and io.read() or nil)
  if not line then break end
  local start = C.ms_clock()
  local loss, tokens = step(tonumber(line))
  print(json.encode { seconds = C.ms_clock() - start, loss = loss, tokens = tokens, peak = peak() })
  io.flush()
end
