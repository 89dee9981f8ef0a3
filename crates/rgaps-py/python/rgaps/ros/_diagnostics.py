"""Counters on /diagnostics, once a second: a status for each publisher and subscription of a node."""

import contextlib
import threading
import weakref

from rclpy.callback_groups import MutuallyExclusiveCallbackGroup
from rclpy.clock import Clock, ClockType

from .._errors import ClosedError

try:
    from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
except ImportError:
    DiagnosticArray = None  # An optional package; without it no statuses are published.

# Stored on the node, so that neither outlives the other.
_ATTRIBUTE = "_rgaps_diagnostics"
_lock = threading.Lock()


def add(node, endpoint):
    """Starts reporting this endpoint, until it is removed or garbage-collected."""
    if DiagnosticArray is None:
        return
    with _lock:
        if not hasattr(node, _ATTRIBUTE):
            setattr(node, _ATTRIBUTE, _Diagnostics(node))
        getattr(node, _ATTRIBUTE).endpoints[endpoint] = []


def remove(node, endpoint):
    """Stops reporting this endpoint."""
    with _lock:
        known = getattr(node, _ATTRIBUTE, None)
        if known is not None:
            known.endpoints.pop(endpoint, None)


class _Diagnostics:
    """The diagnostics of one node. Holds its endpoints weakly."""

    def __init__(self, node):
        # Each with the counters of its last status.
        self.endpoints = weakref.WeakKeyDictionary()
        self._name = node.get_fully_qualified_name()
        self._clock = node.get_clock()
        self._publisher = node.create_publisher(DiagnosticArray, "/diagnostics", 1)
        # In its own callback group: under a multi-threaded executor, a callback that waits for a payload does not delay the counters.
        node.create_timer(
            1.0,
            self._publish,
            callback_group=MutuallyExclusiveCallbackGroup(),
            clock=Clock(clock_type=ClockType.STEADY_TIME),
        )

    def _publish(self):
        with _lock:
            endpoints = list(self.endpoints.items())
        array = DiagnosticArray()
        array.header.stamp = self._clock.now().to_msg()
        for endpoint, before in endpoints:
            try:
                name, counters, message, is_warning = endpoint._status(self._name, before)
            except ClosedError:
                continue
            before[:] = [value for _, value in counters]
            status = DiagnosticStatus(name=name, hardware_id="rgaps", message=message)
            if is_warning:
                status.level = DiagnosticStatus.WARN
            status.values = [KeyValue(key=key, value=str(value)) for key, value in counters]
            array.status.append(status)
        if array.status:
            # rclpy raises this if the node or context was destroyed meanwhile; that is harmless.
            with contextlib.suppress(RuntimeError):
                self._publisher.publish(array)
