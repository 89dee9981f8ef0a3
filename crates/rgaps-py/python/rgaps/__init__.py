"""Publish and subscribe images, point clouds, tensors and bytes: numpy, torch and cupy arrays of one shared copy.

All subscribers of a host read one copy in place; another host receives it once and shares it there.

```python
import numpy as np
import rgaps

with rgaps.Node("camera") as node:
    publisher = node.publisher("camera/front", rgaps.Image)
    subscriber = node.subscriber("camera/front", rgaps.Image)  # from here on it misses nothing
    with publisher.loan(rgaps.Image(1920, 1080, "rgb8")) as loan:
        np.asarray(loan)[:] = 128  # in place, where subscribers will read it

    publisher.push(np.zeros((1080, 1920, 3), np.uint8))  # or: one copy of an array that lies elsewhere

    sample = subscriber.wait(timeout=1.0)  # other threads go on meanwhile; or: async for sample in subscriber
    if sample is not None:
        picture = np.asarray(sample)  # or torch.from_dlpack(sample), cupy.from_dlpack(sample)
        print(sample.meta, sample.info.route, picture.mean())
```

The message is released when the sample and all its arrays are gone: in a loop, `with sample:` does so before the next one comes. `push`, a loan
and a sample have a `MessageHandle`, which names the message in another middleware's message; `subscriber.take_by_handle(handle)` gives what it names. The first node on a host starts its manager, `rgapsd`, which the package
brings along.

Streams of CUDA are named by their handle, or by an object of torch, of cupy or with `__cuda_stream__`. A stream must live as long as the
samples and arrays that were taken, released or made in its order; a node keeps the objects that it was given, and who gives a number keeps
the stream himself.
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
