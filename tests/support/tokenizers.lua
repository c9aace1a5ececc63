--- Small tokenizers for the specs: tables that become tokenizer.json files.
local json = require 'moonstill.base.json'

local M = {}

local null = json.null

-- Bytes as characters: printable Latin-1 as it is, the others from U+0100 on.
local function utf8_char(c)
  if c < 0x80 then return string.char(c) end
  return string.char(0xC0 + math.floor(c / 64), 0x80 + c % 64)
end
local byte_char, others = {}, 0
for b = 0, 255 do
  local plain = (b >= 0x21 and b <= 0x7E) or (b >= 0xA1 and b ~= 0xAD)
  byte_char[b] = utf8_char(plain and b or 0x100 + others)
  if not plain then others = others + 1 end
end

--- An added token, special unless `flags` say otherwise.
function M.added(id, content, flags)
  local t = { id = id, content = content, special = true, normalized = false, single_word = false,
    lstrip = false, rstrip = false }
  for key, value in pairs(flags or {}) do t[key] = value end
  return t
end

--- A byte-level tokenizer: ids are the bytes, then one for each of `merges`; `added` tokens bring
--- their own, and `vocab` tokens that no merge makes. The other keys take the place of a part of the
--- file.
function M.byte_level(change)
  local vocab, spec = {}, change or {}
  for b = 0, 255 do vocab[byte_char[b]] = b end
  local next_id = 256
  for _, pair in ipairs(spec.merges or {}) do
    vocab[pair[1] .. pair[2]] = next_id
    next_id = next_id + 1
  end
  for token, id in pairs(spec.vocab or {}) do vocab[token] = id end
  return {
    version = '1.0', truncation = null, padding = null,
    added_tokens = json.array(spec.added), normalizer = spec.normalizer or null,
    pre_tokenizer = spec.pre_tokenizer or { type = 'ByteLevel', add_prefix_space = false,
      trim_offsets = true, use_regex = spec.use_regex == true },
    post_processor = spec.post_processor or null,
    decoder = spec.decoder or { type = 'ByteLevel', add_prefix_space = false, trim_offsets = true,
      use_regex = true },
    model = { type = 'BPE', dropout = null, unk_token = null, continuing_subword_prefix = null,
      end_of_word_suffix = null, fuse_unk = false, byte_fallback = false,
      ignore_merges = spec.ignore_merges == true, vocab = vocab, merges = json.array(spec.merges) },
  }
end

--- A post-processor that puts tokens around the text: `template({ '<s>', 'A' }, { ['<s>'] = 300 })`.
function M.template(pieces, ids)
  local single, tokens = json.array(), {}
  for i, piece in ipairs(pieces) do
    single[i] = piece == 'A' and { Sequence = { id = 'A', type_id = 0 } }
      or { SpecialToken = { id = piece, type_id = 0 } }
  end
  for token, id in pairs(ids) do
    tokens[token] = { id = token, ids = type(id) == 'table' and id or { id }, tokens = { token } }
  end
  return { type = 'TemplateProcessing', single = single, pair = json.array(), special_tokens = tokens }
end

return M
