/* The structs of DLPack 1.1 (https://github.com/dmlc/dlpack), declared here so that the tests need no other header and do not share
 * the library's own declarations. */

#ifndef TENSOR_H
#define TENSOR_H

#include <stddef.h>
#include <stdint.h>

#include "rgaps.h"

struct tensor {
  void *data;
  int32_t device_type;
  int32_t device_id;
  int32_t ndim;
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
  int64_t *shape;
  int64_t *strides;
  uint64_t byte_offset;
};

struct DLManagedTensorVersioned {
  uint32_t major;
  uint32_t minor;
  void *manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned *self);
  uint64_t flags;
  struct tensor tensor;
};

#define IS_READ_ONLY UINT64_C(1)
#define FLOATING_POINT 2
#define UNSIGNED 1

_Static_assert(sizeof(struct tensor) == 48 && sizeof(struct DLManagedTensorVersioned) == 80, "the layout of 64-bit machines");
_Static_assert(offsetof(struct DLManagedTensorVersioned, flags) == 24 && offsetof(struct tensor, shape) == 24, "likewise");

#endif /* TENSOR_H */
