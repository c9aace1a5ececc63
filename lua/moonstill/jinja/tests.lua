--- Jinja's tests: tests[name] = { name, params, call, required }; `call(value, ...)` is a boolean.

local bounds = require 'moonstill.jinja.bounds'
local arithmetic = require 'moonstill.jinja.arithmetic'
local calls = require 'moonstill.jinja.calls'
local comparing = require 'moonstill.jinja.comparing'
local methods = require 'moonstill.jinja.methods'
local printing = require 'moonstill.jinja.printing'
local sorted = require 'moonstill.base.sorted'
local strings = require 'moonstill.jinja.strings'
local values = require 'moonstill.jinja.values'

local M = {}

local kind = values.kind

local function def(names, params, call)
  for name in names:gmatch '%S+' do
    M[name] = { name = name, params = params, call = call, required = #params }
  end
end

local function remainder(v, by) return arithmetic.apply('mod', v, by) end

def('odd', {}, function(v) return comparing.equal(remainder(v, 2), 1) end)
def('even', {}, function(v) return comparing.equal(remainder(v, 2), 0) end)
def('divisibleby', { 'num' }, function(v, num) return comparing.equal(remainder(v, num), 0) end)
def('defined', {}, function(v) return kind(v) ~= 'undefined' end)
def('undefined', {}, function(v) return kind(v) == 'undefined' end)
def('none', {}, function(v) return v == values.NONE end)
def('boolean', {}, function(v) return type(v) == 'boolean' end)
def('true', {}, function(v) return v == true end)
def('false', {}, function(v) return v == false end)
def('integer', {}, function(v) return kind(v) == 'int' end)
def('float', {}, function(v) return kind(v) == 'float' end)
def('number', {}, function(v) return values.number(v) ~= nil end)
def('string', {}, strings.is)
def('mapping', {}, function(v) return kind(v) == 'dict' end)
def('lower', {}, function(v) return methods.str.islower.call(printing.str(v)) end)
def('upper', {}, function(v) return methods.str.isupper.call(printing.str(v)) end)
def('callable', {}, calls.is_callable)
def('escaped', {}, strings.is_markup)

local sequences = { str = true, list = true, tuple = true, dict = true, range = true,
  undefined = true }
def('sequence', {}, function(v) return sequences[kind(v)] == true end)
def('iterable', {}, function(v) return kind(v) == 'loop' or values.try_iterate(v) ~= nil end)

def('sameas', { 'other' }, function(v, other)
  if strings.is(v) and strings.is(other) then return strings.text(v) == strings.text(other) end
  return kind(v) == kind(other) and v == other
end)

def('in', { 'seq' }, function(v, seq) return comparing.contains(seq, v) end)
def('== eq equalto', { 'other' }, comparing.equal)
def('!= ne', { 'other' }, function(v, other) return not comparing.equal(v, other) end)
local orders = { lt = '< lt lessthan', lteq = '<= le', gt = '> gt greaterthan', gteq = '>= ge' }
for op, names in sorted.pairs(orders) do
  def(names, { 'other' }, function(v, other) return comparing.order(op, v, other) end)
end

--- A test by its name, which a template gave.
function M.named(name)
  local test = strings.is(name) and M[strings.text(name)]
  if type(test) ~= 'table' then
    bounds.raise("No test named '%s'.", strings.text(printing.str(name)))
  end
  return test
end

return M
