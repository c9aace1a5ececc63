/* json.h - JSON by jansson, with limits. Files and texts are untrusted: sizes are checked before
 * anything is read, depth by jansson's own limit (2048), and errors name file and byte. */
#ifndef MS_JSON_H
#define MS_JSON_H
#include <jansson.h>
#include <stddef.h>

#include "error.h"

enum { MS_JSON_MAX_BYTES = 256 << 20 };

/* `name` is what errors call the text. *out is released with json_decref. */
ms_status ms_json_parse(const char *name, const char *text, size_t bytes, json_t **out);
ms_status ms_json_read(const char *path, json_t **out);
/* Compact text, keys in order of insertion, to be freed with ms_text_free. */
ms_status ms_json_text(const json_t *value, int indent, char **out);

#endif
