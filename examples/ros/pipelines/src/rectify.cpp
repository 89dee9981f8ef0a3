// Removes the distortion of the images of `image_raw`, resizes them, and publishes them on `image_rect`.
//
//   width, height    of the output
//   encoding         mono8 or rgb8
//   camera_matrix    fx 0 cx, 0 fy cy, 0 0 1 in source pixels; empty: the focal length is the image's width, the centre is in its middle
//   distortion       plumb_bob: k1 k2 p1 p2 k3; zeros only resize
//
// The source position of each pixel is computed once for each source size. If the pools are in GPU memory, a kernel does the rest, ordered behind the
// work that writes the image. The CPU waits for nothing, and no pixel is copied to the host.

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gpu.hpp"
#include "picture.hpp"
#include "rclcpp_components/register_node_macro.hpp"

namespace rgaps_examples {

class Rectify : public rclcpp::Node {
 public:
  explicit Rectify(const rclcpp::NodeOptions &options)
      : Node("rectify", options),
        width_(size("width", 320)),
        height_(size("height", 240)),
        encoding_(declare_parameter<std::string>("encoding", "mono8")),
        camera_matrix_(declare_parameter<std::vector<double>>("camera_matrix", std::vector<double>())),
        distortion_(declare_parameter<std::vector<double>>("distortion", {0.0, 0.0, 0.0, 0.0, 0.0})),
        gpu_(Gpu::of(*this)),
        kernel_(gpu_ ? gpu_->kernel("rectify") : nullptr),
        publisher_(*this, "image_rect", rclcpp::QoS(10)) {
    if (encoding_ != "mono8" && encoding_ != "rgb8") throw std::invalid_argument("encoding is " + encoding_ + "; it must be mono8 or rgb8");
    if (distortion_.size() != 5) throw std::invalid_argument("distortion must have the five coefficients k1 k2 p1 p2 k3 of plumb_bob");
    if (!camera_matrix_.empty() && camera_matrix_.size() != 9) throw std::invalid_argument("camera_matrix must have nine elements, or none");
    rgaps_ros::SubscriptionOptions<rgaps::DeviceImage> with;
    if (gpu_) with.stream = gpu_->stream();
    subscription_ = rgaps_ros::create_subscription<rgaps::DeviceImage>(
        *this, "image_raw", rclcpp::QoS(10), [this](const rgaps::DeviceImage &image) { on_image(image); }, with);
  }

 private:
  void on_image(const rgaps::DeviceImage &image) {
    try {
      const auto from = image.meta();
      const auto meta = made_of(from, width_, height_, encoding_);
      auto loan = publisher_.loan(meta).value();
      const auto &map = map_of(from);
      if (gpu_) {
        gpu_->launch(kernel_, static_cast<int>(width_), static_cast<int>(height_), source_of(from, image.device_pointer()), map.on_gpu,
                     target_of(meta, loan.device_pointer().value()));
        publisher_.publish(std::move(loan), gpu_->stream()).value();
        return;
      }
      const auto source = source_of(from, image.host().data());
      const auto target = target_of(meta, loan.host().value().data());
      for (int y = 0; y < target.height; ++y) {
        for (int x = 0; x < target.width; ++x) rectify_pixel(source, map.places[static_cast<std::size_t>(y * target.width + x)], target, x, y);
      }
      publisher_.publish(std::move(loan)).value();
    } catch (const std::exception &error) {
      RCLCPP_ERROR_THROTTLE(get_logger(), *get_clock(), 1000, "a picture is left out: %s", error.what());
    }
  }

  /// The source positions of all pixels, and their copy in GPU memory.
  struct Map {
    std::vector<Place> places;
    Cuda::Pointer on_gpu = 0;
  };

  /// The map for images of this size. A camera has one size; a few maps are kept.
  const Map &map_of(const rgaps::Image &source) {
    const auto size = std::make_pair(static_cast<int>(source.width()), static_cast<int>(source.height()));
    if (const auto known = maps_.find(size); known != maps_.end()) return known->second;
    if (maps_.size() == maps_max) {
      maps_.clear();
      if (gpu_) gpu_->drop_tables();
    }
    Map map{make(size.first, size.second), 0};
    if (gpu_) map.on_gpu = gpu_->put(map.places.data(), map.places.size() * sizeof(Place));
    return maps_.emplace(size, std::move(map)).first->second;
  }

  std::vector<Place> make(int source_width, int source_height) const {
    std::array<double, 9> matrix = {1.0 * source_width, 0, (source_width - 1) / 2.0, 0, 1.0 * source_width, (source_height - 1) / 2.0, 0, 0, 1};
    if (!camera_matrix_.empty()) std::copy(camera_matrix_.begin(), camera_matrix_.end(), matrix.begin());
    const double fx = matrix[0], cx = matrix[2], fy = matrix[4], cy = matrix[5];
    const double k1 = distortion_[0], k2 = distortion_[1], p1 = distortion_[2], p2 = distortion_[3], k3 = distortion_[4];
    std::vector<Place> map;
    map.reserve(width_ * height_);
    for (std::uint32_t row = 0; row < height_; ++row) {
      for (std::uint32_t column = 0; column < width_; ++column) {
        const double x = ((column + 0.5) * source_width / width_ - 0.5 - cx) / fx;
        const double y = ((row + 0.5) * source_height / height_ - 0.5 - cy) / fy;
        const double square = x * x + y * y;
        const double radial = 1 + square * (k1 + square * (k2 + square * k3));
        const double u = fx * (x * radial + 2 * p1 * x * y + p2 * (square + 2 * x * x)) + cx;
        const double v = fy * (y * radial + p1 * (square + 2 * y * y) + 2 * p2 * x * y) + cy;
        map.push_back({within(u, source_width), within(v, source_height)});
      }
    }
    return map;
  }

  /// In 1/256 pixels; positions outside the image are clamped to its border.
  static int within(double place, int pixels) {
    const double last = (pixels - 1) * 256.0, at = std::floor(place * 256 + 0.5);
    return at > 0 ? static_cast<int>(at < last ? at : last) : 0;
  }

  std::uint32_t size(const std::string &name, std::int64_t pixels) {
    const auto given = declare_parameter<std::int64_t>(name, pixels);
    if (given < 1 || given > 16384) throw std::invalid_argument(name + " is " + std::to_string(given) + "; it must be from 1 to 16384 pixels");
    return static_cast<std::uint32_t>(given);
  }

  /// Number of sizes whose maps are kept.
  static constexpr std::size_t maps_max = 8;

  const std::uint32_t width_, height_;
  const std::string encoding_;
  const std::vector<double> camera_matrix_, distortion_;
  std::map<std::pair<int, int>, Map> maps_;
  std::shared_ptr<Gpu> gpu_;
  Cuda::Handle kernel_;
  rgaps_ros::Publisher<rgaps::DeviceImage> publisher_;
  rgaps_ros::Subscription<rgaps::DeviceImage>::SharedPtr subscription_;
};

}  // namespace rgaps_examples

RCLCPP_COMPONENTS_REGISTER_NODE(rgaps_examples::Rectify)
