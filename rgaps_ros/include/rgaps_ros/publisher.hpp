/**
 * @file
 * Publishing device memory from an rclcpp node.
 *
 *     rgaps_ros::Publisher<rgaps::DeviceImage> publisher(*this, "camera/front", rclcpp::SensorDataQoS());
 *     auto loan = publisher.loan(rgaps::Image::create(1920, 1080, "rgb8")).value();
 *     render<<<grid, block, 0, stream>>>(loan.device_pointer().value(), ...);
 *     publisher.publish(std::move(loan), stream).value();
 *
 * The message is first published in the core, where its subscribers read it in place. Then an ordinary rclcpp::Publisher, under any RMW, publishes
 * its descriptor to ROS subscriptions. No call waits for the GPU.
 *
 * On a lifecycle node the ROS publisher is a managed entity: while the node is not active nothing is published, and calls return an error.
 *
 * Constructors throw, like those of rclcpp; calls return an rgaps::Result.
 */

#ifndef RGAPS_ROS__PUBLISHER_HPP_
#define RGAPS_ROS__PUBLISHER_HPP_

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "rgaps_ros/diagnostics.hpp"
#include "rgaps_ros/node.hpp"
#include "rgaps_ros/type_adapter.hpp"

namespace rgaps_ros {

/// Options of a publisher.
struct PublisherOptions {
  /// rclcpp's options. Parameters (qos_overrides) may override history, depth and reliability unless these options say otherwise.
  rclcpp::PublisherOptions ros;
  /// Distinguishes the parameters of two publishers of one node and topic.
  std::string id;

  PublisherOptions() { ros.qos_overriding_options = rclcpp::QosOverridingOptions::with_default_policies(); }
};

namespace detail {

/// The publisher of descriptors, and whether its node allows it to publish now.
template <class DeviceT>
struct RosPublisher {
  std::shared_ptr<rclcpp::Publisher<DeviceT>> publisher;
  std::function<bool()> is_activated;
};

/// On a lifecycle node: a managed publisher. Detected by its method, so that other nodes do not need rclcpp_lifecycle.
template <class DeviceT, class NodeT>
auto ros_publisher(NodeT &node, const std::string &topic, const rclcpp::QoS &qos, const rclcpp::PublisherOptions &options, int)
    -> decltype(node.template create_publisher<DeviceT>(topic, qos, options)->is_activated(), RosPublisher<DeviceT>()) {
  const auto made = node.template create_publisher<DeviceT>(topic, qos, options);
  return {made, [made] { return made->is_activated(); }};
}
/// On any other node.
template <class DeviceT, class NodeT>
RosPublisher<DeviceT> ros_publisher(NodeT &node, const std::string &topic, const rclcpp::QoS &qos, const rclcpp::PublisherOptions &options,
                                    long) {
  auto parameters = node.get_node_parameters_interface();
  auto topics = node.get_node_topics_interface();
  return {rclcpp::create_publisher<DeviceT>(parameters, topics, topic, qos, options), [] { return true; }};
}

}  // namespace detail

/// A block of a publisher's pool that is being filled, with its metadata. Freed if it is not published.
template <class MetaT>
class [[nodiscard]] Loan {
 public:
  using Meta = MetaT;
  Loan(rgaps::Loan<Meta> loan, const Meta &meta) : loan_(std::move(loan)), meta_(meta) {}

  /// The block for the CPU: in place if the CPU can reach it, else memory that is copied there when the loan is published.
  template <class T = std::uint8_t>
  rgaps::Result<rgaps::Span<T>> host() {
    return loan_.template as<T>();
  }
  /// The address at which the device fills the block.
  rgaps::Result<void *> device_pointer() const { return loan_.device_pointer(); }
  /// A DLPack tensor for an array library to fill.
  rgaps::Result<DLManagedTensorVersioned *> dlpack(const char *field = nullptr) const { return loan_.dlpack(field); }

  const Meta &meta() const noexcept { return meta_; }
  /// Replaces the metadata; it must describe the same number of bytes.
  rgaps::Result<void> set_meta(const Meta &meta) {
    auto set = loan_.set_meta(meta);
    if (set) meta_ = meta;
    return set;
  }
  /// Sets stamp and coordinate frame.
  rgaps::Result<void> set_header(const rclcpp::Time &stamp, const std::string &frame_id) {
    Meta meta = meta_;
    if (auto set = meta.set_header(std::chrono::nanoseconds(stamp.nanoseconds()), frame_id); !set) return set;
    return set_meta(meta);
  }

 private:
  template <class>
  friend class Publisher;
  rgaps::Loan<Meta> loan_;
  Meta meta_;
};

/// Publishes DeviceT on a topic. Usable from any thread. Messages and their descriptors are published in the same order, so a push that waits for
/// space blocks publishing in other threads.
template <class DeviceT>
class Publisher {
 public:
  using Meta = typename DeviceT::Meta;
  using Handle = rgaps_message_handle_t;

  /// Takes a node or a pointer to one: rclcpp::Node, LifecycleNode and similar. The topic is that of the ROS publisher, remapped and qualified.
  template <class NodeT>
  Publisher(NodeT &&node, const std::string &topic, const rclcpp::QoS &qos, const PublisherOptions &options = PublisherOptions())
      : content_(std::make_shared<Content>(NodeInterfaces::of(node),
                                           detail::ros_publisher<DeviceT>(NodeInterfaces::dereferenced(node), topic, qos, options.ros, 0),
                                           options.id)) {
    diagnostics_ = content_->diagnostics->add([weak = std::weak_ptr<Content>(content_)] {
      const auto content = weak.lock();
      return content ? content->report() : diagnostic_msgs::msg::DiagnosticStatus();
    });
  }

  /// Loans a block for the bytes that `meta` describes. A parameter decides what happens when the pool is full.
  rgaps::Result<Loan<Meta>> loan(const Meta &meta) const {
    auto loan = content_->core.loan(meta);
    if (!loan) return loan.error();
    return Loan<Meta>(std::move(*loan), meta);
  }
  /// The same for a metadata result; returns its error if it failed.
  rgaps::Result<Loan<Meta>> loan(const rgaps::Result<Meta> &meta) const {
    if (!meta) return meta.error();
    return loan(meta.value());
  }

  /// Publishes a loan without a copy, behind the work enqueued on the stream so far.
  rgaps::Result<Handle> publish(Loan<Meta> &&loan, rgaps::Stream stream = nullptr) const {
    if (!is_activated()) return inactive();
    const std::lock_guard<std::recursive_mutex> turn(content_->turn);
    return announce(std::move(loan.loan_).publish(stream), loan.meta_);
  }
  /// Publishes other device memory, behind the work enqueued on the stream so far: one copy on the device.
  rgaps::Result<Handle> push(const Meta &meta, const void *data, std::uint64_t bytes, rgaps::Stream stream = nullptr) const {
    if (!is_activated()) return inactive();
    const std::lock_guard<std::recursive_mutex> turn(content_->turn);
    return announce(content_->core.push(meta, data, bytes, stream), meta);
  }
  /// Publishes CPU memory: one copy into the pool.
  rgaps::Result<Handle> push_host(const Meta &meta, const void *data, std::uint64_t bytes) const {
    if (!is_activated()) return inactive();
    const std::lock_guard<std::recursive_mutex> turn(content_->turn);
    return announce(content_->core.push_host(meta, data, bytes), meta);
  }

  /// Whether the node allows it to publish: false on a lifecycle node that is not active.
  bool is_activated() const { return content_->is_activated(); }
  const char *get_topic_name() const { return content_->ros->get_topic_name(); }
  /// ROS subscriptions to the descriptors, including those of this process.
  std::size_t get_subscription_count() const { return content_->ros->get_subscription_count(); }
  /// Subscribers to the payloads on this host; each remote host that subscribes counts as one.
  std::uint64_t payload_subscriber_count() const { return content_->core.subscriber_count(); }
  rgaps::Result<rgaps_publisher_statistics_t> statistics() const { return content_->core.statistics(); }
  /// The device of the payloads, in DLPack's terms, on which to make streams (device_type 2 is an NVIDIA GPU, device_id its ordinal in this process).
  rgaps::Result<rgaps_device_t> device() const { return content_->core_node->device(); }
  /// The publisher of the descriptors.
  const std::shared_ptr<rclcpp::Publisher<DeviceT>> &ros() const { return content_->ros; }

 private:
  struct Content {
    NodeInterfaces node;
    std::shared_ptr<rclcpp::Publisher<DeviceT>> ros;
    std::function<bool()> is_activated;
    std::shared_ptr<rgaps::Node> core_node;
    rgaps::Publisher<Meta> core;
    std::shared_ptr<Diagnostics> diagnostics;
    rgaps_ros_status_t status{};
    /// Held from publishing a message until its descriptor is published: if another descriptor overtook it, a subscriber that takes by handle in
    /// order would already have released the message. Recursive, because the middleware may call back from within.
    std::recursive_mutex turn;

    Content(const NodeInterfaces &node_, const detail::RosPublisher<DeviceT> &made, const std::string &id)
        : Content(node_, made, detail::Offer(node_, made.publisher->get_topic_name(), id, made.publisher->get_actual_qos())) {}

    Content(const NodeInterfaces &node_, const detail::RosPublisher<DeviceT> &made, const detail::Offer &offer)
        : node(node_),
          ros(made.publisher),
          is_activated(made.is_activated),
          core_node(offer.core_node),
          core(core_node->template publisher<Meta>(ros->get_topic_name(), offer.qos).value()),
          diagnostics(Diagnostics::of(node)) {}

    diagnostic_msgs::msg::DiagnosticStatus report() {
      const auto made = rgaps::detail::done(rgaps_ros_publisher_status(core.c(), node.base->get_fully_qualified_name(), &status));
      return message_of(made, status);
    }
  };

  rgaps::Failure inactive() const {
    return {RGAPS_REFUSED, std::string(get_topic_name()) + ": the publisher is not active: activate its lifecycle node first"};
  }

  /// Publishes the descriptor of a published message.
  rgaps::Result<Handle> announce(rgaps::Result<Handle> published, const Meta &meta) const {
    if (!published) return published;
    Described<Meta> described{*published, meta};
    // Within the process the object itself is passed on: a subscription by the type adapter alone takes the message on first use.
    auto lease = std::make_shared<Lease<Meta>>(described, typename Lease<Meta>::Find([described] { return Adapter<DeviceT>::take_by_handle(described); }));
    try {
      content_->ros->publish(std::make_unique<DeviceT>(std::move(lease)));
    } catch (const std::exception &error) {
      return rgaps::Failure{RGAPS_SYSTEM_ERROR, std::string("the message is published, its descriptor is not: ") + error.what()};
    }
    return published;
  }

  std::shared_ptr<Content> content_;
  std::shared_ptr<void> diagnostics_;
};

}  // namespace rgaps_ros

#endif  // RGAPS_ROS__PUBLISHER_HPP_
