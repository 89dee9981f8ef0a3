"""The ends of the pipeline of examples/ros/rust: publishes clouds, and checks the resulting counts. The nodes in between must already run.

    clusters.py [diagnostics]

With `diagnostics`, also checks the nodes' statuses on /diagnostics.
"""

import sys
import threading

import numpy as np
import rclpy
import rgaps
import rgaps.ros
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.executors import SingleThreadedExecutor
from spinning import LONG, Spinning

ROUNDS = 5
PLACES = np.array([[0, 0, 0], [5, 0, 0], [0, 5, 1]], np.float32)


def cloud(number):
    """`number` + 1 clusters of 200 points each, in balls of 0.3 m, and one point with NaN."""
    random = np.random.default_rng(number)
    places = np.concatenate([PLACES, PLACES + 20])[: number + 1]
    points = np.zeros(200 * len(places) + 1, dtype=[("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("intensity", "<f4")])
    for axis in range(3):
        points["xyz"[axis]][:-1] = np.repeat(places[:, axis], 200) + random.uniform(-0.3, 0.3, 200 * len(places))
    points["x"][-1] = np.nan
    return points


def main():
    rclpy.init()
    node = rclpy.create_node("pipeline_ends")
    came, samples, statuses = threading.Condition(), [], {}

    def on_result(sample):
        with came:
            samples.append(sample)
            came.notify_all()

    def on_diagnostics(array):
        with came:
            statuses.update({status.name: {value.key: int(value.value) for value in status.values} for status in array.status})
            came.notify_all()

    node.create_subscription(DiagnosticArray, "/diagnostics", on_diagnostics, 10)
    result = rgaps.ros.Subscription(node, rgaps.Tensor, "clusters", on_result, 10)
    publisher = rgaps.ros.Publisher(node, rgaps.PointCloud, "points", 10)
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    spinning = Spinning(executor)
    try:
        check(node, publisher, result, came, samples)
        if "diagnostics" in sys.argv:
            check_diagnostics(came, statuses)
        print(f"{publisher.topic_name}: {ROUNDS} right", flush=True)
    finally:
        spinning.end()
        result.destroy()
        publisher.destroy()
        node.destroy_node()
        rclpy.shutdown()


def check(node, publisher, result, came, samples):
    while publisher.get_subscription_count() == 0 or result.get_publisher_count() == 0:
        node.executor.wake()
    # The two nodes in between must also have discovered each other.
    while not (node.count_publishers("points/filtered") and node.count_subscribers("points/filtered")):
        node.executor.wake()
    for number in range(ROUNDS):
        content = cloud(number)

        # As in ROS, messages published before all nodes have matched are lost. So the first is repeated until its result arrives.
        def ours(stamp=number + 1):
            return [sample for sample in samples if sample.meta.stamp == stamp]

        for _ in range(1 if number else int(LONG * 10)):
            publisher.push(content, stamp=number + 1)
            with came:
                if came.wait_for(ours, LONG if number else 0.1):
                    break
        with came:
            assert ours(), f"no result of {publisher.topic_name} {number}"
            found = np.asarray(ours()[0])
            samples.clear()
        assert found.tolist() == [number + 1], (found, number)
    assert result.statistics.copied_bytes == 0 and result.refused == 0


def check_diagnostics(came, statuses):
    def are_right():
        taken = [statuses.get(f"/{name}", {}).get("taken", 0) for name in ("voxel: subscription to /points", "clusters: subscription to /points/filtered")]
        return min(taken) >= ROUNDS and statuses.get("/voxel: publisher of /points/filtered", {}).get("published", 0) >= ROUNDS

    with came:
        assert came.wait_for(are_right, LONG), statuses
        for name, counters in statuses.items():
            assert counters.get("refused") == counters.get("copied_bytes", 0) == 0, (name, counters)


main()
