/**
 * @file
 * rgaps::DeviceImage, rgaps::DevicePointCloud and rgaps::DeviceTensor: what a callback gets. Without rclcpp, and without CUDA.
 *
 *     void callback(const rgaps::DeviceImage &image) {
 *       if (!image.is_valid()) return;                      // image.error() says why
 *       blur<<<grid, block, 0, stream>>>(image.device_pointer(), image.meta().width(), ...);
 *     }
 *
 * - **Leases**: the payload stays where it is, as it is, until the last copy of the object is gone. Copying shares the lease, not the bytes. Keep
 *   what is needed and let the rest go: a publisher's pool has room for so many messages.
 * - **Invalid ones**: one that is default-constructed, or that could not be taken (a replayed or stale descriptor), has a null pointer, an empty
 *   span and a text. Nothing here throws.
 * - **Reading only**: the memory is shared with every subscriber of the host.
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

/// What the three have in common.
template <class MetaT>
class Device {
 public:
  using Meta = MetaT;
  using Descriptor = DescriptorOf<MetaT>;

  /// An invalid one, for what is to be filled.
  Device() = default;
  explicit Device(std::shared_ptr<Lease<Meta>> lease) : lease_(std::move(lease)) {}

  /// Whether there is a payload to read. The first question takes the message where that was not done before.
  bool is_valid() const { return lease_ && !lease_->failure(); }
  explicit operator bool() const { return is_valid(); }

  /// Why there is none; empty if there is.
  std::string error() const {
    if (!lease_) return "no message: default-constructed, moved from or released";
    const auto failure = lease_->failure();
    return failure ? failure->text : std::string();
  }
  /// The same as a status of rgaps.h.
  rgaps_status_t status() const {
    if (!lease_) return RGAPS_NO_MESSAGE;
    const auto failure = lease_->failure();
    return failure ? failure->status : RGAPS_OK;
  }

  /// What names the message, also where it could not be taken.
  rgaps_message_handle_t handle() const { return lease_ ? lease_->handle() : rgaps_message_handle_t{}; }
  /// What the payload is, also where it could not be taken. Stays as long as a copy of this object.
  const Meta &meta() const {
    static const Meta none = empty_meta<Meta>();
    return lease_ ? lease_->meta() : none;
  }
  /// Stamp, since 1970.
  std::chrono::nanoseconds stamp() const { return meta().stamp(); }
  /// Coordinate frame.
  std::string frame_id() const { return std::string(meta().frame_id()); }

  /// Where the payload lies: on the GPU, or in host memory where pools lie there. nullptr if there is none.
  const void *device_pointer() const {
    const auto pointer = with<const void *>([](auto &message) { return message.device_pointer(); });
    return pointer ? pointer.value() : nullptr;
  }

  /// The payload for the CPU: in place where it can read it, else a copy, made once and counted (copied_bytes). Empty if there is none, or if it
  /// is not aligned for T.
  template <class T = std::uint8_t>
  rgaps::Span<const T> host() const {
    const auto span = with<rgaps::Span<const T>>([](auto &message) { return message.template as<T>(); });
    return span ? span.value() : rgaps::Span<const T>();
  }

  /// Where it came from, the path that it took and when it passed each stage.
  rgaps::Result<rgaps_info_t> info() const {
    return with<rgaps_info_t>([](auto &message) { return message.info(); });
  }

  /// Whether the device has brought its bytes: a subscription that works on a stream gets messages before that.
  rgaps::Result<rgaps_readiness_t> readiness() const {
    return with<rgaps_readiness_t>([](auto &message) { return message.readiness(); });
  }

  /// A DLPack tensor for an array library; it holds the message by itself. See rgaps_sample_dlpack.
  rgaps::Result<DLManagedTensorVersioned *> dlpack(const char *field = nullptr, rgaps::Stream stream = nullptr) const {
    return with<DLManagedTensorVersioned *>([&](auto &message) { return message.dlpack(field, stream); });
  }

  /// Ends this share of the lease. When it was the last one, the message is released behind the work that `stream` has got by then. Whoever reads
  /// on several streams joins them before (cudaStreamWaitEvent).
  void release(rgaps::Stream stream) {
    if (lease_) lease_->release_on(stream);
    lease_.reset();
  }
  /// Ends this share of the lease.
  void release() { lease_.reset(); }

  /// The descriptor of this message.
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

/// A picture in device memory: an rgaps_msgs/GpuImage and the lease of its pixels.
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
