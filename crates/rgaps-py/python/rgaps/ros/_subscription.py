"""Subscriptions: descriptors by ROS, frames by claim."""

import collections
import inspect
import threading

from .. import _descriptor
from .._errors import ClosedError, Error
from . import _diagnostics
from ._messages import body_of, message_class
from ._node import MILLISECONDS_MAX, Parameters, core_node, subscriber_qos

# How long an executor's thread waits for a subscription that another thread is still making.
_READY_SECONDS = 10.0
# Refusals that are remembered as told; with more publishers the oldest is told again.
_TOLD_MAX = 64


class Subscription:
    """Calls `callback(frame)`, or `callback(frame, message_info)`, with each `rgaps.Frame` of a topic, from the node's executor.

    `kind` is rgaps.Image, PointCloud or Tensor. `qos` is a profile of rclpy or a depth; `callback_group`, `event_callbacks` and
    `qos_overriding_options` are those of `Node.create_subscription`. The callback may be a coroutine function.

    A descriptor whose frame cannot be had (it is replayed, or over, or has not come in time) is counted in `refused`, and told to the node's
    log once for each publisher and reason.
    """

    def __init__(
        self,
        node,
        kind,
        topic,
        callback,
        qos=10,
        *,
        callback_group=None,
        event_callbacks=None,
        qos_overriding_options=None,
    ):
        self._node, self._kind, self._callback = node, kind, callback
        self._core, self._refused, self._told = None, 0, collections.deque(maxlen=_TOLD_MAX)
        self._lock, self._is_ready = threading.Lock(), threading.Event()
        # By its bytes: a descriptor need not become an object of Python's.
        self._subscription = node.create_subscription(
            message_class(kind),
            topic,
            self._on_descriptor(),
            qos,
            callback_group=callback_group,
            event_callbacks=event_callbacks,
            qos_overriding_options=qos_overriding_options,
            raw=True,
        )
        try:
            name = self._subscription.topic_name
            parameters = Parameters(node, name, "subscription", getattr(qos_overriding_options, "entity_id", None))
            self._timeout = (
                parameters.integer(
                    "claim_timeout_ms", 1000, 0, MILLISECONDS_MAX, "Milliseconds that the frame of a descriptor is waited for."
                )
                / 1000
            )
            requested = subscriber_qos(self._subscription.qos_profile, parameters)
            self._core_node = core_node(node)
            self._core = self._core_node.subscriber(name, kind, requested)
        except BaseException:
            node.destroy_subscription(self._subscription)
            raise
        finally:
            self._is_ready.set()
        self._topic_name = name
        _diagnostics.add(node, self)

    def _on_descriptor(self):
        """What the executor calls: of the same form as the callback."""
        callback = self._callback
        takes_info = not _takes(callback, 1)
        if takes_info and not _takes(callback, 2):
            raise TypeError("the callback of a subscription takes a frame, or a frame and its message info")
        if inspect.iscoroutinefunction(callback):

            async def with_info(serialized, info):
                frame = self._claim(serialized)
                if frame is not None:
                    await callback(frame, info)

            async def alone(serialized):
                frame = self._claim(serialized)
                if frame is not None:
                    await callback(frame)

        else:

            def with_info(serialized, info):
                frame = self._claim(serialized)
                if frame is not None:
                    callback(frame, info)

            def alone(serialized):
                frame = self._claim(serialized)
                if frame is not None:
                    callback(frame)

        return with_info if takes_info else alone

    def _claim(self, serialized):
        """The frame, or None with the refusal told."""
        if not self._is_ready.wait(_READY_SECONDS) or self._core is None:
            return None
        try:
            handle = _descriptor.handle_of(body_of(serialized, self._kind))
        except ValueError as error:
            self._refuse(None, error)
            return None
        try:
            return self._core.claim(handle, self._timeout)
        except ClosedError:
            return None  # Destroyed meanwhile.
        except Error as error:
            self._refuse(handle.publisher, error)
            return None

    def _refuse(self, publisher, error):
        refusal = (publisher, type(error), getattr(error, "reason", None))
        with self._lock:
            self._refused += 1
            is_news = refusal not in self._told
            if is_news:
                self._told.append(refusal)
        if is_news:
            self._node.get_logger().warning(str(error))

    @property
    def topic_name(self):
        """The topic's fully qualified name, after remapping."""
        return self._topic_name

    @property
    def subscription(self):
        """The ROS subscription to descriptors."""
        return self._subscription

    @property
    def core(self):
        """The `rgaps.Subscriber` of payloads."""
        return self._core

    @property
    def statistics(self):
        """Counters, as those of `rgaps.Subscriber`."""
        return self._core.statistics

    @property
    def refused(self):
        """Descriptors whose frame could not be had."""
        return self._refused

    def get_publisher_count(self):
        """ROS publishers that this subscription has."""
        return self._subscription.get_publisher_count()

    def destroy(self):
        """Ends it, in ROS and in the core. Frames that the callback kept stay as they are."""
        _diagnostics.remove(self._node, self)
        self._node.destroy_subscription(self._subscription)
        self._core.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.destroy()

    def _status(self):
        """For /diagnostics: what it is, its counters, and what is wrong."""
        counters = dict(self._core.statistics) | {"refused": self._refused}
        wrong = {"lost": "messages were lost", "refused": "descriptors were refused", "poisoned": "messages were poisoned"}
        return f"subscription to {self._topic_name}", counters, wrong

    def __repr__(self):
        return f"<rgaps.ros.Subscription to {self._topic_name}>"


def _takes(callback, count):
    try:
        inspect.signature(callback).bind(*range(count))
    except TypeError:
        return False
    return True
