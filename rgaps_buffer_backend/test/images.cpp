// A test, not an example: publishes or takes plain sensor_msgs/Image, as any node of rosidl::Buffer does. Each picture has its number in its first bytes and in its frame_id,
// and the rest of it follows from the number.
//
//   images publish COUNT RATE REACHED CPU   waits until buffers reach REACHED subscriptions, and CPU others are there; ends with SIGINT
//   images relay COUNT REACHED              publishes what it takes from /pictures on /relayed, once buffers reach REACHED subscriptions there
//   images take TOPIC COUNT BACKENDS N      takes COUNT pictures with each of N subscriptions, and prints what came

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "rclcpp/rclcpp.hpp"
#include "rgaps_buffer_backend/buffer.hpp"
#include "sensor_msgs/msg/image.hpp"

namespace buffers = rgaps_buffer_backend;
using sensor_msgs::msg::Image;

namespace {

const std::uint32_t WIDTH = 640, HEIGHT = std::getenv("IMAGES_HEIGHT") ? std::stoul(std::getenv("IMAGES_HEIGHT")) : 480;
const std::size_t BYTES = std::size_t{3} * WIDTH * HEIGHT;

/// So deep that nothing is lost, however late a program runs; transient-local if a test says so.
rclcpp::QoS qos() {
  rclcpp::QoS qos(100);
  return std::getenv("IMAGES_LATCHED") ? qos.transient_local() : qos;
}

std::vector<std::uint8_t> picture(std::uint64_t number) {
  std::vector<std::uint8_t> bytes(BYTES, static_cast<std::uint8_t>(number * 37));
  std::memcpy(bytes.data(), &number, sizeof(number));
  return bytes;
}

/// Whether the CPU can read a pool.
bool is_on_host() {
  const char *device = std::getenv("RGAPS_DEVICE");
  return device != nullptr && std::string(device) == "host";
}

void print_statistics(const char *role) {
  const auto found = buffers::statistics();
  std::printf("%s allocated %lu published %lu as_bytes %lu copied %lu received %lu refused %lu used_bytes %lu\n", role, found.allocated, found.published,
              found.as_bytes, found.copied, found.received, found.refused, found.used_bytes);
  std::fflush(stdout);
}

rclcpp::SubscriptionOptions accepting(const std::string &backends) {
  rclcpp::SubscriptionOptions options;
  options.acceptable_buffer_backends = backends;
  return options;
}

void wait_for_the_end() {
  while (rclcpp::ok()) { std::this_thread::sleep_for(std::chrono::milliseconds(10)); }
}

template <class Condition>
bool spin_until(const rclcpp::Node::SharedPtr &node, Condition is_met) {
  rclcpp::executors::SingleThreadedExecutor executor;
  executor.add_node(node);
  while (rclcpp::ok() && !is_met()) { executor.spin_once(std::chrono::milliseconds(5)); }
  return rclcpp::ok();
}

int publish(std::uint64_t count, double rate, std::size_t reached, std::size_t others) {
  auto node = std::make_shared<rclcpp::Node>("camera");
  auto publisher = node->create_publisher<Image>("/pictures", qos());
  // Ordinary bytes, to compare what the middleware does with them.
  const bool is_plain = std::getenv("IMAGES_PLAIN") != nullptr;
  if (!is_plain) { auto first = buffers::allocate_buffer(1); }  // so that the pool is there before subscriptions are
  const bool ready = spin_until(node, [&] {
    return buffers::statistics().reached == reached && publisher->get_subscription_count() == reached + others;
  });
  if (!ready) { return 1; }
  std::printf("is reached\n");
  std::fflush(stdout);
  rclcpp::WallRate pace(rate);
  for (std::uint64_t number = 1; number <= count && rclcpp::ok(); ++number) {
    auto message = std::make_unique<Image>();
    message->header.frame_id = std::to_string(number);
    message->width = WIDTH;
    message->height = HEIGHT;
    message->step = WIDTH * 3;
    message->encoding = "rgb8";
    const auto bytes = picture(number);
    if (!is_plain) { message->data = buffers::allocate_buffer(BYTES); }
    if (is_plain) {
      message->data = bytes;
    } else if (is_on_host()) {
      auto pixels = buffers::from_output_buffer(message->data, nullptr);
      std::memcpy(pixels.get_ptr(), bytes.data(), bytes.size());
    } else {
      buffers::copy_from_host(message->data, bytes.data(), bytes.size());
    }
    publisher->publish(std::move(message));
    if (count >= 10 && number % (count / 10) == 0) {
      std::printf("tenths published: %lu\n", number / (count / 10));
      std::fflush(stdout);
    }
    pace.sleep();
  }
  print_statistics("publisher");
  spin_until(node, [] { return buffers::statistics().used_bytes == 0; });
  std::printf("all is released\n");
  std::fflush(stdout);
  wait_for_the_end();
  return 0;
}

int relay(std::uint64_t count, std::size_t reached) {
  auto node = std::make_shared<rclcpp::Node>("relay");
  auto publisher = node->create_publisher<Image>("/relayed", qos());
  { auto first = buffers::allocate_buffer(1); }
  std::printf("waits\n");
  std::fflush(stdout);
  if (!spin_until(node, [&] { return buffers::statistics().reached == reached; })) { return 1; }
  std::uint64_t relayed = 0;
  auto subscription = node->create_subscription<Image>(
      "/pictures", qos(), [&](Image::UniquePtr message) { publisher->publish(std::move(message)); ++relayed; }, accepting("rgaps"));
  spin_until(node, [&] { return relayed == count; });
  print_statistics("relay");
  wait_for_the_end();
  return 0;
}

/// What a subscription has got.
struct Got {
  std::uint64_t taken = 0, in_pool = 0, lost = 0, mismatched = 0, failed = 0, last = 0;
  buffers::Device device{};

  void add(const Image &message) {
    const std::uint64_t number = std::stoull(message.header.frame_id);
    lost += number - last - 1;
    last = number;
    ++taken;
    const auto expected = picture(number);
    try {
      if (message.data.get_backend_type() == "rgaps") {
        ++in_pool;
        const auto pixels = buffers::from_input_buffer(message.data, nullptr);
        device = pixels.get_device();
        const bool matches = is_on_host() ? std::memcmp(pixels.get_ptr(), expected.data(), BYTES) == 0 : message.data.to_vector() == expected;
        mismatched += message.data.size() != BYTES || !matches;
      } else {
        mismatched += message.data.to_vector() != expected;
      }
    } catch (const buffers::Error &error) {
      ++failed;
      std::fprintf(stderr, "picture %lu: %s\n", number, error.what());
    }
  }
};

int take(const std::string &topic, std::uint64_t count, const std::string &backends, std::size_t subscriptions) {
  auto node = std::make_shared<rclcpp::Node>("viewer_" + std::to_string(getpid()));
  std::vector<Got> all(subscriptions);
  std::vector<rclcpp::SubscriptionBase::SharedPtr> made;
  for (auto &got : all) {
    made.push_back(node->create_subscription<Image>(topic, qos(), [&got](const Image &message) { got.add(message); }, accepting(backends)));
  }
  std::printf("waits\n");
  std::fflush(stdout);
  // A test lets it take when there is this file.
  const char *gate = std::getenv("IMAGES_GATE");
  while (gate != nullptr && !std::filesystem::exists(gate)) { std::this_thread::sleep_for(std::chrono::milliseconds(10)); }
  spin_until(node, [&] { return std::all_of(all.begin(), all.end(), [&](const Got &got) { return got.last >= count; }); });
  print_statistics("subscriber");
  std::printf("read on device %d:%d\n", all[0].device.type, all[0].device.id);
  Got sum;
  for (const auto &got : all) {
    sum.taken += got.taken;
    sum.in_pool += got.in_pool;
    sum.lost += got.lost;
    sum.mismatched += got.mismatched;
    sum.failed += got.failed;
  }
  std::printf("taken %lu in_pool %lu lost %lu mismatched %lu failed %lu\n", sum.taken, sum.in_pool, sum.lost, sum.mismatched, sum.failed);
  return 0;
}

}  // namespace

int main(int argc, char **argv) {
  rclcpp::init(argc, argv);
  const auto words = rclcpp::remove_ros_arguments(argc, argv);
  const std::string role = words.size() > 1 ? words[1] : "";
  const auto number = [&](std::size_t at) { return std::stoull(words.at(at)); };
  int status = 2;
  if (role == "publish") { status = publish(number(2), std::stod(words.at(3)), number(4), number(5)); }
  if (role == "relay") { status = relay(number(2), number(3)); }
  if (role == "take") { status = take(words.at(2), number(3), words.at(4), number(5)); }
  rclcpp::shutdown();
  return status;
}
