/* glu.c - the gated activation of the MLP: act(gate) * up. */
#include "cpu.h"
#include "simd.h"

/* 1 / (1 + e^-x): 0 far left, 1 far right, never inf / inf. */
static inline vf sigmoid(vf x) { return 1.0f / (1.0f + vf_exp(-x)); }

/* Both activations are x sigmoid(v), with v = x for silu. That of gelu is 2 sqrt(2 / pi) (x + 0.044715
 * x^3); beyond +-16 it is taken there, where its sigmoid is 0 or 1, so that nothing overflows. */
static const float gelu_linear = 1.5957691216f, gelu_cubic = 0.0713548162726f;

VF_INLINE vf gelu_clamp(vf x) { return vf_max(vf_set(-16), vf_min(vf_set(16), x)); }

VF_INLINE vf argument(vf x, int activation) {
  if (activation == MS_SILU) return x;
  vf c = gelu_clamp(x);
  return c * vf_fma(c * c, vf_set(gelu_cubic), vf_set(gelu_linear));
}

VF_INLINE void forward(float *y, const float *gate, const float *up, int64_t n, int activation) {
  vf g = vf_load_n(gate, n);
  vf_store_n(y, g * sigmoid(argument(g, activation)) * vf_load_n(up, n), n);
}

ms_status MS_KERNEL(glu)(ms_stream *s, ms_act y, ms_act gate, ms_act up, int64_t n,
                         int activation) {
  MS_TAKES_F32("glu", y, gate, up);
#pragma omp parallel for schedule(static) if (n > MS_SERIAL)
  for (int64_t i = 0; i < n; i += VF_LANES)
    forward(f32(y) + i, f32(gate) + i, f32(up) + i, ms_min(n - i, VF_LANES), activation);
  return MS_OK;
}

/* d act(x) = sigmoid(v) (1 + x v' (1 - sigmoid(v))) dx */
VF_INLINE void backward(float *d_gate, float *d_up, const float *dy, const float *gate,
                        const float *up, int64_t n, int activation) {
  vf g = vf_load_n(gate, n), u = vf_load_n(up, n), d = vf_load_n(dy, n);
  vf sig = sigmoid(argument(g, activation)), steep = g;
  if (activation != MS_SILU) {
    vf c = gelu_clamp(g);
    steep = c * vf_fma(c * c, vf_set(3 * gelu_cubic), vf_set(gelu_linear));
  }
  vf_store_n(d_up, d * g * sig, n);
  vf_store_n(d_gate, d * u * sig * vf_fma(steep, 1.0f - sig, vf_set(1)), n);
}

ms_status MS_KERNEL(glu_backward)(ms_stream *s, ms_act d_gate, ms_act d_up, ms_act dy, ms_act gate,
                                  ms_act up, int64_t n, int activation) {
  MS_TAKES_F32("glu_backward", d_gate, d_up, dy, gate, up);
#pragma omp parallel for schedule(static) if (n > MS_SERIAL)
  for (int64_t i = 0; i < n; i += VF_LANES)
    backward(f32(d_gate) + i, f32(d_up) + i, f32(dy) + i, f32(gate) + i, f32(up) + i,
             ms_min(n - i, VF_LANES), activation);
  return MS_OK;
}
