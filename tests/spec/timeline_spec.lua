--- Timelines of ranks: what their time was spent on, as numbers, picture and file.
local C = require 'moonstill.C'
local ffi = require 'ffi'
local json = require 'moonstill.base.json'
local launched = require 'tests.support.launched'
local picture = require 'moonstill.plot.timeline'
local tools = require 'tests.support.tools'

local WORK, DATA, TEACHER, PEER = C.MS_TRACE_WORK, C.MS_TRACE_DATA, C.MS_TRACE_TEACHER, C.MS_TRACE_PEER

-- In no order, as the core has those that end first: a wait in work in work, and rest between them.
local function events()
  return { { began = 2, ended = 3, cause = PEER, what = 'all_reduce' },
    { began = 1, ended = 5, cause = WORK, what = 'learn' },
    { began = 6, ended = 6.5, cause = TEACHER, what = 'targets' },
    { began = 5, ended = 7, cause = WORK, what = 'targets' },
    { began = 7, ended = 7.25, cause = DATA, what = 'batch' },
    { began = 8, ended = 9, cause = WORK, what = 'save' } }
end

describe('a timeline', function()
  it('tells what each moment was spent on', function()
    local of = picture.seconds(events())
    assert.same({ learn = 3, targets = 1.5, update = 0, work = 1, data = 0.25, teacher = 0.5, peer = 1, waits = 1.75 },
      of)
    assert.equal('works 81 %, waits for data 3 %, for a teacher 6 %, for others 11 %', picture.words(of, 9))
    assert.equal('works 100 %', picture.words({ data = 0, teacher = 0, peer = 0.004, waits = 0.004 }, 1))
  end)

  it('is drawn: each second as wide, each class as high as its share', function()
    local list = events()
    local tracks = { { name = 'rank <0>', about = 'works', slowest = true, seconds = picture.seconds(list),
      events = list } }
    local svg = picture.svg(tracks, 10) -- 90 pixels a second, from 250 on; a row from 64 to 94
    tools.says({ 'rank &lt;0&gt;, the slowest', '>waits for a teacher<', '>the rest (Lua)<' }, svg)
    assert.is_nil(svg:find('>updates<', 1, true))
    local paths = {}
    for path, colour in svg:gmatch '<path d="(.-)" fill="(.-)"' do paths[colour] = path end
    assert.equal('M250,94H340V64H430V94H520V64H700V94H1150V94Z', paths['#0072b2'])
    -- what is drawn later lies over it: learning leaves the second from 2 to 3 to the wait
    assert.equal('M250,94H340V64H902V79H903V94H970V64H1060V94H1150V94Z', paths['#d55e00'])
  end)

  it('costs nothing where none is kept', function()
    C.ms_trace_stop()
    assert.equal(0, C.ms_trace_begin())
    C.ms_trace_end(0, WORK, 'x')
    local out = ffi.new 'const ms_trace_event *[1]'
    assert.equal(0, tonumber(C.ms_trace_events(out)))
    assert.equal(0, C.ms_trace_start(2))
    for _ = 1, 3 do C.ms_trace_end(C.ms_trace_begin(), WORK, ('long'):rep(20)) end
    assert.equal(3, tonumber(C.ms_trace_events(out))) -- of which two are there
    assert.equal(('long'):rep(6) .. 'lon', ffi.string(out[0][1].what))
    assert.is_true(out[0][0].began > 0 and out[0][0].ended >= out[0][0].began)
    C.ms_trace_stop()
    assert.is_true(C.ms_trace_start(0) ~= 0)
  end)
end)

describe('the timeline of a run', function()
  if launched.missing then return it('has all ranks', function() pending(launched.missing) end) end

  local folder = tools.folder()
  local RECIPE = 'tests/programs/run_recipe.lua'

  it('has all ranks, and names the slowest', function()
    local status, _, err = launched.run('-n', 3, RECIPE, 'output=' .. folder .. '/run', 'trace=' .. folder .. '/t.json',
      'slow=150', 'on_rank=2')
    assert.equal(0, status, err)
    tools.says({ ('timeline: %s/t.json, and %s/t.svg'):format(folder, folder), 'rank 2, the slowest, works ' }, err)
    local slowest = tonumber(err:match 'the slowest, works (%d+) %%')
    for rank = 0, 1 do -- each of 20 steps waits 150 ms for the other
      local works = tonumber(err:match(('rank %d works (%%d+) %%%%'):format(rank)))
      assert.is_true(works < slowest, err)
    end
    local counts, waits = {}, { [0] = 0, 0, 0 }
    for _, e in ipairs(json.read(folder .. '/t.json').traceEvents) do
      if e.ph == 'X' then
        assert.is_true(e.ts >= 0 and e.dur >= 0)
        counts[e.name] = (counts[e.name] or 0) + 1
        if e.cat == 'peer' then waits[e.pid] = waits[e.pid] + e.dur / 1e6 end
      end
    end
    assert.equal(3 * 20, counts.update)
    assert.is_true(counts.learn >= 3 * 20 and counts.targets >= counts.learn and counts.batch >= 20)
    assert.equal(3 * 5, counts.save)
    assert.is_true(waits[0] > 19 * 0.1 and waits[1] > 19 * 0.1 and waits[0] > waits[2] and waits[1] > waits[2])
    assert.equal(0, (tools.run('xmllint --noout ' .. folder .. '/t.svg 2>/dev/null || grep -q "</svg>" ' .. folder
      .. '/t.svg')))
  end)

  it('tells waits for a teacher from others', function()
    local status, out, err = launched.run('-n', 2, '-e', [[
      local ffi, C, w = require 'ffi', require 'moonstill.C', require 'moonstill.base.ranks'.world()
      C.ms_trace_start(100)
      local before = C.ms_trace_waits_for(C.MS_TRACE_TEACHER)
      if w.rank == 1 then ffi.C.usleep(3e5) end
      w:sum { 1 }
      C.ms_trace_waits_for(before)
      local events = ffi.new 'const ms_trace_event *[1]'
      C.ms_trace_events(events)
      local e = events[0][0]
      print(e.cause == C.MS_TRACE_TEACHER, ffi.string(e.what), e.ended - e.began > 0.2, before == C.MS_TRACE_PEER)]])
    assert.same({ 0, 'true\tall_reduce\ttrue\ttrue\n' }, { status, out }, err)
  end)

  it('needs a folder, and is written where the run is stopped', function()
    local status, _, err = launched.run(RECIPE, 'output=' .. folder .. '/none', 'trace=' .. folder .. '/nowhere/t.json')
    assert.equal(2, status)
    tools.says("'trace' is " .. folder .. '/nowhere/t.json, but there is no folder', err)
    status, _, err = launched.run(RECIPE, 'output=' .. folder .. '/stopped', 'trace=' .. folder .. '/s.json',
      'interrupt_at=3')
    assert.equal(130, status, err)
    assert.is_true(#json.read(folder .. '/s.json').traceEvents > 6)
  end)
end)
