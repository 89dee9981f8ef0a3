/**
 * @file
 * Calls a function when ROS shuts down.
 *
 * The thread that shuts down calls the function, at most once, and never after the destructor has returned. The function must not destroy its own
 * OnShutdown.
 */

#ifndef RGAPS_ROS__SHUTDOWN_HPP_
#define RGAPS_ROS__SHUTDOWN_HPP_

#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "rclcpp/context.hpp"

namespace rgaps_ros {

/// Calls a function when a context is shut down; at once if it has been.
class OnShutdown {
 public:
  OnShutdown(rclcpp::Context::SharedPtr context, std::function<void()> function)
      : context_(std::move(context)), call_(std::make_shared<Call>(std::move(function))) {
    handle_ = context_->add_on_shutdown_callback([call = call_] { (*call)(); });
    if (is_over()) (*call_)();
  }

  ~OnShutdown() {
    call_->forget();
    context_->remove_on_shutdown_callback(handle_);
  }

  OnShutdown(const OnShutdown &) = delete;
  OnShutdown &operator=(const OnShutdown &) = delete;

  /// Whether the context was shut down.
  bool is_over() const { return !context_->is_valid(); }

 private:
  class Call {
   public:
    explicit Call(std::function<void()> function) : function_(std::move(function)) {}

    void operator()() {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (function_) function_();
      function_ = nullptr;
    }

    void forget() {
      const std::lock_guard<std::mutex> lock(mutex_);
      function_ = nullptr;
    }

   private:
    std::mutex mutex_;
    std::function<void()> function_;
  };

  const rclcpp::Context::SharedPtr context_;
  const std::shared_ptr<Call> call_;
  rclcpp::OnShutdownCallbackHandle handle_;
};

}  // namespace rgaps_ros

#endif  // RGAPS_ROS__SHUTDOWN_HPP_
