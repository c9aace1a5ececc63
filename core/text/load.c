/* load.c - from tokenizer.json to a tokenizer.
 *
 * The file is untrusted. What is not understood is an error that names it: without a component the ids
 * would be others. `truncation` and `padding` alone are ignored: the caller decides what is too long. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "../base/json.h"
#include "../base/memory.h"
#include "tokenizer.h"
#include "unicode.h"
#include "utf8.h"

/* A message of the file's name, the place and what is wrong. */
static ms_status malformed(const ms_tokenizer *tok, const char *where, const char *what) {
  return MS_FAIL(MS_EIO, "%s: %s: %s", tok->path, where, what);
}

static ms_status unsupported(const ms_tokenizer *tok, const char *where, const char *what,
                             const char *value) {
  return MS_FAIL(MS_EUNSUPPORTED, "%s: %s: %s \"%.80s\" is not supported", tok->path, where, what,
                 value);
}

static int is_null(const json_t *v) { return !v || json_is_null(v); }

static const char *type_of(const json_t *v) {
  const char *t = json_string_value(json_object_get(v, "type"));
  return t ? t : "";
}

static ms_status get_flag(const ms_tokenizer *tok, const json_t *v, const char *where,
                          const char *key, int missing, int *out) {
  const json_t *b = json_object_get(v, key);
  *out = missing;
  if (is_null(b)) return MS_OK;
  if (!json_is_boolean(b))
    return MS_FAIL(MS_EIO, "%s: %s: \"%s\" is not true or false", tok->path, where, key);
  *out = json_is_true(b);
  return MS_OK;
}

static ms_status get_text(const ms_tokenizer *tok, const json_t *v, const char *where,
                          const char *key, const json_t **out) {
  *out = json_object_get(v, key);
  if (json_is_string(*out)) return MS_OK;
  return MS_FAIL(MS_EIO, "%s: %s: \"%s\" is not a string", tok->path, where, key);
}

static ms_status copy_text(const json_t *v, char **text, size_t *bytes) {
  *bytes = json_string_length(v);
  return ms_text_copy(json_string_value(v), *bytes, text);
}

/* ---- model ---- */

static ms_status load_vocab(ms_tokenizer *tok, const json_t *vocab) {
  if (!json_is_object(vocab)) return malformed(tok, "model.vocab", "not an object");
  for (void *it = json_object_iter((json_t *)vocab); it;
       it = json_object_iter_next((json_t *)vocab, it)) {
    const char *text = json_object_iter_key(it);
    size_t bytes = json_object_iter_key_len(it);
    const json_t *v = json_object_iter_value(it);
    char shown[80];
    int what;
    json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
    if (id < 0 || id >= MS_VOCAB_MOST)
      return MS_FAIL(MS_EIO, "%s: model.vocab: id of \"%.80s\" is %s, not an integer in 0..%d",
                     tok->path, text, ms_json_show(v, shown, sizeof shown), MS_VOCAB_MOST - 1);
    MS_TRY(ms_vocab_add(&tok->bpe.vocab, text, bytes, (int32_t)id, &what));
    if (what != MS_VOCAB_ADDED)
      return MS_FAIL(MS_EIO, "%s: model.vocab: \"%.80s\" has id %d, which another token has",
                     tok->path, text, (int)id);
    MS_TRY(ms_vocab_add(&tok->vocab, text, bytes, (int32_t)id, &what));
  }
  return MS_OK;
}

/* A merge is "left right" or ["left", "right"]. */
static int merge_parts(const json_t *v, const char **a, size_t *na, const char **b, size_t *nb) {
  if (json_is_string(v)) {
    *a = json_string_value(v);
    size_t n = json_string_length(v);
    const char *space = memchr(*a, ' ', n);
    if (!space || memchr(space + 1, ' ', n - (size_t)(space + 1 - *a))) return 0;
    *na = (size_t)(space - *a);
    *b = space + 1;
    *nb = n - *na - 1;
    return 1;
  }
  if (!json_is_array(v) || json_array_size(v) != 2) return 0;
  const json_t *left = json_array_get(v, 0), *right = json_array_get(v, 1);
  if (!json_is_string(left) || !json_is_string(right)) return 0;
  *a = json_string_value(left);
  *na = json_string_length(left);
  *b = json_string_value(right);
  *nb = json_string_length(right);
  return 1;
}

static ms_status load_merges(ms_tokenizer *tok, const json_t *merges) {
  if (!json_is_array(merges)) return malformed(tok, "model.merges", "not an array");
  size_t n = json_array_size(merges);
  if (n > INT32_MAX / 4) return malformed(tok, "model.merges", "too many");
  MS_TRY(ms_bpe_prepare(&tok->bpe, n));
  for (size_t i = 0; i < n; i++) {
    const char *a, *b;
    size_t na, nb;
    int known;
    if (!merge_parts(json_array_get(merges, i), &a, &na, &b, &nb))
      return MS_FAIL(MS_EIO, "%s: model.merges[%zu]: not two tokens", tok->path, i);
    MS_TRY(ms_bpe_add_pair(&tok->bpe, a, na, b, nb, (int32_t)i, &known));
    if (!known)
      return MS_FAIL(MS_EIO,
                     "%s: model.merges[%zu]: \"%.*s\" and \"%.*s\", or what they make, are not in "
                     "the vocabulary",
                     tok->path, i, (int)(na < 40 ? na : 40), a, (int)(nb < 40 ? nb : 40), b);
  }
  return MS_OK;
}

static ms_status no_text(const ms_tokenizer *tok, const json_t *model, const char *key) {
  const json_t *v = json_object_get(model, key);
  if (is_null(v) || (json_is_string(v) && !json_string_length(v))) return MS_OK;
  return unsupported(tok, "model", key, json_is_string(v) ? json_string_value(v) : "(no string)");
}

static ms_status load_unk(ms_tokenizer *tok, const json_t *model) {
  const json_t *unk = json_object_get(model, "unk_token");
  if (is_null(unk)) return MS_OK;
  if (!json_is_string(unk)) return malformed(tok, "model.unk_token", "not a string");
  tok->bpe.unk = ms_vocab_id(&tok->bpe.vocab, json_string_value(unk), json_string_length(unk));
  if (tok->bpe.unk < 0) tok->bpe.unk = MS_BPE_UNK_LOST;
  return MS_OK;
}

static ms_status load_model(ms_tokenizer *tok, const json_t *model) {
  ms_bpe *m = &tok->bpe;
  if (!json_is_object(model)) return malformed(tok, "model", "not an object");
  const char *type = type_of(model);
  /* Old files do not name the type: it follows from their keys. */
  if (!*type && json_object_get(model, "merges")) type = "BPE";
  if (!*type && json_is_array(json_object_get(model, "vocab"))) type = "Unigram";
  if (strcmp(type, "BPE")) return unsupported(tok, "model", "type", type);
  MS_TRY(no_text(tok, model, "continuing_subword_prefix"));
  MS_TRY(no_text(tok, model, "end_of_word_suffix"));
  const json_t *dropout = json_object_get(model, "dropout");
  if (!is_null(dropout) && json_number_value(dropout) != 0)
    return unsupported(tok, "model", "dropout", "other than 0");
  MS_TRY(get_flag(tok, model, "model", "fuse_unk", 0, &m->fuse_unk));
  MS_TRY(get_flag(tok, model, "model", "byte_fallback", 0, &m->byte_fallback));
  MS_TRY(get_flag(tok, model, "model", "ignore_merges", 0, &m->ignore_merges));
  MS_TRY(load_vocab(tok, json_object_get(model, "vocab")));
  MS_TRY(load_unk(tok, model));
  return load_merges(tok, json_object_get(model, "merges"));
}

/* ---- chains ---- */

typedef ms_status step_loader(ms_tokenizer *tok, const json_t *v, const char *where, ms_steps *out);

static ms_status new_step(const ms_tokenizer *tok, const char *where, ms_steps *s, int kind,
                          ms_step **out) {
  *out = NULL;
  if (s->count == MS_STEPS_MOST)
    return MS_FAIL(MS_EUNSUPPORTED, "%s: %s: more than %d steps", tok->path, where, MS_STEPS_MOST);
  *out = &s->step[s->count++];
  **out = (ms_step){.kind = kind};
  return MS_OK;
}

/* A component, or a Sequence of them under `list`. */
static ms_status load_chain(ms_tokenizer *tok, const json_t *v, const char *where, const char *list,
                            int depth, step_loader *one, ms_steps *out) {
  if (is_null(v)) return MS_OK;
  if (!json_is_object(v)) return malformed(tok, where, "not an object");
  if (strcmp(type_of(v), "Sequence")) return one(tok, v, where, out);
  const json_t *items = json_object_get(v, list);
  if (!json_is_array(items) || depth > 4)
    return malformed(tok, where, "a Sequence without its list");
  for (size_t i = 0; i < json_array_size(items); i++) {
    char place[160];
    snprintf(place, sizeof place, "%.100s.%s[%zu]", where, list, i);
    MS_TRY(load_chain(tok, json_array_get(items, i), place, list, depth + 1, one, out));
  }
  return MS_OK;
}

/* {"String": ...} or {"Regex": ...} */
static ms_status load_pattern(ms_tokenizer *tok, const json_t *v, const char *where, ms_step *s) {
  char place[1200];
  const json_t *p = json_object_get(v, "pattern"), *text = json_object_get(p, "String");
  const json_t *regex = json_object_get(p, "Regex");
  if (json_is_string(text) && json_string_length(text))
    return copy_text(text, &s->literal, &s->literal_bytes);
  if (!json_is_string(regex) || !json_string_length(regex))
    return malformed(tok, where, "\"pattern\" is no {\"String\": ...} and no {\"Regex\": ...}");
  snprintf(place, sizeof place, "%.1000s: %.150s", tok->path, where);
  return ms_regex_new(place, json_string_value(regex), json_string_length(regex), &s->regex);
}

static ms_status load_normalizer(ms_tokenizer *tok, const json_t *v, const char *where,
                                 ms_steps *out) {
  const char *type = type_of(v);
  const json_t *text;
  ms_step *s;
  if (!strcmp(type, "NFC")) return new_step(tok, where, out, MS_STEP_NFC, &s);
  if (!strcmp(type, "Prepend")) {
    MS_TRY(get_text(tok, v, where, "prepend", &text));
    MS_TRY(new_step(tok, where, out, MS_STEP_PREPEND, &s));
    return copy_text(text, &s->text, &s->text_bytes);
  }
  if (!strcmp(type, "Replace")) {
    MS_TRY(get_text(tok, v, where, "content", &text));
    MS_TRY(new_step(tok, where, out, MS_STEP_REPLACE, &s));
    MS_TRY(copy_text(text, &s->text, &s->text_bytes));
    return load_pattern(tok, v, where, s);
  }
  return unsupported(tok, where, "normalizer", type);
}

static ms_status load_behavior(ms_tokenizer *tok, const json_t *v, const char *where, ms_step *s) {
  static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                      "Contiguous"}; /* in the order of MS_SPLIT */
  const json_t *name;
  MS_TRY(get_text(tok, v, where, "behavior", &name));
  for (int i = 0; i < 5; i++) {
    s->behavior = i;
    if (!strcmp(json_string_value(name), names[i])) return MS_OK;
  }
  return unsupported(tok, where, "behavior", json_string_value(name));
}

/* What GPT-2 splits by. */
static const char GPT2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static ms_status load_byte_level(ms_tokenizer *tok, const json_t *v, const char *where,
                                 ms_steps *out) {
  int prefix, regex;
  ms_step *s;
  MS_TRY(get_flag(tok, v, where, "add_prefix_space", 1, &prefix));
  MS_TRY(get_flag(tok, v, where, "use_regex", 1, &regex));
  if (prefix) MS_TRY(new_step(tok, where, out, MS_STEP_PREFIX, &s));
  if (regex) {
    MS_TRY(new_step(tok, where, out, MS_STEP_SPLIT, &s));
    s->behavior = MS_SPLIT_ISOLATED;
    MS_TRY(ms_regex_new(where, GPT2, sizeof GPT2 - 1, &s->regex));
  }
  return new_step(tok, where, out, MS_STEP_BYTES, &s);
}

/* Metaspace's replacement and scheme, of a pre-tokenizer or decoder. Old files have add_prefix_space. */
static ms_status load_scheme(ms_tokenizer *tok, const json_t *v, const char *where, ms_step *s) {
  static const char *const names[] = {"always", "first", "never"}; /* in the order of MS_SCHEME */
  const json_t *text, *scheme = json_object_get(v, "prepend_scheme");
  int prefix;
  MS_TRY(get_text(tok, v, where, "replacement", &text));
  MS_TRY(get_flag(tok, v, where, "add_prefix_space", 1, &prefix));
  MS_TRY(copy_text(text, &s->text, &s->text_bytes));
  if (!s->text_bytes || ms_utf8_scan(s->text, s->text_bytes) != (int)s->text_bytes)
    return malformed(tok, where, "\"replacement\" is not one character");
  s->scheme = prefix ? MS_SCHEME_ALWAYS : MS_SCHEME_NEVER;
  if (is_null(scheme)) return MS_OK;
  for (int i = 0; i < 3; i++) {
    s->scheme = i;
    if (json_is_string(scheme) && !strcmp(json_string_value(scheme), names[i])) break;
    if (i == 2) return malformed(tok, where, "\"prepend_scheme\" is not always, first or never");
  }
  if (!prefix && s->scheme != MS_SCHEME_NEVER)
    return malformed(tok, where, "\"add_prefix_space\" contradicts \"prepend_scheme\"");
  return MS_OK;
}

static ms_status load_metaspace(ms_tokenizer *tok, const json_t *v, const char *where,
                                ms_steps *out) {
  int split;
  ms_step *s, *cut;
  MS_TRY(get_flag(tok, v, where, "split", 1, &split));
  MS_TRY(new_step(tok, where, out, MS_STEP_META, &s));
  MS_TRY(load_scheme(tok, v, where, s));
  if (!split) return MS_OK;
  MS_TRY(new_step(tok, where, out, MS_STEP_SPLIT, &cut));
  cut->behavior = MS_SPLIT_NEXT;
  cut->literal_bytes = s->text_bytes;
  return ms_text_copy(s->text, s->text_bytes, &cut->literal);
}

static ms_status load_class(ms_tokenizer *tok, const json_t *v, const char *where, ms_steps *out) {
  const char *type = type_of(v);
  int apart = 0;
  ms_step *s;
  MS_TRY(new_step(tok, where, out, MS_STEP_SPLIT, &s));
  if (!strcmp(type, "Digits")) {
    MS_TRY(get_flag(tok, v, where, "individual_digits", 0, &apart));
    s->is_in = ms_char_is_numeric;
    s->behavior = apart ? MS_SPLIT_ISOLATED : MS_SPLIT_CONTIGUOUS;
  } else if (!strcmp(type, "Punctuation")) {
    s->is_in = ms_char_is_punctuation;
    s->behavior = MS_SPLIT_ISOLATED;
    if (json_object_get(v, "behavior")) MS_TRY(load_behavior(tok, v, where, s));
  } else {
    s->is_in = ms_char_is_space;
    s->behavior = MS_SPLIT_REMOVED;
  }
  return MS_OK;
}

/* Runs of word characters and runs of other signs. No pattern's \w is meant: Oniguruma's counts
 * fractions and superscripts as parts of words, and joiners not. */
static ms_status load_whitespace(ms_tokenizer *tok, const char *where, ms_steps *out) {
  ms_step *s;
  MS_TRY(new_step(tok, where, out, MS_STEP_SPLIT, &s));
  s->is_in = ms_char_is_space;
  s->behavior = MS_SPLIT_REMOVED;
  MS_TRY(new_step(tok, where, out, MS_STEP_SPLIT, &s));
  s->is_in = ms_char_is_word;
  s->behavior = MS_SPLIT_CONTIGUOUS;
  return MS_OK;
}

static ms_status load_split(ms_tokenizer *tok, const json_t *v, const char *where, ms_steps *out) {
  ms_step *s;
  MS_TRY(new_step(tok, where, out, MS_STEP_SPLIT, &s));
  MS_TRY(get_flag(tok, v, where, "invert", 0, &s->invert));
  MS_TRY(load_behavior(tok, v, where, s));
  return load_pattern(tok, v, where, s);
}

static ms_status load_pretokenizer(ms_tokenizer *tok, const json_t *v, const char *where,
                                   ms_steps *out) {
  const char *type = type_of(v);
  if (!strcmp(type, "Split")) return load_split(tok, v, where, out);
  if (!strcmp(type, "ByteLevel")) return load_byte_level(tok, v, where, out);
  if (!strcmp(type, "Metaspace")) return load_metaspace(tok, v, where, out);
  if (!strcmp(type, "Digits") || !strcmp(type, "Punctuation") || !strcmp(type, "WhitespaceSplit"))
    return load_class(tok, v, where, out);
  if (!strcmp(type, "Whitespace")) return load_whitespace(tok, where, out);
  return unsupported(tok, where, "pre-tokenizer", type);
}

static ms_status load_strip(ms_tokenizer *tok, const json_t *v, const char *where, ms_steps *out) {
  const json_t *text, *start = json_object_get(v, "start"), *stop = json_object_get(v, "stop");
  char a[40], b[40];
  ms_step *s;
  int n;
  MS_TRY(get_text(tok, v, where, "content", &text));
  const char *c = json_string_value(text);
  size_t bytes = json_string_length(text);
  if (!bytes || ms_utf8_scan(c, bytes) != (int)bytes)
    return malformed(tok, where, "\"content\" is not one character");
  if (!json_is_integer(start) || !json_is_integer(stop) || json_integer_value(start) < 0 ||
      json_integer_value(stop) < 0 || json_integer_value(start) > INT_MAX ||
      json_integer_value(stop) > INT_MAX)
    return MS_FAIL(MS_EIO, "%s: %s: \"start\" and \"stop\" are %s and %s, not counts", tok->path,
                   where, start ? ms_json_show(start, a, sizeof a) : "missing",
                   stop ? ms_json_show(stop, b, sizeof b) : "missing");
  MS_TRY(new_step(tok, where, out, MS_STEP_DECODE_STRIP, &s));
  s->strip = ms_utf8_get(c, &n);
  s->strip_start = (int32_t)json_integer_value(start);
  s->strip_stop = (int32_t)json_integer_value(stop);
  return MS_OK;
}

static ms_status load_decoder(ms_tokenizer *tok, const json_t *v, const char *where,
                              ms_steps *out) {
  const char *type = type_of(v);
  ms_step *s;
  if (!strcmp(type, "Replace")) return load_normalizer(tok, v, where, out); /* the same step */
  if (!strcmp(type, "Strip")) return load_strip(tok, v, where, out);
  if (!strcmp(type, "ByteLevel")) return new_step(tok, where, out, MS_STEP_DECODE_BYTES, &s);
  if (!strcmp(type, "ByteFallback")) return new_step(tok, where, out, MS_STEP_DECODE_FALLBACK, &s);
  if (!strcmp(type, "Fuse")) return new_step(tok, where, out, MS_STEP_DECODE_FUSE, &s);
  if (strcmp(type, "Metaspace")) return unsupported(tok, where, "decoder", type);
  MS_TRY(new_step(tok, where, out, MS_STEP_DECODE_META, &s));
  return load_scheme(tok, v, where, s);
}

/* Whether a joining step may pass text on at once: all steps after it only strip the front. */
static ms_status finish_decoder(ms_tokenizer *tok) {
  ms_steps *d = &tok->decoder;
  ms_step *s;
  int fused = 0;
  if (!d->count) return new_step(tok, "decoder", d, MS_STEP_DECODE_JOIN, &s);
  tok->decode_streams = 1;
  for (int i = 0; i < d->count; i++) {
    s = &d->step[i];
    int front = s->kind == MS_STEP_DECODE_STRIP && !s->strip_stop;
    if (fused && !front && s->kind != MS_STEP_DECODE_FUSE) tok->decode_streams = 0;
    fused = fused || s->kind == MS_STEP_DECODE_FUSE || s->kind == MS_STEP_DECODE_BYTES;
    s->fused = fused;
  }
  for (int i = 0; i < d->count; i++) d->step[i].fused &= tok->decode_streams;
  return MS_OK;
}

/* ---- added tokens ---- */

static ms_status place_added(ms_tokenizer *tok, const json_t *text, int normalized, int32_t id,
                             int flags) {
  const char *p = json_string_value(text);
  size_t bytes = json_string_length(text);
  ms_draft out = {0}, spare = {0};
  ms_slice in = {p, bytes, NULL};
  ms_room room = {0};
  ms_matcher *m = NULL;
  ms_room_give(&room, bytes);
  if (!normalized) return ms_added_add(&tok->added[0], p, bytes, id, flags);
  /* Tokens that are looked for in normalized text are normalized themselves. */
  ms_status st = ms_matcher_new(&m);
  if (st == MS_OK) st = ms_normalize(&tok->normalizer, m, in, &out, &spare, &room);
  if (st == MS_OK) st = ms_added_add(&tok->added[1], out.text.data, out.text.size, id, flags);
  ms_matcher_free(m);
  ms_draft_free(&out);
  ms_draft_free(&spare);
  return st;
}

static ms_status register_added(ms_tokenizer *tok, const json_t *text, const char *where,
                                int32_t id, int special) {
  const char *p = json_string_value(text);
  int what;
  MS_TRY(ms_vocab_add(&tok->vocab, p, json_string_length(text), id, &what));
  if (what == MS_VOCAB_ID_TAKEN)
    return MS_FAIL(MS_EIO, "%s: %s: \"%.80s\" has id %d, which another token has", tok->path, where,
                   p, id);
  int32_t there = ms_vocab_id(&tok->vocab, p, json_string_length(text));
  if (there != id)
    return MS_FAIL(MS_EIO, "%s: %s: \"%.80s\" has id %d here and %d in the vocabulary", tok->path,
                   where, p, id, there);
  size_t have = tok->kind.size, want = (size_t)tok->vocab.size;
  if (want > have) {
    MS_TRY(ms_buf_reserve(&tok->kind, want - have));
    memset(tok->kind.data + have, 0, want - have);
    tok->kind.size = want;
  }
  tok->kind.data[id] |= special ? MS_TOKEN_ADDED | MS_TOKEN_SPECIAL : MS_TOKEN_ADDED;
  return MS_OK;
}

static ms_status load_added(ms_tokenizer *tok, const json_t *list) {
  if (is_null(list)) return MS_OK;
  if (!json_is_array(list)) return malformed(tok, "added_tokens", "not an array");
  for (size_t i = 0; i < json_array_size(list); i++) {
    char where[64], shown[80];
    int special, normalized, word, left, right;
    const json_t *v = json_array_get(list, i), *text, *id = json_object_get(v, "id");
    snprintf(where, sizeof where, "added_tokens[%zu]", i);
    MS_TRY(get_text(tok, v, where, "content", &text));
    if (!json_is_integer(id) || json_integer_value(id) < 0 ||
        json_integer_value(id) >= MS_VOCAB_MOST)
      return MS_FAIL(MS_EIO, "%s: %s: \"id\" is %s, not an id", tok->path, where,
                     id ? ms_json_show(id, shown, sizeof shown) : "missing");
    MS_TRY(get_flag(tok, v, where, "special", 0, &special));
    MS_TRY(get_flag(tok, v, where, "normalized", !special, &normalized));
    MS_TRY(get_flag(tok, v, where, "single_word", 0, &word));
    MS_TRY(get_flag(tok, v, where, "lstrip", 0, &left));
    MS_TRY(get_flag(tok, v, where, "rstrip", 0, &right));
    if (!json_string_length(text)) return malformed(tok, where, "\"content\" is empty");
    int flags = special * MS_ADDED_SPECIAL | word * MS_ADDED_SINGLE_WORD | left * MS_ADDED_LSTRIP |
                right * MS_ADDED_RSTRIP;
    MS_TRY(register_added(tok, text, where, (int32_t)json_integer_value(id), special));
    MS_TRY(place_added(tok, text, normalized, (int32_t)json_integer_value(id), flags));
  }
  return MS_OK;
}

/* ---- post-processor ---- */

static ms_status add_template_ids(ms_tokenizer *tok, const json_t *tokens, const json_t *piece,
                                  const char *where, ms_buf *out) {
  const char *name = json_string_value(json_object_get(piece, "id"));
  const json_t *ids = json_object_get(json_object_get(tokens, name ? name : ""), "ids");
  if (!name || !json_is_array(ids)) return malformed(tok, where, "a special token without ids");
  for (size_t i = 0; i < json_array_size(ids); i++) {
    const json_t *v = json_array_get(ids, i);
    char shown[80];
    size_t bytes;
    int32_t id = -1;
    if (json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) < MS_VOCAB_MOST)
      id = (int32_t)json_integer_value(v);
    if (!ms_vocab_text(&tok->vocab, id, &bytes))
      return MS_FAIL(MS_EIO, "%s: %s: \"ids\": %s is an id that no token has", tok->path, where,
                     ms_json_show(v, shown, sizeof shown));
    MS_TRY(ms_buf_add(out, &id, sizeof id));
  }
  return MS_OK;
}

/* The ids before the text are put before those of an earlier template. */
static ms_status load_template(ms_tokenizer *tok, const json_t *v, const char *where) {
  const json_t *single = json_object_get(v, "single"),
               *tokens = json_object_get(v, "special_tokens");
  ms_buf before = {0};
  ms_status st = MS_OK;
  int sequences = 0;
  if (!json_is_array(single)) return malformed(tok, where, "\"single\" is not an array");
  for (size_t i = 0; i < json_array_size(single) && st == MS_OK; i++) {
    const json_t *piece = json_array_get(single, i),
                 *token = json_object_get(piece, "SpecialToken");
    if (json_object_get(piece, "Sequence")) {
      sequences++;
    } else {
      st = add_template_ids(tok, tokens, token, where, sequences ? &tok->after : &before);
    }
  }
  if (st == MS_OK && sequences != 1) st = malformed(tok, where, "\"single\" has not one Sequence");
  if (st == MS_OK) st = ms_buf_add(&before, tok->before.data, tok->before.size);
  ms_buf_free(&tok->before);
  tok->before = before;
  return st;
}

static ms_status load_processor(ms_tokenizer *tok, const json_t *v, const char *where,
                                ms_steps *unused) {
  if (!strcmp(type_of(v), "TemplateProcessing")) return load_template(tok, v, where);
  if (!strcmp(type_of(v), "ByteLevel")) return MS_OK; /* offsets only */
  return unsupported(tok, where, "post-processor", type_of(v));
}

/* ---- the file ---- */

/* The kind of file that a valid JSON text is, by its keys, when it is no tokenizer.json. */
static ms_status no_tokenizer(const ms_tokenizer *tok, const json_t *root) {
  static const char *const others[][2] = {
      {"model_type", "a model's config.json"},        {"weight_map", "an index of weights"},
      {"tokenizer_class", "a tokenizer_config.json"}, {"chat_template", "a tokenizer_config.json"},
      {"bos_token", "a special_tokens_map.json"},     {"eos_token_id", "a generation_config.json"},
  };
  const char *what = json_is_array(root) ? "a JSON array" : "no object of JSON";
  if (json_is_object(root)) {
    const char *first = json_object_iter_key(json_object_iter((json_t *)root));
    what = first && json_is_integer(json_object_get(root, first)) ? "a vocab.json, without merges"
                                                                  : "an object without 'model'";
    for (size_t i = sizeof others / sizeof *others; i-- > 0;) /* the first in the table decides */
      if (json_object_get(root, others[i][0])) what = others[i][1];
  }
  return MS_FAIL(MS_EIO,
                 "%s: is no tokenizer but %s: get tokenizer.json from where the model came from",
                 tok->path, what);
}

static ms_status load_parts(ms_tokenizer *tok, const json_t *root) {
  ms_steps none = {.count = 0};
  if (!json_object_get(root, "model")) return no_tokenizer(tok, root);
  MS_TRY(load_model(tok, json_object_get(root, "model")));
  MS_TRY(load_chain(tok, json_object_get(root, "normalizer"), "normalizer", "normalizers", 0,
                    load_normalizer, &tok->normalizer));
  MS_TRY(load_chain(tok, json_object_get(root, "pre_tokenizer"), "pre_tokenizer", "pretokenizers",
                    0, load_pretokenizer, &tok->pretokenizer));
  MS_TRY(load_chain(tok, json_object_get(root, "decoder"), "decoder", "decoders", 0, load_decoder,
                    &tok->decoder));
  MS_TRY(finish_decoder(tok));
  MS_TRY(load_added(tok, json_object_get(root, "added_tokens")));
  return load_chain(tok, json_object_get(root, "post_processor"), "post_processor", "processors", 0,
                    load_processor, &none);
}

ms_status ms_tokenizer_load(ms_tokenizer *tok) {
  json_t *root;
  MS_TRY(ms_json_read(tok->path, MS_JSON_MAX_BYTES, &root));
  ms_status st = load_parts(tok, root);
  json_decref(root);
  return st;
}
