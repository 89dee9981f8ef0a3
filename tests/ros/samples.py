"""Samples of rclpy nodes for tests/ros/clients: publishes images whose content follows from their number, or checks them.

    samples.py publish TOPIC COUNT SUBSCRIPTIONS CORE_SUBSCRIBERS
    samples.py stream TOPIC 0
    samples.py subscribe TOPIC COUNT [threads]
    samples.py join TOPIC COUNT [threads]
    samples.py both TOPIC COUNT [threads]

`stream` publishes until its input ends; `join` begins with any image. crates/rgaps-ros/examples has the same in Rust, except
`stream`.
"""

import sys
import threading
import time

import numpy as np
import rclpy
import rgaps
import rgaps.ros
from rclpy.executors import MultiThreadedExecutor, SingleThreadedExecutor
from spinning import Spinning

# Messages that ROS keeps: more than are published at once.
DEPTH = 100
WIDTH, HEIGHT = 320, 240


def picture(number):
    return rgaps.Image(WIDTH, HEIGHT, "rgb8", frame_id="camera", user=number.to_bytes(4, "little"))


def content(number):
    places = np.arange(WIDTH * HEIGHT * 3, dtype=np.int64)
    return ((places + 13 * number) % 251).astype(np.uint8).reshape(HEIGHT, WIDTH, 3)


class Checked:
    """The samples received."""

    def __init__(self, count, joins=False):
        self.count, self.samples, self.mismatched, self.in_place = count, 0, 0, 0
        self.first = None if joins else 0
        self.is_done = threading.Event()

    def __call__(self, sample):
        if self.samples == self.count:
            return  # The stream goes on after the last sample that is checked.
        number = int.from_bytes(sample.meta.user[:4], "little")
        seen = np.asarray(sample)
        if self.first is None:
            self.first = number
        is_right = number == self.first + self.samples and sample.meta.stamp > 0 and sample.meta.frame_id == "camera"
        # The array is the memory of the message itself.
        is_right &= np.array_equal(seen, content(number)) and seen.ctypes.data == sample.address
        self.mismatched += not is_right
        self.in_place += sample.is_in_place
        self.samples += 1
        if self.samples == self.count:
            self.is_done.set()

    def line(self, subscription):
        numbers = subscription.statistics
        return (
            f"samples {self.samples} mismatched {self.mismatched} in_place {self.in_place} copied_bytes {numbers.copied_bytes} "
            f"lost {numbers.lost} refused {subscription.refused}"
        )


def publish(publisher, count, subscriptions, core_subscribers):
    while publisher.get_subscription_count() < subscriptions or publisher.core.subscriber_count < core_subscribers:
        time.sleep(0.001)
    for number in range(count):
        with publisher.loan(picture(number)) as loan:
            np.asarray(loan)[:] = content(number)
    print(f"published {count}", flush=True)


def stream(publisher):
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), ended.set()), daemon=True).start()
    number = 0
    while not ended.wait(0.005):
        publisher.push(content(number), picture(number))
        number += 1


def main():
    arguments = sys.argv[1 : sys.argv.index("--ros-args")] if "--ros-args" in sys.argv else sys.argv[1:]
    what, topic, count, *rest = arguments
    rclpy.init()
    node = rclpy.create_node("samples_rclpy")
    executor = MultiThreadedExecutor(4) if "threads" in rest else SingleThreadedExecutor()
    executor.add_node(node)
    endpoints = []
    if what in ("subscribe", "join", "both"):
        checked = Checked(int(count), what == "join")
        endpoints.append(rgaps.ros.Subscription(node, rgaps.Image, topic, checked, DEPTH))
    if what in ("publish", "stream", "both"):
        endpoints.append(rgaps.ros.Publisher(node, rgaps.Image, topic, DEPTH))
    spinning = Spinning(executor)
    print(f"ready {endpoints[0].topic_name}", flush=True)
    if what == "publish":
        publish(endpoints[0], int(count), int(rest[0]), int(rest[1]))
        # Subscribers read to the end; the caller says when to exit.
        sys.stdin.readline()
    elif what == "stream":
        stream(endpoints[0])
    elif what == "both":
        publish(endpoints[1], int(count), 1, 1)
    if what not in ("publish", "stream"):
        checked.is_done.wait()
        print(checked.line(endpoints[0]), flush=True)
    spinning.end()
    for endpoint in endpoints:
        endpoint.destroy()
    node.destroy_node()
    rclpy.shutdown()


if __name__ == "__main__":
    main()
