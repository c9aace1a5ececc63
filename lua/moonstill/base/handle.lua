--- Handles: the objects that stand for memory of the core. All are asked in one way: the core's
--- pointer comes out of `pointer`, which is an error for what was freed and for what is none.
---
--- A handle that needs another one in the core keeps it there (the core counts); what Lua hands out
--- beside handles keeps what it points at in its closure.

local ffi = require 'ffi'
local fail = require 'moonstill.base.fail'

local M = {}

local kinds = {} -- by name

-- What a value is, for errors.
local function kind_of(value)
  local name = type(value) == 'cdata' and tostring(ffi.typeof(value)):match '^ctype<(.*)>$'
  return name and name:gsub('^struct %d+$', 'another handle') or type(value)
end

--- A kind of handle. `pointer(x)` gives the core's pointer, `free(x)` frees once; `type` is
--- for the module to set to what `ffi.metatype` gave.
--- @param what string how errors call one, as in 'tensor'
--- @param free fun(p: ffi.cdata*) the core's function
--- @param verb? string how freeing is called, default "free"
--- @return table
function M.kind(what, free, verb)
  local kind = { what = what }

  local function check(x)
    if not ffi.istype(kind.type, x) then fail('%s expected, got %s', what, kind_of(x)) end
  end

  function kind.pointer(x)
    check(x)
    if x.p == nil then fail('%s: used after %s', what, verb or 'free') end
    return x.p
  end

  function kind.free(x)
    check(x)
    if x.p ~= nil then
      free(x.p)
      x.p = nil
    end
  end

  kinds[what] = kind
  return kind
end

--- Whether a value is a handle of a kind, freed or not.
--- @param what string
--- @param x any
--- @return boolean
function M.is(what, x) return kinds[what] ~= nil and ffi.istype(kinds[what].type, x) end

--- The core's pointer of a handle of a module that cannot be required, as it requires the caller.
--- @param what string
--- @param x any
--- @return ffi.cdata*
function M.pointer(what, x) return kinds[what].pointer(x) end

return M
