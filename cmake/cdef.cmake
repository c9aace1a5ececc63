# Writes what lies between the cdef marks of IN as a byte array with its accessor to OUT.
file(READ "${IN}" text)
string(FIND "${text}" "/* cdef begin */" from)
string(FIND "${text}" "/* cdef end */" to)
if(from LESS 0 OR to LESS from)
  message(FATAL_ERROR "${IN}: no cdef marks")
endif()
math(EXPR length "${to} - ${from}")
string(SUBSTRING "${text}" ${from} ${length} text)
string(HEX "${text}" hex)
string(REGEX REPLACE "(..)" "0x\\1," bytes "${hex}")
file(WRITE "${OUT}" "/* made from core/moonstill.h */
const char *ms_cdef(void);
static const char text[] = {${bytes}0};
__attribute__((visibility(\"default\"))) const char *ms_cdef(void) { return text; }
")
