--- Mutations of a tokenizer.json: whatever comes out must be refused with a message that names the
--- file, or open and then encode and decode without harm.
---
---   MS_LIB=build/libmoonstill.so LUA_PATH='lua/?.lua;lua/?/init.lua;?.lua;;' \
---     luajit tests/fuzz/tokenizer.lua SEED ROUNDS
---
--- Half of the rounds change bytes of the text, half change the tree: a node is dropped, doubled or
--- replaced by a value of another kind or by another node.
local C = require 'moonstill.C'
local json = require 'moonstill.base.json'
local tokenizer = require 'moonstill.text.tokenizer'
local tools = require 'tests.support.tools'

-- A file with at least one of everything that the loader knows.
local function base()
  local vocab = { ['<unk>'] = 0, ['▁'] = 1, a = 2, b = 3, ab = 4, ['▁a'] = 5, ['Ġ'] = 6, ['é'] = 7 }
  for i = 0, 255 do vocab[('<0x%02X>'):format(i)] = 8 + i end
  local function added(id, content, name)
    local t = { id = id, content = content, special = id % 2 == 0, normalized = false, lstrip = false,
      rstrip = false, single_word = false }
    if name then t[name] = true end
    return t
  end
  return {
    version = '1.0', truncation = json.null, padding = json.null,
    added_tokens = { added(0, '<unk>'), added(264, '<s>', 'lstrip'), added(265, 'cat', 'single_word'),
      added(266, '<n>', 'normalized'), added(267, '<r>', 'rstrip') },
    normalizer = { type = 'Sequence', normalizers = { { type = 'NFC' }, { type = 'Prepend', prepend = '▁' },
      { type = 'Replace', pattern = { String = ' ' }, content = '▁' },
      { type = 'Replace', pattern = { Regex = '\\s+' }, content = '▁' } } },
    pre_tokenizer = { type = 'Sequence', pretokenizers = {
      { type = 'Split', pattern = { Regex = "(?i:'s|'t)|[^\\r\\n\\p{L}]?\\p{L}+|\\s+(?!\\S)|\\s+" },
        behavior = 'Isolated', invert = false },
      { type = 'Split', pattern = { String = 'b' }, behavior = 'MergedWithNext', invert = true },
      { type = 'Digits', individual_digits = true }, { type = 'Punctuation', behavior = 'Contiguous' },
      { type = 'Metaspace', replacement = '▁', prepend_scheme = 'first', split = true },
      { type = 'ByteLevel', add_prefix_space = true, trim_offsets = true, use_regex = true } } },
    post_processor = { type = 'Sequence', processors = { { type = 'ByteLevel' }, { type = 'TemplateProcessing',
      single = { { SpecialToken = { id = '<s>', type_id = 0 } }, { Sequence = { id = 'A', type_id = 0 } } },
      pair = json.array(), special_tokens = { ['<s>'] = { id = '<s>', ids = { 264 }, tokens = { '<s>' } } } } } },
    decoder = { type = 'Sequence', decoders = { { type = 'Replace', pattern = { String = '▁' }, content = ' ' },
      { type = 'ByteFallback' }, { type = 'Fuse' }, { type = 'Strip', content = ' ', start = 1, stop = 0 },
      { type = 'ByteLevel' }, { type = 'Metaspace', replacement = '▁', prepend_scheme = 'always' } } },
    model = { type = 'BPE', dropout = json.null, unk_token = '<unk>', fuse_unk = true, byte_fallback = true,
      continuing_subword_prefix = json.null, end_of_word_suffix = json.null, ignore_merges = false,
      vocab = vocab, merges = { 'a b', json.array { '▁', 'a' } } },
  }
end

local SIGNS = { '"', '{', '}', '[', ']', ',', ':', '\\', '0', '-', '9', 'e', '\0', '\255', '\195', 'null',
  '(', '+' }
local function mutate_bytes(text, random)
  for _ = 1, random(4) do
    local at = random(#text)
    local kind = random(3)
    local sign = random(2) == 1 and SIGNS[random(#SIGNS)] or string.char(random(256) - 1)
    if kind == 1 then text = text:sub(1, at - 1) .. sign .. text:sub(at + 1)
    elseif kind == 2 then text = text:sub(1, at - 1) .. text:sub(at + random(8))
    else text = text:sub(1, at) .. sign .. text:sub(at + 1) end
  end
  return text
end

-- Every node as { owner, key, path }, in the order of the paths: the order of `pairs` differs from
-- process to process, and a seed must mean the same mutations in each.
local function nodes_of(t, path, list)
  for key, value in pairs(t) do
    local at = ('%s/%s'):format(path, type(key) == 'number' and ('%04d'):format(key) or key)
    list[#list + 1] = { t, key, at }
    if type(value) == 'table' and value ~= json.null and key ~= 'vocab' then nodes_of(value, at, list) end
  end
  return list
end

local STRANGE = { json.null, true, false, 0, -1, 1e300, 2 ^ 31, 0.5, '', 'a', '▁', '\0', '(?', '[', '\\p{L}+?',
  '(a*)*b', '<0x41>', 'Sequence', 'ByteLevel', 'Fuse', 'NFC', 'Removed', 'Contiguous', 'never', json.array(), {},
  json.array { 1, 2, 3 } }
local function mutate_tree(tree, random)
  local list = nodes_of(tree, '', {})
  table.sort(list, function(x, y) return x[3] < y[3] end)
  for _ = 1, random(2) do
    local node = list[random(#list)]
    local owner, key = node[1], node[2]
    local kind = random(3)
    if kind == 1 and type(key) == 'string' then owner[key] = nil
    elseif kind == 2 then
      local other = list[random(#list)]
      local value = other[1][other[2]]
      owner[key] = type(value) == 'table' and value ~= json.null and json.decode(json.encode(value)) or value
    else owner[key] = STRANGE[random(#STRANGE)] end
  end
  return json.encode(tree)
end

local TEXTS = { '', ' ', "a cat's <s> ab  12 é\r\n🦙 <n><r>  b", ('ab '):rep(60), ('b'):rep(100),
  'x' .. ('e\204\129'):rep(40) }

-- Pairs that ascend in a text, or with `wrong` perhaps not.
local function random_plain(text, random, wrong)
  local list, at = {}, 0
  for i = 1, 2 * random(4) do
    at = wrong and random(#text + 9) - 4 or math.min(#text, at + random(12) - 1)
    list[i] = at
  end
  return list
end

-- Ids are the same with offsets and without; these ascend and lie in the text.
local function use_offsets(tok, text, random)
  local plain, parse = random_plain(text, random), random(4) > 1
  local ids, n, offsets = tok:encode(text, { special = true, plain = plain, parse = parse, offsets = true })
  local again, m = tok:encode(text, { special = true, plain = plain, parse = parse })
  assert(n == m, 'offsets change ids')
  local from, to = 0, 0
  for i = 0, n - 1 do
    local a, b = offsets[2 * i], offsets[2 * i + 1]
    assert(ids[i] == again[i] and a >= from and b >= to and b >= a and b <= #text, 'offsets do not ascend')
    from, to = a, b
  end
  pcall(tok.encode, tok, text, { plain = random_plain(text, random, true), offsets = true })
end

-- A block has the ids of each text alone; with marks at random it is whole or an error.
local function use_block(tok, random)
  local texts = {}
  for i, text in ipairs(TEXTS) do
    texts[i] = { text = text, special = true, plain = random_plain(text, random), marks = {} }
    local pairs_of, marks = random_plain(text, random, random(9) == 1), texts[i].marks
    for k = 1, #pairs_of, 2 do
      marks[#marks + 1], marks[#marks + 2], marks[#marks + 3] = pairs_of[k], pairs_of[k + 1], random(4) - 1
    end
  end
  local ok, block = pcall(tokenizer.block, tok, texts)
  if not ok then return assert(tostring(block):find('text %d'), block) end
  for i, t in ipairs(texts) do
    local ids, n = tok:encode(t.text, { special = true, plain = t.plain })
    local at = tonumber(block.start[i - 1])
    assert(tonumber(block.start[i]) == at + n, 'a block has other ids')
    for k = 0, n - 1 do assert(block.ids[at + k] == ids[k] and block.level[at + k] < 4, 'a block has other ids') end
  end
  block:free()
end

local function use(tok, random)
  for _, text in ipairs(TEXTS) do
    local ids = tok:ids(text, { special = true, parse = random(2) == 1 })
    tok:decode(ids)
    use_offsets(tok, text, random)
  end
  use_block(tok, random)
  local ids = {}
  for i = 1, 30 do ids[i] = random(tok:size() + 2) - 1 end
  local detokenizer, parts = tok:detokenizer(), {}
  for i, id in ipairs(ids) do parts[i] = detokenizer:add(id) end
  parts[#parts + 1] = detokenizer:finish()
  assert(table.concat(parts) == tok:decode(ids), 'decoding one by one differs')
  detokenizer:free()
end

--- Runs `rounds` mutations, with a scratch file in `folder`.
--- @return integer accepted
--- @return integer refused
local function fuzz(seed, rounds, folder)
  local random = tools.random(seed)
  local path, accepted, refused = folder .. '/fuzz.json', 0, 0
  local text = json.encode(base())
  tokenizer.open(assert(folder) and (function()
    local file = assert(io.open(path, 'wb'))
    file:write(text)
    file:close()
    return path
  end)()):free() -- the file itself is good
  local live = tonumber(C.ms_test_live())
  for _ = 1, rounds do
    local mutated = random(2) == 1 and mutate_bytes(text, random) or mutate_tree(base(), random)
    local file = assert(io.open(path, 'wb'))
    file:write(mutated)
    file:close()
    local ok, tok = pcall(tokenizer.open, path)
    if ok then
      accepted = accepted + 1
      local fine, why = pcall(use, tok, random)
      tok:free()
      -- a file may ask for what cannot be done; that is said by the core, never by a failing assertion
      assert(fine or tostring(why):find 'tokenizer: ', why)
    else
      refused = refused + 1
      assert(tostring(tok):find('fuzz.json', 1, true), 'a message without the file: ' .. tostring(tok))
    end
    collectgarbage()
    assert(tonumber(C.ms_test_live()) == live, 'memory was left behind by ' .. mutated)
  end
  os.remove(path)
  return accepted, refused
end

if arg and arg[0] and arg[0]:find 'fuzz/tokenizer.lua$' then
  print(fuzz(tonumber(arg[1]) or 1, tonumber(arg[2]) or 1000, os.getenv 'TMPDIR' or '/tmp'))
end
return fuzz
