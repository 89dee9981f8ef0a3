"""Publishers and subscriptions of rgaps.ros on one rclpy node: refusals, parameters, QoS, diagnostics, destruction."""

import threading
import unittest

import numpy as np
import rclpy
import rgaps
import rgaps.ros
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.executors import SingleThreadedExecutor
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.qos_overriding_options import QoSOverridingOptions
from rclpy.subscription import Subscription as RosSubscription
from rclpy.utilities import get_rmw_implementation_identifier
from rgaps_msgs.msg import GpuImage, GpuPointCloud, GpuTensor
from spinning import LONG, Spinning

RCLError = rclpy_implementation.RCLError

HAS_MESSAGE_INFO = hasattr(RosSubscription, "CallbackType")

# Then the RMW itself refuses such descriptors, when they are published or when they arrive.
IS_LAYERED = get_rmw_implementation_identifier() == "rmw_rgaps"


class Seen(list):
    """The arguments of a callback's calls; tests wait for their number."""

    def __init__(self):
        super().__init__()
        self.changed = threading.Condition()

    def __call__(self, *what):
        with self.changed:
            self.append(what[0] if len(what) == 1 else what)
            self.changed.notify_all()

    def until(self, is_enough):
        with self.changed:
            assert self.changed.wait_for(lambda: is_enough(self), LONG), f"it stays {list(self)}"
        return self


class OnANode(unittest.TestCase):
    parameters = ()

    def setUp(self):
        rclpy.init()
        self.node = rclpy.create_node("node", namespace="/robot", parameter_overrides=list(self.parameters))
        self.executor = SingleThreadedExecutor()
        self.executor.add_node(self.node)
        self.spinning = Spinning(self.executor)
        self.seen = Seen()

    def tearDown(self):
        self.spinning.end()
        self.node.destroy_node()
        rclpy.shutdown()

    def pair(self, kind=rgaps.Image, topic="image", callback=None, qos=10):
        subscription = rgaps.ros.Subscription(self.node, kind, topic, callback or self.seen, qos)
        publisher = rgaps.ros.Publisher(self.node, kind, topic, qos)
        while publisher.get_subscription_count() == 0 or subscription.get_publisher_count() == 0:
            self.executor.wake()
        return publisher, subscription

    def until_counts(self, topic, publishers, subscriptions):
        """Waits until a topic has so many. The executor, which waits for its events, may keep a destroyed publisher a moment longer (seen on Humble)."""
        while (self.node.count_publishers(topic), self.node.count_subscribers(topic)) != (publishers, subscriptions):
            self.executor.wake()

    def play(self, publisher, message):
        """Publishes a descriptor without a message."""
        try:
            publisher.publisher.publish(message)
        except RCLError as error:
            self.assertTrue(IS_LAYERED and "publish in the core" in str(error), error)


class Exchange(OnANode):
    def test_every_kind_and_its_message(self):
        for kind, message, content in (
            (rgaps.Image, GpuImage, np.arange(24, dtype=np.uint8).reshape(2, 4, 3)),
            (rgaps.PointCloud, GpuPointCloud, np.zeros(5, dtype=[("x", "<f4"), ("y", "<f4")])),
            (rgaps.Tensor, GpuTensor, np.arange(6, dtype=np.int16).reshape(2, 3)),
        ):
            with self.subTest(kind=kind):
                publisher, subscription = self.pair(kind, kind.__name__.lower())
                handle = publisher.push(content, frame_id="here")
                sample = self.seen.until(len).pop()
                self.assertTrue(np.array_equal(np.asarray(sample), content))
                self.assertEqual((sample.handle, sample.meta.frame_id), (handle, "here"))
                described = rgaps.ros.message_of(handle, sample.meta)
                self.assertIs(type(described), message)
                self.assertEqual(bytes(described.handle.source_host), handle.source_host)
                self.assertEqual((described.handle.sequence, described.handle.kind), (handle.sequence, handle.kind))
                self.assertEqual(bytes(described.frame_id).rstrip(b"\0"), b"here")
                self.assertEqual(rgaps.ros.handle_of(described), handle)
                self.assertEqual(rgaps.ros.meta_of(described), sample.meta)
                subscription.destroy()
                publisher.destroy()

    def test_other_types_are_refused(self):
        for kind in (rgaps.Bytes, GpuImage, None):
            with self.assertRaisesRegex(TypeError, "rgaps.Image, PointCloud or Tensor"):
                rgaps.ros.Publisher(self.node, kind, "image")
        with self.assertRaisesRegex(TypeError, "GpuImage, GpuPointCloud or GpuTensor"):
            rgaps.ros.handle_of(DiagnosticArray())

    def test_loans_are_published_by_with_and_freed_by_an_exception(self):
        publisher, _subscription = self.pair()
        with self.assertRaises(RuntimeError), publisher.loan(rgaps.Image(4, 2)):
            raise RuntimeError("on purpose")
        with publisher.loan(rgaps.Image(4, 2)) as loan:
            loan.discard()
        self.assertEqual(publisher.statistics.published, 0)
        with publisher.loan(rgaps.Image(4, 2)) as loan:
            np.asarray(loan)[:] = 7
            loan.meta = loan.meta.replace(stamp=5)
        sample = self.seen.until(len)[0]
        self.assertEqual((sample.meta.stamp, sample.tobytes(), loan.handle), (5, b"\7" * 24, sample.handle))
        publisher.push(sample)  # forwarded, with its metadata
        self.assertEqual(self.seen.until(lambda seen: len(seen) == 2)[1].meta, sample.meta)

    @unittest.skipUnless(HAS_MESSAGE_INFO, "Humble's rclpy gives callbacks no message info")
    def test_callbacks_with_message_info(self):
        publisher, _subscription = self.pair(callback=lambda sample, info: self.seen(sample, info))
        handle = publisher.push(np.zeros((2, 2), np.uint8))
        sample, info = self.seen.until(len)[0]
        self.assertEqual(sample.handle, handle)
        self.assertIn("source_timestamp", info)

    @unittest.skipIf(HAS_MESSAGE_INFO, "this rclpy gives callbacks message info")
    def test_callbacks_with_message_info_are_refused_where_there_is_none(self):
        with self.assertRaisesRegex(TypeError, "this rclpy gives no message info"):
            rgaps.ros.Subscription(self.node, rgaps.Image, "image", lambda sample, info: None)

    def test_callbacks_that_are_coroutines(self):
        async def later(sample):
            self.seen(sample)

        publisher, _subscription = self.pair(callback=later)
        handle = publisher.push(np.zeros((2, 2), np.uint8))
        self.assertEqual(self.seen.until(len)[0].handle, handle)

    def test_callbacks_without_a_sample_are_refused(self):
        with self.assertRaisesRegex(TypeError, "a sample, or a sample and its message info"):
            rgaps.ros.Subscription(self.node, rgaps.Image, "image", lambda: None)

    def test_a_sample_that_the_callback_does_not_keep_is_released(self):
        numbers = Seen()
        publisher, subscription = self.pair(callback=lambda sample: numbers(sample.info.sequence))
        for _ in range(5):
            publisher.push(np.zeros((2, 2), np.uint8))
        numbers.until(lambda seen: len(seen) == 5)
        # The last callback's own reference goes with its return.
        while subscription.statistics.held:
            self.executor.wake()
        self.assertEqual(numbers, [1, 2, 3, 4, 5])


class Joining(OnANode):
    def test_a_node_that_joins_a_stream_refuses_loses_and_holds_nothing(self):
        publisher = rgaps.ros.Publisher(self.node, rgaps.Image, "image", 100)
        ends = threading.Event()

        def stream():
            while not ends.wait(0.002):
                publisher.push(np.zeros((2, 2), np.uint8))

        streaming = threading.Thread(target=stream)
        streaming.start()
        joined = []
        try:
            for _ in range(10):
                sequences = Seen()
                subscription = rgaps.ros.Subscription(
                    self.node, rgaps.Image, "image", lambda sample, seen=sequences: seen(sample.info.sequence), 100
                )
                joined.append((subscription, sequences))
                sequences.until(lambda seen: len(seen) >= 5)
        finally:
            ends.set()
            streaming.join()
        for subscription, sequences in joined:
            sequences.until(lambda seen: seen[-1] == publisher.statistics.published)
            while subscription.statistics.held:
                self.executor.wake()
            self.assertEqual(sequences, list(range(sequences[0], sequences[-1] + 1)))
            self.assertEqual((subscription.refused, subscription.statistics.lost), (0, 0))

    def test_earlier_descriptors_are_early_and_replayed_ones_refused(self):
        publisher = rgaps.ros.Publisher(self.node, rgaps.Image, "image", 30)
        meta = rgaps.Image(2, 2, "mono8")
        before = [rgaps.ros.message_of(publisher.push(np.zeros((2, 2), np.uint8)), meta) for _ in range(40)]
        subscription = rgaps.ros.Subscription(self.node, rgaps.Image, "image", self.seen, 2)
        while publisher.get_subscription_count() == 0:
            self.executor.wake()
        for count, message in enumerate(before, 1):
            self.play(publisher, message)
            while not IS_LAYERED and subscription.early + subscription.refused < count:
                self.executor.wake()
        # As many as the core subscriber's depth: 2, and the slack.
        self.assertEqual((subscription.early, subscription.refused), (0, 0) if IS_LAYERED else (10, 30))
        handle = publisher.push(np.zeros((2, 2), np.uint8))
        self.assertEqual(self.seen.until(len)[0].handle, handle)


class Refusals(OnANode):
    def test_replayed_descriptors_are_refused_and_counted_and_later_ones_taken(self):
        publisher, subscription = self.pair()
        publisher.push(np.zeros((2, 2), np.uint8))
        sample = self.seen.until(len).pop()
        played = rgaps.ros.message_of(sample.handle, sample.meta)
        earlier = rgaps.ros.message_of(sample.handle, sample.meta)
        earlier.handle.host_epoch -= 1
        for message in (played, earlier, GpuImage()):
            self.play(publisher, message)
        handle = publisher.push(np.ones((2, 2), np.uint8))
        self.assertEqual(self.seen.until(len)[0].handle, handle)
        self.assertEqual(subscription.statistics.lost, 0)
        self.assertEqual(subscription.refused, 0 if IS_LAYERED else 3)

    def test_a_callback_is_not_called_after_destroy(self):
        publisher, subscription = self.pair()
        subscription.destroy()
        publisher.push(np.zeros((2, 2), np.uint8))
        self.assertEqual(publisher.get_subscription_count() * len(self.seen), 0)
        again, other = self.pair(topic="again")
        again.push(np.zeros((2, 2), np.uint8))
        self.assertEqual(len(self.seen.until(len)), 1)


class Parameters(OnANode):
    name = "rgaps./robot/image"
    parameters = (
        Parameter("rgaps./robot/image.publisher.pool_bytes", value=8 << 20),
        Parameter("rgaps./robot/image.publisher.exhaustion", value="refuse"),
        Parameter("rgaps./robot/image.subscription.payload_timeout_ms", value=5),
        Parameter("rgaps./robot/odd.publisher.exhaustion", value="never"),
        Parameter("qos_overrides./robot/image.publisher.reliability", value="best_effort"),
    )

    def test_parameters_say_what_the_core_does_and_cannot_be_set(self):
        publisher, _subscription = self.pair()
        self.assertEqual(publisher.statistics.pool_bytes, 8 << 20)
        described = self.node.describe_parameters(
            [f"{self.name}.publisher.{name}" for name in ("pool_bytes", "history_depth", "exhaustion", "exhaustion_timeout_ms", "flow_control")]
            + [f"{self.name}.subscription.{name}" for name in ("payload_timeout_ms", "slack")]
        )
        self.assertTrue(all(one.read_only and one.description for one in described))
        result = self.node.set_parameters([Parameter(f"{self.name}.publisher.pool_bytes", value=1)])[0]
        self.assertFalse(result.successful)
        with self.assertRaises(rgaps.NoSpaceError):
            publisher.push(np.zeros((2000, 2000, 3), np.uint8))
        # Another publisher of the topic uses the same parameters.
        second = rgaps.ros.Publisher(self.node, rgaps.Image, "image")
        self.assertEqual(second.statistics.pool_bytes, 8 << 20)

    def test_an_invalid_parameter_is_refused_and_leaves_no_publisher(self):
        with self.assertRaisesRegex(Exception, "wait, drop_oldest or refuse"):
            rgaps.ros.Publisher(self.node, rgaps.Image, "odd")
        self.until_counts("odd", 0, 0)

    def test_qos_overrides_hold_for_both_halves(self):
        options = QoSOverridingOptions.with_default_policies()
        publisher = rgaps.ros.Publisher(self.node, rgaps.Image, "image", qos_overriding_options=options)
        self.assertEqual(publisher.publisher.qos_profile.reliability, ReliabilityPolicy.BEST_EFFORT)

    def test_late_joiners_get_transient_local_messages(self):
        latched = QoSProfile(history=HistoryPolicy.KEEP_LAST, depth=3, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        publisher = rgaps.ros.Publisher(self.node, rgaps.Tensor, "map", latched)
        handles = [publisher.push(np.full(4, number, np.int32)) for number in range(5)]
        _subscription = rgaps.ros.Subscription(self.node, rgaps.Tensor, "map", self.seen, latched)
        seen = self.seen.until(lambda seen: len(seen) == 3)
        self.assertEqual([sample.handle for sample in seen], handles[2:])


class Diagnostics(OnANode):
    def test_counters_are_on_diagnostics(self):
        arrays = Seen()
        self.node.create_subscription(DiagnosticArray, "/diagnostics", arrays, 10)
        publisher, _subscription = self.pair()
        publisher.push(np.zeros((2, 2), np.uint8))
        self.seen.until(len)
        self.play(publisher, GpuImage())

        def says(arrays):
            statuses = {status.name: status for status in arrays[-1].status} if arrays else {}
            ours = statuses.get("/robot/node: subscription to /robot/image")
            values = {value.key: value.value for value in ours.values} if ours else {}
            refused = "0" if IS_LAYERED else "1"
            return (
                (values.get("taken"), values.get("refused")) == ("1", refused) and "/robot/node: publisher of /robot/image" in statuses
            )

        arrays.until(says)


if __name__ == "__main__":
    unittest.main(verbosity=2)
