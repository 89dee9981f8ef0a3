// The tests within one process, from all files: ROS is there from the first to the last of them.
//
// A manager, rgapsd, must be found in PATH; the tests start one with a runtime directory of their own.

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
