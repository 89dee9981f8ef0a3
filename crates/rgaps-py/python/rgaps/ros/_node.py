"""What publishers and subscriptions get from a ROS node: its core node, and what the core offers or requests by its parameters and QoS."""

import copy
import os
import threading
import weakref

from rcl_interfaces.msg import IntegerRange, ParameterDescriptor
from rclpy.exceptions import InvalidParameterValueException
from rclpy.expand_topic_name import expand_topic_name
from rclpy.qos import QoSProfile
from rclpy.qos_overriding_options import _declare_qos_parameters
from rclpy.subscription import Subscription
from rclpy.validate_full_topic_name import validate_full_topic_name
from rclpy.validate_topic_name import validate_topic_name

from .._rgaps import Node
from .._rgaps import ros as policy

_nodes: "weakref.WeakValueDictionary[tuple, Node]" = weakref.WeakValueDictionary()
_lock = threading.Lock()


def _core_node(node, device):
    """The core node for a ROS node. A process has one for each domain and device, shared by all endpoints that hold it."""
    # A forked child needs nodes of its own.
    key = (os.getpid(), node.context.get_domain_id(), device or "auto")
    with _lock:
        found = _nodes.get(key)
        if found is None:
            found = _nodes[key] = Node(domain=key[1], device=key[2], ros_node=True)
        return found


def _declared(node, name, value, limits, description):
    """The value of a parameter, which is declared read-only, also in place of one that the node declared by itself from its overrides. Endpoints with the
    same name share them, as they share qos_overrides."""
    ranges = [] if limits is None else [IntegerRange(from_value=limits[0], to_value=limits[1], step=0)]
    descriptor = ParameterDescriptor(description=description, read_only=True, integer_range=ranges)
    if not node.has_parameter(name):
        return node.declare_parameter(name, value, descriptor).value
    found = node.get_parameter(name).value
    if node.describe_parameter(name).read_only:
        return found
    node.undeclare_parameter(name)
    return node.declare_parameter(name, found, descriptor, ignore_override=True).value


def end_with(entity, core):
    """Closes the core half when rclpy destroys the ROS half, as `Node.destroy_node` does. Refers to neither, so that nothing refers to itself."""
    entity_of, core_of = weakref.ref(entity), weakref.ref(core)

    def destroy():
        entity, core = entity_of(), core_of()
        if core is not None:
            core.close()
        type(entity).destroy(entity)

    entity.destroy = destroy


def _applied(apply, role, node, topic, entity_id, profile):
    """What `apply` makes of a profile and of the parameters that are declared on the node, and the core node."""
    numbers = int(profile.reliability), int(profile.durability), int(profile.history), profile.depth
    endpoint = topic, entity_id or "", numbers
    values = [_declared(node, *parameter) for parameter in policy.parameters(role, *endpoint)]
    try:
        made = apply(*endpoint, values)
    except ValueError as error:
        raise InvalidParameterValueException(*error.args) from None
    # The last parameter is the node's device.
    return made, _core_node(node, values[-1])


def offered(node, topic, entity_id, profile):
    """What a publisher offers in the core, from its profile (with overrides) and its parameters; and the core node."""
    return _applied(policy.publisher_qos, "publisher", node, topic, entity_id, profile)


def requested(node, topic, entity_id, profile):
    """What a subscription requests in the core, with the time-out of its takes; and the core node."""
    return _applied(policy.subscriber_qos, "subscription", node, topic, entity_id, profile)


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
