/**
 * @file
 * rclcpp::TypeAdapter between the device types and rgaps_msgs, so that nodes can publish and subscribe to rgaps::DeviceImage.
 *
 * To ROS, it copies handle and metadata. From ROS, it takes by handle: the payload is in the pool of this host, or arrives within the time-out, or
 * the object is invalid and says why. A plain node->create_subscription<rgaps::DeviceImage> takes through the payload subscriptions of the process
 * (payload_subscriptions.hpp). Prefer rgaps_ros::create_subscription, which has its own core subscriber.
 */

#ifndef RGAPS_ROS__TYPE_ADAPTER_HPP_
#define RGAPS_ROS__TYPE_ADAPTER_HPP_

#include <memory>
#include <type_traits>

#include "rclcpp/logging.hpp"
#include "rclcpp/type_adapter.hpp"
#include "rgaps_ros/payload_subscriptions.hpp"
#include "rgaps_ros/payloads.hpp"

namespace rgaps_ros {

/// Both directions of one type.
template <class DeviceT>
struct Adapter {
  using is_specialized = std::true_type;
  using custom_type = DeviceT;
  using ros_message_type = typename DeviceT::Descriptor;
  using Meta = typename DeviceT::Meta;

  static void convert_to_ros_message(const custom_type &source, ros_message_type &destination) { source.write_to(destination); }

  static void convert_to_custom(const ros_message_type &source, custom_type &destination) {
    destination = custom_type(take_by_handle(copy<Meta>(source)));
  }

  /// Takes a message through a payload subscription of the process. Logs a refusal once for each publisher and reason.
  static std::shared_ptr<Lease<Meta>> take_by_handle(const Described<Meta> &described) {
    auto lease = PayloadSubscriptions<Meta>::instance().lease(described);
    const auto why = lease->failure();
    if (why && why->status != RGAPS_EARLY && !refusals().refuse(described.handle.publisher, *why)) {
      RCLCPP_WARN(rclcpp::get_logger("rgaps"), "%s", why->text.c_str());
    }
    return lease;
  }

 private:
  static const Payloads &refusals() {
    static const Payloads *const refusals = new Payloads([](bool, const char *text) { RCLCPP_WARN(rclcpp::get_logger("rgaps"), "%s", text); });
    return *refusals;
  }
};

}  // namespace rgaps_ros

template <>
struct rclcpp::TypeAdapter<rgaps::DeviceImage, rgaps_msgs::msg::GpuImage> : rgaps_ros::Adapter<rgaps::DeviceImage> {};
template <>
struct rclcpp::TypeAdapter<rgaps::DevicePointCloud, rgaps_msgs::msg::GpuPointCloud> : rgaps_ros::Adapter<rgaps::DevicePointCloud> {};
template <>
struct rclcpp::TypeAdapter<rgaps::DeviceTensor, rgaps_msgs::msg::GpuTensor> : rgaps_ros::Adapter<rgaps::DeviceTensor> {};

RCLCPP_USING_CUSTOM_TYPE_AS_ROS_MESSAGE_TYPE(rgaps::DeviceImage, rgaps_msgs::msg::GpuImage);
RCLCPP_USING_CUSTOM_TYPE_AS_ROS_MESSAGE_TYPE(rgaps::DevicePointCloud, rgaps_msgs::msg::GpuPointCloud);
RCLCPP_USING_CUSTOM_TYPE_AS_ROS_MESSAGE_TYPE(rgaps::DeviceTensor, rgaps_msgs::msg::GpuTensor);

#endif  // RGAPS_ROS__TYPE_ADAPTER_HPP_
