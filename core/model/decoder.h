/* decoder.h - one pass of the decoder over rows of tokens, as learn.c and generate.c use it.
 *
 * A pass says what goes in and what is kept. Its activations live in one arena of the model, laid
 * out anew for each pass by activations.c and grown when a pass needs more; so at most one pass of
 * a model is alive at a time, and its pointers are good until the next one starts. */
#ifndef MS_DECODER_H
#define MS_DECODER_H
#include "../loss/head.h"
#include "model.h"

/* Keys and values of tokens seen, [slots, capacity, kv_heads, head_dim] for each layer. */
typedef struct ms_cache {
  ms_act k, v; /* [layers, ..] */
  int64_t slots, capacity;
} ms_cache;

/* Input pointers are host memory. With a cache and `step` 0, segment i fills slot[i]; with `step` 1
 * each token is a segment of its own that continues slot[i] at position[i]. */
typedef struct ms_pass {
  ms_model *model;
  int64_t tokens, segments;
  const int32_t *token, *position; /* [tokens] */
  const int32_t *segment_start;    /* [segments + 1] */
  int64_t rows;                    /* positions whose final state is wanted, at least one */
  const int32_t *row;              /* [rows], ascending when there is a backward pass */
  int32_t first;                   /* layers from here on are kept for the backward pass */
  ms_cache *cache;
  const int32_t *slot; /* [segments] */
  int32_t *range;      /* [2, tokens] scratch of the caller, with `step` */
  int step;
} ms_pass;

/* What a layer's forward pass leaves for its backward pass, or scratch where nothing is kept. What
 * has `rows` is of ms_layer_rows only. */
typedef struct ms_kept {
  ms_act x, mid;          /* [tokens, width] and [rows, width]: before attention, before the MLP */
  ms_act q, k, v;         /* [tokens, heads * head_dim] and kv_heads twice; q and k rotated, but as
                             projected where they have a norm of their own and are kept */
  ms_act y;               /* attention's [tokens, heads * head_dim] */
  float *lse;             /* [tokens, heads] */
  ms_act y_rows;          /* [rows, heads * head_dim]: `y` but in the last layer */
  ms_act gate, up;        /* [rows, inner]; of one block of rows where nothing is kept */
  float *rstd1, *rstd2;   /* [tokens] and [rows] */
  float *rstd_q, *rstd_k; /* [tokens, heads] and [tokens, kv_heads] */
} ms_kept;

struct ms_activations {
  void *arena;
  size_t arena_bytes;
  float *rope; /* cosines, then sines: [positions, rotary / 2] each */
  size_t rope_bytes;
  int64_t positions;
  ms_kept *layer;     /* [layers], host */
  ms_head_space head; /* the fused head's workspace */

  /* of the present pass, in the arena */
  int32_t *token, *position, *segment_start, *row, *slot, *first, *length;
  ms_act top;    /* [rows, width] what leaves the last layer */
  ms_act out;    /* [tokens, width] the stream where nothing is kept; backwards, its gradient */
  ms_act norm;   /* [tokens, width] what a norm gave */
  ms_act d_norm; /* [tokens, width] its gradient; only when something is kept */
  float *rstd;   /* [rows] of the final norm */
  ms_act wide;   /* scratch, the widest thing any step needs; its dtype is the step's to say */
};

/* The MLP runs in equal blocks of at most this many rows: its widest scratch does not grow with
 * the batch, and the split depends on the shape alone. */
enum { MS_MLP_ROWS = 2048 };
static inline int64_t ms_mlp_block(int64_t rows) {
  int64_t blocks = (rows + MS_MLP_ROWS - 1) / MS_MLP_ROWS;
  return (rows + blocks - 1) / blocks;
}
/* Rows of the block that starts at `row`. */
static inline int64_t ms_mlp_rows(int64_t rows, int64_t row) {
  int64_t block = ms_mlp_block(rows);
  return rows - row < block ? rows - row : block;
}

/* After attention the last layer goes on with the rows that are wanted alone. */
static inline int ms_is_last(const ms_pass *pass, int32_t l) {
  return l + 1 == pass->model->config.layers;
}
static inline int64_t ms_layer_rows(const ms_pass *pass, int32_t l) {
  return ms_is_last(pass, l) ? pass->rows : pass->tokens;
}
/* The largest block of any layer. */
static inline int64_t ms_mlp_most(const ms_pass *pass) {
  int64_t all = ms_mlp_block(pass->tokens), last = ms_mlp_block(pass->rows);
  return all > last ? all : last;
}

static inline int ms_is_kept(const ms_pass *pass, int32_t l) { return l >= pass->first; }
static inline int64_t ms_q_width(const ms_config *c) { return (int64_t)c->heads * c->head_dim; }
static inline int64_t ms_kv_width(const ms_config *c) { return (int64_t)c->kv_heads * c->head_dim; }

/* activations.c: arena and rope tables for this pass, inputs written to the device. */
ms_status ms_pass_prepare(const ms_pass *pass);

/* decoder.c: *hidden is [rows, width] after the final norm, on the device. */
ms_status ms_pass_forward(const ms_pass *pass, ms_act *hidden);
/* One layer from its input on; nothing `to`: only what the backward pass needs, for recomputation. */
ms_status ms_layer_forward(const ms_pass *pass, int32_t l, ms_act to);
/* Where the gradient of the final states goes, [rows, width]. */
ms_act ms_pass_d_hidden(const ms_pass *pass);
/* q and k as attention sees them, from kept ones; into the first part of `wide` where they have a
 * norm of their own. */
ms_status ms_layer_rotate(const ms_pass *pass, int32_t l, ms_act *q, ms_act *k);
ms_attention_shape ms_layer_attention(const ms_pass *pass, int32_t l);

/* backward.c: the first layer that has anything to do in the backward pass; layers: none has. */
int32_t ms_model_first(const ms_model *model);
/* From the gradient in ms_pass_d_hidden to gradients of all parameters that are not frozen. */
ms_status ms_pass_backward(const ms_pass *pass);

/* learn.c: ids against the vocabulary, lengths against the context. */
ms_status ms_batch_check(const ms_model *model, const ms_batch *batch);
/* Logits of final states as a softmax would take them, to the host: [rows, vocab]. */
ms_status ms_hidden_logits(const ms_model *model, ms_act hidden, int64_t rows, float *logits);

#endif
