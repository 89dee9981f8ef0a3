"""Sends messages of one kind from one program to another, and checks every byte. The same program exists in several languages.

exchange.py pub|sub KIND TOPIC COUNT, where KIND is bytes, image, point_cloud or tensor. Start `sub` first; it prints "ready".

Byte i of message n is (i * 7 + n) mod 256 in bytes and images; element i is i + n in clouds and tensors. Messages are stamped n seconds.
"""

import sys
import time

import numpy as np
import rgaps

SECONDS_MAX = 10.0
POINTS = 100


def meta_of(kind, number):
    header = {"stamp": number * 1_000_000_000, "frame_id": "exchange"}
    if kind == "bytes":
        return rgaps.Bytes(1000, **header)
    if kind == "image":
        return rgaps.Image(64, 48, "rgb8", **header)
    if kind == "point_cloud":
        return rgaps.PointCloud.packed(POINTS, dict.fromkeys(("x", "y", "z", "intensity"), "float32"), **header)
    return rgaps.Tensor((2, 3, 4), "float32", **header)


def payload_of(meta, number):
    if isinstance(meta, (rgaps.Bytes, rgaps.Image)):
        return ((np.arange(meta.nbytes) * 7 + number) % 256).astype(np.uint8)
    return np.arange(meta.nbytes // 4, dtype=np.float32) + np.float32(number)


def flat(array, payload):
    """The array's elements in one dimension; a cloud's structures become their elements."""
    return array.view(payload.dtype).reshape(-1)


def until(what, is_so):
    deadline = time.monotonic() + SECONDS_MAX
    while not is_so():
        if time.monotonic() > deadline:
            sys.exit(f"{what} within {SECONDS_MAX} s")
        time.sleep(0.001)


def publish(node, kind, topic, count):
    publisher = node.publisher(topic, TYPES[kind])
    until("no subscriber came", lambda: publisher.subscriber_count >= 1)
    for number in range(count):
        meta = meta_of(kind, number)
        with publisher.loan(meta) as loan:
            payload = payload_of(meta, number)
            flat(np.asarray(loan), payload)[:] = payload
    print(f"published {count} {kind} messages", flush=True)
    until("messages were not taken", lambda: publisher.statistics.outstanding == 0)


def subscribe(node, kind, topic, count):
    subscriber = node.subscriber(topic, TYPES[kind])
    print("ready", flush=True)
    for number in range(count):
        sample = subscriber.wait(SECONDS_MAX)
        if sample is None:
            sys.exit(f"message {number} did not come within {SECONDS_MAX} s")
        with sample:
            payload = payload_of(sample.meta, number)
            if sample.meta != meta_of(kind, number):
                sys.exit(f"message {number} is of {sample.meta}, stamped {sample.meta.stamp} ns in '{sample.meta.frame_id}'")
            if not np.array_equal(flat(np.asarray(sample), payload), payload):
                sys.exit(f"message {number} has wrong bytes")
    print(f"took {count} {kind} messages", flush=True)


TYPES = {"bytes": rgaps.Bytes, "image": rgaps.Image, "point_cloud": rgaps.PointCloud, "tensor": rgaps.Tensor}

if __name__ == "__main__":
    if len(sys.argv) != 5 or sys.argv[1] not in ("pub", "sub") or sys.argv[2] not in TYPES or not sys.argv[4].isdigit():
        sys.exit("usage: exchange.py pub|sub bytes|image|point_cloud|tensor TOPIC COUNT")
    role, kind, topic, count = sys.argv[1:]
    with rgaps.Node("exchange") as node:
        (publish if role == "pub" else subscribe)(node, kind, topic, int(count))
