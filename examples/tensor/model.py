"""A model between two topics: takes features in place, runs a small network on them, publishes its scores.

`python examples/tensor/model.py [COUNT]` takes tensors of float32 1 x 3 x 32 x 32 from `features` and publishes 1 x 10 on `scores`. It runs
on torch if that is installed (on the GPU if the host's pools are there), else on numpy. A formula gives the weights.
"""

import sys

import numpy as np
import rgaps

try:
    import torch
except ImportError:
    torch = None

CLASSES, INPUTS = 10, 3 * 32 * 32


def weights():
    """Weights that are the same on every machine."""
    return (np.arange(CLASSES * INPUTS, dtype=np.float32).reshape(CLASSES, INPUTS) % 17 - 8) / INPUTS


class TorchModel:
    name = "torch"

    def __init__(self, device):
        self.device = torch.device("cpu" if device == "host" else device)
        self.layer = torch.nn.Linear(INPUTS, CLASSES, bias=False)
        with torch.no_grad():
            self.layer.weight.copy_(torch.from_numpy(weights()))
        self.layer.to(self.device)

    @torch.no_grad() if torch else lambda call: call
    def __call__(self, sample):
        features = torch.from_dlpack(sample)  # no copy: the memory that the publisher wrote
        return torch.relu(self.layer(features.reshape(1, INPUTS)))


class NumpyModel:
    name = "numpy"

    def __init__(self, device):
        self.weights = weights()

    def __call__(self, sample):
        features = np.asarray(sample)  # no copy if the pools are in host memory
        return np.maximum(features.reshape(1, INPUTS) @ self.weights.T, 0)


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    with rgaps.Node("model") as node:
        model = (TorchModel if torch else NumpyModel)(node.device)
        scores = node.publisher("scores", rgaps.Tensor)
        features = node.subscriber("features", rgaps.Tensor)
        print(f"ready: {model.name} on {node.device}", flush=True)
        for _ in range(count):
            sample = features.wait(timeout=10.0)
            if sample is None:
                sys.exit("no features within ten seconds")
            result = model(sample)
            scores.push(result, stamp=sample.meta.stamp)
            print(f"features {sample.info.sequence}: class {int(result.argmax())}", flush=True)


main()
