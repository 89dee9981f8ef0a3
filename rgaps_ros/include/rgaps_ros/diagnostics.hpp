/**
 * @file
 * Counters on /diagnostics, once a second: a status for each publisher and subscription of a node.
 */

#ifndef RGAPS_ROS__DIAGNOSTICS_HPP_
#define RGAPS_ROS__DIAGNOSTICS_HPP_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "diagnostic_msgs/msg/diagnostic_array.hpp"
#include "rclcpp/version.h"
#include "rgaps_ros/node.hpp"

namespace rgaps_ros {

/// The status of a publisher or subscription, made of rgaps.h's; nameless if the endpoint is being destroyed. Another failure is a warning.
inline diagnostic_msgs::msg::DiagnosticStatus message_of(const rgaps::Result<void> &made, const rgaps_ros_status_t &status) {
  diagnostic_msgs::msg::DiagnosticStatus message;
  if (!made) {
    if (made.error().status == RGAPS_INVALID_HANDLE) return message;
    // Nothing but its last name is known.
    message.name = status.name[0] != 0 ? status.name : "rgaps";
    message.hardware_id = "rgaps";
    message.level = message.WARN;
    message.message = made.error().text;
    return message;
  }
  message.name = status.name;
  message.hardware_id = "rgaps";
  message.level = status.is_warning ? message.WARN : message.OK;
  message.message = status.message;
  for (std::uint32_t place = 0; place < status.count; ++place) {
    auto &value = message.values.emplace_back();
    value.key = status.counters[place].name;
    value.value = std::to_string(status.counters[place].value);
  }
  return message;
}

/// A status of another endpoint, such as a converter.
class Status {
 public:
  Status(const std::string &node, const std::string &endpoint, const std::string &topic) {
    status_.name = node + ": " + endpoint + " of " + topic;
    status_.hardware_id = "rgaps";
    status_.message = "ok";
  }
  void value(const std::string &key, std::uint64_t value) {
    diagnostic_msgs::msg::KeyValue pair;
    pair.key = key;
    pair.value = std::to_string(value);
    status_.values.push_back(std::move(pair));
  }
  void warn(const std::string &text) {
    status_.message = status_.level == status_.OK ? text : status_.message + "; " + text;
    status_.level = status_.WARN;
  }
  diagnostic_msgs::msg::DiagnosticStatus take() { return std::move(status_); }

 private:
  diagnostic_msgs::msg::DiagnosticStatus status_;
};

/// Publishes the statuses of a node's endpoints. Each node has one; its endpoints keep it alive.
class Diagnostics {
 public:
  using Report = std::function<diagnostic_msgs::msg::DiagnosticStatus()>;

  /// The Diagnostics of a node.
  static std::shared_ptr<Diagnostics> of(const NodeInterfaces &node) {
    static std::mutex mutex;
    static std::map<const void *, std::weak_ptr<Diagnostics>> all;
    const std::lock_guard<std::mutex> lock(mutex);
    // Drop the entries of destroyed nodes: a container loads and unloads many.
    for (auto old = all.begin(); old != all.end();) old = old->second.expired() ? all.erase(old) : std::next(old);
    auto &known = all[node.base.get()];
    if (auto diagnostics = known.lock()) return diagnostics;
    const std::shared_ptr<Diagnostics> made(new Diagnostics(node));
    start(made, node);
    known = made;
    return made;
  }

  /// Adds an endpoint for as long as the returned object lives.
  [[nodiscard]] std::shared_ptr<void> add(Report report) {
    auto kept = std::make_shared<Report>(std::move(report));
    const std::lock_guard<std::mutex> lock(mutex_);
    reports_.push_back(kept);
    return kept;
  }

 private:
  explicit Diagnostics(const NodeInterfaces &node) : base_(node.base), clock_(node.clock) {
    auto parameters = node.parameters;
    auto topics = node.topics;
    publisher_ = rclcpp::create_publisher<diagnostic_msgs::msg::DiagnosticArray>(parameters, topics, "/diagnostics", rclcpp::QoS(1));
  }

  static void start(const std::shared_ptr<Diagnostics> &self, const NodeInterfaces &node) {
    self->group_ = group_of(*node.base);
    const auto tick = [weak = std::weak_ptr<Diagnostics>(self)] {
      if (const auto diagnostics = weak.lock()) diagnostics->publish();
    };
    self->timer_ = rclcpp::create_wall_timer(std::chrono::seconds(1), tick, self->group_, node.base.get(), node.timers.get());
  }

  /// A callback group for the counters alone: under a multi-threaded executor, a callback that waits for a payload does not delay them. Before Jazzy,
  /// the node's default group: when such an rclcpp removes a node with several groups from an executor, the executor goes on waiting for the guard
  /// conditions of all but one, also after they are freed, and the process ends by SIGSEGV (seen with 16.0.19, without RGAPS).
  static rclcpp::CallbackGroup::SharedPtr group_of(rclcpp::node_interfaces::NodeBaseInterface &base) {
#if RCLCPP_VERSION_GTE(28, 0, 1)
    return base.create_callback_group(rclcpp::CallbackGroupType::MutuallyExclusive);
#else
    return base.get_default_callback_group();
#endif
  }

  void publish() {
    diagnostic_msgs::msg::DiagnosticArray array;
    array.header.stamp = clock_->now();
    std::vector<std::shared_ptr<Report>> reports;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      reports_.erase(std::remove_if(reports_.begin(), reports_.end(), [](const auto &report) { return report.expired(); }), reports_.end());
      for (const auto &weak : reports_) {
        if (auto report = weak.lock()) reports.push_back(std::move(report));
      }
    }
    for (const auto &report : reports) {
      auto status = (*report)();
      // The name is empty if the endpoint is being destroyed.
      if (!status.name.empty()) array.status.push_back(std::move(status));
    }
    if (!array.status.empty()) publisher_->publish(array);
  }

  // Kept alive, so that no other node can get its address, which is the key of this object.
  rclcpp::node_interfaces::NodeBaseInterface::SharedPtr base_;
  rclcpp::Clock::SharedPtr clock_;
  rclcpp::Publisher<diagnostic_msgs::msg::DiagnosticArray>::SharedPtr publisher_;
  rclcpp::CallbackGroup::SharedPtr group_;
  rclcpp::TimerBase::SharedPtr timer_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<Report>> reports_;
};

}  // namespace rgaps_ros

#endif  // RGAPS_ROS__DIAGNOSTICS_HPP_
