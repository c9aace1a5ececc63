--- Data sets of several ranks: the first rank of a machine encodes, the others map what it has made.
local launched = require 'tests.support.launched'
local json = require 'moonstill.base.json'
local ms = require 'moonstill'
local small = require 'tests.support.tokenizers'
local tools = require 'tests.support.tools'

-- What each rank runs: it counts the rows that it encodes and the calls of `keep`, and sees the samples.
local COUNT = [[
  local ms = require 'moonstill'
  local encoding, w = require 'moonstill.data.encoding', require 'moonstill.base.ranks'.world()
  local encoded, called, add = 0, 0, encoding.add
  encoding.add = function(self, list, ...) encoded = encoded + #list return add(self, list, ...) end
  local function keep(row) called = called + 1 return #row.text > 3 end
  local function open(path, options)
    local chat = ms.chat.open(arg[2])
    return ms.dataset.open(path, chat, options)
  end
  local function all(x) -- what each rank has
    local list = {}
    for rank = 0, w.size - 1 do list[rank + 1] = w:from(rank, x) end
    return table.concat(list, ' ')
  end
]]

describe('a data set of several ranks', function()
  if launched.missing then return it('is encoded once', function() pending(launched.missing) end) end

  local folder = tools.folder()
  local lines = {}
  for i = 1, 50 do lines[i] = ('{"text": "%s of the words"}'):format(('a b '):rep(i)) end
  local path = tools.write(folder .. '/rows.jsonl', table.concat(lines, '\n') .. '\n')
  local tokenizer = folder .. '/tokenizer'
  os.execute('mkdir ' .. tokenizer)
  tools.write(tokenizer .. '/tokenizer.json', json.encode(small.byte_level { added = { small.added(302, '</s>') } }))
  tools.write(tokenizer .. '/config.json', '{"eos_token_id": 302}')
  local fingerprint = ms.dataset.open(path, ms.chat.open(tokenizer), { cache = 'off', quiet = true })
    :fingerprint()

  local function run(code, ...)
    local status, out, err = launched.run('-n', 3, '-e', COUNT .. code, path, tokenizer, ...)
    return out, err, status
  end

  local function left()
    return select(2, tools.run('ls -d /dev/shm/moonstill-data-* ' .. folder .. '/moonstill-data-* 2>/dev/null'))
  end

  it('is encoded once, in memory that goes', function()
    local before = left()
    local out, err = run [[
      local data = open(arg[1], { cache = 'off' })
      print(all(encoded), all(data:fingerprint()), all(data:count()), all(data.report.rows))]]
    local f = fingerprint
    assert.equal(('50 0 0\t%s %s %s\t50 50 50\t50 50 50\n'):format(f, f, f), out, err)
    assert.equal(before, left())
  end)

  it('is taken from the cache, and goes there', function()
    for _, want in ipairs { '50 0 0', '0 0 0' } do
      local out, err = run([[
        local data = open(arg[1], { cache = arg[3] })
        print(all(encoded), all(data:fingerprint()))]], folder .. '/cache')
      assert.equal(('%s\t%s %s %s\n'):format(want, fingerprint, fingerprint, fingerprint), out, err)
    end
  end)

  it('is each rank\'s own where there is no room, nor a cache', function()
    local out, err = run([[
      require 'moonstill.data.shared'.places = { '/nowhere' }
      local data = open(arg[1], { cache = '/dev/null/cache' })
      print(all(encoded), all(data:fingerprint()))]])
    assert.equal(('50 50 50\t%s %s %s\n'):format(fingerprint, fingerprint, fingerprint), out, err)
    tools.says('not kept in the cache', err)
  end)

  it('calls functions of rows on all ranks alike', function()
    local out, err = run [[
      local data = open(arg[1], { cache = 'off', filter = keep, map = function(row, i) return i > 9 and row or
        { text = 'short' } end })
      print(all(encoded), all(called), all(data:fingerprint()):match '^(%x+) %1 %1$' ~= nil)]]
    assert.equal('50 0 0\t50 50 50\ttrue\n', out, err)
    local _, why, status = run [[open(arg[1], { cache = 'off', filter = function(_, i) return i > w.rank end })]]
    assert.equal(1, status)
    tools.says('dataset: filter or map gave other rows on some ranks', why)
  end)

  it('is an error of all where a row is wrong', function()
    local wrong = tools.write(folder .. '/wrong.jsonl', table.concat(lines, '\n') .. '\n{"text": 7}\n')
    local out, err = run([[
      local ok, why = pcall(open, arg[3], { cache = 'off' })
      print(all(tostring(ok)), all(tostring(why)):match '^(.+) %1 %1$')]], wrong)
    tools.says({ 'false false false', 'wrong.jsonl:51: ' }, out .. err)
  end)
end)
