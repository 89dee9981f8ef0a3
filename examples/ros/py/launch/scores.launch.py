"""Features and the model that scores them, each a node of rclpy.

ros2 launch rgaps_examples_py scores.launch.py rate:=30
"""

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue


def generate_launch_description():
    rate = ParameterValue(LaunchConfiguration('rate'), value_type=float)
    return LaunchDescription([
        DeclareLaunchArgument('rate', default_value='10.0', description='Features a second.'),
        Node(package='rgaps_examples_py', executable='features', parameters=[{'rate': rate}], output='screen'),
        Node(package='rgaps_examples_py', executable='model', output='screen'),
    ])
