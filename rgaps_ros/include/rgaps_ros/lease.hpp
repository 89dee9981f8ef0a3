/**
 * @file
 * Leases: a message that is taken, or why it is not, shared by everybody who was handed it. Without rclcpp.
 *
 *     described ──first use: the lease of a payload subscription──▶ held ──last share gone──▶ over
 *                                                  or refused (a text)
 *
 * A lease begins held or refused where a subscription has taken it. What a publisher passes on within the process is only described, and
 * finds the lease of a payload subscription when it is first used. Usable from any thread: its calls are made one at a time.
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

  /// Of what is still to be found.
  Lease(const Described<Meta> &described, Find find)
      : handle_(described.handle), meta_(described.meta), find_(std::move(find)), failure_{RGAPS_STALE, "nobody has taken this message"} {}

  /// Of what was taken, or was not.
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

  /// What the payload is: as the core says once it is taken, before that as the descriptor says. Stays as long as the lease.
  const Meta &meta() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return found_ ? found_->meta() : meta_;
  }

  /// Why there is no message; nothing if there is one. Finds it if nobody has.
  std::optional<rgaps::Failure> failure() {
    const std::lock_guard<std::mutex> lock(mutex_);
    find();
    if (found_) return found_->failure();
    return message_ ? std::nullopt : std::optional<rgaps::Failure>(failure_);
  }

  /// What `call` says of the message, or why there is none.
  template <class T, class Call>
  rgaps::Result<T> with(Call &&call) {
    const std::lock_guard<std::mutex> lock(mutex_);
    find();
    if (found_) return found_->template with<T>(std::forward<Call>(call));
    if (!message_) return failure_;
    return call(*message_);
  }

  /// Lets the message go, when its last share is gone, behind what this stream has got by then.
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
    // A failure has no one to be told to, and the message is over in any case.
    static_cast<void>(std::move(*message_).release(*stream_));
  }

  const rgaps_message_handle_t handle_;
  std::mutex mutex_;
  Meta meta_;
  Find find_;
  // Of a payload subscription: another lease than this one, so that locks are taken in one order.
  std::shared_ptr<Lease> found_;
  std::optional<rgaps::Sample<Meta>> message_;
  rgaps::Failure failure_{RGAPS_OK, {}};
  std::optional<rgaps::Stream> stream_;
};

}  // namespace rgaps_ros

#endif  // RGAPS_ROS__LEASE_HPP_
