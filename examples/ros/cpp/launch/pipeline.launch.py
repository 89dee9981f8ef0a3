"""Camera, rectifier, edge detectors and viewer: each a process of its own, or all in one container.

ros2 launch rgaps_examples_cpp pipeline.launch.py detectors:=8 count:=100
"""

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, OpaqueFunction, Shutdown
from launch_ros.actions import ComposableNodeContainer, Node
from launch_ros.descriptions import ComposableNode

ARGUMENTS = [
    DeclareLaunchArgument('detectors', default_value='8', description='Edge detectors, each with a topic of its own.'),
    DeclareLaunchArgument('count', default_value='0', description='Pictures of each detector after which the viewer ends; 0: it does not.'),
    DeclareLaunchArgument('rate', default_value='30.0', description='Pictures a second.'),
    DeclareLaunchArgument('composed', default_value='false', description='true: all nodes in one process, with intra-process communication.'),
]


def stages(settings):
    """Plugin, executable, node's name, remappings and parameters."""
    detectors = int(settings['detectors'])
    yield 'Viewer', 'viewer', 'viewer', [], {'detectors': detectors, 'count': int(settings['count'])}
    for number in range(detectors):
        yield 'Edges', 'edges', f'edges_{number}', [('edges', f'edges_{number}')], {}
    yield 'Rectify', 'rectify', 'rectify', [], {}
    yield 'Camera', 'camera', 'camera', [], {'rate': float(settings['rate'])}


def setup(context):
    settings = context.launch_configurations
    if settings['composed'] == 'true':
        nodes = [ComposableNode(package='rgaps_examples_cpp', plugin=f'rgaps_examples::{plugin}', name=name, remappings=remappings,
                                parameters=[parameters], extra_arguments=[{'use_intra_process_comms': True}])
                 for plugin, _, name, remappings, parameters in stages(settings)]
        return [ComposableNodeContainer(name='pipeline', namespace='', package='rclcpp_components', executable='component_container',
                                        composable_node_descriptions=nodes, output='screen', on_exit=Shutdown())]
    return [Node(package='rgaps_examples_cpp', executable=executable, name=name, remappings=remappings, parameters=[parameters],
                 output='screen', on_exit=Shutdown() if executable == 'viewer' else [])
            for _, executable, name, remappings, parameters in stages(settings)]


def generate_launch_description():
    return LaunchDescription([*ARGUMENTS, OpaqueFunction(function=setup)])
