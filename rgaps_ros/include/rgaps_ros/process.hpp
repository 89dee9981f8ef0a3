/**
 * @file
 * The process's RGAPS nodes: one for each ROS domain (and device), made by its first publisher or subscription. Without rclcpp.
 */

#ifndef RGAPS_ROS__PROCESS_HPP_
#define RGAPS_ROS__PROCESS_HPP_

#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "rgaps.hpp"

namespace rgaps_ros {

class Process {
 public:
  /// The instance of this process. Never destroyed: a component's static objects may outlive it, and the kernel tells the manager when the process
  /// ends.
  static Process &instance() {
    static Process *const process = new Process;
    return *process;
  }

  struct Known {
    std::uint32_t domain;
    std::shared_ptr<rgaps::Node> node;
  };

  /// The domain of a program that does not set one.
  static std::uint32_t default_domain() {
    const char *text = std::getenv("ROS_DOMAIN_ID");
    return text ? static_cast<std::uint32_t>(std::strtoul(text, nullptr, 0)) : 0;
  }

  /// The node of a domain. An empty `device` means the device of the host's pools. The node ends with its last user.
  rgaps::Result<std::shared_ptr<rgaps::Node>> node(std::uint32_t domain, const std::string &device) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto &known = nodes_[{domain, device}];
    if (auto node = known.lock()) return node;
    auto options = rgaps_node_options_default();
    options.domain = domain;
    options.ros_node = 1;
    if (!device.empty()) options.device = device.c_str();
    auto made = rgaps::Node::create(options);
    if (!made) return made.error();
    auto node = std::make_shared<rgaps::Node>(std::move(*made));
    known = node;
    return node;
  }

  /// The nodes that exist now.
  std::vector<Known> nodes() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<Known> nodes;
    for (const auto &known : nodes_) {
      if (auto node = known.second.lock()) nodes.push_back({known.first.first, std::move(node)});
    }
    return nodes;
  }

 private:
  Process() = default;

  mutable std::mutex mutex_;
  std::map<std::pair<std::uint32_t, std::string>, std::weak_ptr<rgaps::Node>> nodes_;
};

}  // namespace rgaps_ros

#endif  // RGAPS_ROS__PROCESS_HPP_
