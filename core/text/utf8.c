/* utf8.c - UTF-8. */
#include "utf8.h"

#include <string.h>
#include <utf8proc.h>

/* The second byte excludes overlong forms, surrogates and what is above U+10FFFF. */
static int second_ok(unsigned lead, unsigned b) {
  unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  return b >= low && b <= high;
}

int ms_utf8_scan(const char *p, size_t n) {
  const unsigned char *s = (const unsigned char *)p;
  if (s[0] < 0x80) return 1;
  int want = s[0] < 0xC2 || s[0] > 0xF4 ? 0 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;
  if (!want) return -1;
  if (n < 2) return 0;
  if (!second_ok(s[0], s[1])) return -1;
  for (int i = 2; i < want; i++) {
    if ((size_t)i >= n) return 0;
    if ((s[i] & 0xC0) != 0x80) return -i;
  }
  return want;
}

int64_t ms_utf8_check(const char *text, size_t bytes) {
  for (size_t i = 0; i < bytes;) {
    uint64_t eight;
    while (i + 8 <= bytes && (memcpy(&eight, text + i, 8), !(eight & 0x8080808080808080u))) i += 8;
    if (i == bytes) break;
    int n = ms_utf8_scan(text + i, bytes - i);
    if (n <= 0) return (int64_t)i;
    i += (size_t)n;
  }
  return -1;
}

int32_t ms_utf8_get_long(const char *p, int *bytes) {
  const unsigned char *s = (const unsigned char *)p;
  if (s[0] < 0xE0) return *bytes = 2, (s[0] & 0x1F) << 6 | (s[1] & 0x3F);
  if (s[0] < 0xF0) return *bytes = 3, (s[0] & 0x0F) << 12 | (s[1] & 0x3F) << 6 | (s[2] & 0x3F);
  *bytes = 4;
  return (s[0] & 0x07) << 18 | (s[1] & 0x3F) << 12 | (s[2] & 0x3F) << 6 | (s[3] & 0x3F);
}

int ms_utf8_put(int32_t c, char *out) {
  return (int)utf8proc_encode_char(c, (utf8proc_uint8_t *)out);
}
