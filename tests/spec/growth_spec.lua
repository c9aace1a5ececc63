--- What grows out of a small text is bounded, and the error says what grew and the limit.
local json = require 'moonstill.base.json'
local ms = require 'moonstill'
local tools = require 'tests.support.tools'
local folders = require 'tests.support.folders'

local refused = tools.refused

describe('growth: JSON', function()
  it('may take memory in relation to its bytes', function()
    local objects = '[' .. ('{},'):rep(2e6) .. '1]'
    refused('objects: the values in 6000003 bytes of JSON take more than 355109008 bytes of memory',
      json.decode, objects, 'objects')
    assert.equal(1e6, #json.decode('[' .. ('1,'):rep(1e6 - 1) .. '1]'))
    assert.equal(2e5, #json.decode('[' .. ('{"a":1},'):rep(2e5 - 1) .. '{}]'))
  end)

  it('is bounded by size where a file has a known one', function()
    local folder = folders.folder(folders.tiny(), nil)
    tools.write(folder .. '/config.json', '{"a": "' .. ('x'):rep(2 ^ 20) .. '"}')
    refused('config.json: 1048585 bytes, limit 1048576', ms.model.open, folder)
  end)
end)

describe('growth: a file', function()
  it('without an end is an error, and so is a line', function()
    if not tools.exists '/dev/zero' then return pending 'no /dev/zero here' end
    refused('/dev/zero: longer than 268435456 bytes, the limit', json.read, '/dev/zero')
    refused('/dev/zero: line 1 is longer than 268435456 bytes, the limit', json.lines '/dev/zero')
  end)
end)

describe('growth: YAML', function()
  it('by aliases of a long text is bounded in bytes', function()
    local long = 'a: &a ' .. ('x'):rep(1e6) .. '\nb: [' .. ('*a,'):rep(1000) .. ']'
    refused('long: line 2, column %d+: aliases make more than 67108864 bytes of text', json.decode_yaml,
      long, 'long')
  end)
end)

describe('growth: a tokenizer', function()
  local small = require 'tests.support.tokenizers'
  local folder = tools.folder()

  local function open(change, unseen)
    local file = small.byte_level(change)
    for key, value in pairs(unseen or {}) do file[key] = value end
    return ms.tokenizer.open(tools.write(folder .. '/tokenizer.json', json.encode(file)))
  end

  local function replace(from, to) return { type = 'Replace', pattern = from, content = to } end
  local thousandfold = replace({ String = 'a' }, ('a'):rep(1000))
  local chain = { thousandfold, thousandfold, thousandfold }
  local limit = 'make more than %d+ bytes of %d+: the limit is 65536, and 64 for each byte of the text'

  it('makes no gigabytes of a word by its normalizers', function()
    refused(limit, function()
      open { normalizer = { type = 'Sequence', normalizers = chain } }:encode 'a short text, as data have'
    end)
    refused(limit, function()
      open { normalizer = { type = 'Sequence', normalizers = { replace({ Regex = '[a-z]' }, ('a'):rep(70000)) } } }
        :encode 'b'
    end)
    refused(limit, function()
      open { normalizer = { type = 'Prepend', prepend = ('a'):rep(65536 + 65) } }:encode 'b'
    end)
  end)

  it('nor for each stretch between added tokens', function()
    local tok = open { normalizer = { type = 'Prepend', prepend = ('a'):rep(1000) },
      added = { small.added(256, '<s>') } }
    assert.equal(1002, #tok:ids 'b<s>')
    refused(limit, function() tok:encode(('b<s>'):rep(1000)) end)
  end)

  it('nor by its pre-tokenizers', function()
    local bytes = { type = 'ByteLevel', add_prefix_space = false, use_regex = false, trim_offsets = true }
    local list = {}
    for i = 1, 30 do list[i] = bytes end
    refused(limit, function()
      open { pre_tokenizer = { type = 'Sequence', pretokenizers = list } }:encode(('\195\169'):rep(1000))
    end)
  end)

  it('nor by its decoders, whether at once or step by step', function()
    local tok = open { decoder = { type = 'Sequence', decoders = chain } }
    local ids = tok:ids 'a'
    refused(limit, function() tok:decode(ids) end)
    refused(limit, function() tok:detokenizer():add(ids[1]) end)
  end)

  it('may do what tokenizers do, to long texts too', function()
    local space = replace({ String = ' ' }, '\226\150\129')
    local tok = open({ normalizer = { type = 'Sequence', normalizers = { { type = 'Prepend', prepend = ' ' },
      space, { type = 'NFC' } } } }, { pre_tokenizer = { type = 'ByteLevel', add_prefix_space = true,
      use_regex = true, trim_offsets = true } })
    local long = (' \240\159\152\128'):rep(50000)
    assert.is_true(#tok:ids(long) > 50000)
    local detokenizer, n = tok:detokenizer(), 0
    for _ = 1, 1e5 do n = n + #detokenizer:add(65) end
    assert.equal(1e5, n + #detokenizer:finish())
  end)
end)
