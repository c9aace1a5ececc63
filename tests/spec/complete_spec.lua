--- What Tab completes at the prompt.
local complete = require 'moonstill.prompt.complete'.complete
local models = require 'tests.support.models'
local ms = require 'moonstill'

local FOLDERS = { ['.'] = { 'lua/', 'README.md', 'recipes/', '.git/', 'a"b', 'übung.txt' },
  ['lua/'] = { 'moonstill/' } }
local function files(folder) return FOLDERS[folder] or {} end

-- The text with what Tab makes of it, and what it shows.
local function tab(text, after)
  local back, insert, list = complete(text, after or '', files, 60)
  if not back then return nil end
  for _ = 1, back do text = text:gsub('[%z\1-\127\192-\255][\128-\191]*$', '') end
  return text .. insert, list
end

-- The words that it shows.
local function shown(text)
  local _, list = tab(text)
  local words = {}
  for word in (list or ''):gmatch '%S+' do words[#words + 1] = word end
  table.sort(words)
  return words
end

describe('Tab', function()
  local names
  local function global(name, value)
    names[#names + 1] = name
    rawset(_G, name, value)
  end
  before_each(function()
    names = {}
    global('ms', ms)
  end)
  after_each(function()
    for _, name in ipairs(names) do rawset(_G, name, nil) end
  end)

  it('completes globals, locals, fields and methods', function()
    global('thing', { alpha = 1, alphabet = 2, beta = { { gamma = 5 } }, ['not one'] = 3, f = print })
    for text, want in pairs {
      pri = 'print', ['x = pri'] = 'x = print', whi = 'while', ['thin'] = 'thing', ['thing.be'] = 'thing.beta',
      ['thing.al'] = 'thing.alpha', ['thing.beta[1].'] = 'thing.beta[1].gamma', ['thing["beta"][1].g'] =
      'thing["beta"][1].gamma', ['f(thing.be'] = 'f(thing.beta', ['local abcdef = 1; abc'] = 'local abcdef = 1; abcdef',
      ['"x":rev'] = '"x":reverse', ['math.rando'] = 'math.random', ['thing:'] = 'thing:f',
      ['for i = 1, 2 do\n  pri'] = 'for i = 1, 2 do\n  print', ['thing . be'] = 'thing .beta',
    } do assert.equal(want, (tab(text)), text) end
    assert.same({ 'alpha', 'alphabet', 'beta', 'f' }, shown 'thing.')
    assert.same({ 'alpha', 'alphabet' }, shown 'thing.alpha')
    for _, text in ipairs { 'thing.zeta', 'nothing.x', 'zzzz', '-- pri', '"a" .. "pri" -- pri', 'thing.beta.gamma.',
      'local thing = 1; thing.', '("x"):rev' } do assert.is_nil(tab(text), text) end
  end)

  it('completes modules, which are loaded when they are named, and what they have', function()
    assert.equal('ms.tokenizer', (tab 'ms.tok'))
    assert.equal('ms.model.shrink', (tab 'ms.model.shr'))
    local list = shown 'ms.model.'
    assert.truthy(#list > 3 and not table.concat(list, ' '):find 'wrap') -- what modules hand to each other
    assert.same({ 'objectives', 'options' }, shown 'ms.kd.o')
    local loaded = 0
    for name in pairs(package.loaded) do loaded = loaded + (name:find '^moonstill' and 1 or 0) end
    tab 'ms.'
    for name in pairs(package.loaded) do loaded = loaded - (name:find '^moonstill' and 1 or 0) end
    assert.equal(0, loaded) -- none for its name alone
  end)

  it('completes objects of the library, with a colon where a method is meant', function()
    global('m', ms.model.create(models.config { num_hidden_layers = 1 }, 1))
    assert.equal('m:generate', (tab 'm:gene'))
    assert.equal('m:evaluate', (tab 'm.eval'))
    local words = ' ' .. table.concat(shown 'm.', ' ') .. ' '
    assert.truthy(words:find(' :learn ', 1, true) and words:find(' :free ', 1, true), words)
    _G.m:free()
    assert.equal('m:generate', (tab 'm:gene'))
  end)

  it('completes options within a call\'s table, and the words that they take', function()
    for text, want in pairs {
      ['ms.model.shrink(m, { la'] = 'ms.model.shrink(m, { layers = ',
      ['ms.kd(t, 1, { obj'] = 'ms.kd(t, 1, { objective = ',
      ['ms.kd(t, 1, { objective = "rev'] = 'ms.kd(t, 1, { objective = "reverse_kl"',
      ['ms.kd(t, 1, { objective = '] = 'ms.kd(t, 1, { objective = "',
      ['ms.kd(t, 1, {\n  k = 3,\n  obj'] = 'ms.kd(t, 1, {\n  k = 3,\n  objective = ',
      ['ms.config { kd = ms.kd.options { obj'] = 'ms.config { kd = ms.kd.options { objective = ',
      ['ms.run.open({ optim = { bet'] = 'ms.run.open({ optim = { beta',
      ['ms.run.open({}, { stu'] = 'ms.run.open({}, { student = ',
      ['ms.generate.text(m, t, f("x, {"), { max'] = 'ms.generate.text(m, t, f("x, {"), { max_new = ',
      ['x = ms.ce(1, { o'] = 'x = ms.ce(1, { on = ',
      ['ms.ce(1, { on = "response", na'] = 'ms.ce(1, { on = "response", name = ',
      ['ms.kd(t, 1, { objective = f(pri'] = 'ms.kd(t, 1, { objective = f(print', ['f { pri'] = 'f { print',
    } do assert.equal(want, (tab(text)), text) end
    local words = table.concat(shown 'ms.kd(t, 1, { objective = "', ' ')
    assert.truthy(words:find 'forward_kl' and words:find 'js', words)
    assert.is_nil(table.concat(shown 'ms.kd(t, 1, { objective = "js", ', ' '):find 'objective') -- it is given
    assert.equal('ms.kd(t, 1, { objective = "reverse_kl', (tab('ms.kd(t, 1, { objective = "rev', '" })')))
  end)

  it('completes names of files within quotes', function()
    for text, want in pairs {
      ['ms.model.open "REA'] = 'ms.model.open "README.md"', ["x = 'lu"] = "x = 'lua/",
      ['f("lua/'] = 'f("lua/moonstill/',
      ['"üb'] = '"übung.txt"', ['".g'] = '".git/', ['ms.kd(t, 1, { k = "lu'] = 'ms.kd(t, 1, { k = "lua/',
    } do assert.equal(want, (tab(text)), text) end
    assert.same({ 'README.md', 'lua/', 'recipes/', 'übung.txt' }, shown '"')
    for _, text in ipairs { '"none/', '"zz', '"lua\\', '[[lu', '"a' } do assert.is_nil(tab(text), text) end
    assert.equal('"README.md', (tab('"REA', '"')))
  end)

  it('runs nothing of the user\'s and takes no time', function()
    local ran = 0
    local function never() ran = ran + 1 end
    global('proxy', setmetatable({ alpha = 1 }, { __index = never, __tostring = never, __len = never, __call = never,
      __eq = never, __concat = never }))
    global('hidden', setmetatable({ alpha = 1 }, { __metatable = 'hidden', __index = { beta = 2 } }))
    local a, b = {}, {}
    setmetatable(a, { __index = b })
    setmetatable(b, { __index = a })
    global('around', a)
    local huge = {}
    for i = 1, 1e5 do huge['k' .. i] = i end
    global('huge', huge)
    assert.equal('proxy.alpha', (tab 'proxy.'))
    assert.same({ 'alpha', 'beta' }, shown 'hidden.')
    local clock = os.clock()
    for _, text in ipairs {
      'proxy.x.', 'proxy.x', 'proxy:', 'proxy(', 'proxy { ', 'around.x.', 'around.', 'huge.', 'huge.k1.x', '.',
      ':', '..', '...', '{', '(', '[', ']', '}', ')', 'a.', 'a:', '1.', '"', "'", '\\', '[[', '--[[', '=', ', ',
      '\0', '\255', 'end', 'local', 'local ,', 'for', 'function', ']].', '[1].', 'x[', '{{{{', ('{'):rep(5000),
      ('f('):rep(5000) .. '{ ', ('a.'):rep(5000), ('x = 1; '):rep(5000) .. 'pri', ('{ a = '):rep(2000),
    } do
      complete(text, '', files, 60)
    end
    assert.equal(0, ran)
    assert.truthy(os.clock() - clock < 2, os.clock() - clock) -- all together
  end)

  it('shows columns that fit the terminal, and not more than a screen', function()
    local many = {}
    for i = 1, 999 do many['name_' .. i * 7919] = i end
    global('many', many)
    for _, columns in ipairs { 20, 60, 80 } do
      local _, _, list = complete('many.name_', '', files, columns)
      for line in list:gmatch '[^\n]+' do assert.truthy(#line <= columns, line) end
      assert.truthy(list:find('... (799 more)', 1, true))
    end
    local _, _, list = complete('ms.kd.o', '', files, 60)
    assert.equal('objectives  options', list)
  end)
end)
