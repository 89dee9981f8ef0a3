/**
 * @file
 * Byte arrays of ROS messages in a pool of RGAPS: allocate_buffer() makes one for a message, handles give its memory to kernels.
 *
 *     sensor_msgs::msg::Image image;  // with its step and height
 *     image.data = rgaps_buffer_backend::allocate_buffer(image.step * image.height);
 *     {
 *       auto pixels = rgaps_buffer_backend::from_output_buffer(image.data, stream);
 *       render<<<blocks, threads, 0, stream>>>(pixels.get_ptr());
 *     }
 *     publisher->publish(image);  // the bytes do not move
 *
 * allocate_buffer, from_output_buffer, from_input_buffer, get_ptr and get_promoted_buffer have the names of the stock backend for CUDA
 * (cuda_buffer_backend). On a host without a GPU the memory is host memory: pass nullptr as the stream.
 */

#ifndef RGAPS_BUFFER_BACKEND__BUFFER_HPP_
#define RGAPS_BUFFER_BACKEND__BUFFER_HPP_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "rosidl_buffer/buffer.hpp"

struct rgaps_ros_access_t;
struct rgaps_ros_buffer_t;
/// As in the headers of CUDA, which need not be there.
struct CUstream_st;

namespace rgaps_buffer_backend {

/// A CUDA stream (cudaStream_t, CUstream).
using Stream = CUstream_st *;

/// A device, as DLPack numbers them.
struct Device {
  /// 1 host memory, 2 an NVIDIA GPU.
  std::int32_t type;
  /// Its number in this process; 0 for the host.
  std::int32_t id;
};

/// Why a buffer cannot be allocated, written or read. The text says what to do.
class Error : public std::runtime_error {
 public:
  /// `status`: an rgaps_status_t.
  Error(int status, const std::string &text) : std::runtime_error(text), status_(status) {}

  /// An rgaps_status_t.
  int status() const { return status_; }

 private:
  int status_;
};

/// The bytes behind a rosidl::Buffer. Published bytes never change: a later write goes to a copy.
class BufferImpl : public rosidl::BufferImplBase<std::uint8_t> {
 public:
  /// Takes ownership of a buffer.
  explicit BufferImpl(rgaps_ros_buffer_t *buffer) : buffer_(buffer) {}
  ~BufferImpl() override;
  BufferImpl(const BufferImpl &) = delete;
  BufferImpl &operator=(const BufferImpl &) = delete;

  /// Allocates `count` bytes. Throws Error.
  static std::unique_ptr<BufferImpl> allocate(std::size_t count);

  std::string get_backend_type() const override { return "rgaps"; }
  /// Bytes. Until a read succeeds, a received buffer has only what its descriptor says, less than 4 GiB; 0 if that is invalid.
  std::size_t size() const override;
  /// A copy in host memory. Throws Error, also if the payload cannot be read; never returns other bytes.
  std::unique_ptr<rosidl::BufferImplBase<std::uint8_t>> to_cpu() const override;
  /// Shares bytes that were published or received, else copies them on the device. Throws Error.
  std::unique_ptr<rosidl::BufferImplBase<std::uint8_t>> clone() const override;

  /// The buffer of rgaps.h.
  rgaps_ros_buffer_t *get() const { return buffer_; }

 private:
  rgaps_ros_buffer_t *buffer_;
};

/// Memory for work of a stream, until the handle is destroyed. Move-only. A ReadHandle keeps the bytes, whatever becomes of the message.
template <bool IsWrite>
class Handle {
 public:
  using Pointer = std::conditional_t<IsWrite, std::uint8_t *, const std::uint8_t *>;

  Handle() = default;
  Handle(Handle &&other) noexcept { swap(other); }
  Handle &operator=(Handle &&other) noexcept {
    Handle(std::move(other)).swap(*this);
    return *this;
  }
  ~Handle();

  /// On the device; in host memory if that is the host's device. Null for an empty handle.
  Pointer get_ptr() const { return pointer_; }

  /// Which device has it. Throws Error for an empty handle.
  Device get_device() const;

  /// If the message's bytes were not in a pool: the buffer that was allocated for them. To publish it, move it into the message after the handle is
  /// destroyed.
  std::shared_ptr<rosidl::Buffer<std::uint8_t>> get_promoted_buffer() const { return promoted_; }

 private:
  template <bool>
  friend struct HandleAccess;

  void swap(Handle &other) noexcept {
    std::swap(access_, other.access_);
    std::swap(stream_, other.stream_);
    std::swap(pointer_, other.pointer_);
    std::swap(promoted_, other.promoted_);
  }

  rgaps_ros_access_t *access_ = nullptr;
  Stream stream_ = nullptr;
  Pointer pointer_ = nullptr;
  std::shared_ptr<rosidl::Buffer<std::uint8_t>> promoted_;
};

/// Memory that work of a stream writes. When it is destroyed, later work on the bytes follows the work that the stream has then. Destroy it before the
/// message is published: otherwise subscribers get a copy of the bytes of that moment, through the middleware.
using WriteHandle = Handle<true>;
/// Memory that work of a stream reads. The bytes stay until the work that the stream has when it is destroyed is done.
using ReadHandle = Handle<false>;

/// Counters of the process's buffers, since its start.
struct Statistics {
  /// Buffers that were allocated.
  std::uint64_t allocated;
  /// Payloads that were published, once for each subscription.
  std::uint64_t published;
  /// Messages that a subscription which accepts rgaps buffers got as bytes: it was not reached, the bytes were being written, or the payload could not be
  /// published. Subscriptions that take only bytes are not counted.
  std::uint64_t as_bytes;
  /// Copies on the device: of buffers that were written after publication, came from another process, or were cloned while they were filled.
  std::uint64_t copied;
  /// Descriptors that were received.
  std::uint64_t received;
  /// Descriptors whose payload turned out to be missing, lost or invalid.
  std::uint64_t refused;
  /// Subscriptions, in this process and others, that a payload of this process reaches now.
  std::uint64_t reached;
  /// Bytes of the pool that are in use.
  std::uint64_t used_bytes;
};

/// Allocates the bytes of a message, in the process's pool (`pool_bytes`; RGAPS_POOL_BYTES in its environment). Starts RGAPS's manager if none
/// runs. A full pool drops what subscriptions have not taken, oldest first. Throws Error.
rosidl::Buffer<std::uint8_t> allocate_buffer(std::size_t count);

/// Memory to write a message's bytes. For bytes outside a pool a buffer of the same length is allocated (get_promoted_buffer()); it is
/// not initialized. Throws Error.
WriteHandle from_output_buffer(rosidl::Buffer<std::uint8_t> &buffer, Stream stream);

/// Memory to read a message's bytes. Bytes outside a pool are copied into one. Waits at most 1 s for a payload that arrives after its message, and up
/// to 10 s more if the publisher's pool is not mapped yet and the manager does not answer.
/// Throws Error.
ReadHandle from_input_buffer(const rosidl::Buffer<std::uint8_t> &buffer, Stream stream);

/// Copies host memory into all of a message's bytes, which are in a pool. Throws Error.
void copy_from_host(rosidl::Buffer<std::uint8_t> &buffer, const void *from, std::size_t count);

/// The counters.
Statistics statistics();

}  // namespace rgaps_buffer_backend

#endif  // RGAPS_BUFFER_BACKEND__BUFFER_HPP_
