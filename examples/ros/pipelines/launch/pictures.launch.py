"""A camera, its rectified images, eight edge detectors that share them, and a viewer that checks the results.

    ros2 launch rgaps_examples pictures.launch.py count:=100 rate:=30.0 save:=/tmp/edges

The C++ stages are components of one container. Three detectors are in Python; the last one is in Rust if the package rgaps_examples_rust is
built. The launch ends when the viewer has received `count` images.
"""

import os
import pathlib
import sys
from typing import List

from ament_index_python.packages import PackageNotFoundError, get_package_prefix, get_package_share_directory
from launch.conditions import IfCondition, UnlessCondition
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import ComposableNodeContainer, Node
from launch_ros.descriptions import ComposableNode

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from pipeline import end_with, parameter, pipeline  # noqa: E402

DETECTORS, IN_PYTHON = 8, 3


def has_rust():
    try:
        return pathlib.Path(get_package_prefix('rgaps_examples_rust'), 'lib', 'rgaps_examples_rust', 'edges').exists()
    except PackageNotFoundError:
        return False


DATA = pathlib.Path(get_package_share_directory('rgaps_examples')) / 'data'
ARGUMENTS = {
    'count': ('100', 'Images after which the launch ends; 0: it does not end.'),
    'rate': ('30.0', 'Images a second.'),
    'folder': (str(DATA), 'Folder of the images (*.png) that the camera publishes.'),
    'frame_id': ('camera', 'Coordinate frame of the camera.'),
    'width': ('320', 'Width of the rectified image, in pixels.'),
    'height': ('240', 'Height of the rectified image, in pixels.'),
    'distortion': ('[-0.1, 0.01, 0.001, -0.001, 0.0]', 'Coefficients of plumb_bob: k1, k2, p1, p2, k3.'),
    'rust': (str(has_rust()).lower(), 'Whether the last detector is the one in Rust. By default if rgaps_examples_rust is built.'),
    'save': ('', 'Folder for the last images of every topic. Empty: none are saved.'),
    'timeout': ('60.0', 'Seconds without an image after which the viewer gives up.'),
    'namespace': ('', 'ROS namespace of all nodes.'),
}


NAMESPACE = LaunchConfiguration('namespace')


def component(plugin, name, parameters=None, remappings=None):
    return ComposableNode(
        package='rgaps_examples', plugin=f'rgaps_examples::{plugin}', name=name, namespace=NAMESPACE, parameters=[parameters or {}],
        remappings=remappings or [], extra_arguments=[{'use_intra_process_comms': True}])


def program(name, executable, package='rgaps_examples', **more):
    return Node(package=package, executable=executable, name=name, namespace=NAMESPACE, output='screen', **more)


def actions(parts):
    camera = {'folder': parameter('folder'), 'rate': parameter('rate', float), 'frame_id': parameter('frame_id')}
    rectify = {'width': parameter('width', int), 'height': parameter('height', int), 'distortion': parameter('distortion', List[float])}
    topics = [f'edges_{number}' for number in range(DETECTORS)]
    in_cpp, in_python, last = topics[:-IN_PYTHON], topics[-IN_PYTHON:-1], topics[-1]
    rust = LaunchConfiguration('rust')
    viewer = {
        'topics': ['image_raw', 'image_rect', *topics],
        'count': parameter('count', int),
        'timeout': parameter('timeout', float),
        'save': parameter('save'),
    }
    components, programs = [], []
    if 'subscribe' in parts:
        components += [component('Edges', topic, remappings=[('edges', topic)]) for topic in in_cpp]
        programs = [
            *(program(topic, 'edges', remappings=[('edges', topic)]) for topic in in_python),
            program(last, 'edges', remappings=[('edges', last)], condition=UnlessCondition(rust)),
            program(last, 'edges', 'rgaps_examples_rust', remappings=[('edges', last)], condition=IfCondition(rust)),
            program('viewer', 'viewer', parameters=[viewer], on_exit=end_with('the viewer')),
        ]
    if 'publish' in parts:
        components += [component('Rectify', 'rectify', rectify), component('Camera', 'camera', camera)]
    container = ComposableNodeContainer(
        package='rclcpp_components', executable='component_container', name='pictures' if len(parts) > 1 else f'pictures_{parts[0]}', namespace=NAMESPACE, output='screen',
        composable_node_descriptions=components)
    return [container, *programs]


def generate_launch_description():
    return pipeline(ARGUMENTS, actions)
