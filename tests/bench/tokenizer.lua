--- How fast texts become ids: MB/s of one core (processor time, so that other work on the machine
--- does not count), for the tokenizers and texts beside the repository.
---
---   MS_LIB=build/libmoonstill.so LUA_PATH='lua/?.lua;lua/?/init.lua;;' \
---     luajit tests/bench/tokenizer.lua
---
--- PYTHON names an interpreter that has the `tokenizers` package: it encodes the same lines in turn
--- with us, and the ratio is the median of the pairs. Ids must agree in number, nothing more.
---
--- Then the same lines with offsets, and as blocks of 1,024 with a mark each, on one thread and on all:
--- these take turns and are by the clock, the best of the rounds, so the machine should be idle.
local C = require 'moonstill.C'
local ms = require 'moonstill'

local DATA = '../shared/data/'
local ROUNDS = 5

local function read(path)
  local file = io.open(path, 'rb')
  if not file then return nil end
  local text = file:read '*a'
  file:close()
  return text
end

local function lines_of(text)
  local lines = {}
  for line in text:gmatch '[^\n]+' do lines[#lines + 1] = line end
  return lines
end

-- The peer reads the lines from a file, and answers each line of its input with seconds and ids.
local PEER = [[
import sys, time, tokenizers
t = tokenizers.Tokenizer.from_file(sys.argv[1])
lines = open(sys.argv[2], encoding="utf-8").read().split("\n")
lines = [l for l in lines if l]
start = time.process_time()
n = sum(len(t.encode(l, add_special_tokens=False).ids) for l in lines)
print(time.process_time() - start, n, tokenizers.__version__)
]]

local function peer(tokenizer, path)
  local python = os.getenv 'PYTHON'
  if not python then return nil end
  local script = os.tmpname()
  local file = assert(io.open(script, 'w'))
  file:write(PEER)
  file:close()
  local pipe = io.popen(('TOKENIZERS_PARALLELISM=false %s %s %s %s 2>/dev/null')
    :format(python, script, tokenizer, path))
  local answer = pipe:read '*a'
  pipe:close()
  os.remove(script)
  local seconds, n, version = answer:match '^(%S+) (%S+) (%S+)'
  return tonumber(seconds), tonumber(n), version
end

local function ours(tok, lines, options)
  local start, n = os.clock(), 0
  for i = 1, #lines do
    local _, k = tok:encode(lines[i], options)
    n = n + k
  end
  return os.clock() - start, n
end

local function median(t)
  table.sort(t)
  return t[math.ceil(#t / 2)]
end

-- Seconds by the clock for blocks of all lines.
local function blocks(tok, lines, threads)
  local start = C.ms_clock()
  C.ms_threads_set(threads)
  for i = 1, #lines, 1024 do
    local texts = {}
    for k = i, math.min(#lines, i + 1023) do
      texts[#texts + 1] = { text = lines[k], marks = { math.floor(#lines[k] / 2), #lines[k], 1 } }
    end
    ms.tokenizer.block(tok, texts):free()
  end
  C.ms_threads_set(0)
  return C.ms_clock() - start
end

local function measure_more(tok, lines, bytes)
  local best = { math.huge, math.huge, math.huge, math.huge }
  for _ = 1, 3 * ROUNDS do
    for i, seconds in ipairs { (ours(tok, lines)), (ours(tok, lines, { offsets = true })), blocks(tok, lines, 1),
      blocks(tok, lines, 0) } do best[i] = math.min(best[i], seconds) end
  end
  for i = 1, 4 do best[i] = bytes / best[i] / 1e6 end
  print(('    %.1f MB/s plain, %.1f with offsets; blocks %.1f on one thread, %.1f on %d'):format(best[1], best[2],
    best[3], best[4], C.ms_threads_get()))
end

local function measure(name, path)
  local file = DATA .. 'tokenizers/' .. name .. '/tokenizer.json'
  local text = read(path)
  if not text or not read(file) then return print(name, path, 'not here') end
  local lines = lines_of(text)
  local start = os.clock()
  local tok = ms.tokenizer.open(file)
  local opened = os.clock() - start
  local speed, ratio, version = {}, {}, nil
  for i = 1, ROUNDS do
    local seconds, n = ours(tok, lines)
    speed[i] = #text / seconds / 1e6
    local theirs, m, v = peer(file, path)
    if theirs then
      assert(m == n, ('%s: %d ids, the peer has %d'):format(name, n, m))
      ratio[i], version = theirs / seconds, v
    end
  end
  start = os.clock()
  tok:encode(text)
  local whole = #text / (os.clock() - start) / 1e6
  local form = '%-30s %-14s opened in %3.0f ms  %6.1f MB/s by lines  %6.1f MB/s as one text%s'
  print(form:format(name,
    path:match '([^/]+)/[^/]*$', opened * 1e3, median(speed), whole,
    version and ('  %.1f times tokenizers %s'):format(median(ratio), version) or ''))
  measure_more(tok, lines, #text)
  tok:free()
end

for _, name in ipairs { 'qwen3', 'gpt2', 'phi-3-mini', 'mistral-v1-minueza-32m-chat' } do
  measure(name, DATA .. 'datasets/tinyshakespeare/input.txt')
  measure(name, DATA .. 'datasets/gsm8k/train.jsonl')
end
