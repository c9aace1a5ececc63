-- Chat templates of other projects: the texts that they expect, and where the sample's own texts
-- come to lie in them.
local jinja = require 'moonstill.jinja.jinja'
local conversations = require 'tests.support.conversations'
local json = require 'moonstill.base.json'
local templates = require 'tests.support.templates'
local tools = require 'tests.support.tools'

describe('templates of other projects', function()
  for _, group in ipairs(templates.groups) do
    local cases, why = templates.cases(group)
    if not cases then pending(group[1], why) end
    for _, case in ipairs(cases or {}) do
      it(group[1] .. ': ' .. case.name, function()
        local fine, seen = templates.try(jinja, case)
        assert(fine, seen)
      end)
    end
  end

  -- transformers gives templates `tools` and `documents` as none where there are none.
  for _, case in ipairs(templates.cases(templates.groups[3]) or {}) do
    it('trl, with all variables: ' .. case.name, function()
      for name, value in pairs { tools = json.null, documents = json.null, add_generation_prompt = false } do
        if case.variables[name] == nil then case.variables[name] = value end
      end
      local fine, seen = templates.try(jinja, case)
      assert(fine, seen)
    end)
  end
end)

-- CRC-32 as in zlib.
local function crc32(text)
  local crc = -1
  for i = 1, #text do
    crc = bit.bxor(crc, text:byte(i))
    for _ = 1, 8 do
      crc = bit.bxor(bit.rshift(crc, 1), bit.band(0xEDB88320, -bit.band(crc, 1)))
    end
  end
  return bit.tohex(bit.bnot(crc))
end

-- Length, checksum and generation marks of each text, as Jinja2 gave them.
describe('conversations', function()
  local all, why = templates.all()
  if not all then pending('are rendered as by Jinja2', why) end
  local path = 'tests/fixtures/templates.json'
  local known = json.decode(tools.read(path), path)
  for _, each in ipairs(all or {}) do
    it('are rendered as by Jinja2: ' .. each.name, function()
      local template = jinja.compile(each.source, each.name)
      for n, want in ipairs(known[each.name]) do
        local ok, text, _, marks = pcall(template.render, template, conversations.fixed(n), { now = templates.now })
        local got = ok and table.concat({ #text, crc32(text), unpack(marks) }, ' ') or 0
        assert(got == want, ('conversation %d: %s and not %s: %s'):format(n, got, want, text))
      end
    end)
  end

  it('are those of the fixture', function()
    local n = 0
    for _ in pairs(known) do n = n + 1 end
    assert.equal(all and #all or n, n)
  end)
end)

-- Letters that no template has: a byte of the text is the sample's if and only if it is one of
-- theirs, but for what the sample says in words that templates know (roles, types, names of keys),
-- and what `tojson` puts around texts.
local FIRST, LETTERS = 0xAC00, 4096 -- Hangul: no upper and lower case, three bytes each

local function letter(n)
  local c = FIRST + n
  return string.char(0xE0 + math.floor(c / 4096), 0x80 + math.floor(c / 64) % 64, 0x80 + c % 64)
end

-- A text of a place in the sample: its own letter, three times, with what may stand between words.
local function writer(random)
  local places = {}
  return function(message, field)
    local n = #places + 1
    places[n] = { message = message, field = field }
    local own = letter(n - 1)
    return ({ '%s%s%s', '%s %s, %s', ' %s "%s" %s ', '%s\\%s\t%s' })[random(4)]:format(own, own, own)
  end, places
end

-- The source that each byte has by the spans: source[1 + byte], nil where there is none.
local function per_byte(text, spans)
  local source, last = {}, 0
  assert(#spans % 3 == 0, 'spans are triples')
  for i = 1, #spans, 3 do
    assert(last <= spans[i] and spans[i] < spans[i + 1] and spans[i + 1] <= #text, 'spans ascend and are not empty')
    assert(i == 1 or spans[i] > last or spans[i + 2] ~= spans[i - 1], 'neighbours of one source are one')
    for byte = spans[i] + 1, spans[i + 1] do source[byte] = spans[i + 2] end
    last = spans[i + 1]
  end
  return source
end

-- What a sample may bring besides letters, in lower case: templates write roles in capitals.
local WORDS = {}
for word in ([[system user assistant tool function type id name find arguments content role text image tool_calls
  tool_call_id parameter_definitions str functions reasoning_content description parameters properties
  required object string integer place unit a zebra nested list title documents true false null none e t
  n r u abcdefgh1 abcdefgh2]]):gmatch '%S+' do
  WORDS[word] = true
end

local function check_letters(text, source, sources, places)
  for at, a, b, c in text:gmatch '()([\234-\236])([\128-\191])([\128-\191])' do
    local n = (a:byte() - 0xE0) * 4096 + (b:byte() - 0x80) * 64 + c:byte() - 0x80 - FIRST
    local place = places[n + 1]
    for byte = at, place and at + 2 or 0 do
      local found = sources[source[byte]]
      assert(found, ('byte %d has no source: %s'):format(byte - 1, text:sub(at - 40, at + 40)))
      assert(found.message == place.message and found.field == place.field,
        ('byte %d is of %s %s, and said to be of %s %s'):format(byte - 1, place.message, place.field, found.message,
          found.field))
    end
  end
end

local function check_others(text, source)
  local covered = {}
  for byte = 1, #text do covered[byte] = source[byte] and text:sub(byte, byte) or '\0' end
  local own = table.concat(covered)
  local sign = own:find '[<>|]'
  assert(not sign, sign and 'the template\'s own text has a source: ' .. text:sub(sign - 40, sign + 40))
  for word in own:gmatch '[%a_][%w_]*' do
    assert(WORDS[word:lower()], ('"%s" has a source, and no sample has it: %s'):format(word, text))
  end
end

describe('texts of the sample', function()
  local all, why = templates.all()
  if not all then pending('are found in every template', why) end
  for number, each in ipairs(all or {}) do
    it('are found in ' .. each.name, function()
      local template = jinja.compile(each.source, each.name)
      assert.is_nil(each.source:find '[\234-\236][\176-\191]', 'the template has such letters itself')
      local rendered = 0
      for seed = 1, 200 do
        if rendered == 24 then break end
        local random = tools.random(100 * number + seed)
        local text_of, places = writer(random)
        local variables = conversations.make(random, text_of)
        assert(#places < LETTERS)
        local ok, text, spans, _, sources = pcall(template.render, template, variables, { now = templates.now })
        if ok then
          rendered = rendered + 1
          local source = per_byte(text, spans)
          check_letters(text, source, sources, places)
          check_others(text, source)
        end
      end
      assert.is_true(rendered > 0)
    end)
  end
end)

it('templates made wrong at random end in a text or an error with its place', function()
  local rendered, refused = require 'tests.fuzz.templates'.run(1, 400)
  assert.is_true(rendered > 30 and refused > 100) -- both kinds occur, or the mutations are no good
end)
