--- Files that are read as they come, compressed or not.
local archives = require 'tests.support.archives'
local stream = require 'moonstill.base.stream'
local tools = require 'tests.support.tools'

local folder = tools.folder(true)
local function file(content) return tools.write(folder .. '/f', content) end

local function read(path, piece)
  local s, parts = stream.open(path), {}
  for text in function() return s:read(piece or 1000) end do parts[#parts + 1] = text end
  assert.is_nil(s:read(1)) -- the end stays
  s:close()
  return table.concat(parts)
end

local function failure(content)
  local path = file(content)
  local ok, why = pcall(read, path)
  assert.is_false(ok)
  assert.equal(path .. ': ', why:sub(1, #path + 2))
  return why
end

-- Texts that compress well and badly, shorter and longer than any buffer.
local function texts()
  local list, random = { '', 'a', ('all alike '):rep(50000) }, {}
  local values = tools.integers(300000, 7, 256)
  for i = 1, 300000 do random[i] = string.char(values[i - 1]) end
  list[4] = table.concat(random)
  return list
end

describe('stream', function()
  it('reads a plain file', function()
    for _, text in ipairs(texts()) do
      assert.is_true(read(file(text)) == text)
      assert.is_nil(stream.open(folder .. '/f'):compression())
    end
    -- what begins nearly as an archive does is none
    for _, text in ipairs { '\31', '\40\181\47', '\40\181\47x', '\80\42\77' } do
      assert.equal(text, read(file(text)))
    end
    tools.refused('nothing: cannot open: No such file', stream.open, folder .. '/nothing')
    local s = stream.open(folder .. '/f')
    s:close()
    tools.refused('stream: used after close', s.read, s, 1)
  end)

  for _, way in ipairs(archives.ways) do
    local ending, compress, name = way[1], way[2], way[3]

    it('decompresses .' .. ending .. ', whatever its name and the pieces that are asked for', function()
      for _, text in ipairs(texts()) do
        local path = file(compress(text))
        for _, piece in ipairs { 777, 65536, 2 ^ 20 } do assert.is_true(read(path, piece) == text) end
        assert.equal(name, stream.open(path):compression())
      end
    end)

    it('reads concatenated .' .. ending .. ' as one', function()
      local want, parts = {}, {}
      for i, text in ipairs(texts()) do
        want[#want + 1], parts[#parts + 1] = text .. i, compress(text .. i)
      end
      assert.is_true(read(file(table.concat(parts))) == table.concat(want))
      assert.equal('', read(file(compress '' .. compress '')))
    end)

    it('says that .' .. ending .. ' is cut off or damaged', function()
      local whole = compress 'a text that is long enough to be compressed, to be compressed'
      for n = 4, #whole - 1 do
        tools.says(('ends after %d bytes in the middle of its %s data: was its download or copy cut off?')
          :format(n, name), failure(whole:sub(1, n)))
        tools.says('in the middle of its', failure(whole .. whole:sub(1, n)))
      end
      tools.says('the ' .. name .. ' data are damaged before byte', failure(whole .. 'something else'))
      tools.says('copy or download it again', failure(whole .. 'something else'))
      tools.says('are damaged', failure(whole:sub(1, 9) .. ('\255'):rep(20) .. whole:sub(30)))
    end)

    it('comes to an end when memory does, with .' .. ending, function()
      local path = file(compress(('a row'):rep(1000)))
      assert.is_true(tools.walk_memory(function() return read(path) end, ('a row'):rep(1000)) > 2)
    end)
  end

  it('takes zeros behind gzip, and frames of zstd that say to be skipped', function()
    assert.equal('ab', read(file(archives.gzip 'ab' .. ('\0'):rep(2000))))
    assert.equal('abcd', read(file(archives.gzip 'ab' .. ('\0'):rep(200000) .. archives.gzip 'cd')))
    local frames = archives.skipped 'x' .. archives.zstd 'ab' .. archives.skipped '' .. archives.zstd 'cd'
    assert.equal('abcd', read(file(frames)))
  end)

  it('says what of zstd it does not take', function()
    -- a header: no sizes, a window of 2^28 bytes; then one with a dictionary of the number 7
    tools.says('needs a window of more than 128 MiB: compress it without --long',
      failure('\40\181\47\253\0\144' .. ('x'):rep(20)))
    tools.says('was compressed with a dictionary',
      failure('\40\181\47\253\1\80\7' .. ('x'):rep(20)))
  end)
end)
