-- The fused head against a double-precision reference and finite differences of it: every objective
-- and kind of target, temperature, width, k, number of rows, chunk size and weighting.
local ffi = require 'ffi'
local ms = require 'moonstill'
local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local heads = require 'tests.support.heads'
local tools = require 'tests.support.tools'

local WIDTH = 3      -- of the hidden states
local ROWS = 5
local SHARED = 7     -- ids on both sides
local WIDER = 9

-- Multiples of 1/8 with small products: every logit is exact in f32, so that what is compared is the
-- loss and its gradient and not the rounding of the product, which has tests of its own.
local function eighths(rows, cols, seed)
  local flat = tools.integers(rows * cols, seed, 33)
  local m = {}
  for r = 1, rows do
    m[r] = {}
    for c = 1, cols do m[r][c] = (flat[(r - 1) * cols + c - 1] - 16) / 8 end
  end
  return m
end

local function product(x, w) -- x w^T
  local y = {}
  for r, row in ipairs(x) do
    y[r] = {}
    for v, weights in ipairs(w) do
      local sum = 0
      for c, a in ipairs(row) do sum = sum + a * weights[c] end
      y[r][v] = sum
    end
  end
  return y
end

local function tensor(m) return heads.tensor(heads.floats(m), #m, #m[1]) end

local function select_rows(m, weights)
  local chosen = {}
  for r, a in ipairs(weights) do if a > 0 then chosen[#chosen + 1] = m[r] end end
  return chosen
end

-- A student and a teacher of given widths.
local function world(student, teacher)
  local w = { hidden = eighths(ROWS, WIDTH, 1), head = eighths(student, WIDTH, 2),
    t_hidden = eighths(ROWS, 2, 3), t_head = eighths(teacher, 2, 4), label = {} }
  w.z, w.y = product(w.hidden, w.head), product(w.t_hidden, w.t_head)
  for r = 1, ROWS do w.label[r] = (r * 5 + 3) % student end
  return w
end

local worlds = { ['equal widths'] = world(SHARED, SHARED), ['teacher wider'] = world(SHARED, WIDER),
  ['student wider'] = world(WIDER, SHARED) }
worlds['student wider'].label[1] = WIDER - 1 -- a label beyond the shared ids

-- Loss and gradient in the logits of row r for one term, by central differences in double. The
-- step's error is of order (1e-4)^2 of the gradient; rounding gives 1e-16 / 1e-4 of the loss / T.
local function expected_row(w, term, r)
  local z, g = w.z[r], {}
  if not term.objective then
    local base = heads.ce_row(z, w.label[r])
    for v = 1, #z do
      local keep = z[v]
      z[v] = keep + 1e-4
      local up = heads.ce_row(z, w.label[r])
      z[v] = keep - 1e-4
      g[v] = (up - heads.ce_row(z, w.label[r])) / 2e-4
      z[v] = keep
    end
    return base, g
  end
  local base, weights = heads.kd_row(term, z, w.y[r])
  local step = 1e-4 * term.T
  for v = 1, #z do
    local keep = z[v]
    z[v] = keep + step
    local up = heads.kd_row(term, z, w.y[r], weights)
    z[v] = keep - step
    g[v] = (up - heads.kd_row(term, z, w.y[r], weights)) / (2 * step)
    z[v] = keep
  end
  return base, g
end

-- Values of the terms and gradients of hidden states and head, from rows (cached by the caller).
local function expected(w, list, weights_of, row_of)
  local value, dh, dw = {}, {}, {}
  for r = 1, ROWS do
    dh[r] = {}
    for c = 1, WIDTH do dh[r][c] = 0 end
  end
  for v = 1, #w.head do dw[v] = { 0, 0, 0 } end
  for i, term in ipairs(list) do
    local a, sum = weights_of(term), 0
    for r = 1, ROWS do sum = sum + a[r] end
    value[i] = 0
    for r = 1, ROWS do
      if a[r] > 0 then
        local l, g = row_of(term, r)
        value[i] = value[i] + a[r] * l
        local factor = term.weight * a[r] / sum
        for v = 1, #w.head do
          for c = 1, WIDTH do
            dh[r][c] = dh[r][c] + factor * g[v] * w.head[v][c]
            dw[v][c] = dw[v][c] + factor * g[v] * w.hidden[r][c]
          end
        end
      end
    end
  end
  return value, heads.floats(dh), heads.floats(dw)
end

local function largest(x, n)
  local m = 0
  for i = 0, n - 1 do m = math.max(m, math.abs(x[i])) end
  return m
end

-- Log-probabilities are rounded to f32 once (at T = 0.05 they reach 100, half of whose last bit is
-- 4e-6, but only where the mass is nothing), exponentials are within an ulp, and a handful of such
-- errors add up in a gradient: 3e-7 of its largest element is seen at T >= 1, 7e-7 at 0.05.
local function slack(T) return 1e-6 * (1 + 0.05 / T) end

local function close(name, got, want, n, T)
  local room = slack(T) * math.max(largest(want, n), 0.5)
  for i = 0, n - 1 do
    if not (math.abs(got[i] - want[i]) <= room) then
      error(('%s[%d]: got %.9g, want %.9g, off by %.3g times the tolerance'):format(name, i, got[i],
        want[i], math.abs(got[i] - want[i]) / room), 2)
    end
  end
end

local function target_of(w, kind, o, weights)
  local rows = select_rows(w.t_hidden, weights)
  local options = heads.options { kind = kind, k = o.k, on = o.on, vocab = SHARED, T = o.T, Tt = o.Tt }
  local out = ffi.new 'ms_target *[1]'
  if #rows == 0 then
    if kind == 'logits' then check(C.ms_target_logits(options, 0, nil, out))
    else check(C.ms_target_topk(options, 0, nil, nil, nil, out)) end
  else
    local hidden, head = tensor(rows), tensor(w.t_head)
    check(C.ms_target_new(options, hidden.p, head.p, 1, 0, 0, out))
    hidden:free()
    head:free() -- a hidden target keeps it
  end
  return ffi.gc(out[0], C.ms_target_free)
end

local ROW_WEIGHTS = {
  { name = 'no row', response = { 0, 0, 0, 0, 0 }, all = { 0, 0, 0, 0, 0 } },
  { name = 'one row', response = { 0, 0, 0, 2, 0 }, all = { 0, 1, 0, 0, 0 } },
  { name = 'many rows', response = { 1, 0, 0.5, 3, 0 }, all = { 1, 0.25, 0, 1, 2 } },
}

local function run_case(w, kd, rows, on, budget, row_of)
  local a = { response = rows.response, all = rows.all }
  local term = {}
  for k, v in pairs(kd) do term[k] = v end
  term.on, term.weight = on, 0.75
  local target = target_of(w, kd.kind, { k = kd.k, on = on, T = kd.T, Tt = kd.Tt }, a[on])
  term.target = target
  local list = { { weight = 0.5, on = 'response' }, term }
  local hidden, head = tensor(w.hidden), tensor(w.head)
  local got, dh, dw = heads.call(hidden, head, list,
    { label = w.label, response = rows.response, all = rows.all, budget = budget })
  hidden:free()
  head:free()
  local value, want_dh, want_dw = expected(w, list, function(t) return a[t.on] end, row_of)
  for i = 1, 2 do
    local sum, count = 0, 0
    for r = 1, ROWS do
      local x = a[list[i].on][r]
      sum, count = sum + x, count + (x > 0 and 1 or 0)
    end
    assert.equal(sum, got[i].weight)
    assert.equal(count, got[i].rows)
    close('value of term ' .. i, { [0] = got[i].value }, { [0] = value[i] }, 1, kd.T)
  end
  close('d_hidden', dh, want_dh, ROWS * WIDTH, kd.T)
  close('d_head', dw, want_dw, #w.head * WIDTH, kd.T)
end

local KINDS = {
  { kind = 'topk', tail = 'bucket', ks = { 1, 3, SHARED } },
  { kind = 'topk', tail = 'renormalize', ks = { 1, 3, SHARED } },
  { kind = 'hidden', ks = { false } },
  { kind = 'logits', ks = { false } },
}

for _, objective in ipairs(heads.objectives) do
  describe('head: ' .. objective, function()
    for _, how in ipairs(KINDS) do
      for _, T in ipairs { 0.05, 1, 2 } do
        it(('%s %s, T = %g'):format(how.kind, how.tail or '', T), function()
          for _, width in ipairs { 'equal widths', 'teacher wider', 'student wider' } do
            local w = worlds[width]
            for _, k in ipairs(how.ks) do
              local kd = { objective = objective, kind = how.kind, tail = how.tail, T = T, Tt = 1.25,
                k = k or nil, vocab = SHARED }
              local cache = {}
              local function row_of(term, r)
                local key = (term.objective and 'kd' or 'ce') .. r
                local c = cache[key]
                if not c then
                  c = { expected_row(w, term.objective and kd or term, r) }
                  cache[key] = c
                end
                return c[1], c[2]
              end
              for _, rows in ipairs(ROW_WEIGHTS) do
                -- a hidden target without rows is not made from tensors, which have some
                if not (how.kind == 'hidden' and rows.name == 'no row') then
                  for _, on in ipairs { 'response', 'all' } do
                    for _, budget in ipairs { 1, 1000, 0 } do
                      local ok, why = pcall(run_case, w, kd, rows, on, budget, row_of)
                      if not ok then
                        error(('%s, k = %s, %s, on = %s, budget %d: %s'):format(width, tostring(k), rows.name,
                          on, budget, tostring(why)), 0)
                      end
                    end
                  end
                end
              end
            end
          end
        end)
      end
    end
  end)
end

describe('head: any list of terms', function()
  -- Two teachers of different widths (so three ranges of ids), three temperatures, both tails, full
  -- and top-k targets, CE on both kinds of positions, the same target used twice.
  it('adds CE and KD of several teachers', function()
    local w, other = worlds['student wider'], world(WIDER, 6)
    local rows = ROW_WEIGHTS[3]
    local a = { response = rows.response, all = rows.all }
    local function kd(objective, source, o)
      o.objective, o.from, o.vocab = objective, source, source == other and 6 or SHARED
      return o
    end
    local list = {
      { weight = 0.3, on = 'response' },
      kd('forward_kl', w, { weight = 0.5, on = 'response', kind = 'topk', k = 2, T = 1 }),
      kd('js', other, { weight = 0.2, on = 'response', kind = 'topk', k = 3, T = 1, parameter = 0.3 }),
      kd('reverse_kl', w, { weight = 0.7, on = 'all', kind = 'hidden', T = 2 }),
      kd('tvd', w, { weight = 0.4, on = 'all', kind = 'hidden', T = 0.5, t_scale = 3 }),
      kd('adaptive_kl', other, { weight = 0.6, on = 'all', kind = 'topk', k = 4, T = 2, tail = 'renormalize' }),
      { weight = 0.1, on = 'all' },
      kd('skewed_reverse_kl', other, { weight = 0, on = 'response', kind = 'logits', T = 1, Tt = 3 }),
    }
    for i, term in ipairs(list) do
      if term.objective then
        -- term 4's is made without a temperature, so that term 5 may use it at another one
        local options = heads.options { kind = term.kind, k = term.k, on = term.on, vocab = term.vocab,
          T = i == 4 and 0 / 0 or term.T, Tt = term.Tt }
        local hidden, head = tensor(select_rows(term.from.t_hidden, a[term.on])), tensor(term.from.t_head)
        local out = ffi.new 'ms_target *[1]'
        if i == 5 then -- the same teacher's hidden states as term 4
          term.target = list[4].target
        else
          check(C.ms_target_new(options, hidden.p, head.p, 1, 0, 0, out))
          term.target = ffi.gc(out[0], C.ms_target_free)
        end
        hidden:free()
        head:free()
      end
    end
    local value, want_dh, want_dw = expected(w, list, function(t) return a[t.on] end, function(term, r)
      if not term.objective then return expected_row(w, term, r) end
      return expected_row({ z = w.z, y = term.from.y }, term, r)
    end)
    local hidden, head = tensor(w.hidden), tensor(w.head)
    for _, budget in ipairs { 1, 2500, 0 } do
      local got, dh, dw = heads.call(hidden, head, list,
        { label = w.label, response = rows.response, all = rows.all, budget = budget })
      for i = 1, #list do
        close('value of term ' .. i, { [0] = got[i].value }, { [0] = value[i] }, 1, list[i].T or 1)
      end
      close('d_hidden', dh, want_dh, ROWS * WIDTH, 0.5)
      close('d_head', dw, want_dw, WIDER * WIDTH, 0.5)
      local values = heads.call(hidden, head, list,
        { label = w.label, response = rows.response, all = rows.all, budget = budget, values = true })
      local frozen, fh = heads.call(hidden, head, list,
        { label = w.label, response = rows.response, all = rows.all, budget = budget, frozen = true })
      for i = 1, #list do
        assert.same(got[i], values[i])
        assert.same(got[i], frozen[i])
      end
      for i = 0, ROWS * WIDTH - 1 do assert.equal(dh[i], fh[i]) end
    end
    hidden:free()
    head:free()
  end)

  -- The chain rule through the head is above by products in double; here nothing but differences of
  -- the loss in hidden states and weights, through scale and soft cap.
  it('differentiates through scale, soft cap and both products', function()
    local w = worlds['student wider']
    local scale, cap = 0.75, 4
    local function logits(hidden, head)
      local z = product(hidden, head)
      for _, row in ipairs(z) do
        for v, x in ipairs(row) do
          local e = math.exp(-2 * math.abs(scale * x / cap))
          row[v] = cap * (1 - e) / (1 + e) * (x < 0 and -1 or 1)
        end
      end
      return z
    end
    local y, term = logits(w.t_hidden, w.t_head), { objective = 'reverse_kl', T = 1, vocab = SHARED, weight = 0.5 }
    for _, k in ipairs { 3, false } do
      term.k = k or nil
      local function loss()
        local z, sum = logits(w.hidden, w.head), 0
        for r = 1, ROWS do
          sum = sum + (heads.ce_row(z[r], w.label[r]) + 0.5 * heads.kd_row(term, z[r], y[r])) / ROWS
        end
        return sum
      end
      local function differences(m, cols)
        local g = ffi.new('float[?]', #m * cols)
        for r = 1, #m do
          for c = 1, cols do
            local keep = m[r][c]
            m[r][c] = keep + 1e-4
            local up = loss()
            m[r][c] = keep - 1e-4
            g[(r - 1) * cols + c - 1] = (up - loss()) / 2e-4
            m[r][c] = keep
          end
        end
        return g
      end
      local t_hidden, t_head = tensor(w.t_hidden), tensor(w.t_head)
      local out = ffi.new 'ms_target *[1]'
      check(C.ms_target_new(heads.options { kind = k and 'topk' or 'hidden', k = k or 0, vocab = SHARED, on = 'all' },
        t_hidden.p, t_head.p, scale, cap, 0, out))
      local target = ffi.gc(out[0], C.ms_target_free)
      local hidden, head = tensor(w.hidden), tensor(w.head)
      local _, dh, dw = heads.call(hidden, head, { { on = 'all' },
        { objective = 'reverse_kl', on = 'all', weight = 0.5, target = target } },
        { label = w.label, scale = scale, soft_cap = cap, budget = 1000 })
      close('d_hidden', dh, differences(w.hidden, WIDTH), ROWS * WIDTH, 1)
      close('d_head', dw, differences(w.head, WIDTH), WIDER * WIDTH, 1)
      for _, t in ipairs { t_hidden, t_head, hidden, head } do t:free() end
    end
  end)

  it('takes heads in bf16', function()
    local w = worlds['equal widths'] -- eighths are exact in bf16
    local hidden, head, half = tensor(w.hidden), tensor(w.head), ms.tensor(heads.device, 'bf16', SHARED, WIDTH)
    half:copy(head)
    local want, want_dh, want_dw = heads.call(hidden, head, { { on = 'all' } }, { label = w.label })
    local got, dh, dw = heads.call(hidden, half, { { on = 'all' } }, { label = w.label })
    assert.equal(want[1].value, got[1].value)
    close('d_hidden', dh, want_dh, ROWS * WIDTH, 1)
    close('d_head', dw, want_dw, SHARED * WIDTH, 1)
    for _, t in ipairs { hidden, head, half } do t:free() end
  end)
end)

-- Rows longer than a cache block and no multiple of a vector: gradients along random directions and
-- at single ids that matter (support, outside, label, first and last shared id, beyond it).
describe('head: long rows', function()
  local V, SHORT = 9001, 8999
  local function row(seed, scale)
    local v, r = tools.values(V, seed, scale), {}
    for i = 1, V do r[i] = v[i - 1] end
    return r
  end
  local z, y = { row(5, 4), row(6, 4) }, { row(7, 5), row(8, 5) }
  z[1][V], y[1][17] = 12, 9      -- mass beyond the shared ids; a teacher that is sure
  local label = { V - 1, 20 }
  for _, objective in ipairs(heads.objectives) do
    for _, how in ipairs { { 'topk', 'bucket' }, { 'topk', 'renormalize' }, { 'logits' } } do
      it(('%s %s %s'):format(objective, how[1], how[2] or ''), function()
        local term = { objective = objective, T = 0.7, vocab = SHORT, k = how[1] == 'topk' and 50 or nil,
          tail = how[2] }
        local target = heads.target(y, { kind = how[1], k = 50, vocab = SHORT, T = 0.7, on = 'all' })
        local list = { { on = 'all', weight = 0.5 },
          { objective = objective, on = 'all', T = 0.7, tail = how[2], target = target } }
        local got, g = heads.run(z, list, { label = label })
        local kd, ce, weights = 0, 0, {}
        for r = 1, 2 do
          local l
          l, weights[r] = heads.kd_row(term, z[r], y[r])
          kd, ce = kd + l, ce + heads.ce_row(z[r], label[r])
        end
        tools.close({ got[1].value, got[2].value }, { ce, kd }, 'f32', 20)
        local function along(r, direction)
          local moved, step = {}, 1e-3
          local function at(sign)
            for i = 1, V do moved[i] = z[r][i] + sign * step * direction(i) end
            return (0.5 * heads.ce_row(moved, label[r]) + heads.kd_row(term, moved, y[r], weights[r])) / 2
          end
          local dot = 0
          for i = 1, V do dot = dot + g[r][i] * direction(i) end
          return dot, (at(1) - at(-1)) / (2 * step)
        end
        local noise = tools.values(V, 11)
        local top, kth = 1, 40
        for i = 1, SHORT do if y[1][i] > y[1][top] then top = i end end
        local directions = { function(i) return noise[i - 1] end }
        for _, id in ipairs { top, kth, V, SHORT, 1, 4096, 4097, label[1] + 1 } do
          directions[#directions + 1] = function(i) return i == id and 1 or 0 end
        end
        for d, direction in ipairs(directions) do
          local dot, want = along(1, direction)
          -- differences: step^2 / T^2 of a gradient below 1, and 1e-12 / step of rounding
          if not (math.abs(dot - want) <= 3e-6 * math.max(1, math.abs(want))) then
            error(('direction %d: %.9g, want %.9g'):format(d, dot, want))
          end
        end
        local dot, want = along(2, directions[1])
        assert.is_true(math.abs(dot - want) <= 3e-6 * math.max(1, math.abs(want)))
      end)
    end
  end
end)

describe('head: layout does not matter', function()
  local R, V, H = 23, 300, 16
  local head, t_hidden, t_head
  local label, response = {}, {}
  setup(function()
    head = heads.tensor(tools.values(V * H, 2), V, H)
    t_hidden, t_head = tools.values(R * H, 3, 2), heads.tensor(tools.values(V * H, 4), V, H)
    for r = 1, R do
      label[r] = (r * 37) % V
      response[r] = r % 4 == 0 and 0 or 0.5 + r % 3
    end
  end)

  -- Rows `from` .. `to` as a call of its own, norms those of the whole.
  local function part(rows, norm, budget)
    local n = #rows
    local h, th = ffi.new('float[?]', n * H), ffi.new('float[?]', n * H)
    local values, m, l, a = tools.values(R * H, 1, 2), 0, {}, {}
    for i, r in ipairs(rows) do
      l[i], a[i] = label[r], response[r]
      for c = 0, H - 1 do
        h[(i - 1) * H + c] = values[(r - 1) * H + c]
        if response[r] > 0 then th[m * H + c] = t_hidden[(r - 1) * H + c] end
      end
      if response[r] > 0 then m = m + 1 end
    end
    local x, list = heads.tensor(h, n, H), { { weight = 0.5, norm = norm } }
    local t, out = m > 0 and heads.tensor(th, m, H), ffi.new 'ms_target *[1]'
    for i, kind in ipairs { 'topk', 'hidden' } do
      local options = heads.options { kind = kind, k = 8 }
      if m > 0 then
        check(C.ms_target_new(options, t.p, t_head.p, 1, 0, 0, out))
      else
        options.kind, options.vocab, options.k = C.MS_TARGET_TOPK, V, 8
        check(C.ms_target_topk(options, 0, nil, nil, nil, out))
      end
      list[i + 1] = { objective = i == 1 and 'forward_kl' or 'js', norm = norm, weight = 0.4,
        target = ffi.gc(out[0], C.ms_target_free) }
    end
    local got, dh, dw = heads.call(x, head, list, { label = l, response = a, budget = budget })
    x:free()
    if t then t:free() end
    return got, dh, dw
  end

  local function whole(budget)
    local rows, norm = {}, 0
    for r = 1, R do rows[r], norm = r, norm + response[r] end
    local got, dh, dw = part(rows, norm, budget)
    return got, dh, dw, norm
  end

  local function compare(got, want, n, what)
    local room = 1e-5 * largest(want, n) -- DESIGN section 4: of the largest element
    for i = 0, n - 1 do
      if not (math.abs(got[i] - want[i]) <= room) then error(what .. ' differs at ' .. i) end
    end
  end

  it('chunks', function()
    local want, want_dh, want_dw = whole(0)
    for _, budget in ipairs { 1, 5000, 9000, 20000 } do
      local got, dh, dw = whole(budget)
      for i = 1, 3 do
        assert.is_true(math.abs(got[i].value - want[i].value) <= 1e-6 * math.abs(want[i].value))
      end
      compare(dh, want_dh, R * H, 'd_hidden')
      compare(dw, want_dw, V * H, 'd_head')
    end
  end)

  it('micro-batches and packing order', function()
    local want, want_dh, want_dw, norm = whole(0)
    for _, cuts in ipairs { { 1, 2, 10, R + 1 }, { 1, 12, R + 1 } } do
      local sum, dh, dw = { 0, 0, 0 }, ffi.new('float[?]', R * H), ffi.new('float[?]', V * H)
      for c = 1, #cuts - 1 do
        local rows = {}
        for r = cuts[c + 1] - 1, cuts[c], -1 do rows[#rows + 1] = r end -- backwards: another packing
        local got, ph, pw = part(rows, norm, 0)
        for i = 1, 3 do sum[i] = sum[i] + got[i].value end
        for i, r in ipairs(rows) do ffi.copy(dh + (r - 1) * H, ph + (i - 1) * H, H * 4) end
        for i = 0, V * H - 1 do dw[i] = dw[i] + pw[i] end
      end
      for i = 1, 3 do assert.is_true(math.abs(sum[i] - want[i].value) <= 1e-6 * math.abs(want[i].value)) end
      compare(dh, want_dh, R * H, 'd_hidden')
      compare(dw, want_dw, V * H, 'd_head')
    end
  end)

  it('top-k rows that the teacher made, or that were read from it and given back', function()
    local K, on_all = 20, {}
    for r = 1, R do on_all[r] = 1 end
    local x, t = heads.tensor(tools.values(R * H, 1, 2), R, H), heads.tensor(t_hidden, R, H)
    local out = ffi.new 'ms_target *[1]'
    local options = heads.options { kind = 'topk', k = K, vocab = V, on = 'all' }
    check(C.ms_target_new(options, t.p, t_head.p, 1, 0, 0, out))
    local made = ffi.gc(out[0], C.ms_target_free)
    local id, lp, rest = ffi.new('int32_t[?]', R * K), ffi.new('float[?]', R * K), ffi.new('float[?]', R)
    check(C.ms_target_read(made, id, lp, rest))
    check(C.ms_target_topk(options, R, id, lp, rest, out))
    local given = ffi.gc(out[0], C.ms_target_free)
    for _, budget in ipairs { 0, 9000 } do
      -- several terms, so that what lies beside the rows of one is the other's
      local function run(target)
        return heads.call(x, head, { { objective = 'forward_kl', on = 'all', target = target },
          { objective = 'js', on = 'all', target = target }, { weight = 0.5, on = 'all' } },
          { label = label, all = on_all, budget = budget })
      end
      local want, want_dh, want_dw = run(made)
      local got, dh, dw = run(given)
      for i = 1, 3 do tools.close({ got[i].value }, { want[i].value }, 'f64', 4) end
      compare(dh, want_dh, R * H, 'd_hidden') -- chunks of another size, since the rows take room
      compare(dw, want_dw, V * H, 'd_head')
    end
    x:free()
    t:free()
  end)

  it('threads: bit for bit', function()
    local before = C.ms_threads_get()
    C.ms_threads_set(1)
    local want, want_dh, want_dw = whole(9000)
    C.ms_threads_set(3)
    local got, dh, dw = whole(9000)
    C.ms_threads_set(before)
    assert.same(want, got)
    assert.equal(ffi.string(want_dh, R * H * 4), ffi.string(dh, R * H * 4))
    assert.equal(ffi.string(want_dw, V * H * 4), ffi.string(dw, V * H * 4))
  end)

  it('memory that fails is an error and nothing stays behind', function()
    collectgarbage()
    collectgarbage()
    local live, n, failures = C.ms_test_live(), 0, 0
    repeat
      n = n + 1
      C.ms_test_fail_alloc(n)
      local ok, why = pcall(whole, 5000)
      assert.equal(ok, C.ms_test_fail_alloc(0) > 0) -- passed over where not
      if not ok then
        failures = failures + 1
        assert.matches('no memory', tostring(why))
      end
      collectgarbage()
      collectgarbage()
      assert.equal(live, C.ms_test_live())
    until ok
    assert.is_true(failures > 10)
  end)
end)
