/**
 * @file
 * What a process has of RGAPS: one node for each ROS domain (and device), made by its first publisher or subscription. Without rclcpp.
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
  /// The one of this process. Never destroyed: a component's static objects may outlive ours, and the kernel tells the manager of our end.
  static Process &instance() {
    static Process *const process = new Process;
    return *process;
  }

  struct Known {
    std::uint32_t domain;
    std::shared_ptr<rgaps::Node> node;
  };

  /// The domain of a program that says nothing else.
  static std::uint32_t default_domain() {
    const char *text = std::getenv("ROS_DOMAIN_ID");
    return text ? static_cast<std::uint32_t>(std::strtoul(text, nullptr, 10)) : 0;
  }

  /// The node of a domain. `device` is empty for the one of the host's pools. It ends with its last user.
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

  /// The nodes that there are.
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
