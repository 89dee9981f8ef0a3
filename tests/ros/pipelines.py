"""The ends of the pipelines of examples/ros: publishes what they begin with, and checks what comes out. Nodes in between run already.

    pipelines.py clusters
    pipelines.py scores
"""

import sys
import threading

import numpy as np
import rclpy
import rgaps
import rgaps.ros
from rclpy.executors import SingleThreadedExecutor

LONG = 60.0
ROUNDS = 5
PLACES = np.array([[0, 0, 0], [5, 0, 0], [0, 5, 1]], np.float32)


def cloud(number):
    """`number` + 1 clusters of 200 points each, in balls of 0.3 m, and one point that is nowhere."""
    random = np.random.default_rng(number)
    places = np.concatenate([PLACES, PLACES + 20])[: number + 1]
    points = np.zeros(200 * len(places) + 1, dtype=[("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("intensity", "<f4")])
    for axis in range(3):
        points["xyz"[axis]][:-1] = np.repeat(places[:, axis], 200) + random.uniform(-0.3, 0.3, 200 * len(places))
    points["x"][-1] = np.nan
    return points


def features(number):
    return (np.arange(3 * 32 * 32, dtype=np.float32).reshape(1, 3, 32, 32) * (number + 1)) % 7


def scores(content):
    weights = (np.arange(10 * 3 * 32 * 32, dtype=np.float32).reshape(10, -1) % 17 - 8) / (3 * 32 * 32)
    return np.maximum(content.reshape(1, -1) @ weights.T, 0)


def main():
    rclpy.init()
    node = rclpy.create_node("pipeline_ends")
    came, frames = threading.Condition(), []

    def on_result(frame):
        with came:
            frames.append(frame)
            came.notify_all()

    is_cloud = sys.argv[1] == "clusters"
    result = rgaps.ros.Subscription(node, rgaps.Tensor, sys.argv[1], on_result, 10)
    kind, topic = (rgaps.PointCloud, "points") if is_cloud else (rgaps.Tensor, "features")
    publisher = rgaps.ros.Publisher(node, kind, topic, 10)
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    spinning = threading.Thread(target=executor.spin)
    spinning.start()
    try:
        check(node, publisher, result, came, frames)
    finally:
        result.destroy()
        publisher.destroy()
        executor.shutdown()
        spinning.join()
        node.destroy_node()
        rclpy.shutdown()


def check(node, publisher, result, came, frames):
    is_cloud = publisher.topic_name == "/points"
    while publisher.get_subscription_count() == 0 or result.get_publisher_count() == 0:
        node.executor.wake()
    if is_cloud:  # The two nodes in between have to know each other, too.
        while not (node.count_publishers("points/filtered") and node.count_subscribers("points/filtered")):
            node.executor.wake()
    for number in range(ROUNDS):
        content = (cloud if is_cloud else features)(number)
        # What is published before all nodes have matched is lost, as in ROS: the first is sent until it comes, perhaps more than once.
        def ours():
            return [frame for frame in frames if frame.meta.stamp == number + 1]

        for _ in range(1 if number else int(LONG * 10)):
            publisher.push(content, stamp=number + 1)
            with came:
                if came.wait_for(ours, LONG if number else 0.1):
                    break
        with came:
            assert ours(), f"no result of {publisher.topic_name} {number}"
            found = np.asarray(ours()[0])
            frames.clear()
        if is_cloud:
            assert found.tolist() == [number + 1], (found, number)
        else:
            assert np.allclose(found, scores(content), atol=1e-3), number
    assert result.statistics.copied_bytes == 0 and result.refused == 0
    print(f"{publisher.topic_name}: {ROUNDS} right", flush=True)


main()
