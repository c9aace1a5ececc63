--- Generation, with a cache of keys and values: ids in, ids out as `model:generate` and
--- `model:stream`; text in, text out here.
---
---   print(ms.generate.text(model, tok, 'Once upon a time', { temperature = 0.8 }))
---   for piece in ms.generate.pieces(model, tok, 'Once upon a time') do io.write(piece) end

local ffi = require 'ffi'
local C = require 'moonstill.C'
local check = require 'moonstill.check'
local json = require 'moonstill.json'
local options_of = require 'moonstill.options'
local sorted = require 'moonstill.sorted'

local M = {}

local out = ffi.new 'ms_generator *[1]' -- scratch, read at once
local live = ffi.new 'int32_t[1]'
local ints = ffi.typeof 'int32_t[?]'

--- What `generate` and `stream` take. temperature 0 takes the likeliest token; top_k 0 and top_p 1
--- cut nothing; stop: an id or a list of them, which is given as the last token where it comes.
--- Draws are a function of the seed, the prompt's number and the step.
M.defaults = { max_new = 64, temperature = 0, top_k = 0, top_p = 1, seed = 0, stop = {} }

--- @class ms_generator
local methods = {}

--- Frees the cache now. A second call does nothing.
function methods:free()
  if self.p ~= nil then
    C.ms_generator_free(self.p)
    self.p = nil
  end
end

--- The next token of each prompt, in `into` or a new table: -1 for those that have ended. nil once
--- all have; the generator frees itself then.
--- @param into? integer[]
--- @return integer[]?
function methods:next(into)
  if self.p == nil then return nil end
  into = into or {}
  local token = ints(self.prompts)
  check(C.ms_generator_next(self.p, token, live))
  local any = false
  for i = 1, self.prompts do
    into[i] = token[i - 1]
    any = any or into[i] >= 0
  end
  if live[0] == 0 then self:free() end
  return any and into or nil
end

local handle = ffi.metatype('struct { ms_generator *p; int32_t prompts; }', {
  __index = methods,
  __gc = methods.free,
  __tostring = function(self)
    if self.p == nil then return 'generator (ended)' end
    return ('generator over %d prompts'):format(self.prompts)
  end,
})

-- The prompts as the core takes them: all ids, and where each prompt starts.
local function flatten(prompts, level)
  local total = 0
  for i, prompt in ipairs(prompts) do
    if type(prompt) ~= 'table' then
      error(('generate: prompt %d is a %s, not a list of ids'):format(i, type(prompt)), level)
    end
    check.integers('generate', ('prompt %d: id'):format(i), prompt, 0, check.INT32, level)
    total = total + #prompt
  end
  local token, start, at = ints(math.max(total, 1)), ints(#prompts + 1), 0
  for i, prompt in ipairs(prompts) do
    for k, id in ipairs(prompt) do token[at + k - 1] = id end
    at = at + #prompt
    start[i] = at
  end
  return token, start
end

--- Starts a generation: all prompts go through the model once.
--- @param model ffi.cdata* `ms_model *`
--- @param prompts integer[][] lists of ids
--- @param options? table see `defaults`
--- @return ms_generator
function M.open(model, prompts, options, level)
  level = (level or 1) + 1
  local o = options_of('generate', M.defaults, options, level)
  if type(prompts) ~= 'table' then error('generate: a list of prompts expected', level) end
  local token, start = flatten(prompts, level + 1)
  local stop = type(o.stop) == 'table' and o.stop or { o.stop }
  check.integers('generate', 'stop', stop, 0, check.INT32, level)
  check.integer('generate', 'max_new', o.max_new, 1, check.INT32, level)
  check.integer('generate', 'top_k', o.top_k, 0, check.INT32, level)
  check.integer('generate', 'seed', o.seed, 0, check.EXACT, level)
  local stops = ints(math.max(#stop, 1), stop)
  local c = ffi.new('ms_generate_options', { temperature = o.temperature, top_p = o.top_p,
    top_k = o.top_k, max_new = o.max_new, stops = #stop, stop = stops, seed = o.seed })
  check(C.ms_generator_new(model, #prompts, token, start, c, out), level)
  return handle(out[0], #prompts)
end

--- Runs a generator to its end.
--- @param generator ms_generator
--- @return integer[][] for each prompt the ids that were made
function M.collect(generator)
  local answers, step = {}, {}
  for i = 1, generator.prompts do answers[i] = {} end
  while generator:next(step) do
    for i, answer in ipairs(answers) do
      if step[i] >= 0 then answer[#answer + 1] = step[i] end
    end
  end
  generator:free()
  return answers
end

-- The ids at which the model's config says that a text ends.
local function ends_of(model)
  local eos = model:config().eos_token_id
  if type(eos) == 'number' then return { eos } end
  return json.is_array(eos) and eos or {}
end

--- Continues a text, piece by piece as it becomes certain: never half a character. The tokenizer's
--- own frame (BOS) is put around the prompt. Without `stop` it ends where the model's config says.
--- @param model ms_model
--- @param tokenizer ms_tokenizer
--- @param prompt string
--- @param options? table see `defaults`
--- @return fun(): string?
function M.pieces(model, tokenizer, prompt, options)
  local o, is_stop = {}, {}
  for key, value in sorted.pairs(options or {}) do o[key] = value end
  if o.stop == nil then o.stop = ends_of(model) end
  for _, id in ipairs(type(o.stop) == 'table' and o.stop or { o.stop }) do is_stop[id] = true end
  local next_ids = model:stream({ tokenizer:ids(prompt, { special = true }) }, o)
  local decoder = tokenizer:decoder { skip_special = true }
  return function()
    while decoder do
      local ids, piece = next_ids(), nil
      if ids and not is_stop[ids[1]] then
        piece = decoder:add(ids[1])
      elseif not ids then
        piece = decoder:finish()
        decoder:free()
        decoder = nil
      end
      if piece and piece ~= '' then return piece end
    end
  end
end

--- Continues a text; returns what follows the prompt. See `pieces`.
--- @param model ms_model
--- @param tokenizer ms_tokenizer
--- @param prompt string
--- @param options? table see `defaults`
--- @return string
function M.text(model, tokenizer, prompt, options)
  local parts = {}
  for piece in M.pieces(model, tokenizer, prompt, options) do parts[#parts + 1] = piece end
  return table.concat(parts)
end

return M
