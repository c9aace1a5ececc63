/* hash.c - a model by its value: what tells two models apart that would compute other numbers. */
#include <string.h>
#include <xxhash.h>

#include "../base/memory.h"
#include "gradients.h"
#include "layout.h"

enum { CHUNK = 1 << 20 };

/* Through a buffer in the cache, since the weights may be on another device. */
static ms_status add_weights(const ms_model *m, XXH3_state_t *state, void *buffer) {
  size_t size = m->dtype == MS_BF16 ? 2 : 4;
  MS_TRY(ms_weights_settle(m));
  for (int32_t i = 0; i < m->parameters; i++) {
    const char *w = m->parameter[i].w;
    size_t bytes = (size_t)m->parameter[i].count * size;
    for (size_t from = 0; from < bytes; from += CHUNK) {
      size_t n = bytes - from < CHUNK ? bytes - from : CHUNK;
      MS_TRY(MS_OP(m->dev, read, buffer, w + from, n));
      XXH3_128bits_update(state, buffer, n);
    }
  }
  return MS_OK;
}

ms_status ms_model_hash(const ms_model *m, char **text) {
  char *config = NULL;
  void *buffer = NULL;
  ms_status st = MS_OK;
  *text = NULL;
  XXH3_state_t *state = XXH3_createState();
  if (!state) return MS_FAIL(MS_ENOMEM, "model: no memory to hash it");
  XXH3_128bits_reset(state);
  MS_TRY_OR(end, ms_alloc_undefined(CHUNK, "model: hash", &buffer));
  MS_TRY_OR(end, ms_model_config(m, &config));
  XXH3_128bits_update(state, config, strlen(config));
  MS_TRY_OR(end, add_weights(m, state, buffer));
  XXH128_hash_t h = XXH3_128bits_digest(state);
  st = ms_text_format(text, "%016llx%016llx", (unsigned long long)h.high64,
                      (unsigned long long)h.low64);
end:
  XXH3_freeState(state);
  ms_text_free(config);
  ms_free(buffer);
  return st;
}
