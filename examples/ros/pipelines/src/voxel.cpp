// A filter of point clouds: keeps the first point in each cube of a grid, from `points` to `points_filtered`. The algorithm is that of
// examples/cloud/voxel.c. It runs on the CPU: if the pools are in GPU memory, it reads a copy of the cloud, which is counted.
//
//   cube    edge length in metres

#include <array>
#include <cmath>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "rclcpp_components/register_node_macro.hpp"
#include "rgaps_ros/rgaps_ros.hpp"

namespace rgaps_examples {

class Voxel : public rclcpp::Node {
 public:
  explicit Voxel(const rclcpp::NodeOptions &options)
      : Node("voxel", options), cube_(declare_parameter<double>("cube", 0.1)), publisher_(*this, "points_filtered", rclcpp::QoS(10)) {
    if (!(cube_ > 0)) throw std::invalid_argument("cube is " + std::to_string(cube_) + "; it must be a length in metres, above 0");
    subscription_ = rgaps_ros::create_subscription<rgaps::DevicePointCloud>(
        *this, "points", rclcpp::QoS(10), [this](const rgaps::DevicePointCloud &cloud) { on_cloud(cloud); });
  }

 private:
  void on_cloud(const rgaps::DevicePointCloud &cloud) {
    try {
      const auto meta = cloud.meta();
      const auto payload = cloud.host();
      const auto kept = filter(meta, payload);
      auto loan = publisher_.loan(with_points(meta, static_cast<std::uint32_t>(kept.size()))).value();
      auto *to = loan.host().value().data();
      for (const auto point : kept) {
        std::memcpy(to, payload.data() + point, meta.point_step());
        to += meta.point_step();
      }
      publisher_.publish(std::move(loan)).value();
    } catch (const std::exception &error) {
      RCLCPP_ERROR_THROTTLE(get_logger(), *get_clock(), 1000, "a cloud is left out: %s", error.what());
    }
  }

  /// The offset of the first point in each cube, in the cloud's order. Points with NaN are dropped.
  std::vector<std::size_t> filter(const rgaps::PointCloud &meta, rgaps::Span<const std::uint8_t> payload) const {
    std::array<std::size_t, 3> at{};
    for (std::size_t axis = 0; axis < 3; ++axis) {
      const auto field = meta.field(std::string(1, "xyz"[axis])).value();
      if (field.datatype != RGAPS_FLOAT32) throw std::invalid_argument("a coordinate is no float32");
      at[axis] = field.offset;
    }
    std::set<std::array<std::int64_t, 3>> cubes;
    std::vector<std::size_t> kept;
    for (std::uint32_t row = 0; row < meta.height(); ++row) {
      for (std::uint32_t column = 0; column < meta.width(); ++column) {
        const auto point = std::size_t{row} * meta.row_step() + std::size_t{column} * meta.point_step();
        std::array<std::int64_t, 3> cube{};
        bool is_somewhere = true;
        for (std::size_t axis = 0; axis < 3; ++axis) {
          float metres = 0;
          std::memcpy(&metres, payload.data() + point + at[axis], sizeof metres);
          is_somewhere = is_somewhere && std::isfinite(metres) && std::fabs(metres / cube_) < 1e15;
          cube[axis] = is_somewhere ? static_cast<std::int64_t>(std::floor(metres / cube_)) : 0;
        }
        if (is_somewhere && cubes.insert(cube).second) kept.push_back(point);
      }
    }
    return kept;
  }

  /// The metadata of the cloud with this many points, in one row.
  static rgaps::PointCloud with_points(const rgaps::PointCloud &meta, std::uint32_t points) {
    auto with = meta;
    std::memset(with.user().data(), 0, with.user().size());
    with.c().as.point_cloud.width = points;
    with.c().as.point_cloud.height = 1;
    with.c().as.point_cloud.row_step = points * meta.point_step();
    return with;
  }

  const double cube_;
  rgaps_ros::Publisher<rgaps::DevicePointCloud> publisher_;
  rgaps_ros::Subscription<rgaps::DevicePointCloud>::SharedPtr subscription_;
};

}  // namespace rgaps_examples

RCLCPP_COMPONENTS_REGISTER_NODE(rgaps_examples::Voxel)
