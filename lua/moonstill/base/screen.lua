--- What is written to a terminal: whether there is one, how wide it is, and colours, which NO_COLOR
--- and TERM=dumb turn off.

local ffi = require 'ffi'
local layout = require 'moonstill.base.layout'

ffi.cdef 'int isatty(int fd); int ioctl(int fd, unsigned long request, ...);'

local M = {}

local WIDTH = 80 -- where nothing says it
local PAGE = 100 -- longer lines are hard to read

--- Whether a stream (1: stdout, 2: stderr) is a terminal.
--- @param stream integer
--- @return boolean
function M.is_terminal(stream) return ffi.C.isatty(stream) == 1 end

--- Leaves standing a line that is drawn over, where there is one: something else is to be written.
function M.settle()
  local progress = package.loaded['moonstill.base.progress'] -- which draws, and begins with this
  if progress then progress.settle() end
end

--- Columns of a stream's terminal; where there is none, what COLUMNS says, else 80.
--- @param stream integer
--- @return integer
function M.columns(stream)
  local size = ffi.new 'unsigned short[4]' -- rows, columns, pixels
  if ffi.C.ioctl(stream, 0x5413, size) == 0 and size[1] > 0 then return size[1] end -- TIOCGWINSZ
  local given = tonumber(os.getenv 'COLUMNS')
  return given and given >= 1 and math.floor(given) or WIDTH
end

--- Columns of a text for stdout that is to be read: those of the terminal, but no more than can be
--- read with ease.
--- @return integer
function M.page() return math.min(M.columns(1), PAGE) end

--- Whether what is on a stream can be drawn over: no control character goes anywhere else.
--- @param stream integer
--- @return boolean
function M.is_drawn_over(stream)
  return M.is_terminal(stream) and os.getenv 'TERM' ~= 'dumb'
end

--- A text for a stream: on a terminal, lines that are too wide are broken between words, but not
--- at a `layout.TIE`.
--- @param stream integer
--- @param text string without colours
--- @param indent? integer blanks before what goes on below, default 0
--- @return string
function M.wrapped(stream, text, indent)
  local columns = M.is_terminal(stream) and M.columns(stream) or math.huge
  local lead = (' '):rep(indent or 0)
  return (text:gsub('[^\n]+', function(line)
    if layout.width(line) <= columns then return (line:gsub(layout.TIE, ' ')) end
    return table.concat(layout.wrap(line, columns - #lead), '\n' .. lead)
  end))
end

--- Whether a stream shows colours.
--- @param stream integer
--- @return boolean
function M.has_colours(stream)
  local off = os.getenv 'NO_COLOR'
  return M.is_terminal(stream) and not (off and off ~= '') and os.getenv 'TERM' ~= 'dumb'
end

--- A text for stdout with an SGR code, such as "2" for faint; as it is where there are no colours.
--- @param code string
--- @param text string
--- @return string
function M.painted(code, text)
  return M.has_colours(1) and ('\27[%sm%s\27[0m'):format(code, text) or text
end

--- A text for stdout that stands back.
--- @param text string
--- @return string
function M.dim(text) return M.painted('2', text) end

return M
