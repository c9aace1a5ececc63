/* memory.c - host allocations: counted, aligned, failing on demand. */
#include "memory.h"
#include "../moonstill.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>

static _Atomic int64_t live;
static _Atomic int64_t fail_in; /* 0: never */

int64_t ms_test_fail_alloc(int64_t nth) { return atomic_exchange(&fail_in, nth); }
int64_t ms_test_live(void) { return live; }

static int must_fail(void) {
  if (!fail_in) return 0;
  return atomic_fetch_sub(&fail_in, 1) == 1;
}

int ms_hook_fails(void) { return must_fail(); }
void ms_hook_count(int by) { atomic_fetch_add(&live, by); }

/* The machine's memory and swap; if that is unknown, what an address space has room for. */
static size_t machine_bytes(void) {
  static _Atomic size_t bytes;
  struct sysinfo info;
  if (!bytes && !sysinfo(&info)) bytes = (info.totalram + info.totalswap) * (size_t)info.mem_unit;
  return bytes ? bytes : SIZE_MAX / 4;
}

enum { HUGE_PAGE = 2 << 20 };

/* Memory that is neither zeroed nor counted. */
static ms_status take(size_t bytes, size_t align, const char *what, int fail, void **out) {
  size_t room = (bytes + align - 1) / align * align;
  *out = NULL;
  int fits = room >= bytes; /* false when rounding up overflowed */
  /* Linux gives out more memory than there is, and kills the process that uses it. */
  if (fits && bytes > machine_bytes())
    return MS_FAIL(MS_ENOMEM, "%s: no memory for %zu bytes: the machine has %zu", what, bytes,
                   machine_bytes());
  void *p = fail || !fits ? NULL : aligned_alloc(align, room ? room : align);
  if (!p) return MS_FAIL(MS_ENOMEM, "%s: no memory for %zu bytes", what, bytes);
  /* Huge pages are worth 10 % of bandwidth to the large arenas; a refusal costs nothing. */
  if (align == HUGE_PAGE) madvise(p, room, MADV_HUGEPAGE);
  *out = p;
  return MS_OK;
}

/* The debug build fills undefined memory with NaN, or -1: by chance it might be 0. */
static void poison(void *p, size_t bytes) {
#ifdef MS_POISON
  memset(p, 0xff, bytes);
#endif
}

ms_status ms_alloc_undefined(size_t bytes, const char *what, void **out) {
  MS_TRY(
      take(bytes, bytes >= 4 * (size_t)HUGE_PAGE ? HUGE_PAGE : MS_ALIGN, what, must_fail(), out));
  poison(*out, bytes);
  atomic_fetch_add(&live, 1);
  return MS_OK;
}

ms_status ms_alloc(size_t bytes, const char *what, void **out) {
  MS_TRY(ms_alloc_undefined(bytes, what, out));
  memset(*out, 0, bytes);
  return MS_OK;
}

static pthread_key_t scratch_key; /* whose destructor frees a thread's scratch */
static void make_scratch_key(void) { pthread_key_create(&scratch_key, free); }

ms_status ms_scratch(size_t bytes, const char *what, void **out) {
  static _Thread_local void *p;
  static _Thread_local size_t size;
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, make_scratch_key);
  int fail = must_fail();
  if (bytes > size || fail) {
    free(p);
    p = NULL, size = 0;
    pthread_setspecific(scratch_key, NULL);
    MS_TRY(take(bytes, bytes >= HUGE_PAGE / 2 ? HUGE_PAGE : MS_ALIGN, what, fail, &p));
    size = bytes;
    pthread_setspecific(scratch_key, p);
  }
  poison(p, bytes);
  *out = p;
  return MS_OK;
}

void ms_free(void *p) {
  if (!p) return;
  atomic_fetch_sub(&live, 1);
  free(p);
}

ms_status ms_grow(void **p, size_t old_bytes, size_t bytes, const char *what) {
  void *q;
  MS_TRY(ms_alloc_undefined(bytes, what, &q));
  if (*p) memcpy(q, *p, old_bytes < bytes ? old_bytes : bytes);
  ms_free(*p);
  *p = q;
  return MS_OK;
}

ms_status ms_text_copy(const char *text, size_t bytes, char **out) {
  void *p;
  *out = NULL;
  MS_TRY(ms_alloc(bytes + 1, "text", &p));
  memcpy(p, text, bytes);
  *out = p;
  return MS_OK;
}

ms_status ms_text_format(char **out, const char *format, ...) {
  va_list args, again;
  void *p;
  *out = NULL;
  va_start(args, format);
  va_copy(again, args);
  int n = vsnprintf(NULL, 0, format, args);
  va_end(args);
  ms_status st = ms_alloc((size_t)n + 1, "text", &p);
  if (st == MS_OK) {
    vsnprintf(p, (size_t)n + 1, format, again);
    *out = p;
  }
  va_end(again);
  return st;
}

void ms_text_free(char *text) { ms_free(text); }
