"""Handles: naming a message outside RGAPS, and taking it by its handle."""

import os
import pickle
import signal
import threading
import time

import numpy as np
import pytest
import rgaps
from conftest import LONG

HANDLE_BYTES = 88


@pytest.fixture
def node():
    with rgaps.Node("handles") as node:
        yield node


@pytest.fixture
def pair(node):
    return node.publisher("topic", rgaps.Bytes), node.subscriber("topic", rgaps.Bytes)


def changed(handle, place, value):
    """The handle with other bytes at an offset."""
    whole = bytearray(bytes(handle))
    whole[place : place + len(value)] = value
    return bytes(whole)


def test_a_handle_round_trips_as_bytes_and_its_message_is_taken(pair):
    publisher, subscriber = pair
    handles = [publisher.push(bytes([number] * 4)) for number in range(3)]
    for number in (1, 0, 2):
        handle = handles[number]
        as_bytes = bytes(handle)
        assert len(as_bytes) == HANDLE_BYTES and rgaps.MessageHandle.from_bytes(as_bytes) == handle
        named = (handle, as_bytes, bytearray(as_bytes), memoryview(as_bytes), np.frombuffer(as_bytes, np.uint8))[number]
        with subscriber.take_by_handle(named) as sample:
            assert sample.tobytes() == bytes([number] * 4) and sample.handle == handle
            assert hash(sample.handle) == hash(handle) and sample.info.sequence == handle.sequence
        assert sample.handle == handle, "also after its release"
    assert (handle.sequence, handle.position, handle.payload_bytes, handle.kind) == (3, 2, 4, 0)
    assert dict(handle)["publisher"] == handle.publisher == handles[0].publisher and handle != handles[0]
    assert len(handle.source_host) == len(handle.topic_id) == 16 and "sequence=3" in repr(handle)
    assert subscriber.statistics.lost == 0


def test_at_the_hold_limit_releasing_one_message_allows_the_next_take(pair):
    publisher, subscriber = pair
    held = []
    with pytest.raises(rgaps.TooManyHeldError, match="drop some before the next take") as refused:
        while True:
            publisher.push(b"some")
            held.append(subscriber.take())
    assert (refused.value.topic, refused.value.held) == ("/topic", len(held)) and isinstance(refused.value, rgaps.TakeError)
    held.pop(0).release()
    assert subscriber.take().info.sequence == len(held) + 2, "it was not lost"


def test_a_handle_of_a_freed_message_is_refused_at_once_with_its_numbers(pair):
    publisher, subscriber = pair
    handle = publisher.push(b"some")
    subscriber.take_by_handle(handle).release()
    started = time.monotonic()
    with pytest.raises(rgaps.StaleError, match="was taken already") as gone:
        subscriber.take_by_handle(handle, timeout=LONG)
    assert (gone.value.topic, gone.value.publisher, gone.value.sequence) == ("/topic", handle.publisher, 1)
    epoch = (handle.host_epoch - 1).to_bytes(8, "little")
    with pytest.raises(rgaps.StaleError, match="earlier run") as run:
        subscriber.take_by_handle(changed(handle, 32, epoch), timeout=LONG)
    assert (gone.value.reason, run.value.reason) == ("gone", "earlier_run")
    assert (run.value.found, run.value.now) == (handle.host_epoch - 1, handle.host_epoch)
    life = (handle.generation + 7).to_bytes(4, "little")
    with pytest.raises(rgaps.StaleError, match="generation") as stale:
        subscriber.take_by_handle(changed(handle, 76, life), timeout=LONG)
    assert stale.value.reason == "stale" and stale.value.found == handle.generation + 7 and stale.value.now is not None
    with pytest.raises(rgaps.TypeMismatchError, match="kind") as kind:
        subscriber.take_by_handle(changed(handle, 84, b"\x01"), timeout=LONG)
    assert "Image" in kind.value.found and "Bytes" in kind.value.wanted
    with pytest.raises(rgaps.MetadataError, match="layout version 0") as layout:
        subscriber.take_by_handle(bytes(HANDLE_BYTES), timeout=LONG)
    assert layout.value.found == 0
    assert time.monotonic() - started < LONG
    assert isinstance(gone.value, rgaps.TakeError) and pickle.loads(pickle.dumps(gone.value)).sequence == 1


def test_a_handle_from_before_the_subscriber_is_early_and_earlier_messages_released(node):
    publisher = node.publisher("topic", rgaps.Bytes)
    before = publisher.push(b"before")
    subscriber = node.subscriber("topic", rgaps.Bytes)
    subscriber.expect_handles_in_order()
    with pytest.raises(rgaps.StaleError, match="before this subscriber joined") as early:
        subscriber.take_by_handle(before, timeout=LONG)
    assert (early.value.reason, early.value.sequence) == ("early", 1)
    publisher.push(b"without a handle")
    handle = publisher.push(b"first")
    subscriber.take_by_handle(handle).release()
    assert (subscriber.statistics.held, subscriber.statistics.lost) == (0, 0)


@pytest.mark.parametrize(("wrong", "error"), [(b"short", rgaps.MetadataError), ("text", TypeError), (88, TypeError)])
def test_bytes_that_are_no_handle_are_refused(pair, wrong, error):
    with pytest.raises(error, match="handle"):
        pair[1].take_by_handle(wrong)
    with pytest.raises(error, match="handle"):
        rgaps.MessageHandle.from_bytes(wrong)


def of_another_host(handle):
    """A handle whose message may still arrive, as far as this host knows."""
    return changed(handle, 0, b"elsewhere")


def test_a_take_by_handle_times_out_if_the_message_does_not_arrive(pair):
    publisher, subscriber = pair
    handle = of_another_host(publisher.push(b"some"))
    with pytest.raises(rgaps.HandleTimeoutError, match="has not come within 30 ms") as late:
        subscriber.take_by_handle(changed(handle, 48, (9).to_bytes(8, "little")), timeout=0.03)
    assert isinstance(late.value, TimeoutError) and isinstance(late.value, rgaps.TakeError)
    assert (late.value.sequence, late.value.waited_ms) == (9, 30)
    assert subscriber.take().tobytes() == b"some", "what was passed by is there"


def test_a_take_by_handle_lets_other_threads_run_and_ends_at_close(pair):
    publisher, subscriber = pair
    handle = of_another_host(publisher.push(b"some"))
    closer = threading.Thread(target=subscriber.close)
    with pytest.raises(rgaps.ClosedError):
        closer.start()
        subscriber.take_by_handle(changed(handle, 48, (9).to_bytes(8, "little")), timeout=LONG)
    closer.join(LONG)


def test_ctrl_c_ends_a_take_by_handle(program):
    waiting = program(
        """
        import rgaps

        node = rgaps.Node("waits")
        publisher, subscriber = node.publisher("topic", rgaps.Bytes), node.subscriber("topic", rgaps.Bytes)
        handle = bytearray(bytes(publisher.push(b"some")))
        handle[0:4], handle[48] = b"else", 9
        try:
            print("waits", flush=True)
            subscriber.take_by_handle(handle, timeout=None)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        """
    )
    assert waiting.line() == "waits"
    os.kill(waiting.process.pid, signal.SIGINT)
    assert waiting.line() == "interrupted"
    waiting.end()


@pytest.mark.parametrize(
    "meta",
    [
        rgaps.Image(64, 48, "rgb8", stamp=5, frame_id="here", user=b"mine"),
        rgaps.PointCloud.packed(3, {"x": "float32", "y": "float32"}, stamp=6),
        rgaps.Tensor((2, 3), "int16"),
        rgaps.Bytes(7),
    ],
    ids=lambda meta: type(meta).__name__,
)
def test_metadata_round_trips_as_bytes(meta):
    assert type(meta).decode(meta.encode()) == meta
    with pytest.raises(rgaps.MetadataError):
        type(meta).decode(meta.encode()[:-1])
