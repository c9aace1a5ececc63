/* optimizer.c - AdamW over a model's parameters, in the order of the model's list.
 *
 * The gradient is complete once it is summed over the group, and whether it is finite is known once
 * its norm is: so the norm comes first and decides, and a step happens for all parameters on all
 * ranks, or for none. */
#include "optimizer.h"

#include <math.h>

#include "../base/memory.h"

float *ms_optimizer_at(const ms_optimizer *opt, float *arena, const ms_parameter *p) {
  return arena ? arena + (p->g - opt->model->gradient_arena) : NULL;
}

static ms_status check_options(const ms_adamw_options *o) {
  MS_REQUIRE(o->beta1 >= 0 && o->beta1 < 1, "AdamW: beta1 %g not in [0, 1)", o->beta1);
  MS_REQUIRE(o->beta2 >= 0 && o->beta2 < 1, "AdamW: beta2 %g not in [0, 1)", o->beta2);
  MS_REQUIRE(o->eps > 0 && isfinite(o->eps), "AdamW: eps %g is not positive", o->eps);
  MS_REQUIRE(o->weight_decay >= 0 && isfinite(o->weight_decay), "AdamW: weight decay %g",
             o->weight_decay);
  MS_REQUIRE(o->clip >= 0 && isfinite(o->clip), "AdamW: clip %g is negative", o->clip);
  return MS_OK;
}

static ms_status new_arena(const ms_optimizer *opt, float **out) {
  ms_device *dev = opt->model->dev;
  void *p;
  MS_TRY(ms_device_alloc(dev, opt->count * sizeof(float), "optimizer",
                         "frozen parameters, or a smaller model, need less", &p));
  *out = p;
  return MS_OP(dev, zero, p, opt->count * sizeof(float));
}

static ms_status copy_masters(ms_optimizer *opt) {
  const ms_model *m = opt->model;
  MS_TRY(new_arena(opt, &opt->master));
  for (int32_t i = 0; i < m->parameters; i++) {
    const ms_parameter *p = &m->parameter[i];
    if (p->g)
      MS_TRY(MS_OP(m->dev, cast, ms_optimizer_at(opt, opt->master, p), MS_F32, p->w, m->dtype,
                   p->count));
  }
  return MS_OK;
}

ms_status ms_optimizer_new(ms_model *model, ms_group *group, const ms_adamw_options *options,
                           ms_optimizer **out) {
  ms_status st = MS_OK;
  void *p;

  *out = NULL;
  MS_REQUIRE(model && group, "optimizer: no model or no group");
  MS_REQUIRE(model->train, "optimizer: the model was not opened to train");
  MS_REQUIRE(model->gradient_arena, "optimizer: all parameters of the model are frozen");
  MS_TRY(check_options(options));
  MS_TRY(ms_alloc(sizeof(ms_optimizer), "optimizer", &p));
  ms_optimizer *opt = p;
  opt->refs = 1;
  opt->options = *options;
  opt->group = group;
  opt->model = model;
  ms_model_retain(model);
  opt->count = model->gradient_bytes / sizeof(float);
  MS_TRY_OR(fail, new_arena(opt, &opt->first));
  MS_TRY_OR(fail, new_arena(opt, &opt->second));
  if (model->dtype != MS_F32) MS_TRY_OR(fail, copy_masters(opt));
  MS_TRY_OR(fail, ms_device_new(model->dev, sizeof *opt->squares, &p));
  opt->squares = p;
  *out = opt;
  return MS_OK;

fail:
  ms_optimizer_free(opt);
  return st;
}

void ms_optimizer_free(ms_optimizer *opt) {
  if (!opt || atomic_fetch_sub(&opt->refs, 1) > 1) return;
  ms_device *dev = opt->model->dev;
  size_t bytes = opt->count * sizeof(float);
  ms_device_free(dev, opt->first, bytes);
  ms_device_free(dev, opt->second, bytes);
  ms_device_free(dev, opt->master, bytes);
  ms_device_free(dev, opt->squares, sizeof *opt->squares);
  ms_model_release(opt->model);
  ms_free(opt);
}

/* The norm of the whole gradient: sums in double, parameter by parameter, so that it does not
 * depend on how the arena is laid out. They add up on the device, and are waited for once. */
static ms_status gradient_norm(ms_optimizer *opt, double *norm) {
  const ms_model *m = opt->model;
  double total;
  int add = 0;
  for (int32_t i = 0; i < m->parameters; i++) {
    const ms_parameter *p = &m->parameter[i];
    if (!p->g) continue;
    MS_TRY(MS_OP(m->dev, sum_squares, opt->squares, p->g, p->count, add));
    add = 1;
  }
  MS_TRY(MS_OP(m->dev, read, &total, opt->squares, sizeof total));
  *norm = sqrt(total);
  return MS_OK;
}

static ms_status update(ms_optimizer *opt, double lr, double scale) {
  const ms_adamw_options *o = &opt->options;
  ms_model *m = opt->model;
  double t = (double)opt->steps, c1 = 1 - pow(o->beta1, t), c2 = 1 - pow(o->beta2, t);
  for (int32_t i = 0; i < m->parameters; i++) {
    const ms_parameter *p = &m->parameter[i];
    if (!p->g) continue;
    ms_model_change(m, p);
    float *master = ms_optimizer_at(opt, opt->master, p);
    MS_TRY(MS_OP(m->dev, adamw, master ? master : p->w, master ? p->w : NULL,
                 ms_optimizer_at(opt, opt->first, p), ms_optimizer_at(opt, opt->second, p), p->g,
                 p->count, lr, o->beta1, o->beta2, o->eps, p->decay ? o->weight_decay : 0, scale,
                 c1, c2));
  }
  return MS_OK;
}

/* The largest norm whose square an f32 holds: a second moment that is infinite would stay so, and
 * its weight would never move again. */
#define MAX_NORM 1e19

ms_status ms_optimizer_step(ms_optimizer *opt, double lr, double *grad_norm, int32_t *skipped) {
  ms_model *m = opt->model;
  double norm, clip = opt->options.clip;
  MS_REQUIRE(lr >= 0 && isfinite(lr), "optimizer: learning rate %g", lr);
  MS_TRY(ms_model_sum_gradients(m, opt->group));
  MS_TRY(gradient_norm(opt, &norm));
  double scale = clip > 0 && norm > clip ? clip / norm : 1;
  int fits = norm * scale <= MAX_NORM; /* false for NaN, too */
  if (fits) {
    opt->steps++;
    MS_TRY(update(opt, lr, scale));
  }
  MS_TRY(ms_model_zero_gradients(m));
  *grad_norm = norm;
  *skipped = !fits;
  return MS_OK;
}

int64_t ms_optimizer_steps(const ms_optimizer *opt) { return opt->steps; }

static void release(void *owner) { ms_optimizer_free(owner); }

ms_status ms_optimizer_moment(ms_optimizer *opt, int32_t i, int second, ms_tensor **moment) {
  const ms_model *m = opt->model;
  *moment = NULL;
  MS_REQUIRE(i >= 0 && i < m->parameters, "optimizer: parameter %d of %d", i, m->parameters);
  const ms_parameter *p = &m->parameter[i];
  MS_REQUIRE(p->g, "optimizer: parameter %s is frozen", p->name);
  float *at = ms_optimizer_at(opt, second ? opt->second : opt->first, p);
  MS_TRY(ms_tensor_wrap(m->dev, MS_F32, p->rank, p->shape, at, NULL, release, opt, moment));
  atomic_fetch_add(&opt->refs, 1);
  return MS_OK;
}
