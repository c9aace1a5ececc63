/* normalize.c - the normalizers: NFC, Prepend, Replace.
 *
 * Unicode's tables are utf8proc's. Its compatibility forms cover more characters than those of the
 * library that writes tokenizer.json, so NFKC would give other ids and is not offered. Combining marks
 * are put in order here, by counting: utf8proc's insertion sort takes quadratic time on long runs. */
#include <string.h>
#include <utf8proc.h>

#include "../base/memory.h"
#include "steps.h"
#include "unicode.h"
#include "utf8.h"

/* Canonical order: each run of marks is sorted by class, stably. */
static ms_status order_marks(int32_t *c, size_t n, ms_buf *spare) {
  for (size_t i = 0; i < n;) {
    size_t end = i, count[256] = {0};
    int sorted = 1, k;
    for (int last = 0; end < n && (k = ms_char_mark_class(c[end])) != 0; last = k, end++) {
      count[k]++;
      if (k < last) sorted = 0;
    }
    if (!sorted) {
      spare->size = 0;
      MS_TRY(ms_buf_add(spare, c + i, (end - i) * sizeof *c));
      const int32_t *from = (const void *)spare->data;
      size_t at = i;
      for (int j = 0; j < 256; j++) {
        size_t here = count[j];
        count[j] = at;
        at += here;
      }
      for (size_t j = 0; j < end - i; j++) c[count[ms_char_mark_class(from[j])]++] = from[j];
    }
    i = end + 1;
    while (i < n && ms_char_mark_class(c[i]) == 0) i++;
  }
  return MS_OK;
}

static ms_status decompose(const char *text, size_t bytes, ms_buf *chars) {
  int n;
  chars->size = 0;
  for (size_t i = 0; i < bytes; i += (size_t)n) {
    enum { MOST = 32 }; /* the longest decomposition of one character has 18 */
    MS_TRY(ms_buf_reserve(chars, MOST * sizeof(int32_t)));
    int32_t *at = (void *)(chars->data + chars->size);
    utf8proc_ssize_t made = utf8proc_decompose_char(ms_utf8_get(text + i, &n), at, MOST,
                                                    UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, NULL);
    if (made < 0 || made > MOST) return MS_FAIL(MS_EINVAL, "normalizer: byte %zu", i);
    chars->size += (size_t)made * sizeof *at;
  }
  return MS_OK;
}

/* A mark for utf8proc that is none for the library that writes tokenizer.json. */
static int is_late(int32_t c) {
  return c >= 0x300 && utf8proc_get_property(c)->combining_class && !ms_char_mark_class(c);
}

static ms_status put_composed(int32_t *c, size_t count, ms_buf *out) {
  char utf8[4];
  utf8proc_ssize_t n =
      utf8proc_normalize_utf32(c, (utf8proc_ssize_t)count, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  if (n < 0) return MS_FAIL(MS_EINVAL, "normalizer: %s", utf8proc_errmsg(n));
  for (utf8proc_ssize_t i = 0; i < n; i++)
    MS_TRY(ms_buf_add(out, utf8, (size_t)ms_utf8_put(c[i], utf8)));
  return MS_OK;
}

/* NFC of a stretch: characters are composed between late marks, never across one. */
static ms_status nfc_stretch(const char *text, size_t bytes, ms_buf *out, ms_buf *chars) {
  ms_buf marks = {0};
  MS_TRY(decompose(text, bytes, chars));
  int32_t *c = (void *)chars->data;
  size_t n = chars->size / sizeof *c;
  ms_status st = order_marks(c, n, &marks);
  ms_buf_free(&marks);
  MS_TRY(st);
  for (size_t i = 0, end; i < n && st == MS_OK; i = end) {
    end = i + 1;
    while (end < n && !is_late(c[end - 1]) && !is_late(c[end])) end++;
    st = put_composed(c + i, end - i, out);
  }
  return st;
}

/* Below U+0300 nothing changes in NFC and nothing combines with what stands before it; so text is
 * copied up to one character before the first that is above, and a stretch ends before the next
 * character below U+0080. */
static ms_status nfc(const char *text, size_t bytes, ms_buf *out, ms_buf *chars) {
  size_t done = 0;
  while (done < bytes) {
    size_t i = done;
    while (i < bytes && (unsigned char)text[i] < 0xCC) i++;
    if (i == bytes) break;
    while (i > done && (text[--i] & 0xC0) == 0x80) continue;
    MS_TRY(ms_buf_add(out, text + done, i - done));
    size_t end = i + 1;
    while (end < bytes && (text[end] & 0xC0) == 0x80) end++;
    while (end < bytes && (unsigned char)text[end] >= 0x80) end++;
    MS_TRY(nfc_stretch(text + i, end - i, out, chars));
    done = end;
  }
  return ms_buf_add(out, text + done, bytes - done);
}

static ms_status apply(const ms_step *s, ms_matcher *m, const char *text, size_t bytes, ms_buf *out,
                       ms_room *room) {
  ms_buf chars = {0};
  ms_status st = MS_OK;
  switch (s->kind) {
    case MS_STEP_NFC: st = nfc(text, bytes, out, &chars); break;
    case MS_STEP_PREPEND:
      if (bytes) st = ms_room_take(room, s->text_bytes);
      if (bytes && st == MS_OK) st = ms_buf_add(out, s->text, s->text_bytes);
      if (st == MS_OK) st = ms_buf_add(out, text, bytes);
      break;
    case MS_STEP_REPLACE: st = ms_step_replace(s, m, text, bytes, out, room); break;
    default: st = MS_FAIL(MS_EINVAL, "normalizer: step %d", s->kind);
  }
  ms_buf_free(&chars);
  return st;
}

ms_status ms_normalize(const ms_steps *steps, ms_matcher *m, const char *text, size_t bytes,
                       ms_buf *out, ms_buf *spare, ms_room *room) {
  out->size = 0;
  MS_TRY(ms_buf_add(out, text, bytes));
  for (int i = 0; i < steps->count; i++) {
    ms_buf input = *out;
    *out = *spare;
    *spare = input;
    out->size = 0;
    MS_TRY(apply(&steps->step[i], m, spare->data, spare->size, out, room));
  }
  return MS_OK;
}
