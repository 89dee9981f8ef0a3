/**
 * @file
 * Claims that wait for a payload, and stop waiting when ROS ends.
 *
 *     ask the core, at most a slice ──here, or refused──▶ done
 *          ▲           │ not yet
 *          └── sleep ──┘ a shutdown wakes; over at the time-out
 *
 * A payload that comes within the slice wakes the claim by itself; one that comes later is seen at the next look. A publisher of whom nothing
 * came within the time-out is not waited for again until something does: at most 16 are remembered.
 */

#ifndef RGAPS_ROS__CLAIMS_HPP_
#define RGAPS_ROS__CLAIMS_HPP_

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "rclcpp/context.hpp"
#include "rgaps.hpp"

namespace rgaps_ros {

/// The claims of one subscription. Usable from any thread.
template <class Meta>
class Claims {
 public:
  using Message = rgaps::Result<rgaps::Message<Meta>>;
  static constexpr std::chrono::nanoseconds slice = std::chrono::milliseconds(100);
  static constexpr std::chrono::nanoseconds look_period = std::chrono::milliseconds(10);
  static constexpr std::size_t missed_max = 16;

  Claims(rclcpp::Context::SharedPtr context, std::string topic, std::chrono::nanoseconds timeout, std::optional<rgaps::Stream> stream)
      : context_(std::move(context)), topic_(std::move(topic)), timeout_(timeout), stream_(stream) {}

  /// Whether ROS has ended; a claim that has not come by then never does.
  bool is_over() const { return !context_->is_valid(); }

  /// The message that a handle names.
  Message claim(const rgaps::Subscriber<Meta> &core, const rgaps_message_handle_t &handle) {
    const auto end = std::chrono::steady_clock::now() + timeout_;
    auto left = is_missed(handle.publisher) ? std::chrono::nanoseconds(0) : timeout_;
    for (;;) {
      auto claimed = ask(core, handle, std::min(left, slice));
      if (claimed || claimed.error().status != RGAPS_TIMED_OUT) {
        if (claimed) set_missed(handle.publisher, false);
        return claimed;
      }
      if (left > std::chrono::nanoseconds(0)) left = end - std::chrono::steady_clock::now();
      if (left <= std::chrono::nanoseconds(0)) {
        set_missed(handle.publisher, true);
        return rgaps::Failure{RGAPS_TIMED_OUT, text(handle)};
      }
      if (!context_->sleep_for(std::min(left, look_period))) return claimed;
    }
  }

 private:
  Message ask(const rgaps::Subscriber<Meta> &core, const rgaps_message_handle_t &handle, std::chrono::nanoseconds timeout) const {
    return stream_ ? core.claim_on(handle, timeout, *stream_) : core.claim(handle, timeout);
  }

  std::string text(const rgaps_message_handle_t &handle) const {
    const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(timeout_).count();
    char publisher[2 + 16 + 1];
    std::snprintf(publisher, sizeof publisher, "%#" PRIx64, handle.publisher);
    return topic_ + ": message " + std::to_string(handle.sequence) + " of publisher " + publisher + " has not come within " +
           std::to_string(milliseconds) + " ms: its descriptor is replayed, or the hosts' managers do not reach each other (rgaps topic info)";
  }

  bool is_missed(std::uint64_t publisher) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::find(missed_.begin(), missed_.end(), publisher) != missed_.end();
  }

  void set_missed(std::uint64_t publisher, bool is_missed) {
    const std::lock_guard<std::mutex> lock(mutex_);
    missed_.erase(std::remove(missed_.begin(), missed_.end(), publisher), missed_.end());
    if (is_missed) missed_.push_front(publisher);
    if (missed_.size() > missed_max) missed_.pop_back();
  }

  const rclcpp::Context::SharedPtr context_;
  const std::string topic_;
  const std::chrono::nanoseconds timeout_;
  const std::optional<rgaps::Stream> stream_;
  mutable std::mutex mutex_;
  std::deque<std::uint64_t> missed_;
};

}  // namespace rgaps_ros

#endif  // RGAPS_ROS__CLAIMS_HPP_
