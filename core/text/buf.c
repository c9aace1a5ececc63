/* buf.c - a growing run of bytes. */
#include "buf.h"

#include "../base/memory.h"

ms_status ms_buf_reserve(ms_buf *b, size_t more) {
  if (b->room - b->size >= more) return MS_OK;
  size_t room = b->size + more;
  room += room / 2 + 64; /* by halves again, so that adding bytes one by one stays linear */
  void *p = b->data;
  MS_TRY(ms_grow(&p, b->size, room, "text buffer"));
  b->data = p;
  b->room = room;
  return MS_OK;
}

void ms_buf_free(ms_buf *b) {
  ms_free(b->data);
  *b = (ms_buf){0};
}
