/* guess_folder.c - folders that people really have in the place of others, known by their files. */
#include <dirent.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "guess.h"
#include "../moonstill.h"
#include "json.h"
#include "memory.h"

typedef struct folder {
  const char *path;
  const char *want; /* the file that is not in it */
  char found[256];  /* a name in it, of the last look */
  char said[1000];  /* the sentence */
} folder;

/* Writes the sentence; returns 1. */
__attribute__((format(printf, 2, 3))) static int say(folder *f, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(f->said, sizeof f->said, format, args);
  va_end(args);
  return 1;
}

#define PATH "%.300s" /* a path that is said again within the sentence */

#define ORIGINAL "its original folder is needed, with config.json, tokenizer.json and .safetensors"

static int wants(const folder *f, const char *name) { return !strcmp(f->want, name); }

static int has(const folder *f, const char *name) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/%s", f->path, name);
  return ms_path_kind(path) != 0;
}

/* Whether a name has this beginning and end; `found` is the first in order. */
static int holds(folder *f, const char *begin, const char *end) {
  return ms_folder_holds(f->path, begin, end, f->found);
}

/* The last in order (checkpoint-1000 after checkpoint-500) of the folders in `place` whose names have
 * this beginning and that have the file. */
static int sub_with(const char *place, const char *begin, const char *file, char found[256]) {
  char path[PATH_MAX];
  DIR *dir = opendir(place);
  found[0] = 0;
  if (!dir) return 0;
  for (struct dirent *e; (e = readdir(dir));) {
    if (e->d_name[0] == '.' || strncmp(e->d_name, begin, strlen(begin))) continue;
    snprintf(path, sizeof path, "%s/%s/%s", place, e->d_name, file);
    if (ms_path_kind(path) && strverscmp(e->d_name, found) > 0) strcpy(found, e->d_name);
  }
  closedir(dir);
  return *found != 0;
}

/* ---- of any folder ---- */

/* The wanted file is a link to nothing, or its download has not ended. */
static int guess_wanted(folder *f) {
  char path[PATH_MAX], *text;
  snprintf(path, sizeof path, "%s/%s", f->path, f->want);
  if (ms_file_guess(path, &text) != MS_OK || !text) return 0;
  say(f, "its %s %s", f->want, text);
  ms_text_free(text);
  return 1;
}

static int guess_empty(folder *f) {
  char *names;
  if (ms_dir_list(f->path, &names) != MS_OK) return 0;
  int empty = !*names;
  ms_text_free(names);
  return empty && say(f, "is an empty folder: %s is needed there", f->want);
}

static int guess_download(folder *f) {
  static const char *const ends[] = {".incomplete", ".part",     ".partial",
                                     ".crdownload", ".download", ".aria2"};
  static const char *const places[] = {".cache/huggingface/download", "blobs", "../../blobs"};
  char other[PATH_MAX];
  for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
    if (holds(f, "", ends[i]))
      return say(f, "is not whole: the download of %s has not ended", f->found);
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
    snprintf(other, sizeof other, "%s/%s", f->path, places[i]);
    if ((i < 2 || strstr(f->path, "snapshots/")) &&
        ms_folder_holds(other, "", ".incomplete", f->found))
      return say(f, "is not whole: a download into it has not ended (%s/%s): start it again",
                 places[i], f->found);
  }
  return 0;
}

/* Up to five names, for a folder of which nothing else is known. */
static int list_names(folder *f) {
  char *names, some[300] = "";
  size_t n = 0, at = 0;
  if (ms_dir_list(f->path, &names) != MS_OK) return 0;
  for (char *save, *name = strtok_r(names, "\n", &save); name; name = strtok_r(NULL, "\n", &save)) {
    if (n++ < 5)
      at += (size_t)snprintf(some + at, sizeof some - at, "%s%.50s", at ? ", " : "", name);
  }
  ms_text_free(names);
  return say(f, "has no %s: there %s %s%s", f->want, n == 1 ? "is only" : "are", some,
             n > 5 ? ", .." : "");
}

/* ---- of folders of models ---- */

static int guess_adapter(folder *f) {
  char path[PATH_MAX], base[250] = "";
  json_t *json = NULL;
  if (!has(f, "adapter_config.json") && !holds(f, "adapter_model", "")) return 0;
  snprintf(path, sizeof path, "%s/adapter_config.json", f->path);
  if (ms_json_read(path, MS_CONFIG_MAX_BYTES, &json) == MS_OK) {
    const char *name = json_string_value(json_object_get(json, "base_model_name_or_path"));
    if (name) snprintf(base, sizeof base, " of %.200s", name);
    json_decref(json);
  }
  return say(f,
             "is an adapter (LoRA, of PEFT)%s, and no whole model: merge it into that first (peft: "
             "AutoPeftModelForCausalLM.from_pretrained(\"" PATH
             "\").merge_and_unload().save_pretrained(\"merged\")) and give the folder that makes",
             base, f->path);
}

/* The snapshot that a hub's cache of one model names as its main one, else the last. */
static int find_snapshot(const char *cache, char found[256]) {
  char path[PATH_MAX + 20], name[256] = "";
  snprintf(path, sizeof path, "%s/refs/main", cache);
  FILE *file = fopen(path, "re");
  if (file) {
    if (!fgets(name, sizeof name, file)) name[0] = 0;
    fclose(file);
  }
  name[strcspn(name, "\r\n/")] = 0;
  snprintf(path, sizeof path, "%s/snapshots", cache);
  return (*name && *name != '.' && sub_with(path, name, ".", found)) ||
         sub_with(path, "", ".", found);
}

/* models--org--name/{blobs,refs,snapshots}, what holds many of these, or the snapshots alone. */
static int guess_cache(folder *f) {
  char one[256] = "", cache[PATH_MAX], base[256];
  const char *slash = strrchr(f->path, '/');
  if (!has(f, "snapshots") && slash && !strcmp(slash, "/snapshots") &&
      sub_with(f->path, "", ".", f->found))
    return say(f, "holds the versions of a model in a hub's cache: give one, " PATH "/%s", f->path,
               f->found);
  if (!has(f, "snapshots") && !sub_with(f->path, "models--", "snapshots", one)) return 0;
  snprintf(base, sizeof base, "%s%s", *one ? "/" : "", one);
  snprintf(cache, sizeof cache, "%s%s", f->path, base);
  if (!find_snapshot(cache, f->found))
    return say(f, "is a hub's cache without a version of the model: download it again");
  return say(f, "is a hub's cache: give %s in it, " PATH "%s/snapshots/%s",
             *one ? "the folder of one model" : "the folder of the model", f->path, base, f->found);
}

static int is_run(const folder *f) {
  return has(f, "metrics.jsonl") || has(f, "finished.json") || has(f, "run.lock") ||
         (has(f, "student") && has(f, "checkpoints"));
}

static int guess_run(folder *f) {
  char path[PATH_MAX];
  if (!is_run(f)) return 0;
  if (has(f, "student/config.json"))
    return say(f, "is the output of a run: give the student in it, " PATH "/student", f->path);
  snprintf(path, sizeof path, "%s/checkpoints", f->path);
  if (sub_with(path, "step-", "config.json", f->found))
    return say(f,
               "is the output of a run that has not ended and has no student yet: run it to its "
               "end, or give what it has, " PATH "/%s",
               path, f->found);
  return say(f, "is the output of a run that has neither a student nor a checkpoint");
}

/* Checkpoints of a trainer, or the folder that everything lies in. */
static int guess_above(folder *f) {
  if (!sub_with(f->path, "", "config.json", f->found)) return 0;
  return say(f, "has no config.json itself, but a folder in it has: give " PATH "/%s", f->path,
             f->found);
}

static int guess_gguf(folder *f) {
  return holds(f, "", ".gguf") &&
         say(f, "holds a model for llama.cpp (%s), which is not read: " ORIGINAL, f->found);
}

/* What Meta and Mistral AI give out beside, or in the place of, the folder for transformers. */
static int guess_original(folder *f) {
  if (!has(f, "params.json") || !(holds(f, "consolidated", "") || has(f, "checklist.chk")))
    return 0;
  if (has(f, "../config.json"))
    return say(f, "is a model in its maker's own format: give the folder above it, " PATH "/..",
               f->path);
  const char *maker = has(f, "tekken.json") || holds(f, "tokenizer.model.v", "") ||
                              has(f, "consolidated.safetensors")
                          ? "Mistral AI"
                          : "Meta";
  return say(f,
             "is a model in %s's own format (params.json, %.60s), which is not read: download the "
             "folder for transformers (with config.json), or convert it with transformers' "
             "convert_%s_weights_to_hf.py",
             maker, holds(f, "consolidated", "") ? f->found : "checklist.chk",
             *maker == 'M' && maker[1] == 'i' ? "mistral" : "llama");
}

/* What is no model that continues a text; a sentence that also stands behind a complaint about its
 * config.json. */
static const char *other_kind(const folder *f) {
  if (has(f, "modules.json") || has(f, "config_sentence_transformers.json"))
    return "is a sentence-transformers model, which makes embeddings and no text: "
           "give a causal language model";
  if (has(f, "model_index.json"))
    return "is a pipeline of diffusers, which makes images and no text: "
           "give a causal language model";
  if (has(f, "preprocessor_config.json") || has(f, "video_preprocessor_config.json"))
    return "is a model of images or sound (it has a preprocessor_config.json): "
           "give a causal language model of text alone";
  return NULL;
}

static int guess_other_kind(folder *f) {
  const char *said = other_kind(f);
  return said && say(f, "%s", said);
}

/* Weights in a file of another format: the option that transformers needs to read it, or NULL. */
static const char *other_weights(folder *f) {
  static const struct {
    const char *begin, *end, *option;
  } kinds[] = {{"pytorch_model", ".bin", ""},
               {"pytorch_model", ".index.json", ""},
               {"consolidated", ".pth", ""},
               {"tf_model", ".h5", "from_tf=True"},
               {"flax_model", ".msgpack", "from_flax=True"},
               {"", ".ckpt", ""},
               {"model", ".bin", ""},
               {"model", ".pt", ""},
               {"model", ".pth", ""},
               {"", ".pth", ""},
               {"", ".bin", ""},
               {"", ".pt", ""}};
  static const char *const others[] = {"training_args.bin", "optimizer.pt",  "optimizer.bin",
                                       "scheduler.pt",      "scheduler.bin", "scaler.pt"};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    if (!holds(f, kinds[i].begin, kinds[i].end)) continue;
    int other = !strncmp(f->found, "rng_state", 9);
    for (size_t k = 0; k < sizeof others / sizeof *others; k++)
      other |= !strcmp(f->found, others[k]);
    if (!other) return kinds[i].option;
  }
  return NULL;
}

static int guess_other_weights(folder *f) {
  const char *option = other_weights(f);
  if (!option) return 0;
  if (wants(f, "config.json"))
    return say(f,
               "has weights in %s, which is not read, and no config.json: give the whole folder "
               "that transformers' save_pretrained(.., safe_serialization=True) writes",
               f->found);
  return say(f,
             "has its weights in %s, which is not read: convert it with transformers "
             "(AutoModelForCausalLM.from_pretrained(\"" PATH
             "\"%s%s).save_pretrained(\"new\", safe_serialization=True)) and give that folder",
             f->found, f->path, *option ? ", " : "", option);
}

/* .safetensors under other names, or shards without their index. */
static int guess_safetensors(folder *f) {
  if (!holds(f, "", ".safetensors")) return 0;
  if (wants(f, "config.json"))
    return say(f,
               "has weights (%s) but no config.json, which says what they are: get it from where "
               "they came from",
               f->found);
  if (strstr(f->found, "-of-0"))
    return say(f,
               "has %s but no model.safetensors.index.json, which says what is in which file: get "
               "it from where they came from",
               f->found);
  return say(f, "has no model.safetensors but %s: if that is the whole model, rename it", f->found);
}

static int guess_tokenizer_alone(folder *f) {
  static const char *const names[] = {"tokenizer.json", "tokenizer.model", "tokenizer_config.json",
                                      "vocab.json", "vocab.txt"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (has(f, names[i]))
      return say(f,
                 "has a tokenizer (%s) and no model: a folder with config.json and .safetensors "
                 "is needed",
                 names[i]);
  return 0;
}

static int guess_model(folder *f) {
  return guess_adapter(f) || guess_cache(f) || guess_run(f) || guess_above(f) || guess_gguf(f) ||
         guess_original(f) || guess_other_kind(f) || guess_download(f) || guess_safetensors(f) ||
         guess_other_weights(f) || guess_tokenizer_alone(f);
}

static int guess_weights(folder *f) {
  return guess_adapter(f) || guess_gguf(f) || guess_download(f) || guess_safetensors(f) ||
         guess_other_weights(f) ||
         say(f,
             "has a config.json and no weights: neither model.safetensors nor "
             "model.safetensors.index.json is there; get them from where it came from");
}

/* ---- of folders of tokenizers and checkpoints ---- */

#define MAKE_FAST                                                       \
  ", which is not read: make a tokenizer.json of it with transformers " \
  "(AutoTokenizer.from_pretrained(\"" PATH "\", use_fast=True).save_pretrained(\"" PATH "\"))"

/* The files that a tokenizer.json can be made of. */
static int guess_vocabulary(folder *f) {
  if (has(f, "vocab.json"))
    return say(f, "has its tokenizer in vocab.json and merges.txt" MAKE_FAST, f->path, f->path);
  if (holds(f, "tokenizer", ".model") || holds(f, "", ".spm") || holds(f, "s", ".model"))
    return say(f, "has its tokenizer in %s (SentencePiece)" MAKE_FAST, f->found, f->path, f->path);
  if (holds(f, "", ".tiktoken") || has(f, "tekken.json"))
    return say(f, "has its tokenizer in %s (tiktoken)" MAKE_FAST,
               holds(f, "", ".tiktoken") ? f->found : "tekken.json", f->path, f->path);
  return has(f, "vocab.txt") &&
         say(f,
             "has a tokenizer in vocab.txt (WordPiece, of BERT and its like), which is not "
             "read: only BPE in a tokenizer.json is");
}

static int guess_tokenizer(folder *f) {
  if (guess_vocabulary(f)) return 1;
  if (!has(f, "config.json") && guess_model(f)) return 1;
  return guess_download(f) ||
         (has(f, "config.json") &&
          say(f,
              "is a model without tokenizer.json: get it from where the model came from, or "
              "copy that of the model it was made of"));
}

static int guess_checkpoint(folder *f) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/checkpoints", f->path);
  if (sub_with(path, "step-", "state.json", f->found))
    return say(f, "is the output of a run: give a checkpoint in it, such as " PATH "/%s", path,
               f->found);
  if (sub_with(f->path, "step-", "state.json", f->found))
    return say(f, "holds checkpoints: give one of them, such as " PATH "/%s", f->path, f->found);
  if (has(f, "trainer_state.json"))
    return say(f,
               "is a checkpoint of transformers' Trainer, from which a run cannot go on: give it "
               "as the student of a new one");
  return has(f, "config.json") &&
         say(f,
             "is a model and no checkpoint (it has no state.json): give it as the student of a "
             "new run");
}

/* ---- what is said ---- */

/* Names in a folder are anyone's: a terminal acts on none of it. */
static void make_plain(char *said) {
  for (unsigned char *p = (unsigned char *)said; *p; p++)
    if (*p < ' ' || *p == 127) *p = '?';
}

static int guess(folder *f) {
  if (guess_wanted(f) || guess_empty(f)) return 1;
  if (wants(f, "tokenizer.json") ? guess_tokenizer(f)
      : wants(f, "state.json")   ? guess_checkpoint(f)
      : wants(f, "config.json")  ? guess_model(f)
                                 : guess_weights(f))
    return 1;
  return list_names(f);
}

/* A file where a folder is needed. */
static ms_status not_a_folder(const char *path) {
  char *text;
  MS_TRY(ms_file_guess(path, &text));
  ms_status st =
      MS_FAIL(MS_EIO, "%s: %s", path,
              text ? text : "is a file, where a folder is needed: give the one it is in");
  ms_text_free(text);
  return st;
}

ms_status ms_folder_lacks(const char *path, const char *name) {
  folder f = {.path = path, .want = name};
  int kind = ms_path_kind(path);
  if (kind == 1) return not_a_folder(path);
  if (!kind) {
    char *text;
    size_t n = strlen(path);
    int is_file = n > 5 && !strcmp(path + n - 5, ".json");
    MS_TRY(ms_path_missing(path, is_file ? "file" : "folder", &text));
    ms_status st = MS_FAIL(MS_EIO, "%s: %s", path, text);
    ms_text_free(text);
    return st;
  }
  if (!guess(&f)) return MS_FAIL(MS_EIO, "%s: has no %s", path, name);
  make_plain(f.said);
  return MS_FAIL(MS_EIO, "%s: %s", path, f.said);
}

/* How the weights of a config.json were quantised: "gptq"; empty when they were not. */
static void read_quantised(const folder *f, char method[40]) {
  char path[PATH_MAX];
  json_t *json;
  method[0] = 0;
  snprintf(path, sizeof path, "%s/config.json", f->path);
  if (ms_json_read(path, MS_CONFIG_MAX_BYTES, &json) != MS_OK) return;
  const json_t *how = json_object_get(json, "quantization_config");
  const char *name = json_string_value(json_object_get(how, "quant_method"));
  if (json_is_object(how)) snprintf(method, 40, "%.39s", name ? name : "quantization_config");
  json_decref(json);
}

ms_status ms_folder_explain(const char *path, ms_status st) {
  folder f = {.path = path};
  char before[1500], method[40];
  if (st != MS_EUNSUPPORTED) return st;
  snprintf(before, sizeof before, "%s", ms_last_error());
  read_quantised(&f, method);
  if (*method)
    say(&f, "has quantised weights (%s), which are not read: give the model before that", method);
  else if (!guess_other_kind(&f))
    return MS_FAIL(st, "%s", before);
  make_plain(f.said);
  return MS_FAIL(st, "%s. The folder %s", before, f.said);
}

/* ---- nothing at all ---- */

static int is_address(const char *path) {
  size_t n = strspn(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+.-");
  return n && !strncmp(path + n, "://", 3);
}

/* "org/name", and not a file's: "2.5" at its end is no ending. */
static int is_hub_name(const char *path) {
  static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
  size_t org = strspn(path, letters), name = path[org] ? strspn(path + org + 1, letters) : 0;
  const char *dot = strrchr(path, '.');
  if (!org || strchr("-_.", *path) || path[org] != '/' || !name || path[org + 1 + name]) return 0;
  return !dot || dot[1] <= '9' || strpbrk(dot, "-_/");
}

ms_status ms_path_missing(const char *path, const char *what, char **text) {
  MS_TRY(ms_file_guess(path, text));
  if (*text) return MS_OK;
  if (is_address(path))
    return ms_text_format(
        text, "no such %s: nothing is downloaded here, fetch it first and give its path", what);
  if (path[0] == '~')
    return ms_text_format(text, "no such %s: ~ is not replaced here, write the whole path", what);
  if (!is_hub_name(path)) return ms_text_format(text, "no such %s", what);
  const char *name = strchr(path, '/') + 1;
  return ms_text_format(
      text,
      "no such %s; if it is a name on a hub: nothing is downloaded here, fetch it "
      "first (hf download %s --local-dir %s) and give the path of what that wrote",
      what, path, name);
}
