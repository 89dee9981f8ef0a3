"""What goes wrong, with the numbers. The text says what happened and what to do; nothing of a failed call is left behind."""

import builtins


class Error(Exception):
    """Anything that RGAPS raises by itself. The numbers and names of its text are attributes, None where it has none of that name."""

    topic: "str | None" = None
    """The topic."""

    def __init__(self, message: str = "", **carried: object) -> None:
        super().__init__(message)
        for name, value in carried.items():
            setattr(self, name, value)

    def __reduce__(self):
        # Numbers travel with the exception to another process, as multiprocessing sends them.
        return type(self), self.args, self.__dict__


class NodeError(Error):
    """The manager is not there, refused, or the topic cannot be joined."""


class TopicNameError(NodeError, ValueError):
    """The topic's name breaks a rule of ROS 2."""


class TimeoutError(Error, builtins.TimeoutError):
    """Something that had its time did not come. A wait for a message returns None instead."""

    waited_ms: "int | None" = None
    """How long it was waited for."""


class NodeTimeoutError(NodeError, TimeoutError):
    """The manager did not answer."""


class PublishError(Error):
    """A message was not published. The publisher goes on."""


class NoSpaceError(PublishError):
    """There is no space for a message: release messages, or raise pool_bytes."""

    wanted: "int | None" = None
    """Bytes asked for."""
    free: "int | None" = None
    """Bytes free, in pieces."""
    capacity: "int | None" = None
    """Bytes of the pool."""
    messages: "int | None" = None
    """Messages in use, where it is their number that is at its limit."""


class NoSpaceTimeoutError(NoSpaceError, TimeoutError):
    """There was still no space after the publisher's time-out."""

    keeper_pid: "int | None" = None
    """The process of a subscriber that keeps the oldest message; None if no subscriber does."""


class TakeError(Error):
    """A message could not be taken. It is released; the next take goes on with the next message."""

    sequence: "int | None" = None
    """The publisher's count of the message."""


class TooManyHeldError(TakeError):
    """The subscriber holds half of what a publisher may have. Nothing is lost: release some samples, and take again."""

    held: "int | None" = None
    """How many it holds."""


class CutOffError(PublishError, TakeError):
    """The publisher or subscriber has lost its place in the topic: the manager that followed one that died did not take it back. Make it anew."""


class PoisonedError(TakeError):
    """The message's producer died, or its device failed, before the bytes were there."""


class StaleError(TakeError):
    """A handle names no message that this subscriber can have any more: it is of an earlier run, its message is over, or it was taken before."""

    reason: "str | None" = None
    """"another_run": its host has been started anew since. "over": everybody has released the message. "early": it was published before the
    subscriber was there, which is said of as many of a publisher as the subscriber is deep (64 at most). "gone": it was taken before, or was
    lost."""
    publisher: "int | None" = None
    """Identity of the message's publisher."""
    found: "int | None" = None
    """The handle's epoch, in ns since 1970, or its generation."""
    now: "int | None" = None
    """The host's epoch, or the generation that the entry is in."""


class HandleTimeoutError(TakeError, TimeoutError):
    """The message that a handle names has not come in time."""

    publisher: "int | None" = None
    """Identity of the message's publisher."""


class MetadataError(Error, ValueError):
    """Metadata contradicts itself, or the array that was given with it."""

    described: "int | None" = None
    """Bytes that the metadata describes."""
    given: "int | None" = None
    """Bytes that there are."""
    sequence: "int | None" = None
    """The publisher's count of the message that was taken."""


class TypeMismatchError(MetadataError):
    """A topic or a question is of another type."""

    wanted: "str | None" = None
    """The type that was needed or asked for."""
    found: "str | None" = None
    """The type that there is."""


class DeviceError(Error):
    """The device cannot do what was asked, or failed."""

    sequence: "int | None" = None
    """The publisher's count of the message that was taken."""


class DeviceTimeoutError(DeviceError, TimeoutError):
    """The device did not finish in time. Its work goes on."""


class ForkedError(Error):
    """What is used belongs to the parent process. Make a node after fork."""


class ClosedError(Error, ValueError):
    """A node, publisher or subscriber is used after it was closed."""


class ReleasedError(Error, ValueError):
    """A sample is used after its release, or a loan after it was published or discarded."""
