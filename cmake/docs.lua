--- Gathers the docstrings of modules for `help` at the prompt:
---   luajit cmake/docs.lua OUT MODULE.lua...
--- OUT is a module: by the last word of a module's name, what `require` calls it (`path`), its head
--- (`about`) and its functions in order, each with the line by which a function is known
--- (`linedefined`), name, arguments and text. What modules hand to each other (`--- @package`) is
--- left out.

local function block_text(lines)
  for i, line in ipairs(lines) do lines[i] = line:gsub('^%s*%-%-%- ?', '') end
  return table.concat(lines, '\n')
end

local function is_inner(lines)
  for _, line in ipairs(lines) do
    if line == '--- @package' then return true end
  end
  return false
end

-- "M" for a module's function, another word for a method of what it makes.
local PATTERN = '^%s*function ([%a_]+)[.:]([%a_][%w_]*)(%b())'

local function parse(path)
  local doc, block, number = { functions = {} }, {}, 0
  for line in io.lines(path) do
    number = number + 1
    if line:find '^%s*%-%-%-' then
      block[#block + 1] = line
    else
      if #block > 0 then
        local holder, name, arguments = line:match(PATTERN)
        if name and not is_inner(block) then
          table.insert(doc.functions, { line = number, name = name, arguments = arguments,
            method = holder ~= 'M', text = block_text(block) })
        elseif not name and not doc.about then
          doc.about = block_text(block)
        end
      end
      doc.about = doc.about or ''
      block = {}
    end
  end
  return doc
end

local function write(out, doc, path)
  out:write(('{ path = %q, about = %q, functions = {\n'):format(path, doc.about))
  for _, f in ipairs(doc.functions) do
    out:write(('{ line = %d, name = %q, arguments = %q, method = %s, text = %q },\n'):format(f.line,
      f.name, f.arguments, tostring(f.method), f.text))
  end
  out:write '} },\n'
end

local out = assert(io.open(arg[1], 'w'))
out:write 'return {\n'
for i = 2, #arg do
  local name = arg[i]:match '([%w_]+)%.lua$'
  out:write(('[%q] = '):format(name))
  write(out, parse(arg[i]), (arg[i]:gsub('^lua/', ''):gsub('%.lua$', ''):gsub('/', '.')))
end
out:write '}\n'
out:close()
