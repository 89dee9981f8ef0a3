// Samples of rclcpp nodes for tests/ros/clients, which mixes them with nodes of other languages: publishes images whose content follows from their
// number, or checks them.
//
//   samples publish TOPIC COUNT SUBSCRIPTIONS CORE_SUBSCRIBERS
//   samples subscribe TOPIC COUNT
//   samples join TOPIC COUNT
//
// `join` begins with any picture.
// tests/ros/samples.py is the same for rclpy, crates/rgaps-ros/examples for Rust.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "rgaps_ros/rgaps_ros.hpp"

namespace {

// Messages that ROS keeps: more than are published at once.
constexpr std::size_t depth = 100;
constexpr std::uint32_t width = 320, height = 240;
constexpr std::chrono::seconds time_max(100);

std::uint8_t byte_of(std::uint32_t number, std::size_t place) { return static_cast<std::uint8_t>((place + 13 * number) % 251); }

rgaps::Image picture(std::uint32_t number, const rclcpp::Time &now) {
  auto meta = rgaps::Image::create(width, height, "rgb8").value();
  meta.set_header(std::chrono::nanoseconds(now.nanoseconds()), "camera").value();
  for (std::size_t place = 0; place < 4; ++place) meta.user()[place] = static_cast<std::uint8_t>(number >> 8 * place);
  return meta;
}

std::uint32_t number_of(const rgaps::DeviceImage &image) {
  auto meta = image.meta();
  std::uint32_t number = 0;
  for (std::size_t place = 0; place < 4; ++place) number |= std::uint32_t{meta.user()[place]} << 8 * place;
  return number;
}

bool is_right(const rgaps::DeviceImage &image, std::uint32_t expected) {
  const auto number = number_of(image);
  const auto bytes = image.host();
  bool right = number == expected && image.frame_id() == "camera" && image.stamp().count() > 0 && bytes.size() == width * height * 3;
  for (std::size_t place = 0; right && place < bytes.size(); ++place) right = bytes[place] == byte_of(number, place);
  return right;
}

int publish(const rclcpp::Node::SharedPtr &node, const std::string &topic, std::uint32_t count, std::size_t subscriptions, std::uint64_t core_subscribers) {
  rgaps_ros::Publisher<rgaps::DeviceImage> publisher(node, topic, rclcpp::QoS(depth));
  std::printf("ready %s\n", publisher.get_topic_name());
  const auto end = std::chrono::steady_clock::now() + time_max;
  while (publisher.get_subscription_count() < subscriptions || publisher.payload_subscriber_count() < core_subscribers) {
    if (std::chrono::steady_clock::now() > end) return 1;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (std::uint32_t number = 0; number < count; ++number) {
    auto loan = publisher.loan(picture(number, node->now())).value();
    const auto bytes = loan.host().value();
    for (std::size_t place = 0; place < bytes.size(); ++place) bytes[place] = byte_of(number, place);
    publisher.publish(std::move(loan)).value();
  }
  std::printf("published %u\n", count);
  // Subscribers read to the end; the caller says when to exit.
  std::getchar();
  return 0;
}

int subscribe(const rclcpp::Node::SharedPtr &node, const std::string &topic, std::uint32_t count, bool joins) {
  std::uint32_t samples = 0, mismatched = 0, in_place = 0, first = 0;
  const auto check = [&](const rgaps::DeviceImage &image) {
    if (joins && samples == 0) first = number_of(image);
    if (samples == count) return;
    mismatched += is_right(image, first + samples) ? 0 : 1;
    in_place += image.host().data() == image.device_pointer() ? 1 : 0;
    ++samples;
  };
  const auto subscription = rgaps_ros::create_subscription<rgaps::DeviceImage>(node, topic, rclcpp::QoS(depth), check);
  std::printf("ready %s\n", subscription->get_topic_name());
  rclcpp::executors::SingleThreadedExecutor executor;
  executor.add_node(node);
  const auto end = std::chrono::steady_clock::now() + time_max;
  while (samples < count && std::chrono::steady_clock::now() < end) executor.spin_once(std::chrono::milliseconds(100));
  const auto statistics = subscription->statistics().value();
  std::printf("samples %u mismatched %u in_place %u copied_bytes %llu lost %llu refused %llu\n", samples, mismatched, in_place,
              static_cast<unsigned long long>(statistics.copied_bytes), static_cast<unsigned long long>(statistics.lost),
              static_cast<unsigned long long>(subscription->refused_count()));
  return samples == count ? 0 : 1;
}

}  // namespace

int main(int argc, char **argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::vector<std::string> arguments = rclcpp::init_and_remove_ros_arguments(argc, argv);
  if (arguments.size() < 4) return 2;
  const auto node = std::make_shared<rclcpp::Node>("samples_rclcpp");
  const std::string &topic = arguments[2];
  const auto count = static_cast<std::uint32_t>(std::stoul(arguments[3]));
  int status = 2;
  if (arguments[1] == "publish" && arguments.size() == 6) {
    status = publish(node, topic, count, std::stoul(arguments[4]), std::stoul(arguments[5]));
  } else if (arguments[1] == "subscribe" || arguments[1] == "join") {
    status = subscribe(node, topic, count, arguments[1] == "join");
  }
  rclcpp::shutdown();
  return status;
}
