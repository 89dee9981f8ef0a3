"""Clouds of a moving sensor, a voxel filter, and the number of clusters in each.

    ros2 launch rgaps_examples clouds.launch.py count:=50 rate:=10.0

The launch ends when the clusters of `count` clouds were counted.
"""

import os
import pathlib
import sys

from ament_index_python.packages import get_package_share_directory
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import ComposableNodeContainer, Node
from launch_ros.descriptions import ComposableNode

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from pipeline import end_with, parameter, pipeline  # noqa: E402

DATA = pathlib.Path(get_package_share_directory('rgaps_examples')) / 'data'
ARGUMENTS = {
    'count': ('50', 'Clouds after which the launch ends; 0: it does not end.'),
    'rate': ('10.0', 'Clouds a second.'),
    'file': (str(DATA / 'saddle.pcd'), 'The cloud, a binary PCD of x, y, z and intensity.'),
    'cube': ('0.1', 'Edge of a cube of the voxel filter, in metres.'),
    'tolerance': ('0.3', 'Largest distance of neighbours within a cluster, in metres.'),
    'timeout': ('60.0', 'Seconds without a cloud after which the last stage gives up.'),
    'namespace': ('', 'ROS namespace of all nodes.'),
}


NAMESPACE = LaunchConfiguration('namespace')


def program(name, parameters, **more):
    return Node(package='rgaps_examples', executable=name, name=name, namespace=NAMESPACE, output='screen', parameters=[parameters], **more)


def actions(parts):
    source = program('cloud_source', {'file': parameter('file'), 'rate': parameter('rate', float)})
    voxel = ComposableNode(
        package='rgaps_examples', plugin='rgaps_examples::Voxel', name='voxel', namespace=NAMESPACE,
        parameters=[{'cube': parameter('cube', float)}], extra_arguments=[{'use_intra_process_comms': True}])
    container = ComposableNodeContainer(
        package='rclcpp_components', executable='component_container', name='clouds', namespace=NAMESPACE, output='screen',
        composable_node_descriptions=[voxel])
    clusters = {'tolerance': parameter('tolerance', float), 'count': parameter('count', int), 'timeout': parameter('timeout', float)}
    counter = program('clusters', clusters, on_exit=end_with('the count of clusters'))
    return [*([container, counter] if 'subscribe' in parts else []), *([source] if 'publish' in parts else [])]


def generate_launch_description():
    return pipeline(ARGUMENTS, actions)
