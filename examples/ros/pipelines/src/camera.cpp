// A camera that publishes the PNG files of a folder in turn, as rgb8 on `image_raw`.
//
// They are decoded once. A frame costs one copy into the publisher's pool, as in a camera driver; if the pools are in GPU memory, the copy goes
// there.
//
//   folder    folder of the images          rate    images a second          frame_id    coordinate frame

#include <png.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "rclcpp_components/register_node_macro.hpp"
#include "rgaps_ros/rgaps_ros.hpp"

namespace rgaps_examples {

namespace {

struct Picture {
  std::uint32_t width, height;
  std::vector<std::uint8_t> rgb;
};

Picture decode(const std::filesystem::path &path) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  const auto check = [&](int done) {
    if (done && !PNG_IMAGE_FAILED(image)) return;
    const std::string why = image.message;
    png_image_free(&image);
    throw std::runtime_error(path.string() + ": " + why);
  };
  check(png_image_begin_read_from_file(&image, path.c_str()));
  image.format = PNG_FORMAT_RGB;
  Picture picture{image.width, image.height, std::vector<std::uint8_t>(PNG_IMAGE_SIZE(image))};
  check(png_image_finish_read(&image, nullptr, picture.rgb.data(), 0, nullptr));
  return picture;
}

/// The images of a folder, sorted by name; throws if there are none.
std::vector<Picture> pictures_of(const std::string &folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto &entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".png") paths.push_back(entry.path());
  }
  if (paths.empty()) throw std::runtime_error(folder + " has no pictures (*.png)");
  std::sort(paths.begin(), paths.end());
  std::vector<Picture> pictures;
  for (const auto &path : paths) pictures.push_back(decode(path));
  return pictures;
}

}  // namespace

class Camera : public rclcpp::Node {
 public:
  explicit Camera(const rclcpp::NodeOptions &options)
      : Node("camera", options),
        pictures_(pictures_of(declare_parameter<std::string>("folder"))),
        frame_id_(declare_parameter<std::string>("frame_id", "camera")),
        publisher_(*this, "image_raw", rclcpp::QoS(10)) {
    const double rate = declare_parameter<double>("rate", 30.0);
    if (!(rate > 0)) throw std::invalid_argument("rate is " + std::to_string(rate) + "; it must be a number of pictures a second, above 0");
    timer_ = create_wall_timer(std::chrono::duration<double>(1 / rate), [this] { publish(); });
    RCLCPP_INFO(get_logger(), "%zu pictures, %g a second", pictures_.size(), rate);
  }

 private:
  void publish() {
    const auto &picture = pictures_[next_];
    auto loan = publisher_.loan(rgaps::Image::create(picture.width, picture.height, "rgb8"));
    if (!loan) {
      RCLCPP_WARN_THROTTLE(get_logger(), *get_clock(), 1000, "a picture is left out: %s", loan.error().text.c_str());
      return;
    }
    try {
      loan->set_header(now(), frame_id_).value();
      std::memcpy(loan->host().value().data(), picture.rgb.data(), picture.rgb.size());
      publisher_.publish(std::move(*loan)).value();
      next_ = (next_ + 1) % pictures_.size();
    } catch (const std::exception &error) {
      RCLCPP_ERROR_THROTTLE(get_logger(), *get_clock(), 1000, "a picture could not be published: %s", error.what());
    }
  }

  std::vector<Picture> pictures_;
  std::string frame_id_;
  std::size_t next_ = 0;
  rgaps_ros::Publisher<rgaps::DeviceImage> publisher_;
  rclcpp::TimerBase::SharedPtr timer_;
};

}  // namespace rgaps_examples

RCLCPP_COMPONENTS_REGISTER_NODE(rgaps_examples::Camera)
