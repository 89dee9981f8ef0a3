"""Subscriptions: descriptors arrive through ROS, and their samples are taken by handle."""

import collections
import inspect
import threading

from rclpy.callback_groups import ReentrantCallbackGroup

from .. import _descriptor
from .._errors import ClosedError, Error, StaleError
from . import _diagnostics
from ._messages import body_of, message_class
from ._node import MILLISECONDS_MAX, Parameters, core_node, overridden, resolved, subscriber_qos

# How many refusals are remembered as already logged; beyond that, the oldest may be logged again.
_TOLD_MAX = 64


class Subscription:
    """Calls `callback(sample)`, or `callback(sample, message_info)`, with each `rgaps.Sample` of a topic, from the node's executor.

    `kind` is rgaps.Image, PointCloud or Tensor. `qos` is a profile of rclpy or a depth; `callback_group`, `event_callbacks` and
    `qos_overriding_options` are those of `Node.create_subscription`. The callback may be a coroutine function.

    If a descriptor's sample cannot be taken (the descriptor is a replay, the message is freed, or it did not arrive in time), the descriptor is
    counted in `refused` and logged once for each publisher and reason. A descriptor that was in flight when the subscription was made is
    counted in `early`.
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
        message, name = message_class(kind), resolved(node, topic)
        profile = overridden(node, name, qos, qos_overriding_options)
        # The core subscriber is made first, so each descriptor from ROS names a message that it gets, or one counted as early.
        self._core = _CoreSubscription(node, kind, name, profile, getattr(qos_overriding_options, "entity_id", None))
        try:
            if not isinstance(callback_group or node.default_callback_group, ReentrantCallbackGroup):
                self._core.core.expect_handles_in_order()
            # Raw: the descriptor is never made into a Python object.
            self._subscription = node.create_subscription(
                message,
                topic,
                _on_descriptor(callback, self._core.take_by_handle),
                profile,
                callback_group=callback_group,
                event_callbacks=event_callbacks,
                raw=True,
            )
        except BaseException:
            self._core.core.close()
            raise
        self._node = node
        _diagnostics.add(node, self._core)

    @property
    def topic_name(self):
        """The topic's fully qualified name, after remapping."""
        return self._core.topic_name

    @property
    def subscription(self):
        """The ROS subscription to descriptors."""
        return self._subscription

    @property
    def core(self):
        """The `rgaps.Subscriber` of payloads."""
        return self._core.core

    @property
    def statistics(self):
        """Counters, like those of `rgaps.Subscriber`."""
        return self._core.core.statistics

    @property
    def refused(self):
        """Descriptors whose sample could not be taken."""
        return self._core.refused

    @property
    def early(self):
        """Descriptors of messages published before the subscription was made."""
        return self._core.early

    def get_publisher_count(self):
        """Number of matched ROS publishers."""
        return self._subscription.get_publisher_count()

    def destroy(self):
        """Destroys the subscription in ROS and in the core. Samples that the callback kept stay valid."""
        _diagnostics.remove(self._node, self._core)
        self._node.destroy_subscription(self._subscription)
        self._core.core.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.destroy()

    def __repr__(self):
        return f"<rgaps.ros.Subscription to {self.topic_name}>"


class _CoreSubscription:
    """The core half, which handles descriptors. The ROS half refers to it; it refers to neither the ROS half nor the node."""

    def __init__(self, node, kind, name, profile, entity_id):
        parameters = Parameters(node, name, "subscription", entity_id)
        described = "How many milliseconds to wait for the sample that a descriptor names."
        self._timeout = parameters.integer("payload_timeout_ms", 1000, 0, MILLISECONDS_MAX, described) / 1000
        self._kind, self._logger, self.topic_name = kind, node.get_logger(), name
        self._core_node = core_node(node)
        self.core = self._core_node.subscriber(name, kind, subscriber_qos(profile, parameters))
        self.refused, self.early = 0, 0
        self._told, self._lock = collections.deque(maxlen=_TOLD_MAX), threading.Lock()

    def take_by_handle(self, serialized):
        """The sample, or None after the refusal was counted and logged."""
        try:
            handle = _descriptor.handle_of(body_of(serialized, self._kind))
        except ValueError as error:
            self._refuse(None, error)
            return None
        try:
            return self.core.take_by_handle(handle, self._timeout)
        except ClosedError:
            return None  # Destroyed meanwhile.
        except Error as error:
            self._refuse(handle.publisher, error)
            return None

    def _refuse(self, publisher, error):
        reason = getattr(error, "reason", None)
        if isinstance(error, StaleError) and reason == "early":
            with self._lock:
                self.early += 1
            self._logger.debug(str(error))
            return
        refusal = (publisher, type(error), reason)
        with self._lock:
            self.refused += 1
            is_news = refusal not in self._told
            if is_news:
                self._told.append(refusal)
        if is_news:
            self._logger.warning(str(error))

    def _status(self):
        """For /diagnostics: the endpoint's name, its counters, and what is wrong."""
        counters = dict(self.core.statistics) | {"refused": self.refused, "early": self.early}
        wrong = {"lost": "messages were lost", "refused": "descriptors were refused", "poisoned": "messages were poisoned"}
        wrong |= {"malformed": "messages contradicted themselves"}
        return f"subscription to {self.topic_name}", counters, wrong


def _on_descriptor(callback, take_by_handle):
    """The callback for the executor, with the same signature kind as the user's callback."""
    takes_info = not _takes(callback, 1)
    if takes_info and not _takes(callback, 2):
        raise TypeError("the callback of a subscription must take a sample, or a sample and its message info")
    if inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(getattr(callback, "__call__", None)):

        async def with_info(serialized, info):
            sample = take_by_handle(serialized)
            if sample is not None:
                await callback(sample, info)

        async def alone(serialized):
            sample = take_by_handle(serialized)
            if sample is not None:
                await callback(sample)

    else:

        def with_info(serialized, info):
            sample = take_by_handle(serialized)
            if sample is not None:
                callback(sample, info)

        def alone(serialized):
            sample = take_by_handle(serialized)
            if sample is not None:
                callback(sample)

    return with_info if takes_info else alone


def _takes(callback, count):
    try:
        inspect.signature(callback).bind(*range(count))
    except TypeError:
        return False
    except ValueError:
        return count == 1  # A C function without a signature; pass it the sample only, as most callbacks expect.
    return True
