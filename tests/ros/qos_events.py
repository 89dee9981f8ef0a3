"""QoS events of GPU topics: deadline, liveliness and incompatible QoS are reported as on an ordinary topic of the same RMW."""

import threading
import time
import unittest

import numpy as np
import rclpy
import rgaps
import rgaps.ros
from rclpy.duration import Duration
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import LivelinessPolicy, QoSProfile
from spinning import LONG, Spinning
from std_msgs.msg import UInt32

try:
    from rclpy.event_handler import PublisherEventCallbacks, SubscriptionEventCallbacks, UnsupportedEventTypeError
except ImportError:  # Humble
    from rclpy.qos_event import PublisherEventCallbacks, SubscriptionEventCallbacks, UnsupportedEventTypeError

LEASE_MS = 600
DEADLINE_MS = 300


class Events:
    """What was reported of a topic: the last status of each kind of event, and the number of messages that came."""

    def __init__(self):
        self.changed = threading.Condition()
        self.last = {}
        self.messages = 0

    def note(self, name):
        def keep(status):
            with self.changed:
                self.last[name] = status
                self.changed.notify_all()

        return keep

    def on_message(self, _):
        with self.changed:
            self.messages += 1
            self.changed.notify_all()

    def until(self, what, is_so):
        with self.changed:
            assert self.changed.wait_for(lambda: is_so(self), LONG), f"{what}: not in time; {self.last}, {self.messages} messages"

    def until_alive(self, count):
        self.until(f"{count} publishers are alive", lambda events: "liveliness" in events.last and events.last["liveliness"].alive_count == count)

    def of_publisher(self):
        return PublisherEventCallbacks(
            deadline=self.note("offered deadline"), liveliness=self.note("lost liveliness"), incompatible_qos=self.note("offered")
        )

    def of_subscription(self):
        return SubscriptionEventCallbacks(
            deadline=self.note("requested deadline"), liveliness=self.note("liveliness"), incompatible_qos=self.note("requested")
        )


def qos(deadline_ms):
    return QoSProfile(
        depth=10,
        deadline=Duration(nanoseconds=deadline_ms * 10**6),
        liveliness=LivelinessPolicy.MANUAL_BY_TOPIC,
        liveliness_lease_duration=Duration(nanoseconds=LEASE_MS * 10**6),
    )


class QosEvents(unittest.TestCase):
    def setUp(self):
        rclpy.init()
        self.node = rclpy.create_node("events")
        self.kept = []
        executor = SingleThreadedExecutor()
        executor.add_node(self.node)
        self.spinning = Spinning(executor)

    def tearDown(self):
        self.spinning.end()
        self.kept.clear()
        self.node.destroy_node()
        rclpy.shutdown()

    def test_events_of_a_gpu_topic_are_those_of_an_ordinary_one(self):
        kinds, without = ["ordinary", "gpu"], []
        for kind in kinds:
            with self.subTest(kind=kind):
                try:
                    self.events_of(*getattr(self, kind)())
                except UnsupportedEventTypeError:
                    without.append(kind)
        if without:
            self.assertEqual((without, rclpy.get_rmw_implementation_identifier()), (kinds, "rmw_zenoh_cpp"))
            self.skipTest("this RMW has no such events")

    def ordinary(self):
        """Functions that make a publisher and a subscription, and publish."""

        def publisher(profile, events):
            return self.node.create_publisher(UInt32, "ordinary", profile, event_callbacks=events.of_publisher())

        def subscription(profile, events):
            return self.node.create_subscription(UInt32, "ordinary", events.on_message, profile, event_callbacks=events.of_subscription())

        return publisher, subscription, lambda publisher: publisher.publish(UInt32(data=1))

    def gpu(self):
        def publisher(profile, events):
            return rgaps.ros.Publisher(self.node, rgaps.Image, "gpu", profile, event_callbacks=events.of_publisher())

        def subscription(profile, events):
            return rgaps.ros.Subscription(
                self.node, rgaps.Image, "gpu", events.on_message, profile, event_callbacks=events.of_subscription()
            )

        return publisher, subscription, lambda publisher: publisher.push(np.zeros((2, 4), np.uint8))

    def events_of(self, make_publisher, make_subscription, publish):
        events = Events()
        # All are kept until the executor has ended: Humble's rclpy waits for what another thread destroys.
        publisher = make_publisher(qos(DEADLINE_MS), events)
        self.kept += [publisher, make_subscription(qos(DEADLINE_MS), events)]
        end = time.monotonic() + LONG
        while events.messages == 0:
            self.assertLess(time.monotonic(), end, "no message came")
            publish(publisher)
            with events.changed:
                events.changed.wait(DEADLINE_MS / 4000)
        events.until_alive(1)
        # Now it is silent.
        events.until("the publisher missed its deadline", lambda events: "offered deadline" in events.last)
        events.until("the subscription missed a deadline", lambda events: "requested deadline" in events.last)
        events.until("the publisher lost its liveliness", lambda events: "lost liveliness" in events.last)
        events.until_alive(0)
        publish(publisher)
        events.until_alive(1)
        # The publisher promises less than this subscription requests.
        strict = Events()
        self.kept.append(make_subscription(qos(DEADLINE_MS // 3), strict))
        strict.until("the subscription is told", lambda events: "requested" in events.last)
        events.until("the publisher is told", lambda events: "offered" in events.last)
        self.assertEqual(strict.messages, 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
