/* tensor.c - dense row-major arrays on one device. */
#include "tensor.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../base/memory.h"

static const struct {
  const char *name;
  size_t size;
} dtypes[] = {[MS_F32] = {"f32", 4}, [MS_BF16] = {"bf16", 2}, [MS_F16] = {"f16", 2},
              [MS_I32] = {"i32", 4}, [MS_I64] = {"i64", 8},   [MS_U8] = {"u8", 1}};

size_t ms_dtype_size(int dtype) {
  return dtype >= MS_F32 && dtype <= MS_U8 ? dtypes[dtype].size : 0;
}

const char *ms_dtype_name(int dtype) { return ms_dtype_size(dtype) ? dtypes[dtype].name : "?"; }

const char *ms_shape_text(int rank, const int64_t *shape, char *buffer) {
  char *p = buffer + sprintf(buffer, "[");
  for (int i = 0; i < rank && i < MS_MAX_RANK; i++)
    p += sprintf(p, i ? ", %lld" : "%lld", (long long)shape[i]);
  strcpy(p, "]");
  return buffer;
}

const char *ms_place_text(int rank, const int64_t *shape, int64_t at, char *buffer) {
  if (rank < 2)
    sprintf(buffer, "index %lld", (long long)at);
  else
    sprintf(buffer, "row %lld, column %lld", (long long)(at / shape[rank - 1]),
            (long long)(at % shape[rank - 1]));
  return buffer;
}

/* A tensor without memory. */
static ms_status new_header(ms_device *dev, int dtype, int rank, const int64_t *shape,
                            ms_tensor **out) {
  void *p;
  *out = NULL;
  MS_REQUIRE(dev, "tensor: no device");
  MS_REQUIRE(ms_dtype_size(dtype), "tensor: %d is no dtype", dtype);
  MS_REQUIRE(rank >= 1 && rank <= MS_MAX_RANK, "tensor: rank %d not in 1..%d", rank, MS_MAX_RANK);
  int64_t count = 1;
  for (int i = 0; i < rank; i++) {
    MS_REQUIRE(shape[i] > 0, "tensor: shape[%d] is %lld", i, (long long)shape[i]);
    MS_REQUIRE(!__builtin_mul_overflow(count, shape[i], &count) && count < INT64_MAX / 8,
               "tensor: shape[%d] = %lld makes it too large", i, (long long)shape[i]);
  }
  MS_TRY(ms_alloc(sizeof(ms_tensor), "tensor", &p));
  ms_tensor *t = p;
  t->dev = dev;
  ms_device_retain(dev);
  t->dtype = dtype;
  t->rank = rank;
  memcpy(t->shape, shape, (size_t)rank * sizeof *shape);
  t->count = count;
  t->refs = 1;
  t->changes = &t->own;
  *out = t;
  return MS_OK;
}

static size_t bytes_of(const ms_tensor *t) { return (size_t)t->count * ms_dtype_size(t->dtype); }

ms_status ms_tensor_new(ms_device *dev, int dtype, int rank, const int64_t *shape,
                        ms_tensor **out) {
  ms_tensor *t;
  *out = NULL;
  MS_TRY(new_header(dev, dtype, rank, shape, &t));
  ms_status st = ms_device_new(dev, bytes_of(t), &t->data);
  if (st != MS_OK)
    ms_tensor_free(t);
  else
    *out = t;
  return st;
}

ms_status ms_tensor_wrap(ms_device *dev, int dtype, int rank, const int64_t *shape, void *data,
                         ms_changes *changes, void (*release)(void *owner), void *owner,
                         ms_tensor **out) {
  MS_TRY(new_header(dev, dtype, rank, shape, out));
  (*out)->data = data;
  (*out)->release = release;
  (*out)->owner = owner;
  if (changes) (*out)->changes = changes;
  return MS_OK;
}

void ms_tensor_change(ms_tensor *t) {
  if (t) atomic_fetch_add(t->changes, 1);
}

ms_status ms_tensor_view(ms_tensor *base, int dtype, int64_t offset, int rank, const int64_t *shape,
                         ms_tensor **out) {
  char a[200], b[200];
  ms_tensor *t;
  *out = NULL;
  MS_REQUIRE(base, "view: no tensor");
  MS_REQUIRE(ms_dtype_size(dtype) == ms_dtype_size(base->dtype), "view: %s over %s",
             ms_dtype_name(dtype), ms_dtype_name(base->dtype));
  MS_TRY(new_header(base->dev, dtype, rank, shape, &t));
  if (offset < 0 || offset > base->count - t->count) {
    ms_status st =
        MS_FAIL(MS_EINVAL, "view: %s at %lld is not inside %s", ms_shape_text(rank, shape, a),
                (long long)offset, ms_shape_text(base->rank, base->shape, b));
    ms_tensor_free(t);
    return st;
  }
  atomic_fetch_add(&base->refs, 1);
  t->base = base;
  t->changes = base->changes;
  t->data = (char *)base->data + (size_t)offset * ms_dtype_size(dtype);
  *out = t;
  return MS_OK;
}

void ms_tensor_free(ms_tensor *t) {
  if (!t || atomic_fetch_sub(&t->refs, 1) > 1) return;
  if (t->release)
    t->release(t->owner);
  else if (!t->base && t->data)
    ms_device_free(t->dev, t->data, bytes_of(t));
  ms_tensor_free(t->base);
  ms_device_close(t->dev);
  ms_free(t);
}

int ms_tensor_dtype(const ms_tensor *t) { return t->dtype; }
int ms_tensor_rank(const ms_tensor *t) { return t->rank; }
int64_t ms_tensor_size(const ms_tensor *t, int axis) {
  return axis < 0 ? t->count : axis < t->rank ? t->shape[axis] : 0;
}
ms_device *ms_tensor_device(const ms_tensor *t) { return t->dev; }

static ms_status check_bytes(const char *what, const ms_tensor *t, int64_t bytes) {
  char s[200];
  MS_REQUIRE(bytes == (int64_t)bytes_of(t), "%s: %lld bytes for a tensor %s %s of %zu", what,
             (long long)bytes, ms_dtype_name(t->dtype), ms_shape_text(t->rank, t->shape, s),
             bytes_of(t));
  return MS_OK;
}

ms_status ms_tensor_write(ms_tensor *t, const void *data, int64_t bytes) {
  MS_TRY(check_bytes("tensor write", t, bytes));
  ms_tensor_change(t);
  return MS_OP(t->dev, write, t->data, data, (size_t)bytes);
}

ms_status ms_tensor_read(const ms_tensor *t, void *data, int64_t bytes) {
  MS_TRY(check_bytes("tensor read", t, bytes));
  return MS_OP(t->dev, read, data, t->data, (size_t)bytes);
}

ms_status ms_tensor_zero(ms_tensor *t) {
  ms_tensor_change(t);
  return MS_OP(t->dev, zero, t->data, bytes_of(t));
}

ms_status ms_tensor_copy(ms_tensor *y, const ms_tensor *x) {
  char a[200], b[200];
  MS_REQUIRE(y->dev == x->dev, "tensor copy: from %s to %s", x->dev->spec, y->dev->spec);
  MS_REQUIRE(y->count == x->count, "tensor copy: %s to %s", ms_shape_text(x->rank, x->shape, b),
             ms_shape_text(y->rank, y->shape, a));
  ms_tensor_change(y);
  if (y->dtype == x->dtype) return MS_OP(y->dev, copy, y->data, x->data, bytes_of(y));
  return MS_OP(y->dev, cast, y->data, y->dtype, x->data, x->dtype, y->count);
}

/* One element of any dtype, as double. */
static double element(const void *p, int dtype, int64_t i) {
  switch (dtype) {
    case MS_F32: return ((const float *)p)[i];
    case MS_I32: return ((const int32_t *)p)[i];
    case MS_I64: return (double)((const int64_t *)p)[i];
    default: return ((const uint8_t *)p)[i];
  }
}

/* An integer dtype takes only integers in its range: others are an error, not rounded. The message
 * counts from 1, as Lua's arrays. */
static ms_status check_element(int dtype, int64_t i, double x) {
  static const double low[] = {[MS_I32] = INT32_MIN, [MS_I64] = -0x1p63, [MS_U8] = 0};
  static const double end[] = {[MS_I32] = 0x1p31, [MS_I64] = 0x1p63, [MS_U8] = 256};
  if (dtype != MS_I32 && dtype != MS_I64 && dtype != MS_U8) return MS_OK;
  MS_REQUIRE(x >= low[dtype] && x < end[dtype] && x == floor(x),
             "tensor write: element %lld is %.17g, which no %s is", (long long)i + 1, x,
             ms_dtype_name(dtype));
  return MS_OK;
}

static void set_element(void *p, int dtype, int64_t i, double x) {
  switch (dtype) {
    case MS_F32: ((float *)p)[i] = (float)x; break;
    case MS_I32: ((int32_t *)p)[i] = (int32_t)x; break;
    case MS_I64: ((int64_t *)p)[i] = (int64_t)x; break;
    default: ((uint8_t *)p)[i] = (uint8_t)x;
  }
}

/* A host buffer for a tensor's content, the half types widened to f32. */
static ms_status host_copy(const ms_tensor *t, void **out, int *dtype) {
  int half = t->dtype == MS_BF16 || t->dtype == MS_F16;
  *dtype = half ? MS_F32 : t->dtype;
  return ms_alloc_undefined((size_t)t->count * ms_dtype_size(*dtype), "tensor copy", out);
}

ms_status ms_tensor_read_double(const ms_tensor *t, double *data, int64_t count) {
  void *host = NULL;
  ms_tensor *wide = NULL;
  int dtype;
  ms_status st;

  MS_REQUIRE(count == t->count, "tensor read: %lld elements of %lld", (long long)count,
             (long long)t->count);
  MS_TRY(host_copy(t, &host, &dtype));
  if (dtype != t->dtype) {
    MS_TRY_OR(end, ms_tensor_new(t->dev, dtype, t->rank, t->shape, &wide));
    MS_TRY_OR(end, ms_tensor_copy(wide, t));
  }
  MS_TRY_OR(end, ms_tensor_read(wide ? wide : t, host, count * (int64_t)ms_dtype_size(dtype)));
  for (int64_t i = 0; i < count; i++) {
    double x = element(host, dtype, i);
    data[i] = isnan(x)
                  ? NAN
                  : x; /* LuaJIT would take the bits of another NaN for a value of another type */
  }
end:
  ms_tensor_free(wide);
  ms_free(host);
  return st;
}

ms_status ms_tensor_write_double(ms_tensor *t, const double *data, int64_t count) {
  void *host = NULL;
  ms_tensor *wide = NULL;
  int dtype;
  ms_status st;

  MS_REQUIRE(count == t->count, "tensor write: %lld elements of %lld", (long long)count,
             (long long)t->count);
  MS_TRY(host_copy(t, &host, &dtype));
  for (int64_t i = 0; i < count; i++) {
    MS_TRY_OR(end, check_element(dtype, i, data[i]));
    set_element(host, dtype, i, data[i]);
  }
  if (dtype != t->dtype) MS_TRY_OR(end, ms_tensor_new(t->dev, dtype, t->rank, t->shape, &wide));
  MS_TRY_OR(end, ms_tensor_write(wide ? wide : t, host, count * (int64_t)ms_dtype_size(dtype)));
  if (wide) MS_TRY_OR(end, ms_tensor_copy(t, wide));
end:
  ms_tensor_free(wide);
  ms_free(host);
  return st;
}
