--- What the recipes that show something compute, from its definition: their metrics and files are
--- compared with what is worked out here from the models and the data.
local json = require 'moonstill.base.json'
local ms = require 'moonstill'
local tools = require 'tests.support.tools'

if not tools.exists(tools.program()) then
  pending('needs ' .. tools.program())
  return
end

local root = select(2, tools.run 'pwd'):gsub('\n', '')
local folder = tools.folder()
local made = ms.smoke.two_teachers(folder .. '/made')

local function recipe(name, ...)
  local words = { 'OMP_WAIT_POLICY=passive', 'OMP_NUM_THREADS=1', tools.quote(tools.program()),
    ('%s/recipes/%s.lua'):format(root, name) }
  for i = 1, select('#', ...) do words[#words + 1] = tools.quote((select(i, ...))) end
  return tools.run(table.concat(words, ' '))
end

-- The metrics of a run of a recipe on the models made above, and its output folder.
local runs = 0
local function train(name, ...)
  runs = runs + 1
  local output = ('%s/run-%d'):format(folder, runs)
  local status, _, err = recipe(name, 'student=' .. made.student, 'teacher=' .. made.teacher, 'batch.tokens=1024',
    'batch.micro_tokens=512', 'data.train=' .. made.data.train, 'optim.lr=3e-3', 'output=' .. output, ...)
  assert.equal(0, status, err)
  local trained, validated = {}, {}
  for _, line in json.lines(output .. '/metrics.jsonl') do
    table.insert(line.kind == 'train' and trained or validated, line)
  end
  return trained, validated, output
end

-- What a schedule was given and what it gave are f64 in the metrics, and so is what is worked out of
-- them here; only the order of sums differs.
local function near(want, got, what, k)
  assert.is_true(math.abs(want - got) <= (k or 1) * 1e-12 * math.max(1, math.abs(want)),
    ('%s: %.17g, not %.17g'):format(what, got, want))
end

describe('recipes/custom_schedule.lua', function()
  -- The metrics in their order, validations before the step that sees them.
  local function run(...)
    local valid = 'data.valid=' .. made.data.valid
    local trained, validated = train('custom_schedule', valid, 'validate=3', 'max_steps=18', 'epochs=0', ...)
    local before = {}
    for _, v in ipairs(validated) do before[v.step + 1] = v end
    assert.truthy(before[1], 'no validation before the first step')
    return trained, before
  end

  it('lowers the weight where the validation loss stands still', function()
    local trained, before = run('rule=plateau', 'patience=2', 'factor=0.5', 'better=0.6', 'kd.weight=0.8')
    local weight, best, stale, fell = 0.8, math.huge, 0, 0
    for step, line in ipairs(trained) do
      local now = before[step]
      if now and now.loss < best - 0.6 then
        best, stale = now.loss, 0
      elseif now then
        stale = stale + 1
      end
      if stale == 2 then weight, stale, fell = weight / 2, 0, fell + 1 end
      near(weight, line.kd, 'step ' .. step)
    end
    assert.is_true(fell > 0, 'the weight never fell: the case shows nothing')
  end)

  it('keeps the parts of the loss in a ratio', function()
    local trained = run('rule=ratio', 'ratio=3', 'kd.weight=0.7')
    local ce, kd
    for step, line in ipairs(trained) do
      near(ce and 3 * ce / (kd + 3 * ce) or 0.7, line.kd, 'step ' .. step)
      local terms = line.terms
      ce = ce and 0.9 * ce + 0.1 * terms.ce.loss or terms.ce.loss
      kd = kd and 0.9 * kd + 0.1 * terms.kd.loss or terms.kd.loss
    end
  end)

  it('follows what the student agrees with', function()
    local trained, before = run('rule=agreement', 'kd.weight=0.85')
    local weight
    for step, line in ipairs(trained) do
      if before[step] then
        for name, term in pairs(before[step].terms) do
          if name ~= 'ce' then weight = math.min(0.85, 1 - term.agree) end
        end
      end
      near(weight, line.kd, 'step ' .. step)
    end
    assert.is_true(weight < 0.85)
  end)

  it('says that a rule looks at validations', function()
    local status, _, err = recipe('custom_schedule', 'teacher=' .. made.teacher, 'layers=1',
      'data.train=' .. made.data.train, 'rule=agreement')
    assert.equal(2, status)
    tools.says('rule=agreement looks at validations: it needs data.valid or data.split', err)
  end)
end)

describe('recipes/two_teachers.lua', function()
  local both = { 'second=' .. made.second, 'max_steps=4', 'epochs=0' }

  it('learns each teacher by its share, which changes', function()
    local trained, validated = train('two_teachers', 'first_share=0.9', 'share=0.3', 'kd.weight=0.6',
      'data.valid=' .. made.data.valid, unpack(both))
    for i, line in ipairs(trained) do
      near(0.9 - 0.6 * (i - 1) / 3, line.share, 'share')
      local terms = line.terms
      -- a term's factor is f32 where it is learnt
      near(0.4 * terms.ce.loss + 0.6 * (line.share * terms.first.loss + (1 - line.share) * terms.second.loss),
        line.loss, 'loss', 1e6)
      assert.not_equal(terms.first.loss, terms.second.loss)
    end
    assert.equal(4, #validated) -- each teacher, before and after
  end)

  it('is distill.lua where both teachers are one', function()
    local two = train('two_teachers', 'second=' .. made.teacher, 'max_steps=4', 'epochs=0', 'kd.weight=0.5')
    local one = train('distill', 'max_steps=4', 'epochs=0', 'kd.weight=0.5', 'kd.first_weight=0.5')
    for i, line in ipairs(two) do
      assert.equal(line.terms.first.loss, line.terms.second.loss)
      -- gradients are added in another order: f32, and a few steps of AdamW
      near(one[i].loss, line.loss, 'loss', 1e8)
    end
  end)

  it('refuses a teacher that reads other tokens, before any weights', function()
    local other = folder .. '/other'
    tools.run(('cp -r %s %s'):format(tools.quote(made.second), tools.quote(other)))
    ms.bpe.write(other, ms.bpe.learn(ms.toy.texts(ms.toy.problems('train', 20, 9)), 512), 256)
    tools.write(other .. '/model.safetensors', 'no weights')
    local status, _, err = recipe('two_teachers', 'teacher=' .. made.teacher, 'second=' .. other, 'layers=1',
      'data.train=' .. made.data.train)
    assert.equal(1, status)
    tools.says({ 'moonstill: ', other, 'id ' }, err)
  end)
end)

describe('recipes/on_policy.lua', function()
  local problems = {}
  for _, row in json.lines(made.data.train) do problems[#problems + 1] = row end

  -- All steps are on own answers.
  local function run(...)
    local words = { 'own.first_share=1', 'own.share=1', 'own.max_new=20', 'seed=5', 'optim.schedule=constant',
      'optim.warmup=0', 'epochs=0' }
    for i = 1, select('#', ...) do words[#words + 1] = (select(i, ...)) end
    return train('on_policy', unpack(words))
  end

  -- What a step on own answers must measure, of a student as it is before it: samples by the plan of
  -- the data, prompts by the chat, answers drawn from the number `first` on, and the divergence over
  -- their tokens alone.
  local function expected(path, k, first, max_new, most, weight_of)
    return ms.scope(function(own)
      local student, teacher = own(ms.model.open(path)), own(ms.model.open(made.teacher))
      local chat = own(ms.chat.open(made.student))
      local data = ms.dataset.open(made.data.train, chat, { quiet = true, max_tokens = most })
      local prompts, rows = {}, {}
      for _, samples in ipairs(data:steps(5, 0, { tokens = 1024, micro_tokens = 512 }):step(k)) do
        for _, i in ipairs(samples) do
          if not weight_of or weight_of(i) > 0 then rows[#rows + 1] = i end
        end
      end
      table.sort(rows) -- whatever the micro-batches are
      for s, i in ipairs(rows) do prompts[s] = chat:prompt(problems[data:row(i)].messages[1].content) end
      student:add_ends(chat.stop)
      local answers = student:generate(prompts, { max_new = max_new, temperature = 1, seed = 5, first = first })
      local want, segments, ended = { rows = 0, weight = 0 }, {}, 0
      for s, answer in ipairs(answers) do
        local tokens, response = {}, {}
        local weight = weight_of and weight_of(rows[s]) or 1
        for _, id in ipairs(prompts[s]) do tokens[#tokens + 1] = id end
        for _, id in ipairs(answer) do
          if #tokens == most then break end
          response[#tokens] = 1 -- the position before it predicts it
          tokens[#tokens + 1] = id
          want.rows, want.weight = want.rows + 1, want.weight + weight
        end
        for t = 1, #tokens do response[t] = response[t] or 0 end
        segments[s] = { tokens = tokens, response = response, weight = weight }
        if answer[#answer] == student:ends()[1] then ended = ended + 1 end
      end
      local batch = own(ms.batch(segments))
      local kd = { objective = 'reverse_kl', target = 'hidden' }
      local r = student:evaluate(batch, { ms.kd(own(teacher:targets(batch, kd)), 1, kd) })[1]
      want.loss, want.tokens, want.prompts, want.ended = r.value / r.weight, batch:tokens(), #prompts, ended
      return want
    end)
  end

  local function check(line, want)
    assert.equal(want.rows, line.terms.own.rows)
    near(want.weight, line.terms.own.weight, 'weight')
    assert.equal(want.tokens, line.tokens)
    assert.is_nil(line.terms.ce)
    near(want.loss, line.terms.own.loss, 'loss', 1e7) -- f32, batches cut in another way
    assert.equal(line.loss, line.terms.own.loss) -- over the whole step, weight 1
  end

  it('learns the divergence at the tokens of its own answers, and nothing else', function()
    local first, _, output = run 'max_steps=1'
    local want = expected(made.student, 1, 0, 20)
    check(first[1], want)
    local both = run 'max_steps=2'
    check(both[1], want)
    -- the second step is drawn from the student after the first one, by numbers of its own
    check(both[2], expected(output .. '/student', 2, want.prompts, 20))
  end)

  it('makes the same step however it is cut into micro-batches', function()
    local many = run('max_steps=2', 'batch.micro_tokens=100')
    local one = run('max_steps=2', 'batch.micro_tokens=100000')
    for i = 1, 2 do
      near(one[i].grad_norm, many[i].grad_norm, 'norm of step ' .. i, 1e8) -- f32
      near(one[i].loss, many[i].loss, 'loss of step ' .. i, 1e8)
    end
  end)

  it('learns an end where the answer ended, and none where it was cut off', function()
    local want = expected(made.student, 1, 0, 100)
    assert.is_true(want.ended > 0 and want.ended < want.prompts, want.ended)
    check(run('max_steps=1', 'own.max_new=100')[1], want)
  end)

  it('keeps answers within what the models read, and the weights of samples', function()
    local weighted = folder .. '/weighted.jsonl'
    local lines = {}
    for i, row in ipairs(problems) do
      lines[i] = json.encode { messages = row.messages, w = i % 3 }
    end
    json.write_lines(weighted, lines)
    check(run('max_steps=1', 'data.train=' .. weighted, 'data.weight_key=w')[1],
      expected(made.student, 1, 0, 20, nil, function(i) return i % 3 end))
    -- samples have 38 tokens at least
    local want = expected(made.student, 1, 0, 100, 100)
    assert.is_true(want.rows < expected(made.student, 1, 0, 100).rows)
    check(run('max_steps=1', 'own.max_new=100', 'data.max_tokens=100')[1], want)
  end)

  it('spreads its steps by the share, and learns the data in the others', function()
    local trained = train('on_policy', 'max_steps=10', 'own.first_share=0.1', 'own.share=0.5', 'epochs=0',
      'own.max_new=8', 'kd.weight=0.4')
    local account, count = 0, 0
    for i, line in ipairs(trained) do
      near(0.1 + 0.4 * (i - 1) / 9, line.share, 'share')
      account = account + line.share
      local own = account > count + 1 - 1e-6
      if own then count = count + 1 end
      assert.equal(own, line.terms.own ~= nil, 'step ' .. i)
      assert.equal(not own, line.terms.ce ~= nil)
      if not own then near(0.6 * line.terms.ce.loss + 0.4 * line.terms.kd.loss, line.loss, 'loss', 1e6) end
    end
    assert.equal(3, count) -- 10 * 0.3 in all
  end)
end)

describe('recipes/filter_data.lua', function()
  -- Rows of the toy problems, some of them unwanted, in two files of the same name.
  local files = { folder .. '/a/rows.jsonl', folder .. '/b/rows.jsonl' }
  local rows, n = {}, 0
  for _, row in json.lines(made.data.train) do
    n = n + 1
    rows[n] = { id = n, messages = row.messages }
    if n == 40 then break end
  end
  rows[7] = rows[3]
  rows[9].messages[2].content = 'I cannot tell.\r\nNo answer: 1  '
  rows[12].messages[2].content = 'unwanted ' .. rows[12].messages[2].content
  local function write(path, first, last)
    local lines = {}
    for i = first, last do lines[#lines + 1] = json.encode(rows[i]) end
    json.write_lines(path, lines)
  end
  write(files[1], 1, 30)
  write(files[2], 31, 40)

  local TIDY = 'I cannot tell.\nNo answer: 1'

  -- The teacher's loss of each row, by its messages as they are learnt.
  local function losses()
    return ms.scope(function(own)
      local teacher, loss = own(ms.model.open(made.teacher)), {}
      local chat = own(ms.chat.open(teacher))
      for i, row in ipairs(rows) do
        local answer = i == 9 and TIDY or row.messages[2].content
        local ids, count, weights = chat:encode { messages = { row.messages[1],
          { role = 'assistant', content = answer } } }
        local batch = own(ms.batch { { tokens = ids, count = count, response = weights } })
        local r = teacher:evaluate(batch, { ms.ce() })[1]
        loss[i] = r.value / r.weight
      end
      return loss
    end)
  end

  local function filtered(output, ...)
    local status, out, err = recipe('filter_data', 'teacher=' .. made.teacher, 'without=unwanted',
      'output=' .. output, ...)
    assert.equal(0, status, err)
    return out
  end

  local function numbers(path)
    local list = {}
    for _, row in json.lines(path) do list[#list + 1] = row.id end
    return list
  end

  it('leaves out what it says, and writes the others as they were', function()
    local output = folder .. '/filtered'
    local out = filtered(output, 'data.train=' .. files[1], 'drop=0.25', 'show=2')
    local loss, left = losses(), {}
    for i = 1, 30 do
      if i ~= 7 and i ~= 12 then left[#left + 1] = i end
    end
    table.sort(left, function(a, b) return loss[a] > loss[b] end)
    local worst, kept = {}, {}
    for k, i in ipairs(left) do
      if k <= 7 then worst[i] = true end -- a quarter of 28
    end
    for i = 1, 30 do
      if i ~= 7 and i ~= 12 and not worst[i] then kept[#kept + 1] = i end
    end
    assert.is_true(worst[9], 'the teacher finds the odd one likely: the case shows nothing')
    assert.same(kept, numbers(output .. '/rows.jsonl'))
    for _, row in json.lines(output .. '/rows.jsonl') do assert.same(rows[row.id], row) end
    -- losses are printed with three digits: those of samples that went through together differ by less
    tools.says({ 'left out: 1 rows, each is there twice', 'left out: 1 rows, each has what is unwanted',
      'left out: the 7 rows that it finds least likely', ('  %.3f  row %d: {'):format(loss[left[1]], left[1]),
      ('  %.3f  row %d: {'):format(loss[left[2]], left[2]), 'tokens of a sample: median',
      ('train on it: data.train=%s/rows.jsonl\n'):format(output) }, out)
    assert.is_nil(out:find(('row %d: {'):format(left[3]), 1, true))
  end)

  it('tidies texts', function()
    local output = folder .. '/tidy'
    filtered(output, 'data.train=' .. files[1], 'drop=0')
    for _, row in json.lines(output .. '/rows.jsonl') do
      if row.id == 9 then assert.equal(TIDY, row.messages[2].content) end
    end
  end)

  it('keeps mixtures', function()
    local output = folder .. '/mixed'
    local out = filtered(output, 'drop=0',
      ('data.train=[{path: %s, weight: 0.5, repeat: 2}, %s]'):format(files[1], files[2]))
    assert.equal(28, #numbers(output .. '/rows.jsonl'))
    assert.same({ 31, 32, 33, 34, 35, 36, 37, 38, 39, 40 }, numbers(output .. '/rows-2.jsonl'))
    local list = out:match "data.train='(.-)'\n"
    assert.same({ { path = output .. '/rows.jsonl', weight = 0.5, ['repeat'] = 2 }, output .. '/rows-2.jsonl' },
      json.decode_yaml(list))
    out = filtered(output, 'drop=0', ('data.train={path: %s, weight: 3}'):format(files[2]))
    assert.same({ { path = output .. '/rows.jsonl', weight = 3, ['repeat'] = 1 } },
      json.decode_yaml(out:match "data.train='(.-)'\n"))
  end)

  it('has no keys of training', function()
    for _, word in ipairs { 'seed=1', 'resume=true', 'optim.lr=1' } do
      local status, _, err = recipe('filter_data', 'teacher=' .. made.teacher, 'data.train=' .. files[1], word)
      assert.equal(2, status)
      tools.says('no option', err)
    end
    local status, _, err = recipe('filter_data', 'teacher=' .. made.teacher, 'data.train=' .. files[1],
      'data.split=0.1')
    assert.equal(2, status)
    tools.says("'data.valid' and 'data.split' do nothing here", err)
  end)
end)
