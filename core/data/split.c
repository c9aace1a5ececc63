/* split.c - which rows of a data set are held out: those whose tokens have the smallest hashes. */
#include <stdlib.h>
#include <xxhash.h>

#include "../base/error.h"
#include "../base/memory.h"
#include "../moonstill.h"

static int compare(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

/* hash[k] of the k-th row, for all of them: a row is neighbours of equal `row`. Returns how many. */
static int64_t hash_rows(uint64_t seed, int64_t samples, const int64_t *start, const int32_t *row,
                         const int32_t *token, uint64_t *hash) {
  int64_t rows = 0;
  for (int64_t i = 0, end; i < samples; i = end, rows++) {
    for (end = i + 1; end < samples && row[end] == row[i];) end++;
    size_t bytes = (size_t)(start[end] - start[i]) * sizeof *token;
    hash[rows] = XXH3_64bits_withSeed(token + start[i], bytes, seed);
  }
  return rows;
}

ms_status ms_split(uint64_t seed, int64_t samples, const int64_t *start, const int32_t *row,
                   const int32_t *token, int64_t count, uint8_t *held) {
  void *memory;
  MS_REQUIRE(samples >= 0 && count >= 0 && (!samples || (start && row && token && held)),
             "split: %lld samples, %lld rows to hold out", (long long)samples, (long long)count);
  MS_TRY(ms_alloc_undefined((size_t)samples * 2 * sizeof(uint64_t), "split", &memory));
  uint64_t *hash = memory, *sorted = hash + samples;
  int64_t rows = hash_rows(seed, samples, start, row, token, hash);
  for (int64_t k = 0; k < rows; k++) sorted[k] = hash[k];
  qsort(sorted, (size_t)rows, sizeof *sorted, compare);
  if (count > rows) count = rows;
  int64_t k = -1;
  for (int64_t i = 0; i < samples; i++) {
    if (!i || row[i] != row[i - 1]) k++;
    held[i] = count > 0 && hash[k] <= sorted[count - 1];
  }
  ms_free(memory);
  return MS_OK;
}
