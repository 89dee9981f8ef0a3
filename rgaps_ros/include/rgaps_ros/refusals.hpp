/**
 * @file
 * Which refusals were told already: each is told once for each publisher and status, so that a bag that is played does not fill the log.
 */

#ifndef RGAPS_ROS__REFUSALS_HPP_
#define RGAPS_ROS__REFUSALS_HPP_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <mutex>
#include <utility>

#include "rgaps.hpp"

namespace rgaps_ros {

class Refusals {
 public:
  /// Refusals remembered; with more publishers the oldest is told again.
  static constexpr std::size_t remembered_max = 64;

  bool is_news(std::uint64_t publisher, rgaps_status_t status) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto refusal = std::make_pair(publisher, status);
    if (std::find(told_.begin(), told_.end(), refusal) != told_.end()) return false;
    told_.push_front(refusal);
    if (told_.size() > remembered_max) told_.pop_back();
    return true;
  }

 private:
  std::mutex mutex_;
  std::deque<std::pair<std::uint64_t, rgaps_status_t>> told_;
};

}  // namespace rgaps_ros

#endif  // RGAPS_ROS__REFUSALS_HPP_
