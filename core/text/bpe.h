/* bpe.h - byte-pair encoding of one word: its characters are merged in the order of the ranks.
 *
 * A model is filled once (pairs, then ms_bpe_prepare) and read by any number of threads, each with
 * a worker of its own, which holds scratch memory and a cache of short words. */
#ifndef MS_BPE_H
#define MS_BPE_H
#include <stddef.h>
#include <stdint.h>

#include "draft.h"
#include "vocab.h"

typedef struct ms_bpe_pair {
  uint64_t key; /* left id << 32 | right id */
  int32_t rank, id;
} ms_bpe_pair;

enum { MS_BPE_CHARS = 1 << 16, MS_BPE_UNK_LOST = -2 };
typedef struct ms_bpe {
  ms_vocab vocab;    /* the model's own tokens, added ones not included */
  ms_bpe_pair *pair; /* open hash table; key UINT64_MAX is free */
  uint64_t *seam;    /* characters (last << 32 | first) that some merge joins */
  int pair_bits, seam_bits;
  int32_t *char_id;     /* of characters below MS_BPE_CHARS, -1 for none */
  int32_t byte_id[256]; /* tokens of bytes, for byte_fallback; -1 for none */
  int32_t unk;          /* -1: unknown characters vanish; MS_BPE_UNK_LOST: they are an error */
  int fuse_unk, byte_fallback, ignore_merges;
} ms_bpe;

/* Makes the tables for `merges` pairs. The vocabulary is complete by now. */
ms_status ms_bpe_prepare(ms_bpe *m, size_t merges);
/* left, right: spellings. *known 0: one of them, or what they make, is not in the vocabulary. */
ms_status ms_bpe_add_pair(ms_bpe *m, const char *left, size_t left_bytes, const char *right,
                          size_t right_bytes, int32_t rank, int *known);
void ms_bpe_free(ms_bpe *m);

typedef struct ms_bpe_worker ms_bpe_worker;
ms_status ms_bpe_worker_new(ms_bpe_worker **out);
void ms_bpe_worker_free(ms_bpe_worker *w);
/* Adds the ids (int32_t) of one word, valid UTF-8, to `ids`, and unless it is NULL which bytes of the
 * word each stands for (ms_range, never empty) to `ranges`. These ascend, but for an unknown token
 * behind the bytes of characters that come after its own. */
ms_status ms_bpe_encode(const ms_bpe *m, ms_bpe_worker *w, const char *word, size_t bytes,
                        ms_buf *ids, ms_buf *ranges);

#endif
