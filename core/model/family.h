/* family.h - a family of models is a table: the names and sizes of its weights, its defaults, and
 * the keys of config.json that it understands. To add one, add a table in family.c. */
#ifndef MS_FAMILY_H
#define MS_FAMILY_H
#include <stddef.h>

#include "../moonstill.h"
#include "model.h"

/* Sizes that shapes are made of. */
typedef enum ms_dim {
  MS_DIM_NONE,
  MS_DIM_HIDDEN,
  MS_DIM_INTERMEDIATE,
  MS_DIM_Q,
  MS_DIM_KV,
  MS_DIM_HEAD
} ms_dim;
int64_t ms_dim_size(const ms_config *config, ms_dim dim); /* of the whole model */
int64_t ms_share_size(const ms_model *model, ms_dim dim); /* of this rank's part: share.c */
int ms_share_is_cut(ms_dim dim);                          /* or else every rank has all of it */

/* When a weight exists: always, or by a flag of ms_config. */
typedef enum ms_when {
  MS_ALWAYS,
  MS_IF_QKV_BIAS,
  MS_IF_O_BIAS,
  MS_IF_MLP_BIAS,
  MS_IF_QK_NORM
} ms_when;

/* Rows of a stored tensor that the decoder uses as one matrix or vector. */
typedef struct ms_part {
  size_t slice; /* offset of an ms_slice in ms_layer */
  ms_dim rows;  /* MS_DIM_NONE ends the list */
} ms_part;

/* One tensor of a layer: "model.layers.N." + name, its parts one below the other; cols is
 * MS_DIM_NONE for a vector. */
enum { MS_MAX_PARTS = 3 };
typedef struct ms_weight {
  const char *name;
  ms_dim cols;
  ms_when when;
  ms_part part[MS_MAX_PARTS];
} ms_weight;

/* How a family chooses the layers with a sliding window. */
typedef enum ms_windows {
  MS_WINDOWS_NONE,     /* has none */
  MS_WINDOWS_ALL,      /* sliding_window, when not null, holds in every layer */
  MS_WINDOWS_BY_LAYER, /* use_sliding_window with layer_types, or with max_window_layers */
  MS_WINDOWS_ALTERNATE /* layer_types, or every other layer from the first on */
} ms_windows;

typedef struct ms_family {
  const char *type;         /* model_type */
  const char *architecture; /* as written to config.json */
  const ms_weight *weight;  /* of one layer; ended by a NULL name */
  const char *keys;         /* understood beyond the common ones: words with spaces between */
  /* what transformers assumes where config.json is silent; 0: kv_heads = heads, head_dim =
   * hidden_size / heads, no window */
  int64_t vocab, hidden_size, intermediate_size, layers, heads, kv_heads, head_dim, context, window;
  double eps;
  ms_windows windows;
  int tied;
  int activation;          /* MS_SILU, MS_GELU_TANH */
  double attention_scalar; /* query_pre_attn_scalar, where that is understood; and the soft caps */
  double attention_cap, logit_cap;
  const char *activation_key; /* NULL: hidden_act */
  int gelu_is_tanh;           /* what hidden_act calls gelu is its tanh form */
  float norm_offset;
  int embed_by_size;  /* the embedding is multiplied by sqrt(hidden_size) */
  int qkv_bias;       /* always; otherwise by the key attention_bias, where that is understood */
  int qk_norm;        /* as in ms_config */
  int partial_rotary; /* partial_rotary_factor may be below 1 */
  int rope_scaling;   /* transformers takes linear and llama3 scaling for it */
} ms_family;

/* NULL for a model_type that has no table. */
const ms_family *ms_family_find(const char *type);
/* "llama, mistral, .." for messages. */
const char *ms_family_names(void);

#endif
