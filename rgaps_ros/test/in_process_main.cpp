// Runs the in-process tests of all files. ROS stays initialized for all of them.
//
// Needs rgapsd in PATH; the tests start a manager with its own runtime directory.

#include <gtest/gtest.h>
#include <stdlib.h>

#include <string>

#include "rclcpp/rclcpp.hpp"

int main(int argc, char **argv) {
  auto folder = "/tmp/rgaps-ros-" + std::string(6, 'X');
  if (!getenv("RGAPS_RUNTIME_DIR") && mkdtemp(folder.data())) setenv("RGAPS_RUNTIME_DIR", folder.c_str(), 1);
  testing::InitGoogleTest(&argc, argv);
  rclcpp::init(argc, argv);
  const int failed = RUN_ALL_TESTS();
  if (rclcpp::ok()) rclcpp::shutdown();
  return failed;
}
