/* tokenizer.c - encoding, and what can be asked of a tokenizer. */
#include "tokenizer.h"

#include <string.h>

#include "../base/guess.h"
#include "../base/memory.h"
#include "utf8.h"

/* ---- life ---- */

static void free_worker(ms_worker *w) {
  if (!w) return;
  ms_matcher_free(w->matcher);
  ms_bpe_worker_free(w->bpe);
  ms_words_free(&w->words);
  ms_draft_free(&w->normal);
  ms_draft_free(&w->spare);
  ms_buf_free(&w->raw);
  ms_buf_free(&w->cooked);
  ms_buf_free(&w->whole);
  ms_buf_free(&w->plain[0]);
  ms_buf_free(&w->plain[1]);
  ms_buf_free(&w->ids);
  ms_buf_free(&w->ranges);
  ms_free(w);
}

static void destroy(ms_tokenizer *tok) {
  for (ms_worker *w = tok->workers, *next; w; w = next) {
    next = w->next;
    free_worker(w);
  }
  pthread_mutex_destroy(&tok->lock);
  ms_vocab_free(&tok->vocab);
  ms_buf_free(&tok->kind);
  ms_bpe_free(&tok->bpe);
  ms_added_free(&tok->added[0]);
  ms_added_free(&tok->added[1]);
  ms_steps_free(&tok->normalizer);
  ms_steps_free(&tok->pretokenizer);
  ms_steps_free(&tok->decoder);
  ms_buf_free(&tok->before);
  ms_buf_free(&tok->after);
  ms_free(tok->path);
  ms_free(tok);
}

void ms_tokenizer_release(const ms_tokenizer *tok) {
  ms_tokenizer *own = (ms_tokenizer *)tok;
  if (own && atomic_fetch_sub(&own->references, 1) == 1) destroy(own);
}

void ms_tokenizer_free(ms_tokenizer *tok) { ms_tokenizer_release(tok); }

ms_status ms_tokenizer_open(const char *path, ms_tokenizer **out) {
  void *p;
  *out = NULL;
  MS_REQUIRE(path && *path, "tokenizer: no path");
  MS_TRY(ms_alloc(sizeof(ms_tokenizer), "tokenizer", &p));
  ms_tokenizer *tok = p;
  tok->references = 1;
  tok->bpe.unk = -1;
  pthread_mutex_init(&tok->lock, NULL);
  ms_status st = ms_path_kind(path) == 2 ? ms_text_format(&tok->path, "%s/tokenizer.json", path)
                                         : ms_text_copy(path, strlen(path), &tok->path);
  if (st == MS_OK)
    st = ms_path_kind(tok->path) ? ms_tokenizer_load(tok) : ms_folder_lacks(path, "tokenizer.json");
  if (st == MS_OK) {
    *out = tok;
  } else {
    ms_tokenizer_release(tok);
  }
  return st;
}

/* ---- workers ---- */

ms_status ms_worker_borrow(const ms_tokenizer *from, ms_worker **out) {
  ms_tokenizer *tok = (ms_tokenizer *)from;
  void *p;
  pthread_mutex_lock(&tok->lock);
  ms_worker *w = tok->workers;
  if (w) tok->workers = w->next;
  pthread_mutex_unlock(&tok->lock);
  *out = w;
  if (w) return MS_OK;
  MS_TRY(ms_alloc(sizeof(ms_worker), "tokenizer worker", &p));
  w = p;
  ms_status st = ms_matcher_new(&w->matcher);
  if (st == MS_OK) st = ms_bpe_worker_new(&w->bpe);
  if (st != MS_OK) {
    free_worker(w);
    return st;
  }
  *out = w;
  return MS_OK;
}

void ms_worker_give_back(const ms_tokenizer *to, ms_worker *w) {
  enum { KEEP = 64 << 20 }; /* a worker that one huge text made larger is not kept */
  ms_tokenizer *tok = (ms_tokenizer *)to;
  if (!w) return;
  if (w->words.text.text.room + w->words.span.room + w->normal.text.room + w->ids.room +
          w->whole.room >
      KEEP) {
    free_worker(w);
    return;
  }
  pthread_mutex_lock(&tok->lock);
  w->next = tok->workers;
  tok->workers = w;
  pthread_mutex_unlock(&tok->lock);
}

/* ---- plain parts ---- */

static ms_status add_plain(ms_buf *out, int32_t start, int32_t end) {
  ms_range r = {start, end}, *all = (void *)out->data;
  size_t n = out->size / sizeof r;
  if (start == end) return MS_OK;
  if (!n || all[n - 1].end < start) return ms_buf_add(out, &r, sizeof r);
  if (all[n - 1].end < end) all[n - 1].end = end; /* ranges that touch are one */
  return MS_OK;
}

static ms_plain plain_of(const ms_buf *b) {
  return (ms_plain){(const void *)b->data, b->size / sizeof(ms_range)};
}

/* The plain parts of a text of `bytes`, which are checked here. */
static ms_status read_plain(ms_buf *out, const ms_manner *how, int64_t bytes) {
  int64_t done = 0;
  out->size = 0;
  for (int64_t i = 0; i < how->plains; i++) {
    int64_t start = how->plain[2 * i], end = how->plain[2 * i + 1];
    MS_REQUIRE(start >= done && end >= start && end <= bytes,
               "tokenizer: plain: pair %lld is %lld..%lld, expected ascending numbers in "
               "%lld..%lld, from the end before to the end of the text",
               (long long)i + 1, (long long)start, (long long)end, (long long)done,
               (long long)bytes);
    done = end;
    MS_TRY(add_plain(out, (int32_t)start, (int32_t)end));
  }
  if (how->parse) return MS_OK;
  out->size = 0;
  return add_plain(out, 0, (int32_t)bytes);
}

/* Which bytes of a rewritten text came from plain ones. */
static ms_status find_plain(ms_buf *out, ms_plain plain, ms_slice text) {
  out->size = 0;
  for (size_t i = 0; i < text.bytes && plain.count; i++) {
    while (plain.count && plain.range->end <= text.from[i].start) plain.range++, plain.count--;
    if (plain.count && plain.range->start < text.from[i].end)
      MS_TRY(add_plain(out, (int32_t)i, (int32_t)i + 1));
  }
  return MS_OK;
}

/* Ranges in which each byte of a text came from itself; one at least, so that an empty text is traced. */
static ms_status whole_text(ms_buf *out, size_t bytes, const ms_range **from) {
  for (size_t i = out->size / sizeof **from; !i || i < bytes; i++) {
    ms_range r = {(int32_t)i, (int32_t)i + 1};
    MS_TRY(ms_buf_add(out, &r, sizeof r));
  }
  *from = (const void *)out->data;
  return MS_OK;
}

/* ---- encoding ---- */

static ms_status add_id(ms_worker *w, int32_t id, const ms_range *range) {
  if (range) MS_TRY(ms_buf_add(&w->ranges, range, sizeof *range));
  return ms_buf_add(&w->ids, &id, sizeof id);
}

/* What is put around a text stands for none of it. */
static ms_status add_around(ms_worker *w, const ms_buf *ids, size_t at, int traced) {
  const int32_t *id = (const void *)ids->data;
  ms_range none = {(int32_t)at, (int32_t)at};
  for (size_t i = 0; i < ids->size / sizeof *id; i++)
    MS_TRY(add_id(w, id[i], traced ? &none : NULL));
  return MS_OK;
}

static ms_status add_added(ms_worker *w, const ms_stretch *s, ms_slice in) {
  if (!in.from) return add_id(w, s->id, NULL);
  ms_range r = ms_slice_range(ms_slice_part(in, s->spelled, s->spelled_end));
  return add_id(w, s->id, &r);
}

static ms_status encode_words(const ms_tokenizer *tok, ms_worker *w, ms_slice in, int first) {
  MS_TRY(ms_pretokenize(&tok->pretokenizer, w->matcher, in, first, &w->words, &w->room));
  const ms_span *span = (const void *)w->words.span.data;
  ms_slice all = ms_draft_slice(&w->words.text);
  for (size_t i = 0; i < w->words.span.size / sizeof *span; i++) {
    ms_slice word = ms_slice_part(all, span[i].start, span[i].end);
    size_t done = w->ranges.size / sizeof(ms_range);
    MS_TRY(ms_bpe_encode(&tok->bpe, w->bpe, word.text, word.bytes, &w->ids,
                         word.from ? &w->ranges : NULL));
    ms_range *r = (void *)w->ranges.data;
    for (size_t k = done; word.from && k < w->ranges.size / sizeof *r; k++)
      r[k] = ms_slice_range(ms_slice_part(word, (size_t)r[k].start, (size_t)r[k].end));
  }
  return MS_OK;
}

/* Encodes a stretch between the tokens that are looked for in the raw text. */
static ms_status encode_text(const ms_tokenizer *tok, ms_worker *w, ms_slice in, int parse,
                             int first) {
  if (tok->normalizer.count) {
    MS_TRY(ms_normalize(&tok->normalizer, w->matcher, in, &w->normal, &w->spare, &w->room));
    in = ms_draft_slice(&w->normal);
  }
  w->cooked.size = w->plain[1].size = 0;
  if (!parse) MS_TRY(add_plain(&w->plain[1], 0, (int32_t)in.bytes));
  if (parse && in.from) MS_TRY(find_plain(&w->plain[1], plain_of(&w->plain[0]), in));
  MS_TRY(ms_added_split(&tok->added[1], in.text, in.bytes, plain_of(&w->plain[1]), &w->cooked));
  const ms_stretch *s = (const void *)w->cooked.data;
  for (size_t i = 0; i < w->cooked.size / sizeof *s; i++) {
    if (s[i].id >= 0) {
      MS_TRY(add_added(w, &s[i], in));
    } else {
      MS_TRY(encode_words(tok, w, ms_slice_part(in, s[i].start, s[i].end), first && !s[i].start));
    }
  }
  return MS_OK;
}

static ms_status encode(const ms_tokenizer *tok, ms_worker *w, ms_slice in, const ms_manner *how) {
  int traced = in.from != NULL;
  ms_room_give(&w->room, in.bytes);
  if (how->special) MS_TRY(add_around(w, &tok->before, 0, traced));
  MS_TRY(ms_added_split(&tok->added[0], in.text, in.bytes, plain_of(&w->plain[0]), &w->raw));
  const ms_stretch *s = (const void *)w->raw.data;
  for (size_t i = 0; i < w->raw.size / sizeof *s; i++) {
    if (s[i].id >= 0) {
      MS_TRY(add_added(w, &s[i], in));
    } else {
      MS_TRY(encode_text(tok, w, ms_slice_part(in, s[i].start, s[i].end), how->parse, !s[i].start));
    }
  }
  if (how->special) MS_TRY(add_around(w, &tok->after, in.bytes, traced));
  ms_ranges_ascend((void *)w->ranges.data, w->ranges.size / sizeof(ms_range));
  return MS_OK;
}

ms_status ms_worker_encode(const ms_tokenizer *tok, ms_worker *w, const char *text, int64_t bytes,
                           const ms_manner *how) {
  enum { MOST = 512 << 20 }; /* positions are int32_t, and a byte can become two */
  MS_REQUIRE(bytes >= 0 && bytes <= MOST, "tokenizer: text of %lld bytes, limit %d",
             (long long)bytes, MOST);
  int64_t bad = ms_utf8_check(text, (size_t)bytes);
  MS_REQUIRE(bad < 0, "tokenizer: text is not UTF-8 at byte %lld of %lld (0x%02X)", (long long)bad,
             (long long)bytes, (unsigned char)text[bad]);
  ms_slice in = {text, (size_t)bytes, NULL};
  w->ids.size = w->ranges.size = w->raw.size = 0;
  w->room = (ms_room){0};
  MS_TRY(read_plain(&w->plain[0], how, bytes));
  /* Which bytes of a normalized text are plain is known by where they came from. */
  if (how->traced || (how->parse && w->plain[0].size))
    MS_TRY(whole_text(&w->whole, in.bytes, &in.from));
  return encode(tok, w, in, how);
}

ms_status ms_tokenizer_encode(const ms_tokenizer *tok, const char *text, int64_t bytes, int special,
                              int parse, const int64_t *plain, int64_t plains, int32_t *ids,
                              int32_t *offsets, int64_t capacity, int64_t *count) {
  ms_worker *w;
  ms_manner how = {special, parse, offsets != NULL, plain, plains};
  MS_REQUIRE(tok && (text || !bytes) && (ids || !capacity) && count && capacity >= 0 &&
                 plains >= 0 && (plain || !plains),
             "tokenizer: encode: a NULL argument or a number below 0");
  MS_TRY(ms_worker_borrow(tok, &w));
  ms_status st = ms_worker_encode(tok, w, text, bytes, &how);
  if (st == MS_OK) {
    *count = (int64_t)(w->ids.size / sizeof *ids);
    size_t n = (size_t)(*count < capacity ? *count : capacity);
    if (n) memcpy(ids, w->ids.data, n * sizeof *ids);
    if (n && offsets) memcpy(offsets, w->ranges.data, n * sizeof(ms_range));
  }
  ms_worker_give_back(tok, w);
  return st;
}

/* ---- questions ---- */

int32_t ms_tokenizer_size(const ms_tokenizer *tok) { return tok->vocab.size; }

int32_t ms_tokenizer_id(const ms_tokenizer *tok, const char *token, int64_t bytes) {
  return bytes < 0 ? -1 : ms_vocab_id(&tok->vocab, token, (size_t)bytes);
}

const char *ms_tokenizer_token(const ms_tokenizer *tok, int32_t id, int64_t *bytes) {
  size_t n = 0;
  const char *text = ms_vocab_text(&tok->vocab, id, &n);
  *bytes = (int64_t)n;
  return text;
}

static int has_kind(const ms_tokenizer *tok, int32_t id, int kind) {
  return id >= 0 && (size_t)id < tok->kind.size && (tok->kind.data[id] & kind) != 0;
}

int ms_tokenizer_is_special(const ms_tokenizer *tok, int32_t id) {
  return has_kind(tok, id, MS_TOKEN_SPECIAL);
}

int ms_tokenizer_is_added(const ms_tokenizer *tok, int32_t id) {
  return has_kind(tok, id, MS_TOKEN_ADDED);
}

static const char *spelling(const ms_tokenizer *tok, int32_t id, size_t *bytes) {
  const char *text = ms_vocab_text(&tok->vocab, id, bytes);
  if (text) return text;
  *bytes = 0;
  return "";
}

ms_status ms_tokenizer_same(const ms_tokenizer *a, const ms_tokenizer *b) {
  MS_REQUIRE(a && b, "tokenizer: same: NULL");
  int32_t size = a->vocab.size < b->vocab.size ? a->vocab.size : b->vocab.size;
  for (int32_t id = 0; id < size; id++) {
    size_t na, nb;
    const char *ta = spelling(a, id, &na), *tb = spelling(b, id, &nb);
    if (na == nb && !memcmp(ta, tb, na)) continue;
    return MS_FAIL(MS_EINVAL, "tokenizers differ at id %d: \"%.*s\" in %s, \"%.*s\" in %s", id,
                   (int)(na < 80 ? na : 80), ta, a->path, (int)(nb < 80 ? nb : 80), tb, b->path);
  }
  return MS_OK;
}
