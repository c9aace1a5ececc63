--- Ranks: one that is alone, and a run of two beside that of one.
local json = require 'moonstill.base.json'
local launched = require 'tests.support.launched'
local ranks = require 'moonstill.base.ranks'
local tools = require 'tests.support.tools'

describe('a rank that is alone', function()
  it('has what all have', function()
    local alone = ranks.world()
    assert.same({ 0, 1, true, true }, { alone.rank, alone.size, alone.writes, alone.prints })
    local list = { 1 / 3, -0.0, 1e300 }
    assert.equal(list, alone:sum(list))
    assert.same({ 1 / 3, -0.0, 1e300 }, list)
    for _, value in ipairs { 0, -7, 1 / 3, 1e-300, '', 'x', 'a\0b\255', ('x'):rep(1000) } do
      assert.equal(value, alone:first(value))
    end
    assert.is_nil(alone:first(nil))
    assert.equal('ab', alone:write(function(a, b) return a .. b end, 'a', 'b'))
    assert.is_nil(alone:write(function() end))
    assert.same({ 4, 5 }, (alone:share({ 4, 5 }, { 1, 2 })))
    assert.same({}, (alone:share({}, {})))
    assert.equal(7, alone:most(7))
    assert.same({ { 4, 5 }, 0 }, { alone:part { 4, 5 } })
  end)
end)

describe('work that ranks share', function()
  local class = getmetatable(ranks.world())
  local function deal(size, costs) return ranks.deal(costs, size) end

  it('goes to who has least, the dearest first', function()
    -- in turn they would be 9 + 1 + 1 and 5 + 5
    assert.same({ { 0, 1, 0, 1, 1 }, 3 }, { deal(2, { 9, 5, 1, 4, 1 }) })
    assert.same({ { 0, 1, 1, 1, 1 }, 4 }, { deal(2, { 8, 2, 2, 2, 2 }) })
    assert.same({ { 0, 1, 2 }, 1 }, { deal(4, { 1, 1, 1 }) })
    assert.same({ {}, 0 }, { deal(3, {}) })
  end)

  it('is shared out whole, each entry once', function()
    local list, costs = {}, {}
    local values = tools.integers(50, 3, 1000)
    for i = 1, 50 do list[i], costs[i] = 'entry ' .. i, values[i - 1] end
    local seen, sums, counts, most = 0, {}, {}, nil
    for rank = 0, 6 do
      local of = setmetatable({ size = 7, rank = rank }, class)
      local part
      part, most = of:share(list, costs)
      sums[rank + 1], counts[rank + 1] = 0, #part
      for k, entry in ipairs(part) do
        local i = tonumber(entry:match '%d+')
        assert.is_true(k == 1 or i > tonumber(part[k - 1]:match '%d+')) -- in the order of the list
        sums[rank + 1], seen = sums[rank + 1] + costs[i], seen + 1
      end
      local neighbours, before = of:part(list)
      assert.equal(math.floor(50 * rank / 7), before)
      assert.equal('entry ' .. before + 1, neighbours[1])
      assert.equal(math.floor(50 * (rank + 1) / 7), before + #neighbours)
    end
    assert.equal(50, seen)
    assert.equal(math.max(unpack(counts)), most)
    -- whoever has most had least before it took its last entry, which was none of the dear ones
    assert.is_true(math.max(unpack(sums)) - math.min(unpack(sums)) <= 100, table.concat(sums, ' '))
  end)
end)

-- Two ranks ------------------------------------------------------------------------------------

-- A run of `steps` steps by so many ranks: what each has in the end, what is printed, and what the others
-- would print.
local function train(folder, count, steps, resume, ...)
  local results, logs, all = folder .. '/results', folder .. '/logs', {}
  tools.run(('rm -rf %s && mkdir -p %s'):format(results, results))
  local words = { 'tests/programs/ranks_run.lua', 'output=' .. folder .. '/out', 'results=' .. results,
    'steps=' .. steps, 'resume=' .. tostring(resume), ... }
  local status, _, err
  if count == 1 then
    status, _, err = launched.run(unpack(words))
  else
    status, _, err = launched.run('-n', count, '--logs', logs, unpack(words))
  end
  assert.equal(0, status, err)
  for rank = 0, count - 1 do all[rank + 1] = json.read(('%s/rank-%d.json'):format(results, rank)) end
  return all, err, count > 1 and tools.read(logs .. '/rank-1.log')
end

local function files_of(folder)
  return (select(2, tools.run(('cd %s && find . -type f | LC_ALL=C sort'):format(folder))))
end

-- Numbers agree as DESIGN section 4 asks of sums in another order, until updates have made more of it.
local function assert_near(a, b, tolerance, where)
  if type(a) == 'table' then
    for key, value in pairs(a) do assert_near(value, b[key], tolerance, where .. '.' .. key) end
  elseif type(a) == 'number' then
    assert.is_true(math.abs(a - b) <= tolerance * math.max(1e-3, math.abs(b)), ('%s: %.9g, %.9g'):format(where, a, b))
  else
    assert.equal(a, b, where)
  end
end

-- dp: how many models learn, whose gradients are sent.
local function metrics_of(folder, dp)
  local list = {}
  for _, entry in json.lines(folder .. '/metrics.jsonl') do
    assert.equal(dp > 1 and entry.kind == 'train', (entry.sent or 0) > 0)
    entry.seconds, entry.tokens_per_second, entry.sent = nil, nil, nil
    list[#list + 1] = entry
  end
  return list
end

describe('a run of two ranks', function()
  if launched.missing then return it('is one run', function() pending(launched.missing) end) end

  it('is one run: its numbers, what it writes, what it prints, and how it goes on', function()
    local one, two = tools.folder(), tools.folder()
    for i, steps in ipairs { 2, 3, 5, 5 } do -- then begin anew, go on, and find that they are finished
      local alone = train(one, 1, steps, i ~= 2)[1]
      local both, told, others = train(two, 2, steps, i ~= 2)
      assert.equal(both[1].hash, both[2].hash)
      assert.equal(both[1].id, both[2].id)
      assert.same(both[1].state, both[2].state)
      assert.same(alone.norms, both[1].norms)
      assert.same(both[1].norms, both[2].norms)
      assert.equal('', others)
      assert.equal(i < 4, told:find 'messages of a step of 2 ranks: .*; by formula .*: gradients' ~= nil, told)
      assert.equal(i < 4, told:find('step ' .. steps .. '/' .. steps, 1, true) ~= nil, told)
      assert.equal(i == 3, told:find('resumed after step 3 of 5', 1, true) ~= nil, told)
      assert.equal(i == 4, told:find('finished already after 5 steps', 1, true) ~= nil, told)
    end
    assert.equal(files_of(one .. '/out'), files_of(two .. '/out'))
    local want, got = metrics_of(one .. '/out', 1), metrics_of(two .. '/out', 2)
    assert.equal(#want, #got)
    for i, entry in ipairs(want) do
      assert_near(entry, got[i], entry.step == 1 and 1e-6 or 1e-4, 'line ' .. i)
    end
  end)
end)

-- A teacher with more ids than the student; that every rank has whole; targets of each kind.
local CUT = {
  { 2, 'tp=2', 'target=hidden', 'ids=57' },
  { 2, 'tp=2', 'target=topk', 'ids=48', 'shard=optimizer' },
  { 4, 'tp=2', 'target=logits', 'ids=57', 'shard=optimizer' },
  { 4, 'tp=2', 'target=topk', 'ids=40' },
  { 2, 'tp=2', 'target=topk', 'ids=48', 'whole_teacher=true' },
}

describe('a run whose models are cut over ranks', function()
  if launched.missing then return it('is one run', function() pending(launched.missing) end) end

  for _, layout in ipairs(CUT) do
    it('is one run: ' .. table.concat(layout, ' '), function()
      local one, many = tools.folder(), tools.folder()
      local alone = train(one, 1, 3, true, layout[3], layout[4])[1]
      local all = train(many, layout[1], 3, true, unpack(layout, 2))
      for _, rank in ipairs(all) do
        assert.same(all[1].hash, rank.hash)
        assert.same(all[1].state, rank.state)
        assert.same(alone.norms, rank.norms)
        assert.same(alone.said, rank.said)
      end
      assert.equal(files_of(one .. '/out'), files_of(many .. '/out'))
      local want, got = metrics_of(one .. '/out', 1), metrics_of(many .. '/out', layout[1] / 2)
      assert.equal(#want, #got)
      for i, entry in ipairs(want) do
        assert_near(entry, got[i], entry.step == 1 and 1e-6 or 1e-4, 'line ' .. i)
      end
    end)
  end

  it('goes on cut otherwise, or whole', function()
    local one, other = tools.folder(), tools.folder()
    local want, got
    for i, layout in ipairs { { 2, 'tp=2' }, { 1 }, { 4, 'tp=2', 'shard=optimizer' }, { 2 } } do
      want = train(one, 1, i + 1, true)[1]
      got = train(other, layout[1], i + 1, true, unpack(layout, 2))[1]
    end
    assert_near(want.state, got.state, 1e-4, 'state')
  end)

  it('is that of a recipe whose teacher has more ids', function()
    local folder = tools.folder()
    local function run(...)
      local status, _, err = launched.run(...)
      assert.equal(0, status, err)
    end
    run('recipes/sft.lua', '--smoke', 'max_steps=1', 'validate=0', 'output=' .. folder .. '/sft')
    run('-e', ([[
      local ms, from, to = require 'moonstill', %q, %q
      local config = ms.model.open(from):config()
      config.vocab_size = config.vocab_size + 37
      ms.model.create(config, 3):save(to, { carry = from })]]):format(folder .. '/sft/student', folder .. '/teacher'))
    local rows = {}
    for i = 1, 12 do rows[i] = json.encode { question = 'what is ' .. i, answer = 'it is ' .. 7 * i } end
    tools.write(folder .. '/data.jsonl', table.concat(rows, '\n'))
    local words = { 'recipes/distill.lua', 'student=' .. folder .. '/sft/student', 'teacher=' .. folder .. '/teacher',
      'data.train=' .. folder .. '/data.jsonl', 'epochs=2', 'kd.target=hidden', 'output=' .. folder .. '/one' }
    run(unpack(words))
    words[#words], words[#words + 1] = 'output=' .. folder .. '/two', 'grid.tp=2'
    run('-n', 2, unpack(words))
    local want, got = metrics_of(folder .. '/one', 1), metrics_of(folder .. '/two', 1)
    assert.is_true(#want > 0 and #want == #got)
    for i, entry in ipairs(want) do assert_near(entry, got[i], i == 1 and 1e-6 or 1e-4, 'line ' .. i) end
  end)

  it('asks for models that are cut alike', function()
    local script = [[
      local ms, config = require 'moonstill', require('tests.programs.run_recipe').config
      local function model(ids, options)
        local c = {}
        for key, value in pairs(config) do c[key] = value end
        c.vocab_size = ids
        return ms.model.create(c, 1, options)
      end
      local function try(student, teacher, target)
        local n = tonumber(os.getenv 'OMPI_COMM_WORLD_RANK')
        local batch = ms.batch { { tokens = { 1, 2, 3, student:grid().dp.rank }, response = { 1, 1, 1, 0 } } }
        local ok, why = pcall(function()
          local how = { target = target, k = target == 'topk' and 4 or nil, vocab = 40 }
          student:learn(batch, { ms.kd(teacher:targets(batch, how), 1, how) })
        end)
        if n == 0 then print(ok, why) end
      end
      local cut = { train = true, grid = ms.grid { tp = 2 } }
      try(model(40, cut), model(57, { grid = cut.grid }), 'hidden')
      try(model(40, cut), model(57, { grid = cut.grid, vocab_cut = 40 }), 'hidden')
      try(model(40, { train = true }), model(40, { grid = cut.grid }), 'topk')
    ]]
    local status, out, err = launched.run('-n', 2, '-e', script)
    assert.equal(0, status, err)
    tools.says({ 'with vocab_cut = 40', 'true', 'were given different ones: models that learn from each other' }, out)
  end)
end)

describe('the modules', function()
  it('leave it to the ranks to say who prints and who writes', function()
    local others = {}
    for path in select(2, tools.run "find lua -name '*.lua'"):gmatch '%S+' do
      local text = tools.read(path)
      if not path:find '/prompt/' and not path:find '/base/progress%.lua$' and not path:find '/base/ranks%.lua$'
        and not path:find '/base/grid%.lua$'
        and (text:find('io.stderr', 1, true) or text:find('[%.:]rank%f[%W]')) then
        others[#others + 1] = path
      end
    end
    assert.same({}, others)
  end)
end)
