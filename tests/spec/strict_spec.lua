--- A name that is not there is an error that says what may have been meant, wherever users look: of
--- handles, and of all that they are given beside them.
local models = require 'tests.support.models'
local ms = require 'moonstill'
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
    { 'tokenizer', tok, 'id_s', 'ids' }, { 'decoder', tok:decoder(), 'fnish', 'finish' },
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
      tools.refused(('strict_spec.lua:%%d+: %s expected, got another handle'):format(what), function()
        x.free(what == 'batch' and model or batch)
      end)
      tools.refused(('strict_spec.lua:%%d+: %s: used after %s'):format(what, verb), function()
        return (require 'moonstill.base.handle'.pointer(what, x))
      end)
    end
  end)
end)
