/* buf.h - a growing run of bytes, the one container of core/text. Zeroed is empty and valid. */
#ifndef MS_BUF_H
#define MS_BUF_H
#include <stddef.h>
#include <string.h>

#include "../base/error.h"

typedef struct ms_buf {
  char *data;
  size_t size, room;
} ms_buf;

/* Makes room for `more` bytes behind `size`; size itself is the caller's to move. */
ms_status ms_buf_reserve(ms_buf *b, size_t more);
static inline ms_status ms_buf_add(ms_buf *b, const void *data, size_t bytes) {
  if (b->room - b->size < bytes) MS_TRY(ms_buf_reserve(b, bytes));
  if (bytes) memcpy(b->data + b->size, data, bytes);
  b->size += bytes;
  return MS_OK;
}
void ms_buf_free(ms_buf *b);

#endif
