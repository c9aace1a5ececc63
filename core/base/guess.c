/* guess.c - files that people really have in the place of others, known by their first bytes. */
#include "guess.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../moonstill.h"
#include "memory.h"

enum { HEAD = 512 };

typedef struct file {
  const char *path;
  unsigned char head[HEAD + 1]; /* its first bytes, with a terminator */
  size_t have;
  int64_t bytes;
  char said[800]; /* the sentence */
} file;

#define SAY(f, ...) (snprintf((f)->said, sizeof(f)->said, __VA_ARGS__), 1)

static int ends_with(const char *s, const char *end) {
  size_t n = strlen(s), k = strlen(end);
  return n >= k && !strcasecmp(s + n - k, end);
}

/* ---- by magic bytes ---- */

static const struct {
  int at, bytes;
  const char *magic, *ending; /* what is said of no file with this ending */
  const char *what, *todo;
} magics[] = {
    {0, 2, "\x1f\x8b", "", "is compressed with gzip", "decompress it first, with gunzip"},
    {0, 4, "\x28\xb5\x2f\xfd", "", "is compressed with zstd", "decompress it first, with unzstd"},
    {0, 6, "\xfd\x37zXZ", "", "is compressed with xz", "decompress it first, with unxz"},
    {0, 3, "BZh", "", "is compressed with bzip2", "decompress it first, with bunzip2"},
    {0, 4, "7z\xbc\xaf", "", "is a 7z archive", "unpack it first"},
    {0, 4, "Rar!", "", "is a rar archive", "unpack it first"},
    {257, 5, "ustar", "", "is a tar archive", "unpack it first"},
    {0, 4, "GGUF", "", "is a GGUF file, of llama.cpp",
     "this needs the model's original folder, with config.json and .safetensors"},
    {0, 4, "tjgg", "", "is a GGML file, of llama.cpp",
     "this needs the model's original folder, with config.json and .safetensors"},
    {0, 4, "PAR1", "", "is a Parquet file", "write its rows as JSONL first"},
    {0, 6, "ARROW1", "", "is an Arrow file", "write its rows as JSONL first"},
    {0, 8, "\xff\xff\xff\xff\x78\x00\x00\x00", "", "is an Arrow stream",
     "write its rows as JSONL first"},
    {0, 6, "\x93NUMPY", "", "is a NumPy array", "it is not read"},
    {0, 8, "\x89HDF\r\n\x1a\n", "", "is an HDF5 file",
     "save the model with transformers' save_pretrained, which writes .safetensors"},
    {0, 5, "%PDF-", "", "is a PDF file", "save its text as .txt"},
    {0, 15, "SQLite format 3", "", "is an SQLite data base", "write its rows as JSONL first"},
    {0, 10, "\n\x0e\n\x05<unk>\x15", ".model", "is a SentencePiece model",
     "tokenizer.json is needed: transformers' AutoTokenizer writes it with save_pretrained"},
};

static int guess_magic(file *f) {
  for (size_t i = 0; i < sizeof magics / sizeof *magics; i++) {
    size_t end = (size_t)(magics[i].at + magics[i].bytes);
    if (f->have < end || memcmp(f->head + magics[i].at, magics[i].magic, (size_t)magics[i].bytes))
      continue;
    if (*magics[i].ending && ends_with(f->path, magics[i].ending)) continue;
    return SAY(f, "%s: %s", magics[i].what, magics[i].todo);
  }
  return 0;
}

#define CONVERT                                                                              \
  "load it with transformers (AutoModelForCausalLM.from_pretrained) and save it again with " \
  "save_pretrained, which writes .safetensors"

/* A zip names its first file at byte 30: torch.save's is NAME/data.pkl, an office file's is known. */
static int guess_pickle(file *f) {
  const char *name = (const char *)f->head + 30;
  if (f->have > 2 && f->head[0] == 0x80 && f->head[1] >= 2 && f->head[1] <= 5)
    return SAY(f, "is a pickle, as torch.save wrote it: " CONVERT);
  if (f->have < 4 || (memcmp(f->head, "PK\3\4", 4) && memcmp(f->head, "PK\5\6", 4))) return 0;
  size_t n = f->have > 30 ? f->head[26] + 256u * f->head[27] : 0;
  if (f->have > 30 && n > f->have - 30) n = f->have - 30;
  if (memmem(name, n, "/data.pkl", 9) || memmem(name, n, "/version", 8))
    return SAY(f, "is a zip with a pickle in it, as torch.save writes it: " CONVERT);
  if (memmem(name, n, "[Content_Types]", 15))
    return SAY(f, "is a file of an office program: save its rows as JSONL, its text as .txt");
  return SAY(f, "is a zip archive: unpack it first");
}

/* ---- by what their text says ---- */

static int begins(const file *f, size_t at, const char *word) {
  size_t n = strlen(word);
  return f->have >= at + n && !strncasecmp((const char *)f->head + at, word, n);
}

static size_t skip_space(const file *f, size_t at) {
  while (at < f->have && memchr(" \t\r\n", f->head[at], 4)) at++;
  return at;
}

/* The first line from `at` on, without what a terminal would act on. */
static void first_line(const file *f, size_t at, char line[81]) {
  size_t n = 0;
  for (; n < 80 && at + n < f->have && f->head[at + n] >= ' '; n++) line[n] = (char)f->head[at + n];
  line[n] = 0;
}

static int guess_pointer(file *f) {
  const char *head = (const char *)f->head, *size;
  if (begins(f, 0, "version https://git-lfs.github.com/spec/") ||
      begins(f, 0, "version https://hawser.github.com/spec/")) {
    size = strstr(head, "\nsize ");
    size = size ? size + 6 : "";
    return SAY(
        f,
        "is a pointer file of Git LFS, which stands for %.*s bytes that are elsewhere: fetch "
        "them with `git lfs pull` in its folder, or download the file itself",
        (int)strspn(size, "0123456789"), size);
  }
  if (begins(f, 0, "# xet version"))
    return SAY(f, "is a pointer file of Xet, not the file itself: download it again");
  if (f->bytes < 1000 && (strstr(head, "/annex/objects/") || begins(f, 0, "/annex/")))
    return SAY(f, "is a pointer file of git-annex: fetch the file itself with `git annex get`");
  if (f->bytes < 300 && begins(f, 0, "../") && strstr(head, "blobs/"))
    return SAY(f, "is a link of a download cache that was copied as text: download it again");
  return 0;
}

/* What servers send in the place of a file. */
static int guess_answer(file *f) {
  static const char *const answers[] = {"Entry not found",    "Repository not found",
                                        "Invalid username",   "Access to model ",
                                        "Access to dataset ", "404: Not Found",
                                        "404 Not Found",      "403 Forbidden",
                                        "Too many requests",  "You have been rate limited"};
  size_t at = skip_space(f, begins(f, 0, "\xef\xbb\xbf") ? 3 : 0);
  char line[81];
  first_line(f, at, line);
  if (begins(f, at, "<!doctype html") || begins(f, at, "<html") || begins(f, at, "<head"))
    return SAY(f, "is an HTML page (an error or a login, saved in its place): download it again");
  if (begins(f, at, "<?xml") || begins(f, at, "<Error>"))
    return SAY(f, "is an XML text (often a server's error): it begins with %s", line);
  int is_answer = f->bytes < 400 && begins(f, at, "{\"error\":");
  for (size_t i = 0; f->bytes < 300 && i < sizeof answers / sizeof *answers; i++)
    is_answer |= begins(f, at, answers[i]);
  if (!is_answer) return 0;
  return SAY(f, "is a server's answer in the place of the file, \"%s\": download it again", line);
}

static int guess_encoding(file *f) {
  const unsigned char *b = f->head;
  const char *name = NULL;
  if (f->have >= 4 && !memcmp(b, "\xff\xfe\0\0", 4))
    name = "UTF-32";
  else if (f->have >= 2 && (!memcmp(b, "\xff\xfe", 2) || !memcmp(b, "\xfe\xff", 2)))
    name = "UTF-16";
  else if (f->have >= 8 && b[0] && !b[1] && b[2] && !b[3] && b[4] && !b[5] && b[6] && !b[7])
    name = "UTF-16LE";
  else if (f->have >= 8 && !b[0] && b[1] && !b[2] && b[3] && !b[4] && b[5] && !b[6] && b[7])
    name = "UTF-16BE";
  if (!name) return 0;
  return SAY(f, "is text in %s: save it as UTF-8 (iconv -f %s -t UTF-8)", name, name);
}

/* ---- by size and place ---- */

/* The header's length, and the header. */
static int guess_safetensors(file *f) {
  uint64_t length = 0;
  if (f->have < 10 || f->head[8] != '{' || ends_with(f->path, ".safetensors")) return 0;
  for (int i = 0; i < 8; i++) length |= (uint64_t)f->head[i] << 8 * i;
  if (length > 100 << 20) return 0;
  return SAY(f, "is a safetensors file, of weights, whose name should end in .safetensors");
}

/* The header's length, of eight bytes, has zeros in it: letters there are a text. */
static int guess_text(file *f) {
  char line[81];
  size_t at = skip_space(f, 0);
  if (!ends_with(f->path, ".safetensors") || at >= f->have) return 0;
  int is_json = f->head[at] == '{' || f->head[at] == '[';
  if (f->have < 8 && !is_json) return 0;
  for (size_t i = 0; i < f->have; i++) /* no byte of UTF-8 is above 0xf4 */
    if (f->head[i] > 0xf4 || (f->head[i] < ' ' && !memchr("\t\r\n", f->head[i], 3))) return 0;
  first_line(f, at, line);
  return SAY(f, "is a %s and no safetensors: it begins with %s", is_json ? "JSON text" : "text",
             line);
}

static int guess_zeros(file *f) {
  for (size_t i = 0; i < f->have; i++)
    if (f->head[i]) return 0;
  if (f->have < 64) return 0;
  return SAY(f,
             "is zeros from its first byte on, a download that was only begun: download it again");
}

#define CACHE ".cache/huggingface/download"

/* What programs that download leave beside the place of a file. */
static int guess_download(file *f) {
  static const char *const ends[] = {".incomplete", ".part", ".partial", ".crdownload",
                                     ".download"};
  char other[PATH_MAX], found[256];
  const char *slash = strrchr(f->path, '/'), *base = slash ? slash + 1 : f->path;
  for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
    snprintf(other, sizeof other, "%s%s", f->path, ends[i]);
    if (!access(other, F_OK))
      return SAY(f, "is not there, but %.200s%s is: its download has not ended", base, ends[i]);
  }
  snprintf(other, sizeof other, "%.*s/" CACHE, slash ? (int)(slash - f->path) : 1,
           slash ? f->path : ".");
  if (!ms_folder_holds(other, base, ".incomplete", found)) return 0;
  return SAY(f, "is not there, but " CACHE "/%s is: its download has not ended", found);
}

/* Nothing that can be opened: perhaps a link that leads nowhere. */
static int guess_missing(file *f) {
  char to[PATH_MAX];
  ssize_t n = readlink(f->path, to, sizeof to - 1);
  if (n < 0) return errno == ENOENT ? guess_download(f) : 0;
  to[n] = 0;
  return SAY(f,
             "is a link to %.300s, which is not there: copy folders with what their links lead to "
             "(cp -L), or download it again",
             to);
}

/* aria2 makes the file at once, at its whole size. */
static int guess_begun(file *f) {
  char other[PATH_MAX];
  snprintf(other, sizeof other, "%s.aria2", f->path);
  return access(other, F_OK) ? 0 : SAY(f, "is not whole: its download by aria2 has not ended");
}

static int read_head(file *f, const struct stat *info) {
  int fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return 0;
  ssize_t n = pread(fd, f->head, HEAD, 0);
  close(fd);
  if (n < 0) return 0;
  f->have = (size_t)n;
  f->head[n] = 0;
  f->bytes = info->st_size;
  return 1;
}

static int guess(file *f) {
  struct stat info;
  if (stat(f->path, &info)) return guess_missing(f);
  if (S_ISDIR(info.st_mode)) return SAY(f, "is a folder, where a file is expected");
  if (!S_ISREG(info.st_mode) || !read_head(f, &info)) return 0;
  if (guess_begun(f)) return 1;
  if (!f->bytes) return SAY(f, "is empty: download or write it again");
  return guess_pointer(f) || guess_magic(f) || guess_pickle(f) || guess_answer(f) ||
         guess_safetensors(f) || guess_encoding(f) || guess_text(f) || guess_zeros(f);
}

ms_status ms_file_guess(const char *path, char **text) {
  MS_REQUIRE(path, "path: none");
  file f = {.path = path};
  *text = NULL;
  return guess(&f) ? ms_text_copy(f.said, strlen(f.said), text) : MS_OK;
}

ms_status ms_file_explain(const char *path, ms_status st) {
  file f = {.path = path};
  if (st != MS_EIO || !guess(&f)) return st;
  return MS_FAIL(st, "%s: %s", path, f.said);
}

int ms_folder_holds(const char *folder, const char *begin, const char *end, char found[256]) {
  size_t n = strlen(begin), k = strlen(end);
  DIR *dir = opendir(folder);
  found[0] = 0;
  if (!dir) return 0;
  for (struct dirent *e; (e = readdir(dir));) {
    size_t length = strlen(e->d_name);
    if (length < n + k || length > 255 || strncmp(e->d_name, begin, n) ||
        strcmp(e->d_name + length - k, end))
      continue;
    if (!*found || strcmp(e->d_name, found) < 0) strcpy(found, e->d_name);
  }
  closedir(dir);
  return *found != 0;
}
