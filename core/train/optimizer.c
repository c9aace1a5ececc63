/* optimizer.c - AdamW over a model's parameters, in the order of the model's list.
 *
 * The gradient is complete once it is summed over the group, and whether it is finite is known once
 * its norm is: so the norm comes first and decides, and a step happens for all parameters on all
 * ranks, or for none. */
#include "optimizer.h"

#include <math.h>

#include "../base/memory.h"
#include "../model/gradients.h"

/* Whether this rank updates all of each parameter. */
static int has_all(const ms_optimizer *opt) { return opt->options.shard == MS_SHARD_NONE; }

void ms_optimizer_part(const ms_optimizer *opt, const ms_parameter *p, int64_t *from,
                       int64_t *count) {
  int64_t at;
  *from = 0;
  *count = p->count;
  if (!has_all(opt)) ms_buckets_part(opt->model, p, from, count, &at);
}

float *ms_optimizer_at(const ms_optimizer *opt, float *arena, const ms_parameter *p) {
  int64_t from, count, at = p->g - opt->model->gradient_arena;
  if (!has_all(opt)) ms_buckets_part(opt->model, p, &from, &count, &at);
  return arena ? arena + at : NULL;
}

/* ---- the norm of the whole gradient ----
 *
 * Sums of squares in double, of blocks that begin anew with each run of a parameter. What ranks update is
 * cut on the borders of blocks, so the norm does not depend on who sums which. They are waited for once. */

/* Fills `part` with what this rank owns of parameter i as runs of its elements. */
static int owned_runs(const ms_model *m, int32_t i, int64_t part[MS_MAX_RUNS][2]) {
  ms_run run[MS_MAX_RUNS];
  int n = 0, runs = m->parameter[i].g ? ms_share_runs(m, i, run) : 0;
  for (int k = 0; k < runs; k++) {
    if (!run[k].owned) continue;
    part[n][0] = run[k].held * run[k].cols;
    part[n++][1] = run[k].rows * run[k].cols;
  }
  return n;
}

static int64_t count_blocks(const ms_model *m, int32_t i) {
  int64_t part[MS_MAX_RUNS][2], blocks = 0;
  int n = owned_runs(m, i, part);
  for (int k = 0; k < n; k++) blocks += ms_squares_blocks(part[k][1]);
  return blocks;
}

/* Of the blocks of parameter i those that this rank updates; squares[0] is of the first one of all. */
static ms_status square_blocks(const ms_optimizer *opt, int32_t i, double *squares) {
  const ms_model *m = opt->model;
  const ms_parameter *p = &m->parameter[i];
  int64_t part[MS_MAX_RUNS][2], own, count;
  int n = owned_runs(m, i, part);
  for (int k = 0; k < n; k++) {
    int64_t from = part[k][0], end = from + part[k][1];
    ms_optimizer_part(opt, p, &own, &count);
    int64_t first = own > from ? own : from, last = own + count < end ? own + count : end;
    double *to = squares + (first - from) / MS_SQUARES_BLOCK;
    if (first < last) MS_TRY(MS_OP(m->dev, sum_squares, to, p->g + first, last - first));
    squares += ms_squares_blocks(end - from);
  }
  return MS_OK;
}

static ms_status new_squares(ms_optimizer *opt) {
  const ms_model *m = opt->model;
  void *p;
  for (int32_t i = 0; i < m->parameters; i++) opt->blocks += count_blocks(m, i);
  size_t bytes = (size_t)opt->blocks * sizeof(double);
  MS_TRY(ms_device_new(m->dev, bytes, &p));
  opt->squares = p;
  MS_TRY(MS_OP(m->dev, zero, p, bytes));
  MS_TRY(ms_alloc_undefined(bytes, "optimizer", &p));
  opt->square = p;
  return MS_OK;
}

static ms_status gradient_norm(ms_optimizer *opt, double *norm) {
  const ms_model *m = opt->model;
  double total = 0, *squares = opt->squares;
  const double *square = opt->square;
  for (int32_t i = 0; i < m->parameters; i++) {
    MS_TRY(square_blocks(opt, i, squares));
    squares += count_blocks(m, i);
  }
  MS_TRY(MS_OP(m->dev, read, opt->square, opt->squares, (size_t)opt->blocks * sizeof *squares));
  if (!has_all(opt)) MS_TRY(ms_group_sum(opt->group, opt->square, opt->blocks));
  for (int32_t i = 0; i < m->parameters; i++) {
    double sum = 0;
    for (int64_t b = count_blocks(m, i); b > 0; b--) sum += *square++;
    total += sum;
  }
  MS_TRY(ms_group_sum(m->share.group, &total, 1));
  *norm = sqrt(total);
  return MS_OK;
}

/* ---- life ---- */

static ms_status check_options(const ms_adamw_options *o) {
  MS_REQUIRE(o->beta1 >= 0 && o->beta1 < 1, "AdamW: beta1 %g not in [0, 1)", o->beta1);
  MS_REQUIRE(o->beta2 >= 0 && o->beta2 < 1, "AdamW: beta2 %g not in [0, 1)", o->beta2);
  MS_REQUIRE(o->eps > 0 && isfinite(o->eps), "AdamW: eps %g is not positive", o->eps);
  MS_REQUIRE(o->weight_decay >= 0 && isfinite(o->weight_decay), "AdamW: weight decay %g",
             o->weight_decay);
  MS_REQUIRE(o->clip >= 0 && isfinite(o->clip), "AdamW: clip %g is negative", o->clip);
  MS_REQUIRE(o->shard >= MS_SHARD_NONE && o->shard <= MS_SHARD_PARAMETERS, "AdamW: shard %d",
             o->shard);
  if (o->shard == MS_SHARD_PARAMETERS)
    return MS_FAIL(MS_EUNSUPPORTED,
                   "AdamW: weights and gradients cannot be shared out over ranks yet: shard the "
                   "optimizer alone");
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

static void *weight_at(const ms_model *m, const ms_parameter *p, int64_t i) {
  return (char *)p->w + (size_t)i * ms_dtype_size(m->dtype);
}

static ms_status copy_masters(ms_optimizer *opt) {
  const ms_model *m = opt->model;
  MS_TRY(new_arena(opt, &opt->master));
  for (int32_t i = 0; i < m->parameters; i++) {
    const ms_parameter *p = &m->parameter[i];
    int64_t from, count;
    if (!p->g) continue;
    ms_optimizer_part(opt, p, &from, &count);
    MS_TRY(MS_OP(m->dev, cast, ms_optimizer_at(opt, opt->master, p), MS_F32, weight_at(m, p, from),
                 m->dtype, count));
  }
  return MS_OK;
}

static ms_status share_out(ms_optimizer *opt) {
  ms_model *m = opt->model;
  MS_TRY(ms_buckets_make(m, opt->group, opt->options.shard));
  m->buckets->users++;
  opt->count = (size_t)m->buckets->owned;
  opt->shares = 1;
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
  if (!has_all(opt)) MS_TRY_OR(fail, share_out(opt));
  MS_TRY_OR(fail, new_arena(opt, &opt->first));
  MS_TRY_OR(fail, new_arena(opt, &opt->second));
  if (model->dtype != MS_F32) MS_TRY_OR(fail, copy_masters(opt));
  MS_TRY_OR(fail, new_squares(opt));
  *out = opt;
  return MS_OK;

fail:
  ms_optimizer_free(opt);
  return st;
}

void ms_optimizer_free(ms_optimizer *opt) {
  if (!opt || atomic_fetch_sub(&opt->refs, 1) > 1) return;
  ms_snapshot_abort(opt->snapshot);
  ms_device *dev = opt->model->dev;
  size_t bytes = opt->count * sizeof(float);
  ms_device_free(dev, opt->first, bytes);
  ms_device_free(dev, opt->second, bytes);
  ms_device_free(dev, opt->master, bytes);
  ms_device_free(dev, opt->squares, (size_t)opt->blocks * sizeof *opt->squares);
  ms_free(opt->square);
  if (opt->shares) opt->model->buckets->users--;
  ms_model_release(opt->model);
  ms_free(opt);
}

/* ---- a step ---- */

static ms_status update_parameter(ms_optimizer *opt, const ms_parameter *p, double lr,
                                  double scale) {
  const ms_adamw_options *o = &opt->options;
  const ms_model *m = opt->model;
  double t = (double)opt->steps, c1 = 1 - pow(o->beta1, t), c2 = 1 - pow(o->beta2, t);
  float *master = ms_optimizer_at(opt, opt->master, p);
  int64_t from, count;
  ms_optimizer_part(opt, p, &from, &count);
  void *w = weight_at(m, p, from);
  return MS_OP(m->dev, adamw, master ? master : w, master ? w : NULL,
               ms_optimizer_at(opt, opt->first, p), ms_optimizer_at(opt, opt->second, p),
               p->g + from, count, lr, o->beta1, o->beta2, o->eps, p->decay ? o->weight_decay : 0,
               scale, c1, c2);
}

static ms_status update(ms_optimizer *opt, double lr, double scale) {
  ms_model *m = opt->model;
  for (int32_t i = 0; i < m->parameters; i++) {
    const ms_parameter *p = &m->parameter[i];
    if (!p->g) continue;
    ms_model_change(m, p);
    MS_TRY(update_parameter(opt, p, lr, scale));
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
  MS_REQUIRE(opt->shares || !m->buckets || !m->buckets->users,
             "optimizer: another one of this model has shared it out over ranks: free that first");
  MS_TRY(ms_weights_settle(m));
  MS_TRY(ms_model_sum_gradients(m, opt->group));
  MS_TRY(gradient_norm(opt, &norm));
  double scale = clip > 0 && norm > clip ? clip / norm : 1;
  int fits = norm * scale <= MAX_NORM; /* false for NaN, too */
  if (fits) {
    ms_model_wait(m);
    opt->steps++;
    MS_TRY(update(opt, lr, scale));
    if (opt->shares) MS_TRY(ms_weights_gather(m));
  }
  MS_TRY(ms_model_zero_gradients(m));
  *grad_norm = norm;
  *skipped = !fits;
  return MS_OK;
}

int64_t ms_optimizer_bytes(const ms_optimizer *opt) {
  return (int64_t)(opt->count * sizeof(float)) * (opt->master ? 3 : 2);
}

/* Each rank gives each other one its version of that one's part, and, where a sum is for all, its own part. */
void ms_optimizer_sends(const ms_optimizer *opt, int64_t bytes[3]) {
  const ms_model *m = opt->model;
  int64_t others = opt->group->size - 1, shares = !has_all(opt);
  int64_t n = (int64_t)(m->gradient_bytes / sizeof(float)) * others;
  bytes[0] = n * (int64_t)sizeof(float) * (shares ? 1 : 2);
  bytes[1] = shares ? n * (int64_t)ms_dtype_size(m->dtype) : 0;
  bytes[2] = shares ? 2 * opt->blocks * others * (int64_t)sizeof(double) : 0;
}

int64_t ms_optimizer_steps(const ms_optimizer *opt) { return opt->steps; }

static void release(void *owner) { ms_optimizer_free(owner); }

/* All of a moment, of which every rank has a part: the others' elements are zeros in the sum. */
static ms_status gather_moment(const ms_optimizer *opt, float *arena, const ms_parameter *p,
                               ms_tensor **moment) {
  const ms_model *m = opt->model;
  ms_group *g = opt->group;
  ms_tensor *t = NULL;
  int64_t from, count;
  ms_optimizer_part(opt, p, &from, &count);
  ms_status st = ms_tensor_new(m->dev, MS_F32, p->rank, p->shape, &t);
  if (st == MS_OK) st = ms_tensor_zero(t);
  if (st == MS_OK)
    st = MS_OP(m->dev, copy, (float *)t->data + from, ms_optimizer_at(opt, arena, p),
               (size_t)count * sizeof *arena);
  st = ms_group_agree(g, st);
  if (st == MS_OK)
    st = g->ops->all_reduce(g, m->dev->stream, t->data, MS_F32, p->count, MS_SUM, NULL);
  if (st == MS_OK) *moment = t;
  if (st != MS_OK) ms_tensor_free(t);
  return st;
}

ms_status ms_optimizer_moment(ms_optimizer *opt, int32_t i, int second, ms_tensor **moment) {
  ms_model *m = opt->model;
  *moment = NULL;
  MS_REQUIRE(i >= 0 && i < m->parameters, "optimizer: parameter %d of %d", i, m->parameters);
  const ms_parameter *p = &m->parameter[i];
  MS_REQUIRE(p->g, "optimizer: parameter %s is frozen", p->name);
  float *arena = second ? opt->second : opt->first;
  if (!has_all(opt) && opt->group->size > 1) return gather_moment(opt, arena, p, moment);
  ms_model_wait(m); /* whoever has it may write */
  float *at = ms_optimizer_at(opt, arena, p);
  MS_TRY(ms_tensor_wrap(m->dev, MS_F32, p->rank, p->shape, at, NULL, release, opt, moment));
  atomic_fetch_add(&opt->refs, 1);
  return MS_OK;
}
