--- `help`: that everything users touch is explained, and how it reads.
local catalog = require 'moonstill.prompt.catalog'
local docstrings = require 'moonstill.prompt.docstrings'
local ms = require 'moonstill'
local names = require 'moonstill.names'
local sorted = require 'moonstill.base.sorted'
local tools = require 'tests.support.tools'

-- The lines of a module's source.
local function source_of(module)
  local lines = {}
  for line in (tools.read('lua/moonstill/' .. module:gsub('%.', '/') .. '.lua') .. '\n'):gmatch '(.-)\n' do
    lines[#lines + 1] = line
  end
  return lines
end

-- Whether the function that begins at a line ends with a value: the indentation tells its own lines.
local function gives(lines, first)
  local indent = lines[first]:match '^ *'
  if lines[first]:find '%f[%w]end$' then return lines[first]:find '%f[%w]return%s+%S' ~= nil end
  for i = first + 1, #lines do
    if lines[i]:find('^' .. indent .. 'end') then return false end
    if lines[i]:find('^' .. indent .. '  return%s+%S') and not lines[i]:find 'return fail' then return true end
  end
end

-- What is missing of a function's docstring, as a list of texts.
local function flaws(entry, lines)
  local tags, found = docstrings.tags(entry.text), {}
  if tags.text == '' then found[1] = 'no text' end
  local arguments, takes, has = entry.arguments, {}, {}
  for name in arguments:gmatch '[%w_]+' do
    if name ~= '_' then takes[name] = true end
  end
  for _, param in ipairs(tags.param) do
    has[param.name] = true
    local known = takes[param.name] or arguments:find('...', 1, true)
    if not known then found[#found + 1] = '@param ' .. param.name .. ': no such argument' end
    if param.type == '' then found[#found + 1] = '@param ' .. param.name .. ': no type' end
  end
  for name in sorted.pairs(takes) do
    if not has[name] then found[#found + 1] = 'no @param ' .. name end
  end
  if arguments:find('...', 1, true) and #tags.param == 0 then found[#found + 1] = 'no @param for ...' end
  if gives(lines, entry.line) and #tags['return'] == 0 then found[#found + 1] = 'no @return' end
  return found
end

local function all_flaws()
  local found, count = {}, 0
  local function look(entry, module, kind)
    count = count + 1
    if entry.line then
      for _, flaw in ipairs(flaws(entry, source_of(module))) do
        found[#found + 1] = ('%s: %s'):format(catalog.signature(entry, module, kind), flaw)
      end
    end
  end
  for name, place in sorted.pairs(names) do
    local value = ms[name]
    if place.field then
      look(assert(catalog.of_function(value)), place.module)
    else
      local doc = catalog.docs()[place.module]
      if doc.about == '' then found[#found + 1] = name .. ': no text' end
      for _, entry in ipairs(catalog.functions_of(place.module)) do look(entry, place.module) end
      local call = type(value) == 'table' and catalog.call_of(value)
      if call then look(catalog.of_function(call) or error(name .. ' is called by what has no text'), place.module) end
    end
  end
  for name, kind in sorted.pairs(catalog.kinds()) do
    local tags = docstrings.tags(kind.text)
    if tags.text == '' then found[#found + 1] = name .. ': no text' end
    for _, field in ipairs(tags.field) do
      if field.meaning == '' then found[#found + 1] = ('%s.%s: no meaning'):format(name, field.name) end
    end
    local methods, modules = catalog.methods_of(kind)
    for i, entry in ipairs(methods) do look(entry, modules[i], name) end
  end
  return found, count
end

describe('every public name', function()
  it('has a text, each argument its @param, each result its @return, each field a meaning', function()
    local found, count = all_flaws()
    assert.equal('', table.concat(found, '\n'))
    assert.is_true(count > 200, count)
  end)
end)

-- What help prints of some values, as one text.
local function printed(...)
  local parts, write = {}, io.write
  io.write = function(...) -- luacheck: ignore
    for i = 1, select('#', ...) do parts[#parts + 1] = tostring((select(i, ...))) end
  end
  local ok, why = pcall(ms.help, ...)
  io.write = write -- luacheck: ignore
  if not ok then error(why, 0) end
  return table.concat(parts)
end

local function squeezed(...) return (printed(...):gsub('%s+', ' ')) end

describe('help', function()
  it('shows how a function is called, with its arguments and results', function()
    local text = printed(ms.ce)
    tools.says({ 'ms.ce(weight, options)\nA term of a loss: the cross-entropy ',
      '\n  weight?   number: of the term, default 1',
      '\n  options?  table: see ms.kd.ce_options\n  returns   term\n' }, text)
    assert.equal(text, printed 'ce')
    assert.equal(text, printed 'ms.ce')
    tools.says('batch.weight(on)', (printed 'batch.weight':gsub(':', '.')))
    tools.says({ 'ms.ops.rmsnorm(y, rstd, x, w, eps, offset)\ny[r,:] = x[r,:] (w + offset)', 'eps     number\n' },
      printed(ms.ops.rmsnorm))
  end)

  it('shows a module: its call, functions, kinds of objects, and options with the meanings of their values', function()
    local text = printed(ms.kd)
    tools.says({ 'Losses: the list of terms',
      '\nms.kd(target, weight, options, more)\nms.kd.term(target, weight, options, more)\nA term of a loss: ',
      '\n  returns   term\n', '\nms.ce(weight, options)\n    A term of a loss', 'help "term"',
      '\nms.kd.options: option, default, meaning', '\n  k                    64          entries of a topk target',
      '\nobjective:\n  forward_kl         KL(teacher || student)' }, text)
    for _, name in ipairs(ms.kd.objectives) do assert.truthy(text:find('\n  ' .. name .. ' +%S'), name) end
    assert.equal(1, select(2, text:gsub('ms%.kd%.term', ''))) -- it is what the module's call is
    assert.is_nil(text:find('ms.kd.ask', 1, true))  -- for other modules
    tools.says({ 'ms.batch(segments, ...)', 'ms.batch.from(prompts, answers, weights)' }, printed(ms.batch))
    tools.says({ 'ms.scope(body)', 'returns  any: ... what `body` returns' }, printed(ms.scope))
  end)

  it('explains one option', function()
    local want = 'kd.k, target.k: entries of a topk target\n  default  64\n  must be  integer >= 1\n'
      .. '  used     where target is topk\n'
    assert.equal(want, printed(ms.kd.options.k))
    assert.equal(want, printed 'kd.k')
    tools.says('optimizer.lr, optim.lr, schedule.lr: peak', printed(ms.optimizer.options.lr))
    tools.says('default none: it must be given', squeezed 'data.train')
    tools.says('bucket it counts as one more symbol', squeezed(ms.kd.options.tail))
  end)

  it('finds what goes by a text, and the nearest of what does not', function()
    tools.says('run:validate(', printed 'run:validate')
    tools.says('step.number: counts from 1', printed 'step.number')
    tools.says('run.state: how far it is', printed 'run.state')
    tools.says({ 'model:learn(batch, terms)', 'ms.bpe.learn(texts, size)', 'data.learn: roles' }, printed 'learn')
    tools.says('forward_kl, a value of kd.objective: KL(teacher || student)', squeezed 'forward_kl')
    tools.says('moonstill inspect FOLDER', squeezed 'inspect')
    tools.says('MS_CPU: avx512', squeezed 'MS_CPU')
    tools.says({ 'How far a run is', 'index ', 'the step in its epoch' }, squeezed 'state')
    -- of too many, a line each
    tools.says({ 'model:free()\n    Frees', 'batch:free()\n    Frees' }, printed 'free')
    for text, why in sorted.pairs { lern = "nothing is called 'lern'; did you mean 'bpe.learn'?",
      ['kd.temprature'] = "did you mean 'kd.temperature'?", ['run.stat'] = "did you mean 'run.state'?",
      zzzzzzzz = "nothing is called 'zzzzzzzz'", [''] = "nothing is called ''" } do
      tools.fails(why, ms.help, text)
    end
  end)

  it('shows objects: what they are, their methods, and fields with values and meanings', function()
    ms.scope(function(own)
      local model = own(ms.model.open 'tests/fixtures/qwen3')
      local text = printed(model)
      tools.says({ 'model qwen3: ', 'A model with its weights', '\nmodel:learn(batch, terms)\n    One pass',
        '\nmodel:free()', '\nhelp "model.ends" shows one of them in full.\n' }, text)
      assert.is_nil(text:find('shrink', 1, true)) -- of the module, not of a model
      local batch = own(ms.batch { { 1, 2, 3 } })
      local results = model:evaluate(batch, { ms.ce(1, { on = 'all' }) })
      tools.says({ 'a result for each term', '1: ' }, squeezed(results))
      text = squeezed(results[1])
      tools.says({ 'Fields:', ' rows 2 how many positions there are (number) ', ' teacher_mass the teacher',
        '(number, or nil)' }, text)
      tools.says({ 'kind ce "ce" or "kd" (string)', 'term:set(weight, target)' }, squeezed(ms.ce()))
      tools.says({ 'batch of 3 tokens', 'batch:weight(on)' }, printed(batch))
    end)
    local cfg = ms.config({ mine = ms.option(3, 'of the recipe'), kd = ms.kd.options {} }, { args = { 'kd.k=7' } })
    tools.says({ 'key, value, meaning', ' kd.k 7 entries of a topk target', ' mine 3 of the recipe' }, squeezed(cfg))
    assert.equal('  a  number  1\n  b  table\n', printed { a = 1, b = {} })
    local state = require 'moonstill.base.strict'.mark('state', { step = 7, best = 0.25 })
    tools.says({ 'How far a run is', ' step 7 steps that have begun', ' best 0.25 (number)' }, squeezed(state))
    local measured = require 'moonstill.train.measuring'.result({ loss = 2.5, js = 0.5 }, { name = 'js' })
    tools.says({ 'What was measured', ' loss 2.5 cross-entropy', ' js 0.5 (number)' }, squeezed(measured))
  end)

  it('says where a function of the caller is defined, and what stands above it', function()
    --- Does nothing.
    local function idle() end
    local text = printed(idle)
    assert.truthy(text:find 'a function defined in [%w_./]*tests/spec/help_spec.lua:%d+\n\nDoes nothing.\n$', text)
    tools.says('no text', printed(print))
    tools.fails({ 'help_spec.lua:', 'nothing to say about a number' }, function() ms.help(1) end)
    tools.fails({ 'nothing to say about a nil: is there anything of that name?' }, function() ms.help(nil) end)
  end)

  it('begins with a text that fits a screen', function()
    local text, count = printed(), 0
    assert.equal(text, printed(ms))
    for line in text:gmatch '(.-)\n' do
      count = count + 1
      assert.is_true(#line <= 80, line)
    end
    assert.is_true(count <= 40, count)
    for name in text:gmatch 'ms%.([%a_]+)' do assert.truthy(ms[name], name) end
  end)

  it('explains every name within 80 columns', function()
    local index = require 'moonstill.prompt.index'
    local layout, count, wide = require 'moonstill.base.layout', 0, {}
    for _, name in ipairs(index.names()) do
      count = count + 1
      for line in printed(name):gmatch '[^\n]+' do
        -- how a function is called is not broken
        local call = line:find '^[%w_.:]+%(.*%)$'
        if layout.width(line) > 80 and not call then wide[name .. ': ' .. line] = true end
      end
    end
    assert.same({}, sorted.keys(wide))
    assert.is_true(count > 400, count)
  end)
end)

describe('docstrings', function()
  it('are taken apart', function()
    local tags = docstrings.tags [[
What it does.

  code { a = 1 }
@param a ms_model|string a model,
  or its folder
@param b? '"x"'|'"y"' which
@param c { d: fun(x: any): any, e?: integer[] } of the caller
@param ... any more
@return fun(): integer?, string?
@return ms_batch
@package]]
    assert.equal('What it does.\n\n  code { a = 1 }', tags.text)
    local list = {}
    for i, p in ipairs(tags.param) do
      list[i] = ('%s%s|%s|%s'):format(p.name, p.optional and '?' or '', p.type, p.meaning)
    end
    assert.same({ 'a|model|string|a model, or its folder', 'b?|"x"|"y"|which',
      'c|{ d: fun(x: any): any, e?: integer[] }|of the caller', '...|any|more' }, list)
    assert.same({ 'fun(): integer?, string?', 'batch' }, { tags['return'][1].type, tags['return'][2].type })
  end)

  it('belong to what stands below them', function()
    local doc = docstrings.parse [[
--- About it.
local M = {}

--- One.
--- @class ms_one
local methods = {}

--- Two.
--- @class ms_two
--- @package
local others = {}

--- Of one.
function methods:a() end
function methods:b(x) end
--- Of two.
function others:c() end
function methods:d() end
--- @package
function M.inner() end
-- No docstring.
function M.bare(x, ...) end
--- Some.
M.some = {}
]]
    assert.equal('About it.', doc.about)
    local list = {}
    for i, f in ipairs(doc.functions) do
      list[i] = ('%d %s %s%s %s %s'):format(f.line, f.how, f.name, f.arguments, tostring(f.class), tostring(f.inner))
    end
    assert.same({ '14 method a() one false', '15 method b(x) one false', '17 method c() two true',
      '18 method d() one false', '20 function inner() nil true', '22 function bare(x, ...) nil false' }, list)
    assert.equal('some', doc.values[1].name)
  end)

  it('are the same in the executable and from the sources', function()
    local program = tools.program()
    if not tools.exists(program) then return pending(program .. ' is not built') end
    local code = "local c, j = require 'moonstill.prompt.catalog', require 'moonstill.base.json' " ..
      "for k, v in require 'moonstill.base.sorted'.pairs(c.docs()) do if %s then print(k, j.encode(v)) end end"
    local known = {}
    for name in sorted.pairs(catalog.docs()) do known[#known + 1] = ("[%q]=1"):format(name) end
    code = code:format('({' .. table.concat(known, ',') .. '})[k]')
    local status, embedded = tools.run(('%s -e %s'):format(tools.quote(program), tools.quote(code)))
    assert.equal(0, status)
    local plain
    status, plain = tools.run(('LUA_PATH=%s luajit -e %s'):format(tools.quote(package.path), tools.quote(code)))
    assert.equal(0, status)
    assert.equal(plain, embedded)
    assert.is_true(#known > 60, #known)
  end)
end)
