"""Messages of rgaps_msgs as objects, for programs that publish or subscribe to descriptors themselves."""

import contextlib

from rclpy.serialization import deserialize_message, serialize_message
from rgaps_msgs.msg import GpuImage, GpuPointCloud, GpuTensor

from .. import _descriptor
from .._rgaps import Image, PointCloud, Tensor

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


def body_of(serialized, kind):
    """The descriptor's bytes in a serialized message of any byte order."""
    body = _descriptor.body(serialized, kind)
    if body is None:
        # The middleware can read other byte orders and writes this machine's. Invalid input may raise anything there, which is not the node's error.
        with contextlib.suppress(Exception):
            body = _descriptor.body(serialize_message(deserialize_message(serialized, MESSAGES[kind])), kind)
    if body is None:
        raise ValueError(f"{len(serialized)} B that begin with {bytes(serialized[:4]).hex()} are not a {MESSAGES[kind].__name__}")
    return body


def message_of(handle, meta):
    """The rgaps_msgs message for a handle and metadata. To forward a sample: `message_of(sample.handle, sample.meta)`."""
    return deserialize_message(_descriptor.pack(handle, meta), message_class(type(meta)))


def handle_of(message):
    """The handle in an rgaps_msgs message, for `rgaps.Subscriber.take_by_handle`."""
    return _descriptor.handle_of(body_of(serialize_message(message), kind_of_message(message)))


def meta_of(message):
    """The metadata in an rgaps_msgs message."""
    kind = kind_of_message(message)
    return _descriptor.meta_of(body_of(serialize_message(message), kind), kind)
