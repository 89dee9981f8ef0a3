"""Descriptors of rgaps_msgs, without ROS. tests/ros tests nodes."""

import importlib.util
import re

import numpy as np
import pytest
import rgaps
from conftest import REPOSITORY
from rgaps import _descriptor

MESSAGES = {rgaps.Image: "GpuImage", rgaps.PointCloud: "GpuPointCloud", rgaps.Tensor: "GpuTensor"}


def content(kind):
    """An array to push on a topic of this kind."""
    points = np.zeros(5, dtype=[("x", "<f4"), ("intensity", "<u2")])
    return {rgaps.Image: np.ones((2, 3, 3), np.uint8), rgaps.PointCloud: points, rgaps.Tensor: np.ones((2, 3), np.int16)}[kind]


@pytest.mark.parametrize("kind", MESSAGES, ids=MESSAGES.values())
def test_a_descriptor_is_the_bytes_that_rosidl_lays_out(kind):
    with rgaps.Node("descriptors") as node:
        publisher, subscriber = node.publisher("topic", kind), node.subscriber("topic", kind)
        handle = publisher.push(content(kind), stamp=1_500_000_000, frame_id="here")
        meta = subscriber.take_by_handle(handle).meta
    layout = (REPOSITORY / "tests/msgs/layout.def").read_text(encoding="utf-8")
    fields = {name: (int(offset), int(size)) for name, offset, size in re.findall(rf"FIELD\({MESSAGES[kind]}, (\w+), (\d+), (\d+)\)", layout)}
    (size,) = re.findall(rf"MESSAGE\({MESSAGES[kind]}, (\d+)\)", layout)
    serialized = _descriptor.pack(handle, meta)
    assert len(serialized) == 4 + int(size) and serialized[:4] == b"\x00\x01\x00\x00"

    def field(name):
        offset, size = fields[name]
        return serialized[4 + offset : 4 + offset + size]

    assert field("handle") == bytes(handle) and field("frame_id").rstrip(b"\0") == b"here"
    assert int.from_bytes(field("stamp_sec"), "little") == 1 and int.from_bytes(field("stamp_nanosec"), "little") == 500_000_000
    body = _descriptor.body(serialized, kind)
    assert (_descriptor.handle_of(body), _descriptor.meta_of(body, kind)) == (handle, meta)
    # Some middleware pads a message at its end.
    assert _descriptor.body(serialized + bytes(4), kind) == body


def test_messages_of_another_byte_order_or_too_short_are_left_to_the_middleware():
    serialized = _descriptor.HEADER + bytes(216)
    assert _descriptor.body(b"\x00\x00" + serialized[2:], rgaps.Image) is None
    assert _descriptor.body(serialized[:-1], rgaps.Image) is None
    assert _descriptor.body(b"", rgaps.Image) is None


def test_without_ros_the_package_says_what_to_source():
    if importlib.util.find_spec("rclpy") and importlib.util.find_spec("rgaps_msgs"):
        pytest.skip("ROS 2 is sourced")
    with pytest.raises(ImportError, match="rclpy and rgaps_msgs, and (rclpy|rgaps_msgs) is missing: source a ROS 2 workspace"):
        import rgaps.ros  # noqa: F401
