/* decoder.h - passes of the decoder over rows of tokens, and the blocks that its layers are made of.
 *
 * A layer is two blocks, attention and the MLP. Each reads the stream through a norm and returns its
 * output; layer.c alone adds outputs to the stream. A block is a const record of functions (ms_block)
 * in a file of its own: what memory it needs, its forward and its backward pass.
 *
 * Where the model is cut over ranks, all of them make the same passes, each with its own rows of the
 * stream (span.c). A block reads the rows of all ranks, and its output, and the gradient of its input, is
 * on each rank what that one's heads or columns give: the sum over the ranks is the output. */
#ifndef MS_DECODER_H
#define MS_DECODER_H
#include "../moonstill.h"
#include "../loss/head.h"
#include "model.h"

/* Keys and values of tokens seen, [slots, capacity, kv_heads, head_dim] for each layer. */
typedef struct ms_cache {
  ms_act k, v; /* [layers, ..] */
  int64_t slots, capacity;
} ms_cache;

/* What goes through the decoder, what is saved, and the memory for it. Input pointers are host memory.
 * With a cache and `step` 0, segment i fills slot[i]; with `step` 1 each token is a segment of its own
 * that continues slot[i] at position[i].
 *
 * Several passes of one model may be alive at once. A pass has activations of its own from its first
 * ms_pass_forward to ms_pass_end; results of ms_pass_forward are good until the next one of the same
 * pass, which may have other inputs. */
typedef struct ms_pass {
  ms_model *model;
  int64_t tokens, segments;
  const int32_t *token, *position; /* [tokens] */
  const int32_t *segment_start;    /* [segments + 1] */
  int64_t rows;                    /* positions whose final state is wanted, at least one */
  const int32_t *row; /* [rows], ascending where there is a backward pass, or the model is cut */
  int32_t first;      /* layers from here on are saved for the backward pass */
  int logits;         /* whether ms_pass_logits will be called */
  ms_cache *cache;
  const int32_t *slot; /* [segments] */
  int32_t *range;      /* [2, tokens] scratch of the caller, with `step` */
  int step;
  struct ms_activations *act; /* NULL at first */
} ms_pass;

/* What a layer's forward pass saves for its backward pass; scratch where nothing is saved. What has
 * `rows` is of those of ms_layer_rows only; `own` ones are this rank's; heads and intermediate are the
 * numbers of this rank's part. */
typedef struct ms_saved {
  ms_act x[MS_BLOCKS]; /* the stream before each block: [own tokens, hidden], [own rows, hidden] */
  float *rstd[MS_BLOCKS];        /* of the norm before it: [own tokens], [own rows] */
  ms_act output[MS_BLOCKS];      /* [own rows, hidden] of the block, where a norm follows */
  float *output_rstd[MS_BLOCKS]; /* [own rows] of that norm */
  ms_act q, k, v;         /* [tokens, heads * head_dim] and kv_heads twice; q and k rotated, but as
                             projected where they have a norm of their own and are saved */
  ms_act y;               /* attention's [tokens, heads * head_dim] */
  float *lse;             /* [tokens, heads] */
  float *rstd_q, *rstd_k; /* of the norms of q and k */
  ms_act gate, up;        /* [rows, intermediate]; of one part of the rows where nothing is saved */
} ms_saved;

/* Activations of one pass. Everything but `layer` lies in the arena, laid out anew for each pass. */
struct ms_activations {
  struct ms_activations *next; /* the model's list */
  int busy;                    /* a pass has it */
  void *arena;
  size_t bytes;
  ms_saved *layer; /* [layers], host */
  int64_t *count;  /* [ranks], host: what each rank has of what ranks exchange */
  int32_t *token, *position, *segment_start, *row, *slot, *first, *length;
  int32_t *own_row; /* [own rows] counted from this rank's first token */
  ms_act final;     /* [own rows, hidden] what leaves the last layer */
  ms_act stream;    /* [own tokens, hidden] the stream where nothing is saved */
  ms_act d_stream;  /* the same memory: backwards, d loss / d stream */
  ms_act normed; /* [tokens, hidden] what a norm gave: a block's input, its output, final states */
  ms_act d_normed; /* [tokens, hidden] the gradient of a block's input; only with a backward pass */
  ms_act
      output; /* [tokens, hidden] a block's output or its gradient; only where it needs a place */
  ms_act y_rows;     /* [rows, heads * head_dim] attention's y of the last layer */
  float *dots;       /* [2, tokens] of norms of q and k whose heads are on several ranks */
  float *final_rstd; /* [own rows] of the final norm */
  ms_act workspace;  /* for the step at hand; its dtype is the step's to say */
  float *logits;     /* [ms_logit_rows, vocab] when the pass wants logits */
};

/* Memory is given out from `base`; with no base it only adds up. */
typedef struct ms_cursor {
  char *base;
  size_t used;
} ms_cursor;
ms_act ms_take(ms_cursor *c, int dtype, int64_t count);
float *ms_take_f32(ms_cursor *c, int64_t count);

/* Where a block's output, or a gradient, goes: it is set, or with `add` added to what is there. */
typedef struct ms_into {
  ms_act at;
  int add;
} ms_into;

/* A kind of block. Its rows go through it in `parts`, one after the other: rows row .. row + rows of its
 * input; `h` is that input, `out` and `d_out` the same rows of its output, without its bias. A pass that
 * saves nothing for layer l gives it workspace. */
typedef struct ms_block {
  void (*lay_saved)(ms_cursor *at, const ms_pass *pass, int32_t l, ms_saved *s);
  void (*lay_workspace)(const ms_pass *pass, ms_saved *s);
  size_t (*workspace)(const ms_pass *pass); /* bytes, for forward and backward */
  int64_t (*parts)(int64_t rows);
  int (*trains)(const ms_layer *w);       /* whether any of its parameters is trained */
  int (*trains_input)(const ms_layer *w); /* whether one is that multiplies h */
  /* out.at NULL: only what the backward pass needs */
  ms_status (*forward)(const ms_pass *pass, int32_t l, int64_t row, int64_t rows, ms_act h,
                       ms_into out);
  /* d_h NULL: not wanted; h is there where trains_input */
  ms_status (*backward)(const ms_pass *pass, int32_t l, int64_t row, int64_t rows, ms_act d_h,
                        ms_act d_out, ms_act h);
} ms_block;
extern const ms_block ms_block_attention, ms_block_mlp;

/* ---- facts of a pass ---- */

/* After attention the last layer goes on with the rows that are wanted alone. */
static inline int ms_is_last(const ms_pass *pass, int32_t l) {
  return l + 1 == pass->model->config.layers;
}
static inline int64_t ms_layer_rows(const ms_pass *pass, int32_t l) {
  return ms_is_last(pass, l) ? pass->rows : pass->tokens;
}
static inline int ms_is_cut(const ms_model *m) { return m->share.group->size > 1; }
static inline int ms_is_saved(const ms_pass *pass, int32_t l) { return l >= pass->first; }
static inline int ms_has_backward(const ms_pass *pass) {
  return pass->first < pass->model->config.layers;
}
static inline int64_t ms_q_size(const ms_model *m) {
  return (int64_t)m->share.heads * m->config.head_dim;
}
static inline int64_t ms_kv_size(const ms_model *m) {
  return (int64_t)m->share.kv_heads * m->config.head_dim;
}
static inline const ms_precision *ms_pass_precision(const ms_pass *pass) {
  return &pass->model->dev->ops->precision;
}
/* Rows are cut into equal parts of at most `most`: the split depends on the shape alone. */
static inline int64_t ms_equal_part(int64_t rows, int64_t most) {
  int64_t parts = (rows + most - 1) / most;
  return parts ? (rows + parts - 1) / parts : 0;
}
static inline int64_t ms_part_rows(int64_t rows, int64_t row, int64_t part) {
  return rows - row < part ? rows - row : part;
}
static inline int64_t ms_max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline float *ms_row_of(float *x, int64_t row) { return x ? x + row : NULL; }
static const ms_act ms_no_act = {NULL, MS_F32};
static const ms_slice ms_no_slice = {NULL, NULL};

/* ---- project.c: what blocks are made of ---- */

/* y[rows, out] = x[rows, in] w^T + bias, or added to y */
ms_status ms_project(const ms_model *m, ms_into y, ms_act x, ms_slice w, ms_slice bias,
                     int64_t rows, int64_t in, int64_t out);
/* Its gradients, those of weights added; dx.at NULL: not wanted. */
ms_status ms_project_backward(const ms_model *m, ms_into dx, ms_slice w, ms_slice bias, ms_act dy,
                              ms_act x, int64_t rows, int64_t in, int64_t out);
/* y += bias, where there is one; its gradient, added */
ms_status ms_add_bias(const ms_model *m, ms_act y, ms_slice bias, int64_t rows, int64_t out);
ms_status ms_add_bias_backward(const ms_model *m, ms_slice bias, ms_act dy, int64_t rows,
                               int64_t out);
/* y = norm of x, rstd NULL: not wanted; part NULL: x has whole rows */
ms_status ms_norm(const ms_model *m, ms_act y, float *rstd, ms_act x, ms_slice w, int64_t rows,
                  int64_t cols, const ms_norm_part *part);
ms_status ms_norm_backward(const ms_model *m, ms_into dx, ms_act dy, ms_act x, const float *rstd,
                           ms_slice w, int64_t rows, int64_t cols, const ms_norm_part *part);
static inline ms_into ms_set(ms_act x) { return (ms_into){x, 0}; }
static inline ms_into ms_add_to(ms_act x) { return (ms_into){x, 1}; }
static inline int ms_trained(ms_slice w, ms_slice bias) { return w.g || bias.g; }

/* ---- span.c: rows of the stream over the ranks of a cut model ---- */

/* Rows that a block takes at once: of each rank's own some, in order of ranks. A whole model has all of them
 * on its one rank. */
typedef struct ms_span {
  int64_t all, own; /* on all ranks, on this one */
  int64_t first;    /* how many of `all` lie before its own */
  int64_t at;       /* where its own begin among those that it has of the pass */
  int64_t done;     /* how many of all ranks' are in the parts before this one */
  int wanted; /* of the rows that are wanted, not of all tokens; and which part of how many: */
  int64_t part, parts;
} ms_span;

ms_span ms_span_of(const ms_pass *pass, int wanted, int64_t part, int64_t parts);
/* All at once. */
static inline ms_span ms_span_all(const ms_pass *pass, int wanted) {
  return ms_span_of(pass, wanted, 0, 1);
}
/* x [all, cols] has this rank's own rows in place: brings the others. */
ms_status ms_span_gather(const ms_pass *pass, const ms_span *span, ms_act x, int64_t cols);
/* x [all, cols] is a part of each sum: own rows become the sums over the ranks; the others are undefined. */
ms_status ms_span_sum(const ms_pass *pass, const ms_span *span, ms_act x, int64_t cols);

/* ---- activations.c ---- */

/* Memory and rope tables for this pass, inputs written to the device. An error on one rank of a cut model
 * is one on all. */
ms_status ms_pass_prepare(ms_pass *pass);
/* Gives the activations back; a pass that has none is fine. */
void ms_pass_end(ms_pass *pass);
/* Rows of logits that are made at once. */
int64_t ms_logit_rows(const ms_pass *pass);

/* ---- layer.c ---- */

/* One layer from its input on; nothing `to`: only what the backward pass needs, for recomputation. */
ms_status ms_layer_forward(const ms_pass *pass, int32_t l, ms_act to);
ms_status ms_layer_backward(const ms_pass *pass, int32_t l);
int ms_layer_trains(const ms_layer *w);
/* Memory of layer l's blocks, but for the stream at its input. */
void ms_layer_lay_saved(ms_cursor *at, const ms_pass *pass, int32_t l, ms_saved *s);
void ms_layer_lay_workspace(const ms_pass *pass, ms_saved *s);
size_t ms_layer_workspace(const ms_pass *pass);
/* Whether outputs need a place of their own before they can be added to the stream. */
int ms_layer_needs_output(const ms_model *m);

/* ---- decoder.c ---- */

/* *hidden is [rows, hidden] after the final norm, on the device: of a cut model on every rank. */
ms_status ms_pass_forward(ms_pass *pass, ms_act *hidden);
/* Where the gradient of the final states goes, [rows, hidden]: of a cut model what each rank's ids give. */
ms_act ms_pass_d_hidden(const ms_pass *pass);
/* From the gradient in ms_pass_d_hidden to gradients of all parameters that are not frozen. */
ms_status ms_pass_backward(const ms_pass *pass);
/* The first layer that has anything to do in the backward pass; layers: none has. */
int32_t ms_model_first(const ms_model *model);

/* ---- learn.c ---- */

/* Ids against the vocabulary, lengths against the context. */
ms_status ms_batch_check(const ms_model *model, const ms_batch *batch);
/* Of a cut model: whether all ranks are about to take the same batch, and none has failed; `st` is this
 * rank's status. */
ms_status ms_batch_agree(const ms_model *model, const ms_batch *batch, ms_status st);
/* The pass of a batch; its rows are still to be set. */
ms_pass ms_batch_pass(ms_model *model, const ms_batch *batch);

/* ---- logits.c ---- */

/* What a family does between the head and the softmax, on the host: z[0 .. n-1] in place. */
void ms_finish_logits(const ms_head_weights *head, float *z, int64_t n);
/* Logits of the pass's final states as a softmax would take them, to the host: [rows, vocab]. */
ms_status ms_pass_logits(const ms_pass *pass, ms_act hidden, float *logits);

#endif
