"""Subscriptions: descriptors arrive through ROS, and their samples are taken by handle."""

import functools
import inspect

from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.subscription import Subscription as RosSubscription

from .._rgaps import ros as policy
from . import _diagnostics
from ._messages import message_class, readable
from ._node import end_with, overridden, requested, resolved

# rclpy has both since Iron.
_HAS_MESSAGE_INFO = hasattr(RosSubscription, "CallbackType")
_HAS_PUBLISHER_COUNT = hasattr(RosSubscription, "get_publisher_count")


class Subscription:
    """Calls `callback(sample)`, or `callback(sample, message_info)`, with each `rgaps.Sample` of a topic, from the node's executor.

    `kind` is rgaps.Image, PointCloud or Tensor. `qos` is a profile of rclpy or a depth; `callback_group`, `event_callbacks` and
    `qos_overriding_options` are those of `Node.create_subscription`. The callback may be a coroutine function. Humble's rclpy has no message info.

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
        end_with(self._subscription, self._core.core)
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
        return self._core.payloads.refused

    @property
    def early(self):
        """Descriptors of messages published before the subscription was made."""
        return self._core.payloads.early

    def get_publisher_count(self):
        """Number of matched ROS publishers; on Humble, of all ROS publishers of the topic, because its rclpy does not tell which ones match."""
        if _HAS_PUBLISHER_COUNT:
            return self._subscription.get_publisher_count()
        return self._node.count_publishers(self._subscription.topic_name)

    def destroy(self):
        """Destroys the subscription in ROS and in the core. Samples that the callback kept stay valid."""
        _diagnostics.remove(self._node, self._core)
        self._node.destroy_subscription(self._subscription)
        # Again: the node may have destroyed the subscription before.
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
        (request, timeout), self._core_node = requested(node, name, entity_id, profile)
        self.core = self._core_node.subscriber(name, kind, request)
        # The log refers to the logger alone, so that nothing refers to itself.
        self.payloads = policy.Payloads(self.core, timeout, functools.partial(_log, node.get_logger()))
        self._kind, self.topic_name = kind, name

    def take_by_handle(self, serialized):
        """The sample, or None after the refusal was counted and logged."""
        return self.payloads.take(readable(serialized, self._kind))

    def _status(self, node, before):
        """For /diagnostics: name, counters, message, and whether it is a warning."""
        return self.payloads.status(node, before)


def _log(logger, is_warning, text):
    # rclpy wants each severity on a line of its own.
    if is_warning:
        logger.warning(text)
    else:
        logger.debug(text)


def _on_descriptor(callback, take_by_handle):
    """The callback for the executor, with the same signature kind as the user's callback."""
    takes_info = not _takes(callback, 1)
    if takes_info and not _takes(callback, 2):
        raise TypeError("the callback of a subscription must take a sample, or a sample and its message info")
    if takes_info and not _HAS_MESSAGE_INFO:
        raise TypeError("the callback of a subscription must take a sample alone: this rclpy gives no message info (rclpy has it since Iron)")
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
