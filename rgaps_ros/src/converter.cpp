// The converter: sensor_msgs/Image and PointCloud2 to and from GPU topics, for those who know nothing of RGAPS: rviz, rosbag2, CPU nodes.
//
//   direction to_cpu:  GPU topic `in`  ──one copy──▶ sensor_msgs topic `out`
//   direction to_gpu:  sensor_msgs topic `in` ──one copy──▶ GPU topic `out`
//
// It subscribes to `in` only while somebody wants `out`: what nobody looks at is neither copied nor sent between hosts. That is decided when ROS
// says that a subscription has come or gone, and twice a second, for programs that read the GPU topic through the core alone.
// It subscribes reliably, unless a publisher of `in` offers less, as cameras do (SensorDataQoS); qos_overrides have the last word.
// A message that cannot be carried is refused, counted and logged with the reason; the next one is taken as if nothing had been.

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

/// What callbacks need of the converter. Theirs too: one that waits for a payload may outlive a component that is unloaded.
struct Counters {
  rclcpp::Logger logger;
  // Complaints are counted by a clock that always runs: simulated time may stand still, or begin again.
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

  /// Counts a conversion, or refuses it with the reason that it throws: nothing goes through the executor, which is others' too.
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

/// Calls a function, whatever an event tells.
struct OnEvent {
  std::function<void()> then;
  template <class Event>
  void operator()(Event &) const {
    then();
  }
};

/// Matched events are of Iron and later; before, the timer has to do.
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
      throw rclcpp::exceptions::InvalidParameterValueException("type is \"" + type + "\"; it may be image or point_cloud");
    }
    timer_ = create_wall_timer(look_period, looks());
    diagnostics_ = Diagnostics::of(NodeInterfaces::of(*this));
    // The counters are the report's own: it may be asked for while the node goes.
    const std::string name = get_fully_qualified_name();
    report_ = diagnostics_->add([counters = counters_, name] { return counters->report(name); });
  }

  /// Waits for a look that another thread of the executor has begun: rclcpp removes a node from under its callbacks.
  ~Converter() override {
    const std::lock_guard<std::mutex> lock(self_->mutex);
    self_->converter = nullptr;
  }

 private:
  /// What callbacks that are of the converter reach it by, while it is there.
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
      throw rclcpp::exceptions::InvalidParameterValueException("direction is \"" + direction + "\"; it may be to_cpu or to_gpu");
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
            throw std::runtime_error(why.empty() ? "the device does not give its bytes" : why);
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

  /// Subscribes when somebody wants what is made of it, and ends that when nobody does.
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
      // Tried again at the next look: the manager may be on its way.
      RCLCPP_ERROR_THROTTLE(get_logger(), counters_->clock, complaint_period_ms, "cannot subscribe: %s", error.what());
    }
    counters_->is_active = subscription_ != nullptr;
  }

  std::string in_topic() { return get_node_topics_interface()->resolve_topic_name(in); }

  /// Whether reliability is given by a parameter.
  bool is_reliability_given() {
    return get_node_parameters_interface()->get_parameter_overrides().count("qos_overrides." + in_topic() + ".subscription.reliability") > 0;
  }

  /// A parameter keeps the value that it was declared with, so reliability is one only if it is given.
  rclcpp::QosOverridingOptions overriding() {
    if (is_reliability_given()) return rclcpp::QosOverridingOptions::with_default_policies();
    return {rclcpp::QosPolicyKind::History, rclcpp::QosPolicyKind::Depth};
  }

  /// What `in` is subscribed with: a reliable subscription gets nothing of a publisher that makes its best effort.
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
  /// With what it subscribes, if it does.
  std::optional<rclcpp::QoS> qos_;
  rclcpp::TimerBase::SharedPtr timer_;
  const std::shared_ptr<Counters> counters_ = std::make_shared<Counters>(get_logger());
  std::shared_ptr<Diagnostics> diagnostics_;
  std::shared_ptr<void> report_;
};

}  // namespace rgaps_ros

RCLCPP_COMPONENTS_REGISTER_NODE(rgaps_ros::Converter)
