--- What Unicode says of characters, as Python's str methods ask for it.

local C = require 'moonstill.C'
local strings = require 'moonstill.jinja.strings'

local M = {}

-- Characters whose other case is more than one: Unicode's SpecialCasing.
local UPPER = [[df=53+53 149=2bc+4e 1f0=4a+30c 390=399+308+301 3b0=3a5+308+301 587=535+552
1e96=48+331 1e97=54+308 1e98=57+30a 1e99=59+30a 1e9a=41+2be 1f50=3a5+313 1f52=3a5+313+300
1f54=3a5+313+301 1f56=3a5+313+342 1fb2=1fba+399 1fb3=391+399 1fb4=386+399 1fb6=391+342
1fb7=391+342+399 1fbc=391+399 1fc2=1fca+399 1fc3=397+399 1fc4=389+399 1fc6=397+342
1fc7=397+342+399 1fcc=397+399 1fd2=399+308+300 1fd3=399+308+301 1fd6=399+342 1fd7=399+308+342
1fe2=3a5+308+300 1fe3=3a5+308+301 1fe4=3a1+313 1fe6=3a5+342 1fe7=3a5+308+342 1ff2=1ffa+399
1ff3=3a9+399 1ff4=38f+399 1ff6=3a9+342 1ff7=3a9+342+399 1ffc=3a9+399 fb00=46+46 fb01=46+49
fb02=46+4c fb03=46+46+49 fb04=46+46+4c fb05=53+54 fb06=53+54 fb13=544+546 fb14=544+535
fb15=544+53b fb16=54e+546 fb17=544+53d]]
local TITLE = [[df=53+73 149=2bc+4e 1f0=4a+30c 390=399+308+301 3b0=3a5+308+301 587=535+582
1e96=48+331 1e97=54+308 1e98=57+30a 1e99=59+30a 1e9a=41+2be 1f50=3a5+313 1f52=3a5+313+300
1f54=3a5+313+301 1f56=3a5+313+342 1fb2=1fba+345 1fb4=386+345 1fb6=391+342 1fb7=391+342+345
1fc2=1fca+345 1fc4=389+345 1fc6=397+342 1fc7=397+342+345 1fd2=399+308+300 1fd3=399+308+301
1fd6=399+342 1fd7=399+308+342 1fe2=3a5+308+300 1fe3=3a5+308+301 1fe4=3a1+313 1fe6=3a5+342
1fe7=3a5+308+342 1ff2=1ffa+345 1ff4=38f+345 1ff6=3a9+342 1ff7=3a9+342+345 fb00=46+66 fb01=46+69
fb02=46+6c fb03=46+66+69 fb04=46+66+6c fb05=53+74 fb06=53+74 fb13=544+576 fb14=544+565
fb15=544+56b fb16=54e+576 fb17=544+56d]]

local function read_table(text)
  local map = {}
  for from, to in text:gmatch '(%x+)=(%S+)' do
    local parts = {}
    for code in to:gmatch '%x+' do parts[#parts + 1] = strings.char(tonumber(code, 16)) end
    map[strings.char(tonumber(from, 16))] = table.concat(parts)
  end
  return map
end

local special_upper, special_title = read_table(UPPER), read_table(TITLE)
-- the Greek letters with a iota below: the sets of eight from 1F80, 1F90 and 1FA0
for i = 0, 47 do
  local base = ({ 0x1F08, 0x1F28, 0x1F68 })[math.floor(i / 16) + 1]
  special_upper[strings.char(0x1F80 + i)] = strings.char(base + i % 8) .. strings.char(0x399)
end

local WIDE = '[\192-\255][\128-\191]*'

local function mapper(special, map)
  return function(c)
    local code = strings.code(c, 1)
    return special[c] or strings.char(map(code))
  end
end

local to_upper = mapper(special_upper, C.ms_char_upper)
local to_title = mapper(special_title, C.ms_char_title)
local to_lower = mapper({ ['\196\176'] = 'i\204\135' }, C.ms_char_lower)

--- A plain text in capitals.
function M.upper(s)
  if strings.is_ascii(s) then return s:upper() end
  return (s:upper():gsub(WIDE, to_upper))
end

--- A character (or more) as it begins a word.
function M.title_char(s)
  if strings.is_ascii(s) then return s:upper() end
  return (s:gsub(WIDE, to_title))
end

--- The small sigma for the capital one at byte `at` of a text: the last one of a word, with a
--- letter before it and none behind it, is another.
function M.small_sigma(s, at)
  local last = s:sub(math.max(1, at - 4), at - 1):match '[%z\1-\127\192-\255][\128-\191]*$'
  local first = s:sub(at + 2, at + 5):match '^[%z\1-\127\192-\255][\128-\191]*'
  local ends = last and M.is_alpha((strings.code(last, 1))) and
    not (first and M.is_alpha((strings.code(first, 1))))
  return ends and '\207\130' or '\207\131'
end

local function small_sigmas(s)
  local parts, from = {}, 1
  for at in s:gmatch '()\206\163' do
    parts[#parts + 1] = s:sub(from, at - 1) .. M.small_sigma(s, at)
    from = at + 2
  end
  return table.concat(parts) .. s:sub(from)
end

--- A plain text in small letters.
function M.lower(s)
  if strings.is_ascii(s) then return s:lower() end
  if s:find('\206\163', 1, true) then s = small_sigmas(s) end
  return (s:lower():gsub(WIDE, to_lower))
end

-- classes ----------------------------------------------------------------------------------------

local function category(code)
  local c = C.ms_char_category(code)
  return math.floor(c / 256), c % 256
end

local L, N, Z, CONTROL = ('L'):byte(), ('N'):byte(), ('Z'):byte(), ('C'):byte()
local UPPER_LETTER, LOWER_LETTER, TITLE_LETTER, DIGIT = ('u'):byte(), ('l'):byte(), ('t'):byte(),
  ('d'):byte()

--- Whether repr shows a character as it is.
--- @param code integer
function M.is_printable(code)
  if code < 127 then return code >= 32 end
  local first = category(code)
  return first ~= CONTROL and first ~= Z
end

function M.is_alpha(code) return (category(code)) == L end

function M.is_decimal(code)
  local first, second = category(code)
  return first == N and second == DIGIT
end

--- As str.isdigit: decimal digits, and digits above, below or in circles.
function M.is_digit(code)
  return M.is_decimal(code) or code == 0xB2 or code == 0xB3 or code == 0xB9 or code == 0x2070 or
    code >= 0x2074 and code <= 0x2079 or code >= 0x2080 and code <= 0x2089 or
    code >= 0x2460 and code <= 0x2468 or code >= 0x2474 and code <= 0x247C or
    code >= 0x2488 and code <= 0x2490
end

local han = {}
for c in ('一二三四五六七八九十百千万億兆零〇两廿卅'):gmatch(WIDE) do
  han[strings.code(c, 1)] = true
end

function M.is_numeric(code) return (category(code)) == N or han[code] == true end

function M.is_alnum(code)
  local first = category(code)
  return first == L or first == N or han[code] == true
end

function M.is_upper(code)
  local first, second = category(code)
  return first == L and second == UPPER_LETTER
end

function M.is_lower(code)
  local first, second = category(code)
  return first == L and second == LOWER_LETTER or code == 0xAA or code == 0xBA
end

function M.is_title(code)
  local first, second = category(code)
  return first == L and second == TITLE_LETTER
end

--- Whether all characters of a plain text are of a class, and there is one.
--- @param s string
--- @param is fun(code: integer): boolean
function M.all(s, is)
  local i = 1
  while i <= #s do
    local code, length = strings.code(s, i)
    if not is(code) then return false end
    i = i + length
  end
  return s ~= ''
end

return M
