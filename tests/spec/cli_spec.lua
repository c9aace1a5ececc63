-- The executable's command line, as a shell sees it.
local folders = require 'tests.support.folders'
local tools = require 'tests.support.tools'

local program = tools.program()
if not tools.exists(program) then
  pending('the executable', program .. ' is not built')
  return
end
local real = tools.quote(select(2, tools.run('realpath ' .. tools.quote(program))):match '[^\n]+')
program = tools.quote(program) -- as the shell takes it

local folder = tools.folder()

local function moonstill(...)
  local words = {}
  for i = 1, select('#', ...) do words[i] = tools.quote((select(i, ...))) end
  return tools.run(program .. ' ' .. table.concat(words, ' ') .. ' </dev/null')
end

local function recipe(text) return tools.write(folder .. '/recipe.lua', text) end

local function has(text, part)
  if not text:find(part, 1, true) then error(('%q is not in:\n%s'):format(part, text), 2) end
end

describe('the command line', function()
  it('runs a recipe with its arguments', function()
    local path = recipe [[print(arg[0], #arg, arg[1], arg[2], require 'moonstill' ~= nil)]]
    local status, out, err = moonstill(path, 'c.yaml', 'a=b c')
    assert.same({ 0, path .. '\t2\tc.yaml\ta=b c\ttrue\n', '' }, { status, out, err })
  end)
  it('leaves --help to the recipe', function()
    local status, out = moonstill(recipe 'print("mine", arg[1])', '--help')
    assert.same({ 0, 'mine\t--help\n' }, { status, out })
  end)
  it('runs code with ms at hand', function()
    local status, out = moonstill('-e', 'print(ms == require "moonstill", arg[1])', 'x')
    assert.same({ 0, 'true\tx\n' }, { status, out })
  end)
  it('names what there is instead of a name that ms has not', function()
    local status, _, err = moonstill('-e', 'print(ms.modle)')
    assert.equal(1, status)
    has(err, "moonstill: (command line):1: moonstill has no 'modle'; did you mean 'model'?\n")
    has(select(3, moonstill('-e', 'print(ms.reqired)')), "did you mean 'required'?")
    has(select(3, moonstill('-e', 'print(ms.zzzzzz)')), "moonstill has no 'zzzzzz'\n")
  end)
  it('uses its own core', function()
    local status, out = moonstill('-e', 'print(require "moonstill.C" == require "ffi".C)')
    assert.same({ 0, 'true\n' }, { status, out })
  end)
  it('prints a message and no traceback', function()
    local status, out, err = moonstill(recipe '\nlocal function f() error "no luck" end\nf()')
    assert.same({ 1, '' }, { status, out })
    assert.equal(('moonstill: PATH:2: no luck\n  PATH:2: in function \'f\'\n  PATH:3: in main chunk\n')
      :gsub('PATH', folder .. '/recipe.lua'), err)
  end)
  it('drops the traceback that a scope adds', function()
    local code = 'ms.scope(function() error "no luck" end)'
    local _, _, err = moonstill('-e', code)
    assert.equal('moonstill: (command line):1: no luck\n  (command line):1: in function <(command line):1>\n'
      .. '  (command line):1: in main chunk\n', err)
  end)
  it('adds a traceback with MS_TRACE', function()
    local _, _, err = tools.run('MS_TRACE=1 ' .. program .. " -e 'error \"no luck\"'")
    has(err, 'no luck\nstack traceback:')
    local path = recipe '\nlocal t\nprint(t.x)' -- the line itself is the traceback's first
    _, _, err = tools.run('MS_TRACE=1 ' .. program .. ' ' .. tools.quote(path))
    has(err, 'stack traceback:\n\t' .. path .. ':3: in main chunk')
  end)
  it('keeps line numbers of the modules inside', function()
    local _, _, err = tools.run('MS_TRACE=1 ' .. program .. " -e 'require [[moonstill.base.text]] {}'")
    assert.truthy(err:find 'lua/moonstill/base/text%.lua:%d+')
  end)
  it('prints errors that are not text', function()
    local status, _, err = moonstill('-e', 'error(setmetatable({}, {__tostring = function() return "odd" end}))')
    assert.same({ 1, 'moonstill: odd\n' }, { status, err })
    has(select(3, moonstill('-e', 'error()')), 'moonstill: an error without a message\n')
    has(select(3, moonstill('-e', 'error { code = 2 }')), 'moonstill: an error that is no text: { code = 2 }\n')
  end)
  it('does not write messages into files when it is started without stderr', function()
    local path, out = recipe 'f = io.open(arg[1], "w") io.stderr:write "lost" f:close()', folder .. '/f'
    assert.equal(0, (tools.run(program .. ' ' .. tools.quote(path) .. ' ' .. out .. ' 2>&-')))
    assert.equal('', tools.read(out))
  end)
  it('tells more when it is asked to', function()
    local code = tools.quote 'require "moonstill.tensor.device".open("cpu")'
    local function err(environment)
      return select(3, tools.run(('%s %s -e %s'):format(environment, program, code)))
    end
    assert.equal('', err 'MS_CPU=')
    assert.equal('moonstill: kernels: cpu/portable\n', err 'MS_CPU=portable MS_LOG=info')
    assert.equal('', err 'MS_CPU=portable MS_LOG=none')
  end)
  it('refuses values that environment variables cannot have, with status 2', function()
    local function said(variables, rest)
      local status, out, err = tools.run(('%s %s %s </dev/null'):format(variables, program, rest or "-e 'print(1)'"))
      return status == 2 and out == '' and err:match '^.-moonstill: (.-)\nTry: moonstill %-%-help\n$' or status .. out
    end
    assert.equal('MS_CPU=bogus: there are avx512, avx2, portable', said 'MS_CPU=bogus')
    assert.equal("MS_CPU=avx51: there are avx512, avx2, portable; did you mean 'avx512'?", said 'MS_CPU=avx51')
    assert.equal('MS_CPU=bogus: there are avx512, avx2, portable', said('MS_CPU=bogus', ''))
    assert.equal("MS_LOG=infos: there are info, none; did you mean 'info'?", said 'MS_LOG=infos')
    for _, value in ipairs { 'bogus', '0', '-1', '2,x', '1.5' } do
      local want = 'OMP_NUM_THREADS=%s is no number of threads, from 1 on; without it all cores are used'
      assert.equal(want:format(value), said('OMP_NUM_THREADS=' .. value))
    end
    for _, fine in ipairs { 'MS_CPU=', 'MS_CPU=portable', 'MS_LOG=', 'MS_LOG=none', 'OMP_NUM_THREADS=2',
      'OMP_NUM_THREADS=2,1', 'OMP_NUM_THREADS=' } do assert.equal('01\n', said(fine)) end
    assert.equal(0, (tools.run('MS_CPU=bogus ' .. program .. ' --help')))
    local _, _, err = tools.run "MS_CPU=x luajit -e 'require [[moonstill]].device.open [[cpu]]'" -- a program of its own
    tools.says('(command line):1: MS_CPU=x: there are avx512, avx2 and portable', err)
  end)
  it('says what a path is that is no recipe, and which command takes it', function()
    local place = tools.folder()
    local function said(name, text)
      if text then tools.write(place .. '/' .. name, text) end
      local status, out, err = moonstill(place .. '/' .. name)
      assert.same({ 2, '' }, { status, out })
      return (err:gsub(place:gsub('%p', '%%%0'), 'P'):match '^moonstill: (.-)\nTry: moonstill %-%-help\n$')
    end
    assert.equal('P/a.yaml is a configuration, which stands behind a recipe: moonstill RECIPE.lua P/a.yaml',
      said('a.yaml', 'a: 1\n'))
    tools.write(place .. '/a.lua', '')
    local own = 'P/a.yaml is a configuration, which stands behind a recipe: moonstill P/a.lua P/a.yaml'
    assert.equal(own, said 'a.yaml')
    assert.equal('P/a is not there; did you mean P/a.lua?', said 'a')
    for _, name in ipairs { 'd.jsonl', 'd.json', 'd.csv', 'd.txt', 'd.jsonl.gz' } do
      assert.equal(('P/%s is data: moonstill data show P/%s model=FOLDER shows it as it is learnt; a recipe takes it '
        .. 'as data.train=P/%s'):format(name, name, name), said(name, '{}'))
    end
    assert.equal('P/x.safetensors holds weights: give the folder of the model to a command, as in moonstill chat P',
      said('x.safetensors', ('\0'):rep(16)))
    assert.truthy(said('x.gguf', 'GGUF\3\0\0\0'):find 'GGUF')
    assert.equal('P/ is a folder, and no model is in it (config.json); a recipe is a .lua file', said '')
    tools.write(place .. '/config.json', '{}')
    assert.equal('P/ is the folder of a model: moonstill chat P/ talks to it, moonstill inspect P/ says what it is, '
      .. 'moonstill eval P/ DATA how good', said '')
    -- what may be a recipe is one, whatever its name
    local status, out = moonstill(tools.write(place .. '/recipe', 'print "mine"'))
    assert.same({ 0, 'mine\n' }, { status, out })
  end)
  it('fails where what it prints cannot be written', function()
    for _, words in ipairs { "-e 'print(1)'", '--version', 'recipes/sft.lua --help' } do
      assert.equal(1, (tools.run(program .. ' ' .. words .. ' >/dev/full')), words)
    end
  end)
  it('reports a recipe that does not parse', function()
    local status, _, err = moonstill(recipe 'x = = 1')
    assert.equal(1, status)
    has(err, 'recipe.lua:1:')
  end)
  it('tells a wrong command line by status 2', function()
    for _, words in ipairs { { '--hepl' }, { folder .. '/none.lua' }, { '-e' } } do
      local status, out, err = moonstill(unpack(words))
      assert.same({ 2, '' }, { status, out })
      has(err, 'Try: moonstill --help')
    end
  end)
  it('lets a recipe choose its status', function()
    assert.equal(7, (moonstill('-e', 'os.exit(7)')))
    local status, _, err = moonstill('-e', 'ms.exit(5, "out of luck")')
    assert.same({ 5, 'moonstill: out of luck\n' }, { status, err })
  end)
  it('tells a wrong configuration by status 2', function()
    local path = recipe 'require "moonstill".config { epochs = 1 }'
    local status, _, err = moonstill(path, 'epoch=2')
    assert.equal(2, status)
    has(err, 'epochs')
  end)
  it('says what it is', function()
    local status, out = moonstill '--help'
    assert.equal(0, status)
    has(out, 'key=value')
    status, out = moonstill '--version'
    assert.equal(0, status)
    for _, name in ipairs { 'moonstill ', 'LuaJIT ', 'xxHash ', 'libedit ', 'CPU kernels ' } do has(out, name) end
  end)
  -- Sends itself signals; a background process of a shell ignores SIGINT, which is not inherited so.
  local send = [[local ffi, C = require 'ffi', require 'moonstill.C'
    ffi.cdef 'int getpid(void); int kill(int pid, int signal);'
    local function send(number) ffi.C.kill(ffi.C.getpid(), number) end ]]
  it('ends by a signal that nobody watches for', function()
    local again = recipe(send .. 'send(tonumber(arg[1])) while true do end')
    for _, number in ipairs { 1, 2, 15 } do
      -- what the shell says of it goes to stderr
      assert.equal(128 + number, (tools.run(('%s %s %d; exit $?'):format(program, again, number))))
    end
  end)
  it('learns of the signals that ask it to end while it watches, and ends in good order', function()
    local watched = recipe(send .. [[C.ms_interrupt_watch(1) send(tonumber(arg[1]))
      while C.ms_interrupted() == 0 do end print 'saved']])
    for _, number in ipairs { 1, 2, 15, 24 } do -- HUP, INT, TERM, XCPU
      local status, out = tools.run(('%s %s %d'):format(program, watched, number))
      assert.same({ 128 + number, 'saved\n' }, { status, out })
    end
  end)
  it('ends at once when it is asked twice by somebody, not by a terminal that is gone', function()
    local twice = recipe(send .. [[C.ms_interrupt_watch(1) local n = tonumber(arg[1])
      send(n) send(n) print 'saved']])
    for number, want in pairs { [1] = 'saved\n', [2] = '', [15] = '', [24] = 'saved\n' } do
      local status, out = tools.run(('%s %s %d; exit $?'):format(program, twice, number))
      assert.same({ 128 + number, want }, { status, out })
    end
  end)
  it('gives the signals back, and leaves one alone that nohup ignores', function()
    local back = recipe(send .. [[C.ms_interrupt_watch(1) C.ms_interrupt_watch(0) send(15) print 'no']])
    local status, out = tools.run(program .. ' ' .. back .. '; exit $?')
    assert.same({ 143, '' }, { status, out })
    local nohup = recipe(send .. [[C.ms_interrupt_watch(1) send(1) print(C.ms_interrupted())]])
    status, out = tools.run("trap '' HUP; " .. program .. ' ' .. nohup)
    assert.same({ 0, '0\n' }, { status, out })
  end)
  it('makes a write error of a file that may grow no further, and of a pipe that nobody reads', function()
    local write = recipe [[local f = io.open(arg[1], 'wb')
      print(f:write(('x'):rep(100000)))]]
    local status, out = tools.run(('ulimit -f 10; %s %s %s/large'):format(program, write, folder))
    assert.equal(0, status)
    has(out, 'File too large')
    local core = recipe [[
      require 'moonstill.base.check'(require 'moonstill.C'.ms_file_write(arg[1], ('x'):rep(1e5), 1e5))]]
    local _, err
    status, _, err = tools.run(('ulimit -f 10; %s %s %s/large'):format(program, core, folder))
    assert.equal(1, status)
    has(err, 'large')
    has(err, 'File too large')
    status, _, err = tools.run(program .. ' ' .. recipe
      [[io.stdout:setvbuf 'no' os.execute 'sleep 0.2' print(1) io.stderr:write 'goes on']] .. ' | true')
    assert.same({ 0, 'goes on' }, { status, err })
  end)
  it('gives programs that it starts the signals they know', function()
    local start = recipe [[os.execute "grep -E 'Sig(Ign|Cgt)' /proc/self/status"]]
    local _, out = tools.run("sh -c 'exec " .. program .. ' ' .. start .. "'")
    for _, name in ipairs { 'SigIgn', 'SigCgt' } do
      local mask = tonumber(out:match(name .. ':%s+%x+(%x%x%x%x%x%x%x%x)'), 16)
      assert.equal(0, bit.band(mask, bit.bor(bit.lshift(1, 12), bit.lshift(1, 24))), name) -- PIPE, XFSZ
    end
  end)
  it('fails where a recipe leaves its run open, and says so', function()
    local text = [[local ms = require 'moonstill'
      local student = ms.model.create(require 'tests.programs.run_recipe'.config, 1, { train = true })
      local run = ms.run.open({ output = arg[1], max_steps = 2, optim = { lr = 0.01 } },
        { student = student, data = require 'tests.programs.run_recipe'.data(5), quiet = true })
      for step in run:steps() do
        for batch in step:micro_batches() do student:learn(batch, { ms.ce(1) }) end
        step:update()
      end
      local how = arg[2]
      if how == 'error' then error 'mine' end
      if how then run[how](run) end]]
    local function try(how)
      return tools.run(('LUA_PATH=%s %s %s %s/left-%s %s'):format(tools.quote(package.path), program,
        recipe(text), folder, how or 'open', how or ''))
    end
    local status, _, err = try()
    assert.equal(1, status)
    has(err, 'without run:finish(): no student is saved in ' .. folder .. '/left-open')
    assert.equal(0, (try 'finish'))
    assert.equal(0, (try 'close'))
    status, _, err = try 'error'
    assert.equal(1, status)
    assert.is_nil(err:find('run:finish', 1, true))
  end)
  it('prints no control character that stands in the names of a file', function()
    local list, at = folders.tiny_tensors(), 0
    for _, tensor in ipairs(list) do at = at + #tensor[4] end
    list[#list + 1] = { '', 'F32', { 1 }, text =
      ('"odd\\u001b[2J\\u009b":{"dtype":"F32","shape":[1],"data_offsets":[%d,%d]}'):format(at, at + 4) }
    local path = folders.folder(folders.tiny(), list)
    local status, out, err = moonstill('inspect', path, '--weights')
    assert.same({ 1, '' }, { status, out })
    has(err, '[2J')
    assert.is_nil(err:find('[\27\155]'))
    local _, why = pcall(require 'moonstill.model.model'.open, path) -- nor does the core, for other programs
    assert.truthy(why:find('odd?[2J??', 1, true), why)
    status, _, err = moonstill('-e', "error 'a \27[2J b\\nc'")
    assert.equal(1, status)
    has(err, 'a \\x1b[2J b\nc')
    local rows = tools.write(folder .. '/rows.jsonl', '{"text":"a","x\\u001b[2Jy":1}\n')
    local toy = tools.quote(folder .. '/toy')
    local code = tools.quote 'local s = ms.smoke.sft(arg[1]) ms.dataset.open(arg[2], ms.chat.open(s.student))'
    _, _, err = tools.run(('%s -e %s %s %s'):format(program, code, toy, rows))
    has(err, 'x\\x1b[2Jy')
    assert.is_nil(err:find '\27')
  end)
  it('lists its commands, each with a help of its own', function()
    local status, out = moonstill '--help'
    assert.equal(0, status)
    for _, name in ipairs { 'chat', 'generate', 'data show', 'inspect' } do
      has(out, 'moonstill ' .. name)
      local words = {}
      for word in (name .. ' --help'):gmatch '%S+' do words[#words + 1] = word end
      local own, text, err = moonstill(unpack(words))
      assert.same({ 0, '' }, { own, err })
      has(text, 'moonstill ' .. name)
    end
    has(select(2, moonstill('chat', '--help')), '--max-new')
    has(select(2, moonstill('generate', '--help')), '-o, --output')
    for line in out:gmatch '[^\n]+' do assert.is_true(#line <= 100, line) end
  end)
  it('names the nearest command instead of one that there is not', function()
    local status, _, err = moonstill('chta', 'x')
    assert.equal(2, status)
    has(err, "no recipe: chta: No such file or directory; did you mean 'chat'?\nTry: moonstill --help\n")
    has(select(3, moonstill('generat', 'x')), "did you mean 'generate'?")
    has(select(3, moonstill '--hlep'), "unknown option --hlep; did you mean '--help'?")
    has(select(3, moonstill 'recipe.lua'), 'no recipe: recipe.lua: No such file or directory\n')
    has(select(3, moonstill('inspect', '--wieghts')), "no option '--wieghts'; did you mean '--weights'?")
  end)
  it('runs a recipe that is named like a command by its path', function()
    tools.write(folder .. '/chat', 'print "mine"')
    local status, out = tools.run(('cd %s && %s ./chat </dev/null'):format(folder, real))
    assert.same({ 0, 'mine\n' }, { status, out })
    assert.equal(2, (tools.run(('cd %s && %s chat </dev/null'):format(folder, real)))) -- the command, without a folder
  end)
  it('inspects a model folder', function()
    local status, out, err = moonstill('inspect', 'tests/fixtures/qwen3', '--weights')
    assert.same({ 0, '' }, { status, err })
    local config = tools.read 'tests/fixtures/qwen3/config.json'
    for name, key in pairs { layers = 'num_hidden_layers', hidden_size = 'hidden_size', vocab = 'vocab_size' } do
      local value = config:match('"' .. key .. '": (%d+)')
      assert.truthy(out:find('\n' .. name .. ' +' .. value .. '\n'), name .. ' ' .. value)
    end
    has(out, 'qwen3')
    assert.truthy(out:find('\nends +' .. config:match '"eos_token_id": (%d+)' .. '\n'))
    has(out, 'model.layers.1.self_attn.q_norm.weight')
    assert.equal(out, select(2, moonstill('inspect', '--weights', 'tests/fixtures/qwen3')))
    status, out, err = moonstill('inspect', folder)
    assert.same({ 1, '' }, { status, out })
    assert.equal(1, err:find('moonstill: ' .. folder .. ': has no config.json: there', 1, true))
    assert.equal(2, (moonstill 'inspect'))
  end)
  it('starts in less than 30 ms', function()
    if os.getenv 'MS_SANITIZED' then return pending 'the sanitizers take longer' end
    -- of a processor, since others may be busy on it, and the best of several
    local best = math.huge
    local command = ([[TIMEFORMAT='%%U %%S'; time %s -e 'local x = ms.scope']]):format(program)
    for _ = 1, 10 do
      local _, _, err = tools.run('bash -c ' .. tools.quote(command))
      local user, system = err:match '^([%d.]+) ([%d.]+)\n$'
      best = math.min(best, tonumber(user) + tonumber(system))
    end
    assert.truthy(best < 0.030, ('%.0f ms'):format(best * 1000))
  end)
end)

describe('the prompt without a terminal', function()
  local function feed(text)
    local path = tools.write(folder .. '/input', text)
    return tools.run(program .. ' <' .. path)
  end
  it('prints expressions and runs statements', function()
    local status, out, err = feed '1 + 1\n=2, "a"\nx = 3\nx\nfor i = 1, 2 do\nprint(i)\nend\n'
    assert.same({ 0, '2\n2\ta\n3\n1\n2\n', '' }, { status, out, err })
  end)
  it('shows tables in a fixed order', function()
    local _, out = feed '{ 5, z = 1, a = { b = { c = { d = 1 } } }, [true] = "t" }\n'
    assert.equal('{ [true] = "t", 5, a = { b = { c = { ... } } }, z = 1 }\n', out)
    _, out = feed 't = {} t.t = t\nt\n'
    assert.equal('{ t = { ... } }\n', out)
  end)
  it('goes on after an error and tells of it', function()
    local status, out, err = feed 'x = error "no"\n)\n1\nx = \n'
    assert.same({ 1, '1\n' }, { status, out })
    has(err, 'prompt:1: no')
    has(err, "unexpected symbol near ')'")
    has(err, "'<eof>'")
  end)
  it('helps', function()
    local status, out, err = feed('help()\nhelp(ms.model)\nhelp "kd.k"\nhelp(1)\n'
      .. 'm = ms.model.open "tests/fixtures/qwen3"\nhelp(m)\n')
    assert.equal(1, status)
    has(out, 'Ctrl-D leaves')
    has(out, 'Hugging Face folders in and out')
    has(out, '\nms.model.shrink(teacher, options)\n    A student from some layers of a teacher;')
    has(out, '\nkd.k, target.k: entries of a topk target\n')
    has(out, '\nmodel:evaluate(batch, terms)\n    The losses of a batch')
    has(err, 'nothing to say about a number')
    assert.equal('moonstill ' .. require 'moonstill'._VERSION .. '; help() helps\n', select(2, feed 'ms\n'))
  end)
  it('helps in code and in recipes as well', function()
    local path = recipe 'local ms = require "moonstill" help(ms.ce) ms.help "kd.k"'
    local status, out = moonstill(path)
    assert.equal(0, status)
    has(out, 'ms.ce(weight, options)\nA term of a loss')
    has(out, 'kd.k, target.k: entries')
    assert.same({ 0, out, '' }, { moonstill('-e', 'help(ms.ce) ms.help "kd.k"') })
    -- without the executable, docstrings are read from the sources
    assert.same({ 0, out, '' }, { tools.run(('LUA_PATH=%s luajit %s'):format(tools.quote(package.path),
      recipe 'local ms = require "moonstill" ms.help(ms.ce) ms.help "kd.k"')) })
  end)
end)
