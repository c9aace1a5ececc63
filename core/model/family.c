/* family.c - the table of families. */
#include "family.h"

#include <string.h>

#define SLICE(field) offsetof(ms_layer, field)
#define MATRIX(name, field, rows, cols) \
  {                                     \
    name, cols, MS_ALWAYS, {            \
      { SLICE(field), rows }            \
    }                                   \
  }
#define VECTOR(name, field, rows, when) \
  {                                     \
    name, MS_DIM_NONE, when, {          \
      { SLICE(field), rows }            \
    }                                   \
  }

/* Projections, biases where the config asks for them. */
#define ATTENTION                                                         \
  MATRIX("self_attn.q_proj.weight", q, MS_DIM_Q, MS_DIM_HIDDEN),          \
      VECTOR("self_attn.q_proj.bias", q_bias, MS_DIM_Q, MS_IF_QKV_BIAS),  \
      MATRIX("self_attn.k_proj.weight", k, MS_DIM_KV, MS_DIM_HIDDEN),     \
      VECTOR("self_attn.k_proj.bias", k_bias, MS_DIM_KV, MS_IF_QKV_BIAS), \
      MATRIX("self_attn.v_proj.weight", v, MS_DIM_KV, MS_DIM_HIDDEN),     \
      VECTOR("self_attn.v_proj.bias", v_bias, MS_DIM_KV, MS_IF_QKV_BIAS), \
      MATRIX("self_attn.o_proj.weight", o, MS_DIM_HIDDEN, MS_DIM_Q),      \
      VECTOR("self_attn.o_proj.bias", out_bias[MS_ATTENTION], MS_DIM_HIDDEN, MS_IF_O_BIAS)
#define MLP                                                                         \
  MATRIX("mlp.gate_proj.weight", gate, MS_DIM_INTERMEDIATE, MS_DIM_HIDDEN),         \
      VECTOR("mlp.gate_proj.bias", gate_bias, MS_DIM_INTERMEDIATE, MS_IF_MLP_BIAS), \
      MATRIX("mlp.up_proj.weight", up, MS_DIM_INTERMEDIATE, MS_DIM_HIDDEN),         \
      VECTOR("mlp.up_proj.bias", up_bias, MS_DIM_INTERMEDIATE, MS_IF_MLP_BIAS),     \
      MATRIX("mlp.down_proj.weight", down, MS_DIM_HIDDEN, MS_DIM_INTERMEDIATE),     \
      VECTOR("mlp.down_proj.bias", out_bias[MS_MLP], MS_DIM_HIDDEN, MS_IF_MLP_BIAS)
#define NORM(name, field) VECTOR(name ".weight", field, MS_DIM_HIDDEN, MS_ALWAYS)
/* A norm before each block, with the names that llama gave them. */
#define PRE_NORMS                                  \
  NORM("input_layernorm", pre_norm[MS_ATTENTION]), \
      NORM("post_attention_layernorm", pre_norm[MS_MLP])

/* Each list in the order in which transformers stores it. What llama began and most families keep: */
static const ms_weight plain[] = {
    ATTENTION,
    VECTOR("self_attn.q_norm.weight", q_norm, MS_DIM_HEAD, MS_IF_QK_NORM),
    VECTOR("self_attn.k_norm.weight", k_norm, MS_DIM_HEAD, MS_IF_QK_NORM),
    MLP,
    PRE_NORMS,
    {0}};

/* q, k and v in one matrix, gate and up in another. */
static const ms_weight fused[] = {
    MATRIX("self_attn.o_proj.weight", o, MS_DIM_HIDDEN, MS_DIM_Q),
    {"self_attn.qkv_proj.weight",
     MS_DIM_HIDDEN,
     MS_ALWAYS,
     {{SLICE(q), MS_DIM_Q}, {SLICE(k), MS_DIM_KV}, {SLICE(v), MS_DIM_KV}}},
    {"mlp.gate_up_proj.weight",
     MS_DIM_HIDDEN,
     MS_ALWAYS,
     {{SLICE(gate), MS_DIM_INTERMEDIATE}, {SLICE(up), MS_DIM_INTERMEDIATE}}},
    MATRIX("mlp.down_proj.weight", down, MS_DIM_HIDDEN, MS_DIM_INTERMEDIATE),
    PRE_NORMS,
    {0}};

/* A norm before and after each block. */
static const ms_weight four_norms[] = {ATTENTION,
                                       MLP,
                                       NORM("input_layernorm", pre_norm[MS_ATTENTION]),
                                       NORM("post_attention_layernorm", post_norm[MS_ATTENTION]),
                                       NORM("pre_feedforward_layernorm", pre_norm[MS_MLP]),
                                       NORM("post_feedforward_layernorm", post_norm[MS_MLP]),
                                       {0}};

/* Norms after the blocks alone; those of q and k are over all heads. */
static const ms_weight post_norms[] = {
    ATTENTION,
    VECTOR("self_attn.q_norm.weight", q_norm, MS_DIM_Q, MS_IF_QK_NORM),
    VECTOR("self_attn.k_norm.weight", k_norm, MS_DIM_KV, MS_IF_QK_NORM),
    MLP,
    NORM("post_attention_layernorm", post_norm[MS_ATTENTION]),
    NORM("post_feedforward_layernorm", post_norm[MS_MLP]),
    {0}};

static const ms_family families[] = {
    {.type = "llama",
     .architecture = "LlamaForCausalLM",
     .weight = plain,
     .keys = "attention_bias mlp_bias",
     .vocab = 32000,
     .hidden_size = 4096,
     .intermediate_size = 11008,
     .layers = 32,
     .heads = 32,
     .context = 2048,
     .eps = 1e-6,
     .rope_scaling = 1},
    {.type = "mistral",
     .architecture = "MistralForCausalLM",
     .weight = plain,
     .keys = "sliding_window",
     .vocab = 32000,
     .hidden_size = 4096,
     .intermediate_size = 14336,
     .layers = 32,
     .heads = 32,
     .kv_heads = 8,
     .context = 131072,
     .window = 4096,
     .eps = 1e-6,
     .windows = MS_WINDOWS_ALL,
     .rope_scaling = 1},
    {.type = "qwen2",
     .architecture = "Qwen2ForCausalLM",
     .weight = plain,
     .keys = "sliding_window use_sliding_window max_window_layers",
     .vocab = 151936,
     .hidden_size = 4096,
     .intermediate_size = 22016,
     .layers = 32,
     .heads = 32,
     .kv_heads = 32,
     .context = 32768,
     .window = 4096,
     .eps = 1e-6,
     .windows = MS_WINDOWS_BY_LAYER,
     .qkv_bias = 1,
     .rope_scaling = 1},
    {.type = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .weight = plain,
     .keys = "attention_bias sliding_window use_sliding_window max_window_layers",
     .vocab = 151936,
     .hidden_size = 4096,
     .intermediate_size = 22016,
     .layers = 32,
     .heads = 32,
     .kv_heads = 32,
     .head_dim = 128,
     .context = 32768,
     .window = 4096,
     .eps = 1e-6,
     .windows = MS_WINDOWS_BY_LAYER,
     .qk_norm = MS_QK_NORM_HEADS,
     .rope_scaling = 1},
    {.type = "phi3",
     .architecture = "Phi3ForCausalLM",
     .weight = fused,
     .keys = "sliding_window original_max_position_embeddings",
     .vocab = 32064,
     .hidden_size = 3072,
     .intermediate_size = 8192,
     .layers = 32,
     .heads = 32,
     .context = 4096,
     .eps = 1e-5,
     .windows = MS_WINDOWS_ALL,
     .partial_rotary = 1},
    {.type = "gemma",
     .architecture = "GemmaForCausalLM",
     .weight = plain,
     .keys = "attention_bias hidden_activation",
     .vocab = 256000,
     .hidden_size = 3072,
     .intermediate_size = 24576,
     .layers = 28,
     .heads = 16,
     .kv_heads = 16,
     .head_dim = 256,
     .context = 8192,
     .eps = 1e-6,
     .tied = 1,
     .activation = MS_GELU_TANH,
     .gelu_is_tanh = 1,
     .norm_offset = 1,
     .embed_by_size = 1,
     .rope_scaling = 1},
    {.type = "gemma2",
     .architecture = "Gemma2ForCausalLM",
     .weight = four_norms,
     .keys = "attention_bias hidden_activation query_pre_attn_scalar attn_logit_softcapping "
             "final_logit_softcapping sliding_window sliding_window_size",
     .vocab = 256000,
     .hidden_size = 2304,
     .intermediate_size = 9216,
     .layers = 26,
     .heads = 8,
     .kv_heads = 4,
     .head_dim = 256,
     .context = 8192,
     .window = 4096,
     .eps = 1e-6,
     .windows = MS_WINDOWS_ALTERNATE,
     .tied = 1,
     .activation = MS_GELU_TANH,
     .attention_scalar = 256,
     .attention_cap = 50,
     .logit_cap = 30,
     .activation_key = "hidden_activation",
     .gelu_is_tanh = 1,
     .norm_offset = 1,
     .embed_by_size = 1,
     .rope_scaling = 1},
    {.type = "olmo2",
     .architecture = "Olmo2ForCausalLM",
     .weight = post_norms,
     .keys = "attention_bias",
     .vocab = 50304,
     .hidden_size = 4096,
     .intermediate_size = 11008,
     .layers = 32,
     .heads = 32,
     .context = 2048,
     .eps = 1e-5,
     .qk_norm = MS_QK_NORM_WHOLE,
     .rope_scaling = 1},
    {.type = "granite",
     .architecture = "GraniteForCausalLM",
     .weight = plain,
     .keys = "attention_bias mlp_bias embedding_multiplier residual_multiplier "
             "attention_multiplier logits_scaling",
     .vocab = 32000,
     .hidden_size = 4096,
     .intermediate_size = 11008,
     .layers = 32,
     .heads = 32,
     .context = 2048,
     .eps = 1e-6,
     .rope_scaling = 1},
};
enum { FAMILIES = sizeof families / sizeof *families };

const ms_family *ms_family_find(const char *type) {
  for (int i = 0; i < FAMILIES; i++)
    if (!strcmp(families[i].type, type)) return &families[i];
  return NULL;
}

const char *ms_family_names(void) {
  return "llama, mistral, qwen2, qwen3, phi3, gemma, gemma2, olmo2, granite";
}

int64_t ms_dim_size(const ms_config *c, ms_dim dim) {
  switch (dim) {
    case MS_DIM_HIDDEN: return c->hidden_size;
    case MS_DIM_INTERMEDIATE: return c->intermediate_size;
    case MS_DIM_Q: return (int64_t)c->heads * c->head_dim;
    case MS_DIM_KV: return (int64_t)c->kv_heads * c->head_dim;
    case MS_DIM_HEAD: return c->head_dim;
    case MS_DIM_NONE: break;
  }
  return 0;
}
