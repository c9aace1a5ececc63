/* random.h - Philox4x32-10 (Salmon et al., SC 2011): numbers are a function of (seed, stream,
 * index), so any part of any sequence can be had in any order and on any thread. */
#ifndef MS_RANDOM_H
#define MS_RANDOM_H
#include <stdint.h>

/* Uniform in [0, 1) with 24 bits, element `index` of a sequence. */
float ms_uniform(uint64_t seed, uint64_t stream, uint64_t index);
/* Standard normals by Box-Muller, elements first .. first+n of a sequence. */
void ms_normal(float *y, int64_t n, uint64_t first, uint64_t seed, uint64_t stream);

#endif
