/**
 * @file
 * Limits log messages about refusals: each is logged once for each publisher and status, so that playing a bag does not fill the log. If there are
 * more of them than can be remembered (forged descriptors), one a second is logged.
 */

#ifndef RGAPS_ROS__REFUSALS_HPP_
#define RGAPS_ROS__REFUSALS_HPP_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <mutex>
#include <utility>

#include "rgaps.hpp"

namespace rgaps_ros {

class Refusals {
 public:
  /// Refusals remembered.
  static constexpr std::size_t remembered_max = 64;

  static constexpr std::chrono::seconds pause{1};

  bool is_news(std::uint64_t publisher, rgaps_status_t status) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto refusal = std::make_pair(publisher, status);
    if (std::find(told_.begin(), told_.end(), refusal) != told_.end()) return false;
    const auto now = std::chrono::steady_clock::now();
    if (told_.size() >= remembered_max && now < last_ + pause) return false;
    last_ = now;
    told_.push_front(refusal);
    if (told_.size() > remembered_max) told_.pop_back();
    return true;
  }

 private:
  std::mutex mutex_;
  std::deque<std::pair<std::uint64_t, rgaps_status_t>> told_;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace rgaps_ros

#endif  // RGAPS_ROS__REFUSALS_HPP_
