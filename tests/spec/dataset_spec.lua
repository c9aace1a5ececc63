local ms = require 'moonstill'
local json = require 'moonstill.json'
local tools = require 'tests.tools'
local small = require 'tests.tokenizers'

local function refused(pattern, ...)
  local ok, message = pcall(...)
  assert.is_false(ok)
  assert.matches(pattern, message)
end

local folder = tools.folder()
local function write(name, rows)
  local lines = {}
  for i, row in ipairs(rows) do lines[i] = type(row) == 'string' and row or json.encode(row) end
  return tools.write(folder .. '/' .. name, table.concat(lines, '\n') .. '\n')
end

tools.write(folder .. '/tokenizer.json', json.encode(small.byte_level { added = {
  small.added(300, '<|im_start|>'), small.added(301, '<|im_end|>'), small.added(302, '<|endoftext|>') } }))
tools.write(folder .. '/config.json', '{"eos_token_id": 302}')
local chat = ms.chat.open(folder)
-- the same without turns: prompt, answer, end
local bare = tools.folder()
tools.write(bare .. '/tokenizer.json', json.encode(small.byte_level { added = { small.added(302, '</s>') } }))
tools.write(bare .. '/config.json', '{"eos_token_id": 302}')
local plain = ms.chat.open(bare)

local function open(path, chat_, options)
  options = options or {}
  options.quiet = true
  return ms.dataset.open(path, chat_, options)
end

-- A sample as text, what is learnt in [ ].
local function mask(data, i)
  local ids, n, weights = data:sample(i)
  local parts = {}
  for t = 0, n - 1 do
    local token = ids[t] < 256 and string.char(ids[t]) or data.chat.tokenizer:token(ids[t])
    local w = t > 0 and weights[t - 1] or 0
    parts[#parts + 1] = w == 0 and token or w == 1 and '[' .. token .. ']' or ('[%s*%g]'):format(token, w)
  end
  assert(weights[n - 1] == 0, 'the last position predicts nothing')
  return table.concat(parts)
end
local function masks(data)
  local list = {}
  for i = 1, data:count() do list[i] = mask(data, i) end
  return list
end

describe('dataset: rows', function()
  it('have messages', function()
    local data = open(write('m.jsonl', { { messages = { { role = 'user', content = 'a' },
      { role = 'assistant', content = 'b' } } } }), chat)
    assert.same({ '<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[b][<|im_end|>]\n' }, masks(data))
  end)

  it('have a prompt and an answer under known names, which are said', function()
    for _, pair in ipairs(ms.dataset.pairs) do
      local data = open(write('p.jsonl', { { [pair[1]] = 'ab', [pair[2]] = 'c', other = 1 } }), plain)
      assert.same({ 'ab[c][</s>]' }, masks(data))
    end
    local function said(options)
      local path = write('q.jsonl', { { question = 'a', answer = 'b', weight = 3 }, { question = 'a', answer = 'b' } })
      local script = tools.write(folder .. '/say.lua', ([[
        local ms = require 'moonstill'
        ms.dataset.open(%q, ms.chat.open(%q), %s)]]):format(path, bare, options))
      local status, _, errors = tools.run(("LUA_PATH='lua/?.lua;lua/?/init.lua;;' luajit %s"):format(script))
      assert.equal(0, status, errors)
      assert.matches('dataset of 2 samples', errors)
      return errors
    end
    assert.matches('q.jsonl:1: prompts in "question", answers in "answer"; "weight" is not used '
      .. '%(weight_key = "weight" uses it%)\n', said '{}')
    assert.matches('q.jsonl:1: text in "answer", weights in "weight"\n',
      said '{ text_key = "answer", weight_key = "weight" }')
  end)

  it('have other names when told', function()
    local path = write('n.jsonl', { { q = 'a', a = 'b', t = 'text', m = { { role = 'assistant', content = 'x' } } } })
    assert.same({ 'a[b][</s>]' }, masks(open(path, plain, { prompt_key = 'q', answer_key = 'a' })))
    assert.same({ 't[e][x][t][</s>]' }, masks(open(path, plain, { text_key = 't' })))
    assert.same({ '<|im_start|>assistant\n[x][<|im_end|>]\n' }, masks(open(path, chat, { messages_key = 'm' })))
    refused('n.jsonl:1: column "messages" is missing', open, path, chat, { messages_key = 'messages' })
    refused('no known columns among a, m, q, t', open, path, plain)
    refused('belong together', open, path, plain, { prompt_key = 'q' })
  end)

  it("may have an instruction's input", function()
    local data = open(write('i.jsonl', { { instruction = 'a', input = 'b', output = 'c' },
      { instruction = 'a', input = '', output = 'c' } }), plain)
    assert.same({ 'a\n\nb[c][</s>]', 'a[c][</s>]' }, masks(data))
  end)

  it('may have a weight, of predicting positions and of all', function()
    local data = open(write('w.jsonl', { { prompt = 'ab', answer = 'c', w = 0.5 }, { prompt = 'ab', answer = 'c' } }),
      plain, { weight_key = 'w' })
    assert.equal('ab[c*0.5][</s>*0.5]', mask(data, 1))
    local b = data:batch { 1, 2 }
    assert.equal(0.5 * 2 + 2, b:weight())
    assert.equal(0.5 * 3 + 3, b:weight 'all')
    b:free()
    data = open(write('w.jsonl', { { prompt = 'ab', answer = 'c', w = 0 }, { prompt = 'ab', answer = 'c', w = 2 } }),
      plain, { weight_key = 'w' })
    assert.same({ 'abc</s>', 'ab[c*2][</s>*2]' }, masks(data)) -- 0 is a weight
    refused('sample 3 of 2', data.batch, data, { 1, 3 })
    refused('w.jsonl:1: column "w": a weight is a number from 0 on', open,
      write('w.jsonl', { { prompt = 'a', answer = 'b', w = 'x' } }), plain, { weight_key = 'w' })
  end)

  it('keep the weights of turns', function()
    local function turn(text, weight) return { role = 'assistant', content = text, weight = weight } end
    local data = open(write('tw.jsonl', { { messages = { turn('a', 0.25), turn('b', 0), turn('c') } } }), chat)
    assert.equal('<|im_start|>assistant\n[a*0.25][<|im_end|>*0.25]\n<|im_start|>assistant\nb<|im_end|>\n'
      .. '<|im_start|>assistant\n[c][<|im_end|>]\n', mask(data, 1))
  end)

  it('may come in several files and in an array', function()
    local a = write('a.jsonl', { { prompt = 'a', answer = 'b' }, '', { prompt = 'c', answer = 'd' } })
    local b = write('b.json', { '[{"prompt": "e", "answer": "f"}]' })
    local data = open({ a, b }, plain)
    assert.same({ 'a[b][</s>]', 'c[d][</s>]', 'e[f][</s>]' }, masks(data))
    assert.equal(3, data.report.rows)
    assert.equal(9, data:tokens())
    assert.same({ 'a[b][</s>]', 'c[d][</s>]' }, masks(open({ a, b }, plain, { limit = 2 })))
  end)
end)

describe('dataset: plain text', function()
  it('is cut into blocks in which every token is predicted once', function()
    local data = open(tools.write(folder .. '/t.txt', 'abcdefgh'), plain, { max_tokens = 4 })
    assert.same({ 'a[b][c][d]', 'd[e][f][g]', 'g[h][</s>]' }, masks(data))
    data = open(tools.write(folder .. '/t.txt', 'abcdef'), plain, { max_tokens = 4 })
    assert.same({ 'a[b][c][d]', 'd[e][f][</s>]' }, masks(data)) -- nothing is left over
    data = open(write('t.jsonl', { { text = 'abcdef' }, { text = 'x' } }), plain, { max_tokens = 6 })
    assert.same({ 'a[b][c][d][e][f]', 'f[</s>]', 'x[</s>]' }, masks(data))
  end)

  it('does not begin with a byte order mark, whatever the file', function()
    local mark, want = '\239\187\191', { 'a[b][</s>]' }
    assert.same(want, masks(open(tools.write(folder .. '/b.txt', mark .. 'ab'), plain)))
    assert.same(want, masks(open(tools.write(folder .. '/b.json', mark .. '[{"text":"ab"}]'), plain)))
    assert.same(want, masks(open(tools.write(folder .. '/b.jsonl', mark .. '{"text":"ab"}\n'), plain)))
  end)
end)

describe('dataset: samples over max_tokens [truncated silently]', function()
  local path = write('long.jsonl', { { prompt = 'ab', answer = 'cde' }, { prompt = 'a', answer = 'b' },
    { prompt = 'abcdefgh', answer = 'i' } })
  it('are dropped and counted', function()
    local data = open(path, plain, { max_tokens = 5 })
    assert.same({ 'a[b][</s>]' }, masks(data))
    assert.equal(2, data.report.dropped)
    assert.equal('dataset of 1 samples, 3 tokens, 2 dropped as over long', tostring(data))
    assert.equal(2, open(path, plain, { max_tokens = 6 }):count()) -- just long enough
  end)
  it('are an error with the place', function()
    refused('long.jsonl:1: 6 tokens, max_tokens is 5', open, path, plain, { max_tokens = 5, over_long = 'error' })
  end)
  it('are cut, without an end that was not there, while something is left to learn', function()
    local data = open(path, plain, { max_tokens = 5, over_long = 'truncate' })
    assert.same({ 'ab[c][d][e]', 'a[b][</s>]' }, masks(data))
    assert.equal(1, data.report.truncated)
    assert.equal(1, data.report.dropped)
  end)
end)

describe('dataset: bad rows', function()
  local path = write('bad.jsonl', { { prompt = 'a', answer = 'b' }, '{"prompt": "a", ', { prompt = 'a', answer = '' },
    { prompt = 'a' }, '[1]', { prompt = 'a', answer = 5 }, { prompt = 'x', answer = json.null },
    { prompt = 'c', answer = 'd' } })
  it('end everything with file and line', function()
    refused('bad.jsonl:2: column 16 ', open, path, plain)
    for line, why in pairs { [3] = 'empty answer', [4] = 'column "answer" is missing', [5] = 'a row is an object',
      [6] = 'column "answer" is a number, not text', [7] = 'column "answer" is null, not text' } do
      local rows, k = {}, 0
      for text in tools.read(path):gmatch '[^\n]+' do
        k = k + 1
        if k == 1 or k == line then rows[#rows + 1] = text end
      end
      refused('/one.jsonl:2: ' .. why, open, write('one.jsonl', rows), plain)
    end
  end)
  it('are counted when told to skip', function()
    local data = open(path, plain, { on_error = 'skip' })
    assert.same({ 'a[b][</s>]', 'c[d][</s>]' }, masks(data))
    assert.equal(6, data.report.skipped)
    assert.equal(8, data.report.rows)
    assert.equal(6, #data.report.errors)
    assert.matches('bad.jsonl:3: empty answer$', data.report.errors[2])
    assert.matches('6 skipped with errors', tostring(data))
  end)
  it('in conversations: nothing supervised [all zeros]', function()
    local m = write('none.jsonl', { { messages = { { role = 'user', content = 'a' } } } })
    refused('none.jsonl:1: no token is supervised', open, m, chat)
    refused('no samples in .*/none.jsonl: 1 rows, 1 skipped with errors, the first: .*none.jsonl:1', open, m,
      chat, { on_error = 'skip' })
  end)
  it('leave nothing: the files are named, and why', function()
    local empty = tools.write(folder .. '/empty.jsonl', '')
    refused('no samples in .*/empty.jsonl: 0 rows$', open, empty, plain)
    local long = write('longer.jsonl', { { prompt = 'abc', answer = 'd' } })
    refused('no samples in .*/empty.jsonl, .*/longer.jsonl: 1 rows, 1 dropped as longer than max_tokens = 4$',
      open, { empty, long }, plain, { max_tokens = 4 })
  end)
  it('in conversations that the tokenizer has no turns for', function()
    refused('turns.jsonl:1: messages are written as ChatML, and this tokenizer has no <|im_start|>', open,
      write('turns.jsonl', { { messages = { { role = 'assistant', content = 'a' } } } }), plain)
  end)
  it('and wrong calls', function()
    refused('no such file', open, folder .. '/nothing.jsonl', plain)
    refused('files end in', open, folder .. '/data.parquet', plain)
    refused('over_long = cut; there are drop, error, truncate', open, path, plain, { over_long = 'cut' })
    refused('max_tokens = 1,', open, path, plain, { max_tokens = 1 })
    refused('b.json: not an array', open, write('b.json', { '{}' }), plain)
    local data = open(path, plain, { on_error = 'skip' })
    refused('sample 3 of 2', data.sample, data, 3)
    refused('sample 0 of 2', data.batch, data, { 1, 0 })
    refused('a batch of no samples', data.batch, data, {})
    refused('not UTF%-8 at byte 1', open, tools.write(folder .. '/u.txt', 'a\255'), plain)
  end)
end)

describe('dataset: what a model must be able to take', function()
  it('is the longest sample and the largest id, with the first row that has it', function()
    local long = write('e1.jsonl', { { prompt = 'a', answer = 'b' }, { prompt = 'abc', answer = 'd' },
      { prompt = 'abcdefghijkl', answer = 'dropped' }, { prompt = 'bcd', answer = 'e' } })
    local data = open({ long, write('e2.jsonl', { '', { prompt = 'a', answer = 'bcd' } }) }, plain,
      { max_tokens = 8 })
    assert.same({ 5, folder .. '/e1.jsonl:2' }, { data:longest() })
    assert.same({ 302, folder .. '/e1.jsonl:1' }, { data:largest_id() })
    -- the end of a text is in its last block; a cut answer has none
    data = open({ write('e3.jsonl', { { prompt = 'z', answer = 'abcdef' } }), write('e4.jsonl',
      { { prompt = 'a', answer = 'b' } }) }, plain, { max_tokens = 4, over_long = 'truncate' })
    assert.same({ 302, folder .. '/e4.jsonl:1' }, { data:largest_id() })
    assert.same({ 4, folder .. '/e3.jsonl:1' }, { data:longest() })
    data = open(tools.write(folder .. '/e5.txt', 'abcdef'), plain, { max_tokens = 4 })
    assert.same({ 302, folder .. '/e5.txt' }, { data:largest_id() })
    assert.same({ 4, folder .. '/e5.txt' }, { data:longest() })
  end)
end)

describe('dataset: batches', function()
  local rows = {}
  for i = 1, 40 do rows[i] = { prompt = ('p'):rep(i % 7 + 1), answer = ('a'):rep(i % 11 + 1) } end
  local data = open(write('batch.jsonl', rows), plain)

  it('are the samples one after another, which do not teach across borders [packing]', function()
    local whole, sum, tokens, all = data:batch { 5, 1, 9 }, 0, 0, 0
    for _, i in ipairs { 5, 1, 9 } do
      local one = data:batch { i }
      sum, tokens, all = sum + one:weight(), tokens + one:tokens(), all + one:weight 'all'
      assert.equal(i % 11 + 2, one:weight()) -- answer and end
      assert.equal(one:tokens() - 1, one:weight 'all')
      one:free()
    end
    assert.equal(sum, whole:weight())
    assert.equal(all, whole:weight 'all')
    assert.equal(tokens, whole:tokens())
    whole:free()
    local part = data:batch({ 5, 1, 9 }, 2, 2)
    assert.equal(select(2, data:sample(1)), part:tokens())
    part:free()
  end)

  it('have a fingerprint: of tokens, cuts and weights, not of what they are called', function()
    local function samples(changes)
      local list = {}
      for i = 1, 40 do list[i] = { prompt = 'abc', answer = ('answer %d'):format(i) } end
      for i, row in pairs(changes or {}) do list[i] = row end
      return list
    end
    local seen, count = {}, 0
    local function new(list, options)
      options = options or { weight_key = 'weight' }
      local print = open(write('f.jsonl', list), plain, options):fingerprint()
      assert.is_nil(seen[print], 'the fingerprint of other data')
      seen[print], count = true, count + 1
      return print
    end
    local first = new(samples())
    assert.equal(first, open(write('g.jsonl', samples()), plain):fingerprint())
    for _, i in ipairs { 1, 20, 40 } do
      new(samples { [i] = { prompt = 'abd', answer = 'answer ' .. i } })
      new(samples { [i] = { prompt = 'abc', answer = ('answer %d'):format(i + 50) } })
      new(samples { [i] = { prompt = 'abc', answer = 'answer ' .. i, weight = 2 } })
      new(samples { [i] = { prompt = 'ab', answer = ('canswer %d'):format(i) } }) -- the answer begins a token earlier
    end
    new(samples { [20] = { prompt = 'abc', answer = 'answer 21' }, [21] = { prompt = 'abc', answer = 'answer 20' } })
    new(samples { [41] = { prompt = 'abc', answer = 'answer 41' } })
    new(samples(), { max_tokens = 9, over_long = 'truncate' })
    -- the same tokens, cut elsewhere: texts in blocks
    new({ { text = ('x'):rep(60) } }, { max_tokens = 20 })
    new({ { text = ('x'):rep(60) } }, { max_tokens = 30 })
    assert.equal(18, count)
  end)

  it('are planned by seed and epoch', function()
    local options = { tokens = 60, micro_tokens = 25 }
    local seen, order = {}, {}
    for _, step in ipairs(data:steps(7, 0, options)) do
      for _, micro in ipairs(step) do
        for _, i in ipairs(micro) do
          seen[i] = (seen[i] or 0) + 1
          order[#order + 1] = i
        end
      end
    end
    assert.equal(40, #order)
    for i = 1, 40 do assert.equal(1, seen[i]) end
    assert.same(data:steps(7, 0, options), data:steps(7, 0, options))
    assert.are_not.same(data:steps(7, 0, options), data:steps(7, 1, options))
    assert.are_not.same(data:steps(7, 0, options), data:steps(8, 0, options))
  end)

  local model_path, why = tools.shared 'models/tinystories-656k'
  if not model_path then pending('have the loss of their samples alone [packing]', why) else
    it('have the loss of their samples alone [packing]', function()
      local model = ms.model.open(model_path)
      local stories = open(write('s.jsonl', { { text = 'Once upon a time there was a cat.' },
        { text = 'Tom was sad. He lost his ball.' }, { text = 'The end' } }), ms.chat.open(model))
      local function loss(samples)
        local b = stories:batch(samples)
        local value = model:evaluate(b, { ms.ce(1) })[1].value
        b:free()
        return value
      end
      local apart = loss { 1 } + loss { 2 } + loss { 3 }
      assert.is_true(apart > 10)
      -- sums of about 25 terms in f32, computed in another order
      tools.close({ loss { 1, 2, 3 }, loss { 3, 1, 2 } }, { apart, apart }, 'f32', 50)
      model:free()
    end)
  end
end)
