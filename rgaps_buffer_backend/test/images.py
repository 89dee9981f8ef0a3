#!/usr/bin/env python3
"""A test, not an example: publishes or takes plain sensor_msgs/Image in host memory, in Python, with the arguments and the output of images.cpp.

usage: images.py publish COUNT RATE REACHED OTHERS
       images.py take TOPIC COUNT BACKENDS
"""

import functools
import signal
import sys
import time

import numpy
import rclpy
from rclpy.qos import QoSProfile
from rclpy.signals import SignalHandlerOptions
from rclpy.utilities import remove_ros_args
from sensor_msgs.msg import Image

import rgaps_buffer_backend as buffers

WIDTH, HEIGHT = 640, 480
BYTES = 3 * WIDTH * HEIGHT


def picture(number):
    content = numpy.full(BYTES, number * 37 % 256, numpy.uint8)
    content[:8] = numpy.frombuffer(number.to_bytes(8, 'little'), numpy.uint8)
    return content


def print_statistics(role):
    found = buffers.statistics()
    names = ('allocated', 'published', 'as_bytes', 'copied', 'received', 'refused', 'used_bytes')
    print(role, *(f'{name} {found[name]}' for name in names), flush=True)


def spin_until(node, is_met):
    while not is_met():
        rclpy.spin_once(node, timeout_sec=0.005)


def refuses(error, call):
    try:
        call()
    except error:
        return
    raise SystemExit('a mistake was not refused')


def publish(count, rate, reached, others):
    node = rclpy.create_node('camera')
    publisher = node.create_publisher(Image, '/pictures', QoSProfile(depth=100))
    first = buffers.allocate_buffer(1)
    refuses(TypeError, functools.partial(buffers.from_output_buffer, first, -1))
    spin_until(node, lambda: buffers.statistics()['reached'] == reached and publisher.get_subscription_count() == reached + others)
    for number in range(1, count + 1):
        message = Image(width=WIDTH, height=HEIGHT, step=3 * WIDTH, encoding='rgb8')
        message.header.frame_id = str(number)
        message.data = buffers.allocate_buffer(BYTES)
        with buffers.from_output_buffer(message.data) as pixels:
            view = numpy.asarray(pixels)
            view[:] = picture(number)
            refuses(ValueError, lambda: numpy.asarray(pixels, dtype=numpy.int8))
        # The array keeps its memory, though the write has ended.
        assert view[8] == number * 37 % 256
        publisher.publish(message)
        time.sleep(1 / rate)
    del first
    print_statistics('publisher')
    signal.sigwait([signal.SIGINT, signal.SIGTERM])


def take(topic, count, backends):
    node = rclpy.create_node('viewer')
    got = {'taken': 0, 'in_pool': 0, 'lost': 0, 'mismatched': 0, 'failed': 0}
    last = 0

    def add(message):
        nonlocal last
        number = int(message.header.frame_id)
        got['lost'] += number - last - 1
        last = number
        got['taken'] += 1
        got['in_pool'] += getattr(message.data, 'backend_type', 'cpu') == 'rgaps'
        try:
            pixels = buffers.from_input_buffer(message.data)
            array = numpy.from_dlpack(pixels)
            pixels.end()
            if array.flags.writeable or numpy.asarray(buffers.from_input_buffer(message.data)).flags.writeable:
                raise SystemExit('what was published can be written')
            got['mismatched'] += not numpy.array_equal(array, picture(number))
        except buffers.Error as error:
            got['failed'] += 1
            print(f'picture {number}: {error}', file=sys.stderr)

    node.create_subscription(Image, topic, add, QoSProfile(depth=100), acceptable_buffer_backends=backends)
    print('waits', flush=True)
    spin_until(node, lambda: last >= count)
    print_statistics('subscriber')
    print(*(f'{name} {value}' for name, value in got.items()), flush=True)


def main():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    role, *words = remove_ros_args(sys.argv)[1:]
    if role == 'publish':
        publish(int(words[0]), float(words[1]), int(words[2]), int(words[3]))
    else:
        take(words[0], int(words[1]), words[2])
    rclpy.shutdown()


if __name__ == '__main__':
    main()
