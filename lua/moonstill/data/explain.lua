--- What is to be said of data that are no JSON: what people have in its place, and what to do.

local M = {}

local PYTHON = "this is Python's way to print, not JSON: json.dumps writes JSON"
local NUMBERS = 'JSON has no NaN and no Infinity: write null, or leave the key out'

-- What a parser says where it stands before something that people write.
local SAID = {
  { "near 'NaN", NUMBERS }, { "near 'Infinity", NUMBERS }, { "near '%-'$", NUMBERS },
  { "near '''$", PYTHON }, { "near 'None'$", PYTHON }, { "near 'True'$", PYTHON },
  { "near 'False'$", PYTHON },
  { 'unable to decode byte', 'it is not UTF-8: save it as UTF-8 (iconv -t UTF-8)' },
}

local function of_message(message)
  for _, case in ipairs(SAID) do
    if message:find(case[1]) then return case[2] end
  end
end

local function with(message, reason) return reason and message .. '; ' .. reason or message end

local function of_line(text, message, ended)
  if text:find '^%s*{%s*$' then
    return 'a row stands on one line, as json.dumps writes it without an indent'
  elseif text:find '}%s*,%s*$' then
    return 'rows stand on lines of their own, without commas behind them'
  elseif not text:find '^%s*[{%[]' then
    return 'a table is named .csv or .tsv, and a plain text .txt'
  elseif not ended and not text:find '}%s*$' then
    return 'the file ends in the middle of this row: was its download or copy cut off?'
  end
  return of_message(message)
end

--- A parser's message about a line of a file, with what to do.
--- @param message string
--- @param text string the line
--- @param ended boolean it has its end, which the last of a file may lack
--- @return string
function M.line(message, text, ended) return with(message, of_line(text, message, ended)) end

--- A parser's message about a value, with what to do.
--- @param message string
--- @return string
function M.value(message) return with(message, of_message(message)) end

return M
