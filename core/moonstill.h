/* moonstill.h - everything Lua may call.
 *
 * The part between the cdef marks, with that of base/types.h before it, is compiled into the library as
 * text and handed to LuaJIT at load time, so there is no second copy to keep in step. It keeps to what the FFI parses and the
 * JIT compiles: opaque structs, plain option structs behind pointers, enums, sized integers,
 * doubles; no macros, structs by value or callbacks.
 *
 * A function that can fail returns ms_status and writes results through its last arguments, which
 * are NULL or untouched on failure. Memory passed in may be reused as soon as the call returns.
 * `char **text` results belong to the caller, who frees them with ms_text_free. Every `_free`
 * accepts NULL and half-built objects. Dimensions are spelled alike everywhere: rows, cols, tokens,
 * segments, heads, kv_heads, head_dim, width (of the hidden state), vocab. */
#ifndef MS_H
#define MS_H
#include <stdint.h>

#include "base/types.h" /* status codes, dtypes */

#pragma GCC visibility push(default)

/* cdef begin */
enum { MS_ABI = 11, MS_MAX_RANK = 8 };

typedef struct ms_device ms_device;
typedef struct ms_tensor ms_tensor;
typedef struct ms_doc ms_doc;
typedef struct ms_stream ms_stream;
typedef struct ms_lock ms_lock;
typedef struct ms_tokenizer ms_tokenizer;
typedef struct ms_detokenizer ms_detokenizer;
typedef struct ms_pattern ms_pattern;
typedef struct ms_batch ms_batch;
typedef struct ms_cache ms_cache;
typedef struct ms_map ms_map;
typedef struct ms_model ms_model;
typedef struct ms_target ms_target;
typedef struct ms_group ms_group;
typedef struct ms_plan ms_plan;
typedef struct ms_transfer ms_transfer;
typedef struct ms_generator ms_generator;
typedef struct ms_optimizer ms_optimizer;

/* ---- the library ---- */

/* Text of this thread's last failure; valid until its next failing call. */
const char *ms_last_error(void);
int ms_abi(void);
void ms_text_free(char *text);
/* "moonstill 0.1.0", and with `libraries` a line for each library with its version. */
ms_status ms_version(int libraries, char **text);
/* Worker threads of this process; 0 asks for the default (cores this process may use). Results do
 * not depend on it. */
ms_status ms_threads_set(int threads);
int ms_threads_get(void);
/* What runs on the CPU: "avx512", "avx2" or "portable" (MS_CPU caps it). */
const char *ms_cpu_isa(void);
/* The number of the signal that asked this process to end since ms_interrupt_watch(1), 0 for none.
 * The library touches no signal. The executable watches SIGINT, SIGTERM, SIGHUP (unless it is
 * ignored) and SIGXCPU between ms_interrupt_watch(1) and (0), and a second SIGINT or SIGTERM ends it
 * at once. Another program calls ms_interrupt from a handler of its own, or from anywhere. */
void ms_interrupt_watch(int on);
void ms_interrupt(int number);
int ms_interrupted(void);
double ms_clock(void); /* monotonic seconds */
/* For tests. The n-th allocation from now fails, none with 0; the result is what was left to count of
 * the call before: 0 or less once its allocation has failed. */
int64_t ms_test_fail_alloc(int64_t nth);
int64_t ms_test_live(void); /* allocations alive, of the core and of the libraries it uses */

/* ---- documents: JSON and YAML as one flat list of nodes, in order of appearance ---- */

enum { MS_DOC_NULL = 0, MS_DOC_FALSE, MS_DOC_TRUE, MS_DOC_NUMBER, MS_DOC_STRING, MS_DOC_ARRAY,
       MS_DOC_OBJECT, MS_DOC_INTEGER };
/* An array is followed by its `count` elements; an object by its `count` members, each a key (a string
 * node) and a value. A number that is written as an integer and fits 64 bits is MS_DOC_INTEGER: its
 * exact value is `integer`, and `number` the nearest double. `text` has no terminator and lives as long
 * as the document; `line` and `column` are 1-based, and known of YAML (a column of at most 65535). */
typedef struct ms_node {
  int16_t kind;
  uint16_t column;
  int32_t line;
  union { int64_t count, integer; };
  const char *text;
  int64_t bytes;
  double number;
} ms_node;
/* `name` stands for the text in errors: a file, or a file with a line. Depth, size and duplicate keys
 * are checked; errors name line and column, or the byte. A number of JSON may have any size: one
 * outside the range of doubles is read as 1e308 or -1e308. */
ms_status ms_doc_parse_json(const char *name, const char *text, int64_t bytes, ms_doc **out);
ms_status ms_doc_parse_yaml(const char *name, const char *text, int64_t bytes, ms_doc **out);
const ms_node *ms_doc_nodes(const ms_doc *doc, int64_t *count);
void ms_doc_free(ms_doc *doc);

/* ---- timelines: what a process does, and what it waits for ---- */

enum {
  MS_TRACE_WORK,    /* it does something: "learn" */
  MS_TRACE_DATA,    /* it waits for data */
  MS_TRACE_TEACHER, /* for what a teacher is to send */
  MS_TRACE_PEER,    /* for another rank */
};
typedef struct ms_trace_event {
  double began, ended; /* by ms_clock */
  int32_t cause;
  char what[28];
} ms_trace_event;

/* Events are kept from now on, the first `most` of them; what was kept is dropped. */
ms_status ms_trace_start(int64_t most);
void ms_trace_stop(void); /* drops them */
/* When something begins, to be told to ms_trace_end; 0 where no events are kept. `what` is copied. */
double ms_trace_begin(void);
void ms_trace_end(double began, int cause, const char *what);
/* What this thread's waits for other ranks are for, from now on; returns what they were for. */
int ms_trace_waits_for(int cause);
/* How many events there were, of which the first ones are in *events, until the next start or stop. */
int64_t ms_trace_events(const ms_trace_event **events);

/* ---- random numbers: Philox4x32-10, a function of (seed, stream, index) ---- */

/* order[i] for i < n: the permutation of (seed, epoch). */
ms_status ms_permutation(uint64_t seed, uint64_t epoch, int32_t n, int32_t *order);
/* Four 32-bit words of Philox4x32-10 for counter {index, stream} and key seed. */
void ms_philox(uint64_t seed, uint64_t stream, uint64_t index, uint32_t *word);

/* ---- files ---- */

/* Writes the whole file or nothing: into a private folder beside it, with fsync, then by a rename.
 * First it calls ms_dir_clean for the folder that the file is in. */
ms_status ms_file_write(const char *path, const void *data, int64_t bytes);
ms_status ms_file_hash(const char *path, char **text); /* XXH3-128, 32 hexadecimal digits */
ms_status ms_hash(const void *data, int64_t bytes, char **text); /* the same of memory */
ms_status ms_unique(char **text);                      /* 32 hexadecimal digits nobody can guess */
ms_status ms_dir_make(const char *path);               /* with parents; existing is fine */
ms_status ms_dir_list(const char *path, char **text);  /* names, a line each, sorted */
ms_status ms_dir_remove(const char *path);             /* a whole tree; missing is fine */
/* A file read from its beginning to its end, decompressed where its first bytes are gzip's or zstd's,
 * whatever its name. Memory is bounded; what is damaged or cut off is an error with the file's name. */
ms_status ms_stream_open(const char *path, ms_stream **out);
/* Up to `bytes` more, as many as are at hand; *count 0 is the end. */
ms_status ms_stream_read(ms_stream *s, void *data, int64_t bytes, int64_t *count);
const char *ms_stream_kind(const ms_stream *s); /* "gzip", "zstd", or "" for a plain one */
void ms_stream_close(ms_stream *s);
int ms_path_kind(const char *path); /* 0 nothing, 1 a file or what cannot be examined, 2 folder */
int ms_path_same(const char *a, const char *b);        /* 1: both exist and are the same file */
/* The absolute path with its links resolved; a last part that does not exist is kept as it is. */
ms_status ms_path_real(const char *path, char **text);
int ms_path_writable(const char *path); /* 1: the file may be written, or files made in the folder */
/* Bytes that may still be written below a folder; -1 where the file system does not say. */
int64_t ms_disk_free(const char *path);
int64_t ms_file_limit(void); /* bytes that a file of this process may have; -1 for no limit */
/* For a file that is not what its reader needs: a sentence that says what it is and what to do ("is
 * compressed with gzip: decompress it first, .."), to be put after its path; NULL when it is not
 * recognised. Knows pointer files, error pages, archives, other formats, encodings, downloads. */
ms_status ms_file_guess(const char *path, char **text);
/* Says why there is nothing at a path, to be put after it: "no such WHAT", and what to do where it is
 * an address, a name on a hub, a link to nothing, or a download that has not ended. */
ms_status ms_path_missing(const char *path, const char *what, char **text);
/* Removes from a folder what killed processes left there while they wrote: folders .moonstill-* whose
 * marker names them and is no longer locked. Nothing else is removed. */
void ms_dir_clean(const char *path);
/* Renames what is at `path` to the first of PATH.old, PATH.old.1, PATH.old.2 .. that is free; *where is
 * that name. */
ms_status ms_path_set_aside(const char *path, char **where);

/* Locks the file `path`, which is made when missing, for one holder among all processes. *out is NULL
 * when it is held already; *holder is then the number of that process, 0 when unknown. The lock ends
 * with the process, however that ends. The file stays and holds the process's number. A link, or a
 * file with anything else in it, is an error. On a file system without locks a warning is logged. */
ms_status ms_lock_open(const char *path, ms_lock **out, int32_t *holder);
/* Whether the lock still keeps others out. Once its file is removed or replaced it does not: then it is
 * taken again (ANEW), unless somebody else has it (LOST). */
enum { MS_LOCK_KEPT, MS_LOCK_ANEW, MS_LOCK_LOST };
ms_status ms_lock_keep(ms_lock *lock, int32_t *kept, int32_t *holder);
void ms_lock_close(ms_lock *lock);

/* ---- devices and tensors ---- */

/* spec: "cpu"; "cuda:N" where the plug-in is. Tensors hold their device, so it may be closed first.
 * Opening a device that is open gives the same one; each opening has its close. */
ms_status ms_device_open(const char *spec, ms_device **out);
void ms_device_close(ms_device *dev);
const char *ms_device_spec(const ms_device *dev);

/* A new tensor's content is undefined. A view shares memory with its base and keeps it alive;
 * `offset` counts elements of the view's dtype, which must be as wide as the base's. */
ms_status ms_tensor_new(ms_device *dev, int dtype, int rank, const int64_t *shape, ms_tensor **out);
ms_status ms_tensor_view(ms_tensor *base, int dtype, int64_t offset, int rank,
                         const int64_t *shape, ms_tensor **out);
void ms_tensor_free(ms_tensor *t);
int ms_tensor_dtype(const ms_tensor *t);
int ms_tensor_rank(const ms_tensor *t);
int64_t ms_tensor_size(const ms_tensor *t, int axis); /* axis < 0: number of elements */
ms_device *ms_tensor_device(const ms_tensor *t);
ms_status ms_tensor_write(ms_tensor *t, const void *data, int64_t bytes); /* bytes = whole tensor */
ms_status ms_tensor_read(const ms_tensor *t, void *data, int64_t bytes);
ms_status ms_tensor_zero(ms_tensor *t); /* all bytes */
ms_status ms_tensor_copy(ms_tensor *y, const ms_tensor *x); /* same count; converts dtypes */
/* Like ms_tensor_read and _write, as double whatever the dtype; count = whole tensor. */
ms_status ms_tensor_read_double(const ms_tensor *t, double *data, int64_t count);
ms_status ms_tensor_write_double(ms_tensor *t, const double *data, int64_t count);

/* ---- ranks: processes that work on one run, each making the same calls in the same order ---- */

/* This process alone: rank 0 of 1. A group lives until its process ends. */
ms_group *ms_group_self(void);
/* All ranks that were launched together, as by mpirun; the process alone where it was not launched so.
 * The first call joins them: every rank makes it. Ranks share the cores of their machine unless
 * OMP_NUM_THREADS says otherwise. MS_GROUP=self: alone all the same; MS_GROUP_TIMEOUT: seconds that a rank
 * waits for one that does nothing; MS_GROUP_CHECK=1: all ranks' calls are compared before they begin. */
ms_status ms_group_world(ms_group **group);
/* This process's number among those that it was launched with, before it joins them; -1: it is alone. */
int32_t ms_group_number(void);
/* The first of the ranks of this one's machine: those that share its memory; this rank where it is alone,
 * or where that is not known. Once they have joined. */
int32_t ms_group_machine(void);
/* Called by a rank that fails, before it says why: 1 where it is the first one of its machine, 0 where
 * another was, -1 where it is the first one but rank 0 is elsewhere, or that is not known. */
int ms_group_fails(void);
/* Ends all ranks that this one was launched with, with a status, this one too; alone it does nothing. */
void ms_group_abort(int status);
int32_t ms_group_rank(const ms_group *group); /* from 0 */
int32_t ms_group_size(const ms_group *group);
/* Bytes that this rank has sent to others of the group so far, in calls of a kind, of numbers of a dtype; what
 * ranks say to check each other is not counted. Kinds count from 0. */
int64_t ms_group_sent(const ms_group *group, int32_t kind, int32_t dtype);
const char *ms_group_call(int32_t kind); /* "all_reduce", ..; NULL where there is no such kind */
/* The ranks of one colour become a group, ordered by key, then by rank; *out is NULL for a colour below
 * 0. Every rank of the group calls. */
ms_status ms_group_split(ms_group *group, int32_t colour, int32_t key, ms_group **out);
/* Ranks of one machine find each other, so that they can share memory. Every rank of the world calls,
 * with a group of all; an error, which all have then, says why it cannot be. */
ms_status ms_group_share(ms_group *world);
/* Adds x[n] up over the ranks, in place: every rank gets the same bits. */
ms_status ms_group_sum(ms_group *group, double *x, int64_t n);
/* Gives the root's bytes to all; every rank calls with as many. */
ms_status ms_group_broadcast(ms_group *group, void *data, int64_t bytes, int32_t root);
/* A text for one rank of the group, copied, which is not waited for; and the next one of a rank, which
 * is. Those of two ranks come in order. ms_letter_settle waits until all that this rank sent have come. */
ms_status ms_letter_send(ms_group *group, int32_t to, const char *text, int64_t bytes);
ms_status ms_letter_receive(ms_group *group, int32_t from, char **text);
ms_status ms_letter_settle(void);
/* Receives bytes that a rank has sent, and drops them. */
ms_status ms_group_discard(ms_group *group, int32_t from, int64_t bytes);

/* ---- the transfer's plan: who sends what to whom where one model's ranks need what another's have ---- */

/* A model's ranks on one side: dp models of tp ranks each; rank[d * tp + t] has part t of model d. */
typedef struct ms_plan_side {
  int32_t dp, tp;
  const int32_t *rank;
} ms_plan_side;
/* ranks: how many there are, whose numbers are below it. machine[ranks]: the number of each one's
 * machine; NULL: one for all. within, between: bytes a second of a message that stays on a machine, or leaves it;
 * latency: seconds that any takes before its first byte. */
typedef struct ms_plan_options {
  int32_t ranks, reserved;
  const int32_t *machine;
  double within, between, latency;
} ms_plan_options;
/* First what is needed enters the groups of the receiver's tp ranks, then it is exchanged within them. */
enum { MS_PLAN_SEND, MS_PLAN_EXCHANGE };
/* Between two ranks there is one message in a stage. `phase` counts from 0 in each stage; in one, no
 * rank sends twice and none receives twice. `sample`: which ones, ascending; `rows` of all of them, of
 * each at least one. begins, ends: seconds, after ms_plan_predict. */
typedef struct ms_plan_message {
  int32_t stage, phase, from, to, samples;
  const int32_t *sample;
  int64_t rows;
  double begins, ends;
} ms_plan_message;
/* For a layout, which is copied. The sides may have ranks in common. */
ms_status ms_plan_new(const ms_plan_side *from, const ms_plan_side *to, const ms_plan_options *options,
                      ms_plan **out);
/* For a step: sample i has rows[i] rows, which every rank of the sender's model from[i] has, and every
 * one of the receiver's model to[i] needs (-1: nobody does). A function of its arguments: ranks that
 * fill alike have the same messages. What a rank has itself, as one of both models, is in no message to
 * it, nor is a sample without rows; all else that it needs comes once. The ranks of a model exchange
 * what one of them has; what none has, one of them is sent. */
ms_status ms_plan_fill(ms_plan *plan, int32_t samples, const int32_t *rows, const int32_t *from,
                       const int32_t *to);
/* In the order in which ranks post them, by stage, phase and sender, until the plan is filled again:
 * ranks that keep to it cannot wait for each other in a circle, even if each call waits for its other
 * side. */
const ms_plan_message *ms_plan_messages(const ms_plan *plan, int32_t *count);
/* The places among them of those that a rank sends or receives, ascending. */
const int32_t *ms_plan_of_rank(const ms_plan *plan, int32_t rank, int32_t *count);
/* As many as the rank that sends or receives the most messages of a stage has of them. */
int32_t ms_plan_phases(const ms_plan *plan, int stage);
/* Bytes of a row of a target. width: k, the size of the hidden state, or the vocabulary; dtype: of the
 * log-probabilities or the states, MS_F32 or MS_BF16. */
ms_status ms_plan_row_bytes(int kind, int64_t width, int dtype, int64_t *bytes);
/* When messages begin and end, where each rank sends one at a time and receives one at a time, in their
 * order, and gives nothing on before it has all that is sent to it. *seconds: when the last one ends. */
ms_status ms_plan_predict(ms_plan *plan, int64_t row_bytes, double *seconds);
void ms_plan_free(ms_plan *plan);

/* ---- operations: one kernel each, on tensors of one device ---- */

/* Shapes, types and indices are checked. Activations and gradients are f32, weights (w, b) f32 or
 * bf16, indices i32. `add` != 0 accumulates into the output. */

/* y = x w^T; dx = dy w; dw = dy^T x.  x, dx: [rows, in]; y, dy: [rows, out]; w, dw: [out, in]. */
ms_status ms_linear(ms_tensor *y, const ms_tensor *x, const ms_tensor *w, int add);
ms_status ms_linear_dx(ms_tensor *dx, const ms_tensor *dy, const ms_tensor *w, int add);
ms_status ms_linear_dw(ms_tensor *dw, const ms_tensor *dy, const ms_tensor *x, int add);
/* y[r,:] += b; db += sum over r of dy[r,:]. */
ms_status ms_bias(ms_tensor *y, const ms_tensor *b);
ms_status ms_bias_db(ms_tensor *db, const ms_tensor *dy);
/* y[t,:] = scale w[token[t],:]; dw[token[t],:] += scale dy[t,:]. */
ms_status ms_embed(ms_tensor *y, const ms_tensor *token, const ms_tensor *w, double scale);
ms_status ms_embed_dw(ms_tensor *dw, const ms_tensor *dy, const ms_tensor *token, double scale);
/* y[i,:] = x[row[i],:]; y[row[i],:] = x[i,:] with row ascending. */
ms_status ms_gather(ms_tensor *y, const ms_tensor *x, const ms_tensor *row);
ms_status ms_scatter(ms_tensor *y, const ms_tensor *x, const ms_tensor *row);
/* y[r,:] = x[r,:] (w + offset) rstd[r], rstd[r] = 1/sqrt(mean(x[r,:]^2) + eps), kept if not NULL; y may be x.
 * Backward: dx may be dy when it is not added to; dw is added to, NULL for frozen. */
ms_status ms_rmsnorm(ms_tensor *y, ms_tensor *rstd, const ms_tensor *x, const ms_tensor *w,
                     double eps, double offset);
ms_status ms_rmsnorm_backward(ms_tensor *dx, ms_tensor *dw, const ms_tensor *dy, const ms_tensor *x,
                              const ms_tensor *rstd, const ms_tensor *w, int add, double offset);
/* x [tokens, heads, head_dim] in place; cosine and sine [positions, pairs], pair i being elements
 * i and i + pairs of a head; sign -1 turns back. */
ms_status ms_rope(ms_tensor *x, const ms_tensor *position, const ms_tensor *cosine,
                  const ms_tensor *sine, int sign);
/* Causal attention within segments: q, y [tokens, heads, head_dim], k, v [tokens, kv_heads,
 * head_dim], lse [tokens, heads] or NULL, segment_start [segments + 1]; position t sees the last
 * `window` positions, itself included, 0 for all; scores are c tanh(s / c), c = soft_cap, 0 for none.
 * The device says how large head_dim may be. The backward pass sets dq, dk and dv. */
ms_status ms_attention(ms_tensor *y, ms_tensor *lse, const ms_tensor *q, const ms_tensor *k,
                       const ms_tensor *v, const ms_tensor *segment_start, int window, double scale,
                       double soft_cap);
ms_status ms_attention_backward(ms_tensor *dq, ms_tensor *dk, ms_tensor *dv, const ms_tensor *dy,
                                const ms_tensor *y, const ms_tensor *lse, const ms_tensor *q,
                                const ms_tensor *k, const ms_tensor *v,
                                const ms_tensor *segment_start, int window, double scale,
                                double soft_cap);
/* Row r of q [rows, heads, head_dim] against keys first[r] .. first[r] + length[r] - 1 of cache row
 * slot[r]; k, v [cache rows, capacity, kv_heads, head_dim]. */
ms_status ms_attention_cached(ms_tensor *y, const ms_tensor *q, const ms_tensor *k,
                              const ms_tensor *v, const ms_tensor *slot, const ms_tensor *first,
                              const ms_tensor *length, double scale, double soft_cap);
/* y = silu(gate) up, or gelu(gate) up in its tanh form; the backward pass may write over gate and up. */
ms_status ms_swiglu(ms_tensor *y, const ms_tensor *gate, const ms_tensor *up);
ms_status ms_swiglu_backward(ms_tensor *d_gate, ms_tensor *d_up, const ms_tensor *dy,
                             const ms_tensor *gate, const ms_tensor *up);
ms_status ms_geglu(ms_tensor *y, const ms_tensor *gate, const ms_tensor *up);
ms_status ms_geglu_backward(ms_tensor *d_gate, ms_tensor *d_up, const ms_tensor *dy,
                            const ms_tensor *gate, const ms_tensor *up);
ms_status ms_add(ms_tensor *y, const ms_tensor *x, double scale); /* y += scale x */
/* In double; not finite exactly when an element is not. */
ms_status ms_sum_squares(const ms_tensor *x, double *sum);
/* *at: the index, row by row, of the first NaN or infinity in x (f32, bf16); -1 for none. */
ms_status ms_not_finite(const ms_tensor *x, int64_t *at);
/* One update, `step` counted from 1; `low` (bf16 or NULL) gets w rounded; scale multiplies g. */
ms_status ms_adamw(ms_tensor *w, ms_tensor *low, ms_tensor *m, ms_tensor *v, const ms_tensor *g,
                   int64_t step, double lr, double beta1, double beta2, double eps, double decay,
                   double scale);

/* ---- text ---- */

/* Of one character, of any value: the character that is its other case, by the simple mappings of
 * Unicode; its general category, the two letters as first * 256 + second. */
int32_t ms_char_upper(int32_t c);
int32_t ms_char_lower(int32_t c);
int32_t ms_char_title(int32_t c);
int32_t ms_char_category(int32_t c);
/* How many bytes of a text fit into so many columns of a terminal, and *width of them they take:
 * two for a wide character, none for a mark, which goes with what is before it. */
int64_t ms_text_fit(const char *text, int64_t bytes, int64_t columns, int64_t *width);
/* The offset of the first byte that is not UTF-8, or -1. */
int64_t ms_text_check(const char *text, int64_t bytes);

/* `path`: a tokenizer.json, or the folder that holds it. A component that is not built is
 * MS_EUNSUPPORTED and named. */
ms_status ms_tokenizer_open(const char *path, ms_tokenizer **out);
void ms_tokenizer_free(ms_tokenizer *tok);
int32_t ms_tokenizer_size(const ms_tokenizer *tok); /* largest id + 1, added tokens included */
/* Writes at most `capacity` ids and sets *count to how many there are: more than capacity means
 * that the call must be repeated with more room. `special`: the post-processor's tokens (BOS) are
 * added. `parse`: added tokens spelled in the text become their ids; 0 takes them as plain text
 * when they are special. The text must be UTF-8.
 * plain[2 * plains]: first byte and last byte + 1 of parts of the text, ascending, that are plain
 * where the rest is parsed: a special token that has a byte in one is text there.
 * offsets[2 * capacity] or NULL: first byte and last byte + 1 of the text that each id stands for. A
 * token with a part of a character has that part's bytes, one whose characters a normalizer made has
 * all that they were made of, a sign put before a word has the word's first character, an added token
 * has its spelling without the spaces that it takes, and what `special` adds stands for nothing. */
ms_status ms_tokenizer_encode(const ms_tokenizer *tok, const char *text, int64_t bytes, int special,
                              int parse, const int64_t *plain, int64_t plains, int32_t *ids,
                              int32_t *offsets, int64_t capacity, int64_t *count);
/* Texts to be encoded together. Text i has bytes[i] bytes and, if special[i], what the post-processor
 * adds; the pairs plain_start[i] .. plain_start[i + 1] of `plain`, as above; and the triples
 * mark_start[i] .. mark_start[i + 1] of `mark`: first byte, last byte + 1 and level (0..255) of parts
 * of the text, ascending; what is in none has level 0. */
typedef struct ms_token_texts {
  int64_t count;
  const char *const *text;
  const int64_t *bytes;
  const uint8_t *special;
  const int64_t *plain, *plain_start, *mark, *mark_start;
} ms_token_texts;
/* Text i has the ids start[i] .. start[i + 1], each with the highest level that one of its bytes has
 * (0 for those that stand for none); crossing[i] of them have bytes of several levels. */
typedef struct ms_token_block {
  int64_t count;
  int64_t *start;
  int32_t *ids;
  uint8_t *level;
  int32_t *crossing;
} ms_token_block;
/* Over the process's threads; the result does not depend on their number. */
ms_status ms_tokenizer_block(const ms_tokenizer *tok, const ms_token_texts *texts, ms_token_block **out);
void ms_token_block_free(ms_token_block *block);
ms_status ms_tokenizer_decode(const ms_tokenizer *tok, const int32_t *ids, int64_t count,
                              int skip_special, char **text, int64_t *bytes);
/* The id of a token, which is spelled as in tokenizer.json; -1 when there is none. */
int32_t ms_tokenizer_id(const ms_tokenizer *tok, const char *token, int64_t bytes);
/* The spelling of an id in tokenizer.json; NULL when unused. Lives as long as the tokenizer. */
const char *ms_tokenizer_token(const ms_tokenizer *tok, int32_t id, int64_t *bytes);
int ms_tokenizer_is_special(const ms_tokenizer *tok, int32_t id);
/* Whether it is one of added_tokens, special or not. */
int ms_tokenizer_is_added(const ms_tokenizer *tok, int32_t id);
/* MS_OK when both map every id below the smaller size alike; otherwise the error names the first
 * difference. */
ms_status ms_tokenizer_same(const ms_tokenizer *a, const ms_tokenizer *b);
/* A detokenizer takes ids one by one. Each call gives the text that is certain now and was not before,
 * perhaps none, never a part of a character; `id` -1 gives the rest. It lives until the next call. */
ms_status ms_detokenizer_new(const ms_tokenizer *tok, int skip_special, ms_detokenizer **out);
ms_status ms_detokenizer_add(ms_detokenizer *detok, int32_t id, const char **text, int64_t *bytes);
void ms_detokenizer_free(ms_detokenizer *detok);

/* A regular expression in PCRE2's own syntax, over UTF-8: what is none there matches nothing. */
ms_status ms_pattern_new(const char *text, int64_t bytes, ms_pattern **out);
void ms_pattern_free(ms_pattern *pattern);
/* The last of the matches that follow each other from the text's beginning on: first byte and last
 * byte + 1 of the first of its groups that took part, or of all of it where none did. *start -1: there
 * is no match, and an empty one is none. What takes too long is an error. */
ms_status ms_pattern_last(const ms_pattern *pattern, const char *text, int64_t bytes, int64_t *start,
                          int64_t *end);

/* ---- data sets ---- */

/* held[i] = 1 for the samples of `count` rows, those whose tokens have the smallest hashes by this seed
 * (equal rows are held together, which may make it more), 0 for the others. A row is neighbouring
 * samples of equal row[i]; start: [samples + 1], where each begins in `token`. */
ms_status ms_split(uint64_t seed, int64_t samples, const int64_t *start, const int32_t *row,
                   const int32_t *token, int64_t count, uint8_t *held);

/* A file as read-only memory, which stays when the file is removed. It must not become shorter. */
ms_status ms_map_open(const char *path, ms_map **out);
void ms_map_close(ms_map *map);
const void *ms_map_data(const ms_map *map); /* NULL for an empty file */
int64_t ms_map_bytes(const ms_map *map);

/* A folder of files named 0, 1 .. that grow side by side. It appears at `path`, with its parents, as a
 * whole: by commit. Until then nobody sees it, and a process that is killed leaves nothing that the next
 * one does not remove. What was there and is a cache too is replaced; something else is set aside. */
ms_status ms_cache_begin(const char *path, int32_t files, ms_cache **out);
/* Appends. A failure (a full disk) may have appended a part; what was added before can still be read. */
ms_status ms_cache_add(ms_cache *cache, int32_t file, const void *data, int64_t bytes);
/* The first `bytes` of those that were added to a file. */
ms_status ms_cache_read(const ms_cache *cache, int32_t file, void *to, int64_t bytes);
ms_status ms_cache_hash(const ms_cache *cache, int32_t file, char **text); /* as ms_hash of all */
/* `about`: a text that says what it is, without zero bytes. The cache is still to be freed: by abort. */
ms_status ms_cache_commit(ms_cache *cache, const char *about);
void ms_cache_abort(ms_cache *cache); /* removes what is not committed; frees */
ms_status ms_cache_about(const char *path, char **text); /* an error for a folder that is no cache */
ms_status ms_cache_remove(const char *path); /* a folder that is a cache and holds nothing else */

/* ---- batches ---- */

/* token[tokens]; segment_start[segments + 1] is cumulative, from 0 to tokens; position t predicts
 * token[t + 1], so the last position of a segment predicts nothing. response and all are weights
 * of *predicting* positions (0: not supervised), NULL meaning none and 1 everywhere in turn; the
 * last position of a segment is set to 0. */
ms_status ms_batch_new(int64_t tokens, const int32_t *token, int64_t segments,
                       const int32_t *segment_start, const float *response, const float *all,
                       ms_batch **out);
void ms_batch_free(ms_batch *batch);
int64_t ms_batch_tokens(const ms_batch *batch);
int64_t ms_batch_segments(const ms_batch *batch);
enum { MS_ON_RESPONSE = 0, MS_ON_ALL = 1 };
double ms_batch_weight(const ms_batch *batch, int on); /* sum of the weights */
/* How many positions of each segment have a weight: rows[segments]. */
ms_status ms_batch_rows(const ms_batch *batch, int on, int32_t *rows);

/* ---- models ---- */

/* How a model is held. dtype: MS_F32 or MS_BF16 for the weights, -1 for "as stored": bf16 when all
 * weights are, otherwise f32, which holds every stored value (bf16 would round f16's). train:
 * gradients are kept and, for bf16, f32 masters by the optimiser. recompute: activations are rebuilt
 * by layer in the backward pass. frozen: name patterns (with * and ?), separated by spaces, of
 * parameters that get no gradient. head_bytes: budget of the fused head's workspace, 0 for the
 * default. head_only: of a folder, what makes logits of final states: for ranks that get a teacher's
 * states from others, and of no other use. tp: the ranks over which the model is cut, all of which open it alike (NULL: this process
 * has all of it): heads, the intermediate size and the vocabulary. vocab_cut: ids are cut where a
 * vocabulary of that size would be, and the last rank has what is beyond (0: its own size), so that a
 * teacher's part has the ids of the student's. */
typedef struct ms_model_options {
  int32_t dtype, train, recompute, head_only;
  const char *frozen;
  int64_t head_bytes;
  ms_group *tp;
  int64_t vocab_cut;
} ms_model_options;

/* A Hugging Face folder: config.json, safetensors; nothing else in it is needed here. */
ms_status ms_model_open(ms_device *dev, const char *path, const ms_model_options *options,
                        ms_model **out);
/* A random model from the text of a config.json: normal(0, initializer_range), norms 1, biases 0. */
ms_status ms_model_create(ms_device *dev, const char *config, uint64_t seed,
                          const ms_model_options *options, ms_model **out);
/* A student from chosen layers of `teacher` (0-based, ascending); everything else is copied. */
ms_status ms_model_shrink(const ms_model *teacher, const int32_t *layer, int32_t layers,
                          const ms_model_options *options, ms_model **out);
/* A copy on the same device, held as the options say. It and students are cut as their source is: tp and
 * vocab_cut are its own, or not said. */
ms_status ms_model_copy(const ms_model *model, const ms_model_options *options, ms_model **out);
/* Writes a folder that transformers loads: config.json, model.safetensors (with shards over
 * `shard_bytes`, 0 for the default of 5 GB), and the tokenizer and generation files found in the
 * folder `carry` (NULL: the one the model was opened from). Atomic: the folder appears as a whole.
 * dtype -1 writes the dtype the weights are held in, or f16 where the model was opened as stored, not
 * to train, from weights that are all f16. All ranks that have the model write it together, each its
 * part: those over which it is cut, and `same`, those that have what this one has (NULL: nobody else).
 * The folder, which all must see, is the same however the model lies over ranks. */
ms_status ms_model_save(const ms_model *model, ms_group *same, const char *path, const char *carry,
                        int dtype, int64_t shard_bytes);
/* A save and a checkpoint have this text in place of the carried file `name` (chat_template.jinja and
 * the like; those of the tokenizer alone), or none of that name where the text is empty. */
ms_status ms_model_set_text(ms_model *model, const char *name, const char *text);
/* The ids that end an answer, copied: a save and a checkpoint write them into generation_config.json,
 * beside what the carried one says; copies and students take them over. */
ms_status ms_model_set_ends(ms_model *model, int32_t n, const int32_t *id);
/* How many there are, and where (valid until they are set again); -1 while they were not set. */
int32_t ms_model_ends(const ms_model *model, const int32_t **id);
/* What ms_model_save would say of what is at `path` now: MS_OK when there is nothing, or a folder that
 * it may replace. */
ms_status ms_model_save_check(const char *path);
void ms_model_free(ms_model *model);

/* An error that names the first parameter, and its row and column from 0, that holds NaN or
 * infinity. The ranks of a model that is cut call it together. Opening a folder and reading a checkpoint
 * look for themselves. */
ms_status ms_model_check_finite(const ms_model *model);
/* config.json as this model would write it. */
ms_status ms_model_config(const ms_model *model, char **json);
/* A JSON object of facts: family, parameters, layers, hidden_size, vocab, heads, kv_heads, head_dim,
 * dtype, tied, context, path; and "memory": bytes of each arena. */
ms_status ms_model_info(const ms_model *model, char **json);
/* Of configuration and weights: 32 hexadecimal digits, the same for models that compute the same, however
 * they are cut. The ranks of one that is cut call it together. */
ms_status ms_model_hash(const ms_model *model, char **text);
int32_t ms_model_parameter_count(const ms_model *model); /* tensors, tied ones once */
const char *ms_model_parameter_name(const ms_model *model, int32_t i); /* Hugging Face's name */
/* Views of a parameter and of its gradient (f32; NULL when it is frozen or the model does not
 * train). The caller frees them. */
ms_status ms_model_parameter(ms_model *model, int32_t i, ms_tensor **weight);
ms_status ms_model_gradient(ms_model *model, int32_t i, ms_tensor **gradient);
ms_status ms_model_zero_gradients(ms_model *model);

/* Logits of chosen positions, f32 [rows, vocab]. For tests, tools and small vocabularies. */
ms_status ms_model_logits(ms_model *model, const ms_batch *batch, int64_t rows, const int32_t *row,
                          float *logits);

/* ---- teacher targets and losses ---- */

enum { MS_TARGET_TOPK = 0, MS_TARGET_HIDDEN = 1, MS_TARGET_LOGITS = 2 };
/* What to ask of a teacher. temperature: T of the objective; NaN: not given, which is 1 for topk
 * and the term's for the others. teacher_temperature: Tt, which divides the teacher's logits once
 * more. on: which positions. vocab: V_s, the number of shared ids; 0 for the teacher's width.
 * hidden_dtype: MS_F32 or MS_BF16. */
typedef struct ms_target_options {
  int32_t kind, k, on, hidden_dtype;
  int64_t vocab;
  double temperature, teacher_temperature;
} ms_target_options;
/* Runs the teacher over the batch. The target covers the batch's supervised positions in order. */
ms_status ms_model_target(ms_model *teacher, const ms_batch *batch,
                          const ms_target_options *options, ms_target **out);
/* Targets from values: caches and tests. rows are in the order of the supervised positions.
 * topk: id [rows, k] distinct within a row, log_p [rows, k], log_rest [rows] (the log of the
 * leftover mass, -inf for none); options give the T and Tt at which they hold. logits: [rows, vocab]. */
ms_status ms_target_topk(const ms_target_options *options, int64_t rows, const int32_t *id,
                         const float *log_p, const float *log_rest, ms_target **out);
ms_status ms_target_logits(const ms_target_options *options, int64_t rows, const float *logits,
                           ms_target **out);
/* Targets of any kind from final hidden states, f32 [rows, width], and a head, [vocab, width]:
 * what ms_model_target does after the decoder. The logits are c tanh(z / c) of z = scale * product,
 * c = soft_cap, 0 for none. A hidden target keeps the head alive; once the head has changed it is
 * an error to use it. budget as in ms_head_run. */
ms_status ms_target_new(const ms_target_options *options, const ms_tensor *hidden, ms_tensor *head,
                        double scale, double soft_cap, int64_t budget, ms_target **out);
int64_t ms_target_rows(const ms_target *target);
/* kind, T where it was given, Tt, k, vocab, bytes. */
ms_status ms_target_info(const ms_target *target, char **json);
/* A topk target's content, arrays sized as in ms_target_topk; any of them may be NULL. */
ms_status ms_target_read(const ms_target *target, int32_t *id, float *log_p, float *log_rest);
void ms_target_free(ms_target *target);

/* ---- targets that some ranks make and others learn from ---- */

/* Carries targets of one kind between the ranks of a group, whose numbers are those of plans. width: of
 * a row, k or the teacher's hidden size or vocabulary; dtype: of a topk target's log-probabilities on
 * their way, MS_F32 or MS_BF16; head: a model that has the teacher's head, for hidden targets on ranks
 * that learn from them, else NULL. */
ms_status ms_transfer_new(ms_group *group, const ms_target_options *options, int64_t width, int dtype,
                          ms_model *head, ms_transfer **out);
/* Ranks of one machine pass each other rows in memory that they share, after ms_group_share. Every rank of
 * the transfer calls before its first round, with a key that no other transfer has or had; `depth`: rounds
 * that a sender may be ahead. */
ms_status ms_transfer_share(ms_transfer *x, int64_t key, int32_t depth);
int ms_transfer_shares(const ms_transfer *x, int32_t rank); /* 1: with this rank */
/* A round of samples, numbered from 0, of which rows[i] >= 0 rows are supervised, and for which `plan` was
 * filled alike. own[i]: this rank makes sample i, and needs it itself. Begins to receive. */
ms_status ms_transfer_begin(ms_transfer *x, const ms_plan *plan, int32_t samples, const int32_t *rows,
                            const uint8_t *own);
/* A target that this rank has made, of n samples in order; its rows are copied. */
ms_status ms_transfer_add(ms_transfer *x, const ms_target *target, int32_t n, const int32_t *sample);
/* All were added: begins to send them, and waits for nothing. Whoever learns from others' waits for them
 * with ms_transfer_receive, and gives on what the ranks of its group lack. */
ms_status ms_transfer_send(ms_transfer *x);
ms_status ms_transfer_receive(ms_transfer *x);
/* A target of a batch whose segments are n samples that are here. */
ms_status ms_transfer_take(ms_transfer *x, const ms_batch *batch, int32_t n, const int32_t *sample,
                           ms_target **out);
/* The round is over: what is here is dropped, and waited for where it has not come; what was sent is
 * kept until it is read, which ms_transfer_settle waits for. */
ms_status ms_transfer_end(ms_transfer *x);
ms_status ms_transfer_settle(ms_transfer *x);
int64_t ms_transfer_bytes(const ms_transfer *x); /* that it holds now */
/* As JSON: bytes sent and received by tensor, messages, bytes of those passed in shared memory,
 * seconds by phase, bytes held, now and at most. */
ms_status ms_transfer_info(const ms_transfer *x, char **json);
void ms_transfer_free(ms_transfer *x); /* what is under way stays allocated */

/* What there is to know of an objective but its formula. Its number is ms_term's `objective`. */
typedef struct ms_objective {
  const char *name;
  const char *meaning;      /* its formula, in p of the teacher and q of the student */
  const char *parameter;    /* its name; NULL: the objective has none */
  double normal, low, high; /* the parameter's default and bounds */
  int open;                 /* the upper bound itself is not allowed */
  int power;                /* t_scale "auto" is T to this power */
  int gaps;                 /* its value needs the gaps |p - q| over head and tail first */
} ms_objective;
int32_t ms_objectives(void);                           /* how many there are, numbered from 0 */
const ms_objective *ms_objective_get(int32_t number); /* NULL for a number that none has */
/* One entry of the list that makes the loss: weight * sum(a l) / norm, DESIGN section 4. parameter:
 * beta, lambda or alpha; NaN for the default. temperature: NaN takes the target's, or 1 where it has
 * none; another one than the target's is an error. t_scale: NaN for "auto", otherwise the factor
 * itself.
 * norm: the sum of the term's position weights over the whole optimiser step; <= 0 takes this
 * batch's own. target: NULL for CE. */
typedef struct ms_term {
  int32_t kind, objective, tail, on;
  double weight, parameter, temperature, t_scale, norm;
  const ms_target *target;
} ms_term;
/* What one term gave in one call: `value` = sum(a l), factor T^2 included, weight and norm not;
 * `weight` = sum(a); `rows` = positions with a > 0. The rest are sums over those rows weighted by
 * a: `agree` top-1 agreement (CE: with the label; KD: with the teacher's top-1, ids below V_s),
 * `teacher_mass` and `student_mass` in the support (1 for full targets; for CE the label is the
 * support), `teacher_entropy` and `student_entropy` of what is compared (support and leftover, as
 * `tail` says), in nats at this term's T; 0 for CE. */
typedef struct ms_term_result {
  double value, weight, rows, agree, teacher_mass, student_mass, teacher_entropy, student_entropy;
} ms_term_result;

/* Forward, fused head, backward: adds the gradient of sum_i weight_i * value_i / norm_i to the
 * model's gradients. result[terms]. A call that fails may have added a part: zero them then.
 * last: NULL but in a step's last call. There it is the group over which the gradients, which no later
 * call may add to, are summed; the optimiser's step sums those that were not. */
ms_status ms_model_learn(ms_model *model, const ms_batch *batch, int32_t terms, const ms_term *term,
                         ms_group *last, ms_term_result *result);
/* The same values without gradients; keeps no activations. */
ms_status ms_model_evaluate(ms_model *model, const ms_batch *batch, int32_t terms,
                            const ms_term *term, ms_term_result *result);
/* What a segment of a batch has of a term: sums over its positions, as in ms_term_result. */
typedef struct ms_segment_result {
  double value, weight, agree;
} ms_segment_result;
/* The same, and part[segments * terms], of which a segment's terms stand side by side. */
ms_status ms_model_evaluate_parts(ms_model *model, const ms_batch *batch, int32_t terms,
                                  const ms_term *term, ms_term_result *result,
                                  ms_segment_result *part);
/* The fused head alone: hidden f32 [rows, width], head f32 or bf16 [vocab, width], scale and
 * soft_cap as in ms_target_new, label [rows] (NULL without CE), response and all: weights [rows]
 * (NULL: as in ms_batch_new). d_hidden f32 [rows, width] is set, d_head f32 [vocab, width] is added
 * to; d_head or both may be NULL. budget: workspace bytes, 0 for the default. */
ms_status ms_head_run(const ms_tensor *hidden, const ms_tensor *head, double scale, double soft_cap,
                      const int32_t *label, const float *response, const float *all, int32_t terms,
                      const ms_term *term, int64_t budget, ms_tensor *d_hidden, ms_tensor *d_head,
                      ms_term_result *result);

/* ---- generation ---- */

/* temperature 0 is greedy; top_k 0 and top_p 1 are off. Row i of prompt is
 * token[start[i] .. start[i + 1]). Rows stop at a stop token, at max_new, or at the context's end.
 * Draws are a function of the seed, of first + i and of the step: prompts may be given in parts. */
typedef struct ms_generate_options {
  double temperature, top_p;
  int32_t top_k, max_new, stops, first;
  const int32_t *stop;
  uint64_t seed;
} ms_generate_options;
ms_status ms_generator_new(ms_model *model, int32_t prompts, const int32_t *token,
                           const int32_t *start, const ms_generate_options *options,
                           ms_generator **out);
/* The next token of each prompt, -1 for rows that have ended; *live counts rows not ended. An error
 * once the model's weights have changed. */
ms_status ms_generator_next(ms_generator *gen, int32_t *token, int32_t *live);
void ms_generator_free(ms_generator *gen);

/* ---- optimiser and checkpoints ---- */

/* What of a run's memory ranks that learn from different batches share out: nothing; moments and masters,
 * each rank updating a part of every weight; weights and gradients as well. */
enum { MS_SHARD_NONE, MS_SHARD_OPTIMIZER, MS_SHARD_PARAMETERS };

/* Decoupled AdamW; no decay on norms and biases. clip: global norm, 0 for none. group: the ranks over
 * which gradients are summed, and which make every step and every checkpoint together. Weights are the
 * same bits for every `shard`. */
typedef struct ms_adamw_options {
  double beta1, beta2, eps, weight_decay, clip;
  int32_t shard;
} ms_adamw_options;
ms_status ms_optimizer_new(ms_model *model, ms_group *group, const ms_adamw_options *options,
                           ms_optimizer **out);
void ms_optimizer_free(ms_optimizer *opt);
/* One update from the model's gradients, which are zeroed. *grad_norm is that before clipping. A
 * non-finite gradient, or one whose norm is above 1e19 after clipping (its square is not finite in
 * f32), makes no update (no decay, no moments): *skipped is 1. */
ms_status ms_optimizer_step(ms_optimizer *opt, double lr, double *grad_norm, int32_t *skipped);
int64_t ms_optimizer_steps(const ms_optimizer *opt); /* updates made */
int64_t ms_optimizer_bytes(const ms_optimizer *opt); /* of this rank's moments and masters */
/* Bytes that the ranks of its group send each other in a step, all of them together, by formula: for
 * gradients, for weights, and for the norm. */
void ms_optimizer_sends(const ms_optimizer *opt, int64_t bytes[3]);
/* First and second moment of parameter i, f32 views; the caller frees them. Where ranks share them out:
 * copies, for which all of them call. */
ms_status ms_optimizer_moment(ms_optimizer *opt, int32_t i, int second, ms_tensor **moment);

/* A checkpoint is a folder: a model folder as above, optimizer.safetensors (moments, masters) and
 * state.json (`state`, with the sizes and hashes of the other files, and its own). It appears as a
 * whole. What was at `path` is removed if it is a checkpoint and nothing else; or else set aside. All
 * ranks of the optimiser's group, and those over which the model is cut, write it together, each its part
 * of every file, and read it so: it is the same however they lie, and any other layout goes on from it. */
ms_status ms_checkpoint_write(const char *path, const ms_model *model, ms_optimizer *opt,
                              const char *state);
/* The same while training goes on: a thread writes this rank's part from the model's and the optimiser's own
 * memory, and whoever is about to change that (a step of the optimiser) waits until it was read. Passes
 * go on. One at a time; what is not ended is given up when the optimiser is freed. */
ms_status ms_checkpoint_begin(const char *path, const ms_model *model, ms_optimizer *opt,
                              const char *state);
/* All ranks call it: puts the checkpoint in its place once each has written its part, for which it waits if
 * it is told to; until then *pending is 1. *waited: seconds that changes have waited since it began. */
ms_status ms_checkpoint_end(ms_optimizer *opt, int wait, int32_t *pending, double *waited);
/* The newest complete checkpoint below `path`: *found is its folder, or NULL. Damaged ones are passed
 * over with a warning; one that cannot be read just now is an error. */
ms_status ms_checkpoint_find(const char *path, char **found);
/* Puts weights and moments back, bit for bit, and returns the state's text. A checkpoint of a model
 * that computes otherwise, by other shapes or anything else that config.json says, is an error. */
ms_status ms_checkpoint_read(const char *path, ms_model *model, ms_optimizer *opt, char **state);
/* Removes a checkpoint, damaged or not; one in which other files have been put is an error. */
ms_status ms_checkpoint_remove(const char *path);
/* cdef end */

/* The text between the marks. */
const char *ms_cdef(void);
#pragma GCC visibility pop
#endif
