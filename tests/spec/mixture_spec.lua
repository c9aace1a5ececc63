local ms = require 'moonstill'
local json = require 'moonstill.base.json'
local tools = require 'tests.support.tools'
local small = require 'tests.support.tokenizers'

local refused = tools.refused
local folder = tools.folder()
tools.write(folder .. '/tokenizer.json', json.encode(small.byte_level { added = { small.added(302, '</s>') } }))
tools.write(folder .. '/config.json', '{"eos_token_id": 302}')
local chat = ms.chat.open(folder)

local function write(name, rows)
  local lines = {}
  for i, row in ipairs(rows) do lines[i] = json.encode(row) end
  return tools.write(folder .. '/' .. name, table.concat(lines, '\n') .. '\n')
end

local function open(source, options)
  options = options or {}
  options.quiet = true
  return ms.dataset.open(source, chat, options)
end

-- A sample's text.
local function text(data, i)
  local ids, n = data:sample(i)
  return (chat.tokenizer:decode(ids, n))
end
local function texts(data)
  local list = {}
  for i = 1, data:count() do list[i] = text(data, i) end
  return list
end

-- Rows whose answers are a letter and a number, which has three digits.
local function rows(letter, n)
  local list = {}
  for i = 1, n do list[i] = { prompt = 'p', answer = ('%s%03d'):format(letter, i) } end
  return list
end
local a, b = write('a.jsonl', rows('a', 10)), write('b.jsonl', rows('b', 4))

-- How often each sample comes in an epoch.
local function epoch(data, number)
  local seen = {}
  for step in data:steps(1, number, { tokens = 30, micro_tokens = 15 }):each() do
    for _, micro in ipairs(step) do
      for _, i in ipairs(micro) do seen[text(data, i)] = (seen[text(data, i)] or 0) + 1 end
    end
  end
  return seen
end

describe('a mixture of files', function()
  it('has rows up to a limit of each', function()
    local data = open { { path = a, limit = 2 }, b, { path = a, limit = 1 } }
    assert.same({ 'pa001</s>', 'pa002</s>', 'pb001</s>', 'pb002</s>', 'pb003</s>', 'pb004</s>', 'pa001</s>' },
      texts(data))
    assert.same({ a, b, a }, data.paths)
    assert.equal(3, open({ { path = a, limit = 2 }, b }, { limit = 3 }):count())
  end)

  it('weighs the samples of each', function()
    local data = open { { path = a, weight = 0.25 }, b }
    local one, two = data:batch { 10 }, data:batch { 11 }
    assert.same({ 0.25 * 5, 0.25 * 5 }, { one:weight(), one:weight 'all' })
    assert.same({ 5, 5 }, { two:weight(), two:weight 'all' })
    one:free()
    two:free()
    local zero = open { { path = a, weight = 0 } }
    assert.is_false(zero:counts 'all')
    assert.is_true(open({ { path = a, weight = 0 }, b }):counts 'response')
  end)

  it('repeats whole passes in each epoch', function()
    local data = open { { path = a, ['repeat'] = 2 }, { path = b, ['repeat'] = 3 } }
    assert.equal(2 * 10 + 3 * 4, data:in_epoch())
    local seen = epoch(data, 0)
    for i = 1, 10 do assert.equal(2, seen[('pa%03d</s>'):format(i)]) end
    for i = 1, 4 do assert.equal(3, seen[('pb%03d</s>'):format(i)]) end
    assert.matches('14 samples, 84 tokens, 32 samples an epoch', tostring(data))
  end)

  it('takes another part of a file in each epoch, and all of it in turn', function()
    local data = open { { path = a, ['repeat'] = 0.3 }, { path = b, ['repeat'] = 1.5 } }
    local all, whole = {}, {}
    for number = 0, 9 do
      local n, of_b = 0, 0
      for name, times in pairs(epoch(data, number)) do
        if name:find '^pa' then
          assert.equal(1, times)
          n, all[name] = n + 1, (all[name] or 0) + 1
        else
          of_b, whole[name] = of_b + times, (whole[name] or 0) + times
        end
      end
      assert.same({ 3, 6 }, { n, of_b })
    end
    for i = 1, 10 do assert.equal(3, all[('pa%03d</s>'):format(i)]) end
    for i = 1, 4 do assert.equal(15, whole[('pb%03d</s>'):format(i)]) end
    assert.same(data:steps(3, 5):all(), open({ { path = a, ['repeat'] = 0.3 },
      { path = b, ['repeat'] = 1.5 } }):steps(3, 5):all())
    assert.equal(1, open({ { path = b, ['repeat'] = 0.01 } }):in_epoch())
  end)

  it('is as the files one after another where nothing else is asked', function()
    local both = write('ab.jsonl', (function()
      local list = rows('a', 10)
      for _, row in ipairs(rows('b', 4)) do list[#list + 1] = row end
      return list
    end)())
    local data, one = open { a, { path = b } }, open(both)
    assert.equal(one:fingerprint(), data:fingerprint())
    assert.same(one:steps(1, 2):all(), data:steps(1, 2):all())
  end)

  it('changes the fingerprint with weights and repeats', function()
    local seen = {}
    for _, source in ipairs { { path = a }, { path = a, weight = 2 }, { path = a, ['repeat'] = 2 } } do
      local print = open { source, b }:fingerprint()
      assert.is_nil(seen[print])
      seen[print] = true
    end
    for _, held in ipairs { 2, 3 } do
      local print = open { a, b }:split(held):fingerprint()
      assert.is_nil(seen[print])
      seen[print] = true
    end
  end)

  it('finds columns in each file', function()
    local data = open { a, write('q.jsonl', { { question = 'x', response = 'y' } }) }
    assert.equal('xy</s>', text(data, 11))
  end)

  it('is refused where a source is none', function()
    refused("no option 'wieght'", open, { { path = a, wieght = 2 } })
    refused('dataset: source 2 is 5, expected a path', open, { a, 5 })
    for _, bad in ipairs { { weight = -1 }, { ['repeat'] = 0 }, { limit = 0.5 }, { weight = '1' } } do
      bad.path = a
      refused('paths or {path:, weight:, repeat:, limit:} expected', open, { bad })
    end
    refused('an empty list', open, {})
    refused('got boolean', open, true)
  end)
end)

describe('rows of a Lua table', function()
  it('are data', function()
    local list = rows('x', 3)
    list[2].note = 'n'
    local data = open(list, { ignore = { 'note' } })
    assert.same({ 'px001</s>', 'px002</s>', 'px003</s>' }, texts(data))
    assert.equal('n', list[2].note) -- they are not changed
    assert.same({}, data.paths)
    local mixed = open { { rows = rows('y', 2), ['repeat'] = 2 }, { path = b, limit = 1 } }
    assert.same({ 'py001</s>', 'py002</s>', 'pb001</s>' }, texts(mixed))
    assert.equal(5, mixed:in_epoch())
  end)

  it('are refused by number', function()
    refused('row 2: column "answer" is missing', open, { { prompt = 'a', answer = 'b' }, { prompt = 'c' } })
    refused('row 2 of the table is string', open, { { prompt = 'a', answer = 'b' }, 'x' })
    refused('no samples in rows: 0 rows', open, { rows = json.array() })
  end)
end)

describe('functions of rows', function()
  it('leave rows out, then change them', function()
    local seen = {}
    local data = open(a, { filter = function(row) return row.answer > 'a004' end, map = function(row)
      seen[#seen + 1] = row.answer
      return { question = 'q', answer = row.answer:upper() }
    end })
    assert.same({ 'qA005</s>', 'qA006</s>', 'qA007</s>', 'qA008</s>', 'qA009</s>', 'qA010</s>' }, texts(data))
    assert.equal('a005', seen[1])
    assert.equal(4, data.report.filtered)
    assert.matches(', 4 filtered out$', tostring(data))
    refused('no samples in .*: 10 rows, 10 filtered out$', open, a, { filter = function() return false end })
  end)

  it('take texts as rows', function()
    local path = tools.write(folder .. '/t.txt', 'abc')
    local data = open(path, { map = function(row) return { text = row.text .. 'd' } end })
    assert.same({ 'abcd</s>' }, texts(data))
  end)

  it('are at fault where they fail, also where bad rows are skipped', function()
    refused('map of .*a.jsonl:1 gave nothing, and a row is an object', open, a,
      { on_error = 'skip', map = function() end })
    refused('filter of .*a.jsonl:1: .*mixture_spec.lua:%d+: oh', open, a,
      { on_error = 'skip', filter = function() error 'oh' end })
    refused("'filter' must be function, not", open, a, { filter = 5 })
  end)
end)

describe('a split', function()
  local list = rows('s', 200)
  local path = write('s.jsonl', list)
  local function sets(share, seed, source)
    local train, held = open(source or path):split(share, seed)
    local left, right = {}, {}
    for _, t in ipairs(texts(train)) do left[t] = true end
    for _, t in ipairs(texts(held)) do right[t] = true end
    return left, right, train, held
  end

  it('has every row on one side, in their order, by the seed', function()
    local left, right, train, held = sets(20, 1)
    assert.same({ 180, 20 }, { train:count(), held:count() })
    for i = 1, 200 do
      local name = ('ps%03d</s>'):format(i)
      assert.is_true((left[name] or false) ~= (right[name] or false))
    end
    local order = texts(train)
    for i = 2, #order do assert.is_true(order[i - 1] < order[i]) end
    assert.same({ 20 * 6, 180 * 6 }, { held:tokens(), train:tokens() })
    assert.same(right, select(2, sets(0.1, 1)))
    assert.are_not.same(right, select(2, sets(20, 2)))
    -- what is learnt of a part is what its samples say
    local whole = open(path)
    local at = tonumber(text(train, 33):match 's(%d+)')
    assert.equal(text(whole, at), text(train, 33))
    assert.equal(180, #(function()
      local all = {}
      for step in train:steps(1, 0):each() do
        for _, micro in ipairs(step) do for _, i in ipairs(micro) do all[#all + 1] = i end end
      end
      return all
    end)())
  end)

  it('holds the same rows out wherever they stand, and moves few when others come', function()
    local _, right = sets(20, 1)
    local turned = {}
    for i = 1, 200 do turned[i] = list[201 - i] end
    assert.same(right, select(2, sets(20, 1, write('turned.jsonl', turned))))
    local more = rows('s', 200)
    for _, row in ipairs(rows('t', 20)) do more[#more + 1] = row end
    local _, later = sets(22, 1, write('more.jsonl', more))
    local kept = 0
    for name in pairs(right) do kept = kept + (later[name] and 1 or 0) end
    assert.is_true(kept >= 15, kept)
  end)

  it('keeps equal rows, and the samples of a row, together', function()
    local twice = rows('s', 100)
    for _, row in ipairs(rows('s', 100)) do twice[#twice + 1] = row end
    local left, right, train, held = sets(0.2, 3, write('twice.jsonl', twice))
    for name in pairs(right) do assert.is_nil(left[name]) end
    assert.same({ 160, 40 }, { train:count(), held:count() })
    local long = {}
    for i = 1, 30 do long[i] = { text = string.char(64 + i):rep(30) } end
    local blocks = open(write('long.jsonl', long), { max_tokens = 8 })
    train, held = blocks:split(10)
    assert.same({ 20 * 5, 10 * 5 }, { train:count(), held:count() })
    local rows_of = {}
    for i = 1, held:count() do rows_of[text(held, i):sub(1, 1)] = true end
    local n = 0
    for _ in pairs(rows_of) do n = n + 1 end
    assert.equal(10, n)
  end)

  it('leaves something to learn from, and is asked in numbers that mean something', function()
    refused('200 different rows, and split = 200 leaves none to learn from', sets, 200)
    for _, bad in ipairs { 0, -1, 1.5, 'half' } do
      refused('the share is .*, expected number > 0 < 1 or integer >= 1', sets, bad)
    end
    refused('this is a part already', function()
      local train = open(path):split(5)
      train:split(5)
    end)
  end)

  it('is what a recipe validates with where no file is named', function()
    local train, valid = ms.dataset.sets({ train = path, split = 20, quiet = true }, chat, { seed = 1 })
    assert.same({ 180, 20 }, { train:count(), valid:count() })
    train, valid = ms.dataset.sets({ train = path, valid = b, split = 20, quiet = true }, chat)
    assert.same({ 200, 4 }, { train:count(), valid:count() })
    train, valid = ms.dataset.sets({ train = path, quiet = true }, chat,
      { filter = function(row) return row.answer < 's100' end })
    assert.same({ 99, nil }, { train:count(), valid })
    refused("no option 'sede'", ms.dataset.sets, { train = path }, chat, { sede = 1 })
  end)
end)

describe('a configuration of several files', function()
  local function config(...)
    return ms.config({ data = ms.dataset.options() }, { args = { ... } }).data
  end
  it('is written in YAML and on the command line', function()
    local yaml = tools.write(folder .. '/c.yaml',
      ('data:\n  train:\n    - path: %s\n      repeat: 2\n    - %s\n  split: 0.1\n'):format(a, b))
    assert.same({ { path = a, ['repeat'] = 2 }, b }, config(yaml).train)
    assert.same({ path = a, limit = 3 }, config('data.train={path: ' .. a .. ', limit: 3}').train)
    assert.same({ { path = a, weight = 0.5 }, b },
      config(('data.train=[{path: %s, weight: 0.5}, %s]'):format(a, b)).train)
    local train = ms.dataset.sets(config(yaml, 'data.quiet=true'), chat)
    assert.equal(13, train:count()) -- of 14 rows a tenth is held out
    assert.equal(2 * train.parts[1].count + train.parts[2].count, train:in_epoch())
  end)
end)
