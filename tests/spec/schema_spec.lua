--- Schemas: what modules say of their options, and that it is one thing in files, on the command
--- line, in calls and in help.
local models = require 'tests.support.models'
local ms = require 'moonstill'
local recipe = require 'tests.programs.run_recipe'
local schema = require 'moonstill.base.schema'
local sorted = require 'moonstill.base.sorted'
local tools = require 'tests.support.tools'

local folder = tools.folder()

-- All schemas of all modules, by place.
local function schemas()
  local found, _, list = {}, tools.run 'find lua/moonstill -name "*.lua" | sort'
  for path in list:gmatch '[^\n]+' do
    local name = path:gsub('^lua/', ''):gsub('%.lua$', ''):gsub('/', '.')
    local module = name ~= 'moonstill.init' and require(name)
    if schema.is_schema(module) then found[path] = module end
    for field, value in sorted.pairs(type(module) == 'table' and module or {}) do
      if schema.is_schema(value) then found[path .. ' ' .. field] = value end
    end
  end
  return found
end

describe('the schema of a module', function()
  it('has kinds, meanings, and defaults within its own bounds', function()
    local count = 0
    for place, options in sorted.pairs(schemas()) do
      count = count + 1
      for _, entry in ipairs(schema.list(options)) do
        local where, option = place .. ': ' .. entry.key, entry.option
        assert.truthy(option.meaning and option.meaning ~= '', where)
        assert.is_nil(option.default ~= nil and schema.refused(entry.key, option, option.default) or nil, where)
        schema.kind_of(option, 1) -- parses the kind
        if option.rule then
          for name in option.rule[1]:gmatch '[^|]+' do
            local beside = options
            for word in (entry.key:gsub('[^.]*$', '') .. name):gmatch '[^.]+' do beside = beside[word] end
            assert.is_true(schema.is_option(beside), where)
            for i = 2, #option.rule do assert.is_nil(schema.refused('', beside, option.rule[i]), where) end
          end
        end
      end
    end
    assert.is_true(count >= 12, count)
  end)

  it('has the objectives and their parameters', function()
    local options = ms.kd.options
    assert.same(ms.kd.objectives, options.objective.values)
    assert.same({ 'objective', 'js' }, options.beta.rule)
    assert.same({ 'objective', 'skewed_forward_kl', 'skewed_reverse_kl' }, options.lambda.rule)
    assert.same({ 'objective', 'adaptive_kl' }, options.alpha.rule)
    assert.same({ 0.5, 0.1, 0.5 }, { options.beta.default, options.lambda.default, options.alpha.default })
  end)
end)

-- What of an error is about the value: the sections of a configuration are no part of a call.
local function words(raised, section)
  local text = tostring(raised):match ": ('.*)$" or tostring(raised):match ': (no option .*)$' or tostring(raised)
  return section == '' and text or (text:gsub("'" .. section .. '%.', "'"))
end

describe('a value is refused in the same words', function()
  local model = ms.model.create(recipe.config, 1, { train = true })
  local batch = ms.batch { { 1, 2, 3 } }
  local target = model:targets(batch, { on = 'all', k = 3 })
  local text = tools.write(folder .. '/a.jsonl', '{"text": "a b"}\n')
  ms.bpe.write(folder .. '/tok', ms.bpe.learn({ 'a b' }, 300), 64)
  local chat = ms.chat.open(folder .. '/tok')

  local function with(more, t)
    for key, value in pairs(more) do if t[key] == nil then t[key] = value end end
    return t
  end
  local function open(cfg)
    ms.run.open(with({ output = folder .. '/o' }, cfg), { student = model, data = recipe.data(20) })
  end
  local calls = {
    kd = { function(t) ms.kd(target, 1, t) end, function(t) model:targets(batch, t) end },
    optim = { function(t) ms.optimizer.new(model, t) end, function(t) ms.schedule.cosine(with({ lr = 1 }, t)) end,
      function(t) ms.schedule.of(with({ lr = 1 }, t)) end, function(t) open { optim = t } end },
    batch = { function(t) ms.packing.plan({ 1 }, { 1 }, 1, 1, t) end, function(t) open { batch = t } end },
    data = { function(t) ms.dataset.open(text, chat, t) end, function(t) open { data = t } end },
    checkpoint = { function(t) open { checkpoint = t } end },
    [''] = { open },
  }

  local function read(...)
    return ms.config({ kd = ms.kd.options(), optim = ms.optimizer.options(), data = ms.dataset.options(),
      batch = ms.packing.options(), checkpoint = { every = 200, keep = 2 }, epochs = 1, validate = 100,
      recompute = false, frozen = '' }, { args = { ... } })
  end

  for _, case in ipairs { { 'kd', 'temperature', 0 }, { 'kd', 'teacher_temperature', 1e9 }, { 'kd', 'k', 2.5 },
    { 'kd', 'k', 2 ^ 31 }, { 'kd', 'objective', 'forward_lk' }, { 'kd', 'target', 'topq' }, { 'kd', 'tail', 3 },
    { 'kd', 'on', 'all of it' }, { 'kd', 't_scale', -1 }, { 'kd', 't_scale', true }, { 'kd', 'beta', 1.5 },
    { 'kd', 'lambda', 1 }, { 'kd', 'alpha', -0.1 }, { 'kd', 'vocab', -1 }, { 'kd', 'dtype', 'f16' },
    { 'kd', 'weight', 2 }, { 'kd', 'temprature', 1 }, { 'optim', 'beta1', 1 }, { 'optim', 'eps', 0 },
    { 'optim', 'warmup', 2.5 }, { 'optim', 'warmup', -0.1 }, { 'optim', 'decay', 1.5 }, { 'optim', 'lr', 11 },
    { 'optim', 'final', -1 }, { 'optim', 'schedule', 'cosin' }, { 'optim', 'max_skips', 0 }, { 'optim', 'clip', -1 },
    { 'optim', 'wieght_decay', 1 }, { 'batch', 'tokens', 0 }, { 'batch', 'micro_tokens', 1.5 },
    { 'batch', 'tokns', 1 }, { 'data', 'max_tokens', 1 }, { 'data', 'over_long', 'cut' }, { 'data', 'limit', 0 },
    { 'data', 'on_error', 'skipp' }, { 'data', 'ignore', 'history' }, { 'data', 'weight_key', 3 },
    { 'checkpoint', 'every', -1 }, { 'checkpoint', 'keep', 0.5 }, { '', 'epochs', 1e5 }, { '', 'epochs', 'one' },
    { '', 'max_steps', -1 }, { '', 'seed', 0.5 }, { '', 'epoch', 3 } } do
    local section, key, value = unpack(case)
    local path = section == '' and key or section .. '.' .. key
    it(('%s = %s'):format(path, tostring(value)), function()
      local yaml = tools.write(folder .. '/bad.yaml', section == '' and ('%s: %s\n'):format(key, tostring(value))
        or ('%s: {%s: %s}\n'):format(section, key, tostring(value)))
      local by_file = tools.fails('bad.yaml: ', read, yaml)
      local want = words(by_file, section)
      assert.truthy(want:find("^'" .. key .. "' must be .*, not ") or want:find("^no option '" .. key .. "'; did"),
        want)
      -- on the command line a word is what it looks like: text where text is wanted
      if key ~= 'weight_key' then
        assert.equal(want, words(tools.fails('command line: ', read, ('%s=%s'):format(path, tostring(value))), section))
      end
      for _, call in ipairs(calls[section]) do
        assert.equal(want, words(tools.fails(key, call, { [key] = value }), section))
      end
    end)
  end
end)

describe('a section of a recipe', function()
  local function read(t, ...) return ms.config(t, { args = { ... } }) end

  it('is a module\'s schema whole, with other defaults and keys of its own', function()
    local cfg = read({ kd = ms.kd.options { temperature = 2, k = 3, first_weight = ms.option(0.9, 'at first') } },
      'kd.objective=js')
    assert.same({ objective = 'js', weight = 0.5, temperature = 2, teacher_temperature = 1, target = 'topk', k = 3,
      tail = 'bucket', on = 'response', t_scale = 'auto', beta = 0.5, lambda = 0.1, alpha = 0.5, vocab = 0,
      dtype = 'f32', first_weight = 0.9 }, cfg.kd)
    tools.fails("'kd.temperature' must be number from 0.001 to 1000", read, { kd = ms.kd.options {} },
      'kd.temperature=0')
    tools.fails("the default of 'kd.k' is not integer >= 1", read, { kd = ms.kd.options { k = 0 } })
    tools.fails("the default of 'kd.objective' is not one of forward_kl, ", read,
      { kd = ms.kd.options { objective = 'revese_kl' } })
    -- another kind is the recipe's
    assert.equal(-1, read({ kd = ms.kd.options { k = ms.option(1, nil, 'integer') } }, 'kd.k=-1').kd.k)
  end)

  it('refuses a slip of the pen in either form', function()
    tools.fails({ 'schema_spec.lua:', "kd: no option 'temprature'; did you mean 'temperature'? (ms.option declares" },
      function() local _ = ms.kd.options { temprature = 2 } end)
    tools.fails("kd: no option 'temprature'; did you mean 'temperature'?", read, { kd = { temprature = 2 } })
  end)

  it('is taken as it is by terms, targets and validation', function()
    ms.scope(function(own)
      local model = own(ms.model.create(recipe.config, 1, { train = true }))
      local teacher = own(ms.model.create(recipe.config, 2))
      local cfg = read { output = folder .. '/out', kd = ms.kd.options { target = 'logits', temperature = 2,
        first_weight = ms.option(0.9, 'at first') }, optim = ms.optimizer.options { lr = 0.01, clip = 1 }, mine = 3 }
      local b = own(ms.batch { { tokens = { 1, 2, 3 }, response = { 1, 1, 0 } } })
      local target = own(teacher:targets(b, cfg.kd))
      assert.equal('logits', target:info().kind)
      assert.equal(2, target:info().temperature)
      assert.equal('js', ms.kd(target, 1, read({ kd = ms.kd.options { target = 'logits', temperature = 2,
        first_weight = ms.option(0.9) } }, 'kd.objective=js').kd):meaning().objective)
      local run = ms.run.open(cfg, { student = model, data = recipe.data(20), quiet = true })
      local v = run:validate { data = recipe.data(5), teacher = teacher, kd = cfg.kd }
      assert.is_true(v.forward_kl > 0)
      run:close()
      cfg.kd.first_wieght = 1 -- nobody has declared this one
      tools.fails("kd: no option 'first_wieght'", ms.kd, target, 1, cfg.kd)
      cfg.epoch = 3
      tools.fails("run.open: no option 'epoch'; did you mean 'epochs'?", ms.run.open, cfg,
        { student = model, data = recipe.data(20), quiet = true })
    end)
  end)

  it('has the module\'s kinds and meanings where it is written out', function()
    local text = ms.config.help { kd = { k = 5, mine = ms.option(1, 'of the recipe') },
      data = { over_long = 'truncate' } }
    text = text:gsub('%s+', ' ')
    for _, want in ipairs { ' kd.k 5 entries of a topk target (integer >= 1) ',
      ' kd.mine 1 of the recipe (number) ',
      ' data.over_long truncate what happens to longer ones: drop, truncate, truncate_left, split, error ' } do
      tools.says(want, text)
    end
  end)

  it('has its own keys alone, as the configuration has', function()
    local cfg = read({ kd = ms.kd.options {}, data = { limit = ms.optional('integer', 'rows') } })
    tools.fails({ 'schema_spec.lua:', "the configuration's kd has no 'wieght'; did you mean 'weight'?" },
      function() local _ = cfg.kd.wieght end)
    assert.is_nil(cfg.kd.temperature) -- not given
    assert.is_nil(cfg.data.limit)
    tools.fails("the configuration's data has no 'zzzzzz'; there are limit", function() local _ = cfg.data.zzzzzz end)
    tools.fails("command line: no option 'kdd'; did you mean 'kd'?", read, { kd = ms.kd.options {} }, 'kdd=3')
    -- a module may be given a table that has few of its keys
    local few = read({ kd = { temperature = 1, k = 4 } }).kd
    local batch, model = ms.batch { { 1, 2 } }, ms.model.create(recipe.config, 1)
    local target = model:targets(batch, few)
    assert.equal(1, ms.kd(target, 1, few):meaning().temperature)
    assert.equal(1, #model:generate({ { 1 } }, read({ gen = { max_new = 1 } }).gen))
    local tok_folder = folder .. '/tok'
    ms.bpe.write(tok_folder, ms.bpe.learn({ 'a b' }, 300), 64)
    local chat = ms.chat.open(tok_folder)
    local tok, own = chat.tokenizer, read({ gen = { max_new = 1, seed = 1 }, tok = { mine = 1 } })
    local wide = ms.model.create(models.config { vocab_size = 300, num_hidden_layers = 1 }, 1)
    assert.equal('string', type((ms.generate.text(wide, tok, 'a', own.gen))))
    ms.generate.write(folder .. '/rows.jsonl', wide, chat, { 'a' }, own.gen)
    assert.equal('a', tok:decode(tok:ids('a', own.tok), nil, own.tok))
    for _, each in ipairs { target, model, batch, chat, wide } do each:free() end
  end)

  it('blames the recipe for a table that is none', function()
    for slip, why in pairs { ['config: a%-b is no name for a key'] = { ['a-b'] = 1 },
      ["config: the default of 'a' is not numbr"] = { a = ms.option(3, 'x', 'numbr') },
      ["kinds: no bound: 'number > x'"] = { a = ms.option(3, 'x', 'number > x') } } do
      tools.refused('schema_spec.lua:%d+: ' .. slip, function() return (ms.config(why, { args = {} })) end)
    end
  end)
end)

describe('the help of a schema', function()
  it('has its columns below each other, and no bound that is the core\'s own', function()
    local text = schema.help(schema.list(ms.kd.options), 80)
    assert.is_nil(text:find('2147483647', 1, true))
    local tail, scale = text:match '\n(  tail[^\n]*)', text:match '\n(  t_scale[^\n]*)'
    assert.equal(tail:find('bucket ', 1, true), scale:find('auto   ', 1, true))
    assert.equal(tail:find('what happens', 1, true), scale:find('factor of', 1, true))
    assert.is_nil(text:find '[<>]=?\n') -- a bound is in one line
    assert.is_nil(text:find '\n *[<>]')
    tools.fails("'k' must be integer >= 1, not 0", schema.check, 'kd', ms.kd.options, { k = 0 })
    tools.fails("'k' must be integer from 1 to 2147483647, not 4294967296", schema.check, 'kd', ms.kd.options,
      { k = 2 ^ 32 })
  end)

  it('has a row for each option, with default, meaning, kind and bounds', function()
    local text = schema.help(schema.list(ms.run.options)):gsub('%s+', ' ')
    for _, want in ipairs { ' kd%.beta 0%.5 of js %(number from 0 to 1%) ',
      ' optim%.beta2 0%.999 AdamW %(number >= 0 < 1%) ',
      ' data%.train required training samples: .* %(paths or {path:, weight:, repeat:, limit:}%) ',
      ' batch%.tokens 8192 tokens of an optimiser step %(integer >= 1%) ',
      ' checkpoint%.keep 2 checkpoints kept %(integer >= 0%) ',
      ' kd%.tail bucket .*: bucket, renormalize ' } do
      assert.truthy(text:find(want), want .. ' in ' .. text)
    end
  end)
end)
