"""Waiting in asyncio: the subscriber's eventfd tells a loop that a message may be ready, and each task takes for itself.

A task that is woken and then cancelled before it runs has taken nothing, so no message is lost. All waiting tasks are woken; a task that finds
no message waits again.
"""

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any, Optional

from ._errors import ClosedError, Error

if TYPE_CHECKING:
    from . import Sample, Subscriber


class _Reader:
    """The tasks of one loop that wait for one subscriber."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fileno: int) -> None:
        self.loop = loop
        # Its own file descriptor: the subscriber may be closed, and its number reused, before the loop stops watching it.
        self.fd = os.dup(fileno)
        self.futures: "set[asyncio.Future[None]]" = set()
        try:
            loop.add_reader(self.fd, self.wake)
        except NotImplementedError:
            os.close(self.fd)
            raise Error(
                f"{type(loop).__name__} cannot watch file descriptors (add_reader); use asyncio's selector loop, or wait() in a thread"
            ) from None

    def wake(self) -> None:
        for future in self.futures:
            _end(future)

    def close(self) -> None:
        self.loop.remove_reader(self.fd)
        os.close(self.fd)


class Waiters:
    """The tasks of all loops that wait for one subscriber."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.readers: "dict[asyncio.AbstractEventLoop, _Reader]" = {}
        self.is_closed = False

    async def readable(self, fileno: int, timeout: Optional[float]) -> None:
        """Returns when a message may be ready, the time is over, or the subscriber is closed."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        with self.lock:
            if self.is_closed:
                return
            reader = self.readers.get(loop)
            if reader is None:
                reader = self.readers[loop] = _Reader(loop, fileno)
            reader.futures.add(future)
        timer = None if timeout is None else loop.call_later(timeout, _end, future)
        try:
            await future
        finally:
            if timer is not None:
                timer.cancel()
            with self.lock:
                reader.futures.discard(future)
                if not reader.futures:
                    del self.readers[loop]
                    reader.close()

    def close(self) -> None:
        """Wakes all waiting tasks, from any thread, because the subscriber is closed."""
        with self.lock:
            self.is_closed = True
            readers = list(self.readers.values())
        for reader in readers:
            try:
                reader.loop.call_soon_threadsafe(reader.wake)
            except RuntimeError:
                pass  # The loop is closed, so no task waits in it.


def _end(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


async def next_message(subscriber: "Subscriber[Any]", timeout: Optional[float]) -> "Optional[Sample[Any]]":
    """The body of Subscriber.next."""
    loop = asyncio.get_running_loop()
    deadline = None if timeout is None else loop.time() + timeout
    while True:
        sample = subscriber.take()
        if sample is not None:
            return sample
        left = None if deadline is None else deadline - loop.time()
        if left is not None and left <= 0:
            return None
        await subscriber._waiters.readable(subscriber.fileno(), left)


async def next_of_loop(subscriber: "Subscriber[Any]") -> "Optional[Sample[Any]]":
    """The body of `async for`; the loop ends when the subscriber is closed."""
    try:
        return await next_message(subscriber, None)
    except ClosedError:
        raise StopAsyncIteration from None
