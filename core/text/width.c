/* width.c - what a terminal makes of a text. */
#include <utf8proc.h>

#include "../moonstill.h"
#include "utf8.h"

enum { EMOJI_SELECTOR = 0xFE0F };

/* The character at `text`: its bytes, and in *columns its width. What is no UTF-8 is a byte that a
 * terminal shows as one column. A sign that is asked for as an emoji is as wide as those. */
static int64_t character(const char *text, int64_t bytes, int *columns) {
  const utf8proc_uint8_t *p = (const utf8proc_uint8_t *)text;
  utf8proc_int32_t c, next;
  int64_t n = utf8proc_iterate(p, bytes, &c), after;

  *columns = 1;
  if (n <= 0) return 1;
  *columns = utf8proc_charwidth(c);
  if (*columns != 1 || n == bytes) return n;
  after = utf8proc_iterate(p + n, bytes - n, &next);
  if (after <= 0 || next != EMOJI_SELECTOR) return n;
  *columns = 2;
  return n + after;
}

int64_t ms_text_fit(const char *text, int64_t bytes, int64_t columns, int64_t *width) {
  int64_t at = 0;
  int wide;

  *width = 0;
  while (at < bytes) {
    int64_t n = character(text + at, bytes - at, &wide);
    if (*width + wide > columns) break;
    *width += wide;
    at += n;
  }
  return at;
}

int64_t ms_text_check(const char *text, int64_t bytes) {
  return ms_utf8_check(text, (size_t)bytes);
}
