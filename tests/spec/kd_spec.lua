-- Terms and targets as Lua sees them.
local ffi = require 'ffi'
local ms = require 'moonstill'
local C = require 'moonstill.C'
local heads = require 'tests.support.heads'

local tools = require 'tests.support.tools'
local refused = require 'tests.support.tools'.refused

local function target(options)
  options = options or {}
  options.vocab = options.vocab or 5
  return ms.target.topk({ { 3, 1 } }, { { math.log(0.5), math.log(0.25) } }, { math.log(0.25) }, options)
end

describe('kd', function()
  it('lists the objectives that the core has, all of which are defined in the tests', function()
    assert.same(heads.objectives, ms.kd.objectives)
    for i, name in ipairs(ms.kd.objectives) do
      assert.equal(i - 1, ms.kd(target(), 1, { objective = name }).c.objective)
    end
    assert.equal(tonumber(C.MS_TAIL_RENORMALIZE), ms.kd(target(), 1, { tail = 'renormalize' }).c.tail)
    assert.equal(tonumber(C.MS_ON_ALL), ms.ce(1, { on = 'all' }).c.on)
  end)

  it('takes no logits that are NaN', function()
    refused('the logit of id 2 in row 1 is NaN', ms.target.logits, { { 1, 2, 3 }, { 1, -math.huge, 0 / 0 } })
    assert.equal(2, ms.target.logits { { 1, 2, 3 }, { 1, -math.huge, 0 } }:rows())
  end)

  it('takes a configuration as it is, with what it does not use', function()
    local term = ms.kd(target(), 0.3, { objective = 'js', weight = 0.9, temperature = 1, target = 'topk', k = 2,
      tail = 'bucket', beta = 0.2, lambda = 0.4, t_scale = 'auto' })
    assert.equal(0.3, term.weight)
    assert.equal(0.2, term.c.parameter)
    assert.is_true(term.c.t_scale ~= term.c.t_scale)
    assert.equal(1, ms.kd(target(), 1, { t_scale = false }).c.t_scale)
    assert.equal(4, ms.kd(target(), 1, { t_scale = 4 }).c.t_scale)
    assert.equal(0.1, ms.kd(target(), 1, { objective = 'skewed_forward_kl' }).c.parameter)
    assert.equal(0.5, ms.kd(target(), 1, { objective = 'adaptive_kl' }).c.parameter)
    assert.equal('0.3 * js (response) against target topk 2 of 1 positions (response), 5 ids, T = 1, 20 bytes',
      tostring(term))
    assert.equal('0.5 * ce (all)', tostring(ms.ce(0.5, { on = 'all' })))
    assert.equal('1 * ce (response)', tostring(ms.ce()))
    assert.equal(1, ms.kd(target()).weight)
  end)

  it('refuses a target that is not what its options say', function()
    refused('the term asks for target = hidden, its target has topk', ms.kd, target(), 1, { target = 'hidden' })
    refused('asks for teacher_temperature = 2, its target has 1', ms.kd, target(), 1, { teacher_temperature = 2 })
    refused('asks for vocab = 4, its target has 5', ms.kd, target(), 1, { vocab = 4 })
    local cfg = { target = 'topk', teacher_temperature = 2, vocab = 5 }
    local term = ms.kd(target { teacher_temperature = 2 }, 1, cfg)
    refused('asks for teacher_temperature = 2, its target has 1', term.set, term, 1, target())
    assert.equal(2, term:set(1, target { teacher_temperature = 2 }).target:info().teacher_temperature)
    ms.kd(target { vocab = 7 }, 1, { vocab = 0 }) -- 0: as wide as it is
  end)

  it('refuses what it does not know, with the nearest', function()
    refused("no option 'objektive'; did you mean 'objective'", ms.kd, target(), 1, { objektive = 'js' })
    refused("kd: 'objective' must be one of forward_kl, .*, not forward_lk; did you mean 'forward_kl'", ms.kd,
      target(), 1, { objective = 'forward_lk' })
    refused("'tail' must be one of bucket, renormalize, not buckets; did you mean 'bucket'", ms.kd, target(), 1,
      { tail = 'buckets' })
    refused("'on' must be one of response, all, not everywhere", ms.ce, 1, { on = 'everywhere' })
    refused("'t_scale' must be auto or false or number > 0 <= 1e6, not on", ms.kd, target(), 1, { t_scale = 'on' })
    refused("'temperature' must be number from 0.001 to 1000, not \"2\" in quotes", ms.kd, target(), 1,
      { temperature = '2' })
    refused('target expected, got table', ms.kd, {}, 1)
    refused('weight of a term is a number, got string', ms.ce, '1')
    local t = target()
    t:free()
    t:free() -- nothing
    refused('target: used after free', ms.kd, t, 1)
    assert.equal('target (freed)', tostring(t))
  end)

  it('a term is set again without garbage', function()
    local a, b = target(), target()
    local ce, kd = ms.ce(1), ms.kd(a, 1)
    assert.equal(kd, kd:set(0.25, b))
    assert.equal(0.25, kd.weight)
    assert.equal(b, kd.target)
    assert.equal(b, kd:set(0.5).target)
    refused('a CE term has no target', ce.set, ce, 1, a)
    local function grown()
      collectgarbage()
      collectgarbage 'stop'
      local before = collectgarbage 'count'
      for i = 1, 1000 do
        ce:set(i)
        kd:set(i, b)
      end
      local kib = collectgarbage 'count' - before
      collectgarbage 'restart'
      return kib
    end
    grown() -- what the compiler makes counts as well
    -- a table for each would be 120 KiB; interpreted, reading a pointer makes a box of 24 bytes
    assert.is_true(grown() < 60)
  end)

  it('gives results that stay as they are, of what was measured', function()
    ms.scope(function(own)
      local model = own(ms.model.create({ model_type = 'llama', vocab_size = 13, hidden_size = 8, intermediate_size = 8,
        num_hidden_layers = 1, num_attention_heads = 1, num_key_value_heads = 1, max_position_embeddings = 8,
        rms_norm_eps = 1e-5, hidden_act = 'silu', tie_word_embeddings = true, initializer_range = 0.5 }, 1))
      local a = own(ms.batch { { tokens = { 1, 2, 3 }, response = { 1, 1, 0 } } })
      local b = own(ms.batch { { tokens = { 5, 6, 7 }, response = { 0, 1, 0 } } })
      local none = own(ms.batch { { 1, 2 } })
      local function run(batch)
        return model:evaluate(batch, { ms.ce(1), ms.kd(own(model:targets(batch, { k = 2 }))) })
      end
      local first = run(a)
      local ce, kd = first[1], first[2]
      local function values()
        return { ce.value, ce.weight, ce.rows, ce.agree, ce.student_mass, kd.value, kd.weight, kd.rows, kd.agree,
          kd.student_mass, kd.teacher_mass, kd.student_entropy, kd.teacher_entropy, tostring(first) }
      end
      local before = values()
      assert.equal(14, #before)
      assert.equal(2, ce.weight)
      local second = run(b)
      assert.equal(1, second[1].weight)
      assert.are_not.equal(second[1].value, ce.value)
      run(none)
      assert.same(before, values())

      for _, name in ipairs { 'teacher_mass', 'student_entropy', 'teacher_entropy' } do
        assert.is_nil(ce[name], name) -- the core writes 0 or the label's own mass
      end
      local empty = run(none)
      for i = 1, 2 do
        assert.same({ 0, 0, 0 }, { empty[i].value, empty[i].weight, empty[i].rows })
        for _, name in ipairs { 'agree', 'student_mass', 'teacher_mass', 'student_entropy', 'teacher_entropy' } do
          assert.is_nil(empty[i][name], name)
        end
        assert.equal('no positions', tostring(empty[i]))
      end
      assert.equal('1: no positions\n2: no positions', tostring(empty))

      refused("a result has no 'valeu'; did you mean 'value'", function() return ce.valeu end)
      refused("results have no 'value': there is a list with one for each term", function() return first.value end)
      refused('what a call gave does not change', function() ce.value = 1 end)
      refused('what a call gave does not change', function() first[3] = 1 end)
      assert.is_nil(first[3])
    end)
  end)

  it('runs terms through a call of the core', function()
    local seen, t = {}, target()
    local b = ms.batch { { tokens = { 1, 2 }, response = { 1, 0 } } }
    local function call(_, _, n, terms, results)
      for i = 0, n - 1 do
        seen[i + 1] = { kind = terms[i].kind, weight = terms[i].weight, norm = terms[i].norm, target = terms[i].target }
        results[i].value = i + 10
      end
      results[0].weight, results[0].agree, results[1].weight = 4, 1, 0
      return 0
    end
    local list = { ms.ce(0.5), ms.kd(t, 0.25) }
    local results = ms.kd.run(call, nil, b, list, 1)
    assert.equal(2, #results)
    assert.equal(10, results[1].value)
    assert.equal(11, results[2].value)
    assert.is_nil(results[0])
    assert.equal('2.5 a position (value 10, weight 4, 25.0 % top-1 agreement)', tostring(results[1]))
    assert.equal('no positions', tostring(results[2]))
    assert.equal(tonumber(C.MS_TERM_CE), seen[1].kind)
    assert.equal(nil, seen[1].target ~= nil or nil)
    assert.equal(0.25, seen[2].weight)
    assert.equal(0, seen[2].norm)
    assert.is_true(seen[2].target == t.p)

    -- in a step: the step's norms, and it hears what the terms give
    local step_of, heard = require 'moonstill.loss.step_of', 0
    step_of.set(b, { norm = function(_, on) return on == 'all' and 7 or 3 end,
      record = function() heard = heard + 1 end, learnt = function() heard = heard + 1 end })
    list[1].weight = 0.125
    ms.kd.run(call, nil, b, list, 1)
    assert.equal(3, seen[2].norm)
    assert.equal(0.125, seen[1].weight)
    assert.equal(0, heard) -- only learning counts
    refused('term 2 is a table, not made by', ms.kd.run, call, nil, b, { ms.ce(1), {} }, 1)
    t:free()
    refused('target: used after free', ms.kd.run, call, nil, b, list, 1)
    b:free()
  end)
end)

describe('target', function()
  it('describes and reads itself', function()
    local t = target { temperature = 1, teacher_temperature = 2, on = 'all' }
    assert.same({ kind = 'topk', rows = 1, vocab = 5, on = 'all', temperature = 1, teacher_temperature = 2, bytes = 20,
      k = 2 }, t:info())
    assert.equal(1, t:rows())
    local ids = t:read()
    assert.same({ { 3, 1 } }, ids)
    t:free()
    refused('used after free', t.rows, t)
    local l = ms.target.logits({ { 1, 2, 3 }, { 0, 0, 0 } }, { temperature = 2 })
    assert.same({ kind = 'logits', rows = 2, vocab = 3, on = 'response', temperature = 2, teacher_temperature = 1,
      bytes = 24 }, l:info())
    refused('a logits target has no top%-k to read', l.read, l)
    l:free()
  end)

  it('hidden: says its width, and keeps the head alive', function()
    local h = heads.target({ { 1, 2, 3 } }, { kind = 'hidden', bf16 = true, on = 'all' }) -- its tensors are freed
    local t = ms.target.wrap(ffi.gc(h, nil))
    assert.same({ kind = 'hidden', rows = 1, vocab = 3, on = 'all', temperature = 1, teacher_temperature = 1,
      bytes = 2, width = 1, dtype = 'bf16' }, t:info())
    local got = heads.run({ { 1, 2, 3 } }, { { objective = 'forward_kl', on = 'all', target = t.p } }, {})
    assert.equal(0, got[1].value)
    t:free()
  end)

  -- { T of the target, T of the term, what counts }; false: not given
  for _, case in ipairs { { 2, 2, 2 }, { 2, false, 2 }, { false, 2, 2 }, { false, false, 1 } } do
    local of_target, of_term, want = unpack(case)
    for _, kind in ipairs { 'topk', 'hidden', 'logits' } do
      if kind ~= 'topk' or of_target or not of_term then -- a topk target always has one
        it(('%s: T %s, its term %s: %g'):format(kind, of_target, of_term, want), function()
          local y, z = { { 1, 2, 4, -1 } }, { { 0, 1, -2, 3 } }
          local function value(t, u)
            local made = heads.target(y, { kind = kind, k = 2, T = t or 0 / 0 })
            local term = { objective = 'forward_kl', target = made, T = u or 0 / 0 }
            return heads.run(z, { term }, { response = { 1 } })[1].value
          end
          assert.equal(value(want, want), value(of_target, of_term))
          assert.are_not.equal(value(want, want), value(want + 1, want + 1))
        end)
      end
    end
  end

  it('a temperature that differs from its term\'s is refused for every kind, before anything is run', function()
    local function made(o) return ms.target.logits({ { 1, 2, 3 } }, o) end
    for _, t in ipairs { target { temperature = 2 }, made { temperature = 2 } } do
      refused('kd: the term asks for temperature = 3, its target has 2', ms.kd, t, 1, { temperature = 3 })
      ms.kd(t, 1, { temperature = 2 })
      ms.kd(t)
    end
    refused('the term asks for temperature = 2, its target has 1', ms.kd, target(), 1, { temperature = 2 })
    local open = made()
    assert.is_nil(open:info().temperature)
    assert.matches("T = the term's, ", tostring(open))
    local term = ms.kd(open, 1, { temperature = 3 })
    refused('asks for temperature = 3, its target has 2', term.set, term, 1, made { temperature = 2 })
    for _, bad in ipairs { 0, -1, 0 / 0, math.huge } do
      refused("'temperature' must be number from 0.001 to 1000, not ", ms.kd, open, 1, { temperature = bad })
      refused("'temperature' must be number from 0.001 to 1000, not ", made, { temperature = bad })
    end
  end)

  it('of a teacher whose outputs are not finite are errors with its path and the place', function()
    local models = require 'tests.support.models'
    local path = tools.folder() .. '/diverged'
    ms.model.create(models.config { vocab_size = 11 }, 1):save(path)
    local teacher = ms.model.open(path)
    local b = ms.batch({ { 1, 2 }, { 3, 4, 5 } }, { { 6 }, { 7, 8 } })
    for name, weight in teacher:parameters() do
      if name == 'model.embed_tokens.weight' then -- token 5 alone, the last of the second prompt
        weight:view(5 * 24, 24):write((function()
          local t = {}
          for i = 1, 24 do t[i] = 0 / 0 end
          return t
        end)())
      end
      weight:free()
    end
    for _, kind in ipairs { 'topk', 'hidden', 'logits' } do
      refused(path:gsub('%p', '%%%0') .. '%) gives hidden states that are not finite at position 2 of '
        .. 'segment 1 %(token 5%)', teacher.targets, teacher, b, { target = kind, k = 3 })
    end
    -- states that are finite, and logits that are not
    local large = ms.model.create(models.config { vocab_size = 11 }, 1)
    for name, weight in large:parameters() do
      if name == 'model.norm.weight' or name == 'lm_head.weight' then
        local t = {}
        for i = 1, weight:count() do t[i] = 1e30 end
        weight:write(t)
      end
      weight:free()
    end
    refused('%(made in memory%) gives log%-probabilities that are not finite at position 1 of segment 0',
      large.targets, large, b, { k = 3 })
    refused('gives logits that are not finite', large.targets, large, b, { target = 'logits' })
  end)

  it('refuses rows of unequal lengths', function()
    refused('row 2 has 1 values, the first one 2', ms.target.topk, { { 1, 2 }, { 1 } },
      { { -1, -1 }, { -1 } }, { -1, -1 }, { vocab = 5 })
    refused('2 rows of ids, 1 of log_p', ms.target.topk, { { 1 }, { 1 } }, { { -1 } }, { -1, -1 }, { vocab = 5 })
    refused("no option 'vocabs'; did you mean 'vocab'", ms.target.logits, { { 1 } }, { vocabs = 1 })
  end)
end)
