/* added.h - tokens that are found in the text before the model sees it, leftmost and longest. */
#ifndef MS_ADDED_H
#define MS_ADDED_H
#include <stddef.h>
#include <stdint.h>

#include "buf.h"

enum { MS_ADDED_SPECIAL = 1, MS_ADDED_SINGLE_WORD = 2, MS_ADDED_LSTRIP = 4, MS_ADDED_RSTRIP = 8 };

/* A trie over bytes. Zeroed is empty and finds nothing. */
typedef struct ms_added {
  ms_buf node;        /* node 0 is the root */
  int32_t first[256]; /* children of the root, 0 for none */
} ms_added;

/* A stretch of the text: an added token, or text (id -1). */
typedef struct ms_stretch {
  size_t start, end;
  int32_t id;
} ms_stretch;

ms_status ms_added_add(ms_added *a, const char *text, size_t bytes, int32_t id, int flags);
/* Cuts the text into stretches (ms_stretch, added to `out`). special 0 leaves special tokens to
 * the text. An empty text has none. */
ms_status ms_added_split(const ms_added *a, const char *text, size_t bytes, int special,
                         ms_buf *out);
void ms_added_free(ms_added *a);

#endif
