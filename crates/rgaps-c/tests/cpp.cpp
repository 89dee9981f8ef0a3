// rgaps.hpp: owners, errors as values and as exceptions, and typed metadata; also static objects that are destroyed after main.

#include <array>
#include <atomic>
#include <thread>
#include <type_traits>

#include "check.h"
#include "rgaps.hpp"

namespace {

// Static objects, whose destructors run at the end of the program.
std::optional<rgaps::Node> last_node;
std::optional<rgaps::Subscriber<rgaps::Bytes>> last_subscriber;
std::optional<rgaps::Sample<rgaps::Bytes>> last_message;

constexpr std::chrono::seconds kLong{60};

template <class M>
rgaps::Sample<M> next(const rgaps::Subscriber<M> &subscriber) {
  auto message = subscriber.wait(kLong).value();
  CHECK(message.has_value());
  return std::move(*message);
}

void every_kind_has_its_type() {
  auto node = rgaps::Node::create("cpp").value();
  CHECK(node.device().value().device_type == 1);

  auto images = node.publisher<rgaps::Image>("/cpp/image").value();
  auto seen = node.subscriber<rgaps::Image>("/cpp/image").value();
  auto image = rgaps::Image::create(8, 4, "mono16").value();
  image.set_header(rgaps::now(), "camera").value();
  image.user()[31] = 7;
  auto loan = images.loan(image).value();
  auto pixels = loan.as<std::uint16_t>().value();
  CHECK(pixels.size() == 32);
  for (std::size_t index = 0; index < pixels.size(); index++) pixels[index] = static_cast<std::uint16_t>(index * 1000);
  CHECK(std::move(loan).publish().value().sequence == 1);
  {
    auto message = next(seen);
    auto meta = message.meta().value();
    CHECK(meta.width() == 8 && meta.height() == 4 && meta.step() == 16 && meta.encoding() == "mono16" && !meta.is_bigendian());
    CHECK(meta.frame_id() == "camera" && meta.stamp() == image.stamp() && meta.user()[31] == 7);
    auto read = message.as<std::uint16_t>().value();
    CHECK(read.size() == 32 && read[31] == 31000 && message.info().value().origin == 1);
    CHECK(message.readiness().value() == RGAPS_READINESS_READY && message.device_pointer().value() == read.data());
    CHECK(seen.statistics().value().held == 1);
  }
  CHECK(seen.statistics().value().held == 0);

  auto clouds = node.publisher<rgaps::PointCloud>("/cpp/cloud").value();
  auto points = node.subscriber<rgaps::PointCloud>("/cpp/cloud").value();
  auto cloud = rgaps::PointCloud::create(2, 1, 8).value();
  cloud.add_field("x", 0, 7).value();
  const std::array<float, 4> four{1, 2, 3, 4};
  clouds.push_host(cloud, four.data(), sizeof four).value();
  CHECK(next(points).meta().value().field("x").value().datatype == 7);

  auto tensors = node.publisher<rgaps::Tensor>("/cpp/tensor").value();
  auto taken = node.subscriber<rgaps::Tensor>("/cpp/tensor").value();
  auto tensor = rgaps::Tensor::create(2, 64, {2, 3}).value();
  const std::array<double, 6> six{0, 1, 2, 3, 4, 5};
  for (int count = 0; count < 5; count++) tensors.push(tensor, six.data(), sizeof six).value();
  auto all = taken.take_all().value();
  CHECK(all.size() == 5 && all[4].as<double>().value()[5] == 5.0);
  CHECK(all[0].meta().value().shape()[1] == 3 && all[0].meta().value().strides()[0] == 3);
  all.erase(all.begin(), all.begin() + 3);
  CHECK(taken.statistics().value().held == 2 && !taken.take().value().has_value());
  CHECK(tensors.statistics().value().published == 5 && tensors.subscriber_count() == 1);

  auto others = node.publisher<rgaps::Tensor>("/cpp/other").value();
  std::vector<rgaps::Loan<rgaps::Tensor>> loans;
  for (int count = 0; count < 3; count++) {
    loans.push_back((count == 1 ? others : tensors).loan(tensor).value());
    loans.back().as<double>().value()[0] = count;
  }
  CHECK(tensors.publish_all(loans).error().status == RGAPS_INVALID_ARGUMENT && loans.size() == 3);
  loans.erase(loans.begin() + 1);
  const auto handles = tensors.publish_all(loans).value();
  CHECK(handles.size() == 2 && handles[1].sequence == 7 && loans.empty());
  all = taken.take_all().value();
  CHECK(all.size() == 2 && all[0].as<double>().value()[0] == 0 && all[1].as<double>().value()[0] == 2);
}

void what_fails_is_a_value_or_an_exception() {
  auto node = rgaps::Node::create("cpp").value();
  auto wrong = rgaps::Image::create(1, 1, "rgb9");
  CHECK(!wrong && wrong.error().status == RGAPS_INVALID_ARGUMENT && wrong.error().text.find("rgb9") != std::string::npos);
  try {
    (void)node.publisher<rgaps::Bytes>("/a//b").value();
    CHECK(!"reached");
  } catch (const rgaps::Error &error) {
    CHECK(error.status() == RGAPS_INVALID_ARGUMENT && std::string(error.what()).find("topic name") != std::string::npos);
  }
  auto publisher = node.publisher<rgaps::Bytes>("/cpp/kind").value();
  CHECK(node.subscriber<rgaps::Tensor>("/cpp/kind").error().status == RGAPS_WRONG_KIND);
  auto subscriber = node.subscriber<rgaps::Bytes>("/cpp/kind").value();
  CHECK(!subscriber.wait(std::chrono::nanoseconds(-5)).value().has_value());
  CHECK(subscriber.fd().value() >= 0);
  /* An empty payload, as any type. */
  auto empty = rgaps::Bytes::create(0).value();
  publisher.push_host(empty, nullptr, 0).value();
  CHECK(next(subscriber).as<double>().value().empty());
  auto loan = publisher.loan(empty).value();
  CHECK(loan.as<double>().value().empty());
}

void owners_are_moved_and_end_what_they_own() {
  static_assert(!std::is_copy_constructible_v<rgaps::Node> && std::is_nothrow_move_constructible_v<rgaps::Node>);
  static_assert(!std::is_copy_constructible_v<rgaps::Sample<rgaps::Image>>);
  static_assert(!std::is_copy_constructible_v<rgaps::Loan<rgaps::Image>>);
  auto node = rgaps::Node::create("cpp").value();
  auto publisher = node.publisher<rgaps::Bytes>("/cpp/own").value();
  auto subscriber = node.subscriber<rgaps::Bytes>("/cpp/own").value();
  const auto meta = rgaps::Bytes::create(1000).value();
  {
    auto loan = publisher.loan(meta).value();
    auto moved = std::move(loan);
    CHECK(loan.as<>().error().status == RGAPS_INVALID_HANDLE);
    CHECK(moved.as<>().value().size() == 1000);
    CHECK(publisher.statistics().value().used_bytes > 0);
  }
  CHECK(publisher.statistics().value().used_bytes == 0 && publisher.statistics().value().published == 0);
  for (int count = 0; count < 3; count++) {
    auto loan = publisher.loan(meta).value();
    std::move(loan).publish().value();
    CHECK(std::move(loan).publish().error().status == RGAPS_INVALID_HANDLE);
  }
  auto message = next(subscriber);
  message = next(subscriber);
  CHECK(subscriber.statistics().value().held == 1);
  std::move(message).release(nullptr).value();
  CHECK(message.meta().error().status == RGAPS_INVALID_HANDLE && subscriber.statistics().value().held == 0);
  auto other = rgaps::Node::create("cpp").value();
  node = std::move(other);
  CHECK(other.device().error().status == RGAPS_INVALID_HANDLE && node.device().has_value());
}

void a_message_goes_from_thread_to_thread() {
  auto node = rgaps::Node::create("cpp").value();
  auto publisher = node.publisher<rgaps::Bytes>("/cpp/thread").value();
  auto subscriber = node.subscriber<rgaps::Bytes>("/cpp/thread").value();
  const std::uint64_t number = 77;
  std::thread sender([&] { publisher.push_host(rgaps::Bytes::create(8).value(), &number, 8).value(); });
  auto message = next(subscriber);
  sender.join();
  std::thread([message = std::move(message)] { CHECK(message.as<std::uint64_t>().value()[0] == 77); }).join();
  CHECK(subscriber.statistics().value().held == 0);
}

void hold_until_the_end() {
  last_node.emplace(rgaps::Node::create("cpp").value());
  last_subscriber.emplace(last_node->subscriber<rgaps::Bytes>("/cpp/last").value());
  auto publisher = last_node->publisher<rgaps::Bytes>("/cpp/last").value();
  publisher.push_host(rgaps::Bytes::create(3).value(), "abc", 3).value();
  last_message.emplace(next(*last_subscriber));
}

}  // namespace

int main() {
  every_kind_has_its_type();
  what_fails_is_a_value_or_an_exception();
  owners_are_moved_and_end_what_they_own();
  a_message_goes_from_thread_to_thread();
  hold_until_the_end();
  return 0;
}
