/* utf8.h - UTF-8, forwards. */
#ifndef MS_UTF8_H
#define MS_UTF8_H
#include <stddef.h>
#include <stdint.h>

/* Looks at the n >= 1 bytes at p. Above 0: the length of the character there. 0: all n bytes are the
 * beginning of a character. Below 0: minus the length of what cannot be part of one, which one
 * replacement character stands for. */
int ms_utf8_scan(const char *p, size_t n);
/* The offset of the first byte that is not UTF-8, or -1. */
int64_t ms_utf8_check(const char *text, size_t bytes);
/* The character at p, which must be valid UTF-8; *bytes is its length. */
int32_t ms_utf8_get_long(const char *p, int *bytes); /* one that is not ASCII */
static inline int32_t ms_utf8_get(const char *p, int *bytes) {
  return (unsigned char)*p < 0x80 ? (*bytes = 1, *p) : ms_utf8_get_long(p, bytes);
}
/* Writes a character, at most 4 bytes, and returns its length. */
int ms_utf8_put(int32_t c, char *out);

#endif
