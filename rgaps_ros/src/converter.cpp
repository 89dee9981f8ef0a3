// The converter: one conversion between a GPU topic and a sensor_msgs topic, as a component and a program.

#include <chrono>
#include <memory>
#include <string>

#include "rclcpp/rclcpp.hpp"
#include "rclcpp_components/register_node_macro.hpp"
#include "rgaps_ros/conversion.hpp"

namespace rgaps_ros {

namespace {

constexpr std::chrono::milliseconds poll_period(500);

}  // namespace

class Converter : public rclcpp::Node {
 public:
  explicit Converter(const rclcpp::NodeOptions &options) : Node("converter", options) {
    const auto type = choice("type", "image", "point_cloud", "Type of the messages: image or point_cloud.");
    const auto direction =
        choice("direction", "to_cpu", "to_gpu", "Direction: to_cpu (GPU topic in, sensor_msgs out) or to_gpu (the other way).");
    using Type = Conversion::Type;
    using Direction = Conversion::Direction;
    const ConversionTopics topics{type == "image" ? Type::image : Type::point_cloud,
                                  direction == "to_cpu" ? Direction::to_cpu : Direction::to_gpu, "in", "out"};
    const auto conversion = Conversion::start(NodeInterfaces::of(*this), get_node_graph_interface(), topics);
    timer_ = create_wall_timer(poll_period, [conversion] { conversion->update(); });
  }

 private:
  /// A parameter that has one of two values; the first is the default.
  std::string choice(const std::string &name, const std::string &one, const std::string &other, const std::string &what) {
    rcl_interfaces::msg::ParameterDescriptor descriptor;
    descriptor.description = what;
    descriptor.read_only = true;
    const auto value = declare_parameter<std::string>(name, one, descriptor);
    if (value == one || value == other) return value;
    throw rclcpp::exceptions::InvalidParameterValueException(name + " is \"" + value + "\"; it must be " + one + " or " + other);
  }

  rclcpp::TimerBase::SharedPtr timer_;
};

}  // namespace rgaps_ros

RCLCPP_COMPONENTS_REGISTER_NODE(rgaps_ros::Converter)
