// The bridge: every GPU topic of images or point clouds gets a sensor_msgs topic beside it, `<topic>/cpu`, in both directions, without configuration.
//
//   a node publishes /camera/front (GPU):         /camera/front     ──▶ /camera/front/cpu   (to_cpu) for rviz, ros2 bag record, CPU nodes
//   nobody does, but /camera/front/cpu is there:  /camera/front/cpu ──▶ /camera/front       (to_gpu) for ros2 bag play, CPU cameras
//
// Each pair of topics is a Conversion, which costs nothing until its output has a subscriber. Several bridges may run, one on each host: all nodes whose
// name begins with `rgaps_bridge_` are bridges, and the one whose name sorts first converts. A bridge ignores publishers that are bridges; this
// prevents loops.

#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "rclcpp/rclcpp.hpp"
#include "rclcpp_components/register_node_macro.hpp"
#include "rgaps_ros/conversion.hpp"

namespace rgaps_ros {

namespace {

constexpr std::chrono::milliseconds graph_poll_period(500);
constexpr const char *name_prefix = "rgaps_bridge_";

/// What rmw's graph says while the node of a publisher is not known yet.
constexpr const char *unknown_name = "_NODE_NAME_UNKNOWN_";

bool is_bridge(const std::string &node_name) { return node_name.rfind(name_prefix, 0) == 0; }

/// A name that no other bridge has.
std::string new_name() {
  std::random_device random;
  std::string name = name_prefix;
  for (int place = 0; place < 16; ++place) name += "0123456789abcdef"[random() % 16];
  return name;
}

/// The types of a pair of topics.
struct TypePair {
  Conversion::Type type;
  const char *gpu;
  const char *cpu;
};
constexpr TypePair type_pairs[] = {
    {Conversion::Type::image, "rgaps_msgs/msg/GpuImage", "sensor_msgs/msg/Image"},
    {Conversion::Type::point_cloud, "rgaps_msgs/msg/GpuPointCloud", "sensor_msgs/msg/PointCloud2"},
};

}  // namespace

class Bridge : public rclcpp::Node {
 public:
  explicit Bridge(const rclcpp::NodeOptions &options) : Node(new_name(), options) {
    if (!is_bridge(get_name())) {
      throw std::invalid_argument(std::string("the node's name is ") + get_name() + "; bridges know each other by names that begin with " + name_prefix);
    }
    rcl_interfaces::msg::ParameterDescriptor descriptor;
    descriptor.description = "The last part of the name of sensor_msgs topics: that of GPU topic /a is /a/<suffix>.";
    descriptor.read_only = true;
    const auto suffix = declare_parameter<std::string>("suffix", "cpu", descriptor);
    if (suffix.empty() || suffix.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != std::string::npos) {
      throw rclcpp::exceptions::InvalidParameterValueException("suffix is \"" + suffix + "\"; it must be one part of a topic's name");
    }
    suffix_ = "/" + suffix;
    timer_ = create_wall_timer(graph_poll_period, [this] { update(); });
  }

 private:
  struct ActiveConversion {
    Conversion::Direction direction;
    std::shared_ptr<Conversion> conversion;
  };

  void update() {
    if (!is_active()) return conversions_.clear();
    std::map<std::string, TypePair> pairs;
    for (const auto &[topic, types] : get_topic_names_and_types()) {
      for (const auto &pair : type_pairs) {
        const auto has = [&types = types](const char *type) { return std::find(types.begin(), types.end(), type) != types.end(); };
        if (has(pair.gpu)) pairs.emplace(topic, pair);
        if (has(pair.cpu) && is_cpu_topic(topic)) pairs.emplace(topic.substr(0, topic.size() - suffix_.size()), pair);
      }
    }
    for (auto known = conversions_.begin(); known != conversions_.end();) known = pairs.count(known->first) ? std::next(known) : conversions_.erase(known);
    for (const auto &[topic, pair] : pairs) update_pair(topic, pair);
  }

  /// Whether this is the sensor_msgs topic beside a GPU topic, by its name.
  bool is_cpu_topic(const std::string &topic) const {
    return topic.size() > suffix_.size() && topic.compare(topic.size() - suffix_.size(), suffix_.size(), suffix_) == 0;
  }

  void update_pair(const std::string &topic, const TypePair &pair) {
    const auto cpu_topic = topic + suffix_;
    const bool to_cpu = has_source(topic);
    const auto known = conversions_.find(topic);
    if (!to_cpu && !has_source(cpu_topic)) {
      if (known != conversions_.end()) conversions_.erase(known);
      return;
    }
    const auto direction = to_cpu ? Conversion::Direction::to_cpu : Conversion::Direction::to_gpu;
    if (known != conversions_.end() && known->second.direction == direction) return known->second.conversion->update();
    if (known != conversions_.end()) conversions_.erase(known);
    try {
      auto conversion = Conversion::start(*this, {pair.type, direction, to_cpu ? topic : cpu_topic, to_cpu ? cpu_topic : topic});
      RCLCPP_INFO(get_logger(), "%s is offered as %s", (to_cpu ? topic : cpu_topic).c_str(), (to_cpu ? cpu_topic : topic).c_str());
      conversions_.emplace(topic, ActiveConversion{direction, std::move(conversion)});
    } catch (const std::exception &error) {
      // Tried again at the next update: the manager may be starting.
      RCLCPP_ERROR_THROTTLE(get_logger(), clock_, 5000, "%s is not converted: %s", topic.c_str(), error.what());
    }
  }

  /// Whether a node that is no bridge publishes the topic.
  bool has_source(const std::string &topic) const {
    const auto publishers = get_publishers_info_by_topic(topic);
    return std::any_of(publishers.begin(), publishers.end(), [](const auto &publisher) {
      return !is_bridge(publisher.node_name()) && publisher.node_name() != unknown_name;
    });
  }

  /// Whether no other bridge's name comes before this one's.
  bool is_active() {
    const std::string own = get_name();
    for (const auto &name : get_node_graph_interface()->get_node_names()) {
      const auto last = name.substr(name.rfind('/') + 1);
      if (is_bridge(last) && last < own) return false;
    }
    return true;
  }

  std::string suffix_;
  std::map<std::string, ActiveConversion> conversions_;
  rclcpp::Clock clock_{RCL_STEADY_TIME};
  rclcpp::TimerBase::SharedPtr timer_;
};

}  // namespace rgaps_ros

RCLCPP_COMPONENTS_REGISTER_NODE(rgaps_ros::Bridge)
