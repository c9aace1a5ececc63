/* log.c - lines on stderr, each written at once: threads and processes do not mix theirs. */
#include "log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../moonstill.h"
#include "error.h"

static int least(void) {
  const char *text = getenv("MS_LOG");
  if (text && !strcmp(text, "info")) return MS_LOG_INFO;
  return text && !strcmp(text, "none") ? MS_LOG_WARNING + 1 : MS_LOG_WARNING;
}

void ms_log(int level, const char *format, ...) {
  char text[2048];
  va_list args;
  if (level < least()) return;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  ms_make_printable(text);
  fprintf(stderr, "moonstill: %s%s\n", level == MS_LOG_WARNING ? "warning: " : "", text);
}
