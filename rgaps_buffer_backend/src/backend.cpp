// The plugin that middleware loads.

#include <atomic>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "pluginlib/class_list_macros.hpp"
#include "rcutils/logging_macros.h"
#include "rgaps.h"
#include "rgaps_buffer_backend/buffer.hpp"
#include "rgaps_msgs/msg/buffer_descriptor.hpp"
#include "rosidl_buffer_backend/buffer_backend.hpp"
#include "rosidl_typesupport_cpp/message_type_support.hpp"

namespace rgaps_buffer_backend {

extern std::atomic<bool> is_loaded;  // of buffer.cpp

namespace {

using Descriptor = rgaps_msgs::msg::BufferDescriptor;

static_assert(sizeof(Descriptor) == sizeof(rgaps_ros_descriptor_t) && std::is_trivially_copyable<Descriptor>::value, "a descriptor is its bytes");
static_assert(sizeof(Descriptor) <= rosidl::kMaxBufferDescriptorSize, "middleware carries no longer descriptors");
static_assert(RMW_GID_STORAGE_SIZE == 16, "an identity has 16 bytes");

constexpr const char *NAME = "rgaps_buffer_backend";

void delete_impl(void *impl) { delete static_cast<rosidl::BufferImplBase<std::uint8_t> *>(impl); }

}  // namespace

/// See rosidl::BufferBackend. What an endpoint needs is decided by the core: this class only passes it on.
class Backend : public rosidl::BufferBackend {
 public:
  Backend() { is_loaded = true; }

  std::string get_backend_type() const override { return "rgaps"; }

  std::string get_backend_metadata() const override {
    char text[128];
    if (rgaps_ros_buffers_metadata(text, sizeof(text)) != RGAPS_OK) {
      RCUTILS_LOG_ERROR_NAMED(NAME, "endpoints are announced without this backend: %s", rgaps_error_text());
      return "";
    }
    return text;
  }

  const rosidl_message_type_support_t *get_descriptor_type_support() const override {
    return rosidl_typesupport_cpp::get_message_type_support_handle<Descriptor>();
  }

  std::shared_ptr<void> create_empty_descriptor() const override { return std::make_shared<Descriptor>(); }

  std::shared_ptr<void> create_descriptor_with_endpoint(const void *impl, const rmw_topic_endpoint_info_t &endpoint) const override {
    const auto *buffer = dynamic_cast<const BufferImpl *>(static_cast<const rosidl::BufferImplBase<std::uint8_t> *>(impl));
    if (buffer == nullptr) { return nullptr; }
    rgaps_ros_descriptor_t described;
    const auto status = rgaps_ros_buffer_describe(buffer->get(), endpoint.endpoint_gid, &described);
    if (status != RGAPS_OK) {
      // One that is not reached yet is normal at the start.
      if (status == RGAPS_NO_MESSAGE) {
        RCUTILS_LOG_DEBUG_NAMED(NAME, "the bytes themselves are sent: %s", rgaps_error_text());
      } else {
        RCUTILS_LOG_WARN_THROTTLE_NAMED(RCUTILS_STEADY_TIME, 1000, NAME, "the bytes themselves are sent: %s", rgaps_error_text());
      }
      return nullptr;
    }
    auto descriptor = std::make_shared<Descriptor>();
    std::memcpy(static_cast<void *>(descriptor.get()), &described, sizeof(described));
    return descriptor;
  }

  std::unique_ptr<void, void (*)(void *)> from_descriptor_with_endpoint(const void *descriptor, const rmw_topic_endpoint_info_t &) const override {
    rgaps_ros_descriptor_t described;
    std::memcpy(&described, descriptor, sizeof(described));
    rgaps_ros_buffer_t *buffer = nullptr;
    if (rgaps_ros_buffer_receive(&described, &buffer) != RGAPS_OK) {
      // A buffer without a payload: its reads fail, since the handle is null.
      RCUTILS_LOG_WARN_THROTTLE_NAMED(RCUTILS_STEADY_TIME, 1000, NAME, "a payload cannot be received: %s", rgaps_error_text());
    }
    rosidl::BufferImplBase<std::uint8_t> *impl = new BufferImpl(buffer);
    return {impl, delete_impl};
  }

  void on_creating_endpoint(const rmw_topic_endpoint_info_t &endpoint) const override {
    if (endpoint.endpoint_type != RMW_ENDPOINT_SUBSCRIPTION) { return; }
    const auto &qos = endpoint.qos_profile;
    const auto depth = qos.history == RMW_QOS_POLICY_HISTORY_KEEP_ALL ? UINT64_MAX : qos.depth;
    if (rgaps_ros_buffers_subscription_created(endpoint.endpoint_gid, depth) != RGAPS_OK) {
      RCUTILS_LOG_WARN_NAMED(NAME, "a subscription gets bytes instead of buffers: %s", rgaps_error_text());
    }
  }

  std::pair<bool, std::vector<std::set<std::uint32_t>>> on_discovering_endpoint(
      const rmw_topic_endpoint_info_t &endpoint, const std::vector<rmw_topic_endpoint_info_t> &existing,
      const std::unordered_map<std::string, std::string> &backends) override {
    const auto found = backends.find("rgaps");
    if (found == backends.end()) { return {false, {}}; }
    const auto *metadata = found->second.c_str();
    std::vector<std::uint8_t> others;
    for (const auto &other : existing) { others.insert(others.end(), std::begin(other.endpoint_gid), std::end(other.endpoint_gid)); }
    const auto status =
        endpoint.endpoint_type == RMW_ENDPOINT_PUBLISHER
            ? rgaps_ros_buffers_publisher_discovered(metadata)
            : rgaps_ros_buffers_subscription_discovered(endpoint.endpoint_gid, metadata, others.data(), existing.size());
    if (status != RGAPS_OK && status != RGAPS_NO_MESSAGE) {
      RCUTILS_LOG_WARN_THROTTLE_NAMED(RCUTILS_STEADY_TIME, 1000, NAME, "%s", rgaps_error_text());
    }
    return {status == RGAPS_OK, {}};
  }
};

}  // namespace rgaps_buffer_backend

PLUGINLIB_EXPORT_CLASS(rgaps_buffer_backend::Backend, rosidl::BufferBackend)
