--- Conversations as training samples: a tokenizer, how turns are written, and which tokens are
--- learnt.
---
---   local chat = ms.chat.open(student, { teacher })
---   local ids, n, weights, all = chat:encode { messages = {
---     { role = 'user', content = 'Hi' },
---     { role = 'assistant', content = 'Hello' } } }
---
--- A weight belongs to the position that *predicts* (as in `ms.batch`): weights[t] is that of
--- token t + 1. Supervised are the assistant's tokens and the token that ends its turn, in every
--- assistant turn; of a prompt with its answer, the answer and the token that ends the text; of
--- plain text, everything. A sample without any such token is an error, never a silent mask.
---
--- A message's own weight is that of its whole turn where prompts are learnt too (`on = "all"`);
--- where answers are, it counts for the assistant's.
---
--- Turns are written by the template of the model's folder, see `text/template.lua`; without one,
--- as ChatML where the tokenizer has <|im_start|> and <|im_end|>. Without those there are no
--- conversations, and a prompt and its answer are plain text. A text becomes tokens as a whole, and
--- a token is learnt where any of its characters is. Special tokens that contents spell are
--- letters, which `ms.dataset` says, unless `spelled = "tokens"`.
---
--- Before a plain text stands what the tokenizer puts there (BOS); a template writes its own. Both
--- come once, and so does the end of a text or an answer, also where the text spells them.
---
--- A sample with `ended = false` is an answer that was cut off: no end is written or learnt.
--- `prompt_ids` and `answer_ids`, and `ids`, are taken as they are: nothing comes before, between
--- or behind.

local ffi = require 'ffi'
local C = require 'moonstill.C'
local callable = require 'moonstill.base.callable'
local check = require 'moonstill.base.check'
local ends = require 'moonstill.text.ends'
local fail = require 'moonstill.base.fail'
local handles = require 'moonstill.base.handle'
local json = require 'moonstill.base.json'
local ranks = require 'moonstill.base.ranks'
local prepare = require 'moonstill.text.prepare'
local schema = require 'moonstill.base.schema'
local sorted = require 'moonstill.base.sorted'
local strict = require 'moonstill.base.strict'
local template = require 'moonstill.text.template'
local tokenizer = require 'moonstill.text.tokenizer'
local turns = require 'moonstill.text.turns'
local option, optional, one_of = schema.option, schema.optional, schema.one_of

local M = {}

local floats = ffi.typeof 'float[?]'

--- How conversations are written, and what of them is learnt.
M.options = schema.new('chat', {
  template = optional('string', 'how turns are written, in place of the model\'s own way: chatml, '
    .. 'none, a name of the folder\'s templates, a .jinja file or a template itself'),
  template_args = optional('table', 'variables of the template: {enable_thinking: false}'),
  learn = option(json.array { 'assistant' }, 'roles whose turns are learnt', 'list'),
  turns = one_of({ 'all', 'last', 'each' }, nil,
    'of a conversation: all turns, the last one, or each as a sample of its own', {
      all = 'a sample, in which each of the assistant\'s turns is learnt',
      last = 'a sample, in which only the last of its turns is learnt',
      each = 'a sample for each of its turns, up to that turn, which alone is learnt' }),
  thinking = one_of({ 'learn', 'mask', 'drop' }, nil,
    'what was thought before answers: learnt, in the text alone, or left out', {
      learn = 'it is learnt as the answer is', mask = 'it stands in the text and is not learnt',
      drop = 'it is left out of the text' }),
  tool_calls = one_of({ 'learn', 'mask' }, nil, 'calls of tools: learnt, or in the text alone', {
    learn = 'they are learnt as the answer is',
    mask = 'they stand in the text and are not learnt' }),
  spelled = one_of({ 'letters', 'tokens' }, nil, 'what special tokens are that contents spell', {
    letters = 'letters like any others, which is said', tokens = 'the special tokens themselves' }),
  date = optional('string', 'YYYY-MM-DD or YYYY-MM-DD HH:MM:SS, for templates that ask for it; by '
    .. 'default the day of the run\'s first start'),
})

--- A tokenizer and how turns are written: what makes samples of rows, and prompts of conversations.
--- @class ms_chat
--- @field tokenizer ms_tokenizer which the chat frees
--- @field template? string the template's text; nil where there are no turns
--- @field template_name? string "chatml", "default", the path of a file
--- @field bos integer[] what the tokenizer puts before a text
--- @field eos integer[] ids that end a text, the first of which is written
--- @field stop integer[] ids at which a generated answer ends
--- @field levels { response: number, all: number }[] what the levels of prepared samples weigh,
---   from 0: where answers are learnt, and where everything is
--- @field date string what templates are told
local methods = {}
local class = strict.class('chat', methods, { template = true, template_name = true, set = true })

-- files ------------------------------------------------------------------------------------------

local function is_model(x)
  return handles.is('model', x) or (type(x) == 'table' and type(x.info) == 'function')
end

-- The folder of a model, which may be given as a path; nil when it has none.
local function folder_of(x)
  if type(x) == 'string' then return check.path('chat', x) end
  if not is_model(x) then
    fail('chat: a model or a folder expected, got ' .. type(x))
  end
  local path = x:info().path
  return type(path) == 'string' and path ~= '' and path or nil
end

local function has_tokenizer(folder)
  if not folder then return false end
  return C.ms_path_kind(folder) == 1 or C.ms_path_kind(folder .. '/tokenizer.json') == 1
end

-- samples ----------------------------------------------------------------------------------------

--- What a sample becomes before it is encoded, for `tokenizer.block`: { text, plain, marks } with
--- the levels of `chat.levels`, and whether the tokenizer's BOS comes before it (`bos`); or
--- { ids, n, levels }, which is encoded already (levels: uint8_t[n], of each token). With `turns =
--- "each"` a conversation gives several. `spelled` is a special token that the text spells and that
--- is read as letters; `thoughts`, how many turns have thinking that the template leaves out.
--- @param sample table as for `encode`
--- @return table[]
function methods:prepare(sample)
  if type(sample) ~= 'table' then fail('chat: a sample is a table') end
  return prepare.prepare(self, sample)
end

--- A sample's ids and the weights of its predicting positions: where answers are learnt, and where
--- everything is (`on = "all"`). An error where `turns = "each"` gives several.
--- @param sample { messages?: table[], prompt?: string, answer?: string, text?: string,
---   prompt_ids?: integer[], answer_ids?: integer[], ids?: integer[], ended?: boolean } one of the
---   five forms. A message may have a `weight` (0: not learnt) and `train` (false: not learnt).
---   With messages: `tools`, `documents`, `args` of the template; with a prompt: `system`,
---   `history`; with ids: `labels` (-100: not learnt) or a `mask`
--- @return ffi.cdata* ids int32_t[n]
--- @return integer n
--- @return ffi.cdata* weights float[n]
--- @return ffi.cdata* all float[n]
--- @return string? as_letters a special token that a text spells and that is read as letters
function methods:encode(sample)
  local list = self:prepare(sample)
  if #list > 1 then fail('chat:encode: turns = each gives %d samples: chat:prepare', #list) end
  local p = list[1]
  local ids, levels, n = prepare.encoded(self, p)
  local weights, all, any = floats(n), floats(n), false
  for t = 0, n - 2 do
    local level = self.levels[levels[t + 1]]
    weights[t], all[t] = level.response, level.all
    any = any or level.response > 0
  end
  if not any then fail('no token is supervised') end
  return ids, n, weights, all, p.spelled
end

-- prompts and answers ----------------------------------------------------------------------------

--- Renders messages by the template. The spans are those of what came from them, for `encode`'s
--- `plain`: first byte and last byte + 1, and so on.
--- @param messages table[]
--- @param options? table add_generation_prompt, tools, documents, args (variables of the template)
--- @return string text
--- @return integer[] spans
function methods:render(messages, options)
  if not self.set then fail('chat: there is no chat template') end
  options = options or {}
  check.table('chat', 'messages', messages)
  local talk = prepare.conversation(self, { messages = json.array(messages), tools = options.tools,
    documents = options.documents, args = options.args })
  local r = prepare.render(self, talk, talk.messages, options.add_generation_prompt or false)
  return r.text, prepare.plain(r.spans, r.sources)
end

--- The ids of a prompt whose answer is to be generated: the turns so far and the head of the
--- assistant's, or the text itself where there are no turns.
--- @param prompt string|table[] a user's text, or messages
--- @param options? table as for `render`, with turns
--- @return integer[]
function methods:prompt(prompt, options)
  if not self.set then
    if type(prompt) ~= 'string' then fail('chat: this tokenizer has no turns; give a text') end
    local list = sorted.copy(self.bos)
    local text = ends.behind(self.tokenizer, self.bos, prompt)
    for _, id in ipairs(self.tokenizer:ids(text, { parse = false })) do list[#list + 1] = id end
    return list
  end
  if type(prompt) == 'string' then prompt = { { role = 'user', content = prompt } } end
  local o = sorted.copy(options or {})
  o.add_generation_prompt = true
  local text, spans = self:render(prompt, o)
  return self.tokenizer:ids(text, { plain = self.options.spelled == 'letters' and spans or nil })
end

-- What was thought stands before the answer.
local function answer_message(text)
  local thought, rest = text:match '^(.-)</think>%s*(.*)$'
  if not thought then return { role = 'assistant', content = text } end
  return { role = 'assistant', content = rest,
    reasoning_content = thought:gsub('^%s*<think>%s*', ''):match '^%s*(.*%S)' or '' }
end

--- A model's answer to messages: its text, and the message to go on with. `told` says how it ended,
--- see `ms.generate.pieces`, and of how many tokens the prompt was (`prompt`).
--- @param model ms_model
--- @param messages string|table[]|integer[] ids are a prompt as it is
--- @param options? table of `ms.generate`; tools, documents, args as for `render`
--- @param show? fun(piece: string) gets the text as it comes
--- @param halt? fun(): boolean asked before each token: true ends the answer
--- @return string text
--- @return table message
--- @return { ended: boolean, halted: boolean, count: integer, prompt: integer } told
function methods:reply(model, messages, options, show, halt)
  local how, given, parts = {}, {}, {}
  for key, value in sorted.pairs(options or {}) do
    local own = key == 'tools' or key == 'documents' or key == 'args'
    if own then given[key] = value else how[key] = value end
  end
  if how.stop == nil then
    how.stop = ends.union(self.tokenizer:size(), model:ends(), self.stop)
  end
  local is_ids = type(messages) == 'table' and type(messages[1]) == 'number'
  local prompt = is_ids and messages or self:prompt(messages, given)
  local next_piece, told = model:pieces(self.tokenizer, prompt, how, halt)
  for piece in next_piece do
    parts[#parts + 1] = piece
    if show then show(piece) end
  end
  local text = table.concat(parts)
  told.prompt = #prompt
  return text, answer_message(text), told
end

--- All that shapes a sample beside the tokenizer, as a text: the same text, the same samples.
--- @package
--- @return string
function methods:identity()
  local o = sorted.copy(self.options)
  o.date, o.template = nil, nil
  return json.encode { options = o, template = self.set and self.set:identity(self.date) }
end

--- How turns are written, in words to go behind those of what rows hold.
--- @package
--- @return string
function methods:describe()
  local name = self.template_name
  if not name then return 'as plain text' end
  if name == 'chatml' then return 'written as ChatML turns' end
  if name == 'given' then return 'written by the template given' end
  return name == 'default' and "written by the model's own template"
    or ('written by the template %s'):format(name)
end

--- The files of a model folder that say how its turns are written, by name, so that whoever opens
--- it writes them alike; an empty text: not to be there. Without turns there are none.
--- @package
--- @param carry? string the folder whose other files go along
--- @return table<string, string>
function methods:files(carry)
  if not self.set then return {} end
  return self.set:files(carry)
end

-- models -----------------------------------------------------------------------------------------

-- What samples have, by what a template must name for it to be written; true: any template does.
local WRITTEN = { system = true, system_prompt = true, history = true, train = true,
  tools = { 'tools' }, functions = { 'tools' }, documents = { 'documents' },
  enable_thinking = { 'enable_thinking' }, tool_calls = { 'tool_calls' },
  function_call = { 'tool_calls', 'function_call' }, tool_call_id = { 'tool_calls' } }
for _, name in ipairs(turns.thoughts) do WRITTEN[name] = turns.thoughts end

--- Whether what a row or a message has under a name has a part in how turns are written: for
--- `data/fields.lua`, which refuses what nothing reads.
--- @package
--- @param name string
--- @return boolean
function methods:takes(name)
  if not self.set then return false end
  if name == 'chat_template_kwargs' then return self.template_name ~= 'chatml' end
  if WRITTEN[name] == true then return true end
  if WRITTEN[name] == turns.thoughts and self.options.thinking == 'drop' then return true end
  for _, needed in ipairs(WRITTEN[name] or { name }) do
    if self.set:choose(nil):mentions(needed) or self.set:choose { {} }:mentions(needed) then
      return true
    end
  end
  return false
end

--- How many ids the tokenizer and these models share: the V of a divergence between them. Rows that
--- a model has behind the tokenizer's last id have no meaning.
--- @param ... ms_model|integer models, or numbers of ids (0: any), such as a recipe's `kd.vocab`
--- @return integer
function methods:vocab(...)
  local least = self.tokenizer:size()
  for i = 1, select('#', ...) do
    local x = (select(i, ...))
    local n = type(x) == 'number' and x or x:info().vocab
    if n ~= 0 then least = math.min(least, n) end
  end
  return least
end

--- The longest sample that these models can take: `n`, or the least of their contexts where that is
--- less, which is said.
--- @param n integer what was asked for: a recipe's `data.max_tokens`
--- @param ... ms_model
--- @return integer
function methods:longest(n, ...)
  local least = n
  for i = 1, select('#', ...) do least = math.min(least, (select(i, ...)):info().context) end
  if least < n then
    ranks.world():say(('note: max_tokens is %d, not %d: the context of the %s'):format(least, n,
      select('#', ...) > 1 and 'shorter model' or 'model'))
  end
  return least
end

local function compare(chat, others)
  for _, other in ipairs(others) do
    local folder = folder_of(other)
    if has_tokenizer(folder) and folder ~= chat.folder then
      local tok = tokenizer.open(folder)
      local ok, why = fail.pcall(tok.same, tok, chat.tokenizer)
      tok:free()
      if not ok then error('chat: student and teacher: ' .. why, 0) end
    end
  end
end

local function find_folder(model, teachers)
  local first = folder_of(model)
  if has_tokenizer(first) then return first end
  for _, teacher in ipairs(teachers) do
    local folder = folder_of(teacher)
    if has_tokenizer(folder) then return folder end
  end
  return first or fail('chat: a model without a folder has no tokenizer')
end

function class:__tostring()
  return ('chat (%s) over %s'):format(self.template_name or 'plain', tostring(self.tokenizer))
end

--- Frees the tokenizer. A second call does nothing.
function methods:free() self.tokenizer:free() end

-- opening ----------------------------------------------------------------------------------------

local function check_options(o)
  for i = 1, #o.learn do
    if not turns.is_role[o.learn[i]] then
      fail('chat: learn has no role %s; there are %s', tostring(o.learn[i]),
        table.concat(turns.roles, ', '))
    end
  end
  if #o.learn == 0 then fail 'chat: learn is an empty list: nothing would be learnt' end
  if not template.time_of(o.date) then
    fail('chat: date = %s, expected YYYY-MM-DD or YYYY-MM-DD HH:MM:SS', o.date)
  end
end

-- What the template writes around answers, and how it ends them.
local function probe_of(chat)
  local talk = { entry = chat.set:choose(nil), o = { args = chat.options.template_args } }
  local probe = prepare.known(chat, talk).probe
  return probe, probe.ending ~= '' and probe.ending or probe.closing, talk.entry
end

-- The ids that end a turn of the template, where they are tokens of their own.
local function ends_of_turn(chat)
  if not chat.set then return nil end
  local _, text = probe_of(chat)
  local ids = chat.tokenizer:ids(text)
  local last = ids[#ids]
  return last and chat.tokenizer:is_added(last) and last or nil
end

--- What is learnt of turns without being meant, a line each: an end that is no token, a head of
--- answers that the template does not write for an answer to come.
--- @return string[]
function methods:warnings()
  local lines = {}
  if not self.set then return lines end
  local probe, ending, entry = probe_of(self)
  local tag = ending:match '[<%[][^<%[]*[>%]]$'
  if tag and not ends_of_turn(self) then
    lines[1] = ('the template ends answers with %s, which is no token of this tokenizer: it is '
      .. 'learnt as letters, and no answer that is generated ends there'):format(json.encode(tag))
  end
  local head = probe.unprompted:match '^%s*(.-)%s*$'
  if head ~= '' and probe.prompt == '' and not entry.compiled.has_generation then
    lines[#lines + 1] = ('the template does not write %s where an answer is to come '
      .. '(add_generation_prompt): it is learnt with each answer'):format(json.encode(head))
  end
  return lines
end

--- The id that ends a turn by the chat template of a folder; nil where there is none, or no such
--- id.
--- @param folder string
--- @param tok ms_tokenizer
--- @return integer?
function M.end_of_turn(folder, tok)
  local date = os.date '%Y-%m-%d'
  local ok, id = fail.attempt(function()
    return ends_of_turn { set = template.open(folder, tok, ends.bos(tok)), tokenizer = tok,
      options = {}, options_key = '', now = { now = template.time_of(date) } }
  end)
  return ok and id or nil
end

-- All of a chat that follows from its options, over what it already has.
local function configure(chat, given)
  local o = schema.take('chat', M.options, given)
  o.date = o.date or os.date '%Y-%m-%d'
  check_options(o)
  chat.given, chat.options, chat.date = given, o, o.date
  chat.now = { now = template.time_of(o.date) }
  chat.options_key = o.date .. json.encode(o.template_args or {})
  chat.learnt = {}
  for _, role in ipairs(o.learn) do chat.learnt[role] = true end
  chat.set = template.open(chat.folder, chat.tokenizer, chat.bos, o.template)
  chat.template = chat.set and chat.set.source
  chat.template_name = chat.set and chat.set.name
  chat.stop = ends.union(chat.tokenizer:size(), ends.of_answer(chat.eos, chat.tokenizer),
    ends_of_turn(chat))
  return chat
end

--- The same tokenizer with other options; what is not given stays. Both share the tokenizer and the
--- levels.
--- @param options? table see `ms.chat.options`; other keys are passed over
--- @return ms_chat
function methods:with(options)
  local given, other = sorted.copy(self.given), false
  for key, value in sorted.pairs(schema.part(M.options, options or {})) do
    other = other or json.encode { self.options[key] } ~= json.encode { value }
    given[key] = value
  end
  if not other then return self end
  local chat = setmetatable({}, class)
  for _, key in ipairs { 'tokenizer', 'folder', 'bos', 'eos', 'levels', 'spellings',
    'reads' } do
    chat[key] = self[key]
  end
  return configure(chat, given)
end

--- Opens the tokenizer of a model, after comparing it with those of its teachers: one id that means
--- another token is an error, which names the first. A model without a tokenizer of its own (a new
--- one) takes its first teacher's.
--- @param model ms_model|string a model, its folder, or a tokenizer.json
--- @param teachers? (ms_model|string)[]
--- @param options? table see `options`
--- @return ms_chat
function M.open(model, teachers, options)
  teachers = teachers == nil and {} or check.table('chat', 'teachers', teachers)
  schema.check('chat', M.options, options)
  local folder = find_folder(model, teachers)
  local tok = tokenizer.open(folder)
  local chat = setmetatable({ tokenizer = tok, folder = folder }, class)
  chat.bos, chat.eos = ends.bos(tok), ends.of_text(folder, tok)
  chat.reads = {}
  chat.spellings, chat.levels = prepare.spellings(tok), prepare.levels()
  configure(chat, schema.part(M.options, options or {}))
  compare(chat, teachers)
  return chat
end

return callable(M, 'open')
