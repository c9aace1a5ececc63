--- The toy data set and its tokenizer: what quickstart trains on.
local ffi = require 'ffi'
local C = require 'moonstill.C'
local bpe = require 'moonstill.text.bpe'
local json = require 'moonstill.base.json'
local toy = require 'moonstill.toy.toy'
local tools = require 'tests.support.tools'

-- The numbers of a problem, worked out again from what its answer says.
local function worked(text)
  local steps = {}
  for a, op, k, b in text:gmatch '(%d+) ([-+*/]) (%d+) = (%d+)' do
    steps[#steps + 1] = { tonumber(a), op, tonumber(k), tonumber(b) }
  end
  return steps
end

local function result(a, op, k)
  return op == '+' and a + k or op == '-' and a - k or op == '*' and a * k or a / k
end

local function numbers_of(p)
  local list = {}
  for _, s in ipairs(worked(p.messages[2].content)) do list[#list + 1] = table.concat(s, ' ') end
  return table.concat(list, ', ')
end

describe('toy.problems', function()
  it('are worked out rightly, and told with the same numbers', function()
    for _, p in ipairs(toy.problems('train', 500)) do
      local asked, answer = p.messages[1].content, p.messages[2].content
      local steps = worked(answer)
      assert.equal(p.steps, #steps)
      local at = tonumber(asked:match 'has (%d+)')
      for _, s in ipairs(steps) do
        assert.equal(at, s[1])
        assert.equal(s[4], result(s[1], s[2], s[3]))
        assert.truthy(asked:find('%f[%d]' .. s[3] .. '%f[%D]'), asked)
        at = s[4]
      end
      assert.equal(at, p.answer)
      assert.equal(at, toy.answer(answer))
      assert.is_nil((asked .. answer):find '[{}]')
    end
  end)

  it('have slips when asked to, and keep the right answer beside them', function()
    local steps, wrong, right_end = 0, 0, 0
    local clean = toy.problems('train', 400)
    for i, p in ipairs(toy.problems('train', 400, nil, 0.2)) do
      local at = nil
      for _, s in ipairs(worked(p.messages[2].content)) do
        assert.is_true(at == nil or at == s[1]) -- a step goes on from what was written
        local off = math.abs(s[4] - math.max(0, math.floor(result(s[1], s[2], s[3]))))
        assert.is_true(off <= 2)
        steps, wrong, at = steps + 1, wrong + (off > 0 and 1 or 0), s[4]
      end
      assert.equal(at, toy.answer(p.messages[2].content))
      assert.equal(clean[i].answer, p.answer)
      right_end = right_end + (at == p.answer and 1 or 0)
    end
    -- four standard deviations of a share of 0.2 in about a thousand steps
    assert.is_true(math.abs(wrong / steps - 0.2) < 4 * math.sqrt(0.16 / steps))
    assert.is_true(right_end < 300)
  end)

  it('of the two parts share no chain of numbers', function()
    local seen = {}
    for _, p in ipairs(toy.problems('train', 4000)) do seen[numbers_of(p)] = true end
    for _, p in ipairs(toy.problems('valid', 500)) do assert.is_nil(seen[numbers_of(p)]) end
  end)

  it('depend on seed, part and index only', function()
    local a, b = toy.problems('train', 20, 5), toy.problems('train', 10, 5)
    for i = 1, 10 do assert.same(a[i], b[i]) end
    assert.not_same(a[1], toy.problems('train', 1, 6)[1])
    assert.has_error(function() toy.problems('test', 1) end,
      "toy: no part 'test'; there are train and valid")
  end)

  it('vary in length and wording', function()
    local steps, openings = {}, {}
    for _, p in ipairs(toy.problems('train', 300)) do
      steps[p.steps] = true
      openings[p.messages[2].content:match '^%S+'] = true
    end
    assert.equal(4, #steps)
    local kinds = 0
    for _ in pairs(openings) do kinds = kinds + 1 end
    assert.is_true(kinds >= 4)
  end)
end)

describe('toy.answer', function()
  it('is the last one, or nil', function()
    assert.equal(12, toy.answer 'So the answer: 3. The answer: 12')
    assert.is_nil(toy.answer 'The answer: none')
  end)
end)

describe('bpe', function()
  local problems = toy.problems('train', 200)
  local vocabulary = bpe.learn(toy.texts(problems), 600)
  local folder = tools.folder()
  bpe.write(folder, vocabulary, 128)

  local function open()
    local out = ffi.new 'ms_tokenizer *[1]'
    assert.equal(0, C.ms_tokenizer_open(folder, out), ffi.string(C.ms_last_error()))
    return ffi.gc(out[0], C.ms_tokenizer_free)
  end

  local function encode(tok, text)
    local ids, count = ffi.new 'int32_t[4096]', ffi.new 'int64_t[1]'
    assert.equal(0, C.ms_tokenizer_encode(tok, text, #text, 0, 1, nil, 0, ids, nil, 4096, count))
    local list = {}
    for i = 0, tonumber(count[0]) - 1 do list[i + 1] = ids[i] end
    return list
  end

  it('merges the most frequent pair first, ties by spelling', function()
    local v = bpe.learn({ 'abab abab', 'cd cd' }, 256 + 3 + 2)
    assert.same({ 'a b', 'ab ab' }, v.merges)
    assert.equal(256 + 3 + 2, bpe.size(v))
    assert.has_error(function() bpe.learn({}, 258) end,
      'bpe: a vocabulary of 258 cannot hold 256 bytes and 3 special tokens')
  end)

  it('gives every number one token', function()
    local tok = open()
    for n = 0, 40 do assert.equal(1, #encode(tok, ' ' .. n), n) end
  end)

  it('has the special tokens after the learnt ones', function()
    local tok = open()
    assert.equal(bpe.size(vocabulary), C.ms_tokenizer_size(tok))
    assert.same({ #vocabulary.tokens + 1, #vocabulary.tokens + 2 },
      encode(tok, '<|im_start|><|im_end|>'))
    assert.equal(1, C.ms_tokenizer_is_special(tok, #vocabulary.tokens))
  end)

  it('gives back what it was given, also text it never saw', function()
    local tok = open()
    local text, bytes = ffi.new 'char *[1]', ffi.new 'int64_t[1]'
    for _, sample in ipairs { problems[1].messages[1].content, 'naïve – 你好\n\t 12345!' } do
      local list = encode(tok, sample)
      local ids = ffi.new('int32_t[?]', #list, list)
      assert.equal(0, C.ms_tokenizer_decode(tok, ids, #list, 0, text, bytes))
      assert.equal(sample, ffi.string(text[0], bytes[0]))
      C.ms_text_free(text[0])
    end
  end)

  it('writes the template and the end of a turn', function()
    local settings = json.read(folder .. '/tokenizer_config.json')
    assert.equal('<|im_end|>', settings.eos_token)
    assert.equal(128, settings.model_max_length)
    assert.truthy(settings.chat_template:find('<|im_start|>', 1, true))
  end)

  it('gives the ids that tokenizers gives', function()
    local python = os.getenv 'MS_PYTHON' or 'python3'
    if tools.run(python .. ' -c "import tokenizers"') ~= 0 then
      return pending 'no Python with tokenizers here (MS_PYTHON names one)'
    end
    local tok, asked, want = open(), {}, {}
    for i, p in ipairs(toy.problems('valid', 60)) do
      asked[i] = p.messages[2].content .. '<|im_end|>\n'
      want[i] = table.concat(encode(tok, asked[i]), ' ')
    end
    tools.write(folder .. '/asked.json', json.encode(json.array(asked)))
    local status, got, err = tools.run(python .. ' tests/reference/encode.py ' .. folder)
    assert.equal(0, status, err)
    assert.equal(table.concat(want, '\n') .. '\n', got)
  end)
end)
