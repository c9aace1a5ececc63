/* make.c - models that are not read from a folder: random ones, copies, students of chosen layers. */
#include <string.h>

#include "../base/json.h"
#include "../base/memory.h"
#include "../base/random.h"
#include "../group/group.h"
#include "family.h"
#include "gradients.h"
#include "layout.h"

static const ms_model_options as_held = {.dtype = -1};

/* ---- random weights ---- */

/* Values are made a part at a time on the host. BLOCK values are one thread's work: every value is a
 * function of its place in the whole tensor alone, so neither threads nor ranks matter. */
enum { PART = 1 << 18, BLOCK = 1 << 12 };

/* The values first .. first + n - 1 of a parameter. */
static void draw(const ms_model *m, const ms_parameter *p, float *y, int64_t first, int64_t n,
                 uint64_t seed, uint64_t stream) {
  size_t length = strlen(p->name);
  int bias = length > 5 && !strcmp(p->name + length - 5, ".bias");
  float std = (float)m->config.init_std, norm = 1 - m->config.norm_offset;
  if (p->rank == 2) ms_normal(y, n, (uint64_t)first, seed, stream);
  for (int64_t i = 0; i < n; i++) y[i] = p->rank == 2 ? y[i] * std : bias ? 0 : norm;
}

/* Elements at .. at + n - 1 of `rows` of a parameter. */
static void draw_rows(const ms_model *m, const ms_parameter *p, const ms_rows *rows, float *y,
                      int64_t at, int64_t n, uint64_t seed, uint64_t stream) {
#pragma omp parallel for schedule(static) if (n > BLOCK)
  for (int64_t b = 0; b < n; b += BLOCK) {
    int64_t end = n - b < BLOCK ? n : b + BLOCK;
    for (int64_t i = b, k; i < end; i += k) {
      int64_t left = rows->cols - (at + i) % rows->cols; /* of its row */
      k = end - i < left ? end - i : left;
      draw(m, p, y + i, ms_rows_place(rows, at + i), k, seed, stream);
    }
  }
}

/* Parameter i takes the numbers of stream i of the seed. */
static ms_status fill_part(ms_model *m, int32_t i, uint64_t seed, float *host, void *stage) {
  const ms_parameter *p = &m->parameter[i];
  ms_run run[MS_MAX_RUNS];
  int runs = ms_share_runs(m, i, run);
  for (int k = 0; k < runs; k++) {
    ms_rows rows = ms_run_rows(p, &run[k]);
    int64_t held = ms_run_at(p, &run[k]), count = rows.rows * rows.cols;
    for (int64_t at = 0; at < count; at += PART) {
      int64_t n = count - at < PART ? count - at : PART;
      void *w = (char *)p->w + (size_t)(held + at) * ms_dtype_size(m->dtype);
      draw_rows(m, p, &rows, host, at, n, seed, (uint64_t)i);
      MS_TRY(MS_OP(m->dev, write, stage, host, (size_t)n * sizeof(float)));
      MS_TRY(MS_OP(m->dev, cast, w, m->dtype, stage, MS_F32, n));
    }
  }
  return MS_OK;
}

static ms_status fill(ms_model *m, uint64_t seed) {
  void *host = NULL, *stage = NULL;
  ms_status st;
  MS_TRY_OR(end, ms_alloc_undefined(PART * sizeof(float), "random weights", &host));
  MS_TRY_OR(end, ms_device_new(m->dev, PART * sizeof(float), &stage));
  for (int32_t i = 0; i < m->parameters; i++) MS_TRY_OR(end, fill_part(m, i, seed, host, stage));
end:
  ms_device_free(m->dev, stage, PART * sizeof(float));
  ms_free(host);
  return st;
}

ms_status ms_model_create(ms_device *dev, const char *config, uint64_t seed,
                          const ms_model_options *options, ms_model **out) {
  static const char name[] = "model config";
  json_t *json = NULL;
  ms_config c = {0};
  ms_model *m = NULL;
  ms_status st;
  *out = NULL;
  MS_REQUIRE(dev && config, "model: no device or no config");
  MS_TRY_OR(end, ms_json_parse(name, config, strlen(config), &json));
  MS_TRY_OR(end, ms_config_read(name, json, &c));
  MS_TRY_OR(end, ms_model_build(dev, &c, options ? options : &as_held, &m));
  MS_TRY_OR(end, fill(m, seed));
  *out = m;
  m = NULL;
end:
  ms_model_free(m);
  ms_config_clear(&c);
  json_decref(json);
  return st;
}

/* ---- copies ---- */

static ms_status copy_weight(ms_model *to, int32_t i, const ms_model *from, int32_t k) {
  const ms_parameter *x = &from->parameter[k];
  if (to->dtype == from->dtype)
    return MS_OP(to->dev, copy, to->parameter[i].w, x->w,
                 (size_t)x->count * ms_dtype_size(to->dtype));
  return MS_OP(to->dev, cast, to->parameter[i].w, to->dtype, x->w, from->dtype, x->count);
}

/* A copy is cut as its source is: each rank copies the part that it has. */
static ms_status keep_share(const ms_model *source, ms_model_options *o) {
  const ms_share *s = &source->share;
  if (!o->tp) o->tp = s->group;
  if (!o->vocab_cut) o->vocab_cut = s->vocab_cut;
  MS_REQUIRE(o->tp == s->group && o->vocab_cut == s->vocab_cut,
             "model: a copy is cut over the same %d ranks as the model it is of, and in the same "
             "places: open the folder anew to have it cut otherwise",
             s->group->size);
  return MS_OK;
}

/* A model of `config` (taken over on success) whose layer i is the source's layer[i]. */
static ms_status build_from(const ms_model *source, ms_config *config, const int32_t *layer,
                            const ms_model_options *options, ms_model **out) {
  ms_model_options o = options ? *options : as_held;
  ms_model *m = NULL;
  ms_status st;
  if (o.dtype == -1) o.dtype = source->dtype;
  MS_TRY(keep_share(source, &o));
  MS_TRY(ms_weights_settle(source));
  MS_TRY(ms_model_build(source->dev, config, &o, &m));
  int32_t each = ms_layout_index(m, 1, 0) - ms_layout_index(m, 0, 0);
  int32_t norm = ms_layout_index(m, m->config.layers, 0);
  if (source->path) /* whose tokenizer it goes with */
    MS_TRY_OR(fail, ms_text_copy(source->path, strlen(source->path), &m->path));
  if (source->end) MS_TRY_OR(fail, ms_model_set_ends(m, source->ends, source->end));
  MS_TRY_OR(fail, copy_weight(m, 0, source, 0));
  for (int32_t i = 0; i < m->config.layers; i++)
    for (int32_t k = 0; k < each; k++)
      MS_TRY_OR(fail, copy_weight(m, ms_layout_index(m, i, k), source,
                                  ms_layout_index(source, layer[i], k)));
  for (int32_t i = norm; i < m->parameters; i++)
    MS_TRY_OR(fail, copy_weight(m, i, source,
                                i - norm + ms_layout_index(source, source->config.layers, 0)));
  *out = m;
  return MS_OK;
fail:
  ms_model_free(m);
  return st;
}

ms_status ms_model_copy(const ms_model *model, const ms_model_options *options, ms_model **out) {
  ms_config c = {0};
  void *layer;
  ms_status st;
  *out = NULL;
  MS_TRY(ms_alloc_undefined((size_t)model->config.layers * sizeof(int32_t), "layers", &layer));
  for (int32_t i = 0; i < model->config.layers; i++) ((int32_t *)layer)[i] = i;
  MS_TRY_OR(end, ms_config_copy(&model->config, &c));
  st = build_from(model, &c, layer, options, out);
end:
  ms_config_clear(&c);
  ms_free(layer);
  return st;
}

/* ---- students ---- */

static ms_status check_layers(const ms_model *m, const int32_t *layer, int32_t layers) {
  MS_REQUIRE(layers > 0 && layer, "shrink: no layers");
  for (int32_t i = 0; i < layers; i++) {
    MS_REQUIRE(layer[i] >= 0 && layer[i] < m->config.layers, "shrink: layer %d not in 0..%d",
               layer[i], m->config.layers - 1);
    MS_REQUIRE(!i || layer[i] > layer[i - 1], "shrink: layer %d after %d: must ascend", layer[i],
               layer[i - 1]);
  }
  return MS_OK;
}

/* Kinds of the chosen layers: as config.json lists them, or as the family gives them by their place. */
static json_t *kinds_of(const json_t *types, const ms_config *c, const int32_t *layer,
                        int32_t layers) {
  json_t *kinds = json_array();
  int bad = !kinds;
  for (int32_t i = 0; i < layers; i++)
    bad |= json_is_array(types)
               ? json_array_append(kinds, json_array_get(types, (size_t)layer[i]))
               : json_array_append_new(kinds, json_string(c->window[layer[i]] ? "sliding_attention"
                                                                              : "full_attention"));
  if (!bad) return kinds;
  json_decref(kinds);
  return NULL;
}

/* Sets what depends on the number of layers. Without layer_types the layers with a window are, by the
 * family, every other one, whose places change; or the last ones, from max_window_layers on, of which the
 * chosen ones are the last again. */
static int set_layers(json_t *json, const ms_config *c, const int32_t *layer, int32_t layers) {
  const json_t *types = json_object_get(json, "layer_types");
  int32_t full = 0;
  int bad = json_object_set_new(json, "num_hidden_layers", json_integer(layers));
  for (int32_t i = 0; i < layers; i++) full += !c->window[layer[i]];
  if (json_is_true(json_object_get(json, "use_sliding_window")))
    bad |= json_object_set_new(json, "max_window_layers", json_integer(full));
  if (!json_is_array(types) && c->family->windows != MS_WINDOWS_ALTERNATE) return bad;
  return bad | json_object_set_new(json, "layer_types", kinds_of(types, c, layer, layers));
}

ms_status ms_model_shrink(const ms_model *teacher, const int32_t *layer, int32_t layers,
                          const ms_model_options *options, ms_model **out) {
  ms_config c = {0};
  ms_status st;
  *out = NULL;
  MS_TRY(check_layers(teacher, layer, layers));
  json_t *json;
  MS_TRY(ms_json_copy("shrink", teacher->config.json, &json));
  if (set_layers(json, &teacher->config, layer, layers)) {
    st = MS_FAIL(MS_ENOMEM, "shrink: no memory for a config");
    goto end;
  }
  MS_TRY_OR(end, ms_config_read("config.json of the student", json, &c));
  st = build_from(teacher, &c, layer, options, out);
end:
  ms_config_clear(&c);
  json_decref(json);
  return st;
}
