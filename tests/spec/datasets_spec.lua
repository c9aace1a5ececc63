--- Files that people train with, of many projects: what is recognised of each and how many samples it
--- has, or why it has none.
local fail = require 'moonstill.base.fail'
local fields = require 'moonstill.data.fields'
local identities = require 'moonstill.data.identities'
local readers = require 'moonstill.data.readers'
local rows = require 'moonstill.data.rows'
local tools = require 'tests.support.tools'

local ALPACA = 'prompts in "instruction" and "input", answers in "output"'
local QUERY = 'prompts in "query", answers in "response"'
local SYSTEM = ', system prompts in "system"'
local SHAREGPT, MESSAGES = 'ShareGPT conversations in "conversations"', 'conversations in "messages"'
local ENDINGS = 'files end in .jsonl, .json, .csv, .tsv or .txt, and .gz or .zst behind that'
local UNKNOWN = 'no known columns among %s: name them with prompt_key and answer_key, text_key or messages_key%s'
local IMAGES = 'what is learnt depends on "images", which nothing reads: data.ignore=[images] goes on without'
local SEEDS = UNKNOWN:format('id, instances, instruction, is_classification, name',
  '; "instances" is a list, and a row holds one sample')
local INFO = UNKNOWN:format('adgen_eval, adgen_train, agent_instruct, airoboros_de, alpaca-gpt4_de, alpaca_cot, '
  .. 'alpaca_en, alpaca_en_demo, alpaca_gpt4_en, alpaca_gpt4_zh, alpaca_zh, alpaca_zh_demo, belle_0.5m, belle_1m, '
  .. 'belle_2m, belle_dialog, belle_math, %s and %d more', '')
local OPTIONS = { chosen = { answer_key = 'chosen' }, messages = { answer_key = 'chosen_messages' },
  truth = { answer_key = 'ground_truth' }, text = { ignore = { 'images' } } }

-- File, rows, the form in words, samples; of those that are refused the first message and its place.
local FILES = {
  { 'alpaca/seed_tasks.jsonl', 175, nil, 0, ':1: ' .. SEEDS },
  { 'axolotl-fixtures/conversation.json', 1, SHAREGPT, 1 },
  { 'axolotl-fixtures/conversation.missingturns.json', 1, SHAREGPT, 1 },
  { 'axolotl-fixtures/conversation.tokenized.json', 1, 'tokens in "input_ids", learnt by "labels"', 1 },
  { 'belle/zh_seed_tasks.json', 175, nil, 0, ':1: ' .. SEEDS },
  { 'fastchat/dummy_conversation.json', 500, SHAREGPT, 500 },
  { 'fastchat/vicuna_bench_question.jsonl', 80, nil, 0, ':1: ' .. UNKNOWN:format('category, question_id, turns', '') },
  { 'gsm8k/train.jsonl', 7473, 'prompts in "question", answers in "answer"', 7473 },
  { 'llama-factory/alpaca_en_demo.json', 999, ALPACA, 999 },
  { 'llama-factory/alpaca_zh_demo.json', 1000, ALPACA, 1000 },
  { 'llama-factory/dataset_info.json', 1, nil, 0, ':1: ' .. INFO:format('booksum_de, c4_demo, cci3_data', 84) },
  { 'llama-factory/glaive_toolcall_en_demo.json', 300, SHAREGPT .. ', tools in "tools"', 300 },
  { 'llama-factory/identity.json', 91, ALPACA, 91 },
  { 'llama-factory/mllm_demo.json', 6, MESSAGES, 0, ':2: row 1: ' .. IMAGES },
  { 'llama-factory/mllm_demo.json', 6, MESSAGES, 6, nil, 'text' },
  { 'llama-factory/mllm_demo_data/1.jpg', 0, nil, 0, ': ' .. ENDINGS },
  { 'llama-factory/mllm_demo_data/2.jpg', 0, nil, 0, ': ' .. ENDINGS },
  { 'llama-factory/mllm_demo_data/3.jpg', 0, nil, 0, ': ' .. ENDINGS },
  { 'llama-factory/v1_dpo_demo.jsonl', 10, nil, 0, ':1: ' .. UNKNOWN:format('chosen_messages, rejected_messages',
    '; data.answer_key=chosen_messages learns the better answers') },
  { 'llama-factory/v1_dpo_demo.jsonl', 10, 'conversations in "chosen_messages"', 10, nil, 'messages' },
  { 'llama-factory/v1_sft_demo.jsonl', 500, MESSAGES, 500 },
  { 'mlx-lora-wikisql/test.jsonl', 100, 'text in "text"', 100 },
  { 'mlx-lora-wikisql/train.jsonl', 1000, 'text in "text"', 1000 },
  { 'mlx-lora-wikisql/valid.jsonl', 100, 'text in "text"', 100 },
  { 'ms-swift-formats/alpaca.csv', 3, ALPACA .. SYSTEM, 3 },
  { 'ms-swift-formats/alpaca.jsonl', 3, ALPACA .. SYSTEM .. ', turns before in "history"', 3 },
  { 'ms-swift-formats/alpaca2.csv', 3, 'prompts in "instruction", answers in "output"', 3 },
  { 'ms-swift-formats/chatml.jsonl', 3, MESSAGES, 3 },
  { 'ms-swift-formats/conversations.jsonl', 3, SHAREGPT, 3 },
  { 'ms-swift-formats/multi_modal_1.jsonl', 3, QUERY, 1,
    ':1: column "query" has an image in it (<img>..</img>), and images are not read' },
  { 'ms-swift-formats/multi_modal_2.jsonl', 3, QUERY, 0, ':1: ' .. IMAGES },
  { 'ms-swift-formats/multi_modal_3.jsonl', 3, QUERY, 0, ':1: ' .. IMAGES },
  { 'ms-swift-formats/sharegpt.jsonl', 3, 'conversations of human and assistant in "conversation"' .. SYSTEM, 3 },
  { 'ms-swift-formats/swift_multi.json', 3, QUERY .. SYSTEM, 3 },
  { 'ms-swift-formats/swift_multi.jsonl', 3, QUERY .. SYSTEM, 3 },
  { 'ms-swift-formats/swift_pre.csv', 3, 'text in "response"', 3 },
  { 'ms-swift-formats/swift_pre.jsonl', 3, 'text in "response"', 3 },
  { 'ms-swift-formats/swift_single.csv', 3, QUERY .. SYSTEM, 3 },
  { 'ms-swift-formats/swift_single.jsonl', 3, QUERY .. SYSTEM, 3 },
  { 'roll/gpqa_diamond_boxed.jsonl', 198, 'prompts in "messages", answers in "ground_truth"', 198, nil, 'truth' },
  { 'roll/math_benchmarks.jsonl', 560, 'prompts in "messages", answers in "ground_truth"', 560, nil, 'truth' },
  { 'roll/gpqa_diamond_boxed.jsonl', 198, MESSAGES, 198 }, -- without answers: what a chat says
  { 'roll/math_benchmarks.jsonl', 560, MESSAGES, 560 },
  { 'roll/mcore/dataset_info.json', 1, nil, 0, ':1: ' .. INFO:format('belle_multiturn, booksum_de, c4_demo', 71) },
  { 'roll/mcore/identity.json', 91, ALPACA, 91 },
  { 'roll/mcore/mllm_demo.json', 6, MESSAGES, 0, ':2: row 1: ' .. IMAGES },
  { 'roll/mcore/mllm_demo_1.jpg', 0, nil, 0, ': ' .. ENDINGS },
  { 'roll/mcore/mllm_demo_2.jpg', 0, nil, 0, ': ' .. ENDINGS },
  { 'roll/mcore/mllm_demo_3.jpg', 0, nil, 0, ': ' .. ENDINGS },
  { 'roll/swe_bench_verified_example.jsonl', 10, nil, 0, ':1: ' .. UNKNOWN:format('category, id, prompt, run_region, '
    .. 'sandbox_image, score, start_script, task_name', '; there are no answers to "prompt"') },
  { 'tinyshakespeare/input.txt', 1, 'a text', 1 },
  { 'torchtune-tiny/alpaca_tiny.json', 100, ALPACA, 100 },
  { 'torchtune-tiny/chat_tiny.json', 1, SHAREGPT, 1 },
  { 'torchtune-tiny/dog_on_skateboard.jpg', 0, nil, 0, ': ' .. ENDINGS },
  { 'torchtune-tiny/hh_rlhf_tiny.json', 1, nil, 0, ':1: row 1: ' .. UNKNOWN:format('chosen, rejected',
    '; data.answer_key=chosen learns the better answers') },
  { 'torchtune-tiny/hh_rlhf_tiny.json', 1, 'conversations in "chosen"', 1, nil, 'chosen' },
  { 'torchtune-tiny/instruct_tiny.json', 2, 'prompts in "instruction", answers in "response"', 2 },
  { 'torchtune-tiny/rgb_pytorch.png', 0, nil, 0, ': ' .. ENDINGS },
  { 'torchtune-tiny/vqa_tiny.json', 1, 'prompts in "input", answers in "output"', 0,
    ':2: row 1: ' .. IMAGES:gsub('images', 'image') },
}

local function everything() return true end

-- One row of a file that is read: its sample, as `data/filling.lua` makes it.
local function take(file, row)
  if type(row) == 'string' then
    file.words = 'a text'
    return
  end
  file.form = file.form or rows.detect(row, file.options)
  file.words = file.words or rows.describe(file.form)
  rows.parse(row, file.form)
  fields.new(file.options.ignore):look(row, file.form.kind, rows.used(file.form), rows.lists(row, file.form),
    everything)
  local sample = rows.sample(row, file.form)
  if sample.id ~= nil then file.ids:add(sample.id, file.rows) end
end

local function visit(file, where, value, decode)
  file.rows = file.rows + 1
  local ok, why = fail.pcall(function() take(file, decode(value, where)) end)
  if ok then file.samples = file.samples + 1 else file.why = file.why or where .. ': ' .. why end
end

local function read(path, options)
  local file = { rows = 0, samples = 0, ids = identities.new(), options = options }
  local ok, why = fail.pcall(readers.read, path, visit, file)
  if not ok then file.why = why:gsub('^dataset: ', '') end
  return file
end

describe('data sets of the field', function()
  local folder, why = tools.shared 'datasets'
  if not folder then return pending('are read, or refused with the reason', why) end

  for _, case in ipairs(FILES) do
    local name, count, words, samples, reason, options = unpack(case, 1, 6)
    it(('%s%s is %s'):format(name, options and ' (' .. options .. ')' or '', words or 'refused'), function()
      local file = read(folder .. '/' .. name, OPTIONS[options] or {})
      assert.same({ count, words, samples }, { file.rows, file.words, file.samples })
      assert.equal(reason and folder .. '/' .. name .. reason, file.why)
    end)
  end

  it('are all in this table', function()
    local known = {}
    for _, case in ipairs(FILES) do known[case[1]] = true end
    for path in io.popen(('cd %s && find . -type f'):format(tools.quote(folder))):lines() do
      assert(known[path:sub(3)], path .. ' is not')
    end
  end)
end)
