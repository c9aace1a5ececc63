--- Looks at a data set, leaves out rows that are not worth learning from, and writes the others.
---
---   moonstill recipes/filter_data.lua teacher=models/large data.train=train.jsonl drop=0.1
---
--- Each row goes through two functions before it becomes a sample: `keep` says whether it is used,
--- `tidy` gives the row in its place. Change them: they are plain Lua. Then the teacher reads every
--- sample, and the share `drop` of rows that it finds least likely is left out as well. Wrong and
--- broken answers are among them, but also what is rare and right: so some are printed.
---
--- Each source gets a file in the output folder; the last line says how they are learnt from.
local ms = require 'moonstill'

local cfg = ms.config({
  teacher = ms.required('path', 'model folder: its tokenizer counts, its loss is asked'),
  output = ms.option('out/filtered', 'folder for what is left: a file for each source'),
  data = ms.dataset.options(),
  without = ms.option('', 'Lua pattern: rows in whose JSON it is found are left out', 'string'),
  drop = ms.option(0.1, 'share of the rows, those that the teacher finds least likely',
    'number >= 0 < 1'),
  show = ms.option(3, 'how many of those are printed', 'integer >= 0'),
  device = 'cpu', threads = 0,
}, { about = 'Filters a data set by functions of its rows and by the loss of a teacher.',
  common = false,
  smoke = function()
    local made = ms.smoke.distill()
    return { teacher = made.teacher, data = { train = made.data.train, max_tokens = 256 },
      output = made.output }
  end })
if cfg.data.valid or cfg.data.split then
  ms.config.refuse "'data.valid' and 'data.split' do nothing here: only data.train is read"
end

-- rows ------------------------------------------------------------------------------------------

local seen = {} -- rows so far
local why = {}  -- reasons why rows were left out, and how many were

local function leave_out(reason)
  if not why[reason] then why[#why + 1] = reason end
  why[reason] = (why[reason] or 0) + 1
  return false
end

--- Whether a row is used.
local function keep(row)
  local text = ms.json.encode(row)
  if cfg.without ~= '' and text:find(cfg.without) then return leave_out 'has what is unwanted' end
  if seen[text] then return leave_out 'is there twice' end
  seen[text] = true
  return true
end

-- Blanks at the ends of lines, and Windows' line ends, in all texts of a row.
local function trim(value)
  if type(value) == 'string' then return (value:gsub('[ \t\r]+\n', '\n'):gsub('[ \t\r]+$', '')) end
  if type(value) ~= 'table' or value == ms.json.null then return value end
  local keys = ms.json.is_array(value) and value or ms.json.keys(value)
  for i, key in ipairs(keys) do
    if keys == value then key = i end
    value[key] = trim(value[key])
  end
  return value
end

local text_of = {} -- by the row's number: what is written of it

--- The row in the place of a row.
local function tidy(row, number)
  row = trim(row)
  text_of[number] = ms.json.encode(row, { ordered = true })
  return row
end

-- samples ---------------------------------------------------------------------------------------

local chat = ms.chat.open(cfg.teacher)
local teacher = ms.model.open(cfg.teacher, { device = cfg.device })
cfg.data.max_tokens = chat:longest(cfg.data.max_tokens, teacher)
cfg.data.cache = false -- `keep` and `tidy` are to see each row once
local data = ms.dataset.sets(cfg.data, chat, { filter = keep, map = tidy })
data:fits(teacher)

--- Of a list of numbers the median, the one that 1 in 20 are above, and the largest.
local function spread(list)
  local sorted = {}
  for i, x in ipairs(list) do sorted[i] = x end
  table.sort(sorted)
  local function at(share) return sorted[math.max(1, math.ceil(share * #sorted))] end
  return at(0.5), at(0.95), at(1)
end

local function tell_lengths()
  local tokens, learnt = {}, {}
  for i = 1, data:count() do
    local _, n, weights = data:sample(i)
    tokens[i], learnt[i] = n, 0
    for t = 0, n - 1 do learnt[i] = learnt[i] + (weights[t] > 0 and 1 or 0) end
  end
  print(('tokens of a sample: median %d, 1 in 20 above %d, most %d'):format(spread(tokens)))
  print(('of these learnt:    median %d, 1 in 20 above %d, most %d'):format(spread(learnt)))
end

local TOGETHER = 16 -- samples that go through the teacher at once

--- The teacher's loss over what each row learns, by the row's number: sums, and weights to divide
--- by. A long row may have given several samples.
local function losses()
  local sum, weight, said, total = {}, {}, os.time(), data:count()
  for first = 1, total, TOGETHER do
    local list = {}
    for i = first, math.min(first + TOGETHER - 1, total) do list[#list + 1] = i end
    local batch = data:batch(list)
    local _, parts = teacher:evaluate_parts(batch, { ms.ce() })
    batch:free()
    for k, part in ipairs(parts) do
      local row = data:row(list[k])
      sum[row] = (sum[row] or 0) + part[1].value
      weight[row] = (weight[row] or 0) + part[1].weight
    end
    if os.time() >= said + 10 then
      io.stderr:write(('the teacher has read %d of %d samples\n'):format(list[#list], total))
      said = os.time()
    end
  end
  return sum, weight
end

--- The rows from the least likely on, and the mean loss of each.
local function ranking()
  local sum, weight = losses()
  local loss, order = {}, {}
  for i = 1, data:count() do
    local row = data:row(i)
    if not loss[row] then order[#order + 1] = row end
    loss[row] = weight[row] > 0 and sum[row] / weight[row] or 0 -- what is not learnt harms nobody
  end
  table.sort(order, function(a, b)
    if loss[a] ~= loss[b] then return loss[a] > loss[b] end
    return a < b
  end)
  return order, loss
end

-- what is left ----------------------------------------------------------------------------------

-- The rows that samples first + 1 .. first + count come from, but for those that are dropped.
local function lines_of(part, dropped)
  local lines, last = {}, nil
  for i = part.first + 1, part.first + part.count do
    local row = data:row(i)
    if row ~= last and not dropped[row] then lines[#lines + 1] = text_of[row] end
    last = row
  end
  return lines
end

--- Writes the rows of each source, and returns what data.train is then: weights and repeats stay.
local function write(dropped)
  local sources, taken = {}, {}
  for k, part in ipairs(data.parts) do
    local name = part.name:match '([^/]+)$':gsub('%.[a-z.]*$', '')
    if taken[name] then name = name .. '-' .. k end
    taken[name] = true
    local path, lines = ('%s/%s.jsonl'):format(cfg.output, name), lines_of(part, dropped)
    ms.json.write_lines(path, lines)
    print(('%s: %d rows'):format(path, #lines))
    sources[k] = (part.weight == 1 and part.times == 1) and path
      or ('{path: %s, weight: %g, repeat: %g}'):format(path, part.weight, part.times)
  end
  if #sources == 1 and sources[1]:sub(1, 1) ~= '{' then return sources[1] end
  return ("'[%s]'"):format(table.concat(sources, ', '))
end

--- Tells of the teacher's losses; returns the rows that are left out, by number.
local function drop_unlikely()
  local order, loss = ranking()
  local count, dropped, all = math.floor(cfg.drop * #order), {}, {}
  for k, row in ipairs(order) do all[k] = loss[row] end
  print(('\nthe teacher\'s loss, nats a token: median %.3f, 1 in 20 above %.3f, most %.3f')
    :format(spread(all)))
  print(('left out: the %d rows that it finds least likely%s'):format(count,
    math.min(count, cfg.show) > 0 and ', among them' or ''))
  for k = 1, count do
    dropped[order[k]] = true
    if k <= cfg.show then
      print(('  %.3f  row %d: %s'):format(loss[order[k]], order[k], text_of[order[k]]))
    end
  end
  return dropped
end

tell_lengths()
for _, reason in ipairs(why) do
  print(('left out: %d rows, each %s'):format(why[reason], reason))
end
local dropped = cfg.drop > 0 and drop_unlikely() or {}
print ''
print('train on it: data.train=' .. write(dropped))
