// Runs one side of a stream, for tests that need several processes. Parameters select the side:
//
//   role pub:  publishes `count` messages once there are `subscriptions` ROS subscriptions and `readers` core subscribers, and stays until the
//              subscriptions are gone.
//   role sub:  makes `subscriptions` subscriptions, compares every byte, and ends when each has had `count` different messages and `refusals`
//              descriptors were refused. Messages must arrive in order from the first on, unless `in_order` is false.
//
// A message's number is in the seconds of its stamp, which sensor_msgs carry too.
// The last line of output is a summary. The exit status is 1 if a check failed or the time was up.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "rgaps_ros/rgaps_ros.hpp"

namespace {

constexpr std::chrono::seconds time_max(60);

/// The byte at `place` of message `number`.
std::uint8_t byte_of(std::uint64_t number, std::size_t place) { return static_cast<std::uint8_t>(number * 31 + place * 7 + place / 251); }

template <class Meta>
Meta meta_of(std::uint32_t width, std::uint32_t height);
template <>
rgaps::Image meta_of(std::uint32_t width, std::uint32_t height) {
  return rgaps::Image::create(width, height, "rgb8").value();
}
template <>
rgaps::PointCloud meta_of(std::uint32_t width, std::uint32_t height) {
  auto cloud = rgaps::PointCloud::create(width, height, 16).value();
  for (std::uint32_t axis = 0; axis < 3; ++axis) cloud.add_field(std::string(1, "xyz"[axis]), 4 * axis, RGAPS_FLOAT32).value();
  return cloud;
}
template <>
rgaps::Tensor meta_of(std::uint32_t width, std::uint32_t height) {
  return rgaps::Tensor::create(RGAPS_FLOAT, 32, {height, width}).value();
}

class Streamer : public rclcpp::Node {
 public:
  Streamer() : Node("streamer") {
    role = declare_parameter<std::string>("role", "sub");
    kind = declare_parameter<std::string>("kind", "image");
    count = static_cast<std::uint64_t>(declare_parameter<std::int64_t>("count", 30));
    subscriptions = static_cast<std::size_t>(declare_parameter<std::int64_t>("subscriptions", 1));
    readers = static_cast<std::uint64_t>(declare_parameter<std::int64_t>("readers", 1));
    in_order = declare_parameter<bool>("in_order", true);
    refusals = static_cast<std::uint64_t>(declare_parameter<std::int64_t>("refusals", 0));
    width = static_cast<std::uint32_t>(declare_parameter<std::int64_t>("width", 320));
    height = static_cast<std::uint32_t>(declare_parameter<std::int64_t>("height", 240));
    period = std::chrono::milliseconds(declare_parameter<std::int64_t>("period_ms", 10));
  }

  /// Spins until the condition holds, or the time is up.
  bool spin_until(const std::function<bool()> &is_so) {
    rclcpp::executors::SingleThreadedExecutor executor;
    executor.add_node(shared_from_this());
    const auto end = std::chrono::steady_clock::now() + time_max;
    while (rclcpp::ok() && !is_so() && std::chrono::steady_clock::now() < end) executor.spin_once(std::chrono::milliseconds(100));
    return is_so();
  }

  rclcpp::QoS qos() const { return rclcpp::QoS(50); }

  template <class DeviceT>
  bool publish() {
    using Meta = typename DeviceT::Meta;
    rgaps_ros::Publisher<DeviceT> publisher(*this, "samples", qos());
    const bool there = spin_until([&] { return publisher.get_subscription_count() >= subscriptions && publisher.payload_subscriber_count() >= readers; });
    if (!there) {
      std::printf("only %zu subscriptions and %lu core subscribers matched\n", publisher.get_subscription_count(),
                  static_cast<unsigned long>(publisher.payload_subscriber_count()));
      return false;
    }
    std::uint64_t published = 0;
    std::string failure;
    auto timer = create_wall_timer(period, [&] {
      if (published == count || !failure.empty()) return;
      auto loan = publisher.loan(meta_of<Meta>(width, height));
      if (!loan) return void(failure = loan.error().text);
      const auto bytes = loan->host().value();
      for (std::size_t place = 0; place < bytes.size(); ++place) bytes[place] = byte_of(published, place);
      loan->set_header(rclcpp::Time(static_cast<std::int32_t>(published), 0), "front").value();
      const auto handle = publisher.publish(std::move(*loan));
      if (!handle) return void(failure = handle.error().text);
      ++published;
    });
    spin_until([&] { return !failure.empty() || (published == count && publisher.get_subscription_count() == 0); });
    std::printf("published %lu %s\n", static_cast<unsigned long>(published), failure.c_str());
    return published == count;
  }

  template <class DeviceT>
  bool subscribe() {
    struct Seen {
      std::uint64_t next = 0;
      std::set<std::uint64_t> numbers;
      std::uint64_t mismatched = 0;
    };
    std::vector<Seen> seen(subscriptions);
    std::vector<typename rgaps_ros::Subscription<DeviceT>::SharedPtr> all;
    rgaps_ros::SubscriptionOptions<DeviceT> options;
    options.refused = [](const DeviceT &device) { std::printf("refused: %s\n", device.error().c_str()); };
    for (auto &mine : seen) {
      auto compare = [this, &mine](const DeviceT &device) {
        const auto number = static_cast<std::uint64_t>(device.meta().c().as.header.sec);
        const auto bytes = device.host();
        bool same = (!in_order || number == mine.next) && device.frame_id() == "front";
        same = same && bytes.size() == device.meta().payload_bytes() && bytes.size() == meta_of<typename DeviceT::Meta>(width, height).payload_bytes();
        for (std::size_t place = 0; same && place < bytes.size(); ++place) same = bytes[place] == byte_of(number, place);
        mine.next = number + 1;
        mine.numbers.insert(number);
        mine.mismatched += same ? 0 : 1;
      };
      all.push_back(rgaps_ros::create_subscription<DeviceT>(*this, "samples", qos(), compare, options));
    }
    const auto refused = [&] {
      std::uint64_t refused = 0;
      for (const auto &one : all) refused += one->refused_count();
      return refused;
    };
    const bool done = spin_until([&] {
      for (const auto &mine : seen) {
        if (mine.numbers.size() < count) return false;
      }
      return refused() >= refusals;
    });
    std::uint64_t samples = 0, mismatched = 0;
    rgaps_subscriber_statistics_t statistics{};
    for (std::size_t place = 0; place < all.size(); ++place) {
      samples += seen[place].numbers.size();
      mismatched += seen[place].mismatched;
      const auto of_one = all[place]->statistics().value();
      statistics.lost += of_one.lost;
      statistics.copied_bytes += of_one.copied_bytes;
    }
    std::printf("samples %lu mismatched %lu lost %lu refused %lu copied_bytes %lu\n", static_cast<unsigned long>(samples),
                static_cast<unsigned long>(mismatched), static_cast<unsigned long>(statistics.lost),
                static_cast<unsigned long>(refused()), static_cast<unsigned long>(statistics.copied_bytes));
    return done && mismatched == 0 && statistics.lost == 0 && statistics.copied_bytes == 0 && (refusals > 0 || refused() == 0);
  }

  template <class DeviceT>
  bool play() {
    return role == "pub" ? publish<DeviceT>() : subscribe<DeviceT>();
  }

  bool play() {
    if (kind == "cloud") return play<rgaps::DevicePointCloud>();
    if (kind == "tensor") return play<rgaps::DeviceTensor>();
    return play<rgaps::DeviceImage>();
  }

 private:
  std::string role, kind;
  std::uint64_t count = 0, readers = 0, refusals = 0;
  std::size_t subscriptions = 0;
  bool in_order = true;
  std::uint32_t width = 0, height = 0;
  std::chrono::milliseconds period{};
};

}  // namespace

int main(int argc, char **argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  rclcpp::init(argc, argv);
  const bool well = std::make_shared<Streamer>()->play();
  rclcpp::shutdown();
  return well ? 0 : 1;
}
