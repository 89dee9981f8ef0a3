/**
 * @file
 * PayloadSubscriptions: core subscribers for nodes that use the type adapter alone, without rgaps_ros::create_subscription. Without rclcpp.
 *
 * rclcpp does not tell an adapter the topic or subscription of a descriptor. So each payload subscription of the kind is tried in turn. What it gives
 * is remembered, because rclcpp converts a message once for each subscription. The topic's other payload subscriptions then release that message,
 * since no subscription will take it from them.
 *
 * Bounds: at most 8 payload subscriptions of a kind; 64 remembered publishers; for each payload subscription its last 64 leases, all but the newest
 * weakly. A take by handle waits at most the longest time-out, over all payload subscriptions together. Without a payload subscription, each
 * publisher causes at most one search for a topic a second.
 */

#ifndef RGAPS_ROS__PAYLOAD_SUBSCRIPTIONS_HPP_
#define RGAPS_ROS__PAYLOAD_SUBSCRIPTIONS_HPP_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "rgaps_ros/device.hpp"
#include "rgaps_ros/process.hpp"

namespace rgaps_ros {

namespace detail {

inline bool same_message(const rgaps_message_handle_t &one, const rgaps_message_handle_t &other) {
  return one.publisher == other.publisher && one.sequence == other.sequence && one.host_epoch == other.host_epoch &&
         std::memcmp(one.source_host, other.source_host, sizeof one.source_host) == 0;
}

/// A core subscriber, and its latest leases.
template <class Meta>
struct PayloadSubscriptionContent {
  const std::shared_ptr<rgaps::Node> node;
  const std::string topic;
  const rgaps::Subscriber<Meta> subscriber;
  /// How long to wait for a descriptor's payload.
  const std::chrono::nanoseconds timeout;

  std::mutex mutex;
  std::deque<std::weak_ptr<Lease<Meta>>> recent;
  std::shared_ptr<Lease<Meta>> newest;

  PayloadSubscriptionContent(std::shared_ptr<rgaps::Node> node_, std::string topic_, rgaps::Subscriber<Meta> subscriber_, std::chrono::nanoseconds timeout_)
      : node(std::move(node_)), topic(std::move(topic_)), subscriber(std::move(subscriber_)), timeout(timeout_) {}
};

}  // namespace detail

/// All payload subscriptions of one kind.
template <class Meta>
class PayloadSubscriptions {
 public:
  using Content = detail::PayloadSubscriptionContent<Meta>;
  using SharedLease = std::shared_ptr<Lease<Meta>>;
  static constexpr std::size_t subscriptions_max = 8;
  static constexpr std::size_t recent_max = 64;
  static constexpr std::size_t publishers_max = 64;
  static constexpr std::chrono::nanoseconds timeout_default = std::chrono::seconds(1);
  static constexpr std::chrono::nanoseconds attach_period = std::chrono::seconds(1);

  static PayloadSubscriptions &instance() {
    static PayloadSubscriptions *const subscriptions = new PayloadSubscriptions;
    return *subscriptions;
  }

  /// The lease of a message, a new one or one that was given out before; held or refused.
  SharedLease lease(const Described<Meta> &described) {
    if (auto right = check(described); !right) return refused(described, right.error());
    const auto subscriptions = ordered(described.handle.publisher);
    rgaps::Failure failure{RGAPS_STALE, {}};
    const auto share = static_cast<std::int64_t>(subscriptions.size());
    for (const auto &subscription : subscriptions) {
      const auto [lease, is_known] = take_by_handle(*subscription, described, subscription->timeout / share);
      if (is_known) return lease;
      const auto why = lease->failure();
      if (!why) {
        remember(described.handle.publisher, subscription);
        give_up(*subscription, described.handle);
        return lease;
      }
      if (failure.text.empty()) failure = *why;
    }
    return refused(described, subscriptions.empty() ? attach(described) : failure);
  }

  /// Makes a payload subscription on a topic.
  rgaps::Result<std::shared_ptr<Content>> add(std::shared_ptr<rgaps::Node> node, const std::string &topic,
                                              const rgaps_subscriber_qos_t &qos, std::chrono::nanoseconds timeout = timeout_default) {
    auto made = node->subscriber<Meta>(topic, qos);
    if (!made) return made.error();
    auto subscription = std::make_shared<Content>(std::move(node), topic, std::move(*made), timeout);
    const std::lock_guard<std::mutex> lock(mutex_);
    subscriptions_.erase(std::remove_if(subscriptions_.begin(), subscriptions_.end(), [](const auto &old) { return old.expired(); }), subscriptions_.end());
    if (subscriptions_.size() >= subscriptions_max) {
      return rgaps::Failure{RGAPS_REFUSED, std::string("a process has at most ") + std::to_string(subscriptions_max) + " payload subscriptions of " +
                                               Kind<Meta>::type_name + "; use rgaps_ros::create_subscription"};
    }
    subscriptions_.push_back(subscription);
    return subscription;
  }

 private:
  struct Known {
    std::uint64_t publisher;
    std::weak_ptr<Content> subscription;
  };

  PayloadSubscriptions() = default;

  static SharedLease refused(const Described<Meta> &described, rgaps::Failure failure) {
    return std::make_shared<Lease<Meta>>(described, rgaps::Result<rgaps::Sample<Meta>>(std::move(failure)));
  }

  /// The payload subscriptions; only the publisher's own, if it is known.
  std::vector<std::shared_ptr<Content>> ordered(std::uint64_t publisher) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto &known : known_) {
      if (known.publisher != publisher) continue;
      if (auto subscription = known.subscription.lock()) return {std::move(subscription)};
    }
    return living();
  }

  /// Requires the lock.
  std::vector<std::shared_ptr<Content>> living() const {
    std::vector<std::shared_ptr<Content>> subscriptions;
    for (const auto &weak : subscriptions_) {
      if (auto subscription = weak.lock()) subscriptions.push_back(std::move(subscription));
    }
    return subscriptions;
  }

  /// Makes the topic's other payload subscriptions release a message that this one gave.
  void give_up(const Content &of, const rgaps_message_handle_t &handle) {
    std::vector<std::shared_ptr<Content>> subscriptions;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      subscriptions = living();
    }
    for (const auto &subscription : subscriptions) {
      if (subscription.get() != &of && subscription->topic == of.topic) static_cast<void>(subscription->subscriber.take_by_handle(handle, std::chrono::nanoseconds(0)));
    }
  }

  void remember(std::uint64_t publisher, const std::shared_ptr<Content> &subscription) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto &known : known_) {
      if (known.publisher == publisher) return void(known.subscription = subscription);
    }
    known_.push_front({publisher, subscription});
    if (known_.size() > publishers_max) known_.pop_back();
  }

  /// The lease that a payload subscription gives for a message, and whether it is one given before that is still in use.
  static std::pair<SharedLease, bool> take_by_handle(Content &subscription, const Described<Meta> &described, std::chrono::nanoseconds timeout) {
    const std::lock_guard<std::mutex> lock(subscription.mutex);
    for (const auto &weak : subscription.recent) {
      if (auto known = weak.lock(); known && detail::same_message(known->handle(), described.handle)) return {known, true};
    }
    auto lease = std::make_shared<Lease<Meta>>(described, subscription.subscriber.take_by_handle(described.handle, timeout));
    if (!lease->failure()) {
      subscription.recent.push_front(lease);
      if (subscription.recent.size() > recent_max) subscription.recent.pop_back();
      subscription.newest = lease;
    }
    return {lease, false};
  }

  /// Makes a payload subscription on the only topic of this kind, for the descriptors after this one. A failure may be temporary, so this is tried
  /// again.
  rgaps::Failure attach(const Described<Meta> &described) {
    const std::lock_guard<std::mutex> lock(attach_mutex_);
    if (!ordered(described.handle.publisher).empty()) return {RGAPS_STALE, "subscribed to the payloads just now; the next messages will be valid"};
    const auto publisher = described.handle.publisher;
    const auto now = std::chrono::steady_clock::now();
    const auto known = std::find_if(attached_.begin(), attached_.end(), [publisher](const Attached &tried) { return tried.publisher == publisher; });
    if (known != attached_.end()) {
      if (now - known->tried < attach_period) return known->failure;
      attached_.erase(known);
    }
    attached_.push_front({publisher, subscribe_to_the_only_topic(), now});
    if (attached_.size() > publishers_max) attached_.pop_back();
    return attached_.front().failure;
  }

  rgaps::Failure subscribe_to_the_only_topic() {
    const std::string kind = Kind<Meta>::type_name;
    auto nodes = Process::instance().nodes();
    if (nodes.empty()) {
      const auto domain = Process::default_domain();
      auto node = Process::instance().node(domain, {});
      if (!node) return node.error();
      nodes.push_back({domain, *node});
    }
    std::shared_ptr<rgaps::Node> of;
    std::vector<std::string> topics;
    for (const auto &known : nodes) {
      for (auto &topic : published(known, kind)) {
        if (std::find(topics.begin(), topics.end(), topic) != topics.end()) continue;
        topics.push_back(std::move(topic));
        of = known.node;
      }
    }
    if (topics.size() != 1) {
      std::string text = "there is no payload subscription, and there are " + std::to_string(topics.size()) + " topics of " + kind;
      for (const auto &topic : topics) text += (&topic == &topics.front() ? " (" : ", ") + topic;
      if (!topics.empty()) text += ")";
      return {RGAPS_STALE, text + "; use rgaps_ros::create_subscription, or keep an rgaps_ros::PayloadSubscription of the topic"};
    }
    auto subscription = add(of, topics.front(), rgaps_subscriber_qos_default());
    if (!subscription) return subscription.error();
    own_.push_back(*subscription);
    return {RGAPS_STALE, "subscribed to the payloads of " + topics.front() +
                             " by its first descriptor; the next messages will be valid (rgaps_ros::create_subscription misses none)"};
  }

  /// Names of the topics of a type that have a publisher.
  static std::vector<std::string> published(const Process::Known &known, const std::string &type) {
    std::vector<rgaps_topic_t> all(256);
    std::uint64_t count = 0;
    if (rgaps_node_topics(known.node->c(), all.data(), all.size(), &count) != RGAPS_OK) return {};
    all.resize(static_cast<std::size_t>(std::min<std::uint64_t>(count, all.size())));
    std::vector<std::string> names;
    for (const auto &topic : all) {
      if (topic.domain == known.domain && topic.publishing_hosts > 0 && type == topic.type_name) names.emplace_back(topic.name);
    }
    return names;
  }

  struct Attached {
    std::uint64_t publisher;
    rgaps::Failure failure;
    std::chrono::steady_clock::time_point tried;
  };

  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<Content>> subscriptions_;
  std::deque<Known> known_;

  std::mutex attach_mutex_;
  std::deque<Attached> attached_;
  std::vector<std::shared_ptr<Content>> own_;
};

}  // namespace rgaps_ros

#endif  // RGAPS_ROS__PAYLOAD_SUBSCRIPTIONS_HPP_
