/* detokenize.c - from ids to text, one id at a time.
 *
 * tokenizer.json's decoder is a chain of steps; each takes pieces of text and gives pieces to the next.
 * The first pieces are the tokens' spellings. After a step that joins tokens (Fuse, ByteLevel) the
 * pieces are fragments of one text; where a later step needs the whole text, the joining step holds
 * everything until the end. Decoding all ids at once uses the same chain and ends with a flush, so
 * both ways give the same text. */
#include <string.h>

#include "../base/memory.h"
#include "tokenizer.h"
#include "utf8.h"

typedef struct {
  ms_buf held;
  int64_t seen; /* tokens, or characters taken away */
} state;

struct ms_detokenizer {
  const ms_tokenizer *tok;
  int skip_special;
  state state[MS_STEPS_MOST];
  ms_buf out, made;
  ms_room room;
};

static ms_status feed(ms_detokenizer *d, int i, const char *text, size_t bytes);

/* ---- ByteLevel: bytes to UTF-8, what is not a character replaced by U+FFFD ---- */

static ms_status release_utf8(ms_detokenizer *d, int i, int all) {
  ms_buf *held = &d->state[i].held;
  size_t at = 0;
  if (!held->size) return MS_OK;
  d->made.size = 0;
  while (at < held->size) {
    int n = ms_utf8_scan(held->data + at, held->size - at);
    if (n == 0 && !all) break;
    if (n > 0) {
      MS_TRY(ms_buf_add(&d->made, held->data + at, (size_t)n));
      at += (size_t)n;
    } else {
      MS_TRY(ms_buf_add(&d->made, "\xEF\xBF\xBD", 3));
      at += n ? (size_t)-n : held->size - at;
    }
  }
  memmove(held->data, held->data + at, held->size - at);
  held->size -= at;
  if (!d->made.size) return MS_OK;
  ms_buf made = d->made; /* the steps that follow use d->made too */
  d->made = (ms_buf){0};
  ms_status st = feed(d, i + 1, made.data, made.size);
  ms_buf_free(&d->made);
  d->made = made;
  return st;
}

/* A token with a character that stands for no byte is copied unchanged. */
static ms_status byte_level(ms_detokenizer *d, int i, const char *text, size_t bytes) {
  ms_buf *held = &d->state[i].held;
  size_t before = held->size;
  int n;
  MS_TRY(ms_buf_reserve(held, bytes));
  for (size_t k = 0; k < bytes; k += (size_t)n) {
    int b = ms_char_byte(ms_utf8_get(text + k, &n));
    if (b < 0) {
      held->size = before;
      MS_TRY(ms_buf_add(held, text, bytes));
      break;
    }
    held->data[held->size++] = (char)b;
  }
  return d->tok->decode_streams ? release_utf8(d, i, 0) : MS_OK;
}

/* ---- ByteFallback: a run of <0x..> is text when all of it is UTF-8, otherwise a replacement
 * character for each byte; so nothing of a run is certain before it ends ---- */

static int hex(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

static ms_status end_run(ms_detokenizer *d, int i) {
  ms_buf run = d->state[i].held;
  ms_status st = MS_OK;
  if (!run.size) return MS_OK;
  d->state[i].held = (ms_buf){0};
  if (ms_utf8_check(run.data, run.size) < 0) {
    st = feed(d, i + 1, run.data, run.size);
  } else {
    for (size_t k = 0; k < run.size && st == MS_OK; k++) st = feed(d, i + 1, "\xEF\xBF\xBD", 3);
  }
  ms_buf_free(&run);
  return st;
}

static ms_status byte_fallback(ms_detokenizer *d, int i, const char *text, size_t bytes) {
  if (bytes == 6 && !memcmp(text, "<0x", 3) && text[5] == '>' && hex(text[3]) >= 0 &&
      hex(text[4]) >= 0) {
    char b = (char)(hex(text[3]) << 4 | hex(text[4]));
    return ms_buf_add(&d->state[i].held, &b, 1);
  }
  MS_TRY(end_run(d, i));
  return feed(d, i + 1, text, bytes);
}

/* ---- Strip, Metaspace, Replace ---- */

/* `gone` counts the characters already removed from the front of this token; -1: no more to remove. */
static size_t strip_front(const ms_step *s, const char *text, size_t bytes, int64_t *gone) {
  size_t at = 0;
  int n;
  while (*gone >= 0 && at < bytes) {
    if (*gone >= s->strip_start || ms_utf8_get(text + at, &n) != s->strip) {
      *gone = -1;
    } else {
      at += (size_t)n;
      ++*gone;
    }
  }
  return at;
}

static size_t strip_back(const ms_step *s, const char *text, size_t from, size_t bytes) {
  int n;
  for (int k = 0; k < s->strip_stop && bytes > from; k++) {
    size_t at = bytes - 1;
    while (at > from && (text[at] & 0xC0) == 0x80) at--;
    if (ms_utf8_get(text + at, &n) != s->strip) break;
    bytes = at;
  }
  return bytes;
}

static ms_status strip(ms_detokenizer *d, int i, const char *text, size_t bytes) {
  const ms_step *s = &d->tok->decoder.step[i];
  int64_t here = 0;
  /* After a joining step the pieces are fragments of one text, which has one front. */
  size_t at = strip_front(s, text, bytes, s->fused ? &d->state[i].seen : &here);
  bytes = strip_back(s, text, at, bytes);
  return feed(d, i + 1, text + at, bytes - at);
}

static ms_status metaspace(ms_detokenizer *d, int i, const char *text, size_t bytes) {
  const ms_step *s = &d->tok->decoder.step[i];
  int first = d->state[i].seen++ == 0 && s->scheme != MS_SCHEME_NEVER;
  ms_buf made = {0};
  ms_status st = MS_OK;
  for (size_t k = 0; k < bytes && st == MS_OK;) {
    if (bytes - k >= s->text_bytes && !memcmp(text + k, s->text, s->text_bytes)) {
      if (!first) st = ms_buf_add(&made, " ", 1);
      k += s->text_bytes;
    } else {
      st = ms_buf_add(&made, text + k++, 1);
    }
  }
  if (st == MS_OK) st = feed(d, i + 1, made.data, made.size);
  ms_buf_free(&made);
  return st;
}

static ms_status replace(ms_detokenizer *d, int i, const char *text, size_t bytes) {
  ms_draft made = {0};
  ms_matcher *m = NULL;
  const ms_step *s = &d->tok->decoder.step[i];
  ms_status st = s->regex ? ms_matcher_new(&m) : MS_OK;
  if (st == MS_OK) st = ms_step_replace(s, m, (ms_slice){text, bytes, NULL}, &made, &d->room);
  if (st == MS_OK) st = feed(d, i + 1, made.text.data, made.text.size);
  ms_matcher_free(m);
  ms_draft_free(&made);
  return st;
}

/* ---- the chain ---- */

static ms_status feed(ms_detokenizer *d, int i, const char *text, size_t bytes) {
  const ms_steps *chain = &d->tok->decoder;
  if (i == chain->count) return ms_buf_add(&d->out, text, bytes);
  state *s = &d->state[i];
  switch (chain->step[i].kind) {
    case MS_STEP_REPLACE: return replace(d, i, text, bytes);
    case MS_STEP_DECODE_BYTES: return byte_level(d, i, text, bytes);
    case MS_STEP_DECODE_FALLBACK: return byte_fallback(d, i, text, bytes);
    case MS_STEP_DECODE_STRIP: return strip(d, i, text, bytes);
    case MS_STEP_DECODE_META: return metaspace(d, i, text, bytes);
    case MS_STEP_DECODE_FUSE:
      if (d->tok->decode_streams) return feed(d, i + 1, text, bytes);
      return ms_buf_add(&s->held, text, bytes);
    case MS_STEP_DECODE_JOIN:
      if (s->seen++) MS_TRY(feed(d, i + 1, " ", 1));
      return feed(d, i + 1, text, bytes);
    default: return MS_FAIL(MS_EINVAL, "detokenizer: step %d", chain->step[i].kind);
  }
}

static ms_status flush(ms_detokenizer *d) {
  for (int i = 0; i < d->tok->decoder.count; i++) {
    state *s = &d->state[i];
    switch (d->tok->decoder.step[i].kind) {
      case MS_STEP_DECODE_BYTES: MS_TRY(release_utf8(d, i, 1)); break;
      case MS_STEP_DECODE_FALLBACK: MS_TRY(end_run(d, i)); break;
      case MS_STEP_DECODE_FUSE:
        if (s->held.size) MS_TRY(feed(d, i + 1, s->held.data, s->held.size));
        break;
      default: break;
    }
    s->held.size = 0;
    s->seen = 0;
  }
  return MS_OK;
}

static ms_status add(ms_detokenizer *d, int32_t id) {
  size_t bytes;
  const char *text = ms_vocab_text(&d->tok->vocab, id, &bytes);
  /* A model may have more ids than its tokenizer: those have no text. */
  if (!text || (d->skip_special && ms_tokenizer_is_special(d->tok, id))) return MS_OK;
  ms_room_give(&d->room, bytes + 1); /* at least 1, since a step may add text between tokens */
  return feed(d, 0, text, bytes);
}

ms_status ms_detokenizer_new(const ms_tokenizer *tok, int skip_special, ms_detokenizer **out) {
  void *p;
  *out = NULL;
  MS_REQUIRE(tok, "detokenizer: no tokenizer");
  MS_TRY(ms_alloc(sizeof(ms_detokenizer), "detokenizer", &p));
  *out = p;
  (*out)->tok = tok;
  (*out)->skip_special = skip_special;
  atomic_fetch_add(&((ms_tokenizer *)tok)->references, 1);
  return MS_OK;
}

void ms_detokenizer_free(ms_detokenizer *d) {
  if (!d) return;
  for (int i = 0; i < MS_STEPS_MOST; i++) ms_buf_free(&d->state[i].held);
  ms_buf_free(&d->out);
  ms_buf_free(&d->made);
  ms_tokenizer_release(d->tok);
  ms_free(d);
}

ms_status ms_detokenizer_add(ms_detokenizer *d, int32_t id, const char **text, int64_t *bytes) {
  MS_REQUIRE(d && id >= -1, "detokenizer: id %d", id);
  d->out.size = 0;
  MS_TRY(id < 0 ? flush(d) : add(d, id));
  MS_TRY(ms_buf_reserve(&d->out, 1));
  d->out.data[d->out.size] = 0;
  *text = d->out.data;
  *bytes = (int64_t)d->out.size;
  return MS_OK;
}

ms_status ms_tokenizer_decode(const ms_tokenizer *tok, const int32_t *ids, int64_t count,
                              int skip_special, char **text, int64_t *bytes) {
  ms_detokenizer *d;
  ms_status st = MS_OK;
  *text = NULL;
  MS_REQUIRE(ids || count <= 0, "tokenizer: decode: no ids");
  MS_TRY(ms_detokenizer_new(tok, skip_special, &d));
  for (int64_t i = 0; i < count && st == MS_OK; i++)
    st = ids[i] < 0 ? MS_FAIL(MS_EINVAL, "tokenizer: decode: id %d at %lld", ids[i], (long long)i)
                    : add(d, ids[i]);
  if (st == MS_OK) st = flush(d);
  if (st == MS_OK) st = ms_text_copy(d->out.size ? d->out.data : "", d->out.size, text);
  if (st == MS_OK) *bytes = (int64_t)d->out.size;
  ms_detokenizer_free(d);
  return st;
}
