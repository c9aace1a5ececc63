--- Curves as SVG and in the terminal.
local layout = require 'moonstill.base.layout'
local plot = require 'moonstill.plot.plot'
local sketches = require 'moonstill.plot.sketch'
local tools = require 'tests.support.tools'

local function panel(more)
  local p = { title = 'a < b & "c"', x_label = 'step', y_label = 'loss', series = {
    { name = 'one', x = { 0, 50, 100 }, y = { 4, 2, 1 } },
    { name = 'two', x = { 0, 50, 100 }, y = { 1, 2, 4 } },
  } }
  for key, value in pairs(more or {}) do p[key] = value end
  return p
end

local function points(svg)
  local list = {}
  for line in svg:gmatch '<polyline points="([^"]+)"' do
    local run = {}
    for x, y in line:gmatch '([%d.]+),([%d.-]+)' do run[#run + 1] = { tonumber(x), tonumber(y) } end
    list[#list + 1] = run
  end
  return list
end

describe('plot.ticks', function()
  local function ticks(...) return (plot.ticks(...)) end

  it('are round numbers that hold the range', function()
    assert.same({ 0, 1, 2, 3, 4, 5 }, ticks(0.2, 4.7, 5))
    assert.same({ -20, 0, 20, 40, 60 }, ticks(-3, 55, 5))
    assert.same({ 0, 50, 100, 150, 200, 250, 300 }, ticks(0, 300, 6))
    assert.equal(0.5, (select(2, plot.ticks(0, 2, 4))))
  end)

  it('exist for a range of nothing', function()
    for _, v in ipairs { 0, 3, -7, 1e-9 } do
      local list = ticks(v, v, 5)
      assert.is_true(#list >= 2 and list[1] <= v and list[#list] >= v)
    end
  end)
end)

describe('plot.label', function()
  it('has the digits its step needs', function()
    assert.equal('0', plot.label(0, 0.5))
    assert.equal('1.0', plot.label(1, 0.5))
    assert.equal('0.25', plot.label(0.25, 0.05))
    assert.equal('300', plot.label(300, 50))
    assert.equal('-20', plot.label(-20, 20))
    assert.equal('0.2', plot.label(0.2))
    assert.equal('2e6', plot.label(2e6))
    assert.equal('5e-5', plot.label(5e-5))
    assert.equal('1000001', plot.label(1000001, 1)) -- else all ticks of 1,000,000 to 1,000,005 were 1e6
    assert.equal('1000000.5', plot.label(1000000.5, 0.5))
    assert.equal('1.1e6', plot.label(1.1e6, 1e5))
    assert.equal('1.2345e-5', plot.label(1.2345e-5, 5e-10))
  end)
end)

describe('plot.svg', function()
  it('puts points where their values are', function()
    -- y ticks 1 .. 4, x from 0 to 100: the corners of the box are the corners of the data
    local one, two = unpack(points(plot.svg(panel(), { width = 400, height = 300 })))
    local left, right, top, bottom = 72, 400 - 24, 58, 300 - 52
    local middle = bottom - (bottom - top) / 3
    assert.same({ { left, top }, { right, bottom } }, { one[1], one[3] })
    assert.same({ { left, bottom }, { right, top } }, { two[1], two[3] })
    assert.equal((left + right) / 2, one[2][1])
    assert.is_true(math.abs(one[2][2] - middle) <= 0.05) -- a tenth of a pixel is written
  end)

  it('has even steps between powers on a logarithmic axis', function()
    local p = panel { log = true }
    p.series = { { name = 'x', x = { 0, 1, 2 }, y = { 1, 10, 100 } } }
    local run = points(plot.svg(p))[1]
    assert.is_true(math.abs((run[1][2] - run[2][2]) - (run[2][2] - run[3][2])) <= 0.11)
  end)

  it('has even ticks on a logarithmic axis where 1, 2 and 5 would be too few', function()
    local p = panel { log = true }
    p.series = { { name = 'x', x = { 0, 1 }, y = { 0.062, 0.094 } } }
    p.series[1].x[2] = 10
    local svg, labels = plot.svg(p), {}
    for label in svg:gmatch '>(0%.%d+)<' do labels[#labels + 1] = label end
    assert.same({ '0.06', '0.07', '0.08', '0.09', '0.10' }, labels)
    p.series[1].y = { 1, 2.99 } -- 0 has no logarithm
    assert.equal(1, #points(plot.svg(p)))
    assert.is_nil(plot.svg(p):find('nan', 1, true))
  end)

  it('escapes text and refers to nothing outside', function()
    local svg = plot.svg(panel())
    assert.truthy(svg:find('a &lt; b &amp; &quot;c&quot;', 1, true))
    assert.is_nil(svg:gsub('xmlns="http://www.w3.org/2000/svg"', ''):find 'http')
  end)

  it('gives a series the look of its style, or of its place', function()
    local p = panel()
    local first, second = plot.svg(p):match '<polyline points="[^"]*" stroke="(#%x+)".-stroke="(#%x+)"'
    assert.is_true(first ~= second)
    p.series[1].style, p.series[2].style = 2, 1
    assert.truthy(plot.svg(p):find('<polyline points="[^"]*" stroke="' .. second))
    assert.equal('+', plot.sketch(p):match '(.) one')
  end)

  it('breaks a line where a value cannot be drawn', function()
    local nan = 0 / 0
    local p = panel()
    p.series = { { name = 'x', x = { 0, 1, 2, 3, 4, 5 }, y = { 1, 2, nan, 3, 4, math.huge } } }
    assert.equal(2, #points(plot.svg(p)))
    p.series[1].y = { nan, nan, nan, nan, nan, nan }
    assert.equal(0, #points(plot.svg(p)))
    assert.is_nil(plot.svg(p):find('nan', 1, true))
  end)

  it('has a legend within the picture, in as many lines as its names need', function()
    local p = panel()
    p.series = {}
    for i = 1, 8 do p.series[i] = { name = 'a name of some length', x = { 0, 1 }, y = { 1, 2 } } end
    p.series[9] = { name = ('word '):rep(15) .. ('\195\169'):rep(500), x = { 0, 1 }, y = { 1, 2 } }
    local svg, lines = plot.svg(p, { width = 400, height = 500 }), {}
    local first = tonumber(svg:match '<text x="[^"]+" y="([^"]+)"[^>]+class="title"')
    local highest = math.huge
    for _, run in ipairs(points(svg)) do highest = math.min(highest, run[2][2]) end
    local count = 0
    for x, y, name in svg:gmatch '<text x="([%d.]+)" y="([%d.]+)" text%-anchor="start" class="tick">([^<]+)<' do
      count = count + 1
      lines[y] = true
      local letters = select(2, name:gsub('[^\128-\191]', ''))
      assert.is_true(x + 6.6 * letters <= 400, name)
      assert.is_true(tonumber(y) > first and tonumber(y) < highest, y)
    end
    assert.equal(11, count)
    local n = 0
    for _ in pairs(lines) do n = n + 1 end
    assert.equal(11, n) -- 21 letters are half of the width and more; the last name has three lines
    assert.truthy(svg:find '\195\169\226\128\166<')
  end)

  it('leaves out what is null in JSON', function()
    local json = require 'moonstill.base.json'
    local p = panel()
    p.series = { { name = 'x', x = { 0, 1, 2, 3, 4 }, y = json.decode '[1, 2, null, 3, 4]' } }
    assert.equal(2, #points(plot.svg(p)))
  end)

  it('is well-formed', function()
    if tools.run 'command -v rsvg-convert' ~= 0 then return pending 'no rsvg-convert here' end
    local path = tools.folder() .. '/a.svg'
    plot.write(path, { panel(), panel { log = true } })
    local status, _, err = tools.run('rsvg-convert ' .. path .. ' -o ' .. path .. '.png')
    assert.equal(0, status, err)
  end)

  it('names a series that is not one', function()
    assert.has_error(function() plot.svg { series = {} } end, 'plot: a panel needs a list of series')
    assert.has_error(function() plot.svg { series = { { name = 'n', x = { 1 }, y = {} } } } end,
      "plot: series 1 ('n') needs x and y of equal length")
    assert.has_error(function() plot.svg { series = { { name = 'n', x = { 1, 2 }, y = { 3, '4' } } } } end,
      "plot: series 1 ('n'): y[2] is a string, not a number")
    assert.has_error(function() plot.sketch { series = { { name = 'n', x = { 1, true }, y = { 3, 4 } } } } end,
      "plot: series 1 ('n'): x[2] is a boolean, not a number")
  end)
end)

-- The texts of a class in an SVG: where they stand, how they are turned, what they say.
local function texts(svg, class)
  local list = {}
  for x, y, anchor, more, text in svg:gmatch('<text x="([^"]+)" y="([^"]+)" text%-anchor="(%a+)" class="' .. class
    .. '"([^>]*)>([^<]*)<') do
    list[#list + 1] = { x = tonumber(x), y = tonumber(y), anchor = anchor, turned = more ~= '', text = text,
      width = layout.width(text) }
  end
  return list
end

local function many(count, name)
  local p = panel { title = 'Many' }
  p.series = {}
  for i = 1, count do
    local s = { name = name and name:format(i) or 'series ' .. i, x = {}, y = {} }
    for k = 0, 60 do s.x[k + 1], s.y[k + 1] = k, i + k / 60 end
    p.series[i] = s
  end
  return p
end

describe('plots of many series', function()
  it('tell 24 of them apart, by dashes or marks where the colour is the same, in the legend as well', function()
    local svg = plot.svg(many(24))
    local names, curves, keys = {}, {}, {}
    for _, t in ipairs(texts(svg, 'tick')) do names[t.text] = true end
    for i = 1, 24 do assert.is_true(names['series ' .. i], i) end
    -- the look of a line and of the first mark behind it, before the next line
    local function look(attributes, after)
      return attributes:match 'stroke="#%x+"' .. (attributes:match 'dasharray="[^"]+"' or '')
        .. (after:match '^<path[^>]*class="mark (%a+)"' or '')
    end
    for line, at in svg:gmatch '([^\n]+)\n()' do
      local list = line:find '^<polyline' and curves or line:find '^<line.*stroke=' and keys
      if list then list[#list + 1] = look(line, svg:match('[^\n]+', at)) end
    end
    assert.equal(24, #curves)
    assert.same(curves, keys)
    local seen = {}
    for _, each in ipairs(curves) do
      assert.is_nil(seen[each], each)
      seen[each] = true
    end
  end)

  it('have as many letters in a terminal', function()
    local text, seen, count = plot.sketch(many(24), { columns = 30 }), {}, 0
    for mark, name in text:gmatch '(%S) (series %d+)' do
      count = count + 1
      assert.is_nil(seen[mark], name)
      seen[mark] = true
    end
    assert.equal(24, count)
  end)

  it('are as high as their names ask for, unless a height is given', function()
    local svg = plot.svg(many(24, 'a name as long as half of the line and more %d'))
    assert.is_nil(svg:find(' more<', 1, true))
    local height = tonumber(svg:match 'height="(%d+)"')
    local top, bottom = math.huge, -math.huge
    for _, run in ipairs(points(svg)) do
      for _, point in ipairs(run) do top, bottom = math.min(top, point[2]), math.max(bottom, point[2]) end
    end
    assert.is_true(bottom - top > 0.3 * height and height < 1080, height)
    assert.truthy(plot.svg(many(24, 'a name as long as half of the line and more %d'), { height = 360 }):find ' more<')
    assert.truthy(plot.svg(many(3)):find 'height="360"')
  end)
end)

describe('texts of plots', function()
  local LONG = ('all settings of a run as people write them: lr=1e-4, kd.temperature=2; '):rep(3)
  local LETTER = { title = 9, label = 7.2 }

  it('wrap, and stay inside the picture', function()
    for _, size in ipairs { { 560, 360 }, { 160, 160 }, { 300, 900 }, { 900, 200 } } do
      local p = panel { title = LONG, x_label = LONG, y_label = LONG }
      local svg = plot.svg({ p, p }, { width = size[1], height = size[2] })
      for class, letter in pairs(LETTER) do
        local list = texts(svg, class)
        assert.is_true(#list >= 2)
        for _, t in ipairs(list) do
          local along, across = t.turned and t.y or t.x, t.turned and t.x or t.y
          local most, half = t.turned and size[2] or 2 * size[1], t.width * letter / 2
          local low = t.anchor == 'start' and along or along - half
          local high = t.anchor == 'start' and along + 2 * half or along + half
          assert.is_true(low >= 0 and high <= most, ('%s %d..%d of %d: %s'):format(class, low, high, most, t.text))
          assert.is_true(across > 0 and across < (t.turned and 2 * size[1] or size[2]), t.text)
        end
      end
      if size[1] == 560 then
        assert.is_true(#texts(svg, 'title') > 2)
        assert.truthy(svg:find('all settings of a run as people write them:', 1, true))
      end
    end
  end)

  it('of long ticks have room beside the label of y', function()
    for _, y in ipairs { { 2, 2 + 1e-9 }, { -1e-7, 1 }, { 12345678, 12345679 }, { 1e-9, 1e6 } } do
      local p = panel { y_label = 'loss', log = y[1] == 1e-9 }
      p.series = { { x = { 1, 2 }, y = y } }
      local svg, label, least = plot.svg(p), nil, math.huge
      for _, t in ipairs(texts(svg, 'tick')) do
        if t.anchor == 'end' then least = math.min(least, t.x - 7.6 * t.width) end
      end
      for _, t in ipairs(texts(svg, 'label')) do label = t.turned and t or label end
      assert.is_true(label.x - 13 >= 0 and label.x + 4 <= least, ('%g: %g, %g'):format(y[1], label.x, least))
    end
  end)

  it('of x have room beside each other', function()
    local p = panel()
    p.series = { { x = { 1234567, 1234569 }, y = { 1, 2 } } }
    local last = -math.huge
    for _, t in ipairs(texts(plot.svg(p), 'tick')) do
      if t.anchor == 'middle' then
        assert.is_true(t.x - 7.6 * t.width / 2 > last and t.x + 7.6 * t.width / 2 <= 560)
        last = t.x + 7.6 * t.width / 2
      end
    end
    assert.is_true(last > 0)
  end)

  it('of logarithmic axes do not meet, whatever the range and the height', function()
    for _, high in ipairs { 2, 3, 9, 50, 1e3, 1e5, 1e12, 1e60, 1e250 } do
      for _, height in ipairs { 160, 200, 260, 360, 1000 } do
        local p = panel { log = true }
        p.series = { { x = { 1, 2 }, y = { 1, high } } }
        local last, count = math.huge, 0
        for _, t in ipairs(texts(plot.svg(p, { height = height }), 'tick')) do
          if t.anchor == 'end' then
            assert.is_true(last - t.y >= 11, ('%g at %d: %g'):format(high, height, last - t.y)) -- 12 px high
            last, count = t.y, count + 1
          end
        end
        assert.is_true(count >= 2)
      end
    end
  end)

  it('may hold any bytes', function()
    local p = panel { title = 'a\255b\0c\27[31m\239\191\191', x_label = 'new\nline\ttab' }
    p.series[1].name = '\228\184'
    local svg = plot.svg(p)
    for _, words in ipairs { 'a\\xffb\\x00c\\x1b[31m\239\191\189', 'new line tab', '\\xe4\\xb8' } do
      assert.truthy(svg:find(words, 1, true), words)
    end
    local text = plot.sketch(p)
    assert.is_nil(text:find '[%z\1-\9\11-\31\127]')
  end)
end)

describe('a sketch', function()
  it('is as wide as the terminal at most, and its names and titles wrap', function()
    for _, width in ipairs { 100, 80, 60, 40, 25 } do
      for _, p in ipairs { many(24), many(8, 'a rather long name, that of series %d, 日本語'), panel { log = true },
        panel { title = ('a title as long as '):rep(9), x_label = 'optimiser steps ' .. ('and more '):rep(9) } } do
        local widest = 0
        for line in sketches.text(p, nil, 14, width):gmatch '[^\n]+' do
          widest = math.max(widest, layout.width(line))
        end
        assert.is_true(widest <= width and widest >= width - 1, ('%d of %d'):format(widest, width))
      end
    end
  end)

  it('is as wide as the program\'s terminal, and plain text', function()
    local recipe = tools.write(tools.folder() .. '/sketch.lua', [[
      local ms = require 'moonstill'
      io.write(ms.plot.sketch { series = { { name = 'a', x = { 0, 10 }, y = { 1, 2 } } } })]])
    for _, width in ipairs { 80, 60 } do
      local _, out = tools.run(('COLUMNS=%d TERM=dumb %s %s'):format(width, tools.program(), recipe))
      assert.equal(width, #out:match '%+%-+' + 4) -- '2.0 ' stands before it
      assert.is_nil(out:find '[%z\1-\9\11-\31\127]')
    end
  end)
end)

describe('plot of anything', function()
  -- An endless loop must not hang the suite. Hooks are not called from compiled code.
  local function ends(f, ...)
    local compiled = jit.status()
    jit.off()
    jit.flush()
    local start = os.clock()
    debug.sethook(function()
      if os.clock() - start > 5 then error('not at an end after 5 seconds', 0) end
    end, '', 100000)
    local result = { pcall(f, ...) }
    debug.sethook()
    if compiled then jit.on() end
    assert(result[1], result[2])
    return result[2]
  end

  local function within(svg, width, height, where)
    assert.is_nil(svg:find('nan', 1, true), where)
    assert.is_nil(svg:find('inf', 1, true), where)
    for what, digits in svg:gmatch ' ([xyc]+%d?)="([^"]+)"' do
      local v = tonumber(digits)
      assert.is_true(v and v >= 0 and v <= (what:find 'x' and width or height), where .. what .. digits)
    end
    for _, run in ipairs(points(svg)) do
      for _, point in ipairs(run) do
        assert.is_true(point[1] >= 0 and point[1] <= width and point[2] >= 0 and point[2] <= height,
          where)
      end
    end
  end

  local function drawn(p, where)
    within(ends(plot.svg, p, { width = 300, height = 200 }), 300, 200, where)
    local text = ends(plot.sketch, p, { columns = 20, rows = 7 })
    assert.is_nil(text:find('nan', 1, true), where)
    assert.equal(10, select(2, text:gsub('\n', '')), where)
    return text
  end

  it('ends where values are nearly equal, and draws them level', function()
    for _, v in ipairs { 1, -1, 3e7, 1e300, 1e-300 } do
      local text = drawn({ series = { { x = { 1, 2 }, y = { v, v * (1 + 2 ^ -52) } } } }, tostring(v))
      local rows = 0
      for _ in text:gmatch '|[^\n]*o' do rows = rows + 1 end
      assert.equal(1, rows)
      drawn({ series = { { y = { 1, 2 }, x = { v, v * (1 + 2 ^ -52) } } } }, tostring(v))
    end
    local list, step = plot.ticks(1, 1 + 2 ^ -52, 5)
    assert.same({ 5, 0.05, 1 }, { #list, step, list[3] })
  end)

  it('tells apart what differs in the 11th digit', function()
    local list = plot.ticks(1, 1 + 1e-11, 5)
    assert.is_true(#list >= 3 and list[1] <= 1 and list[#list] >= 1 + 1e-11 and list[#list] < 1 + 3e-11)
  end)

  it('ends for values of any size, on both axes, between any ends', function()
    local seed = 1
    local function random(n) -- the same on every machine
      seed = seed * 16807 % 2147483647
      return seed % n + 1
    end
    local special = { 0, -0.0, 1, 1 + 2 ^ -52, -1, 3, 5e-324, -5e-324, 2 ^ -1022, 1e-300, 1e-280, 2e-280, 1e-301, 1e300,
      -1e300, 1.7e308, -1.7e308, math.huge, -math.huge, 0 / 0, 1e15, 1e15 + 1, 1e-12, 123.456, 1e6 }
    local function value()
      if random(3) == 1 then return (random(2000) - 1000) / 100 * 10 ^ (random(40) - 20) end
      return special[random(#special)]
    end
    local function list(n)
      local values = {}
      for i = 1, n do values[i] = value() end
      return values
    end
    local refused = 0
    for trial = 1, 1500 do
      local p = { series = {}, log = random(3) == 1 }
      if random(3) == 1 then p.y_min = value() end
      if random(3) == 1 then p.y_max = value() end
      for i = 1, random(3) do
        local n = random(5) - 1
        p.series[i] = { x = list(n), y = list(n) }
      end
      local where = 'trial ' .. trial .. ' '
      local ok, why = pcall(ends, plot.svg, p)
      if ok then drawn(p, where) else
        refused = refused + 1
        assert.truthy(tostring(why):find 'plot: y_m%a%a = ', where .. tostring(why))
      end
    end
    assert.is_true(refused > 100 and refused < 1000, tostring(refused))
  end)

  it('refuses ends of y that are none, and blames the caller', function()
    local p = { series = { { x = { 1, 2 }, y = { 1, 2 } } }, log = true, y_min = 0 }
    local function refusal(f, ...)
      local ok, why = pcall(f, ...)
      assert.is_false(ok)
      return (why:gsub('^.-plot_spec.lua:%d+: ', ''))
    end
    local function svg(q) return (plot.svg(q)) end
    local function sketch(q) return (plot.sketch(q)) end
    for _, draw in ipairs { svg, sketch } do
      assert.equal('plot: y_min = 0, expected a number in 1e-280..1e+300', refusal(draw, p))
      p.log, p.y_min, p.y_max = false, 2, 2
      assert.equal('plot: y_min = 2 is not below y_max = 2', refusal(draw, p))
      p.y_min, p.y_max = '1', nil
      assert.equal("plot: y_min = '1' (a string), expected a number in -1e+300..1e+300", refusal(draw, p))
      p.log, p.y_min = true, 0
    end
    assert.equal('plot: a panel needs a list of series', refusal(svg))
    assert.equal('plot: a panel needs a list of series', refusal(svg, {}))
  end)

  it('keeps the ends that were asked for beside data beyond them', function()
    local p = { series = { { x = { 1, 2 }, y = { 1, 2 } } }, y_min = 10 }
    assert.truthy(drawn(p, 'min'):find('10 |', 1, true))
    p.y_min, p.y_max = nil, -10
    assert.truthy(drawn(p, 'max'):find('-10 |', 1, true))
    p.y_max, p.log, p.y_min = nil, true, 1e-280
    local ticks = select(2, plot.svg(p, { height = 1000 }):gsub('class="grid"/', ''))
    assert.is_true(ticks >= 5 and ticks <= 14, tostring(ticks))
  end)

  it('has ticks at the ends of an x that is negative', function()
    local text = plot.sketch { series = { { x = { -3, -1 }, y = { 1, 2 } } } }
    assert.truthy(text:find '%-3%.0 .* %-1%.0')
  end)

  it('gives the curves half of the height, whatever the number of names', function()
    local p = { series = {} }
    for i = 1, 3000 do p.series[i] = { x = { 0, 1 }, y = { i, i + 1 } } end
    local svg = plot.svg(p)
    within(svg, 560, 1080, 'many') -- as high as it gets by itself
    assert.truthy(svg:find('>28%d%d more<'))
    within(plot.svg(p, { width = 160, height = 160 }), 160, 160, 'small')
    assert.truthy(plot.svg(p, { width = 160, height = 160 }):find '>3000 more<')
  end)

  it('marks points where the line meets no column', function()
    local text = plot.sketch({ series = { { x = { 3, 3 }, y = { 0, 5 } } } }, { columns = 4, rows = 4 })
    assert.equal(2, select(2, text:gsub('|[^\n]*o', '')))
    assert.equal(1, select(2, plot.sketch({ series = { { x = { 3, 4 }, y = { 0, 5 } } } },
      { columns = 1, rows = 1 }):gsub('|[^\n]*o', '')))
  end)
end)

describe('plot.sketch', function()
  it('draws falling and rising lines', function()
    local text = plot.sketch({ series = { { name = 'up', x = { 0, 8 }, y = { 0, 4 } },
      { name = 'down', x = { 0, 8 }, y = { 4, 0 } } } }, { columns = 9, rows = 5 })
    assert.equal(table.concat({
      'o up   + down',
      '4 |++     oo',
      '  |  ++ oo',
      '2 |   o++',
      '  | oo   ++',
      '0 |o       +',
      '  +---------',
      '   0    5',
    }, '\n'), (text:gsub('%s+$', '')))
  end)

  it('draws points that stand alone', function()
    local nan = 0 / 0
    local text = plot.sketch({ series = { { name = 'a', x = { 0, 2, 4, 6, 8 }, y = { 0, nan, 4, nan, 0 } } } },
      { columns = 9, rows = 3 })
    assert.equal('o a\n4 |    o\n2 |\n0 |o       o', text:match '^(.-)\n  %+')
    assert.equal(1, select(2, plot.sketch { series = { { x = { 3 }, y = { 5 } } } }:gsub('|[^\n]*o', '')))
  end)

  it('copes with none', function()
    assert.is_string(plot.sketch { series = { { name = 'a', x = {}, y = {} } } })
  end)
end)
