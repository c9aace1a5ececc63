/* safetensors.h - files of named tensors: a reader that checks and maps, and a writer.
 *
 * The layout: 8 bytes of header length (little-endian), a JSON object {name: {dtype, shape,
 * data_offsets}}, then the data without gaps. Files are untrusted: nothing of a tensor is handed
 * out before all of the header has been checked against the size of the file. Errors name the
 * file, the tensor and the byte offset in the file. */
#ifndef MS_SAFETENSORS_H
#define MS_SAFETENSORS_H
#include <jansson.h>
#include <stddef.h>

#include "../tensor/tensor.h"

/* `data` is inside the mapping and has no alignment. A dtype that moonstill has no name for is -1;
 * `type` is its spelling in the file. A scalar has rank 0. */
typedef struct ms_stored {
  const char *name, *type;
  int dtype, rank;
  int64_t shape[MS_MAX_RANK];
  int64_t count;
  const void *data;
  size_t bytes;
  size_t offset; /* of `data` in the file */
} ms_stored;

typedef struct ms_safetensors {
  char *path;
  void *map;
  size_t bytes;
  json_t *header; /* names and types point into it */
  int32_t tensors;
  ms_stored *tensor; /* in order of their data */
  int32_t *by_name;  /* indices of `tensor`, sorted by name */
} ms_safetensors;

ms_status ms_safetensors_open(const char *path, ms_safetensors **out);
void ms_safetensors_close(ms_safetensors *file);
/* NULL when the file has no such tensor. */
const ms_stored *ms_safetensors_find(const ms_safetensors *file, const char *name);
/* A value of the header's "__metadata__"; NULL when there is none. */
const char *ms_safetensors_metadata(const ms_safetensors *file, const char *key);
/* Reads a tensor into memory of `dev` that holds tensor->count elements of `dtype`. NaN or infinity
 * among them, in f32 or bf16, is an error that names the first. */
ms_status ms_safetensors_read(const ms_safetensors *file, const ms_stored *tensor, ms_device *dev,
                              void *y, int dtype);
/* The same of some of its elements, which y holds one behind the other. */
ms_status ms_safetensors_read_rows(const ms_safetensors *file, const ms_stored *tensor,
                                   const ms_rows *rows, ms_device *dev, void *y, int dtype);

/* ---- writing: by one process, or by several, each a part of every tensor ---- */

/* A tensor to be written, stored as `dtype`. Every process that writes has the same list of them. */
typedef struct ms_storing {
  const char *name;
  int dtype, rank;
  int64_t shape[MS_MAX_RANK];
  int64_t at; /* where its data begins in the file: set by the calls below */
} ms_storing;

typedef struct ms_writing ms_writing;

/* Makes a file for all of `tensor`, at its full size, in order but those of wide elements first (so that
 * every tensor is aligned to its element). Nothing may be at `path`, and nothing stays there on failure:
 * a file that has readers is made in a folder that has none (io/folder.h). The header's metadata is
 * {"format": "pt"} and, where `key` is not NULL, {key: value}. */
ms_status ms_safetensors_create(const char *path, int32_t tensors, ms_storing *tensor,
                                const char *key, const char *value);
/* Opens such a file to put tensors into it, wherever it was created: all else is the same as there. */
ms_status ms_safetensors_join(const char *path, int32_t tensors, ms_storing *tensor,
                              const char *key, const char *value, ms_writing **out);
/* Writes some elements of a tensor: `data` on `dev` has them one behind the other, as `held`. */
ms_status ms_safetensors_put(ms_writing *w, const ms_storing *tensor, const ms_rows *rows,
                             ms_device *dev, const void *data, int held);
/* Flushes what was put, unless `st` is an error, and closes; NULL is fine. */
ms_status ms_safetensors_end(ms_writing *w, ms_status st);

#endif
