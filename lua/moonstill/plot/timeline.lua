--- What several ranks do over time, as the text of an SVG picture: a row for each rank, in which
--- each moment has the colour of what it was spent on. Where moments are narrower than a pixel they
--- are stacked, each as high as its share.

local axes = require 'moonstill.plot.axes'
local progress = require 'moonstill.base.progress'

local M = {}

-- What a moment may be spent on, from the bottom of a row to its top. What is none of these shows
-- the row's ground.
M.classes = {
  { name = 'learn', text = 'learns', colour = '#0072b2' },
  { name = 'targets', text = 'runs the teacher', colour = '#009e73' },
  { name = 'update', text = 'updates', colour = '#56b4e9' },
  { name = 'work', text = 'does something else (validates, saves)', colour = '#999999' },
  { name = 'data', text = 'waits for data', colour = '#f0e442' },
  { name = 'teacher', text = 'waits for a teacher', colour = '#cc79a7' },
  { name = 'peer', text = 'waits for other ranks', colour = '#d55e00' },
}

local place = {} -- by name, from 1
for i, class in ipairs(M.classes) do place[class.name] = i end

local WAITS = { [1] = 'data', [2] = 'teacher', [3] = 'peer' } -- as the core numbers them

-- The class of an event.
local function class_of(event)
  local wait = WAITS[event.cause]
  if wait then return place[wait] end
  return place[event.what] or place.work
end

-- Of events one may lie in another: of each moment the innermost one tells what it was spent on.
-- Calls `emit(class, from, to)` for all of them, in order.
local function each_moment(events, emit)
  local stack, at = {}, 0
  local function close(till)
    while #stack > 0 and stack[#stack].ended <= till do
      local top = table.remove(stack)
      if top.ended > at then emit(top.class, at, top.ended) end
      at = math.max(at, top.ended)
    end
  end
  for _, event in ipairs(events) do
    close(event.began)
    local top = stack[#stack]
    if top and event.began > at then emit(top.class, at, event.began) end
    at = math.max(at, event.began)
    stack[#stack + 1] = { class = class_of(event),
      ended = top and math.min(top.ended, event.ended) or event.ended }
  end
  close(math.huge)
end

local function in_order(a, b)
  if a.began ~= b.began then return a.began < b.began end
  return a.ended > b.ended
end

--- Seconds of each class, by name, that a rank's events have; `waits` is their sum for the waits.
--- @param events { began: number, ended: number, cause: integer, what: string }[] put in order
--- @return table<string, number>
function M.seconds(events)
  table.sort(events, in_order)
  local of = { waits = 0 }
  for _, class in ipairs(M.classes) do of[class.name] = 0 end
  each_moment(events, function(class, from, to)
    local name = M.classes[class].name
    of[name] = of[name] + to - from
    if class >= place.data then of.waits = of.waits + to - from end
  end)
  return of
end

local LEFT, RIGHT, TOP, BOTTOM = 250, 24, 64, 44
local ROW, GAP, COLUMNS = 30, 12, 900

-- Shares of each class in each column of a row.
local function shares_of(events, seconds)
  local shares = {}
  for c = 1, COLUMNS do
    shares[c] = {}
    for i = 1, #M.classes do shares[c][i] = 0 end
  end
  local scale = COLUMNS / seconds
  each_moment(events, function(class, from, to)
    local first, last = from * scale, to * scale
    for c = math.floor(first), math.min(COLUMNS - 1, math.floor(last)) do
      local part = math.min(last, c + 1) - math.max(first, c)
      if part > 0 then shares[c + 1][class] = shares[c + 1][class] + part end
    end
  end)
  return shares
end

-- A class of a row as a path along its upper edge, which those below are drawn over.
local function path_of(shares, class, top)
  local words, before = { ('M%d,%d'):format(LEFT, top + ROW) }, 0
  for c = 1, COLUMNS do
    local height = 0
    for i = 1, class do height = height + shares[c][i] end
    height = math.floor(math.min(1, height) * ROW * 10 + 0.5) / 10
    if height ~= before then
      words[#words + 1] = ('H%dV%g'):format(LEFT + c - 1, top + ROW - height)
      before = height
    end
  end
  if #words == 1 then return nil end
  words[#words + 1] = ('H%dV%dZ'):format(LEFT + COLUMNS, top + ROW)
  return table.concat(words)
end

local escapes = { ['&'] = '&amp;', ['<'] = '&lt;', ['>'] = '&gt;', ['"'] = '&quot;' }
local function escape(text) return (text:gsub('[&<>"]', escapes)) end

local function put_row(put, track, k, seconds)
  local top = TOP + (k - 1) * (ROW + GAP)
  local bold = track.slowest and ' class="bold"' or ''
  put('<text x="%d" y="%d" text-anchor="end"%s>%s</text>', LEFT - 10, top + 13, bold,
    escape(track.name .. (track.slowest and ', the slowest' or '')))
  put('<text x="%d" y="%d" text-anchor="end" class="small">%s</text>', LEFT - 10, top + 27,
    escape(track.about))
  put('<rect x="%d" y="%d" width="%d" height="%d" class="row"/>', LEFT, top, COLUMNS, ROW)
  local shares = shares_of(track.events, seconds)
  for class = #M.classes, 1, -1 do
    local path = path_of(shares, class, top)
    if path then put('<path d="%s" fill="%s"/>', path, M.classes[class].colour) end
  end
end

local function put_axis(put, seconds, bottom)
  local ticks, step = axes.ticks(0, seconds, 9)
  for _, t in ipairs(ticks) do
    local x = LEFT + t / seconds * COLUMNS
    if t > seconds then break end
    put('<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" class="tick"/>', x, TOP - 4, x, bottom)
    put('<text x="%.1f" y="%d" text-anchor="middle" class="small">%s</text>', x, bottom + 16,
      axes.label(t, step))
  end
  put('<text x="%d" y="%d" text-anchor="middle" class="small">seconds</text>',
    LEFT + COLUMNS / 2, bottom + 34)
end

local REST = { text = 'the rest (Lua)', colour = '#f4f4f4' }

-- The classes that any rank has, in two lines.
local function put_legend(put, tracks)
  local list, x, y = {}, LEFT, 22
  for _, class in ipairs(M.classes) do
    for _, track in ipairs(tracks) do
      if track.seconds[class.name] > 0 and list[#list] ~= class then list[#list + 1] = class end
    end
  end
  list[#list + 1] = REST
  for _, class in ipairs(list) do
    local wide = 18 + 6.6 * #class.text + 16
    if x + wide > LEFT + COLUMNS then x, y = LEFT, y + 20 end
    put('<rect x="%d" y="%d" width="12" height="12" fill="%s" stroke="#999"/>', x, y - 10,
      class.colour)
    put('<text x="%d" y="%d" class="small">%s</text>', x + 18, y, class.text)
    x = x + wide
  end
end

local STYLE = [[<style>
text{font:13px Helvetica,Arial,"DejaVu Sans",sans-serif;fill:#222}.small{font-size:12px;fill:#444}
.bold{font-weight:bold}.row{fill:#f4f4f4;stroke:#ccc}.tick{stroke:#ddd}
</style>]]

--- The text of a picture.
--- @package
--- @param tracks { name: string, about: string, slowest: boolean, seconds: table, events: table }[]
---   a rank each; seconds: what `seconds` gives, which also puts its events in order
--- @param seconds number that all of it took
--- @return string
function M.svg(tracks, seconds)
  local out = {}
  local function put(text, ...)
    out[#out + 1] = select('#', ...) > 0 and text:format(...) or text
  end
  local bottom = TOP + #tracks * (ROW + GAP) - GAP + 6
  local width, height = LEFT + COLUMNS + RIGHT, bottom + BOTTOM
  put('<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d">', width,
    height, width, height)
  put(STYLE)
  put '<rect width="100%" height="100%" fill="#fff"/>'
  put_legend(put, tracks)
  put_axis(put, seconds, bottom)
  for k, track in ipairs(tracks) do put_row(put, track, k, seconds) end
  put '</svg>\n'
  return table.concat(out, '\n')
end

local WORDS = { { 'data', 'for data' }, { 'teacher', 'for a teacher' }, { 'peer', 'for others' } }

--- A rank's time in words: "works 80 %, waits for data 1 %, for others 19 %".
--- @param seconds table of its classes
--- @param all number seconds
--- @return string
function M.words(seconds, all)
  local waits = {}
  for _, word in ipairs(WORDS) do
    local share = 100 * seconds[word[1]] / all
    if share >= 0.5 then
      waits[#waits + 1] = ('%s%s %.0f %%'):format(#waits == 0 and 'waits ' or '', word[2], share)
    end
  end
  local works = ('works %s %%'):format(progress.number('%.0f', 100 * (all - seconds.waits) / all))
  return works .. (#waits > 0 and ', ' .. table.concat(waits, ', ') or '')
end

return M
