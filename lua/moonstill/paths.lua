--- What to say of a path where something else was expected.

local ffi = require 'ffi'
local C = require 'moonstill.C'
local check = require 'moonstill.check'
local text_of = require 'moonstill.text'

local M = {}

local out = ffi.new 'char *[1]'

--- What a file is that could not be read, and what to do: a sentence to stand after its path, nil
--- when it is nothing known. Pointer files, error pages, archives, other formats and encodings.
--- @param path string
--- @return string?
function M.guess(path)
  check(C.ms_file_guess(path, out))
  return text_of(out[0])
end

--- The names in a folder, sorted.
--- @param path string
--- @return string[]
function M.list(path)
  check(C.ms_dir_list(path, out))
  local list = {}
  for name in text_of(out[0]):gmatch '[^\n]+' do list[#list + 1] = name end
  return list
end

--- Why there is nothing at a path, to stand after it.
--- @param path string
--- @param what? string what is missing; default "file"
--- @return string
function M.missing(path, what)
  local none = 'no such ' .. (what or 'file')
  if path:find '^%a[%w+.-]*://' then
    return none .. ': nothing is downloaded here, fetch it first and give its path'
  end
  local guess = M.guess(path)
  if guess then return guess end
  local is_file = path:find '%.%a%w*$' -- "2.5" of a name is no ending
  if is_file or not path:find '^%w[%w_.-]*/[%w_.-]+$' then return none end
  return none .. '; if it is a name on a hub: nothing is downloaded here, fetch it first'
end

return M
