#!/usr/bin/env python3
"""Waits until exactly one node publishes a topic of sensor_msgs/Image, and receives pictures of it, none twice.

usage: bridge_watch.py TOPIC COUNT

Prints the publishing node.
"""

import sys
import time

import rclpy
from rclpy.node import Node
from sensor_msgs.msg import Image

SECONDS_MAX = 60


def main():
    topic, count = sys.argv[1], int(sys.argv[2])
    rclpy.init()
    node = Node('bridge_watch')
    stamps = []
    subscription = node.create_subscription(Image, topic, lambda image: stamps.append(image.header.stamp.sec), 50)

    def until(is_so, what):
        end = time.monotonic() + SECONDS_MAX
        while not is_so():
            if time.monotonic() > end:
                sys.exit(f'{what}: not in time; published by {publishers()}')
            rclpy.spin_once(node, timeout_sec=0.05)

    def publishers():
        return [info.node_name for info in node.get_publishers_info_by_topic(topic)]

    # An RMW may know an endpoint before the name of its node.
    until(lambda: len(publishers()) == 1 and publishers()[0] != '_NODE_NAME_UNKNOWN_', 'one publisher')
    stamps.clear()
    until(lambda: len(stamps) >= count, f'{count} pictures')
    if len(publishers()) != 1 or len(set(stamps)) != len(stamps):
        sys.exit(f'published by {publishers()}, stamps {stamps}')
    print(publishers()[0])
    node.destroy_subscription(subscription)


if __name__ == '__main__':
    main()
