--- The page of reference: that it is what the sources say, and holds together.
local index = require 'moonstill.prompt.index'
local ms = require 'moonstill'
local names = require 'moonstill.names'
local schema = require 'moonstill.base.schema'
local sorted = require 'moonstill.base.sorted'
local tools = require 'tests.support.tools'

local PAGE = 'docs/reference.md'

-- The first line in which two texts differ, to say what has changed.
local function difference(old, new)
  local n, other = 0, (new .. '\n'):gmatch '(.-)\n'
  for line in (old .. '\n'):gmatch '(.-)\n' do
    n = n + 1
    local now = other()
    if line ~= now then return ('line %d: "%s", by the sources "%s"'):format(n, line, tostring(now)) end
  end
end

describe(PAGE, function()
  local page = tools.read(PAGE)

  it('is what the sources say', function()
    local path = tools.folder() .. '/reference.md'
    local status, _, err = tools.run(('COLUMNS=50 LUA_PATH=%s luajit cmake/reference.lua %s'):format(
      tools.quote(package.path), path))
    assert.same({ 0, '' }, { status, err })
    local now = tools.read(path)
    assert.is_true(page == now, 'it is not current: run ./bootstrap docs, and commit what it writes; '
      .. (difference(page, now) or ''))
  end)

  it('has every module, function, method, field, option and variable', function()
    local function has(text) assert.truthy(page:find(text, 1, true), text) end
    for name, place in sorted.pairs(names) do
      if not place.field then has('\n### ms.' .. name .. '\n') else has('#### `ms.' .. name .. '(') end
    end
    for _, name in ipairs(index.names()) do has(name:match '[^.]*$') end
    for _, entry in ipairs(schema.list(ms.run.options)) do has('| `' .. entry.key .. '` |') end
    local _, recipes = tools.run 'ls recipes/*.lua'
    for recipe in recipes:gmatch '%S+' do has('\n### ' .. recipe .. '\n') end
  end)

  it('has no link that leads nowhere, and no two headings of a name', function()
    local known, count = {}, 0
    for title in page:gmatch '\n##+ ([^\n]+)' do
      local anchor = title:lower():gsub('[^%w%s_-]', ''):gsub('%s', '-')
      assert.is_true(title:find '^`' ~= nil or not known[anchor], title)
      known[anchor] = true
    end
    for anchor in page:gmatch '%]%(#([^)]*)%)' do
      count = count + 1
      assert.truthy(known[anchor], anchor)
    end
    assert.is_true(count > 60, count)
  end)

  it('has tables whose rows have as many cells as their heads, and a meaning for each option', function()
    local cells, of_options
    for line in (page .. '\n'):gmatch '(.-)\n' do
      if line:find '^|' then
        local row = line:gsub('\\|', '')
        local _, n = row:gsub('|', '')
        if not cells then cells, of_options = n, line:find '^| option |' ~= nil end
        assert.equal(cells, n, line)
        assert.truthy(not of_options or row:match '^|[^|]*|[^|]*|%s*[^|%s][^|]*|', line)
      else
        cells = nil
      end
    end
  end)
end)
