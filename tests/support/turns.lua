--- Small chat templates of our own, one for each thing that templates do to turns, and chats over
--- them: the tokenizer has a token for every byte, so that no token lies across a border.
local json = require 'moonstill.base.json'
local small = require 'tests.support.tokenizers'
local tools = require 'tests.support.tools'

local M = {}

--- <u>..</u>, <a>..</a>, whatever the role. The end is a special token, as all of these are.
M.simple = [[
{%- for m in messages %}
{{- '<' + m.role[0] + '>' + m.content + '</s>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<a>' }}{% endif %}]]

--- The same with what the model says marked.
M.marked = [[
{%- for m in messages %}
{{- '<' + m.role[0] + '>' }}
{%- if m.role == 'assistant' %}{% generation %}{{- m.content + '</s>' }}{% endgeneration %}
{%- else %}{{- m.content + '</s>' }}{% endif %}
{{- '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<a>' }}{% endif %}]]

--- Thinking stands before the last answer alone; the prompt opens it.
M.thinking = [[
{%- for m in messages %}
{{- '<' + m.role[0] + '>' }}
{%- if m.role == 'assistant' and loop.last %}{{- '<think>' + (m.reasoning_content or '') + '</think>' }}{% endif %}
{{- m.content.split('</think>')[-1] + '</s>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<a><think>' }}{% endif %}]]

--- An empty block of thinking is put before the last answer; the prompt has it where no thinking is
--- asked for.
M.inserting = [[
{%- for m in messages %}
{{- '<' + m.role[0] + '>' }}
{%- if m.role == 'assistant' and loop.last %}{{- '<think></think>' }}{% endif %}
{{- m.content + '</s>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<a>' }}
{%- if enable_thinking is defined and not enable_thinking %}{{- '<think></think>' }}{% endif %}{% endif %}]]

--- Messages of one role that follow one another are one turn.
M.merging = [[
{%- for m in messages %}
{%- if loop.first or messages[loop.index0 - 1].role != m.role %}{{- '<' + m.role[0] + '>' }}
{%- else %}{{- '+' }}{% endif %}
{{- m.content }}
{%- if loop.last or messages[loop.index0 + 1].role != m.role %}{{- '</s>\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<a>' }}{% endif %}]]

--- The system's message stands before the last of the user's.
M.moving = [[
{%- for m in messages %}
{%- if m.role == 'user' %}{{- '[' }}
{%- if loop.last or loop.index0 == messages|length - 2 %}{{- messages[0].content + ':' }}{% endif %}
{{- m.content + ']' }}
{%- elif m.role == 'assistant' %}{{- m.content + '</s>' }}{% endif %}
{%- endfor %}]]

--- Contents are trimmed, and the text ends with a token of its own.
M.trimming = [[
{%- for m in messages %}
{{- '<' + m.role[0] + '>' + m.content | trim + '</s>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<a>' }}{% else %}{{- '<e>' }}{% endif %}]]

--- Nothing ends a turn but the end of the text.
M.endless = [[
{%- for m in messages %}{{- '<' + m.role[0] + '>' + m.content }}{% endfor %}
{%- if add_generation_prompt %}{{- '<a>' }}{% else %}{{- '</s>' }}{% endif %}]]

--- Something follows the last turn, which begins as a turn does.
M.followed = [[
{%- for m in messages %}{{- '<t><' + m.role[0] + '>' + m.content + '</s>' }}{% endfor %}
{%- if add_generation_prompt %}{{- '<t><a>' }}{% else %}{{- '<t><e>be brief</s>' }}{% endif %}]]

--- Calls of tools behind the content, and tools before it all.
M.calling = [[
{%- for tool in tools or [] %}{{- tool | tojson + '\n' }}{% endfor %}
{%- for m in messages %}
{{- '<' + m.role[0] + '>' + m.content }}
{%- for call in m.tool_calls or [] %}
{{- '<call>' + call.function.name + ':' + call.function.arguments | tojson + '</call>' }}
{%- endfor %}
{{- '</s>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<a>' }}{% endif %}]]

--- The turn of a tool writes the name of the call that it answers, and goes on from it without an end
--- between.
M.answering = [[
{%- for m in messages %}
{%- if m.role == 'tool' %}{{- '<t>' + messages[loop.index0 - 1].tool_calls[0].function.name + '=' + m.content }}
{%- else %}{{- '<' + m.role[0] + '>' + m.content }}
{%- for call in m.tool_calls or [] %}{{- '<call>' + call.function.name + '</call>' }}{% endfor %}
{%- if not m.tool_calls %}{{- '</s>\n' }}{% endif %}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<a>' }}{% endif %}]]

local TOKENS = { '</s>', '<u>', '<a>', '<e>', '<t>', '<s>' }

--- A folder with a byte-level tokenizer that has these tokens and those of ChatML unless `tokens`
--- names others, and with files: { ['config.json'] = {..}, ['chat_template.jinja'] = '..' }.
function M.folder(files, tokens)
  local folder, added = tools.folder(), {}
  for i, token in ipairs(tokens or TOKENS) do added[i] = small.added(299 + i, token) end
  tools.write(folder .. '/tokenizer.json', json.encode(small.byte_level { added = added }))
  files = files or {}
  files['config.json'] = files['config.json'] or { eos_token_id = 300 }
  for name, value in pairs(files) do
    local path = folder .. '/' .. name
    if name:find '/' then os.execute('mkdir -p ' .. path:match '^(.*)/') end
    tools.write(path, type(value) == 'string' and value or json.encode(value))
  end
  return folder
end

--- What a sample becomes, as text: what is learnt stands in « », and with another weight than 1 as
--- «0.5:..».
function M.learnt(chat, sample)
  local texts = {}
  for i, p in ipairs(chat:prepare(sample)) do
    local parts, at = {}, 0
    for k = 1, #p.marks, 3 do
      local level = chat.levels[p.marks[k + 2]]
      if level.response > 0 then
        parts[#parts + 1] = p.text:sub(at + 1, p.marks[k]) .. '«'
          .. (level.response ~= 1 and level.response .. ':' or '')
          .. p.text:sub(p.marks[k] + 1, p.marks[k + 1]) .. '»'
        at = p.marks[k + 1]
      end
    end
    texts[i] = table.concat(parts) .. p.text:sub(at + 1)
  end
  return unpack(texts)
end

return M
