--- The command line by a schema: merging, types, suggestions, help.
local ms = require 'moonstill'
local tools = require 'tests.support.tools'

local folder = tools.folder()
local here = tools.write(folder .. '/here', 'x')

local function schema()
  return {
    student = ms.required('path', 'the student'), teacher = ms.optional 'path',
    output = 'out', epochs = 1, flag = false, rows = ms.option({ 1 }, 'a list', 'list'),
    kd = { objective = ms.one_of({ 'forward_kl', 'reverse_kl' }), temperature = 1,
      t_scale = ms.option('auto', 'scale', 'auto|false|number') },
    many = ms.optional 'paths',
    batch = { tokens = 8192 }, name = ms.optional 'string',
    share = ms.optional 'number >= 0 < 1', few = ms.optional 'all|integer <= 3',
  }
end

local function yaml(text) return tools.write(folder .. '/config.yaml', text) end

local function read(...) return ms.config(schema(), { args = { ... } }) end

local function fails(what, ...) assert.equal(2, tools.fails(what, read, ...).exit) end

describe('ms.config', function()
  it('has the defaults and the keys of every schema', function()
    local cfg = read('student=' .. here)
    assert.same({ student = here, output = 'out', epochs = 1, flag = false, rows = { 1 },
      kd = { objective = 'forward_kl', temperature = 1, t_scale = 'auto' }, batch = { tokens = 8192 },
      device = 'cpu', dtype = 'f32', threads = 0, seed = 1, resume = 'auto', max_steps = 0,
      grid = { tp = 1 }, log = 'first' }, cfg)
  end)

  it('says what was asked for and does nothing', function()
    local script = tools.write(folder .. '/notes.lua', ([[local ms = require 'moonstill'
      ms.config { kd = { target = ms.one_of(ms.kd.targets), objective = ms.one_of(ms.kd.objectives), k = 64,
        tail = 'bucket', beta = 0.5, lambda = 0.1, alpha = 0.5 }, data = { valid = ms.optional 'paths' },
        validate = 100, optim = { schedule = ms.one_of(ms.schedule.names), decay = 0.2, final = 0 } }]]))
    local function said(...)
      local words = { ('LUA_PATH=%s luajit %s'):format(tools.quote(package.path), script) }
      for i = 1, select('#', ...) do words[i + 1] = tools.quote((select(i, ...))) end
      local status, _, err = tools.run(table.concat(words, ' '))
      assert.equal(0, status, err)
      return err
    end
    local function note(key, because)
      return ("note: command line: '%s' is not used: %s\n"):format(key, because)
    end
    assert.equal('', said())
    assert.equal('', said('kd.target=hidden')) -- what was not asked for is not said
    assert.equal('', said('kd.k=3', 'kd.tail=renormalize', 'kd.objective=js', 'kd.beta=0.1', 'optim.final=0.1'))
    assert.equal('', said('kd.objective=skewed_reverse_kl', 'kd.lambda=0.2', 'optim.schedule=wsd', 'optim.decay=3',
      'data.valid=' .. here, 'validate=3'))
    assert.equal(note('kd.k', 'kd.target is hidden') .. note('kd.tail', 'kd.target is hidden'),
      said('kd.target=hidden', 'kd.tail=bucket', 'kd.k=3'))
    assert.equal(note('kd.alpha', 'kd.objective is forward_kl') .. note('kd.beta', 'kd.objective is forward_kl')
      .. note('kd.lambda', 'kd.objective is forward_kl'), said('kd.beta=0.1', 'kd.alpha=0.1', 'kd.lambda=0.2'))
    assert.equal(note('optim.decay', 'optim.schedule is constant') .. note('optim.final', 'optim.schedule is constant'),
      said('optim.schedule=constant', 'optim.decay=3', 'optim.final=0.1'))
    assert.equal(note('validate', 'data.valid is not given'), said 'validate=5')
    local file = tools.write(folder .. '/some.yaml', 'kd: {k: 3}\n')
    assert.equal(("note: %s: line 1, column 6: 'kd.k' is not used: kd.target is logits\n"):format(file),
      said(file, 'kd.target=logits'))
  end)

  it('merges files and arguments, later ones over earlier ones', function()
    local file = yaml 'epochs: 3\nkd: {temperature: 2, objective: reverse_kl}\nrows: [1, 2]\n'
    local cfg = read('epochs=2', file, 'kd.temperature=0.5', 'student=' .. here, 'kd.t_scale=false',
      'resume=false')
    assert.equal(3, cfg.epochs)
    assert.equal(0.5, cfg.kd.temperature)
    assert.equal('reverse_kl', cfg.kd.objective)
    assert.is_false(cfg.kd.t_scale)
    assert.is_false(cfg.resume)
    assert.same({ 1, 2 }, cfg.rows)
    assert.equal(4, read('student=' .. here, 'kd={temperature: 4}').kd.temperature)
  end)

  it('takes text as it is written where text is wanted', function()
    for _, s in ipairs { '12', 'true', '*x', 'a: b', '"q', 'x=y', '' } do
      assert.equal(s, read('student=' .. here, 'name=' .. s).name)
    end
  end)

  it('loses nothing of a text on the command line', function()
    for _, s in ipairs { '#c', 'x # y', ' x', 'x ', '&a b', '!t b', 'a #b #c', '# \238\128\128 #' } do
      assert.equal(s, read('student=' .. here, 'name=' .. s).name)
    end
    assert.equal('x # y', read('student=' .. here, 'name="x # y"').name)
    assert.equal(' x', read('student=' .. here, "name=' x'").name)
    assert.same({ 'a', 'b # c' }, read('student=' .. here, 'rows=["a", b # c]').rows)
    assert.equal(4, read('student=' .. here, 'kd={temperature: 4}').kd.temperature)
    assert.is_nil(read('student=' .. here, 'name=null').name)
    fails("'epochs' must be number from 0 to 10000, not 3 # three", 'epochs=3 # three')
    fails("'kd.objective' must be one of forward_kl, reverse_kl, not reverse_kl #", 'kd.objective=reverse_kl # or not')
    fails('command line: rows: line 1', 'rows=[1, 2] # two')
    -- in a file it is a comment
    assert.equal('x', read('student=' .. here, yaml 'name: x # y').name)
  end)

  it('takes one path or several', function()
    assert.equal(here, read('student=' .. here, 'many=' .. here).many)
    assert.same({ here, folder }, read('student=' .. here, ('many=[%s, %s]'):format(here, folder)).many)
    fails("'many': /absent: no such file or folder", 'student=' .. here, ('many=[%s, /absent]'):format(here))
    fails("'many' must be paths", 'many=[]')
    fails("'many' must be paths", 'many=[1]')
  end)

  it('names unknown keys and the nearest valid one', function()
    fails("no option 'kd.temprature'; did you mean 'kd.temperature'?", 'kd.temprature=1')
    fails("no option 'temperature'; did you mean 'kd.temperature'?", 'temperature=1')
    fails("did you mean 'epochs'?", 'epohcs=1')
    fails("no option 'zzzzzzzz'", 'zzzzzzzz=1')
    fails("config.yaml: line 1, column 6: no option 'kd.objektive'; did you mean 'kd.objective'?",
      yaml 'kd: {objektive: x}')
  end)

  it('names wrong types', function()
    fails("'epochs' must be number from 0 to 10000, not three", 'epochs=three')
    fails("'batch.tokens' must be integer >= 1, not 1.5", 'batch.tokens=1.5')
    fails("'flag' must be boolean, not 1", 'flag=1')
    fails("'kd.objective' must be one of forward_kl, reverse_kl, not forwardkl; did you mean 'forward_kl'?",
      'kd.objective=forwardkl')
    fails("'kd.t_scale' must be auto or false or number, not true", 'kd.t_scale=true')
    fails("'kd' must be a table of keys, not 3", yaml 'kd: 3')
    fails('yaml: all of it must be a table of keys, not ["a"]', yaml '- a')
    fails([['epochs' must be number from 0 to 10000, not "3" in quotes]], yaml 'epochs: "3"')
    fails([['flag' must be boolean, not "true" in quotes]], 'flag="true"')
    fails("'name' must be string, not 3", yaml 'name: 3')
    fails("'epochs' cannot be null", 'epochs=null')
    fails('must be number from 0 to 10000, not [1]', 'epochs=[1]')
    fails("'epochs' must be number from 0 to 10000, not ", 'epochs=.nan')
    fails('must be integer', 'batch.tokens=[.nan]')
  end)

  it('names values that are out of bounds', function()
    fails("'kd.temperature' must be number from 0.001 to 1000, not 0", 'kd.temperature=0')
    fails("'kd.temperature' must be number from 0.001 to 1000, not 1e+300", 'kd.temperature=1e300')
    fails("'epochs' must be number from 0 to 10000, not 1e+15", 'epochs=1e15')
    fails("'epochs' must be number from 0 to 10000, not -1", yaml 'epochs: -1')
    fails("'batch.tokens' must be integer >= 1, not 0", 'batch.tokens=0')
    fails("'share' must be number >= 0 < 1, not 1", 'share=1')
    fails("'share' must be number >= 0 < 1, not -0.5", 'share=-0.5')
    assert.equal(0, read('student=' .. here, 'share=0', 'epochs=0').share)
    fails("'few' must be all or integer <= 3, not 4", 'few=4')
    assert.equal(3, read('student=' .. here, 'few=3').few)
    assert.equal('all', read('student=' .. here, 'few=all').few)
  end)

  it('leaves a known key alone where a recipe gives its own kind or another default', function()
    local cfg = ms.config({ epochs = 'all', kd = { temperature = ms.option(0, nil, 'number') } },
      { args = { 'epochs=some', 'kd.temperature=-1' } })
    assert.equal('some', cfg.epochs)
    assert.equal(-1, cfg.kd.temperature)
  end)

  it('refuses a default that is out of bounds, and a bound that is none', function()
    assert.has_error(function() ms.config({ epochs = -1 }, { args = {} }) end,
      "config: the default of 'epochs' is not number from 0 to 10000")
    assert.has_error(function() ms.config({ n = ms.option(1, nil, 'integer > few') }, { args = {} }) end,
      "kinds: no bound: 'integer > few'")
  end)

  it('names what is missing', function()
    fails("'student' must be given (path)")
    fails(folder .. '/absent: no such file or folder', 'student=' .. folder .. '/absent')
    fails('no such file or folder', 'student=' .. here, 'teacher=' .. folder .. '/absent')
    fails('teacher/name: no such file or folder; if it is a name on a hub: nothing is downloaded here',
      'student=teacher/name')
    fails('no such file', folder .. '/absent.yaml')
    fails('is a pointer file of Git LFS', yaml('version https://git-lfs.github.com/spec/v1\noid sha256:'
      .. ('4d7a'):rep(16) .. '\nsize 33417\n'))
    fails('is text in UTF-16', yaml '\255\254e\0p\0:\0001\0')
    fails('unknown option --smok', '--smok')
    fails('no --smoke size', '--smoke')
    fails('line 2, column 1: duplicate key', yaml 'epochs: 1\nepochs: 2\n')
  end)

  it('says how what was meant is written', function()
    tools.fails("--smokee (arguments are YAML files, key=value, --help, --smoke); did you mean '--smoke'?", ms.config,
      schema(), { args = { '--smokee' }, smoke = {} })
    fails("; did you mean '--help'?", '--hepl')
    fails("unknown option --epochs=2 (arguments are YAML files, key=value, --help); write epochs=VALUE, without blanks",
      '--epochs=2')
    fails('write epochs=VALUE, without blanks', '--epochs', '2')
    fails('write max_steps=VALUE, without blanks', '--max-steps', '2')
    fails('write kd.temperature=VALUE, without blanks', '--kd.temperature=2')
    fails("; did you mean 'kd.temperature'?", '--kd.temprature=2')
    fails('epochs: no such file (arguments are YAML files and key=value); write epochs=VALUE, without blanks', 'epochs',
      '=2')
    fails("command line: 'epochs' has no value; write epochs=VALUE, without blanks", 'epochs=', '2')
    fails('=2: no such file (arguments are YAML files and key=value); write KEY=VALUE, without blanks', '=2')
    tools.refused('nothing.txt: no such file %(arguments are YAML files and key=value%)$', read, 'nothing.txt')
  end)

  it('says where in a file something is wrong', function()
    fails("config.yaml: line 2, column 1: no option 'epohcs'; did you mean 'epochs'?", yaml 'rows: [1]\nepohcs: 1\n')
    fails("config.yaml: line 3, column 3: 'kd.temperature' must be", yaml 'rows: [1]\nkd:\n  temperature: x\n')
    fails("config.yaml: line 1, column 1: 'kd' must be a table of keys, not k:3; a blank belongs behind the colon",
      yaml 'kd:\n  k:3\n')
    fails('config.yaml: all of it must be a table of keys, not epochs:3; a blank belongs behind the colon',
      yaml 'epochs:3\n')
    tools.refused('config.yaml: all of it must be a table of keys, not http://x$', read, yaml 'http://x\n')
    fails("config.yaml: line 1, column 1: 'resume': yes: no such file or folder; did you mean 'true'?",
      yaml('resume: yes\nstudent: ' .. here .. '\n'))
    fails("line 1, column 1: 'flag' must be boolean, not Off; did you mean 'false'?", yaml 'flag: Off\n')
  end)

  it('takes a smoke size, which arguments overrule', function()
    local cfg = ms.config(schema(), { args = { 'epochs=5', '--smoke' },
      smoke = function() return { student = here, epochs = 0.1, kd = { temperature = 3 } } end })
    assert.equal(here, cfg.student)
    assert.equal(5, cfg.epochs)
    assert.equal(3, cfg.kd.temperature)
  end)

  it('prints every key with type, default and meaning', function()
    local text = ms.config.help(schema(), { about = 'What it is.' })
    for _, words in ipairs { { 'student', 'path', 'required', 'the student' },
      { 'kd.temperature', 'number from 0.001 to 1000', '1', 'T of both distributions' },
      { 'rows', 'list', '[1]', 'a list' },
      { 'kd.t_scale', 'auto or false or number', 'auto', 'scale' }, { 'max_steps', 'integer >= 0', '0' },
      { 'kd.objective', 'forward_kl', 'forward_kl, reverse_kl' }, { 'resume', 'auto' } } do
      local row = ('\n  ' .. words[1]:gsub('%.', '%%.') .. ' .-\n)  %S')
      local line = ('\n' .. text .. '  end'):match('(' .. row)
      assert.truthy(line, words[1])
      line = line:gsub('%s+', ' ')
      for _, word in ipairs(words) do assert.truthy(line:find(word, 1, true), line) end
    end
    assert.truthy(text:find('What it is.', 1, true))
  end)

  it('refuses schemas that contradict themselves', function()
    assert.has_error(function() ms.config({ x = ms.option('a', 'm', 'number') }, { args = {} }) end)
    assert.has_error(function() ms.config({ ['a.b'] = 1 }, { args = {} }) end)
  end)

  it('never crashes on broken files', function()
    local whole = 'student: ' .. here .. '\nkd: {temperature: 2, objective: reverse_kl}\nrows: [1, two]\n'
    for i = 1, #whole do
      local ok, why = pcall(read, yaml(whole:sub(1, i) .. '\1' .. whole:sub(i + 2)))
      assert.is_false(ok)
      assert.equal(2, why.exit)
    end
  end)
end)

describe('two configurations of one run', function()
  it('may differ in what changes no number', function()
    local changes = require 'moonstill.run.changes'
    local now = { output = 'a', seed = 1, kd = { k = 3 }, data = { train = 'x', quiet = true },
      checkpoint = { keep = 1 } }
    local old = { output = 'b', seed = 2, kd = { k = 4 }, data = { train = 'x', quiet = false } }
    assert.same({ { key = 'kd.k', now = '3', old = '4' }, { key = 'seed', now = '1', old = '2' } },
      changes.between(now, old))
  end)
end)
