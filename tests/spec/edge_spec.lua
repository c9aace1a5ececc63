--- What is public, called with what it does not expect; and calls of which each once ended in a crash.
local ffi = require 'ffi'
local C = require 'moonstill.C'
local ms = require 'moonstill'
local models = require 'tests.support.models'
local tools = require 'tests.support.tools'

local config = models.config { num_hidden_layers = 1 }

local refused = tools.refused

local function collect()
  collectgarbage()
  collectgarbage()
end

describe('at the edge between Lua and C', function()
  it('no public function crashes, or blames a line of the library', function()
    -- what asks for gigabytes must not get them; a sanitizer needs the room for itself
    local bound = (os.getenv 'MS_PRELOAD' or '') == '' and 'ulimit -v 4000000; ' or ''
    local root = tools.run 'pwd' == 0 and select(2, tools.run 'pwd'):gsub('\n', '')
    local program = '%scd %s && export XDG_CACHE_HOME=$PWD MS_ROOT=%s && '
      .. 'LD_PRELOAD=${MS_PRELOAD:-} luajit %s/tests/programs/edge.lua 2'
    local status, out, err = tools.run(program:format(bound, tools.folder(), root, root))
    assert.equal(0, status, out:sub(-2000) .. err:sub(-2000))
    local calls, foreign = out:match '(%d+) calls, (%d+) foreign lines\n$'
    assert.equal('0', foreign, out:sub(-4000))
    assert.is_true(tonumber(calls) > 4000)
    assert.is_nil(out:find 'cannot make', out:sub(-2000))
    assert.is_nil(out:find 'nothing makes', out:sub(-2000))
  end)

  it('a loop over parameters keeps their model', function()
    local folder = tools.folder() .. '/model'
    local made = ms.model.create(config, 1)
    made:save(folder)
    made:free()
    local seen = 0
    for name, weight in ms.model.open(folder):parameters() do
      collect()
      assert.is_true(#name > 0 and weight:count() > 0)
      weight:free()
      seen = seen + 1
    end
    assert.equal(12, seen)
    local model = ms.model.create(config, 1)
    local next_one = model:parameters()
    model:free()
    refused('edge_spec.lua:%d+: model: used after free', function() local n = next_one() return n end)
  end)

  it('a path is a string without a zero byte', function()
    local panel = { series = { { x = { 1 }, y = { 1 } } } }
    for _, path in ipairs { false, 3, 'a\0b' } do
      path = path or nil
      local want = type(path) == 'string' and 'path has a zero byte at 2' or 'path is [%w ]+, expected a string'
      refused(want, function() ms.json.write(path, 1) end)
      refused(want, function() ms.json.read(path) end)
      refused(want, function() ms.json.lines(path) end)
      refused(want, function() ms.plot.write(path, panel) end)
      refused(want, function() ms.model.open(path) end)
      refused(want, function() ms.tokenizer.open(path) end)
      refused(want, function() ms.optimizer.find(path) end)
      refused(want, function() ms.lock.open(path) end)
      refused((want:gsub('path', 'folder')), function()
        ms.bpe.write(path, { tokens = {}, merges = {} }, 8)
      end)
    end
    assert.equal(C.MS_EINVAL, C.ms_file_write(nil, 'x', 1))
  end)

  it('an array has the cells that are asked of it', function()
    local three = ffi.new('int32_t[3]', 1, 2, 3)
    refused('segment 1: tokens has 3 cells, 30000000 are needed', ms.batch, { { tokens = three, count = 3e7 } })
    refused('response has 1 cells, 3 are needed', ms.batch,
      { { tokens = three, count = 3, response = ffi.new 'float[1]' } })
    refused('response is a number, expected a list of weights', ms.batch, { { tokens = { 1, 2 }, response = 5 } })
    refused('tokens is ctype<float %[3%]>, expected an FFI array of int', ms.batch,
      { { tokens = ffi.new 'float[3]', count = 3 } })
    refused('token has 3 cells, 4 are needed', ms.batch.new, three, 4, ffi.new('int32_t[2]', 0, 4), 1)
    refused('segment_start has 2 cells, 3 are needed', ms.batch.new, three, 3, ffi.new('int32_t[2]', 0, 3), 2)
    local batch = ms.batch { { tokens = ffi.cast('const int32_t *', three), count = 3 } }
    assert.equal(3, batch:tokens())
    batch:free()
  end)

  it('a sample outlives its data set', function()
    local folder = tools.folder()
    require 'moonstill.text.bpe'.write(folder, require 'moonstill.text.bpe'.learn({ 'some words' }, 300), 64)
    local rows = tools.write(folder .. '/a.txt', ('some words '):rep(10))
    local ids, n = ms.dataset.open(rows, ms.chat.open(folder), { max_tokens = 64 }):sample(1)
    local before = {}
    for i = 0, n - 1 do before[i] = ids[i] end
    collect()
    for _ = 1, 100 do ffi.new('char[?]', 4096) end
    for i = 0, n - 1 do assert.equal(before[i], ids[i]) end
    assert.equal(4 * n, ffi.sizeof(ids))
  end)

  it('a handle of another kind is said to be one', function()
    local batch = ms.batch { { 1, 2 } }
    refused('model expected, got batch', ms.optimizer.new, batch)
    refused('from is a nil, expected a model', ms.model.copy)
    refused('optimizer expected, got table', ms.optimizer.new(ms.model.create(config, 1, { train = true })).step,
      {}, 1)
    batch:free()
  end)
end)
