/* gradients.h - what becomes of the gradients of all ranks once a step's last batch was learnt. */
#ifndef MS_GRADIENTS_H
#define MS_GRADIENTS_H
#include "model.h"

/* Sums the gradients over the ranks that learn from other batches, and before that over those that the
 * model is cut over, where several of them hold the same; unless that was done since they were zeroed. */
ms_status ms_model_sum_gradients(ms_model *model, ms_group *group);

#endif
