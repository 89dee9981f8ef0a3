"""Shared by the launch files: a host's manager, its publishers and subscribers, and their reports.

A launch file gives `Host` its settings and its additions; this module does the rest. Files beside this one import it by its folder, which is
`share/rgaps/launch` when installed and `launch` in a clone.
"""

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time
from signal import SIGINT

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, EmitEvent, ExecuteProcess, OpaqueFunction, RegisterEventHandler, TimerAction
from launch.event_handlers import OnProcessExit, OnProcessIO
from launch.events import Shutdown, matches_action
from launch.events.process import SignalProcess
from launch.logging import get_logger

FOLDER = pathlib.Path(__file__).absolute().parent

# Pictures, a point cloud and an array; the same path relative to this folder in an installation and in a clone.
EXAMPLE_DATA = FOLDER.parent / 'examples' / 'data'

# Seconds in which a manager must begin to serve, and how often it may end before that: its settings may be wrong.
READY_TIMEOUT = '30'
STARTS_MAX = 3
# Seconds before a manager that has died soon is restarted.
RESTART_DELAY = 1.0
# Seconds: for ever.
LONG = 10**9

# Seconds in which publishers must end after they were asked to; then the launch kills them.
END_TIMEOUT = 15.0

# What a host does.
PUBLISH, SUBSCRIBE = 'publish', 'subscribe'


def argument(name, default, description, **more):
    return DeclareLaunchArgument(name, default_value=default, description=description, **more)


TOPICS = argument('topics', 'camera/front', 'Topics, separated by commas; relative names get `namespace` as prefix.')

HOST_ARGUMENTS = [
    argument('transport', '', 'Transport between hosts. Empty: as configured.', choices=['', 'auto', 'tcp', 'rdma']),
    argument('device', '', 'Device of the pools: auto, host, cuda, cuda:N or cuda:GPU-UUID. Empty: as configured.'),
    argument('namespace', '', 'The ROS namespace of relative topics.'),
    argument('domain', '', 'The ROS domain. Empty: ROS_DOMAIN_ID, else 0.'),
    argument('settings', '', 'More keys of docs/configuration.md for the manager: key=value,key=value.'),
]

ADDRESS_ARGUMENTS = [
    argument('peer', '', "Other hosts' managers, separated by commas: 10.0.0.2 or tcp/10.0.0.2:7447; then multicast of the managers is off. Empty: "
                         'multicast, ROS_STATIC_PEERS (which ROS nodes need, too), or routers.'),
    argument('listen', '', 'Address on which this host listens: tcp/0.0.0.0:7447.'),
    argument('address', '', 'Addresses for payload. Empty: every address.'),
    argument('runtime_dir', '', "The manager's runtime directory. Empty: the user's own."),
]

QOS_ARGUMENTS = [
    argument('reliability', 'reliable', 'For matching only: reliable subscribers do not match best_effort publishers.', choices=['reliable', 'best_effort']),
    argument('durability', 'volatile', 'Whether late subscribers get the last messages.', choices=['volatile', 'transient_local']),
    argument('depth', '10', 'Messages to keep: by publishers for late subscribers and links, by subscribers until they are read.'),
]

PUBLISH_ARGUMENTS = [
    argument('rate', '30', 'Messages a second on each topic.'),
    argument('exhaustion', 'wait:1000', 'What to do when the pool is full: wait:MILLISECONDS, drop_oldest or refuse.'),
    argument('pool_bytes', '', 'Size of a pool: 256MiB. Empty: as configured.'),
    argument('wait_for', '0', 'Subscribers to wait for before the first message; a remote host counts as one.'),
]

SUBSCRIBE_ARGUMENTS = [
    argument('type', 'image', 'Type of the topics.', choices=['image', 'point_cloud', 'tensor', 'bytes']),
    argument('subscribers', '1', 'Subscribers of each topic, one or more.'),
    argument('history', 'keep_last', 'With keep_all, publishers wait and no message is lost.', choices=['keep_last', 'keep_all']),
    argument('count', '0', 'Messages after which each subscriber ends. The launch ends with the last subscriber, with a line of totals and '
                           'exit status 0 if all messages arrived intact. 0: they do not end.'),
    argument('timeout', '', 'Seconds without a message after which a subscriber gives up. Empty: never.'),
    argument('expect', '', 'Input of the publishers, to compare each message with. Empty: only checksums are compared.'),
    argument('save', '', 'Folder in which to save messages. Empty: they are not saved.'),
]


# Those of all files; one file has only some.
ALL_ARGUMENTS = [TOPICS, *HOST_ARGUMENTS, *ADDRESS_ARGUMENTS, *QOS_ARGUMENTS, *PUBLISH_ARGUMENTS, *SUBSCRIBE_ARGUMENTS]
# Prefixes of the arguments of the two hosts of a pair.
PAIR = (f'{PUBLISH}_', f'{SUBSCRIBE}_')


def node_arguments(prefix=''):
    """Arguments that name ROS nodes of a host; `prefix` tells the arguments of two hosts apart."""
    return [
        argument(f'{prefix}nodes', '', 'ROS nodes to start on the host instead of programs of rgaps: PACKAGE/EXECUTABLE, or '
                                       'PACKAGE/CLASS::OF::A_COMPONENT; separated by commas.'),
        argument(f'{prefix}launch_file', '', "A launch file to start instead, as `ros2 launch` takes it: 'my_robot bringup.launch.py rate:=15.0'."),
    ]


def program(name):
    """A program of the project: in the prefix in which this file is installed, else in PATH."""
    beside = FOLDER.parents[2] / 'bin' / name if FOLDER.parents[1].name == 'share' else None
    return str(beside) if beside and beside.is_file() else name


def words(text):
    return [word.strip() for word in text.split(',') if word.strip()]


def locator(peer):
    """The locator of an address, a name or either with a port; 7447 is zenoh's default port."""
    if '/' in peer:
        return peer
    if peer.count(':') > 1 and not peer.startswith('['):
        peer = f'[{peer}]'
    return f'tcp/{peer}' if re.search(r':\d+$', peer) else f'tcp/{peer}:7447'


def check(settings):
    """Refuses settings with which nothing would run, before anything runs; the programs check the others."""
    for name, least in (('subscribers', 1), ('count', 0)):
        text = settings.get(name, str(least))
        if not text.isdecimal() or int(text) < least:
            raise RuntimeError(f'{name} is "{text}"; it must be a whole number from {least} on')
    if not words(settings['topics']):
        raise RuntimeError(f'topics is "{settings["topics"]}"; it must name one topic or more, separated by commas')
    for prefix in ('', *PAIR):
        if settings.get(f'{prefix}nodes') and settings.get(f'{prefix}launch_file'):
            raise RuntimeError(f'{prefix}nodes and {prefix}launch_file are both given; a host starts one of them')
        try:
            named = shlex.split(settings.get(f'{prefix}launch_file', ''))
        except ValueError as error:
            raise RuntimeError(f'{prefix}launch_file cannot be read: {error}') from None
        if named and not named[0].startswith('-') and ('/' in named[0] or re.search(r'\.(py|xml|ya?ml)$', named[0])) and not os.path.isfile(named[0]):
            raise RuntimeError(f'{prefix}launch_file: there is no file {named[0]}')


class Report:
    """The subscribers' final reports, one by one and in total, and the launch's result."""

    def __init__(self, settings):
        self.count = int(settings.get('count', '0'))
        # A subscriber whose QoS allows loss does not fail when it loses messages.
        self.may_lose = settings.get('history') != 'keep_all'
        self.logger = get_logger('rgaps')
        self.subscribers = []
        self.publishers = []
        # Those of them that are ROS nodes or launch files, which report nothing.
        self.nodes = set()
        self.running = set()
        self.told = set()
        self.has_failed = False
        # Whether nothing is left to do.
        self.is_done = False
        self.lines = {}
        self.reports = {}

    def watch(self, action, is_manager=False):
        """Actions that run a subscriber and follow it to its end."""
        self.running.add(action)
        end = OnProcessExit(target_action=action, on_exit=lambda event, context: self._ended(action, is_manager, event, context))
        return [RegisterEventHandler(end), action]

    def watch_publisher(self, action):
        self.publishers.append(action)
        return self.watch(action)

    def watch_nodes(self, action, role):
        """Runs ROS nodes in the role of a publisher or a subscriber."""
        self.nodes.add(action)
        (self.subscribers if role == SUBSCRIBE else self.publishers).append(action)
        return self.watch(action)

    def watch_subscriber(self, action, name):
        """Also reads its output."""
        self.subscribers.append(action)
        output = OnProcessIO(target_action=action, on_stdout=lambda event: self._said(action, name, event))
        return [RegisterEventHandler(output), *self.watch(action)]

    def _said(self, action, name, event):
        """Collects a subscriber's single line, which may arrive in pieces."""
        text = self.lines[action] = self.lines.get(action, b'') + event.text
        if b'\n' not in text or action in self.reports:
            return
        report = self.reports[action] = json.loads(text.split(b'\n')[0])
        paths = ', '.join(f'{path} x {count}' for path, count in sorted(report['paths'].items()))
        self.logger.info(f'{name}: messages {report["taken"]} mismatched {report["mismatched"]} lost {report["statistics"]["lost"]} '
                         f'copies/subscriber {report["copies_per_subscriber"]} path {paths or "-"}')

    def _ended(self, action, is_manager, event, context):
        self.running.discard(action)
        if is_manager and not context.is_shutdown:
            return None  # The host restarts it.
        try:
            return None if context.is_shutdown else self._go_on_after(action, event)
        finally:
            if not self.running:
                self._sum_up()

    def _go_on_after(self, action, event):
        if action in self.nodes and event.returncode and action not in self.told:
            self.has_failed = True
            raise RuntimeError(f'nodes of this host have failed with exit status {event.returncode}: see the lines above')
        if self.count and action in self.publishers and event.returncode and action not in self.told:
            raise RuntimeError('a publisher has failed: see the line above')
        clients = self.subscribers + self.publishers
        if action not in clients:
            return None
        self.has_failed |= bool(event.returncode) and action not in self.told
        if self.running.intersection(self.subscribers if self.count or self.nodes.intersection(self.subscribers) else clients):
            if action in self.nodes and action in self.publishers:
                self.logger.info('the publishing nodes have ended; this launch ends when the subscribers end')
            return None
        if self.has_failed and not self.count:
            raise RuntimeError('all publishers and subscribers have ended, and not well: see the lines above')
        self.is_done = True
        # Publishers first, so that they do not lose their manager. Signal each once: a signal to a process that has just ended loses its exit status
        # (asyncio then reports 255, because subprocess.Popen.send_signal polls for the end, too).
        left = self.running.intersection(self.publishers)
        if left:
            if left & self.nodes:
                self.logger.info('the subscribers have ended; the publishing nodes are told to end')
            told, self.told = self.told, self.told | left
            return [*(EmitEvent(event=SignalProcess(signal_number=SIGINT, process_matcher=matches_action(publisher)))
                      for publisher in left - told), TimerAction(period=END_TIMEOUT, actions=[OpaqueFunction(function=self._end_late)])]
        return EmitEvent(event=Shutdown(reason='all subscribers have ended' if self.subscribers else 'all publishers have ended'))

    def _end_late(self, context):
        self.logger.warning(f'publishers have not ended within {END_TIMEOUT:.0f} s after they were told to, and are killed')
        return [EmitEvent(event=Shutdown(reason='publishers have not ended when asked to'))]

    def _sum_up(self):
        counted = [subscriber for subscriber in self.subscribers if subscriber not in self.nodes]
        if self.nodes and self.has_failed:
            self.logger.error('not all has ended well: see the lines above')
        elif self.nodes and self.is_done:
            self.logger.info('the launches of nodes have ended without an error')
        if not counted or not self.reports and not self.count:
            return
        reports = self.reports.values()
        taken, mismatched = (sum(report[key] for report in reports) for key in ('taken', 'mismatched'))
        missing = sum(report['missing'] for report in reports)
        lost = sum(report['statistics']['lost'] for report in reports)
        text = f'subscribers {len(counted)} messages {taken} mismatched {mismatched} lost {lost}'
        wanted = self.count * len(counted)
        if self.count and (taken < wanted or mismatched or missing or (lost and not self.may_lose)):
            # The only way to set an exit status: an exception in a handler ends a launch with 1.
            raise RuntimeError(f'{text}; {wanted} messages should have arrived intact')
        self.logger.info(text)


class Host:
    """A host: its manager, how to run processes on it, and when its clients can start."""

    def __init__(self, settings, report, prefix=(), environment=()):
        self.settings = settings
        self.report = report
        self.prefix = list(prefix)
        self.environment = {'RGAPS_LOG': os.environ.get('RGAPS_LOG', 'warn,rgaps_manager=info,rgaps_control=info'), **dict(environment)}
        for name, key in (('RGAPS_RUNTIME_DIR', 'runtime_dir'), ('ROS_DOMAIN_ID', 'domain')):
            if self.settings.get(key):
                self.environment[name] = self.settings[key]

    def topics(self):
        """Fully qualified, after the namespace and remappings of launch files that include this one."""
        def qualified(name):
            return name if name.startswith('/') else '/' + '/'.join(filter(None, (self._below(), name)))

        remaps = {qualified(old): qualified(new) for old, new in self.settings.get('ros_remaps', ())}
        return [remaps.get(topic, topic) for topic in map(qualified, words(self.settings['topics']))]

    def _below(self):
        """The namespace of relative names: that of an including launch file, and the argument's."""
        return '/'.join(filter(None, (part.strip('/') for part in (self.settings.get('ros_namespace', ''), self.settings['namespace']))))

    def run(self, clients):
        """Actions that start the manager and, once it serves, the clients. A manager that already serves is used and not ended."""
        ready = [*self.prefix, program('rgaps'), 'ready', '--timeout']

        def is_served():
            environment = {**os.environ, **self.environment}
            try:
                found = subprocess.run([*ready, '0'], env=environment, capture_output=True, check=False, timeout=float(READY_TIMEOUT))
            except subprocess.TimeoutExpired:
                return False
            return found.returncode == 0

        # If the manager ends, clients wait for the next one instead of starting their own, without this launch's settings.
        self.environment['RGAPS_AUTOSTART'] = '0'
        serves = False
        ends = 0
        started = 0.0

        def start_manager(*_):
            nonlocal started
            started = time.monotonic()
            manager = ExecuteProcess(cmd=[*self.prefix, *self._manager_command()], name='rgapsd', output='screen', additional_env=self.environment)
            return [RegisterEventHandler(OnProcessExit(target_action=manager, on_exit=start_again)), *self.report.watch(manager, is_manager=True)]

        def start_unless_served(context):
            if context.is_shutdown:
                return []
            if not is_served():
                return start_manager()
            self.report.logger.warning('another manager serves this host: it is used, with its own settings; when it ends, this launch starts its own again')
            return follow_other()

        def follow_other():
            other_ends = ExecuteProcess(cmd=[*ready, str(LONG), '--gone'], name='gone', output='log', additional_env=self.environment)
            on_end = OnProcessExit(target_action=other_ends, on_exit=lambda event, context: start_unless_served(context))
            return [RegisterEventHandler(on_end), *self.report.watch(other_ends, is_manager=True)]

        def start_again(event, context):
            nonlocal ends
            ends += 1
            if context.is_shutdown:
                return None
            if not serves and ends >= STARTS_MAX and not is_served():
                raise RuntimeError(f'rgapsd has ended {ends} times without serving: see the lines above')
            # At once, if it has run for long: before a client of another terminal starts one without this launch's settings.
            delay = 0.0 if time.monotonic() > started + RESTART_DELAY else RESTART_DELAY
            return TimerAction(period=delay, actions=[OpaqueFunction(function=start_unless_served)])

        if is_served():
            serves = True
            self.report.logger.warning('a manager serves this host already; it runs with its own settings, and arguments of this launch that configure a '
                                       'manager (peer, listen, address, transport, device, settings) have no effect until it ends')
            # Who has forbidden clients to start managers starts them otherwise.
            follow = [] if os.environ.get('RGAPS_AUTOSTART', '').lower() in ('0', 'false', 'no', 'off') else follow_other()
            return [*follow, *(action for client in clients() for action in client)]

        await_manager = ExecuteProcess(cmd=[*ready, READY_TIMEOUT], name='ready', output='log', additional_env=self.environment)

        def start(event, context):
            if context.is_shutdown:
                return None
            nonlocal serves
            serves = True
            if event.returncode:
                raise RuntimeError(f'rgapsd does not serve after {READY_TIMEOUT} s')
            return [action for client in clients() for action in client]

        return [*start_manager(), RegisterEventHandler(OnProcessExit(target_action=await_manager, on_exit=start)), await_manager]

    def _manager_command(self):
        """`rgapsd` with the arguments' settings. It stays without clients (for a day, the maximum), because the launch ends it."""
        settings = self.settings
        texts = {'transport': 'transport={}', 'device': 'device={}', 'listen': 'listen={}', 'address': 'data_address={}'}
        given = ['idle_timeout_ms=86400000', *(text.format(settings[name]) for name, text in texts.items() if settings.get(name))]
        peers = words(settings.get('peer', '').replace(';', ','))
        given += ['multicast=false'] if peers else []
        # The meaning of an unset discovery range for the nodes of a launch.
        command = [program('rgapsd'), '--ros']
        for setting in [*given, *words(settings['settings'])]:
            command += ['--set', setting]
        for peer in peers:
            command += ['--peer', locator(peer)]
        return command

    def clients(self, role):
        """What the arguments name: ROS nodes, a launch file, or else a program of rgaps for each topic."""
        nodes, launch_file = self.settings.get('nodes'), self.settings.get('launch_file')
        if not (nodes or launch_file):
            return self.publishers if role == PUBLISH else self.subscribers
        # `ros2 launch` refuses an argument without a value.
        namespace = [f'namespace:={self._below()}'] if self._below() else []
        named = shlex.split(launch_file) if launch_file else [str(FOLDER / 'nodes.launch.py'), f'nodes:={nodes}', *namespace]
        # A launch of its own: in another network namespace, this one could not load components. It needs 10 s to kill nodes that do not end.
        def start():
            action = self._client(['ros2', 'launch', *named], role, 'screen', sigterm_timeout='15', sigkill_timeout='5')
            return [self.report.watch_nodes(action, role)]

        return start

    def publishers(self):
        """`rgaps pub` for each topic."""
        settings = self.settings
        for topic in self.topics():
            command = [program('rgaps'), 'pub', topic, '--loop', '--input', settings['input'], '--rate', settings['rate'],
                       '--depth', settings['depth'], '--exhaustion', settings['exhaustion'], '--wait-for', settings['wait_for'],
                       *self._flags({'reliability': ('best_effort', '--best-effort'),
                                     'durability': ('transient_local', '--latch')})]
            if settings['pool_bytes']:
                command += ['--pool-bytes', settings['pool_bytes']]
            yield self.report.watch_publisher(self._client(command, 'pub', 'screen'))

    def subscribers(self):
        """`subscribers` times `rgaps sub` for each topic. Their final reports are read here, and printed in short form."""
        settings = self.settings
        for topic in self.topics():
            for number in range(1, int(settings['subscribers']) + 1):
                command = [program('rgaps'), '--json', 'sub', topic, '--type', settings['type'], '--depth', settings['depth'],
                           *self._flags({'reliability': ('best_effort', '--best-effort'),
                                         'durability': ('transient_local', '--latch'),
                                         'history': ('keep_all', '--keep-all')})]
                if settings['count'] != '0':
                    command += ['--count', settings['count']]
                for name in ('timeout', 'expect'):
                    if settings[name]:
                        command += [f'--{name}', settings[name]]
                if settings['save']:
                    command += ['--save', f"{settings['save']}/{topic.strip('/').replace('/', '.')}-{number}"]
                output = {'stdout': 'log', 'stderr': 'screen'}
                yield self.report.watch_subscriber(self._client(command, 'sub', output), f'{topic} subscriber {number}')

    def _flags(self, flags):
        return [flag for name, (value, flag) in flags.items() if self.settings[name] == value]

    def _client(self, command, name, output, **more):
        return ExecuteProcess(cmd=[*self.prefix, *command], name=name, output=output, additional_env=self.environment, **more)


# What an including launch file sets for the topics of the files that it includes.
OF_INCLUDING = ('ros_namespace', 'ros_remaps')


def is_started(file):
    """Whether the command line names this file, which no other file includes then."""
    named = [word for before, word in zip(sys.argv, sys.argv[1:]) if before == 'rgaps' or os.path.isfile(word) and os.path.samefile(word, file)]
    return os.path.basename(file) in map(os.path.basename, named)


def described(file, arguments, function):
    """The launch description of a file with these arguments; `function(settings, report)` gives more actions once they are known.

    Later events must use the current settings: those of a group that includes a launch file end with the group. Other settings of an including file are
    not ours.
    """
    names = [argument.name for argument in arguments]

    def call(context):
        others = {argument.name for argument in [*ALL_ARGUMENTS, *(nodes for prefix in ('', *PAIR) for nodes in node_arguments(prefix))]} - set(names)
        # `ros2 launch` ignores arguments that a file does not have.
        own = os.path.basename(file)
        given = {word.partition(':=')[0] for word in sys.argv} if is_started(file) else set()
        for name in sorted(others & given):
            raise RuntimeError(f'{own} has no argument {name}; it has {", ".join(names)}')
        settings = {name: value for name, value in context.launch_configurations.items() if name in names or name in OF_INCLUDING}
        check(settings)
        return function(settings, Report(settings))

    return LaunchDescription([*arguments, OpaqueFunction(function=call)])
