// Untrusted input to rgaps_ros: odd sensor_msgs, thousands of forged descriptors, and the errors that publishers return.

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "in_process.hpp"
#include "rgaps_ros/sensor_msgs.hpp"

namespace {

using namespace in_process;
using sensor_msgs::msg::Image;
using sensor_msgs::msg::PointCloud2;
using sensor_msgs::msg::PointField;

PointField field(const std::string &name, std::uint32_t offset = 0, std::uint8_t datatype = PointField::FLOAT32, std::uint32_t count = 1) {
  PointField made;
  made.name = name;
  made.offset = offset;
  made.datatype = datatype;
  made.count = count;
  return made;
}

/// A cloud of one row of 3 points of 16 B, modified.
PointCloud2 cloud(const std::function<void(PointCloud2 &)> &change) {
  PointCloud2 made;
  made.height = 1;
  made.width = 3;
  made.point_step = 16;
  made.row_step = 48;
  made.fields = {field("x"), field("y", 4)};
  made.data.resize(48);
  change(made);
  return made;
}

std::string why(const PointCloud2 &cloud) {
  const auto described = rgaps_ros::describe(cloud);
  return described ? std::string() : described.error().text;
}

TEST(Strangers, odd_clouds_are_carried_unchanged_or_refused_with_the_reason) {
  constexpr auto most = std::numeric_limits<std::uint32_t>::max();
  EXPECT_EQ(why(cloud([](auto &) {})), "");
  // Without points: as PCL makes them, and in ways that no library does.
  EXPECT_EQ(why(cloud([](auto &cloud) { cloud.width = 0, cloud.row_step = 0, cloud.data.clear(); })), "");
  EXPECT_EQ(why(cloud([](auto &cloud) { cloud.width = 0, cloud.height = 0, cloud.row_step = 0, cloud.data.clear(); })), "");
  EXPECT_EQ(why(PointCloud2()), "");
  // Rows with padding.
  EXPECT_EQ(why(cloud([](auto &cloud) { cloud.row_step = 50, cloud.height = 2, cloud.data.resize(100); })), "");
  const auto says = [](const PointCloud2 &cloud, const std::string &reason) {
    EXPECT_NE(why(cloud).find(reason), std::string::npos) << reason << " is not in: " << why(cloud);
  };
  says(cloud([](auto &cloud) { cloud.row_step = 0; }), "a row needs 48 B, its step is 0 B");
  says(cloud([](auto &cloud) { cloud.row_step = most; }), "needs 4294967295 B of data, the message has 48 B");
  says(cloud([](auto &cloud) { cloud.width = cloud.height = cloud.point_step = cloud.row_step = most; }), "a row needs 18446744065119617025 B");
  says(cloud([](auto &cloud) { cloud.fields = {field(std::string("x\0y", 3))}; }), "the name of field 0 has a zero byte");
  says(cloud([](auto &cloud) { cloud.fields = {field("")}; }), "it must have a name");
  says(cloud([](auto &cloud) { cloud.fields = {field("\xff\xfe")}; }), "UTF-8");
  says(cloud([](auto &cloud) { cloud.fields = {field("x"), field("x", 4)}; }), "a field of the name 'x' already");
  says(cloud([](auto &cloud) { cloud.fields = {field("x", 0, PointField::FLOAT32, 0)}; }), "field 'x' takes bytes 0..0");
  says(cloud([](auto &cloud) { cloud.fields = {field("x", 0, PointField::FLOAT32, most), field("y")}; }), "field 'x' takes bytes 0..17179869180");
  says(cloud([](auto &cloud) { cloud.header.frame_id = std::string("a\0b", 3); }), "the frame_id has a zero byte");
  says(cloud([](auto &cloud) { cloud.header.stamp.nanosec = 1'000'000'000; }), "the stamp has 1000000000 ns in a second");
}

TEST(Strangers, odd_pictures_are_refused_with_the_reason) {
  const auto why = [](const std::function<void(Image &)> &change) {
    Image image;
    image.width = image.height = 2;
    image.step = 6;
    image.encoding = "rgb8";
    image.data.resize(12);
    change(image);
    const auto described = rgaps_ros::describe(image);
    return described ? std::string() : described.error().text;
  };
  EXPECT_EQ(why([](auto &) {}), "");
  EXPECT_EQ(why([](auto &image) { image.step = 7, image.data.resize(14), image.is_bigendian = 1; }), "");
  EXPECT_NE(why([](auto &image) { image = Image(); }), "");
  EXPECT_NE(why([](auto &image) { image.encoding = std::string("rgb8\0", 5); }), "");
  EXPECT_NE(why([](auto &image) { image.encoding = "8UC5"; }), "");
  EXPECT_NE(why([](auto &image) { image.width = 3, image.encoding = "nv12"; }), "");
}

TEST(Strangers, a_cloud_without_points_goes_through) {
  World world(with(false));
  rgaps_ros::Publisher<rgaps::DevicePointCloud> publisher(world.node, "empty", rclcpp::QoS(10));
  std::vector<std::string> errors;
  auto subscription =
      rgaps_ros::create_subscription<rgaps::DevicePointCloud>(world.node, "empty", rclcpp::QoS(10), [&](const rgaps::DevicePointCloud &cloud) {
        EXPECT_EQ(cloud.host().size(), 0u);
        EXPECT_EQ(cloud.meta().point_step(), 16u);
        errors.push_back(cloud.error());
      });
  ASSERT_TRUE(world.until([&] { return publisher.get_subscription_count() == 1; }));
  publisher.push_host(rgaps::PointCloud::create(0, 1, 16).value(), nullptr, 0).value();
  ASSERT_TRUE(world.until([&] { return !errors.empty(); }));
  EXPECT_EQ(errors, (std::vector<std::string>{""}));
}

TEST(Strangers, refusals_of_forged_publishers_do_not_fill_the_log) {
  constexpr std::uint64_t publishers = 100'000;
  std::size_t told = 0;
  const rgaps_ros::Payloads refusals([&](bool is_warning, const char *) { told += is_warning; });
  for (std::uint64_t publisher = 0; publisher < publishers; ++publisher) refusals.refuse(publisher, {RGAPS_STALE, "forged"});
  EXPECT_EQ(refusals.counts().refused, publishers);
  EXPECT_GE(told, 64u);
  EXPECT_LT(told, publishers / 100);
}

TEST(Strangers, publisher_and_subscription_say_on_which_device_streams_are_made) {
  World world(with(false));
  Publisher publisher(world.node, "device", rclcpp::QoS(10));
  auto subscription = rgaps_ros::create_subscription<DeviceImage>(world.node, "device", rclcpp::QoS(10), [](const DeviceImage &) {});
  constexpr int host = 1, cuda = 2;
  const auto device = publisher.device().value();
  EXPECT_EQ(device.device_type, on_host() ? host : cuda);
  EXPECT_EQ(device.device_id, 0);
  EXPECT_EQ(subscription->device().value().device_type, device.device_type);
}

TEST(Strangers, private_names_and_bound_methods_work) {
  struct Robot : rclcpp::Node {
    Robot() : Node("robot") {
      using std::placeholders::_1;
      one = rgaps_ros::create_subscription<DeviceImage>(this, "~/front", rclcpp::QoS(10), std::bind(&Robot::by_reference, this, _1));
      two = rgaps_ros::create_subscription<DeviceImage>(*this, "~/front", rclcpp::QoS(10), std::bind(&Robot::by_unique, this, _1));
      three = rgaps_ros::create_subscription<DeviceImage>(*this, "~/front", rclcpp::QoS(10), [this](auto image) { came += image.is_valid(); });
    }
    void by_reference(const DeviceImage &image) { came += image.is_valid(); }
    void by_unique(std::unique_ptr<DeviceImage> image) { came += image->is_valid(); }
    int came = 0;
    rgaps_ros::Subscription<DeviceImage>::SharedPtr one, two, three;
  };
  const auto robot = std::make_shared<Robot>();
  EXPECT_STREQ(robot->one->get_topic_name(), "/robot/front");
  Publisher publisher(robot, "~/front", rclcpp::QoS(10));
  rclcpp::executors::SingleThreadedExecutor executor;
  executor.add_node(robot);
  const auto end = std::chrono::steady_clock::now() + time_max;
  const auto spin = [&] { return std::chrono::steady_clock::now() < end ? (executor.spin_once(std::chrono::milliseconds(50)), true) : false; };
  while (publisher.get_subscription_count() < 3 && spin()) {}
  publish(publisher, 1);
  while (robot->came < 3 && spin()) {}
  EXPECT_EQ(robot->came, 3);
  EXPECT_ANY_THROW(Publisher(robot, "bad name", rclcpp::QoS(10)));
  EXPECT_ANY_THROW(rgaps_ros::create_subscription<DeviceImage>(robot, "9bad", rclcpp::QoS(10), [](const DeviceImage &) {}));
}

}  // namespace
