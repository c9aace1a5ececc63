/* added.c - added tokens in a text. */
#include "added.h"

#include <string.h>

#include "unicode.h"
#include "utf8.h"

typedef struct {
  int32_t child, sibling; /* 0: none */
  int32_t id, flags;      /* id -1: no token ends here */
  unsigned char byte;
} node;

static node *nodes(const ms_added *a) { return (node *)(void *)a->node.data; }

static int32_t child(const ms_added *a, int32_t at, unsigned char byte) {
  if (!at) return a->first[byte];
  for (int32_t c = nodes(a)[at].child; c; c = nodes(a)[c].sibling)
    if (nodes(a)[c].byte == byte) return c;
  return 0;
}

static ms_status new_child(ms_added *a, int32_t at, unsigned char byte, int32_t *out) {
  node n = {.sibling = at ? nodes(a)[at].child : 0, .id = -1, .byte = byte};
  int32_t c = (int32_t)(a->node.size / sizeof n);
  MS_TRY(ms_buf_add(&a->node, &n, sizeof n));
  if (at) {
    nodes(a)[at].child = c;
  } else {
    a->first[byte] = c;
  }
  *out = c;
  return MS_OK;
}

ms_status ms_added_add(ms_added *a, const char *text, size_t bytes, int32_t id, int flags) {
  int32_t at = 0;
  if (!bytes) return MS_OK;
  MS_REQUIRE(a->node.size / sizeof(node) + bytes < 1 << 26, "added tokens: %zu bytes", bytes);
  if (!a->node.size) MS_TRY(ms_buf_add(&a->node, &(node){.id = -1}, sizeof(node)));
  for (size_t i = 0; i < bytes; i++) {
    int32_t next = child(a, at, (unsigned char)text[i]);
    if (!next) MS_TRY(new_child(a, at, (unsigned char)text[i], &next));
    at = next;
  }
  nodes(a)[at].id = id;
  nodes(a)[at].flags = flags;
  return MS_OK;
}

/* The longest token that begins at p, a special one in its first bytes only: its node and length, or
 * 0. */
static int32_t longest(const ms_added *a, const char *p, size_t bytes, size_t special_bytes,
                       size_t *length) {
  int32_t best = 0, at = 0;
  for (size_t i = 0; i < bytes; i++) {
    at = child(a, at, (unsigned char)p[i]);
    if (!at) break;
    if (nodes(a)[at].id < 0) continue;
    if (i >= special_bytes && nodes(a)[at].flags & MS_ADDED_SPECIAL) continue;
    best = at;
    *length = i + 1;
  }
  return best;
}

static size_t before(const char *text, size_t at) { /* start of the character that ends at `at` */
  do at--;
  while (at && (text[at] & 0xC0) == 0x80);
  return at;
}

static int alone(const char *text, size_t bytes, size_t start, size_t end) {
  int n;
  if (start && ms_char_is_word(ms_utf8_get(text + before(text, start), &n))) return 0;
  return end == bytes || !ms_char_is_word(ms_utf8_get(text + end, &n));
}

static size_t strip_left(const char *text, size_t start, size_t least) {
  int n;
  while (start > least) {
    size_t at = before(text, start);
    if (!ms_char_is_space(ms_utf8_get(text + at, &n))) break;
    start = at;
  }
  return start < least ? least : start;
}

static size_t strip_right(const char *text, size_t end, size_t bytes) {
  int n;
  for (; end < bytes && ms_char_is_space(ms_utf8_get(text + end, &n)); end += (size_t)n) continue;
  return end;
}

static ms_status add_text(ms_buf *out, size_t start, size_t end) {
  ms_stretch s = {start, end, start, end, -1};
  return start < end ? ms_buf_add(out, &s, sizeof s) : MS_OK;
}

/* Whether byte `at` is plain, and the next border behind it. Later calls ask for later bytes. */
static int is_plain(ms_plain *plain, size_t at, size_t bytes, size_t *border) {
  while (plain->count && (size_t)plain->range->end <= at) plain->range++, plain->count--;
  *border = bytes;
  if (!plain->count) return 0;
  int inside = (size_t)plain->range->start <= at;
  *border = (size_t)(inside ? plain->range->end : plain->range->start);
  return inside;
}

ms_status ms_added_split(const ms_added *a, const char *text, size_t bytes, ms_plain plain,
                         ms_buf *out) {
  size_t done = 0, length = 0, border;
  for (size_t i = 0; i < bytes;) {
    if (!a->first[(unsigned char)text[i]]) {
      i++;
      continue;
    }
    int letters = is_plain(&plain, i, bytes, &border);
    int32_t at = longest(a, text + i, bytes - i, border - i, &length);
    if (!at) {
      i++;
      continue;
    }
    ms_stretch s = {i, i + length, i, i + length, nodes(a)[at].id};
    int flags = nodes(a)[at].flags;
    i = s.end; /* also for a token that is rejected: matches do not overlap */
    if (letters && flags & MS_ADDED_SPECIAL) continue;
    if (flags & MS_ADDED_SINGLE_WORD && !alone(text, bytes, s.start, s.end)) continue;
    /* Spaces that the token before has taken are not taken twice. */
    if (flags & MS_ADDED_LSTRIP) s.start = strip_left(text, s.start, done);
    if (flags & MS_ADDED_RSTRIP) s.end = strip_right(text, s.end, bytes);
    MS_TRY(add_text(out, done, s.start));
    MS_TRY(ms_buf_add(out, &s, sizeof s));
    done = s.end;
  }
  return add_text(out, done, bytes);
}

void ms_added_free(ms_added *a) { ms_buf_free(&a->node); }
