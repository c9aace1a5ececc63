/* sample.c - greedy choice, and draws cut by top-k and top-p.
 *
 * Candidates come off a heap in order of their logits, so a cut that keeps few costs little more
 * than one pass over the vocabulary. */
#include "sample.h"

#include <math.h>

typedef struct candidate {
  float z;
  int32_t id;
} candidate;

size_t ms_sample_bytes(int64_t vocab) { return (size_t)vocab * sizeof(candidate); }

static ms_status largest(const float *z, int64_t vocab, int32_t row, int32_t *id) {
  int64_t best = 0;
  for (int64_t i = 0; i < vocab; i++) {
    if (isnan(z[i]))
      return MS_FAIL(MS_EINVAL, "generate: the logits of prompt %d are not numbers", row + 1);
    if (z[i] > z[best]) best = i;
  }
  *id = (int32_t)best;
  return MS_OK;
}

/* Larger logits first, lower ids among equals. */
static int before(candidate a, candidate b) { return a.z > b.z || (a.z == b.z && a.id < b.id); }

static void sink(candidate *heap, int64_t n, int64_t at) {
  candidate c = heap[at];
  for (int64_t child; (child = 2 * at + 1) < n; at = child) {
    if (child + 1 < n && before(heap[child + 1], heap[child])) child++;
    if (!before(heap[child], c)) break;
    heap[at] = heap[child];
  }
  heap[at] = c;
}

static void fill_heap(candidate *heap, const float *z, int64_t n) {
  for (int64_t i = 0; i < n; i++) heap[i] = (candidate){z[i], (int32_t)i};
  for (int64_t i = n / 2; i-- > 0;) sink(heap, n, i);
}

/* The first goes to the end of the array: popped ones lie there in reverse. */
static candidate pop(candidate *heap, int64_t *n) {
  candidate top = heap[0];
  heap[0] = heap[--*n];
  heap[*n] = top;
  sink(heap, *n, 0);
  return top;
}

/* 53 bits in [0, 1). */
static double draw(uint64_t seed, int32_t row, int32_t step) {
  uint32_t w[4];
  ms_philox(seed, (uint64_t)row, (uint64_t)step, w);
  return ((double)(w[0] >> 5) * 67108864.0 + (double)(w[1] >> 6)) * 0x1p-53;
}

static double share(float z, float top, double temperature) {
  return exp(((double)z - (double)top) / temperature);
}

/* No cut: the ids in order. A sum that rounding left short ends at the last id with any share. */
static int32_t pick_any(const float *z, int64_t vocab, float top, double temperature, double u) {
  double total = 0, sum = 0;
  int64_t last = 0;
  for (int64_t i = 0; i < vocab; i++) total += share(z[i], top, temperature);
  for (int64_t i = 0; i < vocab; i++) {
    double p = share(z[i], top, temperature);
    sum += p;
    if (p > 0) last = i;
    if (p > 0 && sum > u * total) return (int32_t)i;
  }
  return (int32_t)last;
}

/* Pops what top_k and top_p leave and picks among it. */
static int32_t pick_cut(candidate *heap, const float *z, int64_t vocab,
                        const ms_generate_options *o, float top, double u) {
  int64_t left = vocab, most = o->top_k > 0 && o->top_k < vocab ? o->top_k : vocab, kept = 0;
  double total = 0, mass = 0, sum = 0;
  fill_heap(heap, z, vocab);
  if (most == vocab) {
    for (int64_t i = 0; i < vocab; i++) total += share(z[i], top, o->temperature);
  } else { /* top_p is of what top_k leaves */
    for (int64_t i = 0; i < most; i++) total += share(pop(heap, &left).z, top, o->temperature);
    left = vocab;
    fill_heap(heap, z, vocab);
  }
  do mass += share(pop(heap, &left).z, top, o->temperature);
  while (++kept < most && mass < o->top_p * total);
  for (int64_t i = 0; i < kept; i++) {
    candidate c = heap[vocab - 1 - i];
    sum += share(c.z, top, o->temperature);
    if (sum > u * mass) return c.id;
  }
  return heap[vocab - kept].id;
}

ms_status ms_sample(const float *z, int64_t vocab, const ms_generate_options *options, int32_t row,
                    int32_t step, void *scratch, int32_t *id) {
  MS_TRY(largest(z, vocab, row, id));
  float top = z[*id];
  if (options->temperature == 0 || isinf(top)) return MS_OK;
  double u = draw(options->seed, row, step);
  if (options->top_k > 0 || options->top_p < 1)
    *id = pick_cut(scratch, z, vocab, options, top, u);
  else
    *id = pick_any(z, vocab, top, options->temperature, u);
  return MS_OK;
}
