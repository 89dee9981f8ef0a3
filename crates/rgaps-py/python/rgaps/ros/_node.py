"""What publishers and subscriptions get from a ROS node: its core node, its parameters, and its QoS translated for the core."""

import copy
import os
import threading
import weakref

from rcl_interfaces.msg import IntegerRange, ParameterDescriptor
from rclpy.exceptions import InvalidParameterValueException
from rclpy.expand_topic_name import expand_topic_name
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.qos_overriding_options import _declare_qos_parameters
from rclpy.subscription import Subscription
from rclpy.validate_full_topic_name import validate_full_topic_name
from rclpy.validate_topic_name import validate_topic_name

from .._qos import PublisherQos, SubscriberQos
from .._rgaps import Node

COUNT_MAX = 2**31 - 1
BYTES_MAX = 2**63 - 1
MILLISECONDS_MAX = 3_600_000

# Messages that the core keeps beyond the depth of the QoS, for descriptors that arrive late.
SLACK = 8

_nodes: "weakref.WeakValueDictionary[tuple, Node]" = weakref.WeakValueDictionary()
_lock = threading.Lock()


def core_node(node):
    """The core node for a ROS node. A process has one for each domain and device, shared by all endpoints that hold it."""
    device = Parameters.declare(
        node,
        "rgaps.device",
        "",
        "GPU that this node works on, such as cuda:0; empty uses the GPU of the host's pools, if any.",
    )
    # A forked child needs nodes of its own.
    key = (os.getpid(), node.context.get_domain_id(), device or "auto")
    with _lock:
        found = _nodes.get(key)
        if found is None:
            found = _nodes[key] = Node(domain=key[1], device=key[2], ros_node=True)
        return found


class Parameters:
    """The read-only parameters of one endpoint. Endpoints with the same name share them, as they share qos_overrides."""

    def __init__(self, node, topic, endpoint, entity_id=None):
        suffix = "" if entity_id is None else f"_{entity_id}"
        self._node, self._prefix = node, f"rgaps.{topic}.{endpoint}{suffix}."

    @staticmethod
    def declare(node, name, value, description, **described):
        if node.has_parameter(name):
            return node.get_parameter(name).value
        descriptor = ParameterDescriptor(description=description, read_only=True, **described)
        return node.declare_parameter(name, value, descriptor).value

    def value(self, name, value, description):
        return self.declare(self._node, self._prefix + name, value, description)

    def integer(self, name, value, least, most, description):
        limits = [IntegerRange(from_value=least, to_value=most, step=0)]
        return self.declare(self._node, self._prefix + name, value, description, integer_range=limits)

    def one_of(self, name, value, words, description):
        found = self.value(name, value, description)
        if found not in words:
            raise InvalidParameterValueException(self._prefix + name, found, f"it must be one of {', '.join(words)}")
        return found


def resolved(node, topic):
    """The fully qualified name of a topic, after remapping. An invalid name raises what rclpy raises."""
    validate_topic_name(topic)
    validate_full_topic_name(expand_topic_name(topic, node.get_name(), node.get_namespace()))
    return node.resolve_topic_name(topic)


def overridden(node, name, qos, options):
    """The QoS profile that rclpy will make from a profile or depth and the overrides, computed before the subscription exists."""
    if not isinstance(qos, (QoSProfile, int)):
        raise TypeError(f"the QoS of a subscription must be a profile or a depth, not {qos!r}")
    profile = copy.copy(qos) if isinstance(qos, QoSProfile) else QoSProfile(depth=qos)
    if options is not None:
        _declare_qos_parameters(Subscription, node, name, profile, options)
    return profile


def publisher_qos(profile, parameters):
    """What a publisher offers in the core, from its profile (with overrides) and its parameters."""
    # Policies left to the middleware offer the strongest level, which matches every subscription.
    is_best_effort = profile.reliability == ReliabilityPolicy.BEST_EFFORT
    is_latched = profile.durability in (DurabilityPolicy.TRANSIENT_LOCAL, _best_available(DurabilityPolicy))
    default = PublisherQos()
    depth = profile.depth if profile.history != HistoryPolicy.KEEP_ALL and profile.depth > 0 else default.history_depth
    return PublisherQos(
        reliability="best_effort" if is_best_effort else "reliable",
        durability="transient_local" if is_latched else "volatile",
        history_depth=parameters.integer(
            "history_depth",
            depth,
            0,
            COUNT_MAX,
            "Messages kept for late joiners, and sent again after a link between hosts was interrupted. Each keeps a block of the pool.",
        ),
        pool_bytes=parameters.integer(
            "pool_bytes", 0, 0, BYTES_MAX, "Bytes of the publisher's pool; 0 uses the configured pool_bytes."
        )
        or None,
        exhaustion=parameters.one_of(
            "exhaustion",
            default.exhaustion,
            ("wait", "drop_oldest", "refuse"),
            "What to do when the pool is full: wait (at most exhaustion_timeout_ms), drop_oldest or refuse.",
        ),
        timeout=parameters.integer(
            "exhaustion_timeout_ms",
            int(default.timeout * 1000),
            0,
            MILLISECONDS_MAX,
            "How many milliseconds to wait for space in a full pool.",
        )
        / 1000,
        flow_control=parameters.value(
            "flow_control",
            True,
            "Whether links between hosts wait for a slow receiver; if not, its oldest messages are overwritten and counted.",
        ),
    )


def subscriber_qos(profile, parameters):
    """What a subscription requests in the core."""
    slack = parameters.integer(
        "slack", SLACK, 0, COUNT_MAX, "Messages that the core keeps beyond the depth of the QoS, for descriptors that arrive late."
    )
    # Policies left to the middleware request the weakest level, which matches every publisher.
    is_reliable = profile.reliability == ReliabilityPolicy.RELIABLE
    is_latched = profile.durability == DurabilityPolicy.TRANSIENT_LOCAL
    keeps_all = profile.history == HistoryPolicy.KEEP_ALL
    return SubscriberQos(
        reliability="reliable" if is_reliable else "best_effort",
        durability="transient_local" if is_latched else "volatile",
        depth=None if keeps_all else min(max(profile.depth, 1) + slack, COUNT_MAX),
    )


def _best_available(policy):
    """The BEST_AVAILABLE value of a policy; None on Humble, which lacks it."""
    return getattr(policy, "BEST_AVAILABLE", None)
