/* cpu.c - picks the instruction set, and the operations that are the same for all of them. */
#include "cpu.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "../../core/base/log.h"
#include "../../core/base/memory.h"

const ms_host *ms_cpu_host;
static const ms_ops *chosen;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void choose(void) {
  const char *cap = getenv("MS_CPU");
  chosen = &ms_cpu_ops_portable;
#ifdef MS_HAVE_X86
  int best = 0; /* 0 portable, 1 avx2, 2 avx512 */
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) best = 1;
  if (best && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
    best = 2;
  if (cap && !strcmp(cap, "portable")) best = 0;
  if (cap && !strcmp(cap, "avx2") && best > 1) best = 1;
  if (best == 1) chosen = &ms_cpu_ops_avx2;
  if (best == 2) chosen = &ms_cpu_ops_avx512;
#endif
  ms_cpu_host->log(MS_LOG_INFO, "kernels: %s", chosen->name);
}

const ms_ops *ms_cpu_backend(const ms_host *host) {
  ms_cpu_host = host;
  pthread_once(&once, choose);
  return chosen;
}

int ms_cpu_devices(void) { return 1; }
ms_status ms_cpu_stream_open(int device, ms_stream **out) {
  const char *cap = getenv("MS_CPU");
  *out = NULL;
  MS_REQUIRE(
      !cap || !*cap || !strcmp(cap, "portable") || !strcmp(cap, "avx2") || !strcmp(cap, "avx512"),
      "MS_CPU=%s: there are avx512, avx2 and portable", cap);
  return MS_OK;
}
void ms_cpu_stream_close(ms_stream *s) {}

ms_status ms_cpu_alloc(int device, size_t bytes, void **out) {
  return ms_alloc_undefined(bytes, "cpu tensor", out);
}
void ms_cpu_free(int device, void *p, size_t bytes) { ms_free(p); }

ms_status ms_cpu_write(ms_stream *s, void *device, const void *host, size_t bytes) {
  memcpy(device, host, bytes);
  return MS_OK;
}
ms_status ms_cpu_read(ms_stream *s, void *host, const void *device, size_t bytes) {
  memcpy(host, device, bytes);
  return MS_OK;
}
ms_status ms_cpu_copy(ms_stream *s, void *y, const void *x, size_t bytes) {
  memmove(y, x, bytes);
  return MS_OK;
}
ms_status ms_cpu_zero(ms_stream *s, void *y, size_t bytes) {
  memset(y, 0, bytes);
  return MS_OK;
}
