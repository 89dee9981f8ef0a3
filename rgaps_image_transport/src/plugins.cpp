// The image_transport plugin `rgaps`: `<base topic>/rgaps` is a GPU topic of images.
//
//   publisher:   sensor_msgs/Image ──one copy──▶ pool of the publisher, which all subscribers of a host read in place
//   subscriber:  pool ──one copy, two from a GPU──▶ sensor_msgs/Image, which image_transport's callbacks take
//
// A node that is to read in place subscribes to the GPU topic itself: with rgaps_ros::create_subscription, or in Python or Rust.
//
// Releases of image_transport differ in the arguments of the two functions that a plugin implements. This is written for 3.1.13 (Humble), 5.1.8
// (Jazzy), 6.1.4 (Kilted) and 6.4.10 (Lyrical), and was compiled and run with 3.1.13 and 6.4.10.

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>

#include "image_transport/publisher_plugin.hpp"
#include "image_transport/subscriber_plugin.hpp"
#include "image_transport/version.h"
#include "pluginlib/class_list_macros.hpp"
#include "rclcpp/rclcpp.hpp"
#include "rgaps_ros/conversion.hpp"

// From Lyrical on, plugins get the interfaces of a node, and an rclcpp::QoS.
#if __has_include("image_transport/node_interfaces.hpp")
#include "image_transport/node_interfaces.hpp"
#define RGAPS_NODE image_transport::RequiredInterfaces
#define RGAPS_QOS rclcpp::QoS
#else
#define RGAPS_NODE rclcpp::Node *
#define RGAPS_QOS rmw_qos_profile_t
#endif

namespace rgaps_image_transport {

namespace {

using sensor_msgs::msg::Image;

constexpr const char *transport = "rgaps";

[[maybe_unused]] rclcpp::QoS qos_of(const rclcpp::QoS &qos) { return qos; }
[[maybe_unused]] rclcpp::QoS qos_of(const rmw_qos_profile_t &qos) { return rclcpp::QoS(rclcpp::QoSInitialization::from_rmw(qos), qos); }

std::string topic_of(const std::string &base_topic) { return base_topic + "/" + transport; }

/// Reports the counters on /diagnostics while the result lives.
std::shared_ptr<void> report(rgaps_ros::Diagnostics &diagnostics, const std::shared_ptr<rgaps_ros::ConversionCounters> &counters,
                             const rgaps_ros::NodeInterfaces &interfaces) {
  const std::string name = interfaces.base->get_fully_qualified_name();
  return diagnostics.add([counters, name] { return counters->report(name, "image_transport").take(); });
}

}  // namespace

class Publisher : public image_transport::PublisherPlugin {
 public:
  std::string getTransportName() const override { return transport; }
  std::string getTopic() const override { return publisher_ ? publisher_->get_topic_name() : std::string(); }
  /// ROS subscriptions, or subscribers of the core alone.
  std::size_t getNumSubscribers() const override {
    return publisher_ ? std::max<std::size_t>(publisher_->get_subscription_count(), publisher_->payload_subscriber_count()) : 0;
  }
  void shutdown() override {
    publisher_.reset();
    report_.reset();
  }

  void publish(const Image &message) const override {
    if (!publisher_) return;
    counters_->convert(message.data.size(), [&] {
      publisher_->push_host(rgaps_ros::describe(message).value(), message.data.data(), message.data.size()).value();
    });
  }
  void publishData(const Image &message, const std::uint8_t *data) const override {
    if (!publisher_) return;
    const auto bytes = std::uint64_t{message.step} * message.height;
    counters_->convert(bytes, [&] {
      const auto meta = rgaps_ros::describe_without_data(message).value();
      publisher_->push_host(meta, data, meta.payload_bytes()).value();
    });
  }

 protected:
#if __has_include("image_transport/node_interfaces.hpp") || IMAGE_TRANSPORT_VERSION_GTE(5, 0, 0)
  void advertiseImpl(RGAPS_NODE node, const std::string &base_topic, RGAPS_QOS qos, rclcpp::PublisherOptions options) override {
    advertise_topic(node, base_topic, qos_of(qos), options);
  }
#else
  void advertiseImpl(RGAPS_NODE node, const std::string &base_topic, RGAPS_QOS qos) override {
    advertise_topic(node, base_topic, qos_of(qos), rclcpp::PublisherOptions());
  }
#endif

 private:
  template <class NodeT>
  void advertise_topic(NodeT &node, const std::string &base_topic, const rclcpp::QoS &qos, const rclcpp::PublisherOptions &given) {
    rgaps_ros::PublisherOptions options;
    options.ros = given;
    publisher_ = std::make_unique<rgaps_ros::Publisher<rgaps::DeviceImage>>(node, topic_of(base_topic), qos, options);
    const auto interfaces = rgaps_ros::NodeInterfaces::of(node);
    counters_ = std::make_shared<rgaps_ros::ConversionCounters>(interfaces.logger(), getTopic());
    diagnostics_ = rgaps_ros::Diagnostics::of(interfaces);
    report_ = report(*diagnostics_, counters_, interfaces);
  }

  std::unique_ptr<rgaps_ros::Publisher<rgaps::DeviceImage>> publisher_;
  std::shared_ptr<rgaps_ros::ConversionCounters> counters_;
  std::shared_ptr<rgaps_ros::Diagnostics> diagnostics_;
  std::shared_ptr<void> report_;
};

class Subscriber : public image_transport::SubscriberPlugin {
 public:
  std::string getTransportName() const override { return transport; }
  std::string getTopic() const override { return subscription_ ? subscription_->get_topic_name() : std::string(); }
  std::size_t getNumPublishers() const override { return subscription_ ? subscription_->get_publisher_count() : 0; }
  void shutdown() override {
    subscription_.reset();
    report_.reset();
  }

 protected:
  void subscribeImpl(RGAPS_NODE node, const std::string &base_topic, const Callback &callback, RGAPS_QOS qos,
                     rclcpp::SubscriptionOptions options) override {
    subscribe_topic(node, base_topic, callback, qos_of(qos), options);
  }
#if !__has_include("image_transport/node_interfaces.hpp") && !IMAGE_TRANSPORT_VERSION_GTE(5, 0, 0)
  void subscribeImpl(RGAPS_NODE node, const std::string &base_topic, const Callback &callback, RGAPS_QOS qos) override {
    subscribe_topic(node, base_topic, callback, qos_of(qos), rclcpp::SubscriptionOptions());
  }
#endif

 private:
  template <class NodeT>
  void subscribe_topic(NodeT &node, const std::string &base_topic, const Callback &callback, const rclcpp::QoS &qos,
                       const rclcpp::SubscriptionOptions &given) {
    const auto interfaces = rgaps_ros::NodeInterfaces::of(node);
    const auto counters = std::make_shared<rgaps_ros::ConversionCounters>(interfaces.logger(), topic_of(base_topic));
    rgaps_ros::SubscriptionOptions<rgaps::DeviceImage> options;
    options.ros = given;
    options.refused = [counters](const rgaps::DeviceImage &) { counters->refuse(); };
    const auto deliver = [callback, counters](const rgaps::DeviceImage &image) {
      std::shared_ptr<const Image> message;
      counters->convert(image.meta().payload_bytes(), [&] { message = rgaps_ros::to_ros<Image>(image); });
      if (message) callback(message);
    };
    subscription_ = rgaps_ros::create_subscription<rgaps::DeviceImage>(node, topic_of(base_topic), qos, deliver, options);
    diagnostics_ = rgaps_ros::Diagnostics::of(interfaces);
    report_ = report(*diagnostics_, counters, interfaces);
  }

  rgaps_ros::Subscription<rgaps::DeviceImage>::SharedPtr subscription_;
  std::shared_ptr<rgaps_ros::Diagnostics> diagnostics_;
  std::shared_ptr<void> report_;
};

}  // namespace rgaps_image_transport

PLUGINLIB_EXPORT_CLASS(rgaps_image_transport::Publisher, image_transport::PublisherPlugin)
PLUGINLIB_EXPORT_CLASS(rgaps_image_transport::Subscriber, image_transport::SubscriberPlugin)
