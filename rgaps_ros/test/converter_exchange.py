#!/usr/bin/env python3
"""Sends valid and invalid messages from /<type>/cpu_in through two converters to /<type>/cpu_out, and compares what arrives.

usage: converter_exchange.py image|point_cloud [best_effort] [always]

`always`: the converters may subscribe while their output has no subscriber.
"""

import copy
import sys
import time

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image, PointCloud2, PointField

SECONDS_MAX = 60

# Bytes of a pixel in the first plane, and rows of all planes for each row of the first.
ENCODINGS = {'mono8': 1, 'mono16': 2, 'rgb8': 3, 'bgr8': 3, 'rgba8': 4, 'bgra8': 4, 'rgb16': 6, 'bgr16': 6, 'rgba16': 8, 'bgra16': 8,
             'bayer_rggb8': 1, 'bayer_bggr8': 1, 'bayer_gbrg8': 1, 'bayer_grbg8': 1, 'bayer_rggb16': 2, 'bayer_bggr16': 2,
             'bayer_gbrg16': 2, 'bayer_grbg16': 2, 'uyvy': 2, 'yuv422': 2, 'yuyv': 2, 'yuv422_yuy2': 2}
ENCODINGS.update({f'{bits}{sort}C{channels}': bits // 8 * channels for bits, sorts in ((8, 'US'), (16, 'US'), (32, 'SF'), (64, 'F'))
                  for sort in sorts for channels in (1, 2, 3, 4)})
PLANES = {'nv12': 1.5, 'nv21': 1.5, 'nv24': 3}


def pattern(length, seed):
    return bytes((seed * 37 + place * 11) % 256 for place in range(length))


def image(encoding, pixel_bytes, padding=0, planes=1, number=0):
    message = Image(width=8, height=4, encoding=encoding, step=8 * pixel_bytes + padding, is_bigendian=number % 2)
    message.header.stamp.sec, message.header.stamp.nanosec = number - 3, 999_999_999
    message.header.frame_id = 'front_optical'
    message.data = pattern(int(message.step * 4 * planes), number)
    return message


def images():
    """Valid messages, and invalid ones."""
    good = [image(name, size, padding, 1, 2 * number + (padding > 0))
            for number, (name, size) in enumerate(ENCODINGS.items()) for padding in (0, 8)]
    good += [image(name, 1, 0, planes, 200 + number) for number, (name, planes) in enumerate(PLANES.items())]
    bad = []
    for change in ({'data': pattern(95, 0)}, {'data': pattern(97, 0)}, {'data': b''}, {'step': 23}, {'encoding': 'rgb9'}, {'width': 0},
                   {'height': 2 ** 32 - 1, 'step': 2 ** 32 - 1}, {'width': 2 ** 32 - 1}, {'is_bigendian': 2}):
        message = image('rgb8', 3)
        for name, value in change.items():
            setattr(message, name, value)
        bad.append(message)
    message = image('rgb8', 3)
    message.header.frame_id = 'f' * 65
    bad.append(message)
    return good, bad


def cloud(number, fields, width=5, height=3, padding=0):
    message = PointCloud2(width=width, height=height, point_step=24, row_step=24 * width + padding, is_dense=number % 2 == 0,
                          is_bigendian=number % 3 == 0, fields=fields)
    message.header.stamp.sec = number
    message.header.frame_id = 'lidar'
    message.data = pattern(message.row_step * height, number)
    return message


def clouds():
    xyz = [PointField(name=name, offset=4 * place, datatype=PointField.FLOAT32, count=1) for place, name in enumerate('xyz')]
    rgb = PointField(name='rgb', offset=12, datatype=PointField.UINT8, count=3)
    many = [PointField(name=f'field {place}', offset=place, datatype=PointField.INT8, count=1) for place in range(16)]
    good = [cloud(1, xyz), cloud(2, [*xyz, rgb]), cloud(3, many), cloud(4, xyz, padding=40), cloud(5, xyz, width=15, height=1), cloud(6, [])]
    good += [cloud(10 + datatype, [PointField(name='v', offset=8, datatype=datatype, count=1)]) for datatype in range(1, 9)]
    short = cloud(0, xyz)
    short.data = short.data[:-1]
    overlong = cloud(0, xyz)
    overlong.row_step = 2 ** 32 - 1
    bad = [short, overlong, cloud(0, [*many, rgb]), cloud(0, [PointField(name='n' * 33, datatype=7, count=1)]),
           cloud(0, [PointField(name='v', offset=0, datatype=9, count=1)]), cloud(0, [PointField(name='v', offset=21, datatype=7, count=1)])]
    return good, bad


class Exchange(Node):
    def __init__(self, name, kind, reliability):
        super().__init__('exchange')
        self.kind, self.name = kind, name
        self.came = []
        # By the endpoint that counts them.
        self.refused = {}
        self.create_subscription(DiagnosticArray, '/diagnostics', self.note, 10)
        self.publisher = self.create_publisher(kind, f'/{name}/cpu_in', QoSProfile(depth=10, reliability=reliability))

    def note(self, message):
        for status in message.status:
            self.refused.update({status.name: int(value.value) for value in status.values if value.key == 'refused'})

    def until(self, is_so, what):
        end = time.monotonic() + SECONDS_MAX
        while not is_so():
            if time.monotonic() > end:
                sys.exit(f'{what}: not in time')
            rclpy.spin_once(self, timeout_sec=0.05)

    def probe(self, message):
        """Publishes a message until one comes: rmw_fastrtps_cpp 9.4.7 sends images on a channel of its own, and says earlier than that is matched that the
        topic is; what it sends in between is lost."""
        probe, end = copy.deepcopy(message), time.monotonic() + SECONDS_MAX
        while probe not in self.came:
            if time.monotonic() > end:
                sys.exit('no message comes')
            probe.header.stamp.sec += 10 ** 6
            self.publisher.publish(probe)
            for _ in range(20):
                if probe not in self.came:
                    rclpy.spin_once(self, timeout_sec=0.05)
        self.came.clear()

    def run(self, good, bad, is_lazy):
        # Converters publish at once, but subscribe only while their output has a subscriber.
        self.until(lambda: self.count_publishers(f'/{self.name}/cpu_out') == 1 and self.count_publishers(f'/{self.name}/gpu') == 1, 'converters')
        if is_lazy:
            assert self.count_subscribers(f'/{self.name}/gpu') == 0, 'the GPU topic is subscribed to without a subscriber of the output'
            assert self.publisher.get_subscription_count() == 0, 'the CPU topic is subscribed to without a subscriber of the output'
        subscription = self.create_subscription(self.kind, f'/{self.name}/cpu_out', self.came.append, 10)
        self.until(lambda: self.publisher.get_subscription_count() == 1, 'both converters subscribe')
        self.probe(good[0])
        for number, message in enumerate(good):
            for wrong in bad[number:number + 1] if number + 1 < len(good) else bad[number:]:
                self.publisher.publish(wrong)
            self.publisher.publish(message)
            self.until(lambda: len(self.came) > number, f'message {number}')
            assert len(self.came) == number + 1, f'{self.came[-1]} came in addition'
            if self.came[-1] != message:
                sys.exit(f'sent: {message}\ncame: {self.came[-1]}')
        self.until(lambda: max(self.refused.values(), default=0) >= len(bad), 'refusals are counted')
        assert max(self.refused.values()) == len(bad), self.refused
        self.destroy_subscription(subscription)
        if is_lazy:
            self.until(lambda: self.publisher.get_subscription_count() == 0 and self.count_subscribers(f'/{self.name}/gpu') == 0, 'converters rest')
        print(f'{len(good)} messages equal, {len(bad)} refused')


def main():
    name, *options = sys.argv[1:]
    reliability = ReliabilityPolicy.BEST_EFFORT if 'best_effort' in options else ReliabilityPolicy.RELIABLE
    rclpy.init()
    kind, (good, bad) = {'image': (Image, images()), 'point_cloud': (PointCloud2, clouds())}[name]
    Exchange(name, kind, reliability).run(good, bad, 'always' not in options)


if __name__ == '__main__':
    main()
