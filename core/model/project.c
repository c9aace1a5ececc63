/* project.c - what the decoder's blocks are made of: matrix products with a bias, and norms. */
#include "decoder.h"

ms_status ms_add_bias(const ms_model *m, ms_act y, ms_slice bias, int64_t rows, int64_t out) {
  return bias.w ? MS_OP(m->dev, bias, y, bias.w, m->dtype, rows, out) : MS_OK;
}

ms_status ms_add_bias_backward(const ms_model *m, ms_slice bias, ms_act dy, int64_t rows,
                               int64_t out) {
  return bias.g ? MS_OP(m->dev, bias_db, bias.g, dy, rows, out) : MS_OK;
}

ms_status ms_project(const ms_model *m, ms_into y, ms_act x, ms_slice w, ms_slice bias,
                     int64_t rows, int64_t in, int64_t out) {
  MS_TRY(MS_OP(m->dev, linear, y.at, x, w.w, m->dtype, rows, in, out, y.add));
  return ms_add_bias(m, y.at, bias, rows, out);
}

ms_status ms_project_backward(const ms_model *m, ms_into dx, ms_slice w, ms_slice bias, ms_act dy,
                              ms_act x, int64_t rows, int64_t in, int64_t out) {
  if (w.g) MS_TRY(MS_OP(m->dev, linear_dw, w.g, dy, x, rows, in, out, 1));
  MS_TRY(ms_add_bias_backward(m, bias, dy, rows, out));
  if (!dx.at.at) return MS_OK;
  return MS_OP(m->dev, linear_dx, dx.at, dy, w.w, m->dtype, rows, in, out, dx.add);
}

ms_status ms_norm(const ms_model *m, ms_act y, float *rstd, ms_act x, ms_slice w, int64_t rows,
                  int64_t cols, const ms_norm_part *part) {
  return MS_OP(m->dev, rmsnorm, y, rstd, x, w.w, m->dtype, rows, cols, m->config.eps,
               m->config.norm_offset, part);
}

ms_status ms_norm_backward(const ms_model *m, ms_into dx, ms_act dy, ms_act x, const float *rstd,
                           ms_slice w, int64_t rows, int64_t cols, const ms_norm_part *part) {
  return MS_OP(m->dev, rmsnorm_backward, dx.at, w.g, dy, x, rstd, w.w, m->dtype, rows, cols,
               m->config.norm_offset, dx.add, part);
}
