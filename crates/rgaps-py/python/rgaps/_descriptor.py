"""Descriptors: the messages of rgaps_msgs as bytes, a handle and the metadata behind it. Without ROS.

Every field of these messages lies on its own alignment, without gaps, so that a serialized one (CDR) is a header of four bytes and then the
very bytes that the core has: a descriptor is never taken apart in Python.
"""

from ._rgaps import Image, MessageHandle, PointCloud, Tensor

HANDLE_BYTES = 88

# Bytes of GpuImage, GpuPointCloud and GpuTensor, and of the metadata in them.
BYTES = {Image: 216, PointCloud: 920, Tensor: 336}
META_BYTES = {Image: 124, PointCloud: 832, Tensor: 248}

# What CDR puts before a message: plain CDR, low bytes first.
HEADER = b"\x00\x01\x00\x00"
# Plain CDR and plain CDR 2, both with low bytes first. They differ in the alignment of what is wider than four bytes, which lies as both ask.
_LITTLE_ENDIAN = (b"\x00\x01", b"\x00\x07")


def pack(handle, meta):
    """The serialized message."""
    body = bytes(handle) + meta.encode()
    return HEADER + body + bytes(BYTES[type(meta)] - len(body))


def body(serialized, kind):
    """What follows CDR's header in a serialized message; None if its bytes are in another order, or are not those of such a message."""
    # Some middlewares fill a message up to a multiple of four, some add a number of theirs.
    if serialized[:2] not in _LITTLE_ENDIAN or len(serialized) < len(HEADER) + BYTES[kind]:
        return None
    return serialized[len(HEADER) : len(HEADER) + BYTES[kind]]


def handle_of(body):
    """The handle of such a body."""
    return MessageHandle.from_bytes(body[:HANDLE_BYTES])


def meta_of(body, kind):
    """The metadata of such a body."""
    return kind.decode(bytes(body[HANDLE_BYTES : HANDLE_BYTES + META_BYTES[kind]]))
