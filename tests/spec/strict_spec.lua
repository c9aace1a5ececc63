--- A name that is not there is an error that says what may have been meant, wherever users look: of
--- handles, and of all that they are given beside them.
local models = require 'tests.support.models'
local ms = require 'moonstill'
local recipe = require 'tests.programs.run_recipe'
local tools = require 'tests.support.tools'

local folder = tools.folder()
ms.bpe.write(folder, ms.bpe.learn({ 'a b' }, 300), 64)

-- Asserts that reading x[name] is an error with these words, which blames this file.
local function missing(words, x, name)
  local ok, why = pcall(function() local value = x[name] return value end)
  assert.is_false(ok, words .. ': accepted')
  assert.truthy(tostring(why):find('^tests/spec/strict_spec.lua:%d+: '), why)
  assert.truthy(tostring(why):find(words, 1, true), why .. ' lacks ' .. words)
end

describe('a handle', function()
  local model = ms.model.create(models.config { vocab_size = 300, num_hidden_layers = 1 }, 1, { train = true })
  local batch, device, tok = ms.batch { { 1, 2, 3 } }, ms.device.open 'cpu', ms.tokenizer.open(folder)
  local all = {
    { 'model', model, 'evalute', 'evaluate' }, { 'batch', batch, 'tokns', 'tokens' },
    { 'device', device, 'clos', 'close' }, { 'tensor', ms.tensor(device, 2), 'raed', 'read' },
    { 'tokenizer', tok, 'id_s', 'ids' }, { 'detokenizer', tok:detokenizer(), 'fnish', 'finish' },
    { 'optimizer', ms.optimizer.new(model), 'setp', 'step' }, { 'generator', ms.generate.open(model, { { 1 } }),
      'nxt', 'next' }, { 'target', model:targets(batch, { on = 'all', k = 2 }), 'row', 'rows' },
    { 'lock', ms.lock.open(folder .. '/lock'), 'kep', 'keep' },
  }

  it('has its methods alone', function()
    for _, case in ipairs(all) do
      local what, x, slip, meant = unpack(case)
      missing(("%s has no '%s'; did you mean '%s'?"):format(what, slip, meant), x, slip)
      missing(("%s has no 'zzzzzz'; there are "):format(what), x, 'zzzzzz')
      tools.refused(("strict_spec.lua:%%d+: %s: no 'name' can be set"):format(what), function() x.name = 1 end)
    end
  end)

  it('is no table, list or function, and says which handle it is', function()
    for _, case in ipairs(all) do
      local what, x = unpack(case)
      for why, use in pairs { ['it is no table to iterate over'] = pairs, ['it is no list to iterate over'] = ipairs,
        ['it is no function to call'] = function() x() end } do
        tools.refused(('strict_spec.lua:%%d+: %s: %s'):format(what, why), function() use(x) end)
      end
    end
    tools.refused('strict_spec.lua:%d+: model: it has no length', function() return #model end)
  end)

  it('is made of what the core gave alone: a copy would be freed twice', function()
    local tensor = ms.tensor(device, 2)
    for _, value in ipairs { tensor, 1, {}, 'x' } do
      tools.refused('strict_spec.lua:%d+: tensor: .* is not of the core', function()
        return (ms.tensor.wrap(value))
      end)
    end
    tensor:free()
  end)

  it('says so when it is used after it was freed, or is of another kind', function()
    for _, case in ipairs(all) do
      local what, x = unpack(case)
      x:free()
      x:free()
      local verb = (what == 'device' or what == 'lock') and 'close' or 'free'
      assert.equal(('%s (%sd)'):format(what, verb), tostring(x))
      local other = what == 'batch' and model or batch
      tools.refused(('strict_spec.lua:%%d+: %s expected, got %s'):format(what, other == model and 'model' or 'batch'),
        function() x.free(other) end)
      tools.refused(('strict_spec.lua:%%d+: %s: used after %s'):format(what, verb), function()
        return (require 'moonstill.base.handle'.pointer(what, x))
      end)
    end
  end)
end)

describe('an object', function()
  local student = ms.model.create(recipe.config, 1, { train = true, dtype = 'f32' })
  local teacher = ms.model.create(recipe.config, 2, { dtype = 'f32' })

  local function open(options)
    options.student, options.data, options.quiet = student, recipe.data(20), true
    return ms.run.open({ output = tools.folder() .. '/run', optim = { lr = 0.1 } }, options)
  end

  it('of a run has its methods and fields alone', function()
    local run = open { schedules = { kd = function() return 0.5 end } }
    missing("run has no 'finsh'; did you mean 'finish'?", run, 'finsh')
    missing("run has no 'stat'; did you mean 'state'?", run, 'stat')
    missing("run has no 'carrry'; did you mean 'carry'?", run, 'carrry') -- which may be nil
    assert.is_nil(run.carry)
    assert.is_nil(run.finished)
    run.mine, run.state.mine = 1, 2 -- whoever uses it may keep there what he likes
    assert.equal(3, run.mine + run.state.mine)
    assert.is_nil(run.state.other)
    for step in run:steps() do
      if step.number > 1 then break end
      missing("step has no 'kdd'; did you mean 'kd'?", step, 'kdd')
      missing("step has no 'los'; did you mean 'loss'?", step, 'los')
      missing("step has no 'micro_batchs'; did you mean 'micro_batches'?", step, 'micro_batchs')
      missing("step has no 'zzzzzz'; there are number, lr, tokens, seconds, loss, grad_norm, skipped, sent, every, "
        .. "learnt, ",
        step, 'zzzzzz')
      missing("run has no 'zzzzzz'; there are state, step, output, ", run, 'zzzzzz')
      step.mine = (rawget(step, 'mine') or 0) + step.kd
      for batch in step:micro_batches() do student:learn(batch, { ms.ce(1) }) end
      step:update()
    end
    assert.equal(0.5, run.step.mine)
    run:close()
    tools.refused("a schedule cannot be called 'use'", function() open { schedules = { use = print } } end)
  end)

  it('of a configuration has the keys of its recipe and the common ones', function()
    local cfg = ms.config({ epochs = 2, kd = { weight = 0.5 }, student = ms.optional 'path' }, { args = {} })
    missing("configuration has no 'epohcs'; did you mean 'epochs'?", cfg, 'epohcs')
    missing("configuration has no 'sede'; did you mean 'seed'?", cfg, 'sede')
    missing("configuration has no 'zzzzzz'; there are ", cfg, 'zzzzzz')
    assert.is_nil(cfg.student)
    cfg.mine = 3
    assert.same({ 2, 0.5, 3 }, { cfg.epochs, cfg.kd.weight, cfg.mine })
  end)

  it('of options of a run has what runs know, or its recipe', function()
    local function run(cfg)
      cfg.output = tools.folder() .. '/run'
      return function() return (ms.run.open(cfg, { student = student, data = recipe.data(20), quiet = true })) end
    end
    tools.refused("strict_spec.lua:%d+: run.open: no option 'epoch'; did you mean 'epochs'?", run { epoch = 3 })
    tools.refused("strict_spec.lua:%d+: run.open: no option 'checkpoints'; did you mean 'checkpoint'?",
      run { checkpoints = {} })
    tools.refused("no option 'mine'", run { mine = 1 })
    local cfg = ms.config({ output = tools.folder() .. '/run', mine = 1, optim = { lr = 0.1 } }, { args = {} })
    ms.run.open(cfg, { student = student, data = recipe.data(20), quiet = true }):close()
  end)

  it('of a validation has what can be measured alone', function()
    local run = open {}
    for _ = 1, 2 do -- the second one is remembered
      local v = run:validate { data = recipe.data(20) }
      missing("validation has no 'los'; did you mean 'loss'?", v, 'los')
      assert.is_true(v.loss > 0)
      assert.is_nil(v.forward_kl)
      missing("validation has no 'kl'; there are agree, loss, forward_kl, teacher_agree", v, 'kl')
    end
    for _ = 1, 2 do
      local v = run:validate { data = recipe.data(20), teacher = teacher, kd = { objective = 'js' } }
      assert.is_true(v.js > 0 and v.teacher_agree > 0)
      missing("validation has no 'forward_kl'; ", v, 'forward_kl')
      v = run:validate { data = recipe.data(20), teacher = teacher, kd = { name = 'large' } }
      assert.is_true(v.large > 0)
      missing("validation has no 'forward_kl'; ", v, 'forward_kl')
    end
    run:close()
  end)

  it('of facts has what is known alone', function()
    missing("model info has no 'hidden_szie'; did you mean 'hidden_size'?", student:info(), 'hidden_szie')
  end)

  it('of data, chats and terms has its methods and fields alone', function()
    local chat = ms.chat.open(folder)
    missing("chat has no 'encod'; did you mean 'encode'?", chat, 'encod')
    missing("chat has no 'tokeniser'; did you mean 'tokenizer'?", chat, 'tokeniser')
    local rows = tools.write(folder .. '/a.jsonl', '{"text": "a b"}\n')
    local data = ms.dataset.open(rows, chat, { quiet = true })
    missing("dataset has no 'cuont'; did you mean 'count'?", data, 'cuont')
    missing("report has no 'skiped'; did you mean 'skipped'?", data.report, 'skiped')
    assert.is_nil(data[1])
    chat:free()
    local term = ms.ce(0.5)
    missing("term has no 'wieght'; did you mean 'weight'?", term, 'wieght')
    tools.refused("strict_spec.lua:%d+: term: no 'wieght' can be set", function() term.wieght = 1 end)
    term.weight, term.name = 0.25, 'labels'
    assert.same({ 0.25, 'labels' }, { term.weight, term.name })
    assert.is_nil(term.target)
  end)

  it('of results has a field for each thing measured, and they are a list', function()
    local batch = ms.batch({ { 1, 2 } }, { { 3 } })
    local r = student:evaluate(batch, { ms.ce(), ms.kd(teacher:targets(batch, { k = 2 })) })
    missing("results have no 'value'", r, 'value')
    missing("a result has no 'vlaue'; did you mean 'value'?", r[1], 'vlaue')
    assert.is_nil(r[3])
    batch:free()
  end)
end)

describe('a module', function()
  it('has what is in it alone, and can still be called', function()
    for _, case in ipairs { { 'model', 'opne', 'open' }, { 'kd', 'trm', 'term' }, { 'batch', 'form', 'from' },
      { 'run', 'opn', 'open' }, { 'schedule', 'cosin', 'cosine' }, { 'json', 'decod', 'decode' },
      { 'optimizer', 'nwe', 'new' }, { 'tensor', 'wrp', 'wrap' } } do
      local name, slip, meant = unpack(case)
      missing(("ms.%s has no '%s'; did you mean '%s'?"):format(name, slip, meant), ms[name], slip)
    end
    missing("moonstill has no 'modle'; did you mean 'model'?", ms, 'modle')
    local device = ms.device.open 'cpu'
    local x = ms.tensor(device, 2)
    x:free()
    ms.batch({ { 1, 2 } }):free()
  end)
end)

describe('an argument that is nil', function()
  local model = ms.model.create(models.config { num_hidden_layers = 1 }, 1, { train = true })
  local batch = ms.batch { { 1, 2, 3 } }
  local target = model:targets(batch, { on = 'all', k = 2 })

  it('is not one that was left out', function()
    assert.equal(1, ms.kd(target).weight)
    assert.equal(1, ms.kd.term(target).weight)
    assert.equal(1, ms.ce().weight)
    assert.equal(0, ms.kd(target, 0).weight)
    local nothing = {}
    for _, call in ipairs {
      function() return (ms.kd(target, nothing.kd)) end, function() return (ms.kd.term(target, nothing.kd)) end,
      function() return (ms.kd(target, nothing.kd, {})) end, function() return (ms.ce(nothing.ce)) end,
      function() return (ms.ce(nothing.ce, { on = 'all' })) end, function() ms.ce(1):set(nothing.ce) end,
      function()
        local term = ms.ce(1)
        term.weight = nothing.ce
        model:learn(batch, { term })
      end,
    } do tools.refused('strict_spec.lua:%d+: the weight of a term is a number, got nil', call) end
    tools.refused('strict_spec.lua:%d+: batch: answers is nothing, expected a table', function()
      return (ms.batch({ { 1 } }, nothing.answers))
    end)
    tools.refused('strict_spec.lua:%d+: batch: weights is nothing, expected a table', function()
      return (ms.batch({ { 1 } }, { { 2 } }, nothing.weights))
    end)
    tools.refused('strict_spec.lua:%d+: batch: 2 prompts and 1 weights', function()
      return (ms.batch({ { 1 }, { 2 } }, { { 2 }, { 3 } }, { 5 }))
    end)
    tools.refused('strict_spec.lua:%d+: batch expected, got nil', function() model:learn(nil, { ms.ce(1) }) end)
    tools.refused('strict_spec.lua:%d+: batch expected, got nil', function() return (model:targets(nothing.b)) end)
    tools.refused('strict_spec.lua:%d+: target expected, got nil', function() return (ms.kd(nothing.t)) end)
  end)
end)
