/* bpe.c - byte-pair encoding.
 *
 * Merging follows one rule: the pair of lowest rank goes first, the leftmost among equals. Few
 * symbols are searched again after each merge; many are held in a linked list with a heap of
 * candidates, so that a word of a megabyte costs n log n.
 *
 * A long word is first cut wherever no merge can reach across: at a place between characters a, b
 * where no merge has a left part that ends in a and a right part that begins with b. Both sides
 * are then independent. For the tokenizers that take a whole text as one word this finds the
 * words, and with them the cache. */
#include "bpe.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "../base/memory.h"
#include "utf8.h"

enum { FEW = 48, CACHE_KEY = 48, CACHE_IDS = 12, CACHE_SLOTS = 1 << 15 };

typedef struct {
  uint32_t hash;
  uint8_t bytes, ids; /* bytes 0: free */
  uint16_t unused;
  char key[CACHE_KEY];
  int32_t id[CACHE_IDS];
  uint8_t start[CACHE_IDS], end[CACHE_IDS]; /* of what each id stands for */
} cached;

typedef struct {
  int32_t id, prev, next; /* id -1: merged into the one before */
  int32_t start, end;     /* the bytes of the word that it stands for */
} symbol;
typedef struct {
  uint64_t order; /* rank << 32 | position */
  int32_t id;     /* what the pair made when it was seen */
} candidate;

struct ms_bpe_worker {
  cached *cache;
  ms_buf symbol, heap;
};

/* ---- tables ---- */

static uint64_t spread(uint64_t key, int bits) { return key * 0x9E3779B97F4A7C15u >> (64 - bits); }

static int bits_for(size_t n) {
  int bits = 4;
  while (((size_t)1 << bits) < n + n / 2 + 1) bits++;
  return bits;
}

static ms_status table_new(size_t count, size_t width, void **out) {
  MS_TRY(ms_alloc(count * width, "merges", out));
  memset(*out, 0xFF, count * width);
  return MS_OK;
}

static void prepare_bytes(ms_bpe *m) {
  char spelling[8];
  for (int b = 0; b < 256; b++) {
    snprintf(spelling, sizeof spelling, "<0x%02X>", b);
    m->byte_id[b] = ms_vocab_id(&m->vocab, spelling, 6);
  }
}

ms_status ms_bpe_prepare(ms_bpe *m, size_t merges) {
  void *p;
  m->pair_bits = m->seam_bits = bits_for(merges);
  MS_TRY(table_new((size_t)1 << m->pair_bits, sizeof(ms_bpe_pair), &p));
  m->pair = p;
  MS_TRY(table_new((size_t)1 << m->seam_bits, sizeof(uint64_t), &p));
  m->seam = p;
  MS_TRY(table_new(MS_BPE_CHARS, sizeof(int32_t), &p));
  m->char_id = p;
  prepare_bytes(m);
  for (int32_t id = 0; id < m->vocab.size; id++) {
    size_t bytes;
    int n;
    const char *text = ms_vocab_text(&m->vocab, id, &bytes);
    if (!text || !bytes) continue;
    int32_t c = ms_utf8_get(text, &n);
    if ((size_t)n == bytes && c < MS_BPE_CHARS) m->char_id[c] = id;
  }
  return MS_OK;
}

static ms_bpe_pair *pair_slot(const ms_bpe *m, uint64_t key) {
  uint64_t mask = ((uint64_t)1 << m->pair_bits) - 1, i = spread(key, m->pair_bits);
  while (m->pair[i].key != key && m->pair[i].key != UINT64_MAX) i = (i + 1) & mask;
  return &m->pair[i];
}

static uint64_t *seam_slot(const ms_bpe *m, uint64_t key) {
  uint64_t mask = ((uint64_t)1 << m->seam_bits) - 1, i = spread(key, m->seam_bits);
  while (m->seam[i] != key && m->seam[i] != UINT64_MAX) i = (i + 1) & mask;
  return &m->seam[i];
}

static const ms_bpe_pair *find_pair(const ms_bpe *m, int32_t left, int32_t right) {
  const ms_bpe_pair *p = pair_slot(m, (uint64_t)(uint32_t)left << 32 | (uint32_t)right);
  return p->key == UINT64_MAX ? NULL : p;
}

static uint64_t seam_of(const char *left, size_t left_bytes, const char *right) {
  int n;
  const char *last = left + left_bytes - 1;
  while (last > left && (*last & 0xC0) == 0x80) last--;
  uint64_t a = (uint64_t)ms_utf8_get(last, &n);
  return a << 32 | (uint64_t)ms_utf8_get(right, &n);
}

ms_status ms_bpe_add_pair(ms_bpe *m, const char *left, size_t left_bytes, const char *right,
                          size_t right_bytes, int32_t rank, int *known) {
  ms_buf both = {0};
  *known = 0;
  int32_t a = ms_vocab_id(&m->vocab, left, left_bytes);
  int32_t b = ms_vocab_id(&m->vocab, right, right_bytes);
  if (a < 0 || b < 0 || !left_bytes || !right_bytes) return MS_OK;
  ms_status st = ms_buf_add(&both, left, left_bytes);
  if (st == MS_OK) st = ms_buf_add(&both, right, right_bytes);
  int32_t id = st == MS_OK ? ms_vocab_id(&m->vocab, both.data, both.size) : -1;
  ms_buf_free(&both);
  if (st != MS_OK || id < 0) return st;
  uint64_t key = (uint64_t)(uint32_t)a << 32 | (uint32_t)b, seam = seam_of(left, left_bytes, right);
  *pair_slot(m, key) = (ms_bpe_pair){key, rank, id}; /* of two equal pairs the last counts */
  *seam_slot(m, seam) = seam;
  *known = 1;
  return MS_OK;
}

void ms_bpe_free(ms_bpe *m) {
  ms_vocab_free(&m->vocab);
  ms_free(m->pair);
  ms_free(m->seam);
  ms_free(m->char_id);
}

/* ---- characters to symbols ---- */

static int32_t char_id(const ms_bpe *m, const char *text, int32_t c, int bytes) {
  return c < MS_BPE_CHARS ? m->char_id[c] : ms_vocab_id(&m->vocab, text, (size_t)bytes);
}

static ms_status add_symbol(ms_bpe_worker *w, int32_t id, size_t start, size_t end) {
  int32_t at = (int32_t)(w->symbol.size / sizeof(symbol));
  symbol s = {id, at - 1, at + 1, (int32_t)start, (int32_t)end};
  return ms_buf_add(&w->symbol, &s, sizeof s);
}

static int has_bytes(const ms_bpe *m, const char *text, int bytes) {
  if (!m->byte_fallback) return 0;
  for (int i = 0; i < bytes; i++)
    if (m->byte_id[(unsigned char)text[i]] < 0) return 0;
  return 1;
}

/* An unknown token is added when a known character follows, so that unknown neighbours can fuse. Bytes
 * of a character (byte_fallback) do not add it, as in the library that writes these files. */
static ms_status read_symbols(const ms_bpe *m, ms_bpe_worker *w, const char *word, size_t bytes) {
  int waiting = 0, n;
  size_t unk = 0, unk_end = 0; /* what the waiting one stands for */
  w->symbol.size = 0;
  for (size_t i = 0; i < bytes; i += (size_t)n) {
    int32_t c = ms_utf8_get(word + i, &n), id = char_id(m, word + i, c, n);
    if (id >= 0) {
      if (waiting) MS_TRY(add_symbol(w, m->unk, unk, unk_end));
      waiting = 0;
      MS_TRY(add_symbol(w, id, i, i + (size_t)n));
    } else if (has_bytes(m, word + i, n)) {
      for (size_t k = i; k < i + (size_t)n; k++)
        MS_TRY(add_symbol(w, m->byte_id[(unsigned char)word[k]], k, k + 1));
    } else if (m->unk == MS_BPE_UNK_LOST) {
      return MS_FAIL(MS_EINVAL,
                     "tokenizer: character U+%04X is not in the vocabulary, and neither "
                     "is the unknown token",
                     (unsigned)c);
    } else if (m->unk >= 0) {
      if (waiting && !m->fuse_unk) MS_TRY(add_symbol(w, m->unk, unk, unk_end));
      if (!waiting || !m->fuse_unk) unk = i;
      unk_end = i + (size_t)n;
      waiting = 1;
    }
  }
  return waiting ? add_symbol(w, m->unk, unk, unk_end) : MS_OK;
}

/* ---- merging ---- */

static int64_t rank_of(const ms_bpe *m, const symbol *s) {
  const ms_bpe_pair *p = find_pair(m, s[0].id, s[1].id);
  return p ? p->rank : INT64_MAX;
}

static int merge_few(const ms_bpe *m, symbol *s, int n) {
  int64_t rank[FEW];
  for (int i = 0; i + 1 < n; i++) rank[i] = rank_of(m, s + i);
  while (n > 1) {
    int best = 0;
    for (int i = 1; i + 1 < n; i++)
      if (rank[i] < rank[best]) best = i;
    if (rank[best] == INT64_MAX) break;
    s[best].id = find_pair(m, s[best].id, s[best + 1].id)->id;
    s[best].end = s[best + 1].end;
    n--;
    memmove(s + best + 1, s + best + 2, (size_t)(n - best - 1) * sizeof *s);
    if (best + 1 < n)
      memmove(rank + best + 1, rank + best + 2, (size_t)(n - best - 2) * sizeof *rank);
    if (best + 1 < n) rank[best] = rank_of(m, s + best);
    if (best) rank[best - 1] = rank_of(m, s + best - 1);
  }
  return n;
}

static ms_status heap_add(ms_buf *heap, candidate c) {
  size_t i = heap->size / sizeof c;
  MS_TRY(ms_buf_add(heap, &c, sizeof c));
  candidate *h = (void *)heap->data;
  for (; i && h[(i - 1) / 2].order > c.order; i = (i - 1) / 2) h[i] = h[(i - 1) / 2];
  h[i] = c;
  return MS_OK;
}

static candidate heap_take(ms_buf *heap) {
  candidate *h = (void *)heap->data, top = h[0];
  size_t n = heap->size / sizeof top - 1, i = 0;
  candidate last = h[n];
  heap->size = n * sizeof top;
  for (size_t k; (k = 2 * i + 1) < n; i = k) {
    if (k + 1 < n && h[k + 1].order < h[k].order) k++;
    if (h[k].order >= last.order) break;
    h[i] = h[k];
  }
  h[i] = last;
  return top;
}

static ms_status offer(const ms_bpe *m, ms_buf *heap, const symbol *s, int32_t left,
                       int32_t right) {
  const ms_bpe_pair *p = find_pair(m, s[left].id, s[right].id);
  if (!p) return MS_OK;
  return heap_add(heap, (candidate){(uint64_t)(uint32_t)p->rank << 32 | (uint32_t)left, p->id});
}

static ms_status merge_many(const ms_bpe *m, ms_bpe_worker *w, int32_t n) {
  symbol *s = (void *)w->symbol.data;
  w->heap.size = 0;
  for (int32_t i = 0; i + 1 < n; i++) MS_TRY(offer(m, &w->heap, s, i, i + 1));
  while (w->heap.size) {
    candidate top = heap_take(&w->heap);
    int32_t left = (int32_t)(uint32_t)top.order, right = s[left].next;
    if (s[left].id < 0 || right >= n) continue;
    const ms_bpe_pair *p = find_pair(m, s[left].id, s[right].id);
    if (!p || p->id != top.id) continue; /* one of the two has changed since */
    s[left].id = p->id;
    s[left].end = s[right].end;
    s[left].next = s[right].next;
    s[right].id = -1;
    if (s[left].next < n) s[s[left].next].prev = left;
    if (s[left].prev >= 0) MS_TRY(offer(m, &w->heap, s, s[left].prev, left));
    if (s[left].next < n) MS_TRY(offer(m, &w->heap, s, left, s[left].next));
  }
  return MS_OK;
}

/* Leaves in w->symbol what a word is made of, without asking the cache. */
static ms_status encode_new(const ms_bpe *m, ms_bpe_worker *w, const char *word, size_t bytes) {
  MS_TRY(read_symbols(m, w, word, bytes));
  symbol *s = (void *)w->symbol.data;
  int32_t n = (int32_t)(w->symbol.size / sizeof *s), left = 0;
  if (n > FEW) {
    MS_TRY(merge_many(m, w, n));
    for (int32_t i = 0; i < n; i++)
      if (s[i].id >= 0) s[left++] = s[i];
  } else {
    left = merge_few(m, s, n);
  }
  w->symbol.size = (size_t)left * sizeof *s;
  return MS_OK;
}

/* ---- words ---- */

typedef struct {
  ms_buf *ids, *ranges; /* ranges: or NULL */
  size_t at;            /* where in the word the part begins that is encoded */
} output;

static ms_status give(const output *out, int32_t id, int32_t start, int32_t end) {
  ms_range r = {(int32_t)out->at + start, (int32_t)out->at + end};
  if (out->ranges) MS_TRY(ms_buf_add(out->ranges, &r, sizeof r));
  return ms_buf_add(out->ids, &id, sizeof id);
}

static ms_status give_cached(const output *out, const cached *c) {
  if (!out->ranges) return ms_buf_add(out->ids, c->id, c->ids * sizeof *c->id);
  for (int i = 0; i < c->ids; i++) MS_TRY(give(out, c->id[i], c->start[i], c->end[i]));
  return MS_OK;
}

static ms_status give_new(const output *out, const ms_bpe_worker *w) {
  const symbol *s = (const void *)w->symbol.data;
  size_t n = w->symbol.size / sizeof *s;
  MS_TRY(ms_buf_reserve(out->ids, n * sizeof s->id));
  for (size_t i = 0; i < n; i++) MS_TRY(give(out, s[i].id, s[i].start, s[i].end));
  return MS_OK;
}

static ms_status encode_short(const ms_bpe *m, ms_bpe_worker *w, const char *word, size_t bytes,
                              const output *out) {
  uint32_t hash = (uint32_t)XXH3_64bits(word, bytes);
  cached *c = &w->cache[hash & (CACHE_SLOTS - 1)];
  if (c->hash == hash && c->bytes == bytes && !memcmp(c->key, word, bytes))
    return give_cached(out, c);
  int32_t whole = m->ignore_merges ? ms_vocab_id(&m->vocab, word, bytes) : -1;
  w->symbol.size = 0;
  MS_TRY(whole >= 0 ? add_symbol(w, whole, 0, bytes) : encode_new(m, w, word, bytes));
  const symbol *s = (const void *)w->symbol.data;
  size_t n = w->symbol.size / sizeof *s;
  if (n > CACHE_IDS) return give_new(out, w);
  *c = (cached){.hash = hash, .bytes = (uint8_t)bytes, .ids = (uint8_t)n};
  memcpy(c->key, word, bytes);
  for (size_t i = 0; i < n; i++) {
    c->id[i] = s[i].id;
    c->start[i] = (uint8_t)s[i].start;
    c->end[i] = (uint8_t)s[i].end;
  }
  return give_cached(out, c);
}

/* Where the part that begins the word ends: at the first place that no merge can cross. Unknown
 * characters are never cut apart, since they may fuse. */
static size_t part_end(const ms_bpe *m, const char *word, size_t bytes) {
  int n;
  int32_t c = ms_utf8_get(word, &n);
  int known = char_id(m, word, c, n) >= 0;
  for (size_t i = (size_t)n; i < bytes; i += (size_t)n) {
    int32_t next = ms_utf8_get(word + i, &n);
    int next_known = char_id(m, word + i, next, n) >= 0;
    uint64_t seam = (uint64_t)c << 32 | (uint64_t)next;
    if (known && next_known && *seam_slot(m, seam) != seam) return i;
    c = next;
    known = next_known;
  }
  return bytes;
}

ms_status ms_bpe_encode(const ms_bpe *m, ms_bpe_worker *w, const char *word, size_t bytes,
                        ms_buf *ids, ms_buf *ranges) {
  output out = {ids, ranges, 0};
  if (!bytes) return MS_OK;
  if (bytes <= CACHE_KEY) return encode_short(m, w, word, bytes, &out);
  if (m->ignore_merges) {
    int32_t whole = ms_vocab_id(&m->vocab, word, bytes);
    if (whole >= 0) return give(&out, whole, 0, (int32_t)bytes);
  }
  while (out.at < bytes) {
    const char *part = word + out.at;
    size_t n = part_end(m, part, bytes - out.at);
    /* With ignore_merges the cache holds whole words, which a part is not. */
    if (n <= CACHE_KEY && !m->ignore_merges) {
      MS_TRY(encode_short(m, w, part, n, &out));
    } else {
      MS_TRY(encode_new(m, w, part, n));
      MS_TRY(give_new(&out, w));
    }
    out.at += n;
  }
  return MS_OK;
}

ms_status ms_bpe_worker_new(ms_bpe_worker **out) {
  void *p, *cache;
  *out = NULL;
  MS_TRY(ms_alloc(sizeof(ms_bpe_worker), "tokenizer worker", &p));
  ms_status st = ms_alloc(sizeof(cached) * CACHE_SLOTS, "tokenizer cache", &cache);
  if (st != MS_OK) {
    ms_free(p);
    return st;
  }
  *out = p;
  (*out)->cache = cache;
  return MS_OK;
}

void ms_bpe_worker_free(ms_bpe_worker *w) {
  if (!w) return;
  ms_free(w->cache);
  ms_buf_free(&w->symbol);
  ms_buf_free(&w->heap);
  ms_free(w);
}
