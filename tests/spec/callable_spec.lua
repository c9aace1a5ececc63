--- Modules that make one kind of thing may be called; and what they, and the methods of tensors, say of anything
--- that is no argument of theirs.
local ffi = require 'ffi'
local models = require 'tests.support.models'
local ms = require 'moonstill'
local tools = require 'tests.support.tools'

local CALLS = { batch = 'of', chat = 'open', config = 'read', dataset = 'open', device = 'open', kd = 'term',
  model = 'open', optimizer = 'new', run = 'open', tensor = 'new', tokenizer = 'open' }

-- Of all kinds of values, none of which is right where a path, an object or a table of options belongs.
local function values()
  local device, batch, tensor = ms.device 'cpu', ms.batch { { 1, 2 } }, ms.tensor('cpu', 2)
  for _, handle in ipairs { device, batch, tensor } do handle:free() end
  return { n = 18, nil, true, 0, -1, 1.5, 0 / 0, 1 / 0, '', 'a\0b', '/nowhere', {}, { { {} } }, print,
    ffi.new 'int64_t', coroutine.create(print), device, batch, tensor }
end

-- An error in words of moonstill's, about this file or a file that was named: not one of Lua's own.
local function in_our_words(why, where)
  why = tostring(why)
  local bad_words = { 'attempt to', 'bad argument', 'stack overflow', 'cannot convert', '^lua/', '^%./lua/' }
  for _, bad in ipairs(bad_words) do
    assert.is_nil(why:find(bad), where .. ': ' .. why)
  end
end

local function described(value)
  return type(value) == 'cdata' and tostring(value) or ('%s %q'):format(type(value), tostring(value))
end

describe('a module that makes one kind of thing', function()
  for name, of in pairs(CALLS) do
    it('may be called: ms.' .. name .. ' is ms.' .. name .. '.' .. of, function()
      local mt = getmetatable(ms[name])
      assert.equal(of, mt.calls)
      assert.equal(ms[name][of], select(2, debug.getupvalue(mt.__call, 1)))
    end)
  end

  it('gives what its function gives', function()
    local folder = tools.folder()
    local text = folder .. '/text'
    ms.bpe.write(text, ms.bpe.learn({ 'a b' }, 300), 64)
    ms.model.create(models.config { vocab_size = 300 }, 1):save(folder .. '/model')
    local model, tok = ms.model(folder .. '/model', { train = true, device = 'cpu' }), ms.tokenizer(text)
    assert.equal(300, model:info().vocab)
    assert.same(ms.tokenizer.open(text):ids 'a b', tok:ids 'a b')
    local chat = ms.chat(text)
    local data = ms.dataset({ { text = 'a b a b' } }, chat, { max_tokens = 8, quiet = true })
    assert.equal(1, data:count())
    assert.equal(0, ms.optimizer(model):steps())
    local run = ms.run({ output = folder .. '/out', optim = { lr = 1e-3 } },
      { student = model, data = data, quiet = true })
    assert.equal(0, run.state.step)
    assert.equal('device cpu', tostring(ms.device 'cpu'))
  end)
end)

-- Calls f(a, b) with all pairs of the values: whatever is an error must be one in words.
local function try_pairs(what, f)
  local all = values()
  for i = 1, all.n do
    for j = 1, all.n do
      local ok, why = pcall(f, all[i], all[j])
      if not ok then in_our_words(why, ('%s(%s, %s)'):format(what, described(all[i]), described(all[j]))) end
    end
  end
end

describe('what is no argument', function()
  for name in pairs(CALLS) do
    if name ~= 'config' then -- which ends the process
      it('of ms.' .. name .. ' is an error in words', function()
        try_pairs('ms.' .. name, function(a, b) ms[name](a, b) end)
      end)
    end
  end

  it('of the objects that a run is given is an error in words', function()
    local folder, all = tools.folder(), values()
    local student = ms.model.create(models.config { vocab_size = 300 }, 1, { train = true })
    local function open(options)
      options.quiet = true
      ms.run({ output = folder .. '/out', max_steps = 1, optim = { lr = 1e-3 } }, options):close()
    end
    for i = 2, all.n do
      local where = described(all[i])
      for name, options in pairs { student = { student = all[i] }, data = { student = student, data = all[i] },
        ['validation: data'] = { student = student, validation = { data = all[i] } },
        ['validation: teacher'] = { student = student, validation = { teacher = all[i] } },
        validation = { student = student, validation = type(all[i]) ~= 'table' and all[i] or 1 } } do
        local ok, why = pcall(open, options)
        assert.is_false(ok, name .. ' ' .. where)
        in_our_words(why, name .. ' ' .. where)
        assert.truthy(why:find('run.open: ' .. name, 1, true) or why:find 'used after', why)
      end
    end
  end)

  it('of a tensor is an error in words', function()
    ms.scope(function(own)
      local t = own(ms.tensor('cpu', { { 1, 2 }, { 3, 4 } }))
      local row = own(t[1])
      local uses = { at = t.at, set = t.set, view = t.view, write = t.write, copy = t.copy,
        get = function(x, i) return x[i] end, put = function(x, i, v) x[i] = v end }
      for name, use in pairs(uses) do
        try_pairs(name, function(a, b) use(t, a, b) end)
        try_pairs(name, function(a, b) use(row, a, b) end)
      end
      for _, name in ipairs { 'at', 'set', 'sum', 'mean', 'max', 'min', 'table', 'length', 'read' } do
        try_pairs(name, function(a) t[name](a) end)
        tools.fails('tensor expected, got nil', t[name])
      end
    end)
  end)
end)
