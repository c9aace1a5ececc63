--- A picture of what ranks send each other, as the text of an SVG: a lane for each rank, in which
--- what it sends stands above what it receives, over the time.

local axes = require 'moonstill.plot.axes'
local layout = require 'moonstill.base.layout'
local panels = require 'moonstill.plot.panels'

local M = {}

local WIDTH, LEFT, RIGHT = 1000, 210, 24
local HEAD, FOOT = 84, 48     -- above the first lane; below the last one
local LETTER = 6.4            -- how wide a letter of a name is at most
local HIGHEST, LOWEST = 40, 6 -- of a lane
local ALL = 1600              -- of all lanes together, where they are not as low as can be
local NAMED = 12              -- how high a lane has to be for its name
local LINKED = 200            -- with more messages no lines lead from sender to receiver
local LEGEND = 12             -- phases that it names

-- By stage: what phases are drawn in, in turn. A line of text in these colours is read on white.
local COLOURS = {
  { '#1f5fa8', '#2b8a3e', '#0b7285', '#6741d9' }, { '#d9480f', '#c2255c', '#a86500', '#862e9c' } }

local STYLE = [[<style>
text{font-family:Helvetica,Arial,"DejaVu Sans",sans-serif;font-size:12px;fill:#222}
.title{font-size:15px;font-weight:bold}.small{font-size:11px;fill:#555}
.bar{font-size:10px;fill:#fff}.grid{stroke:#e4e4e4}.link{stroke:#999;stroke-width:.7}
</style>]]

local escapes = { ['&'] = '&amp;', ['<'] = '&lt;', ['>'] = '&gt;', ['"'] = '&quot;' }
local function escape(text) return (panels.text(text):gsub('[&<>"]', escapes)) end

local function text_at(put, x, y, class, anchor, text)
  put(('<text x="%.1f" y="%.1f" class="%s" text-anchor="%s">%s</text>'):format(x, y, class, anchor,
    escape(text)))
end

local function colour_of(m)
  local list = COLOURS[m.stage]
  return list[m.phase % #list + 1]
end

-- Lanes below each other, and where each rank's is.
local function lanes_of(o)
  local height = math.max(LOWEST, math.min(HIGHEST, math.floor(ALL / math.max(1, #o.lanes))))
  local place = {}
  for i, lane in ipairs(o.lanes) do place[lane.of] = HEAD + (i - 1) * height end
  return place, height, HEAD + #o.lanes * height
end

local function put_lanes(put, o, height)
  for i = 1, #o.lanes do
    put(('<rect x="0" y="%d" width="%d" height="%d" fill="%s"/>'):format(HEAD + (i - 1) * height,
      WIDTH, height, i % 2 == 1 and '#f4f4f6' or '#fff'))
  end
  local every = math.ceil(NAMED / height)
  for i = 1, #o.lanes, every do
    local name = layout.cut(o.lanes[i].name, math.floor((LEFT - 16) / LETTER))
    local middle = HEAD + (i - 1) * height + math.max(height, NAMED) / 2
    text_at(put, 8, middle + 4, height < NAMED and 'small' or '', 'start', name)
  end
end

-- Ticks in a unit that leaves numbers short.
local function put_axis(put, seconds, x_of, bottom)
  local scale, unit = 1, 's'
  if seconds < 1e-3 then scale, unit = 1e6, 'us' elseif seconds < 1 then scale, unit = 1e3, 'ms' end
  local ticks, step = axes.ticks(0, seconds * scale, 8)
  for _, tick in ipairs(ticks) do
    local x = x_of(tick / scale)
    if x <= WIDTH - RIGHT + 0.5 then
      put(('<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" class="grid"/>'):format(x, HEAD, x, bottom))
      text_at(put, x, bottom + 18, 'small', 'middle', axes.label(tick, step))
    end
  end
  text_at(put, (LEFT + WIDTH - RIGHT) / 2, bottom + 36, 'small', 'middle', unit
    .. ', predicted; what a rank sends is above what it receives')
end

local function put_bar(put, m, x, y, wide, height, name)
  put(('<rect x="%.2f" y="%.1f" width="%.2f" height="%.1f" fill="%s"><title>%s</title></rect>')
    :format(x, y, math.max(0.3, wide - 0.5), height, colour_of(m), escape(m.title)))
  if height >= 11 and wide >= LETTER * #name + 4 then
    text_at(put, x + 3, y + height / 2 + 3.5, 'bar', 'start', name)
  end
end

local function put_messages(put, o, x_of, place, height)
  local half = height / 2 - 1
  for _, m in ipairs(o.messages) do
    local from, to, x = place[m.from], place[m.to], x_of(m.begins)
    local wide = x_of(m.ends) - x
    if from then put_bar(put, m, x, from + 1, wide, half, 'to ' .. m.to) end
    if to then put_bar(put, m, x, to + 1 + half, wide, half, 'from ' .. m.from) end
    if from and to and #o.messages <= LINKED then
      put(('<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="link"/>'):format(x,
        from + height / 4, x, to + 3 * height / 4))
    end
  end
end

-- Which colour is which phase.
local function put_legend(put, o)
  local x, named = LEFT, 0
  for stage, name in ipairs { 'send', 'exchange' } do
    for phase = 0, o.phases[stage] - 1 do
      if named == LEGEND then return text_at(put, x, 66, 'small', 'start', 'and so on') end
      local word = ('%s %d'):format(name, phase)
      put(('<rect x="%.1f" y="56" width="10" height="10" fill="%s"/>'):format(x,
        colour_of { stage = stage, phase = phase }))
      text_at(put, x + 14, 65, 'small', 'start', word)
      x, named = x + 26 + LETTER * #word, named + 1
      if x > WIDTH - 110 then named = LEGEND end
    end
  end
end

--- The picture.
--- @package
--- @param o { title: string, about: string, lanes: { of: integer, name: string }[],
---   seconds: number, phases: integer[], messages: { stage: integer, phase: integer, from: integer,
---   to: integer, begins: number, ends: number, title: string }[] } of: its rank; phases: how many
---   each stage has; stages count from 1, phases from 0; messages of ranks without a lane are left
---   out
--- @return string
function M.text(o)
  local out = {}
  local function put(text) out[#out + 1] = text end
  local place, height, bottom = lanes_of(o)
  local seconds = o.seconds > 0 and o.seconds or 1
  local function x_of(t) return LEFT + t / seconds * (WIDTH - LEFT - RIGHT) end
  put(('<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d">')
    :format(WIDTH, bottom + FOOT, WIDTH, bottom + FOOT))
  put(STYLE)
  put '<rect width="100%" height="100%" fill="#fff"/>'
  text_at(put, 8, 24, 'title', 'start', o.title)
  text_at(put, 8, 43, 'small', 'start', o.about)
  put_legend(put, o)
  put_lanes(put, o, height)
  put_axis(put, seconds, x_of, bottom)
  put_messages(put, o, x_of, place, height)
  put '</svg>\n'
  return table.concat(out, '\n')
end

return M
