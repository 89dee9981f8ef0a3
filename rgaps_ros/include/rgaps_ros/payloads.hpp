/**
 * @file
 * Takes the messages of descriptors. The library counts descriptors that are early or refused, and chooses what is logged (rgaps_ros_payloads_t of
 * rgaps.h). Without rclcpp.
 */

#ifndef RGAPS_ROS__PAYLOADS_HPP_
#define RGAPS_ROS__PAYLOADS_HPP_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "rgaps_ros/descriptor.hpp"

namespace rgaps_ros {

/// The descriptors of one subscription, or those that a program only refuses.
class Payloads {
 public:
  /// Writes a line to the node's log: a warning, or a line for debugging. It must not throw.
  using Log = std::function<void(bool is_warning, const char *text)>;

  /// Without a subscriber: only refuse() is used.
  explicit Payloads(Log log) : Payloads(nullptr, std::chrono::nanoseconds(0), std::move(log)) {}

  /// Takes by this subscriber, and waits at most `timeout` for a message. Throws rgaps::Error.
  template <class Meta>
  Payloads(const rgaps::Subscriber<Meta> &subscriber, std::chrono::nanoseconds timeout, Log log)
      : Payloads(subscriber.c(), timeout, std::move(log)) {}

  /// The message of a descriptor. The status RGAPS_NO_MESSAGE is no fault: the message is early, or ROS shuts down. All others are refusals.
  template <class Meta>
  rgaps::Result<rgaps::Sample<Meta>> take(const Described<Meta> &described, const std::optional<rgaps::Stream> &stream) const {
    rgaps_sample_t *message = nullptr;
    const auto status = rgaps_ros_payloads_take(payloads_.get(), &described.handle, &described.meta.c(), stream ? &*stream : nullptr, &message);
    if (status == RGAPS_NO_MESSAGE) return rgaps::Failure{status, "there is no message: it is early, or ROS shuts down"};
    return rgaps::detail::made(status, rgaps::Sample<Meta>::adopt(message, stream.value_or(nullptr)));
  }

  /// Counts and logs a refusal that the program found itself. Returns false if the library cannot: the parent of a forked process made this object.
  bool refuse(std::uint64_t publisher, const rgaps::Failure &why) const {
    return rgaps_ros_payloads_refuse(payloads_.get(), publisher, static_cast<std::uint32_t>(why.status), why.text.c_str()) == RGAPS_OK;
  }

  /// Counters of descriptors.
  struct Counts {
    std::uint64_t refused = 0, early = 0;
  };
  Counts counts() const {
    Counts counts;
    static_cast<void>(rgaps_ros_payloads_counts(payloads_.get(), &counts.refused, &counts.early));
    return counts;
  }

  /// The handle, for the calls of rgaps.h.
  const rgaps_ros_payloads_t *c() const noexcept { return payloads_.get(); }

 private:
  struct End {
    void operator()(rgaps_ros_payloads_t *payloads) const { rgaps_ros_payloads_destroy(payloads); }
  };

  Payloads(const rgaps_subscriber_t *subscriber, std::chrono::nanoseconds timeout, Log log) : log_(std::make_unique<Log>(std::move(log))) {
    const auto write = [](void *context, std::uint32_t is_warning, const char *text) noexcept { (*static_cast<Log *>(context))(is_warning != 0, text); };
    rgaps_ros_payloads_t *payloads = nullptr;
    const auto status = rgaps_ros_payloads_create(subscriber, static_cast<std::uint64_t>(timeout.count()), write, log_.get(), &payloads);
    payloads_.reset(payloads);
    rgaps::detail::done(status).value();
  }

  std::unique_ptr<Log> log_;
  std::unique_ptr<rgaps_ros_payloads_t, End> payloads_;
};

}  // namespace rgaps_ros

#endif  // RGAPS_ROS__PAYLOADS_HPP_
