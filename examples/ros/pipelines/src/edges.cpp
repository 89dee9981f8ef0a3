// Finds the edges of the images of `image_rect` (mono8) with Sobel's operator, and publishes them on `edges` with the same stamp and frame_id.
//
// If the pools are in GPU memory, a kernel reads the image in place, ordered behind the work that writes it, and writes the edges into a loan. The
// CPU waits for nothing, and no pixel is copied to the host.

#include <string>

#include "gpu.hpp"
#include "picture.hpp"
#include "rclcpp_components/register_node_macro.hpp"

namespace rgaps_examples {

class Edges : public rclcpp::Node {
 public:
  explicit Edges(const rclcpp::NodeOptions &options)
      : Node("edges", options),
        gpu_(Gpu::of(*this)),
        kernel_(gpu_ ? gpu_->kernel("sobel") : nullptr),
        publisher_(*this, "edges", rclcpp::QoS(10)) {
    rgaps_ros::SubscriptionOptions<rgaps::DeviceImage> with;
    if (gpu_) with.stream = gpu_->stream();
    subscription_ = rgaps_ros::create_subscription<rgaps::DeviceImage>(
        *this, "image_rect", rclcpp::QoS(10), [this](const rgaps::DeviceImage &image) { on_image(image); }, with);
  }

 private:
  void on_image(const rgaps::DeviceImage &image) {
    try {
      const auto from = image.meta();
      if (from.encoding() != "mono8") throw std::invalid_argument("the encoding is " + std::string(from.encoding()) + ", not mono8");
      const auto meta = made_of(from, from.width(), from.height(), "mono8");
      auto loan = publisher_.loan(meta).value();
      if (gpu_) {
        gpu_->launch(kernel_, static_cast<int>(meta.width()), static_cast<int>(meta.height()), source_of(from, image.device_pointer()),
                     target_of(meta, loan.device_pointer().value()));
        publisher_.publish(std::move(loan), gpu_->stream()).value();
        return;
      }
      const auto source = source_of(from, image.host().data());
      const auto target = target_of(meta, loan.host().value().data());
      for (int y = 0; y < target.height; ++y) {
        for (int x = 0; x < target.width; ++x) sobel_pixel(source, target, x, y);
      }
      publisher_.publish(std::move(loan)).value();
    } catch (const std::exception &error) {
      RCLCPP_ERROR_THROTTLE(get_logger(), *get_clock(), 1000, "a picture is left out: %s", error.what());
    }
  }

  std::shared_ptr<Gpu> gpu_;
  Cuda::Handle kernel_;
  rgaps_ros::Publisher<rgaps::DeviceImage> publisher_;
  rgaps_ros::Subscription<rgaps::DeviceImage>::SharedPtr subscription_;
};

}  // namespace rgaps_examples

RCLCPP_COMPONENTS_REGISTER_NODE(rgaps_examples::Edges)
