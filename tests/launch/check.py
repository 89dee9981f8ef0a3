"""Tests the launch files: their arguments, and with ROS 2 their behaviour.

Without ROS 2's launch, stand-ins for a few names let the files run and declare their arguments; other tests are skipped by name. With it,
`ros2 launch rgaps pair.launch.py` and the other files really run, in two network namespaces when root: from the prefix in TEST_PREFIX if it is set,
else from this clone with the programs in PATH.
"""

import os
import pathlib
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'rgaps_ros' / 'test'))
from world import left_behind, processes  # noqa: E402

PREFIX = os.environ.get('TEST_PREFIX')

FOLDER = pathlib.Path(PREFIX, 'share/rgaps/launch') if PREFIX else ROOT / 'launch'

HOST = {'topics', 'transport', 'device', 'namespace', 'domain', 'settings', 'reliability', 'durability', 'depth'}
PUBLISH = {'input', 'rate', 'exhaustion', 'pool_bytes', 'wait_for'}
SUBSCRIBE = {'type', 'subscribers', 'history', 'count', 'timeout', 'save'}
ADDRESSES = {'peer', 'listen', 'address', 'runtime_dir'}
WANTED = {
    'publish_host.launch.py': HOST | PUBLISH | ADDRESSES | {'nodes', 'launch_file'},
    'subscribe_host.launch.py': HOST | SUBSCRIBE | ADDRESSES | {'expect', 'nodes', 'launch_file'},
    'pair.launch.py': HOST | PUBLISH | SUBSCRIBE | {'loopback', 'publish_nodes', 'publish_launch_file', 'subscribe_nodes', 'subscribe_launch_file'},
    'nodes.launch.py': {'nodes', 'namespace'},
}

# Limit of every wait; far above what any of them needs.
LIMIT = 90
LOOK = 0.05
SERVES = re.compile(r'rgapsd serves .* dir=(\S+)')


# ---- Without ROS 2 ---------------------------------------------------------------------------------------------------------

def has_ros():
    """Whether ROS 2's launch is installed. PyPI's package named launch is unrelated, and has no descriptions."""
    try:
        from launch import LaunchDescription  # noqa: F401
    except ImportError:
        return False
    return shutil.which('ros2') is not None


def stand_in():
    """Stand-ins for names that the files import, with which they can be loaded but not run."""
    class Anything:
        def __init__(self, *arguments, **more):
            self.arguments, self.more = arguments, more

        def get_launch_arguments(self):
            return [entity for entity in self.arguments[0] if isinstance(entity, Argument)]

    class Argument(Anything):
        @property
        def name(self):
            return self.arguments[0]

    names = {
        'ament_index_python': ['get_resource', 'has_resource'],
        'ament_index_python.packages': ['get_package_prefix'],
        'launch': ['LaunchDescription'],
        'launch.actions': ['EmitEvent', 'ExecuteProcess', 'OpaqueFunction', 'RegisterEventHandler', 'Shutdown', 'TimerAction'],
        'launch.event_handlers': ['OnProcessExit', 'OnProcessIO'],
        'launch.events': ['Shutdown', 'matches_action'],
        'launch.events.process': ['SignalProcess'],
        'launch.logging': ['get_logger'],
        'launch.substitutions': ['AnonName'],
        'launch_ros': [],
        'launch_ros.actions': ['ComposableNodeContainer', 'Node'],
        'launch_ros.descriptions': ['ComposableNode'],
    }
    for module, members in names.items():
        sys.modules[module] = types.ModuleType(module)
        vars(sys.modules[module]).update(dict.fromkeys(members, Anything))
    sys.modules['launch.actions'].DeclareLaunchArgument = Argument


def check_arguments():
    files = {file.name: file for file in (ROOT / 'launch').glob('*.launch.py')}
    assert set(files) == set(WANTED), f'launch files {sorted(files)}, and {sorted(WANTED)} are known here'
    for name, file in sorted(files.items()):
        declared = [argument.name for argument in runpy.run_path(str(file))['generate_launch_description']().get_launch_arguments()]
        assert len(declared) == len(set(declared)), f'{name}: declared twice: {declared}'
        assert set(declared) == WANTED[name], f'{name}: {set(declared) ^ WANTED[name]}'
        print(f'{name}: {" ".join(declared)}')


# ---- With ROS 2 ------------------------------------------------------------------------------------------------------------

def environment():
    variables = {**os.environ, 'PYTHONDONTWRITEBYTECODE': '1', 'PYTHONUNBUFFERED': '1'}
    if PREFIX:
        variables['AMENT_PREFIX_PATH'] = f'{PREFIX}:{variables["AMENT_PREFIX_PATH"]}'
        variables['PATH'] = f'{PREFIX}/bin:{variables["PATH"]}'
    return variables


class Launch:
    """A running launch, and its output."""

    running = []

    def __init__(self, folder, file, *arguments):
        self.output = pathlib.Path(tempfile.mkstemp(dir=folder)[1])
        what = ['rgaps', file] if PREFIX else [str(FOLDER / file)]
        what = what if file in WANTED else [file]
        # In its own session: only the launch signals its processes, as no terminal signals them all. A shell that runs tests in the background makes
        # them, and their children, ignore SIGINT.
        with self.output.open('w') as output:
            self.process = subprocess.Popen(['ros2', 'launch', *what, *arguments], stdin=subprocess.DEVNULL, stdout=output,
                                            stderr=subprocess.STDOUT, env=environment(), start_new_session=True,
                                            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
        self.running.append(self.process)

    def text(self):
        return self.output.read_text()

    def await_text(self, pattern, count):
        """The groups of the first match of `pattern`, once it was found `count` times."""
        return self.wait_until(lambda: (found := re.findall(pattern, self.text())) and len(found) >= count and found, f'{count} x {pattern}')

    def await_files(self, folder, count):
        """Waits until so many folders in this folder have a file."""
        self.wait_until(lambda: len({file.parent for file in folder.glob('*/*')}) >= count, f'files in {folder}')

    def end(self, number=None):
        """Its exit status; first sends a signal if one is given."""
        if number:
            self.process.send_signal(number)
        try:
            return self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            sys.exit(f'a launch has not ended:\n{self.text()}')

    def assert_nothing_is_left(self):
        """No process of the hosts, no directory, no namespace is left, or none soon: after a kill, others clear up."""
        self.wait_until(lambda: not left_behind(self.text()), 'nothing left', said=lambda: left_behind(self.text()))

    def wait_until(self, state, what, said=lambda: ''):
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            if found := state():
                return found
            time.sleep(LOOK)
        sys.exit(f'waited in vain for {what}: {said()}\n{self.text()}')


def sums(launch):
    return launch.text().splitlines()[-1]


def a_pair_streams_the_example_pictures_to_eight_subscribers_and_loses_none(folder, *more):
    launch = Launch(folder, 'pair.launch.py', *more)
    status = launch.end()
    told = re.findall(r'/camera/front subscriber (\d): messages 300 mismatched 0 lost 0 copies/subscriber 0', launch.text())
    assert sorted(told) == list('12345678'), launch.text()
    assert status == 0 and sums(launch).endswith('subscribers 8 messages 2400 mismatched 0 lost 0'), launch.text()
    wanted = 'network namespaces' if os.geteuid() == 0 and not more else 'loopback addresses'
    assert f'two hosts: {wanted}' in launch.text(), launch.text()
    launch.assert_nothing_is_left()


def a_pair_on_two_loopback_addresses_does_the_same(folder):
    a_pair_streams_the_example_pictures_to_eight_subscribers_and_loses_none(folder, 'loopback:=true', 'rate:=60')


def names_are_qualified_by_namespace_and_domain_and_other_types_are_streamed(folder):
    for name, of_type in (('ramp.npy', 'tensor'), ('saddle.pcd', 'point_cloud')):
        file = ROOT / 'examples' / 'data' / name
        launch = Launch(folder, 'pair.launch.py', f'input:={file}', f'type:={of_type}', 'topics:=a,/b/c', 'namespace:=robot', 'domain:=7',
                        'subscribers:=1', 'count:=20')
        assert launch.end() == 0 and sums(launch).endswith('subscribers 2 messages 40 mismatched 0 lost 0'), launch.text()
        for topic in ('/robot/a', '/b/c'):
            assert f'{topic} subscriber 1: messages 20' in launch.text() and f'topic={topic} (domain 7)' in launch.text(), launch.text()


INCLUDING = """
from launch import LaunchDescription
from launch.actions import GroupAction, IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch_ros.actions import PushRosNamespace, SetRemap

def generate_launch_description():
    return LaunchDescription([GroupAction([
        PushRosNamespace('robot'), SetRemap('camera/front', '/eyes/left'),
        IncludeLaunchDescription(PythonLaunchDescriptionSource('{file}'), launch_arguments={{
            'topics': 'camera/front,camera/back', 'count': '10', 'subscribers': '1'}}.items())])])
"""


def a_launch_file_that_includes_one_gives_it_namespace_and_remappings(folder):
    including = pathlib.Path(folder) / 'including.launch.py'
    including.write_text(INCLUDING.format(file=FOLDER / 'pair.launch.py'))
    launch = Launch(folder, str(including))
    assert launch.end() == 0 and sums(launch).endswith('subscribers 2 messages 20 mismatched 0 lost 0'), launch.text()
    for topic in ('/eyes/left', '/robot/camera/back'):
        assert f'{topic} subscriber 1: messages 10' in launch.text(), launch.text()


def a_stream_with_mismatched_messages_is_an_exit_status(folder):
    runtime_dir = pathlib.Path(folder) / 'mismatched'
    runtime_dir.mkdir(mode=0o700)
    sent, expected = (ROOT / 'examples' / 'data' / name for name in ('coffee.png', 'chelsea.png'))
    publish = Launch(folder, 'publish_host.launch.py', f'runtime_dir:={runtime_dir}', f'input:={sent}', 'settings:=network=local')
    publish.await_text(SERVES, 1)
    launch = Launch(folder, 'subscribe_host.launch.py', f'runtime_dir:={runtime_dir}', f'expect:={expected}', 'count:=3',
                    'history:=keep_all')
    assert launch.end() == 1 and 'messages 3 mismatched 3 lost 0; 3 messages should have arrived intact' in launch.text(), launch.text()
    assert publish.end(signal.SIGINT) == 0, publish.text()
    assert not list(processes({str(runtime_dir)})), publish.text()


def a_killed_manager_is_restarted_and_the_stream_goes_on(folder):
    launch = Launch(folder, 'pair.launch.py', 'count:=60', 'subscribers:=2')
    launch.await_text(SERVES, 2)
    launch.await_text('connected over', 2)
    (killed,) = launch.await_text(r'\[rgapsd-2\]: process started with pid \[(\d+)\]', 1)
    os.kill(int(killed), signal.SIGKILL)
    served = launch.await_text(SERVES, 3)
    assert served[2] in served[:2], launch.text()
    # Whether the death has lost messages is not checked here.
    launch.end()
    told = re.findall(r'subscriber (\d): messages 60 mismatched 0 ', launch.text())
    assert sorted(told) == ['1', '2'], launch.text()
    launch.assert_nothing_is_left()


def an_interrupted_launch_prints_its_totals_and_leaves_nothing(folder):
    saved = pathlib.Path(tempfile.mkdtemp(dir=folder))
    launch = Launch(folder, 'pair.launch.py', 'count:=0', 'subscribers:=2', f'save:={saved}')
    # A subscriber that is interrupted with its manager, before it has taken a message, would wait for the manager's successor.
    launch.await_files(saved, 2)
    assert launch.end(signal.SIGINT) == 0 and 'subscribers 2 messages' in sums(launch), launch.text()
    launch.assert_nothing_is_left()


def nothing_is_left_of_a_launch_that_was_killed(folder):
    launch = Launch(folder, 'pair.launch.py', 'count:=0')
    launch.await_text('connected over', 2)
    launch.end(signal.SIGKILL)
    launch.assert_nothing_is_left()


def a_manager_that_already_serves_is_used_and_not_ended(folder):
    runtime_dir = pathlib.Path(folder) / 'served'
    runtime_dir.mkdir(mode=0o700)
    variables = {**environment(), 'RGAPS_RUNTIME_DIR': str(runtime_dir), 'RGAPS_NETWORK': 'local'}
    manager = subprocess.Popen(['rgapsd', '--set', 'idle_timeout_ms=600000'], env=variables, stderr=subprocess.DEVNULL)
    try:
        subprocess.run(['rgaps', 'ready'], env=variables, check=True, stdout=subprocess.DEVNULL)
        ramp = str(ROOT / 'examples' / 'data' / 'ramp.npy')
        publish = Launch(folder, 'publish_host.launch.py', f'runtime_dir:={runtime_dir}', f'input:={ramp}', 'wait_for:=1', 'topics:=ramp')
        launch = Launch(folder, 'subscribe_host.launch.py', f'runtime_dir:={runtime_dir}', 'type:=tensor', 'topics:=ramp', 'count:=10',
                        'subscribers:=2', 'history:=keep_all', f'expect:={ramp}')
        assert launch.end() == 0 and sums(launch).endswith('subscribers 2 messages 20 mismatched 0 lost 0'), launch.text()
        assert publish.end(signal.SIGINT) == 0, publish.text()
        for text in (launch.text(), publish.text()):
            assert 'a manager serves this host already' in text and 'rgapsd serves' not in text, text
        assert manager.poll() is None, 'the manager was ended'
    finally:
        manager.terminate()
        manager.wait(LIMIT)


def a_launch_that_found_a_manager_starts_its_own_when_that_ends(folder):
    runtime_dir = pathlib.Path(folder) / 'found'
    runtime_dir.mkdir(mode=0o700)
    variables = {**environment(), 'RGAPS_RUNTIME_DIR': str(runtime_dir), 'RGAPS_NETWORK': 'local'}
    manager = subprocess.Popen(['rgapsd', '--set', 'idle_timeout_ms=600000'], env=variables, stderr=subprocess.DEVNULL)
    try:
        subprocess.run(['rgaps', 'ready'], env=variables, check=True, stdout=subprocess.DEVNULL)
        launch = Launch(folder, 'publish_host.launch.py', f'runtime_dir:={runtime_dir}', 'settings:=network=local,host_name=of-the-launch',
                        f'input:={ROOT / "examples" / "data" / "coffee.png"}')
        launch.await_text('a manager serves this host already', 1)
    finally:
        manager.terminate()
        manager.wait(LIMIT)
    launch.await_text('topic (?:made|taken over from an earlier manager) topic=/camera/front', 1)
    assert 'host_name = "of-the-launch"' in (runtime_dir / 'config.toml').read_text(), launch.text()
    assert launch.end(signal.SIGINT) == 0, launch.text()
    assert not list(processes({str(runtime_dir)})), launch.text()


def launches_that_start_a_host_at_the_same_time_share_one_manager(folder):
    runtime_dir = pathlib.Path(folder) / 'shared'
    runtime_dir.mkdir(mode=0o700)
    arguments = [f'runtime_dir:={runtime_dir}', 'settings:=network=local']
    picture = ROOT / 'examples' / 'data' / 'coffee.png'
    launches = [Launch(folder, 'publish_host.launch.py', *arguments, 'wait_for:=1', f'input:={picture}'),
                Launch(folder, 'subscribe_host.launch.py', *arguments, 'count:=100', 'history:=keep_all')]
    assert launches[1].end() == 0 and sums(launches[1]).endswith('messages 100 mismatched 0 lost 0'), launches[1].text()
    assert launches[0].end(signal.SIGINT) == 0, launches[0].text()
    text = ''.join(launch.text() for launch in launches)
    # The one that came second has found the first one's manager, or its own has ended once. It starts its own when the other's ends.
    assert 1 <= len(SERVES.findall(text)) <= 2, text
    launches[0].wait_until(lambda: not list(processes({str(runtime_dir)})), 'nothing left')


def a_launch_starts_its_manager_again_after_one_that_took_its_place(folder):
    runtime_dir = pathlib.Path(folder) / 'taken'
    runtime_dir.mkdir(mode=0o700)
    launch = Launch(folder, 'publish_host.launch.py', f'runtime_dir:={runtime_dir}', 'settings:=network=local',
                    f'input:={ROOT / "examples" / "data" / "coffee.png"}')
    launch.await_text('topic made topic=/camera/front', 1)
    (own,) = launch.await_text(r'\[rgapsd-\d+\]: process started with pid \[(\d+)\]', 1)
    # The launch cannot replace it before another one serves.
    launch.process.send_signal(signal.SIGSTOP)
    os.kill(int(own), signal.SIGKILL)
    variables = {**environment(), 'RGAPS_RUNTIME_DIR': str(runtime_dir), 'RGAPS_NETWORK': 'local'}
    ready = ['rgaps', 'ready', '--timeout', '0']
    launch.wait_until(lambda: subprocess.run(ready, env=variables, capture_output=True, check=False).returncode, 'its end')
    other = subprocess.Popen(['rgapsd', '--set', 'idle_timeout_ms=600000'], env=variables, stderr=subprocess.DEVNULL)
    try:
        subprocess.run(['rgaps', 'ready'], env=variables, check=True, stdout=subprocess.DEVNULL)
        launch.process.send_signal(signal.SIGCONT)
        launch.await_text('another manager serves this host', 1)
    finally:
        launch.process.send_signal(signal.SIGCONT)
        other.terminate()
        other.wait(LIMIT)
    launch.await_text(SERVES, 2)
    assert launch.end(signal.SIGINT) == 0, launch.text()
    assert not list(processes({str(runtime_dir)})), launch.text()


def settings_with_which_nothing_would_run_are_refused_before_anything_runs(folder):
    for wrong, why in (('subscribers:=0', 'subscribers is "0"; it must be a whole number from 1 on'),
                       ('subscribers:=-1', 'subscribers is "-1"'), ('count:=some', 'count is "some"; it must be a whole number from 0 on'),
                       ('count:=-5', 'count is "-5"'), ('topics:=,', 'topics is ","; it must name one topic or more'),
                       ('transport:=banana', '"banana" is not valid'), ('nodes:=a/b', 'pair.launch.py has no argument nodes; it has topics, input'),
                       ('runtime_dir:=/tmp', 'pair.launch.py has no argument runtime_dir'), ("publish_launch_file:=my_robot it's.launch.py", 'publish_launch_file cannot be read')):
        launch = Launch(folder, 'pair.launch.py', wrong)
        assert launch.end() == 1 and why in launch.text() and 'process started' not in launch.text(), launch.text()
    for file, wrong, why in (('publish', (), 'there is nothing to publish'),
                             ('publish', ('nodes:=a/b', 'launch_file:=c.launch.py'), 'nodes and launch_file are both given'),
                             ('publish', ('launch_file:=no/such.launch.py',), 'there is no file no/such.launch.py'),
                             ('subscribe', ('subscribe_nodes:=a/b',), 'subscribe_host.launch.py has no argument subscribe_nodes')):
        launch = Launch(folder, f'{file}_host.launch.py', *wrong)
        assert launch.end() == 1 and why in launch.text() and 'process started' not in launch.text(), launch.text()


def an_argument_that_a_program_refuses_ends_the_launch_with_an_exit_status(folder):
    for told, *why in (('topics:=two words', '"/two words" is not a topic name'), ('settings:=no_such_key=1', 'no_such_key', 'rgapsd has ended 3 times'),
                       ('device:=banana', 'banana', 'there are no two hosts'), ('exhaustion:=sometimes', "'sometimes' for '--exhaustion")):
        launch = Launch(folder, 'pair.launch.py', 'count:=3', 'subscribers:=1', told)
        assert launch.end() == 1 and all(text in launch.text() for text in why), launch.text()
        launch.assert_nothing_is_left()
    runtime_dir = pathlib.Path(folder) / 'alone'
    runtime_dir.mkdir(mode=0o700)
    launch = Launch(folder, 'publish_host.launch.py', f'runtime_dir:={runtime_dir}', 'input:=no such picture.png', 'settings:=network=local')
    assert launch.end() == 1 and 'all publishers and subscribers have ended, and not well' in launch.text(), launch.text()
    assert 'no such picture.png' in launch.text(), launch.text()


TESTS = [
    a_pair_streams_the_example_pictures_to_eight_subscribers_and_loses_none,
    a_pair_on_two_loopback_addresses_does_the_same,
    names_are_qualified_by_namespace_and_domain_and_other_types_are_streamed,
    a_launch_file_that_includes_one_gives_it_namespace_and_remappings,
    a_stream_with_mismatched_messages_is_an_exit_status,
    a_killed_manager_is_restarted_and_the_stream_goes_on,
    an_interrupted_launch_prints_its_totals_and_leaves_nothing,
    nothing_is_left_of_a_launch_that_was_killed,
    a_manager_that_already_serves_is_used_and_not_ended,
    a_launch_that_found_a_manager_starts_its_own_when_that_ends,
    launches_that_start_a_host_at_the_same_time_share_one_manager,
    a_launch_starts_its_manager_again_after_one_that_took_its_place,
    settings_with_which_nothing_would_run_are_refused_before_anything_runs,
    an_argument_that_a_program_refuses_ends_the_launch_with_an_exit_status,
]


def main():
    sys.dont_write_bytecode = True
    ros = has_ros()
    if not ros:
        stand_in()
    check_arguments()
    if not ros:
        print(f'skipped: {len(TESTS)} tests of launch files that run: no ROS 2 environment')
        return
    with tempfile.TemporaryDirectory(prefix='rgaps-launch-') as folder:
        os.environ['ROS_LOG_DIR'] = folder
        try:
            for test in TESTS:
                if len(sys.argv) < 2 or test.__name__ in sys.argv[1:]:
                    test(folder)
                    print(f'{test.__name__} ... ok', flush=True)
        finally:
            # Remove what a failed test has left; the hosts end with it.
            for process in Launch.running:
                process.kill()


main()
