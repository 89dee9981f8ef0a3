"""A node with a model between two topics: takes features where they lie, runs a small network on them, publishes its scores.

It takes tensors of float32 1 x 3 x 32 x 32 from `features` and publishes 1 x 10 on `scores`, with the stamp of the features. It runs on torch where
that is installed, on the GPU if the host's pools lie there, and on numpy where not; weights are made by a formula.
"""

import numpy as np
import rclpy
import rgaps
import rgaps.ros
from rclpy.executors import ExternalShutdownException

try:
    import torch
except ImportError:
    torch = None

CLASSES, INPUTS = 10, 3 * 32 * 32


def weights():
    """The same on every machine."""
    return (np.arange(CLASSES * INPUTS, dtype=np.float32).reshape(CLASSES, INPUTS) % 17 - 8) / INPUTS


class TorchModel:
    def __init__(self):
        self.weights = torch.from_numpy(weights())

    def __call__(self, frame):
        features = torch.from_dlpack(frame)  # no copy: the memory that the publisher wrote
        self.weights = self.weights.to(features.device)
        with torch.no_grad():
            return torch.relu(features.reshape(1, INPUTS) @ self.weights.T)


class NumpyModel:
    def __init__(self):
        self.weights = weights()

    def __call__(self, frame):
        features = np.asarray(frame)  # no copy where the pools are host memory
        return np.maximum(features.reshape(1, INPUTS) @ self.weights.T, 0)


def main():
    rclpy.init()
    node = rclpy.create_node("model")
    model = TorchModel() if torch else NumpyModel()
    scores = rgaps.ros.Publisher(node, rgaps.Tensor, "scores", 10)

    def on_features(frame):
        result = model(frame)
        scores.push(result, stamp=frame.meta.stamp, frame_id=frame.meta.frame_id)
        node.get_logger().info(f"features {frame.info.sequence}: class {int(result.argmax())}")

    features = rgaps.ros.Subscription(node, rgaps.Tensor, "features", on_features, 10)
    node.get_logger().info(f"ready: {type(model).__name__}")
    try:
        rclpy.spin(node)
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    features.destroy()
    scores.destroy()


if __name__ == "__main__":
    main()
