--- Mutations of files of data: whatever comes out must be refused with a message that names the file,
--- or be read, without harm and in the same way however the file is compressed.
---
---   MS_LIB=build/libmoonstill.so LUA_PATH='lua/?.lua;lua/?/init.lua;?.lua;;' \
---     luajit tests/fuzz/rows.lua SEED ROUNDS
---
--- A round takes JSON or a table in one of its layouts, changes bytes of it or of what it is compressed
--- to, and reads it: plain, compressed, and in rows one by one (`skip`).
local C = require 'moonstill.C'
local archives = require 'tests.support.archives'
local fail = require 'moonstill.base.fail'
local fields = require 'moonstill.data.fields'
local json = require 'moonstill.base.json'
local readers = require 'moonstill.data.readers'
local rows = require 'moonstill.data.rows'
local tools = require 'tests.support.tools'

local BASES = {
  { 'jsonl', '{"prompt":"a","completion":"b","id":1}\n{"prompt":"c","completion":"d \\" \\u00e9"}\n\n{"prompt":"e",'
    .. '"completion":"f"}' },
  { 'jsonl', '{"conversations":[{"from":"human","value":"a"},{"from":"function_call","value":"{\\"name\\":\\"f\\",'
    .. '\\"arguments\\":{\\"x\\":1}}"},{"from":"observation","value":"2"},{"from":"gpt","value":"b","loss":false}],'
    .. '"tools":"[{\\"name\\":\\"f\\"}]","system":"s"}\n' },
  { 'json', '[\n  {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]},\n'
    .. '    {"role": "assistant", "content": "b", "weight": 0.5, "tool_calls": [{"function": {"name": "f",\n'
    .. '     "arguments": "{\\"a\\": 1}"}}]}]},\n  {"messages": []}\n]\n' },
  { 'json', '{"version": "1", "data": [{"instruction": "a", "input": "b", "output": "c", "history": [["d", "e"]]}]}' },
  { 'json', '{\n "input_ids": [1, 2, 3],\n "labels": [-100, 2, 3],\n "attention_mask": [1, 1, 1]\n}\n' },
  { 'csv', 'instruction,input,output\na,"b, ""c""\nd",e\r\n,,\nf,g\n' },
  { 'tsv', 'query\tresponse\thistory\na\tb\t"[[""c"",""d""]]"\n' },
  { 'json', '[{"prompt": [{"role": "user", "content": "a"}], "chosen": "b", "rejected": "c"}]' },
}

local SIGNS = { '"', '{', '}', '[', ']', ',', ':', '\\', '\n', '\r', '\t', '\0', '\255', '\195', 'null', '""', '-100',
  '1e999', '{"a":', '\239\187\191' }

local function mutate(text, random)
  for _ = 1, random(4) do
    local at, kind = random(#text + 1), random(4)
    local sign = random(3) > 1 and SIGNS[random(#SIGNS)] or string.char(random(256) - 1)
    if kind == 1 then text = text:sub(1, at - 1) .. sign .. text:sub(at + 1)
    elseif kind == 2 then text = text:sub(1, at - 1) .. text:sub(at + random(8))
    elseif kind == 3 then text = text:sub(1, at - 1) .. sign .. text:sub(at)
    else text = text:sub(1, at - 1) end
  end
  return text
end

local OPTIONS = { {}, { answer_key = 'chosen' }, { messages_key = 'conversations' }, { text_key = 'output' } }

local function reads() return true end

-- What becomes of a row, as a text.
local function use(row, random)
  if type(row) == 'string' then return row end
  local text = json.encode(row)
  local o = OPTIONS[random(#OPTIONS)]
  local ok, sample = fail.pcall(function()
    local form = rows.asked(o) or rows.detect(row, o)
    rows.parse(row, form)
    fields.new():look(row, form.kind, rows.used(form), rows.lists(row, form), reads)
    rows.weight(row, 'weight')
    return rows.sample(row, form)
  end)
  assert(ok or not tostring(sample):find '%.lua:%d', sample)
  return text
end

-- The rows of a file as one text, or nil and the error.
local function read(path, content, skip, random)
  local file = assert(io.open(path, 'wb'))
  file:write(content)
  file:close()
  local parts = {}
  local ok, why = pcall(readers.read, path, function(_, where, value, decode)
    assert(where:sub(1, #path) == path, where)
    local fine, row = fail.pcall(decode, value, where)
    if not fine and not skip then error(where .. ': ' .. row, 0) end
    if fine then parts[#parts + 1] = use(row, random) end
  end)
  os.remove(path)
  if ok then return table.concat(parts, '\n') end
  assert(tostring(why):find(path, 1, true) and not tostring(why):find '%.lua:%d', why)
  return nil, tostring(why)
end

--- Runs `rounds` mutations, with scratch files in `folder`.
--- @return integer accepted
--- @return integer refused
local function fuzz(seed, rounds, folder)
  local random = tools.random(seed)
  local accepted, refused = 0, 0
  collectgarbage()
  local live = tonumber(C.ms_test_live())
  for _ = 1, rounds do
    local base = BASES[random(#BASES)]
    local path, text = folder .. '/fuzz.' .. base[1], base[2]
    local way = archives.ways[random(2)]
    if random(3) == 1 then -- of what it is compressed to
      local got = read(path .. '.' .. way[1], mutate(way[2](text), random), false, random)
      if got then accepted = accepted + 1 else refused = refused + 1 end
    else
      text = mutate(text, random)
      local plain, why = read(path, text, false, random)
      local other, same = read(path .. '.' .. way[1], way[2](text), false, random)
      -- a plain file is looked at for what it really is, such as UTF-16
      assert(plain == other or not plain and (why:find ': is ' or same), text)
      local some = read(path, text, true, random)
      assert(not plain or some == plain, text)
      if plain then accepted = accepted + 1 else refused = refused + 1 end
    end
    collectgarbage()
    assert(tonumber(C.ms_test_live()) == live, 'memory was left behind by ' .. text)
  end
  return accepted, refused
end

if arg and arg[0] and arg[0]:find 'fuzz/rows.lua$' then
  print(fuzz(tonumber(arg[1]) or 1, tonumber(arg[2]) or 1000, os.getenv 'TMPDIR' or '/dev/shm'))
end
return fuzz
