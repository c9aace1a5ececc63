--- Busted's output for this project: a sign for each test while they run, then what failed and why
--- others were skipped, and as the last line `N passed, N failed, N skipped`.
return function(options)
  local busted = require 'busted'
  local handler = require 'busted.outputHandlers.base'()
  local signs = { success = '.', pending = 's', failure = 'F', error = 'E' }
  local column = 0

  local function put(sign)
    io.write(sign)
    column = (column + 1) % 100
    if column == 0 then io.write '\n' end
    io.flush()
  end

  local function report(kind, failure)
    local trace = failure.element.trace or failure.trace or {}
    local message = failure.message
    if message == nil then message = 'no reason given' end
    if type(message) ~= 'string' then message = require 'pl.pretty'.write(message) end
    io.write(('%s: %s\n  %s:%s\n  %s\n'):format(kind, failure.name, trace.short_src or '?',
      trace.currentline or '?', (message:gsub('\n', '\n  '))))
    if (options.verbose or os.getenv 'MS_TRACE') and failure.trace and failure.trace.traceback then
      io.write(failure.trace.traceback, '\n')
    end
  end

  --- Skipped tests are many where a file is absent: one line for each reason.
  local function report_skipped()
    local order, count = {}, {}
    for _, skipped in ipairs(handler.pendings) do
      -- pending(name, reason) keeps the reason where a test keeps its function
      local why = skipped.message or skipped.element.run
      if type(why) ~= 'string' then why = 'no reason given' end
      why = why:gsub('^%S*busted:%d+: ', '') -- where Busted itself stood
      if not count[why] then order[#order + 1] = why end
      count[why] = (count[why] or 0) + 1
    end
    for _, why in ipairs(order) do io.write(('skipped %d: %s\n'):format(count[why], why)) end
  end

  function handler.testEnd(_, _, status)
    put(signs[status] or '?')
    return nil, true
  end

  function handler.suiteEnd()
    if column > 0 then io.write '\n' end
    report_skipped()
    for _, failure in ipairs(handler.failures) do report('failed', failure) end
    for _, failure in ipairs(handler.errors) do report('error', failure) end
    io.write(('%d passed, %d failed, %d skipped\n'):format(handler.successesCount,
      handler.failuresCount + handler.errorsCount, handler.pendingsCount))
    io.flush()
    return nil, true
  end

  busted.subscribe({ 'test', 'end' }, handler.testEnd, { predicate = handler.cancelOnPending })
  busted.subscribe({ 'suite', 'end' }, handler.suiteEnd)
  return handler
end
