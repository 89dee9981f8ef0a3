/* Checks the C layout of the messages at compile time, and the introspection type support, which RMWs read, at run time. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "rgaps_msgs/msg/buffer_descriptor.h"
#include "rgaps_msgs/msg/gpu_handle.h"
#include "rgaps_msgs/msg/gpu_image.h"
#include "rgaps_msgs/msg/gpu_point_cloud.h"
#include "rgaps_msgs/msg/gpu_point_field.h"
#include "rgaps_msgs/msg/gpu_tensor.h"
#include "rosidl_typesupport_introspection_c/identifier.h"
#include "rosidl_typesupport_introspection_c/message_introspection.h"

#define MESSAGE(message, bytes) _Static_assert(sizeof(rgaps_msgs__msg__##message) == bytes, #message);
#define FIELD(message, field, start, bytes)                                                          \
  _Static_assert(offsetof(rgaps_msgs__msg__##message, field) == start, #message "." #field);         \
  _Static_assert(sizeof(((rgaps_msgs__msg__##message *)0)->field) == bytes, #message "." #field);
#include "layout.def"
#undef MESSAGE
#undef FIELD

struct row {
  const char *message;
  const char *field;
  size_t start;
  size_t bytes;
};

/* A message's own row has an empty field name. */
static const struct row ROWS[] = {
#define MESSAGE(message, bytes) {#message, NULL, 0, bytes},
#define FIELD(message, field, start, bytes) {#message, #field, start, bytes},
#include "layout.def"
#undef MESSAGE
#undef FIELD
};
static const size_t ROWS_COUNT = sizeof ROWS / sizeof ROWS[0];

static int check(const rosidl_message_type_support_t *handle)
{
  const rosidl_message_type_support_t *support =
    get_message_typesupport_handle(handle, rosidl_typesupport_introspection_c__identifier);
  if (support == NULL) {
    fprintf(stderr, "no introspection type support\n");
    return 1;
  }
  const rosidl_typesupport_introspection_c__MessageMembers *members = support->data;
  size_t row = 0;
  while (row < ROWS_COUNT && !(ROWS[row].field == NULL && strcmp(ROWS[row].message, members->message_name_) == 0)) {
    row++;
  }
  if (row == ROWS_COUNT || members->size_of_ != ROWS[row].bytes) {
    fprintf(stderr, "%s: %zu B, not as in layout.def\n", members->message_name_, members->size_of_);
    return 1;
  }
  size_t end = 0;
  for (uint32_t i = 0; i < members->member_count_; i++) {
    const struct row *expected = &ROWS[++row];
    const rosidl_typesupport_introspection_c__MessageMember *member = &members->members_[i];
    if (row >= ROWS_COUNT || expected->field == NULL || strcmp(expected->field, member->name_) != 0 ||
        expected->start != member->offset_ || expected->start != end) {
      fprintf(stderr, "%s.%s at %u: not as in layout.def, or behind a gap\n", members->message_name_, member->name_,
              member->offset_);
      return 1;
    }
    end = expected->start + expected->bytes;
  }
  if (end != members->size_of_ || (row + 1 < ROWS_COUNT && ROWS[row + 1].field != NULL)) {
    fprintf(stderr, "%s: padding at the end, or a field is missing\n", members->message_name_);
    return 1;
  }
  printf("%s %zu B in %u fields: C layout, type support and layout.def agree\n", members->message_name_,
         members->size_of_, members->member_count_);
  return 0;
}

#define SUPPORT(message) \
  ROSIDL_TYPESUPPORT_INTERFACE__MESSAGE_SYMBOL_NAME(rosidl_typesupport_introspection_c, rgaps_msgs, msg, message)
const rosidl_message_type_support_t *SUPPORT(GpuHandle)(void);
const rosidl_message_type_support_t *SUPPORT(GpuImage)(void);
const rosidl_message_type_support_t *SUPPORT(GpuPointField)(void);
const rosidl_message_type_support_t *SUPPORT(GpuPointCloud)(void);
const rosidl_message_type_support_t *SUPPORT(GpuTensor)(void);
const rosidl_message_type_support_t *SUPPORT(BufferDescriptor)(void);

int main(void)
{
  return check(SUPPORT(GpuHandle)()) | check(SUPPORT(GpuImage)()) | check(SUPPORT(GpuPointField)()) |
         check(SUPPORT(GpuPointCloud)()) | check(SUPPORT(GpuTensor)()) | check(SUPPORT(BufferDescriptor)());
}
