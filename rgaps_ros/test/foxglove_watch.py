#!/usr/bin/env python3
"""Reads pictures of a topic from foxglove_bridge, as Foxglove's app does, and compares them with those of `streamer`.

usage: foxglove_watch.py PORT TOPIC COUNT

Source    the protocol foxglove.websocket.v1: the server announces its channels as JSON; a message is the byte 1, the number of the subscription,
          the time (8 bytes), and the ROS message as CDR.
"""

import asyncio
import json
import struct
import sys

import numpy as np
import websockets
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import Image

SECONDS_MAX = 60
SUBSCRIPTION = 1


def is_right(image):
    """Whether it is a picture of `streamer`, whose stamp has its number."""
    place = np.arange(image.step * image.height)
    wanted = (image.header.stamp.sec * 31 + place * 7 + place // 251) % 256
    size = (image.width, image.height, image.encoding, image.header.frame_id)
    return size == (320, 240, 'rgb8', 'front') and np.array_equal(np.asarray(image.data), wanted.astype(np.uint8))


async def watch(port, topic, count):
    async with websockets.connect(f'ws://127.0.0.1:{port}', subprotocols=['foxglove.websocket.v1'], max_size=None) as server:
        right = 0
        while right < count:
            said = await server.recv()
            if isinstance(said, str):
                for channel in json.loads(said).get('channels', []):
                    if channel['topic'] == topic:
                        subscription = {'id': SUBSCRIPTION, 'channelId': channel['id']}
                        await server.send(json.dumps({'op': 'subscribe', 'subscriptions': [subscription]}))
            elif said[0] == 1:
                number, _ = struct.unpack_from('<IQ', said, 1)
                image = deserialize_message(bytes(said[13:]), Image)
                if number != SUBSCRIPTION or not is_right(image):
                    sys.exit(f'the picture with stamp {image.header.stamp.sec} is wrong')
                right += 1
    print(f'pictures {right} mismatched 0')


port, topic, count = sys.argv[1:]
asyncio.run(asyncio.wait_for(watch(port, topic, int(count)), SECONDS_MAX))
