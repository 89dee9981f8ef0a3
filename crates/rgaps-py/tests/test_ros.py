"""Descriptors of rgaps_msgs, without ROS. tests/ros tests nodes."""

import importlib.util
import os
import re
import signal

import numpy as np
import pytest
import rgaps
from conftest import REPOSITORY
from rgaps._rgaps import ros as policy

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
    serialized = policy.pack(handle, meta)
    assert len(serialized) == 4 + int(size) and serialized[:4] == b"\x00\x01\x00\x00"

    def field(name):
        offset, size = fields[name]
        return serialized[4 + offset : 4 + offset + size]

    assert field("handle") == bytes(handle) and field("frame_id").rstrip(b"\0") == b"here"
    assert int.from_bytes(field("stamp_sec"), "little") == 1 and int.from_bytes(field("stamp_nanosec"), "little") == 500_000_000
    # Some middleware pads a message at its end.
    for received in (serialized, serialized + bytes(4)):
        assert (policy.handle_of(received, kind), policy.meta_of(received, kind)) == (handle, meta)


def test_other_byte_orders_go_to_the_middleware_and_short_messages_are_refused():
    serialized = b"\x00\x01\x00\x00" + bytes(216)
    assert policy.is_little_endian(serialized) and not policy.is_little_endian(b"\x00\x00" + serialized[2:])
    assert not policy.is_little_endian(b"")
    for wrong in (serialized[:-1], b"\x00\x00" + serialized[2:], b""):
        with pytest.raises(rgaps.MetadataError, match="rgaps_msgs/msg/GpuImage"):
            policy.handle_of(wrong, rgaps.Image)


# Numbers of rmw/types.h: reliability, durability, history, depth.
LEFT_TO_THE_MIDDLEWARE, DEFAULT = (0, 4, 0, 0), (1, 2, 1, 10)


def test_profile_and_parameters_become_the_cores_qos():
    listed = policy.parameters("publisher", "/eye", "", (1, 1, 1, 3))
    assert [name for name, *_ in listed][:2] == ["rgaps./eye.publisher.history_depth", "rgaps./eye.publisher.pool_bytes"]
    assert listed[0][1:3] == (3, (0, 2**31 - 1)) and listed[-1][:3] == ("rgaps.device", "", None)
    assert all(description for *_, description in listed)
    values = [value for _, value, *_ in listed]
    qos = policy.publisher_qos("/eye", "", (1, 1, 1, 3), values)
    assert qos == rgaps.PublisherQos(durability="transient_local", history_depth=3)
    values[1:4] = 1 << 20, "refuse", 5
    assert policy.publisher_qos("/eye", "", (2, 2, 1, 3), values).exhaustion == "refuse"

    values = [value for _, value, *_ in policy.parameters("subscription", "/eye", "left", DEFAULT)]
    assert policy.subscriber_qos("/eye", "left", DEFAULT, values) == (rgaps.SubscriberQos(depth=18), 1.0)
    weakest = policy.subscriber_qos("/eye", "", LEFT_TO_THE_MIDDLEWARE, values)[0]
    assert weakest == rgaps.SubscriberQos(reliability="best_effort", depth=9)
    assert policy.subscriber_qos("/eye", "", (1, 2, 2, 0), values)[0].depth is None
    strongest = policy.publisher_qos("/eye", "", LEFT_TO_THE_MIDDLEWARE, [value for _, value, *_ in listed])
    assert strongest.durability == "transient_local" and strongest.reliability == "reliable"


@pytest.mark.parametrize("wrong", [-1, 3.5, "many", True, None, 2**40])
def test_a_wrong_value_is_an_error_with_the_arguments_of_rclpys_exception(wrong):
    with pytest.raises(ValueError) as raised:
        policy.subscriber_qos("/eye", "", DEFAULT, [1000, wrong, ""])
    name, value, reason = raised.value.args
    assert (name, reason) == ("rgaps./eye.subscription.slack", "it must be a whole number from 0 to 2147483647")
    assert value is wrong


def test_descriptors_are_taken_or_refused_counted_and_logged_once():
    lines = []
    with rgaps.Node("payloads") as node:
        publisher, subscriber = node.publisher("topic", rgaps.Image), node.subscriber("topic", rgaps.Image)
        payloads = policy.Payloads(subscriber, 5, lambda is_warning, text: lines.append((is_warning, text)))
        meta = rgaps.Image(2, 2, "mono8")
        handle = publisher.push(bytes(4), meta)
        serialized = policy.pack(handle, meta)
        with payloads.take(serialized) as sample:
            assert sample.handle == handle
        for _ in range(3):
            assert payloads.take(serialized) is None and payloads.take(serialized[:-9]) is None
        assert payloads.take(policy.pack(handle, rgaps.Image(3, 2, "mono8"))) is None
        assert (payloads.refused, payloads.early, len(lines)) == (7, 0, 3)
        assert all(is_warning and text.startswith("/topic: ") for is_warning, text in lines), lines
        name, counters, message, is_warning = payloads.status("/robot", [])
        assert (name, dict(counters)["refused"], is_warning) == ("/robot: subscription to /topic", 7, True)
        assert "descriptors were refused (7)" in message
        assert payloads.status("/robot", [value for _, value in counters])[2:] == ("ok", False)
        assert dict(policy.publisher_status(publisher, "/robot", [])[1])["published"] == 1
        subscriber.close()
        assert payloads.take(serialized) is None and payloads.refused == 7


def test_a_signals_exception_is_raised_even_if_its_handler_closes_the_subscriber(program):
    waiting = program(
        """
        import signal

        import rgaps
        from rgaps._rgaps import ros as policy

        def end(*_):
            subscriber.close()
            raise KeyboardInterrupt

        signal.signal(signal.SIGINT, end)
        node = rgaps.Node("waits")
        publisher, subscriber = node.publisher("topic", rgaps.Image), node.subscriber("topic", rgaps.Image)
        payloads = policy.Payloads(subscriber, float("inf"), print)
        meta = rgaps.Image(2, 2, "mono8")
        # Of another host, from which it never arrives.
        serialized = bytearray(policy.pack(publisher.push(bytes(4), meta), meta))
        serialized[4:8], serialized[4 + 48] = b"else", 9
        try:
            print("waits", flush=True)
            print(payloads.take(bytes(serialized)), flush=True)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        """
    )
    assert waiting.line() == "waits"
    os.kill(waiting.process.pid, signal.SIGINT)
    assert waiting.line() == "interrupted"
    waiting.end()


def test_without_ros_the_package_says_what_to_source():
    if importlib.util.find_spec("rclpy") and importlib.util.find_spec("rgaps_msgs"):
        pytest.skip("ROS 2 is sourced")
    with pytest.raises(ImportError, match="rclpy and rgaps_msgs, and (rclpy|rgaps_msgs) is missing: source a ROS 2 workspace"):
        import rgaps.ros  # noqa: F401
