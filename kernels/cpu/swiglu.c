/* swiglu.c - the gated activation of the MLP: silu(gate) * up. */
#include "cpu.h"
#include "simd.h"

/* 1 / (1 + e^-x): 0 far left, 1 far right, never inf / inf. */
static inline vf sigmoid(vf x) { return 1.0f / (1.0f + vf_exp(-x)); }

static inline void forward(float *y, const float *gate, const float *up, int64_t n) {
  vf g = vf_load_n(gate, n);
  vf_store_n(y, g * sigmoid(g) * vf_load_n(up, n), n);
}

ms_status MS_KERNEL(swiglu)(ms_stream *s, ms_act y, ms_act gate, ms_act up, int64_t n) {
  MS_TAKES_F32("swiglu", y, gate, up);
#pragma omp parallel for schedule(static) if (n > MS_SERIAL)
  for (int64_t i = 0; i < n; i += VF_LANES)
    forward(f32(y) + i, f32(gate) + i, f32(up) + i, n - i < VF_LANES ? n - i : VF_LANES);
  return MS_OK;
}

/* d silu(g) = sigmoid(g) (1 + g (1 - sigmoid(g))) dg */
static inline void backward(float *d_gate, float *d_up, const float *dy, const float *gate,
                            const float *up, int64_t n) {
  vf g = vf_load_n(gate, n), u = vf_load_n(up, n), d = vf_load_n(dy, n), sig = sigmoid(g);
  vf_store_n(d_up, d * g * sig, n);
  vf_store_n(d_gate, d * u * sig * vf_fma(g, 1.0f - sig, vf_set(1)), n);
}

ms_status MS_KERNEL(swiglu_backward)(ms_stream *s, ms_act d_gate, ms_act d_up, ms_act dy,
                                     ms_act gate, ms_act up, int64_t n) {
  MS_TAKES_F32("swiglu_backward", d_gate, d_up, dy, gate, up);
#pragma omp parallel for schedule(static) if (n > MS_SERIAL)
  for (int64_t i = 0; i < n; i += VF_LANES)
    backward(f32(d_gate) + i, f32(d_up) + i, f32(dy) + i, f32(gate) + i, f32(up) + i,
             n - i < VF_LANES ? n - i : VF_LANES);
  return MS_OK;
}
