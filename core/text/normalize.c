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

/* Characters that a text decomposes to, and for a traced one the byte at which each one's character
 * begins in it. */
typedef struct {
  ms_buf chars, owner; /* int32_t */
} decomposed;

typedef struct {
  decomposed text, made;
  ms_buf spare, bound;
} scratch;

static void scratch_free(scratch *s) {
  ms_buf_free(&s->text.chars);
  ms_buf_free(&s->text.owner);
  ms_buf_free(&s->made.chars);
  ms_buf_free(&s->made.owner);
  ms_buf_free(&s->spare);
  ms_buf_free(&s->bound);
}

/* Canonical order: each run of marks is sorted by class, stably; `owner`, unless NULL, goes along. */
static ms_status order_marks(int32_t *c, int32_t *owner, size_t n, ms_buf *spare) {
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
      if (owner) MS_TRY(ms_buf_add(spare, owner + i, (end - i) * sizeof *owner));
      const int32_t *from = (const void *)spare->data, *of = from + (end - i);
      size_t at = i;
      for (int j = 0; j < 256; j++) {
        size_t here = count[j];
        count[j] = at;
        at += here;
      }
      for (size_t j = 0; j < end - i; j++) {
        size_t to = count[ms_char_mark_class(from[j])]++;
        c[to] = from[j];
        if (owner) owner[to] = of[j];
      }
    }
    i = end + 1;
    while (i < n && ms_char_mark_class(c[i]) == 0) i++;
  }
  return MS_OK;
}

static ms_status decompose(const char *text, size_t bytes, int traced, decomposed *out,
                           ms_buf *spare) {
  int n;
  ms_buf *chars = &out->chars;
  chars->size = out->owner.size = 0;
  for (size_t i = 0; i < bytes; i += (size_t)n) {
    enum { MOST = 32 }; /* the longest decomposition of one character has 18 */
    MS_TRY(ms_buf_reserve(chars, MOST * sizeof(int32_t)));
    int32_t *at = (void *)(chars->data + chars->size);
    utf8proc_ssize_t made = utf8proc_decompose_char(ms_utf8_get(text + i, &n), at, MOST,
                                                    UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, NULL);
    if (made < 0 || made > MOST) return MS_FAIL(MS_EINVAL, "normalizer: byte %zu", i);
    chars->size += (size_t)made * sizeof *at;
    int32_t owner = (int32_t)i;
    for (int k = 0; traced && k < made; k++) MS_TRY(ms_buf_add(&out->owner, &owner, sizeof owner));
  }
  return order_marks((void *)chars->data, traced ? (void *)out->owner.data : NULL,
                     chars->size / sizeof(int32_t), spare);
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

/* For each character of `made`, at its first byte: the bytes of the text that it came from. Both
 * decompose to the same characters in the same order. */
static ms_status find_bounds(const char *text, const char *made, size_t bytes, scratch *s) {
  size_t n = s->made.owner.size / sizeof(int32_t);
  const int32_t *of_text = (const void *)s->text.owner.data;
  const int32_t *of_made = (const void *)s->made.owner.data;
  MS_REQUIRE(s->text.owner.size == s->made.owner.size, "normalizer: %zu characters of %zu", n,
             s->text.owner.size / sizeof(int32_t));
  s->bound.size = 0;
  MS_TRY(ms_buf_reserve(&s->bound, bytes * sizeof(ms_range)));
  ms_range *bound = (void *)s->bound.data;
  for (size_t i = 0; i < bytes; i++) bound[i] = (ms_range){INT32_MAX, 0};
  for (size_t k = 0; k < n; k++) {
    int length;
    ms_range *b = &bound[of_made[k]];
    ms_utf8_get(text + of_text[k], &length);
    if (b->start > of_text[k]) b->start = of_text[k];
    if (b->end < of_text[k] + length) b->end = of_text[k] + length;
  }
  ms_ranges_ascend(bound, bytes);
  return MS_OK;
}

/* Where a stretch's normal form came from. A character that is there as it was keeps its bytes; all
 * bytes of another stand for all of what it was made of, and marks that were put in order for each
 * other. */
static ms_status trace_stretch(ms_slice in, const char *made, size_t bytes, ms_buf *from,
                               scratch *s) {
  int n;
  if (bytes == in.bytes && !memcmp(made, in.text, bytes))
    return ms_buf_add(from, in.from, bytes * sizeof *in.from);
  MS_TRY(decompose(in.text, in.bytes, 1, &s->text, &s->spare));
  MS_TRY(decompose(made, bytes, 1, &s->made, &s->spare));
  MS_TRY(find_bounds(in.text, made, bytes, s));
  for (size_t i = 0; i < bytes; i += (size_t)n) {
    ms_range b = ((const ms_range *)(const void *)s->bound.data)[i];
    ms_slice was = ms_slice_part(in, (size_t)b.start, (size_t)b.end);
    ms_utf8_get(made + i, &n);
    if (was.bytes == (size_t)n && !memcmp(was.text, made + i, was.bytes)) {
      MS_TRY(ms_buf_add(from, was.from, was.bytes * sizeof *was.from));
    } else {
      ms_range all = ms_slice_range(was);
      for (int k = 0; k < n; k++) MS_TRY(ms_buf_add(from, &all, sizeof all));
    }
  }
  return MS_OK;
}

/* NFC of a stretch: characters are composed between late marks, never across one. */
static ms_status nfc_stretch(ms_slice in, ms_draft *out, scratch *s) {
  size_t before = out->text.size;
  MS_TRY(decompose(in.text, in.bytes, 0, &s->text, &s->spare));
  int32_t *c = (void *)s->text.chars.data;
  size_t n = s->text.chars.size / sizeof *c;
  for (size_t i = 0, end; i < n; i = end) {
    end = i + 1;
    while (end < n && !is_late(c[end - 1]) && !is_late(c[end])) end++;
    MS_TRY(put_composed(c + i, end - i, &out->text));
  }
  if (!in.from) return MS_OK;
  return trace_stretch(in, out->text.data + before, out->text.size - before, &out->from, s);
}

/* Below U+0300 nothing changes in NFC and nothing combines with what stands before it; so text is
 * copied up to one character before the first that is above, and a stretch ends before the next
 * character below U+0080. */
static ms_status nfc(ms_slice in, ms_draft *out, scratch *s) {
  const char *text = in.text;
  size_t done = 0;
  while (done < in.bytes) {
    size_t i = done;
    while (i < in.bytes && (unsigned char)text[i] < 0xCC) i++;
    if (i == in.bytes) break;
    while (i > done && (text[--i] & 0xC0) == 0x80) continue;
    MS_TRY(ms_draft_add(out, ms_slice_part(in, done, i)));
    size_t end = i + 1;
    while (end < in.bytes && (text[end] & 0xC0) == 0x80) end++;
    while (end < in.bytes && (unsigned char)text[end] >= 0x80) end++;
    MS_TRY(nfc_stretch(ms_slice_part(in, i, end), out, s));
    done = end;
  }
  return ms_draft_add(out, ms_slice_part(in, done, in.bytes));
}

static ms_status prepend(const ms_step *s, ms_slice in, ms_draft *out, ms_room *room) {
  if (!in.bytes) return MS_OK;
  MS_TRY(ms_room_take(room, s->text_bytes));
  ms_range first = in.from ? ms_slice_first(in) : (ms_range){0, 0};
  MS_TRY(ms_draft_put(out, s->text, s->text_bytes, in.from ? &first : NULL));
  return ms_draft_add(out, in);
}

static ms_status apply(const ms_step *s, ms_matcher *m, ms_slice in, ms_draft *out, ms_room *room) {
  scratch room_for_nfc = {0};
  ms_status st = MS_OK;
  switch (s->kind) {
    case MS_STEP_NFC: st = nfc(in, out, &room_for_nfc); break;
    case MS_STEP_PREPEND: st = prepend(s, in, out, room); break;
    case MS_STEP_REPLACE: st = ms_step_replace(s, m, in, out, room); break;
    default: st = MS_FAIL(MS_EINVAL, "normalizer: step %d", s->kind);
  }
  scratch_free(&room_for_nfc);
  return st;
}

ms_status ms_normalize(const ms_steps *steps, ms_matcher *m, ms_slice in, ms_draft *out,
                       ms_draft *spare, ms_room *room) {
  ms_draft_clear(out);
  MS_TRY(ms_draft_add(out, in));
  for (int i = 0; i < steps->count; i++) {
    ms_draft_swap(out, spare);
    ms_draft_clear(out);
    MS_TRY(apply(&steps->step[i], m, ms_draft_slice(spare), out, room));
  }
  return MS_OK;
}
