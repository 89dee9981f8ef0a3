// rgaps_ros within one process: the arguments of every kind of callback, refusals, parameters, QoS, names, diagnostics.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rclcpp_lifecycle/lifecycle_node.hpp"
#include "in_process.hpp"

namespace {

using namespace in_process;

void samples_reach_callbacks_of_every_signature_without_a_copy(bool intra_process) {
  World world(with(intra_process));
  Publisher publisher(world.node, "every", rclcpp::QoS(10));
  std::vector<int> by_reference, by_unique, by_shared;
  std::vector<rgaps_info_t> places;
  auto one = rgaps_ros::create_subscription<DeviceImage>(world.node, "every", rclcpp::QoS(10), [&](const DeviceImage &image) {
    by_reference.push_back(value_of(image));
    places.push_back(image.info().value());
  });
  auto two = rgaps_ros::create_subscription<DeviceImage>(world.node, "every", rclcpp::QoS(10), [&](std::unique_ptr<DeviceImage> image) {
    by_unique.push_back(value_of(*image));
    places.push_back(image->info().value());
  });
  auto three = rgaps_ros::create_subscription<DeviceImage>(
      world.node.get(), "every", rclcpp::QoS(10), [&](std::shared_ptr<const DeviceImage> image, const rclcpp::MessageInfo &) {
        by_shared.push_back(value_of(*image));
        EXPECT_EQ(image->stamp(), std::chrono::seconds(12) + std::chrono::nanoseconds(34));
        EXPECT_EQ(image->frame_id(), "front");
        places.push_back(image->info().value());
      });
  ASSERT_TRUE(world.until([&] { return publisher.get_subscription_count() == 3; }));
  // rmw_rgaps adds core subscribers of its own.
  EXPECT_GE(publisher.payload_subscriber_count(), 3u);
  std::vector<int> sent;
  for (std::uint8_t value = 1; value <= 5; ++value) {
    publish(publisher, value);
    sent.push_back(value);
    ASSERT_TRUE(world.until([&] { return places.size() == 3u * value; }));
    // All three read the same block of the same pool.
    for (std::size_t place = places.size() - 3; place < places.size(); ++place) {
      EXPECT_EQ(places[place].pool_inode, places.back().pool_inode);
      EXPECT_EQ(places[place].pool_offset, places.back().pool_offset);
    }
  }
  EXPECT_EQ(by_reference, sent);
  EXPECT_EQ(by_unique, sent);
  EXPECT_EQ(by_shared, sent);
  for (const auto &subscription : {one, two, three}) {
    EXPECT_EQ(subscription->statistics().value().copied_bytes, on_host() ? 0u : 5u * 64 * 48);
    EXPECT_EQ(subscription->statistics().value().lost, 0u);
    EXPECT_TRUE(world.until([&subscription = subscription] { return subscription->statistics().value().held == 0; }));
    EXPECT_EQ(subscription->refused_count(), 0u);
  }
}

TEST(InProcess, samples_reach_callbacks_of_every_signature_without_a_copy) { samples_reach_callbacks_of_every_signature_without_a_copy(false); }
TEST(IntraProcess, samples_reach_callbacks_of_every_signature_without_a_copy) { samples_reach_callbacks_of_every_signature_without_a_copy(true); }

/// Two subscriptions by the type adapter alone share what one payload subscription gets.
void the_type_adapter_alone_works_with_a_payload_subscription(bool intra_process) {
  World world(with(intra_process));
  rgaps_ros::PayloadSubscription<DeviceImage> payloads(world.node, "plain", rclcpp::QoS(10));
  Publisher publisher(world.node, "plain", rclcpp::QoS(10));
  std::vector<int> one, two;
  auto first = world.node->create_subscription<DeviceImage>("plain", 10, [&](const DeviceImage &image) { one.push_back(value_of(image)); });
  auto second = world.node->create_subscription<DeviceImage>(
      "plain", 10, [&](std::shared_ptr<const DeviceImage> image) { two.push_back(value_of(*image)); });
  ASSERT_TRUE(world.until([&] { return publisher.get_subscription_count() == 2; }));
  std::vector<int> sent;
  for (std::uint8_t value = 1; value <= 5; ++value) {
    publish(publisher, value);
    sent.push_back(value);
    ASSERT_TRUE(world.until([&] { return one.size() == value && two.size() == value; }));
  }
  EXPECT_EQ(one, sent);
  EXPECT_EQ(two, sent);
  EXPECT_EQ(payloads.statistics().value().copied_bytes, on_host() ? 0u : 5u * 64 * 48);
}

TEST(InProcess, the_type_adapter_alone_works_with_a_payload_subscription) { the_type_adapter_alone_works_with_a_payload_subscription(false); }
TEST(IntraProcess, the_type_adapter_alone_works_with_a_payload_subscription) { the_type_adapter_alone_works_with_a_payload_subscription(true); }

TEST(InProcess, without_a_payload_subscription_only_the_first_sample_is_invalid) {
  World world(with(false));
  Publisher publisher(world.node, "alone", rclcpp::QoS(10));
  std::vector<std::string> errors;
  std::vector<int> values;
  auto subscription = world.node->create_subscription<DeviceImage>("alone", 10, [&](const DeviceImage &image) {
    values.push_back(value_of(image));
    errors.push_back(image.error());
  });
  ASSERT_TRUE(world.until([&] { return publisher.get_subscription_count() == 1; }));
  for (std::uint8_t value = 1; value <= 3; ++value) {
    publish(publisher, value);
    ASSERT_TRUE(world.until([&] { return values.size() == value; }));
  }
  EXPECT_EQ(values, (std::vector<int>{-1, 2, 3}));
  EXPECT_NE(errors[0].find("subscribed to the payloads of /alone by its first descriptor"), std::string::npos) << errors[0];
  EXPECT_EQ(errors[2], "");
}

TEST(InProcess, a_descriptor_without_a_message_is_refused_and_later_samples_arrive) {
  World world(with(false));
  Publisher publisher(world.node, "forged", rclcpp::QoS(10));
  auto forger = world.node->create_publisher<GpuImage>("forged", 10);
  std::vector<std::string> errors;
  std::vector<int> values;
  rgaps_ros::SubscriptionOptions<DeviceImage> options;
  options.refused = [&](const DeviceImage &image) {
    EXPECT_FALSE(image.is_valid());
    EXPECT_EQ(image.device_pointer(), nullptr);
    EXPECT_TRUE(image.host().empty());
    EXPECT_EQ(image.meta().width(), 64u);
    errors.push_back(image.error());
  };
  options.id = "short";
  world.node->declare_parameter("rgaps./forged.subscription_short.payload_timeout_ms", 50);
  auto subscription = rgaps_ros::create_subscription<DeviceImage>(world.node, "forged", rclcpp::QoS(10),
                                                                  [&](const DeviceImage &image) { values.push_back(value_of(image)); }, options);
  ASSERT_TRUE(world.until([&] { return publisher.get_subscription_count() == 1 && forger->get_subscription_count() == 1; }));

  const auto refuses = [&](const GpuImage &descriptor, const std::string &reason) {
    if (rmw_looks_at_descriptors()) {
      EXPECT_ANY_THROW(forger->publish(descriptor));
      return;
    }
    const auto before = errors.size();
    forger->publish(descriptor);
    ASSERT_TRUE(world.until([&] { return errors.size() > before; }));
    EXPECT_NE(errors.back().find(reason), std::string::npos) << errors.back();
  };
  refuses(forged([](auto &handle) { handle.layout_version = 7; }), "layout version 7");
  refuses(forged([](auto &handle) { handle.kind = RGAPS_KIND_TENSOR; }), "has a handle of kind 3");
  refuses(forged([](auto &handle) { handle.payload_bytes = 5; }), "names a payload of 5 B");
  refuses(forged([](auto &) {}), "has not come within 50 ms");
  auto absurd = forged([](auto &) {});
  absurd.step = 1;
  refuses(absurd, "names a payload of 3072 B");

  // A message of this run, a second time: rmw_rgaps recognizes the replay, and does not deliver it again.
  const auto handle = publish(publisher, 9);
  ASSERT_TRUE(world.until([&] { return values.size() == 1; }));
  GpuImage again;
  rgaps_ros::write(handle, rgaps::Image::create(64, 48, "mono8").value(), again);
  if (!rmw_looks_at_descriptors()) refuses(again, "message 1 of publisher");
  auto earlier = handle;
  earlier.host_epoch -= 1;
  rgaps_ros::write(earlier, rgaps::Image::create(64, 48, "mono8").value(), again);
  refuses(again, "is of an earlier run");

  publish(publisher, 10);
  ASSERT_TRUE(world.until([&] { return values.size() == 2; }));
  EXPECT_EQ(values, (std::vector<int>{9, 10}));
  EXPECT_EQ(subscription->refused_count(), errors.size());
}

TEST(InProcess, a_sample_stays_until_its_last_share_is_gone) {
  World world(with(false));
  auto publisher = std::make_unique<Publisher>(world.node, "kept", rclcpp::QoS(10));
  std::vector<DeviceImage> kept;
  auto subscription =
      rgaps_ros::create_subscription<DeviceImage>(world.node, "kept", rclcpp::QoS(10), [&](const DeviceImage &image) { kept.push_back(image); });
  ASSERT_TRUE(world.until([&] { return publisher->get_subscription_count() == 1; }));
  publish(*publisher, 5);
  ASSERT_TRUE(world.until([&] { return kept.size() == 1; }));
  kept.push_back(kept[0]);
  EXPECT_EQ(subscription->statistics().value().held, 1u);
  const auto handle = kept[0].handle();
  kept[0].release(nullptr);
  EXPECT_FALSE(kept[0].is_valid());
  EXPECT_EQ(kept[0].status(), RGAPS_NO_MESSAGE);
  EXPECT_EQ(value_of(kept[1]), 5);
  EXPECT_EQ(kept[1].handle().sequence, handle.sequence);
  EXPECT_NE(kept[1].device_pointer(), nullptr);
  publisher.reset();
  EXPECT_EQ(value_of(kept[1]), 5);
  kept.clear();
  // On a GPU a stream releases it, slightly later.
  EXPECT_TRUE(world.until([&] { return subscription->statistics().value().held == 0; }));
}

TEST(InProcess, foreign_memory_is_pushed_and_a_failed_loan_is_a_result) {
  World world(with(false));
  Publisher publisher(world.node, "pushed", rclcpp::QoS(10));
  std::vector<int> values;
  auto subscription = rgaps_ros::create_subscription<DeviceImage>(world.node, "pushed", rclcpp::QoS(10),
                                                                  [&](const DeviceImage &image) { values.push_back(value_of(image)); });
  ASSERT_TRUE(world.until([&] { return publisher.get_subscription_count() == 1; }));
  const std::vector<std::uint8_t> pixels(64 * 48, 3);
  const auto meta = rgaps::Image::create(64, 48, "mono8").value();
  publisher.push_host(meta, pixels.data(), pixels.size()).value();
  // push() takes device memory only.
  if (on_host()) publisher.push(meta, pixels.data(), pixels.size()).value();
  const std::vector<int> wanted(on_host() ? 2 : 1, 3);
  ASSERT_TRUE(world.until([&] { return values.size() == wanted.size(); }));
  EXPECT_EQ(values, wanted);
  EXPECT_FALSE(publisher.push_host(meta, pixels.data(), 5));
  EXPECT_FALSE(publisher.loan(rgaps::Image::create(0, 48, "mono8")));
  EXPECT_FALSE(publisher.loan(rgaps::Image::create(1, 48, "no such encoding")));
}

TEST(InProcess, a_subscription_on_a_stream_gets_samples_in_place_without_a_copy) {
  World world(with(false));
  Publisher publisher(world.node, "stream", rclcpp::QoS(10));
  const rgaps::Stream stream = nullptr;  // CUDA's default stream; ignored on the host backend.
  rgaps_ros::SubscriptionOptions<DeviceImage> options;
  options.stream = stream;
  std::vector<std::uint64_t> sequences;
  auto subscription = rgaps_ros::create_subscription<DeviceImage>(world.node, "stream", rclcpp::QoS(10), [&](DeviceImage image) {
    EXPECT_NE(image.device_pointer(), nullptr) << image.error();
    EXPECT_NE(image.readiness().value(), RGAPS_READINESS_POISONED);
    EXPECT_EQ(image.meta().width(), 64u);
    sequences.push_back(image.handle().sequence);
    image.release(stream);
  }, options);
  ASSERT_TRUE(world.until([&] { return publisher.get_subscription_count() == 1; }));
  for (std::uint8_t value = 1; value <= 5; ++value) publish(publisher, value);
  ASSERT_TRUE(world.until([&] { return sequences.size() == 5; }));
  EXPECT_EQ(sequences, (std::vector<std::uint64_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(subscription->statistics().value().copied_bytes, 0u);
  EXPECT_EQ(subscription->refused_count(), 0u);
}

TEST(InProcess, parameters_are_read_only_and_applied_and_so_are_qos_overrides) {
  World world(with(false, {{"rgaps./params.publisher.pool_bytes", 1 << 20},
                           {"rgaps./params.publisher.exhaustion", "refuse"},
                           {"qos_overrides./params.publisher.depth", 3},
                           {"qos_overrides./params.subscription.reliability", "best_effort"}}));
  Publisher publisher(world.node, "params", rclcpp::QoS(10));
  EXPECT_EQ(publisher.statistics().value().pool_bytes, 1u << 20);
  EXPECT_EQ(publisher.ros()->get_actual_qos().depth(), 3u);
  EXPECT_EQ(world.node->get_parameter("rgaps./params.publisher.history_depth").as_int(), 3);
  EXPECT_FALSE(world.node->set_parameter({"rgaps./params.publisher.pool_bytes", 5}).successful);
  EXPECT_FALSE(world.node->describe_parameter("rgaps./params.publisher.pool_bytes").description.empty());
  EXPECT_TRUE(world.node->describe_parameter("rgaps.device").read_only);

  // The loans are kept and a full pool refuses, so the pool of 1 MiB is full after some loans.
  std::vector<rgaps_ros::Loan<rgaps::Image>> loans;
  for (int number = 0; number < 5; ++number) {
    auto loan = publisher.loan(rgaps::Image::create(512, 512, "mono8"));
    if (!loan) break;
    loans.push_back(std::move(*loan));
  }
  EXPECT_LT(loans.size(), 5u);

  auto subscription = rgaps_ros::create_subscription<DeviceImage>(world.node, "params", rclcpp::QoS(10), [](const DeviceImage &) {});
  EXPECT_EQ(subscription->ros()->get_actual_qos().reliability(), rclcpp::ReliabilityPolicy::BestEffort);

  // The same if the node has declared its overrides automatically, without type, range and read-only flag.
  auto lax = with(false, {{"rgaps./lax.publisher.pool_bytes", 1 << 20},
                          {"rgaps./lax.subscription.slack", -5},
                          {"rgaps./words.subscription.slack", "five"}});
  World declared(lax.automatically_declare_parameters_from_overrides(true));
  Publisher lax_publisher(declared.node, "lax", rclcpp::QoS(10));
  EXPECT_EQ(lax_publisher.statistics().value().pool_bytes, 1u << 20);
  EXPECT_FALSE(declared.node->set_parameter({"rgaps./lax.publisher.pool_bytes", 5}).successful);
  const auto subscribe = [&](const std::string &topic) {
    rgaps_ros::create_subscription<DeviceImage>(declared.node, topic, rclcpp::QoS(10), [](const DeviceImage &) {});
  };
  EXPECT_THROW(subscribe("lax"), rclcpp::exceptions::InvalidParameterValueException);
  EXPECT_THROW(subscribe("words"), rclcpp::exceptions::InvalidParameterTypeException);

  World wrong(with(false, {{"rgaps./other/params.publisher.exhaustion", "sometimes"}}), "/other");
  EXPECT_THROW(Publisher(wrong.node, "params", rclcpp::QoS(10)), rclcpp::exceptions::InvalidParameterValueException);
}

TEST(InProcess, names_are_those_after_namespaces_and_remapping) {
  World world(with(false, {}, {"--ros-args", "-r", "camera:=/robot/front"}), "/here");
  Publisher remapped(world.node, "camera", rclcpp::QoS(10));
  Publisher qualified(*world.node, "left", rclcpp::QoS(10));
  EXPECT_STREQ(remapped.get_topic_name(), "/robot/front");
  EXPECT_STREQ(qualified.get_topic_name(), "/here/left");
  // The core uses the same names.
  auto core = rgaps::Node::create("reader").value();
  auto subscriber = core.subscriber<rgaps::Image>("/robot/front").value();
  publish(remapped, 8);
  EXPECT_TRUE(subscriber.wait(time_max).value());
  EXPECT_TRUE(world.node->has_parameter("rgaps./here/left.publisher.pool_bytes"));
}

TEST(InProcess, a_late_joiner_gets_the_last_samples_if_both_ask_for_it) {
  World world(with(false));
  Publisher publisher(world.node, "latched", rclcpp::QoS(2).transient_local());
  for (std::uint8_t value = 1; value <= 4; ++value) publish(publisher, value);
  std::vector<int> values;
  auto subscription = rgaps_ros::create_subscription<DeviceImage>(world.node, "latched", rclcpp::QoS(2).transient_local(),
                                                                  [&](const DeviceImage &image) { values.push_back(value_of(image)); });
  ASSERT_TRUE(world.until([&] { return values.size() == 2; }));
  EXPECT_EQ(values, (std::vector<int>{3, 4}));
  EXPECT_EQ(subscription->refused_count(), 0u);
}

TEST(InProcess, a_lifecycle_node_publishes_and_subscribes) {
  auto node = std::make_shared<rclcpp_lifecycle::LifecycleNode>("alive");
  rclcpp::executors::SingleThreadedExecutor executor;
  executor.add_node(node->get_node_base_interface());
  Publisher publisher(node, "alive", rclcpp::QoS(10));
  std::vector<int> values;
  auto subscription = rgaps_ros::create_subscription<DeviceImage>(*node, "alive", rclcpp::QoS(10),
                                                                  [&](const DeviceImage &image) { values.push_back(value_of(image)); });
  const auto end = std::chrono::steady_clock::now() + time_max;
  while (publisher.get_subscription_count() == 0 && std::chrono::steady_clock::now() < end) executor.spin_once(std::chrono::milliseconds(50));
  // While the node is not active nothing is published, and a loan is given back.
  const auto refuses = [&](std::uint8_t value) {
    EXPECT_FALSE(publisher.is_activated());
    auto loan = publisher.loan(rgaps::Image::create(64, 48, "mono8")).value();
    const auto published = publisher.publish(std::move(loan));
    ASSERT_FALSE(published);
    EXPECT_EQ(published.error().status, RGAPS_REFUSED);
    EXPECT_NE(published.error().text.find("/alive: the publisher is not active"), std::string::npos) << published.error().text;
    const std::vector<std::uint8_t> pixels(64 * 48, value);
    EXPECT_FALSE(publisher.push_host(loan.meta(), pixels.data(), pixels.size()));
  };
  refuses(5);
  node->configure();
  refuses(5);
  node->activate();
  publish(publisher, 6);
  node->deactivate();
  refuses(7);
  node->activate();
  publish(publisher, 8);
  while (values.size() < 2 && std::chrono::steady_clock::now() < end) executor.spin_once(std::chrono::milliseconds(50));
  EXPECT_EQ(values, (std::vector<int>{6, 8}));
  EXPECT_EQ(publisher.statistics().value().published, 2u);
}

TEST(InProcess, counters_are_on_diagnostics) {
  World world(with(false));
  Publisher publisher(world.node, "counted", rclcpp::QoS(10));
  auto subscription = rgaps_ros::create_subscription<DeviceImage>(world.node, "counted", rclcpp::QoS(10), [](const DeviceImage &) {});
  std::vector<std::string> counters;
  int nameless = 0;
  auto listener = world.node->create_subscription<diagnostic_msgs::msg::DiagnosticArray>(
      "/diagnostics", 10, [&](const diagnostic_msgs::msg::DiagnosticArray &array) {
        counters.clear();
        for (const auto &status : array.status) {
          nameless += status.name.empty();
          for (const auto &pair : status.values) counters.push_back(status.name + " " + pair.key + " " + pair.value);
        }
      });
  ASSERT_TRUE(world.until([&] { return publisher.get_subscription_count() == 1; }));
  publish(publisher, 1);
  const auto has = [&](const std::string &text) { return std::find(counters.begin(), counters.end(), text) != counters.end(); };
  EXPECT_TRUE(world.until([&] {
    return has("/world: publisher of /counted published 1") && has("/world: subscription to /counted taken 1") &&
           has("/world: subscription to /counted refused 0");
  }));
  EXPECT_EQ(nameless, 0);
}

TEST(InProcess, diagnostics_have_the_time_of_the_node) {
  World world(with(false, {{"use_sim_time", true}}));
  Publisher publisher(world.node, "timed", rclcpp::QoS(10));
  std::vector<std::int64_t> stamps;
  auto listener = world.node->create_subscription<diagnostic_msgs::msg::DiagnosticArray>(
      "/diagnostics", 10,
      [&](const diagnostic_msgs::msg::DiagnosticArray &array) { stamps.push_back(rclcpp::Time(array.header.stamp).nanoseconds()); });
  ASSERT_TRUE(world.until([&] { return !stamps.empty(); }));
  // There is no /clock yet.
  EXPECT_EQ(stamps[0], 0);
}

TEST(InProcess, an_executor_that_waits_for_a_payload_ends_when_ros_shuts_down) {
  if (rmw_looks_at_descriptors()) GTEST_SKIP() << "under this RMW no executor waits: it wakes when the payload is there";
  const auto context = std::make_shared<rclcpp::Context>();
  context->init(0, nullptr);
  // An hour, so that only the shutdown can end the wait.
  World world(with(false, {{"rgaps./never.subscription.payload_timeout_ms", 3'600'000}}).context(context));
  auto forger = world.node->create_publisher<GpuImage>("never", 10);
  int refused = 0;
  rgaps_ros::SubscriptionOptions<DeviceImage> options;
  options.refused = [&](const DeviceImage &) { ++refused; };
  auto group = world.node->create_callback_group(rclcpp::CallbackGroupType::MutuallyExclusive);
  options.ros.callback_group = group;
  auto subscription = rgaps_ros::create_subscription<DeviceImage>(world.node, "never", rclcpp::QoS(10), [](const DeviceImage &) {}, options);
  ASSERT_TRUE(world.until([&] { return forger->get_subscription_count() == 1; }));
  forger->publish(forged([](auto &) {}));
  std::thread spins([&] { world.executor.spin(); });
  // The group cannot be taken once its callback waits.
  const auto end = std::chrono::steady_clock::now() + time_max;
  while (group->can_be_taken_from() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  EXPECT_FALSE(group->can_be_taken_from());
  context->shutdown("the test is over");
  spins.join();
  EXPECT_EQ(refused, 0);
}

}  // namespace
