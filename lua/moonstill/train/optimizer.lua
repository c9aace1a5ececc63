--- AdamW over a model's parameters, and checkpoints of both. `ms.run` uses it; a loop of one's own
--- may as well.
---
---   local optimizer = ms.optimizer.new(student, { weight_decay = 0.1, clip = 1 })
---   student:learn(batch, { ms.ce() })
---   local norm, skipped = optimizer:step(1e-4)

local ffi = require 'ffi'
local C = require 'moonstill.C'
local callable = require 'moonstill.base.callable'
local check = require 'moonstill.base.check'
local fail = require 'moonstill.base.fail'
local handles = require 'moonstill.base.handle'
local optim = require 'moonstill.train.optim'
local schema = require 'moonstill.base.schema'
local tensor = require 'moonstill.tensor.tensor'
local text = require 'moonstill.base.text'

local M = {}

local out = ffi.new 'ms_optimizer *[1]' -- scratch, read at once
local tensor_out = ffi.new 'ms_tensor *[1]'
local string_out = ffi.new 'char *[1]'
local norm = ffi.new 'double[1]'
local skipped = ffi.new 'int32_t[1]'
local bytes = ffi.new 'int64_t[3]'
local pending = ffi.new 'int32_t[1]'
local waited = ffi.new 'double[1]'

--- A recipe's `optim`, of which AdamW takes what is its own.
M.options = optim

local SHARD = { none = C.MS_SHARD_NONE, optimizer = C.MS_SHARD_OPTIMIZER }
local ADAMW = { 'beta1', 'beta2', 'eps', 'weight_decay', 'clip' }

--- AdamW over the parameters of a model, with its moments.
--- @class ms_optimizer
local optimizer = handles.kind('optimizer', 'ms_optimizer', C.ms_optimizer_free)
local methods, pointer = optimizer.methods, optimizer.pointer

--- An optimiser for a model that was opened to train. From now on the weights of a bf16 model
--- follow the optimiser's f32 masters.
--- @param model ms_model
--- @param options? table see `options`; those of the schedule and of the run are not looked at
--- @param of? ms_ranks whose gradients are summed, and who take every step together; by default the
---   model's `grid.dp`
--- @return ms_optimizer
function M.new(model, options, of)
  local p, o = handles.pointer('model', model), ffi.new 'ms_adamw_options'
  local taken = schema.take('optimizer', M.options, options)
  for _, key in ipairs(ADAMW) do o[key] = taken[key] end
  o.shard = SHARD[taken.shard]
  check(C.ms_optimizer_new(p, (of or model:grid().dp).group, o, out))
  return optimizer.new(out[0])
end

--- One update from the model's gradients, which are zeroed. With a gradient that is not finite, or
--- whose norm is above 1e19 after clipping (its square is not finite), nothing else happens.
--- @param lr number
--- @return number norm of the gradient before clipping
--- @return boolean skipped
function methods:step(lr)
  if type(lr) ~= 'number' then fail('optimizer: lr is a ' .. type(lr) .. ', not a number') end
  local began = C.ms_trace_begin()
  check(C.ms_optimizer_step(pointer(self), lr, norm, skipped))
  C.ms_trace_end(began, C.MS_TRACE_WORK, 'update')
  return norm[0], skipped[0] ~= 0
end

--- How many updates were made.
--- @return integer
function methods:steps() return tonumber(C.ms_optimizer_steps(pointer(self))) end

--- Bytes of moments and masters that this rank has.
--- @return integer
function methods:bytes() return tonumber(C.ms_optimizer_bytes(pointer(self))) end

--- Bytes that ranks that step together send each other in a step, all of them together, by
--- formula. Of n gradients on N ranks: with `shard = "none"` 8 n (N - 1) for gradients; else half
--- of that, n (N - 1) times the size of a weight for weights, 16 (N - 1) for each block of 32768
--- squares of the norm.
--- @return integer gradients
--- @return integer weights
--- @return integer norm
function methods:sends()
  C.ms_optimizer_sends(pointer(self), bytes)
  return tonumber(bytes[0]), tonumber(bytes[1]), tonumber(bytes[2])
end

--- The moments of parameter `i` (from 0), as tensors that share the optimiser's memory. Where ranks
--- share them out (`shard = "optimizer"`) they are copies, which all of these ranks ask for.
--- @param i integer
--- @return ms_tensor first
--- @return ms_tensor second
function methods:moments(i)
  check.integer('optimizer', 'parameter', i, 0, check.INT32)
  local p = pointer(self)
  check(C.ms_optimizer_moment(p, i, 0, tensor_out))
  local first = tensor.wrap(tensor_out[0])
  check(C.ms_optimizer_moment(p, i, 1, tensor_out))
  return first, tensor.wrap(tensor_out[0])
end

-- Calls one of the core's two ways to write.
local function write_by(name, f, self, path, model, state)
  local p, of = pointer(self), handles.pointer('model', model)
  check.path(name, path)
  local began = C.ms_trace_begin()
  check(f(path, of, p, check.text(name, 'state', state)))
  C.ms_trace_end(began, C.MS_TRACE_WORK, 'save')
end

--- Writes model, optimiser and a text of JSON to a folder, as a whole or not at all.
--- @param path string
--- @param model ms_model the optimiser's
--- @param state string
function methods:write(path, model, state)
  write_by('optimizer:write', C.ms_checkpoint_write, self, path, model, state)
end

--- Begins to write the same while training goes on: passes do, and the next step waits until its
--- memory was read. `finish_write` puts it in its place.
--- @param path string
--- @param model ms_model the optimiser's
--- @param state string
function methods:begin_write(path, model, state)
  write_by('optimizer:begin_write', C.ms_checkpoint_begin, self, path, model, state)
end

--- Puts what `begin_write` has begun in its place, if every rank has written its part. All ranks
--- call it.
--- @param wait boolean whether to wait for that
--- @return boolean # whether it is there, or nothing was begun
--- @return number # seconds that steps have waited for it
function methods:finish_write(wait)
  local began = C.ms_trace_begin()
  check(C.ms_checkpoint_end(pointer(self), wait and 1 or 0, pending, waited))
  C.ms_trace_end(began, C.MS_TRACE_WORK, 'save')
  return pending[0] == 0, waited[0]
end

--- Puts model and optimiser into the state of a checkpoint; returns its text of JSON.
--- @param path string
--- @param model ms_model the optimiser's
--- @return string
function methods:read(path, model)
  local p, of = pointer(self), handles.pointer('model', model)
  check(C.ms_checkpoint_read(check.path('optimizer:read', path), of, p, string_out))
  return text(string_out[0])
end

--- The newest complete checkpoint in a folder of checkpoints, or nil. Damaged ones are passed over
--- with a warning.
--- @param path string
--- @return string?
function M.find(path)
  check(C.ms_checkpoint_find(check.path('optimizer.find', path), string_out))
  return text(string_out[0])
end

function optimizer.text(self) return ('optimizer after %d updates'):format(self:steps()) end

return callable(M, 'new')
