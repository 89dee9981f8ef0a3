"""What rgaps.ros withstands on rclpy nodes: callbacks that raise or destroy, nodes destroyed too early, hostile descriptors, bad values."""

import functools
import gc
import random
import threading
import unittest

import numpy as np
import rclpy
import rgaps
import rgaps.ros
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.executors import MultiThreadedExecutor, SingleThreadedExecutor
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile
from rclpy.serialization import serialize_message
from rclpy.task import Future
from rclpy_node import IS_LAYERED, LONG, OnANode, RCLError
from rgaps_msgs.msg import GpuImage, GpuTensor
from spinning import Spinning


def picture(value=0):
    return np.full((2, 2), value, np.uint8)


class Callbacks(OnANode):
    def test_one_that_raises_keeps_no_sample_and_later_samples_arrive(self):
        self.spinning.end()
        executor = SingleThreadedExecutor()
        executor.add_node(self.node)
        seen = []

        def callback(sample):
            seen.append(sample.info.sequence)
            if len(seen) < 3:
                raise RuntimeError("on purpose")

        publisher = rgaps.ros.Publisher(self.node, rgaps.Image, "image")
        subscription = rgaps.ros.Subscription(self.node, rgaps.Image, "image", callback)
        while publisher.get_subscription_count() == 0:
            executor.spin_once(0.01)
        for _ in range(4):
            publisher.push(picture())
        raised = 0
        while len(seen) < 4:
            try:
                executor.spin_once(1)
            except RuntimeError:
                raised += 1
        self.assertEqual((seen, raised), ([1, 2, 3, 4], 2))
        gc.collect()  # Frees what the exceptions still refer to.
        self.assertEqual((subscription.statistics.held, subscription.statistics.lost, subscription.refused), (0, 0, 0))
        executor.shutdown()

    def test_one_may_destroy_its_subscription_or_its_publisher(self):
        for what in ("subscription", "both"):
            with self.subTest(what=what):
                ended = threading.Event()

                def callback(sample, what=what, ended=ended):
                    self.pair_[1].destroy()
                    if what == "both":
                        self.pair_[0].destroy()
                    self.seen(sample)
                    ended.set()

                self.pair_ = self.pair(callback=callback, topic=what)
                self.pair_[0].push(picture(7))
                self.assertTrue(ended.wait(LONG))
                sample = self.seen.pop()
                self.assertEqual(sample.tobytes(), bytes([7] * 4))
                with self.assertRaises(rgaps.ClosedError):
                    _ = self.pair_[1].statistics
                self.pair_[1].destroy()  # A second call is harmless.

    def test_those_of_a_reentrant_group_run_at_once_and_miss_nothing(self):
        self.spinning.end()
        executor = MultiThreadedExecutor(4)
        executor.add_node(self.node)
        spinning = Spinning(executor)
        together = threading.Barrier(2)

        def callback(sample):
            if sample.info.sequence <= 2:
                together.wait(LONG)
            self.seen(sample.info.sequence)

        subscription = rgaps.ros.Subscription(self.node, rgaps.Image, "image", callback, 200, callback_group=ReentrantCallbackGroup())
        publisher = rgaps.ros.Publisher(self.node, rgaps.Image, "image", 200)
        while publisher.get_subscription_count() == 0:
            executor.wake()
        for _ in range(100):
            publisher.push(picture())
        self.seen.until(lambda seen: len(seen) == 100)
        self.assertEqual(sorted(self.seen), list(range(1, 101)))
        while subscription.statistics.held:
            executor.wake()
        self.assertEqual((subscription.refused, subscription.statistics.lost), (0, 0))
        spinning.end()

    def test_a_coroutine_keeps_its_sample_while_it_waits(self):
        going = Future()

        class Later:
            async def __call__(_self, sample):
                await going
                self.seen(sample.tobytes())

        publisher, subscription = self.pair(callback=Later())
        publisher.push(picture(5))
        while subscription.statistics.held == 0:
            self.executor.wake()
        going.set_result(None)
        self.executor.wake()
        self.assertEqual(self.seen.until(len), [bytes([5] * 4)])

    def test_any_callable_that_rclpy_takes(self):
        def keep(seen, sample):
            seen(sample)

        publisher, _one = self.pair(callback=functools.partial(keep, self.seen))
        samples = []
        _other = rgaps.ros.Subscription(self.node, rgaps.Image, "image", samples.append)
        while publisher.get_subscription_count() < 2:
            self.executor.wake()
        handle = publisher.push(picture())
        self.assertEqual(self.seen.until(len)[0].handle, handle)


class Ends(OnANode):
    def test_samples_outlive_subscription_node_and_context(self):
        publisher, subscription = self.pair()
        publisher.push(picture(3))
        array = np.asarray(self.seen.until(len).pop())
        self.spinning.end()
        subscription.destroy()
        publisher.destroy()
        self.node.destroy_node()
        self.assertEqual(array.tobytes(), bytes([3] * 4))

    def test_a_destroyed_node_frees_its_subscribers_and_pools_without_a_gc_run(self):
        node = rclpy.create_node("short", namespace="/robot")
        watching = rgaps.ros.Publisher(self.node, rgaps.Image, "image")
        gc.disable()
        try:
            subscription = rgaps.ros.Subscription(node, rgaps.Image, "image", self.seen)
            subscribers = watching.core.subscriber_count
            self.assertEqual(subscribers, 2 if IS_LAYERED else 1)
            del subscription  # The node keeps it, as it keeps rclpy's own.
            self.assertEqual(watching.core.subscriber_count, subscribers)
            node.destroy_node()
            del node
            while watching.core.subscriber_count:
                self.executor.wake()
        finally:
            gc.enable()

    def test_a_destroyed_node_closes_what_the_program_still_names(self):
        node = rclpy.create_node("short", namespace="/robot")
        subscription = rgaps.ros.Subscription(node, rgaps.Image, "image", self.seen)
        publisher = rgaps.ros.Publisher(node, rgaps.Image, "other")
        watching = rgaps.ros.Publisher(self.node, rgaps.Image, "image")
        node.destroy_node()
        while watching.core.subscriber_count:
            self.executor.wake()
        for closed in (lambda: subscription.core.take(), lambda: publisher.push(np.zeros((2, 2), np.uint8))):
            with self.assertRaises(rgaps.ClosedError):
                closed()
        subscription.destroy()
        publisher.destroy()

    def test_parameters_are_read_only_even_if_the_node_declares_its_overrides(self):
        name = "rgaps./robot/image.subscription.slack"
        node = rclpy.create_node(
            "declares",
            namespace="/robot",
            parameter_overrides=[Parameter(name, value=3)],
            automatically_declare_parameters_from_overrides=True,
        )
        try:
            rgaps.ros.Subscription(node, rgaps.Image, "image", self.seen)
            self.assertEqual(node.get_parameter(name).value, 3)
            described = node.describe_parameter(name)
            self.assertTrue(described.read_only and described.description, described)
            self.assertFalse(node.set_parameters([Parameter(name, value=4)])[0].successful)
        finally:
            node.destroy_node()

    def test_a_subscription_that_could_not_be_made_leaves_nothing(self):
        watching = rgaps.ros.Publisher(self.node, rgaps.Image, "image")
        for wrong in (
            lambda: rgaps.ros.Subscription(self.node, rgaps.Image, "image", lambda: None),
            lambda: rgaps.ros.Subscription(self.node, rgaps.Image, "image", "no callback"),
            lambda: rgaps.ros.Subscription(self.node, rgaps.Image, "image", print, -1),
            lambda: rgaps.ros.Subscription(self.node, rgaps.Image, "image", print, "deep"),
            lambda: rgaps.ros.Subscription(self.node, rgaps.Image, "image", print, callback_group=7),
            lambda: rgaps.ros.Subscription(self.node, rgaps.Tensor, "image", print),
            lambda: rgaps.ros.Publisher(self.node, rgaps.Tensor, "image"),
            lambda: rgaps.ros.Publisher(self.node, rgaps.Image, "image", "deep"),
        ):
            with self.assertRaises(Exception):
                wrong()
        gc.collect()
        self.assertEqual(watching.core.subscriber_count, 0)
        self.until_counts("image", 1, 0)
        for name in ("bad name!", "", "a//b"):
            for kind in (rgaps.ros.Publisher, rgaps.ros.Subscription):
                with self.assertRaises(rclpy.exceptions.InvalidTopicNameException):
                    kind(self.node, rgaps.Image, name, *((print,) if kind is rgaps.ros.Subscription else ()))

    def test_counters_of_a_node_that_ended_meanwhile_are_no_error(self):
        node = rclpy.create_node("ended")
        _publisher = rgaps.ros.Publisher(node, rgaps.Image, "image")
        node.destroy_node()
        node._rgaps_diagnostics._publish()

    def test_using_a_destroyed_endpoint_is_an_error(self):
        publisher, subscription = self.pair()
        loan = publisher.loan(rgaps.Image(2, 2))
        publisher.destroy()
        publisher.destroy()
        subscription.destroy()
        with self.assertRaises(rgaps.Error):
            publisher.push(picture())
        with self.assertRaises(Exception):
            loan.publish()


class Values(OnANode):
    parameters = (
        Parameter("rgaps./robot/text.subscription.slack", value="many"),
        Parameter("rgaps./robot/low.subscription.payload_timeout_ms", value=-1),
        Parameter("rgaps./robot/low.publisher.pool_bytes", value=-1),
        Parameter("rgaps./robot/text.publisher.flow_control", value=3),
        Parameter("qos_overrides./robot/image.subscription.depth", value=3),
        Parameter("qos_overrides./robot/image.subscription.reliability", value="best_effort"),
        Parameter("qos_overrides./robot/odd.subscription.reliability", value="perhaps"),
    )

    def test_parameters_of_another_type_or_out_of_range_are_refused(self):
        for topic in ("text", "low"):
            with self.assertRaises(Exception):
                rgaps.ros.Subscription(self.node, rgaps.Image, topic, print)
            with self.assertRaises(Exception):
                rgaps.ros.Publisher(self.node, rgaps.Image, topic)
            self.until_counts(topic, 0, 0)

    def test_overrides_hold_for_the_core_subscriber_and_leave_the_callers_profile(self):
        profile = QoSProfile(depth=50)
        options = rclpy.qos_overriding_options.QoSOverridingOptions.with_default_policies()
        made = rgaps.ros.Subscription(self.node, rgaps.Image, "image", print, profile, qos_overriding_options=options)
        self.assertEqual((profile.depth, made.subscription.qos_profile.depth), (50, 3))
        self.assertEqual(made.subscription.qos_profile.reliability.name, "BEST_EFFORT")
        with self.assertRaises(Exception):
            rgaps.ros.Subscription(self.node, rgaps.Image, "odd", print, qos_overriding_options=options)

    def test_a_nodes_own_remapping_names_both_halves(self):
        node = rclpy.create_node("own", cli_args=["--ros-args", "-r", "image:=eye", "-r", "__ns:=/left"])
        self.addCleanup(node.destroy_node)
        subscription = rgaps.ros.Subscription(node, rgaps.Image, "image", self.seen)
        self.assertEqual((subscription.topic_name, subscription.core.topic), ("/left/eye", "/left/eye"))
        self.assertEqual(subscription.subscription.topic_name, "/left/eye")


class Descriptors(OnANode):
    def test_hostile_ones_are_refused_and_the_next_sample_arrives(self):
        publisher, subscription = self.pair(qos=100)
        handle = publisher.push(picture())
        sample = self.seen.until(len).pop()
        good = bytearray(serialize_message(rgaps.ros.message_of(handle, sample.meta)))
        del sample
        chance = random.Random(7)
        before = subscription.refused + subscription.early
        sent = 0
        for number in range(200):
            bad = bytearray(good)
            if number % 4 == 3:
                bad[4:] = chance.randbytes(len(bad) - 4)
            for _ in range(1 + number % 5):
                bad[4 + chance.randrange(88)] ^= 1 << chance.randrange(8)
            try:
                publisher.publisher.publish(bytes(bad))
                sent += 1
            except RCLError:
                self.assertTrue(IS_LAYERED)
            while not IS_LAYERED and subscription.refused + subscription.early - before < sent and len(self.seen) == 0:
                self.executor.wake()
        self.assertEqual(len(self.seen), 0)
        last = publisher.push(picture(9))
        self.assertEqual(self.seen.until(len)[0].handle, last)
        self.assertEqual(subscription.statistics.lost, 0)

    def test_bytes_that_are_no_descriptor_do_not_end_the_node(self):
        _publisher, subscription = self.pair()
        for bad in (b"", b"\0", b"\0\1\0\0", b"\0\0\0\0" + bytes(50), b"\xff" * 400, bytes(1000), b"\0\7\0\0" + bytes(212)):
            self.assertIsNone(subscription._core.take_by_handle(bad))
        self.assertEqual(subscription.refused, 7)

    def test_a_message_of_another_kind_on_the_same_name_is_refused(self):
        publisher, subscription = self.pair()
        other = self.node.create_publisher(GpuTensor, "elsewhere", 1)
        self.assertIsNotNone(other)
        message = GpuImage()
        message.handle.kind, message.handle.layout_version = 3, 1
        self.play(publisher, message)
        handle = publisher.push(picture())
        self.assertEqual(self.seen.until(len)[0].handle, handle)
        self.assertEqual(subscription.refused, 0 if IS_LAYERED else 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
