"""Observes a pipeline from outside, for check_pipelines.py: watch_pipelines.py PIPELINE FILE

Reads the payloads of the pipeline's topics in the core, missing none that is published after it printed `watching`, and subscribes to
/diagnostics and a topic of numbers. Once FILE.end exists, it writes FILE.json and, for arrays, FILE.npz, and ends.
"""

import json
import os
import sys
import threading

import numpy as np
import rclpy
import rgaps
from diagnostic_msgs.msg import DiagnosticArray
from std_msgs.msg import UInt32

# GPU topics whose payloads are kept, and a topic of numbers.
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
    if numbers_topic:
        node.create_subscription(UInt32, numbers_topic, lambda message: numbers.append(message.data), 50)

    is_over = threading.Event()
    core = rgaps.Node('watcher', domain=int(os.environ['ROS_DOMAIN_ID']))

    def keep(topic, subscriber):
        while not is_over.is_set():
            sample = subscriber.wait(timeout=0.2)
            if sample is not None:
                arrays[f'{topic}-{sample.meta.stamp}'] = np.frombuffer(sample.tobytes(), np.float32)

    # The core's topic has the ROS topic's full name.
    subscribers = {topic: core.subscriber(f'/{topic}', kind, rgaps.SubscriberQos(depth=50)) for topic, kind in topics.items()}
    threads = [threading.Thread(target=keep, args=each) for each in subscribers.items()]
    for thread in threads:
        thread.start()
    print('watching', flush=True)
    while not os.path.exists(f'{file}.end'):
        rclpy.spin_once(node, timeout_sec=0.1)
    is_over.set()
    for thread in threads:
        thread.join()
    np.savez(f'{file}.npz', **arrays)
    with open(f'{file}.json', 'w', encoding='utf-8') as out:
        json.dump({'numbers': numbers, 'statuses': statuses}, out)


main()
