// Messages of every kind between languages: the same program as exchange.rs, exchange.c and exchange.py, which can read its messages.
//
//   exchange pub|sub bytes|image|point_cloud|tensor TOPIC COUNT

#include <rgaps.hpp>

#include <chrono>
#include <cstring>
#include <iostream>
#include <string>
#include <thread>

using std::chrono::seconds;

namespace {

constexpr std::int32_t wait_s = 10;

// The metadata of every message of a kind.
template <class M>
M described();

template <>
rgaps::Bytes described() {
  return rgaps::Bytes::create(1000).value();
}

template <>
rgaps::Image described() {
  return rgaps::Image::create(64, 48, "rgb8").value();
}

template <>
rgaps::PointCloud described() {
  auto cloud = rgaps::PointCloud::create(100, 1, 16).value();
  std::uint32_t offset = 0;
  for (const char *name : {"x", "y", "z", "intensity"}) {
    cloud.add_field(name, offset, RGAPS_FLOAT32).value();
    offset += 4;
  }
  return cloud;
}

template <>
rgaps::Tensor described() {
  return rgaps::Tensor::create(RGAPS_FLOAT, 32, {2, 3, 4}).value();
}

// Byte `i` of a payload of bytes, or element `i` of a payload of floats, in message `n`.
template <class M>
constexpr bool has_floats = M::kind == RGAPS_KIND_POINT_CLOUD || M::kind == RGAPS_KIND_TENSOR;

template <class M>
using Element = std::conditional_t<has_floats<M>, float, std::uint8_t>;

template <class M>
Element<M> element(std::size_t i, int n) {
  if constexpr (has_floats<M>) {
    return static_cast<float>(i) + static_cast<float>(n);
  } else {
    return static_cast<std::uint8_t>(i * 7 + static_cast<std::size_t>(n));
  }
}

template <class M>
void publish(const rgaps::Node &node, const std::string &kind, const std::string &topic, int count) {
  auto publisher = node.publisher<M>(topic).value();
  const auto deadline = std::chrono::steady_clock::now() + seconds(wait_s);
  while (publisher.subscriber_count() == 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (int n = 0; n < count; ++n) {
    auto meta = described<M>();
    meta.set_header(seconds(n), "exchange").value();
    auto loan = publisher.loan(meta).value();
    auto elements = loan.template as<Element<M>>().value();
    for (std::size_t i = 0; i < elements.size(); ++i) elements[i] = element<M>(i, n);
    std::move(loan).publish().value();
  }
  std::cout << "published " << count << " " << kind << " messages" << std::endl;
  while (publisher.statistics().value().outstanding > 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

template <class M>
void subscribe(const rgaps::Node &node, const std::string &kind, const std::string &topic, int count) {
  auto subscriber = node.subscriber<M>(topic).value();
  std::cout << "ready" << std::endl;
  for (int n = 0; n < count; ++n) {
    auto message = subscriber.wait(seconds(wait_s)).value();
    if (!message) throw std::runtime_error("no message within ten seconds");
    auto expected = described<M>();
    expected.set_header(seconds(n), "exchange").value();
    const auto meta = message->meta().value();
    if (std::memcmp(&meta.c(), &expected.c(), sizeof(rgaps_meta_t)) != 0) {
      throw std::runtime_error("message " + std::to_string(n) + " has other metadata");
    }
    const auto elements = message->template as<Element<M>>().value();
    for (std::size_t i = 0; i < elements.size(); ++i) {
      if (elements[i] != element<M>(i, n)) {
        throw std::runtime_error("message " + std::to_string(n) + " is wrong at " + std::to_string(i));
      }
    }
  }  // the message is released here
  std::cout << "took " << count << " " << kind << " messages" << std::endl;
}

template <class M>
void run(const std::string &what, const std::string &kind, const std::string &topic, int count) {
  const auto node = rgaps::Node::create("exchange").value();
  what == "pub" ? publish<M>(node, kind, topic, count) : subscribe<M>(node, kind, topic, count);
}

}  // namespace

int main(int argc, char **argv) try {
  const std::string what = argc == 5 ? argv[1] : "", kind = argc == 5 ? argv[2] : "";
  if (what != "pub" && what != "sub") {
    std::cerr << "usage: exchange pub|sub bytes|image|point_cloud|tensor TOPIC COUNT\n";
    return 2;
  }
  const std::string topic = argv[3];
  const int count = std::stoi(argv[4]);
  if (kind == "bytes") run<rgaps::Bytes>(what, kind, topic, count);
  else if (kind == "image") run<rgaps::Image>(what, kind, topic, count);
  else if (kind == "point_cloud") run<rgaps::PointCloud>(what, kind, topic, count);
  else if (kind == "tensor") run<rgaps::Tensor>(what, kind, topic, count);
  else throw std::runtime_error("there is no kind '" + kind + "'");
  return 0;
} catch (const std::exception &error) {
  std::cerr << "exchange: " << error.what() << "\n";
  return 1;
}
