--- `ms.scope(body)` runs `body(own)`; what it passes to `own` is freed in reverse when it ends, by
--- return or by error. Returns what `body` returns.
---
---   ms.scope(function(own)
---     local m = own(ms.model.open 'models/teacher')
---   end)
local check = require 'moonstill.base.check'
local trace = require 'moonstill.base.trace'

local function finish(list, ok, ...)
  for i = #list, 1, -1 do list[i]:free() end
  if not ok then error((...), 0) end
  return ...
end

--- @param body fun(own: fun(x: any): any): ... gets `own`, which returns what it is given
--- @return any ... what `body` returns
return function(body)
  check.func('scope', 'body', body)
  local list = {}
  local function own(x)
    list[#list + 1] = x
    return x
  end
  return finish(list, xpcall(body, trace.handler, own))
end
