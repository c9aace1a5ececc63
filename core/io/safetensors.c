/* safetensors.c - files of named tensors: header checks, mapping, streaming out. */
#include "safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../base/file.h"
#include "../base/guess.h"
#include "../base/json.h"
#include "../base/log.h"
#include "../base/memory.h"

/* Every dtype the format knows, so that a file is checked as a whole even where moonstill has no
 * use for one of its tensors. */
static const struct {
  const char *name;
  size_t bytes;
  int dtype;
} types[] = {{"F32", 4, MS_F32}, {"BF16", 2, MS_BF16}, {"F16", 2, MS_F16}, {"I32", 4, MS_I32},
             {"I64", 8, MS_I64}, {"U8", 1, MS_U8},     {"F64", 8, -1},     {"I16", 2, -1},
             {"U16", 2, -1},     {"U32", 4, -1},       {"U64", 8, -1},     {"I8", 1, -1},
             {"BOOL", 1, -1},    {"F8_E4M3", 1, -1},   {"F8_E5M2", 1, -1}, {"F8_E8M0", 1, -1},
             {"C64", 8, -1}};
enum { TYPES = sizeof types / sizeof *types };

enum { MAX_HEADER = 100 << 20, PREFIX = 8 };

/* ---- reading ---- */

static int type_index(const char *name) {
  for (int i = 0; i < TYPES; i++)
    if (!strcmp(types[i].name, name)) return i;
  return -1;
}

/* Reads a shape, and counts the bytes that a tensor of it takes. */
static ms_status read_shape(const char *path, ms_stored *t, const json_t *shape, size_t element) {
  if (!json_is_array(shape) || json_array_size(shape) > MS_MAX_RANK)
    return MS_FAIL(MS_EIO, "%s: tensor '%s': shape is no array of at most %d", path, t->name,
                   MS_MAX_RANK);
  t->rank = (int)json_array_size(shape);
  t->count = 1;
  int64_t bytes;
  char text[80];
  for (int i = 0; i < t->rank; i++) {
    const json_t *n = json_array_get(shape, (size_t)i);
    t->shape[i] = json_is_integer(n) ? json_integer_value(n) : -1;
    if (t->shape[i] < 0)
      return MS_FAIL(MS_EIO, "%s: tensor '%s': shape[%d] is %s, no count", path, t->name, i,
                     ms_json_show(n, text, sizeof text));
    if (__builtin_mul_overflow(t->count, t->shape[i], &t->count))
      return MS_FAIL(MS_EIO, "%s: tensor '%s': shape too large", path, t->name);
  }
  if (__builtin_mul_overflow(t->count, (int64_t)element, &bytes))
    return MS_FAIL(MS_EIO, "%s: tensor '%s': shape too large", path, t->name);
  t->bytes = (size_t)bytes;
  return MS_OK;
}

/* Reads an entry of the header, which has dtype, shape, data_offsets and nothing else. */
static ms_status read_entry(const char *path, const char *name, const json_t *entry, size_t start,
                            size_t end, ms_stored *t) {
  const char *type = json_string_value(json_object_get(entry, "dtype"));
  const json_t *range = json_object_get(entry, "data_offsets");
  char text[80];
  t->name = name;
  if (!json_is_object(entry) || !type || json_object_size(entry) != 3)
    return MS_FAIL(MS_EIO, "%s: tensor '%s': not {dtype, shape, data_offsets}", path, name);
  int k = type_index(type);
  if (k < 0) return MS_FAIL(MS_EIO, "%s: tensor '%s': unknown dtype '%s'", path, name, type);
  t->type = type;
  t->dtype = types[k].dtype;
  MS_TRY(read_shape(path, t, json_object_get(entry, "shape"), types[k].bytes));
  const json_t *a = json_array_get(range, 0), *b = json_array_get(range, 1);
  if (json_array_size(range) != 2 || !json_is_integer(a) || !json_is_integer(b))
    return MS_FAIL(MS_EIO, "%s: tensor '%s': data_offsets is %s, no pair of integers", path, name,
                   range ? ms_json_show(range, text, sizeof text) : "missing");
  int64_t from = json_integer_value(a), to = json_integer_value(b), room = (int64_t)(end - start);
  if (from < 0 || to < from || to > room)
    return MS_FAIL(MS_EIO,
                   "%s: tensor '%s': data_offsets [%lld, %lld] are not inside the %lld bytes of "
                   "data from byte %zu",
                   path, name, (long long)from, (long long)to, (long long)room, start);
  if ((size_t)(to - from) != t->bytes)
    return MS_FAIL(MS_EIO,
                   "%s: tensor '%s': data_offsets give %lld bytes at byte %zu, dtype and "
                   "shape %zu",
                   path, name, (long long)(to - from), start + (size_t)from, t->bytes);
  t->offset = start + (size_t)from;
  return MS_OK;
}

static int compare_offsets(const void *a, const void *b) {
  const ms_stored *x = a, *y = b;
  if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
  return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* empty ones first */
}

/* Data must lie end to end: no overlap, no gap, nothing after it. */
static ms_status check_order(const ms_safetensors *f, size_t start) {
  size_t at = start;
  for (int32_t i = 0; i < f->tensors; i++) {
    const ms_stored *t = &f->tensor[i];
    if (t->offset != at)
      return MS_FAIL(MS_EIO,
                     "%s: tensor '%s': data begins at byte %zu, where the tensor before "
                     "it ends at %zu",
                     f->path, t->name, t->offset, at);
    at += t->bytes;
  }
  if (at != f->bytes)
    return MS_FAIL(MS_EIO, "%s: %zu bytes, but the tensors end at byte %zu", f->path, f->bytes, at);
  return MS_OK;
}

static int compare_names(const void *a, const void *b, void *file) {
  const ms_safetensors *f = file;
  return strcmp(f->tensor[*(const int32_t *)a].name, f->tensor[*(const int32_t *)b].name);
}

/* "__metadata__" may hold strings and nothing else. */
static ms_status check_metadata(const ms_safetensors *f) {
  const char *key;
  json_t *value, *meta = json_object_get(f->header, "__metadata__");
  if (meta && !json_is_object(meta) && !json_is_null(meta))
    return MS_FAIL(MS_EIO, "%s: header: __metadata__ is no object", f->path);
  json_object_foreach(meta, key, value) if (!json_is_string(value)) return MS_FAIL(
      MS_EIO, "%s: header: __metadata__ '%s' is no string", f->path, key);
  return MS_OK;
}

static ms_status read_tensors(ms_safetensors *f, size_t start) {
  const char *name;
  json_t *entry;
  void *p;
  MS_TRY(ms_alloc(json_object_size(f->header) * sizeof *f->tensor, f->path, &p));
  f->tensor = p;
  MS_TRY(ms_alloc(json_object_size(f->header) * sizeof *f->by_name, f->path, &p));
  f->by_name = p;
  json_object_foreach(f->header, name, entry) {
    if (!strcmp(name, "__metadata__")) continue;
    MS_TRY(read_entry(f->path, name, entry, start, f->bytes, &f->tensor[f->tensors]));
    ms_stored *t = &f->tensor[f->tensors++];
    t->data = (const char *)f->map + t->offset;
  }
  qsort(f->tensor, (size_t)f->tensors, sizeof *f->tensor, compare_offsets);
  MS_TRY(check_order(f, start));
  for (int32_t i = 0; i < f->tensors; i++) f->by_name[i] = i;
  qsort_r(f->by_name, (size_t)f->tensors, sizeof *f->by_name, compare_names, f);
  return MS_OK;
}

/* The error for a file that ends before its header says. */
static ms_status cut_off(const ms_safetensors *f, size_t want, const char *inside) {
  return MS_FAIL(MS_EIO,
                 "%s: cut off inside %s: %zu bytes, its header makes it %zu; its download has not "
                 "ended or a disk was full: get it again",
                 f->path, inside, f->bytes, want);
}

/* An error that says so when the file is only cut off: its tensors lie end to end, as they should,
 * but some beyond its end. What else may be wrong is found later. */
static ms_status check_whole(const ms_safetensors *f, size_t start) {
  const char *name, *first = NULL;
  json_t *entry;
  int64_t end = 0, room = (int64_t)(f->bytes - start), cut = INT64_MAX, sum = 0;
  json_object_foreach(f->header, name, entry) {
    const json_t *range = json_object_get(entry, "data_offsets");
    int64_t from = json_integer_value(json_array_get(range, 0));
    int64_t to = json_integer_value(json_array_get(range, 1));
    if (from < 0 || to < from || __builtin_add_overflow(sum, to - from, &sum)) return MS_OK;
    if (to > end) end = to;
    if (to > room && from < cut) cut = from, first = name;
  }
  if (!first || sum != end) return MS_OK; /* whole, or wrong in another way */
  char inside[200];
  snprintf(inside, sizeof inside, "tensor '%.150s' (at byte %zu)", first, start + (size_t)cut);
  return cut_off(f, start + (size_t)end, inside);
}

static ms_status read_header(ms_safetensors *f) {
  const unsigned char *p = f->map;
  uint64_t length = 0;
  char *name;
  for (int i = 0; i < PREFIX; i++) length |= (uint64_t)p[i] << 8 * i;
  if (length <= MAX_HEADER && length > f->bytes - PREFIX && p[PREFIX] == '{')
    return cut_off(f, PREFIX + (size_t)length, "its header");
  if (length > f->bytes - PREFIX || length > MAX_HEADER)
    return MS_FAIL(MS_EIO,
                   "%s: no safetensors: byte 0: a header of %llu bytes in a file of %zu "
                   "(limit %d)",
                   f->path, (unsigned long long)length, f->bytes, MAX_HEADER);
  MS_TRY(ms_text_format(&name, "%s: header (at byte %d)", f->path, PREFIX));
  ms_status st = ms_json_parse(name, (const char *)p + PREFIX, (size_t)length, &f->header);
  ms_text_free(name);
  MS_TRY(st);
  if (!json_is_object(f->header))
    return MS_FAIL(MS_EIO, "%s: header (at byte %d): not a JSON object", f->path, PREFIX);
  MS_TRY(check_metadata(f));
  MS_TRY(check_whole(f, PREFIX + (size_t)length));
  return read_tensors(f, PREFIX + (size_t)length);
}

static ms_status map_file(ms_safetensors *f) {
  struct stat info;
  ms_status st = MS_OK;
  int fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe is refused, not waited for */
  if (fd < 0) return MS_FAIL(MS_EIO, "%s: cannot open: %s", f->path, strerror(errno));
  if (fstat(fd, &info) || !S_ISREG(info.st_mode)) {
    st = MS_FAIL(MS_EIO, "%s: not a file", f->path);
  } else if (info.st_size < PREFIX) {
    st = MS_FAIL(MS_EIO, "%s: %lld bytes, too short for safetensors", f->path,
                 (long long)info.st_size);
  } else {
    void *map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED) {
      st = MS_FAIL(MS_EIO, "%s: cannot map: %s", f->path, strerror(errno));
    } else {
      f->map = map;
      f->bytes = (size_t)info.st_size;
    }
  }
  close(fd);
  return st;
}

ms_status ms_safetensors_open(const char *path, ms_safetensors **out) {
  void *p;
  ms_status st;
  *out = NULL;
  MS_TRY(ms_alloc(sizeof(ms_safetensors), "safetensors", &p));
  ms_safetensors *f = p;
  MS_TRY_OR(fail, ms_text_copy(path, strlen(path), &f->path));
  MS_TRY_OR(fail, map_file(f));
  MS_TRY_OR(fail, read_header(f));
  ms_log(MS_LOG_INFO, "%s: %d tensors, %zu bytes mapped", path, (int)f->tensors, f->bytes);
  *out = f;
  return MS_OK;
fail:
  ms_safetensors_close(f);
  return ms_file_explain(path, st);
}

void ms_safetensors_close(ms_safetensors *f) {
  if (!f) return;
  if (f->map) munmap(f->map, f->bytes);
  json_decref(f->header);
  ms_free(f->tensor);
  ms_free(f->by_name);
  ms_text_free(f->path);
  ms_free(f);
}

const ms_stored *ms_safetensors_find(const ms_safetensors *f, const char *name) {
  int32_t low = 0, high = f->tensors;
  while (low < high) {
    int32_t mid = low + (high - low) / 2;
    int order = strcmp(f->tensor[f->by_name[mid]].name, name);
    if (!order) return &f->tensor[f->by_name[mid]];
    if (order < 0)
      low = mid + 1;
    else
      high = mid;
  }
  return NULL;
}

const char *ms_safetensors_metadata(const ms_safetensors *f, const char *key) {
  return json_string_value(json_object_get(json_object_get(f->header, "__metadata__"), key));
}

/* What is converted passes through a buffer on the device, a part at a time: that also aligns the data,
 * which has no alignment in the file. */
enum { PART = 1 << 20 }; /* elements */

static ms_status check_types(const ms_safetensors *f, const ms_stored *t, int dtype) {
  int known = t->dtype >= 0 && t->dtype <= MS_F16 && dtype >= 0 && dtype <= MS_F16;
  if (known || (t->dtype == dtype && dtype >= 0)) return MS_OK;
  return MS_FAIL(MS_EUNSUPPORTED, "%s: tensor '%s' (at byte %zu): %s cannot be read as %s", f->path,
                 t->name, t->offset, t->type, ms_dtype_name(dtype));
}

/* Elements i .. i + n - 1 of `rows` of data, one behind the other: in `buffer` if they do not lie so. */
static const void *elements_of(const void *data, size_t size, const ms_rows *rows, int64_t i,
                               int64_t n, char *buffer) {
  const char *from = (const char *)data + (size_t)ms_rows_place(rows, i) * size;
  size_t row = (size_t)rows->cols * size;
  if (!buffer) return from;
  for (int64_t k = 0; k < n / rows->cols; k++)
    memcpy(buffer + (size_t)k * row, from + (size_t)(k * rows->stride) * size, row);
  return buffer;
}

static ms_status convert(const ms_stored *t, const ms_rows *rows, ms_device *dev, void *y,
                         int dtype) {
  int dense = rows->rows == 1, same = t->dtype == dtype;
  size_t from = ms_dtype_size(t->dtype), to = ms_dtype_size(dtype);
  int64_t count = rows->rows * rows->cols, most = dense ? PART : rows->cols;
  void *buffer = NULL, *stage = NULL;
  ms_status st = MS_OK;
  if (!dense && most < PART) most = PART / most * most; /* whole rows */
  if (most > count || (dense && same)) most = count;
  size_t bytes = (size_t)most * from;
  if (!dense) MS_TRY_OR(end, ms_alloc_undefined(bytes, "weights", &buffer));
  if (!same) MS_TRY_OR(end, ms_device_new(dev, bytes, &stage));
  for (int64_t i = 0; i < count; i += most) {
    int64_t n = count - i < most ? count - i : most;
    const void *x = elements_of(t->data, from, rows, i, n, buffer);
    void *z = (char *)y + (size_t)i * to;
    MS_TRY_OR(end, MS_OP(dev, write, same ? z : stage, x, (size_t)n * from));
    if (!same) MS_TRY_OR(end, MS_OP(dev, cast, z, dtype, stage, t->dtype, n));
  }
end:
  ms_device_free(dev, stage, bytes);
  ms_free(buffer);
  return st;
}

static ms_status check_finite(const ms_safetensors *f, const ms_stored *t, const ms_rows *rows,
                              ms_device *dev, const void *y, int dtype) {
  int64_t at;
  char place[80];
  if (dtype != MS_F32 && dtype != MS_BF16) return MS_OK;
  MS_TRY(MS_OP(dev, not_finite, &at, y, dtype, rows->rows * rows->cols));
  if (at < 0) return MS_OK;
  return MS_FAIL(
      MS_EIO,
      "%s: tensor '%s' (at byte %zu) holds NaN or infinity, first at %s: the file is "
      "damaged, or the training that wrote it diverged; get it again, or take an earlier "
      "one",
      f->path, t->name, t->offset,
      ms_place_text(t->rank, t->shape, ms_rows_place(rows, at), place));
}

ms_status ms_safetensors_read_rows(const ms_safetensors *f, const ms_stored *t, const ms_rows *rows,
                                   ms_device *dev, void *y, int dtype) {
  MS_TRY(check_types(f, t, dtype));
  if (!rows->rows || !rows->cols) return MS_OK;
  MS_TRY(convert(t, rows, dev, y, dtype));
  return check_finite(f, t, rows, dev, y, dtype);
}

ms_status ms_safetensors_read(const ms_safetensors *f, const ms_stored *t, ms_device *dev, void *y,
                              int dtype) {
  ms_rows all = {.rows = 1, .cols = t->count, .stride = t->count};
  return ms_safetensors_read_rows(f, t, &all, dev, y, dtype);
}

/* ---- writing ---- */

struct ms_writing {
  char *path; /* for messages */
  int fd;
  void *host; /* PART elements of the widest type */
};
enum { WIDEST = 8 };

static ms_status write_at(const ms_writing *w, const void *data, size_t bytes, int64_t at) {
  const char *p = data;
  while (bytes) {
    ssize_t n = pwrite(w->fd, p, bytes < 1 << 30 ? bytes : 1 << 30, at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return MS_FAIL(MS_EIO, "%s: cannot write: %s", w->path, strerror(errno));
    p += n;
    at += n;
    bytes -= (size_t)n;
  }
  return MS_OK;
}

static const char *type_name(int dtype) {
  for (int i = 0; i < TYPES; i++)
    if (types[i].dtype == dtype) return types[i].name;
  return "?";
}

static int64_t count_of(const ms_storing *t) {
  int64_t n = 1;
  for (int i = 0; i < t->rank; i++) n *= t->shape[i];
  return n;
}

/* Adds a tensor's entry to the header; *at is where its data begins, and then where it ends. Gives
 * other than 0 when memory ends. */
static int add_entry(json_t *header, ms_storing *t, int64_t *at) {
  int64_t end = *at + count_of(t) * (int64_t)ms_dtype_size(t->dtype);
  json_t *shape = json_array();
  int bad = 0;
  for (int i = 0; i < t->rank; i++) bad |= json_array_append_new(shape, json_integer(t->shape[i]));
  json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", type_name(t->dtype), "shape", shape,
                            "data_offsets", (json_int_t)*at, (json_int_t)end);
  t->at = *at;
  *at = end;
  return bad | json_object_set_new(header, t->name, entry);
}

/* The beginning of a file, up to its data. */
typedef struct beginning {
  char *text;    /* the header, padded with spaces so that the data begins at a multiple of 8 */
  size_t length; /* of that */
  int64_t bytes; /* of the whole file */
} beginning;

/* Tensors of wide elements come first, otherwise all are in the given order. */
static ms_status add_entries(const char *path, json_t *header, int32_t n, ms_storing *tensor,
                             int64_t *end, int *bad) {
  for (size_t width = WIDEST; width; width /= 2)
    for (int32_t i = 0; i < n; i++) {
      if (ms_dtype_size(tensor[i].dtype) != width) continue;
      MS_REQUIRE(!json_object_get(header, tensor[i].name), "%s: tensor '%s' given twice", path,
                 tensor[i].name);
      *bad |= add_entry(header, &tensor[i], end);
    }
  return MS_OK;
}

static ms_status make_header(const char *path, int32_t n, ms_storing *tensor, const char *key,
                             const char *value, beginning *out) {
  char *bare = NULL;
  ms_status st;
  ms_json_starved();
  json_t *header = json_object(), *meta = json_pack("{s:s}", "format", "pt");
  int bad = key && json_object_set_new(meta, key, json_string(value));
  bad |= json_object_set_new(header, "__metadata__", meta);
  MS_TRY_OR(end, add_entries(path, header, n, tensor, &out->bytes, &bad));
  if (bad) {
    st = ms_json_starved() ? MS_FAIL(MS_ENOMEM, "%s: no memory for a header", path)
                           : MS_FAIL(MS_EINVAL, "%s: no header can be made of these names", path);
    goto end;
  }
  MS_TRY_OR(end, ms_json_text(header, 0, &bare));
  size_t have = strlen(bare);
  out->length = (have + 7) / 8 * 8;
  MS_TRY_OR(end, ms_text_format(&out->text, "%s%*s", bare, (int)(out->length - have), ""));
end:
  ms_text_free(bare);
  json_decref(header);
  return st;
}

/* Sets each tensor's place. */
static ms_status begin(const char *path, int32_t n, ms_storing *tensor, const char *key,
                       const char *value, beginning *out) {
  *out = (beginning){0};
  for (int32_t i = 0; i < n; i++)
    MS_REQUIRE(ms_dtype_size(tensor[i].dtype) && tensor[i].rank <= MS_MAX_RANK,
               "%s: tensor '%s': dtype %d, rank %d", path, tensor[i].name, tensor[i].dtype,
               tensor[i].rank);
  MS_TRY(make_header(path, n, tensor, key, value, out));
  int64_t data = PREFIX + (int64_t)out->length;
  out->bytes += data;
  for (int32_t i = 0; i < n; i++) tensor[i].at += data;
  return MS_OK;
}

/* Takes the room at once where the file system can: whoever puts tensors finds it. */
static ms_status make_room(const ms_writing *w, int64_t bytes) {
  int failed;
  do failed = fallocate(w->fd, 0, 0, bytes);
  while (failed && errno == EINTR);
  if (failed && (errno == EOPNOTSUPP || errno == ENOSYS)) failed = ftruncate(w->fd, bytes);
  if (!failed) return MS_OK;
  return MS_FAIL(MS_EIO, "%s: cannot write: %s", w->path, strerror(errno));
}

ms_status ms_safetensors_create(const char *path, int32_t tensors, ms_storing *tensor,
                                const char *key, const char *value) {
  ms_writing w = {.path = (char *)path};
  beginning b;
  unsigned char length[PREFIX];
  ms_status st;
  MS_TRY(begin(path, tensors, tensor, key, value, &b));
  for (int i = 0; i < PREFIX; i++) length[i] = (unsigned char)((uint64_t)b.length >> 8 * i);
  w.fd = ms_file_open_new(path);
  if (w.fd < 0) {
    st = MS_FAIL(MS_EIO, "%s: cannot create: %s", path, strerror(errno));
  } else {
    st = make_room(&w, b.bytes);
    if (st == MS_OK) st = write_at(&w, length, PREFIX, 0);
    if (st == MS_OK) st = write_at(&w, b.text, b.length, PREFIX);
    if (close(w.fd) && st == MS_OK) st = MS_FAIL(MS_EIO, "%s: close: %s", path, strerror(errno));
    if (st != MS_OK) unlink(path);
  }
  ms_text_free(b.text);
  return st;
}

static ms_status open_made(ms_writing *w, int64_t bytes) {
  struct stat info;
  w->fd = open(w->path, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
  if (w->fd < 0 || fstat(w->fd, &info))
    return MS_FAIL(MS_EIO, "%s: cannot write: %s", w->path, strerror(errno));
  if (info.st_size == bytes) return MS_OK;
  return MS_FAIL(MS_EIO, "%s: %lld bytes, but what is to be written takes %lld", w->path,
                 (long long)info.st_size, (long long)bytes);
}

ms_status ms_safetensors_join(const char *path, int32_t tensors, ms_storing *tensor,
                              const char *key, const char *value, ms_writing **out) {
  beginning b;
  void *p;
  ms_status st;
  *out = NULL;
  MS_TRY(begin(path, tensors, tensor, key, value, &b));
  ms_text_free(b.text);
  MS_TRY(ms_alloc(sizeof(ms_writing), path, &p));
  ms_writing *w = p;
  w->fd = -1;
  MS_TRY_OR(fail, ms_text_copy(path, strlen(path), &w->path));
  MS_TRY_OR(fail, ms_alloc_undefined((size_t)PART * WIDEST, path, &w->host));
  MS_TRY_OR(fail, open_made(w, b.bytes));
  *out = w;
  return MS_OK;
fail:
  return ms_safetensors_end(w, st);
}

/* f16 ends at 65504: beyond it a conversion would give infinities. */
static ms_status check_f16(const ms_writing *w, const ms_storing *t, int64_t n) {
  const uint16_t *x = w->host;
  for (int64_t i = 0; i < n; i++)
    if ((x[i] & 0x7c00) == 0x7c00)
      return MS_FAIL(MS_EINVAL, "%s: tensor '%s' has a value that f16 cannot hold", w->path,
                     t->name);
  return MS_OK;
}

/* Elements i .. i + n - 1 of the rows, which are in w->host. */
static ms_status scatter(const ms_writing *w, const ms_storing *t, const ms_rows *rows, int64_t i,
                         int64_t n) {
  size_t size = ms_dtype_size(t->dtype);
  for (int64_t done = 0, k; done < n; done += k) {
    k = rows->cols - (i + done) % rows->cols;
    if (k > n - done) k = n - done;
    int64_t at = t->at + ms_rows_place(rows, i + done) * (int64_t)size;
    MS_TRY(write_at(w, (const char *)w->host + (size_t)done * size, (size_t)k * size, at));
  }
  return MS_OK;
}

static ms_status put(const ms_writing *w, const ms_storing *t, const ms_rows *rows, ms_device *dev,
                     const void *data, int held, void *stage) {
  int64_t count = rows->rows * rows->cols;
  size_t from = ms_dtype_size(held), to = ms_dtype_size(t->dtype);
  for (int64_t i = 0; i < count; i += PART) {
    int64_t n = count - i < PART ? count - i : PART;
    const void *x = (const char *)data + (size_t)i * from;
    if (stage) MS_TRY(MS_OP(dev, cast, stage, t->dtype, x, held, n));
    MS_TRY(MS_OP(dev, read, w->host, stage ? stage : x, (size_t)n * to));
    if (stage && t->dtype == MS_F16) MS_TRY(check_f16(w, t, n));
    MS_TRY(scatter(w, t, rows, i, n));
  }
  return MS_OK;
}

ms_status ms_safetensors_put(ms_writing *w, const ms_storing *t, const ms_rows *rows,
                             ms_device *dev, const void *data, int held) {
  size_t bytes = (size_t)PART * WIDEST;
  void *stage = NULL;
  if (!rows->rows || !rows->cols) return MS_OK;
  if (held != t->dtype) MS_TRY(ms_device_new(dev, bytes, &stage));
  ms_status st = put(w, t, rows, dev, data, held, stage);
  ms_device_free(dev, stage, bytes);
  return st;
}

ms_status ms_safetensors_end(ms_writing *w, ms_status st) {
  if (!w) return st;
  if (w->fd >= 0) {
    if (st == MS_OK && fsync(w->fd))
      st = MS_FAIL(MS_EIO, "%s: fsync: %s", w->path, strerror(errno));
    if (close(w->fd) && st == MS_OK)
      st = MS_FAIL(MS_EIO, "%s: close: %s", w->path, strerror(errno));
  }
  ms_free(w->host);
  ms_text_free(w->path);
  ms_free(w);
  return st;
}
