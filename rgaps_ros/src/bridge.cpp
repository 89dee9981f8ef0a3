// The bridge: every GPU topic of images or point clouds gets a sensor_msgs topic beside it, `<topic>/cpu`, in both directions, without configuration.
//
//   a node publishes /camera/front (GPU):         /camera/front     ──▶ /camera/front/cpu   (to_cpu) for rviz, ros2 bag record, CPU nodes
//   nobody does, but /camera/front/cpu is there:  /camera/front/cpu ──▶ /camera/front       (to_gpu) for ros2 bag play, CPU cameras
//
// Each pair of topics is a Conversion, which copies nothing until its output has a subscriber. Of several bridges, such as one on each host, the one
// whose node name sorts first converts; a hidden topic shows which bridges can. Nodes with conversions are known by another hidden topic: what they
// publish is no source, and a pair that another such node publishes is left to it. This prevents loops and double pictures.

#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <set>
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
/// What rmw's graph says while the node of a publisher is not known yet.
constexpr const char *unknown_name = "_NODE_NAME_UNKNOWN_";
/// Leaves room for the topics' own names.
constexpr std::size_t suffix_bytes_max = 64;
constexpr const char *image_type = "sensor_msgs/msg/Image";
/// The last part of the GPU topics of the image_transport plugin, whose base topic has the same pictures.
constexpr const char *image_transport_suffix = "/rgaps";

/// A name that no other bridge has.
std::string new_name() {
  std::random_device random;
  std::string name = "rgaps_bridge_";
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
    {Conversion::Type::image, "rgaps_msgs/msg/GpuImage", image_type},
    {Conversion::Type::point_cloud, "rgaps_msgs/msg/GpuPointCloud", "sensor_msgs/msg/PointCloud2"},
};

bool ends_with(const std::string &text, const std::string &end) {
  return text.size() > end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

/// The fully qualified name of a publisher's node; empty while it is not known.
std::string node_of(const rclcpp::TopicEndpointInfo &publisher) {
  if (publisher.node_name() == unknown_name) return {};
  const auto &space = publisher.node_namespace();
  return (space == "/" ? "" : space) + "/" + publisher.node_name();
}

/// The pairs of topics in the graph, and their conversions. It does not refer to the node, because rclcpp may remove a node while its timer runs.
class TopicPairs {
 public:
  TopicPairs(rclcpp::Node &node, const std::string &suffix)
      : node_(NodeInterfaces::of(node)),
        graph_(node.get_node_graph_interface()),
        name_(node.get_fully_qualified_name()),
        suffix_("/" + suffix),
        bridges_topic_("/_rgaps/bridges/" + suffix),
        errors_(node.get_logger(), name_) {}

  void update() {
    try {
      if (is_ok() && is_active()) convert();
    } catch (const std::exception &error) {
      if (is_ok()) errors_.log(error.what());
    }
  }

 private:
  using Types = std::map<std::string, std::vector<std::string>>;
  struct ActiveConversion {
    Conversion::Type type;
    Conversion::Direction direction;
    std::shared_ptr<Conversion> conversion;
  };

  /// False while ROS shuts down, when no graph can be asked.
  bool is_ok() const { return rclcpp::ok(node_.base->get_context()); }

  /// Whether this is the bridge that converts. One without a manager is none.
  bool is_active() {
    if (!core_node_) {
      core_node_ = Process::instance().node(node_.domain(), {}).value();
      candidacy_ = rclcpp::create_publisher<diagnostic_msgs::msg::KeyValue>(node_.parameters, node_.topics, bridges_topic_, rclcpp::QoS(1));
    }
    std::string first = name_;
    int of_own_name = 0;
    for (const auto &bridge : graph_->get_publishers_info_by_topic(bridges_topic_)) {
      const auto name = node_of(bridge);
      if (!name.empty()) first = std::min(first, name);
      of_own_name += name == name_;
    }
    if (of_own_name > 1) errors_.log("another bridge has this name, so neither converts; give each its own, or none");
    if (of_own_name <= 1 && first == name_) return true;
    if (!conversions_.empty() && first != name_) RCLCPP_INFO(node_.logger(), "%s converts from now on", first.c_str());
    conversions_.clear();
    return false;
  }

  void convert() {
    std::set<std::string> converters;
    for (const auto &publisher : graph_->get_publishers_info_by_topic(Conversion::marker_topic)) converters.insert(node_of(publisher));
    const Types types = graph_->get_topic_names_and_types();
    std::map<std::string, TypePair> pairs;
    for (const auto &topic_and_types : types) {
      const auto &topic = topic_and_types.first;
      for (const auto &pair : type_pairs) {
        if (has(types, topic, pair.gpu) && !is_of_image_transport(types, topic)) pairs.emplace(topic, pair);
        if (has(types, topic, pair.cpu) && ends_with(topic, suffix_)) pairs.emplace(topic.substr(0, topic.size() - suffix_.size()), pair);
      }
    }
    for (auto known = conversions_.begin(); known != conversions_.end();) known = pairs.count(known->first) ? std::next(known) : conversions_.erase(known);
    for (auto known = left_out_.begin(); known != left_out_.end();) known = pairs.count(known->first) ? std::next(known) : left_out_.erase(known);
    for (const auto &pair : pairs) {
      try {
        update_pair(pair.first, pair.second, types, converters);
      } catch (const std::exception &error) {
        conversions_.erase(pair.first);
        if (!is_ok()) return;
        // Once for each reason: it may hold for as long as the nodes run.
        auto &reason = left_out_[pair.first];
        if (reason != error.what()) RCLCPP_WARN(node_.logger(), "%s: %s", pair.first.c_str(), error.what());
        reason = error.what();
      }
    }
  }

  static bool has(const Types &types, const std::string &topic, const std::string &type) {
    const auto found = types.find(topic);
    return found != types.end() && std::find(found->second.begin(), found->second.end(), type) != found->second.end();
  }

  static bool is_of_image_transport(const Types &types, const std::string &topic) {
    const std::string end = image_transport_suffix;
    return ends_with(topic, end) && has(types, topic.substr(0, topic.size() - end.size()), image_type);
  }

  /// Throws the reason if the pair cannot be converted.
  void update_pair(const std::string &topic, const TypePair &pair, const Types &types, const std::set<std::string> &converters) {
    const auto cpu_topic = topic + suffix_;
    for (const auto &name : {topic, cpu_topic}) {
      if (node_.topics->resolve_topic_name(name) != name) throw std::runtime_error(name + " is remapped in this node, which would mix topics; it is not converted");
    }
    for (const auto &[name, type] : {std::make_pair(topic, pair.gpu), std::make_pair(cpu_topic, pair.cpu)}) {
      const auto known = types.find(name);
      if (known != types.end() && known->second != std::vector<std::string>{type}) {
        throw std::runtime_error(name + " also has another type than " + type + "; it is not converted");
      }
    }
    const auto gpu = sources(topic, converters);
    const auto cpu = sources(cpu_topic, converters);
    const auto direction = gpu ? Conversion::Direction::to_cpu : Conversion::Direction::to_gpu;
    const auto known = conversions_.find(topic);
    const bool is_known = known != conversions_.end() && known->second.type == pair.type && known->second.direction == direction;
    if (is_known && (gpu || cpu)) return known->second.conversion->update();
    if (known != conversions_.end()) conversions_.erase(known);
    if (!gpu && !cpu) return;
    const auto &in = gpu ? topic : cpu_topic;
    const auto &out = gpu ? cpu_topic : topic;
    auto conversion = Conversion::start(node_, graph_, {pair.type, direction, in, out});
    RCLCPP_INFO(node_.logger(), "%s is offered as %s", in.c_str(), out.c_str());
    left_out_.erase(topic);
    conversions_.emplace(topic, ActiveConversion{pair.type, direction, std::move(conversion)});
  }

  /// Whether a node that converts nothing publishes the topic. Throws if another node with conversions does.
  bool sources(const std::string &topic, const std::set<std::string> &converters) const {
    bool has_source = false;
    for (const auto &publisher : graph_->get_publishers_info_by_topic(topic)) {
      const auto node = node_of(publisher);
      if (node.empty() || node == name_) continue;
      if (converters.count(node)) throw std::runtime_error(node + " converts it; it is left to that node");
      has_source = true;
    }
    return has_source;
  }

  NodeInterfaces node_;
  const rclcpp::node_interfaces::NodeGraphInterface::SharedPtr graph_;
  const std::string name_;
  const std::string suffix_;
  const std::string bridges_topic_;
  ErrorLog errors_;
  /// Why pairs are not converted.
  std::map<std::string, std::string> left_out_;
  std::shared_ptr<rgaps::Node> core_node_;
  std::shared_ptr<void> candidacy_;
  std::map<std::string, ActiveConversion> conversions_;
};

}  // namespace

class Bridge : public rclcpp::Node {
 public:
  explicit Bridge(const rclcpp::NodeOptions &options) : Node(new_name(), options) {
    rcl_interfaces::msg::ParameterDescriptor descriptor;
    descriptor.description = "The last part of the name of sensor_msgs topics: that of GPU topic /a is /a/<suffix>.";
    descriptor.read_only = true;
    const auto suffix = declare_parameter<std::string>("suffix", "cpu", descriptor);
    const std::string digits = "0123456789", letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_";
    const bool is_plain = !suffix.empty() && suffix.find_first_not_of(letters + digits) == std::string::npos && suffix.find("__") == std::string::npos;
    if (!is_plain || suffix.find_first_of(digits) == 0 || suffix.size() > suffix_bytes_max) {
      throw rclcpp::exceptions::InvalidParameterValueException("suffix is \"" + suffix + "\"; it must be one part of a topic's name, without a digit in front and without '__', of " +
                                                               std::to_string(suffix_bytes_max) + " characters at most");
    }
    timer_ = create_wall_timer(graph_poll_period, [pairs = std::make_shared<TopicPairs>(*this, suffix)] { pairs->update(); });
  }

 private:
  rclcpp::TimerBase::SharedPtr timer_;
};

}  // namespace rgaps_ros

RCLCPP_COMPONENTS_REGISTER_NODE(rgaps_ros::Bridge)
