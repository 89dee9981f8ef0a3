// Shared by the tests within one process: a node with its executor, images filled with one value, forged descriptors.

#ifndef RGAPS_ROS__TEST__IN_PROCESS_HPP_
#define RGAPS_ROS__TEST__IN_PROCESS_HPP_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rmw/rmw.h"
#include "rgaps_ros/rgaps_ros.hpp"

namespace in_process {

using rgaps::DeviceImage;
using rgaps_msgs::msg::GpuImage;
using Publisher = rgaps_ros::Publisher<DeviceImage>;
constexpr std::chrono::seconds time_max(20);

inline rclcpp::NodeOptions with(bool intra_process, const std::vector<rclcpp::Parameter> &parameters = {},
                                const std::vector<std::string> &arguments = {}) {
  return rclcpp::NodeOptions().use_intra_process_comms(intra_process).parameter_overrides(parameters).arguments(arguments);
}

/// A node and the executor that spins it.
struct World {
  std::shared_ptr<rclcpp::Node> node;
  rclcpp::executors::SingleThreadedExecutor executor;

  explicit World(const rclcpp::NodeOptions &options, const std::string &space = "")
      : node(std::make_shared<rclcpp::Node>("world", space, options)), executor(of(options)) {
    executor.add_node(node);
  }
  /// Spins until the condition holds; false when the time is up.
  bool until(const std::function<bool()> &is_so) {
    const auto end = std::chrono::steady_clock::now() + time_max;
    while (!is_so() && std::chrono::steady_clock::now() < end) executor.spin_once(std::chrono::milliseconds(50));
    return is_so();
  }

 private:
  static rclcpp::ExecutorOptions of(const rclcpp::NodeOptions &node) {
    rclcpp::ExecutorOptions options;
    options.context = node.context();
    return options;
  }
};

/// Whether payloads are in host memory. On a GPU, the CPU reads a copy, which is counted.
inline bool on_host() {
  static const bool is_host = [] {
    constexpr int host = 1;
    const auto node = rgaps_ros::Process::instance().node(rgaps_ros::Process::default_domain(), {}).value();
    return node->device().value().device_type == host;
  }();
  return is_host;
}

/// Publishes an image filled with one value.
inline rgaps_message_handle_t publish(const Publisher &publisher, std::uint8_t value) {
  auto loan = publisher.loan(rgaps::Image::create(64, 48, "mono8")).value();
  for (auto &pixel : loan.host().value()) pixel = value;
  loan.set_header(rclcpp::Time(12, 34), "front").value();
  return publisher.publish(std::move(loan)).value();
}

/// The value that an image is filled with; -1 if the image is invalid or has several values.
inline int value_of(const DeviceImage &image) {
  const auto pixels = image.host();
  if (!image.is_valid() || pixels.size() != 64 * 48) return -1;
  for (const auto pixel : pixels) {
    if (pixel != pixels[0]) return -1;
  }
  return pixels[0];
}

/// Whether the RMW checks descriptors itself: it refuses to publish one without a message, and delivers only messages that are on this host.
inline bool rmw_looks_at_descriptors() { return std::string(rmw_get_implementation_identifier()) == "rmw_rgaps"; }

/// A descriptor with a forged handle.
inline GpuImage forged(const std::function<void(rgaps_message_handle_t &)> &change) {
  rgaps_message_handle_t handle{};
  handle.layout_version = GpuImage().handle.LAYOUT_VERSION;
  handle.kind = RGAPS_KIND_IMAGE;
  handle.publisher = 77;
  handle.sequence = 1;
  handle.payload_bytes = 64 * 48;
  handle.source_host[0] = 9;
  change(handle);
  GpuImage descriptor;
  rgaps_ros::write(handle, rgaps::Image::create(64, 48, "mono8").value(), descriptor);
  return descriptor;
}

}  // namespace in_process

#endif  // RGAPS_ROS__TEST__IN_PROCESS_HPP_
