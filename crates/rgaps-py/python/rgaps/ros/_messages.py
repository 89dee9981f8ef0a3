"""Messages of rgaps_msgs as objects, for programs that publish or subscribe to descriptors by themselves."""

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
        raise TypeError(f"a descriptor is a GpuImage, GpuPointCloud or GpuTensor of rgaps_msgs, not {type(message)}") from None


def message_class(kind):
    """The message of a metadata class."""
    try:
        return MESSAGES[kind]
    except (KeyError, TypeError):
        raise TypeError(f"the type of a GPU topic is rgaps.Image, PointCloud or Tensor, not {kind!r}") from None


def body_of(serialized, kind):
    """The descriptor's bytes, of a serialized message in whatever order its bytes are."""
    body = _descriptor.body(serialized, kind)
    if body is None:
        # The middleware knows the other orders, and writes this machine's. Whatever it makes of bytes that are none of these is no error of a node's.
        with contextlib.suppress(Exception):
            body = _descriptor.body(serialize_message(deserialize_message(serialized, MESSAGES[kind])), kind)
    if body is None:
        raise ValueError(f"{len(serialized)} B that begin with {bytes(serialized[:4]).hex()} are no {MESSAGES[kind].__name__}")
    return body


def message_of(handle, meta):
    """The message of rgaps_msgs that names what `handle` does: of a sample that is sent on, `message_of(sample.handle, sample.meta)`."""
    return deserialize_message(_descriptor.pack(handle, meta), message_class(type(meta)))


def handle_of(message):
    """The handle in a message of rgaps_msgs; `rgaps.Subscriber.take_by_handle` takes it."""
    return _descriptor.handle_of(body_of(serialize_message(message), kind_of_message(message)))


def meta_of(message):
    """The metadata in a message of rgaps_msgs."""
    kind = kind_of_message(message)
    return _descriptor.meta_of(body_of(serialize_message(message), kind), kind)
