/* utf8.c - UTF-8 and character classes. */
#include "utf8.h"

#include <string.h>
#include <utf8proc.h>

/* The second byte decides over overlong forms, surrogates and what lies above U+10FFFF. */
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

int32_t ms_utf8_get(const char *p, int *bytes) {
  const unsigned char *s = (const unsigned char *)p;
  if (s[0] < 0x80) return *bytes = 1, s[0];
  if (s[0] < 0xE0) return *bytes = 2, (s[0] & 0x1F) << 6 | (s[1] & 0x3F);
  if (s[0] < 0xF0) return *bytes = 3, (s[0] & 0x0F) << 12 | (s[1] & 0x3F) << 6 | (s[2] & 0x3F);
  *bytes = 4;
  return (s[0] & 0x07) << 18 | (s[1] & 0x3F) << 12 | (s[2] & 0x3F) << 6 | (s[3] & 0x3F);
}

int ms_utf8_put(int32_t c, char *out) {
  return (int)utf8proc_encode_char(c, (utf8proc_uint8_t *)out);
}

int ms_char_is_space(int32_t c) {
  if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

int ms_char_is_numeric(int32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  int k = utf8proc_category(c);
  return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

int ms_char_is_punctuation(int32_t c) {
  if (c < 0x80) return c > ' ' && c < 0x7F && !strchr("0123456789", c) && ((c | 32) < 'a' || (c | 32) > 'z');
  int k = utf8proc_category(c);
  return k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO;
}

int ms_char_is_word(int32_t c) {
  int k = utf8proc_category(c);
  /* The letters in circles and squares are symbols that count as alphabetic. */
  int circled = (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
                (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
  return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_ME) || k == UTF8PROC_CATEGORY_ND ||
         k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_PC || c == 0x200C || c == 0x200D ||
         circled;
}
