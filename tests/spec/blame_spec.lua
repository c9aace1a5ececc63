--- Whom an error blames: the first line that is no module's of the library, however deep below it the
--- library is, in a stock LuaJIT and in the executable.
local fail = require 'moonstill.base.fail'
local models = require 'tests.support.models'
local ms = require 'moonstill'
local recipe = require 'tests.programs.run_recipe'
local tools = require 'tests.support.tools'

local folder = tools.folder()
local tok_folder = folder .. '/tok'
ms.bpe.write(tok_folder, ms.bpe.learn({ 'a b' }, 300), 64)

-- Where the next error is to be: the line of this call, or `after` it.
local line
local function mark(after) line = debug.getinfo(2, 'l').currentline + (after or 0) end

-- Asserts that an error of f names the line that was marked.
local function blames(f, ...)
  local ok, why = pcall(f, ...)
  assert.is_false(ok, 'accepted')
  assert.truthy(tostring(why):find('^tests/spec/blame_spec.lua:' .. line .. ': '), line .. ', not ' .. tostring(why))
end

describe('an error of the library', function()
  it('blames the line that called it', function()
    blames(function()
      mark(1)
      local batch = ms.batch(1)
      return batch
    end)
  end)

  it('blames it for what the core refuses, and what lies deep in the library', function()
    local tok, chat = ms.tokenizer.open(tok_folder), ms.chat.open(tok_folder)
    local model = ms.model.create(models.config { vocab_size = 300, num_hidden_layers = 1 }, 1)
    for _, call in ipairs {
      function() mark() return (tok:ids 'ab\255') end,
      function() mark() return (chat:encode { text = 'ab\255' }) end,
      function() mark() return (chat:encode { messages = { { role = 'usr', content = 'x' } } }) end,
      function() mark() return (chat:prompt { { role = 'user', content = 'ab\255' } }) end,
      function() mark() return (ms.generate.text(model, tok, 'a', { max_new = 0.5 })) end,
      function() mark() return (ms.generate.rows(model, chat, { 'a' }, { top_k = -1 })) end,
      function() mark() return (ms.generate.text(model, tok)) end,
      function() mark() return (ms.generate.pieces(model, tok, 1)) end,
      function() mark() return (ms.dataset.open('x.jsonl')) end,
      function() mark() return (ms.dataset.open('x.jsonl', tok)) end,
      function() mark() return (ms.dataset.open({}, chat)) end,
      function() mark() return (ms.scope()) end,
      function() mark() return (ms.plot.svg { series = { { nam = 'a', x = { 1 }, y = { 1 } } } }) end,
      function() mark() return (ms.plot.svg { titel = 'a', series = { { x = { 1 }, y = { 1 } } } }) end,
      function() mark() return (ms.json.encode { f = print }) end,
      function() mark() return (ms.json.decode '[') end,
      function() mark() return (ms.toy.texts { { messages = { { role = 1 } } } }) end,
    } do blames(call) end
    chat:free()
    tok:free()
    model:free()
  end)

  it('blames the line of a call in protected mode, in a loop, in a field', function()
    mark(1)
    local _, why = pcall(ms.batch, 1)
    assert.truthy(why:find('^tests/spec/blame_spec.lua:' .. line .. ': '), why)
    local model = ms.model.create(models.config { num_hidden_layers = 1 }, 1)
    local next_one = model:parameters()
    model:free()
    blames(function()
      mark(1)
      for _ in next_one do line = 0 end
    end)
    blames(function() mark() return ms.modle end)
  end)

  it('blames the line within a coroutine, and none where all of it is the library', function()
    local co = coroutine.create(function()
      mark(1)
      local batch = ms.batch(1)
      return batch
    end)
    local ok, why = coroutine.resume(co)
    assert.is_false(ok)
    assert.truthy(why:find('^tests/spec/blame_spec.lua:' .. line .. ': batch: '), why)
    ok, why = coroutine.resume(coroutine.create(ms.batch.from), 1)
    assert.is_false(ok)
    assert.truthy(why:find '^batch: ', why)
  end)

  it('blames a function that the library called', function()
    local student = ms.model.create(recipe.config, 1, { train = true, dtype = 'f32' })
    local run = ms.run.open({ output = folder .. '/run' }, { student = student, data = recipe.data(20),
      quiet = true, schedules = { lr = function(state)
        mark(1)
        return ms.schedule.steps_of('x', state.total) + 1
      end } })
    blames(run:steps())
    run:close()
    student:free()
  end)

  it('blames a chunk in a folder that is called like that of the modules', function()
    local root = debug.getinfo(fail.pcall, 'S').source:match '^(.*)base/fail.lua$'
    local chunk = assert(loadstring('local ms = ...\nlocal b = ms.batch(1)\nreturn b', root .. 'run/recipe.lua'))
    local ok, why = pcall(chunk, ms)
    assert.is_false(ok)
    assert.truthy(why:find 'run/recipe.lua:2: batch: ', why)
  end)

  it('has no line where its catcher says the place', function()
    local function caught(f, ...) return { fail.pcall(f, ...) } end
    assert.same({ false, 'no %d' }, caught(fail, 'no %d'))
    assert.same({ false, 'batch: a list of segments expected' }, caught(ms.batch, 1))
    assert.same({ true, 1, nil, 3 }, caught(function() return 1, nil, 3 end))
    local rows = tools.write(folder .. '/a.jsonl', '{"messages": [{"role": "usr", "content": ""}]}\n')
    local chat = ms.chat.open(tok_folder)
    local ok, why = pcall(ms.dataset.open, rows, chat, { messages_key = 'messages', quiet = true, on_error = 'skip' })
    assert.is_false(ok)
    assert.truthy(why:find(rows .. ':1: message 1: no role "usr"', 1, true), why)
    chat:free()
  end)
end)

describe('what a reader types', function()
  it('is blamed by its own place, not by a line of the recipe', function()
    local ok, why = pcall(ms.config, { a = ms.optional 'list' }, { args = { 'a=[1' } })
    assert.is_false(ok)
    assert.truthy(why.message:find '^command line: a: line ', why.message)
    local path = tools.write(folder .. '/c.yaml', 'a: [1')
    ok, why = pcall(ms.config, { a = ms.optional 'list' }, { args = { path } })
    assert.is_false(ok)
    assert.equal(1, (why.message:find(path .. ':', 1, true)))
  end)
end)

describe('in the executable', function()
  local program = tools.program()
  if not tools.exists(program) then
    pending('errors blame', program .. ' is not built')
    return
  end

  local TEXT = '\nlocal ms = require "moonstill"\nlocal function inner() return (ms.batch(1)) end\ninner()\n'

  -- What a recipe at a path says, run from the folder of the tests.
  local function said(path)
    os.execute(('mkdir -p %s'):format(tools.quote(folder .. '/' .. (path:match '^(.*)/' or '.'))))
    tools.write(folder .. '/' .. path, TEXT)
    local status, out, err = tools.run(('cd %s && %s %s </dev/null'):format(tools.quote(folder),
      tools.quote(program), path))
    assert.same({ 1, '' }, { status, out })
    return err
  end

  it('a recipe is blamed in any folder, also in one called like that of the modules', function()
    for _, path in ipairs { 'recipe.lua', 'a/b/recipe.lua', 'lua/recipe.lua', 'lua/moonstill/recipe.lua',
      'lua/moonstill/run/recipe.lua' } do
      assert.equal(('moonstill: PATH:3: batch: a list of segments expected; help(ms.batch) says what it takes\n'
        .. '  PATH:3: in function \'inner\'\n  PATH:4: in main chunk\n'):gsub('PATH', path), said(path))
    end
  end)

  it('code on the command line and at the prompt is blamed', function()
    local _, _, err = tools.run(tools.quote(program) .. " -e 'x = 1\nms.batch(x)' </dev/null")
    local what = 'batch: a list of segments expected; help(ms.batch) says what it takes\n'
    assert.equal('moonstill: (command line):2: ' .. what, err)
    _, _, err = tools.run('echo "x = ms.batch(1)" | ' .. tools.quote(program))
    assert.equal('prompt:1: ' .. what, err)
  end)

  -- What a recipe of these lines says, with its path as PATH.
  local function complaint(lines, environment)
    local path = tools.write(folder .. '/trace.lua', lines)
    local _, _, err = tools.run(('%s %s %s </dev/null'):format(environment or '', tools.quote(program),
      tools.quote(path)))
    return (err:gsub(path:gsub('%p', '%%%0'), 'PATH'))
  end

  it('an error is followed by the user\'s own lines, whatever lies between', function()
    local head = 'local ms = require "moonstill"\nlocal function pick(x)\n  local b = ms.batch(x)\n  return b\nend\n'
    local first = 'moonstill: PATH:3: batch: a list of segments expected; help(ms.batch) says what it takes\n'
      .. '  PATH:3: in function \'pick\'\n'
    for body, want in pairs {
      ['ms.scope(function(own)\n  own(pick(1))\nend)'] =
        '  PATH:7: in function <PATH:6>\n  PATH:6: in main chunk\n',
      ['local f = coroutine.wrap(function()\n  pick(1)\nend)\nf()'] =
        '  PATH:7: in function <PATH:6>\n  PATH:9: in main chunk\n',
      ['local function each()\n  ms.scope(function() pick(1) end)\nend\nfor _ in coroutine.wrap(each) do end'] =
        '  PATH:7: in function <PATH:7>\n  PATH:7: in function <PATH:6>\n  PATH:9: in main chunk\n',
      ['pcall(ms.scope, function() pick(1) end)\nlocal function again() pick(1) end\nagain()'] =
        '  PATH:7: in function \'again\'\n  PATH:8: in main chunk\n',
    } do assert.equal(first .. want, complaint(head .. body), body) end
  end)

  it('an error that is no text, that was caught, or has no end has what there is', function()
    assert.equal('moonstill: an error that is no text: { code = 2 }\n  PATH:1: in main chunk\n',
      complaint 'error { code = 2 }')
    assert.equal('moonstill: PATH:2: no\n  PATH:4: in main chunk\n',
      complaint 'local function f()\n  error "no" end\nlocal _, why = pcall(f)\nerror(why, 0)')
    -- of an overflow LuaJIT says the line only at times
    local text = complaint 'local function f() return 1 + f() end\nf()'
    assert.is_true(text:find '^moonstill: P?A?T?H?:?1?:? ?stack overflow' ~= nil, text)
    text = complaint 'local function f(n) if n == 0 then error "no" end f(n - 1) end\nf(50)'
    tools.says({ "\n  PATH:1: in function 'f'\n  ... (41 more)\n", '\n  PATH:2: in main chunk\n' }, text)
    assert.equal('moonstill: PATH:1: no\n', complaint 'error "no"') -- whose line it has already
  end)

  it('an error that is meant for its reader has no lines', function()
    assert.equal('moonstill: bye\n', complaint 'local function f() require "moonstill".exit(3, "bye") end\nf()')
  end)

  it('lines of the library are shown where they are asked for', function()
    local lines = 'local ms = require "moonstill"\nms.scope(function() local b = ms.batch(1) return b end)'
    assert.is_nil(complaint(lines):find('lua/moonstill', 1, true))
    local text = complaint(lines, 'MS_TRACE=1')
    tools.says({ 'stack traceback:', 'lua/moonstill/data/batch.lua:' }, text)
    assert.equal(1, select(2, text:gsub('stack traceback', '')))
  end)

  it('an error says what to do: which name, which sign, which arguments', function()
    local made = ("local ms = require 'moonstill'\nlocal d = ms.device.open 'cpu'\nlocal t = ms.tensor(d, 2, 3)\n"
      .. 'local m = ms.model.create(%q, 1)\n'):format(ms.json.encode(models.config { num_hidden_layers = 1 }))
    for body, want in pairs {
      ['ms.model.open()'] = 'expected a string; help(ms.model.open) says what it takes\n',
      ['ms.kd()'] = 'target expected, got nil; help(ms.kd) says what it takes\n',
      ['ms.tensor()'] = 'device expected, got nil; help(ms.tensor) says what it takes\n',
      ['ms.ce "x"'] = 'got string; help(ms.ce) says what it takes\n',
      ['ms.generate.text()'] = 'model expected, got nil; help(ms.generate.text) says what it takes\n',
      ['m:learn()'] = 'batch expected, got nil; help "model.learn" says what it takes\n',
      ['ms.packing.plan()'] = ', where an argument may be missing; help(ms.packing.plan) says what it takes\n',
      ['ms.model:open "x"'] = '; it is called with a dot: ms.model.open(...)\n',
      ['ms.model:shrink(m, { layers = 1 })'] = '; it is called with a dot: ms.model.shrink(...)\n',
      ['t.free()'] = '; it is called with a colon: ',
      ['m.evaluate({}, {})'] = '; it is called with a colon: model:evaluate(...)\n',
      ['m.save "x"'] = '; it is called with a colon: model:save(...)\n',
      ['m.save(m)'] = '; help "model.save" says what it takes\n',
      ['m:evalate()'] = "model has no 'evalate'; did you mean 'evaluate'?\n",
      ['model.open "x"'] = "attempt to index global 'model' (a nil value); did you mean 'ms.model'?\n",
      ['pritn "x"'] = "attempt to call global 'pritn' (a nil value); did you mean 'print'?\n",
      ['foo.bar = 1'] = "attempt to index global 'foo' (a nil value); nothing has that name\n",
      ['ms.scope(function() ms.kd() end)'] = 'target expected, got nil; help(ms.kd) says what it takes\n',
      ['ms.exit(7)'] = 'exit: message is nothing, expected a string; help(ms.exit) says what it takes\n',
      ['local f = function() error "target expected" end ms.scope(f)'] = ':5: target expected\n',
      ['local f = function() return nil + 1 end ms.scope(f)'] = ':5: attempt to perform arithmetic on a nil value\n',
    } do tools.says(want, complaint(made .. body)) end
    tools.says("; a recipe begins with: local ms = require 'moonstill'", complaint 'ms.kd()')
  end)

  it('what the library does for itself blames no line', function()
    local _, _, err = tools.run(tools.quote(program) .. ' inspect ' .. tools.quote(folder) .. ' </dev/null')
    assert.truthy(err:find '^moonstill: /', err)
  end)
end)

describe('the Lua sources', function()
  it('raise errors in one place, but for those that name a file', function()
    local pipe = io.popen "find lua -name '*.lua' | sort"
    for path in pipe:lines() do
      local text = tools.read(path):gsub('%-%-[^\n]*', '')
      for call in text:gmatch '%f[%w_.:]error(%b())' do
        assert.truthy(call:find ', 0%)$', path .. ': error' .. call)
      end
      assert.is_nil(text:find '[^%w_.:\'"]error%s*[\'"]', path)
    end
    pipe:close()
  end)
end)
