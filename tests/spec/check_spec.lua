--- What public functions refuse instead of cutting it: fractions and numbers that are too large where
--- integers are meant, and keys that no option has.
local ffi = require 'ffi'
local ms = require 'moonstill'
local check = require 'moonstill.base.check'
local json = require 'moonstill.base.json'
local recipe = require 'tests.programs.run_recipe'
local tools = require 'tests.support.tools'

local device = ms.device.open 'cpu'
local folder = tools.folder()

local fails = tools.fails

describe('check.integer', function()
  local function try(value, low, high) return check.integer('op', 'n', value, low or 1, high or 10) end
  it('gives back what it takes', function()
    for _, n in ipairs { 1, 10 } do assert.equal(n, try(n)) end
    assert.equal(check.EXACT, try(check.EXACT, 0, check.EXACT))
  end)
  it('names argument, value and what is allowed', function()
    fails({ 'op: n = 2.5, expected an integer in 1..10' }, try, 2.5)
    fails({ 'op: n = 0, ' }, try, 0)
    fails({ 'op: n = 11, ' }, try, 11)
    fails({ 'op: n = 8589934592, ' }, try, 2 ^ 33)
    fails({ 'op: n = nan, ' }, function() try(math.abs(0 / 0)) end)
    fails({ 'op: n = inf, ' }, try, math.huge)
    fails({ "op: n = '3' (a string), " }, try, '3')
    fails({ 'op: n = nil, ' }, try, nil)
    fails({ 'in 0..2^53' }, try, -1, 0, check.EXACT)
  end)
  it('names the element of a list', function()
    fails({ 'op: id 2 = 1.5' }, check.integers, 'op', 'id', { 1, 1.5 }, 0, 9)
    fails({ "op: id 1 = '12' (a string)" }, check.integers, 'op', 'id', { '12' }, 0, 99)
  end)
end)

describe('integers', function()
  local config = recipe.config

  it('of generation are whole', function()
    local model = ms.model.create(config, 1, { dtype = 'f32' })
    local function try(options) return function() model:generate({ { 1 } }, options) end end
    fails({ "'max_new' must be integer >= 1, not 2.7" }, try { max_new = 2.7 })
    fails({ "'max_new' must be integer from 1 to 2147483647, not 8589934593" }, try { max_new = 2 ^ 33 + 1 })
    fails({ "'top_k' must be integer >= 0, not 0.5" }, try { top_k = 0.5 })
    fails({ "'seed' must be integer >= 0, not -1" }, try { seed = -1 })
    fails({ 'stop 2 = 1.5' }, try { stop = { 1, 1.5 } })
    fails({ "prompt 2: id 1 = '3' (a string)" }, function() model:generate { { 1 }, { '3' } } end)
    model:free()
  end)

  it('of models are whole', function()
    local model = ms.model.create(config, 1, { dtype = 'f32' })
    fails({ 'model.create: seed = 1.5' }, ms.model.create, config, 1.5)
    fails({ "'head_bytes' must be integer >= 0, not 1.5" }, ms.model.create, config, 1, { head_bytes = 1.5 })
    fails({ 'layers: entry 1 = 0.5', '0..1' }, ms.model.shrink, model, { layers = { 0.5 } })
    fails({ 'layers: entry 2 = 4294967296' }, ms.model.shrink, model, { layers = { 0, 2 ^ 32 } })
    fails({ 'layers = 1.5', '1..2' }, ms.model.shrink, model, { layers = 1.5 })
    fails({ "'shard_bytes' must be integer >= 0, not 0.5" }, model.save, model, folder .. '/m', { shard_bytes = 0.5 })
    local batch = ms.batch { { 1, 2, 3 } }
    fails({ 'row 1 = 0.5' }, model.logits, model, batch, { 0.5 })
    fails({ "kd: 'k' must be integer >= 1, not 2.5" }, model.targets, model, batch,
      { k = 2.5, on = 'all' })
    fails({ "kd: 'k' must be integer from 1 to 2147483647, not 8589934594" }, model.targets, model, batch,
      { k = 2 ^ 33 + 2, on = 'all' })
    fails({ "kd: 'vocab' must be integer >= 0, not 20.5" }, model.targets, model, batch,
      { vocab = 20.5, on = 'all' })
    batch:free()
    model:free()
  end)

  it('of batches and targets are whole', function()
    fails({ 'segment 1: token 2 = 1.5' }, ms.batch, { { 1, 1.5 } })
    fails({ 'segment 2: token 1 = 4294967297' }, ms.batch, { { 1, 2 }, { tokens = { 2 ^ 32 + 1, 1 } } })
    fails({ "token 1 = '7' (a string)" }, ms.batch, { { '7', 1 } })
    fails({ 'count = 1.5' }, ms.batch, { { tokens = ffi.new('int32_t[4]', 1), count = 1.5 } })
    fails({ 'tokens = 2.5' }, ms.batch.new, ffi.new('int32_t[4]', 1), 2.5, ffi.new('int32_t[2]', 0, 2), 1)
    fails({ 'row 1: id 1 = 0.5' }, ms.target.topk, { { 0.5 } }, { { 0 } }, { -math.huge }, { vocab = 5 })
  end)

  it('of tensors and operations are whole', function()
    fails({ 'size 2 = 1.5' }, ms.tensor, device, 2, 1.5)
    local x = ms.tensor(device, 'f32', 4)
    fails({ 'offset = 0.5' }, x.view, x, 0.5, 2)
    local i = ms.tensor(device, 'i32', 1)
    for _, bad in ipairs { 1.5, 2 ^ 31, -2 ^ 31 - 1, 0 / 0, math.huge } do
      fails({ 'element 1 is', 'which no i32 is' }, i.write, i, { bad })
    end
    assert.same({ -2 ^ 31 }, i:write({ -2 ^ 31 }):read())
    local u = ms.tensor(device, 'u8', 1)
    fails({ 'element 1 is 256, which no u8 is' }, u.write, u, { 256 })
    fails({ 'linear: add = 0.5' }, ms.ops.linear, x, x, x, 0.5)
    fails({ 'adamw: step = 1.5' }, ms.ops.adamw, x, nil, x, x, x, 1.5, 1, 0, 0, 0, 0, 1)
    for _, t in ipairs { x, i, u } do t:free() end
  end)

  it('of plans, schedules and toys are whole', function()
    fails({ "packing: 'tokens' must be integer >= 1, not 9.5" }, ms.packing.plan,
      { 1 }, { 1 }, 1, 1, { tokens = 9.5, micro_tokens = 9 })
    fails({ "packing: 'micro_tokens' must be integer >= 1, not 0" }, ms.packing.plan,
      { 1 }, { 1 }, 1, 1, { tokens = 9, micro_tokens = 0 })
    fails({ "'warmup' must be number >= 0 < 1 or integer >= 1, not 2.5" }, ms.schedule.cosine, { lr = 1, warmup = 2.5 })
    fails({ "'decay' must be number >= 0 < 1 or integer >= 1, not 1.5" }, ms.schedule.wsd, { lr = 1, decay = 1.5 })
    fails({ 'toy: count = 1.5' }, ms.toy.problems, 'train', 1.5)
    fails({ 'toy: seed = 0.5' }, ms.toy.problems, 'train', 1, 0.5)
    fails({ 'bpe: size = 300.5' }, ms.bpe.learn, { 'a' }, 300.5)
  end)

  it('of runs are whole', function()
    local student = ms.model.create(config, 1, { train = true, dtype = 'f32' })
    local function open(cfg)
      return function()
        cfg.output = folder .. '/run'
        ms.run.open(cfg, { student = student, data = recipe.data(20), quiet = true })
      end
    end
    fails({ 'cfg.output must name a folder' }, ms.run.open, { output = '' },
      { student = student, data = recipe.data(20), quiet = true })
    fails({ "run.open: 'max_steps' must be integer >= 0, not 2.5" }, open { max_steps = 2.5 })
    fails({ "run.open: 'max_steps' must be integer >= 0, not -1" }, open { max_steps = -1 })
    fails({ "run.open: 'seed' must be integer >= 0, not 0.5" }, open { seed = 0.5 })
    fails({ "run.open: 'seed' must be integer >= 0, not -3" }, open { seed = -3 })
    fails({ "run.open: 'batch.tokens' must be integer >= 1, not 99.5" }, open { batch = { tokens = 99.5 } })
    fails({ "run.open: 'batch.micro_tokens' must be integer >= 1, not 0" }, open { batch = { micro_tokens = 0 } })
    fails({ "run.open: 'checkpoint.every' must be integer >= 0, not 1.5" }, open { checkpoint = { every = 1.5 } })
    fails({ "run.open: 'checkpoint.keep' must be integer >= 0, not 0.5" }, open { checkpoint = { keep = 0.5 } })
    fails({ "run.open: 'optim.max_skips' must be integer >= 1, not 0" }, open { optim = { lr = 1, max_skips = 0 } })
    fails({ "run.open: 'epochs' must be number from 0 to 10000, not nan" }, open { epochs = math.abs(0 / 0) })
    fails({ "run.open: 'epochs' must be number from 0 to 10000, not -1" }, open { epochs = -1 })
    local run = ms.run.open({ output = folder .. '/run', optim = { lr = 1 } },
      { student = student, data = recipe.data(20), quiet = true })
    fails({ 'step:every: n = 0.5' }, function() for step in run:steps() do step:every(0.5) end end)
    fails({ 'optimizer: parameter = 0.5' }, run.optimizer.moments, run.optimizer, 0.5)
    run:close()
    student:free()
  end)

  it('of a configuration are in range', function()
    local function read(...) return ms.config({ epochs = 1 }, { args = { ... } }) end
    fails({ "'seed' must be integer >= 0, not -1" }, read, 'seed=-1')
    fails({ "'max_steps' must be integer >= 0, not -2" }, read, 'max_steps=-2')
    fails({ "'threads' must be integer from 0 to 4096, not 5000" }, read, 'threads=5000')
    fails({ "'seed' must be integer >= 0, not 1.5" }, read, 'seed=1.5')
  end)
end)

describe('keys that no option has', function()
  it('of data sets', function()
    local path = tools.write(folder .. '/a.jsonl', '{"text": "a b"}\n')
    local tok = folder .. '/tok'
    ms.bpe.write(tok, ms.bpe.learn({ 'a b' }, 300), 64)
    local chat = ms.chat.open(tok)
    fails({ "no option 'max_token'; did you mean 'max_tokens'?" }, ms.dataset.open, path, chat, { max_token = 9 })
    fails({ "'limit' must be integer >= 1, not 1.5" }, ms.dataset.open, path, chat, { limit = 1.5, quiet = true })
    fails({ "'max_tokens' must be integer >= 2, not 9.5" }, ms.dataset.open, path, chat,
      { max_tokens = 9.5, quiet = true })
    local data = ms.dataset.open(path, chat, { train = path, valid = path, quiet = true }) -- a recipe's
    fails({ "dataset:steps: 'tokens' must be integer >= 1, not 0" }, data.steps, data, 0, 0, { tokens = 0 })
    fails({ 'seed = 0.5' }, data.steps, data, 0.5, 0, { tokens = 9, micro_tokens = 9 })
    fails({ "no option 'token'; did you mean 'tokens'?" }, data.steps, data, 0, 0, { token = 9, micro_tokens = 9 })
    fails({ 'first = 0.5' }, data.batch, data, { 1 }, 0.5)
    chat:free()
  end)

  it('of optimisers, schedules and runs', function()
    local student = ms.model.create(recipe.config, 1, { train = true, dtype = 'f32' })
    fails({ "optimizer: no option 'weight_decy'; did you mean 'weight_decay'?" }, ms.optimizer.new, student,
      { weight_decy = 1 })
    ms.optimizer.new(student, { lr = 1, warmup = 2, final = 0, decay = 0.1, schedule = 'wsd', max_skips = 3,
      clip = 1 }):free()
    fails({ "schedule: no option 'warmpu'; did you mean 'warmup'?" }, ms.schedule.cosine, { lr = 1, warmpu = 3 })
    fails({ "no option 'form'; did you mean 'from'?" }, ms.schedule.linear, { form = 1, to = 2 })
    for _, name in ipairs { 'constant', 'wsd' } do
      fails({ "no option 'finla'" }, ms.schedule[name], { lr = 1, finla = 3 })
    end
    local function open(cfg, options)
      return function()
        cfg.output = folder .. '/keys'
        local all = { student = student, data = recipe.data(20), quiet = true }
        for key, value in pairs(options or {}) do all[key] = value end
        ms.run.open(cfg, all)
      end
    end
    fails({ "optim: no option 'bta1'; did you mean 'beta1'?" }, open { optim = { lr = 1, bta1 = 0.5 } })
    fails({ "batch: no option 'token'; did you mean 'tokens'?" }, open { batch = { token = 9 } })
    fails({ "checkpoint: no option 'evry'; did you mean 'every'?" }, open { checkpoint = { evry = 9 } })
    fails({ "run.open: no option 'schedule'; did you mean 'schedules'?" }, open({}, { schedule = {} }))
    local run = ms.run.open({ output = folder .. '/keys', optim = { lr = 1 } },
      { student = student, data = recipe.data(20), quiet = true })
    fails({ "run:validate: no option 'teachr'; did you mean 'teacher'?" }, run.validate, run, { teachr = 1 })
    run:close()
    student:free()
  end)

  it('of texts, pictures, segments and configurations', function()
    local tok = ms.tokenizer.open(folder .. '/tok')
    fails({ "no option 'specal'; did you mean 'special'?" }, tok.encode, tok, 'a', { specal = true })
    fails({ "no option 'special'; " }, tok.decode, tok, { 1 }, { special = true })
    fails({ "no option 'skip'" }, tok.detokenizer, tok, { skip = true })
    fails({ "tokenizer: id 1 = '12' (a string), expected an integer" }, tok.decode, tok, { '12' })
    fails({ 'tokenizer: id = 1.5' }, tok.token, tok, 1.5)
    fails({ 'tokenizer: id = 4294967296' }, tok.is_special, tok, 2 ^ 32)
    local detokenizer = tok:detokenizer()
    fails({ "detokenizer: id = '1' (a string)" }, detokenizer.add, detokenizer, '1')
    detokenizer:free()
    tok:free()
    fails({ "no option 'widht'; did you mean 'width'?" }, ms.plot.svg, { series = {} }, { widht = 3 })
    fails({ "'columns' must be auto or integer from 1 to 1000, not 1.5" }, ms.plot.sketch,
      { series = { { x = { 1 }, y = { 1 } } } }, { columns = 1.5 })
    fails({ "no option 'respone'; did you mean 'response'?" }, ms.batch,
      { { tokens = { 1, 2 }, respone = { 1, 0 } } })
    fails({ "no option 'indnt'; did you mean 'indent'?" }, json.encode, {}, { indnt = 2 })
    -- of a short word nothing would be left
    fails({ "ce: no option 'x'; there are name, on" }, ms.ce, 1, { x = 1 })
    fails({ "ce: no option 'no'; did you mean 'on'?" }, ms.ce, 1, { no = 1 }) -- neighbours swapped: one edit
    fails({ "no option 'abuot'; did you mean 'about'?" }, ms.config, { a = 1 }, { abuot = 'x', args = {} })
  end)
end)

-- The line to mend is the one that called a public function, not one inside it, and not its caller's.
describe('errors blame the line that called', function()
  local model = ms.model.create(recipe.config, 1, { train = true, dtype = 'f32' })
  local batch = ms.batch { { 1, 2, 3 } }
  local freed, gone = model:targets(batch, { k = 3, on = 'all' }), ms.model.create(recipe.config, 1)
  local ended = ms.batch { { 1, 2 } }
  for _, x in ipairs { freed, gone, ended } do x:free() end
  local env = setmetatable({ ms = ms, config = recipe.config, model = model, batch = batch, freed = freed,
    gone = gone, ended = ended, target = model:targets(batch, { k = 3, on = 'all' }),
    optimizer = ms.optimizer.new(model, { lr = 1 }),
    cfg = function(cfg) cfg.output = folder .. '/blame' return cfg end,
    options = function(more)
      local o = { student = model, data = recipe.data(20), quiet = true }
      for key, value in pairs(more or {}) do o[key] = value end
      return o
    end }, { __index = _G })

  for what, list in pairs {
    losses = { "ms.ce('x')", "ms.ce(1, { on = 'x' })", "ms.ce(1, { o = 1 })", "ms.ce(1):set('x')",
      'ms.ce(1):set(1, target)', 'ms.kd(1)', 'ms.kd(freed)', 'ms.kd.term(1)', "ms.kd(target, 'x')",
      "ms.kd(target, 1, { objective = 'x' })",
      "ms.kd(target, 1, { tail = 'x' })", "ms.kd(target, 1, { t_scale = 'x' })", 'ms.kd(target, 1, { onn = 1 })',
      "ms.kd(target, 1, { target = 'logits' })", "ms.kd.term(target, 1, { target = 'logits' })",
      'ms.kd(target):set(1, freed)', 'model:learn(batch, { 1 })', 'model:evaluate(batch, { 1 })',
      'model:learn(1, { ms.ce(1) })', 'model:learn(batch, {})', 'model:learn(batch, { setmetatable(ms.ce(1), nil) })',
      'gone:learn(batch, { ms.ce() })', 'ms.model.copy(1)', 'gone:evaluate(batch, { ms.ce() })',
      "model:learn(batch, { ms.kd(target, 1, { on = 'all', objective = 'js', beta = 3 }) })" },
    targets = { 'model:targets(1)', 'model:targets(batch, { k = 0 })', 'model:targets(batch, { kk = 0 })',
      "model:targets(batch, { on = 'x' })", "model:targets(batch, { dtype = 'x', target = 'hidden' })",
      'model:targets(batch, { vocab = -1 })', "model:targets(batch, { target = 'x' })",
      'model:targets(batch, { temperature = 0 })', 'gone:targets(batch)', 'freed:rows()', 'freed:info()',
      'freed:read()', 'ms.target.topk({ { 0 } }, {}, {})', 'ms.target.topk({ { 0 } }, { { 0 } }, { 0 }, { vocab = 3 })',
      'ms.target.topk({ { 0 } }, { { 0, 1 } }, { 0 }, { vocab = 3 })',
      'ms.target.topk({ { 0.5 } }, { { 0 } }, { 0 }, { vocab = 3 })',
      'ms.target.topk({ { 0 } }, { { 0 } }, { 0 }, { vocb = 3 })',
      "ms.target.topk({ { 0 } }, { { 0 } }, { 0 }, { vocab = 3, on = 'x' })", 'ms.target.logits({ { 1, 2 }, { 1 } })',
      "ms.target.logits({ { 1, 2 } }, { on = 'x' })", 'ms.target.logits({ { 1, 2 } }, { temperature = 0 })',
      'ms.target.logits({ { 1, 2 } }):read()' },
    generation = { 'model:generate({ { 1 } }, { max_new = 0 })', 'model:generate({ {} })', "model:generate('x')",
      "model:generate({ { 'x' } })",
      'model:generate({ { 1 } }, { x = 0 })', 'model:generate({ { 1 } }, { temperature = -1 })',
      'model:generate({ { 10000 } })', "model:generate({ { 1 } }, { stop = { 'a' } })", 'gone:generate({ { 1 } })',
      'model:stream({ { 1 } }, { max_new = 0 })', 'model:stream({ { 10000 } })', 'gone:stream({ { 1 } })' },
    models = { "ms.model.open('/x', { x = 1 })", 'ms.model.create({}, 1)', 'ms.model.create(config, 0.5)',
      "ms.model.create(config, 1, { dtype = 'x' })", 'ms.model.create(config, 1, { x = 1 })',
      'ms.model.create(config, 1, { head_bytes = 0.5 })', 'ms.model.shrink(gone, { layers = 1 })',
      'ms.model.shrink(model, { layers = 7 })', 'ms.model.shrink(model, { layers = { 0.5 } })',
      'ms.model.shrink(model, { layers = { 1, 0 } })', 'ms.model.shrink(model, { layers = 1, x = 1 })',
      'ms.model.shrink(model, {})', 'ms.model.copy(gone)', 'ms.model.copy(model, { x = 1 })', 'gone:info()',
      'gone:config()', 'gone:parameters()', 'gone:zero_gradients()', 'gone:logits(batch)', 'model:logits(1)',
      'model:logits(batch, { 0.5 })', 'model:logits(batch, { 77 })', "model:save('/x', { dtype = 'x' })",
      "model:save('/x', { dtpe = 1 })", "model:save('/x', { shard_bytes = 0.5 })", "gone:save('/x')" },
    batches = { 'ended:tokens()', 'ended:weight()', 'model:learn(ended, { ms.ce() })', 'model:targets(ended)',
      'ms.batch(1)', 'ms.batch {}', 'ms.batch { {} }', "ms.batch { { 'x' } }", 'ms.batch({ { 1 } }, {})',
      'ms.batch { { tokens = 3 } }', 'model:logits(ended)',
      'ms.batch { { tokens = { 1, 2 }, response = { 1 } } }', 'ms.batch { { tokens = { 1, 2 }, respone = { 1 } } }',
      'ms.batch { { tokens = { 1, 2 }, response = { 1, -1 } } }', "batch:weight 'x'",
      'ms.packing.plan({ 1 }, { 1 }, 1, 1, { tokens = 0 })', 'ms.packing.plan({ 1 }, { 1 }, 1, 1, { token = 1 })' },
    optimisers = { 'ms.optimizer.new(gone, { lr = 1 })', 'ms.optimizer.new(model, { lrr = 1 })',
      'ms.optimizer.new(model, { beta1 = 2 })', "ms.optimizer.new(model, { beta1 = 'x' })", 'optimizer:step(0 / 0)',
      "optimizer:step('x')", 'optimizer:moments(0.5)', 'optimizer:moments(1000)' },
    schedules = { 'ms.schedule.cosine {}', "ms.schedule.cosine { lr = 'x' }", 'ms.schedule.cosine { lr = 1, x = 1 }',
      'ms.schedule.cosine { lr = 1, warmup = -1 }', 'ms.schedule.linear { from = 1 }',
      'ms.schedule.linear { lr = 1, warmup = 2.5 }', 'ms.schedule.constant { x = 1 }',
      "ms.schedule.constant { lr = 1, warmup = 'x' }", 'ms.schedule.wsd { lr = 1, decay = -1 }',
      'ms.schedule.wsd { lr = 1, decay = 1.5 }', "ms.schedule.wsd { lr = 1, final = 'x' }",
      "ms.schedule.of { schedule = 'x' }", "ms.schedule.of { schedule = 'wsd' }", 'ms.schedule.warmup(print, -1)' },
    runs = { 'ms.run.open({}, {})', "ms.run.open({ output = '' }, options())", 'ms.run.open(cfg {}, { studen = 1 })',
      'ms.run.open(cfg { epochs = -1 }, options())', 'ms.run.open(cfg { optim = { x = 1 } }, options())',
      'ms.run.open(cfg { batch = { tokens = 1.5 } }, options())', 'ms.run.open(cfg { f = print }, options())',
      'ms.run.open(cfg { optim = { lr = 1 } }, options { schedules = { a = 1 } })',
      'ms.run.open(cfg { optim = { lr = 1 } }, options { schedules = { number = print } })' },
  } do
    it('of ' .. what, function()
      for _, code in ipairs(list) do
        local call = setfenv(assert(loadstring('\nlocal r = ' .. code .. '\nreturn r', '=CALLER')), env)
        local ok, why = pcall(call)
        assert.is_false(ok, 'accepted: ' .. code)
        assert.truthy(tostring(why):find '^CALLER:2: ', code .. ': ' .. tostring(why))
      end
    end)
  end
end)
