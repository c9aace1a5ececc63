/* workspace.h - memory of the fused head between calls. */
#ifndef MS_HEAD_WORKSPACE_H
#define MS_HEAD_WORKSPACE_H
#include "../moonstill.h"
#include "../tensor/tensor.h"

/* Memory that calls in succession share: grows to what was needed, undefined between them. Not for two
 * calls at once. All zero at first. */
typedef struct ms_head_workspace {
  ms_device *dev;
  void *data; /* on `dev` */
  size_t bytes;
  void *host;
  size_t host_bytes;
} ms_head_workspace;
void ms_head_workspace_free(ms_head_workspace *workspace);
/* At least `bytes` of `data` on the device. */
ms_status ms_head_workspace_reserve(ms_head_workspace *workspace, ms_device *dev, size_t bytes);

#endif
