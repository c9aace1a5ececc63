--- Teacher and student on ranks of their own: whatever the placement, the update is that of one process.
local json = require 'moonstill.base.json'
local launched = require 'tests.support.launched'
local placed = require 'tests.programs.placed_recipe'
local tools = require 'tests.support.tools'

if launched.missing then return pending('transfers', launched.missing) end

local folder = tools.folder()
tools.run('mkdir -p ' .. folder .. '/models')
placed.save_models(folder .. '/models')

local RECIPE = 'tests/programs/placed_recipe.lua'

-- Starts the small run in a folder; its status and what it said.
local function again(out, ranks, ...)
  local status, _, err = launched.run('-n', ranks, RECIPE, 'models=' .. folder .. '/models', 'output=' .. out .. '/out',
    'gradients=' .. out .. '/gradients', ...)
  return status, err
end

local function start(ranks, ...)
  local out = tools.folder()
  return out, again(out, ranks, ...)
end

local function run(ranks, ...)
  local out, status, err = start(ranks, ...)
  assert.equal(0, status, err)
  return out
end

local function metrics_of(out)
  local list = {}
  for _, entry in json.lines(out .. '/out/metrics.jsonl') do
    entry.seconds, entry.tokens_per_second, entry.transfer = nil, nil, nil
    list[#list + 1] = json.encode(entry)
  end
  return list
end

local function weights_of(out) return tools.read(out .. '/out/student/model.safetensors') end

-- Everything that a run computes, bit for bit: what is carried is what was made, and the student's ranks do
-- with it what they do where the teacher is beside them.
local function assert_same(want, got)
  assert.same(metrics_of(want), metrics_of(got))
  assert.is_true(tools.read(want .. '/gradients') == tools.read(got .. '/gradients'), 'gradients differ')
  assert.is_true(weights_of(want) == weights_of(got), 'weights differ')
end

-- Losses to 1e-6, gradients to 1e-5 of each tensor's largest element: DESIGN, section 4.
local function assert_losses_near(want, got)
  local a, b = metrics_of(want), metrics_of(got)
  assert.equal(#a, #b)
  for i = 1, #a do
    local x, y = json.decode(a[i]).loss, json.decode(b[i]).loss
    assert.is_true(math.abs(x - y) <= 1e-6 * math.max(1, math.abs(x)), ('%.9g, %.9g'):format(x, y))
  end
end

local function assert_near(want, got)
  assert_losses_near(want, got)
  local most, apart, other = {}, {}, io.lines(got .. '/gradients')
  for line in io.lines(want .. '/gradients') do
    local name, x = line:match '^(%S+) (%S+)$'
    local same, y = other():match '^(%S+) (%S+)$'
    assert.equal(name, same)
    most[name] = math.max(most[name] or 0, math.abs(x))
    apart[name] = math.max(apart[name] or 0, math.abs(x - y))
  end
  assert.is_nil(other())
  for name, x in pairs(most) do
    assert.is_true(apart[name] <= 1e-5 * x, ('%s: %g of %g'):format(name, apart[name], x))
  end
end

local known = {}

-- A run of one process, or of so many ranks that all have both models; made once.
local function beside(ranks, ...)
  local key = table.concat({ ranks, ... }, ' ')
  known[key] = known[key] or run(ranks, ...)
  return known[key]
end

describe('a teacher on other ranks', function()
  for _, case in ipairs {
    { 2, '0', '1' }, { 2, '1', '0' }, { 2, '0-1', '1' }, { 3, '0-1', '2' }, { 3, '2,0', '1' },
    { 3, '0', '1-2' }, { 3, '0-1', '1-2' }, { 3, '0-2', '1-2' }, { 2, '0', '0-1' }, { 4, '0-1', '3,2' },
  } do
    local ranks, teacher, student = unpack(case)
    it(('makes the same update: teacher on %s, student on %s'):format(teacher, student), function()
      local out = run(ranks, 'teacher_grid.ranks=' .. teacher, 'grid.ranks=' .. student)
      local parts = student:find '[-,]' and 2 or 1
      assert_same(beside(parts), out)
      if parts > 1 then assert_near(beside(1), out) end
    end)
  end

  for _, kind in ipairs { 'topk', 'hidden', 'logits' } do
    it('gives ' .. kind .. ' targets for every objective, beside a second teacher elsewhere', function()
      local options = { 'kd.target=' .. kind, 'kd.temperature=1.5', 'kd.on=all', 'objectives=true', 'two=true' }
      local out = run(3, 'teacher_grid.ranks=0', 'grid.ranks=2', 'second_grid.ranks=1-2', unpack(options))
      assert_same(beside(1, unpack(options)), out)
    end)
  end

  for _, kind in ipairs { 'topk', 'hidden' } do
    it('may be cut, and so may the student: ' .. kind, function()
      local options = { 'kd.target=' .. kind, 'validation=itself' }
      local want = beside(1, unpack(options))
      for _, case in ipairs {
        { 3, 'teacher_grid.ranks=0-1', 'teacher_grid.tp=2', 'grid.ranks=2' },
        { 3, 'teacher_grid.ranks=0', 'grid.ranks=1-2', 'grid.tp=2' },
        { 4, 'teacher_grid.ranks=0-1', 'teacher_grid.tp=2', 'grid.ranks=2-3', 'grid.tp=2' },
        { 4, 'teacher_grid.ranks=0-1', 'teacher_grid.tp=2', 'grid.ranks=0-3', 'grid.tp=2' },
        { 2, 'teacher_grid.dp=2', 'grid.tp=2' },
      } do
        local words = { unpack(case, 2) }
        for _, option in ipairs(options) do words[#words + 1] = option end
        assert_losses_near(want, run(case[1], unpack(words))) -- of updates before them, too
      end
    end)
  end

  it('has what comes between its head and the softmax', function()
    for _, kind in ipairs { 'hidden', 'logits' } do
      local options = { 'teacher=capped', 'kd.target=' .. kind }
      assert_near(beside(1, unpack(options)), run(2, 'teacher_grid.ranks=1', 'grid.ranks=0', unpack(options)))
    end
  end)

  it('may send less exact numbers', function()
    local exact, out = beside(1), run(2, 'teacher_grid.ranks=0', 'grid.ranks=1', 'transfer.dtype=bf16')
    local a, b = json.decode(metrics_of(exact)[1]), json.decode(metrics_of(out)[1])
    assert.not_equal(a.loss, b.loss)
    -- a log-probability of up to 4 is off by up to 2^-8 of itself, and so is the sum of p log p
    assert.is_true(math.abs(a.loss - b.loss) < 2 ^ -6, b.loss)
  end)

  it('measures, too: what the run validates, and what the recipe asks for', function()
    local own = { 'validation=itself', 'validate=2' }
    assert_same(beside(1, unpack(own)), run(3, 'teacher_grid.ranks=0-1', 'grid.ranks=2', unpack(own)))
    assert_same(beside(2, 'validation=asked'), run(3, 'teacher_grid.ranks=0', 'grid.ranks=1-2', 'validation=asked'))
  end)
end)

describe('ranks that have the teacher alone', function()
  local APART = { 'teacher_grid.ranks=0', 'grid.ranks=1' }
  local function apart(depth, ...)
    local words = { 'transfer.depth=' .. depth, ... }
    for _, word in ipairs(APART) do words[#words + 1] = word end
    return unpack(words)
  end

  for depth = 1, 3 do
    describe(('%d steps ahead'):format(depth), function()
      it('know what a schedule asks for', function()
        local options = { 'follow=true', 'max_steps=7' }
        assert_same(beside(1, unpack(options)), run(2, apart(depth, unpack(options))))
      end)

      it('are so many, and no more', function()
        local out = run(2, apart(depth, 'lead=true', 'slow_student=60', 'batch.micro_tokens=150', 'max_steps=8'))
        assert.equal(depth, tonumber(tools.read(out .. '/out/lead')))
      end)

      it('leave nothing to a next run', function()
        assert_same(beside(1), run(2, apart(depth, 'before=2')))
      end)

      it('stop where the loop does, by number or by loss', function()
        local out = run(2, apart(depth, 'stop_at=3', 'max_steps=9'))
        assert.equal(3, #metrics_of(out))
        assert.is_true(weights_of(beside(1, 'stop_at=3', 'max_steps=9')) == weights_of(out))
        local first = json.decode(metrics_of(out)[1]).loss
        local options = { 'stop_below=' .. first - 0.05, 'max_steps=15' }
        out = run(2, apart(depth, unpack(options)))
        local n = #metrics_of(out)
        assert.is_true(n > 1 and n < 15, n)
        assert.same(metrics_of(beside(1, unpack(options))), metrics_of(out))
      end)

      it('end with a run whose gradients stay not finite', function()
        local out, status, err = start(2, apart(depth, 'nan_from=3', 'max_steps=15'))
        assert.equal(1, status)
        assert.equal(5, #metrics_of(out))
        tools.says('the gradient was not finite in 3 steps in a row, up to step 5', err)
      end)

      it('end with an interrupted run, which goes on, placed as it may be', function()
        -- messages that do not go out before somebody asks for them: there are more than a few KiB in each
        local large = { 'max_steps=6', 'kd.k=30', 'kd.on=all', 'slow_student=60' }
        local want = beside(1, unpack(large))
        local out, status, err = start(2, apart(depth, 'interrupt_at=3', 'on_rank=1', unpack(large)))
        assert.equal(130, status, err)
        tools.says('interrupted after step 3 of 6, which is saved', err)
        status, err = again(out, 3, 'teacher_grid.ranks=0-1', 'grid.ranks=2', unpack(large))
        assert.equal(0, status, err)
        assert_same(want, out)
      end)

      it('end with the rank that fails or dies, and it with them', function()
        local out, status, err = start(2, apart(depth, 'fail_at=3', 'on_rank=' .. depth % 2, 'max_steps=9'))
        assert.equal(1, status)
        tools.says('this rank fails', err)
        out, status = start(2, apart(depth, 'kill_at=5', 'on_rank=' .. (depth + 1) % 2, 'max_steps=6'))
        assert.equal(137, status)
        status, err = again(out, 2, apart(depth, 'max_steps=6'))
        assert.equal(0, status, err)
        assert_same(beside(1, 'max_steps=6'), out)
      end)
    end)
  end

  it('go on while the student learns, unless its loss is asked for', function()
    local function seconds(...)
      local out = run(2, apart(2, 'slow_teacher=80', 'slow_student=80', 'batch.micro_tokens=150', 'max_steps=12', ...))
      local last, first
      for _, entry in json.lines(out .. '/out/metrics.jsonl') do
        first = first or entry.seconds
        last = (last or 0) + entry.seconds
      end
      return last - first
    end
    local ahead, behind = seconds(), seconds 'follow=true'
    -- 11 steps of 80 ms where both work at once, of 160 ms where one waits for the other
    assert.is_true(ahead < 0.75 * behind, ('%.2f s, %.2f s'):format(ahead, behind))
    assert.is_true(behind > 11 * 0.14, behind) -- a step begins once the last one is known
  end)

  it('say what went through a transfer, by tensor', function()
    local out = run(2, apart(1, 'own_transfer=3', 'max_steps=4', 'kd.k=5'))
    local sent = json.read(out .. '/out/transfer-1-0.json')
    local received = json.read(out .. '/out/transfer-1-1.json')
    assert.same(sent.sent, received.received)
    assert.same({ 'topk', 4, 4 }, { sent.kind, sent.messages, received.messages })
    local rows = 0
    for _, entry in json.lines(out .. '/out/metrics.jsonl') do
      rows = rows + entry.terms.kd.rows
      assert.equal(4 * entry.terms.kd.rows, entry.transfer[1].received.log_rest)
    end
    assert.same({ ids = 20 * rows, log_p = 20 * rows, log_rest = 4 * rows },
      { ids = sent.sent.ids, log_p = sent.sent.log_p, log_rest = sent.sent.log_rest })
    assert.is_true(received.most > 0 and received.seconds.wait >= 0)
  end)
end)

describe('what carries targets', function()
  -- All bytes that went to or came from other ranks, and those of them that were shared.
  local function carried(out, ranks)
    local bytes, shared = 0, 0
    for rank = 0, ranks - 1 do
      local info = json.read(('%s/out/transfer-1-%d.json'):format(out, rank))
      for _, way in ipairs { 'sent', 'received' } do
        for _, n in pairs(info[way]) do bytes = bytes + n end
      end
      shared = shared + info.shared
    end
    return bytes, shared
  end

  for _, backend in ipairs { 'auto', 'shm', 'mpi' } do
    it(backend .. ' is used', function()
      -- blocks of one page, and then of several, for which there must be new memory
      local options = { 'kd.k=40', 'kd.on=all', 'batch.tokens=20', 'batch.micro_tokens=20', 'max_steps=12' }
      local out = run(4, 'own_transfer=2', 'transfer.backend=' .. backend, 'teacher_grid.ranks=0-1', 'grid.ranks=3,1',
        unpack(options))
      local bytes, shared = carried(out, 4)
      assert.is_true(bytes > 20 * 4096, bytes)
      assert.equal(backend ~= 'mpi' and bytes or 0, shared)
      assert_same(beside(2, unpack(options)), out)
    end)
  end

  it('drops what nobody has read', function()
    for _, backend in ipairs { 'shm', 'mpi' } do
      local out, status, err = start(2, 'teacher_grid.ranks=0', 'grid.ranks=1', 'transfer.backend=' .. backend,
        'slow_student=100', 'batch.micro_tokens=150', 'interrupt_at=3', 'on_rank=1', 'max_steps=9')
      assert.equal(130, status, err)
      assert.equal(3, #metrics_of(out))
    end
  end)

  -- What a run says whose ranks cannot find each other.
  local function without_sockets(backend)
    return launched.run('-n', 2, '-e', ([[
      local ranks, recipe = require 'moonstill.base.ranks', require 'tests.programs.run_recipe'
      ranks.channels().apart = 'shm: there are no sockets'
      local student = ms.model.open(%q, { train = true, grid = ms.grid { ranks = 0 } })
      local teacher = ms.model.open(%q, { grid = ms.grid { ranks = 1 } })
      local transfer = ms.transfer { from = teacher, to = student, backend = %q }
      local run = ms.run.open({ output = %q, optim = { lr = 1 }, max_steps = 2, epochs = 0 },
        { student = student, data = recipe.data(9), quiet = true })
      for step in run:steps() do
        for batch in step:micro_batches() do
          student:learn(batch, { ms.ce(), ms.kd(teacher:targets(batch, { k = 4 })) })
        end
        step:update()
      end
      assert(transfer:info()[1].shared == 0)
      run:finish()]]):format(folder .. '/models/student', folder .. '/models/student', backend,
      tools.folder() .. '/out'))
  end

  it('is said where it cannot be, and messages are sent where they may be', function()
    local status, _, err = without_sockets 'shm'
    assert.equal(1, status)
    tools.says("transfer: backend 'shm', but ranks cannot share memory here: shm: there are no sockets; 'auto' sends",
      err)
    status, _, err = without_sockets 'auto'
    assert.equal(0, status, err)
  end)
end)

describe('what does not come from other ranks yet', function()
  -- Lua code that all ranks run, with a grid of rank 0 and one of rank 1; it must fail.
  local function refused(words, code)
    local status, _, err = launched.run('-n', 2, '-e', ([[
      local recipe = require 'tests.programs.run_recipe'
      local a, b, out = ms.grid { ranks = 0 }, ms.grid { ranks = 1 }, %q
      local student = ms.model.open(%q, { train = true, grid = a })
      ]]):format(tools.folder() .. '/out', folder .. '/models/student') .. code)
    assert.equal(1, status)
    tools.says(words, err)
  end

  it('is refused by name', function()
    refused('step:use: the student lies on some of the ranks (grid of 1 rank of 2: 0', [[
      local run = ms.run.open({ output = out, optim = { lr = 1 } }, { student = student, data = recipe.data(9) })
      for step in run:steps() do step:use {} end]])
    refused('run.open: a run without data needs its student on all ranks', [[
      ms.run.open({ output = out, optim = { lr = 1 }, max_steps = 2 }, { student = student })]])
    refused('hidden targets need the head of the teacher', [[
      local teacher = ms.model.create(recipe.config, 2, { grid = b })
      local run = ms.run.open({ output = out, optim = { lr = 1 } }, { student = student, data = recipe.data(9) })
      for step in run:steps() do
        for batch in step:micro_batches() do teacher:targets(batch, { target = 'hidden' }) end
      end]])
    refused('targets: other ranks have the teacher', [[
      local teacher = ms.model.create(recipe.config, 2, { grid = b })
      if student:grid().holds then teacher:targets(recipe.data(9):batch { 1, 2 }) end
      ms.grid().world:sum { 1 }]])
    refused('model:generate: other ranks have the model', [[
      if not student:grid().holds then student:generate { { 1 } } end
      ms.grid().world:sum { 1 }]])
    refused('the ranks have different training data', [[
      ms.run.open({ output = out, optim = { lr = 1 }, epochs = 1 },
        { student = student, data = recipe.data(9, student:grid().holds and 1 or 2) })]])
  end)
end)
