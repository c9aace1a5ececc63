-- Where answers end: found in a folder's files, obeyed by generation, learnt, and written into the
-- folder of the result.
local ms = require 'moonstill'
local C = require 'moonstill.C'
local ends = require 'moonstill.text.ends'
local json = require 'moonstill.base.json'
local folders = require 'tests.support.folders'
local models = require 'tests.support.models'
local small = require 'tests.support.tokenizers'
local tools = require 'tests.support.tools'

local added = small.added
local VOCAB = 304
local TURNS = { added(300, '<|im_start|>'), added(301, '<|im_end|>'), added(302, '<|endoftext|>') }
local PLAIN = { added(300, '<s>'), added(301, '</s>', { special = false }), added(302, '<pad>') }
local GENERATION, CONFIG, SETTINGS = 'generation_config.json', 'config.json', 'tokenizer_config.json'

local function list_of(word)
  local list = {}
  for i = 1, #word do list[i] = word:byte(i) end
  return list
end

-- A model that goes on with each word of `says` after its first letter, and a folder that holds it,
-- a tokenizer with these added tokens and other files. Letters must not repeat.
local function folder_with(says, tokens, files, change)
  local folder, follows = tools.folder() .. '/model', {}
  for _, word in ipairs(says) do
    for i = 1, #word - 1 do follows[word[i]] = word[i + 1] end
  end
  local model = models.chain(follows, VOCAB, files and files[CONFIG])
  local spec = change or {}
  spec.added = tokens
  local from = tools.folder()
  tools.write(from .. '/tokenizer.json', json.encode(small.byte_level(spec)))
  for name, value in pairs(files or {}) do
    if name ~= CONFIG then tools.write(from .. '/' .. name, json.encode(value)) end
  end
  assert(folders.save(model.p, folder, { carry = from })) -- the core alone: it knows of no ends
  model:free()
  return folder
end

local ABC = { { 97, 98, 99, 301, 100, 101, 301 } } -- a, b, c, the end, d, e, the end again

describe('the ends of answers', function()
  for name, files in pairs {
    ['config.json'] = { [CONFIG] = { eos_token_id = 301 } },
    ['generation_config.json'] = { [GENERATION] = { eos_token_id = 301 } },
    ['a list in generation_config.json'] = { [GENERATION] = { eos_token_id = json.array { 302, 301 } } },
    ['tokenizer_config.json'] = { [SETTINGS] = { eos_token = '</s>' } },
    ['a table in tokenizer_config.json'] = { [SETTINGS] = { eos_token = { content = '</s>' } } },
    ['generation_config.json beside -1'] = { [CONFIG] = { eos_token_id = -1 },
      [GENERATION] = { eos_token_id = 301 } },
  } do
    it('are found in ' .. name, function()
      local folder = folder_with(ABC, PLAIN, files)
      local model, tok = ms.model.open(folder), ms.tokenizer.open(folder)
      assert.is_true(table.concat(model:ends(), ' '):find '301' ~= nil)
      assert.same({ 98, 99, 301 }, model:generate({ { 97 } })[1])
      assert.same({ 98, 99, 301, 100, 101, 301 }, model:generate({ { 97 } }, { stop = {}, max_new = 6 })[1])
      assert.same({ 98 }, model:generate({ { 97 } }, { stop = 98 })[1])
      assert.same({ 'bc', true }, { ms.generate.text(model, tok, 'a') })
      assert.same({ 'b', false }, { ms.generate.text(model, tok, 'a', { max_new = 1 }) })
      local n = 0
      for _ in model:stream { { 97 } } do n = n + 1 end
      assert.equal(3, n)
      assert.truthy(table.concat(ms.chat.open(folder).stop, ' '):find '301')
      model:free()
    end)
  end

  it('are found beside numbers that nobody reads, of any size', function()
    local big = '"model_max_length":1000000000000000019884624838656,"x":[1e999],'
    for file, text in pairs { [SETTINGS] = '{' .. big .. '"eos_token":"</s>"}', [GENERATION] = '{' .. big ..
      '"eos_token_id":301}' } do
      local folder = folder_with(ABC, PLAIN)
      tools.write(folder .. '/' .. file, text)
      local model = ms.model.open(folder)
      assert.same({ 301 }, model:ends())
      model:free()
    end
  end)

  it('are looked for without a file that cannot be read, which is noted once', function()
    local folder = folder_with(ABC, PLAIN, { [CONFIG] = { eos_token_id = 301 } })
    tools.write(folder .. '/' .. SETTINGS, '{"eos_token":\n"\27[2J')
    tools.write(folder .. '/' .. GENERATION, '[301]')
    local script = tools.write(folder .. '/say.lua', ([[
      local ms = require 'moonstill'
      for _ = 1, 2 do io.write(table.concat(ms.model.open(%q):ends(), ' '), ';') end]]):format(folder))
    local status, out, errors = tools.run(("LUA_PATH='lua/?.lua;lua/?/init.lua;;' luajit %s"):format(script))
    assert.equal(0, status, errors)
    assert.equal('301;301;', out)
    local first, second, rest = errors:match '^(note: [^\n]*)\n(note: [^\n]*)\n(.*)$'
    assert.equal('', rest, errors)
    assert.equal(('note: %s/%s: not a JSON object; the tokens that it names are not known'):format(folder, GENERATION),
      first)
    assert.truthy(second:find(('note: %s/%s: line 2, column '):format(folder, SETTINGS), 1, true), second)
    assert.is_nil(second:find '%c')
  end)

  it('are nothing where the files name none that can be used', function()
    for _, value in ipairs { -1, 1.5, '301', json.null, false, 5000, json.array { '</s>', -1 }, { x = 1 } } do
      local folder = folder_with(ABC, PLAIN, { [CONFIG] = { eos_token_id = value },
        [GENERATION] = { eos_token_id = value }, [SETTINGS] = { eos_token = value } })
      local model, tok = ms.model.open(folder), ms.tokenizer.open(folder)
      assert.same({}, model:ends())
      assert.equal(4, #model:generate({ { 97 } }, { max_new = 4 })[1])
      assert.matches('^bc', (ms.generate.text(model, tok, 'a', { max_new = 5 })))
      assert.same({}, ms.chat.open(folder).stop)
      model:free()
    end
    for _, text in ipairs { '[1, 2]', '"x"', 'null', '{"eos_token_id": 30', '<html>' } do
      local folder = folder_with(ABC, PLAIN)
      for _, name in ipairs { GENERATION, SETTINGS } do tools.write(folder .. '/' .. name, text) end
      local model = ms.model.open(folder)
      assert.same({}, model:ends())
      assert.same({}, ms.chat.open(folder).stop)
      model:free()
    end
  end)

  it('are those of all files, and of turns', function()
    local folder = folder_with(ABC, TURNS, { [CONFIG] = { eos_token_id = 302 },
      [SETTINGS] = { eos_token = '<|im_start|>' } })
    local model = ms.model.open(folder)
    assert.same({ 302, 300, 301 }, model:ends())
    assert.same({ 302, 300 }, ms.chat.open(folder).eos)
    assert.same({ 302, 300, 301 }, ms.chat.open(folder).stop)
    assert.same({ 302, 300, 301, 5 }, model:add_ends({ 5, 999, 302 }):ends()) -- no row 999
    local copy, student = ms.model.copy(model), ms.model.shrink(model, { layers = 1 })
    assert.same({ 302, 300, 301, 5 }, copy:ends())
    assert.same({ 302, 300, 301, 5 }, student:ends())
    assert.has_error(function() model:add_ends { -1 } end)
    copy:free(); student:free(); model:free()
  end)

  it('may be many, each once', function()
    local list = json.array()
    for i = 1, 2000 do list[i] = i % 300 end
    local folder = folder_with(ABC, PLAIN, { [GENERATION] = { eos_token_id = list } })
    local model = ms.model.open(folder)
    assert.equal(301, #model:add_ends({ 301 }):ends())
    model:save(folder .. '/saved')
    assert.equal(301, #json.read(folder .. '/saved/' .. GENERATION).eos_token_id)
    model:free()
  end)

  it('do not need a tokenizer that can be read', function()
    local folder = folder_with(ABC, PLAIN, { [CONFIG] = { eos_token_id = 301 } })
    tools.write(folder .. '/tokenizer.json', '{"model": {"type": "Unigram"}}')
    local model = ms.model.open(folder)
    assert.same({ 301 }, model:ends())
    model:free()
  end)

  it('are refused by the core where the model has no such row', function()
    local model = models.chain({}, VOCAB)
    assert.has_error(function()
      require 'moonstill.base.check' (C.ms_model_set_ends(model.p, 1, require 'ffi'.new('int32_t[1]', VOCAB)))
    end, 'model: id 304 ends an answer, outside the vocabulary of 304')
    assert.equal(-1, C.ms_model_ends(model.p, nil))
    model:free()
  end)
end)

describe('generation_config.json of a saved folder', function()
  -- what stands in it after a save, or the file's text
  local function saved(files, add, tokens)
    local folder = folder_with(ABC, tokens or PLAIN, files)
    local model, path = ms.model.open(folder), tools.folder() .. '/saved'
    if add then model:add_ends(add) end
    model:save(path)
    local back = ms.model.open(path)
    for _, id in ipairs(model:ends()) do
      assert.truthy((' ' .. table.concat(back:ends(), ' ') .. ' '):find(' ' .. id .. ' ', 1, true))
    end
    back:free()
    model:free()
    if not tools.exists(path .. '/' .. GENERATION) then return nil end
    return json.read(path .. '/' .. GENERATION), tools.read(path .. '/' .. GENERATION), folder
  end

  it('is made where there was none', function()
    assert.same({ bos_token_id = 300, eos_token_id = 301, pad_token_id = 302 },
      (saved { [CONFIG] = { eos_token_id = 301, bos_token_id = 300, pad_token_id = 302 } }))
    assert.same({ eos_token_id = 301 },
      (saved { [CONFIG] = { eos_token_id = 301, bos_token_id = json.null, pad_token_id = -1 } }))
    assert.same({ eos_token_id = 301 }, (saved { [SETTINGS] = { eos_token = '</s>' } }))
    assert.same({ eos_token_id = json.array { 302, 301 } },
      (saved({ [CONFIG] = { eos_token_id = 302 } }, nil, TURNS)))
    assert.is_nil(saved {})
  end)

  it('is the one that was there, with all ends', function()
    local there = { eos_token_id = 302, temperature = 0.7, top_p = 1e-6, _from_model_config = true,
      stop_strings = json.array { 'x' }, max_length = 20 }
    local got = saved({ [GENERATION] = there, [CONFIG] = { eos_token_id = 300 } }, { 301 })
    assert.same({ eos_token_id = json.array { 302, 300, 301 }, temperature = 0.7, top_p = 1e-6,
      stop_strings = json.array { 'x' }, max_length = 20 }, got)
    assert.same({ eos_token_id = json.array { 301, 302 }, do_sample = true }, (saved({ [GENERATION] =
      { eos_token_id = json.array { 301, '7', -1 }, do_sample = true } }, { 302 })))
    assert.same({ eos_token_id = 301 }, (saved({ [GENERATION] = { eos_token_id = json.null } }, { 301 })))
  end)

  it('is the same to the byte where it names all', function()
    local there = { eos_token_id = json.array { 302, 301 }, _from_model_config = true }
    local _, text, folder = saved({ [GENERATION] = there }, { 301 })
    assert.equal(tools.read(folder .. '/' .. GENERATION), text)
  end)

  it('names what a tokenizer that goes along brings', function()
    local from = folder_with(ABC, TURNS, { [SETTINGS] = { eos_token = '<|endoftext|>' } })
    local model, path = models.chain({}, VOCAB), tools.folder() .. '/saved'
    model:save(path, { carry = from })
    assert.same({ eos_token_id = json.array { 302, 301 } }, json.read(path .. '/' .. GENERATION))
    model:free()
  end)

  it('survives every failing allocation', function()
    local folder = folder_with(ABC, PLAIN, { [GENERATION] = { eos_token_id = 302 } })
    local model, path = ms.model.open(folder), tools.folder() .. '/saved'
    model:add_ends { 301 }
    assert.is_true(folders.walk_allocations(function()
      return C.ms_model_save(model.p, nil, path, nil, -1, 0)
    end) > 10)
    assert.same({ eos_token_id = json.array { 302, 301 } }, json.read(path .. '/' .. GENERATION))
    model:free()
  end)

  -- A base model whose text ends with <|endoftext|> learns turns.
  it('names what a run has learnt, and so do its checkpoints', function()
    local base = folder_with(ABC, TURNS, { [CONFIG] = { eos_token_id = 302 },
      [GENERATION] = { eos_token_id = 302, top_k = 5 }, [SETTINGS] = { eos_token = '<|endoftext|>' } })
    local output = tools.folder()
    local rows = {}
    for i = 1, 8 do rows[i] = json.encode { prompt = 'a' .. i, answer = 'b' } end
    local data = ms.dataset.open(tools.write(output .. '/rows.jsonl', table.concat(rows, '\n')),
      ms.chat.open(base), { quiet = true })
    local student = ms.model.open(base, { train = true })
    local run = ms.run.open({ output = output .. '/run', max_steps = 2, batch = { tokens = 64 }, optim = { lr = 1e-3 },
      checkpoint = { every = 1 } }, { student = student, data = data, quiet = true })
    for step in run:steps() do
      for batch in step:micro_batches() do student:learn(batch, { ms.ce(1) }) end
      step:update()
    end
    run:finish()
    local want = { eos_token_id = json.array { 302, 301 }, top_k = 5 }
    assert.same(want, json.read(output .. '/run/student/' .. GENERATION))
    assert.same(want, json.read(output .. '/run/checkpoints/step-00000002/' .. GENERATION))
    assert.same({ 302, 301 }, student:ends())
    student:free()
  end)

  it('makes transformers stop', function()
    local python = os.getenv 'MS_PYTHON' or 'python3'
    if tools.run(python .. ' -c "import torch, transformers"') ~= 0 then
      return pending 'no Python with transformers here (MS_PYTHON names one)'
    end
    local folder = folder_with(ABC, TURNS, { [CONFIG] = { eos_token_id = 302 } })
    local model, path = ms.model.open(folder), tools.folder() .. '/saved'
    model:save(path)
    model:free()
    local script = tools.write(path .. '.py', [==[
import sys, torch, transformers
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])
print(transformers.GenerationConfig.from_pretrained(sys.argv[1]).eos_token_id)
print(model.generate(torch.tensor([[97]]), max_new_tokens=9)[0].tolist())
]==])
    local status, out, err = tools.run(python .. ' ' .. script .. ' ' .. path)
    assert.equal(0, status, err)
    assert.equal('[302, 301]\n[97, 98, 99, 301]\n', out)
  end)
end)

describe('the toy models', function()
  it('name their end and their padding', function()
    local folder = tools.folder()
    local values = ms.smoke.sft(folder .. '/smoke')
    local tok = ms.tokenizer.open(values.student)
    local config, generation = json.read(values.student .. '/' .. CONFIG),
      json.read(values.student .. '/' .. GENERATION)
    assert.equal(tok:id '<|im_end|>', config.eos_token_id)
    assert.equal(tok:id '<|endoftext|>', config.pad_token_id)
    assert.same({ eos_token_id = config.eos_token_id, pad_token_id = config.pad_token_id }, generation)
    local model = ms.model.open(values.student)
    assert.same({ config.eos_token_id }, model:ends())
    model:free()
  end)
end)

describe('BOS', function()
  local post = { post_processor = small.template({ '<s>', 'A', '</s>' }, { ['<s>'] = 300, ['</s>'] = 301 }) }
  local folder = folder_with(ABC, PLAIN, { [CONFIG] = { eos_token_id = 301 } }, post)
  local tok = ms.tokenizer.open(folder)

  it('comes once before a prompt, and no end behind it', function()
    assert.same({ 300, 97 }, ends.begin(tok, 'a'))
    assert.same({ 300, 97 }, ends.begin(tok, '<s>a'))
    assert.same({ 300 }, ends.begin(tok, '<s>'))
    assert.same({ 300, 97, 300 }, ends.begin(tok, 'a<s>')) -- elsewhere it is the prompt's own
    local model = ms.model.open(folder)
    assert.equal('bc', (ms.generate.text(model, tok, 'a')))
    assert.equal('bc', (ms.generate.text(model, tok, '<s>a')))
    model:free()
  end)

  for _, name in ipairs { 'tokenizers/mistral-v1-minueza-32m-chat', 'tokenizers/phi-3-mini',
    'models/tinystories-656k' } do
    local path, why = tools.shared(name)
    if not path then pending('comes once: ' .. name, why) else
      it('comes once: ' .. name, function()
        local t = ms.tokenizer.open(path)
        local bos = ends.bos(t)
        local spelled = bos[1] and t:token(bos[1]) or ''
        assert.same(t:ids('Once upon', { special = true }), ends.begin(t, 'Once upon'))
        assert.same(ends.begin(t, 'Once upon'), ends.begin(t, spelled .. 'Once upon'))
        t:free()
      end)
    end
  end
end)

describe('text that comes out', function()
  local function says(what, options, tokens, files, change)
    files = files or { [CONFIG] = { eos_token_id = 301 } }
    local folder = folder_with({ what }, tokens or PLAIN, files, change)
    local model, tok = ms.model.open(folder), ms.tokenizer.open(folder)
    local parts = {}
    for piece in ms.generate.pieces(model, tok, 'a', options) do parts[#parts + 1] = piece end
    local text, ended = ms.generate.text(model, tok, 'a', options)
    assert.equal(text, table.concat(parts))
    model:free()
    return text, ended, #parts
  end

  it('holds no token that ends, special in tokenizer.json or not', function()
    assert.equal('bc', (says { 97, 98, 99, 301 }))
    -- going on behind it
    assert.equal('bcd', (says({ 97, 98, 99, 301, 100, 302 }, { stop = {}, max_new = 5 })))
    assert.equal('bcd', (says({ 97, 98, 99, 301, 100, 302 }, { stop = 302 })))
  end)

  it('holds no token of a role that the files name', function()
    local tokens = { added(300, '<s>', { special = false }), added(301, '</s>'),
      added(302, '<pad>', { special = false }) }
    assert.equal('bc', (says({ 97, 300, 98, 302, 99, 301 }, nil, tokens, { [CONFIG] =
      { eos_token_id = 301, bos_token_id = 300 }, [SETTINGS] = { pad_token = '<pad>' } })))
    assert.equal('<s>b<pad>c', (says({ 97, 300, 98, 302, 99, 301 }, nil, tokens)))
  end)

  it('holds what ordinary text gives, whatever the files call it', function()
    -- a file of another tokenizer: 98 is the letter b here
    assert.equal('bc', (says({ 97, 98, 99, 301 }, nil, nil, { [CONFIG] = { eos_token_id = 301, pad_token_id = 98 } })))
    -- in the vocabulary and not among the added tokens, but no text gives it
    local files = { [CONFIG] = { eos_token_id = 301, bos_token_id = 256 } }
    assert.equal('bc', (says({ 97, 98, 256, 99, 301 }, nil, nil, files, { vocab = { ['<b>'] = 256 } })))
  end)

  it('holds them where that is asked for', function()
    assert.equal('b<s>c</s>', (says({ 97, 98, 300, 99, 301 }, { special = true })))
    assert.equal('bc', (says({ 97, 98, 300, 99, 301 }, { special = false })))
  end)

  it('leaves out an end that is spelled where it ends', function()
    local function after(word)
      local list = { 97, 98 }
      for _, byte in ipairs(list_of(word)) do list[#list + 1] = byte end
      list[#list + 1] = 301
      return list
    end
    local text, ended, parts = says(after '</s>')
    assert.same({ 'b', true, 1 }, { text, ended, parts })
    assert.equal('b</s>.', (says(after '</s>.')))
    assert.equal('b</s', (says(after '</s')))
    assert.equal('b</t>', (says(after '</t>')))
    assert.equal('b</s></s>', (says(after '</s>', { special = true })))
  end)

  it('says whether it ended', function()
    assert.same({ 'b', false }, { unpack({ says({ 97, 98, 99, 301 }, { max_new = 1 }) }, 1, 2) })
    assert.same({ 'bc', false }, { unpack({ says({ 97, 98, 99, 301 }, { max_new = 2 }) }, 1, 2) })
    assert.same({ 'bc', true }, { unpack({ says({ 97, 98, 99, 301 }, { max_new = 3 }) }, 1, 2) })
  end)
end)
