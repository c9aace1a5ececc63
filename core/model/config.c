/* config.c - config.json into ms_config.
 *
 * A config.json may ask for anything. What is not known to be harmless is an error that names the
 * key, because a model that is computed a little differently than it was trained is worse than one
 * that is refused. Where the file is silent, transformers' defaults hold; keys that older and newer
 * transformers spell differently are read in both spellings, and must agree where both are there; of
 * "dtype" and "torch_dtype", which change no logit, the newer counts. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "../base/json.h"
#include "../base/memory.h"
#include "family.h"

/* Bounds that keep every product of sizes far inside int64. */
enum { MAX_LAYERS = 4096, MAX_HEADS = 1 << 16, MAX_HEAD_DIM = 1 << 16, MAX_SIZE = 1 << 24 };

typedef struct reader {
  const char *name; /* of the file, for messages */
  const json_t *json;
  const ms_family *family;
} reader;

/* Lists of keys, a word each. Keys that every family understands. */
static const char common_keys[] =
    "model_type architectures vocab_size hidden_size intermediate_size num_hidden_layers "
    "num_attention_heads num_key_value_heads head_dim hidden_act max_position_embeddings "
    "initializer_range rms_norm_eps tie_word_embeddings torch_dtype dtype rope_theta "
    "rope_scaling rope_parameters partial_rotary_factor layer_types";

/* Keys that change nothing of what a decoder computes: who wrote the file, token ids (the
 * tokenizer's and the recipe's concern), how to generate, how transformers should return things. */
static const char harmless_keys[] =
    "_name_or_path _commit_hash _attn_implementation _attn_implementation_autoset "
    "_attn_implementation_internal attn_implementation transformers_version auto_map use_cache "
    "bos_token_id eos_token_id pad_token_id unk_token_id sep_token_id cls_token_id "
    "mask_token_id decoder_start_token_id forced_bos_token_id forced_eos_token_id "
    "begin_suppress_tokens suppress_tokens bad_words_ids tokenizer_class prefix id2label "
    "label2id problem_type return_dict return_dict_in_generate output_scores output_attentions "
    "output_hidden_states chunk_size_feed_forward torchscript tf_legacy_loss use_bfloat16 "
    "finetuning_task task_specific_params max_length min_length max_new_tokens do_sample "
    "early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p "
    "typical_p repetition_penalty length_penalty no_repeat_ngram_size "
    "encoder_no_repeat_ngram_size num_return_sequences exponential_decay_length_penalty "
    "remove_invalid_values cross_attention_hidden_size transformers.js_config is_llama_config "
    "unsloth_version unsloth_fixed model_max_length max_sequence_length seq_length "
    "num_logits_to_keep base_model_tp_plan base_model_pp_plan cache_implementation";

/* Keys of dropout, which only training in transformers does: it changes no logit. */
static const char dropout_keys[] =
    "attention_dropout hidden_dropout resid_pdrop embd_pdrop residual_dropout dropout "
    "classifier_dropout hidden_dropout_prob attention_probs_dropout_prob";

/* Keys that are allowed with the one value at which they do nothing: 1. */
static const char one_keys[] = "pretraining_tp logit_scale";

static int listed(const char *words, const char *key) {
  for (size_t n; *words; words += n + strspn(words + n, " ")) {
    n = strcspn(words, " ");
    if (!strncmp(words, key, n) && !key[n]) return 1;
  }
  return 0;
}

int ms_config_is_harmless(const char *key) {
  return listed(harmless_keys, key) || listed(dropout_keys, key) || listed(one_keys, key) ||
         listed("architectures initializer_range dtype torch_dtype", key);
}

static ms_status wrong(const reader *r, const char *key, const char *want) {
  char text[80];
  return MS_FAIL(MS_EIO, "%s: '%s' is %s, expected %s", r->name, key,
                 ms_json_show(json_object_get(r->json, key), text, sizeof text), want);
}

static ms_status unsupported(const reader *r, const char *key, const char *why) {
  char text[80];
  return MS_FAIL(MS_EUNSUPPORTED, "%s: '%s' is %s: %s", r->name, key,
                 ms_json_show(json_object_get(r->json, key), text, sizeof text), why);
}

/* ---- single values ---- */

static ms_status get_integer(const reader *r, const char *key, int64_t missing, int64_t low,
                             int64_t high, int64_t *out) {
  const json_t *v = json_object_get(r->json, key);
  int64_t n = v ? json_integer_value(v) : missing;
  if (v && !json_is_integer(v)) return wrong(r, key, "an integer");
  if (n < low || n > high)
    return MS_FAIL(MS_EIO, "%s: '%s' is %lld, not in %lld..%lld", r->name, key, (long long)n,
                   (long long)low, (long long)high);
  *out = n;
  return MS_OK;
}

static ms_status get_int32(const reader *r, const char *key, int64_t missing, int32_t high,
                           int32_t *out) {
  int64_t n = 0;
  MS_TRY(get_integer(r, key, missing, 1, high, &n));
  *out = (int32_t)n;
  return MS_OK;
}

/* A number above `low` (or equal to it, when `closed`) and at most `high`. */
static ms_status get_number(const reader *r, const char *key, double missing, double low,
                            int closed, double high, double *out) {
  const json_t *v = json_object_get(r->json, key);
  double x = v ? json_number_value(v) : missing;
  if (!v && isnan(missing)) return MS_FAIL(MS_EIO, "%s: no '%s'", r->name, key);
  if (v && !json_is_number(v)) return wrong(r, key, "a number");
  if (!(x > low || (closed && x == low)) || !(x <= high))
    return MS_FAIL(MS_EIO, "%s: '%s' is %g, not in %c%g, %g]", r->name, key, x, closed ? '[' : '(',
                   low, high);
  *out = x;
  return MS_OK;
}

static ms_status get_flag(const reader *r, const char *key, int *out) {
  const json_t *v = json_object_get(r->json, key);
  *out = json_is_true(v);
  if (v && !json_is_boolean(v) && !json_is_null(v)) return wrong(r, key, "true or false");
  return MS_OK;
}

/* ---- keys ---- */

static ms_status check_key(const reader *r, const char *key, const json_t *value) {
  if (listed(common_keys, key) || listed(r->family->keys, key) || listed(harmless_keys, key))
    return MS_OK;
  int dropout = listed(dropout_keys, key), one = listed(one_keys, key);
  double x = json_is_number(value) ? json_number_value(value) : -1;
  if ((dropout && x >= 0 && x < 1) || (one && x == 1)) return MS_OK;
  if (json_is_null(value) || json_is_false(value)) return MS_OK;
  if (!strcmp(key, "pruned_heads") && json_object_size(value) == 0) return MS_OK;
  if (dropout) return wrong(r, key, "a number in [0, 1)");
  if (one) return unsupported(r, key, "moonstill does not do this");
  return unsupported(r, key, "not known, so a model with it might be computed wrongly");
}

static ms_status check_keys(const reader *r) {
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)r->json, key, value) MS_TRY(check_key(r, key, value));
  return MS_OK;
}

static ms_status find_family(reader *r) {
  const json_t *type = json_object_get(r->json, "model_type");
  char text[80];
  if (!type) return MS_FAIL(MS_EIO, "%s: no 'model_type'", r->name);
  if (!json_is_string(type)) return wrong(r, "model_type", "a string");
  r->family = ms_family_find(json_string_value(type));
  if (!r->family)
    return MS_FAIL(MS_EUNSUPPORTED, "%s: 'model_type' is %s; there is %s", r->name,
                   ms_json_show(type, text, sizeof text), ms_family_names());
  return MS_OK;
}

static ms_status check_architecture(const reader *r) {
  const json_t *list = json_object_get(r->json, "architectures");
  if (!list || json_is_null(list)) return MS_OK;
  if (!json_is_array(list)) return wrong(r, "architectures", "a list of names");
  for (size_t i = 0; i < json_array_size(list); i++) {
    const char *name = json_string_value(json_array_get(list, i));
    if (name && !strcmp(name, r->family->architecture)) return MS_OK;
  }
  if (!json_array_size(list)) return MS_OK;
  return unsupported(r, "architectures", "not this family's causal language model");
}

static ms_status get_activation(const reader *r, const char *key, int missing, int *out) {
  static const struct {
    const char *name;
    int activation;
  } names[] = {{"silu", MS_SILU}, {"swish", MS_SILU}, {"gelu_pytorch_tanh", MS_GELU_TANH}};
  const json_t *v = json_object_get(r->json, key);
  int older = !strcmp(key, "hidden_act");
  *out = missing;
  if (!v || (!older && json_is_null(v))) return MS_OK;
  if (!json_is_string(v)) return wrong(r, key, "a string");
  const char *name = json_string_value(v);
  if (older && r->family->gelu_is_tanh && !strcmp(name, "gelu")) name = "gelu_pytorch_tanh";
  for (int i = 0; i < 3; i++)
    if (!strcmp(name, names[i].name)) {
      *out = names[i].activation;
      return MS_OK;
    }
  return unsupported(r, key, "only silu and gelu_pytorch_tanh are there");
}

/* The family says which of two keys counts; the other one must not say otherwise. */
static ms_status read_activation(const reader *r, ms_config *c) {
  static const char *const keys[] = {"hidden_act", "hidden_activation"};
  int second = r->family->activation_key != NULL, other;
  MS_TRY(get_activation(r, keys[second], r->family->activation, &c->activation));
  MS_TRY(get_activation(r, keys[!second], c->activation, &other));
  if (other == c->activation) return MS_OK;
  return unsupported(r, keys[!second], "not what the model's other keys give");
}

static ms_status read_dtype(const reader *r, const char *key, int *out) {
  static const struct {
    const char *name;
    int dtype;
  } names[] = {{"float32", MS_F32}, {"bfloat16", MS_BF16}, {"float16", MS_F16}};
  const json_t *v = json_object_get(r->json, key);
  if (!v || json_is_null(v)) return MS_OK;
  if (!json_is_string(v)) return wrong(r, key, "a string");
  const char *name = json_string_value(v);
  if (!strcmp(name, "auto")) return MS_OK; /* as the weights are stored */
  if (!strncmp(name, "torch.", 6)) name += 6;
  for (int i = 0; i < 3; i++)
    if (!strcmp(name, names[i].name)) {
      *out = names[i].dtype;
      return MS_OK;
    }
  return unsupported(r, key, "only float32, bfloat16 and float16 are there");
}

/* ---- sizes ---- */

static ms_status read_heads(const reader *r, ms_config *c) {
  const ms_family *f = r->family;
  const json_t *kv = json_object_get(r->json, "num_key_value_heads");
  const json_t *dim = json_object_get(r->json, "head_dim");
  MS_TRY(get_int32(r, "num_attention_heads", f->heads, MAX_HEADS, &c->heads));
  c->kv_heads = c->heads;
  if (!json_is_null(kv))
    MS_TRY(get_int32(r, "num_key_value_heads", f->kv_heads ? f->kv_heads : c->heads, MAX_HEADS,
                     &c->kv_heads));
  if (c->heads % c->kv_heads)
    return MS_FAIL(MS_EIO,
                   "%s: 'num_attention_heads' %d is no multiple of 'num_key_value_heads' %d",
                   r->name, c->heads, c->kv_heads);
  if (f->head_dim || (dim && !json_is_null(dim))) {
    MS_TRY(get_int32(r, "head_dim", f->head_dim, MAX_HEAD_DIM, &c->head_dim));
  } else {
    if (c->hidden_size % c->heads || c->hidden_size / c->heads > MAX_HEAD_DIM)
      return MS_FAIL(MS_EIO, "%s: 'hidden_size' %lld in %d heads makes no head_dim in 1..%d",
                     r->name, (long long)c->hidden_size, c->heads, MAX_HEAD_DIM);
    c->head_dim = (int32_t)(c->hidden_size / c->heads);
  }
  if (c->head_dim % 2)
    return MS_FAIL(MS_EIO, "%s: head_dim %d is odd, which cannot be rotated", r->name, c->head_dim);
  return MS_OK;
}

static ms_status read_sizes(const reader *r, ms_config *c) {
  const ms_family *f = r->family;
  double eps;
  MS_TRY(get_integer(r, "vocab_size", f->vocab, 1, INT32_MAX, &c->vocab));
  MS_TRY(get_integer(r, "hidden_size", f->hidden_size, 1, MAX_SIZE, &c->hidden_size));
  MS_TRY(get_integer(r, "intermediate_size", f->intermediate_size, 1, MAX_SIZE,
                     &c->intermediate_size));
  MS_TRY(get_int32(r, "num_hidden_layers", f->layers, MAX_LAYERS, &c->layers));
  MS_TRY(get_integer(r, "max_position_embeddings", f->context, 1, INT32_MAX, &c->context));
  MS_TRY(read_heads(r, c));
  /* below the smallest normal f32 it would vanish, and a row of zeros would give NaN */
  MS_TRY(get_number(r, "rms_norm_eps", f->eps, 1e-37, 1, 1, &eps));
  c->eps = (float)eps;
  return get_number(r, "initializer_range", 0.02, 0, 1, 1, &c->init_std);
}

/* ---- multipliers and caps ---- */

/* One that the family understands; others have `missing`. */
static ms_status get_scale(const reader *r, const char *key, double missing, double *out) {
  *out = missing;
  return listed(r->family->keys, key) ? get_number(r, key, missing, 0, 0, 1e6, out) : MS_OK;
}

/* null is none. */
static ms_status get_cap(const reader *r, const char *key, double missing, float *out) {
  double cap = 0;
  if (!json_is_null(json_object_get(r->json, key)) && missing)
    MS_TRY(get_scale(r, key, missing, &cap));
  *out = (float)cap;
  return MS_OK;
}

static ms_status read_scales(const reader *r, ms_config *c) {
  const ms_family *f = r->family;
  double embed, residual, attention, logits, scalar;
  MS_TRY(get_scale(r, "embedding_multiplier", f->embed_by_size ? sqrt((double)c->hidden_size) : 1,
                   &embed));
  MS_TRY(get_scale(r, "residual_multiplier", 1, &residual));
  MS_TRY(get_scale(r, "logits_scaling", 1, &logits));
  MS_TRY(get_scale(r, "query_pre_attn_scalar", f->attention_scalar, &scalar));
  if (!scalar) scalar = c->head_dim;
  attention = 1 / sqrt(scalar);
  if (listed(f->keys, "attention_multiplier"))
    MS_TRY(get_scale(r, "attention_multiplier", 1, &attention));
  c->norm_offset = f->norm_offset;
  c->embed_scale = (float)embed;
  c->embed_scale_in_dtype = f->embed_by_size;
  c->residual_scale = (float)residual;
  c->attention_scale = (float)attention;
  c->logit_scale = (float)(1 / logits);
  MS_TRY(get_cap(r, "attn_logit_softcapping", f->attention_cap, &c->attention_cap));
  return get_cap(r, "final_logit_softcapping", f->logit_cap, &c->logit_cap);
}

static ms_status read_flags(const reader *r, ms_config *c) {
  int bias = 0;
  c->tied = r->family->tied;
  if (json_object_get(r->json, "tie_word_embeddings"))
    MS_TRY(get_flag(r, "tie_word_embeddings", &c->tied));
  if (listed(r->family->keys, "attention_bias")) MS_TRY(get_flag(r, "attention_bias", &bias));
  if (listed(r->family->keys, "mlp_bias")) MS_TRY(get_flag(r, "mlp_bias", &c->mlp_bias));
  c->qkv_bias = r->family->qkv_bias || bias;
  c->o_bias = bias;
  c->qk_norm = r->family->qk_norm;
  c->dtype = MS_F32;
  MS_TRY(read_dtype(r, "torch_dtype", &c->dtype));
  return read_dtype(r, "dtype", &c->dtype); /* the newer spelling counts where both are there */
}

/* ---- windows ---- */

/* layer_types, which must name a kind for every layer; where the family has no choice by layer, the
 * kind that the family gives it. */
static ms_status read_layer_types(const reader *r, ms_config *c, int32_t window) {
  const json_t *list = json_object_get(r->json, "layer_types");
  if (!list || json_is_null(list)) return MS_OK;
  if (!json_is_array(list) || json_array_size(list) != (size_t)c->layers)
    return wrong(r, "layer_types", "a list with an entry for each layer");
  for (int32_t i = 0; i < c->layers; i++) {
    const char *kind = json_string_value(json_array_get(list, (size_t)i));
    int sliding = kind && !strcmp(kind, "sliding_attention");
    if (!kind) return wrong(r, "layer_types", "a list of strings");
    if (!sliding && strcmp(kind, "full_attention"))
      return MS_FAIL(MS_EUNSUPPORTED,
                     "%s: 'layer_types' %d is '%.40s': only full_attention and "
                     "sliding_attention are there",
                     r->name, i, kind);
    if (sliding && !window)
      return MS_FAIL(MS_EIO, "%s: 'layer_types' %d is sliding_attention, but there is no window",
                     r->name, i);
    if (r->family->windows < MS_WINDOWS_BY_LAYER && sliding != (window > 0))
      return MS_FAIL(MS_EUNSUPPORTED,
                     "%s: 'layer_types' %d is '%s', which %s cannot choose by "
                     "layer",
                     r->name, i, kind, r->family->type);
    c->window[i] = sliding ? window : 0;
  }
  return MS_OK;
}

/* Some gemma2 files say the window twice. */
static ms_status check_window_size(const reader *r, int64_t window) {
  const json_t *v = json_object_get(r->json, "sliding_window_size");
  if (!v || !listed(r->family->keys, "sliding_window_size")) return MS_OK;
  if (json_is_integer(v) && json_integer_value(v) == window) return MS_OK;
  return unsupported(r, "sliding_window_size", "another one than sliding_window");
}

/* A window of w: position t sees t - w + 1 .. t. */
static ms_status read_windows(const reader *r, ms_config *c) {
  const ms_family *f = r->family;
  int64_t window = 0, first = 0;
  int use = f->windows != MS_WINDOWS_NONE;
  void *p;
  MS_TRY(ms_alloc((size_t)c->layers * sizeof *c->window, "windows", &p));
  c->window = p;
  if (f->windows == MS_WINDOWS_BY_LAYER) {
    MS_TRY(get_flag(r, "use_sliding_window", &use));
    MS_TRY(get_integer(r, "max_window_layers", 28, 0, INT32_MAX, &first));
  }
  const json_t *v = json_object_get(r->json, "sliding_window");
  if (use && !json_is_null(v))
    MS_TRY(get_integer(r, "sliding_window", f->window, v ? 1 : 0, INT32_MAX, &window));
  int64_t each = f->windows == MS_WINDOWS_ALTERNATE ? 2 : 1;
  for (int64_t i = first; i < c->layers; i += each) c->window[i] = (int32_t)window;
  MS_TRY(check_window_size(r, window));
  if (each == 2 && !window && !json_is_array(json_object_get(r->json, "layer_types")))
    return MS_FAIL(MS_EIO, "%s: 'sliding_window' is null, but every other layer of %s has one",
                   r->name, f->type);
  return read_layer_types(r, c, (int32_t)window);
}

/* ---- rope ---- */

/* Puts a rope setting into `rope`; the same from two places must agree. */
static ms_status merge(const reader *r, json_t *rope, const char *key, json_t *value) {
  const json_t *old = json_object_get(rope, key);
  char a[40], b[40];
  if (json_is_null(value)) return MS_OK;
  int same = !old || json_equal(old, value) ||
             (json_is_number(old) && json_is_number(value) &&
              json_number_value(old) == json_number_value(value));
  if (!same)
    return MS_FAIL(MS_EIO, "%s: '%s' is given twice for rope, as %s and as %s", r->name, key,
                   ms_json_show(old, a, sizeof a), ms_json_show(value, b, sizeof b));
  if (json_object_set(rope, key, value))
    return MS_FAIL(MS_ENOMEM, "%s: no memory for rope settings", r->name);
  return MS_OK;
}

static ms_status merge_all(const reader *r, json_t *rope, const char *from) {
  json_t *value, *table = json_object_get(r->json, from);
  const char *key;
  if (!table || json_is_null(table)) return MS_OK;
  if (!json_is_object(table)) return wrong(r, from, "an object");
  json_object_foreach(table, key, value)
      MS_TRY(merge(r, rope, strcmp(key, "type") ? key : "rope_type", value));
  return MS_OK;
}

/* Everything about rope in one object: old files spread it, new ones nest it. */
static ms_status gather_rope(const reader *r, json_t *rope) {
  static const char *const outside[] = {"rope_theta", "partial_rotary_factor"};
  for (int i = 0; i < 2; i++) {
    json_t *value = json_object_get(r->json, outside[i]);
    if (value) MS_TRY(merge(r, rope, outside[i], value));
  }
  MS_TRY(merge_all(r, rope, "rope_scaling"));
  return merge_all(r, rope, "rope_parameters");
}

typedef struct scaling {
  int type; /* 0 none, 1 linear, 2 llama3 */
  double factor, low, high, context;
} scaling;

static ms_status scaling_type(const reader *r, const json_t *rope, scaling *s) {
  static const char *const types[] = {"default", "linear", "llama3", NULL};
  const json_t *v = json_object_get(rope, "rope_type");
  if (!v) return MS_OK;
  if (!json_is_string(v)) return wrong(r, "rope_type", "a string");
  for (int i = 0; types[i]; i++)
    if (!strcmp(types[i], json_string_value(v)) && (!i || r->family->rope_scaling)) {
      s->type = i;
      return MS_OK;
    }
  return MS_FAIL(MS_EUNSUPPORTED, "%s: rope scaling '%.40s' is not there for %s", r->name,
                 json_string_value(v), r->family->type);
}

static ms_status check_rope_keys(const reader *r, const json_t *rope, const scaling *s) {
  static const char *const known[] = {
      "rope_type rope_theta partial_rotary_factor",
      "rope_type rope_theta partial_rotary_factor factor",
      "rope_type rope_theta partial_rotary_factor factor low_freq_factor high_freq_factor "
      "original_max_position_embeddings"};
  const char *key;
  json_t *value;
  char text[80];
  json_object_foreach((json_t *)rope, key, value) {
    if (listed(known[s->type], key) || json_is_false(value)) continue;
    return MS_FAIL(MS_EUNSUPPORTED, "%s: rope setting '%s' is %s: not known for this rope_type",
                   r->name, key, ms_json_show(value, text, sizeof text));
  }
  return MS_OK;
}

static ms_status read_scaling(const reader *file, const json_t *rope, const ms_config *c,
                              scaling *s) {
  reader r = {file->name, rope, file->family};
  const double none = NAN; /* the key must be there */
  MS_TRY(scaling_type(&r, rope, s));
  MS_TRY(check_rope_keys(&r, rope, s));
  if (s->type) MS_TRY(get_number(&r, "factor", none, 1, 1, 1e6, &s->factor));
  if (s->type < 2) return MS_OK;
  MS_TRY(get_number(&r, "low_freq_factor", none, 0, 0, 1e6, &s->low));
  MS_TRY(get_number(&r, "high_freq_factor", none, s->low, 0, 1e6, &s->high));
  return get_number(&r, "original_max_position_embeddings", (double)c->context, 1, 1, INT32_MAX,
                    &s->context);
}

/* In f32 and in the order of operations of transformers, whose PyTorch divides a number by a tensor
 * as reciprocal times number: at long positions the last bit of a frequency moves the angle by more
 * than the arithmetic after it does. The power is rounded once, as good libraries' powf mostly is. */
static float frequency(double theta, int i, int rotary, const scaling *s) {
  float inv = 1.0f / (float)pow((float)theta, (float)(2 * i) / (float)rotary);
  float factor = (float)s->factor;
  if (s->type == 1) return inv / factor;
  if (s->type == 0) return inv;
  float wave = 1.0f / inv * (float)(2 * M_PI);
  if (wave < (float)(s->context / s->high)) return inv;
  if (wave > (float)(s->context / s->low)) return inv / factor;
  float smooth = (1.0f / wave * (float)s->context - (float)s->low) / (float)(s->high - s->low);
  return (1 - smooth) * inv / factor + smooth * inv;
}

static ms_status read_rotary(const reader *file, const json_t *rope, ms_config *c) {
  reader r = {file->name, rope, file->family};
  double part;
  MS_TRY(get_number(&r, "partial_rotary_factor", 1, 0, 0, 1, &part));
  c->rotary = (int32_t)(c->head_dim * part);
  if (part != 1 && !r.family->partial_rotary)
    return unsupported(&r, "partial_rotary_factor", "this family rotates whole heads");
  if (c->rotary < 2 || c->rotary % 2)
    return MS_FAIL(MS_EIO, "%s: 'partial_rotary_factor' %g of head_dim %d rotates %d dimensions",
                   r.name, part, c->head_dim, c->rotary);
  return MS_OK;
}

static ms_status read_rope(const reader *file, ms_config *c) {
  scaling s = {0};
  double theta;
  void *p;
  ms_status st;
  json_t *rope = json_object();
  reader r = {file->name, rope, file->family};
  if (!rope) return MS_FAIL(MS_ENOMEM, "%s: no memory for rope settings", file->name);
  MS_TRY_OR(end, gather_rope(file, rope));
  MS_TRY_OR(end, get_number(&r, "rope_theta", 1e4, 1, 0, 3e38, &theta));
  MS_TRY_OR(end, read_scaling(file, rope, c, &s));
  MS_TRY_OR(end, read_rotary(file, rope, c));
  MS_TRY_OR(end, ms_alloc((size_t)c->rotary / 2 * sizeof *c->inv_freq, "rope", &p));
  c->inv_freq = p;
  c->rope_scale = 1;
  for (int i = 0; i < c->rotary / 2; i++) c->inv_freq[i] = frequency(theta, i, c->rotary, &s);
end:
  json_decref(rope);
  return st;
}

/* ---- the whole ---- */

static ms_status read_all(reader *r, ms_config *c) {
  if (!json_is_object(r->json)) return MS_FAIL(MS_EIO, "%s: not a JSON object", r->name);
  MS_TRY(find_family(r));
  c->family = r->family;
  MS_TRY(check_keys(r));
  MS_TRY(check_architecture(r));
  MS_TRY(read_activation(r, c));
  MS_TRY(read_sizes(r, c));
  MS_TRY(read_flags(r, c));
  MS_TRY(read_scales(r, c));
  MS_TRY(read_windows(r, c));
  MS_TRY(read_rope(r, c));
  return ms_json_copy(r->name, r->json, &c->json);
}

ms_status ms_config_read(const char *name, const json_t *json, ms_config *out) {
  reader r = {name, json, NULL};
  memset(out, 0, sizeof *out);
  ms_status st = read_all(&r, out);
  if (st != MS_OK) ms_config_clear(out);
  return st;
}

static ms_status copy_array(const void *from, size_t bytes, void **out) {
  MS_TRY(ms_alloc(bytes, "config", out));
  memcpy(*out, from, bytes);
  return MS_OK;
}

ms_status ms_config_copy(const ms_config *config, ms_config *out) {
  ms_status st;
  void *p;
  *out = *config;
  out->window = NULL;
  out->inv_freq = NULL;
  MS_TRY_OR(fail, ms_json_copy("config", config->json, &out->json));
  MS_TRY_OR(fail, copy_array(config->window, (size_t)config->layers * sizeof *config->window, &p));
  out->window = p;
  MS_TRY_OR(fail, copy_array(config->inv_freq,
                             (size_t)config->rotary / 2 * sizeof *config->inv_freq, &p));
  out->inv_freq = p;
  return MS_OK;
fail:
  ms_config_clear(out);
  return st;
}

void ms_config_clear(ms_config *config) {
  ms_free(config->window);
  ms_free(config->inv_freq);
  json_decref(config->json);
  memset(config, 0, sizeof *config);
}
