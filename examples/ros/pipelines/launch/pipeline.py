"""Shared by the launch files of the pipelines: the part of a pipeline that runs on a host, and hosts that run a part.

A pipeline's launch file has `ARGUMENTS`, and a function that gives the actions of some parts.
"""

import pathlib
import runpy
import shlex

from ament_index_python.packages import get_package_share_directory
from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription, OpaqueFunction, Shutdown
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration
from launch_ros.parameter_descriptions import ParameterValue

FOLDER = pathlib.Path(__file__).absolute().parent
PARTS = ('publish', 'subscribe')


def parameter(name, kind=str):
    """The value of an argument, as a node's parameter."""
    return ParameterValue(LaunchConfiguration(name), value_type=kind)


def end_with(name):
    """An exit handler that ends the launch with the node, and fails it if the node has failed."""
    def end(event, context):
        if context.is_shutdown:
            return None
        if event.returncode:
            raise RuntimeError(f'{name} has failed: see the lines above')
        return Shutdown(reason=f'{name} is done')

    return end


def pipeline(arguments, actions):
    """The launch description of a pipeline, or of its part `part`; `actions(parts)` gives the actions."""
    def start(context):
        part = context.launch_configurations['part']
        return actions(PARTS if part == 'all' else (part,))

    return LaunchDescription([
        *_declared(arguments),
        DeclareLaunchArgument('part', default_value='all', choices=['all', *PARTS], description='The part of the pipeline that runs here.'),
        OpaqueFunction(function=start),
    ])


def host_launch_description(file, name, *parts):
    """The launch description of one host with a part of the pipeline, or of two hosts on this machine with both parts."""
    arguments = runpy.run_path(str(FOLDER / f'{name}.launch.py'))['ARGUMENTS']

    def start(context):
        given = [f'{key}:={context.launch_configurations[key]}' for key in arguments]
        # `ros2 launch` rejects an argument with an empty value.
        given = [word for word in given if not word.endswith(':=')]
        commands = {part: shlex.join(['rgaps_examples', f'{name}.launch.py', f'part:={part}', *given]) for part in parts}
        more = {'launch_file': commands[parts[0]]} if len(parts) == 1 else {f'{part}_launch_file': command for part, command in commands.items()}
        source = PythonLaunchDescriptionSource(str(pathlib.Path(get_package_share_directory('rgaps'), 'launch', file)))
        return [IncludeLaunchDescription(source, launch_arguments=more.items())]

    return LaunchDescription([*_declared(arguments), OpaqueFunction(function=start)])


def _declared(arguments):
    return [DeclareLaunchArgument(name, default_value=value, description=text) for name, (value, text) in arguments.items()]
