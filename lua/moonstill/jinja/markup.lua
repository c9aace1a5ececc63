--- Texts marked as HTML: what the filters safe and escape give.
---
--- A chat template is no HTML, and yet such a text behaves as Python's: `+`, `%` and some methods
--- escape what is put to it, and what its methods give is marked too.

local printing = require 'moonstill.jinja.printing'
local strings = require 'moonstill.jinja.strings'
local values = require 'moonstill.jinja.values'

local M = {}

-- A value as it is put into a marked text: numbers have nothing to escape.
local function escaped(v)
  if not strings.is(v) and values.number(v) then return v end
  return strings.escape(printing.str(v))
end

local function escaped_list(v, make)
  local items, n = values.elements(v)
  local list = {}
  for i = 1, n do list[i] = escaped(items[i]) end
  return make(list, n)
end

local function escaped_dict(v)
  local copy = values.dict()
  for i = 1, v and v.n or 0 do
    values.dict_set(copy, values.dict_key(v, i), escaped(v.map[v.keys[i]]))
  end
  return copy
end

--- What stands behind the % of a marked text.
function M.operand(v)
  local kind = values.kind(v)
  if kind == 'tuple' then return escaped_list(v, values.tuple) end
  if kind == 'dict' then return escaped_dict(v) end
  return escaped(v)
end

local function second(args)
  return { args[1], strings.is(args[2]) and strings.escape(args[2]) or args[2], args[3] }
end

local function text_list(v)
  local items, n = values.elements(v)
  local list = {}
  for i = 1, n do list[i] = strings.escape(printing.str(items[i])) end
  return values.list(list, n)
end

local changes = {
  join = function(args) return { text_list(args[1]) } end,
  replace = second, center = second, ljust = second, rjust = second,
  format = function(args, n, kw)
    local list = {}
    for i = 1, n do list[i] = escaped(args[i]) end
    return list, escaped_dict(kw)
  end,
  format_map = function(args) return { M.operand(args[1]) } end,
}

--- The arguments of a method of a marked text: escaped where they get into it.
--- @param name string the method
function M.arguments(name, args, n, kw)
  local change = changes[name]
  if not change or n == 0 and name ~= 'format' then return args, kw end
  local list, by_name = change(args, n, kw)
  return list, by_name or kw
end

--- What a method of a marked text gives: its texts are marked.
function M.keep(v)
  if strings.is(v) then return strings.markup(v) end
  local kind = values.kind(v)
  if kind ~= 'list' and kind ~= 'tuple' then return v end
  local list = {}
  for i = 1, v.n do list[i] = strings.markup(v[i]) end
  return kind == 'list' and values.list(list, v.n) or values.tuple(list, v.n)
end

return M
