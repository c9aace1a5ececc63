/* memory.h - host allocations of the core: counted, aligned, and failing on demand in tests.
 *
 * Every layer of core and every CPU kernel allocates here. ms_alloc gives zeroed memory,
 * ms_alloc_undefined memory for what is written before it is read; the debug build fills that, and
 * all else that is undefined, with 0xff. Both are aligned to MS_ALIGN; bytes 0 gives a valid pointer.
 * ms_free accepts NULL. */
#ifndef MS_MEMORY_H
#define MS_MEMORY_H
#include <stddef.h>

#include "error.h"

enum { MS_ALIGN = 64 };

ms_status ms_alloc(size_t bytes, const char *what, void **out);
ms_status ms_alloc_undefined(size_t bytes, const char *what, void **out);
void ms_free(void *p);
/* Grows to hold `bytes`, keeping content; *p NULL is fine. The added part is undefined. */
ms_status ms_grow(void **p, size_t old_bytes, size_t bytes, const char *what);
/* Scratch memory of the calling thread, of at least `bytes`, for kernels whose work is shorter than an
 * allocation. The next call gets the same memory; it is freed when the thread ends. Its content is
 * undefined at first and lasts until the next call. */
ms_status ms_scratch(size_t bytes, const char *what, void **out);
/* For the allocators of libraries: whether a test wants this request to fail; counting what is alive. */
int ms_hook_fails(void);
void ms_hook_count(int by);
/* Cuts one piece of memory into parts: the next part, of `bytes`, aligned to MS_ALIGN. With `base` NULL
 * nothing is given and *used adds up what all parts need. */
static inline void *ms_cut(void *base, size_t *used, size_t bytes) {
  void *p = base ? (char *)base + *used : NULL;
  *used += (bytes + MS_ALIGN - 1) / MS_ALIGN * MS_ALIGN;
  return p;
}
/* A copy of `text`, freed with ms_text_free. */
ms_status ms_text_copy(const char *text, size_t bytes, char **out);
ms_status ms_text_format(char **out, const char *format, ...)
    __attribute__((format(printf, 2, 3), nonnull(2)));

#endif
