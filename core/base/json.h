/* json.h - JSON by jansson, with limits. Files and texts are untrusted: sizes are checked before
 * anything is read, depth by jansson's own limit (2048), the memory that values take as they are
 * read, and errors name file and byte. An integer beyond 64 bits is a real, a number beyond doubles
 * 1e308 of its sign.
 *
 * jansson's allocator is the whole process's. Once the library is loaded it is one that calls the one
 * before, so what another user of jansson has allocated, or will free, is as it was. Only what is
 * asked for inside the calls here is limited. */
#ifndef MS_JSON_H
#define MS_JSON_H
#include <jansson.h>
#include <stddef.h>

#include "error.h"

enum {
  MS_JSON_MAX_BYTES = 256 << 20,
  MS_CONFIG_MAX_BYTES = 1 << 20 /* of config.json and its like: the largest known has 20 KB */
};

/* `name` is what errors call the text. *out is released with json_decref. */
ms_status ms_json_parse(const char *name, const char *text, size_t bytes, json_t **out);
ms_status ms_json_read(const char *path, size_t limit, json_t **out);
ms_status ms_json_copy(const char *name, const json_t *value, json_t **out); /* a deep one */
/* 1 when jansson was refused memory on this thread since the last call of anything here. Some of its
 * functions leave something out then, or fail as they do for a wrong value. */
int ms_json_starved(void);
/* A value as a message shows it, cut to the room of the buffer; returns it. */
const char *ms_json_show(const json_t *value, char *buffer, size_t room);
/* Compact text, keys in order of insertion, to be freed with ms_text_free. */
ms_status ms_json_text(const json_t *value, int indent, char **out);

#endif
