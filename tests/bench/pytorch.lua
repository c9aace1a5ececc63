--- moonstill's side of tests/bench/pytorch.py: a line on stdin is the number of a batch.
---   luajit tests/bench/pytorch.lua FOLDER BATCH THREADS
local ms = require 'moonstill'
local C = require 'moonstill.C'
local json = require 'moonstill.base.json'

local folder, size, threads = arg[1], tonumber(arg[2]), tonumber(arg[3])
local KD = { target = 'hidden', temperature = 2 }
local LR, CLIP = 1e-5, 1

local function status(key)
  for line in io.lines '/proc/self/status' do
    local kb = line:match('^' .. key .. ':%s+(%d+)')
    if kb then return tonumber(kb) * 1024 end
  end
end

local function answer(value)
  io.write(json.encode(value), '\n')
  io.flush()
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

local bare = status 'VmRSS'
assert(C.ms_threads_set(threads) == 0)
local student = ms.model.open(folder .. '/student', { train = true, dtype = 'f32' })
local teacher = ms.model.open(folder .. '/teacher', { dtype = 'f32' })
local optimizer = ms.optimizer.new(student, { clip = CLIP })
local samples = read_samples()

local function step(number)
  local segments = {}
  for i = 1, size do segments[i] = samples[number * size + i] end
  local batch = ms.batch(segments)
  local target = teacher:targets(batch, KD)
  local result = student:learn(batch, { ms.ce(0.5), ms.kd(target, 0.5, KD) })
  local loss = 0.5 * result[1].value / result[1].weight + 0.5 * result[2].value / result[2].weight
  local tokens = batch:tokens()
  target:free()
  batch:free()
  optimizer:step(LR)
  return loss, tokens
end

answer { bare = bare }
for line in io.lines() do
  local start = C.ms_clock()
  local loss, tokens = step(tonumber(line))
  answer { seconds = C.ms_clock() - start, loss = loss, tokens = tokens, peak = status 'VmHWM' }
end
