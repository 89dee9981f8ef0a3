"""Both hosts on one machine: two managers in one ROS domain, in two network namespaces when root, else on two loopback addresses.

ros2 launch rgaps pair.launch.py

streams the example pictures to eight subscribers on the other host, which compare each message with its file and lose none. The launch ends after
`count` messages with the totals in its last line, and with exit status 0 if all arrived intact. Nothing is left behind, even after a kill -9 of the
launch: `rgaps two-hosts` makes both hosts, and removes them when its input is closed.

ros2 launch rgaps pair.launch.py publish_nodes:=my_camera/driver subscribe_launch_file:='my_robot detectors.launch.py'

runs ROS nodes or launch files on the two hosts instead, and ends when those of the subscribing host have ended. Under rmw_zenoh_cpp each host in a
network namespace gets a router, linked with the other's, by which the nodes find each other.
"""

import json
import os
import pathlib
import shlex
import sys

from ament_index_python.packages import get_package_prefix
from launch.actions import ExecuteProcess, RegisterEventHandler
from launch.event_handlers import OnProcessExit, OnProcessIO

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from rgaps_hosts import (EXAMPLE_DATA, HOST_ARGUMENTS, Host, PAIR, PUBLISH, PUBLISH_ARGUMENTS, QOS_ARGUMENTS, SUBSCRIBE,  # noqa: E402
                         SUBSCRIBE_ARGUMENTS, TOPICS, argument, described, node_arguments, program)

# Differs from the files for one host: no message is lost, however slow the machine is.
PAIR_ARGUMENTS = [
    argument('input', str(EXAMPLE_DATA), 'A PNG, JPEG, PCD, PLY or NPY file, or a folder of them.'),
    argument('subscribers', '8', 'Subscribers of each topic, one or more.'),
    argument('count', '300', 'Messages after which each subscriber ends. The launch ends with the last subscriber. 0: they do not end.'),
    argument('history', 'keep_all', 'With keep_all, publishers wait and no message is lost.', choices=['keep_last', 'keep_all']),
    argument('exhaustion', 'wait:60000', 'What to do when the pool is full: wait:MILLISECONDS, drop_oldest or refuse.'),
    argument('wait_for', '1', 'Subscribers to wait for before the first message; the other host counts as one.'),
    argument('timeout', '60', 'Seconds without a message after which a subscriber gives up.'),
    argument('settings', 'keep_all_timeout_ms=60000', 'Keys of docs/configuration.md for both managers: key=value,key=value.'),
    argument('loopback', 'false', 'Use two loopback addresses even as root.', choices=['true', 'false']),
]
ROLES = (PUBLISH, SUBSCRIBE)
LEFT_OUT = {'expect', *(ours.name for ours in PAIR_ARGUMENTS)}


def start_routers(report, hosts):
    """Routers for nodes of rmw_zenoh_cpp, which look for one on their own host. Without network namespaces they use that of this machine."""
    rmw = os.environ.get('RMW_IMPLEMENTATION', '')
    rmw = os.environ.get('RGAPS_INNER_RMW', '') if rmw == 'rmw_rgaps' else rmw
    if pathlib.Path(rmw).name not in ('rmw_zenoh_cpp', 'librmw_zenoh_cpp.so') or not all(host['prefix'] for host in hosts):
        return []
    router = os.path.join(get_package_prefix('rmw_zenoh_cpp'), 'lib', 'rmw_zenoh_cpp', 'rmw_zenohd')
    environments = [dict(host['environment']) for host in hosts]
    peers = [environment['RGAPS_DATA_ADDRESS'] for environment in reversed(environments)]
    given = os.environ.get('ZENOH_CONFIG_OVERRIDE', '')
    if 'endpoints' in given:
        report.logger.warning('ZENOH_CONFIG_OVERRIDE holds for the nodes of both hosts, too: the endpoints that it names must be reachable from there')
    overrides = [';'.join(filter(None, (given, f'connect/endpoints=["tcp/{peer}:7447"]'))) for peer in peers]
    routers = [ExecuteProcess(cmd=[*host['prefix'], router], name='router', output='log',
                              additional_env={**environment, 'ZENOH_CONFIG_OVERRIDE': override})
               for host, environment, override in zip(hosts, environments, overrides)]

    def end(event, context):
        if not context.is_shutdown:
            raise RuntimeError('a router of rmw_zenoh_cpp has ended; the log folder of this launch has its output')

    ends = [RegisterEventHandler(OnProcessExit(target_action=router, on_exit=end)) for router in routers]
    return [*ends, *(action for router in routers for action in report.watch(router))]


def pair(settings, report):
    publishing, subscribing = (settings[f'{role}_nodes'] or settings[f'{role}_launch_file'] for role in ROLES)
    settings['expect'] = '' if publishing else settings['input']
    command = [program('rgaps'), 'two-hosts']
    for name in ('transport', 'device'):
        command += [f'--{name}', settings[name]] if settings[name] else []
    command += ['--loopback'] if settings['loopback'] == 'true' else []
    # It waits for the processes of the hosts to end, also after SIGTERM.
    two_hosts = ExecuteProcess(cmd=command, name='two-hosts', output={'stdout': 'log', 'stderr': 'screen'}, sigkill_timeout='40')
    text = bytearray()

    def start(event):
        """Reads the line that says how to run a process on a host. The output may arrive in pieces."""
        if text.endswith(b'\n'):
            return None
        text.extend(event.text)
        if not text.endswith(b'\n'):
            return None
        said = json.loads(text)
        report.logger.info(said['about'])
        for name, host in zip(('publishing', 'subscribing'), said['hosts']):
            given = {**dict(host['environment']), **({'ROS_DOMAIN_ID': settings['domain']} if settings['domain'] else {})}
            variables = [f'{name}={value}' for name, value in given.items() if name == 'RGAPS_RUNTIME_DIR' or name.startswith('ROS_')]
            report.logger.info(f'to run a command on the {name} host: {shlex.join([*host["prefix"], "env", *variables])} ros2 ...')
        hosts = [Host({**settings, 'nodes': settings[f'{role}_nodes'], 'launch_file': settings[f'{role}_launch_file']}, report, **host)
                 for role, host in zip(ROLES, said['hosts'])]
        routers = start_routers(report, said['hosts']) if publishing or subscribing else []
        return [*routers, *(action for role, host in zip(ROLES, hosts) for action in host.run(host.clients(role)))]

    def end(event, context):
        """Ends the hosts last, unless an error occurred."""
        if not context.is_shutdown:
            raise RuntimeError('there are no two hosts (any more): see the line above')

    return [RegisterEventHandler(OnProcessIO(target_action=two_hosts, on_stdout=start)),
            RegisterEventHandler(OnProcessExit(target_action=two_hosts, on_exit=end)), *report.watch(two_hosts)]


def generate_launch_description():
    nodes = [nodes for prefix in PAIR for nodes in node_arguments(prefix)]
    arguments = [*nodes, *PUBLISH_ARGUMENTS, *SUBSCRIBE_ARGUMENTS, *QOS_ARGUMENTS, *HOST_ARGUMENTS]
    return described(__file__, [TOPICS, *PAIR_ARGUMENTS, *(other for other in arguments if other.name not in LEFT_OUT)], pair)
