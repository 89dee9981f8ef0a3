"""The publishing host: its manager, and one `rgaps pub` for each topic once the manager serves.

ros2 launch rgaps publish_host.launch.py topics:=camera/front,camera/back input:=pictures peer:=10.0.0.2
"""

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, ExecuteProcess, OpaqueFunction, RegisterEventHandler
from launch.event_handlers import OnProcessIO

ARGUMENTS = [
    DeclareLaunchArgument('topics', default_value='camera/front', description='Topics, separated by commas.'),
    DeclareLaunchArgument('input', description='A PNG, JPEG, PCD, PLY or NPY file, or a folder of them.'),
    DeclareLaunchArgument('rate', default_value='30', description='Messages a second on each topic.'),
    DeclareLaunchArgument('depth', default_value='10', description='Messages kept for late joiners and links.'),
    DeclareLaunchArgument('wait_for', default_value='0', description='Subscribers to wait for before the first message.'),
    DeclareLaunchArgument('peer', default_value='',
                          description='Other hosts, separated by commas: 10.0.0.2 or tcp/10.0.0.2:7447. '
                                      'Empty: hosts of the LAN find each other.'),
    DeclareLaunchArgument('listen', default_value='', description='Where others find this host: tcp/0.0.0.0:7447.'),
    DeclareLaunchArgument('address', default_value='', description='Addresses for payload. Empty: every address.'),
    DeclareLaunchArgument('transport', default_value='auto', description='auto, tcp or rdma.'),
    DeclareLaunchArgument('device', default_value='auto', description='auto, host, cuda or cuda:N.'),
    DeclareLaunchArgument('runtime_dir', default_value='', description='Of the manager. Empty: the user\'s own.'),
]


def locator(peer):
    """The peer as a zenoh locator; 7447 is zenoh's port."""
    return peer if '/' in peer else f'tcp/{peer}:7447'


def manager_command(settings):
    """`rgapsd`, told what the arguments say. It stays (a day, the most there is) without clients: launch ends it."""
    command = ['rgapsd', '--set', 'idle_timeout_ms=86400000']
    for key, value in (('transport', settings['transport']), ('device', settings['device']),
                       ('listen', settings['listen']), ('data_address', settings['address'])):
        if value:
            command += ['--set', f'{key}={value}']
    for peer in filter(None, settings['peer'].split(',')):
        command += ['--peer', locator(peer.strip())]
    if settings['peer']:
        command += ['--set', 'multicast=false']
    return command


def setup(context):
    settings = context.launch_configurations
    environment = {'RGAPS_LOG': 'warn,rgaps_manager=info'}
    if settings['runtime_dir']:
        environment['RGAPS_RUNTIME_DIR'] = settings['runtime_dir']
    manager = ExecuteProcess(cmd=manager_command(settings), name='rgapsd', output='screen',
                             additional_env=environment, respawn=True, respawn_delay=1.0)
    publishers = [
        ExecuteProcess(
            cmd=['rgaps', 'pub', topic.strip(), '--input', settings['input'], '--rate', settings['rate'],
                 '--depth', settings['depth'], '--wait-for', settings['wait_for'], '--loop'],
            output='screen', additional_env={**environment, 'RGAPS_AUTOSTART': '0'})
        for topic in filter(None, settings['topics'].split(','))
    ]
    started = []

    def start_once(event):
        """The manager says when it serves; a manager that was started again finds its clients, not new ones."""
        if b'rgapsd serves' in event.text and not started:
            started.append(True)
            return publishers
        return None

    return [RegisterEventHandler(OnProcessIO(target_action=manager, on_stderr=start_once)), manager]


def generate_launch_description():
    return LaunchDescription([*ARGUMENTS, OpaqueFunction(function=setup)])
