"""On a GPU, or on the stand-in for libcuda: its device memory faults when the CPU touches it, and its streams can be held.

STANDIN_CUDA is the path of its library; `./dev test-python` builds it.
"""

import os
from pathlib import Path

import pytest

STANDIN = os.environ.get("STANDIN_CUDA", "")

pytestmark = pytest.mark.skipif(not STANDIN, reason="STANDIN_CUDA does not name the stand-in for libcuda")

PRELUDE = """
import ctypes, gc, os, sys, time
sys.path.insert(0, sys.argv[1])
import numpy as np
import pytest
import rgaps
from capsules import Consumer, Unwilling

cuda = ctypes.CDLL("libcuda.so.1")
cuda.rgaps_standin_calls.restype = ctypes.c_uint64
hold, go = cuda.rgaps_standin_hold, cuda.rgaps_standin_go

def calls(name):
    return cuda.rgaps_standin_calls(name.encode())

node = rgaps.Node("gpu")
assert node.device == "cuda:0", node
context = ctypes.c_void_p()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0

def stream():
    made = ctypes.c_void_p()
    assert cuda.cuCtxPushCurrent_v2(context) == 0
    assert cuda.cuStreamCreate(ctypes.byref(made), 1) == 0
    assert cuda.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())) == 0
    return made.value

def until(is_so):
    while not is_so():
        os.sched_yield()

publisher, subscriber = node.publisher("t", rgaps.Tensor), node.subscriber("t", rgaps.Tensor)
content = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
"""


@pytest.fixture
def on_standin(program, tmp_path, monkeypatch):
    for name in ("libcuda.so", "libcuda.so.1"):
        (tmp_path / name).symlink_to(STANDIN)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("RGAPS_DEVICE", "cuda")

    def run(source):
        lines = source.splitlines()
        indent = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
        body = "\n".join(line[indent:] for line in lines)
        program(PRELUDE + body, Path(__file__).parent).end()

    return run


def test_numpy_fills_and_reads_device_memory_by_copies_that_are_counted(on_standin):
    on_standin("""
        with publisher.loan(rgaps.Tensor.like(content)) as loan:
            mine = np.asarray(loan)
            assert not hasattr(loan, "nothing") and loan.__dlpack_device__() == (2, 0)
            mine[:] = content
        assert not mine.flags.writeable
        publisher.push(content[:, ::2])
        first, second = subscriber.wait(60), subscriber.wait(60)
        assert first.__dlpack_device__() == (2, 0) and not first.is_in_place
        assert np.array_equal(np.asarray(first), content) and np.array_equal(np.asarray(second), content[:, ::2])
        assert subscriber.statistics.copied_bytes == content.nbytes + content[:, ::2].nbytes
        assert first.tobytes() == content.tobytes()
        clouds, seen = node.publisher("c", rgaps.PointCloud), node.subscriber("c", rgaps.PointCloud)
        with clouds.loan(rgaps.PointCloud.packed(3, {"x": "float32", "r": "uint8"})) as loan:
            np.asarray(loan)["x"] = 2
            np.asarray(loan.field("r"))[:] = 5
        assert np.asarray(seen.wait(60)).tolist() == [(2, 5)] * 3
    """)


def test_capsules_and_the_cuda_interface_name_the_device_and_its_memory(on_standin):
    on_standin("""
        publisher.push(content)
        sample = subscriber.wait(60)
        consumer = Consumer(sample.__dlpack__(max_version=(1, 1)))
        tensor = consumer.tensor
        assert (tensor.device_type, tensor.device_id, tensor.data) == (2, 0, sample.address) and consumer.flags == 1
        consumer.close()
        interface = sample.__cuda_array_interface__
        assert interface == {"version": 3, "shape": (2, 3, 4), "typestr": "<f4", "data": (sample.address, True),
                             "strides": (48, 16, 4), "stream": None}
        # Reading the address makes the object hold the message until the object is gone.
        sample.release()
        assert sample.released and publisher.statistics.outstanding == 1
        del sample
        until(lambda: publisher.statistics.outstanding == 0)
        publisher.push(content)
        sample = subscriber.wait(60)
        copied = Consumer(sample.__dlpack__(dl_device=(1, 0), max_version=(1, 0)))
        assert copied.flags == 2 and copied.tensor.device_type == 1
        there = (ctypes.c_float * 24).from_address(copied.tensor.data)
        assert list(there) == list(range(24))
        copied.close()
        for arguments, words in [({"dl_device": (2, 1)}, "not copied to"), ({"copy": True}, "clone"),
                                 ({"dl_device": (1, 0), "copy": False}, "by a copy only")]:
            with pytest.raises(BufferError, match=words):
                sample.__dlpack__(**arguments)
    """)


def test_streams_are_named_in_every_way(on_standin):
    on_standin("""
        class Torch:
            cuda_stream = stream()
        class Default:
            cuda_stream = 0
        class Cupy:
            ptr = stream()
        class Protocol:
            handle = stream()
            def __cuda_stream__(self):
                return (0, self.handle)
        ways = [None, 1, 2, stream(), Torch(), Default(), Cupy(), Protocol()]
        for way in ways:
            publisher.push(content)
            sample = subscriber.take(way) or subscriber.wait(60)
            Consumer(sample.__dlpack__(stream=way)).close()
            sample.release(way)
        until(lambda: publisher.statistics.outstanding == 0)
        publisher.push(content)
        sample = subscriber.wait(60)
        Consumer(sample.__dlpack__(stream=-1)).close()
        for wrong in (0, -2, True, "1", object()):
            with pytest.raises((ValueError, TypeError)):
                sample.__dlpack__(stream=wrong)
        late = publisher.loan(rgaps.Tensor.like(content))
        late.publish(stream=Torch())
    """)


def test_a_consumer_waits_for_the_bytes_and_releases_behind_its_work_on_its_stream(on_standin):
    on_standin("""
        samples = node.subscriber("t", rgaps.Tensor)
        publisher.push(content)
        source = samples.wait(60)
        subscriber.take_all()
        out, seen = node.publisher("out", rgaps.Tensor), node.subscriber("out", rgaps.Tensor)
        mine, other = stream(), stream()
        hold()
        out.push(source, stream=mine)
        # The bytes are not written yet: the CPU cannot take the message, a stream can.
        assert seen.take() is None
        sample = seen.take(stream=mine)
        assert sample.readiness == "pending"
        waits = calls("cuStreamWaitEvent")
        consumer = Consumer(sample.__dlpack__(stream=other))
        assert calls("cuStreamWaitEvent") == waits + 1  # the consumer's stream waits for the taker's
        again = Consumer(sample.__dlpack__(stream=-1))
        assert calls("cuStreamWaitEvent") == waits + 1
        again.close()
        sample.release()
        consumer.close()
        # Released by the CPU, but not yet by the streams.
        assert out.statistics.outstanding == 1
        go()
        until(lambda: out.statistics.outstanding == 0)
        out.push(source)
        assert np.array_equal(np.asarray(seen.wait(60)), content)
    """)


def test_a_pushed_array_lives_until_its_stream_has_copied_it(on_standin):
    on_standin("""
        publisher.push(content)
        source = subscriber.wait(60)
        out, seen = node.publisher("out", rgaps.Tensor), node.subscriber("out", rgaps.Tensor)
        mine = stream()
        class Interface:
            # An array that has only the CUDA array interface.
            def __init__(self, sample):
                self.sample = sample
                self.__cuda_array_interface__ = dict(sample.__cuda_array_interface__, stream=mine)
        for kind in (lambda sample: sample, Unwilling, Interface):
            array = kind(source)
            hold()
            out.push(array, stream=mine)
            del array, source
            gc.collect()
            assert out.statistics.outstanding == 1 and publisher.statistics.outstanding == 1
            go()
            sample = seen.wait(60)
            assert np.array_equal(np.asarray(sample), content) and sample.info.origin == "pushed"
            del sample
            # Its copy is over, so the next look at the publisher releases it.
            until(lambda: out.statistics and publisher.statistics.outstanding == 0)
            publisher.push(content)
            source = subscriber.wait(60)
        with pytest.raises(rgaps.MetadataError, match="contiguous"):
            clouds = node.publisher("c", rgaps.PointCloud)
            with clouds.loan(rgaps.PointCloud.packed(3, {"x": "float32", "y": "float32"})) as loan:
                np.asarray(loan)[:] = 0
                out.push(loan.field("x"))
    """)


def test_a_loan_is_published_behind_the_streams_of_its_gpu_arrays(on_standin):
    on_standin("""
        mine = stream()
        loan = publisher.loan(rgaps.Tensor.like(content))
        consumer = Consumer(loan.__dlpack__(stream=mine, max_version=(1, 0)))
        assert consumer.flags == 0
        hold()
        consumer.close()
        loan.publish()
        assert subscriber.take() is None  # the stream may still write the block
        go()
        assert subscriber.wait(60).nbytes == content.nbytes
        with publisher.loan(rgaps.Tensor.like(content), stream=mine) as loan:
            hold()
        assert subscriber.take() is None
        go()
        assert subscriber.wait(60).info.sequence == 2
    """)


def test_a_batch_is_copied_to_the_gpu_and_refuses_a_loan_of_a_stream(on_standin):
    on_standin("""
        loans = [publisher.loan(rgaps.Tensor.like(content)) for _ in range(3)]
        for number, loan in enumerate(loans):
            np.asarray(loan)[:] = content + number
        publisher.publish_all(loans)
        for number in range(3):
            assert np.array_equal(np.asarray(subscriber.wait(60)), content + number)
        loans = [publisher.loan(rgaps.Tensor.like(content)) for _ in range(2)]
        np.asarray(loans[0])[:] = content
        Consumer(loans[1].__dlpack__(stream=stream(), max_version=(1, 0))).close()
        with pytest.raises(rgaps.DeviceError, match="loan 1 of the batch was given to a stream"):
            publisher.publish_all(loans)
        assert subscriber.take() is None
        loans[1].publish()
        publisher.publish_all(loans[:1])
        assert subscriber.wait(60).info.sequence == 4 and np.array_equal(np.asarray(subscriber.wait(60)), content)
    """)


def test_a_forked_child_leaves_the_gpu_to_its_parent(on_standin):
    on_standin("""
        for _ in range(3):
            publisher.push(content)
        mine = stream()
        samples = [subscriber.wait(60), subscriber.take(stream=mine), subscriber.wait(60)]
        held = [samples[0].__dlpack__(stream=mine), samples[1].view, samples[2].__cuda_array_interface__]
        out = node.publisher("out", rgaps.Tensor)
        hold()
        out.push(samples[0], stream=mine)
        loan = publisher.loan(rgaps.Tensor.like(content))
        filling = np.asarray(loan)
        child = os.fork()
        if child == 0:
            for use in (lambda: out.push(samples[0]), loan.publish, subscriber.take, samples[0].tobytes):
                with pytest.raises(rgaps.ForkedError):
                    use()
            held.clear()
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        go()
        held.clear()
        for sample in samples:
            sample.release()
        loan.discard()
        del sample, samples
        until(lambda: out.statistics and publisher.statistics.outstanding == 0)
    """)


def test_the_interpreter_ends_in_order_with_arrays_on_the_gpu(on_standin):
    on_standin("""
        for _ in range(4):
            publisher.push(content)
        mine = stream()
        samples = [subscriber.wait(60), subscriber.take(stream=mine)]
        held = [samples[0].__dlpack__(stream=mine), samples[1].__dlpack__(), samples[0].view.__cuda_array_interface__]
        out = node.publisher("out", rgaps.Tensor)
        out.push(samples[0], stream=mine)
        loan = publisher.loan(rgaps.Tensor.like(content))
        filling = np.asarray(loan)
    """)
