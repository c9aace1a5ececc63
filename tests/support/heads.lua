--- What the specs of the fused head share: calls with chosen logits, and a reference in double
--- precision written from the definitions of DESIGN section 4, not from the kernels.
local ffi = require 'ffi'
local ms = require 'moonstill'
local C = require 'moonstill.C'
local check = require 'moonstill.base.check'

local M = {}

M.objectives = { 'forward_kl', 'reverse_kl', 'js', 'skewed_forward_kl', 'skewed_reverse_kl',
                 'adaptive_kl', 'tvd' }
M.defaults = { js = 0.5, skewed_forward_kl = 0.1, skewed_reverse_kl = 0.1, adaptive_kl = 0.5 }
local number = {}
for i, name in ipairs(M.objectives) do number[name] = i - 1 end

local exp, log, huge, abs = math.exp, math.log, math.huge, math.abs

-- ---- the reference -------------------------------------------------------------------------

-- log of sum exp(x[i]), i in list
local function log_sum(x, list)
  local max, sum = -huge, 0
  for _, i in ipairs(list) do max = math.max(max, x[i]) end
  if max == -huge then return -huge end
  for _, i in ipairs(list) do sum = sum + exp(x[i] - max) end
  return max + log(sum)
end

-- a log(a / b) from logs; 0 log 0 = 0
local function part(la, lb) return exp(la) == 0 and 0 or exp(la) * (la - lb) end

local function log_mix(c, lp, lq) -- log(c p + (1 - c) q), without underflow
  local max = math.max(lp, lq)
  return max + log(c * exp(lp - max) + (1 - c) * exp(lq - max))
end

-- Weights of adaptive_kl: gaps over the head, the fewest largest p with mass >= 1 - alpha - 1e-6 (all
-- of them at alpha 0, though p may round to 1), and over the others; `order` are the symbols that may
-- be head, the bucket is not among them.
local function adaptive(lp, lq, order, alpha)
  local by_mass, head, mass, in_head, tail = {}, 0, 0, {}, 0
  for i, s in ipairs(order) do by_mass[i] = s end
  table.sort(by_mass, function(a, b)
    if lp[a] ~= lp[b] then return lp[a] > lp[b] end
    return a < b
  end)
  for _, s in ipairs(by_mass) do
    if alpha > 0 and mass >= 1 - alpha - 1e-6 then break end
    mass, in_head[s] = mass + exp(lp[s]), true
  end
  for s in pairs(lp) do
    local gap = abs(exp(lp[s]) - exp(lq[s]))
    if in_head[s] then head = head + gap else tail = tail + gap end
  end
  if head == 0 and tail == 0 then return 0.5, 0.5 end
  return head / (head + tail), tail / (head + tail)
end

-- The divergence of two lists of log-probabilities over the symbols of `all`.
local function divergence(name, lp, lq, all, order, parameter, weights)
  local forward, reverse, d = 0, 0, 0
  for _, s in ipairs(all) do
    forward, reverse = forward + part(lp[s], lq[s]), reverse + part(lq[s], lp[s])
    if name == 'js' then
      local lm = log_mix(parameter, lp[s], lq[s])
      d = d + parameter * part(lp[s], lm) + (1 - parameter) * part(lq[s], lm)
    elseif name == 'skewed_forward_kl' then
      d = d + part(lp[s], log_mix(parameter, lp[s], lq[s]))
    elseif name == 'skewed_reverse_kl' then
      d = d + part(lq[s], log_mix(1 - parameter, lp[s], lq[s]))
    elseif name == 'tvd' then
      d = d + abs(exp(lp[s]) - exp(lq[s])) / 2
    end
  end
  if name == 'forward_kl' or (name == 'js' and parameter == 0) then return forward end
  if name == 'reverse_kl' or (name == 'js' and parameter == 1) then return reverse end
  if name == 'adaptive_kl' then
    local f, r
    if weights then f, r = weights[1], weights[2] else f, r = adaptive(lp, lq, order, parameter) end
    return f * forward + r * reverse, f, r
  end
  return d
end

--- One row's KD loss, factor included. z and y: logits of student and teacher, 1-based; term:
--- objective, T, Tt, vocab (V_s), k (nil: full), tail, parameter, t_scale; weights: adaptive_kl's,
--- held constant. Returns loss, weights, and a table of statistics.
function M.kd_row(term, z, y, weights)
  local T, Tt, V = term.T, term.Tt or 1, term.vocab
  local lp, lq, ids = {}, {}, {}
  local ty, tz = {}, {}
  for i = 1, V do
    ty[i], tz[i] = y[i] / (T * Tt), z[i] / T
    if term.k or (ty[i] ~= -huge and tz[i] ~= -huge) then ids[#ids + 1] = i end
  end
  local support, bucket = ids, false
  if term.k then
    local order = {}
    for i = 1, V do order[i] = i end
    table.sort(order, function(a, b) if y[a] ~= y[b] then return y[a] > y[b] end return a < b end)
    local rest, chosen = {}, {}
    for i = 1, term.k do chosen[order[i]] = true end
    for i = 1, V do if not chosen[i] then rest[#rest + 1] = i end end
    local ly, lz = log_sum(ty, ids), log_sum(tz, ids)
    support = {}
    for i = 1, V do
      if chosen[i] and ty[i] ~= -huge and tz[i] ~= -huge then
        support[#support + 1], lp[i], lq[i] = i, ty[i] - ly, tz[i] - lz
      end
    end
    local bp, bq = log_sum(ty, rest) - ly, log_sum(tz, rest) - lz
    if term.tail ~= 'renormalize' and bp ~= -huge and bq ~= -huge then
      bucket, lp[0], lq[0] = true, bp, bq
    end
  else
    for _, i in ipairs(ids) do lp[i], lq[i] = ty[i], tz[i] end
  end
  local all = {}
  for i, s in ipairs(support) do all[i] = s end
  if bucket then all[#all + 1] = 0 end
  local np, nq = log_sum(lp, all), log_sum(lq, all)
  for _, s in ipairs(all) do lp[s], lq[s] = lp[s] - np, lq[s] - nq end
  local d, f, r = divergence(term.objective, lp, lq, all, support,
    term.parameter or M.defaults[term.objective], weights)
  local scale = term.t_scale or (term.objective == 'tvd' and T or T * T)
  local stats = { p = 0, q = 0 }
  for _, s in ipairs(all) do
    stats.p, stats.q = stats.p - part(lp[s], 0), stats.q - part(lq[s], 0)
  end
  return d * scale, f and { f, r } or nil, stats
end

--- DESIGN's dD/dz_j = (h_j - q_j sum h) / T over a whole vocabulary, in double, T's factor included;
--- `weights` are adaptive_kl's. Each objective's h is defined here.
function M.slopes(name, T, z, y, weights)
  local V, b = #z, M.defaults[name]
  local p, q, r, h, H = {}, {}, {}, {}, 0
  local function logs(x)
    local top, sum = -huge, 0
    for i = 1, V do top = math.max(top, x[i]) end
    for i = 1, V do sum = sum + exp((x[i] - top) / T) end
    return top / T + log(sum)
  end
  local ly, lz = logs(y), logs(z)
  for i = 1, V do
    local lp, lq = y[i] / T - ly, z[i] / T - lz
    p[i], q[i], r[i] = exp(lp), exp(lq), lq - lp
  end
  for i = 1, V do
    if name == 'forward_kl' then h[i] = -p[i]
    elseif name == 'reverse_kl' then h[i] = q[i] * (r[i] + 1)
    elseif name == 'adaptive_kl' then h[i] = weights[2] * q[i] * (r[i] + 1) - weights[1] * p[i]
    elseif name == 'tvd' then
      h[i] = abs(r[i]) <= 1e-5 * math.max(1, 1 / T) and 0 or q[i] / 2 * (r[i] < 0 and -1 or 1)
    elseif name == 'js' then h[i] = (1 - b) * q[i] * log(q[i] / (b * p[i] + (1 - b) * q[i]))
    elseif name == 'skewed_forward_kl' then h[i] = -(1 - b) * p[i] * q[i] / (b * p[i] + (1 - b) * q[i])
    else
      local m = (1 - b) * p[i] + b * q[i]
      h[i] = q[i] * (log(q[i] / m) + 1 - b * q[i] / m)
    end
    H = H + h[i]
  end
  local g, factor = {}, name == 'tvd' and 1 or T
  for i = 1, V do g[i] = factor * (h[i] - q[i] * H) end
  return g
end

--- One row's cross-entropy over all of z; label 0-based.
function M.ce_row(z, label)
  local all = {}
  for i = 1, #z do all[i] = i end
  return log_sum(z, all) - z[label + 1]
end

-- ---- the library ---------------------------------------------------------------------------

M.device = ms.device.open 'cpu'

--- @return ffi.cdata* `float[n]` of a table or of rows of a table
function M.floats(rows)
  local flat, n = {}, 0
  for _, row in ipairs(rows) do
    if type(row) == 'table' then
      for _, x in ipairs(row) do n = n + 1 flat[n] = x end
    else
      n = n + 1
      flat[n] = row
    end
  end
  return ffi.new('float[?]', math.max(n, 1), flat), n
end

local KIND = { topk = C.MS_TARGET_TOPK, hidden = C.MS_TARGET_HIDDEN, logits = C.MS_TARGET_LOGITS }

function M.options(o)
  return ffi.new('ms_target_options', {
    kind = KIND[o.kind],
    k = o.k or 0, on = o.on == 'all' and 1 or 0, hidden_dtype = o.bf16 and C.MS_BF16 or C.MS_F32,
    vocab = o.vocab or 0, temperature = o.T or 1, teacher_temperature = o.Tt or 1 })
end

local out_target = ffi.new 'ms_target *[1]'

--- A tensor [rows, cols] of a `float[?]`.
function M.tensor(values, rows, cols)
  local t = ms.tensor(M.device, rows, cols)
  check(C.ms_tensor_write(t.p, values, rows * cols * 4))
  return t
end

local function read(t, n)
  local values = ffi.new('float[?]', n)
  check(C.ms_tensor_read(t.p, values, n * 4))
  return values
end

--- Tensors whose product gives chosen logits exactly: hidden is the identity [rows, rows] and the
--- head holds the logits [vocab, rows], so the head's gradient is that of the logits, transposed.
--- Rows of finite logits, or one row of any.
function M.product(z)
  local rows, vocab = #z, #z[1]
  local hidden, head = ffi.new('float[?]', rows * rows), ffi.new('float[?]', vocab * rows)
  for r = 0, rows - 1 do
    hidden[r * rows + r] = 1
    for v = 0, vocab - 1 do head[v * rows + r] = z[r + 1][v + 1] end
  end
  return M.tensor(hidden, rows, rows), M.tensor(head, vocab, rows)
end

--- A target of rows of teacher logits. o: kind, k, on, vocab, T, Tt, made (through hidden states
--- and a head also where values would do), scale, soft_cap, bf16, budget. Returns ms_target *.
function M.target(y, o)
  local options = M.options(o)
  if o.kind == 'logits' and not o.made then
    local rows = {}
    for r, row in ipairs(y) do
      rows[r] = {}
      for i = 1, o.vocab or #row do rows[r][i] = row[i] end
    end
    options.vocab = o.vocab or #y[1]
    check(C.ms_target_logits(options, #y, M.floats(rows), out_target))
  else
    local hidden, head = M.product(y)
    check(C.ms_target_new(options, hidden.p, head.p, o.scale or 1, o.soft_cap or 0, o.budget or 0,
      out_target))
    hidden:free()
    head:free()
  end
  return ffi.gc(out_target[0], C.ms_target_free)
end

--- A term for C from: kind 'ce' or an objective's name, weight, on, T, parameter, t_scale, tail,
--- norm, target.
function M.terms(list)
  local t = ffi.new('ms_term[?]', #list)
  for i, o in ipairs(list) do
    local e = t[i - 1]
    e.kind = o.objective and C.MS_TERM_KD or C.MS_TERM_CE
    e.objective = o.objective and number[o.objective] or 0
    e.tail = o.tail == 'renormalize' and C.MS_TAIL_RENORMALIZE or C.MS_TAIL_BUCKET
    e.on = o.on == 'all' and 1 or 0
    e.weight, e.norm = o.weight or 1, o.norm or 0
    e.parameter, e.t_scale = o.parameter or 0 / 0, o.t_scale or 0 / 0
    e.temperature = o.T or 1
    e.target = o.target
  end
  return t
end

--- Runs the head over hidden and head tensors. o: label, response, all (tables), budget, values
--- (no gradients), frozen (no head gradient), scale, soft_cap. Returns results (a table for each
--- term), d_hidden, d_head as `float[?]`.
function M.call(hidden, head, list, o)
  local rows, width = hidden:shape()
  local vocab = head:shape()
  local dh, dw = ms.tensor(M.device, rows, width), ms.tensor(M.device, vocab, width)
  local result, terms = ffi.new('ms_term_result[?]', #list), M.terms(list)
  local response = o.response and ffi.new('float[?]', rows, o.response)
  local all = o.all and ffi.new('float[?]', rows, o.all)
  local label = o.label and ffi.new('int32_t[?]', rows, o.label)
  local d_hidden, d_head = not o.values and dh.p or nil, not (o.values or o.frozen) and dw.p or nil
  check(C.ms_head_run(hidden.p, head.p, o.scale or 1, o.soft_cap or 0, label, response, all, #list,
    terms, o.budget or 0, d_hidden, d_head, result), 2)
  local got = {}
  for i = 1, #list do
    local r = result[i - 1]
    got[i] = { value = r.value, weight = r.weight, rows = r.rows, agree = r.agree,
      teacher_mass = r.teacher_mass, student_mass = r.student_mass,
      teacher_entropy = r.teacher_entropy, student_entropy = r.student_entropy }
  end
  local a, b = read(dh, rows * width), read(dw, vocab * width)
  dh:free()
  dw:free()
  return got, a, b
end

--- `call` with chosen student logits; returns results and the gradient of the logits, z[row][id].
function M.run(z, list, o)
  local hidden, head = M.product(z)
  local ok, got, _, d_head = pcall(M.call, hidden, head, list, o)
  hidden:free()
  head:free()
  if not ok then error(got, 2) end
  local g, rows = {}, #z
  for r = 1, rows do
    g[r] = {}
    for v = 1, #z[1] do g[r][v] = d_head[(v - 1) * rows + r - 1] end
  end
  return got, g
end

return M
