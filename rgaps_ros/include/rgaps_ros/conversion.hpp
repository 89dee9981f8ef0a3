/**
 * @file
 * Conversions between a GPU topic and a sensor_msgs topic, for programs that do not know RGAPS: rviz, rosbag2, CPU nodes.
 *
 *   to_cpu:  GPU topic `in`  ──one copy, two from a GPU──▶ sensor_msgs topic `out`
 *   to_gpu:  sensor_msgs topic `in` ──one copy──▶ GPU topic `out`
 *
 * A conversion subscribes to `in` only while `out` has a subscriber, so unwatched messages are neither copied nor sent between hosts. It checks this
 * when ROS reports a matched event, and whenever its owner calls `update`, for programs that read the GPU topic through the core alone.
 * It subscribes reliably, unless a publisher of `in` is best-effort, as cameras are (SensorDataQoS); qos_overrides take precedence.
 * A message that cannot be carried is refused, counted and logged with the reason; conversion continues with the next one.
 */

#ifndef RGAPS_ROS__CONVERSION_HPP_
#define RGAPS_ROS__CONVERSION_HPP_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "rclcpp/rclcpp.hpp"
#include "rgaps_ros/rgaps_ros.hpp"
#include "rgaps_ros/sensor_msgs.hpp"

namespace rgaps_ros {

/// Logs errors of one topic, one in five seconds.
class ErrorLog {
 public:
  ErrorLog(const rclcpp::Logger &logger, const std::string &topic) : logger_(logger), topic_(topic) {}

  void log(const std::string &text) {
    // A steady clock: simulated time may stop or restart.
    const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
    auto next = next_.load();
    const auto later = now + std::chrono::steady_clock::duration(std::chrono::seconds(5)).count();
    if (now >= next && next_.compare_exchange_strong(next, later)) RCLCPP_ERROR(logger_, "%s: %s", topic_.c_str(), text.c_str());
  }
  const std::string &topic() const { return topic_; }

 private:
  const rclcpp::Logger logger_;
  const std::string topic_;
  std::atomic<std::chrono::steady_clock::rep> next_{std::numeric_limits<std::chrono::steady_clock::rep>::min()};
};

/// Counts the messages of a topic that were converted or refused. Callbacks share it: one that waits for a payload may outlive an unloaded component.
class ConversionCounters {
 public:
  ConversionCounters(const rclcpp::Logger &logger, const std::string &topic) : errors_(logger, topic) {}

  /// Counts a conversion, which copies so many bytes, or refuses it with the reason that it throws. No exception may pass through the executor, which
  /// other nodes share.
  template <class Convert>
  void convert(std::uint64_t bytes, Convert &&convert) {
    try {
      convert();
      ++converted_;
      copied_bytes_ += bytes;
    } catch (const std::exception &error) {
      ++refused_;
      log_error(std::string("not converted: ") + error.what());
    }
  }
  /// Counts a message that was refused, and logged, before.
  void refuse() { ++refused_; }
  void log_error(const std::string &text) { errors_.log(text); }

  /// A status for /diagnostics.
  Status report(const std::string &node, const std::string &endpoint) {
    const std::uint64_t refused = refused_;
    Status status(node, endpoint, errors_.topic());
    status.value("converted", converted_);
    status.value("copied_bytes", copied_bytes_);
    status.value("refused", refused);
    if (refused > reported_.exchange(refused)) status.warn("messages could not be converted: see the log");
    return status;
  }

 private:
  ErrorLog errors_;
  std::atomic<std::uint64_t> converted_{0};
  std::atomic<std::uint64_t> copied_bytes_{0};
  std::atomic<std::uint64_t> refused_{0};
  std::atomic<std::uint64_t> reported_{0};
};

/// Copies a received message into one of sensor_msgs. Throws if its payload is not available.
template <class RosT, class DeviceT>
std::unique_ptr<RosT> to_ros(const DeviceT &device) {
  const auto payload = device.host();
  if (payload.size() != device.meta().payload_bytes()) {
    const auto why = device.error();
    throw std::runtime_error(why.empty() ? "the payload could not be copied from the device" : why);
  }
  auto message = std::make_unique<RosT>();
  write(device.meta(), payload, *message);
  return message;
}

namespace detail {

/// Calls a function on any event, ignoring its data.
struct OnEvent {
  std::function<void()> then;
  template <class Event>
  void operator()(Event &) const {
    then();
  }
};

/// ROS has matched events since Iron; before that, only `update` checks.
template <class Events>
auto on_matched(Events &events, std::function<void()> then, int) -> decltype(events.matched_callback = OnEvent{then}, void()) {
  events.matched_callback = OnEvent{std::move(then)};
}
template <class Events>
void on_matched(Events &, std::function<void()>, long) {}

}  // namespace detail

/// What a conversion converts.
struct ConversionTopics {
  enum class Type { image, point_cloud };
  enum class Direction { to_cpu, to_gpu };
  Type type;
  Direction direction;
  /// Names as given to rclcpp, which remaps them.
  std::string in;
  std::string out;
};

/// A conversion; ends with its last owner.
class Conversion : public std::enable_shared_from_this<Conversion> {
 public:
  using Type = ConversionTopics::Type;
  using Direction = ConversionTopics::Direction;

  /// A node that converts publishes this hidden topic, so that others know that what it publishes comes from elsewhere.
  static constexpr const char *marker_topic = "/_rgaps/conversions";

  /// Takes the interfaces, and not the node, because rclcpp may remove a node while its callbacks run.
  static std::shared_ptr<Conversion> start(const NodeInterfaces &node, const rclcpp::node_interfaces::NodeGraphInterface::SharedPtr &graph,
                                           const ConversionTopics &topics) {
    const std::shared_ptr<Conversion> made(new Conversion(node, graph, topics));
    if (topics.type == Type::image) {
      made->open<rgaps::DeviceImage, sensor_msgs::msg::Image>();
    } else {
      made->open<rgaps::DevicePointCloud, sensor_msgs::msg::PointCloud2>();
    }
    return made;
  }

  /// Subscribes if the output has subscribers, and unsubscribes if it has none.
  void update() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!is_wanted_) return;
    try {
      const auto qos = is_wanted_() ? std::make_optional(in_qos()) : std::nullopt;
      if (qos == qos_) return;
      subscription_.reset();
      qos_.reset();
      if (qos) {
        subscription_ = subscribe_(*qos);
        qos_ = qos;
      }
    } catch (const std::exception &error) {
      // The next update() tries again: the manager may be starting.
      counters_->log_error(std::string("cannot subscribe: ") + error.what());
    }
    *is_active_ = subscription_ != nullptr;
  }

 private:
  Conversion(const NodeInterfaces &node, const rclcpp::node_interfaces::NodeGraphInterface::SharedPtr &graph, const ConversionTopics &topics)
      : topics_(topics),
        node_(node),
        graph_(graph),
        counters_(std::make_shared<ConversionCounters>(node.logger(), node.topics->resolve_topic_name(topics.out))),
        diagnostics_(Diagnostics::of(node_)) {
    marker_ = rclcpp::create_publisher<diagnostic_msgs::msg::KeyValue>(node_.parameters, node_.topics, marker_topic, rclcpp::QoS(1));
    const std::string name = node.base->get_fully_qualified_name();
    report_ = diagnostics_->add([counters = counters_, is_active = is_active_, name] {
      auto status = counters->report(name, "converter");
      status.value("active", *is_active ? 1 : 0);
      return status.take();
    });
  }

  std::function<void()> update_callback() {
    return [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->update();
    };
  }

  template <class DeviceT, class RosT>
  void open() {
    if (topics_.direction == Direction::to_cpu) {
      to_cpu<DeviceT, RosT>();
    } else {
      to_gpu<DeviceT, RosT>();
    }
  }

  template <class DeviceT, class RosT>
  void to_cpu() {
    rclcpp::PublisherOptions options;
    options.qos_overriding_options = rclcpp::QosOverridingOptions::with_default_policies();
    detail::on_matched(options.event_callbacks, update_callback(), 0);
    const auto publisher = rclcpp::create_publisher<RosT>(node_.parameters, node_.topics, topics_.out, qos(), options);
    const auto subscribe = [this, publisher](const rclcpp::QoS &qos) {
      SubscriptionOptions<DeviceT> options;
      options.ros.qos_overriding_options = overriding();
      options.refused = [counters = counters_](const DeviceT &) { counters->refuse(); };
      auto convert = [publisher, counters = counters_](const DeviceT &device) {
        counters->convert(device.meta().payload_bytes(), [&] { publisher->publish(to_ros<RosT>(device)); });
      };
      return std::make_shared<Subscription<DeviceT>>(node_, topics_.in, qos, std::move(convert), options);
    };
    started([publisher] { return publisher->get_subscription_count() > 0; }, subscribe);
  }

  template <class DeviceT, class RosT>
  void to_gpu() {
    PublisherOptions options;
    detail::on_matched(options.ros.event_callbacks, update_callback(), 0);
    const auto publisher = std::make_shared<Publisher<DeviceT>>(node_, topics_.out, qos(), options);
    const auto subscribe = [this, publisher](const rclcpp::QoS &qos) {
      rclcpp::SubscriptionOptions options;
      options.qos_overriding_options = overriding();
      auto convert = [publisher, counters = counters_](const RosT &message) {
        const auto bytes = message.data.size();
        counters->convert(bytes, [&] { publisher->push_host(describe(message).value(), message.data.data(), bytes).value(); });
      };
      return rclcpp::create_subscription<RosT>(node_.parameters, node_.topics, topics_.in, qos, std::move(convert), options);
    };
    started([publisher] { return publisher->get_subscription_count() > 0 || publisher->payload_subscriber_count() > 0; }, subscribe);
  }

  /// From now on, update() has an effect: a matched event may have come before.
  template <class Subscribe>
  void started(std::function<bool()> is_wanted, Subscribe subscribe) {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_wanted_ = std::move(is_wanted);
    subscribe_ = std::move(subscribe);
  }

  std::string in_topic() { return node_.topics->resolve_topic_name(topics_.in); }

  /// Whether a parameter sets the reliability.
  bool is_reliability_given() {
    return node_.parameters->get_parameter_overrides().count("qos_overrides." + in_topic() + ".subscription.reliability") > 0;
  }

  /// A declared parameter keeps its first value, so reliability becomes a parameter only if an override sets it.
  rclcpp::QosOverridingOptions overriding() {
    if (is_reliability_given()) return rclcpp::QosOverridingOptions::with_default_policies();
    return {rclcpp::QosPolicyKind::History, rclcpp::QosPolicyKind::Depth};
  }

  /// The QoS of the subscription to `in`: a reliable subscription does not match a best-effort publisher.
  rclcpp::QoS in_qos() {
    if (is_reliability_given()) return qos();
    for (const auto &publisher : graph_->get_publishers_info_by_topic(in_topic())) {
      if (publisher.qos_profile().reliability() == rclcpp::ReliabilityPolicy::BestEffort) return qos().best_effort();
    }
    return qos();
  }

  static rclcpp::QoS qos() { return rclcpp::QoS(10); }

  const ConversionTopics topics_;
  NodeInterfaces node_;
  const rclcpp::node_interfaces::NodeGraphInterface::SharedPtr graph_;
  const std::shared_ptr<ConversionCounters> counters_;
  const std::shared_ptr<std::atomic<bool>> is_active_ = std::make_shared<std::atomic<bool>>(false);
  const std::shared_ptr<Diagnostics> diagnostics_;
  std::shared_ptr<void> report_;
  std::shared_ptr<void> marker_;
  std::mutex mutex_;
  std::function<bool()> is_wanted_;
  std::function<std::shared_ptr<void>(const rclcpp::QoS &)> subscribe_;
  std::shared_ptr<void> subscription_;
  /// The QoS of the current subscription, if there is one.
  std::optional<rclcpp::QoS> qos_;
};

}  // namespace rgaps_ros

#endif  // RGAPS_ROS__CONVERSION_HPP_
