/**
 * @file
 * rgaps::DeviceImage, rgaps::DevicePointCloud and rgaps::DeviceTensor: the arguments of callbacks. Without rclcpp, and without CUDA.
 *
 *     void callback(const rgaps::DeviceImage &image) {
 *       if (!image.is_valid()) return;                      // image.error() says why
 *       blur<<<grid, block, 0, stream>>>(image.device_pointer(), image.meta().width(), ...);
 *     }
 *
 * - **Leases**: the payload stays in place and unchanged until the last copy of the object is gone. Copying shares the lease, not the bytes. Keep
 *   only what you need: a held message keeps its block of the publisher's pool.
 * - **Invalid objects**: an object that is default-constructed, or whose message could not be taken (a replayed or stale descriptor), has a null
 *   pointer, an empty span and an error text. Nothing here throws.
 * - **Read-only**: all subscribers on the host share the memory.
 */

#ifndef RGAPS_ROS__DEVICE_HPP_
#define RGAPS_ROS__DEVICE_HPP_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "rgaps_ros/lease.hpp"

namespace rgaps_ros {

/// The common base of the three.
template <class MetaT>
class Device {
 public:
  using Meta = MetaT;
  using Descriptor = DescriptorOf<MetaT>;

  /// An invalid object.
  Device() = default;
  explicit Device(std::shared_ptr<Lease<Meta>> lease) : lease_(std::move(lease)) {}

  /// Whether there is a payload to read. The first call takes the message if that has not happened yet.
  bool is_valid() const { return lease_ && !lease_->failure(); }
  explicit operator bool() const { return is_valid(); }

  /// Why there is no payload; empty if there is one.
  std::string error() const {
    if (!lease_) return "no message: default-constructed, moved from or released";
    const auto failure = lease_->failure();
    return failure ? failure->text : std::string();
  }
  /// The reason as a status of rgaps.h.
  rgaps_status_t status() const {
    if (!lease_) return RGAPS_NO_MESSAGE;
    const auto failure = lease_->failure();
    return failure ? failure->status : RGAPS_OK;
  }

  /// The message's handle, even if the message could not be taken.
  rgaps_message_handle_t handle() const { return lease_ ? lease_->handle() : rgaps_message_handle_t{}; }
  /// The message's metadata, even if the message could not be taken. Valid while a copy of this object exists.
  const Meta &meta() const {
    static const Meta none = empty_meta<Meta>();
    return lease_ ? lease_->meta() : none;
  }
  /// Stamp, since 1970.
  std::chrono::nanoseconds stamp() const { return meta().stamp(); }
  /// Coordinate frame.
  std::string frame_id() const { return std::string(meta().frame_id()); }

  /// Address of the payload: on the GPU, or in host memory if the pools are there. nullptr if there is none.
  const void *device_pointer() const {
    const auto pointer = with<const void *>([](auto &message) { return message.device_pointer(); });
    return pointer ? pointer.value() : nullptr;
  }

  /// The payload for the CPU: in place if the CPU can read it, else a copy, made once and counted (copied_bytes). Empty if there is none, or if it
  /// is not aligned for T.
  template <class T = std::uint8_t>
  rgaps::Span<const T> host() const {
    const auto span = with<rgaps::Span<const T>>([](auto &message) { return message.template as<T>(); });
    return span ? span.value() : rgaps::Span<const T>();
  }

  /// Its origin, its route and its time at each stage.
  rgaps::Result<rgaps_info_t> info() const {
    return with<rgaps_info_t>([](auto &message) { return message.info(); });
  }

  /// Whether the payload's bytes are written: a subscription on a stream delivers messages before that.
  rgaps::Result<rgaps_readiness_t> readiness() const {
    return with<rgaps_readiness_t>([](auto &message) { return message.readiness(); });
  }

  /// A DLPack tensor for an array library; the tensor holds the message. See rgaps_sample_dlpack.
  rgaps::Result<DLManagedTensorVersioned *> dlpack(const char *field = nullptr, rgaps::Stream stream = nullptr) const {
    return with<DLManagedTensorVersioned *>([&](auto &message) { return message.dlpack(field, stream); });
  }

  /// Releases this share of the lease. When it is the last one, the message is released behind the work enqueued on `stream` so far. If you read on
  /// several streams, join them first (cudaStreamWaitEvent).
  void release(rgaps::Stream stream) {
    if (lease_) lease_->release_on(stream);
    lease_.reset();
  }
  /// Releases this share of the lease.
  void release() { lease_.reset(); }

  /// Fills a descriptor of this message.
  void write_to(Descriptor &descriptor) const { write(handle(), meta(), descriptor); }

 private:
  template <class T, class Call>
  rgaps::Result<T> with(Call &&call) const {
    if (!lease_) return rgaps::Failure{RGAPS_NO_MESSAGE, error()};
    return lease_->template with<T>(std::forward<Call>(call));
  }

  std::shared_ptr<Lease<Meta>> lease_;
};

}  // namespace rgaps_ros

namespace rgaps {

/// An image in device memory: an rgaps_msgs/GpuImage and the lease of its pixels.
class DeviceImage : public rgaps_ros::Device<Image> {
  using Device::Device;
};

/// A point cloud in device memory.
class DevicePointCloud : public rgaps_ros::Device<PointCloud> {
  using Device::Device;
};

/// A tensor in device memory.
class DeviceTensor : public rgaps_ros::Device<Tensor> {
  using Device::Device;
};

}  // namespace rgaps

#endif  // RGAPS_ROS__DEVICE_HPP_
