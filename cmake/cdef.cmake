# Writes what lies between the cdef marks of each file of IN, a list, as a byte array with its accessor
# to OUT.
set(bytes "")
foreach(file IN LISTS IN)
  file(READ "${file}" text)
  string(FIND "${text}" "/* cdef begin */" from)
  string(FIND "${text}" "/* cdef end */" to)
  if(from LESS 0 OR to LESS from)
    message(FATAL_ERROR "${file}: no cdef marks")
  endif()
  math(EXPR length "${to} - ${from}")
  string(SUBSTRING "${text}" ${from} ${length} text)
  string(HEX "${text}" hex)
  string(REGEX REPLACE "(..)" "0x\\1," part "${hex}")
  string(APPEND bytes "${part}")
endforeach()
file(WRITE "${OUT}" "/* made from the headers that Lua reads */
const char *ms_cdef(void);
static const char text[] = {${bytes}0};
__attribute__((visibility(\"default\"))) const char *ms_cdef(void) { return text; }
")
