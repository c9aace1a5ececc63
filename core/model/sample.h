/* sample.h - choosing the next token from logits. */
#ifndef MS_SAMPLE_H
#define MS_SAMPLE_H
#include <stddef.h>

#include "../moonstill.h"
#include "../base/error.h"

/* An id of row `row` at its `step`-th token. The largest logit at temperature 0 (the lowest id
 * among equals); otherwise a draw that is a function of (seed, row, step), after temperature, then
 * top_k, then top_p. `scratch` has ms_sample_bytes(vocab); a logit that is NaN is an error. */
ms_status ms_sample(const float *z, int64_t vocab, const ms_generate_options *options, int32_t row,
                    int32_t step, void *scratch, int32_t *id);
size_t ms_sample_bytes(int64_t vocab);

#endif
