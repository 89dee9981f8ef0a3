"""Features, and a model that computes scores and a label from them.

    ros2 launch rgaps_examples tensors.launch.py count:=100 rate:=30.0

The launch ends when the model has received `count` tensors.
"""

import os
import sys

from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from pipeline import end_with, parameter, pipeline  # noqa: E402

ARGUMENTS = {
    'count': ('100', 'Tensors after which the launch ends; 0: it does not end.'),
    'rate': ('30.0', 'Tensors a second.'),
    'timeout': ('60.0', 'Seconds without a tensor after which the model gives up.'),
    'namespace': ('', 'ROS namespace of all nodes.'),
}


def program(name, parameters, **more):
    namespace = LaunchConfiguration('namespace')
    return Node(package='rgaps_examples', executable=name, name=name, namespace=namespace, output='screen', parameters=[parameters], **more)


def actions(parts):
    source = program('tensor_source', {'rate': parameter('rate', float)})
    model = program('model', {'count': parameter('count', int), 'timeout': parameter('timeout', float)}, on_exit=end_with('the model'))
    return [*([model] if 'subscribe' in parts else []), *([source] if 'publish' in parts else [])]


def generate_launch_description():
    return pipeline(ARGUMENTS, actions)
