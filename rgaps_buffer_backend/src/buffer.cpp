// Buffers and handles over rgaps.h.

#include "rgaps_buffer_backend/buffer.hpp"

#include <atomic>
#include <vector>

#include "rcutils/logging_macros.h"
#include "rgaps.h"

namespace rgaps_buffer_backend {

/// Whether the middleware has loaded the backend (backend.cpp).
std::atomic<bool> is_loaded{false};

namespace {

void check(rgaps_status_t status) {
  if (status != RGAPS_OK) { throw Error(status, rgaps_error_text()); }
}

/// The buffer of a message, if its bytes are in a pool.
const BufferImpl *pooled(const rosidl::Buffer<std::uint8_t> &buffer) { return dynamic_cast<const BufferImpl *>(buffer.get_impl()); }

}  // namespace

/// Makes handles.
template <bool IsWrite>
struct HandleAccess {
  static Handle<IsWrite> begin(const BufferImpl *impl, Stream stream, std::shared_ptr<rosidl::Buffer<std::uint8_t>> promoted) {
    Handle<IsWrite> handle;
    const auto *buffer = impl->get();
    if constexpr (IsWrite) {
      void *address = nullptr;
      check(rgaps_ros_buffer_begin_write(buffer, stream, &address, &handle.access_));
      handle.pointer_ = static_cast<std::uint8_t *>(address);
    } else {
      const void *address = nullptr;
      check(rgaps_ros_buffer_begin_read(buffer, stream, &address, &handle.access_));
      handle.pointer_ = static_cast<const std::uint8_t *>(address);
    }
    handle.stream_ = stream;
    handle.promoted_ = std::move(promoted);
    return handle;
  }
};

template <bool IsWrite>
Handle<IsWrite>::~Handle() {
  // An error of the device shows at the next use.
  if (access_ != nullptr) { rgaps_ros_access_end(access_, stream_); }
}

template <bool IsWrite>
Device Handle<IsWrite>::get_device() const {
  rgaps_device_t device;
  check(rgaps_ros_access_device(access_, &device));
  return {device.device_type, device.device_id};
}

template class Handle<true>;
template class Handle<false>;

BufferImpl::~BufferImpl() { rgaps_ros_buffer_release(buffer_); }

std::unique_ptr<BufferImpl> BufferImpl::allocate(std::size_t count) {
  rgaps_ros_buffer_t *buffer = nullptr;
  check(rgaps_ros_buffer_allocate(count, &buffer));
  return std::make_unique<BufferImpl>(buffer);
}

std::size_t BufferImpl::size() const { return rgaps_ros_buffer_bytes(buffer_); }

std::unique_ptr<rosidl::BufferImplBase<std::uint8_t>> BufferImpl::to_cpu() const {
  // First, since the length of a payload that cannot be had is only what its descriptor says.
  check(rgaps_ros_buffer_await(buffer_));
  auto copy = std::make_unique<rosidl::CpuBufferImpl<std::uint8_t>>();
  auto &bytes = copy->get_storage();
  bytes.resize(size());
  check(rgaps_ros_buffer_copy_out(buffer_, bytes.data(), bytes.size()));
  return copy;
}

std::unique_ptr<rosidl::BufferImplBase<std::uint8_t>> BufferImpl::clone() const {
  rgaps_ros_buffer_t *buffer = nullptr;
  check(rgaps_ros_buffer_clone(buffer_, &buffer));
  return std::make_unique<BufferImpl>(buffer);
}

rosidl::Buffer<std::uint8_t> allocate_buffer(std::size_t count) {
  if (!is_loaded) {
    RCUTILS_LOG_WARN_ONCE_NAMED(
        "rgaps_buffer_backend",
        "a buffer is allocated although no middleware has loaded the backend: make a node first; rmw_cyclonedds_cpp cannot publish such buffers, use "
        "rmw_fastrtps_cpp or rmw_zenoh_cpp");
  }
  return rosidl::Buffer<std::uint8_t>(std::unique_ptr<rosidl::BufferImplBase<std::uint8_t>>(BufferImpl::allocate(count)));
}

WriteHandle from_output_buffer(rosidl::Buffer<std::uint8_t> &buffer, Stream stream) {
  if (const auto *own = pooled(buffer)) { return HandleAccess<true>::begin(own, stream, nullptr); }
  auto promoted = std::make_shared<rosidl::Buffer<std::uint8_t>>(allocate_buffer(buffer.size()));
  return HandleAccess<true>::begin(pooled(*promoted), stream, promoted);
}

ReadHandle from_input_buffer(const rosidl::Buffer<std::uint8_t> &buffer, Stream stream) {
  if (const auto *own = pooled(buffer)) { return HandleAccess<false>::begin(own, stream, nullptr); }
  auto promoted = std::make_shared<rosidl::Buffer<std::uint8_t>>(allocate_buffer(buffer.size()));
  const std::vector<std::uint8_t> bytes = buffer.to_vector();
  check(rgaps_ros_buffer_copy_in(pooled(*promoted)->get(), bytes.data(), bytes.size()));
  return HandleAccess<false>::begin(pooled(*promoted), stream, promoted);
}

void copy_from_host(rosidl::Buffer<std::uint8_t> &buffer, const void *from, std::size_t count) {
  const auto *own = pooled(buffer);
  if (own == nullptr) { throw Error(RGAPS_INVALID_ARGUMENT, "these bytes are not in a pool of RGAPS: assign allocate_buffer(count) to the field first"); }
  check(rgaps_ros_buffer_copy_in(own->get(), from, count));
}

Statistics statistics() {
  rgaps_ros_buffers_statistics_t found;
  check(rgaps_ros_buffers_statistics(&found));
  return {found.allocated, found.published, found.as_bytes, found.copied, found.received, found.refused, found.reached, found.used_bytes};
}

}  // namespace rgaps_buffer_backend
