"""ROS nodes by name: executables, and components in one container.

ros2 launch rgaps nodes.launch.py nodes:=demo_nodes_cpp/talker,demo_nodes_cpp/demo_nodes_cpp::Listener

The launch ends when all of them have ended, or with exit status 1 when one has failed. The other launch files start the `nodes` of a host by it.
"""

import os
import sys

from ament_index_python import get_resource, has_resource
from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, OpaqueFunction, Shutdown
from launch.substitutions import AnonName
from launch_ros.actions import ComposableNodeContainer, Node
from launch_ros.descriptions import ComposableNode

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from rgaps_hosts import argument, words  # noqa: E402

NODES = DeclareLaunchArgument('nodes', description='PACKAGE/EXECUTABLE, or PACKAGE/CLASS::OF::A_COMPONENT; separated by commas.')
NAMESPACE = argument('namespace', '', 'The ROS namespace of the nodes.')


def split(text):
    """Pairs of package and executable or class."""
    for word in words(text):
        package, slash, name = word.partition('/')
        if not (package and slash and name) or '/' in name:
            raise RuntimeError(f'nodes has "{word}"; it must be PACKAGE/EXECUTABLE or PACKAGE/CLASS::OF::A_COMPONENT')
        if '::' in name and name not in components_of(package):
            raise RuntimeError(f'the package {package} has no component {name}; it has {", ".join(components_of(package)) or "none"}')
        yield package, name


def components_of(package):
    """The classes of a package's components. launch_ros only logs that a component cannot be loaded."""
    text, _ = get_resource('rclcpp_components', package) if has_resource('rclcpp_components', package) else ('', None)
    return [line.partition(';')[0] for line in text.split()]


def start(context):
    namespace = context.launch_configurations['namespace']
    named = list(split(context.launch_configurations['nodes']))
    if not named:
        raise RuntimeError('nodes is empty; it must name one node or more, separated by commas')
    running = 0

    def end(event, context):
        nonlocal running
        running -= 1
        if context.is_shutdown:
            return None
        if event.returncode:
            raise RuntimeError(f'{event.process_name} has failed with exit status {event.returncode}')
        return None if running else Shutdown(reason='all nodes have ended')

    actions = [Node(package=package, executable=name, namespace=namespace, output='screen', on_exit=end)
               for package, name in named if '::' not in name]
    components = [ComposableNode(package=package, plugin=name, namespace=namespace) for package, name in named if '::' in name]
    if components:
        actions.append(ComposableNodeContainer(package='rclcpp_components', executable='component_container', name=AnonName('container'),
                                               namespace=namespace, composable_node_descriptions=components, output='screen', on_exit=end))
    running = len(actions)
    return actions


def generate_launch_description():
    return LaunchDescription([NODES, NAMESPACE, OpaqueFunction(function=start)])
