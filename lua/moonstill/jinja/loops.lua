--- The variable `loop`: where a loop is, and what it knows of its elements.

local bounds = require 'moonstill.jinja.bounds'
local comparing = require 'moonstill.jinja.comparing'
local values = require 'moonstill.jinja.values'

local Loop = {}
Loop.__index = Loop

local raise, undefined = bounds.raise, values.undefined

local function has_length(v)
  local kind = values.kind(v)
  return kind ~= 'iterator' and kind ~= 'loop'
end

--- Goes to the next element, which it returns; nil at the end.
function Loop:next()
  local item = self.after
  if item ~= nil then
    self.after = nil
  elseif not self.ended then
    item = self.step()
  end
  if item == nil then
    self.ended = true
    return nil
  end
  self.index0 = self.index0 + 1
  self.before, self.current = self.current, item
  return item
end

local function peek(self)
  if self.after == nil and not self.ended then
    self.after = self.step()
    if self.after == nil then self.ended = true end
  end
  return self.after
end

-- How many elements there are. What cannot say it is gone over first.
function Loop:length()
  if self.count then return self.count end
  if has_length(self.iterable) then
    self.count = values.length(self.iterable)
    return self.count
  end
  local rest, n = values.elements(values.iterator('generator', self.step))
  self.step = values.iterate(values.list(rest, n))
  self.count = n + self.index0 + 1 + (self.after ~= nil and 1 or 0)
  return self.count
end

local function cycle(self)
  return { kind = 'function', name = 'cycle', raw = function(_, args, n)
    if n == 0 then raise 'no items for cycling given' end
    return args[self.index0 % n + 1]
  end }
end

local function changed(self)
  return { kind = 'function', name = 'changed', raw = function(_, args, n)
    local now = {}
    for i = 1, n do now[i] = args[i] end
    now = values.tuple(now, n)
    if self.last_changed and comparing.equal(self.last_changed, now) then return false end
    self.last_changed = now
    return true
  end }
end

local attributes = {
  index = function(self) return self.index0 + 1 end,
  index0 = function(self) return self.index0 end,
  first = function(self) return self.index0 == 0 end,
  last = function(self) return peek(self) == nil end,
  length = Loop.length,
  revindex = function(self) return self:length() - self.index0 end,
  revindex0 = function(self) return self:length() - self.index0 - 1 end,
  depth = function(self) return self.depth0 + 1 end,
  depth0 = function(self) return self.depth0 end,
  previtem = function(self)
    if self.index0 == 0 then return undefined 'there is no previous item' end
    return self.before
  end,
  nextitem = function(self)
    local item = peek(self)
    if item == nil then return undefined 'there is no next item' end
    return item
  end,
  cycle = cycle,
  changed = changed,
}

--- An attribute of the loop, or nil.
function Loop:attribute(name)
  local get = attributes[name]
  return get and get(self)
end

--- Renders the body of a recursive loop over other elements.
function Loop:recurse(args, n)
  if not self.again then
    raise "The loop must have the 'recursive' marker to be called recursively."
  end
  if n ~= 1 then raise('loop() takes 1 argument, got %d', n) end
  return self.again(args[1], self.depth0 + 1)
end

local M = {}

--- A loop over a value. `step` gives its elements, `again` renders the loop over others.
function M.new(iterable, step, depth0, again)
  return setmetatable({ kind = 'loop', iterable = iterable, step = step, index0 = -1,
    depth0 = depth0, again = again }, Loop)
end

return M
