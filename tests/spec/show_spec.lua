-- `moonstill data show`: samples as they are learnt, and their lengths.
local ffi = require 'ffi'
local lengths = require 'moonstill.prompt.lengths'
local marked = require 'moonstill.prompt.marked'
local ms = require 'moonstill'
local json = require 'moonstill.base.json'
local small = require 'tests.support.tokenizers'
local terminal = require 'tests.support.terminal'
local tools = require 'tests.support.tools'

describe('a sample as marked text', function()
  local folder = tools.folder()
  tools.write(folder .. '/tokenizer.json', json.encode(small.byte_level {
    added = { small.added(300, '<|end|>'), small.added(301, '<plain>', { special = false }) } }))
  local tok = ms.tokenizer.open(folder)

  -- Weights are those of the tokens themselves.
  local function text_of(ids, weights, options)
    local n = #ids
    local of_position = ffi.new('float[?]', n)
    for t = 1, n - 1 do of_position[t - 1] = weights[t + 1] end
    return marked.text(tok, ffi.new('int32_t[?]', n, ids), n, of_position, options or {})
  end

  it('has brackets around what is learnt', function()
    assert.equal('ab⟦cd⟧e⟦f⟧', text_of({ 97, 98, 99, 100, 101, 102 }, { 0, 0, 1, 1, 0, 1 }))
    assert.equal('ab', text_of({ 97, 98 }, { 0, 0 }))
    assert.equal('a', text_of({ 97 }, { 1 })) -- nothing predicts the first
  end)
  it('shows weights other than 0 and 1', function()
    assert.equal('a⟦0.5: b⟧⟦c⟧⟦2: d⟧e', text_of({ 97, 98, 99, 100, 101 }, { 0, 0.5, 1, 2, 0 }))
    assert.equal('a⟦0.3333: b⟧', text_of({ 97, 98 }, { 0, 1 / 3 }))
  end)
  it('shows where tokens end', function()
    assert.equal('a│⟦b│c⟧│<|end|>', text_of({ 97, 98, 99, 300 }, { 0, 1, 1, 0 }, { tokens = true }))
    assert.equal('a│⟦↵\n⟧│b', text_of({ 97, 10, 98 }, { 0, 1, 0 }, { tokens = true }))
    assert.equal('a│⟦│ä⟧', text_of({ 97, 0xc3, 0xa4 }, { 0, 1, 1 }, { tokens = true })) -- one character, two tokens
  end)
  it('escapes control characters, and shows halves of characters', function()
    assert.equal('a⟦\\x1b[31m⟧', text_of({ 97, 27, 91, 51, 49, 109 }, { 0, 1, 1, 1, 1, 1 }))
    assert.equal('a⟦\\x0d\\x00⟧', text_of({ 97, 13, 0 }, { 0, 1, 1 }))
    assert.equal('a⟦\239\191\189⟧', text_of({ 97, 0xc3 }, { 0, 1 }))
  end)
  it('is green where it is learnt, yellow where it weighs otherwise, bold where it is special', function()
    local function colours(ids, weights, tokens) return text_of(ids, weights, { colours = true, tokens = tokens }) end
    assert.equal('\27[0ma\27[0m\27[32mb\27[0m\27[0;1m<|end|>\27[0m', colours({ 97, 98, 300 }, { 0, 1, 0 }))
    assert.equal('\27[0ma\27[0m\27[33;7m 0.5 \27[0m\27[33mb\27[0m', colours({ 97, 98 }, { 0, 0.5 }))
    assert.equal('\27[0ma\27[0m\27[2m│\27[0m\27[32;1m<|end|>\27[0m', colours({ 97, 300 }, { 0, 1 }, true))
    assert.equal('\27[0m<plain>\27[0m', colours({ 301 }, { 0 }))
    -- an end of a line is seen where it is learnt, and no colour goes over it
    assert.equal('\27[0ma\27[0m\27[32m↵\27[0m\n\27[32mb\27[0m', colours({ 97, 10, 98 }, { 0, 1, 1 }))
    assert.equal('\27[0ma\27[0m\n\27[0mb\27[0m', colours({ 97, 10, 98 }, { 0, 0, 0 }))
  end)
end)

describe('lengths', function()
  it('are summed up', function()
    assert.same({ min = 1, median = 3, mean = 22, p95 = 100, max = 100, sum = 110 },
      lengths.summary { 100, 1, 4, 3, 2 })
    assert.same({ min = 7, median = 7.5, mean = 7.5, p95 = 8, max = 8, sum = 15 }, lengths.summary { 8, 7 })
    local list = {}
    for i = 1, 100 do list[i] = 101 - i end
    local s = lengths.summary(list)
    assert.same({ 95, 50.5, 100 }, { s.p95, s.median, s.max })
    assert.equal(100, list[1]) -- left in order
  end)

  local function counts(list)
    local parts = {}
    for _, bin in ipairs(lengths.bins(list, lengths.summary(list))) do
      parts[#parts + 1] = ('%d-%s:%d'):format(bin.from, bin.to or '', bin.count)
    end
    return table.concat(parts, ' ')
  end
  it('are counted in bins of round width, the last of which is open where few are far beyond', function()
    assert.equal('1-1:1 2-2:2 3-3:0 4-4:1', counts { 1, 2, 2, 4 })
    assert.equal('5-5:3', counts { 5, 5, 5 })
    assert.equal('0-9:1 10-19:0 20-29:1 30-39:0 40-49:0 50-59:0 60-69:0 70-79:0 80-89:0 90-99:1', counts { 5, 25, 99 })
    local long = { 5000 }
    for i = 1, 99 do long[i + 1] = 10 + i % 10 end
    local words = counts(long)
    assert.matches('^10%-14:49 15%-19:50 ', words)
    assert.matches(' %d+%-:1$', words)
  end)
  it('never lose a sample, whatever they are', function()
    for seed = 1, 200 do
      local list, values = {}, tools.values(1 + seed % 40, seed)
      for i = 1, 1 + seed % 40 do list[i] = math.floor(2 + math.exp(9 * math.abs(values[i - 1]))) end
      local bins, sum = lengths.bins(list, lengths.summary(list)), 0
      for k, bin in ipairs(bins) do
        sum = sum + bin.count
        assert.is_true(k == #bins or bins[k + 1].from == bin.to + 1)
      end
      assert.equal(#list, sum)
      assert.is_true(#bins <= 14, #bins)
    end
  end)

  -- How many columns a text takes: characters, here.
  local function columns(text) return select(2, text:gsub('[^\128-\191]', '')) end
  it('are drawn as wide as it was asked and no wider', function()
    local list = { 12345678 }
    for i = 1, 3000 do list[i + 1] = 100 + i end
    for _, width in ipairs { 40, 60, 80, 200 } do
      local widest = 0
      for _, line in ipairs(lengths.lines(list, list, width)) do widest = math.max(widest, columns(line)) end
      assert.is_true(widest <= width, widest)
      assert.is_true(widest >= width - 1, widest)
    end
    local lines = lengths.histogram({ { from = 0, to = 9, count = 4 }, { from = 10, to = 19, count = 1 },
      { from = 20, count = 0 } }, 33)
    assert.same({ 'tokens  samples', '   0-9        4  ████████████████', ' 10-19        1  ████', '   20+        0' },
      lines)
  end)
end)

local program = tools.program()
if not tools.exists(program) then
  pending('moonstill data show', program .. ' is not built')
  return
end

describe('moonstill data show', function()
  local folder = tools.folder()
  local student = ms.smoke.sft(folder).student
  local train = folder .. '/train.jsonl'

  local function show(arguments, before)
    return tools.run(('%s %s data show %s'):format(before or '', tools.quote(program), arguments))
  end
  -- Each character that brackets stand around.
  local function learnt_in(out)
    local parts = {}
    for part in out:gmatch '⟦(.-)⟧' do parts[#parts + 1] = part end
    return parts
  end

  it('prints samples of a file with what is learnt, and the lengths of all', function()
    local status, out, err = show(train .. ' model=' .. student)
    assert.equal(0, status, err)
    tools.says({ 'conversations in "messages"' }, err)
    local rows = json.lines(train)
    local parts = learnt_in(out)
    assert.equal(3, #parts)
    for i = 1, 3 do
      local _, row = rows()
      assert.equal(row.messages[2].content .. '<|im_end|>', parts[i])
      tools.says(row.messages[1].content, out)
      tools.says(('sample %d of 300: '):format(i), out)
    end
    tools.says({ 'median', '300 samples of ', '%) are learnt', 'tokens  samples', '█' }, out)
    assert.is_nil(out:find '\27')
  end)
  it('counts what is learnt as the data set has it', function()
    local data = ms.dataset.open(train, ms.chat.open(student), { quiet = true })
    local tokens, learnt = 0, 0
    for i = 1, data:count() do
      local _, n, weights = data:sample(i)
      tokens = tokens + n
      for t = 0, n - 2 do learnt = learnt + weights[t] end
    end
    local _, out = show(train .. ' n=0 model=' .. student)
    tools.says(('300 samples of %d tokens, of which %d '):format(tokens, learnt), out)
    assert.is_nil(out:find('sample 1', 1, true))
    _, out = show(train .. ' n=0 on=all model=' .. student)
    tools.says(('300 samples of %d tokens, of which %d '):format(tokens, tokens - 300), out)
  end)
  it('takes a recipe\'s file and keys, and passes over what is not of data', function()
    local status, out, err = show(('recipes/distill.yaml teacher=%s data.train=%s kd.temperature=3 batch.tokens=10 '
      .. 'layers=8 output=out/x own.key=1 from=2 n=1'):format(student, train))
    assert.equal(0, status, err)
    tools.says('sample 2 of 300', out)
    assert.equal(1, #learnt_in(out))
    local yaml = tools.write(folder .. '/own.yaml', ('student: %s\nmine: 3\ndata:\n  train: %s\n  limit: 7\n'):format(
      student, train))
    tools.says('sample 1 of 7', select(2, show(yaml)))
    tools.says("no option 'data.limt'; did you mean 'data.limit'?", select(3, show(yaml .. ' data.limt=3')))
    tools.says("no option 'form'; did you mean 'from'?", select(3, show(yaml .. ' form=3')))
  end)
  it('shows validation data', function()
    local keys = ('model=%s data.train=%s data.valid=%s/valid.jsonl part=valid n=1'):format(student, train, folder)
    tools.says('sample 1 of 40', select(2, show(keys)))
    local status, _, err = show(('model=%s data.train=%s part=valid'):format(student, train))
    assert.equal(2, status)
    tools.says("'data.valid' is not given", err)
  end)
  it('shows what is held out of the training data, and the rest', function()
    local keys = ('student=%s data.train=%s data.split=10 n=0 data.quiet=true '):format(student, train)
    tools.says('10 samples of', select(2, show(keys .. 'part=valid')))
    tools.says('290 samples of', select(2, show(keys)))
  end)
  it('takes no longer samples than the models do', function()
    local keys = ('recipes/sft.yaml student=%s data.train=%s n=0 data.max_tokens=300'):format(student, train)
    local _, out, err = show(keys)
    tools.says('note: max_tokens is 256, not 300: the context of the model', err)
    tools.says('300 samples of', out)
  end)
  it('shows the turns of a template and what is learnt of them', function()
    local template = tools.write(folder .. '/own.jinja', '{% for m in messages %}{{ m.role }}: {% generation %}'
      .. '{{ m.content }};{% endgeneration %}\n{% endfor %}')
    local path = tools.write(folder .. '/turns.jsonl', json.encode { messages = {
      { role = 'user', content = 'one' }, { role = 'assistant', content = 'two' } } } .. '\n')
    local _, out = show(('%s model=%s data.template=%s'):format(path, student, template))
    tools.says('user: one;assistant:⟦ two;⟧\n', out) -- a token is learnt where any character of it is
  end)
  it('says what it needs', function()
    local status, _, err = show(train)
    assert.equal(2, status)
    tools.says('model=FOLDER is needed', err)
    status, _, err = show('model=' .. student)
    assert.equal(2, status)
    tools.says("'data.train' must be given", err)
    status, _, err = show(train .. ' from=301 model=' .. student)
    assert.equal(2, status)
    tools.says('from = 301, but there are 300 samples', err)
    status, _, err = show(folder .. '/absent.jsonl model=' .. student)
    assert.equal(2, status)
    tools.says('absent.jsonl', err)
  end)
  it('shows the weights of samples', function()
    local path = tools.write(folder .. '/weighed.jsonl', '{"prompt": "a", "answer": "b", "w": 0.25}\n')
    tools.says('⟦0.25: b<|im_end|>⟧', select(2, show(path .. ' data.weight_key=w model=' .. student)))
  end)
  it('has colours on a terminal alone, unless they are asked for, and keeps to its width', function()
    local command = ('exec %s data show %s model=%s n=1'):format(tools.quote(program), train, student)
    for _, width in ipairs { 60, 80 } do
      local session = terminal.open(command, width)
      local out = session:wait 'tokens  samples' .. session:wait '90-99'
      session:finish()
      tools.says('\27[32mThe\27[0m', (out:gsub('\27%[32m %a+', '\27[32mThe', 1)))
      local widest = 0
      for line in out:match('tokens  samples.*'):gmatch '[^\r\n]+' do
        widest = math.max(widest, select(2, line:gsub('[^\128-\191]', '')))
      end
      assert.is_true(widest <= width and widest >= width - 1, widest)
    end
    local session = terminal.open('NO_COLOR=1; export NO_COLOR; ' .. command)
    local out = session:wait 'tokens  samples'
    session:kill()
    assert.is_nil(out:find '\27')
    tools.says('⟦', out)
    tools.says('\27[32m', select(2, show(train .. ' colours=true model=' .. student)))
  end)
  it('has a help of its own', function()
    local status, out = show '--help'
    assert.equal(0, status)
    tools.says({ 'moonstill data show [CONFIG.yaml|FILE ...]', 'data.max_tokens', 'tokens' }, out)
    assert.is_nil(out:find('resume', 1, true))
    status, out = tools.run(tools.quote(program) .. ' data --help')
    assert.equal(0, status)
    tools.says('show', out)
    local _, _, err = tools.run(tools.quote(program) .. ' data shwo')
    tools.says({ "data: no command 'shwo'; did you mean 'show'?", 'Try: moonstill data --help' }, err)
    tools.says('which command? there is show', select(3, tools.run(tools.quote(program) .. ' data')))
  end)
end)
