"""Publish and subscribe images, point clouds, tensors and bytes: numpy, torch and cupy arrays of one shared copy.

All subscribers on a host read one copy in place. Another host receives the message once, and its subscribers share that copy.

```python
import numpy as np
import rgaps

with rgaps.Node("camera") as node:
    publisher = node.publisher("camera/front", rgaps.Image)
    subscriber = node.subscriber("camera/front", rgaps.Image)  # gets every message from here on
    with publisher.loan(rgaps.Image(1920, 1080, "rgb8")) as loan:
        np.asarray(loan)[:] = 128  # in place, in the memory that subscribers read

    publisher.push(np.zeros((1080, 1920, 3), np.uint8))  # or: one copy of an array in other memory

    sample = subscriber.wait(timeout=1.0)  # releases the GIL while it waits; or: async for sample in subscriber
    if sample is not None:
        picture = np.asarray(sample)  # or torch.from_dlpack(sample), cupy.from_dlpack(sample)
        print(sample.meta, sample.info.route, picture.mean())
```

The message is released when the sample and all its arrays are gone. In a loop, `with sample:` releases it before the next one arrives.
`push`, a loan and a sample give a `MessageHandle`, which identifies the message in the messages of other middleware;
`subscriber.take_by_handle(handle)` takes that message. The first node on a host starts its manager, `rgapsd`, which the package contains.

A `stream` argument is a CUDA stream: its handle, a torch or cupy stream, or any object with `__cuda_stream__`. The stream must outlive the
samples and arrays that were taken, released or made on it. A node keeps the objects it was given; if you pass a bare handle, keep the
stream alive yourself.
"""

from ._errors import (
    HandleTimeoutError,
    ClosedError,
    CutOffError,
    DeviceError,
    DeviceTimeoutError,
    Error,
    ForkedError,
    MetadataError,
    NodeError,
    NodeTimeoutError,
    NoSpaceError,
    NoSpaceTimeoutError,
    PoisonedError,
    PublishError,
    ReleasedError,
    StaleError,
    TakeError,
    TimeoutError,
    TooManyHeldError,
    TopicNameError,
    TypeMismatchError,
)
from ._qos import PublisherQos, SubscriberQos
from ._rgaps import (
    Bytes,
    Sample,
    Image,
    Loan,
    MessageHandle,
    MessageInfo,
    Node,
    PointCloud,
    PointField,
    Publisher,
    PublisherStatistics,
    Subscriber,
    SubscriberStatistics,
    Tensor,
    TopicSummary,
    View,
)

__all__ = [
    "Bytes",
    "HandleTimeoutError",
    "ClosedError",
    "CutOffError",
    "DeviceError",
    "DeviceTimeoutError",
    "Error",
    "ForkedError",
    "Sample",
    "Image",
    "Loan",
    "MessageHandle",
    "MessageInfo",
    "MetadataError",
    "NoSpaceError",
    "NoSpaceTimeoutError",
    "Node",
    "NodeError",
    "NodeTimeoutError",
    "PointCloud",
    "PointField",
    "PoisonedError",
    "PublishError",
    "Publisher",
    "PublisherQos",
    "PublisherStatistics",
    "ReleasedError",
    "StaleError",
    "Subscriber",
    "SubscriberQos",
    "SubscriberStatistics",
    "TakeError",
    "Tensor",
    "TimeoutError",
    "TooManyHeldError",
    "TopicNameError",
    "TopicSummary",
    "TypeMismatchError",
    "View",
]
