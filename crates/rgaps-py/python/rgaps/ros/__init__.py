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
    picture = np.asarray(sample)  # in place, for reading
    with edges.loan(rgaps.Image(sample.meta.width, sample.meta.height, "mono8")) as loan:
        np.asarray(loan)[:] = abs(picture[..., 1].astype(np.int16) - 128)

camera = rgaps.ros.Subscription(node, rgaps.Image, "camera/front", on_image, 10)
rclpy.spin(node)
```

A publisher publishes in the core of RGAPS first, then a descriptor of rgaps_msgs (GpuImage, GpuPointCloud, GpuTensor) as an ordinary ROS message.
A subscription has a core subscriber of its own, and an ordinary ROS subscription to the descriptor, in whose callback it takes the sample.
So topics have their names, QoS, qos_overrides and graph from ROS; payloads never pass through the RMW. A sample is a lease: it is released when
it and all arrays of it are gone.

Parameters of a node, all for reading only, with the topic's fully qualified name as in qos_overrides:

| Parameter | Default | Meaning |
|---|---|---|
| `rgaps.<topic>.publisher.pool_bytes` | 0 | bytes of the publisher's pool; 0 takes `pool_bytes` of the configuration |
| `rgaps.<topic>.publisher.history_depth` | depth of the QoS | messages kept for late joiners, and sent again by a link that was cut |
| `rgaps.<topic>.publisher.exhaustion` | wait | what a full pool means: wait, drop_oldest or refuse |
| `rgaps.<topic>.publisher.exhaustion_timeout_ms` | 1000 | how long a full pool is waited for |
| `rgaps.<topic>.publisher.flow_control` | true | whether links between hosts wait for a slow receiver |
| `rgaps.<topic>.subscription.payload_timeout_ms` | 1000 | how long the sample of a descriptor is waited for |
| `rgaps.<topic>.subscription.slack` | 8 | messages that the core keeps beyond the depth of the QoS, for descriptors that come late |
| `rgaps.device` | | GPU by which the node works, such as cuda:0; empty takes the one that the host's pools lie on, or none |

Counters go to /diagnostics once a second, where diagnostic_msgs is installed.
"""

try:
    import rclpy as _rclpy  # noqa: F401
    import rgaps_msgs.msg as _messages  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"rgaps.ros needs rclpy and rgaps_msgs, and {error.name or 'one of them'} is missing: source a ROS 2 workspace that has both "
        "(rgaps_msgs lies in RGAPS's repository: colcon build --packages-select rgaps_msgs)",
        name=error.name,
    ) from error

from ._messages import handle_of, message_of, meta_of
from ._publisher import Loan, Publisher
from ._subscription import Subscription

__all__ = ["Loan", "Publisher", "Subscription", "handle_of", "message_of", "meta_of"]
