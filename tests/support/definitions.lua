--- The operations' definitions in plain double precision, and finite differences over them. Arrays
--- are FFI arrays from 0; a function returns its results as `double[n]`. Nothing here is fast.
local ffi = require 'ffi'

local M = {}

local function new(n) return ffi.new('double[?]', n) end
M.new = new

--- The n values of `x` as doubles.
function M.doubles(x, n)
  local y = new(n)
  for i = 0, n - 1 do y[i] = x[i] end
  return y
end

--- y [rows, out] = x [rows, in] w [out, in]^T
function M.linear(x, w, rows, inner, out)
  local y = new(rows * out)
  for r = 0, rows - 1 do
    for o = 0, out - 1 do
      local sum = 0
      for i = 0, inner - 1 do sum = sum + x[r * inner + i] * w[o * inner + i] end
      y[r * out + o] = sum
    end
  end
  return y
end

--- dx [rows, in] = dy [rows, out] w [out, in]
function M.linear_dx(dy, w, rows, inner, out)
  local dx = new(rows * inner)
  for r = 0, rows - 1 do
    for o = 0, out - 1 do
      local d = dy[r * out + o]
      for i = 0, inner - 1 do dx[r * inner + i] = dx[r * inner + i] + d * w[o * inner + i] end
    end
  end
  return dx
end

--- dw [out, in] = dy [rows, out]^T x [rows, in]
function M.linear_dw(dy, x, rows, inner, out)
  local dw = new(out * inner)
  for r = 0, rows - 1 do
    for o = 0, out - 1 do
      local d = dy[r * out + o]
      for i = 0, inner - 1 do dw[o * inner + i] = dw[o * inner + i] + d * x[r * inner + i] end
    end
  end
  return dw
end

--- y and 1 / sqrt(mean square + eps) of each row; `offset` (0) is added to the weights.
function M.rmsnorm(x, w, rows, cols, eps, offset)
  local y, rstd = new(rows * cols), new(rows)
  for r = 0, rows - 1 do
    local sum = 0
    for c = 0, cols - 1 do sum = sum + x[r * cols + c] ^ 2 end
    rstd[r] = 1 / math.sqrt(sum / cols + eps)
    for c = 0, cols - 1 do y[r * cols + c] = x[r * cols + c] * rstd[r] * (w[c] + (offset or 0)) end
  end
  return y, rstd
end

--- x [tokens, heads, dim] with pairs (i, i + pairs) of each head turned by angle[position, i].
function M.rope(x, position, angle, tokens, heads, dim, pairs_, sign)
  local y = M.doubles(x, tokens * heads * dim)
  for t = 0, tokens - 1 do
    for h = 0, heads - 1 do
      local at = (t * heads + h) * dim
      for i = 0, pairs_ - 1 do
        local a = angle[position[t] * pairs_ + i]
        local c, s = math.cos(a), sign * math.sin(a)
        y[at + i] = x[at + i] * c - x[at + i + pairs_] * s
        y[at + i + pairs_] = x[at + i + pairs_] * c + x[at + i] * s
      end
    end
  end
  return y
end

--- cap tanh(x / cap), and its derivative; no cap: x and 1.
local function soft_cap(x, cap)
  if not cap then return x, 1 end
  local t = 2 / (1 + math.exp(-2 * x / cap)) - 1
  return cap * t, 1 - t * t
end

--- One query against keys from..to (rows of [*, kv_heads, dim]); adds to y, returns log-sum-exp.
local function attend(y, q, at, k, v, from, to, kv_heads, kv, dim, scale, cap)
  local score, top, sum = {}, -math.huge, 0
  for j = from, to do
    local s, key = 0, (j * kv_heads + kv) * dim
    for c = 0, dim - 1 do s = s + q[at + c] * k[key + c] end
    score[j] = soft_cap(s * scale, cap)
    top = math.max(top, score[j])
  end
  for j = from, to do sum = sum + math.exp(score[j] - top) end
  for j = from, to do
    local p, key = math.exp(score[j] - top) / sum, (j * kv_heads + kv) * dim
    for c = 0, dim - 1 do y[at + c] = y[at + c] + p * v[key + c] end
  end
  return top + math.log(sum)
end

--- Causal attention within segments; `s` has tokens, start (table of segment starts), heads,
--- kv_heads, dim, window, scale and perhaps cap. Returns y [tokens, heads, dim] and lse [tokens, heads].
function M.attention(q, k, v, s)
  local y, lse = new(s.tokens * s.heads * s.dim), new(s.tokens * s.heads)
  for g = 1, #s.start - 1 do
    for t = s.start[g], s.start[g + 1] - 1 do
      local from = s.window > 0 and math.max(s.start[g], t - s.window + 1) or s.start[g]
      for h = 0, s.heads - 1 do
        local kv = math.floor(h / (s.heads / s.kv_heads))
        local at = (t * s.heads + h) * s.dim
        lse[t * s.heads + h] = attend(y, q, at, k, v, from, t, s.kv_heads, kv, s.dim, s.scale,
          s.cap)
      end
    end
  end
  return y, lse
end

--- dq, dk and dv of attention, from the definition of the softmax's derivative:
--- ds_j = p_j (dy v_j - sum_i p_i dy v_i).
function M.attention_backward(dy, q, k, v, s)
  local dq, dk = new(s.tokens * s.heads * s.dim), new(s.tokens * s.kv_heads * s.dim)
  local dv = new(s.tokens * s.kv_heads * s.dim)
  local _, lse = M.attention(q, k, v, s)
  for g = 1, #s.start - 1 do
    for t = s.start[g], s.start[g + 1] - 1 do
      local from = s.window > 0 and math.max(s.start[g], t - s.window + 1) or s.start[g]
      for h = 0, s.heads - 1 do
        local kv, at = math.floor(h / (s.heads / s.kv_heads)), (t * s.heads + h) * s.dim
        local p, dp, slope, mean = {}, {}, {}, 0
        for j = from, t do
          local key, score, d = (j * s.kv_heads + kv) * s.dim, 0, 0
          for c = 0, s.dim - 1 do
            score = score + q[at + c] * k[key + c]
            d = d + dy[at + c] * v[key + c]
          end
          score, slope[j] = soft_cap(score * s.scale, s.cap)
          p[j], dp[j] = math.exp(score - lse[t * s.heads + h]), d
          mean = mean + p[j] * d
        end
        for j = from, t do
          local key, ds = (j * s.kv_heads + kv) * s.dim, p[j] * (dp[j] - mean) * slope[j] * s.scale
          for c = 0, s.dim - 1 do
            dq[at + c] = dq[at + c] + ds * k[key + c]
            dk[key + c] = dk[key + c] + ds * q[at + c]
            dv[key + c] = dv[key + c] + p[j] * dy[at + c]
          end
        end
      end
    end
  end
  return dq, dk, dv
end

--- Row r of q against keys first[r] .. first[r] + length[r] - 1 of cache row slot[r].
function M.attention_cached(q, k, v, slot, first, length, rows, capacity, heads, kv_heads, dim,
                            scale, cap)
  local y = new(rows * heads * dim)
  for r = 0, rows - 1 do
    local from = slot[r] * capacity + first[r]
    local to = from + length[r] - 1
    for h = 0, heads - 1 do
      local kv = math.floor(h / (heads / kv_heads))
      attend(y, q, (r * heads + h) * dim, k, v, from, to, kv_heads, kv, dim, scale, cap)
    end
  end
  return y
end

--- silu(gate) * up
function M.swiglu(gate, up, n)
  local y = new(n)
  for i = 0, n - 1 do y[i] = gate[i] / (1 + math.exp(-gate[i])) * up[i] end
  return y
end

--- gelu(gate) * up, in the tanh form: 1/2 (1 + tanh u) is 1 / (1 + e^(-2u)).
function M.geglu(gate, up, n)
  local y = new(n)
  for i = 0, n - 1 do
    local u = math.sqrt(2 / math.pi) * (gate[i] + 0.044715 * gate[i] ^ 3)
    y[i] = gate[i] / (1 + math.exp(-2 * u)) * up[i]
  end
  return y
end

--- torch.optim.AdamW's update number `step` of w, m and v, in place.
function M.adamw(w, m, v, g, n, step, lr, beta1, beta2, eps, decay)
  for i = 0, n - 1 do
    w[i] = w[i] * (1 - lr * decay)
    m[i] = beta1 * m[i] + (1 - beta1) * g[i]
    v[i] = beta2 * v[i] + (1 - beta2) * g[i] ^ 2
    local root = math.sqrt(v[i] / (1 - beta2 ^ step)) + eps
    w[i] = w[i] - lr / (1 - beta1 ^ step) * m[i] / root
  end
end

--- The gradient of sum(r * f(x)) with respect to x [n], by central differences. `f` returns
--- `double[count]`; x holds doubles and is put back. With h = 1e-5 and values near 1 the error is
--- about 1e-10, far below f32.
function M.gradient(f, x, n, r, count, h)
  h = h or 1e-5
  local function value()
    local y, sum = f(), 0
    for i = 0, count - 1 do sum = sum + r[i] * y[i] end
    return sum
  end
  local d = new(n)
  for i = 0, n - 1 do
    local keep = x[i]
    x[i] = keep + h
    local high = value()
    x[i] = keep - h
    d[i] = (high - value()) / (2 * h)
    x[i] = keep
  end
  return d
end

return M
