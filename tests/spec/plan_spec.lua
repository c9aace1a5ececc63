--- Plans of transfers from Lua, and `moonstill plan`, which prints and draws them. That every row arrives once,
--- in as few phases as can be, is tests/c/transfer_plan.c's.
local grids = require 'moonstill.base.grid'
local layout = require 'moonstill.base.layout'
local ms = require 'moonstill'
local picture = require 'moonstill.plot.messages'
local plans = require 'moonstill.run.plan'
local tools = require 'tests.support.tools'

describe('a plan', function()
  local teacher, student = grids.layout({ ranks = '0-1' }, 6), grids.layout({ tp = 2, ranks = '2-5' }, 6)

  it('is filled for a step, and says who sends what when', function()
    local plan = plans.new(teacher, student, 6, { within = 1000, latency = 0.5 })
    assert.equal(plan, plan:fill({ 10, 20, 0, 5 }, { 0, 1, 1, 1 }, { 0, 1, 0, -1 }))
    assert.equal('plan of 4 messages in 1 and 1 phases', tostring(plan))
    assert.equal(2 * (0.5 + 20 * 100 / 1000), plan:predict(100))
    local list, n = plan:messages()
    local seen = {}
    for i = 0, n - 1 do
      local m = list[i]
      seen[i + 1] = { m.stage, m.phase, m.from, m.to, m.samples, m.sample[0], tonumber(m.rows), m.begins, m.ends }
    end
    -- one sample of a model goes to the rank in the middle of its rows: the second of two
    assert.same({ { 0, 0, 0, 3, 1, 0, 10, 0, 1.5 }, { 0, 0, 1, 5, 1, 1, 20, 0, 2.5 },
                  { 1, 0, 3, 2, 1, 0, 10, 1.5, 3 }, { 1, 0, 5, 4, 1, 1, 20, 2.5, 5 } }, seen)
    plan:fill({}, {}, {})
    assert.equal('plan of 0 messages in 0 and 0 phases', tostring(plan))
    assert.equal(0, plan:predict(100))
    plan:free()
  end)

  it('is slower where machines lie between', function()
    local o = { within = 1000, between = 100, latency = 0, per_machine = 2 }
    local plan = plans.new(teacher, student, 6, o)
    plan:fill({ 10 }, { 0 }, { 0 })
    assert.equal(10 + 1, plan:predict(100))
    assert.same({ 0, 0, 1, 2 }, { plans.machine(0, 2), plans.machine(1, 2), plans.machine(2, 2), plans.machine(5, 2) })
    assert.equal(0, plans.machine(5, 0))
    plan:free()
  end)

  it('refuses what does not go together', function()
    local function refused(words, f, ...)
      local ok, why = pcall(f, ...)
      assert.is_false(ok)
      tools.says(words, tostring(why))
    end
    local plan = plans.new(teacher, student, 6)
    refused('1 samples, 2 that have one, 1 that need one', plan.fill, plan, { 1 }, { 0, 0 }, { 0 })
    refused("sample 0 is with model 2 of the sender's 2", plan.fill, plan, { 1 }, { 2 }, { 0 })
    refused("plan: no option 'speed'", plans.new, teacher, student, 6, { speed = 1 })
    refused('rank 5 of the receiver is not in 0..4', plans.new, teacher, student, 5)
    refused('rows of 0 bytes', plan.predict, plan, 0)
    plan:free()
    refused('transfer_plan: used after free', plan.predict, plan, 1)
  end)

  it('knows how large rows of targets are', function()
    -- ids and log-probabilities, and the log of what is left over
    assert.equal(64 * (4 + 4) + 4, plans.row_bytes('topk', 64, 'f32'))
    assert.equal(64 * (4 + 2) + 4, plans.row_bytes('topk', 64, 'bf16'))
    assert.equal(576 * 2, plans.row_bytes('hidden', 576, 'bf16'))
    assert.equal(97 * 4, plans.row_bytes('logits', 97, 'f32'))
  end)
end)

describe('a grid that is not there', function()
  it('is laid out like one that is', function()
    assert.same({ dp = 2, tp = 3, ranks = { 4, 5, 6, 7, 8, 1 } }, grids.layout({ tp = 3, ranks = '4-8,1' }, 9))
    assert.same({ dp = 4, tp = 1, ranks = { 0, 1, 2, 3 } }, grids.layout({}, 4))
    assert.equal('dp 2 x tp 3 on ranks 4-8, 1', grids.shape_text(grids.layout({ tp = 3, ranks = '4-8,1' }, 9)))
    local ok, why = pcall(grids.layout, { pp = 2 }, 4)
    assert.is_false(ok)
    tools.says("grid: 'pp' (layers on several ranks) is not there yet", tostring(why))
  end)
end)

describe('the samples of a step', function()
  it('belong to the models that learn them', function()
    local lengths, order = {}, {}
    for i = 1, 60 do lengths[i], order[i] = 5 + i * 7 % 40, 61 - i end
    order[61] = 30 -- one that comes twice
    local plan = ms.packing.plan(lengths, order, 61, 1, { tokens = 2000, micro_tokens = 100 })
    for parts = 1, 5 do
      local samples, owners = plan:owners(1, parts)
      local micro, n = plan:step(1, parts), 0
      local costs = plan:costs(micro)
      for rank = 0, parts - 1 do
        local of = setmetatable({ size = parts, rank = rank }, getmetatable(ms.grid().world))
        local mine, counted = {}, {}
        for _, list in ipairs((of:share(micro, costs))) do
          for _, i in ipairs(list) do mine[#mine + 1] = i end
        end
        table.sort(mine)
        for k, i in ipairs(samples) do
          assert.is_true(k == 1 or samples[k - 1] <= i)
          if owners[k] == rank then counted[#counted + 1] = i end
        end
        assert.same(mine, counted)
        n = n + #mine
      end
      assert.equal(#samples, n)
    end
  end)
end)

local function count_of(text, words)
  local n = 0
  for _ in text:gmatch(words) do n = n + 1 end
  return n
end

describe('the picture of a plan', function()
  local function drawn(lanes, messages)
    local list = {}
    for i = 1, lanes do list[i] = { of = i - 1, name = 'rank <' .. i - 1 .. '>' } end
    return picture.text { title = 'a & b', about = 'about', lanes = list, seconds = 0.004, phases = { 2, 1 },
      messages = messages }
  end

  it('has a lane for each rank and a bar at both ends of each message', function()
    local text = drawn(3, {
      { stage = 1, phase = 0, from = 0, to = 1, begins = 0, ends = 0.001, title = 'first' },
      { stage = 1, phase = 1, from = 0, to = 2, begins = 0.001, ends = 0.002, title = 'second' },
      { stage = 2, phase = 0, from = 2, to = 9, begins = 0.002, ends = 0.004, title = 'to one without a lane' } })
    assert.equal(5, count_of(text, '<title>'))
    assert.equal(2, count_of(text, 'class="link"'))
    assert.equal(3, count_of(text, 'rank &lt;%d&gt;'))
    tools.says({ 'a &amp; b', '>send 0<', '>send 1<', '>exchange 0<', '>ms, predicted', '>to 1<', '>from 0<' }, text)
    -- 766 pixels are 4 ms
    tools.says({ 'x="210.00" y="85.0" width="191.00"', 'x="401.50" y="85.0" width="191.00"' }, text)
    assert.equal(0, tools.run('command -v xmllint >/dev/null || exit 0; xmllint --noout '
      .. tools.quote(tools.write(tools.folder() .. '/plan.svg', text))))
  end)

  it('stays within bounds with many ranks', function()
    local text = drawn(256, {})
    local height = tonumber(text:match 'height="(%d+)"')
    assert.is_true(height < 1800, tostring(height))
    assert.equal(128, count_of(text, 'rank &lt;'))
  end)
end)

local program = tools.program()
if not tools.exists(program) then
  pending('moonstill plan', program .. ' is not built')
  return
end

describe('moonstill plan', function()
  local folder = tools.folder()
  local smoke = ms.smoke.distill(folder)
  local data = (' student=%s data.train=%s/train.jsonl'):format(smoke.teacher, folder)

  local function run(arguments, before)
    return tools.run(('%s %s plan %s'):format(before or '', tools.quote(program), arguments))
  end
  local function plan(arguments, before)
    local status, out, err = run(arguments, before)
    assert.equal(0, status, err)
    return out, err
  end

  it('prints who is where and the phases with their bytes and times', function()
    local out = plan 'ranks=6 grid.ranks=2-5 grid.tp=2 teacher_grid.ranks=0-1'
    -- 16 samples of 256 rows, 8 of each model of 2048 rows; 516 bytes a row: 1024 rows are 152 us
    assert.equal([[
6 ranks: teacher dp 2 x tp 1 on ranks 0-1, student dp 2 x tp 2 on ranks 2-5
model      ranks  machines  samples  rows
teacher 0  0      0               8  2048
teacher 1  1      0               8  2048
student 0  2-3    0               8  2048
student 1  4-5    0               8  2048
16 samples, 4096 rows; 512 tokens each are assumed, of which half are learnt,
  for there is no data.train
a row of targets: 516 bytes, the 64 likeliest ids
stage     phase  messages  rows    bytes  begins    ends  from > to
send          0         2  2048  1.0 MiB    0 us  152 us  0>2 1>4
send          1         2  2048  1.0 MiB  152 us  304 us  0>3 1>5
exchange      0         4  4096  2.0 MiB  304 us  456 us  2>3 3>2 4>5 5>4
8 messages: 2.0 MiB sent, 2.0 MiB exchanged within the student's models; 456
  us predicted, of which the busiest rank needs 304 us
by 3.7 GiB/s on a machine, 1.2 GiB/s between machines, 20 us a message
]], out)
  end)

  it('takes the rows from the data', function()
    local out = plan('ranks=4 teacher_grid.tp=2 batch.tokens=600 step=2' .. data)
    local chat = ms.chat.open(smoke.teacher)
    local train = ms.dataset.open(folder .. '/train.jsonl', chat)
    local steps = train:steps(1, 0, { tokens = 600 })
    local samples, owners = steps:owners(2, 2)
    local rows, whose = 0, { [0] = 0, [1] = 0 }
    for k, i in ipairs(samples) do
      local batch = train:batch { i }
      rows = rows + batch:weight 'response'
      whose[owners[k]] = whose[owners[k]] + batch:weight 'response'
      batch:free()
    end
    assert.is_true(rows > 0)
    tools.says(('%d samples, %d rows; step 2 of %d'):format(#samples, rows, steps:count()), out)
    for model = 0, 1 do
      assert.equal(whose[model], tonumber(out:match(('teacher %d .- (%%d+)\n'):format(model))), out)
    end
    local _, _, err = run('ranks=2 batch.tokens=600 step=1000' .. data)
    tools.says(('step = 1000, but an epoch has %d'):format(steps:count()), err)
  end)

  it('takes a recipe by its own keys', function()
    local out, err = plan('recipes/distill.lua recipes/distill.yaml ranks=4 teacher_grid.tp=4 data.valid='
      .. folder .. '/train.jsonl')
    tools.says({ '4 ranks: teacher dp 1 x tp 4 on ranks 0-3, student dp 4 x tp 1 on ranks 0-3', 'nothing to send' },
      out)
    assert.equal('', err)
    assert.equal(out, plan 'recipes/distill.yaml ranks=4 teacher_grid.tp=4')
    tools.says({ 'teacher dp 2 x tp 2 on ranks 0-3', 'nothing to send' }, plan 'grid.tp=2 grid.dp=2')
    local status, _
    status, _, err = run 'recipes/distill.lua ranks=4 kd.first_wieght=1'
    assert.equal(2, status)
    tools.says("no option 'kd.first_wieght'; did you mean 'kd.first_weight'?", err)
    status, _, err = run 'recipes/sft.lua ranks=4'
    assert.equal(2, status)
    tools.says('recipes/sft.lua has no kd: no teacher gives its student anything', err)
    status, _, err = run(tools.write(folder .. '/none.lua', 'local x = 1 return x'))
    assert.equal(2, status)
    tools.says('none.lua takes no configuration: it does not call ms.config', err)
    status, _, err = run(tools.write(folder .. '/bad.lua', 'error "its own"'))
    assert.equal(1, status)
    tools.says('bad.lua:1: its own', err)
    status, _, err = run(folder .. '/nowhere.lua')
    assert.equal(1, status)
    tools.says('nowhere.lua: No such file', err)
  end)

  it('counts log-probabilities as they are sent', function()
    for _, words in ipairs { 'ranks=2', 'recipes/distill.lua recipes/distill.yaml ranks=2' } do
      local out = plan(words .. ' teacher_grid.ranks=0 grid.ranks=1 kd.k=10 transfer.dtype=bf16')
      tools.says({ 'a row of targets: 64 bytes, the 10 likeliest ids', '1 message: ' }, out)
      tools.says('a row of targets: 84 bytes', plan(words .. ' teacher_grid.ranks=0 grid.ranks=1 kd.k=10'))
    end
  end)

  it('counts hidden states and the head that goes with them', function()
    local out = plan 'ranks=3 kd.target=hidden teacher=tests/fixtures/qwen3 teacher_grid.ranks=2 grid.ranks=0-1'
    local config = ms.json.decode(tools.read 'tests/fixtures/qwen3/config.json')
    tools.says({ ('a row of targets: %d bytes, hidden states of %d'):format(4 * config.hidden_size, config.hidden_size),
      "each of the student's ranks reads its part of the teacher's head" }, (out:gsub('\n *', ' ')))
    local status, _, err = run 'ranks=2 kd.target=hidden'
    assert.equal(2, status)
    tools.says("teacher=FOLDER is needed: kd.target is 'hidden'", err)
  end)

  it('draws it', function()
    local path = folder .. '/plan.svg'
    local out = plan('ranks=6 grid.ranks=2-5 grid.tp=2 teacher_grid.ranks=0-1 plot=' .. path)
    tools.says('the picture is in ' .. path, (out:gsub('\n *', ' ')))
    local text = tools.read(path)
    assert.equal(16, count_of(text, '<title>'))
    tools.says({ 'teacher dp 2 x tp 1 on ranks 0-1 to student dp 2 x tp 2 on ranks 2-5', '>4 student 1.0<',
      '<title>0 to 2: 4 samples, 1024 rows, 516 KiB; send phase 0</title>' }, text)
  end)

  it('has room for any number of ranks', function()
    local out = plan('ranks=4096 grid.tp=8 grid.ranks=0-2047 teacher_grid.tp=16 teacher_grid.ranks=2048-4095 '
      .. 'batch.tokens=1000000 per_machine=8')
    tools.says({ 'and 104 more', 'and 232 more', '2048-2063  256-257' }, out)
    for _, columns in ipairs { 80, 60, 40 } do
      out = plan('ranks=14 grid.ranks=4-9 grid.tp=3 teacher_grid.ranks=0-5,10,12 teacher_grid.tp=4',
        'COLUMNS=' .. columns)
      for line in out:gmatch '[^\n]+' do assert.is_true(layout.width(line) <= columns, line) end
    end
  end)

  it('refuses what is no plan', function()
    for arguments, words in ms.sorted.pairs {
      ['ranks=6 grid.tp=4'] = 'grid: tp = 4 does not divide the ranks: there are 6',
      ['ranks=6 grid.pp=2'] = "grid: 'pp' (layers on several ranks) is not there yet; dp and tp are",
      ['ranks=6 teacher_grid.ranks=0-9'] = "grid: ranks = '0-9', but there are 6 ranks, 0 to 5",
      ['ranks=6 teacher_grid.pt=2'] = "no option 'teacher_grid.pt'; did you mean 'teacher_grid.tp'?",
      ['ranks=0'] = "'ranks' must be integer from 1 to 65536, not 0",
      ['rank=3'] = "no option 'rank'; did you mean 'ranks'?",
      ['nowhere.yaml'] = 'nowhere.yaml: no such file',
      ['ranks=2 data.train=' .. folder .. '/train.jsonl'] = 'student=FOLDER or teacher=FOLDER is needed',
    } do
      local status, _, err = run(arguments)
      assert.equal(2, status, arguments)
      tools.says(words, err)
    end
  end)
end)
