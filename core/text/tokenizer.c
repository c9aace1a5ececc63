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
  ms_buf_free(&w->normal);
  ms_buf_free(&w->spare);
  ms_buf_free(&w->raw);
  ms_buf_free(&w->cooked);
  ms_buf_free(&w->ids);
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

static ms_status borrow(ms_tokenizer *tok, ms_worker **out) {
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

static void give_back(ms_tokenizer *tok, ms_worker *w) {
  enum { KEEP = 64 << 20 }; /* a worker that one huge text made larger is not kept */
  if (w->words.text.room + w->words.span.room + w->normal.room + w->ids.room > KEEP) {
    free_worker(w);
    return;
  }
  pthread_mutex_lock(&tok->lock);
  w->next = tok->workers;
  tok->workers = w;
  pthread_mutex_unlock(&tok->lock);
}

/* ---- encoding ---- */

static ms_status encode_words(const ms_tokenizer *tok, ms_worker *w, const char *text, size_t bytes,
                              int first) {
  MS_TRY(ms_pretokenize(&tok->pretokenizer, w->matcher, text, bytes, first, &w->words, &w->room));
  const ms_span *span = (const void *)w->words.span.data;
  for (size_t i = 0; i < w->words.span.size / sizeof *span; i++)
    MS_TRY(ms_bpe_encode(&tok->bpe, w->bpe, w->words.text.data + span[i].start,
                         span[i].end - span[i].start, &w->ids));
  return MS_OK;
}

static ms_status encode_text(const ms_tokenizer *tok, ms_worker *w, const char *text, size_t bytes,
                             int parse, int first) {
  if (tok->normalizer.count) {
    MS_TRY(
        ms_normalize(&tok->normalizer, w->matcher, text, bytes, &w->normal, &w->spare, &w->room));
    text = w->normal.data;
    bytes = w->normal.size;
  }
  w->cooked.size = 0;
  MS_TRY(ms_added_split(&tok->added[1], text, bytes, parse, &w->cooked));
  const ms_stretch *s = (const void *)w->cooked.data;
  for (size_t i = 0; i < w->cooked.size / sizeof *s; i++) {
    if (s[i].id >= 0) {
      MS_TRY(ms_buf_add(&w->ids, &s[i].id, sizeof s[i].id));
    } else {
      MS_TRY(
          encode_words(tok, w, text + s[i].start, s[i].end - s[i].start, first && s[i].start == 0));
    }
  }
  return MS_OK;
}

static ms_status encode(const ms_tokenizer *tok, ms_worker *w, const char *text, size_t bytes,
                        int special, int parse) {
  w->ids.size = w->raw.size = 0;
  w->room = (ms_room){0};
  ms_room_give(&w->room, bytes);
  if (special) MS_TRY(ms_buf_add(&w->ids, tok->before.data, tok->before.size));
  MS_TRY(ms_added_split(&tok->added[0], text, bytes, parse, &w->raw));
  const ms_stretch *s = (const void *)w->raw.data;
  for (size_t i = 0; i < w->raw.size / sizeof *s; i++) {
    if (s[i].id >= 0) {
      MS_TRY(ms_buf_add(&w->ids, &s[i].id, sizeof s[i].id));
    } else {
      MS_TRY(encode_text(tok, w, text + s[i].start, s[i].end - s[i].start, parse, !s[i].start));
    }
  }
  return special ? ms_buf_add(&w->ids, tok->after.data, tok->after.size) : MS_OK;
}

ms_status ms_tokenizer_encode(const ms_tokenizer *tok, const char *text, int64_t bytes, int special,
                              int parse, int32_t *ids, int64_t capacity, int64_t *count) {
  enum { MOST = 512 << 20 }; /* positions are int32_t, and a byte can become two */
  ms_worker *w;
  MS_REQUIRE(tok && (text || !bytes) && (ids || !capacity) && count && capacity >= 0,
             "tokenizer: encode: a NULL argument or a capacity below 0");
  MS_REQUIRE(bytes >= 0 && bytes <= MOST, "tokenizer: text of %lld bytes, limit %d",
             (long long)bytes, MOST);
  int64_t bad = ms_utf8_check(text, (size_t)bytes);
  MS_REQUIRE(bad < 0, "tokenizer: text is not UTF-8 at byte %lld of %lld (0x%02X)", (long long)bad,
             (long long)bytes, (unsigned char)text[bad]);
  MS_TRY(borrow((ms_tokenizer *)tok, &w));
  ms_status st = encode(tok, w, text, (size_t)bytes, special, parse);
  if (st == MS_OK) {
    *count = (int64_t)(w->ids.size / sizeof *ids);
    int64_t n = *count < capacity ? *count : capacity;
    if (n) memcpy(ids, w->ids.data, (size_t)n * sizeof *ids);
  }
  give_back((ms_tokenizer *)tok, w);
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
