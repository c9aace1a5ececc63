/* layout.h - a model's parameters before and after their memory: for layout.c, weights.c, make.c
 * and save.c. */
#ifndef MS_LAYOUT_H
#define MS_LAYOUT_H
#include "../moonstill.h"
#include "model.h"

#define MS_EMBED_NAME "model.embed_tokens.weight"
#define MS_HEAD_NAME "lm_head.weight"

/* The list of parameters, without memory for them. Takes the config over on success. */
ms_status ms_layout_new(ms_device *dev, ms_config *config, const ms_model_options *options,
                        ms_model **out);
/* The arenas, weights undefined; `frozen` as in ms_model_options. */
ms_status ms_layout_fill(ms_model *model, const char *frozen);
/* Index of the k-th parameter of a layer; with layer = layers and k = 0, of the final norm. */
int32_t ms_layout_index(const ms_model *model, int32_t layer, int32_t k);
/* What weights stored as this dtype are held in when the user has no wish. */
int ms_layout_dtype(int stored);

#endif
