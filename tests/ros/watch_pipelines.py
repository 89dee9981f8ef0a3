"""Looks at a pipeline from outside, for check_pipelines.py: watch_pipelines.py PIPELINE FILE

Subscribes to the pipeline's topics and to /diagnostics. When it is interrupted it writes what it saw: FILE.json and, of arrays, FILE.npz.
"""

import json
import sys

import numpy as np
import rclpy
import rgaps
import rgaps.ros
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.executors import ExternalShutdownException
from std_msgs.msg import UInt32

# GPU topics whose bytes are kept, and one of numbers.
TOPICS = {
    'pictures': ({}, None),
    'clouds': ({'points': rgaps.PointCloud, 'points_filtered': rgaps.PointCloud}, 'cluster_count'),
    'tensors': ({'features': rgaps.Tensor, 'scores': rgaps.Tensor}, 'label'),
}


def main():
    pipeline, file = sys.argv[1:]
    topics, numbers_topic = TOPICS[pipeline]
    arrays, numbers, statuses = {}, [], {}

    def on_diagnostics(message):
        for status in message.status:
            if status.hardware_id == 'rgaps':
                statuses[status.name] = {value.key: int(value.value) for value in status.values}

    rclpy.init()
    node = rclpy.create_node('watcher')
    node.create_subscription(DiagnosticArray, '/diagnostics', on_diagnostics, 100)
    kept = []
    for topic, kind in topics.items():
        def on_frame(frame, topic=topic):
            arrays[f'{topic}-{frame.meta.stamp}'] = np.frombuffer(frame.tobytes(), np.float32)

        kept.append(rgaps.ros.Subscription(node, kind, topic, on_frame, 50))
    if numbers_topic:
        node.create_subscription(UInt32, numbers_topic, lambda message: numbers.append(message.data), 50)
    print('watching', flush=True)
    try:
        rclpy.spin(node)
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    refused = sum(subscription.refused for subscription in kept)
    np.savez(f'{file}.npz', **arrays)
    with open(f'{file}.json', 'w', encoding='utf-8') as out:
        json.dump({'numbers': numbers, 'statuses': statuses, 'refused': refused}, out)


main()
