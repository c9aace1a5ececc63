--- A small byte-level BPE tokenizer: learnt from a few texts, written as Hugging Face files.
---
--- For toy models and tests. Text is cut as GPT-2 cuts it, every byte has a token, so nothing is
--- unknown. Learning is deterministic: the most frequent pair is merged first, ties by spelling.

local fail = require 'moonstill.base.fail'
local json = require 'moonstill.base.json'
local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local ranks = require 'moonstill.base.ranks'
local sorted = require 'moonstill.base.sorted'

local M = {}

--- The special tokens, in order, after the learnt ones.
M.special = { '<|endoftext|>', '<|im_start|>', '<|im_end|>' }
local EOS, PAD = '<|im_end|>', '<|endoftext|>'

M.template = table.concat {
  "{% for message in messages %}",
  "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}",
  "{% endfor %}",
  "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
}

local function utf8(code)
  if code < 128 then return string.char(code) end
  return string.char(192 + math.floor(code / 64), 128 + code % 64)
end

-- The character that stands for each byte: itself where it can be seen, otherwise one from 256 on.
-- `alphabet` lists them in the order of their ids: first those that stand for themselves.
local stands_for, alphabet = {}, {}
local function visible(b) return (b >= 33 and b <= 126) or (b >= 161 and b <= 172) or b >= 174 end
for b = 0, 255 do
  if visible(b) then
    stands_for[b] = utf8(b)
    alphabet[#alphabet + 1] = stands_for[b]
  end
end
local free = 256
for b = 0, 255 do
  if not visible(b) then
    stands_for[b] = utf8(free)
    alphabet[#alphabet + 1] = stands_for[b]
    free = free + 1
  end
end

-- GPT-2's cut for ASCII text without contractions: letters, digits or signs, with one space before;
-- other space by itself.
local classes = { '^ ?%a+', '^ ?%d+', '^ ?[^%s%a%d]+', '^%s' }

local function words_of(text, count)
  local at = 1
  while at <= #text do
    for _, class in ipairs(classes) do
      local first, last = text:find(class, at)
      if first then
        local word = text:sub(first, last)
        count[word] = (count[word] or 0) + 1
        at = last + 1
        break
      end
    end
  end
end

-- Words as lists of symbols.
local function sorted_words(count)
  local words = {}
  for word, n in sorted.pairs(count) do
    local symbols = {}
    for i = 1, #word do symbols[i] = stands_for[word:byte(i)] end
    words[#words + 1] = { count = n, symbols = symbols }
  end
  return words
end

local function best_pair(words)
  local pairs_seen, count, best, top = {}, {}, nil, 0
  for _, word in ipairs(words) do
    local s = word.symbols
    for i = 1, #s - 1 do
      local pair = s[i] .. ' ' .. s[i + 1]
      if not count[pair] then pairs_seen[#pairs_seen + 1] = pair end
      count[pair] = (count[pair] or 0) + word.count
    end
  end
  for _, pair in ipairs(pairs_seen) do
    local n = count[pair]
    if n > top or (n == top and pair < best) then best, top = pair, n end
  end
  return best
end

local function merge(words, left, right)
  for _, word in ipairs(words) do
    local s, made = word.symbols, {}
    local i = 1
    while i <= #s do
      if s[i] == left and s[i + 1] == right then
        made[#made + 1] = left .. right
        i = i + 2
      else
        made[#made + 1] = s[i]
        i = i + 1
      end
    end
    word.symbols = made
  end
end

--- Learns merges until the vocabulary, special tokens included, has `size` entries or every word
--- is one token.
--- @param texts string[] ASCII
--- @param size integer at least 256 + 3
--- @return table vocabulary `tokens` in the order of their ids (without the special ones), `merges`
function M.learn(texts, size)
  check.integer('bpe', 'size', size, 0, check.INT32)
  if size < 256 + #M.special then
    fail('bpe: a vocabulary of %d cannot hold 256 bytes and %d special tokens', size, #M.special)
  end
  local count = {}
  for i, text in ipairs(check.table('bpe', 'texts', texts)) do
    check.text('bpe', ('text %d'):format(i), text)
    if text:find '[\128-\255]' then fail('bpe: only ASCII can be learnt from') end
    words_of(text, count)
  end
  local words = sorted_words(count)
  local tokens, merges = {}, {}
  for i, token in ipairs(alphabet) do tokens[i] = token end
  while #tokens + #M.special < size do
    local pair = best_pair(words)
    if not pair then break end
    local left, right = pair:match '^(.-) (.*)$'
    merge(words, left, right)
    merges[#merges + 1] = pair
    tokens[#tokens + 1] = left .. right
  end
  return { tokens = tokens, merges = merges }
end

local function byte_level(more)
  local t = { type = 'ByteLevel', add_prefix_space = false, trim_offsets = true, use_regex = true }
  for key, value in sorted.pairs(more or {}) do t[key] = value end
  return t
end

local function tokenizer_json(vocabulary)
  local vocab, added = {}, json.array()
  for i, token in ipairs(vocabulary.tokens) do vocab[token] = i - 1 end
  for i, token in ipairs(M.special) do
    added[i] = { id = #vocabulary.tokens + i - 1, content = token, special = true, lstrip = false,
      rstrip = false, normalized = false, single_word = false }
  end
  return {
    version = '1.0', truncation = json.null, padding = json.null, added_tokens = added,
    normalizer = json.null, post_processor = json.null,
    pre_tokenizer = byte_level(), decoder = byte_level(),
    model = {
      type = 'BPE', dropout = json.null, unk_token = json.null, fuse_unk = false,
      continuing_subword_prefix = json.null, end_of_word_suffix = json.null,
      byte_fallback = false, ignore_merges = false,
      vocab = vocab, merges = json.array(vocabulary.merges),
    },
  }
end

local function settings(context)
  return {
    tokenizer_class = 'PreTrainedTokenizerFast', model_max_length = context,
    eos_token = EOS, pad_token = PAD, clean_up_tokenization_spaces = false,
    chat_template = M.template,
  }
end

--- What config.json and generation_config.json say of the special tokens.
--- @param size integer of the vocabulary, special tokens included
--- @return { eos_token_id: integer, pad_token_id: integer }
function M.roles(size)
  check.integer('bpe', 'size', size, #M.special, check.INT32)
  local roles = {}
  for i, token in ipairs(M.special) do
    local id = size - #M.special + i - 1
    if token == EOS then roles.eos_token_id = id end
    if token == PAD then roles.pad_token_id = id end
  end
  return roles
end

local function check_vocabulary(vocabulary)
  local v = check.table('bpe', 'vocabulary', vocabulary)
  check.table('bpe', 'vocabulary.tokens', v.tokens)
  check.table('bpe', 'vocabulary.merges', v.merges)
  return v
end

--- Writes tokenizer.json, tokenizer_config.json (ChatML template; a turn ends with <|im_end|>) and
--- generation_config.json, which says that an answer ends there.
--- @param folder string made when missing
--- @param vocabulary table from `learn`
--- @param context integer the longest text of the model that will use it, in tokens
function M.write(folder, vocabulary, context)
  check_vocabulary(vocabulary)
  check.integer('bpe', 'context', context, 1, check.INT32)
  check(C.ms_dir_make(check.text('bpe', 'folder', folder)))
  local function put(name, value)
    local text = json.encode(value, { indent = 1, order = { 'version', 'id', 'type' } }) .. '\n'
    ranks.write_file(folder .. '/' .. name, text)
  end
  put('tokenizer.json', tokenizer_json(vocabulary))
  put('tokenizer_config.json', settings(context))
  put('generation_config.json', M.roles(M.size(vocabulary)))
end

--- How many ids a vocabulary has, special ones included: a model's `vocab_size`.
--- @param vocabulary table from `learn`
--- @return integer
function M.size(vocabulary) return #check_vocabulary(vocabulary).tokens + #M.special end

return M
