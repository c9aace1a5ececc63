--- The recipes: each has a --smoke size that is run here as a user runs it.
local ms = require 'moonstill'
local json = require 'moonstill.base.json'
local tools = require 'tests.support.tools'

local recipes = { 'distill', 'sft' }
local root = tools.run and select(2, tools.run 'pwd'):gsub('\n', '')

-- The losses of the smoke sizes; they fall where a recipe learns. Instruction sets round
-- differently, which a dozen steps of AdamW make larger.
local losses = json.read 'tests/fixtures/recipes.json'
local TOLERANCE = 2e-3

local function run(folder, ...)
  local words = { 'cd', tools.quote(folder), '&&', 'OMP_WAIT_POLICY=passive', 'OMP_NUM_THREADS=1',
    tools.quote(tools.program():find '^/' and tools.program() or root .. '/' .. tools.program()) }
  for i = 1, select('#', ...) do words[#words + 1] = tools.quote((select(i, ...))) end
  return tools.run(table.concat(words, ' '))
end

for _, name in ipairs(recipes) do
  local path = root .. '/recipes/' .. name .. '.lua'
  describe('recipes/' .. name .. '.lua', function()
    if not tools.exists(tools.program()) then
      pending('needs ' .. tools.program())
      return
    end

    local folder = tools.folder() -- of the smoke run, whose models the next test takes

    it('runs its --smoke size', function()
      local status, _, err = run(folder, path, '--smoke')
      assert.equal(0, status, err)
      local out = folder .. '/out/smoke/result'
      local trained, validated = {}, {}
      for _, entry in json.lines(out .. '/metrics.jsonl') do
        table.insert(entry.kind == 'train' and trained or validated, entry.loss)
      end
      local want = losses[name]
      assert.equal(#want.train, #trained)
      for i, loss in ipairs(want.train) do
        assert.is_true(math.abs(trained[i] - loss) <= TOLERANCE * loss,
          ('step %d: %.9g, not %.9g'):format(i, trained[i], loss))
      end
      assert.is_true(validated[#validated] < validated[1])
      ms.scope(function(own)
        assert.equal('llama', own(ms.model.open(out .. '/student')):info().family)
        assert.equal(tools.read(folder .. '/out/smoke/student/tokenizer.json'),
          tools.read(out .. '/student/tokenizer.json'))
      end)
    end)

    it('takes its YAML file and overrides', function()
      local made = folder .. '/out/smoke/'
      local words = { (path:gsub('%.lua$', '.yaml')), 'max_steps=2', 'output=here',
        'data.train=' .. made .. 'train.jsonl', 'student=' .. made .. 'student' }
      if name == 'distill' then words[#words + 1] = 'teacher=' .. made .. 'teacher/student' end
      local status, _, err = run(folder, path, unpack(words))
      assert.equal(0, status, err)
      assert.truthy(tools.exists(folder .. '/here/student/config.json'))
    end)

    it('cuts texts to what the models take', function()
      local made = folder .. '/out/smoke/'
      local text = tools.write(folder .. '/long.txt', ('3 + 4 = 7 '):rep(200))
      local words = { 'max_steps=1', 'output=long', 'data.train=' .. text }
      words[#words + 1] = name == 'distill' and 'layers=1' or 'student=' .. made .. 'student'
      if name == 'distill' then words[#words + 1] = 'teacher=' .. made .. 'teacher/student' end
      local status, _, err = run(folder, path, unpack(words))
      assert.equal(0, status, err)
      assert.truthy(err:find('max_tokens is 256, not 2048', 1, true), err)
    end)

    it('says which of its files is wrong, and not where the recipe reads it', function()
      local made = folder .. '/out/smoke/'
      local bad = tools.write(folder .. '/bad.jsonl', '{"turns": 1}\n')
      for _, case in ipairs { { 'data.train=' .. bad, bad .. ':1: no known columns' },
        { 'data.messages_key=turns', bad .. ':1: messages are no list' },
        { 'student=' .. folder,
          folder .. ': has no ' .. (name == 'distill' and 'config.json' or 'tokenizer.json') } } do
        local status, _, why = run(folder, path, 'data.train=' .. bad, 'output=bad',
          'student=' .. made .. 'student', name == 'distill' and 'teacher=' .. made .. 'teacher/student' or 'seed=1',
          case[1])
        assert.equal(1, status)
        assert.truthy(why:find('moonstill: ' .. case[2], 1, true), why)
      end
    end)

    it('says before its first step that nothing would be learnt, or measured', function()
      local made = folder .. '/out/smoke/'
      local mute = tools.write(folder .. '/mute.jsonl', '{"prompt": "1 + 2", "answer": "3", "w": 0}\n')
      local loud = tools.write(folder .. '/loud.jsonl', '{"prompt": "1 + 2", "answer": "3", "w": 1}\n')
      for _, case in ipairs { { mute, loud, mute }, { loud, mute, mute } } do
        local status, _, why = run(folder, path, 'data.train=' .. case[1], 'data.valid=' .. case[2], 'output=mute',
          'data.weight_key=w', 'student=' .. made .. 'student',
          name == 'distill' and 'teacher=' .. made .. 'teacher/student' or 'seed=1')
        assert.equal(1, status)
        assert.truthy(why:find(('moonstill: %s: no token counts for on = "response"'):format(case[3]), 1, true), why)
        assert.is_nil(why:find('step 1', 1, true), why)
      end
    end)

    if name == 'distill' then
      local made = folder .. '/out/smoke/'

      -- Metrics of a run into folder/`output` that learns from the teacher alone.
      local function distil(output, ...)
        local status, _, err = run(folder, path, 'teacher=' .. made .. 'teacher/student', 'resume=false',
          'output=' .. output, 'data.train=' .. made .. 'valid.jsonl', 'batch.tokens=1024',
          'kd.first_weight=1', 'kd.weight=1', ...)
        assert.equal(0, status, err)
        local steps = {}
        for _, entry in json.lines(('%s/%s/metrics.jsonl'):format(folder, output)) do
          if entry.kind == 'train' then steps[#steps + 1] = entry end
        end
        return steps
      end

      it('makes a student of the layers that are named', function()
        distil('second', 'layers=[1]', 'max_steps=1', 'optim.lr=0')
        ms.scope(function(own)
          local teacher = own(ms.model.open(made .. 'teacher/student'))
          own(ms.model.shrink(teacher, { layers = { 1 } })):save(folder .. '/want')
        end)
        assert.is_true(tools.read(folder .. '/want/model.safetensors')
          == tools.read(folder .. '/second/student/model.safetensors'))
        -- and does not go on with another one
        assert(os.remove(folder .. '/second/finished.json'))
        local status, _, why = run(folder, path, 'teacher=' .. made .. 'teacher/student', 'layers=2',
          'output=second', 'data.train=' .. made .. 'valid.jsonl')
        assert.equal(1, status)
        assert.truthy(why:find('another student than this one: resume=false begins anew', 1, true), why)
      end)

      it('asks for a student, or of how many layers to make one', function()
        local status, _, why = run(folder, path, 'teacher=' .. made .. 'teacher/student',
          'data.train=' .. made .. 'valid.jsonl')
        assert.equal(2, status)
        assert.truthy(why:find("'student' must be given, or 'layers'", 1, true), why)
        status, _, why = run(folder, path, 'teacher=' .. made .. 'teacher/student', 'layers=1',
          'student=' .. made .. 'teacher/student', 'data.train=' .. made .. 'valid.jsonl')
        assert.equal(2, status)
        assert.truthy(why:find("not beside 'student'", 1, true), why)
      end)

      it('refuses more entries than there are ids, and weights that would unlearn', function()
        local status, _, why = run(folder, path, 'teacher=' .. made .. 'teacher/student', 'layers=1',
          'output=k', 'data.train=' .. made .. 'valid.jsonl', 'kd.k=100000')
        assert.equal(2, status)
        assert.truthy(why:find("'kd.k' is 100000, but the models share", 1, true), why)
        for _, word in ipairs { 'kd.weight=2', 'kd.weight=-1', 'kd.first_weight=1.5' } do
          status, _, why = run(folder, path, 'teacher=' .. made .. 'teacher/student', 'layers=1',
            'data.train=' .. made .. 'valid.jsonl', word)
          assert.equal(2, status, word)
          assert.truthy(why:find('must be number from 0 to 1, not', 1, true), why)
        end
        -- a factor below 0 likewise; a rate below 0 would end the run near its end
        for _, word in ipairs { 'kd.t_scale=-1', 'optim.final=-0.1' } do
          status, _, why = run(folder, path, 'teacher=' .. made .. 'teacher/student', 'layers=1',
            'output=below', 'max_steps=1', 'data.train=' .. made .. 'valid.jsonl', word)
          assert.equal(2, status, word)
          assert.truthy(why:find(word:match '^[^=]*' .. "' must be ", 1, true), why)
        end
      end)

      it('hands on what objectives, optimiser and schedule are told', function()
        local function loss(...) return distil('told', 'layers=1', 'max_steps=1', ...)[1].loss end
        local reverse = loss 'kd.objective=reverse_kl'
        local function near(x) assert.is_true(math.abs(x - reverse) <= 1e-6 * reverse, x) end
        near(loss('kd.objective=js', 'kd.beta=1'))
        near(loss('kd.objective=skewed_reverse_kl', 'kd.lambda=0'))
        assert.not_equal(loss 'kd.temperature=2', loss 'kd.temperature=1')
        assert.not_equal(loss('kd.objective=adaptive_kl', 'kd.alpha=0.1'),
          loss('kd.objective=adaptive_kl', 'kd.alpha=0.9'))

        local function steps(...)
          return distil('told', 'layers=1', 'max_steps=4', 'epochs=4', 'optim.lr=1e-3',
            'optim.warmup=0', ...)
        end
        local plain = steps()
        assert.not_equal(plain[3].loss, steps('optim.beta1=0.5')[3].loss)
        assert.not_equal(plain[3].loss, steps('optim.beta2=0.9')[3].loss)
        local wsd = steps('optim.schedule=wsd', 'optim.decay=2')
        assert.equal(wsd[1].lr, wsd[3].lr)
        assert.is_true(wsd[4].lr < wsd[3].lr)
      end)
    end

    it('prints help and refuses unknown keys before it does anything', function()
      local status, text = run(folder, path, '--help')
      assert.equal(0, status)
      for _, key in ipairs { 'student', 'data.train', 'optim.lr', 'epochs', 'seed', '--smoke' } do
        assert.truthy(text:find(key, 1, true), key)
      end
      for line in text:gmatch '\n  (%S[^\n]*)' do
        assert.truthy(line:find '^%S+%s%s+.-%s%s+%S', line) -- key, kind, and a meaning or default
      end
      local _, _, why = run(folder, path, 'optim.learning_rate=1')
      assert.truthy(why:find("no option 'optim.learning_rate'", 1, true), why)
      status, _, why = run(folder, path)
      assert.equal(2, status)
      assert.truthy(why:find('must be given', 1, true), why)
    end)

    it('uses nothing but moonstill', function()
      for required in tools.read(path):gmatch "require%s*%(?%s*['\"]([^'\"]+)" do
        assert.equal('moonstill', required)
      end
      assert.is_nil(tools.read(path):find('ffi', 1, true))
    end)
  end)
end
