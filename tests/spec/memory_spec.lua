--- Memory that ends, at any request of ours or of the libraries below, through everything that reads
--- and writes: an error, nothing left behind, and afterwards the same result as if nothing had been.
local json = require 'moonstill.base.json'
local ms = require 'moonstill'
local models = require 'tests.support.models'
local tools = require 'tests.support.tools'
local tokenizers = require 'tests.support.tokenizers'

local config = models.config { vocab_size = 260, num_hidden_layers = 1, hidden_size = 8,
  intermediate_size = 16, num_attention_heads = 2, num_key_value_heads = 1 }

-- Calls `body` with what is freed again however it ends.
local function scoped(body)
  local list = {}
  local ok, result = pcall(body, function(x) list[#list + 1] = x return x end)
  for i = #list, 1, -1 do list[i]:free() end
  if not ok then error(result, 0) end
  return result
end

local function walk(least, body, tidies)
  local want = scoped(body)
  local n = tools.walk_memory(function() return scoped(body) end, want, tidies)
  assert(n >= least, n .. ' allocations')
end

describe('when memory ends', function()
  local folder

  setup(function()
    folder = tools.folder(true)
    local model = ms.model.create(config, 1)
    tools.write(folder .. '/tokenizer.json', json.encode(tokenizers.byte_level {
      merges = { { 'a', 'b' } }, use_regex = true, added = { tokenizers.added(257, '<s>') } }))
    model:save(folder .. '/model', { carry = folder })
    model:free()
  end)

  it('JSON and YAML are whole or an error', function()
    -- texts long enough for the buffers of the reader to grow, which loses letters where nobody looks
    local long = ('text '):rep(200)
    local value = { a = { 1.5, long, { b = long } }, [long] = true }
    local text = json.encode(value)
    walk(20, function() return json.encode(json.decode(text)) end)
    walk(3, function() return json.encode(json.decode_yaml('a: &x [1, {b: "' .. long .. '"}]\nc: *x')) end)
    local path = tools.folder(true) .. '/a.json'
    walk(2, function()
      json.write(path, value)
      return json.encode(json.read(path))
    end)
  end)

  it('tokenizers are whole or an error', function()
    walk(100, function(own)
      local tok = own(ms.tokenizer.open(folder .. '/model'))
      local text = 'abab <s>, then ba'
      local ids, n, offsets = tok:encode(text, { plain = { 5, 6 }, offsets = true })
      local parts = { tok:size(), tok:decode(ids, n), table.concat(tok:ids(text), ' ') }
      for i = 0, 2 * n - 1 do parts[#parts + 1] = offsets[i] end
      return table.concat(parts, ' ')
    end)
  end)

  it('models are', function()
    walk(100, function(own)
      local model = own(ms.model.open(folder .. '/model'))
      return json.encode { model:config(), model:info() }
    end)
    local path = tools.folder(true) .. '/again'
    local model = ms.model.open(folder .. '/model')
    walk(30, function()
      model:save(path)
      return json.encode(json.read(path .. '/config.json')) .. select(2, tools.run('cksum <' .. path
        .. '/model.safetensors')) .. select(2, tools.run('ls ' .. path))
    end, 'tidies')
    model:free()
  end)

  it('batches, targets, losses and updates are', function()
    local teacher = ms.model.open(folder .. '/model')
    walk(30, function(own)
      local student = own(ms.model.open(folder .. '/model', { train = true, dtype = 'f32' }))
      local optimizer = own(ms.optimizer.new(student))
      local batch = own(ms.batch { models.segment(5, 1, 250), models.segment(4, 2, 250) })
      local target = own(teacher:targets(batch, { target = 'topk', k = 3 }))
      local result = student:learn(batch, { ms.ce(1) })
      local norm = optimizer:step(0.1)
      local out = student:generate({ { 1, 2, 3 } }, { max_new = 3, temperature = 0 })
      return json.encode { result[1].value, norm, target:info(), out }
    end)
    teacher:free()
  end)

  it('checkpoints are, and a sound one is not passed over', function()
    local path = tools.folder(true)
    local model = ms.model.open(folder .. '/model', { train = true, dtype = 'f32' })
    local optimizer = ms.optimizer.new(model)
    optimizer:write(path .. '/step-1', model, '{"n":1}')
    optimizer:write(path .. '/step-2', model, '{"n":2}')
    walk(20, function() return ms.optimizer.find(path) end)
    walk(20, function() return optimizer:read(path .. '/step-2', model) end)
    optimizer:free()
    model:free()
  end)
end)
