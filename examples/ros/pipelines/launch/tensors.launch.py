"""Features, and a model that computes scores and a label from them.

    ros2 launch rgaps_examples tensors.launch.py count:=100 rate:=30.0

The launch ends when the model has received `count` tensors.
"""

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, Shutdown
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node
from launch_ros.descriptions import ParameterValue

ARGUMENTS = {
    'count': ('100', 'tensors after which all ends; 0 goes on'),
    'rate': ('30.0', 'tensors a second'),
    'timeout': ('60.0', 'seconds without a tensor after which the model gives up'),
    'namespace': ('', 'of all nodes'),
}


def argument(name, kind=str):
    return ParameterValue(LaunchConfiguration(name), value_type=kind)


def generate_launch_description():
    namespace = LaunchConfiguration('namespace')

    def program(name, parameters, **more):
        return Node(package='rgaps_examples', executable=name, name=name, namespace=namespace, output='screen', parameters=[parameters], **more)

    return LaunchDescription([
        *(DeclareLaunchArgument(name, default_value=value, description=text) for name, (value, text) in ARGUMENTS.items()),
        program('model', {'count': argument('count', int), 'timeout': argument('timeout', float)},
                on_exit=Shutdown(reason='the model is done')),
        program('tensor_source', {'rate': argument('rate', float)}),
    ])
