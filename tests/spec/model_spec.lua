local ffi = require 'ffi'
local ms = require 'moonstill'
local C = require 'moonstill.C'
local models = require 'tests.support.models'
local tools = require 'tests.support.tools'

local VOCAB = 37

local refused = tools.refused

local function create(options, changes) return ms.model.create(models.config(changes), 5, options) end

local function logits_of(model)
  local batch = ms.batch { models.ids(9, 1, VOCAB) }
  local z = model:logits(batch)
  batch:free()
  return z
end

describe('model', function()
  it('is made from a config, the same for the same seed', function()
    local a, b = create(), ms.model.create(require 'moonstill.base.json'.encode(models.config()), 5)
    local c = ms.model.create(models.config(), 6)
    assert.is_true(models.same_bits(logits_of(a), logits_of(b), 9 * VOCAB))
    assert.is_false((models.same_bits(logits_of(a), logits_of(c), 9 * VOCAB)))
    for _, m in ipairs { a, b, c } do m:free() end
  end)

  it('says which of its weights is not finite', function()
    ms.scope(function(own)
      for _, dtype in ipairs { 'f32', 'bf16' } do
        local model = own(ms.model.create(models.config(), 1, { dtype = dtype }))
        assert.equal(model:hash(), model:check_finite():hash())
        for name, weight in model:parameters() do
          if name == 'model.layers.1.mlp.down_proj.weight' then -- [24, 40]
            local values = weight:read()
            values[2 * 40 + 8], values[3 * 40 + 1] = 1 / 0, 0 / 0
            weight:write(values)
          end
          weight:free()
        end
        tools.fails("'model.layers.1.mlp.down_proj.weight' holds NaN or infinity, first at row 2, column 7",
          model.check_finite, model)
      end
    end)
  end)

  it('has a hash of all its weights and its configuration', function()
    ms.scope(function(own)
      local wide = { vocab_size = 12000 } -- an embedding of more than 1 MiB, which is hashed in pieces
      local model = own(create(nil, wide))
      local first = model:hash()
      assert.matches('^%x+$', first)
      assert.equal(32, #first)
      assert.equal(first, own(create(nil, wide)):hash())
      for _, weight in model:parameters() do
        own(weight)
        local n = weight:count()
        local values = weight:read(ffi.new('float[?]', n))
        local last = values[n - 1]
        values[n - 1] = last + 1
        weight:write(values)
        assert.are_not.equal(first, model:hash())
        values[n - 1] = last
        weight:write(values)
      end
      assert.equal(first, model:hash())
      assert.are_not.equal(create():hash(), create(nil, { rope_theta = 5000 }):hash())
      local live = tonumber(C.ms_test_live())
      for n = 1, 3 do -- its buffer, the configuration's text, its own
        C.ms_test_fail_alloc(n)
        local ok = pcall(model.hash, model)
        C.ms_test_fail_alloc(0)
        assert.is_false(ok)
        assert.equal(live, tonumber(C.ms_test_live()))
      end
      assert.are_not.equal(first, own(ms.model.copy(model, { dtype = 'bf16' })):hash())
    end)
  end)

  it('goes to a folder and back', function()
    local at = tools.folder() .. '/model'
    local model = create()
    assert.equal(model, model:save(at))
    local again = ms.model.open(at, { dtype = 'f32' })
    assert.is_true(models.same_bits(logits_of(model), logits_of(again), 9 * VOCAB))
    assert.equal(again:info().path, at)
    assert.equal(again:config().hidden_size, 24)
    model:save(at .. '-half', { dtype = 'bf16' })
    local half = ms.model.open(at .. '-half')
    assert.equal('bf16', half:info().dtype)
    for _, m in ipairs { model, again, half } do m:free() end
  end)

  it('shrinks to chosen layers, or to a number of them', function()
    local teacher = create({}, { num_hidden_layers = 7 })
    local function weight_of(model, name)
      for n, weight in model:parameters() do
        if n == name then return weight:read() end
      end
    end
    for count, want in pairs { [1] = { 0 }, [2] = { 0, 6 }, [3] = { 0, 3, 6 }, [7] = { 0, 1, 2, 3, 4, 5, 6 } } do
      local student = ms.model.shrink(teacher, { layers = count, train = true })
      assert.equal(count, student:info().layers)
      for i, layer in ipairs(want) do
        assert.same(weight_of(teacher, ('model.layers.%d.mlp.up_proj.weight'):format(layer)),
          weight_of(student, ('model.layers.%d.mlp.up_proj.weight'):format(i - 1)))
      end
      student:free()
    end
    local student = ms.model.shrink(teacher, { layers = { 2, 5 } })
    assert.same(weight_of(teacher, 'model.layers.5.self_attn.q_proj.weight'),
      weight_of(student, 'model.layers.1.self_attn.q_proj.weight'))
    student:free()
    refused('layers = 0, expected an integer in 1%.%.7', ms.model.shrink, teacher, { layers = 0 })
    refused('layers = 8, expected an integer in 1%.%.7', ms.model.shrink, teacher, { layers = 8 })
    refused('layers = a list', ms.model.shrink, teacher, {})
    teacher:free()
  end)

  it('keeps the patterns of a list alive while the core reads them', function()
    local teacher, new, junk = create({}), ffi.new, {}
    ffi.new = function(...) -- as if the collector had its turn at every allocation
      local x = new(...)
      collectgarbage()
      collectgarbage()
      for i = 1, 100 do junk[i] = ('%016d'):format(i) end -- takes the place of what was freed
      return x
    end
    local ok, student = pcall(ms.model.shrink, teacher, { layers = 1, train = true,
      frozen = { '*q_pro*', 'model.n*' } })
    ffi.new = new
    assert.equal(100, #junk)
    assert.is_true(ok, tostring(student))
    for name, _, gradient in student:parameters() do
      assert.equal(name:find 'q_proj' ~= nil or name == 'model.norm.weight', gradient == nil, name)
    end
    student:free()
    teacher:free()
  end)

  it('shows its parameters and gradients, which outlive it', function()
    local model = create { train = true, frozen = { '*norm*', 'lm_head.*' } }
    local names, with = 0, 0
    local kept
    for name, weight, gradient in model:parameters() do
      names = names + 1
      if gradient then with = with + 1 end
      assert.equal(not (name:find 'norm' or name:find 'lm_head'), gradient ~= nil)
      kept = weight
    end
    assert.equal(2 + 3 * 9 + 1, names)
    assert.equal(names - 1 - 7, with)
    model:free()
    assert.equal(VOCAB * 24, #kept:read())
    kept:free()
  end)

  it('says what it is', function()
    local model = create { train = true }
    local info = model:info()
    assert.equal('llama', info.family)
    assert.matches('^model llama: .* M parameters in 3 layers, hidden size 24, vocabulary 37, f32, .* MiB in memory$',
      tostring(model))
    assert.equal(info.memory.weights, info.memory.gradients)
    assert.equal(0, info.memory.activations)
    logits_of(model)
    assert.is_true(model:info().memory.activations > 0)
    model:free()
    model:free()
    assert.equal('model (freed)', tostring(model))
    refused('used after free', model.info, model)
    refused('used after free', logits_of, model)
  end)

  it('names what is wrong with a call', function()
    local at = tools.folder()
    refused('config.json', ms.model.open, at)
    refused("no option 'trian'; did you mean 'train'", ms.model.open, at, { trian = true })
    refused("'train' must be boolean, not 1", ms.model.open, at, { train = 1 })
    refused("'dtype' must be one of stored, f32, bf16, f16, not f64", ms.model.open, at, { dtype = 'f64' })
    refused("device 'cuda:7'", ms.model.create, models.config(), 1, { device = 'cuda:7' })
    refused('batch expected, got table', function()
      local model = create()
      model:logits { 1, 2 }
    end)
  end)

  for family, more in pairs {
    gemma2 = { head_dim = 8, hidden_act = 'gelu_pytorch_tanh', final_logit_softcapping = 2 },
    granite = { logits_scaling = 0.3 },
  } do
    it('says the same in targets of every kind, whose head has a scale or a cap: ' .. family, function()
      more.model_type = family
      local teacher = ms.model.create(models.config(more), 1, { dtype = 'f32' })
      local student = ms.model.create(models.config(more), 2, { train = true, dtype = 'f32' })
      local batch, values = ms.batch { models.segment(20, 1, 37) }, {}
      for _, how in ipairs { { target = 'logits' }, { target = 'hidden' }, { target = 'topk', k = 37 } } do
        local target = teacher:targets(batch, how)
        local r = student:evaluate(batch, { ms.kd(target) })
        table.insert(values, r[1].value / r[1].weight)
        local own = student:targets(batch, how)
        r = student:evaluate(batch, { ms.kd(own) })
        assert.is_true(math.abs(r[1].value) <= 1e-4, how.target) -- 20 rows of 1e-5 at most each
      end
      -- and it is what the logits give
      local z, y, want = student:logits(batch), teacher:logits(batch), 0
      for t = 0, 18 do
        local p, q, sp, sq = {}, {}, 0, 0
        for i = 0, 36 do
          p[i], q[i] = math.exp(y[t * 37 + i]), math.exp(z[t * 37 + i])
          sp, sq = sp + p[i], sq + q[i]
        end
        for i = 0, 36 do want = want + p[i] / sp * math.log(p[i] / sp / (q[i] / sq)) / 19 end
      end
      -- rounding of logits, 1e-5 each
      for _, v in ipairs(values) do assert.is_true(math.abs(v - want) <= 1e-4 * want, v .. ' ' .. want) end
      for _, x in ipairs { batch, teacher, student } do x:free() end
    end)
  end

  it('leaves nothing behind', function()
    collectgarbage()
    collectgarbage()
    local live = C.ms_test_live()
    local model = create { train = true }
    local copy = ms.model.copy(model, { dtype = 'bf16' })
    logits_of(model)
    logits_of(copy)
    copy:free()
    model:free()
    model = create() -- forgotten, and found by the collector
    logits_of(model)
    model = nil -- luacheck: ignore
    collectgarbage()
    collectgarbage()
    assert.equal(live, C.ms_test_live())
  end)
end)

describe('a student and its teacher', function()
  local student, teacher, batch

  before_each(function()
    student, teacher = create { train = true }, create({}, { num_hidden_layers = 2, hidden_size = 40 })
    batch = ms.batch { models.segment(12, 1, VOCAB), models.segment(7, 2, VOCAB) }
  end)
  after_each(function()
    for _, x in ipairs { student, teacher, batch } do x:free() end
  end)

  local function value(terms)
    local r = student:evaluate(batch, terms)[1]
    return r.value / r.weight
  end

  it('do not take a target of another batch, but one behind another prompt', function()
    local cfg = { target = 'topk', k = 4, on = 'response' }
    local function batch_of(...) return ms.batch { { tokens = { ... }, response = { 0, 1, 1, 0 } } } end
    local mine, other, hint = batch_of(1, 2, 3, 4), batch_of(1, 2, 3, 5), batch_of(9, 8, 3, 4)
    local function learn(b)
      local target = teacher:targets(b, cfg)
      local ok, r = pcall(student.learn, student, mine, { ms.ce(), ms.kd(target, 1, cfg) })
      target:free()
      if not ok then error(r, 0) end
      return r[2].rows
    end
    assert.equal(2, learn(mine))
    assert.equal(2, learn(hint)) -- the same answer
    refused('loss: term 2: the target is of another batch', learn, other)
    refused('loss: term 2: the target has 2 rows, the batch 1', function()
      local few, target = ms.batch { { tokens = { 1, 2, 3 }, response = { 0, 1, 0 } } }, teacher:targets(mine, cfg)
      local ok, why = pcall(student.learn, student, few, { ms.ce(), ms.kd(target, 1, cfg) })
      few:free()
      target:free()
      if not ok then error(why, 0) end
    end)
    refused('term 2: weight nan', student.learn, student, mine, { ms.ce(), ms.ce(math.abs(0 / 0)) })
    refused('term 2 %(js%): beta = 2 not in', function()
      local target = teacher:targets(mine, cfg)
      local term = ms.kd(target, 1, { objective = 'js' })
      term.c.parameter = 2 -- past the options' own check
      local ok, why = pcall(student.learn, student, mine, { ms.ce(), term })
      target:free()
      if not ok then error(why, 0) end
    end)
    for _, b in ipairs { mine, other, hint } do b:free() end
  end)

  it('agree on every kind of target that holds the whole vocabulary', function()
    local want
    for _, cfg in ipairs { { target = 'logits' }, { target = 'hidden' }, { target = 'topk', k = VOCAB } } do
      cfg.temperature = 1.5
      local target = teacher:targets(batch, cfg)
      local got = value { ms.kd(target, 1, cfg) }
      want = want or got
      assert.is_true(want > 0.1)
      assert.is_true(math.abs(got - want) <= 1e-5 * want, cfg.target)
      target:free()
    end
  end)

  it('have nothing to learn from each other when they are equal', function()
    local twin = ms.model.copy(student)
    local target = twin:targets(batch, { target = 'hidden' })
    twin:free() -- the target keeps its weights
    local terms = { ms.kd(target, 1, { target = 'hidden' }) }
    assert.is_true(math.abs(value(terms)) <= 1e-5)
    student:learn(batch, terms)
    for name, g in pairs(models.gradients(student)) do
      local sum = 0
      for i = 0, g.n - 1 do sum = sum + g.values[i] ^ 2 end
      assert.is_true(math.sqrt(sum) <= 1e-4, name)
    end
    target:free()
  end)

  it('learn from positions that only one kind of weight has', function()
    local tokens = { 3, 1, 4, 1, 5 }
    local function both(response, all)
      local b = ms.batch { { tokens = tokens, response = response, all = all } }
      local r = student:evaluate(b, { ms.ce(1), ms.ce(1, { on = 'all' }) })
      local got = { r[1].rows, r[1].value, r[2].rows, r[2].value }
      b:free()
      return got
    end
    local rows = {} -- the loss of each position, alone
    for t = 1, 4 do
      local one = { 0, 0, 0, 0, 0 }
      one[t] = 1
      rows[t] = both(one)[2]
    end
    -- added up in another order: some eps of f32 in the products of other rows
    local function near(want, got) assert.is_true(math.abs(got - want) <= 1e-5 * want, got .. ', ' .. want) end
    local got = both({ 1, 0, 0.5, 0, 0 }, { 0, 1, 0, 0.25, 0 })
    assert.same({ 2, 2 }, { got[1], got[3] })
    near(rows[1] + 0.5 * rows[3], got[2])
    near(rows[2] + 0.25 * rows[4], got[4])
    got = both({ 0, 0, 0, 0, 0 }, { 0, 0, 2, 0, 0 })
    assert.same({ 0, 0, 1 }, { got[1], got[2], got[3] })
    near(2 * rows[3], got[4])
  end)

  it('mix losses by their weights', function()
    local cfg = { target = 'topk', k = 5, temperature = 2 }
    local target = teacher:targets(batch, cfg)
    local ce, kd = ms.ce(0.25), ms.kd(target, 0.75, cfg)
    student:learn(batch, { ce, kd })
    local both = models.gradients(student)
    student:zero_gradients()
    student:learn(batch, { ce })
    student:learn(batch, { kd })
    for name, g in pairs(models.gradients(student)) do
      assert.is_true(models.distance(g.values, both[name].values, g.n) <= 1e-5, name)
    end
    target:free()
  end)

  it('come closer by learning', function()
    local cfg = { target = 'topk', k = 8 }
    local target = teacher:targets(batch, cfg)
    local terms = { ms.kd(target, 1, cfg) }
    local before = value(terms)
    local optimizer = require('moonstill.train.optimizer').new(student)
    for _ = 1, 60 do
      student:learn(batch, terms)
      optimizer:step(3e-3)
    end
    assert.is_true(value(terms) < 0.2 * before)
    optimizer:free()
    target:free()
  end)
end)
