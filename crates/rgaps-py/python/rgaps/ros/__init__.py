"""GPU topics in nodes of rclpy, under any RMW.

```python
import numpy as np
import rclpy
import rgaps
import rgaps.ros

rclpy.init()
node = rclpy.create_node("edges")
edges = rgaps.ros.Publisher(node, rgaps.Image, "edges", 10)

def on_image(sample):
    picture = np.asarray(sample)  # in place, read-only
    with edges.loan(rgaps.Image(sample.meta.width, sample.meta.height, "mono8")) as loan:
        np.asarray(loan)[:] = abs(picture[..., 1].astype(np.int16) - 128)

camera = rgaps.ros.Subscription(node, rgaps.Image, "camera/front", on_image, 10)
rclpy.spin(node)
```

A publisher first publishes in the core of RGAPS, then publishes a descriptor of rgaps_msgs (GpuImage, GpuPointCloud, GpuTensor) as an ordinary
ROS message. A subscription has its own core subscriber and an ordinary ROS subscription to the descriptor, whose callback takes the sample.
So topic names, QoS, qos_overrides and the graph are those of ROS, and payloads never pass through the RMW. A sample is a lease: it is released
when the sample and all its arrays are gone.

Node parameters. All are read-only, and use the topic's fully qualified name, like qos_overrides:

| Parameter | Default | Meaning |
|---|---|---|
| `rgaps.<topic>.publisher.pool_bytes` | 0 | bytes of the publisher's pool; 0 uses the configured `pool_bytes` |
| `rgaps.<topic>.publisher.history_depth` | depth of the QoS | messages kept for late joiners, and sent again after a link was interrupted |
| `rgaps.<topic>.publisher.exhaustion` | wait | what to do when the pool is full: wait, drop_oldest or refuse |
| `rgaps.<topic>.publisher.exhaustion_timeout_ms` | 1000 | how long to wait for space in a full pool |
| `rgaps.<topic>.publisher.flow_control` | true | whether links between hosts wait for a slow receiver |
| `rgaps.<topic>.subscription.payload_timeout_ms` | 1000 | how long to wait for the sample that a descriptor names |
| `rgaps.<topic>.subscription.slack` | 8 | messages that the core keeps beyond the depth of the QoS, for descriptors that arrive late |
| `rgaps.device` | empty | GPU that the node works on, such as cuda:0; empty uses the GPU of the host's pools, if any |

If diagnostic_msgs is installed, counters are published on /diagnostics once a second.
"""

try:
    import rclpy as _rclpy  # noqa: F401
    import rgaps_msgs.msg as _messages  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"rgaps.ros needs rclpy and rgaps_msgs, and {error.name or 'one of them'} is missing: source a ROS 2 workspace that has both "
        "(rgaps_msgs is in RGAPS's repository: colcon build --packages-select rgaps_msgs)",
        name=error.name,
    ) from error

from ._messages import handle_of, message_of, meta_of
from ._publisher import Loan, Publisher
from ._subscription import Subscription

__all__ = ["Loan", "Publisher", "Subscription", "handle_of", "message_of", "meta_of"]
