/**
 * @file
 * Leases: a taken message, or the reason why it was not taken, shared by all copies of a device object. Without rclcpp.
 *
 *     described ──first use: the lease of a payload subscription──▶ held ──last share gone──▶ over
 *                                                  or refused (a text)
 *
 * A lease starts held or refused if a subscription made it. A publisher passes on only a described lease within the process; on first use it finds
 * the lease of a payload subscription. Usable from any thread: its calls are serialized.
 */

#ifndef RGAPS_ROS__LEASE_HPP_
#define RGAPS_ROS__LEASE_HPP_

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "rgaps_ros/descriptor.hpp"

namespace rgaps_ros {

template <class Meta>
class Lease {
 public:
  using Find = std::function<std::shared_ptr<Lease>()>;

  /// A lease whose message is still to be taken.
  Lease(const Described<Meta> &described, Find find)
      : handle_(described.handle), meta_(described.meta), find_(std::move(find)), failure_{RGAPS_STALE, "the message has not been taken"} {}

  /// A lease of a take's result.
  Lease(const Described<Meta> &described, rgaps::Result<rgaps::Sample<Meta>> taken)
      : handle_(described.handle), meta_(described.meta) {
    if (!taken) {
      failure_ = taken.error();
      return;
    }
    if (auto meta = taken->meta()) meta_ = *meta;
    message_.emplace(std::move(*taken));
  }

  ~Lease() { end(); }
  Lease(const Lease &) = delete;
  Lease &operator=(const Lease &) = delete;

  const rgaps_message_handle_t &handle() const noexcept { return handle_; }

  /// The metadata: the core's once the message is taken, the descriptor's before. Valid as long as the lease.
  const Meta &meta() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return found_ ? found_->meta() : meta_;
  }

  /// Why there is no message; nothing if there is one. Takes the message if that has not happened yet.
  std::optional<rgaps::Failure> failure() {
    const std::lock_guard<std::mutex> lock(mutex_);
    find();
    if (found_) return found_->failure();
    return message_ ? std::nullopt : std::optional<rgaps::Failure>(failure_);
  }

  /// The result of `call` on the message, or why there is no message.
  template <class T, class Call>
  rgaps::Result<T> with(Call &&call) {
    const std::lock_guard<std::mutex> lock(mutex_);
    find();
    if (found_) return found_->template with<T>(std::forward<Call>(call));
    if (!message_) return failure_;
    return call(*message_);
  }

  /// Releases the message, when its last share is gone, behind the work enqueued on this stream so far.
  void release_on(rgaps::Stream stream) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (found_) return found_->release_on(stream);
    stream_ = stream;
  }

 private:
  void find() {
    if (!find_) return;
    found_ = find_();
    find_ = nullptr;
  }

  void end() {
    if (!message_ || !stream_) return;
    // A failure here cannot be reported, and the message is released in any case.
    static_cast<void>(std::move(*message_).release(*stream_));
  }

  const rgaps_message_handle_t handle_;
  std::mutex mutex_;
  Meta meta_;
  Find find_;
  // The lease of a payload subscription. A separate object, so that locks are taken in one order.
  std::shared_ptr<Lease> found_;
  std::optional<rgaps::Sample<Meta>> message_;
  rgaps::Failure failure_{RGAPS_OK, {}};
  std::optional<rgaps::Stream> stream_;
};

}  // namespace rgaps_ros

#endif  // RGAPS_ROS__LEASE_HPP_
