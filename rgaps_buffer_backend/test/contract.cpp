// A test: the plugin as middleware uses it, without middleware. One process has both endpoints.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "pluginlib/class_loader.hpp"
#include "rgaps_buffer_backend/buffer.hpp"
#include "rgaps_msgs/msg/buffer_descriptor.hpp"
#include "rmw/topic_endpoint_info.h"
#include "rosidl_buffer_backend/buffer_backend.hpp"

namespace buffers = rgaps_buffer_backend;
using Bytes = rosidl::Buffer<std::uint8_t>;
using Impl = rosidl::BufferImplBase<std::uint8_t>;
using Descriptor = rgaps_msgs::msg::BufferDescriptor;

#define CHECK(what)                                                    \
  do {                                                                 \
    if (!(what)) {                                                     \
      std::fprintf(stderr, "contract.cpp:%d: %s\n", __LINE__, #what); \
      std::exit(1);                                                    \
    }                                                                  \
  } while (false)

namespace {

constexpr std::size_t COUNT = 100'000;

rmw_topic_endpoint_info_t endpoint(std::uint8_t number, rmw_endpoint_type_t type) {
  auto made = rmw_get_zero_initialized_topic_endpoint_info();
  made.endpoint_type = type;
  made.qos_profile.depth = 5;
  std::memset(made.endpoint_gid, number, sizeof(made.endpoint_gid));
  return made;
}

template <class Call>
bool refuses(Call call) {
  try {
    call();
  } catch (const buffers::Error &) {
    return true;
  }
  return false;
}

bool throws(const Bytes &bytes) {
  return refuses([&] { bytes.to_vector(); });
}

Bytes received(const rosidl::BufferBackend &backend, const void *descriptor, const rmw_topic_endpoint_info_t &publisher) {
  auto impl = backend.from_descriptor_with_endpoint(descriptor, publisher);
  CHECK(impl != nullptr);
  return Bytes(std::unique_ptr<Impl>(static_cast<Impl *>(impl.release())));
}

}  // namespace

int main() {
  pluginlib::ClassLoader<rosidl::BufferBackend> loader("rosidl_buffer_backend", "rosidl::BufferBackend");
  const auto backend = loader.createSharedInstance("rgaps");
  CHECK(backend->get_backend_type() == "rgaps" && backend->get_descriptor_type_support() != nullptr && backend->create_empty_descriptor() != nullptr);
  const auto metadata = backend->get_backend_metadata();
  CHECK(!metadata.empty() && metadata.find_first_of(";=") == std::string::npos);

  const auto publisher = endpoint(1, RMW_ENDPOINT_PUBLISHER);
  const auto first = endpoint(2, RMW_ENDPOINT_SUBSCRIPTION), second = endpoint(3, RMW_ENDPOINT_SUBSCRIPTION), stranger = endpoint(4, RMW_ENDPOINT_SUBSCRIPTION);
  for (const auto &own : {publisher, first, second}) { backend->on_creating_endpoint(own); }
  CHECK(backend->on_discovering_endpoint(publisher, {}, {{"rgaps", metadata}}).first);
  CHECK(backend->on_discovering_endpoint(first, {}, {{"cuda", "0"}, {"rgaps", metadata}}).first);
  CHECK(backend->on_discovering_endpoint(second, {first}, {{"rgaps", metadata}}).first);
  CHECK(!backend->on_discovering_endpoint(stranger, {first, second}, {{"cuda", "0"}}).first);
  CHECK(!backend->on_discovering_endpoint(stranger, {}, {{"rgaps", "999:-:-:"}}).first && !backend->on_discovering_endpoint(stranger, {}, {{"rgaps", ""}}).first);

  auto bytes = buffers::allocate_buffer(COUNT);
  const std::vector<std::uint8_t> content(COUNT, 7), other(COUNT, 8);
  buffers::copy_from_host(bytes, content.data(), COUNT);
  CHECK(bytes.get_backend_type() == "rgaps" && bytes.size() == COUNT);

  // What is still being written is not shared.
  {
    const auto write = buffers::from_output_buffer(bytes, nullptr);
    CHECK(backend->create_descriptor_with_endpoint(bytes.get_impl(), first) == nullptr);
  }

  // Each subscription gets a descriptor of its own, of the same bytes.
  const void *impl = bytes.get_impl();
  const auto for_first = backend->create_descriptor_with_endpoint(impl, first), for_second = backend->create_descriptor_with_endpoint(impl, second);
  CHECK(for_first != nullptr && for_second != nullptr);
  CHECK(backend->create_descriptor_with_endpoint(impl, stranger) == nullptr);
  const rosidl::CpuBufferImpl<std::uint8_t> on_the_cpu;
  CHECK(backend->create_descriptor_with_endpoint(static_cast<const Impl *>(&on_the_cpu), first) == nullptr);
  const auto at_first = received(*backend, for_first.get(), publisher), at_second = received(*backend, for_second.get(), publisher);
  CHECK(at_first.get_backend_type() == "rgaps" && at_first.to_vector() == content && at_second.to_vector() == content);

  // Published bytes do not change; a copy of a message shares them.
  const Bytes copy(at_first);
  buffers::copy_from_host(bytes, other.data(), COUNT);
  CHECK(at_first.to_vector() == content && copy.to_vector() == content && bytes.to_vector() == other);
  CHECK(buffers::statistics().copied == 1);

  // Whatever a descriptor says, there is a buffer, and its reads are right or fail.
  CHECK(throws(received(*backend, for_first.get(), publisher)));
  Descriptor wrong;
  for (int fill : {0, 1, 0x5a, 0xff}) {
    std::memset(static_cast<void *>(&wrong), fill, sizeof(wrong));
    const auto bad = received(*backend, &wrong, publisher);
    CHECK(throws(bad) && throws(Bytes(bad)));
  }
  for (std::size_t at = 0; at < sizeof(wrong); ++at) {
    auto *next = backend->create_descriptor_with_endpoint(bytes.get_impl(), second).get();
    std::memcpy(static_cast<void *>(&wrong), next, sizeof(wrong));
    reinterpret_cast<std::uint8_t *>(&wrong)[at] ^= 0x11;
    const auto changed = received(*backend, &wrong, publisher);
    CHECK(throws(changed) || changed.to_vector() == other);
  }
  // One that could not be received at all.
  Bytes none(std::unique_ptr<Impl>(new buffers::BufferImpl(nullptr)));
  CHECK(none.size() == 0 && throws(none) && refuses([&] { buffers::from_output_buffer(none, nullptr); }));
  std::puts("the plugin keeps its contract");
  return 0;
}
