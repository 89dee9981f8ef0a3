"""Messages of rgaps_msgs as objects, for programs that publish or subscribe to descriptors themselves."""

import contextlib

from rclpy.serialization import deserialize_message, serialize_message
from rgaps_msgs.msg import GpuImage, GpuPointCloud, GpuTensor

from .._rgaps import Image, PointCloud, Tensor
from .._rgaps import ros as policy

MESSAGES = {Image: GpuImage, PointCloud: GpuPointCloud, Tensor: GpuTensor}
_KINDS = {message: kind for kind, message in MESSAGES.items()}


def kind_of_message(message):
    """The metadata class of a message."""
    try:
        return _KINDS[type(message)]
    except KeyError:
        raise TypeError(f"a descriptor must be a GpuImage, GpuPointCloud or GpuTensor of rgaps_msgs, not {type(message)}") from None


def message_class(kind):
    """The message class of a metadata class."""
    try:
        return MESSAGES[kind]
    except (KeyError, TypeError):
        raise TypeError(f"the type of a GPU topic must be rgaps.Image, PointCloud or Tensor, not {kind!r}") from None


def readable(serialized, kind):
    """A serialized message in the byte order that the core reads."""
    if policy.is_little_endian(serialized):
        return serialized
    # The middleware can read other byte orders and writes this machine's. Invalid input may raise anything there, which is not the node's error.
    with contextlib.suppress(Exception):
        return serialize_message(deserialize_message(serialized, MESSAGES[kind]))
    return serialized


def message_of(handle, meta):
    """The rgaps_msgs message for a handle and metadata. To forward a sample: `message_of(sample.handle, sample.meta)`."""
    return deserialize_message(policy.pack(handle, meta), message_class(type(meta)))


def handle_of(message):
    """The handle in an rgaps_msgs message, for `rgaps.Subscriber.take_by_handle`."""
    kind = kind_of_message(message)
    return policy.handle_of(readable(serialize_message(message), kind), kind)


def meta_of(message):
    """The metadata in an rgaps_msgs message."""
    kind = kind_of_message(message)
    return policy.meta_of(readable(serialize_message(message), kind), kind)
