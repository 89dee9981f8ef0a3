// A picture pipeline: camera ──▶ rectify ──▶ edges x 8 ──▶ viewer. Each stage reads its pictures where the one before wrote them.
//
// Every node is a component: they run as processes of their own, in one container, or spread over hosts, without a change. The stages compute on
// the CPU, so they refuse to start on pools of a GPU, where every read would be a copy.

#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "rclcpp/rclcpp.hpp"
#include "rclcpp_components/register_node_macro.hpp"
#include "rgaps_ros/rgaps_ros.hpp"
#include "stages.hpp"

namespace rgaps_examples {

namespace {

using rgaps::DeviceImage;
using Publisher = rgaps_ros::Publisher<DeviceImage>;
using Subscription = rgaps_ros::Subscription<DeviceImage>;

/// The number of a picture travels in the application's bytes of the metadata.
std::uint64_t number_of(const rgaps::Image &meta) {
  std::uint64_t number = 0;
  std::memcpy(&number, meta.c().as.header.user, sizeof number);
  return number;
}

/// A picture of another size or encoding with the header of this one.
rgaps::Result<rgaps::Image> like(const rgaps::Image &from, Size size, const std::string &encoding) {
  auto image = rgaps::Image::create(size.width, size.height, encoding);
  if (image) image->c().as.header = from.c().as.header;
  return image;
}

/// A node of the pipeline.
class Stage : public rclcpp::Node {
 public:
  Stage(const std::string &name, const rclcpp::NodeOptions &options) : Node(name, options) {
    const auto interfaces = rgaps_ros::NodeInterfaces::of(*this);
    // Held until the node's own publisher or subscription has one.
    core_ = rgaps_ros::Process::instance().node(interfaces.domain(), {}).value();
    constexpr int on_host = 1;
    if (core_->device().value().device_type != on_host) {
      throw std::runtime_error("this example computes on the CPU, and pools lie on a GPU: start the manager with RGAPS_DEVICE=host");
    }
  }

 protected:
  /// Makes one picture of another: `fill` writes it where the next stage reads it.
  void pass_on(const Publisher &publisher, const rgaps::Result<rgaps::Image> &meta, const std::function<void(std::uint8_t *)> &fill) {
    auto loan = publisher.loan(meta);
    if (!loan) return complain(loan.error().text);
    auto pixels = loan->host();
    if (!pixels) return complain(pixels.error().text);
    fill(pixels->data());
    if (const auto published = publisher.publish(std::move(*loan)); !published) complain(published.error().text);
  }

  void complain(const std::string &text) { RCLCPP_ERROR_THROTTLE(get_logger(), *get_clock(), 1000, "%s", text.c_str()); }

 private:
  std::shared_ptr<rgaps::Node> core_;
};

Size size_of(const DeviceImage &image) { return {image.meta().width(), image.meta().height()}; }

}  // namespace

/// Draws pictures in place. Parameters: width, height, rate.
class Camera : public Stage {
 public:
  explicit Camera(const rclcpp::NodeOptions &options) : Stage("camera", options), publisher_(*this, "image", rclcpp::QoS(10)) {
    size_.width = static_cast<std::uint32_t>(declare_parameter<std::int64_t>("width", 320));
    size_.height = static_cast<std::uint32_t>(declare_parameter<std::int64_t>("height", 240));
    const auto rate = declare_parameter<double>("rate", 30.0);
    timer_ = create_wall_timer(std::chrono::duration<double>(1 / rate), [this] { take_picture(); });
  }

 private:
  void take_picture() {
    auto meta = rgaps::Image::create(size_.width, size_.height, "rgb8");
    if (!meta) return complain(meta.error().text);
    if (const auto set = meta->set_header(std::chrono::nanoseconds(now().nanoseconds()), "camera"); !set) return complain(set.error().text);
    std::memcpy(meta->user().data(), &number_, sizeof number_);
    pass_on(publisher_, meta, [this](std::uint8_t *pixels) { draw(number_, size_, pixels); });
    ++number_;
  }

  Publisher publisher_;
  Size size_{};
  std::uint64_t number_ = 0;
  rclcpp::TimerBase::SharedPtr timer_;
};

/// Takes the lens's distortion out, and halves the picture.
class Rectify : public Stage {
 public:
  explicit Rectify(const rclcpp::NodeOptions &options) : Stage("rectify", options), publisher_(*this, "rectified", rclcpp::QoS(10)) {
    subscription_ = rgaps_ros::create_subscription<DeviceImage>(*this, "image", rclcpp::QoS(10), [this](const DeviceImage &image) {
      pass_on(publisher_, like(image.meta(), half(size_of(image)), "rgb8"),
              [&](std::uint8_t *pixels) { rectify(image.host().data(), image.meta().step(), size_of(image), pixels); });
    });
  }

 private:
  Publisher publisher_;
  Subscription::SharedPtr subscription_;
};

/// Finds edges.
class Edges : public Stage {
 public:
  explicit Edges(const rclcpp::NodeOptions &options) : Stage("edges", options), publisher_(*this, "edges", rclcpp::QoS(10)) {
    subscription_ = rgaps_ros::create_subscription<DeviceImage>(*this, "rectified", rclcpp::QoS(10), [this](const DeviceImage &image) {
      pass_on(publisher_, like(image.meta(), size_of(image), "mono8"),
              [&](std::uint8_t *pixels) { find_edges(image.host().data(), image.meta().step(), size_of(image), pixels); });
    });
  }

 private:
  Publisher publisher_;
  Subscription::SharedPtr subscription_;
};

/// Compares what every edge detector has found with what there is to find, and ends when each has shown `count` pictures (0: never). Parameters:
/// detectors, count, width and height of the camera. Topics: edges_0, edges_1 and so on.
class Viewer : public Stage {
 public:
  explicit Viewer(const rclcpp::NodeOptions &options) : Stage("viewer", options) {
    camera_.width = static_cast<std::uint32_t>(declare_parameter<std::int64_t>("width", 320));
    camera_.height = static_cast<std::uint32_t>(declare_parameter<std::int64_t>("height", 240));
    count_ = static_cast<std::size_t>(declare_parameter<std::int64_t>("count", 0));
    shown_.resize(static_cast<std::size_t>(declare_parameter<std::int64_t>("detectors", 8)));
    for (std::size_t detector = 0; detector < shown_.size(); ++detector) {
      subscriptions_.push_back(rgaps_ros::create_subscription<DeviceImage>(*this, "edges_" + std::to_string(detector), rclcpp::QoS(10),
                                                                           [this, detector](const DeviceImage &image) { show(detector, image); }));
    }
  }

 private:
  void show(std::size_t detector, const DeviceImage &image) {
    const auto pixels = image.host();
    const auto &wanted = edges_of(number_of(image.meta()));
    if (pixels.size() != wanted.size() || std::memcmp(pixels.data(), wanted.data(), wanted.size()) != 0) ++mismatched_;
    shown_[detector].insert(number_of(image.meta()));
    if (count_ == 0 || is_done_) return;
    for (const auto &shown : shown_) {
      if (shown.size() < count_) return;
    }
    finish();
  }

  void finish() {
    is_done_ = true;
    std::uint64_t frames = 0, lost = 0, refused = 0, copied = 0;
    for (std::size_t detector = 0; detector < shown_.size(); ++detector) {
      frames += shown_[detector].size();
      refused += subscriptions_[detector]->refused_count();
      if (const auto statistics = subscriptions_[detector]->statistics()) {
        lost += statistics.value().lost;
        copied += statistics.value().copied_bytes;
      }
    }
    RCLCPP_INFO(get_logger(), "%zu detectors, each %zu frames or more: mismatched %lu lost %lu refused %lu copied_bytes %lu", shown_.size(), count_,
                static_cast<unsigned long>(mismatched_), static_cast<unsigned long>(lost), static_cast<unsigned long>(refused),
                static_cast<unsigned long>(copied));
    rclcpp::shutdown();
  }

  /// The edges of a picture, as they must be. The last one is kept, since every detector shows it.
  const std::vector<std::uint8_t> &edges_of(std::uint64_t number) {
    if (!wanted_.empty() && wanted_number_ == number) return wanted_;
    const Size small = half(camera_);
    std::vector<std::uint8_t> drawn(std::size_t{camera_.width} * camera_.height * 3), rectified(std::size_t{small.width} * small.height * 3);
    draw(number, camera_, drawn.data());
    rectify(drawn.data(), std::size_t{camera_.width} * 3, camera_, rectified.data());
    wanted_.resize(std::size_t{small.width} * small.height);
    find_edges(rectified.data(), std::size_t{small.width} * 3, small, wanted_.data());
    wanted_number_ = number;
    return wanted_;
  }

  Size camera_{};
  std::size_t count_ = 0;
  bool is_done_ = false;
  std::uint64_t mismatched_ = 0;
  std::vector<std::set<std::uint64_t>> shown_;
  std::vector<Subscription::SharedPtr> subscriptions_;
  std::vector<std::uint8_t> wanted_;
  std::uint64_t wanted_number_ = 0;
};

}  // namespace rgaps_examples

RCLCPP_COMPONENTS_REGISTER_NODE(rgaps_examples::Camera)
RCLCPP_COMPONENTS_REGISTER_NODE(rgaps_examples::Rectify)
RCLCPP_COMPONENTS_REGISTER_NODE(rgaps_examples::Edges)
RCLCPP_COMPONENTS_REGISTER_NODE(rgaps_examples::Viewer)
