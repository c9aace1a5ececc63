/* pretokenize.c - from normalized text to words: splitting and rewriting, step by step. */
#include <string.h>

#include "steps.h"
#include "utf8.h"

typedef struct {
  const ms_step *step;
  ms_buf *out;
  ms_span span; /* the word that is being cut */
  size_t open;  /* spans made of it begin here in `out` */
  int last_match;
} cutter;

static ms_span *last_span(const cutter *c) {
  if (c->out->size == c->open) return NULL;
  return (ms_span *)(void *)(c->out->data + c->out->size) - 1;
}

static ms_status add_span(cutter *c, size_t start, size_t end) {
  ms_span s = {start, end, c->span.first && start == c->span.start};
  return ms_buf_add(c->out, &s, sizeof s);
}

/* Takes the next piece of the word, a match or what is between: the behaviour says whether it joins the
 * piece before it. With MS_SPLIT_NEXT a match waits for the next piece and joins that. */
static ms_status piece(cutter *c, size_t start, size_t end, int match) {
  ms_span *last = last_span(c);
  match ^= c->step->invert;
  int joined = 0, removed = 0;
  switch (c->step->behavior) {
    case MS_SPLIT_REMOVED: removed = match; break;
    case MS_SPLIT_PREVIOUS: joined = match && !c->last_match && last; break;
    case MS_SPLIT_CONTIGUOUS: joined = match == c->last_match && last; break;
    case MS_SPLIT_NEXT: joined = c->last_match && !match && last; break;
    default: break;
  }
  c->last_match = match;
  if (removed) return MS_OK;
  if (joined) {
    last->end = end;
    return MS_OK;
  }
  return add_span(c, start, end);
}

static ms_status cut_class(cutter *c, const char *text) {
  size_t done = c->span.start;
  int n;
  for (size_t i = done; i < c->span.end; i += (size_t)n) {
    if (!c->step->is_in(ms_utf8_get(text + i, &n))) continue;
    if (done < i) MS_TRY(piece(c, done, i, 0));
    done = i + (size_t)n;
    MS_TRY(piece(c, i, done, 1));
  }
  return done < c->span.end ? piece(c, done, c->span.end, 0) : MS_OK;
}

/* An empty match is a place to cut, but not directly after the last match. */
static ms_status cut_pattern(cutter *c, ms_matcher *m, const char *text) {
  const char *word = text + c->span.start;
  size_t bytes = c->span.end - c->span.start, done = 0, from = 0, start, end, last = SIZE_MAX;
  int found;
  while (from <= bytes) {
    MS_TRY(ms_step_find(c->step, m, word, bytes, from, &start, &end, &found));
    if (!found) break;
    if (start == end && end == last) {
      from++;
      while (from < bytes && (word[from] & 0xC0) == 0x80) from++;
      continue;
    }
    if (done < start) MS_TRY(piece(c, c->span.start + done, c->span.start + start, 0));
    MS_TRY(piece(c, c->span.start + start, c->span.start + end, 1));
    done = from = last = end;
  }
  return done < bytes ? piece(c, c->span.start + done, c->span.end, 0) : MS_OK;
}

static ms_status split(const ms_step *s, ms_matcher *m, ms_words *w) {
  size_t n = w->span.size / sizeof(ms_span);
  w->spare_span.size = 0;
  for (size_t i = 0; i < n; i++) {
    cutter c = {.step = s, .out = &w->spare_span, .open = w->spare_span.size};
    c.span = ((const ms_span *)(const void *)w->span.data)[i];
    if (c.span.start == c.span.end) continue;
    if (s->is_in) {
      MS_TRY(cut_class(&c, w->text.text.data));
    } else {
      MS_TRY(cut_pattern(&c, m, w->text.text.data));
    }
  }
  ms_buf swap = w->span;
  w->span = w->spare_span;
  w->spare_span = swap;
  return MS_OK;
}

static ms_status add_bytes(ms_slice in, ms_draft *out) {
  MS_TRY(ms_buf_reserve(&out->text, 2 * in.bytes));
  char *at = out->text.data + out->text.size;
  for (size_t i = 0; i < in.bytes; i++) {
    int32_t c = ms_byte_char((unsigned char)in.text[i]);
    if (c >= 0x80) *at++ = (char)(0xC0 | c >> 6);
    *at++ = (char)(c < 0x80 ? c : 0x80 | (c & 0x3F));
  }
  out->text.size = (size_t)(at - out->text.data);
  if (!in.from) return MS_OK;
  MS_TRY(ms_buf_reserve(&out->from, 2 * in.bytes * sizeof(ms_range)));
  ms_range *from = (void *)(out->from.data + out->from.size), *first = from;
  for (size_t i = 0; i < in.bytes; i++) {
    if (ms_byte_char((unsigned char)in.text[i]) >= 0x80) *from++ = in.from[i];
    *from++ = in.from[i];
  }
  out->from.size += (size_t)(from - first) * sizeof *from;
  return MS_OK;
}

/* A sign that is put before a word stands for the word's first character, as that before it. */
static ms_status put_before(ms_slice in, const char *text, size_t bytes, ms_draft *out) {
  ms_range first = in.from ? ms_slice_first(in) : (ms_range){0, 0};
  return ms_draft_put(out, text, bytes, in.from ? &first : NULL);
}

static int begins_with(ms_slice in, const ms_step *s) {
  return in.bytes >= s->text_bytes && !memcmp(in.text, s->text, s->text_bytes);
}

static ms_status add_meta(const ms_step *s, ms_slice in, int first, ms_draft *out) {
  int wanted = s->scheme == MS_SCHEME_ALWAYS || (s->scheme == MS_SCHEME_FIRST && first);
  size_t done = 0;
  if (!in.bytes) return MS_OK;
  if (wanted && *in.text != ' ' && !begins_with(in, s))
    MS_TRY(put_before(in, s->text, s->text_bytes, out));
  for (size_t i = 0; i < in.bytes; i++) {
    if (in.text[i] != ' ') continue;
    MS_TRY(ms_draft_add(out, ms_slice_part(in, done, i)));
    MS_TRY(ms_draft_put(out, s->text, s->text_bytes, in.from ? in.from + i : NULL));
    done = i + 1;
  }
  return ms_draft_add(out, ms_slice_part(in, done, in.bytes));
}

static ms_status add_prefix(ms_slice in, ms_draft *out) {
  if (in.bytes && *in.text != ' ') MS_TRY(put_before(in, " ", 1, out));
  return ms_draft_add(out, in);
}

/* Rewrites every word by a step. */
static ms_status rewrite(const ms_step *s, ms_words *w, ms_room *room) {
  size_t n = w->span.size / sizeof(ms_span);
  ms_span *span = (void *)w->span.data;
  ms_slice all = ms_draft_slice(&w->text);
  ms_draft_clear(&w->spare_text);
  for (size_t i = 0; i < n; i++) {
    ms_slice word = ms_slice_part(all, span[i].start, span[i].end);
    span[i].start = w->spare_text.text.size;
    switch (s->kind) {
      case MS_STEP_BYTES: MS_TRY(add_bytes(word, &w->spare_text)); break;
      case MS_STEP_META: MS_TRY(add_meta(s, word, span[i].first, &w->spare_text)); break;
      default: MS_TRY(add_prefix(word, &w->spare_text));
    }
    span[i].end = w->spare_text.text.size;
    MS_TRY(ms_room_take(room, span[i].end - span[i].start));
  }
  ms_draft_swap(&w->text, &w->spare_text);
  return MS_OK;
}

ms_status ms_pretokenize(const ms_steps *steps, ms_matcher *m, ms_slice in, int first, ms_words *w,
                         ms_room *room) {
  ms_span whole = {0, in.bytes, first};
  w->span.size = 0;
  ms_draft_clear(&w->text);
  MS_TRY(ms_draft_add(&w->text, in));
  MS_TRY(ms_buf_add(&w->span, &whole, sizeof whole));
  for (int i = 0; i < steps->count; i++) {
    if (steps->step[i].kind == MS_STEP_SPLIT) {
      MS_TRY(split(&steps->step[i], m, w));
    } else {
      MS_TRY(rewrite(&steps->step[i], w, room));
    }
  }
  return MS_OK;
}

void ms_words_free(ms_words *w) {
  ms_draft_free(&w->text);
  ms_draft_free(&w->spare_text);
  ms_buf_free(&w->span);
  ms_buf_free(&w->spare_span);
}
