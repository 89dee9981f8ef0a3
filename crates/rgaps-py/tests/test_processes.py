"""Between processes: one copy for all, every way to wait, and deaths that harm no other process."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import rgaps
from conftest import LONG, users_of

PUBLISHER = """
    import json, sys
    import numpy as np, rgaps

    node = rgaps.Node("camera")
    publisher = node.publisher("camera/front", rgaps.Image, exhaustion="drop_oldest")
    print("ready", flush=True)
    for line in sys.stdin:
        number = int(line)
        with publisher.loan(rgaps.Image(64, 48, "rgb8", stamp=number)) as loan:
            np.asarray(loan)[:] = number
        print(json.dumps({"sequence": loan.handle.sequence}), flush=True)
"""

PLAIN = """
    import json, sys
    import numpy as np, rgaps

    node = rgaps.Node("reader")
    subscriber = node.subscriber("camera/front", rgaps.Image)
    print("ready", flush=True)
    for sample in subscriber:
        seen = np.from_dlpack(sample)
        said = {"same": bool((seen == sample.meta.stamp).all()), "shape": seen.shape, "stamp": sample.meta.stamp}
        said |= {"from": sample.mapped_from, "copies": sample.info.copies, "at": seen.ctypes.data == sample.address}
        said |= {"copied": subscriber.statistics.copied_bytes}
        print(json.dumps(said), flush=True)
        del sample, seen
        if sys.stdin.readline() == "end\\n":
            break
    assert subscriber.statistics.held == 0
"""

ASYNC = """
    import asyncio, json, sys
    import numpy as np, rgaps

    async def main():
        subscriber = node.subscriber("camera/front", rgaps.Image)
        print("ready", flush=True)
        async for sample in subscriber:
            seen = np.from_dlpack(sample)
            said = {"same": bool((seen == sample.meta.stamp).all()), "shape": seen.shape, "stamp": sample.meta.stamp}
            said |= {"from": sample.mapped_from, "copies": sample.info.copies, "at": seen.ctypes.data == sample.address}
            said |= {"copied": subscriber.statistics.copied_bytes}
            print(json.dumps(said), flush=True)
            del sample, seen
            if await asyncio.to_thread(sys.stdin.readline) == "end\\n":
                break
        assert subscriber.statistics.held == 0

    node = rgaps.Node("reader")
    asyncio.run(main())
"""


def test_four_processes_read_one_picture_in_one_place(program):
    publisher = program(PUBLISHER)
    readers = [program(PLAIN), program(PLAIN), program(ASYNC), program(ASYNC)]
    for one in [publisher, *readers]:
        assert one.line() == "ready"
    for number in (1, 2, 3):
        publisher.tell(str(number))
        assert json.loads(publisher.line())["sequence"] == number
        said = [json.loads(reader.line()) for reader in readers]
        for one in said:
            assert one["same"] and one["shape"] == [48, 64, 3] and one["stamp"] == number
            assert one["at"] and one["copies"] == 0 and one["copied"] == 0
        # The same bytes of the same memory: device and inode of the pool, and the offset in it.
        assert all(one["from"] == said[0]["from"] for one in said)
        for reader in readers:
            reader.tell("end" if number == 3 else "")
    for reader in readers:
        reader.end()
    publisher.end()


def test_ctrl_c_ends_a_wait(program):
    source = """
        import rgaps
        subscriber = rgaps.Node("waits").subscriber("silent", rgaps.Bytes)
        try:
            print("waiting", flush=True)
            {wait}
        except KeyboardInterrupt:
            print("interrupted", subscriber.take(), flush=True)
    """
    for wait in ("subscriber.wait()", "next(iter(subscriber))", "import asyncio; asyncio.run(subscriber.next())"):
        waiter = program(source.replace("{wait}", wait))
        assert waiter.line() == "waiting"
        waiter.process.send_signal(signal.SIGINT)
        assert waiter.end() == "interrupted None\n"


def test_other_threads_go_on_while_one_waits(program):
    # The other thread ends the wait; it could not if the wait held the GIL.
    waiter = program("""
        import threading, rgaps
        node = rgaps.Node("threads")
        subscriber, publisher = node.subscriber("t", rgaps.Bytes), node.publisher("t", rgaps.Bytes)
        counted = 0
        def count():
            global counted
            while counted < 100_000:
                counted += 1
            publisher.push(b"done")
        thread = threading.Thread(target=count)
        thread.start()
        assert subscriber.wait().tobytes() == b"done" and counted == 100_000
        thread.join()
    """)
    waiter.end()


def test_closing_ends_the_waits_of_other_threads_and_tasks(program):
    program("""
        import asyncio, threading, rgaps
        node = rgaps.Node("closes")
        for_thread, for_task = node.subscriber("t", rgaps.Bytes), node.subscriber("t", rgaps.Bytes)
        heard = []
        def wait():
            try:
                for_thread.wait()
            except rgaps.ClosedError:
                heard.append("wait")
        def loop():
            for sample in for_thread:
                pass
            heard.append("for")
        async def tasks():
            async def one():
                try:
                    await for_task.next()
                except rgaps.ClosedError:
                    heard.append("next")
            async def all():
                async for sample in for_task:
                    pass
                heard.append("async for")
            waiting = [asyncio.ensure_future(one()), asyncio.ensure_future(all())]
            await asyncio.sleep(0)  # both wait now
            threading.Thread(target=node.close).start()
            await asyncio.gather(*waiting)
        threads = [threading.Thread(target=wait), threading.Thread(target=loop)]
        for thread in threads:
            thread.start()
        asyncio.run(tasks())
        for thread in threads:
            thread.join()
        assert sorted(heard) == ["async for", "for", "next", "wait"], heard
    """).end()


def test_tasks_share_a_subscriber_and_a_cancelled_task_takes_no_message(program):
    program("""
        import asyncio, rgaps
        node = rgaps.Node("tasks")
        subscriber = node.subscriber("t", rgaps.Bytes, depth=None)
        publisher = node.publisher("t", rgaps.Bytes)

        async def main():
            taken = []
            async def take():
                sample = await subscriber.next()
                taken.append(sample.tobytes()[0])
            tasks = [asyncio.create_task(take()) for _ in range(10)]
            await asyncio.sleep(0)
            for number in range(5):
                publisher.push(bytes([number]))
            # Woken by the eventfd, and cancelled in the same turn of the loop, before they run.
            loop = asyncio.get_running_loop()
            reader, = subscriber._waiters.readers.values()
            reader.wake()
            for task in tasks[:5]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert sorted(taken) == list(range(5)), taken
            assert all(task.cancelled() for task in tasks[:5])
            assert not subscriber._waiters.readers  # nothing is left in the loop
            assert await subscriber.next(timeout=0) is None and await subscriber.next(timeout=0.001) is None
            try:
                await asyncio.wait_for(subscriber.next(), 0.001)
                raise AssertionError("there was a message")
            except asyncio.TimeoutError:
                pass
            publisher.push(b"last")
            assert (await subscriber.next(timeout=60)).tobytes() == b"last"

        asyncio.run(main())
        asyncio.run(main())  # in another loop
    """).end()


def test_a_loop_that_cannot_watch_file_descriptors_is_named(program):
    program("""
        import asyncio, rgaps
        class Loop(asyncio.SelectorEventLoop):
            def add_reader(self, *arguments):
                if getattr(self, "is_used", False):
                    raise NotImplementedError
                super().add_reader(*arguments)
        subscriber = rgaps.Node("loop").subscriber("t", rgaps.Bytes)
        loop = Loop()
        loop.is_used = True
        try:
            loop.run_until_complete(subscriber.next())
            raise AssertionError("it waited")
        except rgaps.Error as error:
            assert "Loop cannot watch file descriptors" in str(error), error
    """).end()


def test_a_forked_child_is_told_to_make_a_node(program):
    said = program("""
        import os, sys
        import numpy as np, rgaps
        node = rgaps.Node("parent")
        publisher, subscriber = node.publisher("t", rgaps.Bytes), node.subscriber("t", rgaps.Bytes)
        for content in (b"one", b"two"):
            publisher.push(content)
        sample, other, loan = subscriber.wait(10), subscriber.wait(10), publisher.loan(rgaps.Bytes(3))
        array, capsule = np.asarray(other), other.__dlpack__()
        child = os.fork()
        if child == 0:
            for use in (lambda: publisher.push(b"x"), subscriber.take, lambda: subscriber.wait(1), subscriber.fileno,
                        lambda: node.topics(), lambda: node.publisher("t", rgaps.Bytes), lambda: sample.address,
                        sample.tobytes, sample.__dlpack__, lambda: np.asarray(sample), lambda: loan.address, loan.publish):
                try:
                    use()
                    print("no error", use, flush=True)
                except rgaps.ForkedError:
                    pass
            sample.release()
            mine = rgaps.Node("child")
            mine.publisher("t", rgaps.Bytes).push(b"child's")
            mine.close()
            sys.exit(0)  # with all of the parent's still there
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert subscriber.wait(30).tobytes() == b"child's"
        assert sample.tobytes() == b"one" and bytes(array) == b"two" and subscriber.statistics.held == 2
        loan.publish()
        assert subscriber.wait(30).nbytes == 3
    """).end()
    assert said == ""


def test_a_client_cut_off_from_a_topic_gets_an_error_at_the_next_call(program, runtime_dir):
    client = program("""
        import sys
        import rgaps
        node = rgaps.Node("client")
        publisher, subscriber = node.publisher("t", rgaps.Bytes), node.subscriber("t", rgaps.Bytes)
        print("ready", flush=True)
        sys.stdin.readline()
        for call in (lambda: publisher.push(b"some"), subscriber.take):
            try:
                while True:
                    call()
            except rgaps.CutOffError as error:
                assert isinstance(error, rgaps.PublishError) and isinstance(error, rgaps.TakeError)
                print(error.topic, flush=True)
    """)
    assert client.line() == "ready"
    os.kill(client.process.pid, signal.SIGSTOP)
    for process in users_of(runtime_dir):
        if process != client.process.pid:
            os.kill(process, signal.SIGKILL)
    # Without notes the next manager does not know the topic, and makes a new one.
    for note in Path(runtime_dir).glob("topic-*"):
        note.unlink()
    with rgaps.Node("next") as node, node.publisher("t", rgaps.Bytes):
        os.kill(client.process.pid, signal.SIGCONT)
        client.tell()
        assert (client.line(), client.line()) == ("/t", "/t")
        client.end()


@pytest.mark.parametrize("way", ["end", "exit", "thread", "exception"])
def test_the_interpreter_ends_in_order_with_everything_held(program, way):
    with rgaps.Node("looks on") as node:
        publisher = node.publisher("t", rgaps.Bytes)
        holder = program(
            """
            import sys, threading
            import numpy as np, rgaps
            node = rgaps.Node("holds")
            publisher, subscriber = node.publisher("own", rgaps.Bytes), node.subscriber("t", rgaps.Bytes)
            print("ready", flush=True)
            samples = [subscriber.wait(60) for _ in range(4)]
            arrays = [np.asarray(samples[0]), np.from_dlpack(samples[1]), samples[2].__dlpack__(), samples[3].view]
            loan = publisher.loan(rgaps.Bytes(10))
            array = np.asarray(loan)
            cycle = [samples, arrays, loan]
            cycle.append(cycle)
            class Late:
                def __del__(self):
                    self.held = None
            late = Late()
            late.held = (node, publisher, subscriber, samples, arrays)
            way = sys.argv[1]
            if way == "thread":
                started = threading.Event()
                def forever():
                    started.set()
                    subscriber.wait()
                for _ in range(3):
                    threading.Thread(target=forever, daemon=True).start()
                started.wait()
            print("holds", flush=True)
            sys.stdin.readline()
            if way == "exit":
                sys.exit(0)
            if way == "exception":
                sys.excepthook = lambda *error: None
                raise RuntimeError("on purpose")
            """,
            way,
        )
        assert holder.line() == "ready"
        for number in range(4):
            publisher.push(bytes([number]))
        assert holder.line() == "holds"
        assert publisher.statistics.outstanding == 4
        holder.tell()
        said, errors = holder.process.communicate(timeout=LONG)
        assert (holder.process.returncode, said, errors) == (1 if way == "exception" else 0, "", "")
        # The manager has seen the process leave: its holds are released, and its topic has no publisher.
        until(lambda: publisher.statistics.outstanding == 0)
        until(lambda: all(topic.publishers == 0 for topic in node.topics() if topic.name == "/own"))


def until(is_so):
    """Waits until the condition holds; pytest's time-out ends a wait that never does."""
    while not is_so():
        os.sched_yield()


VICTIMS = {
    "publisher": """
        import numpy as np, rgaps
        publisher = rgaps.Node("victim").publisher("t", rgaps.Bytes, pool_bytes=1 << 20, timeout=30.0)
        print("ready", flush=True)
        while True:
            with publisher.loan(rgaps.Bytes(100_000)) as loan:
                np.asarray(loan)[:] = 1
            publisher.push(np.ones(50_000, np.uint8))
            print(flush=True)
    """,
    "subscriber": """
        import numpy as np, rgaps
        subscriber = rgaps.Node("victim").subscriber("t", rgaps.Bytes)
        print("ready", flush=True)
        held = []
        for sample in subscriber:
            held = [*held[-3:], np.asarray(sample), np.from_dlpack(sample)]
            print(flush=True)
    """,
    "waiting subscriber": """
        import asyncio, numpy as np, rgaps
        async def main():
            async for sample in rgaps.Node("victim").subscriber("t", rgaps.Bytes):
                array = np.asarray(sample)
                print(flush=True)
        print("ready", flush=True)
        asyncio.run(main())
    """,
}
ROUNDS = 20


@pytest.mark.parametrize("victim", list(VICTIMS))
def test_a_program_killed_at_any_moment_harms_no_other(program, victim):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    survivor = program("""
        import sys, rgaps
        node = rgaps.Node("survivor")
        subscriber = node.subscriber("t", rgaps.Bytes, depth=None)
        print("ready", flush=True)
        for sample in subscriber:
            with sample:  # the loop's variable would hold it until the next one comes
                content = sample.tobytes()
            assert content.count(content[:1]) == len(content), "a message of two"
            if content[0] == 77:
                print(content[:1].decode(), sample.meta.stamp, flush=True)
    """)
    assert survivor.line() == "ready"
    with rgaps.Node("survives too") as node:
        publisher = node.publisher("t", rgaps.Bytes, pool_bytes=1 << 20, timeout=30.0)
        own = node.subscriber("t", rgaps.Bytes, depth=1)
        stamp = 0
        for _ in range(ROUNDS):
            dying = program(VICTIMS[victim])
            assert dying.line() == "ready"
            for _ in range(chance.randrange(40)):
                stamp += 1
                publisher.push(b"M" * 30_000, stamp=stamp)
                assert survivor.line() == f"M {stamp}"
                if victim == "publisher":
                    dying.line()
            for _ in range(chance.randrange(3000)):
                pass
            dying.kill()
            # More bytes than the pool has: the dead process's holds must be released.
            for _ in range(60):
                stamp += 1
                publisher.push(b"M" * 30_000, stamp=stamp)
                assert survivor.line() == f"M {stamp}"
            taken = own.take_all()
            assert taken and taken[-1].nbytes > 0
        del taken
        until(lambda: publisher.statistics.outstanding == 0)
        until(lambda: [topic.publishers for topic in node.topics()] == [1])
        assert survivor.process.poll() is None


def test_other_threads_run_during_every_copy(program):
    # Python itself would not switch threads for an hour, so another thread runs only if a copy releases the GIL.
    program("""
        import sys, threading
        import numpy as np, rgaps
        node = rgaps.Node("copies")
        publisher = node.publisher("t", rgaps.Tensor, exhaustion="drop_oldest")
        subscriber = node.subscriber("t", rgaps.Tensor)
        content = np.zeros((1000, 1000), np.float32)
        publisher.push(content)
        sample, loan = subscriber.wait(60), publisher.loan(rgaps.Tensor.like(content))
        sys.setswitchinterval(3600)
        for name, copy in {
            "push": lambda: publisher.push(content),
            "push of pieces": lambda: publisher.push(content.T),
            "copy_from": lambda: loan.copy_from(content),
            "tobytes": sample.tobytes,
            "copy": lambda: sample.__dlpack__(copy=True),
        }.items():
            gate, ran = threading.Lock(), []
            gate.acquire()
            thread = threading.Thread(target=lambda: (gate.acquire(), ran.append(True)))
            thread.start()
            gate.release()
            for _ in range(1000):
                copy()
                if ran:
                    break
            assert ran, name
            thread.join()
    """).end()


def test_a_depth_that_is_granted_in_part_is_said_on_standard_error():
    # The manager says so before it answers.
    source = "import rgaps; rgaps.Node().subscriber('deep', rgaps.Bytes, depth=2**31)"
    for level, wanted in (("warn", " WARN rgaps: /deep: a depth of 2147483648 is more than a topic keeps"), ("off", "")):
        ran = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=LONG, env={**os.environ, "RGAPS_LOG": level})
        assert ran.returncode == 0 and (wanted in ran.stderr if wanted else ran.stderr == ""), ran.stderr
