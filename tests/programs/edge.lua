--- Calls everything that is public with what it does not expect: tests/spec/edge_spec.lua runs it in a
--- process of its own, in an empty folder. `luajit tests/programs/edge.lua ROUNDS`
---
--- What there is is found, not listed: the functions of every module in lua/moonstill, and the methods
--- of every type that one of them makes. Each is called with nothing, with wrong values in every place
--- of a call that would be right, and with values drawn at random (the same in every process); freed
--- handles are among them. After each call all garbage is collected. A call may return or raise an
--- error; one that is about a line of ours is printed, and the process must not crash.
local ffi = require 'ffi'

-- Types and classes are seen as they are made.
local classes = {} -- of a handle's ctype, or of a table: its methods
local metatype = ffi.metatype
ffi.metatype = function(ctype, mt) -- luacheck: ignore
  ctype = metatype(ctype, mt)
  classes[#classes + 1] = { methods = mt.methods or mt.__index, ctype = ctype, mt = mt }
  return ctype
end

local ms = require 'moonstill'
local C = require 'moonstill.C'
local models = require 'tests.support.models'
local small = require 'tests.support.tokenizers'
local json = require 'moonstill.base.json'

local root = assert(os.getenv 'MS_ROOT')
local rounds = tonumber(arg[1] or 30)
C.ms_threads_set(1)

-- No one may leave, write to the terminal or wait for somebody there.
os.exit = function() error('os.exit', 0) end -- luacheck: ignore
io.read = function() end -- luacheck: ignore
local say = io.stdout
print = function() end -- luacheck: ignore

-- The same numbers in every process.
local seed = 20240229
local function random(n)
  seed = seed * 16807 % 2147483647
  return seed % n + 1
end

-- modules ----------------------------------------------------------------------------------------

-- They read the terminal, or are the command line itself.
local LEFT_OUT = { repl = true, cli = true, exit = true }

-- Functions that their docstring keeps for other modules, by module and name.
local inner = {}
local function find_inner(path, name)
  local kept = false
  for line in io.lines(('%s/lua/moonstill/%s.lua'):format(root, path)) do
    local of = line:match '^function [%w_]+[.:]([%w_]+)'
    if of and kept then inner[name .. '.' .. of] = true end
    kept = line:find '^%-%-%- @package' ~= nil or kept and line:find '^%-%-%-' ~= nil
  end
end

local modules = {}
for path in io.popen(('cd %s/lua/moonstill && find * -path "*/*.lua" | sort'):format(root)):lines() do
  local name = path:match '([^/]+)%.lua$'
  find_inner(path:gsub('%.lua$', ''), name)
  path = path:gsub('%.lua$', ''):gsub('/', '.')
  if not LEFT_OUT[name] then modules[#modules + 1] = { name = name, path = 'moonstill.' .. path } end
end

-- Public is what help, README or a recipe names; the other modules are parts of those. They may not
-- crash either, but who calls them wrongly is the library, as with functions for other modules.
local public = {}
for file in io.popen(('cd %s && cat README.md lua/moonstill/prompt/help.lua recipes/*.lua'):format(root)):lines() do
  for name in file:gmatch 'ms%.([%a_]+)' do public[name] = true end
end

-- right values -----------------------------------------------------------------------------------

local tok_file = assert(io.open('tokenizer.json', 'w'))
tok_file:write(json.encode(small.byte_level { added = { small.added(256, '<s>') } }))
tok_file:close()
local config = models.config { vocab_size = 260, num_hidden_layers = 1, hidden_size = 8,
  intermediate_size = 16, num_attention_heads = 2, num_key_value_heads = 1 }

-- Everything that a handle can be, made anew: a call may free it.
local make = {}
function make.device() return ms.device.open 'cpu' end
function make.tensor() return ms.tensor(make.device(), 2, 3) end
function make.model() return ms.model.create(config, 1, { train = true, dtype = 'f32' }) end
function make.batch() return ms.batch { models.segment(4, 1, 250) } end
function make.target() return make.model():targets(make.batch(), { target = 'topk', k = 2 }) end
function make.tokenizer() return ms.tokenizer.open '.' end
function make.detokenizer() return make.tokenizer():detokenizer() end
function make.block() return ms.tokenizer.block(make.tokenizer(), { { text = 'ab' } }) end
function make.optimizer() return ms.optimizer.new(make.model()) end
local locks = 0
function make.lock()
  locks = locks + 1
  return assert(ms.lock.open('lock' .. locks))
end
function make.generator() return ms.generate.open(make.model(), { { 1 } }, nil, 1) end
function make.term() return ms.ce(1) end
function make.pattern() return require 'moonstill.text.pattern'.new 'a(.)' end
function make.stream() return require 'moonstill.base.stream'.open 'tokenizer.json' end
function make.chat() return ms.chat.open '.' end
function make.transfer_plan()
  return require 'moonstill.run.plan'.new({ dp = 1, tp = 1, ranks = { 0 } }, { dp = 1, tp = 1, ranks = { 1 } }, 2)
end

local kinds = {}
for name in pairs(make) do kinds[#kinds + 1] = name end
table.sort(kinds)
for _, kind in ipairs(kinds) do public[kind] = true end
public.transfer_plan = nil -- only modules meet one

local function made(kind)
  local ok, value = pcall(make[kind])
  if ok then return value end
  say:write('cannot make a ' .. kind .. ': ' .. tostring(value) .. '\n')
end

local function freed(kind)
  local value = made(kind)
  if value and type(value) ~= 'table' then value:free() end
  return value
end

local plain = {
  false, true, -1, 0, 1, 2, 1.5, -1e300, 1e300, 0 / 0, math.huge, 2 ^ 31, 2 ^ 53 + 2, '', 'x', 'a\0b', 'cpu',
  '\27[31m\255', ('x'):rep(5000), function() end, function() error 'foreign' end, json.null,
  coroutine.create(function() end), newproxy(),
}

-- A wrong value, or at times a right one in the wrong place.
local function any()
  local n = random(#plain + 16)
  if n <= #plain then return plain[n] end
  n = n - #plain
  if n == 1 then return nil end
  if n == 2 then return {} end
  if n == 3 then return { 1, 2, 3 } end
  if n == 4 then return { false, 'x', {} } end
  if n == 5 then return { x = 1, [3] = 2 } end
  if n == 6 then return ffi.new('int32_t[3]', 1, 2, 3) end
  if n == 7 then return ffi.new 'float[1]' end
  if n == 8 then return ffi.new 'char *[1]' end
  if n == 9 then return ffi.new('int64_t', 3) end
  if n == 10 then return { { 1, 2 }, { 3 } } end
  if n == 11 then return { p = false } end
  if n == 12 then return ffi.new 'struct { void *p; }' end
  if n <= 14 then return freed(kinds[random(#kinds)]) end
  return made(kinds[random(#kinds)])
end

-- Calls that are right, each argument of which is then replaced: more than a wrong first argument is
-- seen so. A function that is not here is called as it is found.
local function right(name)
  local start = ffi.new('int32_t[2]', 0, 3)
  local ids = ffi.new('int32_t[3]', 1, 2, 3)
  local calls = {
    ['generate.answer'] = function() return made 'model', made 'chat', 'x', { max_new = 1 } end,
    ['batch()'] = function() return { { tokens = { 1, 2 }, response = { 1, 0 }, weight = 1 } } end,
    ['batch.new'] = function() return ids, 3, start, 1, ffi.new 'float[3]', ffi.new 'float[3]' end,
    ['batch.from'] = function() return { { 1 } }, { { 2, 3 } }, { 1 } end,
    ['bpe.learn'] = function() return { 'a b c' }, 260 end,
    ['json.write'] = function() return 'x.json', { 1 }, {} end,
    ['model.create'] = function() return config, 1, {} end,
    ['model.copy'] = function() return made 'model', {} end,
    ['model.shrink'] = function() return made 'model', { layers = 1 } end,
    ['optimizer.new'] = function() return made 'model', {} end,
    ['plot.write'] = function() return 'x.svg', { series = { { x = { 1 }, y = { 1 } } } }, {} end,
    ['plot.sketch'] = function() return { series = { { x = { 1 }, y = { 1 } } } }, {} end,
    ['target.topk'] = function() return { { 1 } }, { { -1 } }, { -2 }, { vocab = 260 } end,
    ['target.logits'] = function() return { { 1, 2, 3 } }, {} end,
    ['tensor.new'] = function() return made 'device', 'f32', 2, 3 end,
    ['tensor()'] = function() return made 'device', 2, 3 end,
    ['toy.problems'] = function() return 'train', 2, 1, 0 end,
    ['kd()'] = function() return made 'target', {} end,
    ['chat.open'] = function() return '.', {} end,
    ['tensor:write'] = function() return { 1, 2, 3, 4, 5, 6 } end,
    ['tensor:view'] = function() return 0, 2, 3 end,
    ['tensor:copy'] = function() return made 'tensor' end,
    ['tokenizer:encode'] = function() return 'text', {} end,
    ['tokenizer.block'] = function() return made 'tokenizer', { { text = 'text' } } end,
    ['tokenizer:decode'] = function() return ids, 3, {} end,
    ['tokenizer:same'] = function() return made 'tokenizer' end,
    ['model:targets'] = function() return made 'batch', { target = 'topk', k = 2 } end,
    ['model:learn'] = function() return made 'batch', { ms.ce(1) } end,
    ['model:evaluate'] = function() return made 'batch', { ms.ce(1) } end,
    ['model:evaluate_parts'] = function() return made 'batch', { ms.ce(1) } end,
    ['eval()'] = function() return made 'model', { { text = 'ab' } }, { exact = 0 } end,
    ['model:logits'] = function() return made 'batch', { 0, 1 } end,
    ['model:generate'] = function() return { { 1 } }, { max_new = 1 } end,
    ['model:stream'] = function() return { { 1 } }, { max_new = 1 } end,
    ['model:save'] = function() return 'saved', {} end,
    ['optimizer:write'] = function() return 'step-1', made 'model', '{}' end,
    ['optimizer:read'] = function() return 'step-1', made 'model' end,
    ['optimizer:moments'] = function() return 0 end,
    ['optimizer:step'] = function() return 0.1 end,
  }
  return calls[name]
end

-- calls ------------------------------------------------------------------------------------------

local HERE = 'edge.lua:%d+:'
local count, bad = 0, {}

-- What an error may not do: blame a line of the library for what its caller did.
local function check(name, why)
  why = tostring(type(why) == 'table' and (why.message or '') or why)
  local file, line = why:match '([%w_]+%.lua):(%d+): '
  local module, key_name = name:match '^([%a_]+)[.:]?(.-)$'
  if file and not why:find(HERE) and public[module] and not inner[module .. '.' .. key_name] then
    local key = name .. ': ' .. file .. ':' .. line
    if not bad[key] then bad[key] = why:sub(1, 200) end
  end
end

local function call(name, f, n, args)
  count = count + 1
  if os.getenv 'MS_EDGE_SAY' then io.stderr:write(count, ' ', name, '\n') end
  local ok, why = pcall(function() local r = f(unpack(args, 1, n)) return r end)
  if not ok then check(name, why) end
  collectgarbage()
  collectgarbage()
end

-- self: makes the object of a method, as the first argument; nil for functions
local function try(name, f, self)
  local function with(n, list)
    if self then
      table.insert(list, 1, self())
      n = n + 1
    end
    call(name, f, n, list)
  end
  with(0, {})
  if self then call(name, f, 0, {}) call(name, f, 1, { any() }) end
  local good = right(name)
  if good then
    local n = select('#', good())
    with(n, { good() })
    for i = 1, n do
      for _, value in ipairs(plain) do
        local list = { good() }
        list[i] = value
        with(n, list)
      end
      for _ = 1, 16 do
        local list = { good() }
        list[i] = any()
        with(n, list)
      end
    end
  end
  for _ = 1, rounds do
    local n, list = random(4), {}
    for i = 1, n do list[i] = any() end
    with(n, list)
  end
end

local function names_of(t)
  local names = {}
  for name, value in pairs(t) do
    if type(name) == 'string' and type(value) == 'function' then names[#names + 1] = name end
  end
  table.sort(names)
  return names
end

-- Handles by their type, with the module's kind that makes one.
local function kind_of(class)
  for _, kind in ipairs(kinds) do
    local value = made(kind)
    if value and (class.ctype and ffi.istype(class.ctype, value) or getmetatable(value) == class.mt) then
      return kind
    end
  end
end

-- A message sets this to one class or module.
local only = os.getenv 'MS_EDGE_ONLY'

for _, it in ipairs(modules) do
  local name, module = it.name, require(it.path)
  local callable = type(module) == 'function' or (getmetatable(module) or {}).__call
  if not only or only == name then
    if callable then try(name .. '()', module) end
    if type(module) == 'table' then
      for _, key in ipairs(names_of(module)) do try(name .. '.' .. key, module[key]) end
    end
  end
end

for _, class in ipairs(classes) do
  local kind = kind_of(class)
  if not kind then say:write('nothing makes a ' .. tostring(class.ctype) .. '\n') end
  if kind and (not only or only == kind) then
    for _, key in ipairs(names_of(class.methods)) do
      try(kind .. ':' .. key, class.methods[key], function()
        return random(4) == 1 and freed(kind) or made(kind)
      end)
    end
    local text = class.mt.__tostring
    if text then call(kind .. ':tostring', tostring, 1, { freed(kind) }) end
  end
end

local list = {}
for key, why in pairs(bad) do list[#list + 1] = key .. '\n    ' .. why end
table.sort(list)
if os.getenv 'MS_EDGE_SAY' then
  local names = {}
  for name in pairs(public) do names[#names + 1] = name end
  table.sort(names)
  io.stderr:write('public: ', table.concat(names, ' '), '\n')
end
for _, line in ipairs(list) do say:write(line, '\n') end
say:write(('%d calls, %d foreign lines\n'):format(count, #list))
