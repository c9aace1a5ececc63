--- What a model thinks before it answers, from <think> to </think>, is painted as it comes.
local M = {}

local OPEN, CLOSE = '<think>', '</think>'

-- How many bytes at the end of a text may become the mark.
local function may_become(text, mark)
  for n = math.min(#text, #mark - 1), 1, -1 do
    if text:sub(-n) == mark:sub(1, n) then return n end
  end
  return 0
end

--- A painter of one answer: `add(piece)` gives what can be shown of it, `finish()` what was held
--- back, since it might have become a mark.
--- @param paint fun(text: string): string of thoughts, marks included
--- @return { add: fun(piece: string): string, finish: fun(): string }
function M.new(paint)
  local inside, held, painter = false, '', {}
  local function shown(text) return inside and text ~= '' and paint(text) or text end

  -- Up to the end of the mark that comes next, if it does. Returns the rest.
  local function cross(text, parts)
    local from, to = text:find(inside and CLOSE or OPEN, 1, true)
    if not from then return text, false end
    if not inside then
      parts[#parts + 1] = text:sub(1, from - 1)
      inside = true
      parts[#parts + 1] = shown(OPEN)
    else
      parts[#parts + 1] = shown(text:sub(1, to))
      inside = false
    end
    return text:sub(to + 1), true
  end

  function painter.add(piece)
    local text, more, parts = held .. piece, true, {}
    while more do text, more = cross(text, parts) end
    local keep = may_become(text, inside and CLOSE or OPEN)
    held = text:sub(#text - keep + 1)
    parts[#parts + 1] = shown(text:sub(1, #text - keep))
    return table.concat(parts)
  end

  function painter.finish()
    local text = shown(held)
    inside, held = false, ''
    return text
  end

  return painter
end

return M
