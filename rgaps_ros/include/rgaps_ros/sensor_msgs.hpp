/**
 * @file
 * Converts sensor_msgs/Image and sensor_msgs/PointCloud2 to the core's types and back. Without rclcpp.
 *
 * Input is not trusted. A message that RGAPS cannot carry unchanged is refused with the reason: an unknown encoding, rows that do not fit,
 * missing or extra bytes, a frame_id of more than 64 bytes, more than 16 fields.
 */

#ifndef RGAPS_ROS__SENSOR_MSGS_HPP_
#define RGAPS_ROS__SENSOR_MSGS_HPP_

#include <cstdint>
#include <string>
#include <vector>

#include "rgaps.hpp"
#include "sensor_msgs/msg/image.hpp"
#include "sensor_msgs/msg/point_cloud2.hpp"

namespace rgaps_ros {

namespace detail {

template <class Meta, class Header>
rgaps::Result<void> set_header(Meta &meta, const Header &header) {
  if (auto set = meta.set_header(std::chrono::nanoseconds(0), header.frame_id); !set) return set;
  if (meta.frame_id() != header.frame_id) {
    return rgaps::Failure{RGAPS_INVALID_ARGUMENT, "the frame_id has a zero byte"};
  }
  if (header.stamp.nanosec >= 1'000'000'000u) {
    return rgaps::Failure{RGAPS_INVALID_ARGUMENT, "the stamp has " + std::to_string(header.stamp.nanosec) + " ns in a second"};
  }
  meta.c().as.header.sec = header.stamp.sec;
  meta.c().as.header.nanosec = header.stamp.nanosec;
  return {};
}

template <class Meta, class Header>
void copy_header(const Meta &meta, Header &header) {
  header.stamp.sec = meta.c().as.header.sec;
  header.stamp.nanosec = meta.c().as.header.nanosec;
  header.frame_id = std::string(meta.frame_id());
}

template <class Meta>
rgaps::Result<Meta> check_bytes(Meta meta, std::size_t bytes, const std::string &what) {
  const std::uint64_t wanted = meta.payload_bytes();
  if (wanted == 0 && bytes != 0) return rgaps::detail::failure();
  if (wanted != bytes) {
    return rgaps::Failure{RGAPS_INVALID_ARGUMENT,
                          what + " needs " + std::to_string(wanted) + " B of data, the message has " + std::to_string(bytes) + " B"};
  }
  return meta;
}

}  // namespace detail

/// The metadata of an image, whatever bytes it has.
inline rgaps::Result<rgaps::Image> describe_without_data(const sensor_msgs::msg::Image &message) {
  auto made = rgaps::Image::create(message.width, message.height, message.encoding);
  if (!made) return made.error();
  auto &image = made->c().as.image;
  if (made->encoding() != message.encoding) {
    return rgaps::Failure{RGAPS_INVALID_ARGUMENT, "the encoding has a zero byte"};
  }
  if (message.is_bigendian > 1) {
    return rgaps::Failure{RGAPS_INVALID_ARGUMENT, "is_bigendian is " + std::to_string(message.is_bigendian) + "; it must be 0 or 1"};
  }
  image.step = message.step;
  image.is_bigendian = message.is_bigendian;
  if (auto set = detail::set_header(*made, message.header); !set) return set.error();
  return made;
}

/// The metadata of an image.
inline rgaps::Result<rgaps::Image> describe(const sensor_msgs::msg::Image &message) {
  auto made = describe_without_data(message);
  if (!made) return made;
  return detail::check_bytes(*made, message.data.size(), "an image of " + std::to_string(message.height) + " rows of step " +
                                                             std::to_string(message.step) + " in " + message.encoding);
}

/// The metadata of a point cloud.
inline rgaps::Result<rgaps::PointCloud> describe(const sensor_msgs::msg::PointCloud2 &message) {
  auto made = rgaps::PointCloud::create(message.width, message.height, message.point_step);
  if (!made) return made.error();
  auto &cloud = made->c().as.point_cloud;
  cloud.row_step = message.row_step;
  cloud.is_bigendian = message.is_bigendian ? 1 : 0;
  cloud.is_dense = message.is_dense ? 1 : 0;
  for (const auto &field : message.fields) {
    if (auto added = made->add_field(field.name, field.offset, field.datatype); !added) return added.error();
    auto &last = cloud.fields[cloud.field_count - 1];
    if (rgaps::detail::fixed(last.name, sizeof last.name) != field.name) {
      return rgaps::Failure{RGAPS_INVALID_ARGUMENT, "the name of field " + std::to_string(cloud.field_count - 1) + " has a zero byte"};
    }
    last.count = field.count;
  }
  if (auto set = detail::set_header(*made, message.header); !set) return set.error();
  return detail::check_bytes(*made, message.data.size(),
                             "a cloud of " + std::to_string(message.height) + " rows of " + std::to_string(message.row_step) + " B");
}

/// Fills an image message from metadata and pixels: one copy.
inline void write(const rgaps::Image &meta, rgaps::Span<const std::uint8_t> pixels, sensor_msgs::msg::Image &message) {
  detail::copy_header(meta, message.header);
  message.width = meta.width();
  message.height = meta.height();
  message.step = meta.step();
  message.encoding = std::string(meta.encoding());
  message.is_bigendian = meta.c().as.image.is_bigendian;
  message.data = std::vector<std::uint8_t>(pixels.begin(), pixels.end());
}

/// Fills a point cloud message from metadata and points: one copy.
inline void write(const rgaps::PointCloud &meta, rgaps::Span<const std::uint8_t> points, sensor_msgs::msg::PointCloud2 &message) {
  detail::copy_header(meta, message.header);
  message.width = meta.width();
  message.height = meta.height();
  message.point_step = meta.point_step();
  message.row_step = meta.row_step();
  message.is_bigendian = meta.c().as.point_cloud.is_bigendian != 0;
  message.is_dense = meta.is_dense();
  message.fields.clear();
  for (std::uint32_t place = 0; place < meta.c().as.point_cloud.field_count; ++place) {
    const auto &from = meta.c().as.point_cloud.fields[place];
    auto &field = message.fields.emplace_back();
    field.name = std::string(rgaps::detail::fixed(from.name, sizeof from.name));
    field.offset = from.offset;
    field.datatype = static_cast<std::uint8_t>(from.datatype);
    field.count = from.count;
  }
  message.data = std::vector<std::uint8_t>(points.begin(), points.end());
}

}  // namespace rgaps_ros

#endif  // RGAPS_ROS__SENSOR_MSGS_HPP_
