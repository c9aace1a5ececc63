--- Modules whose one job is to make one kind of thing: `ms.tensor(..)` is `ms.tensor.new(..)`.

--- Makes a module callable. `help` finds by the name in its metatable, `calls`, which function that
--- is.
--- @param module table
--- @param name string of its function
--- @return table module
return function(module, name)
  local f = assert(module[name], name)
  local mt = getmetatable(module) or {}
  mt.__call, mt.calls = function(_, ...) return f(...) end, name
  return setmetatable(module, mt)
end
