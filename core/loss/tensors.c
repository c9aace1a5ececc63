/* tensors.c - the head on tensors, as Lua calls it: losses of hidden states, targets of hidden states. */
#include <math.h>

#include "head.h"

static ms_status check_tensor(const char *name, const ms_tensor *t, const ms_tensor *hidden,
                              int64_t rows, int half) {
  char s[200];
  MS_REQUIRE(t->dev == hidden->dev, "head: %s is on %s, hidden on %s", name, t->dev->spec,
             hidden->dev->spec);
  MS_REQUIRE(t->rank == 2 && (rows < 0 || t->shape[0] == rows) && t->shape[1] == hidden->shape[1] &&
                 (t->dtype == MS_F32 || (half && t->dtype == MS_BF16)),
             "head: %s is %s %s, hidden %lld x %lld", name, ms_dtype_name(t->dtype),
             ms_shape_text(t->rank, t->shape, s), (long long)hidden->shape[0],
             (long long)hidden->shape[1]);
  return MS_OK;
}

/* The head of two tensors, checked. */
static ms_status head_of(const ms_tensor *hidden, const ms_tensor *head, double scale,
                         double soft_cap, ms_head_weights *out) {
  char s[200];
  MS_REQUIRE(hidden && head, "head: no hidden states or no head");
  MS_REQUIRE(hidden->rank == 2 && hidden->dtype == MS_F32, "head: hidden is %s %s",
             ms_dtype_name(hidden->dtype), ms_shape_text(hidden->rank, hidden->shape, s));
  MS_TRY(check_tensor("head", head, hidden, -1, 1));
  MS_REQUIRE(scale != 0 && isfinite(scale) && soft_cap >= 0 && isfinite(soft_cap),
             "head: scale %g, soft_cap %g", scale, soft_cap);
  *out = (ms_head_weights){.w = head->data,
                           .dtype = head->dtype,
                           .vocab = head->shape[0],
                           .width = head->shape[1],
                           .scale = (float)scale,
                           .soft_cap = (float)soft_cap,
                           .changes = head->changes};
  return MS_OK;
}

ms_status ms_head_run(const ms_tensor *hidden, const ms_tensor *head, double scale, double soft_cap,
                      const int32_t *label, const float *response, const float *all, int32_t terms,
                      const ms_term *term, int64_t budget, ms_tensor *d_hidden, ms_tensor *d_head,
                      ms_term_result *result) {
  ms_head_call call = {0};
  MS_TRY(head_of(hidden, head, scale, soft_cap, &call.head));
  if (d_hidden) MS_TRY(check_tensor("d_hidden", d_hidden, hidden, hidden->shape[0], 0));
  if (d_head) MS_TRY(check_tensor("d_head", d_head, hidden, head->shape[0], 0));
  call.dev = hidden->dev;
  call.rows = hidden->shape[0];
  call.hidden = ms_tensor_act(hidden);
  call.label = label;
  call.weight[MS_ON_RESPONSE] = response;
  call.weight[MS_ON_ALL] = all;
  call.terms = terms;
  call.term = term;
  call.budget = budget;
  if (d_hidden) call.d_hidden = ms_tensor_act(d_hidden);
  call.d_head = d_head ? d_head->data : NULL;
  call.result = result;
  return ms_head_learn(&call);
}

static void refer_to_tensor(void *owner, int by) {
  ms_tensor *t = owner;
  if (by > 0)
    atomic_fetch_add(&t->refs, 1);
  else
    ms_tensor_free(t);
}

ms_status ms_target_new(const ms_target_options *options, const ms_tensor *hidden, ms_tensor *head,
                        double scale, double soft_cap, int64_t budget, ms_target **out) {
  ms_head_weights w;
  *out = NULL;
  MS_TRY(head_of(hidden, head, scale, soft_cap, &w));
  return ms_target_make(hidden->dev, options, hidden->shape[0], ms_tensor_act(hidden), &w, budget,
                        NULL, refer_to_tensor, head, out);
}
