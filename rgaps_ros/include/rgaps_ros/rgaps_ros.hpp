/**
 * @file
 * Includes everything that a node needs: device types, type adapters, publishers, subscriptions.
 */

#ifndef RGAPS_ROS__RGAPS_ROS_HPP_
#define RGAPS_ROS__RGAPS_ROS_HPP_

#include "rgaps_ros/publisher.hpp"
#include "rgaps_ros/subscription.hpp"

#endif  // RGAPS_ROS__RGAPS_ROS_HPP_
