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
                sys.exit(f'{what}: not in time; {node.get_publishers_info_by_topic(topic)}')
            rclpy.spin_once(node, timeout_sec=0.05)

    until(lambda: len(node.get_publishers_info_by_topic(topic)) == 1, 'one publisher')
    stamps.clear()
    until(lambda: len(stamps) >= count, f'{count} pictures')
    publishers = [info.node_name for info in node.get_publishers_info_by_topic(topic)]
    if len(publishers) != 1 or len(set(stamps)) != len(stamps):
        sys.exit(f'published by {publishers}, stamps {stamps}')
    node.destroy_subscription(subscription)
    print(publishers[0])


if __name__ == '__main__':
    main()
