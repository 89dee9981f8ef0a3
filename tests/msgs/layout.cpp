// Checks at compile time that the C++ layout of the messages is the C layout; a message survives being copied byte by byte.
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <type_traits>

#include "rgaps_msgs/msg/buffer_descriptor.hpp"
#include "rgaps_msgs/msg/gpu_handle.hpp"
#include "rgaps_msgs/msg/gpu_image.hpp"
#include "rgaps_msgs/msg/gpu_point_cloud.hpp"
#include "rgaps_msgs/msg/gpu_point_field.hpp"
#include "rgaps_msgs/msg/gpu_tensor.hpp"

#define MESSAGE(message, bytes)                                                            \
  static_assert(sizeof(rgaps_msgs::msg::message) == bytes, #message);                      \
  static_assert(std::is_standard_layout_v<rgaps_msgs::msg::message>, #message);            \
  static_assert(std::is_trivially_copyable_v<rgaps_msgs::msg::message>, #message);
#define FIELD(message, field, start, bytes)                                                \
  static_assert(offsetof(rgaps_msgs::msg::message, field) == start, #message "." #field);  \
  static_assert(sizeof(rgaps_msgs::msg::message::field) == bytes, #message "." #field);
#include "layout.def"

int main()
{
  rgaps_msgs::msg::GpuImage image;
  image.handle.sequence = 7;
  image.width = 1920;
  image.encoding = rgaps_msgs::msg::GpuImage::ENCODING_RGB8;
  unsigned char bytes[sizeof image];
  std::memcpy(bytes, &image, sizeof image);
  rgaps_msgs::msg::GpuImage copy;
  std::memcpy(&copy, bytes, sizeof copy);
  if (!(copy == image)) {
    std::fprintf(stderr, "GpuImage does not survive a copy of its bytes\n");
    return 1;
  }
  std::puts("the C++ layout agrees with layout.def");
  return 0;
}
