/* error.c - the last failure of each thread, and the ABI number. */
#include "error.h"
#include "../moonstill.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local char last[2048];

void ms_make_printable(char *text) {
  for (unsigned char *p = (unsigned char *)text; *p; p++) {
    if (*p == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0) *p = p[1] = '?'; /* U+0080 to U+009F, in UTF-8 */
    if ((*p < ' ' && *p != '\n' && *p != '\t') || *p == 0x7f) *p = '?';
  }
}

ms_status ms_fail_at(ms_status status, const char *file, int line, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(last, sizeof last, format, args);
  va_end(args);
  ms_make_printable(last);
  /* File and line of the source are of use only to those who work on the library. */
  if (getenv("MS_TRACE")) fprintf(stderr, "%s:%d: status %d: %s\n", file, line, status, last);
  return status;
}

const char *ms_last_error(void) { return last; }

int ms_abi(void) { return MS_ABI; }
