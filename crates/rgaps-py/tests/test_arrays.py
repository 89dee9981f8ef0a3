"""Arrays in and out within one process: every kind, every protocol, and every refusal."""

import array
import contextlib
import gc
import os
import pickle
import tempfile
import threading

import numpy as np
import pytest
import rgaps
from capsules import Consumer, Unwilling

SECOND = 1_000_000_000


@pytest.fixture
def node():
    with rgaps.Node("arrays") as node:
        yield node


@pytest.fixture
def pair(node):
    """A publisher and a subscriber of a type."""

    def make(kind, topic="topic", **qos):
        return node.publisher(topic, kind, **qos), node.subscriber(topic, kind)

    return make


def picture(height=48, width=64, channels=3, dtype=np.uint8):
    count = height * width * channels
    return (np.arange(count) % 251).astype(dtype).reshape(height, width, channels)


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (rgaps.Image, picture()),
        (rgaps.Image, picture(channels=1)[:, :, 0]),
        (rgaps.Image, picture(channels=4, dtype=np.uint16)),
        (rgaps.Image, picture(channels=2, dtype=np.float32)),
        (rgaps.Image, picture(channels=1, dtype=np.int16)[:, ::2, 0]),
        (rgaps.Tensor, np.arange(24, dtype=np.float32).reshape(2, 3, 4)),
        (rgaps.Tensor, np.arange(6, dtype=np.complex128)),
        (rgaps.Tensor, np.array([True, False])),
        (rgaps.Tensor, np.array(7, dtype=np.int64)),
        (rgaps.Tensor, np.zeros((3, 0, 2), dtype=np.float16)),
        (rgaps.Bytes, np.arange(100, dtype=np.uint8)),
    ],
)
def test_a_pushed_array_is_taken_through_every_protocol(pair, kind, content):
    publisher, subscriber = pair(kind)
    handle = publisher.push(content, stamp=3 * SECOND, frame_id="here")
    sample = subscriber.wait(10)
    assert (handle.sequence, handle.position) == (1, 0)
    assert (sample.meta.stamp, sample.meta.frame_id, sample.nbytes) == (3 * SECOND, "here", content.nbytes)
    assert (sample.info.sequence, sample.info.copies, sample.info.origin) == (1, 1, "pushed")
    for seen in (np.asarray(sample), np.from_dlpack(sample), np.asarray(sample.view)):
        assert seen.dtype == content.dtype and np.array_equal(seen, content)
        # numpy allocates memory for an array without elements.
        if content.size:
            assert seen.ctypes.data == sample.address and not seen.flags.writeable
    assert sample.tobytes() == content.tobytes()


def test_a_loan_is_filled_in_place_and_read_in_place(pair):
    publisher, subscriber = pair(rgaps.Image)
    content = picture()
    with publisher.loan(rgaps.Image(64, 48, "rgb8", stamp=SECOND)) as loan:
        mine = np.asarray(loan)
        assert mine.ctypes.data == loan.address and mine.flags.writeable
        mine[:] = content
    assert loan.handle.sequence == 1
    sample = subscriber.wait(10)
    assert sample.info.copies == 0 and sample.info.origin == "loaned" and sample.info.route == "in place"
    assert sample.is_in_place and sample.readiness == "ready"
    assert np.array_equal(np.asarray(sample), content)
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(sample)[0, 0, 0] = 1
    with pytest.raises(ValueError, match="read-only"):
        mine[0, 0, 0] = 1  # published, so it is read-only now


def test_a_loan_is_freed_by_an_exception_or_when_its_last_array_is_gone(pair):
    publisher, subscriber = pair(rgaps.Bytes)
    with pytest.raises(RuntimeError), publisher.loan(rgaps.Bytes(100)):
        assert publisher.statistics.outstanding == 1 or publisher.statistics.used_bytes > 0
        raise RuntimeError("on purpose")
    assert publisher.statistics.used_bytes == 0
    kept = np.asarray(publisher.loan(rgaps.Bytes(100)))
    gc.collect()
    kept[:] = 7  # not published, so still writable
    assert publisher.statistics.used_bytes > 0
    del kept
    assert publisher.statistics.used_bytes == 0
    loan = publisher.loan(rgaps.Bytes(100))
    loan.discard()
    loan.discard()
    assert subscriber.take() is None and loan.handle is None
    for use in (loan.publish, lambda: np.asarray(loan), lambda: loan.address, lambda: loan.meta, loan.__dlpack__):
        with pytest.raises(rgaps.ReleasedError, match="published or discarded"):
            use()


def filled(publisher, numbers):
    loans = [publisher.loan(rgaps.Bytes(8)) for _ in numbers]
    for number, loan in zip(numbers, loans):
        np.asarray(loan)[:] = number
    return loans


def test_a_batch_is_published_in_order_and_its_arrays_become_read_only(pair):
    publisher, subscriber = pair(rgaps.Bytes)
    loans = filled(publisher, range(5))
    mine = np.asarray(loans[3])
    handles = publisher.publish_all(iter(loans))
    assert [handle.sequence for handle in handles] == [1, 2, 3, 4, 5] and [loan.handle for loan in loans] == handles
    assert [sample.tobytes() for sample in subscriber.take_all()] == [bytes([number] * 8) for number in range(5)]
    with pytest.raises(ValueError, match="read-only"):
        mine[0] = 1
    assert publisher.publish_all([]) == [] and publisher.statistics.published == 5


def test_a_batch_that_cannot_be_published_leaves_its_loans_open(pair, node):
    publisher, subscriber = pair(rgaps.Bytes)
    loans = filled(publisher, range(3))
    foreign = node.publisher("other", rgaps.Bytes).loan(rgaps.Bytes(8))
    with pytest.raises(rgaps.PublishError, match="loan 2 of the batch") as raised:
        publisher.publish_all([*loans[:2], foreign, loans[2]])
    assert (raised.value.index, raised.value.topic) == (2, "/topic")
    with pytest.raises(rgaps.ReleasedError, match="loan 3 of the batch"):
        publisher.publish_all([*loans, loans[0]])
    with pytest.raises(TypeError):
        publisher.publish_all([*loans, b"no loan"])
    assert subscriber.take() is None and all(loan.handle is None for loan in [*loans, foreign])
    np.asarray(loans[1])[:] = 7  # still open
    publisher.publish_all(loans)
    assert [sample.tobytes()[0] for sample in subscriber.take_all()] == [0, 7, 2]
    foreign.publish()


def test_a_loan_is_filled_by_dlpack_and_by_a_copy_without_numpy(pair):
    publisher, subscriber = pair(rgaps.Tensor)
    loan = publisher.loan(rgaps.Tensor((2, 3), "int32"))
    consumer = Consumer(loan.__dlpack__(max_version=(1, 0)))
    assert consumer.is_versioned and consumer.flags == 0 and consumer.tensor.data == loan.address
    consumer.close()
    loan.copy_from(memoryview(array.array("i", range(6))).cast("B").cast("i", (2, 3)))
    loan.meta = loan.meta.replace(stamp=5)
    loan.publish()
    sample = subscriber.wait(10)
    assert sample.meta.stamp == 5 and np.asarray(sample).tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    "content",
    [b"some bytes", bytearray(b"some bytes"), memoryview(b"some bytes"), array.array("B", b"some bytes")],
    ids=lambda content: type(content).__name__,
)
def test_anything_with_a_buffer_is_published(pair, content):
    publisher, subscriber = pair(rgaps.Bytes)
    publisher.push(content)
    assert subscriber.wait(10).tobytes() == b"some bytes"


def test_strided_arrays_are_published_in_c_order(pair):
    publisher, subscriber = pair(rgaps.Tensor)
    whole = np.arange(5 * 6 * 7, dtype=np.int16).reshape(5, 6, 7)
    pieces = [whole[::2, 1:5, ::3], whole[::-1], whole.transpose(2, 0, 1), whole[:, :, 3], np.asfortranarray(whole[0])]
    pieces += [np.broadcast_to(whole[0, 0], (4, 7)), whole[1:1], np.arange(6, dtype=np.int16)[::-2]]
    for piece in pieces:
        publisher.push(piece)
        sample = subscriber.wait(10)
        assert np.array_equal(np.asarray(sample), piece) and np.asarray(sample).shape == piece.shape
        assert (sample.info.origin, sample.info.copies) == ("pushed", 1)


def test_rows_are_placed_at_the_step_of_the_metadata(pair):
    publisher, subscriber = pair(rgaps.Image)
    content = picture(4, 5)
    publisher.push(content, rgaps.Image(5, 4, "bgr8", step=32))
    sample = subscriber.wait(10)
    assert sample.nbytes == 128 and np.array_equal(np.asarray(sample), content)
    assert np.asarray(sample).strides == (32, 3, 1) and sample.meta.encoding == "bgr8"


def test_the_encoding_follows_the_array_unless_given(pair):
    publisher, subscriber = pair(rgaps.Image)
    expected = {(1, "u1"): "mono8", (2, "u1"): "8UC2", (3, "u1"): "rgb8", (4, "u1"): "rgba8", (1, "u2"): "mono16"}
    expected |= {(3, "f4"): "32FC3", (1, "f8"): "64FC1", (1, "i4"): "32SC1", (2, "i2"): "16SC2", (4, "i1"): "8SC4"}
    for (channels, dtype), name in expected.items():
        assert rgaps.Image.like(picture(channels=channels, dtype=dtype)).encoding == name
    publisher.push(picture(), encoding="bgr8")
    assert subscriber.wait(10).meta.encoding == "bgr8"
    planes = np.arange(72 * 64, dtype=np.uint8).reshape(72, 64)
    publisher.push(planes, encoding="nv12")
    sample = subscriber.wait(10)
    assert (sample.meta.height, sample.meta.width) == (48, 64) and np.array_equal(np.asarray(sample), planes)
    publisher.push(picture(channels=2), encoding="yuyv")
    assert subscriber.wait(10).meta.encoding == "yuyv"


def test_a_cloud_is_a_structured_array_and_its_fields_are_arrays(pair):
    publisher, subscriber = pair(rgaps.PointCloud)
    layout = {"names": ["x", "y", "z", "ring"], "formats": ["<f4", "<f4", "<f4", "<u2"]}
    points = np.zeros(10, np.dtype(layout | {"offsets": [0, 4, 8, 16], "itemsize": 20}))
    points["x"], points["ring"] = np.arange(10), 9 - np.arange(10)
    publisher.push(points[::-1])
    sample = subscriber.wait(10)
    assert sample.meta == rgaps.PointCloud.like(points) and (sample.meta.points, sample.meta.point_step) == (10, 20)
    assert [field.name for field in sample.meta.fields] == ["x", "y", "z", "ring"]
    seen = np.asarray(sample)
    assert seen.dtype == points.dtype and np.array_equal(seen, points[::-1])
    assert np.array_equal(np.asarray(sample.field("ring")), points["ring"][::-1])
    assert np.array_equal(np.from_dlpack(sample.field("x")), points["x"][::-1])
    assert np.asarray(sample.field("x")).ctypes.data == sample.address and not np.asarray(sample.field("x")).flags.writeable
    with pytest.raises(rgaps.MetadataError, match="no field 'w'.*x, y, z, ring"):
        sample.field("w")
    publisher.push(np.arange(12, dtype=np.float32).reshape(3, 4))
    sample = subscriber.wait(10)
    assert np.asarray(sample)["intensity"].tolist() == [3, 7, 11]
    with publisher.loan(rgaps.PointCloud.packed(3, {"x": "float32", "t": np.float64})) as loan:
        np.asarray(loan.field("x"))[:] = 5
        np.asarray(loan)["t"] = 6
    assert np.asarray(subscriber.wait(10)).tolist() == [(5, 6)] * 3


def test_big_endian_arrays_are_given_out_where_the_protocol_allows_it(pair, node):
    publisher, subscriber = pair(rgaps.Image)
    content = picture(channels=1, dtype=">u2")[:, :, 0]
    publisher.push(content)
    sample = subscriber.wait(10)
    assert sample.meta.is_bigendian and np.asarray(sample).dtype == content.dtype
    assert np.array_equal(np.asarray(sample), content)
    with pytest.raises(BufferError, match="high bytes first"):
        np.from_dlpack(sample)
    tensors = node.publisher("tensors", rgaps.Tensor)
    with pytest.raises(rgaps.MetadataError, match="newbyteorder"):
        tensors.push(np.zeros(3, ">f4"))


def test_types_that_numpy_lacks_are_given_out_by_dlpack(pair):
    publisher, subscriber = pair(rgaps.Tensor)
    with publisher.loan(rgaps.Tensor((4,), "bfloat16")) as loan:
        loan.view.view("uint16")[:] = [1, 2, 3, 4]
    sample = subscriber.wait(10)
    with pytest.raises(BufferError, match="bfloat16.*torch.from_dlpack"):
        np.asarray(sample)
    assert sample.view.view("uint16").tolist() == [1, 2, 3, 4]
    consumer = Consumer(sample.__dlpack__())
    assert (consumer.tensor.code, consumer.tensor.bits, consumer.shape) == (4, 16, (4,))
    consumer.close()


def test_capsules_say_version_flags_and_layout(pair):
    publisher, subscriber = pair(rgaps.Image)
    publisher.push(picture(), rgaps.Image(64, 48, "rgb8", step=200))
    sample = subscriber.wait(10)
    for asked, versioned in [(None, False), ((0, 8), False), ((1, 0), True), ((1, 1), True), ((2, 0), True)]:
        consumer = Consumer(sample.__dlpack__(max_version=asked))
        assert consumer.is_versioned == versioned
        if versioned:
            assert consumer.flags == 1 and (consumer.managed.contents.major, consumer.managed.contents.minor) == (1, 1)
        assert (consumer.shape, consumer.strides) == ((48, 64, 3), (200, 3, 1))
        assert consumer.tensor.data == sample.address and sample.__dlpack_device__() == (1, 0)
        consumer.close()
    copied = Consumer(sample.__dlpack__(copy=True, max_version=(1, 0)))
    assert copied.flags == 2 and copied.tensor.data != sample.address
    copied.close()
    for arguments in [{"dl_device": (1, 0)}, {"copy": False}, {"stream": -1}]:
        Consumer(sample.__dlpack__(**arguments)).close()
    with pytest.raises(BufferError, match=r"\(2, 0\)"):
        sample.__dlpack__(dl_device=(2, 0))
    with pytest.raises(ValueError, match="no streams"):
        sample.__dlpack__(stream=1)
    assert not hasattr(sample, "__cuda_array_interface__") and not hasattr(sample.view, "__cuda_array_interface__")


def test_a_message_is_held_until_sample_arrays_and_capsules_are_gone(pair):
    publisher, subscriber = pair(rgaps.Bytes)
    publisher.push(b"held")
    sample = subscriber.wait(10)
    seen, by_dlpack, capsule = np.asarray(sample), np.from_dlpack(sample), sample.__dlpack__()
    consumer, field = Consumer(sample.__dlpack__(max_version=(1, 1))), sample.view
    sample.release()
    sample.release()
    assert sample.released and subscriber.statistics.held == 1
    assert bytes(seen) == b"held" and sample.meta.nbytes == 4 and sample.info.sequence == 1
    for holder in ("seen", "by_dlpack", "capsule", "consumer", "field"):
        assert subscriber.statistics.held == 1, holder
        if holder == "seen":
            del seen
        elif holder == "by_dlpack":
            del by_dlpack
        elif holder == "capsule":
            del capsule  # never consumed: its destructor releases it
        elif holder == "consumer":
            consumer.close()
        else:
            del field
    assert subscriber.statistics.held == 0
    uses = [lambda: np.asarray(sample), sample.__dlpack__, sample.__dlpack_device__, lambda: sample.address]
    uses += [lambda: sample.mapped_from, lambda: sample.readiness, sample.tobytes, lambda: sample.view]
    for use in uses:
        with pytest.raises(rgaps.ReleasedError, match="message 1, is released"):
            use()


def test_samples_are_released_at_the_end_of_with_and_outlive_subscriber_and_node():
    with rgaps.Node("one") as node:
        publisher, subscriber = node.publisher("t", rgaps.Bytes), node.subscriber("t", rgaps.Bytes)
        publisher.push(b"one")
        publisher.push(b"two")
        with subscriber.wait(10) as sample:
            assert sample.tobytes() == b"one"
        assert sample.released and subscriber.statistics.held == 0
        kept = np.asarray(subscriber.wait(10))
    assert bytes(kept) == b"two"


def test_arrays_of_older_libraries_are_published(pair):
    publisher, subscriber = pair(rgaps.Tensor)
    content = np.arange(6, dtype=np.float32).reshape(2, 3)
    other_publisher, other_subscriber = pair(rgaps.Tensor, "other")
    publisher.push(content)
    sample = subscriber.wait(10)
    other_publisher.push(Unwilling(sample))
    assert np.array_equal(np.asarray(other_subscriber.wait(10)), content)
    assert subscriber.statistics.held == 1
    del sample
    assert subscriber.statistics.held == 0


def test_arrays_that_do_not_fit_are_refused_with_both_shapes(pair, node):
    publisher, subscriber = pair(rgaps.Image)
    meta = rgaps.Image(64, 48, "rgb8")
    for content, words in [
        (picture(48, 63), r"\(48, 64, 3\) of uint8.*\(48, 63, 3\) of uint8"),
        (picture(dtype=np.int8), "of int8"),
        (np.zeros(10, np.float32), "of float32"),
        (np.zeros((48, 64, 3, 1, 1), np.uint8), "48, 64, 3, 1, 1"),
    ]:
        with pytest.raises(rgaps.MetadataError, match=words):
            publisher.push(content, meta)
    with pytest.raises(rgaps.MetadataError, match="is no picture"):
        publisher.push(np.zeros((4, 4), np.int64))
    with pytest.raises(rgaps.MetadataError, match="unknown image encoding 'rgb9'"):
        publisher.push(picture(), encoding="rgb9")
    with pytest.raises(rgaps.MetadataError, match="encoding was given beside"):
        publisher.push(picture(), meta, encoding="rgb8")
    with pytest.raises(rgaps.TypeMismatchError) as raised:
        publisher.push(picture(), rgaps.Tensor((48, 64, 3), "uint8"))
    assert (raised.value.wanted, raised.value.found, raised.value.topic) == ("rgaps/Image", "rgaps/Tensor", "/topic")
    with pytest.raises(rgaps.TypeMismatchError):
        publisher.loan(rgaps.Bytes(3))
    with pytest.raises(TypeError, match="is no array"):
        publisher.push(object())
    with pytest.raises(TypeError, match="metadata must be an rgaps.Image"):
        publisher.loan(None)
    with pytest.raises(rgaps.MetadataError, match="4 B"):
        node.publisher("bytes", rgaps.Bytes).push(b"four", rgaps.Bytes(5))
    with pytest.raises(rgaps.MetadataError, match="is no cloud"):
        node.publisher("cloud", rgaps.PointCloud).push(np.zeros((3, 5), np.float32))
    with pytest.raises(rgaps.MetadataError, match="is no tensor"):
        node.publisher("tensor", rgaps.Tensor).push(np.zeros(3, "f4,f4"))
    with pytest.raises(rgaps.MetadataError, match="has no encoding"):
        node.publisher("tensor", rgaps.Tensor).push(np.zeros(3), encoding="rgb8")
    with pytest.raises(rgaps.DeviceError, match="no stream"):
        publisher.push(picture(), stream=7)
    assert subscriber.take() is None and publisher.statistics.used_bytes == 0


def test_metadata_objects_are_immutable_values(node):
    image = rgaps.Image(4, 2, stamp=7, frame_id="a", user=b"mine")
    assert image == rgaps.Image(4, 2, "rgb8", stamp=7, frame_id="a", user=b"mine")
    assert image != image.replace(stamp=8) and image.replace(stamp=8).frame_id == "a"
    assert len({image, image.replace(stamp=7)}) == 1 and image.user == b"mine".ljust(32, b"\0")
    assert (image.width, image.height, image.step, image.nbytes, image.is_bigendian) == (4, 2, 12, 24, False)
    assert repr(image) == "rgaps.Image(4, 2, 'rgb8')"
    with pytest.raises(AttributeError):
        image.width = 5
    tensor = rgaps.Tensor((2, 3), np.dtype("int16"), strides=(8, 1), byte_offset=4)
    assert (tensor.shape, tensor.strides, tensor.dtype, tensor.byte_offset) == ((2, 3), (8, 1), "int16", 4)
    assert tensor.nbytes == 4 + 2 * (8 + 3) and rgaps.Tensor.like(np.zeros((2, 3), np.int16)).shape == (2, 3)
    field = rgaps.PointField("x", 4, "float32", 2)
    cloud = rgaps.PointCloud(5, 2, 16, [field], row_step=100, is_dense=False)
    assert cloud.fields == [field] and (cloud.row_step, cloud.points, cloud.nbytes) == (100, 10, 200)
    assert rgaps.PointCloud.from_dtype("f4,f4", 3) == rgaps.PointCloud.packed(3, [("f0", "float32"), ("f1", "float32")])
    for wrong in [
        lambda: rgaps.Image(0, 4),
        lambda: rgaps.Image(3, 4, "yuyv"),
        lambda: rgaps.Image(4, 2, step=3),
        lambda: rgaps.Tensor((-1,)),
        lambda: rgaps.Tensor((1,) * 9),
        lambda: rgaps.Image(4, 2, frame_id="x" * 65),
        lambda: rgaps.PointCloud(1, 1, 4, [rgaps.PointField("x", 2, "float32")]),
    ]:
        with pytest.raises(rgaps.MetadataError):
            wrong()
    with pytest.raises(TypeError, match="'float33' is no type"):
        rgaps.Tensor((1,), "float33")
    with pytest.raises(OverflowError):
        rgaps.Image(4, 2, stamp=-1)
    with pytest.raises(ValueError, match="33 B"):
        rgaps.Image(4, 2, user=b"x" * 33)


def test_using_a_closed_object_is_an_error(node):
    publisher, subscriber = node.publisher("t", rgaps.Bytes), node.subscriber("t", rgaps.Bytes)
    node.close()
    node.close()
    for use in [
        lambda: node.publisher("t", rgaps.Bytes),
        lambda: node.subscriber("t", rgaps.Bytes),
        node.topics,
        lambda: publisher.push(b""),
        lambda: publisher.statistics,
        subscriber.take,
        lambda: subscriber.wait(0),
        subscriber.fileno,
    ]:
        with pytest.raises(rgaps.ClosedError, match="is closed"):
            use()
    assert list(subscriber) == [] and subscriber.closed and "closed" in repr(publisher)


def test_errors_carry_their_numbers(node):
    publisher = node.publisher("t", rgaps.Bytes, pool_bytes=1 << 16, exhaustion="refuse")
    subscriber = node.subscriber("t", rgaps.Bytes)
    with pytest.raises(rgaps.NoSpaceError) as raised:
        publisher.loan(rgaps.Bytes(1 << 20))
    assert (raised.value.wanted, raised.value.capacity, raised.value.topic) == (1 << 20, 1 << 16, "/t")
    publisher.push(bytes(40_000))
    held = subscriber.wait(10)
    with pytest.raises(rgaps.NoSpaceError) as raised:
        publisher.push(bytes(40_000))
    assert raised.value.wanted >= 40_000 > raised.value.free and not isinstance(raised.value, TimeoutError)
    assert pickle.loads(pickle.dumps(raised.value)).free == raised.value.free
    waiting = node.publisher("t", rgaps.Bytes, rgaps.PublisherQos(pool_bytes=1 << 16), timeout=0.01)
    waiting.push(bytes(40_000))
    other = subscriber.wait(10)
    with pytest.raises(rgaps.NoSpaceTimeoutError) as raised:
        waiting.push(bytes(40_000))
    assert isinstance(raised.value, TimeoutError) and isinstance(raised.value, rgaps.TimeoutError)
    assert raised.value.waited_ms >= 10 and raised.value.keeper_pid == os.getpid()
    del held, other
    with pytest.raises(rgaps.TypeMismatchError) as raised:
        node.subscriber("t", rgaps.Image)
    assert (raised.value.found, raised.value.wanted) == ("rgaps/Bytes", "rgaps/Image")
    with pytest.raises(rgaps.TopicNameError, match="topic"):
        node.publisher("not a name", rgaps.Bytes)
    with pytest.raises(rgaps.DeviceError, match="gpu"):
        rgaps.Node(device="gpu")
    with pytest.raises(rgaps.NodeError, match="no rgapsd runs"):
        rgaps.Node(runtime_dir=tempfile.mkdtemp(prefix="rgaps-py-"), autostart=False)




def test_wrong_arguments_are_refused(node):
    for wrong in [
        lambda: node.publisher("t", dict),
        lambda: node.publisher("t", rgaps.Image(1, 1)),
        lambda: node.publisher("t", rgaps.Image, rgaps.SubscriberQos()),
        lambda: node.publisher("t", rgaps.Image, deepness=3),
        lambda: node.subscriber("t", rgaps.Image, history_depth=3),
        lambda: node.subscriber("t", rgaps.Image).wait("long"),
        lambda: node.subscriber("t", rgaps.Image).take(object()),
        lambda: node.publisher("t", rgaps.Image).push(None),
        lambda: node.publisher(None, rgaps.Image),
        lambda: rgaps.Image(None, 4),
        lambda: rgaps.Publisher(),
        lambda: rgaps.Sample(),
    ]:
        with pytest.raises(TypeError):
            wrong()
    for wrong in [
        lambda: node.publisher("t", rgaps.Image, reliability="often"),
        lambda: node.publisher("t", rgaps.Image, exhaustion="panic"),
        lambda: node.subscriber("t", rgaps.Image).wait(float("nan")),
        lambda: node.subscriber("t", rgaps.Image).take(0),
        lambda: node.subscriber("t", rgaps.Image).take(-5),
    ]:
        with pytest.raises(ValueError):
            wrong()
    with pytest.raises(rgaps.DeviceError, match="no streams"):
        node.subscriber("t", rgaps.Image).take(stream=77)


def test_quality_of_service_reaches_the_core(node):
    publisher = node.publisher("latched", rgaps.Bytes, durability="transient_local", history_depth=2)
    for number in range(5):
        publisher.push(bytes([number]))
    late = node.subscriber("latched", rgaps.Bytes, rgaps.SubscriberQos(durability="transient_local"))
    assert [sample.tobytes() for sample in late.take_all()] == [b"\x03", b"\x04"]
    last = node.subscriber("latched", rgaps.Bytes, depth=1)
    for number in range(5):
        publisher.push(bytes([number]))
    assert [sample.tobytes() for sample in last.take_all()] == [b"\x04"] and last.statistics.lost == 4
    assert publisher.subscriber_count == 2 and publisher.type is rgaps.Bytes and publisher.topic == "/latched"
    [topic] = node.topics()
    assert dict(topic)["name"] == topic["name"] == topic.name == "/latched" and topic.publishers == 1


def test_samples_and_publishers_are_used_from_any_thread(pair):
    publisher, subscriber = pair(rgaps.Bytes)
    seen, errors = [], []

    def work(number):
        try:
            publisher.push(bytes([number]) * 1000)
            sample = subscriber.wait(30)
            seen.append(np.asarray(sample)[0])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and sorted(seen) == list(range(8)) and subscriber.statistics.held == 0


def test_many_threads_may_use_and_close_everything_at_once(node):
    publisher = node.publisher("t", rgaps.Bytes, exhaustion="drop_oldest", pool_bytes=1 << 20)
    shared, errors, start = [], [], threading.Barrier(6)

    # Another thread may come first at any step. ReleasedError and ClosedError are ValueErrors, and numpy also raises ValueError for writing a
    # read-only array.
    def publish():
        for number in range(150):
            with contextlib.suppress(ValueError), publisher.loan(rgaps.Bytes(100)) as loan:
                shared[:] = [*shared[-5:], loan]
                np.asarray(loan)[:] = number % 256

    def read():
        subscriber = node.subscriber("t", rgaps.Bytes)
        shared.append(subscriber)
        for _ in range(150):
            with contextlib.suppress(ValueError):
                sample = subscriber.take() or subscriber.wait(0.001)
                if sample is not None:
                    shared.append(sample)
                    content = sample.tobytes()
                    assert content.count(content[:1]) == 100

    def meddle():
        for number in range(1500):
            for one in shared[-8:]:
                with contextlib.suppress(ValueError):
                    use(one, number)

    def use(one, number):
        repr(one)
        if isinstance(one, rgaps.Sample):
            array = np.asarray(one)
            assert (array == array[0]).all()
            one.release()
        elif isinstance(one, rgaps.Subscriber):
            assert one.statistics.taken >= 0
            if number % 500 == 499:
                one.close()
        elif number % 7 == 0:
            one.discard()

    def guarded(work):
        start.wait()
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in (publish, read, read, meddle, meddle, publish)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    shared.clear()
    gc.collect()
    assert publisher.statistics.outstanding == 0


def test_torch_reads_and_writes_where_the_bytes_lie(pair):
    torch = pytest.importorskip("torch", reason="no torch")
    publisher, subscriber = pair(rgaps.Tensor)
    with publisher.loan(rgaps.Tensor((2, 3), torch.float32)) as loan:
        torch.from_dlpack(loan).copy_(torch.arange(6.0).reshape(2, 3))
    sample = subscriber.wait(10)
    seen = torch.from_dlpack(sample)
    assert seen.data_ptr() == sample.address and seen.tolist() == [[0, 1, 2], [3, 4, 5]]
    publisher.push(torch.ones(4, 3, dtype=torch.bfloat16).t())
    sample = subscriber.wait(10)
    assert sample.meta.shape == (3, 4) and torch.from_dlpack(sample).dtype == torch.bfloat16


def test_a_refused_batch_names_the_loan_and_leaves_arrays_writable(pair):
    publisher, _ = pair(rgaps.Bytes)
    loans = [publisher.loan(rgaps.Bytes(8)) for _ in range(3)]
    array = np.asarray(loans[0])
    with pytest.raises(rgaps.ReleasedError) as raised:
        publisher.publish_all([*loans, loans[0]])
    assert raised.value.index == 3
    array[:] = 7
    assert len(publisher.publish_all(loans)) == 3
    with pytest.raises(ValueError):
        array[:] = 8
