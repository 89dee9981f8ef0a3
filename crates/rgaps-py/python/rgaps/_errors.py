"""Exceptions. Their texts say what failed and what to do; their attributes carry the numbers. A failed call leaves no partial effect, except
that the work of a device may go on (DeviceTimeoutError), and that `Publisher.publish_all` may have published the first loans."""

import builtins


class Error(Exception):
    """Base of all exceptions of RGAPS. Numbers and names in the text are also attributes; those that do not apply are None."""

    topic: "str | None" = None
    """The topic."""
    index: "int | None" = None
    """For `Publisher.publish_all`: the place of the loan that failed, counted from 0."""

    def __init__(self, message: str = "", **carried: object) -> None:
        super().__init__(message)
        for name, value in carried.items():
            setattr(self, name, value)

    def __reduce__(self):
        # Attributes survive pickling, so multiprocessing passes them to other processes.
        return type(self), self.args, self.__dict__


class NodeError(Error):
    """The manager is not running, refused the request, or the topic cannot be joined."""


class TopicNameError(NodeError, ValueError):
    """The topic's name is not valid in ROS 2.

    >>> try:
    ...     node.publisher("1raw", rgaps.Bytes)
    ... except rgaps.TopicNameError:
    ...     print("a name does not begin with a digit")
    a name does not begin with a digit
    """


class TimeoutError(Error, builtins.TimeoutError):
    """An operation timed out. A wait for a message returns None instead."""

    waited_ms: "int | None" = None
    """How long the call waited."""


class NodeTimeoutError(NodeError, TimeoutError):
    """The manager did not answer."""


class PublishError(Error):
    """A message was not published. The publisher remains usable, except after CutOffError."""


class NoSpaceError(PublishError):
    """The pool or the message table is full: release messages, or raise pool_bytes.

    >>> publisher = node.publisher("raw", rgaps.Bytes, exhaustion="refuse", pool_bytes=1 << 20)
    >>> subscriber = node.subscriber("raw", rgaps.Bytes)
    >>> handle = publisher.push(bytes(600_000))  # unread, so its block is in use
    >>> try:
    ...     publisher.push(bytes(600_000))
    ... except rgaps.NoSpaceError as error:
    ...     error.topic, error.free < error.wanted <= error.capacity
    ('/raw', True)
    """

    wanted: "int | None" = None
    """Bytes requested."""
    free: "int | None" = None
    """Free bytes, possibly in several blocks."""
    capacity: "int | None" = None
    """Bytes of the pool."""
    messages: "int | None" = None
    """Messages in use, if their number is what reached its limit."""


class NoSpaceTimeoutError(NoSpaceError, TimeoutError):
    """There was still no space when the publisher's time-out expired."""

    keeper_pid: "int | None" = None
    """Process id of the subscriber that keeps the oldest message; None if no subscriber keeps it."""


class TakeError(Error):
    """A message could not be taken. The next take continues with the next message. After TooManyHeldError it tries the same message
    again; after CutOffError every take fails."""

    sequence: "int | None" = None
    """The publisher's sequence number of the message."""


class TooManyHeldError(TakeError):
    """The subscriber holds its limit: half of a publisher's messages. Nothing is lost: release some samples, and take again."""

    held: "int | None" = None
    """How many messages it holds."""


class CutOffError(PublishError, TakeError):
    """The publisher or subscriber lost its slot in the topic: a new manager did not take it back after the old one died. Make a new one."""


class PoisonedError(TakeError):
    """The publishing process died, or its device failed, before the message's bytes were written."""


class StaleError(TakeError):
    """The message that a handle names can no longer be taken: it is from an earlier run, already freed, or was taken before.

    >>> subscriber = node.subscriber("raw", rgaps.Bytes)
    >>> handle = node.publisher("raw", rgaps.Bytes).push(b"hello")
    >>> subscriber.take_by_handle(handle).release()
    >>> try:
    ...     subscriber.take_by_handle(handle)
    ... except rgaps.StaleError as error:
    ...     error.reason
    'gone'
    """

    reason: "str | None" = None
    """"earlier_run": the message's host has restarted since. "stale": all subscribers have released the message. "early": it was published
    before the subscriber joined; this is reported for at most `depth` messages of a publisher (64 at most). "gone": it was taken before, or
    lost."""
    publisher: "int | None" = None
    """Identity of the message's publisher."""
    found: "int | None" = None
    """The epoch in the handle, in ns since 1970, or its generation."""
    now: "int | None" = None
    """The host's epoch, or the entry's generation, now."""


class HandleTimeoutError(TakeError, TimeoutError):
    """The message that a handle names did not arrive in time."""

    publisher: "int | None" = None
    """Identity of the message's publisher."""


class MetadataError(Error, ValueError):
    """Metadata contradicts itself, or does not match the array."""

    described: "int | None" = None
    """Bytes that the metadata describes."""
    given: "int | None" = None
    """Bytes that were given."""
    sequence: "int | None" = None
    """The publisher's count of the message that was taken."""


class TypeMismatchError(MetadataError):
    """A topic, a sample or a request has another type."""

    wanted: "str | None" = None
    """The type that was expected."""
    found: "str | None" = None
    """The type that was found."""


class DeviceError(Error):
    """The device failed, or cannot do what was requested."""

    sequence: "int | None" = None
    """The publisher's count of the message that was taken."""


class DeviceTimeoutError(DeviceError, TimeoutError):
    """The device did not finish in time. Its work continues."""


class ForkedError(Error):
    """The object belongs to the parent process. Make a new node after fork."""


class ClosedError(Error, ValueError):
    """A node, publisher or subscriber was used after it was closed."""


class ReleasedError(Error, ValueError):
    """A sample was used after its release, or a loan after it was published or discarded."""
