--- Many texts encoded at once: the ids of each alone, and the levels of its tokens.
local ffi = require 'ffi'
local C = require 'moonstill.C'
local json = require 'moonstill.base.json'
local ms = require 'moonstill'
local small = require 'tests.support.tokenizers'
local tools = require 'tests.support.tools'

local refused = tools.refused
local folder = tools.folder()

-- Tokens of one to four bytes, prefixes, special tokens, an end, and characters that are composed.
local function made()
  tools.write(folder .. '/tokenizer.json', json.encode(small.byte_level {
    merges = { { 'a', 'b' }, { 'ab', 'ab' }, { 'Ġ', 'a' }, { 'Ã', '©' } }, use_regex = true,
    normalizer = { type = 'NFC' }, added = { small.added(300, '<s>'), small.added(301, '</s>', { rstrip = true }) },
    post_processor = small.template({ '<s>', 'A', '</s>' }, { ['<s>'] = 300, ['</s>'] = 301 }) }))
  return ms.tokenizer.open(folder)
end

local SIGNS = { 'a', 'ab', 'abab', ' a', ' ', '\n', 'é', 'e\204\129', '中文', '🦙', '<s>', '</s>', '</s> ', '12', 'q' }

-- Random texts, with marks and plain parts at random bytes, some of them beside each other or empty.
local function random_texts(count, seed)
  local values, at, list = tools.integers(200 * count, seed, 2 ^ 20), 0, {}
  local function random(below)
    at = at + 1
    return values[at - 1] % below
  end
  local function parts(text, size)
    local t, from = {}, 0
    for _ = 1, random(6) do
      from = math.min(#text, from + random(3) * random(9))
      local to = math.min(#text, from + random(12))
      t[#t + 1], t[#t + 2] = from, to
      if size == 3 then t[#t + 1] = random(4) end
      from = to
    end
    return t
  end
  for i = 1, count do
    local signs = {}
    for k = 1, random(60) do signs[k] = SIGNS[1 + random(#SIGNS)] end
    local text = table.concat(signs)
    list[i] = { text = text, special = random(2) == 1, plain = random(2) == 1 and parts(text, 2) or nil,
      marks = random(4) > 0 and parts(text, 3) or nil }
  end
  return list
end

-- The definition: the level of each byte, then the highest and the lowest of each token's bytes.
local function defined(tok, t)
  local ids, n, offsets = tok:encode(t.text, { special = t.special, plain = t.plain, offsets = true })
  local of_byte, marks, levels, crossing = {}, t.marks or {}, {}, 0
  for i = 1, #marks, 3 do
    for b = marks[i], marks[i + 1] - 1 do of_byte[b] = marks[i + 2] end
  end
  local list = {}
  for i = 0, n - 1 do
    local most, least = 0, offsets[2 * i] < offsets[2 * i + 1] and 255 or 0
    for b = offsets[2 * i], offsets[2 * i + 1] - 1 do
      most, least = math.max(most, of_byte[b] or 0), math.min(least, of_byte[b] or 0)
    end
    list[i + 1], levels[i + 1] = ids[i], most
    if most ~= least then crossing = crossing + 1 end
  end
  return { ids = list, levels = levels, crossing = crossing }
end

local function text_of(block, i)
  local ids, levels = {}, {}
  for t = tonumber(block.start[i - 1]), tonumber(block.start[i]) - 1 do
    ids[#ids + 1], levels[#levels + 1] = block.ids[t], block.level[t]
  end
  return { ids = ids, levels = levels, crossing = block.crossing[i - 1] }
end

local function bits(block)
  local n = tonumber(block.start[block.count])
  return table.concat({ ffi.string(block.start, 8 * (block.count + 1)), ffi.string(block.ids, 4 * n),
    ffi.string(block.level, n), ffi.string(block.crossing, 4 * block.count) }, '|')
end

describe('a block of texts', function()
  local tok
  setup(function() tok = made() end)
  teardown(function() tok:free() end)

  local function one(text, marks, more)
    local block = ms.tokenizer.block(tok, { { text = text, marks = marks, plain = more and more.plain,
      special = more and more.special } })
    local t = text_of(block, 1)
    block:free()
    return table.concat(t.ids, ' '), table.concat(t.levels, ' '), t.crossing
  end

  it('gives each token the highest level of its bytes, and counts those of several', function()
    local function levels(...) return table.concat({ select(2, one(...)) }, ' | ') end
    assert.equal('1 0 0 | 0', levels('ab abab', { 0, 2, 1 }))
    assert.equal('1 | 1', levels('abab', { 1, 2, 1 }))
    assert.equal('2 | 1', levels('abab', { 0, 1, 1, 1, 3, 2, 3, 4, 1 }))
    assert.equal('3 | 0', levels('abab', { 0, 1, 3, 1, 4, 3 })) -- the same level on both sides is no border
    assert.equal('0 | 0', levels('abab', { 2, 2, 7 }))
    assert.equal('0 | 0', levels('abab', { 0, 4, 0 }))
    assert.equal('255 | 0', levels('abab', { 0, 4, 255 }))
    assert.equal('0 1 0 | 0', levels('q<s>q', { 1, 4, 1 }))
    assert.equal('0 1 0 | 0', levels('q', { 0, 1, 1 }, { special = true }))
    assert.equal('1 | 1', levels('e\204\129', { 1, 3, 1 })) -- composed of two sides of a border
    assert.equal('0 0 1 1 | 0', levels('🦙', { 2, 4, 1 })) -- a character in pieces
    assert.equal('1 0 2 | 0', levels('q</s> \n a', { 0, 1, 1, 7, 9, 2 })) -- the spaces it takes are not it
  end)

  it('has what each text has alone', function()
    for seed = 1, 5 do
      local texts = random_texts(60, seed)
      local block = ms.tokenizer.block(tok, texts)
      assert.equal(60, block.count)
      assert.equal(60, #block)
      local all, some, crossings = 0, 0, 0
      for i, t in ipairs(texts) do
        local got = text_of(block, i)
        assert.same(defined(tok, t), got)
        all, crossings = all + #got.ids, crossings + got.crossing
        for _, level in ipairs(got.levels) do some = some + math.min(level, 1) end
      end
      assert.is_true(some > all / 20 and some < all / 2 and crossings > 10) -- all kinds occur
      assert.equal(all, tonumber(block.start[60]))
      assert.equal(('block of 60 texts, %d tokens'):format(all), tostring(block))
      block:free()
    end
  end)

  it('is the same for any number of threads', function()
    local texts, before, first = random_texts(2000, 9), C.ms_threads_get(), nil
    for threads = 1, 5 do
      assert(C.ms_threads_set(threads) == 0)
      local block = ms.tokenizer.block(tok, texts)
      first = first or bits(block)
      local same = bits(block) == first
      block:free()
      C.ms_threads_set(before)
      assert.is_true(same, threads .. ' threads')
    end
  end)

  it('may be empty, and have empty texts', function()
    local block = ms.tokenizer.block(tok, {})
    assert.equal('block of 0 texts, 0 tokens', tostring(block))
    assert.equal(0, tonumber(block.start[0]))
    assert.equal('300 301', (one('', { 0, 0, 1 }, { special = true, plain = { 0, 0 } })))
    assert.equal('', (one('')))
    block:free()
    assert.equal('block (freed)', tostring(block))
  end)

  it('names the text that is wrong, the first of them', function()
    local function bad(i, t, what)
      local texts = {}
      for k = 1, 400 do texts[k] = { text = ('ab '):rep(40) } end
      texts[i] = t
      texts[i + 7] = { text = '\255' }
      for _ = 1, 5 do refused(what, ms.tokenizer.block, tok, texts) end
    end
    bad(17, { text = 'a\255' }, 'block: text 17 of 400: tokenizer: text is not UTF%-8 at byte 1 of 2')
    bad(1, { text = 'abcd', plain = { 0, 5 } }, 'text 1 of 400: tokenizer: plain: pair 1 is 0..5, expected')
    bad(393, { text = 'abcd', marks = { 0, 2, 1, 1, 3, 1 } },
      'text 393 of 400: marks: triple 2 is of 1..3, expected ascending numbers in 2..4')
    bad(2, { text = 'abcd', marks = { 0, 5, 1 } }, 'text 2 of 400: marks: triple 1 is of 0..5')
    bad(2, { text = 'abcd', marks = { 3, 2, 1 } }, 'text 2 of 400: marks: triple 1 is of 3..2')
    bad(2, { text = 'abcd', marks = { 0, 2, 256 } }, 'text 2 of 400: marks: triple 1 has level 256, not in 0..255')
    bad(3, { text = 'abcd', marks = { 0, 2 } }, 'tokenizer: text 3: marks has 2 numbers, expected triples')
    bad(3, { text = 'abcd', plain = { 0 } }, 'tokenizer: text 3: plain has 1 numbers, expected pairs')
    bad(3, { text = 'abcd', plain = { 0, 0.5 } }, 'tokenizer: text 3: plain 2 = 0.5, expected an integer')
    bad(3, { text = 5 }, 'text 3 of 400 is a number, not a string')
    bad(3, 'abcd', 'text 3 of 400 is a string, expected a table')
    refused('texts is a string, expected a table', ms.tokenizer.block, tok, 'abcd')
    refused('tokenizer expected, got table', ms.tokenizer.block, {}, {})
  end)

  it('has the first of two errors also where the second is met long before', function()
    local texts, before = {}, C.ms_threads_get()
    for i = 1, 40 do texts[i] = { text = 'ab' } end
    texts[18] = { text = ('ab q'):rep(300000) } -- keeps one thread from the next, while another goes on
    texts[19] = { text = 'q\255' }
    texts[21] = { text = '\255' }
    assert(C.ms_threads_set(2) == 0)
    local ok, why = pcall(refused, 'block: text 19 of 40: tokenizer: text is not UTF%-8 at byte 1 of 2',
      ms.tokenizer.block, tok, texts)
    C.ms_threads_set(before)
    assert(ok, why)
  end)

  it('leaves nothing behind when memory ends at any point, on any thread', function()
    local texts, before = random_texts(12, 4), C.ms_threads_get()
    for i = 13, 20 do texts[i] = { text = ('abab é'):rep(400), marks = { 7, 900, 1 } } end -- worth two threads
    for threads = 1, 2 do
      assert(C.ms_threads_set(threads) == 0)
      local want
      local function all()
        local own = ms.tokenizer.open(folder)
        local ok, result = pcall(function()
          local block = ms.tokenizer.block(own, texts)
          local got = bits(block)
          block:free()
          return got
        end)
        own:free()
        if not ok then error(result, 0) end
        return result
      end
      want = all()
      local ok, result = pcall(tools.walk_memory, all, want)
      C.ms_threads_set(before)
      assert(ok, result)
      assert.is_true(result > 500, result)
    end
  end)
end)
