--- Chat templates of other projects, with the texts that they expect: the folder `templates` of the
--- data beside the repository, as one list of cases.
---
--- A case is { group, name, source, variables, want = text or nil, spans = character offsets of the
--- generation marks or nil, raises = true, options for the compiler, changed = why the case is not
--- taken as it stands, wrong = why its own expectation does not hold }.
local json = require 'moonstill.base.json'
local tools = require 'tests.support.tools'

local M = {}

--- What the clock says in all cases.
M.now = { year = 2025, month = 7, day = 10, hour = 12, min = 0, sec = 0 }

--- A folder of that data; nil and the reason where it is absent.
function M.folder(name) return tools.shared('templates' .. (name and '/' .. name or '')) end

local function list(folder, pattern)
  local status, out = tools.run(('cd %s && find . -name %s | LC_ALL=C sort')
    :format(tools.quote(folder), tools.quote(pattern)))
  assert(status == 0, 'no list of ' .. folder)
  local names = {}
  for name in out:gmatch '%./([^\n]+)' do names[#names + 1] = name end
  return names
end

local function decode(path) return json.decode(tools.read(path), path, { ordered = true }) end

-- A copy of a decoded object without some keys, with others.
local function with(object, without, more)
  local copy = {}
  for _, key in ipairs(json.keys(object)) do
    if not without[key] then copy[key] = object[key] end
  end
  for key, value in pairs(more or {}) do copy[key] = value end
  return copy
end

local function some(text) return text ~= nil and text ~= json.null and text ~= '' end

-- hf-jinja ----------------------------------------------------------------------------------------

local function e2e(folder, cases)
  for _, c in ipairs(decode(folder .. '/e2e_cases.json').cases) do
    cases[#cases + 1] = { name = c.name, source = c.chat_template, variables = c.data, want = c.target }
  end
end

-- One case has a NUL byte in a key, which no reader of JSON here takes: another control byte in its
-- place, in the text that is expected too.
local NUL = { name = 'TOJSON_ENSURE_ASCII', why = 'a NUL byte in a key, which the JSON reader refuses, is another one' }

local function unit_cases(path)
  local text = tools.read(path)
  text = text:gsub('"\\u0000(\\t[^\n]-": "\\u0000)', '"\\u0001%1')
  text = text:gsub('\\"\\\\u0000(\\\\t[^\n]-\\": \\"\\\\u0000)', '\\"\\\\u0001%1')
  return json.decode(text, path, { ordered = true }).cases
end

-- What Jinja2 itself gives comes before what the JavaScript tests expect.
local function unit(folder, cases)
  for _, c in ipairs(unit_cases(folder .. '/unit_cases.json')) do
    local verdict = c['vs_jinja2_3.1.2']
    local case = { name = c.name, source = c.template, variables = c.context, want = c.expected,
      changed = c.name == NUL.name and NUL.why or nil, options = { trim_blocks = false, lstrip_blocks = false } }
    if c.jinja2_output ~= nil then
      case.want, case.wrong = c.jinja2_output, 'expects what JavaScript prints'
    elseif verdict:find '^jinja_error' then
      case.raises, case.wrong = true, 'Jinja2: ' .. verdict:match ': (.*)'
    elseif verdict == 'not run' then
      case.raises, case.wrong = true, 'calls functions that no template has'
    end
    cases[#cases + 1] = case
  end
end

-- llama.cpp ---------------------------------------------------------------------------------------

-- What that program does around a template that leaves the system's message out.
local function merged(messages)
  local first = with(messages[2], {}, { content = messages[1].content .. '\n' .. messages[2].content })
  local list_of = json.array { first }
  for i = 3, #messages do list_of[i - 1] = messages[i] end
  return list_of
end

local SYSTEM = 'llama.cpp puts the system message into the first turn'
local LLAMA = {
  ['mistralai/Mistral-7B-Instruct-v0.2 (NOTE: Old pre-v1 without a system prompt)'] =
    { merge = true, before = '<s>', why = SYSTEM .. ' and drops BOS' },
  ['mlabonne/AlphaMonarch-7B'] = { before = '<s>', why = 'llama.cpp drops BOS' },
  ['OrionStarAI/Orion-14B-Chat'] = { merge = true, after = '</s>', why = SYSTEM .. ' and drops EOS at the end' },
  ['Phi-3-mini'] = { merge = true, why = SYSTEM },
  ['Phi-3-medium'] = { merge = true, why = SYSTEM },
  ['ai-sage/GigaChat-20B-A3B-instruct'] =
    { wrong = 'additional_special_tokens is undefined: llama.cpp says itself that it does not render this one' },
}

local function llama(folder, cases)
  local file = decode(folder .. '/test-chat-template.json')
  for _, c in ipairs(file.cases) do
    local rule = LLAMA[c.name] or {}
    local want = some(c.expected_output_jinja) and c.expected_output_jinja or c.expected_output
    cases[#cases + 1] = { name = c.name, source = c.template_str, wrong = rule.wrong, changed = rule.why,
      raises = rule.wrong and true, want = (rule.before or '') .. want .. (rule.after or ''),
      variables = { messages = rule.merge and merged(file.messages) or file.messages, add_generation_prompt = true,
        bos_token = some(c.bos_token) and c.bos_token or '', eos_token = some(c.eos_token) and c.eos_token or '' } }
  end
end

-- neural-api --------------------------------------------------------------------------------------

local NOT_VARIABLES = { expected = true, raises = true, error = true, reasoning_effort = true,
  ['vs_jinja2_3.1.2'] = true }

local OFF = "its reasoning_effort 'off' is the template's enable_thinking = false"

local function neural(folder, cases)
  local file = decode(folder .. '/chat_template_cases.json')
  for _, name in ipairs(json.keys(file)) do
    local set = file[name]
    for i, c in ipairs(set.cases) do
      local off = c.reasoning_effort == 'off'
      local thinking
      if off then thinking = false end
      cases[#cases + 1] = { name = name .. ' ' .. i, template = name, source = set.template, want = c.expected,
        raises = c.raises, message = c.error, changed = off and OFF or nil,
        variables = with(c, NOT_VARIABLES, { bos_token = set.bos_token, eos_token = set.eos_token,
          enable_thinking = thinking }) }
    end
  end
end

-- trl ---------------------------------------------------------------------------------------------

local function trl(folder, cases)
  local file = decode(folder .. '/golden_renders.json')
  for _, c in ipairs(file.cases) do
    cases[#cases + 1] = { name = c.template .. ' ' .. c.conversation, source = tools.read(folder .. '/' .. c.template),
      want = c.text, spans = c.generation_spans, raises = c.error and true,
      -- a text of raise_exception; the words of other errors are Python's
      message = c.error and c.error:match '^TemplateError: (.*)',
      variables = with(file.conversations[c.conversation], {}, file.special_tokens) }
  end
end

-- mistral-common ----------------------------------------------------------------------------------

local PARSED = 'its tokenizer writes a tool result that holds JSON as JSON, the template as a text'
local JOINED = 'its tokenizer puts neighbouring tool results into one list, the template each into its own'

-- Arguments are laid out anew by that tokenizer, on one line.
local function on_one_line(sample)
  for _, message in ipairs(sample.messages) do
    for _, call in ipairs(message.tool_calls ~= json.null and message.tool_calls or {}) do
      local f = call['function']
      f.arguments = f.arguments:gsub('%s*\n%s*', ' '):gsub('{ ', '{'):gsub(' }', '}')
    end
  end
end

local function replace(text, old, new)
  local from, to = text:find(old, 1, true)
  if not from then return text, false end
  return text:sub(1, from - 1) .. new .. replace(text:sub(to + 1), old, new), true
end

local function as_template(text, sample)
  local why, found
  for _, message in ipairs(sample.messages) do
    if message.role == 'tool' and message.content:find '^{' then
      text, found = replace(text, message.content, json.encode(message.content))
      why = found and PARSED or why
    end
  end
  text, found = replace(text, '"}, {"name": "send_email", "content"',
    '"}][/TOOL_RESULTS][TOOL_RESULTS] [{"name": "send_email", "content"')
  return text, found and JOINED or why
end

local function mistral(folder, cases)
  for _, path in ipairs(list(folder .. '/samples', 'text_v*.txt')) do
    local name, version = path:match '^(.*)/text_(v%d)%.txt$'
    local sample = decode(folder .. '/samples/' .. name .. '/sample.json')
    on_one_line(sample)
    local text = replace(replace(tools.read(folder .. '/samples/' .. path), '▁', ' '), '<0x0A>', '\n')
    local want, why = as_template(text, sample)
    cases[#cases + 1] = { name = name .. ' ' .. version, want = want, changed = why,
      source = tools.read(('%s/chat_templates/%s_spm.jinja'):format(folder, version)),
      variables = with(sample, {}, { bos_token = '<s>', eos_token = '</s>' }) }
  end
end

-- all ---------------------------------------------------------------------------------------------

M.groups = { { 'hf-jinja e2e', 'hf-jinja', e2e }, { 'hf-jinja unit', 'hf-jinja', unit }, { 'trl', 'trl', trl },
  { 'neural-api', 'neural-api', neural }, { 'llama.cpp', 'llama.cpp', llama },
  { 'mistral-common', 'mistral-common', mistral } }

--- The cases of a group of `M.groups`; nil and the reason where its folder is absent.
function M.cases(group)
  local folder, why = M.folder(group[2])
  if not folder then return nil, why end
  local cases = {}
  group[3](folder, cases)
  for _, case in ipairs(cases) do case.group = group[1] end
  return cases
end

-- A template that lies there twice is one.
local function add(found, seen, name, source)
  if seen[source] then return end
  seen[source] = true
  found[#found + 1] = { name = name, source = source }
end

local function of_configs(folder, found, seen)
  for _, path in ipairs(list(folder, 'tokenizer_config.json')) do
    local template = json.decode(tools.read(folder .. '/' .. path), path).chat_template
    if type(template) == 'string' then add(found, seen, path, template) end
  end
end

--- Every chat template of that data once, as { name, source }; nil and the reason where it is absent.
function M.all()
  local folder, why = M.folder()
  if not folder then return nil, why end
  local found, seen = {}, {}
  for _, path in ipairs(list(folder, '*.jinja')) do add(found, seen, path, tools.read(folder .. '/' .. path)) end
  of_configs(folder, found, seen)
  for _, group in ipairs(M.groups) do
    for _, case in ipairs(group[3] ~= unit and M.cases(group) or {}) do
      add(found, seen, group[1] .. ' ' .. (case.template or case.name), case.source)
    end
  end
  return found
end

--- Byte offsets (flat pairs) of character offsets (a list of pairs) in a text.
function M.bytes(text, spans)
  local at, count = { [0] = 0 }, 0
  for i = 1, #text do
    local byte = text:byte(i)
    if byte < 0x80 or byte >= 0xC0 then
      at[count], count = i - 1, count + 1
    end
  end
  at[count] = #text
  local flat = {}
  for _, span in ipairs(spans) do
    flat[#flat + 1], flat[#flat + 2] = at[span[1]], at[span[2]]
  end
  return flat
end

--- Tries a case: true where it gives what it must, else nil and what was seen instead.
function M.try(jinja, case)
  local ok, template = pcall(jinja.compile, case.source, 'case', case.options)
  local text, _, generation
  if ok then
    ok, text, _, generation = pcall(template.render, template, case.variables, { now = M.now })
  else
    text = template
  end
  if case.raises then
    if ok then return nil, 'no error, but ' .. text end
    if case.message and not tostring(text):find(case.message, 1, true) then return nil, text end
    return true
  end
  if not ok then return nil, text end
  if text ~= case.want then return nil, ('got\n%s\nand not\n%s'):format(text, case.want) end
  if case.spans then
    local want = table.concat(M.bytes(text, case.spans), ' ')
    local got = table.concat(generation, ' ')
    if got ~= want then return nil, ('generation at %s, and not %s'):format(got, want) end
  end
  return true
end

return M
