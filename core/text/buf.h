/* buf.h - a growing run of bytes, the one container of core/text. Zeroed is empty and valid. */
#ifndef MS_BUF_H
#define MS_BUF_H
#include <stddef.h>

#include "../base/error.h"

typedef struct ms_buf {
  char *data;
  size_t size, room;
} ms_buf;

/* Makes room for `more` bytes behind `size`; size itself is the caller's to move. */
ms_status ms_buf_reserve(ms_buf *b, size_t more);
ms_status ms_buf_add(ms_buf *b, const void *data, size_t bytes);
void ms_buf_free(ms_buf *b);

#endif
