"""Nodes for tests/ros: an action server and the subscribers of a GPU topic.

usage: ros_nodes.py action_server
       ros_nodes.py gpu TOPIC COUNT waits|events    subscribes to GpuImage, prints one line a descriptor, ends after COUNT
       ros_nodes.py relay TOPIC                     takes descriptors and publishes them again
"""

import sys

import rclpy
from rclpy.node import Node


def action_server():
    """Counts down Fibonacci goals, as the tutorials do."""
    from example_interfaces.action import Fibonacci
    from rclpy.action import ActionServer

    node = Node("fibonacci_server")

    def execute(goal):
        sequence = [0, 1]
        while len(sequence) < goal.request.order:
            sequence.append(sequence[-1] + sequence[-2])
        goal.succeed()
        result = Fibonacci.Result()
        result.sequence = sequence
        return result

    server = ActionServer(node, Fibonacci, "fibonacci", execute)
    print("ready", flush=True)
    rclpy.spin(node)
    server.destroy()


def gpu(topic, count, how):
    """Takes descriptors in an executor: by wait sets, or by callbacks (the events executor)."""
    from rclpy.qos import QoSProfile
    from rgaps_msgs.msg import GpuImage

    if how == "events":
        from rclpy.experimental import EventsExecutor as Executor
    else:
        from rclpy.executors import SingleThreadedExecutor as Executor
    node = Node("viewer_" + how)
    taken = []

    def see(message):
        taken.append(message.handle.sequence)
        print("taken", message.handle.sequence, message.width, message.height, message.encoding, flush=True)

    node.create_subscription(GpuImage, topic, see, QoSProfile(depth=50))
    executor = Executor()
    executor.add_node(node)
    print("ready", flush=True)
    while len(taken) < count:
        executor.spin_once()
    print("in order" if taken == sorted(taken) else "out of order", flush=True)


def relay(topic):
    """Publishes every descriptor that it takes again on the same topic, and one without a message, which is refused."""
    from rgaps_msgs.msg import GpuImage

    node = Node("relay")
    publisher = node.create_publisher(GpuImage, topic, 10)

    def again(message):
        publisher.publish(message)
        print("published", message.handle.sequence, flush=True)

    node.create_subscription(GpuImage, topic, again, 10)
    try:
        publisher.publish(GpuImage())
        print("a descriptor without a message was published", flush=True)
    except Exception as error:
        print("refused:", error, flush=True)
    print("ready", flush=True)
    rclpy.spin(node)


def main():
    """Runs the node that the arguments select."""
    rclpy.init()
    if sys.argv[1] == "action_server":
        action_server()
    elif sys.argv[1] == "relay":
        relay(sys.argv[2])
    else:
        gpu(sys.argv[2], int(sys.argv[3]), sys.argv[4])


if __name__ == "__main__":
    try:
        main()
    except (KeyboardInterrupt, rclpy.executors.ExternalShutdownException):
        pass
