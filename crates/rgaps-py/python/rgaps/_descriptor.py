"""Descriptors: the messages of rgaps_msgs (a handle and its metadata) as bytes, without ROS.

Every field of these messages is naturally aligned and there are no gaps. So a serialized message (CDR) is a header of four bytes, followed by
exactly the bytes that the core uses, and Python never parses a descriptor.
"""

from ._rgaps import Image, MessageHandle, PointCloud, Tensor

HANDLE_BYTES = 88

# Bytes of GpuImage, GpuPointCloud and GpuTensor, and of the metadata in them.
BYTES = {Image: 216, PointCloud: 920, Tensor: 336}
META_BYTES = {Image: 124, PointCloud: 832, Tensor: 248}

# CDR's encapsulation header: plain CDR, little-endian.
HEADER = b"\x00\x01\x00\x00"
# Plain CDR and plain CDR 2, both little-endian. They align fields wider than four bytes differently; these messages satisfy both.
_LITTLE_ENDIAN = (b"\x00\x01", b"\x00\x07")


def pack(handle, meta):
    """The serialized message."""
    body = bytes(handle) + meta.encode()
    return HEADER + body + bytes(BYTES[type(meta)] - len(body))


def body(serialized, kind):
    """The bytes after CDR's header; None if they are big-endian, or too few for such a message."""
    # Some middleware pads a message to a multiple of four, or appends a number of its own.
    if serialized[:2] not in _LITTLE_ENDIAN or len(serialized) < len(HEADER) + BYTES[kind]:
        return None
    return serialized[len(HEADER) : len(HEADER) + BYTES[kind]]


def handle_of(body):
    """The handle in a body."""
    return MessageHandle.from_bytes(body[:HANDLE_BYTES])


def meta_of(body, kind):
    """The metadata in a body."""
    return kind.decode(bytes(body[HANDLE_BYTES : HANDLE_BYTES + META_BYTES[kind]]))
