/* model.h - a decoder's parts, as the rest of core/model sees them.
 *
 * config.c reads config.json into ms_config; family.c holds the table of families; share.c says which
 * part of the model a rank has, layout.c lays the parameters out; weights.c reads them, save.c writes them, ends.c says where answers end, make.c
 * draws and copies them; decoder.c computes, layer by layer (layer.c) and block by block
 * (block_attention.c, block_mlp.c) in memory of activations.c, where the model is cut with rows of the
 * stream on each rank (span.c); learn.c and logits.c say what is computed, generate.c decodes with a
 * cache.
 * The decoder knows nothing of families: only of what ms_config and ms_layer say. */
#ifndef MS_MODEL_H
#define MS_MODEL_H
#include <jansson.h>

#include "../moonstill.h"
#include "../loss/head.h"
#include "../tensor/tensor.h"

/* How q and k are normalised: each head, or all of a projection before it is cut into heads. */
enum { MS_QK_NORM_HEADS = 1, MS_QK_NORM_WHOLE };

/* What of a model's shape and arithmetic config.json decides. */
typedef struct ms_config {
  const struct ms_family *family; /* names and flags, in family.c */
  int32_t layers, heads, kv_heads, head_dim;
  int64_t hidden_size, intermediate_size, vocab, context;
  int32_t *window;                      /* [layers]: sliding window of each layer, 0 for none */
  int32_t rotary;                       /* leading dimensions of a head that rotate */
  float *inv_freq;                      /* [rotary / 2], rope scaling applied */
  float rope_scale;                     /* multiplies cosine and sine; 1 but for some scalings */
  float eps, norm_offset;               /* of every rmsnorm; added to its weights */
  int activation;                       /* of the MLP: MS_SILU, MS_GELU_TANH */
  float embed_scale;                    /* multiplies the embedding */
  int embed_scale_in_dtype;             /* once it was rounded to the weights' dtype */
  float residual_scale;                 /* multiplies what blocks add to the stream */
  float attention_scale, attention_cap; /* of scores: see ms_attention_shape */
  float logit_scale, logit_cap;         /* of the head: see ms_head_weights */
  double init_std;                      /* initializer_range */
  int tied;                             /* the head is the embedding */
  int qkv_bias, o_bias, mlp_bias;
  int qk_norm;  /* 0, or how: see above */
  int dtype;    /* as config.json says: MS_F32, MS_BF16, MS_F16 */
  json_t *json; /* the file as read, to be written again */
} ms_config;

/* What of a model this rank has, where it is cut over a tensor-parallel group (share.c). Sizes in
 * ms_config are of the whole model. Key/value heads of a group of heads that a border cuts through are
 * held on both sides of it. */
typedef struct ms_share {
  ms_group *group; /* of one where the model is whole */
  int32_t first_head, heads, first_kv_head, kv_heads;
  int64_t first_intermediate, intermediate, first_id, vocab;
  int64_t vocab_cut; /* as in ms_model_options */
} ms_share;

/* One tensor as Hugging Face names it. Tied weights are one parameter. */
typedef struct ms_parameter {
  char *name;
  const struct ms_weight *weight; /* its line in the family's table; NULL: embedding, norm, head */
  int rank;                       /* 1 or 2 */
  int64_t whole[2];               /* shape of the tensor: [out, in], or [n] */
  int64_t shape[2];               /* of the part that this rank has */
  int64_t count;                  /* elements of that */
  void *w;                        /* in the model's dtype, on the device, inside the weight arena */
  float *g;                       /* its gradient, inside the gradient arena; NULL when frozen */
  int decay;                      /* 0 for norms and biases */
} ms_parameter;

/* Rows and columns of a tensor that this rank has side by side: row .. row + rows, col .. col + cols of
 * the whole one are held .. held + rows of its part, in all columns of that. A vector has one column.
 * Of what several ranks hold one owns it: it is counted, and written, there. */
typedef struct ms_run {
  int64_t row, rows, held, col, cols;
  int owned;
} ms_run;
enum { MS_MAX_RUNS = 6 };

/* A run's elements in the whole tensor. */
ms_rows ms_run_rows(const ms_parameter *p, const ms_run *run);
/* How many elements of its part lie before a run's. */
int64_t ms_run_at(const ms_parameter *p, const ms_run *run);

/* Elements of this rank's part of a parameter, from its element `at` on, that lie alike in the whole
 * tensor; `owned` as of a run. */
typedef struct ms_piece {
  ms_rows rows; /* of the whole tensor */
  int64_t at;
  int owned;
} ms_piece;
enum { MS_MAX_PIECES = 3 * MS_MAX_RUNS };

/* A matrix or vector as the decoder uses it: a parameter or a run of rows of a fused one. */
typedef struct ms_slice {
  const void *w; /* NULL: absent (no bias, no q/k norm) */
  float *g;      /* NULL: frozen */
} ms_slice;

/* The blocks of a layer, in order. */
enum { MS_ATTENTION, MS_MLP, MS_BLOCKS };

typedef struct ms_layer {
  ms_slice pre_norm[MS_BLOCKS];  /* of what a block reads */
  ms_slice post_norm[MS_BLOCKS]; /* of what it returns, before that is added to the stream */
  ms_slice q, k, v, o, gate, up, down;
  ms_slice q_bias, k_bias, v_bias, gate_bias, up_bias;
  ms_slice out_bias[MS_BLOCKS]; /* of o and down: of what a block returns */
  ms_slice q_norm, k_norm;
} ms_layer;

/* Cosines, then sines: [positions, rotary / 2] each, on the device. */
typedef struct ms_rope_tables {
  float *table;
  size_t bytes;
  int64_t positions;
} ms_rope_tables;

/* A file of a saved folder in place of the carried one; an empty text: none. */
typedef struct ms_model_text {
  const char *name;
  char *text;
  struct ms_model_text *next;
} ms_model_text;

struct ms_model {
  ms_device *dev;
  ms_config config; /* of the whole model */
  ms_share share;
  int dtype;  /* of the weights: MS_F32 or MS_BF16 */
  int stored; /* dtype that a save has unless told: `dtype`, or MS_F16 for what was opened so */
  int train, recompute;
  int64_t head_bytes;
  const char *outer_name; /* of its first parameter */
  char *path;             /* the folder it came from; NULL for none */
  int32_t *end;           /* [ends]: ids that end an answer; NULL while nobody has said them */
  int32_t ends;
  ms_model_text *text; /* a list, see ms_model_set_text */
  _Atomic int refs;    /* the handle; targets, optimisers and generators that use it */
  int32_t parameters;
  ms_parameter *parameter;
  ms_layer *layer; /* [layers] */
  ms_slice embed, norm, head;
  void *weight_arena; /* trained parameters in order, then frozen ones */
  size_t weight_bytes;
  _Atomic int views;      /* tensors that share the weights' memory */
  _Atomic int being_read; /* by a thread, which saves them while passes go on: see ms_model_wait */
  double waited;          /* seconds that changes of weights have waited for it */
  float *gradient_arena;  /* NULL when not training; at each place that of the weight there */
  size_t gradient_bytes;
  int64_t bucket_bytes;       /* as in gradients.h; 0: as many as are enough */
  struct ms_buckets *buckets; /* NULL while nobody has summed gradients */
  int summed; /* whether the gradients are those of all ranks: nothing may be added to them */
  ms_changes changes, head_changes; /* of all weights but the head's matrix; of that */
  ms_rope_tables rope;              /* for all positions met so far */
  ms_head_workspace head_workspace; /* of the fused head, for one call after the other */
  struct ms_activations *act;       /* a list: those of passes that are alive, and idle ones */
};

/* share.c: the part of a rank; vocab_cut as in ms_model_options. */
ms_share ms_share_of(const ms_config *config, ms_group *group, int64_t vocab_cut, int32_t rank);
ms_status ms_share_check(const ms_config *config, const ms_group *group);
/* Where part `rank` of n begins, when `size` ranks share n; `rank` = `size`: n. */
int64_t ms_share_border(int64_t n, int32_t rank, int32_t size);
/* What this rank has of parameter i, in order of `held`; all of its part is in some run. */
int ms_share_runs(const ms_model *model, int32_t i, ms_run run[MS_MAX_RUNS]);
/* Elements from .. from + count of its part of parameter i, in order. */
int ms_share_pieces(const ms_model *model, int32_t i, int64_t from, int64_t count,
                    ms_piece piece[MS_MAX_PIECES]);
/* The k-th key/value head that several ranks hold; -1 where there are no more. */
int32_t ms_share_copied_head(const ms_model *model, int32_t k);

/* layout.c: structure with weights undefined; everything from config and options. Takes over the
 * config on success. */
ms_status ms_model_build(ms_device *dev, ms_config *config, const ms_model_options *options,
                         ms_model **out);
void ms_model_retain(ms_model *model);
/* One reference more, or with `by` below 0 one less: for what keeps a model and knows only that it does. */
void ms_model_refer(void *model, int by);
void ms_model_release(ms_model *model); /* the last one frees */
/* What the embedding is multiplied by. */
float ms_embed_scale(const ms_model *model);
void ms_model_head(const ms_model *model, ms_head_weights *head);
/* Weights, and an optimiser's memory, may be saved by a thread while passes go on. Whoever is about to
 * change them waits for it. MS_READ_STOP has it give up. */
enum { MS_READ_NONE, MS_READ, MS_READ_STOP };
void ms_model_wait(ms_model *model);
/* An error once it is to give up. */
ms_status ms_model_check_read(const ms_model *model);
/* Before parameter p is written: waits. */
void ms_model_change(ms_model *model, const ms_parameter *p);
/* A number that is another one once any weight may have changed. */
int64_t ms_model_changes(const ms_model *model);

/* weights.c: what this rank has of a parameter, from its tensor in a file. */
struct ms_safetensors;
struct ms_stored;
ms_status ms_model_read(ms_model *model, int32_t i, const struct ms_safetensors *file,
                        const struct ms_stored *stored);

/* save.c: a model folder's files, into a folder that a team fills (a save, a checkpoint); carry, dtype and
 * shard_bytes as in ms_model_save. First one rank makes them, all but the tensors; then each puts its part
 * of these. */
struct ms_folder;
struct ms_team;
ms_status ms_model_make_files(const ms_model *model, const struct ms_folder *folder,
                              const char *carry, int dtype, int64_t shard_bytes);
ms_status ms_model_put(const ms_model *model, const struct ms_team *team,
                       const struct ms_folder *folder, int dtype, int64_t shard_bytes);
/* What of parameter i this rank of the team writes, of all that those have which have the same. */
void ms_model_turn(const ms_model *model, const struct ms_team *team, int32_t i, int64_t *from,
                   int64_t *count);
void ms_model_free_texts(ms_model *model);

/* ends.c: generation_config.json, from that of the folder `from` (NULL: none) and the model's ends. */
ms_status ms_ends_write(const ms_model *model, const struct ms_folder *folder, const char *from);

/* config.c: `name` is what errors call it; `json` is copied. */
ms_status ms_config_read(const char *name, const json_t *json, ms_config *out);
ms_status ms_config_copy(const ms_config *config, ms_config *out);
void ms_config_clear(ms_config *config);
/* Whether a key of config.json, which has been read, changes nothing of what the model computes. The
 * dtype is the model's own. */
int ms_config_is_harmless(const char *key);

/* activations.c: what passes have left to a model, rope tables and the head's memory included; when
 * it is freed no pass is alive. */
void ms_activations_free(ms_model *model);
size_t ms_activations_bytes(const ms_model *model);

#endif
