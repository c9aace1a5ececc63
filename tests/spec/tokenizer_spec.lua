local ffi = require 'ffi'
local ms = require 'moonstill'
local C = require 'moonstill.C'
local json = require 'moonstill.base.json'
local tools = require 'tests.support.tools'
local small = require 'tests.support.tokenizers'

local function same(got, want, what)
  if #got == #want then
    local at
    for i = 1, #want do at = at or got[i] ~= want[i] and i or nil end
    if not at then return end
  end
  error(('%s: got [%s], want [%s]'):format(what, table.concat(got, ' '), table.concat(want, ' ')), 2)
end

-- Everything a detokenizer gives, with each piece whole UTF-8 by itself: ms.tokenizer refuses other text.
local function stream(tok, ids, options)
  local detokenizer, parts = tok:detokenizer(options), {}
  for _, id in ipairs(ids) do parts[#parts + 1] = detokenizer:add(id) end
  parts[#parts + 1] = detokenizer:finish()
  for _, part in ipairs(parts) do tok:encode(part) end
  detokenizer:free()
  return table.concat(parts)
end

local opened = {}
local function open(path)
  opened[path] = opened[path] or ms.tokenizer.open(path)
  return opened[path]
end

local refused = tools.refused

-- A test on a tokenizer and a file of expectations beside the repository.
local function on(name, tokenizer, file, body)
  local path, why = tools.shared('tokenizers/' .. tokenizer)
  local vectors, why2 = tools.shared('tokenizers/' .. file)
  if not path or not vectors then return pending(name, why or why2) end
  it(name, function() body(open(path), vectors) end)
end

-- what the reference gave ------------------------------------------------------------------------

describe('tokenizer: every id of the golden file of', function()
  for _, name in ipairs { 'qwen3', 'gpt2', 'gpt-neox-20b', 'torchtune-assets', 'phi-3-mini',
    'mistral-v1-minueza-32m-chat', 'falcon' } do
    on(name, name, name .. '/hf_golden.json', function(tok, path)
      local cases = json.read(path).cases
      assert.is_true(#cases > 70)
      for _, case in ipairs(cases) do
        local plain = case.ids_no_special or case.ids
        same(tok:ids(case.text, { special = true }), case.ids, case.text)
        same(tok:ids(case.text), plain, case.text)
        local decoded = case.decoded == true and case.text or case.decoded
        assert.equal(decoded, tok:decode(plain))
        assert.equal(decoded, stream(tok, plain))
      end
    end)
  end
end)

-- Texts are separated by a line of their own; each line of the other file has the ids of a text.
local SEPARATOR = '\n__ggml_vocab_test__\n'
local function texts_of(path)
  local text, list, at = tools.read(path), {}, 1
  while at <= #text do
    local first, last = text:find(SEPARATOR, at, true)
    list[#list + 1] = text:sub(at, (first or #text + 1) - 1)
    at = (last or #text) + 1
  end
  return list
end

-- Which tokenizer.json each file is of: llama-spm has the base vocabulary of phi-3-mini, and the two
-- of Qwen differ from Qwen3 in added tokens only.
describe('tokenizer: the vectors of llama.cpp', function()
  for vectors, tokenizer in pairs { ['qwen2'] = 'qwen3', ['deepseek-r1-qwen'] = 'qwen3',
    ['gpt-2'] = 'gpt2', ['phi-3'] = 'phi-3-mini', ['llama-spm'] = 'phi-3-mini', falcon = 'falcon' } do
    local file = 'vectors/llama.cpp/ggml-vocab-' .. vectors .. '.gguf.'
    on(vectors, tokenizer, file .. 'inp', function(tok, path)
      local texts, i = texts_of(path), 0
      for line in tools.read((path:gsub('inp$', 'out'))):gmatch '([^\n]*)\n' do
        i = i + 1
        local want = {}
        for id in line:gmatch '%d+' do want[#want + 1] = tonumber(id) end
        same(tok:ids(texts[i]), want, texts[i])
      end
      assert.equal(46, i)
    end)
  end
end)

local function without_bos(ids, bos)
  if ids[1] ~= bos then return ids end
  local rest = {}
  for i = 2, #ids do rest[i - 1] = ids[i] end
  return rest
end

describe('tokenizer: the vectors of transformers.js', function()
  for _, case in ipairs { { 'qwen2', 'Xenova/Qwen1.5-0.5B-Chat', 'qwen3' },
    { 'gpt2', 'Xenova/gpt2', 'gpt2' }, { 'gpt2', 'openai-community/gpt2', 'gpt2' },
    { 'llama', 'Xenova/llama-tokenizer', 'phi-3-mini', 1 }, { 'falcon', 'tiiuae/falcon-7b', 'falcon' } } do
    local name, model, tokenizer, bos = unpack(case, 1, 4)
    on(model, tokenizer, 'vectors/transformers.js/' .. name .. '.json', function(tok, path)
      local seen = 0
      for _, v in pairs(json.read(path)[model]) do
        same(tok:ids(v.text), without_bos(v.ids, bos), v.text)
        seen = seen + 1
      end
      assert.is_true(seen > 20)
    end)
  end
end)

describe('tokenizer: the vectors of swift-transformers', function()
  for _, case in ipairs { { 'distilgpt2', 'gpt2' }, { 'tiiuae/falcon-7b', 'falcon' },
    { 'coreml-projects/Llama-2-7b-chat-coreml', 'phi-3-mini', 1 } } do
    local model, tokenizer, bos = unpack(case, 1, 3)
    on(model, tokenizer, 'vectors/swift-transformers/tokenizer_tests.json', function(tok, path)
      local cases = json.read(path)[model]
      assert.is_true(#cases > 15)
      for _, v in ipairs(cases) do
        same(tok:ids(v.input), without_bos(v.encoded.input_ids, bos), v.input)
      end
    end)
  end
end)

describe('tokenizer: the small files of neural-api', function()
  local folder, why = tools.shared 'tokenizers/tiny-neural-api'
  if not folder then return pending('all', why) end
  for _, kind in ipairs { 'byte_level', 'metaspace', 'split_qwen2', 'split_cl100k', 'split_o200k',
    'bytelevel_noregex', 'digits_bytelevel' } do
    it(kind, function()
      local set = json.read(folder .. '/hf_tokenizer_cases.json')[kind]
      local tok = open(folder .. '/' .. set.tokenizer)
      for _, case in ipairs(set.cases) do
        same(tok:ids(case.text, { special = true }), case.ids, case.text)
        assert.equal(case.decoded, tok:decode(case.ids, { skip_special = true }))
        assert.equal(case.decoded, stream(tok, case.ids, { skip_special = true }))
      end
    end)
  end
end)

describe('tokenizer: what is not built is named:', function()
  for file, pattern in pairs { ['t5-small/tokenizer.json'] = 'type "Unigram" is not supported',
    ['tiny-neural-api/tiny_unigram_tokenizer.json'] = 'type "Unigram" is not supported',
    ['tiny-neural-api/tiny_wordpiece_tokenizer.json'] = 'type "WordPiece" is not supported',
    ['tiny-neural-api/tiny_spm_bpe.model'] = 'tiny_spm_bpe.model: line 2' } do
    local path, why = tools.shared('tokenizers/' .. file)
    if not path then pending(file, why) else
      it(file, function() refused(pattern, ms.tokenizer.open, path) end)
    end
  end
end)

-- small tokenizers made here ---------------------------------------------------------------------

local null, added, byte_level, template = json.null, small.added, small.byte_level, small.template

local folder = tools.folder()
local function write(value)
  return tools.write(folder .. '/tokenizer.json', type(value) == 'string' and value or json.encode(value))
end
local function made(value) return ms.tokenizer.open(write(value)) end

local function bytes_of(text) return { text:byte(1, -1) } end

describe('tokenizer: merging', function()
  -- The definition: the adjacent pair of lowest rank is merged, the leftmost first, until none is.
  local function slow(word, rank, id)
    local parts = {}
    for c in word:gmatch '.' do parts[#parts + 1] = c end
    while true do
      local best, at = math.huge, nil
      for i = 1, #parts - 1 do
        local r = rank[parts[i] .. ' ' .. parts[i + 1]]
        if r and r < best then best, at = r, i end
      end
      if not at then break end
      parts[at] = parts[at] .. table.remove(parts, at + 1)
    end
    for i, part in ipairs(parts) do parts[i] = id[part] end
    return parts
  end

  -- Merges of a small alphabet, at random; every token can be made.
  local function random_merges(count, letters, random)
    local tokens, merges, known = {}, {}, {}
    for i = 1, letters do tokens[i] = string.char(96 + i) end
    while #merges < count do
      local a, b = tokens[random(#tokens)], tokens[random(#tokens)]
      if not known[a .. b] and #a + #b < 12 then
        known[a .. b] = true
        tokens[#tokens + 1] = a .. b
        merges[#merges + 1] = { a, b }
      end
    end
    return merges
  end

  -- Short words take the cache, words of more than 48 characters the heap, and words of more than 56
  -- bytes are cut where no merge reaches: with six letters and few merges there are such places.
  for _, case in ipairs { { 200, 3 }, { 60, 6 }, { 12, 6 } } do
    it(('%d merges of %d letters, as the definition says'):format(case[1], case[2]), function()
      local n = 0
      local values = tools.integers(400000, case[1], 2 ^ 24)
      local function random(below)
        n = n + 1
        return values[n] % below + 1
      end
      local merges = random_merges(case[1], case[2], random)
      local rank, id = {}, {}
      for b = 0, 127 do id[string.char(b)] = b end
      for i, pair in ipairs(merges) do
        rank[pair[1] .. ' ' .. pair[2]] = i
        id[pair[1] .. pair[2]] = 255 + i
      end
      local tok = made(byte_level { merges = merges })
      for length = 1, 240, 3 do
        local letters = {}
        for i = 1, length do letters[i] = string.char(96 + random(case[2])) end
        local word = table.concat(letters)
        local want = slow(word, rank, id)
        same(tok:ids(word), want, word)
        same(tok:ids(word), want, word .. ' from the cache')
      end
      tok:free()
    end)
  end

  it('tells words of one hash apart in the cache', function()
    local tok = made(byte_level())
    for _, word in ipairs { 'rwhbwa', 'qivyha' } do same(tok:ids(word), bytes_of(word), word) end
    tok:free()
  end)

  it('takes a word that is a token as it is when merges are ignored', function()
    local merges = { { 'a', 'b' }, { 'b', 'c' }, { 'ab', 'c' } } -- abc: 258
    local file = byte_level { merges = merges, ignore_merges = true }
    file.model.vocab.cab = 300 -- no merge makes it
    local tok = made(file)
    same(tok:ids 'cab', { 300 }, 'cab')
    same(tok:ids 'cabc', { 99, 258 }, 'cabc')
    tok:free()
    file.model.ignore_merges = false
    tok = made(file)
    same(tok:ids 'cab', { 99, 256 }, 'cab')
    tok:free()
  end)

  it('needs no quadratic time for a word of a megabyte', function()
    local merges, token = {}, 'a'
    for i = 1, 10 do
      merges[i] = { token, token }
      token = token .. token
    end
    local tok = made(byte_level { merges = merges })
    local start = os.clock()
    local _, n = tok:encode(('a'):rep(2 ^ 20)) -- every merge, all along
    assert.equal(2 ^ 10, n)
    _, n = tok:encode(('ab'):rep(2 ^ 19))
    assert.equal(2 ^ 20, n)
    tok:free()
    -- about 0.5 s; with a search of the whole word for each merge it would be hours
    assert.is_true(os.clock() - start < 20)
  end)

  it('needs no quadratic time for a megabyte of combining marks', function()
    local tok = made(byte_level { normalizer = { type = 'NFC' } })
    local start = os.clock()
    local _, n = tok:encode('x' .. ('\204\129\204\163'):rep(2 ^ 18)) -- U+0301 U+0323: to be swapped
    assert.equal(2 ^ 20 + 1, n)
    assert.is_true(os.clock() - start < 20)
    tok:free()
  end)
end)

describe('tokenizer: unknown characters', function()
  local function letters(change)
    local model = { type = 'BPE', vocab = { ['<unk>'] = 0, a = 1, b = 2, ab = 3 }, merges = { 'a b' },
      unk_token = '<unk>', fuse_unk = false, byte_fallback = false }
    for key, value in pairs(change) do model[key] = value end
    return made { model = model }
  end

  it('become the unknown token, one each or fused', function()
    local tok = letters {}
    same(tok:ids 'xyabx', { 0, 0, 3, 0 }, 'not fused')
    tok:free()
    tok = letters { fuse_unk = true }
    same(tok:ids 'xyabx', { 0, 3, 0 }, 'fused')
    tok:free()
    tok = letters { unk_token = null }
    same(tok:ids 'xyabx', { 3 }, 'without one they vanish')
    tok:free()
    tok = letters { unk_token = '<none>' }
    refused('U%+0078 is not in the vocabulary', tok.ids, tok, 'xab')
    tok:free()
  end)

  it('become bytes where all their bytes are tokens', function()
    local vocab = { ['<unk>'] = 0, a = 1, b = 2, ab = 3, ['<0xC3>'] = 4, ['<0xA9>'] = 5 }
    local tok = letters { vocab = vocab, byte_fallback = true }
    same(tok:ids 'éaè', { 4, 5, 1, 0 }, 'bytes of é')
    tok:free()
  end)
end)

describe('tokenizer: added tokens', function()
  local function with(list, change)
    change = change or {}
    change.added = list
    return made(byte_level(change))
  end
  local function spelled(tok, text, options)
    local parts = {}
    for i, id in ipairs(tok:ids(text, options)) do parts[i] = id < 256 and string.char(id) or '[' .. id .. ']' end
    return table.concat(parts)
  end

  it('are found leftmost and longest', function()
    local tok = with { added(300, '<a>'), added(301, '<a><b>'), added(302, '<b><c>') }
    assert.equal('x[301]<c>[300]', spelled(tok, 'x<a><b><c><a>'))
    tok:free()
  end)

  it('are text when special and not to be parsed', function()
    local tok = with { added(300, '<s>'), added(301, '<t>', { special = false }) }
    assert.equal('[300]x[301]', spelled(tok, '<s>x<t>'))
    assert.equal('<s>x[301]', spelled(tok, '<s>x<t>', { parse = false }))
    assert.is_true(tok:is_special(300))
    assert.is_false(tok:is_special(301))
    for id, added_there in pairs { [300] = true, [301] = true, [299] = false, [302] = false, [-1] = false } do
      assert.equal(added_there, tok:is_added(id))
    end
    tok:free()
  end)

  it('take the spaces beside them, once', function()
    local tok = with { added(300, '<l>', { lstrip = true }), added(301, '<r>', { rstrip = true }) }
    assert.equal('a[300] b', spelled(tok, 'a \t\n<l> b'))
    assert.equal('a [301]b', spelled(tok, 'a <r> \194\160\227\128\128b'))
    assert.equal('[301][300]', spelled(tok, '<r>  <l>'))
    tok:free()
  end)

  it('may have to stand alone', function()
    local tok = with { added(300, 'cat', { single_word = true }) }
    assert.equal('a [300].', spelled(tok, 'a cat.'))
    assert.equal('cats', spelled(tok, 'cats'))
    assert.equal('bobcat', spelled(tok, 'bobcat'))
    assert.equal('_cat', spelled(tok, '_cat'))
    assert.equal('[300]', spelled(tok, 'cat'))
    tok:free()
  end)

  it('are looked for in normalized text when they say so', function()
    local normalizer = { type = 'Replace', pattern = { String = ' ' }, content = '_' }
    local tok = with({ added(300, 'a b', { normalized = true }), added(301, 'a_c') },
      { normalizer = normalizer })
    assert.equal('[300]|[300]', spelled(tok, 'a b|a_b'))
    assert.equal('[301]|a_c', spelled(tok, 'a_c|a c'))
    tok:free()
  end)

  it('must agree with the vocabulary', function()
    refused('"<a>" has id 65, which another token has', with, { added(65, '<a>') })
    refused('"A" has id 300 here and 65 in the vocabulary', with, { added(300, 'A') })
    refused('"content" is empty', with, { added(300, '') })
  end)
end)

describe('tokenizer: what is put around a text', function()
  local tokens = { ['<s>'] = 300, ['</s>'] = { 301, 300 } }
  local list = { added(300, '<s>'), added(301, '</s>') }

  it('comes with special = true only', function()
    local tok = made(byte_level { added = list, post_processor = template({ '<s>', 'A', '</s>' }, tokens) })
    same(tok:ids('x', { special = true }), { 300, 120, 301, 300 }, 'special')
    same(tok:ids('', { special = true }), { 300, 301, 300 }, 'empty text')
    same(tok:ids 'x', { 120 }, 'plain')
    tok:free()
  end)

  it('is the whole of a sequence of processors', function()
    local tok = made(byte_level { added = list, post_processor = { type = 'Sequence', processors = {
      { type = 'ByteLevel', add_prefix_space = true, trim_offsets = false },
      template({ '<s>', 'A' }, tokens), template({ '</s>', 'A', '<s>' }, tokens) } } })
    same(tok:ids('x', { special = true }), { 301, 300, 300, 120, 300 }, 'nested')
    tok:free()
  end)

  it('must be there', function()
    refused('a special token without ids', made, byte_level { post_processor = template({ '<s>', 'A' }, {}) })
    refused('an id that no token has', made, byte_level { post_processor = template({ '<s>', 'A' }, tokens) })
    refused('has not one Sequence', made, byte_level { added = list, post_processor = template({ '<s>' }, tokens) })
    refused('post%-processor "BertProcessing" is not supported', made,
      byte_level { post_processor = { type = 'BertProcessing' } })
  end)
end)

describe('tokenizer: words', function()
  -- What is left when the matches are removed shows the pattern; ids are bytes.
  local function left(pattern, text)
    local tok = made(byte_level { pre_tokenizer = { type = 'Sequence', pretokenizers = {
      { type = 'Split', pattern = { Regex = pattern }, behavior = 'Removed', invert = false },
      { type = 'ByteLevel', add_prefix_space = false, trim_offsets = true, use_regex = false } } } })
    local rest = string.char(unpack(tok:ids(text)))
    tok:free()
    return rest
  end

  it('know spaces, letters and numbers as Oniguruma does', function()
    assert.equal('a\225\160\142b', left('\\s', 'a \225\160\142\194\133\227\128\128b')) -- U+180E is none
    assert.equal(' !', left('\\w', 'a\204\129 _1\194\178!')) -- marks, connectors, and ² are
    assert.equal('a1', left('[^\\p{L}\\p{N}]', 'a-1 '))
    -- a script alone: U+3001 is used with Han, but not of it
    assert.equal('\227\128\129', left('\\p{Han}', '\230\188\162\227\128\129'))
    assert.equal('', left('\\v', '\11'))
    assert.equal('\n', left('\\v', '\n')) -- vertical tab, not vertical space
  end)

  it('know characters that are younger than the libraries', function()
    assert.equal('', left('\\p{L}', '\240\177\141\144')) -- U+31350, Unicode 15
    assert.equal('\240\177\141\144', left('[^\\s\\p{L}]', '\240\177\141\144'))
    assert.equal('', left('\\p{N}', '\240\157\139\128')) -- U+1D2C0, Unicode 15
  end)

  it('read ^ and $ as ends of lines', function()
    assert.equal('\nb', left('^a$', 'a\nb'))
    assert.equal('b\n', left('^a$', 'b\na'))
  end)

  it('split by regular expressions that mean the same in PCRE2, and refuse others', function()
    for pattern, what in pairs { ['(?m:a)'] = 'this group', ['(?<n>a)'] = 'this group',
      ['a{1,3}+'] = 'a sign behind', ['[a[bc]]'] = 'a class in a class', ['[a&&b]'] = 'an intersection',
      ['\\h'] = 'this escape', ['(a)\\1'] = 'this escape',
      ['[\\P{L}]'] = 'a negated property', ['\\b'] = 'this escape', ['[a'] = 'a class without end',
      ['\\p{Greek'] = 'this property', ['a{,3}'] = 'this interval', ['(a'] = 'regular expression' } do
      refused(what, left, pattern, 'a')
    end
    refused('tokenizer.json: pre_tokenizer.pretokenizers%[0%]: regular expression', left, '\\h', 'a')
  end)

  -- A prefix space shows where each piece begins.
  local function pieces(first, text)
    local tok = made(byte_level { pre_tokenizer = { type = 'Sequence', pretokenizers = { first,
      { type = 'ByteLevel', add_prefix_space = true, trim_offsets = true, use_regex = false } } } })
    local shown = string.char(unpack(tok:ids(text))):gsub('^ ', ''):gsub(' ', '|')
    tok:free()
    return shown
  end

  it('keep, drop or join the separators', function()
    for behavior, want in pairs {
      Isolated = { 'X|ab|X|X|c|X', 'X|ab|X|X|c|X' }, Removed = { 'ab|c', 'X|X|X|X' },
      MergedWithPrevious = { 'X|abX|X|cX', 'Xab|X|Xc|X' }, MergedWithNext = { 'Xab|X|Xc|X', 'X|abX|X|cX' },
      Contiguous = { 'X|ab|XX|c|X', 'X|ab|XX|c|X' } } do
      for i, invert in ipairs { false, true } do
        for _, pattern in ipairs { { String = 'X' }, { Regex = 'X' } } do
          local split = { type = 'Split', pattern = pattern, behavior = behavior, invert = invert }
          -- inverted, a run of what is no separator is one match
          assert.equal(want[i], pieces(split, 'XabXXcX'), behavior .. (invert and ' inverted' or ''))
        end
      end
    end
    assert.equal('a|b|c', pieces({ type = 'Split', pattern = { Regex = '(?=[bc])' }, behavior = 'Isolated',
      invert = false }, 'abc')) -- an empty match cuts
  end)

  it('are digits, signs, or what is between spaces', function()
    assert.equal('a|1|2|b', pieces({ type = 'Digits', individual_digits = true }, 'a12b'))
    assert.equal('a|12|b', pieces({ type = 'Digits', individual_digits = false }, 'a12b'))
    assert.equal('a|\194\178\226\133\167', pieces({ type = 'Digits', individual_digits = false },
      'a\194\178\226\133\167')) -- No and Nl are numbers
    -- $ is punctuation by being ASCII; the euro sign is none
    assert.equal('a|.|,|b|$|\226\130\172', pieces({ type = 'Punctuation', behavior = 'Isolated' },
      'a.,b$\226\130\172'))
    assert.equal('a|b', pieces({ type = 'WhitespaceSplit' }, ' a \194\160b\n'))
    assert.equal('ab|!?|c', pieces({ type = 'Whitespace' }, 'ab!? c'))
    -- a joiner is part of a word, a fraction and a superscript are not
    assert.equal('a\226\128\141b|\194\189|x|\194\178',
      pieces({ type = 'Whitespace' }, 'a\226\128\141b\194\189x\194\178'))
  end)

  it('put a space in front of each part when asked', function()
    local tok = made(byte_level { added = { added(300, '<s>') },
      pre_tokenizer = { type = 'ByteLevel', add_prefix_space = true, trim_offsets = true, use_regex = true } })
    same(tok:ids 'a<s>b<s> c', { 32, 97, 300, 32, 98, 300, 32, 99 }, 'prefix')
    same(tok:ids '', {}, 'empty')
    tok:free()
  end)

  local function metaspace(options, before)
    local vocab = { ['<s>'] = 0, ['▁'] = 1, a = 2, b = 3, ['▁a'] = 4, ['a▁'] = 5, ['▁b'] = 6 }
    local pre = { type = 'Metaspace', replacement = '▁' }
    for key, value in pairs(options) do pre[key] = value end
    local list = { type = 'Sequence', pretokenizers = { before, pre } }
    return made { added_tokens = { added(0, '<s>') }, pre_tokenizer = before and list or pre, decoder = pre,
      model = { type = 'BPE', vocab = vocab, merges = { 'a ▁', '▁ a', '▁ b' } } }
  end
  it('are put behind ▁ by the scheme of Metaspace', function()
    for _, case in ipairs {
      { { prepend_scheme = 'always' }, { 4, 6, 0, 4 } }, { { add_prefix_space = true }, { 4, 6, 0, 4 } },
      { { prepend_scheme = 'first' }, { 4, 6, 0, 2 } }, { { prepend_scheme = 'never' }, { 2, 6, 0, 2 } },
      { { add_prefix_space = false }, { 2, 6, 0, 2 } },
      { { prepend_scheme = 'first', split = false }, { 1, 5, 3, 0, 2 } } } do -- a▁ is the first merge
      local tok = metaspace(case[1])
      same(tok:ids 'a b<s>a', case[2], json.encode(case[1]))
      tok:free()
    end
    local split = { type = 'WhitespaceSplit' }
    local tok = metaspace({ prepend_scheme = 'first' }, split)
    same(tok:ids 'a b', { 4, 3 }, 'only the first word begins the text')
    same(tok:ids ' a b', { 2, 3 }, 'a space does')
    tok:free()
    refused('contradicts', metaspace, { add_prefix_space = false, prepend_scheme = 'always' })
  end)
end)

describe('tokenizer: normal form C', function()
  local tok = made(byte_level { normalizer = { type = 'NFC' } })
  local function nfc(text) return string.char(unpack(tok:ids(text))) end

  it('composes and puts marks in order', function()
    assert.equal('caf\195\169 x', nfc 'cafe\204\129 x')
    assert.equal('\225\187\135', nfc 'e\204\130\204\163') -- U+0065 U+0302 U+0323: U+1EC7
    assert.equal('\234\176\129', nfc '\225\132\128\225\133\161\225\134\168') -- Hangul
    assert.equal('\206\169', nfc '\226\132\166') -- the ohm sign is omega
    assert.equal('\204\129\204\129x', nfc '\204\129\204\129x')
  end)

  it('leaves marks younger than Unicode 9 where they are, as the reference does', function()
    assert.equal('a\204\129\224\180\187', nfc('a\204\129\224\180\187'):gsub('\195\161', 'a\204\129')) -- U+0D3B
    assert.equal('\195\161\224\180\187', nfc 'a\204\129\224\180\187')
    assert.equal('a\224\180\187\204\129', nfc 'a\224\180\187\204\129') -- and nothing composes across
  end)
end)

-- where tokens came from --------------------------------------------------------------------------

-- Each id with the text it stands for: '104:h', or with its numbers where that is a part of a character.
local function ranges(tok, text, options)
  local o = { offsets = true }
  for key, value in pairs(options or {}) do o[key] = value end
  local ids, n, offsets = tok:encode(text, o)
  local list = {}
  for i = 0, n - 1 do list[i + 1] = { ids[i], offsets[2 * i], offsets[2 * i + 1] } end
  return list
end
local function shown(tok, text, options)
  local list = ranges(tok, text, options)
  for i, r in ipairs(list) do list[i] = ('%d:%d-%d'):format(unpack(r)) end
  return table.concat(list, ' ')
end

-- What must hold of any text: ranges lie in it and ascend by both ends.
local function ascend(list, text)
  local from, to = 0, 0
  for _, r in ipairs(list) do
    assert.is_true(r[2] >= from and r[3] >= to and r[3] >= r[2] and r[3] <= #text, text)
    from, to = r[2], r[3]
  end
end

local SIGNS = { 'a', 'b', 'ab', ' ', '  ', '\n', 'the', ' the', '12', '.', 'é', 'e\204\129', '\204\129\204\163',
  'a\204\129\204\163', '\225\132\128\225\133\161\225\134\168', '\226\132\166', '中文', '🦙', '👩‍👧', '\227\128\128',
  '▁', "'s", '\0', '<s>', '<l>', '<r>', '<think>', '<|im_start|>', '<|endoftext|>', '<|user|>',
  'a\224\180\187\204\129' }
local function random_texts(count, seed)
  local values, at, list = tools.integers(60 * count, seed, 2 ^ 20), 0, {}
  local function random(below)
    at = at + 1
    return values[at - 1] % below
  end
  for i = 1, count do
    local parts = {}
    for k = 1, random(50) do parts[k] = SIGNS[1 + random(#SIGNS)] end
    list[i] = table.concat(parts)
  end
  return list, random
end

describe('tokenizer: offsets', function()
  it('are the bytes of each token, in words of every length and from the cache', function()
    local tok = made(byte_level { merges = { { 'a', 'b' }, { 'ab', 'ab' } }, use_regex = true })
    for _ = 1, 2 do
      assert.equal('257:0-4 97:4-5 32:5-6 98:6-7', shown(tok, 'ababa b'))
      for _, n in ipairs { 11, 12, 13, 20, 23, 24, 25, 26, 30, 60, 200 } do -- the cache, the heap, parts
        local text = ('ab'):rep(n) .. 'a'
        local list = ranges(tok, text)
        for i = 1, #list - 1 do
          local at = 4 * (i - 1)
          local whole = at + 4 <= 2 * n
          same(list[i], { whole and 257 or 256, at, whole and at + 4 or at + 2 }, text)
        end
        same(list[#list], { 97, 2 * n, 2 * n + 1 }, text)
      end
    end
    tok:free()
  end)

  it('are parts of characters where tokens are', function()
    local tok = made(byte_level { merges = { { 'ð', 'Ł' } } })
    assert.equal('256:1-3 166:3-4 153:4-5 98:5-6', shown(tok, 'a🦙b'):gsub('^97:0%-1 ', ''))
    tok:free()
  end)

  it('of a token that is a whole word with ignore_merges', function()
    local file = byte_level { merges = { { 'a', 'b' } }, ignore_merges = true, use_regex = true }
    file.model.vocab[('c'):rep(70)] = 300
    file.model.vocab.bab = 301
    local tok = made(file)
    assert.equal('301:0-3 32:3-4', shown(tok, 'bab '))
    assert.equal('300:0-70 33:70-71', shown(tok, ('c'):rep(70) .. '!'))
    tok:free()
  end)

  for _, name in ipairs { 'gpt2', 'falcon', 'torchtune-assets', 'qwen3', 'phi-3-mini' } do
    on('of random texts: ' .. name, name, name, function(tok)
      local exact = name ~= 'qwen3' and name ~= 'phi-3-mini' -- byte-level, and no normalizer
      for _, text in ipairs(random_texts(150, 7)) do
        local list = ranges(tok, text)
        same(tok:ids(text), (function()
          local ids = {}
          for i, r in ipairs(list) do ids[i] = r[1] end
          return ids
        end)(), text)
        ascend(list, text)
        local done = 0
        for _, r in ipairs(list) do
          if tok:is_special(r[1]) then assert.equal(tok:token(r[1]), text:sub(r[2] + 1, r[3])) end
          if exact then -- the text is covered, each byte by one token
            assert.equal(done, r[2])
            done = r[3]
          end
        end
        if exact then assert.equal(#text, done) end
      end
    end)
  end

  it('go through normal form C', function()
    local tok = made(byte_level { normalizer = { type = 'NFC' } })
    local function chars(text) -- of each byte of the normal form
      return (shown(tok, text):gsub('%d+:', ''))
    end
    assert.equal('0-1 1-4 1-4 4-5', chars 'xe\204\129y')
    assert.equal('0-1 1-2 2-3 3-4', chars 'aéb') -- what stays keeps its bytes
    assert.equal('0-9 0-9 0-9 9-10', chars '\225\132\128\225\133\161\225\134\168x') -- Hangul
    assert.equal('0-3 0-3', chars '\226\132\166') -- the ohm sign becomes omega
    assert.equal('0-3 0-3 0-3 0-3 0-3 0-3', chars '\224\165\152') -- U+0958 is written as two
    -- a, U+0301, U+0323: the second mark joins the letter, the first stays, behind it
    assert.equal('0-5 0-5 0-5 1-5 1-5', chars 'a\204\129\204\163')
    assert.equal('0-1 1-5 1-5 1-5 1-5', chars 'q\204\129\204\163') -- put in order
    tok:free()
  end)

  it('go through other normalizers', function()
    local function list(...)
      return { type = 'Sequence', normalizers = { ... } }
    end
    local function replace(pattern, content) return { type = 'Replace', pattern = pattern, content = content } end
    local function numbers(normalizer, text)
      local tok = made(byte_level { normalizer = normalizer })
      local got = shown(tok, text)
      tok:free()
      return got
    end
    assert.equal('95:0-1 97:0-1 95:1-2 98:2-3', numbers(list({ type = 'Prepend', prepend = '_' },
      replace({ String = ' ' }, '_')), 'a b'))
    assert.equal('97:0-1 120:1-4 121:1-4 98:4-5', numbers(replace({ Regex = '\\s+' }, 'xy'), 'a   b'))
    assert.equal('97:0-1 98:3-4', numbers(replace({ Regex = '\\s+' }, ''), 'a  b'))
    -- the prefix stands for all of the first character, and no end is before the one before it
    assert.equal('95:0-2 195:0-2 169:1-2', numbers({ type = 'Prepend', prepend = '_' }, 'é'))
    assert.equal('122:0-3 98:3-4', numbers(list(replace({ String = 'a' }, 'xy'), replace({ String = 'xyxyxy' }, 'z')),
      'aaab'))
  end)

  it('go through what is put before words', function()
    local tok = made(byte_level { merges = { { 'Ġ', 'a' } }, added = { added(300, '<s>') },
      pre_tokenizer = { type = 'ByteLevel', add_prefix_space = true, trim_offsets = true, use_regex = true } })
    assert.equal('256:0-1 300:1-4 32:4-6 195:4-6 169:5-6', shown(tok, 'a<s>é'))
    tok:free()
    local pre = { type = 'Metaspace', replacement = '▁', prepend_scheme = 'always', split = true }
    tok = made { pre_tokenizer = pre, model = { type = 'BPE', merges = { '▁ a' },
      vocab = { ['▁'] = 0, a = 1, ['中'] = 2, ['▁a'] = 3 } } }
    assert.equal('3:0-1 3:1-3 0:3-4 2:4-7', shown(tok, 'a a 中'))
    assert.equal('0:0-3 2:0-3', shown(tok, '中'))
    assert.equal('0:0-3 2:3-6', shown(tok, '▁中')) -- it is there already
    tok:free()
  end)

  it('leave out what is no token', function()
    local tok = made(byte_level { pre_tokenizer = { type = 'Sequence', pretokenizers = { { type = 'WhitespaceSplit' },
      { type = 'ByteLevel', add_prefix_space = false, use_regex = false } } } })
    assert.equal('97:1-2 98:5-6', shown(tok, ' a   b '))
    tok:free()
  end)

  it('of unknown characters, one by one, fused, or vanished', function()
    local model = { type = 'BPE', vocab = { ['<unk>'] = 0, a = 1, b = 2, ab = 3, ['<0xC3>'] = 4, ['<0xA9>'] = 5 },
      merges = { 'a b' }, unk_token = '<unk>' }
    local tok = made { model = model }
    assert.equal('0:0-1 0:1-4 3:4-6 0:6-7', shown(tok, 'x中abx'))
    tok:free()
    model.fuse_unk, model.byte_fallback = true, true
    tok = made { model = model }
    assert.equal('0:0-4 3:4-6 0:6-7', shown(tok, 'x中abx'))
    assert.equal('4:0-1 5:1-2 1:2-3', shown(tok, 'éa'))
    -- the unknown token waits behind the bytes of the next character, as it does in the reference
    assert.equal('4:0-2 5:0-3 0:0-3 1:3-4', shown(tok, 'xéa'))
    tok:free()
    model.unk_token, model.byte_fallback = null, false
    tok = made { model = model }
    assert.equal('3:1-4 2:5-6', shown(tok, 'xaxbxb')) -- what vanishes between them lies in what they make
    tok:free()
  end)

  it('of added tokens are their spelling, and of those around the text nothing', function()
    local tokens = { ['<s>'] = 300 }
    local tok = made(byte_level { added = { added(300, '<s>'), added(301, '<b>', { lstrip = true, rstrip = true }),
      added(302, 'a_c', { normalized = true, lstrip = true }) },
      normalizer = { type = 'Replace', pattern = { Regex = '_+' }, content = '_' },
      post_processor = template({ '<s>', 'A', '<s>' }, tokens) })
    assert.equal('300:0-0 120:0-1 301:3-6 121:8-9 300:9-9', shown(tok, 'x  <b> \ty', { special = true }))
    assert.equal('302:1-6', shown(tok, ' a___c'))
    assert.equal('300:0-0 300:0-0', shown(tok, '', { special = true }))
    assert.equal('', shown(tok, ''))
    tok:free()
  end)
end)

describe('tokenizer: plain parts', function()
  local tok
  setup(function()
    tok = made(byte_level { added = { added(300, '<s>'), added(301, '<s><t>'), added(302, '<n>', { special = false }),
      added(303, '<r>', { rstrip = true, lstrip = true }), added(304, '<m>', { normalized = true }), added(305, '<t>'),
      added(306, 'n><', { special = false }), added(307, '<q!>'), added(308, 'q!', { special = false }) },
      normalizer = { type = 'Replace', pattern = { String = '_' }, content = '<m>' } })
  end)
  teardown(function() tok:free() end)

  local function spelled(text, plain, options)
    local o = { plain = plain }
    for key, value in pairs(options or {}) do o[key] = value end
    local parts = {}
    for i, id in ipairs(tok:ids(text, o)) do parts[i] = id < 256 and string.char(id) or '[' .. id .. ']' end
    return table.concat(parts)
  end

  it('spell no special token, with one byte of it or all', function()
    local text = 'a<s>b<s>'
    assert.equal('a[300]b[300]', spelled(text, {}))
    assert.equal('a<s>b[300]', spelled(text, { 0, 5 }))
    for at = 1, 3 do assert.equal('a<s>b[300]', spelled(text, { at, at + 1 })) end
    assert.equal('a[300]b[300]', spelled(text, { 0, 1, 4, 5 })) -- beside it is not in it
    assert.equal('a[300]b[300]', spelled(text, { 2, 2 })) -- nothing is nothing
    assert.equal('a<s>b<s>', spelled(text, { 0, 3, 3, 8 }))
    assert.equal('<q!>', spelled('<q!>', { 0, 1, 1, 4 })) -- parts that touch are one: the whole is letters
    assert.equal('<[308]>', spelled('<q!>', { 0, 1 }))
  end)

  it('leave other added tokens what they are', function()
    assert.equal('[302]<s>[302]', spelled('<n><s><n>', { 0, 9 }))
    assert.equal('x[306]s>', spelled('xn><s>', { 3, 6 })) -- also across a border
  end)

  it('take nothing from the special token behind them', function()
    assert.equal('<s>[305]', spelled('<s><t>', { 0, 3 })) -- together they would be another
    assert.equal('[300]<t>', spelled('<s><t>', { 3, 6 }))
    assert.equal('<s><t>', spelled('<s><t>', { 2, 4 }))
  end)

  it('hold also through normalizers', function()
    assert.equal('<m>[304]<m>', spelled('___', { 0, 1, 2, 3 }))
    assert.equal('<m>[304]', spelled('<m><m>', { 0, 1 }))
  end)

  it('lose spaces to a token beside them that takes spaces', function()
    assert.equal('a[303]b', spelled('a <r> b', { 0, 2, 5, 7 }))
    assert.equal('a <r> b', spelled('a <r> b', { 2, 3 }))
  end)

  it('as a whole are what parse = false says', function()
    local texts, random = random_texts(300, 3)
    for _, text in ipairs(texts) do
      local plain, at = {}, 0
      while at < #text do
        local to = math.min(#text, at + 1 + random(9))
        plain[#plain + 1], plain[#plain + 2], at = at, to, to
      end
      local want = spelled(text, nil, { parse = false })
      assert.equal(want, spelled(text, { 0, #text }))
      assert.equal(want, spelled(text, plain)) -- parts that touch are one
      assert.equal(want, spelled(text, { 0, math.floor(#text / 2) }, { parse = false }))
    end
  end)

  it('and the rest are found alone, where no token crosses between them', function()
    local texts = random_texts(300, 5)
    for i = 1, #texts - 2, 3 do
      local a, b, c = texts[i], texts[i + 1], texts[i + 2]
      -- a letter on both sides, so that no token of the two meets
      local whole = 'x' .. a .. 'xx' .. b .. 'xx' .. c .. 'x'
      local from, to = #a + 2, #a + #b + 4
      assert.equal(spelled('x' .. a .. 'x') .. spelled('x' .. b .. 'x', nil, { parse = false })
        .. spelled('x' .. c .. 'x'), spelled(whole, { from, to }))
    end
  end)

  it('must ascend, lie in the text, and come in pairs', function()
    for plain, what in pairs {
      [{ 0, 5 }] = 'plain: pair 1 is 0..5, expected ascending numbers in 0..4',
      [{ 2, 1 }] = 'plain: pair 1 is 2..1, expected ascending numbers in 0..4',
      [{ 0, 2, 1, 3 }] = 'plain: pair 2 is 1..3, expected ascending numbers in 2..4',
      [{ 5, 6 }] = 'plain: pair 1 is 5..6', [{ 0, 2, 3 }] = 'plain has 3 numbers, expected pairs',
      [{ -1, 2 }] = 'plain 1 = %-1, expected an integer in 0', [{ 0, 1.5 }] = 'plain 2 = 1.5, expected an integer',
      [{ 'a', 2 }] = "plain 1 = 'a' %(a string%)", ['0'] = 'plain' } do
      refused(what, tok.encode, tok, 'abcd', { plain = plain })
      refused(what, tok.encode, tok, 'abcd', { plain = plain, parse = false })
    end
    assert.equal('', spelled('', { 0, 0 }))
  end)
end)

-- decoding ---------------------------------------------------------------------------------------

describe('tokenizer: decoding', function()
  it('never gives a part of a character', function()
    local tok = made(byte_level())
    local detokenizer = tok:detokenizer()
    assert.equal('', detokenizer:add(0xF0))
    assert.equal('', detokenizer:add(0x9F))
    assert.equal('', detokenizer:add(0xA6))
    assert.equal('🦙', detokenizer:add(0x99))
    assert.equal('', detokenizer:add(0xE2))
    assert.equal('\239\191\189a', detokenizer:add(0x61)) -- what cannot become a character is replaced
    assert.equal('', detokenizer:add(0xC3))
    assert.equal('\239\191\189', detokenizer:finish())
    assert.equal('b', detokenizer:add(0x62)) -- anew
    detokenizer:free()
    tok:free()
  end)

  it('replaces what is no UTF-8 by the unit, as Unicode recommends', function()
    local tok = made(byte_level())
    local r = '\239\191\189'
    for bytes, want in pairs { ['\192\128'] = r .. r, ['\224\128\128'] = r .. r .. r, ['\226\130'] = r,
      ['\226\130\40'] = r .. '(', ['\240\159\146\65'] = r .. 'A', ['\237\160\128'] = r .. r .. r,
      ['\244\144\128\128'] = r:rep(4), ['\255'] = r, ['a\128b'] = 'a' .. r .. 'b' } do
      assert.equal(want, tok:decode(bytes_of(bytes)))
      assert.equal(want, stream(tok, bytes_of(bytes)))
    end
    tok:free()
  end)

  it('holds a run of byte tokens until it ends: one wrong byte spoils all of it', function()
    local vocab = { ['▁'] = 0, a = 1 }
    for b = 0, 255 do vocab[('<0x%02X>'):format(b)] = b + 2 end
    local tok = made { model = { type = 'BPE', vocab = vocab, merges = json.array(), byte_fallback = true },
      decoder = { type = 'Sequence', decoders = { { type = 'Replace', pattern = { String = '▁' }, content = ' ' },
        { type = 'ByteFallback' }, { type = 'Fuse' }, { type = 'Strip', content = ' ', start = 1, stop = 0 } } } }
    assert.equal(' aé', tok:decode { 0, 0, 1, 0xC5, 0xAB })
    assert.equal('\239\191\189\239\191\189\239\191\189a', tok:decode { 0xC5, 0xAB, 0xC5, 1 })
    local detokenizer = tok:detokenizer()
    assert.equal('', detokenizer:add(0))
    assert.equal(' ', detokenizer:add(0))
    assert.equal('', detokenizer:add(0xC5))
    assert.equal('', detokenizer:add(0xAB)) -- not certain yet
    assert.equal('éa', detokenizer:add(1))
    detokenizer:free()
    tok:free()
  end)

  it('waits for the end where a step needs the whole text', function()
    for want, step in pairs { ['Xa '] = { type = 'Replace', pattern = { String = 'ab' }, content = 'X' },
      ['aba'] = { type = 'Strip', content = ' ', start = 0, stop = 2 } } do
      local tok = made { model = { type = 'BPE', vocab = { a = 0, b = 1, [' '] = 2 }, merges = json.array() },
        decoder = { type = 'Sequence', decoders = { { type = 'Fuse' }, step } } }
      assert.equal(want, tok:decode { 0, 1, 0, 2 })
      assert.equal(want, stream(tok, { 0, 1, 0, 2 }))
      tok:free()
    end
  end)

  it('without a decoder puts spaces between tokens', function()
    local tok = made { model = { type = 'BPE', vocab = { a = 0, b = 1 }, merges = json.array() } }
    assert.equal('a b a', tok:decode { 0, 1, 0 })
    assert.equal('a b a', stream(tok, { 0, 1, 0 }))
    tok:free()
  end)

  it('leaves special tokens out when asked, and rows without a token always', function()
    local tok = made(byte_level { added = { added(300, '<s>'), added(301, '<t>', { special = false }) } })
    assert.equal('<s>a<t>', tok:decode { 300, 97, 301, 299, 5000 })
    assert.equal('a<t>', tok:decode({ 300, 97, 301 }, { skip_special = true }))
    refused('tokenizer: id 2 = %-1, expected an integer in 0%.%.2147483647', tok.decode, tok, { 97, -1 })
    tok:free()
  end)

  for _, name in ipairs { 'qwen3', 'phi-3-mini' } do
    on('gives the same one by one and at once, on any ids: ' .. name, name, name, function(tok)
      for seed = 1, 60 do
        local ids, list = tools.integers(20, seed, tok:size() + 5), {}
        for i = 0, 19 do list[i + 1] = ids[i] end
        assert.equal(tok:decode(ids, 20), stream(tok, list))
      end
    end)
  end
end)

-- calls ------------------------------------------------------------------------------------------

describe('tokenizer: calls', function()
  it('say what a tokenizer has', function()
    local tok = made(byte_level { added = { added(300, '<s>') } })
    assert.equal(301, tok:size())
    assert.equal(301, #tok)
    assert.equal('tokenizer of 301 tokens', tostring(tok))
    assert.equal(300, tok:id '<s>')
    assert.is_nil(tok:id '<t>')
    assert.equal('<s>', tok:token(300))
    assert.is_nil(tok:token(299))
    assert.is_nil(tok:token(301))
    assert.is_nil(tok:token(-1))
    local detokenizer = tok:detokenizer()
    tok:free()
    tok:free()
    assert.equal('tokenizer (freed)', tostring(tok))
    refused('used after free', tok.encode, tok, 'a')
    assert.equal('a', detokenizer:add(97)) -- it holds on to what it needs
    detokenizer:free()
    refused('detokenizer: used after free', detokenizer.add, detokenizer, 97)
  end)

  it('refuse text that is not UTF-8, with the place', function()
    local tok = made(byte_level())
    refused('not UTF%-8 at byte 11 of 13 %(0xFF%)', tok.encode, tok, 'aaaaaaaaaaa\255b')
    refused('not UTF%-8 at byte 0 of 2', tok.encode, tok, '\192\128')
    refused('not UTF%-8 at byte 1 of 4', tok.encode, tok, 'a\237\160\128')
    refused('text is a number, not a string', tok.encode, tok, 5)
    assert.equal(3, #tok:ids 'a\0b') -- NUL is a character
    tok:free()
  end)

  it('say how many ids there are when the room is too small', function()
    local tok = made(byte_level())
    local ids, count = ffi.new('int32_t[4]', 7, 7, 7, 7), ffi.new 'int64_t[1]'
    assert.equal(0, C.ms_tokenizer_encode(tok.p, 'abcde', 5, 0, 1, nil, 0, ids, nil, 3, count))
    assert.equal(5, tonumber(count[0]))
    same({ ids[0], ids[1], ids[2], ids[3] }, { 97, 98, 99, 7 }, 'no id behind the room')
    tok:free()
  end)

  it('compare two vocabularies and name the first difference', function()
    local a = made(byte_level { added = { added(300, '<s>') } })
    local b = made(byte_level { added = { added(300, '<s>'), added(301, '<t>') } })
    local c = made(byte_level { added = { added(300, '<u>') } })
    local d = made(byte_level { added = { added(299, '<s>'), added(300, '<t>') } })
    a:same(b) -- the larger may have more
    b:same(a)
    refused('differ at id 300: "<s>" in .-, "<u>" in', a.same, a, c)
    refused('differ at id 299: "" in .-, "<s>" in', a.same, a, d)
    for _, tok in ipairs { a, b, c, d } do tok:free() end
  end)

  it('open a folder or a file, and name what is wrong with it', function()
    local path = write(byte_level())
    ms.tokenizer.open(path):free()
    ms.tokenizer.open(folder):free()
    local text = json.encode(byte_level()):gsub('^{', '{"x":{"max_length":1000000000000000019884624838656},"y":1e999,')
    tools.write(path, text)
    ms.tokenizer.open(path):free() -- nobody reads these
    refused('no such file', ms.tokenizer.open, folder .. '/nothing.json')
    local file = byte_level { merges = { { 'a', 'b' } } }
    for _, case in ipairs {
      { function(f) f.model.merges = { 'a b c' } end, 'model.merges%[0%]: not two tokens' },
      { function(f) f.model.merges = { 'ab' } end, 'model.merges%[0%]: not two tokens' },
      { function(f) f.model.merges = { 'b a' } end, 'model.merges%[0%]: "b" and "a", or what they make' },
      { function(f) f.model.vocab.zz = 97 end, 'id 97, which another token has' },
      { function(f) f.model.vocab.zz = -1 end, '"zz" is %-1, not an integer in 0' },
      { function(f) f.model.vocab.zz = 2 ^ 40 end, '"zz" is 1099511627776, not an integer in 0' },
      { function(f) f.model.vocab.zz = 2 ^ 70 end, '"zz" is 1.18059162071741%d*e21, not an integer in 0' },
      { function(f) f.added_tokens = { added(2 ^ 64, '<s>') } end,
        'added_tokens%[0%]: "id" is 1.844674407370955%d*e19, not an id' },
      { function(f) f.decoder = { type = 'Strip', content = ' ', start = 1e300, stop = 0 } end,
        '"start" and "stop" are 1e300 and 0, not counts' },
      { function(f) f.model.dropout = 0.1 end, 'dropout' },
      { function(f) f.model.end_of_word_suffix = '</w>' end, 'end_of_word_suffix "</w>" is not supported' },
      { function(f) f.normalizer = { type = 'Lowercase' } end, 'normalizer "Lowercase" is not supported' },
      { function(f) f.pre_tokenizer = { type = 'UnicodeScripts' } end, 'pre%-tokenizer "UnicodeScripts" is not' },
      { function(f) f.decoder = { type = 'CTC' } end, 'decoder "CTC" is not supported' },
      { function(f) f.model = null end, 'model: not an object' } } do
      local copy = json.decode(json.encode(file))
      case[1](copy)
      refused('tokenizer.json: .*' .. case[2], made, copy)
    end
    refused('line 1', made, '{"model": ')
  end)

  it('leave nothing behind when memory ends at any point', function()
    local path = write(byte_level { merges = { { 'a', 'b' }, { 'ab', 'c' } }, use_regex = true,
      added = { added(300, '<s>'), added(301, '<n>', { normalized = true }) }, normalizer = { type = 'NFC' } })
    local function all()
      local tok = ms.tokenizer.open(path)
      local ok, why = pcall(function()
        local text = 'abc <s> cafe\204\129 <n>'
        tok:encode('a\204\129\204\163_<n>' .. text, { offsets = true, plain = { 2, 9, 12, 14 } })
        return tok:size() .. tok:decode(tok:ids(text))
      end)
      tok:free()
      if not ok then error(why, 0) end
      return why
    end
    assert.is_true(tools.walk_memory(all, '302abc <s> caf\195\169 <n>') > 300)
  end)

  it('survive mutated files', function()
    local fuzz = require 'tests.fuzz.tokenizer'
    local accepted, refusals = fuzz(1, 250, folder)
    assert.is_true(accepted > 20 and refusals > 100) -- both kinds occur, or the mutations are no good
  end)
end)
