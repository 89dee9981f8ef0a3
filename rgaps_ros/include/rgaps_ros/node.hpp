/**
 * @file
 * What publishers and subscriptions use of an rclcpp node of any type, and their read-only parameters. The library has the parameters' table and
 * translates ROS QoS (rgaps_ros_parameters of rgaps.h).
 */

#ifndef RGAPS_ROS__NODE_HPP_
#define RGAPS_ROS__NODE_HPP_

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "rclcpp/rclcpp.hpp"
#include "rclcpp/node_interfaces/get_node_parameters_interface.hpp"
#include "rgaps_ros/process.hpp"

namespace rgaps_ros {

/// The interfaces of an rclcpp::Node, a LifecycleNode or a similar class, or of an rclcpp::node_interfaces::NodeInterfaces that has these.
struct NodeInterfaces {
  rclcpp::node_interfaces::NodeBaseInterface::SharedPtr base;
  rclcpp::node_interfaces::NodeParametersInterface::SharedPtr parameters;
  rclcpp::node_interfaces::NodeTopicsInterface::SharedPtr topics;
  rclcpp::node_interfaces::NodeTimersInterface::SharedPtr timers;
  rclcpp::Clock::SharedPtr clock;

  /// The interfaces of a node, given it or a (shared) pointer to it.
  template <class NodeT>
  static NodeInterfaces of(NodeT &&node) {
    if constexpr (std::is_same_v<std::decay_t<NodeT>, NodeInterfaces>) {
      return node;
    } else {
      return of_reference(dereferenced(node));
    }
  }
  /// The node itself, given it or a pointer to it.
  template <class NodeT>
  static auto dereferenced(NodeT &node) -> decltype((*node)) { return *node; }
  template <class NodeT>
  static auto dereferenced(NodeT &node) -> decltype(node.get_node_base_interface(), node) { return node; }

  /// So that they stand for a node.
  const auto &get_node_base_interface() const { return base; }
  const auto &get_node_parameters_interface() const { return parameters; }
  const auto &get_node_topics_interface() const { return topics; }

  rclcpp::Logger logger() const { return rclcpp::get_node_logger(base->get_rcl_node_handle()); }
  std::uint32_t domain() const { return static_cast<std::uint32_t>(base->get_context()->get_domain_id()); }

 private:
  template <class NodeT>
  static NodeInterfaces of_reference(NodeT &node) {
    return {node.get_node_base_interface(), node.get_node_parameters_interface(), node.get_node_topics_interface(),
            node.get_node_timers_interface(), clock_of(node, 0)};
  }

  /// The node's clock. A set of interfaces may lack one; the clock stamps only /diagnostics.
  template <class NodeT>
  static auto clock_of(NodeT &node, int) -> decltype(node.get_node_clock_interface()->get_clock()) {
    return node.get_node_clock_interface()->get_clock();
  }
  template <class NodeT>
  static rclcpp::Clock::SharedPtr clock_of(NodeT &, long) {
    return std::make_shared<rclcpp::Clock>(RCL_SYSTEM_TIME);
  }
};

namespace detail {

/// The parameters of an endpoint as the library lists them, declared on its node, read-only. Endpoints of the same name share them. A parameter that
/// the node itself has declared is used if it has the right type.
class EndpointParameters {
 public:
  EndpointParameters(const NodeInterfaces &node, const rgaps_ros_endpoint_t &endpoint) : node_(node) {
    rgaps::detail::done(rgaps_ros_parameters(&endpoint, table_.data(), &count_)).value();
    for (std::uint64_t place = 0; place < count_; ++place) declare(table_[place]);
  }

  const rgaps_ros_parameter_t *c() const { return table_.data(); }
  std::uint64_t count() const { return count_; }
  /// The value of rgaps.device, the last one.
  std::string device() const { return table_[count_ - 1].text; }

  /// Ends the declaration: throws if the library has refused a value; else makes parameters that the node declared only from its overrides
  /// (automatically_declare_parameters_from_overrides) read-only, described and typed.
  void settle(rgaps_status_t status) const {
    if (status != RGAPS_OK) throw rclcpp::exceptions::InvalidParameterValueException(rgaps_error_text());
    for (const auto &untyped : untyped_) {
      node_.parameters->undeclare_parameter(untyped.name);
      node_.parameters->declare_parameter(untyped.name, untyped.value, untyped.descriptor, true);
    }
  }

 private:
  using Descriptor = rcl_interfaces::msg::ParameterDescriptor;

  /// A parameter without type, range or read-only flag.
  struct Untyped {
    std::string name;
    rclcpp::ParameterValue value;
    Descriptor descriptor;
  };

  /// Declares a parameter whose value is its default, and sets the node's value.
  void declare(rgaps_ros_parameter_t &parameter) {
    Descriptor descriptor;
    descriptor.description = parameter.description;
    descriptor.read_only = true;
    rclcpp::ParameterValue value;
    if (parameter.type == RGAPS_ROS_INTEGER) {
      rcl_interfaces::msg::IntegerRange range;
      range.from_value = parameter.least;
      range.to_value = parameter.most;
      descriptor.integer_range.push_back(range);
      value = declared(parameter.name, rclcpp::ParameterValue(parameter.integer), descriptor);
      parameter.integer = value.get<std::int64_t>();
    } else if (parameter.type == RGAPS_ROS_FLAG) {
      value = declared(parameter.name, rclcpp::ParameterValue(parameter.integer != 0), descriptor);
      parameter.integer = value.get<bool>();
    } else {
      value = declared(parameter.name, rclcpp::ParameterValue(std::string(parameter.text)), descriptor);
      const auto &text = value.get<std::string>();
      // The library would check only the part that fits.
      if (text.size() >= sizeof parameter.text || text.find('\0') != std::string::npos) {
        throw rclcpp::exceptions::InvalidParameterValueException("parameter " + std::string(parameter.name) + " is '" + text + "', which is too long or has a zero");
      }
      parameter.text[text.copy(parameter.text, sizeof parameter.text - 1)] = 0;
    }
  }

  rclcpp::ParameterValue declared(const std::string &name, const rclcpp::ParameterValue &value, const Descriptor &descriptor) {
    if (!node_.parameters->has_parameter(name)) return node_.parameters->declare_parameter(name, value, descriptor);
    const auto there = node_.parameters->get_parameter(name).get_parameter_value();
    if (there.get_type() != value.get_type()) {
      throw rclcpp::exceptions::InvalidParameterTypeException(
          name, "it has type " + rclcpp::to_string(there.get_type()) + ", but must have type " + rclcpp::to_string(value.get_type()));
    }
    if (node_.parameters->describe_parameters({name}).at(0).dynamic_typing) untyped_.push_back({name, there, descriptor});
    return there;
  }

  const NodeInterfaces node_;
  std::array<rgaps_ros_parameter_t, RGAPS_ROS_PARAMETERS_MAX> table_;
  std::uint64_t count_ = 0;
  std::vector<Untyped> untyped_;
};

/// The endpoint for the library; valid as long as the texts.
inline rgaps_ros_endpoint_t endpoint_of(rgaps_ros_role_t role, const std::string &topic, const std::string &id, const rclcpp::QoS &qos) {
  const auto &profile = qos.get_rmw_qos_profile();
  rgaps_ros_endpoint_t endpoint{};
  endpoint.topic = topic.c_str();
  endpoint.id = id.c_str();
  endpoint.depth = profile.depth;
  endpoint.reliability = static_cast<std::uint32_t>(profile.reliability);
  endpoint.durability = static_cast<std::uint32_t>(profile.durability);
  endpoint.history = static_cast<std::uint32_t>(profile.history);
  endpoint.role = role;
  return endpoint;
}

/// What a publisher offers in the core, from its ROS QoS and its parameters, and the core node that it works with.
struct Offer {
  rgaps_publisher_qos_t qos{};
  std::shared_ptr<rgaps::Node> core_node;

  /// Throws rgaps::Error if the node cannot be made.
  Offer(const NodeInterfaces &node, const std::string &topic, const std::string &id, const rclcpp::QoS &ros_qos) {
    const auto endpoint = endpoint_of(RGAPS_ROS_PUBLISHER, topic, id, ros_qos);
    const EndpointParameters parameters(node, endpoint);
    parameters.settle(rgaps_ros_publisher_qos(&endpoint, parameters.c(), parameters.count(), &qos));
    core_node = Process::instance().node(node.domain(), parameters.device()).value();
  }
};

/// The same of a subscription.
struct Request {
  std::string topic;
  rgaps_subscriber_qos_t qos{};
  std::chrono::nanoseconds payload_timeout{};
  std::shared_ptr<rgaps::Node> core_node;

  /// Takes the topic's fully qualified name, after remapping.
  Request(const NodeInterfaces &node, const std::string &topic_, const std::string &id, const rclcpp::QoS &ros_qos) : topic(topic_) {
    const auto endpoint = endpoint_of(RGAPS_ROS_SUBSCRIPTION, topic, id, ros_qos);
    const EndpointParameters parameters(node, endpoint);
    std::uint64_t timeout_ns = 0;
    parameters.settle(rgaps_ros_subscriber_qos(&endpoint, parameters.c(), parameters.count(), &qos, &timeout_ns));
    payload_timeout = std::chrono::nanoseconds(timeout_ns);
    core_node = Process::instance().node(node.domain(), parameters.device()).value();
  }
};

}  // namespace detail
}  // namespace rgaps_ros

#endif  // RGAPS_ROS__NODE_HPP_
