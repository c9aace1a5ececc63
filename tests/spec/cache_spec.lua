local ms = require 'moonstill'
local C = require 'moonstill.C'
local ffi = require 'ffi'
local json = require 'moonstill.base.json'
local kept = require 'moonstill.data.kept'
local samples = require 'moonstill.data.samples'
local tools = require 'tests.support.tools'
local small = require 'tests.support.tokenizers'

local folder = tools.folder()
local function make_tokenizer(path, ending)
  os.execute('mkdir -p ' .. path)
  tools.write(path .. '/tokenizer.json', json.encode(small.byte_level { added = { small.added(302, ending) } }))
  tools.write(path .. '/config.json', '{"eos_token_id": 302}')
  return ms.chat.open(path)
end
local chat = make_tokenizer(folder .. '/tokenizer', '</s>')

local function rows(n, change)
  local list = {}
  for i = 1, n do list[i] = { prompt = 'p' .. i, answer = ('a'):rep(i % 7 + 1), w = i % 3 / 4 } end
  for i, row in pairs(change or {}) do list[i] = row end
  return list
end
local function write(name, list)
  local lines = {}
  for i, row in ipairs(list) do lines[i] = type(row) == 'string' and row or json.encode(row) end
  return tools.write(folder .. '/' .. name, table.concat(lines, '\n') .. '\n')
end
local path = write('a.jsonl', rows(200))

local number = 0
local function new_cache()
  number = number + 1
  return ('%s/cache-%d'):format(folder, number)
end

local function open(source, options, with)
  local o = { quiet = true, weight_key = 'w' }
  for key, value in pairs(options or {}) do o[key] = value end
  return ms.dataset.open(source, with or chat, o)
end

-- The names in a cache.
local function entries(cache)
  local _, text = tools.run('ls -A ' .. cache)
  local list = {}
  for name in text:gmatch '[^\n]+' do list[#list + 1] = name end
  return list
end

-- What opening says, with `setup` before it, in a process of its own.
local function said(cache, setup, environment)
  local script = tools.write(folder .. '/say.lua', ([[
    local ms = require 'moonstill'
    %s
    local data = ms.dataset.open(%q, ms.chat.open(%q), { weight_key = 'w', cache = %q })
    print(data:fingerprint(), data.samples.path)]]):format(setup or '', path, folder .. '/tokenizer', cache))
  local status, out, errors = tools.run(("%s LUA_PATH='lua/?.lua;lua/?/init.lua;;' luajit %s"):format(
    environment or '', script))
  assert.equal(0, status, errors)
  return errors, out
end

local plain = open(path, { cache = 'off' })
local print_of_all = plain:fingerprint()

describe('the cache', function()
  it('gives what was tokenised before: samples, plans, report and words', function()
    local cache = new_cache()
    local bad = write('bad.jsonl', rows(300, { [7] = '{"prompt": "\195\164', [150] = { prompt = 'x', answer = '' },
      [151] = { prompt = ('x'):rep(90), answer = 'y' }, [152] = { prompt = 'a', answer = 'b', more = 5 } }))
    local options = { max_tokens = 50, on_error = 'skip', cache = cache }
    local first, again = open(bad, options), open(bad, options)
    local without = open(bad, { max_tokens = 50, on_error = 'skip', cache = 'off' })
    assert.is_nil(without.samples.path)
    for _, data in ipairs { first, again } do
      assert.truthy(data.samples.path:find(cache, 1, true))
      assert.equal(without:fingerprint(), data:fingerprint())
      assert.equal(tostring(without), tostring(data))
      assert.same({ without:longest() }, { data:longest() })
      assert.same({ without:largest_id() }, { data:largest_id() })
      assert.same(without.report:lines(without.options), data.report:lines(data.options))
      assert.same(without.report.reasons, data.report.reasons)
      assert.same(without:steps(3, 4):all(), data:steps(3, 4):all())
      for i = 1, 297, 37 do
        local a, n, wa = without:sample(i)
        local b, m, wb = data:sample(i)
        assert.equal(n, m)
        for t = 0, n - 1 do assert.same({ a[t], wa[t] }, { b[t], wb[t] }) end
      end
      local one, two = without:batch { 3, 1 }, data:batch { 3, 1 }
      assert.equal(one:weight(), two:weight())
      one:free()
      two:free()
    end
    assert.equal(1, #entries(cache))
    assert.same(select(2, without:split(20, 1)):fingerprint(), select(2, again:split(20, 1)):fingerprint())
  end)

  it('says the same, and where it is and how large', function()
    local cache = new_cache()
    local first, again, without = said(cache), said(cache), said('off')
    assert.equal(0, (first:find(without, 1, true) or 0) - 1)
    assert.equal(0, (again:find(without, 1, true) or 0) - 1)
    assert.matches('\ndataset: kept in .*/cache%-%d+/%x+ %(11 KiB%); all 1 there have 12 KiB: ms.cache.clear',
      first)
    assert.matches('\ndataset: tokenised before: .*/cache%-%d+/%x+\n$', again)
  end)

  it('is another for other rows, options and tokenizers, and the same for what shapes no sample', function()
    local cache = new_cache()
    local function count(source, options, with)
      options = options or {}
      options.cache = cache
      open(source or path, options, with)
      return #entries(cache)
    end
    assert.equal(1, count())
    assert.equal(1, count({ { path = path, weight = 2, ['repeat'] = 3 } }))
    assert.equal(1, count(nil, { split = 0.5 }))
    assert.equal(2, count(nil, { max_tokens = 9 }))
    assert.equal(3, count(nil, { max_tokens = 9, over_long = 'truncate' }))
    assert.equal(4, count({ { path = path, limit = 5 } }))
    assert.equal(5, count(nil, { weight_key = 'prompt_' }))
    assert.equal(6, count(nil, nil, make_tokenizer(folder .. '/other', '<end>')))
    assert.equal(7, count({ path, path }))
    local was = tools.read(path)
    write('a.jsonl', rows(200, { [77] = { prompt = 'other', answer = 'b' } }))
    assert.equal(8, count())
    tools.write(path, was)
    assert.equal(8, count())
    assert.equal(9, count(nil, { template = '{% for m in messages %}{{ m.content }}{% endfor %}</s>' }))
    assert.equal(9, count(nil, { date = '2020-01-02' })) -- which nothing asks for
  end)

  it('of rows that functions leave or a table has is known by those rows', function()
    local cache, calls = new_cache(), 0
    local function with(map, filter)
      return #entries(cache), open(path, { cache = cache, map = map, filter = filter })
    end
    open(path, { cache = cache, filter = function(row) return row.w > 0 end })
    local n, data = with(nil, function(row)
      calls = calls + 1
      return row.w ~= 0
    end)
    assert.same({ 1, 200, 1 }, { n, calls, #entries(cache) }) -- other words, the same rows: once for the hash
    assert.equal(open(path, { cache = 'off', filter = function(row) return row.w > 0 end }):fingerprint(),
      data:fingerprint())
    assert.equal(67 - 1, data.report.filtered)
    with(function(row)
      row.answer = row.answer .. '!'
      return row
    end)
    assert.equal(2, #entries(cache))
    open(rows(20), { cache = cache })
    open(rows(20), { cache = cache })
    assert.equal(3, #entries(cache))
    open(rows(20, { [20] = { prompt = 'a', answer = 'b' } }), { cache = cache })
    assert.equal(4, #entries(cache))
  end)

  it('is not made of rows that are others each time', function()
    local cache, calls = new_cache(), 0
    local data = open(path, { cache = cache, map = function(row)
      calls = calls + 1
      row.answer = tostring(calls)
      return row
    end })
    assert.is_nil(data.samples.path)
    assert.equal(200, data:count())
    assert.same({}, entries(cache))
  end)

  it('of the user holds large files, unless it is off', function()
    local home = tools.folder()
    local large, script = path, 'ms.cache.least = 100'
    for _, environment in ipairs { 'XDG_CACHE_HOME=' .. home, 'XDG_CACHE_HOME= HOME=' .. home } do
      said('auto', script, environment)
      said('off', script, environment)
      said('auto', 'ms.cache.least = 1e9', environment)
    end
    assert.equal(1, #entries(home .. '/moonstill/data'))
    assert.equal(1, #entries(home .. '/.cache/moonstill/data'))
    assert.matches('^dataset: ', said('auto', script, 'XDG_CACHE_HOME= HOME='))
    assert.truthy(large)
  end)

  it('is off where it is off or false, from Lua and from a command line', function()
    for _, value in ipairs { 'off', 'false', false } do
      assert.is_nil(ms.cache.folder(value))
      assert.is_nil(open(path, { cache = value }).samples.path)
    end
    assert.equal(0, C.ms_path_kind 'false')
  end)

  it('has a size, and is cleared of what is its own', function()
    local cache = new_cache()
    assert.same({ 0, 0 }, { ms.cache.size(cache) })
    open(path, { cache = cache })
    local data = open(path, { cache = cache, max_tokens = 9 })
    local bytes, count = ms.cache.size(cache)
    assert.equal(2, count)
    assert.is_true(bytes > data.samples:bytes())
    os.execute(('mkdir -p %s/mine && touch %s/%s'):format(cache, cache, ('a'):rep(31)))
    assert.equal(bytes, ms.cache.clear(cache))
    assert.same({ ('a'):rep(31), 'mine' }, entries(cache))
    assert.equal(open(path, { cache = 'off', max_tokens = 9 }):fingerprint(), data:fingerprint()) -- still there for it
    os.execute(('mkdir -p %s/%s'):format(cache, ('b'):rep(32)))
    tools.refused('is no cache', ms.cache.clear, cache)
  end)
end)

describe('a cache that is damaged', function()
  local function damaged(what, change, note)
    it('is found out and made anew: ' .. what, function()
      local cache = new_cache()
      local at = open(path, { cache = cache }).samples.path
      change(at)
      local found, why = kept.find(at, { {} })
      assert.is_nil(found)
      assert.matches(note, why)
      local data = open(path, { cache = cache })
      assert.equal(at, data.samples.path)
      assert.equal(print_of_all, data:fingerprint())
      assert.truthy(kept.find(at, { {} }))
    end)
  end
  local function edit(name, f)
    return function(at) tools.write(at .. '/' .. name, f(tools.read(at .. '/' .. name))) end
  end
  for k, name in ipairs(samples.names) do
    damaged('a byte of ' .. name, edit(k - 1, function(text)
      local middle = math.floor(#text / 2)
      return text:sub(1, middle) .. string.char((text:byte(middle + 1) + 1) % 256) .. text:sub(middle + 2)
    end), name .. 's is damaged')
    damaged('the end of ' .. name, edit(k - 1, function(text) return text:sub(1, -9) end), name .. 's has another size')
    damaged('no ' .. name, function(at) os.remove(('%s/%d'):format(at, k - 1)) end, 'cannot open')
  end
  damaged('a byte of what it says', edit('about', function(text)
    return (text:gsub('"count":200', '"count":100'))
  end), 'what it says of itself is damaged')
  damaged('nothing said', edit('about', function() return '' end), 'is no cache')
  damaged('another first line', edit('about', function(text) return 'x' .. text end), 'is no cache')
  damaged('an empty file', edit('0', function() return '' end), 'another size')

  it('is said', function()
    local cache = new_cache()
    tools.write(open(path, { cache = cache }).samples.path .. '/0', 'short')
    assert.matches('\nnote: dataset: made anew: [^\n]*: its file of tokens has another size\n', '\n' .. said(cache))
    assert.is_nil(said(cache):find 'made anew')
  end)

  it('or is none is set aside', function()
    local cache = new_cache()
    local at = open(path, { cache = cache }).samples.path
    tools.write(at .. '/notes.txt', 'mine')
    os.remove(at .. '/3')
    open(path, { cache = cache })
    assert.equal('mine', tools.read(at .. '.old/notes.txt'))
    os.execute(('rm -rf %s %s.old'):format(at, at))
    tools.write(at, 'a file of mine')
    open(path, { cache = cache })
    assert.equal('a file of mine', tools.read(at .. '.old'))
    assert.truthy(kept.find(at, { {} }))
  end)
end)

describe('a cache and other processes', function()
  local program = "LUA_PATH='lua/?.lua;lua/?/init.lua;;' luajit tests/programs/fill_cache.lua"
  local function command(cache, death)
    return ('%s %s %s/tokenizer %s %s'):format(program, path, folder, cache, death or '')
  end

  it('that fill it at once: all have the same', function()
    local cache = new_cache()
    local parts = {}
    for i = 1, 6 do parts[i] = ('(%s > %s/out-%d 2>&1) &'):format(command(cache), folder, i) end
    assert.equal(0, tools.run(table.concat(parts, ' ') .. ' wait'))
    local want = tools.read(folder .. '/out-1')
    assert.matches('%x+\t.*/cache%-', want)
    for i = 2, 6 do
      local text = tools.read(('%s/out-%d'):format(folder, i))
      assert.equal(want:match '(%x+)\t', text:match '(%x+)\t', text)
    end
    assert.equal(1, #entries(cache))
  end)

  it('one of which is killed: nothing harmful is left', function()
    local cache, long = new_cache(), write('long.jsonl', rows(1500))
    local function start(death)
      return tools.run(('%s %s %s/tokenizer %s %d'):format(program, long, folder, cache, death))
    end
    assert.equal(137, (start(1500 + 1400))) -- the second time that rows are read, of which some are written
    local left = entries(cache)
    assert.equal(1, #left)
    assert.matches('^%.moonstill%-', left[1])
    local status, out = start(1e6)
    assert.equal(0, status)
    assert.matches('%x+\t.*/cache%-', out)
    assert.equal(1, #entries(cache))
    assert.not_matches('moonstill%-', entries(cache)[1])
    assert.equal(out, select(2, start(1501))) -- it is found: rows are read once
  end)

  it('on a disk that becomes full: the samples are in memory, which is said', function()
    local _, want = tools.run(command 'off')
    local full = 0
    for _, blocks in ipairs { 0, 1, 4, 8, 40 } do -- of 512 or 1024 bytes: tokens have 7 KiB
      local cache = new_cache()
      local _, text = tools.run(("trap '' XFSZ; ulimit -f %d; (%s; echo status $?) 2>&1 | cat"):format(blocks,
        command(cache)))
      assert.matches('status 0\n$', text)
      assert.truthy(text:find(want:match '%x+', 1, true), text)
      local stays = text:find('dataset: kept in', 1, true) ~= nil
      assert.is_true(stays or text:find 'note: dataset: not kept in the cache: .*: File too large' ~= nil, text)
      assert.equal(stays and 1 or 0, #entries(cache))
      full = full + (stays and 0 or 1)
    end
    assert.is_true(full >= 3 and full < 5)
    -- while rows are read, with a part on the disk: tokens have 410 KiB, of which 256 wait at a time
    local large = write('large.jsonl', rows(12000))
    local cache, whole = new_cache(), open(large, { cache = 'off', weight_key = 'none' })
    local _, text = tools.run(("trap '' XFSZ; ulimit -f 200; %s %s %s/tokenizer %s 2>&1 | cat"):format(program, large,
      folder, cache))
    assert.matches('not kept in the cache: .*: cannot write: File too large', text)
    assert.truthy(text:find(whole:fingerprint() .. '\tmemory', 1, true), text)
    assert.same({}, entries(cache))
  end)

  it('in a place that cannot be: the same', function()
    local errors, out = said(path .. '/x')
    assert.truthy(errors:find('note: dataset: not kept in the cache: ', 1, true), errors)
    assert.truthy(out:find(print_of_all .. '\tnil', 1, true))
  end)
end)

describe('files of a cache', function()
  local out, text_out = ffi.new 'ms_cache *[1]', ffi.new 'char *[1]'
  local function begin(at, files)
    local status = C.ms_cache_begin(at, files, out)
    if status ~= 0 then error(ffi.string(C.ms_last_error()), 0) end
    return ffi.gc(out[0], C.ms_cache_abort)
  end
  local function read(c, file, n)
    local to = ffi.new('char[?]', n + 1)
    if C.ms_cache_read(c, file, to, n) ~= 0 then error(ffi.string(C.ms_last_error()), 0) end
    return ffi.string(to, n)
  end

  it('can be read while they grow, and have the hash of their content', function()
    local at = folder .. '/c/0123'
    local c, want = begin(at, 2), {}
    for i = 1, 300 do
      local piece = ('%d,'):format(i):rep(i * 3)
      assert.equal(0, C.ms_cache_add(c, 1, piece, #piece))
      want[i] = piece
    end
    want = table.concat(want)
    assert.is_true(#want > 2 ^ 18)
    for _, n in ipairs { 0, 1, 1000, 2 ^ 18, 2 ^ 18 + 1, #want } do assert.equal(want:sub(1, n), read(c, 1, n)) end
    assert.equal('', read(c, 0, 0))
    tools.fails('bytes of', read, c, 1, #want + 1)
    tools.fails('file 2 of 2', read, c, 2, 0)
    assert.equal(0, C.ms_cache_hash(c, 1, text_out))
    assert.equal(samples.hash(want, #want), ffi.string(text_out[0]))
    C.ms_text_free(text_out[0])
    assert.is_false(tools.exists(at .. '/1'))
    assert.equal(0, C.ms_cache_commit(c, 'words'))
    assert.equal(want, tools.read(at .. '/1'))
    assert.equal('', tools.read(at .. '/0'))
    assert.equal(0, C.ms_cache_about(at, text_out))
    assert.equal('words', ffi.string(text_out[0]))
    C.ms_text_free(text_out[0])
    C.ms_cache_abort(ffi.gc(c, nil))
  end)

  it('are mapped, also when they are empty; what is no file is refused', function()
    local map_out = ffi.new 'ms_map *[1]'
    assert.equal(0, C.ms_map_open(tools.write(folder .. '/m', 'abc'), map_out))
    assert.equal('abc', ffi.string(C.ms_map_data(map_out[0]), C.ms_map_bytes(map_out[0])))
    C.ms_map_close(map_out[0])
    assert.equal(0, C.ms_map_open(tools.write(folder .. '/m', ''), map_out))
    assert.equal(0, tonumber(C.ms_map_bytes(map_out[0])))
    C.ms_map_close(map_out[0])
    C.ms_map_close(nil)
    for _, bad in ipairs { folder, folder .. '/nothing', '/dev/null' } do
      assert.is_true(C.ms_map_open(bad, map_out) ~= 0)
      assert.is_true(map_out[0] == nil)
    end
  end)

  it('survive the failure of any allocation', function()
    jit.off() -- compiled code keeps what it was compiled for alive
    jit.flush()
    finally(jit.on)
    local at = tools.folder(true)
    local short = write('short.jsonl', rows(5))
    local want = open(short, { cache = 'off' }):fingerprint()
    local function call()
      os.execute('rm -rf ' .. at .. '/*')
      open(short, { cache = at })
      local data = open(short, { cache = at })
      local print = data:fingerprint()
      data:split(2, 1)
      return print
    end
    assert.is_true(tools.walk_memory(call, want, true) > 50)
  end)
end)
