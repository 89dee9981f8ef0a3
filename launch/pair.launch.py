"""Both hosts on one machine: two managers with directories, and so identities, of their own, on two loopback addresses.

ros2 launch rgaps pair.launch.py input:=examples/data/rocket.jpg subscribers:=8
"""

import os
import shutil
import tempfile

from launch import LaunchDescription
from launch.actions import (DeclareLaunchArgument, GroupAction, IncludeLaunchDescription, OpaqueFunction,
                            RegisterEventHandler)
from launch.event_handlers import OnShutdown
from launch.launch_description_sources import PythonLaunchDescriptionSource

ARGUMENTS = [
    DeclareLaunchArgument('topics', default_value='camera/front', description='Topics, separated by commas.'),
    DeclareLaunchArgument('input', description='A PNG, JPEG, PCD, PLY or NPY file, or a folder of them.'),
    DeclareLaunchArgument('type', default_value='image', description='image, cloud, tensor or bytes.'),
    DeclareLaunchArgument('rate', default_value='30', description='Messages a second on each topic.'),
    DeclareLaunchArgument('subscribers', default_value='8', description='Subscribers of each topic.'),
    DeclareLaunchArgument('count', default_value='0', description='Messages after which each ends; 0: it does not.'),
    DeclareLaunchArgument('transport', default_value='auto', description='auto, tcp or rdma.'),
    DeclareLaunchArgument('device', default_value='auto', description='auto, host, cuda or cuda:N.'),
]

# Both hosts: address, and the port that zenoh uses in between.
PUBLISH, SUBSCRIBE = '127.0.0.1', '127.0.0.2'
PORT = 7457


def host(name, file, folder, address, other, arguments):
    here = os.path.dirname(os.path.abspath(__file__))
    runtime_dir = os.path.join(folder, name)
    os.mkdir(runtime_dir, mode=0o700)
    arguments = {**arguments, 'address': address, 'listen': f'tcp/{address}:{PORT}',
                 'peer': f'tcp/{other}:{PORT}', 'runtime_dir': runtime_dir}
    # A group: the arguments of one host are not those of the other.
    return GroupAction([IncludeLaunchDescription(
        PythonLaunchDescriptionSource(os.path.join(here, file)), launch_arguments=arguments.items())])


def setup(context):
    settings = context.launch_configurations
    folder = tempfile.mkdtemp(prefix='rgaps-pair-')
    both = {key: settings[key] for key in ('topics', 'transport', 'device')}
    return [
        RegisterEventHandler(OnShutdown(on_shutdown=lambda event, context: shutil.rmtree(folder, ignore_errors=True))),
        host('publish', 'publish_host.launch.py', folder, PUBLISH, SUBSCRIBE,
             {**both, 'input': settings['input'], 'rate': settings['rate']}),
        host('subscribe', 'subscribe_host.launch.py', folder, SUBSCRIBE, PUBLISH,
             {**both, 'type': settings['type'], 'subscribers': settings['subscribers'], 'count': settings['count']}),
    ]


def generate_launch_description():
    return LaunchDescription([*ARGUMENTS, OpaqueFunction(function=setup)])
