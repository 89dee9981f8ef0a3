/**
 * @file
 * What publishers and subscriptions use of an rclcpp node of any type; their read-only parameters; ROS QoS translated for the core.
 *
 * Parameters are named like qos_overrides: `rgaps.<topic>.publisher.pool_bytes`, or with an id `rgaps.<topic>.publisher_<id>.pool_bytes`.
 */

#ifndef RGAPS_ROS__NODE_HPP_
#define RGAPS_ROS__NODE_HPP_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "rclcpp/rclcpp.hpp"
#include "rclcpp/node_interfaces/get_node_parameters_interface.hpp"
#include "rgaps_ros/process.hpp"

namespace rgaps_ros {

/// The interfaces of an rclcpp::Node, a LifecycleNode or a similar class.
struct NodeInterfaces {
  rclcpp::node_interfaces::NodeBaseInterface::SharedPtr base;
  rclcpp::node_interfaces::NodeParametersInterface::SharedPtr parameters;
  rclcpp::node_interfaces::NodeTopicsInterface::SharedPtr topics;
  rclcpp::node_interfaces::NodeTimersInterface::SharedPtr timers;
  rclcpp::node_interfaces::NodeClockInterface::SharedPtr clock;

  /// The interfaces of a node, given it or a (shared) pointer to it.
  template <class NodeT>
  static NodeInterfaces of(NodeT &&node) {
    return of_reference(dereferenced(node));
  }
  /// The node itself, given it or a pointer to it.
  template <class NodeT>
  static auto dereferenced(NodeT &node) -> decltype((*node)) { return *node; }
  template <class NodeT>
  static auto dereferenced(NodeT &node) -> decltype(node.get_node_base_interface(), node) { return node; }

  rclcpp::Logger logger() const { return rclcpp::get_node_logger(base->get_rcl_node_handle()); }
  std::uint32_t domain() const { return static_cast<std::uint32_t>(base->get_context()->get_domain_id()); }

 private:
  template <class NodeT>
  static NodeInterfaces of_reference(NodeT &node) {
    return {node.get_node_base_interface(), node.get_node_parameters_interface(), node.get_node_topics_interface(),
            node.get_node_timers_interface(), node.get_node_clock_interface()};
  }
};

namespace detail {

/// Read-only parameters of one endpoint. Endpoints of the same name share them. A parameter that the node itself has declared is used if it has the
/// right type and range.
class EndpointParameters {
 public:
  EndpointParameters(const NodeInterfaces &node, const std::string &topic, const std::string &endpoint, const std::string &id)
      : node_(node), prefix_("rgaps." + topic + "." + endpoint + (id.empty() ? "" : "_" + id) + ".") {}

  std::int64_t integer(const std::string &name, std::int64_t value, std::int64_t least, std::int64_t most, const std::string &what) const {
    Descriptor descriptor;
    descriptor.integer_range.resize(1);
    descriptor.integer_range[0].from_value = least;
    descriptor.integer_range[0].to_value = most;
    return declare(prefix_ + name, rclcpp::ParameterValue(value), what, descriptor).template get<std::int64_t>();
  }
  std::string text(const std::string &name, const std::string &value, const std::string &what) const {
    return declare(prefix_ + name, rclcpp::ParameterValue(value), what, Descriptor()).template get<std::string>();
  }
  bool flag(const std::string &name, bool value, const std::string &what) const {
    return declare(prefix_ + name, rclcpp::ParameterValue(value), what, Descriptor()).template get<bool>();
  }
  /// A parameter of the whole node.
  std::string of_node(const std::string &name, const std::string &value, const std::string &what) const {
    return declare("rgaps." + name, rclcpp::ParameterValue(value), what, Descriptor()).template get<std::string>();
  }
  std::string name(const std::string &name) const { return prefix_ + name; }

 private:
  using Descriptor = rcl_interfaces::msg::ParameterDescriptor;

  rclcpp::ParameterValue declare(const std::string &name, const rclcpp::ParameterValue &value, const std::string &what,
                                 Descriptor descriptor) const {
    descriptor.description = what;
    descriptor.read_only = true;
    auto &parameters = *node_.parameters;
    if (!parameters.has_parameter(name)) return parameters.declare_parameter(name, value, descriptor);
    const auto there = parameters.get_parameter(name).get_parameter_value();
    check(name, there, value.get_type(), descriptor);
    if (!parameters.describe_parameters({name}).at(0).dynamic_typing) return there;
    // The node declared it only from its override (automatically_declare_parameters_from_overrides), without type, range or read-only flag.
    parameters.undeclare_parameter(name);
    return parameters.declare_parameter(name, there, descriptor, true);
  }

  /// Checks a value's type and range, even if the node declared the parameter.
  static void check(const std::string &name, const rclcpp::ParameterValue &value, rclcpp::ParameterType type, const Descriptor &descriptor) {
    if (value.get_type() != type) {
      throw rclcpp::exceptions::InvalidParameterTypeException(
          name, "it has type " + rclcpp::to_string(value.get_type()) + ", but must have type " + rclcpp::to_string(type));
    }
    if (descriptor.integer_range.empty()) return;
    const auto number = value.get<std::int64_t>();
    const auto &range = descriptor.integer_range[0];
    if (number >= range.from_value && number <= range.to_value) return;
    throw rclcpp::exceptions::InvalidParameterValueException(name + " is " + std::to_string(number) + "; it must be " +
                                                             std::to_string(range.from_value) + " to " + std::to_string(range.to_value));
  }

  NodeInterfaces node_;
  std::string prefix_;
};

constexpr std::int64_t count_max = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t bytes_max = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t milliseconds_max = 3'600'000;

inline std::uint32_t durability(const rclcpp::QoS &qos) {
  return qos.durability() == rclcpp::DurabilityPolicy::TransientLocal ? RGAPS_TRANSIENT_LOCAL : RGAPS_VOLATILE;
}
inline bool keeps_all(const rclcpp::QoS &qos) { return qos.history() == rclcpp::HistoryPolicy::KeepAll; }

/// What a publisher offers in the core, from its ROS QoS and its parameters.
inline rgaps_publisher_qos_t publisher_qos(const rclcpp::QoS &qos, const EndpointParameters &parameters) {
  auto core = rgaps_publisher_qos_default();
  // Policies left to the middleware offer the strongest level here and request the weakest below, so that they match every peer.
  core.reliability = qos.reliability() == rclcpp::ReliabilityPolicy::BestEffort ? RGAPS_BEST_EFFORT : RGAPS_RELIABLE;
  core.durability = durability(qos);
  const auto depth = keeps_all(qos) || qos.depth() == 0 ? core.history_depth : qos.depth();
  core.history_depth = static_cast<std::uint32_t>(parameters.integer(
      "history_depth", static_cast<std::int64_t>(depth), 0, count_max,
      "Messages kept for late joiners, and sent again after a link between hosts was interrupted. Each keeps a block of the pool."));
  core.pool_bytes = static_cast<std::uint64_t>(
      parameters.integer("pool_bytes", 0, 0, bytes_max, "Bytes of the publisher's pool; 0 uses the configured pool_bytes."));
  const auto exhaustion = parameters.text("exhaustion", "wait",
                                          "What to do when the pool is full: wait (at most exhaustion_timeout_ms), drop_oldest or refuse.");
  if (exhaustion == "wait") core.exhaustion = RGAPS_WAIT;
  else if (exhaustion == "drop_oldest") core.exhaustion = RGAPS_DROP_OLDEST;
  else if (exhaustion == "refuse") core.exhaustion = RGAPS_REFUSE;
  else throw rclcpp::exceptions::InvalidParameterValueException(parameters.name("exhaustion") + " is \"" + exhaustion +
                                                                "\"; it must be wait, drop_oldest or refuse");
  core.exhaustion_timeout_ms = static_cast<std::uint64_t>(
      parameters.integer("exhaustion_timeout_ms", static_cast<std::int64_t>(core.exhaustion_timeout_ms), 0, milliseconds_max,
                         "How many milliseconds to wait for space in a full pool."));
  core.flow_control = parameters.flag("flow_control", true,
                                      "Whether links between hosts wait for a slow receiver; if not, its oldest messages are overwritten and counted.");
  return core;
}

/// What a subscription requests in the core: `slack` messages more than ROS keeps, for descriptors that arrive late.
inline rgaps_subscriber_qos_t subscriber_qos(const rclcpp::QoS &qos, std::int64_t slack) {
  auto core = rgaps_subscriber_qos_default();
  core.reliability = qos.reliability() == rclcpp::ReliabilityPolicy::Reliable ? RGAPS_RELIABLE : RGAPS_BEST_EFFORT;
  core.durability = durability(qos);
  const auto depth = std::max<std::size_t>(qos.depth(), 1) + static_cast<std::size_t>(slack);
  core.depth = keeps_all(qos) ? 0 : static_cast<std::uint32_t>(std::min<std::size_t>(depth, count_max));
  return core;
}

/// The core node that this endpoint works with; throws rgaps::Error if it cannot be made.
inline std::shared_ptr<rgaps::Node> core_node(const NodeInterfaces &node, const EndpointParameters &parameters) {
  const auto device = parameters.of_node(
      "device", "", "GPU that this node works on, such as cuda:0; empty uses the GPU of the host's pools, if any.");
  return Process::instance().node(node.domain(), device).value();
}

}  // namespace detail
}  // namespace rgaps_ros

#endif  // RGAPS_ROS__NODE_HPP_
