-- What was made of a model's weights and still refers to them, once they are others.
local ffi = require 'ffi'
local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local heads = require 'tests.support.heads'
local models = require 'tests.support.models'
local ms = require 'moonstill'
local tools = require 'tests.support.tools'

local function model(changes, options)
  local o = { train = true }
  for key, value in pairs(options or {}) do o[key] = value end
  return ms.model.create(models.config(changes), 5, o)
end

local batch = ms.batch { models.segment(9, 1, 37), models.segment(4, 2, 37) }

local function parameter(m, wanted)
  local found
  for name, weight, gradient in m:parameters() do
    if gradient then gradient:free() end
    if name == wanted then found = weight else weight:free() end
  end
  return assert(found, wanted)
end

-- A step of the optimiser from gradients of one batch.
local function step(m)
  local optimizer = ms.optimizer.new(m)
  m:learn(batch, { ms.ce() })
  optimizer:step(1e-2)
  return optimizer
end

local function write(m, name)
  local w = parameter(m, name)
  w:write(tools.values(w:count(), 3))
  w:free()
end

local HEAD, NORM = 'lm_head.weight', 'model.norm.weight'

-- What changes a head, and what does not.
local CHANGES = {
  { 'a step', function(m) step(m) end },
  { 'a write', function(m) write(m, HEAD) end },
  { 'a write through a view', function(m)
    local w = parameter(m, HEAD)
    w:view(24, 1, 24):write(tools.values(24, 3))
  end },
  { 'a copy', function(m)
    local w = parameter(m, HEAD)
    w:copy(parameter(model(), HEAD))
  end },
  { 'an operation', function(m)
    local w = parameter(m, HEAD)
    ms.ops.add(w, w)
  end },
  { 'a checkpoint', function(m)
    local path, state = tools.folder() .. '/saved', ffi.new 'char *[1]'
    local optimizer = ms.optimizer.new(m)
    check(C.ms_checkpoint_write(path, m.p, optimizer.p, '{}'))
    check(C.ms_checkpoint_read(path, m.p, optimizer.p, state))
    C.ms_text_free(state[0])
  end },
}

describe('a hidden target', function()
  local student = model({ num_hidden_layers = 1 })

  local function use(target)
    return pcall(student.learn, student, batch, { ms.kd(target) })
  end

  for _, change in ipairs(CHANGES) do
    it('is refused after ' .. change[1] .. ' changed the head it refers to', function()
      for _, tied in ipairs { false, true } do
        if not tied or not change[1]:find '^a [wc]' then
          local teacher = model({ tie_word_embeddings = tied })
          if tied then HEAD = 'model.embed_tokens.weight' end
          local hidden = teacher:targets(batch, { target = 'hidden' })
          assert(use(hidden))
          change[2](teacher)
          local ok, message = use(hidden)
          assert.is_false(ok)
          assert(message:find('head has changed since its target was made', 1, true)
            and message:find('topk', 1, true), message)
          assert.is_false(pcall(student.evaluate, student, batch, { ms.kd(hidden) }))
          assert(use(teacher:targets(batch, { target = 'hidden' })))
          HEAD = 'lm_head.weight'
        end
      end
    end)
  end

  it('stays good where what changes is not the head', function()
    local teacher = model(nil, { frozen = 'lm_head*' })
    local hidden = teacher:targets(batch, { target = 'hidden' })
    local before = student:evaluate(batch, { ms.kd(hidden) })[1].value
    step(teacher)
    write(teacher, NORM)
    teacher:zero_gradients()
    assert.equal(before, student:evaluate(batch, { ms.kd(hidden) })[1].value)
  end)

  it('of the kinds that keep what they were made of stay what they were', function()
    for _, kind in ipairs { 'topk', 'logits' } do
      local teacher = model()
      local target = teacher:targets(batch, { target = kind, k = 8 })
      local before = student:evaluate(batch, { ms.kd(target) })[1].value
      step(teacher)
      write(teacher, HEAD)
      assert.equal(before, student:evaluate(batch, { ms.kd(target) })[1].value, kind)
    end
  end)

  it('of a head that is a tensor is refused as well', function()
    local hidden, head = heads.product { { 1, 2, 3 }, { 0, 1, 0 } }
    local out = ffi.new 'ms_target *[1]'
    check(C.ms_target_new(heads.options { kind = 'hidden', on = 'all', vocab = 3 }, hidden.p, head.p, 1,
      0, 0, out))
    local terms = heads.terms { { objective = 'forward_kl', on = 'all', target = out[0] } }
    local result = ffi.new 'ms_term_result[1]'
    local function run()
      return C.ms_head_run(hidden.p, head.p, 1, 0, nil, nil, nil, 1, terms, 0, nil, nil, result)
    end
    check(run())
    ms.ops.add(head, head)
    assert.equal(C.MS_EINVAL, run())
    assert(ffi.string(C.ms_last_error()):find('head has changed', 1, true))
    C.ms_target_free(out[0])
  end)
end)

describe('a generation', function()
  it('does not go on with keys and values of other weights', function()
    for _, change in ipairs { step, function(m) write(m, NORM) end, function(m) write(m, HEAD) end } do
      local m = model()
      local stream = m:stream({ { 1, 2, 3 } }, { max_new = 5, stop = {} })
      assert(stream())
      change(m)
      tools.fails('weights have changed since the prompts', stream)
    end
  end)

  it('goes on where nothing was written', function()
    local m = model()
    local stream = m:stream({ { 1, 2, 3 } }, { max_new = 3, stop = {} })
    assert(stream())
    m:learn(batch, { ms.ce() })
    m:zero_gradients()
    assert(stream() and stream())
    assert.is_nil(stream())
  end)
end)
