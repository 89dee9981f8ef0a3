/**
 * @file
 * Descriptors: ROS messages of rgaps_msgs that hold, byte for byte, the handle and metadata of an RGAPS message. Without rclcpp.
 *
 *     GpuImage  = handle (88 B) | metadata as the core encodes it | zero padding to a multiple of 8
 *
 * A descriptor may come from a bag, another version, or a faulty program. check() refuses one that contradicts itself; only a take tells whether
 * its message still exists.
 */

#ifndef RGAPS_ROS__DESCRIPTOR_HPP_
#define RGAPS_ROS__DESCRIPTOR_HPP_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>
#include <type_traits>

#include "rgaps.hpp"
#include "rgaps_msgs/msg/gpu_image.hpp"
#include "rgaps_msgs/msg/gpu_point_cloud.hpp"
#include "rgaps_msgs/msg/gpu_tensor.hpp"

namespace rgaps_ros {

/// Per kind of message: its descriptor, its metadata struct in C, its type name, and whether its counts fit its arrays.
template <class Meta>
struct Kind;

template <>
struct Kind<rgaps::Image> {
  using Descriptor = rgaps_msgs::msg::GpuImage;
  using Encoded = rgaps_image_t;
  static constexpr const char *type_name = "rgaps/Image";
  static bool counts_fit(const Encoded &) { return true; }
};

template <>
struct Kind<rgaps::PointCloud> {
  using Descriptor = rgaps_msgs::msg::GpuPointCloud;
  using Encoded = rgaps_point_cloud_t;
  static constexpr const char *type_name = "rgaps/PointCloud";
  static bool counts_fit(const Encoded &cloud) { return cloud.field_count <= std::size(cloud.fields); }
};

template <>
struct Kind<rgaps::Tensor> {
  using Descriptor = rgaps_msgs::msg::GpuTensor;
  using Encoded = rgaps_tensor_t;
  static constexpr const char *type_name = "rgaps/Tensor";
  static bool counts_fit(const Encoded &tensor) { return tensor.ndim <= std::size(tensor.shape); }
};

/// The descriptor of a kind.
template <class Meta>
using DescriptorOf = typename Kind<Meta>::Descriptor;

/// The handle and metadata in a descriptor.
template <class Meta>
struct Described {
  rgaps_message_handle_t handle{};
  Meta meta{};
};

namespace detail {

/// Checks at compile time that a descriptor's bytes are those of handle and metadata. tests/msgs compares the fields one by one.
template <class Meta>
constexpr void assert_layout() {
  using Descriptor = DescriptorOf<Meta>;
  using Encoded = typename Kind<Meta>::Encoded;
  constexpr std::size_t bytes = sizeof(rgaps_message_handle_t) + sizeof(Encoded);
  static_assert(sizeof(rgaps_message_handle_t) == 88, "GpuHandle has 88 bytes");
  static_assert(sizeof(rgaps_msgs::msg::GpuHandle) == sizeof(rgaps_message_handle_t), "GpuHandle is the handle");
  static_assert(sizeof(Descriptor) == (bytes + 7) / 8 * 8, "a descriptor is a handle and metadata");
  static_assert(std::is_trivially_copyable<Descriptor>::value, "a descriptor is its bytes");
}

}  // namespace detail

/// Empty metadata of a kind.
template <class Meta>
Meta empty_meta() {
  Meta meta;
  meta.c().kind = Meta::kind;
  return meta;
}

/// Fills a descriptor by copying handle and metadata.
template <class Meta>
void write(const rgaps_message_handle_t &handle, const Meta &meta, DescriptorOf<Meta> &descriptor) {
  detail::assert_layout<Meta>();
  using Encoded = typename Kind<Meta>::Encoded;
  auto *bytes = reinterpret_cast<std::uint8_t *>(&descriptor);
  std::memcpy(bytes, &handle, sizeof handle);
  std::memcpy(bytes + sizeof handle, &meta.c().as, sizeof(Encoded));
  const std::size_t written = sizeof handle + sizeof(Encoded);
  std::memset(bytes + written, 0, sizeof descriptor - written);
}

/// Copies a descriptor's handle and metadata unchecked. If a count exceeds its array, the metadata stays empty, so that no reader runs past the
/// array.
template <class Meta>
Described<Meta> copy(const DescriptorOf<Meta> &descriptor) {
  detail::assert_layout<Meta>();
  Described<Meta> described;
  described.meta = empty_meta<Meta>();
  const auto *bytes = reinterpret_cast<const std::uint8_t *>(&descriptor);
  std::memcpy(&described.handle, bytes, sizeof described.handle);
  typename Kind<Meta>::Encoded encoded;
  std::memcpy(&encoded, bytes + sizeof described.handle, sizeof encoded);
  if (Kind<Meta>::counts_fit(encoded)) std::memcpy(&described.meta.c().as, &encoded, sizeof encoded);
  return described;
}

/// Refuses a descriptor that contradicts itself.
template <class Meta>
rgaps::Result<void> check(const Described<Meta> &described) {
  return rgaps::detail::done(rgaps_ros_descriptor_check(&described.handle, &described.meta.c()));
}

}  // namespace rgaps_ros

#endif  // RGAPS_ROS__DESCRIPTOR_HPP_
