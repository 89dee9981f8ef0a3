"""Clouds of a moving sensor, a voxel filter, and the number of clusters in each.

    ros2 launch rgaps_examples clouds.launch.py count:=50 rate:=10.0

The launch ends when the clusters of `count` clouds were counted.
"""

import pathlib

from ament_index_python.packages import get_package_share_directory
from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, Shutdown
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import ComposableNodeContainer, Node
from launch_ros.descriptions import ComposableNode, ParameterValue

DATA = pathlib.Path(get_package_share_directory('rgaps_examples')) / 'data'
ARGUMENTS = {
    'count': ('50', 'clouds after which all ends; 0 goes on'),
    'rate': ('10.0', 'clouds a second'),
    'file': (str(DATA / 'saddle.pcd'), 'the cloud, a binary PCD of x, y, z and intensity'),
    'cube': ('0.1', 'edge of a cube of the voxel filter, in metres'),
    'tolerance': ('0.3', 'distance of neighbours within a cluster, in metres'),
    'timeout': ('60.0', 'seconds without a cloud after which the last stage gives up'),
    'namespace': ('', 'of all nodes'),
}


def argument(name, kind=str):
    return ParameterValue(LaunchConfiguration(name), value_type=kind)


def generate_launch_description():
    namespace = LaunchConfiguration('namespace')

    def program(name, parameters, **more):
        return Node(package='rgaps_examples', executable=name, name=name, namespace=namespace, output='screen', parameters=[parameters], **more)

    clusters = {'tolerance': argument('tolerance', float), 'count': argument('count', int), 'timeout': argument('timeout', float)}
    return LaunchDescription([
        *(DeclareLaunchArgument(name, default_value=value, description=text) for name, (value, text) in ARGUMENTS.items()),
        ComposableNodeContainer(
            package='rclcpp_components', executable='component_container', name='clouds', namespace=namespace, output='screen',
            composable_node_descriptions=[
                ComposableNode(
                    package='rgaps_examples', plugin='rgaps_examples::Voxel', name='voxel', namespace=namespace,
                    parameters=[{'cube': argument('cube', float)}], extra_arguments=[{'use_intra_process_comms': True}]),
            ]),
        program('clusters', clusters, on_exit=Shutdown(reason='all clouds are counted')),
        program('cloud_source', {'file': argument('file'), 'rate': argument('rate', float)}),
    ])
