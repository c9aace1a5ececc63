--- Timelines of a run: what each rank did and what it waited for, which the core keeps while it
--- goes (core/base/trace.h). At the end all of it becomes a file that Chrome and Perfetto show, and
--- a picture beside it.
---
--- Ranks of one machine have one clock. Machines begin to count when all have met.

local ffi = require 'ffi'
local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local exit = require 'moonstill.base.exit'
local picture = require 'moonstill.plot.timeline'
local progress = require 'moonstill.base.progress'
local ranks = require 'moonstill.base.ranks'

local M = {}

--- Events of each rank that are kept: the first ones.
--- @package
M.most = 1e5

local out = ffi.new 'const ms_trace_event *[1]' -- scratch, read at once

-- The picture's place: "a.json" has it in "a.svg".
local function beside(path) return path:gsub('%.json$', '') .. '.svg' end

--- Begins to keep what the run's ranks do, where its configuration asks for that. All call it.
--- @param run ms_run
function M.start(run)
  local path = run.cfg.trace
  if not path then return end
  local folder = path:match '^(.*)/[^/]*$' or '.'
  if run.grid.world:first(C.ms_path_kind(folder == '' and '/' or folder)) ~= 2 then
    exit(2, ("'trace' is %s, but there is no folder %s"):format(path, folder))
  end
  check(C.ms_trace_start(M.most))
  run.grid.world:sum { 0 } -- all are here
  run.timeline = { path = path, zero = ranks.machine():first(C.ms_clock()) }
end

--- Ends a timeline that nobody asks for any more, as after an error.
--- @param run ms_run
function M.drop(run)
  if run.timeline then C.ms_trace_stop() end
  run.timeline = nil
end

-- This rank's events as bytes, and how many there were.
local function own_events()
  local n = tonumber(C.ms_trace_events(out))
  return ffi.string(out[0], math.min(n, M.most) * ffi.sizeof 'ms_trace_event'), n
end

-- A rank's row of the picture.
local function track_of(rank, host, zero, bytes)
  local n = #bytes / ffi.sizeof 'ms_trace_event'
  local list, events = ffi.cast('const ms_trace_event *', ffi.cast('const char *', bytes)), {}
  for i = 0, n - 1 do
    local e = list[i]
    if e.ended > zero then
      events[#events + 1] = { began = math.max(0, e.began - zero), ended = e.ended - zero,
        cause = e.cause, what = ffi.string(e.what) }
    end
  end
  return { name = ('rank %d on %s'):format(rank, host), number = rank, events = events,
    seconds = picture.seconds(events), slowest = false }
end

local PROCESS = '{"ph":"M","pid":%d,"tid":0,"name":"process_name","args":{"name":"%s"}}'
local EVENT = '{"ph":"X","pid":%d,"tid":0,"name":"%s","cat":"%s","ts":%.3f,"dur":%.3f}'
local function plain(text) return (text:gsub('[%c"\\]', '?')) end

local CAUSES = { [0] = 'work', 'data', 'teacher', 'peer' }

-- What Chrome's about:tracing and Perfetto read: times in microseconds.
local function chrome(tracks)
  local lines = {}
  for _, track in ipairs(tracks) do
    lines[#lines + 1] = PROCESS:format(track.number, plain(track.name))
    for _, e in ipairs(track.events) do
      lines[#lines + 1] = EVENT:format(track.number, plain(e.what), CAUSES[e.cause], 1e6 * e.began,
        1e6 * (e.ended - e.began))
    end
  end
  return '{"traceEvents":[\n' .. table.concat(lines, ',\n') .. '\n]}\n'
end

-- Marks the one that waits least: the one that the others wait for.
local function find_slowest(tracks)
  local slowest = tracks[1]
  for _, track in ipairs(tracks) do
    if track.seconds.waits < slowest.seconds.waits then slowest = track end
  end
  slowest.slowest = #tracks > 1
end

local MOST_SAID = 8 -- ranks that have a line

local function write(timeline, tracks, seconds, most)
  find_slowest(tracks)
  local lines = { ('timeline: %s, and %s'):format(timeline.path, beside(timeline.path)) }
  for k, track in ipairs(tracks) do
    track.about = picture.words(track.seconds, seconds)
    if k <= MOST_SAID or track.slowest then
      lines[#lines + 1] = ('  rank %d%s %s'):format(track.number,
        track.slowest and ', the slowest,' or '', track.about)
    end
  end
  if most > M.most then
    lines[#lines + 1] = ('  of %s events of a rank the first %s are kept'):format(
      progress.count(most), progress.count(M.most))
  end
  local text, svg = chrome(tracks), picture.svg(tracks, seconds)
  check.file(C.ms_file_write(timeline.path, text, #text))
  check.file(C.ms_file_write(beside(timeline.path), svg, #svg))
  return table.concat(lines, '\n')
end

--- Ends the timeline of a run, where it has one: writes it and says which rank was the slowest. All
--- call it.
--- @param run ms_run
function M.finish(run)
  local timeline, all = run.timeline, run.grid.world
  if not timeline then return end
  run.timeline = nil
  local seconds = all:most(C.ms_clock() - timeline.zero)
  local bytes, n = own_events()
  C.ms_trace_stop()
  local most, tracks = all:most(n), {}
  for rank = 0, all.size - 1 do
    local host, zero, theirs = all:from(rank, ranks.host()), all:from(rank, timeline.zero),
      all:from(rank, bytes)
    if all.writes then tracks[rank + 1] = track_of(rank, host, zero, theirs) end
  end
  local words = all:write(write, timeline, tracks, seconds, most)
  if #run.others == 0 then return run:say(words) end
  if not run.quiet then all:say(words) end
end

return M
