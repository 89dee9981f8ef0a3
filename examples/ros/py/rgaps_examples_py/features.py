"""A node that publishes features, float32 1 x 3 x 32 x 32, on `features`: so many a second, each another one."""

import numpy as np
import rclpy
import rgaps
import rgaps.ros
from rclpy.executors import ExternalShutdownException

SHAPE = (1, 3, 32, 32)


def content(number):
    """Feature `number`."""
    return (np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE) * (number + 1)) % 7


def main():
    rclpy.init()
    node = rclpy.create_node("features")
    publisher = rgaps.ros.Publisher(node, rgaps.Tensor, "features", 10)
    rate = node.declare_parameter("rate", 10.0).value
    published = iter(range(2**62))

    def publish():
        with publisher.loan(rgaps.Tensor(SHAPE, "float32")) as loan:
            np.asarray(loan)[:] = content(next(published))

    node.create_timer(1 / rate, publish)
    try:
        rclpy.spin(node)
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    publisher.destroy()


if __name__ == "__main__":
    main()
