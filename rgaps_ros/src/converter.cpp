// The converter: sensor_msgs/Image and PointCloud2 to and from GPU topics, for programs without RGAPS: rviz, rosbag2, CPU nodes.
//
//   direction to_cpu:  GPU topic `in`  ──one copy──▶ sensor_msgs topic `out`
//   direction to_gpu:  sensor_msgs topic `in` ──one copy──▶ GPU topic `out`
//
// It subscribes to `in` only while `out` has a subscriber, so unwatched messages are neither copied nor sent between hosts. It checks this when ROS
// reports a matched event, and twice a second, for programs that read the GPU topic through the core alone.
// It subscribes reliably, unless a publisher of `in` is best-effort, as cameras are (SensorDataQoS); qos_overrides take precedence.
// A message that cannot be carried is refused, counted and logged with the reason; conversion continues with the next one.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "rclcpp/rclcpp.hpp"
#include "rclcpp_components/register_node_macro.hpp"
#include "rgaps_ros/rgaps_ros.hpp"
#include "rgaps_ros/sensor_msgs.hpp"

namespace rgaps_ros {

namespace {

constexpr const char *in = "in";
constexpr const char *out = "out";
constexpr std::chrono::milliseconds look_period(500);
constexpr int complaint_period_ms = 5000;

/// The converter's state that callbacks share: a callback that waits for a payload may outlive an unloaded component.
struct Counters {
  rclcpp::Logger logger;
  // A steady clock limits the log messages: simulated time may stop or restart.
  rclcpp::Clock clock{RCL_STEADY_TIME};
  std::atomic<std::uint64_t> converted{0};
  std::atomic<std::uint64_t> refused{0};
  std::atomic<bool> is_active{false};
  std::uint64_t refused_before = 0;

  explicit Counters(const rclcpp::Logger &logger_) : logger(logger_) {}

  void refuse(const std::string &why) {
    ++refused;
    RCLCPP_ERROR_THROTTLE(logger, clock, complaint_period_ms, "not converted: %s", why.c_str());
  }

  /// Counts a conversion, or refuses it with the reason that it throws. No exception may pass through the executor, which other nodes share.
  template <class Convert>
  void convert(Convert &&convert) {
    try {
      convert();
      ++converted;
    } catch (const std::exception &error) {
      refuse(error.what());
    }
  }

  diagnostic_msgs::msg::DiagnosticStatus report(const std::string &node) {
    const std::uint64_t refused_now = refused;
    Status status(node, "converter", out);
    status.value("converted", converted);
    status.value("refused", refused_now);
    status.value("active", is_active ? 1 : 0);
    if (refused_now > refused_before) status.warn("messages could not be converted: see the log");
    refused_before = refused_now;
    return status.take();
  }
};

/// Calls a function on any event, ignoring its data.
struct OnEvent {
  std::function<void()> then;
  template <class Event>
  void operator()(Event &) const {
    then();
  }
};

/// ROS has matched events since Iron; before that, only the timer checks.
template <class Events>
auto on_matched(Events &events, std::function<void()> then, int) -> decltype(events.matched_callback = OnEvent{then}, void()) {
  events.matched_callback = OnEvent{std::move(then)};
}
template <class Events>
void on_matched(Events &, std::function<void()>, long) {}

}  // namespace

class Converter : public rclcpp::Node {
 public:
  explicit Converter(const rclcpp::NodeOptions &options) : Node("converter", options) {
    self_->converter = this;
    const auto type = choice("type", "image", "Type of the messages: image or point_cloud.");
    const auto direction = choice("direction", "to_cpu", "Direction: to_cpu (GPU topic in, sensor_msgs out) or to_gpu (the other way).");
    if (type == "image") {
      start<rgaps::DeviceImage, sensor_msgs::msg::Image>(direction);
    } else if (type == "point_cloud") {
      start<rgaps::DevicePointCloud, sensor_msgs::msg::PointCloud2>(direction);
    } else {
      throw rclcpp::exceptions::InvalidParameterValueException("type is \"" + type + "\"; it must be image or point_cloud");
    }
    timer_ = create_wall_timer(look_period, looks());
    diagnostics_ = Diagnostics::of(NodeInterfaces::of(*this));
    // The report holds the counters itself, because it may run while the node is being destroyed.
    const std::string name = get_fully_qualified_name();
    report_ = diagnostics_->add([counters = counters_, name] { return counters->report(name); });
  }

  /// Waits for a look() on another thread of the executor: rclcpp may remove a node while its callbacks run.
  ~Converter() override {
    const std::lock_guard<std::mutex> lock(self_->mutex);
    self_->converter = nullptr;
  }

 private:
  /// How callbacks reach the converter while it exists.
  struct Self {
    std::mutex mutex;
    Converter *converter;
  };

  std::function<void()> looks() {
    return [self = self_] {
      const std::lock_guard<std::mutex> lock(self->mutex);
      if (self->converter) self->converter->look();
    };
  }

  std::string choice(const std::string &name, const std::string &value, const std::string &what) {
    rcl_interfaces::msg::ParameterDescriptor descriptor;
    descriptor.description = what;
    descriptor.read_only = true;
    return declare_parameter<std::string>(name, value, descriptor);
  }

  template <class DeviceT, class RosT>
  void start(const std::string &direction) {
    if (direction == "to_cpu") {
      to_cpu<DeviceT, RosT>();
    } else if (direction == "to_gpu") {
      to_gpu<DeviceT, RosT>();
    } else {
      throw rclcpp::exceptions::InvalidParameterValueException("direction is \"" + direction + "\"; it must be to_cpu or to_gpu");
    }
  }

  template <class DeviceT, class RosT>
  void to_cpu() {
    rclcpp::PublisherOptions options;
    options.qos_overriding_options = rclcpp::QosOverridingOptions::with_default_policies();
    on_matched(options.event_callbacks, looks(), 0);
    auto publisher = create_publisher<RosT>(out, qos(), options);
    is_wanted_ = [publisher] { return publisher->get_subscription_count() > 0; };
    subscribe_ = [this, publisher, counters = counters_](const rclcpp::QoS &qos) {
      SubscriptionOptions<DeviceT> options;
      options.ros.qos_overriding_options = overriding();
      options.refused = [counters](const DeviceT &) { ++counters->refused; };
      return rgaps_ros::create_subscription<DeviceT>(*this, in, qos, [publisher, counters](const DeviceT &device) {
        counters->convert([&] {
          const auto payload = device.host();
          if (payload.size() != device.meta().payload_bytes()) {
            const auto why = device.error();
            throw std::runtime_error(why.empty() ? "the payload could not be copied from the device" : why);
          }
          auto message = std::make_unique<RosT>();
          write(device.meta(), payload, *message);
          publisher->publish(std::move(message));
        });
      }, options);
    };
  }

  template <class DeviceT, class RosT>
  void to_gpu() {
    PublisherOptions options;
    on_matched(options.ros.event_callbacks, looks(), 0);
    const auto publisher = std::make_shared<Publisher<DeviceT>>(*this, out, qos(), options);
    is_wanted_ = [publisher] { return publisher->get_subscription_count() > 0 || publisher->reader_count() > 0; };
    subscribe_ = [this, publisher, counters = counters_](const rclcpp::QoS &qos) {
      rclcpp::SubscriptionOptions options;
      options.qos_overriding_options = overriding();
      return rclcpp::create_subscription<RosT>(*this, in, qos, [publisher, counters](const RosT &message) {
        counters->convert([&] { publisher->push_host(describe(message).value(), message.data.data(), message.data.size()).value(); });
      }, options);
    };
  }

  /// Subscribes if the output has subscribers, and unsubscribes if it has none.
  void look() {
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
      // The next look() tries again: the manager may be starting.
      RCLCPP_ERROR_THROTTLE(get_logger(), counters_->clock, complaint_period_ms, "cannot subscribe: %s", error.what());
    }
    counters_->is_active = subscription_ != nullptr;
  }

  std::string in_topic() { return get_node_topics_interface()->resolve_topic_name(in); }

  /// Whether a parameter sets the reliability.
  bool is_reliability_given() {
    return get_node_parameters_interface()->get_parameter_overrides().count("qos_overrides." + in_topic() + ".subscription.reliability") > 0;
  }

  /// A declared parameter keeps its first value, so reliability becomes a parameter only if an override sets it.
  rclcpp::QosOverridingOptions overriding() {
    if (is_reliability_given()) return rclcpp::QosOverridingOptions::with_default_policies();
    return {rclcpp::QosPolicyKind::History, rclcpp::QosPolicyKind::Depth};
  }

  /// The QoS of the subscription to `in`: a reliable subscription does not match a best-effort publisher.
  rclcpp::QoS in_qos() {
    if (is_reliability_given()) return qos();
    for (const auto &publisher : get_publishers_info_by_topic(in_topic())) {
      if (publisher.qos_profile().reliability() == rclcpp::ReliabilityPolicy::BestEffort) return qos().best_effort();
    }
    return qos();
  }

  static rclcpp::QoS qos() { return rclcpp::QoS(10); }

  const std::shared_ptr<Self> self_ = std::make_shared<Self>();
  std::function<bool()> is_wanted_;
  std::function<std::shared_ptr<void>(const rclcpp::QoS &)> subscribe_;
  std::shared_ptr<void> subscription_;
  /// The QoS of the current subscription, if there is one.
  std::optional<rclcpp::QoS> qos_;
  rclcpp::TimerBase::SharedPtr timer_;
  const std::shared_ptr<Counters> counters_ = std::make_shared<Counters>(get_logger());
  std::shared_ptr<Diagnostics> diagnostics_;
  std::shared_ptr<void> report_;
};

}  // namespace rgaps_ros

RCLCPP_COMPONENTS_REGISTER_NODE(rgaps_ros::Converter)
