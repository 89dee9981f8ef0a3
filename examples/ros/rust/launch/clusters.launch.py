"""A filter of point clouds and a count of their clusters, as two rclrs nodes.

ros2 launch rgaps_examples_rust clusters.launch.py points:=lidar/points cube:=0.05
"""

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue


def generate_launch_description():
    points = ('points', LaunchConfiguration('points'))
    cube = ParameterValue(LaunchConfiguration('cube'), value_type=float)
    tolerance = ParameterValue(LaunchConfiguration('tolerance'), value_type=float)
    return LaunchDescription([
        DeclareLaunchArgument('points', default_value='points', description='Topic of the clouds.'),
        DeclareLaunchArgument('cube', default_value='0.1', description='Edge of a cube of the filter, in metres.'),
        DeclareLaunchArgument('tolerance', default_value='0.5', description='Points nearer than this belong to one cluster, in metres.'),
        Node(package='rgaps_examples_rust', executable='voxel', remappings=[points], parameters=[{'cube': cube}], output='screen'),
        Node(package='rgaps_examples_rust', executable='clusters', parameters=[{'tolerance': tolerance}], output='screen'),
    ])
