local ffi = require 'ffi'
local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local folders = require 'tests.support.folders'
local text = require 'moonstill.base.text'
local tools = require 'tests.support.tools'

local place = tools.folder()
local out = ffi.new 'char *[1]'

local function guess(path)
  check(C.ms_file_guess(path, out))
  return text(out[0])
end

-- What is said of a file with this name and content.
local function said_of(name, content) return guess(tools.write(place .. '/' .. name, content)) end

local function utf16(s, first) return first .. s:gsub('.', '%0\0') end

local POINTER = 'version https://git-lfs.github.com/spec/v1\noid sha256:' .. ('ab'):rep(32)
  .. '\nsize 538090408\n'

-- name, content, words of the sentence
local CASES = {
  { 'a pointer file', POINTER, '538090408 bytes', 'git lfs pull' },
  { 'a git-annex pointer', '/annex/objects/SHA256E-s12--ab.safetensors\n', 'git annex get' },
  { 'a cache\'s link as text', '../../blobs/' .. ('ab'):rep(32), 'download cache' },
  { 'an error page', '\n<!DOCTYPE html>\n<html><body>502</body></html>', 'HTML page', 'download' },
  { 'an XML answer', '<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', 'XML',
    'AccessDenied' },
  { 'an answer of a hub', 'Entry not found', '"Entry not found"', 'download' },
  { 'an answer in JSON', '{"error":"Invalid credentials in Authorization header"}',
    'server\'s answer', 'Invalid credentials' },
  { 'gzip', '\31\139\8\0\0\0\0\0', 'gzip', 'gunzip' },
  { 'zstd', '\40\181\47\253\4\0', 'zstd' },
  { 'a pickle', '\128\2}q\0.', 'pickle', 'torch.save', 'save_pretrained' },
  { 'a zip of torch.save', 'PK\3\4' .. ('\0'):rep(22) .. '\16\0\0\0archive/data.pkl', 'torch.save',
    'save_pretrained' },
  { 'an office file', 'PK\3\4' .. ('\0'):rep(22) .. '\19\0\0\0[Content_Types].xml', 'office' },
  { 'a zip', 'PK\3\4' .. ('\0'):rep(22) .. '\5\0\0\0a.txt', 'zip archive', 'unpack' },
  { 'the beginning of a zip', 'PK\3\4\20\0\0\0', 'zip archive', 'unpack' },
  { 'a zip of nothing', 'PK\5\6' .. ('\0'):rep(18), 'zip archive', 'unpack' },
  { 'GGUF', 'GGUF\3\0\0\0', 'GGUF', 'original folder' },
  { 'Parquet', 'PAR1\21\4', 'Parquet', 'JSONL' },
  { 'a SentencePiece model', '\n\14\n\5<unk>\21\0\0\0\0\24\2', 'SentencePiece', 'tokenizer.json' },
  { 'nothing', '', 'empty' },
  { 'zeros', ('\0'):rep(600), 'zeros', 'download' },
  { 'UTF-16', utf16('{"a": 1}', '\255\254'), 'UTF-16', 'iconv' },
  { 'UTF-16 without a mark', utf16('{"a": 1}', ''), 'UTF-16LE', 'iconv' },
  { 'UTF-32', '\255\254\0\0{\0\0\0', 'UTF-32' },
}

describe('a file that is another than it should be', function()
  for _, case in ipairs(CASES) do
    it('is known by its first bytes: ' .. case[1], function()
      local said = assert(said_of('x.jsonl', case[2]))
      assert(said:find '^is ', said)
      for i = 3, #case do assert(said:find(case[i], 1, true), said) end
    end)
  end

  it('is known by what is beside it', function()
    local weights = place .. '/model-1.safetensors'
    assert.is_nil(guess(weights))
    for _, ending in ipairs { '.incomplete', '.part', '.crdownload' } do
      local other = tools.write(weights .. ending, 'x')
      local said = guess(weights)
      assert(said:find('model-1.safetensors' .. ending .. ' is: its download has not ended', 1, true), said)
      os.remove(other)
    end
    check(C.ms_dir_make(place .. '/.cache/huggingface/download'))
    tools.write(place .. '/.cache/huggingface/download/model-1.safetensors.abc.incomplete', 'x')
    local said = guess(weights)
    assert(said:find('model-1.safetensors.abc.incomplete is: its download', 1, true), said)
    tools.write(weights .. '.aria2', 'x')
    said = said_of('model-1.safetensors', 'whole?')
    assert(said:find('aria2', 1, true), said)
  end)

  it('is a link to nothing, or a folder', function()
    os.execute(("ln -sf ../../blobs/abc '%s/link.json'"):format(place))
    local said = guess(place .. '/link.json')
    assert(said:find('is a link to ../../blobs/abc, which is not there', 1, true), said)
    said = guess(place)
    assert(said:find('is a folder', 1, true), said)
  end)

  it('and of files that may be what they seem nothing is said', function()
    for name, content in pairs {
      ['a.json'] = '{"a": 1}', ['b.jsonl'] = '{"error": "none"}\n' .. ('{"error": "x"}\n'):rep(50),
      ['c.txt'] = 'Not found in the woods.\n', ['d.json'] = '[1, 2]', ['e.txt'] = 'Pickles',
      ['f.txt'] = 'ab', ['g.safetensors'] = folders.safetensors(folders.tiny_tensors()),
      ['h.model'] = '\n\14\n\5<unk>\21\0\0\0\0\24\2', ['i.txt'] = '\0',
      ['j.txt'] = ('Access to models is what this chapter is about. '):rep(20) } do
      assert.is_nil(said_of(name, content), name)
    end
    assert(said_of('weights.json', folders.safetensors(folders.tiny_tensors())):find('safetensors', 1, true))
  end)
end)

-- Expects that opening the folder fails with a message that has all of `words`.
local function refuses(path, ...) folders.refused({ ... }, C.MS_EIO, folders.open(path)) end

describe('what a reader met in the place of a model\'s file', function()
  it('stands in the error: weights', function()
    local file = folders.safetensors(folders.tiny_tensors())
    for _, case in ipairs(CASES) do
      refuses(folders.folder(folders.tiny(), case[2], place), 'model.safetensors: is ', case[3])
    end
    refuses(folders.folder(folders.tiny(), '{"a": [1, 2]}', place), 'is a JSON text', '{"a": [1, 2]}')
    refuses(folders.folder(folders.tiny(), '[{"prompt": "a"}]\n', place), 'is a JSON text', '[{"prompt": "a"}]')
    refuses(folders.folder(folders.tiny(), '{"prompt": "a"}\n{"prompt": "b"}\n', place), 'is a JSON text',
      'begins with {"prompt": "a"}')
    refuses(folders.folder(folders.tiny(), 'Once upon a time\n', place), 'is a text and no safetensors', 'Once upon')
    refuses(folders.folder(folders.tiny(), file:sub(1, 500), place), 'cut off inside its header')
    refuses(folders.folder(folders.tiny(), file:sub(1, -2), place), 'cut off inside tensor',
      'model.norm.weight', #file - 1 .. ' bytes', 'header makes it ' .. #file, 'download')
    refuses(folders.folder(folders.tiny(), file:sub(1, -200), place), 'cut off inside tensor',
      "tensor 'model.layers.0.self_attn.o_proj.weight' (at byte ")
  end)

  it('stands in the error: configuration and tokenizer', function()
    local tokenizer = ffi.new 'ms_tokenizer *[1]'
    for _, case in ipairs(CASES) do
      if not case[1]:find 'JSON' then
        refuses(folders.folder(case[2], folders.tiny_tensors(), place), 'config.json: is ', case[3])
        tools.write(place .. '/tokenizer.json', case[2])
        assert.are.equal(C.MS_EIO, C.ms_tokenizer_open(place, tokenizer))
        local message = ffi.string(C.ms_last_error())
        assert(message:find('tokenizer.json: is ', 1, true) and message:find(case[3], 1, true), message)
      end
    end
  end)

  it('is no byte order mark, which some editors write', function()
    local json = require 'moonstill.base.json'
    local path = folders.folder('\239\187\191' .. json.encode(folders.tiny()), folders.tiny_tensors(), place)
    assert(folders.open(path))
  end)
end)
