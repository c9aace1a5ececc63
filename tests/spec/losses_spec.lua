--- What a step says that it learnt, and what a validation measured: values from the definition, and
--- nothing that was not measured.
local ms = require 'moonstill'
local json = require 'moonstill.base.json'
local progress = require 'moonstill.base.progress'
local models = require 'tests.support.models'
local recipe = require 'tests.programs.run_recipe'
local tools = require 'tests.support.tools'

local refused = tools.refused

local function student(own) return own(ms.model.create(recipe.config, 1, { train = true, dtype = 'f32' })) end
local function teacher(own, seed) return own(ms.model.create(recipe.config, seed or 2, { dtype = 'f32' })) end

local function open(own, data, cfg)
  local model = student(own)
  local all = { output = tools.folder(), optim = { lr = 0.01 }, batch = { tokens = 400, micro_tokens = 60 } }
  for key, value in pairs(cfg or {}) do all[key] = value end
  return ms.run.open(all, { student = model, data = data or recipe.data(20), quiet = true }), model
end

local function entries(run)
  local list = {}
  for _, entry in json.lines(run.output .. '/metrics.jsonl') do list[#list + 1] = entry end
  return list
end

-- The first step of a run: learn(i, batch) for each micro-batch, then its update.
local function one_step(run, learn)
  for step in run:steps() do -- luacheck: ignore 512 (only the first)
    local i = 0
    for batch in step:micro_batches() do
      i = i + 1
      learn(i, batch)
    end
    step:update()
    return step, i
  end
end

describe('a term whose weight changes within a step', function()
  it('is reported by what each micro-batch was learnt with', function()
    ms.scope(function(own)
      local run, model = open(own)
      local t = teacher(own)
      local share, sums, weights = 0, { 0, 0, 0 }, 0
      local step, n = one_step(run, function(i, batch)
        local factor, target = i == 1 and 1 or i == 2 and 0 or 0.25, own(t:targets(batch, { target = 'logits' }))
        local r = model:learn(batch, { ms.ce(0.5), ms.kd(target, factor) })
        sums[1], sums[2], weights = sums[1] + r[1].value, sums[2] + r[2].value, weights + r[1].weight
        share = share + factor * r[2].value
      end)
      assert.is_true(n > 3)
      -- sums of the same doubles in another order
      tools.close({ step.loss }, { (0.5 * sums[1] + share) / weights }, 'f64', 16)
      assert.is_true(share / weights > 0.01 and share < 0.9 * sums[2])
      assert.equal(('ce %.4f x 0.5  kd %.4f x 0 to 1'):format(sums[1] / weights, sums[2] / weights),
        step.tally:describe())
      tools.close({ entries(run)[1].terms.kd.loss }, { sums[2] / weights }, 'f64', 16)
      run:close()
    end)
  end)

  -- sum_m w_m sum(a l) / sum(a): the same as one batch whose samples weigh w_m, its own norm put right
  it('adds the gradient of each micro-batch times its weight', function()
    ms.scope(function(own)
      local model, t = student(own), teacher(own)
      local a, b = models.segment(9, 1, 40), models.segment(14, 2, 40)
      local how = { target = 'hidden', temperature = 2 }
      local factor = { 2, 0.25 }
      local parts = { own(ms.batch { a }), own(ms.batch { b }) }
      local step = { norm = function() return parts[1]:weight() + parts[2]:weight() end, record = function() end,
        learnt = function() end }
      for i, part in ipairs(parts) do
        require 'moonstill.loss.step_of'.set(part, step)
        model:learn(part, { ms.ce(factor[i]), ms.kd(own(t:targets(part, how)), 3 * factor[i], how) })
      end
      local got = models.gradients(model)
      model:zero_gradients()
      a.weight, b.weight = factor[1], factor[2]
      local both = own(ms.batch { a, b })
      local scale = both:weight() / step.norm()
      model:learn(both, { ms.ce(scale), ms.kd(own(t:targets(both, how)), 3 * scale, how) })
      for name, g in pairs(models.gradients(model)) do
        local most, worst = 0, 0
        for i = 0, g.n - 1 do
          most = math.max(most, math.abs(g.values[i]))
          worst = math.max(worst, math.abs(g.values[i] - got[name].values[i]))
        end
        -- DESIGN section 4 for every split into micro-batches
        assert.is_true(most > 0 and worst <= 1e-5 * most, ('%s: %g of %g'):format(name, worst, most))
      end
    end)
  end)
end)

describe('the terms of a step', function()
  local line -- of the call that learns

  -- Learns with lists[1], then with lists[2] for the other micro-batches.
  local function learn(own, lists)
    local run, model = open(own)
    local t, other = teacher(own), teacher(own, 3)
    local ok, why = pcall(one_step, run, function(i, batch)
      local function target(cfg, from) return own((from or t):targets(batch, cfg)) end
      line = debug.getinfo(1, 'l').currentline + 1
      model:learn(batch, lists[math.min(i, 2)](target, other))
    end)
    local loss = run.step.loss
    run:close()
    return ok, why, loss
  end

  local function kd(cfg)
    return function(target) return { ms.kd(target { on = cfg.on, target = cfg.target, k = cfg.k, vocab = cfg.vocab,
      temperature = cfg.temperature, teacher_temperature = cfg.teacher_temperature, dtype = cfg.dtype }, 1, cfg) } end
  end

  for _, case in ipairs {
    { { objective = 'js' }, {}, 'objective = forward_kl, after js' },
    { { temperature = 2 }, { temperature = 3 }, 'temperature = 3, after 2' },
    { { target = 'hidden' }, { target = 'hidden', temperature = 3 }, 'temperature = 3, after 1' },
    { { teacher_temperature = 2 }, {}, 'teacher_temperature = 1, after 2' },
    { { target = 'logits' }, { target = 'hidden' }, 'target = hidden, after logits' },
    { { vocab = 39 }, { vocab = 38 }, 'vocab = 38, after 39' },
    { { k = 5 }, { k = 6 }, 'k = 6, after 5' },
    { { target = 'hidden', dtype = 'bf16' }, { target = 'hidden' }, 'dtype = f32, after bf16' },
    { { tail = 'renormalize' }, {}, 'tail = bucket, after renormalize' },
    { { t_scale = 2 }, {}, 't_scale = auto, after 2' },
    { { objective = 'js', beta = 0.1 }, { objective = 'js', beta = 0.2 }, 'beta = 0.2, after 0.1' },
    { { on = 'all' }, {}, 'on = response, after all' },
  } do
    for _, each in ipairs(case) do
      if type(each) == 'table' and not each.target then each.k = each.k or 4 end
    end
    it('may not change: ' .. case[3], function()
      ms.scope(function(own)
        local ok, why = learn(own, { kd(case[1]), kd(case[2]) })
        assert.is_false(ok)
        assert.truthy(why:find('the term kd has ' .. case[3] .. ' in the same step', 1, true), why)
        assert.truthy(why:find(('losses_spec.lua:%d: '):format(line), 1, true), why)
        assert.is_true(learn(own, { kd(case[1]), kd(case[1]) }))
      end)
    end)
  end

  it('may not change their teacher', function()
    ms.scope(function(own)
      local cfg = { k = 4 }
      local ok, why = learn(own, { kd(cfg), function(target, other) return { ms.kd(target(cfg, other)) } end })
      assert.is_false(ok)
      assert.matches('the term kd has teacher = model %d+ %(no folder%), after model %d+ %(no folder%)', why)
    end)
  end)

  it('may not come and go, but come in any order', function()
    ms.scope(function(own)
      local function ce() return ms.ce(0.25) end
      local function both(target) return { ce(), ms.kd(target { k = 4 }, 0.5) } end
      local function turned(target) return { ms.kd(target { k = 4 }, 0.5), ce() } end
      local _, _, want = learn(own, { both, both })
      local ok, why, loss = learn(own, { both, turned })
      assert.is_true(ok, why)
      -- sums of the same doubles in another order
      tools.close({ loss }, { want }, 'f64', 4)
      for _, case in ipairs { { function() return { ce() } end, 'the terms ce, after ce, kd in the same step' },
        { function(target) return { ce(), ms.kd(target { k = 4 }), ms.kd(target { k = 4 }) } end,
          "two terms of a step are called 'kd': one of them needs a name of its own, as in ms.kd(target, weight, cfg, "
            .. "{ name = 'large' })" },
        { function() return { ce(), ce() } end, "two terms of a step are called 'ce': one of them needs a name of its "
          .. "own, as in ms.ce(weight, { name = 'prompts' })" },
        { function(target)
          return { ce(), ms.kd(target { k = 4 }), ms.kd(target { k = 4 }, 1, { name = 'second' }) }
        end,
          'the terms ce, kd, second, after ce, kd' } } do
        ok, why = learn(own, { both, case[1] })
        assert.is_false(ok)
        assert.truthy(why:find(case[2], 1, true), why)
      end
    end)
  end)

  it('have names of their own', function()
    ms.scope(function(own)
      local run, model = open(own)
      local a, b = teacher(own), teacher(own, 3)
      one_step(run, function(_, batch)
        local cfg = ms.config({ kd = ms.kd.options { k = 4 } }, { args = {} })
        local function target(t) return own(t:targets(batch, cfg.kd)) end
        model:learn(batch, { ms.ce(1), ms.ce(1, { name = 'prompts', on = 'all' }),
          ms.kd(target(a), 1, { name = 'small' }),
          ms.kd(target(b), 1, cfg.kd, { name = 'large', tail = 'renormalize' }),
          ms.kd(target(a), 1, cfg.kd) })
      end)
      local terms = entries(run)[1].terms
      for _, name in ipairs { 'ce', 'prompts', 'small', 'large', 'kd' } do
        assert.is_true(terms[name].loss > 0, name)
      end
      run:close()
    end)
  end)

  it('may not have a name without a letter, nor options that terms have not', function()
    ms.scope(function(own)
      local target = own(ms.target.topk({ { 1 } }, { { math.log(0.5) } }, { math.log(0.5) }, { vocab = 40 }))
      refused('the name of a term is a word', ms.ce, 1, { name = '' })
      refused("kd: 'name' must be string", ms.kd, target, 1, { name = 1 })
      refused("kd: no option 'nam'; did you mean 'name'?", ms.kd, target, 1, nil, { nam = 'x' })
      refused("kd: no option 'objektive'", ms.kd, target, 1, { objektive = 'js' }, { name = 'x' })
      assert.equal('js', ms.kd(target, 1, { objective = 'tvd' }, { objective = 'js' }):meaning().objective)
      assert.is_nil(ms.kd.options.name) -- of a term, and not of a recipe's section
    end)
  end)

  it('are no part of the step when they could not be learnt', function()
    ms.scope(function(own)
      local run, model = open(own)
      local step = one_step(run, function(_, batch)
        refused('term 1: weight nan, not a finite number', model.learn, model, batch, { ms.ce(0 / 0) })
        model:zero_gradients()
        model:learn(batch, { ms.ce(1) })
      end)
      assert.is_true(step.loss > 0)
      run:close()
    end)
  end)
end)

describe('metrics', function()
  it('hold what was measured and nothing else', function()
    ms.scope(function(own)
      local run, model = open(own)
      local t = teacher(own)
      one_step(run, function(_, batch)
        model:learn(batch, { ms.ce(1, { name = 'labels' }), ms.kd(own(t:targets(batch, { k = 4 }))) })
      end)
      local terms = entries(run)[1].terms
      local function names(term) return table.concat(ms.sorted.keys(term), ' ') end
      assert.equal('agree loss rows weight', names(terms.labels))
      assert.equal('agree loss objective rows student_entropy student_mass teacher_entropy teacher_mass weight',
        names(terms.kd))
      assert.equal('forward_kl', terms.kd.objective)
      run:close()
      run, model = open(own)
      one_step(run, function(_, batch)
        local cfg = { objective = 'js', temperature = 2, k = 4 }
        model:learn(batch, { ms.kd(own(t:targets(batch, cfg)), 1, cfg) })
      end)
      assert.equal('js', entries(run)[1].terms.kd.objective)
      assert.equal(2, entries(run)[1].terms.kd.temperature)
      run:close()
    end)
  end)

  it('say of a term without positions only that', function()
    ms.scope(function(own)
      local data = recipe.data(20)
      function data:batch() return ms.batch { { tokens = { 1, 2, 3, 4 } } } end -- weights on `all` only
      for _, also in ipairs { true, false } do
        local run, model = open(own, data)
        local t, printed = teacher(own), nil
        function run.progress.step(_, _, _, describe, step) printed = progress.fit(describe(step), math.huge) end
        local step = one_step(run, function(_, batch)
          local kd = ms.kd(own(t:targets(batch, { k = 4 })))
          model:learn(batch, { ms.ce(0.5), kd, also and ms.ce(1, { on = 'all', name = 'prompts' }) or nil })
        end)
        local entry = entries(run)[1]
        assert.same({ rows = 0, weight = 0 }, entry.terms.ce)
        assert.same({ rows = 0, weight = 0, objective = 'forward_kl' }, entry.terms.kd)
        assert.equal(also, entry.loss ~= nil)
        assert.equal(also, entry.grad_norm ~= nil)
        assert.matches('^ce of no positions  kd of no positions', step.tally:describe())
        assert.matches(also and '^ce of no positions  kd of no positions  prompts %d.* norm '
          or '^no position has a weight  lr [^n]*$', printed)
        run:close()
      end
    end)
  end)
end)
