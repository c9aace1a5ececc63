--- What stands at a path, and what to say of it where something else was expected.

local ffi = require 'ffi'
local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local text_of = require 'moonstill.base.text'

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
  check.file(C.ms_dir_list(path, out))
  local list = {}
  for name in text_of(out[0]):gmatch '[^\n]+' do list[#list + 1] = name end
  return list
end

--- The absolute path without links; what of it is not there yet follows as it is.
--- @param path string
--- @return string
function M.real(path)
  check.file(C.ms_path_real(path, out))
  return text_of(out[0])
end

--- Renames what is at a path to PATH.old, or PATH.old.1 and so on.
--- @param path string
--- @return string where it is now
function M.set_aside(path)
  check.file(C.ms_path_set_aside(path, out))
  return text_of(out[0])
end

--- Why there is nothing at a path, to stand after it.
--- @param path string
--- @param what? string what is missing; default "file"
--- @return string
function M.missing(path, what)
  check(C.ms_path_missing(path, what or 'file', out))
  return text_of(out[0])
end

return M
