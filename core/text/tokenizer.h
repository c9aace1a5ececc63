/* tokenizer.h - what a tokenizer is made of; load.c fills it, tokenizer.c and detokenize.c use it.
 *
 * A tokenizer never changes after loading and may be used by several threads. Each encoding borrows
 * a worker (scratch memory, cache of words) from a list; detokenizers count their tokenizer. */
#ifndef MS_TOKENIZER_H
#define MS_TOKENIZER_H
#include <pthread.h>
#include <stdatomic.h>

#include "../moonstill.h"
#include "added.h"
#include "bpe.h"
#include "steps.h"
#include "vocab.h"

typedef struct ms_worker {
  struct ms_worker *next;
  ms_matcher *matcher;
  ms_bpe_worker *bpe;
  ms_words words;
  ms_room room;           /* for the text that is being encoded */
  ms_draft normal, spare; /* a stretch of it, normalized */
  ms_buf raw, cooked;     /* stretches before and after normalizing */
  ms_buf whole;           /* ms_range: each byte of a text came from itself */
  ms_buf plain[2];        /* ms_range: the plain parts of the text, and of a normalized stretch */
  ms_buf ids, ranges;     /* what is made; ms_range of each id, where the text is traced */
} ms_worker;

/* How a text is to be encoded: as ms_tokenizer_encode has it. */
typedef struct ms_manner {
  int special, parse, traced;
  const int64_t *plain;
  int64_t plains;
} ms_manner;

enum { MS_TOKEN_ADDED = 1, MS_TOKEN_SPECIAL = 2 };

struct ms_tokenizer {
  char *path;     /* of tokenizer.json, for errors */
  ms_vocab vocab; /* every token, added ones included */
  ms_buf kind;    /* a byte for each id, up to the last added token: those flags */
  ms_bpe bpe;
  ms_added added[2]; /* looked for in the raw text, and in the normalized text */
  ms_steps normalizer, pretokenizer, decoder;
  int decode_streams;   /* after a fusing step of the decoder text may go on at once */
  ms_buf before, after; /* ids that the post-processor puts around a text */
  _Atomic int references;
  pthread_mutex_t lock; /* of `workers` */
  ms_worker *workers;
};

/* Fills a zeroed tokenizer whose path is set. */
ms_status ms_tokenizer_load(ms_tokenizer *tok);
void ms_tokenizer_release(const ms_tokenizer *tok);

ms_status ms_worker_borrow(const ms_tokenizer *tok, ms_worker **out);
void ms_worker_give_back(const ms_tokenizer *tok, ms_worker *w);
/* Leaves the ids of a text in w->ids, and in w->ranges, if it is traced, what they stand for. */
ms_status ms_worker_encode(const ms_tokenizer *tok, ms_worker *w, const char *text, int64_t bytes,
                           const ms_manner *how);

#endif
