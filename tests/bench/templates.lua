--- How fast conversations are rendered: turns a second of one core (processor time), for templates
--- beside the repository and short conversations.
---
---   MS_LIB=build/libmoonstill.so LUA_PATH='lua/?.lua;lua/?/init.lua;?.lua;;' \
---     PYTHON=python3 luajit tests/bench/templates.lua
---
--- PYTHON names an interpreter that has transformers: it renders the same conversations in turn with
--- us through its own Jinja2, and the ratio is the median of the pairs. The texts must be equal.
local jinja = require 'moonstill.jinja.jinja'
local json = require 'moonstill.base.json'
local templates = require 'tests.support.templates'
local tools = require 'tests.support.tools'

local ROUNDS, COUNT = 7, 2000

-- The peer answers with seconds and the texts' bytes, and leaves the texts in a file.
local PEER = [[
import json, sys, time
from transformers.utils import chat_template_utils as hf
source = open(sys.argv[1], encoding="utf-8").read()
chats = [json.loads(line) for line in open(sys.argv[2], encoding="utf-8")]
template = hf._compile_jinja_template(source)
template.render(**chats[0])
for _ in range(int(sys.argv[4])):
    sys.stdin.readline()
    start = time.process_time()
    texts = [template.render(**chat) for chat in chats]
    print(time.process_time() - start, flush=True)
open(sys.argv[3], "w", encoding="utf-8", newline="").write("\0".join(texts))
]]

local WORDS = { 'the', 'sun', 'rises', 'over', 'Paris', 'and', 'people', 'ask', 'why', 'it', 'does', 'so', 'every',
  'day' }

local function words(random, n)
  local list = {}
  for i = 1, n do list[i] = WORDS[random(#WORDS)] end
  return table.concat(list, ' ')
end

-- A system message, and one to three short turns of each side.
local function chats()
  local random, list, turns = tools.random(1), {}, 0
  for i = 1, COUNT do
    local messages = json.array { { role = 'system', content = words(random, 8) } }
    for _ = 1, random(3) do
      messages[#messages + 1] = { role = 'user', content = words(random, 4 + random(16)) }
      messages[#messages + 1] = { role = 'assistant', content = words(random, 4 + random(24)) }
    end
    list[i] = { messages = messages, tools = json.null, documents = json.null, add_generation_prompt = false,
      bos_token = '<s>', eos_token = '</s>' }
    turns = turns + #messages
  end
  return list, turns
end

local function ours(template, list)
  local start, texts = os.clock(), {}
  for i = 1, #list do texts[i] = template:render(list[i], { now = templates.now }) end
  return os.clock() - start, texts
end

-- The peer as a process that renders once for each line it is sent: a table of its times is read from
-- a file, since a pipe goes one way only.
local function peer(folder, source, list)
  local python = os.getenv 'PYTHON'
  if not python then return nil end
  tools.write(folder .. '/peer.py', PEER)
  tools.write(folder .. '/template.jinja', source)
  local lines = {}
  for i, chat in ipairs(list) do lines[i] = json.encode(chat) end
  tools.write(folder .. '/chats.jsonl', table.concat(lines, '\n'))
  local times = folder .. '/times'
  tools.write(times, '')
  local pipe = assert(io.popen(('cd %s && %s peer.py template.jinja chats.jsonl texts %d >times 2>errors')
    :format(tools.quote(folder), python, ROUNDS), 'w'))
  local self = {}
  function self.round(i)
    pipe:write '\n'
    pipe:flush()
    while true do -- the peer starts, or renders
      local k = 0
      for line in tools.read(times):gmatch '([^\n]+)\n' do
        k = k + 1
        if k == i then return tonumber(line) end
      end
      os.execute 'sleep 0.05'
    end
  end
  function self.texts()
    pipe:close()
    local texts = {}
    for text in (tools.read(folder .. '/texts') .. '\0'):gmatch '(.-)%z' do texts[#texts + 1] = text end
    return texts
  end
  return self
end

local function median(t)
  table.sort(t)
  return t[math.ceil(#t / 2)]
end

local function measure(name, path, list, turns)
  if not templates.folder(path) then return print(name, 'not here') end
  local source = tools.read(templates.folder(path))
  local template = jinja.compile(source, name)
  local other = peer(tools.folder(), source, list)
  ours(template, list) -- compiled code from here on
  local own, theirs, ratio, texts = {}, {}, {}, nil
  for i = 1, ROUNDS do
    own[i], texts = ours(template, list)
    if other then
      theirs[i] = other.round(i)
      ratio[i] = theirs[i] / own[i]
    end
  end
  if other then
    for i, text in ipairs(other.texts()) do assert(text == texts[i], name .. ': the texts differ') end
  end
  local function speed(seconds) return turns / median(seconds) end
  print(('%-12s %8.0f turns/s, %6.0f conversations/s%s'):format(name, speed(own), #list / median(own),
    other and ('; Jinja2 %8.0f turns/s; %.2f times as fast'):format(speed(theirs), median(ratio)) or ''))
end

local list, turns = chats()
for _, each in ipairs { { 'Qwen2.5', 'trl/qwen2_5.jinja' }, { 'Qwen3', 'trl/qwen3.jinja' },
  { 'Llama 3.1', 'trl/llama3_1.jinja' }, { 'Llama 3', 'trl/llama3.jinja' } } do
  measure(each[1], each[2], list, turns)
end
