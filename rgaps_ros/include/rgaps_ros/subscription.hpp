/**
 * @file
 * Subscribing to device memory on an rclcpp node.
 *
 *     subscription_ = rgaps_ros::create_subscription<rgaps::DeviceImage>(
 *         *this, "camera/front", rclcpp::SensorDataQoS(), [this](const rgaps::DeviceImage &image) { ... });
 *
 * It has two parts. A core subscriber receives the payloads; it is made first, so that it misses none. An ordinary rclcpp::Subscription receives the
 * descriptors and wakes the executor. Each descriptor's message is taken from this subscription's own core subscriber. The callback takes it as a
 * const T &, a std::unique_ptr<T>, a std::shared_ptr<const T> or a T, and optionally an rclcpp::MessageInfo.
 *
 * A message that cannot be taken (its descriptor is replayed or stale, or its payload does not arrive within payload_timeout_ms from another host) is
 * logged once for each publisher and reason, counted, and passed to `options.refused` if set; the callback is not called. A shutdown of ROS ends the wait. A
 * message that was published before the subscription existed, but whose descriptor still arrived, is early: it is only counted.
 *
 * In a callback group that is not Reentrant, messages are taken by handle in each publisher's order: messages that the executor skips are released,
 * and counted as lost.
 */

#ifndef RGAPS_ROS__SUBSCRIPTION_HPP_
#define RGAPS_ROS__SUBSCRIPTION_HPP_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "rclcpp/detail/qos_parameters.hpp"
#include "rgaps_ros/diagnostics.hpp"
#include "rgaps_ros/node.hpp"
#include "rgaps_ros/payloads.hpp"
#include "rgaps_ros/shutdown.hpp"
#include "rgaps_ros/type_adapter.hpp"

namespace rgaps_ros {

/// Options of a subscription.
template <class DeviceT>
struct SubscriptionOptions {
  /// rclcpp's options. Parameters (qos_overrides) may override history, depth and reliability unless these options say otherwise.
  rclcpp::SubscriptionOptions ros;
  /// Distinguishes the parameters of two subscriptions of one node and topic.
  std::string id;
  /// The callback's stream: messages are delivered before their bytes are written, the stream waits for the bytes, and messages are released behind
  /// its work.
  std::optional<rgaps::Stream> stream;
  /// Receives messages that could not be taken: descriptor, metadata and error().
  std::function<void(const DeviceT &)> refused;

  SubscriptionOptions() { ros.qos_overriding_options = rclcpp::QosOverridingOptions::with_default_policies(); }
};

namespace detail {

/// The QoS that rclcpp will use, computed before it makes the subscription.
inline rclcpp::QoS overridden(const NodeInterfaces &node, const std::string &topic, const rclcpp::QoS &qos,
                              const rclcpp::QosOverridingOptions &options) {
  if (options.get_policy_kinds().empty()) return qos;
  auto parameters = node.parameters;
  return rclcpp::detail::declare_qos_parameters(options, parameters, topic, qos, rclcpp::detail::SubscriptionQosParametersTraits{});
}

/// Calls a callback of any supported signature.
template <class DeviceT, class Callback>
void call(Callback &callback, DeviceT device, const rclcpp::MessageInfo &info) {
  using Unique = std::unique_ptr<DeviceT>;
  if constexpr (std::is_invocable_v<Callback &, const DeviceT &, const rclcpp::MessageInfo &>) {
    const DeviceT &message = device;
    callback(message, info);
  } else if constexpr (std::is_invocable_v<Callback &, const DeviceT &>) {
    const DeviceT &message = device;
    callback(message);
  } else if constexpr (std::is_invocable_v<Callback &, Unique, const rclcpp::MessageInfo &>) {
    // A std::shared_ptr<const T> is made from it, too.
    callback(std::make_unique<DeviceT>(std::move(device)), info);
  } else {
    static_assert(std::is_invocable_v<Callback &, Unique>,
                  "a callback takes const T &, std::unique_ptr<T> or std::shared_ptr<const T>, and optionally const rclcpp::MessageInfo &");
    callback(std::make_unique<DeviceT>(std::move(device)));
  }
}

}  // namespace detail

/// A subscription; ends with its last owner. See create_subscription.
template <class DeviceT>
class Subscription {
 public:
  using Meta = typename DeviceT::Meta;
  using Descriptor = typename DeviceT::Descriptor;
  using Options = SubscriptionOptions<DeviceT>;
  using SharedPtr = std::shared_ptr<Subscription>;

  template <class Callback>
  Subscription(const NodeInterfaces &node, const std::string &topic, const rclcpp::QoS &qos, Callback callback, const Options &options)
      : content_(std::make_shared<Content>(node, Content::request_of(node, topic, qos, options), options)) {
    // The callback holds the content, so a message that is being handled outlives this object.
    std::function<void(const Descriptor &, const rclcpp::MessageInfo &)> on_descriptor =
        [content = content_, callback = std::move(callback)](const Descriptor &descriptor, const rclcpp::MessageInfo &info) mutable {
          auto device = content->take_by_handle(descriptor);
          if (device) detail::call<DeviceT>(callback, std::move(*device), info);
        };
    auto parameters = node.parameters;
    auto topics = node.topics;
    ros_ = rclcpp::create_subscription<Descriptor>(parameters, topics, topic, qos, std::move(on_descriptor), options.ros);
    diagnostics_ = content_->diagnostics->add([weak = std::weak_ptr<Content>(content_)] {
      const auto content = weak.lock();
      return content ? content->report() : diagnostic_msgs::msg::DiagnosticStatus();
    });
  }

  const char *get_topic_name() const { return ros_->get_topic_name(); }
  std::size_t get_publisher_count() const { return ros_->get_publisher_count(); }
  rgaps::Result<rgaps_subscriber_statistics_t> statistics() const { return content_->core.statistics(); }
  /// The device of the payloads, in DLPack's terms; options.stream must be a stream of this device.
  rgaps::Result<rgaps_device_t> device() const { return content_->core_node->device(); }
  /// Descriptors whose message could not be taken.
  std::uint64_t refused_count() const { return content_->payloads.counts().refused; }
  /// Descriptors of messages that were published before this subscription existed.
  std::uint64_t early_count() const { return content_->payloads.counts().early; }
  /// The subscription to the descriptors.
  const std::shared_ptr<rclcpp::Subscription<Descriptor>> &ros() const { return ros_; }

 private:
  struct Content {
    NodeInterfaces node;
    std::shared_ptr<rgaps::Node> core_node;
    rgaps::Subscriber<Meta> core;
    Payloads payloads;
    std::optional<rgaps::Stream> stream;
    std::function<void(const DeviceT &)> on_refused;
    std::shared_ptr<Diagnostics> diagnostics;
    rgaps_ros_status_t status{};
    // Last member, so that it is destroyed before the members that it interrupts.
    OnShutdown shutdown;

    static detail::Request request_of(const NodeInterfaces &node, const std::string &name, const rclcpp::QoS &qos, const Options &options) {
      const auto topic = node.topics->resolve_topic_name(name);
      return {node, topic, options.id, detail::overridden(node, topic, qos, options.ros.qos_overriding_options)};
    }

    Content(const NodeInterfaces &node_, const detail::Request &request, const Options &options)
        : node(node_),
          core_node(request.core_node),
          core(core_node->template subscriber<Meta>(request.topic, request.qos).value()),
          payloads(core, request.payload_timeout,
                   [logger = node.logger()](bool is_warning, const char *text) {
                     if (is_warning) RCLCPP_WARN(logger, "%s", text);
                     else RCLCPP_DEBUG(logger, "%s", text);
                   }),
          stream(options.stream),
          on_refused(options.refused),
          diagnostics(Diagnostics::of(node)),
          shutdown(node.base->get_context(), [this] { (void)core.interrupt(); }) {
      const auto &group = options.ros.callback_group;
      const bool in_order = !group || group->type() != rclcpp::CallbackGroupType::Reentrant;
      if (in_order) core.expect_handles_in_order().value();
    }

    /// The message that a descriptor names, if it can be taken.
    std::optional<DeviceT> take_by_handle(const Descriptor &descriptor) {
      const auto described = copy<Meta>(descriptor);
      auto lease = std::make_shared<Lease<Meta>>(described, payloads.take(described, stream));
      const auto why = lease->failure();
      DeviceT device(std::move(lease));
      if (!why) return device;
      if (why->status != RGAPS_NO_MESSAGE && on_refused) on_refused(device);
      return std::nullopt;
    }

    diagnostic_msgs::msg::DiagnosticStatus report() {
      const auto made = rgaps::detail::done(rgaps_ros_payloads_status(payloads.c(), node.base->get_fully_qualified_name(), &status));
      return message_of(made, status);
    }
  };

  std::shared_ptr<Content> content_;
  std::shared_ptr<rclcpp::Subscription<Descriptor>> ros_;
  std::shared_ptr<void> diagnostics_;
};

/// Subscribes on a node, or a pointer to one: rclcpp::Node, LifecycleNode and similar. Throws what rclcpp throws, and rgaps::Error.
template <class DeviceT, class NodeT, class Callback>
typename Subscription<DeviceT>::SharedPtr create_subscription(NodeT &&node, const std::string &topic, const rclcpp::QoS &qos,
                                                              Callback &&callback,
                                                              const SubscriptionOptions<DeviceT> &options = SubscriptionOptions<DeviceT>()) {
  return std::make_shared<Subscription<DeviceT>>(NodeInterfaces::of(node), topic, qos, std::decay_t<Callback>(std::forward<Callback>(callback)),
                                                 options);
}

/// A payload subscription, for nodes that subscribe by the type adapter alone. Make it before the subscription, and keep it as long.
template <class DeviceT>
class PayloadSubscription {
 public:
  using Meta = typename DeviceT::Meta;

  template <class NodeT>
  PayloadSubscription(NodeT &&node, const std::string &topic, const rclcpp::QoS &qos) {
    const auto interfaces = NodeInterfaces::of(node);
    const detail::Request request(interfaces, interfaces.topics->resolve_topic_name(topic), {}, qos);
    content_ = PayloadSubscriptions<Meta>::instance().add(request.core_node, request.topic, request.qos, request.payload_timeout).value();
    shutdown_.emplace(interfaces.base->get_context(), [content = content_.get()] { (void)content->subscriber.interrupt(); });
  }

  rgaps::Result<rgaps_subscriber_statistics_t> statistics() const { return content_->subscriber.statistics(); }

 private:
  std::shared_ptr<detail::PayloadSubscriptionContent<Meta>> content_;
  std::optional<OnShutdown> shutdown_;
};

}  // namespace rgaps_ros

#endif  // RGAPS_ROS__SUBSCRIPTION_HPP_
