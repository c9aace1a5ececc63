--- A recipe's configuration: one table gives the keys, their types, defaults and help.
---
---   local cfg = ms.config {
---     student = ms.required 'path',
---     epochs = 1,                                    -- a number, by default 1
---     optim = { lr = ms.option(2e-5, 'peak learning rate') },
---   }
---
--- The command line follows: YAML files and `key=value`, later ones over earlier ones, keys of
--- inner tables with dots. Unknown keys, wrong types and missing files are errors before anything
--- is loaded.

local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local fail = require 'moonstill.base.fail'
local json = require 'moonstill.base.json'
local exit = require 'moonstill.base.exit'
local options_of = require 'moonstill.base.options'
local paths = require 'moonstill.base.paths'
local ranks = require 'moonstill.base.ranks'
local sorted = require 'moonstill.base.sorted'
local distance = options_of.distance

local M = {}

-- the schema -------------------------------------------------------------------------------------

local option = {} -- metatable of declared options

local function declare(fields) return setmetatable(fields, option) end

--- A key with a default and a meaning. `kind` is that of the default unless given; alternatives are
--- separated by `|`: path, paths (one or a list), string, number, integer, boolean, list, table;
--- any other word stands for itself ("auto|false|number"). Bounds may follow ("integer >= 1",
--- "number >= 0 < 1").
--- @param default any
--- @param meaning? string
--- @param kind? string
function M.option(default, meaning, kind)
  return declare { default = default, meaning = meaning, kind = kind }
end

--- A key that must be given.
--- @param kind string as for `option`; a path must exist
--- @param meaning? string
function M.required(kind, meaning)
  return declare { required = true, meaning = meaning, kind = kind }
end

--- A key that may be absent: nil then.
--- @param kind string
--- @param meaning? string
function M.optional(kind, meaning) return declare { meaning = meaning, kind = kind } end

--- One of a list of values; the first one is the default unless another is given.
--- @param values any[]
--- @param default? any
--- @param meaning? string
function M.one_of(values, default, meaning)
  if type(values) ~= 'table' or values[1] == nil then fail('one_of: a list is needed') end
  if default == nil then default = values[1] end
  return declare { values = values, default = default, meaning = meaning, kind = 'one of' }
end

-- In every schema.
local common = {
  device = M.option('cpu', 'where models live'),
  dtype = M.one_of({ 'f32', 'bf16' }, 'f32', 'of the weights; bf16 keeps f32 masters'),
  threads = M.option(0, 'worker threads; 0: all cores; results do not depend on it',
    'integer >= 0 <= 4096'),
  seed = M.option(1, 'of shuffling and of random weights', 'integer >= 0'),
  resume = M.option('auto', 'go on from the last checkpoint, from a given one, or not',
    'auto|boolean|path'),
  max_steps = M.option(0, 'stop after this many optimiser steps; 0: by epochs', 'integer >= 0'),
}

-- Keys that mean the same in every recipe need no text there.
local meanings = {
  student = 'model folder to train', teacher = 'model folder to learn from',
  output = 'folder for the result (student/), checkpoints and metrics',
  epochs = 'passes over the training data; fractions are fine',
  ['data.train'] = 'training samples: .jsonl, .json or .txt files',
  ['data.valid'] = 'validation samples', ['data.on_error'] = 'what happens at a bad row',
  ['data.prompt_key'] = 'column of the prompts', ['data.answer_key'] = 'column of the answers',
  ['data.weight_key'] = 'column of the samples\' weights',
  ['data.ignore'] = 'columns and fields of messages to take as not there: [history]',
  ['data.text_key'] = 'column of plain texts', ['data.messages_key'] = 'column of conversations',
  ['data.max_tokens'] = 'longest sample', ['data.over_long'] = 'what happens to longer ones',
  ['batch.tokens'] = 'tokens of an optimiser step',
  ['batch.micro_tokens'] = 'tokens of one forward and backward pass',
  ['kd.objective'] = 'divergence from the teacher',
  ['kd.weight'] = 'of the distillation term; the labels have the rest',
  ['kd.temperature'] = 'T of both distributions', ['kd.target'] = 'what the teacher gives',
  ['kd.k'] = 'entries of a topk target', ['kd.tail'] = 'what happens to the mass outside the top k',
  ['kd.on'] = 'positions that count',
  ['kd.teacher_temperature'] = 'divides the teacher\'s logits once more',
  ['kd.t_scale'] = 'factor of the term; auto: T^2 where the objective needs it',
  ['kd.beta'] = 'of js', ['kd.lambda'] = 'of the skewed objectives',
  ['kd.alpha'] = 'of adaptive_kl', ['optim.lr'] = 'peak learning rate',
  ['optim.clip'] = 'largest global gradient norm; 0: no clipping',
  ['optim.warmup'] = 'share of the steps (below 1), or steps, in which lr rises from 0',
  ['optim.weight_decay'] = 'decoupled; not for norms and biases',
  ['optim.beta1'] = 'AdamW', ['optim.beta2'] = 'AdamW', ['optim.eps'] = 'AdamW',
  ['optim.final'] = 'lr at the end, as a share of the peak',
  ['optim.max_skips'] = 'stop after this many non-finite gradients in a row',
  ['checkpoint.every'] = 'steps between checkpoints; 0: at the end only',
  ['checkpoint.keep'] = 'checkpoints kept',
}

-- And where a recipe gives them just a number, they are these. The upper bounds are beyond all that
-- a run can mean: a slip of the exponent is said before it has ruined a student.
local kinds = {
  epochs = 'number >= 0 <= 10000', ['data.max_tokens'] = 'integer >= 2',
  ['data.limit'] = 'integer >= 1', ['batch.tokens'] = 'integer >= 1',
  ['batch.micro_tokens'] = 'integer >= 1',
  ['kd.temperature'] = 'number >= 0.001 <= 1000',
  ['kd.teacher_temperature'] = 'number >= 0.001 <= 1000',
  ['kd.k'] = 'integer >= 1', ['kd.beta'] = 'number >= 0 <= 1', ['kd.lambda'] = 'number >= 0 < 1',
  ['kd.alpha'] = 'number >= 0 <= 1', ['optim.lr'] = 'number >= 0 <= 10',
  ['optim.warmup'] = 'number >= 0', ['optim.clip'] = 'number >= 0 <= 1e9',
  ['optim.weight_decay'] = 'number >= 0 <= 10',
  ['optim.beta1'] = 'number >= 0 < 1', ['optim.beta2'] = 'number >= 0 < 1',
  ['optim.eps'] = 'number > 0 <= 1', ['optim.max_skips'] = 'integer >= 1',
  ['optim.decay'] = 'number >= 0', ['optim.final'] = 'number >= 0 <= 10',
  ['checkpoint.every'] = 'integer >= 0', ['checkpoint.keep'] = 'integer >= 0',
  validate = 'integer >= 0',
}

-- Keys that mean something only beside some values of another key: beside any, where none is named.
local beside = {
  ['kd.k'] = { 'kd.target', 'topk' }, ['kd.tail'] = { 'kd.target', 'topk' },
  ['kd.beta'] = { 'kd.objective', 'js' },
  ['kd.lambda'] = { 'kd.objective', 'skewed_forward_kl', 'skewed_reverse_kl' },
  ['kd.alpha'] = { 'kd.objective', 'adaptive_kl' },
  ['optim.decay'] = { 'optim.schedule', 'wsd' },
  ['optim.final'] = { 'optim.schedule', 'cosine', 'linear', 'wsd' },
  validate = { 'data.valid' },
}

local reserved = { ['--help'] = true, ['-h'] = true, ['--smoke'] = true }

local function kind_by_default(path, default)
  if json.is_array(default) then return 'list' end
  return type(default) == 'number' and kinds[path] or type(default)
end

--- Flattens a schema into a list of { key, spec }, keys in order of the alphabet, and a map.
local function flatten(schema, prefix, list, map)
  for key, value in sorted.pairs(schema) do
    if type(key) ~= 'string' or not key:find '^[%a_][%w_]*$' then
      error(('config: %s%s is no name for a key'):format(prefix, tostring(key)), 0)
    end
    local path = prefix .. key
    if type(value) == 'table' and getmetatable(value) ~= option and not json.is_array(value) then
      flatten(value, path .. '.', list, map)
    else
      local spec = getmetatable(value) == option and value or M.option(value)
      spec.kind = spec.kind or kind_by_default(path, spec.default)
      list[#list + 1] = { key = path, spec = spec, meaning = spec.meaning or meanings[path] or '' }
      map[path] = spec
    end
  end
  return list, map
end

-- values and kinds -------------------------------------------------------------------------------

local function is_path(v) return type(v) == 'string' and v ~= '' end

local is_kind = {
  path = is_path,
  paths = function(v)
    if not json.is_array(v) then return is_path(v) end
    for _, one in ipairs(v) do
      if not is_path(one) then return false end
    end
    return #v > 0
  end,
  string = function(v) return type(v) == 'string' end,
  number = function(v) return type(v) == 'number' and v == v and math.abs(v) < math.huge end,
  integer = function(v) return type(v) == 'number' and v % 1 == 0 and math.abs(v) <= 2 ^ 53 end,
  boolean = function(v) return type(v) == 'boolean' end,
  list = function(v) return json.is_array(v) end,
  table = function(v) return type(v) == 'table' and not json.is_array(v) and v ~= json.null end,
}

local keeps = {
  ['<'] = function(a, b) return a < b end, ['<='] = function(a, b) return a <= b end,
  ['>'] = function(a, b) return a > b end, ['>='] = function(a, b) return a >= b end,
}

-- Whether a value is what one alternative says: "integer >= 1".
local function is_one(value, alternative)
  local word, bounds = alternative:match '^%s*(%S+)(.*)$'
  if not is_kind[word] then return tostring(value) == word and type(value) ~= 'table' end
  if not is_kind[word](value) then return false end
  for sign, bound in bounds:gmatch '([<>]=?)%s*(%S+)' do
    local limit = tonumber(bound) or error(("config: no bound: '%s'"):format(alternative), 0)
    if not keeps[sign](value, limit) then return false end
  end
  return true
end

--- The alternative of `spec` that a value is, or nil.
local function kind_of(spec, value)
  if spec.values then
    for _, allowed in ipairs(spec.values) do
      if value == allowed then return 'one of' end
    end
    return nil
  end
  for alternative in spec.kind:gmatch '[^|]+' do
    if is_one(value, alternative) then return alternative end
  end
  return nil
end

--- A kind as its readers see it: "number >= 0 <= 10" is "number from 0 to 10".
--- @param kind string
--- @return string
function M.kind_text(kind)
  check.text('config', 'kind', kind)
  return (kind:gsub('>= (%S+) <= ([^|%s]+)', 'from %1 to %2'):gsub('|', ' or '))
end

--- What a key that every recipe knows must be ("number from 0 to 10"), where a value is not.
--- @param path string such as 'optim.lr'
--- @param value any
--- @return string? kind nil where the value is right, or nothing is known of the key
function M.refused(path, value)
  local kind = kinds[path]
  return kind and not is_one(value, kind) and M.kind_text(kind) or nil
end

local function kind_text(spec)
  if not spec.values then return M.kind_text(spec.kind) end
  local words = {}
  for i, value in ipairs(spec.values) do words[i] = tostring(value) end
  return 'one of ' .. table.concat(words, ', ')
end

local function value_text(value)
  if value == nil then return '' end
  if type(value) ~= 'table' then return tostring(value) end
  local ok, text = pcall(json.encode, value) -- a list may hold a NaN
  return ok and text or tostring(value)
end

-- A value as errors show it: a text that looks like something else is the one that puzzles.
local function given_text(value)
  if type(value) ~= 'string' or not (tonumber(value) or value == 'true' or value == 'false') then
    return value_text(value)
  end
  return ('"%s" in quotes, which is a text'):format(value)
end

-- suggestions ------------------------------------------------------------------------------------

--- The nearest of `words`: by the whole, or by what stands after the last dot.
local function nearest(word, words)
  local best, least
  local last = word:match '[^.]*$'
  for _, candidate in ipairs(words) do
    local d = math.min(distance(word, candidate), distance(last, candidate:match '[^.]*$') + 0.5)
    if not least or d < least then best, least = candidate, d end
  end
  return least and least <= math.max(2, #word / 2) and best or nil
end

local function hint(word, words)
  local near = nearest(word, words)
  return near and ("; did you mean '%s'?"):format(near) or ''
end

local function refuse(format, ...)
  exit(2, (select('#', ...) > 0 and format:format(...) or format))
end

--- Ends a recipe whose values do not go together: exit status 2, as for any wrong configuration.
--- @param message string
function M.refuse(message) exit(2, message) end

-- layers -----------------------------------------------------------------------------------------

local function words_of(list)
  local words = {}
  for i, entry in ipairs(list) do words[i] = entry.key end
  return words
end

local function unknown(state, key, source)
  refuse("%s: unknown key '%s'%s", source, key, hint(key, words_of(state.list)))
end

--- Sets one key, after checking its type. `raw` is the text of a value from the command line, which
--- a key that takes text may have as it was written.
local function assign(state, key, value, source, raw)
  local spec = state.map[key]
  if not spec then unknown(state, key, source) end
  if value == json.null then
    if spec.required or spec.default ~= nil then refuse("%s: '%s' cannot be null", source, key) end
    state.value[key] = nil
    return
  end
  local kind = kind_of(spec, value)
  if not kind and raw then -- "a: b" and "12" are texts too; a path is not a list that went wrong
    local text = kind_of(spec, raw)
    if text and (text == 'string' or type(value) ~= 'table') then kind, value = text, raw end
  end
  if not kind then
    local words = {}
    for i, v in ipairs(spec.values or {}) do words[i] = tostring(v) end
    refuse("%s: '%s' must be %s, not %s%s", source, key, kind_text(spec), given_text(value),
      type(value) == 'string' and hint(value, words) or '')
  end
  state.value[key], state.source[key] = value, source
end

--- Sets what a nested table says.
local function assign_all(state, t, prefix, source)
  if type(t) ~= 'table' or t == json.null or json.is_array(t) then
    refuse("%s: %s must be a table of keys, not %s", source,
      prefix == '' and 'all of it' or ("'%s'"):format(prefix:sub(1, -2)), given_text(t))
  end
  for key, value in sorted.pairs(t) do
    local path = prefix .. key
    if state.map[path] then
      assign(state, path, value, source)
    elseif state.group[path] then
      assign_all(state, value, path .. '.', source)
    else
      unknown(state, path, source)
    end
  end
end

local function read_file(state, path)
  if C.ms_path_kind(path) ~= 1 then
    refuse("%s: no such file (arguments are YAML files and key=value)", path)
  end
  local ok, value = fail.pcall(json.read_yaml, path)
  if not ok then refuse('%s', tostring(value)) end
  local guess = type(value) ~= 'table' and paths.guess(path) -- a pointer file is a text of YAML too
  if guess then refuse('%s: %s', path, guess) end
  if value ~= json.null then assign_all(state, value, '', path) end
end

-- Every text of a decoded value with `from` as `to`, which is a letter.
local function put_back(value, from, to)
  if type(value) == 'string' then return (value:gsub(from, to)) end
  if type(value) ~= 'table' or value == json.null then return value end
  local t = json.is_array(value) and json.array() or {}
  for key, v in sorted.pairs(value) do t[put_back(key, from, to)] = put_back(v, from, to) end
  return t
end

-- A value from the command line, where nobody writes comments: "#" is a letter. For YAML's parser
-- another letter stands for it, one that the text has not.
local function decode_argument(raw, name)
  if not raw:find('#', 1, true) then return json.decode_yaml(raw, name) end
  for i = 128, 191 do
    local letter = '\238\128' .. string.char(i) -- U+E000 and on, of private use
    if not raw:find(letter, 1, true) then
      return put_back(json.decode_yaml(raw:gsub('#', letter), name), letter, '#')
    end
  end
  error(name .. ": too strange a text with '#'", 0)
end

-- Unless it is quoted, a text is what was written: YAML drops blanks, tags and anchors.
local as_written = { string = true, path = true, paths = true }
local function plain_text(spec, value, raw)
  if type(value) ~= 'string' or raw:find '^%s*["\']' then return value end
  return as_written[kind_of(spec, raw)] and raw or value
end

local function read_argument(state, text)
  local key, raw = text:match '^([%a_][%w_.]*)=(.*)$'
  if not key then return read_file(state, text) end
  local ok, value = fail.pcall(decode_argument, raw, 'command line: ' .. key)
  local spec = state.map[key]
  if not spec then
    if state.group[key] and ok then return assign_all(state, value, key .. '.', 'command line') end
    unknown(state, key, 'command line')
  end
  if not ok then
    if not kind_of(spec, raw) then refuse('%s', tostring(value)) end
    value = raw
  end
  value = plain_text(spec, value, raw)
  if raw == '' then value = kind_of(spec, '') and '' or json.null end
  assign(state, key, value, 'command line', raw)
end

--- What must be there, is: keys and files.
local function check_complete(state)
  for _, entry in ipairs(state.list) do
    local key, spec = entry.key, entry.spec
    local value = state.value[key]
    if value == nil and spec.required then
      refuse("'%s' must be given (%s): %s=…%s", key, kind_text(spec), key,
        entry.meaning ~= '' and '  # ' .. entry.meaning or '')
    end
    local kind = value ~= nil and kind_of(spec, value)
    if state.source[key] and (kind == 'path' or kind == 'paths') then
      for _, path in ipairs(type(value) == 'table' and value or { value }) do
        if C.ms_path_kind(path) == 0 then
          refuse("%s: '%s': %s: %s", state.source[key], key, path,
            paths.missing(path, 'file or folder'))
        end
      end
    end
  end
end

local function is_used(state, rule)
  local value = state.value[rule[1]]
  if not state.map[rule[1]] then return true end -- the recipe has no such key
  if #rule == 1 then return value ~= nil end
  for i = 2, #rule do
    if value == rule[i] then return true end
  end
  return false
end

-- What was asked for and does nothing.
local function note_unused(state)
  for key, rule in sorted.pairs(beside) do
    if state.source[key] and not is_used(state, rule) then
      local value = state.value[rule[1]]
      ranks.world():say(("note: %s: '%s' is not used: %s is %s"):format(state.source[key], key,
        rule[1], value == nil and 'not given' or value_text(value)))
    end
  end
end

local function nest(state)
  local cfg = {}
  for _, group in ipairs(state.groups) do
    local t = cfg
    for word in group:gmatch '[^.]+' do
      t[word] = t[word] or {}
      t = t[word]
    end
  end
  for _, entry in ipairs(state.list) do
    local t = cfg
    local path, last = entry.key:match '^(.*)%.([^.]*)$'
    for word in (path or ''):gmatch '[^.]+' do t = t[word] end
    t[last or entry.key] = state.value[entry.key]
  end
  return cfg
end

local function new_state(schema)
  local all = {}
  for key, value in sorted.pairs(common) do all[key] = value end
  for key, value in sorted.pairs(schema) do all[key] = value end
  local list, map = flatten(all, '', {}, {})
  local state = { list = list, map = map, value = {}, source = {}, group = {}, groups = {} }
  for _, entry in ipairs(list) do
    local spec = entry.spec
    if spec.default ~= nil and not kind_of(spec, spec.default) then
      error(("config: the default of '%s' is not %s"):format(entry.key, kind_text(spec)), 0)
    end
    state.value[entry.key] = spec.default
    local path = entry.key:match '^(.*)%.'
    while path and not state.group[path] do
      state.group[path] = true
      state.groups[#state.groups + 1] = path
      path = path:match '^(.*)%.'
    end
  end
  table.sort(state.groups)
  return state
end

-- help -------------------------------------------------------------------------------------------

local function help(state, options)
  local rows, widths = {}, { 0, 0, 0 }
  for _, entry in ipairs(state.list) do
    local spec = entry.spec
    local default = spec.required and 'required' or value_text(spec.default)
    local row = { entry.key, spec.values and 'one of' or kind_text(spec), default,
      entry.meaning .. (spec.values and (entry.meaning ~= '' and ': ' or '')
        .. kind_text(spec):gsub('^one of ', '') or '') }
    for i = 1, 3 do widths[i] = math.max(widths[i], math.min(#row[i], 28)) end
    rows[#rows + 1] = row
  end
  local lines = {}
  if options.about then lines[1] = options.about .. '\n' end
  lines[#lines + 1] = 'Arguments: YAML files and key=value, in any number; later ones win.'
  if options.smoke then lines[#lines + 1] = '--smoke runs a toy size that needs nothing.' end
  lines[#lines + 1] = ''
  local format = ('  %%-%ds  %%-%ds  %%-%ds  %%s'):format(widths[1], widths[2], widths[3])
  for _, row in ipairs(rows) do
    lines[#lines + 1] = (format:format(row[1], row[2], row[3], row[4]):gsub('%s+$', ''))
  end
  return table.concat(lines, '\n') .. '\n'
end

--- The text that --help prints.
--- @param schema table
--- @param options? table as for the call
--- @return string
function M.help(schema, options)
  check.table('config', 'schema', schema)
  options = options == nil and {} or check.table('config', 'options', options)
  return help(new_state(schema), options)
end

local function has(args, ...)
  for _, word in ipairs(args) do
    for i = 1, select('#', ...) do
      if word == (select(i, ...)) then return true end
    end
  end
  return false
end

local function read_arguments(state, args, options)
  if has(args, '--smoke') then
    if not options.smoke then refuse 'this recipe has no --smoke size' end
    local smoke = options.smoke
    if type(smoke) == 'function' then smoke = smoke() end
    assign_all(state, smoke, '', '--smoke')
  end
  for _, text in ipairs(args) do
    if text:sub(1, 1) == '-' and not reserved[text] then
      refuse('unknown option %s (arguments are YAML files, key=value, --help%s)', text,
        options.smoke and ', --smoke' or '')
    elseif not reserved[text] then
      read_argument(state, text)
    end
  end
end

--- Reads the command line by a schema. With --help it prints the keys and ends the process.
--- @param schema table keys, with defaults or declared options; inner tables for groups
--- @param options? { about?: string, smoke?: table|fun(): table, args?: string[] } about: what the
---   recipe does; smoke: values of the --smoke size; args: instead of the global `arg`
--- @return table the values, nested as in the schema
local function read(_, schema, options)
  if type(schema) ~= 'table' then fail('config: a table of keys is needed') end
  options = options_of.known('config', { about = true, smoke = true, args = true }, options)
  local args = options.args or arg or {}
  local state = new_state(schema)
  if has(args, '--help', '-h') then
    io.write(help(state, options))
    os.exit(io.stdout:flush() and 0 or 1)
  end
  read_arguments(state, args, options)
  check_complete(state)
  note_unused(state)
  local cfg = nest(state)
  if cfg.threads > 0 then check(C.ms_threads_set(cfg.threads)) end
  return cfg
end

return setmetatable(M, { __call = read })
