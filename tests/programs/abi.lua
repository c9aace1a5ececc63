--- Writes a C program that prints how the compiler sees core/moonstill.h: the size of every struct,
--- offset and size of each of its fields, every constant. tests/spec/abi_spec.lua compares that with
--- what LuaJIT's FFI made of the same text. Run by CMake: abi.lua OUTPUT HEADER...
local output = table.remove(arg, 1)

local function read(path)
  local file = assert(io.open(path))
  local text = file:read '*a'
  file:close()
  return text
end

local text = ''
for _, header in ipairs(arg) do
  text = text .. assert(read(header):match '/%* cdef begin %*/(.-)/%* cdef end %*/', 'no cdef marks')
end
text = text:gsub('/%*.-%*/', ' ')

local lines = {}
local function emit(...) lines[#lines + 1] = string.format(...) end

for body, name in text:gmatch 'typedef%s+struct%s+[%w_]+%s*(%b{})%s*([%w_]+)%s*;' do
  emit('  printf("struct %s %%zu\\n", sizeof(%s));', name, name)
  for declaration in body:sub(2, -2):gmatch '[^;]+' do
    -- the first name follows the type; more follow the commas: `int32_t a, b`, `const char *c`
    for part in declaration:gmatch '[^,]+' do
      local field = part:gsub('%b[]', ''):match '([%w_]+)%s*$'
      if field then
        emit('  printf("field %s %s %%zu %%zu\\n", offsetof(%s, %s), sizeof(((%s *)0)->%s));', name,
          field, name, field, name, field)
      end
    end
  end
end
for body in text:gmatch 'enum%s*(%b{})' do
  for constant in body:gmatch 'MS_[%w_]+' do
    emit('  printf("constant %s %%d\\n", (int)%s);', constant, constant)
  end
end

local file = assert(io.open(output, 'w'))
file:write('#include "core/moonstill.h"\n#include <stddef.h>\n#include <stdio.h>\n\nint main(void) {\n',
  table.concat(lines, '\n'), '\n  return 0;\n}\n')
file:close()
