// Tests of the headers that need no ROS but the messages: descriptors byte for byte, invalid descriptors, and leases and payload subscriptions with a
// manager. One program; tests/msgs/check runs it with Debian's rosidl or a sourced ROS 2.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "rgaps_ros/device.hpp"
#include "rgaps_ros/payload_subscriptions.hpp"
#include "rgaps_ros/payloads.hpp"

#define EXPECT(condition)                                                            \
  do {                                                                               \
    if (!(condition)) {                                                              \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, __func__, #condition); \
      std::exit(1);                                                                  \
    }                                                                                \
  } while (0)

namespace {

using rgaps_ros::check;
using rgaps_ros::copy;
using rgaps_ros::Described;
using rgaps_ros::write;

constexpr std::chrono::seconds time_max(10);

rgaps_message_handle_t handle_of(rgaps_kind_t kind, std::uint64_t bytes) {
  rgaps_message_handle_t handle{};
  for (std::uint8_t place = 0; place < 16; ++place) {
    handle.source_host[place] = place;
    handle.topic_id[place] = static_cast<std::uint8_t>(100 + place);
  }
  handle.host_epoch = 1;
  handle.publisher = 2;
  handle.sequence = 3;
  handle.position = 4;
  handle.payload_bytes = bytes;
  handle.entry = 5;
  handle.generation = 6;
  handle.layout_version = 1;
  handle.kind = kind;
  return handle;
}

/// Compares handle and header field by field.
template <class Descriptor>
void expect_common(const Descriptor &descriptor, rgaps_kind_t kind, std::uint64_t bytes) {
  EXPECT(descriptor.handle.source_host[15] == 15 && descriptor.handle.topic_id[0] == 100);
  EXPECT(descriptor.handle.host_epoch == 1 && descriptor.handle.publisher == 2 && descriptor.handle.sequence == 3);
  EXPECT(descriptor.handle.position == 4 && descriptor.handle.payload_bytes == bytes);
  EXPECT(descriptor.handle.entry == 5 && descriptor.handle.generation == 6);
  EXPECT(descriptor.handle.layout_version == descriptor.handle.LAYOUT_VERSION && descriptor.handle.kind == kind);
  EXPECT(descriptor.stamp_sec == 12 && descriptor.stamp_nanosec == 34);
  EXPECT(std::memcmp(descriptor.frame_id.data(), "front\0", 6) == 0 && descriptor.frame_id[63] == 0);
  EXPECT(descriptor.user[31] == 31);
}

template <class Meta>
void fill_header(Meta &meta) {
  meta.set_header(std::chrono::seconds(12) + std::chrono::nanoseconds(34), "front").value();
  for (std::uint8_t place = 0; place < 32; ++place) meta.user()[place] = place;
}

/// Writes a descriptor and reads it back: the same bytes.
template <class Meta>
void expect_round_trip(const rgaps_ros::DescriptorOf<Meta> &descriptor) {
  const auto described = copy<Meta>(descriptor);
  EXPECT(check(described));
  rgaps_ros::DescriptorOf<Meta> again;
  std::memset(static_cast<void *>(&again), 0xff, sizeof again);
  write(described.handle, described.meta, again);
  EXPECT(std::memcmp(&again, &descriptor, sizeof again) == 0);
}

void an_image_is_its_descriptor_byte_for_byte() {
  auto image = rgaps::Image::create(640, 480, "rgb8").value();
  fill_header(image);
  image.c().as.image.step = 2048;
  image.c().as.image.is_bigendian = 1;
  rgaps_msgs::msg::GpuImage descriptor;
  write(handle_of(RGAPS_KIND_IMAGE, 2048 * 480), image, descriptor);
  expect_common(descriptor, RGAPS_KIND_IMAGE, 2048 * 480);
  EXPECT(descriptor.width == 640 && descriptor.height == 480 && descriptor.step == 2048);
  EXPECT(descriptor.encoding == descriptor.ENCODING_RGB8 && descriptor.is_bigendian == 1);
  for (const auto byte : descriptor.reserved) EXPECT(byte == 0);
  expect_round_trip<rgaps::Image>(descriptor);
}

void a_cloud_is_its_descriptor_byte_for_byte() {
  auto cloud = rgaps::PointCloud::create(100, 2, 16).value();
  cloud.add_field("x", 0, RGAPS_FLOAT32).value();
  cloud.add_field("intensity", 12, RGAPS_UINT16).value();
  fill_header(cloud);
  rgaps_msgs::msg::GpuPointCloud descriptor;
  write(handle_of(RGAPS_KIND_POINT_CLOUD, 3200), cloud, descriptor);
  expect_common(descriptor, RGAPS_KIND_POINT_CLOUD, 3200);
  EXPECT(descriptor.width == 100 && descriptor.height == 2 && descriptor.point_step == 16 && descriptor.row_step == 1600);
  EXPECT(descriptor.field_count == 2 && descriptor.is_bigendian == 0 && descriptor.is_dense == 1);
  EXPECT(std::memcmp(descriptor.fields[1].name.data(), "intensity\0", 10) == 0);
  EXPECT(descriptor.fields[1].offset == 12 && descriptor.fields[1].datatype == descriptor.fields[1].UINT16 && descriptor.fields[1].count == 1);
  EXPECT(descriptor.fields[2].name[0] == 0);
  expect_round_trip<rgaps::PointCloud>(descriptor);
}

void a_tensor_is_its_descriptor_byte_for_byte() {
  auto tensor = rgaps::Tensor::create(RGAPS_FLOAT, 32, {2, 3, 4}).value();
  fill_header(tensor);
  rgaps_msgs::msg::GpuTensor descriptor;
  write(handle_of(RGAPS_KIND_TENSOR, 96), tensor, descriptor);
  expect_common(descriptor, RGAPS_KIND_TENSOR, 96);
  EXPECT(descriptor.ndim == 3 && descriptor.dtype_code == descriptor.FLOAT && descriptor.dtype_bits == 32 && descriptor.dtype_lanes == 1);
  EXPECT(descriptor.shape[0] == 2 && descriptor.shape[2] == 4 && descriptor.shape[3] == 0);
  EXPECT(descriptor.strides[0] == 12 && descriptor.strides[2] == 1 && descriptor.byte_offset == 0);
  expect_round_trip<rgaps::Tensor>(descriptor);
}

void a_descriptor_that_contradicts_itself_is_refused_with_the_numbers() {
  const auto image = rgaps::Image::create(64, 48, "mono8").value();
  const auto why = [](const Described<rgaps::Image> &described) {
    const auto right = check(described);
    return right ? std::string() : right.error().text;
  };
  Described<rgaps::Image> good{handle_of(RGAPS_KIND_IMAGE, 3072), image};
  EXPECT(why(good).empty());
  auto bad = good;
  bad.handle.layout_version = 2;
  EXPECT(why(bad) == "a rgaps_msgs/msg/GpuImage has layout version 2, but this program uses 1; was it filled by RGAPS?");
  bad = good;
  bad.handle.kind = RGAPS_KIND_TENSOR;
  EXPECT(why(bad) == "a rgaps_msgs/msg/GpuImage has a handle of kind 3, where 1 (image) is needed");
  bad = good;
  bad.handle.payload_bytes = 3071;
  EXPECT(why(bad) == "a rgaps_msgs/msg/GpuImage describes 3072 B, but its handle names a payload of 3071 B");
  bad = good;
  bad.meta.c().as.image.encoding = 9999;
  EXPECT(why(bad).find("a rgaps_msgs/msg/GpuImage contradicts itself: ") == 0);
  EXPECT(why(bad).find("; its handle names a payload of 3072 B") != std::string::npos);
  EXPECT(!why(copy<rgaps::Image>(rgaps_msgs::msg::GpuImage())).empty());
  // A cloud may be empty.
  EXPECT(check(Described<rgaps::PointCloud>{handle_of(RGAPS_KIND_POINT_CLOUD, 0), rgaps::PointCloud::create(0, 1, 16).value()}));
}

/// A checksum of what was read from random bytes. Printed, so that the compiler keeps the reads.
std::size_t looked_at = 0;

/// Random bytes get an answer, and reading from them stays within bounds.
template <class DeviceT>
void any_bytes(std::mt19937_64 &random) {
  using Meta = typename DeviceT::Meta;
  rgaps_ros::DescriptorOf<Meta> descriptor;
  auto *bytes = reinterpret_cast<std::uint8_t *>(&descriptor);
  for (int round = 0; round < 3000; ++round) {
    for (std::size_t place = 0; place < sizeof descriptor; ++place) bytes[place] = static_cast<std::uint8_t>(random());
    // Half of them pass the first checks.
    if (round % 2) {
      descriptor.handle.layout_version = descriptor.handle.LAYOUT_VERSION;
      descriptor.handle.kind = Meta::kind;
    }
    const DeviceT device(rgaps_ros::PayloadSubscriptions<Meta>::instance().lease(copy<Meta>(descriptor)));
    EXPECT(!device.is_valid() && !device.error().empty() && device.host().empty() && !device.device_pointer());
    std::size_t sum = device.frame_id().size() + device.meta().payload_bytes();
    if constexpr (std::is_same_v<Meta, rgaps::Tensor>) {
      for (const auto extent : device.meta().shape()) sum += static_cast<std::size_t>(extent);
    }
    looked_at += sum;
  }
}

void any_bytes_at_all_are_refused_with_a_reason() {
  std::mt19937_64 random(20261121);
  any_bytes<rgaps::DeviceImage>(random);
  any_bytes<rgaps::DevicePointCloud>(random);
  any_bytes<rgaps::DeviceTensor>(random);
}

void what_is_default_constructed_is_invalid_and_says_so() {
  rgaps::DeviceImage image;
  EXPECT(!image && image.status() == RGAPS_NO_MESSAGE && !image.error().empty());
  EXPECT(image.device_pointer() == nullptr && image.host().empty() && !image.info() && !image.dlpack());
  EXPECT(image.meta().width() == 0 && image.meta().encoding().empty() && image.frame_id().empty());
  image.release(nullptr);
}

/// Publishes an image filled with one value, and returns its descriptor as read from a ROS message.
Described<rgaps::Image> publish(const rgaps::Publisher<rgaps::Image> &publisher, std::uint8_t value) {
  const auto meta = rgaps::Image::create(8, 4, "mono8").value();
  const std::vector<std::uint8_t> pixels(32, value);
  rgaps_msgs::msg::GpuImage descriptor;
  write(publisher.push_host(meta, pixels.data(), pixels.size()).value(), meta, descriptor);
  return copy<rgaps::Image>(descriptor);
}

void a_payload_subscription_takes_what_descriptors_name_and_shares_it() {
  auto &subscriptions = rgaps_ros::PayloadSubscriptions<rgaps::Image>::instance();
  auto node = rgaps_ros::Process::instance().node(0, {}).value();
  EXPECT(rgaps_ros::Process::instance().node(0, {}).value() == node);
  auto publisher = node->publisher<rgaps::Image>("payloads/front").value();

  // There is no payload subscription yet: the first descriptor makes one, since there is exactly one topic of the kind.
  const rgaps::DeviceImage early(subscriptions.lease(publish(publisher, 1)));
  EXPECT(!early.is_valid() && early.error().find("subscribed to the payloads of /payloads/front") == 0);
  const auto second = publish(publisher, 2);
  const rgaps::DeviceImage image(subscriptions.lease(second));
  EXPECT(image.is_valid() && image.error().empty() && image.host()[31] == 2 && image.host().size() == 32);
  EXPECT(image.meta().width() == 8 && image.handle().sequence == 2 && image.device_pointer() != nullptr);

  // Taking the same message again gives the same lease; a lease passed on within the process finds it on first use.
  const rgaps::DeviceImage again(subscriptions.lease(second));
  EXPECT(again.host().data() == image.host().data());
  const auto third = publish(publisher, 3);
  const rgaps::DeviceImage later(std::make_shared<rgaps_ros::Lease<rgaps::Image>>(
      third, rgaps_ros::Lease<rgaps::Image>::Find([&] { return subscriptions.lease(third); })));
  EXPECT(later.meta().height() == 4);
  const rgaps::DeviceImage copied = later;
  EXPECT(copied.host()[0] == 3 && later.host().data() == copied.host().data());

  // A handle of another run.
  auto replayed = publish(publisher, 4);
  replayed.handle.host_epoch -= 1;
  const rgaps::DeviceImage refused(subscriptions.lease(replayed));
  EXPECT(!refused.is_valid() && refused.status() == RGAPS_STALE);
  EXPECT(refused.error().find("is of an earlier run") != std::string::npos);

  // A payload subscription is a subscriber: with a second topic of the kind the choice is ambiguous, and the error lists both.
  auto side = node->publisher<rgaps::Image>("payloads/side").value();
  const auto unseen = rgaps::DeviceImage(subscriptions.lease(publish(side, 5)));
  EXPECT(!unseen.is_valid());
  auto subscription = subscriptions.add(node, "payloads/side", rgaps_subscriber_qos_default()).value();
  EXPECT(rgaps::DeviceImage(subscriptions.lease(publish(side, 6))).host()[0] == 6);
  EXPECT(rgaps::DeviceImage(subscriptions.lease(publish(publisher, 7))).host()[0] == 7);
  EXPECT(subscription->subscriber.statistics().value().copied_bytes == 0);

  // Another payload subscription of the topic does not keep messages that this one gave.
  auto twin = subscriptions.add(node, "payloads/side", rgaps_subscriber_qos_default()).value();
  EXPECT(rgaps::DeviceImage(subscriptions.lease(publish(side, 8))).host()[0] == 8);
  const auto given = twin->subscriber.statistics().value();
  EXPECT(given.taken == 1 && given.held == 0 && given.lost == 0);
}

void descriptors_are_taken_or_refused_counted_and_logged_once() {
  auto node = rgaps_ros::Process::instance().node(0, {}).value();
  auto publisher = node->publisher<rgaps::Image>("payloads/counted").value();
  const auto subscriber = node->subscriber<rgaps::Image>("payloads/counted").value();
  std::vector<std::string> lines;
  const rgaps_ros::Payloads payloads(subscriber, time_max, [&](bool is_warning, const char *text) {
    EXPECT(is_warning);
    lines.emplace_back(text);
  });
  const auto first = publish(publisher, 1);
  EXPECT(payloads.take(first, std::nullopt).value().as<std::uint8_t>().value()[31] == 1);
  for (int round = 0; round < 3; ++round) EXPECT(payloads.take(first, std::nullopt).error().status == RGAPS_STALE);
  auto wrong = publish(publisher, 2);
  wrong.handle.layout_version = 7;
  EXPECT(payloads.take(wrong, std::nullopt).error().status == RGAPS_WRONG_VERSION);
  wrong = first;
  wrong.handle.kind = RGAPS_KIND_TENSOR;
  EXPECT(payloads.take(wrong, std::nullopt).error().status == RGAPS_WRONG_KIND);
  const auto counts = payloads.counts();
  EXPECT(counts.refused == 5 && counts.early == 0 && lines.size() == 3);
  for (const auto &line : lines) EXPECT(line.find("/payloads/counted: ") == 0);

  rgaps_ros_status_t status{};
  for (const bool is_warning : {true, false}) {
    EXPECT(rgaps_ros_payloads_status(payloads.c(), "/robot", &status) == RGAPS_OK);
    EXPECT(std::string(status.name) == "/robot: subscription to /payloads/counted");
    EXPECT((status.is_warning != 0) == is_warning && (std::string(status.message) == "ok") != is_warning);
    EXPECT(std::string(status.counters[6].name) == "refused" && status.counters[6].value == 5 && status.count == 8);
  }
  rgaps_ros_status_t of_publisher{};
  EXPECT(rgaps_ros_publisher_status(publisher.c(), "/robot", &of_publisher) == RGAPS_OK);
  EXPECT(std::string(of_publisher.counters[0].name) == "published" && of_publisher.counters[0].value == 2);

  // An interrupted take is no refusal.
  const Described<rgaps::Image> missing{handle_of(RGAPS_KIND_IMAGE, 32), first.meta};
  subscriber.interrupt().value();
  EXPECT(payloads.take(missing, std::nullopt).error().status == RGAPS_NO_MESSAGE);
  EXPECT(payloads.counts().refused == 5);

  // Without a subscriber there are refusals alone.
  const rgaps_ros::Payloads refusals([&](bool, const char *text) { lines.emplace_back(text); });
  for (const auto reason : {RGAPS_STALE, RGAPS_STALE, RGAPS_REFUSED}) refusals.refuse(1, {reason, "forged"});
  EXPECT(refusals.counts().refused == 3 && lines.size() == 5 && lines.back() == "forged");
  EXPECT(refusals.take(first, std::nullopt).error().status == RGAPS_INVALID_HANDLE);
  EXPECT(rgaps_ros_payloads_status(refusals.c(), "/robot", &status) == RGAPS_INVALID_HANDLE);
}

void parameters_are_listed_and_their_values_become_the_qos() {
  // Numbers of rmw/types.h: system default, then keep-last 3.
  rgaps_ros_endpoint_t endpoint{};
  endpoint.topic = "/eye";
  endpoint.id = "left";
  endpoint.depth = 3;
  endpoint.history = 1;
  rgaps_ros_parameter_t table[RGAPS_ROS_PARAMETERS_MAX];
  std::uint64_t count = 0;
  EXPECT(rgaps_ros_parameters(&endpoint, table, &count) == RGAPS_OK);
  EXPECT(std::string(table[0].name) == "rgaps./eye.publisher_left.history_depth" && table[0].integer == 3 && table[0].most == INT32_MAX);
  EXPECT(std::string(table[count - 1].name) == "rgaps.device" && table[2].description[0] != 0);
  rgaps_publisher_qos_t offered{};
  EXPECT(rgaps_ros_publisher_qos(&endpoint, table, count, &offered) == RGAPS_OK);
  EXPECT(offered.reliability == RGAPS_RELIABLE && offered.durability == RGAPS_TRANSIENT_LOCAL && offered.history_depth == 3);
  EXPECT(offered.exhaustion == RGAPS_WAIT && offered.exhaustion_timeout_ms == 1000 && offered.flow_control == 1);
  std::strcpy(table[2].text, "sometimes");
  EXPECT(rgaps_ros_publisher_qos(&endpoint, table, count, &offered) == RGAPS_INVALID_ARGUMENT);
  EXPECT(std::string(rgaps_error_text()) ==
         "parameter rgaps./eye.publisher_left.exhaustion is 'sometimes'; it must be wait, drop_oldest or refuse");

  endpoint.role = RGAPS_ROS_SUBSCRIPTION;
  EXPECT(rgaps_ros_parameters(&endpoint, table, &count) == RGAPS_OK);
  rgaps_subscriber_qos_t requested{};
  std::uint64_t timeout_ns = 0;
  EXPECT(rgaps_ros_subscriber_qos(&endpoint, table, count, &requested, &timeout_ns) == RGAPS_OK);
  EXPECT(requested.reliability == RGAPS_BEST_EFFORT && requested.durability == RGAPS_VOLATILE && requested.depth == 11);
  EXPECT(timeout_ns == 1'000'000'000);
  table[1].integer = -5;
  EXPECT(rgaps_ros_subscriber_qos(&endpoint, table, count, &requested, &timeout_ns) == RGAPS_INVALID_ARGUMENT);
}

}  // namespace

int main() {
  parameters_are_listed_and_their_values_become_the_qos();
  an_image_is_its_descriptor_byte_for_byte();
  a_cloud_is_its_descriptor_byte_for_byte();
  a_tensor_is_its_descriptor_byte_for_byte();
  a_descriptor_that_contradicts_itself_is_refused_with_the_numbers();
  what_is_default_constructed_is_invalid_and_says_so();
  a_payload_subscription_takes_what_descriptors_name_and_shares_it();
  descriptors_are_taken_or_refused_counted_and_logged_once();
  any_bytes_at_all_are_refused_with_a_reason();
  std::printf("rgaps_ros: descriptors, leases and payload subscriptions agree (%zu)\n", looked_at);
  return 0;
}
