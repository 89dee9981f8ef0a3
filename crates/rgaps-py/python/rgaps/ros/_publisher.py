"""Publishers: each message is published in the core, then its descriptor as a ROS message."""

import threading

from .._errors import MetadataError
from .._rgaps import Image, Sample
from .._rgaps import ros as policy
from . import _diagnostics
from ._messages import message_class
from ._node import end_with, offered


class Loan:
    """A block of the publisher's pool to fill in place. Like `rgaps.Loan`, but publishing it also publishes the descriptor.

    `with publisher.loan(meta) as loan: numpy.asarray(loan)[:] = ...` publishes at the end, or frees the block if an exception is raised.
    """

    def __init__(self, publisher, loan, stream):
        self._publisher, self._loan, self._stream = publisher, loan, stream
        self._is_discarded = False

    def __getattr__(self, name):
        return getattr(self._loan, name)

    def __array__(self, dtype=None, copy=None):
        return self._loan.__array__(dtype, copy)

    def __dlpack__(self, **asked):
        return self._loan.__dlpack__(**asked)

    def __dlpack_device__(self):
        return self._loan.__dlpack_device__()

    @property
    def meta(self):
        """The metadata. You may change it until the loan is published, as long as it describes the same number of bytes."""
        return self._loan.meta

    @meta.setter
    def meta(self, meta):
        self._loan.meta = meta

    def publish(self, stream=None):
        """Publishes the message and its descriptor. Returns the message's handle."""
        meta = self._loan.meta
        with self._publisher._turn:
            handle = self._loan.publish(self._stream if stream is None else stream)
            self._publisher._describe(handle, meta)
        return handle

    def discard(self):
        """Frees the block without publishing it."""
        self._is_discarded = True
        self._loan.discard()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if kind is not None:
            self.discard()
        elif self._loan.handle is None and not self._is_discarded:
            self.publish()

    def __repr__(self):
        return repr(self._loan)


class Publisher:
    """Publishes messages of one type from a node. Usable in `with`, and from any thread. Messages and their descriptors are published in the same
    order, so a push that waits for space blocks publishing in other threads.

    `kind` is rgaps.Image, PointCloud or Tensor. `qos` is a profile of rclpy or a depth; `callback_group`, `event_callbacks` and
    `qos_overriding_options` are those of `Node.create_publisher`. A message without a stamp gets the node's time.
    """

    def __init__(
        self, node, kind, topic, qos=10, *, callback_group=None, event_callbacks=None, qos_overriding_options=None
    ):
        self._node, self._kind = node, kind
        self._publisher = node.create_publisher(
            message_class(kind),
            topic,
            qos,
            callback_group=callback_group,
            event_callbacks=event_callbacks,
            qos_overriding_options=qos_overriding_options,
        )
        try:
            name = self._publisher.topic_name
            entity_id = getattr(qos_overriding_options, "entity_id", None)
            offer, self._core_node = offered(node, name, entity_id, self._publisher.qos_profile)
            self._core = self._core_node.publisher(name, kind, offer)
            end_with(self._publisher, self._core)
        except BaseException:
            node.destroy_publisher(self._publisher)
            raise
        self._topic_name = name
        # Held from publishing a message until its descriptor is published: if another descriptor overtook it, a subscriber that takes by handle in
        # order would already have released the message. Recursive, because the middleware may call back from within.
        self._turn = threading.RLock()
        _diagnostics.add(node, self)

    def loan(self, meta, *, stream=None):
        """Loans a block for the bytes that `meta` describes, to fill in place and publish."""
        return Loan(self, self._core.loan(self._stamped(meta), stream=stream), stream)

    def push(self, array, meta=None, *, stream=None, encoding=None, stamp=None, frame_id=None, user=None):
        """Copies an array into the pool once and publishes it with its descriptor. Returns the handle. See `rgaps.Publisher.push`."""
        if meta is not None and encoding is not None:
            raise MetadataError("an encoding was given beside metadata, which already has one; pass only one of them")
        if meta is None and encoding is None and isinstance(array, Sample):
            meta = array.meta
        elif meta is None:
            meta = self._kind.like(array, encoding) if self._kind is Image else self._kind.like(array)
        meta = self._stamped(meta.replace(stamp=stamp, frame_id=frame_id, user=user))
        with self._turn:
            handle = self._core.push(array, meta, stream=stream)
            self._describe(handle, meta)
        return handle

    def _stamped(self, meta):
        return meta if meta.stamp != 0 else meta.replace(stamp=self._node.get_clock().now().nanoseconds)

    def _describe(self, handle, meta):
        self._publisher.publish(policy.pack(handle, meta))

    @property
    def topic_name(self):
        """The topic's fully qualified name, after remapping."""
        return self._topic_name

    @property
    def publisher(self):
        """The ROS publisher of descriptors."""
        return self._publisher

    @property
    def core(self):
        """The `rgaps.Publisher` of payloads."""
        return self._core

    @property
    def statistics(self):
        """Counters, like those of `rgaps.Publisher`."""
        return self._core.statistics

    def get_subscription_count(self):
        """Number of matched ROS subscriptions."""
        return self._publisher.get_subscription_count()

    def destroy(self):
        """Destroys the publisher in the core and in ROS. Subscribers can still read what was published."""
        _diagnostics.remove(self._node, self)
        self._node.destroy_publisher(self._publisher)
        # Again: the node may have destroyed the publisher before.
        self._core.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.destroy()

    def _status(self, node, before):
        """For /diagnostics: name, counters, message, and whether it is a warning."""
        return policy.publisher_status(self._core, node, before)

    def __repr__(self):
        return f"<rgaps.ros.Publisher of {self._topic_name}>"
