"""Hosts, programs and bags for the tests of rgaps_ros. Every started program is ended, and every wait has a time-out."""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

SECONDS_MAX = 90


def discovery(where):
    """The environment in which nodes discover each other on this machine (LOCALHOST) or in the network (SUBNET). Humble knows only the older variable,
    which Jazzy warns of and later distros ignore."""
    older = {'ROS_LOCALHOST_ONLY': '1' if where == 'LOCALHOST' else '0'} if os.environ.get('ROS_DISTRO') == 'humble' else {}
    return {'ROS_AUTOMATIC_DISCOVERY_RANGE': where, **older}


def program_of(package, name):
    """A program of a ROS package, without the wrapper process of `ros2 run`."""
    folders = os.environ.get('AMENT_PREFIX_PATH', '').split(':')
    found = (os.path.join(folder, 'lib', package, name) for folder in folders)
    return next(filter(os.path.exists, found), name)


# What a router of rmw_zenoh prints once it serves.
ROUTER_SERVES = 'Started Zenoh router'


def router_of_zenoh(peer=None):
    """The command and the environment of a router of rmw_zenoh_cpp, whose nodes find each other by the one of their machine; with the router of another
    machine as peer, they find those there, too."""
    connect = {'ZENOH_CONFIG_OVERRIDE': f'connect/endpoints=["tcp/{peer}:7447"]'} if peer else {}
    return [program_of('rmw_zenoh_cpp', 'rmw_zenohd')], connect


# What zenoh logs when a session cannot be closed. If a program of rmw_zenoh_cpp destroys a subscription while a message is delivered to it, the
# delivering thread destroys it and waits for itself (ros2/rmw_zenoh issue 993); closing the session then fails.
CLOSING_FAILS = 'Error closing session: close operation timed out!'
# A line that zenoh logs, on standard output, when it closes a session with open queries or the like.
LOGGED_BY_ZENOH = re.compile(r'.*\bzenoh(_\w+)?::')


def stands_still_under_zenoh(world):
    """Why a test that ends many subscriptions while messages come cannot run, if so. For an rmw_zenoh_cpp in which that is mended, set
    TEST_ZENOH_IS_MENDED."""
    if world.rmw == 'rmw_zenoh_cpp' and 'TEST_ZENOH_IS_MENDED' not in os.environ:
        return 'it deadlocks when a subscription is destroyed while a message is delivered to it (ros2/rmw_zenoh issue 993)'
    return None


def processes(dirs):
    """The processes that were started with one of these runtime directories, as `process id: name`."""
    wanted = {f'RGAPS_RUNTIME_DIR={folder}'.encode() for folder in dirs}
    for entry in pathlib.Path('/proc').glob('[0-9]*'):
        try:
            if wanted.intersection((entry / 'environ').read_bytes().split(b'\0')):
                yield f'{entry.name}: {(entry / "comm").read_text().strip()}'
        except OSError:
            pass  # It has ended, or belongs to another user.


def left_behind(text):
    """What is left of the hosts of a launch with this output: network namespaces, runtime directories, processes."""
    dirs = set(re.findall(r'rgapsd serves .* dir=(\S+)', text))
    makers = re.findall(r'two-hosts-\d+\]: process started with pid \[(\d+)\]', text)
    spaces = pathlib.Path('/run/netns').glob(f'rgaps-{makers[0]}-*') if makers else []
    return [*map(str, spaces), *filter(os.path.exists, dirs), *processes(dirs)]


class Failed(Exception):
    """A failed test, with its reason."""


class Program:
    """A started program. Its output is kept."""

    def __init__(self, world, name, command, environment):
        self.name, self.rmw = name, world.rmw
        self.path = os.path.join(world.folder, f'{len(world.programs)}-{name}.log')
        with open(self.path, 'wb') as log:
            # A shell that runs tests in the background makes them, and their children, ignore SIGINT.
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True,
                                            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))

    def output(self):
        with open(self.path, encoding='utf-8', errors='replace') as log:
            return log.read()

    def wait(self, seconds=SECONDS_MAX):
        """Its exit status; fails if it does not end in time."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Failed(f'{self.name} does not end:\n{self.output()[-4000:]}') from None

    def passes(self, wanted=None):
        """Fails unless it exits with 0, and its last line (but for what zenoh logs) matches `wanted`, if that is given; returns that line. If `wanted` is
        given, a bad exit status is forgiven when zenoh could not close its session."""
        status = self.wait()
        lines = [line.rstrip() for line in self.output().strip().splitlines()] or ['']
        closing = next((place for place, line in enumerate(lines) if CLOSING_FAILS in line), None)
        if status in (1, -signal.SIGABRT) and closing and wanted and self.rmw == 'rmw_zenoh_cpp':
            print(f'{self.name} ended with {status}, since rmw_zenoh_cpp could not close its session (ros2/rmw_zenoh issue 993)', flush=True)
            status, lines = 0, lines[:closing]
        if status != 0:
            raise Failed(f'{self.name} ended with {status}:\n{self.output()[-4000:]}')
        lines = [line for line in lines if not LOGGED_BY_ZENOH.match(line)] or ['']
        if wanted and not re.fullmatch(wanted, lines[-1]):
            raise Failed(f'"{lines[-1]}" instead of "{wanted}"')
        return lines[-1]

    def until(self, text, seconds=SECONDS_MAX):
        """Waits until its output contains this text."""
        end = time.monotonic() + seconds
        while text not in self.output():
            if time.monotonic() > end or self.process.poll() is not None:
                raise Failed(f'{self.name} does not say "{text}":\n{self.output()[-4000:]}')
            time.sleep(0.05)

    def end(self, number=signal.SIGINT):
        """Ends it and its child processes."""
        for attempt in (number, signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, attempt)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
                return


class Host:
    """A manager with its own runtime directory, in this or another network namespace."""

    def __init__(self, world, namespace=None, settings=(), environment=None):
        self.world, self.namespace, self.environment = world, namespace, environment or {}
        self.runtime_dir = tempfile.mkdtemp(prefix='r', dir=world.folder)
        self.settings = [argument for setting in settings for argument in ('--set', setting)]
        self.manager = None
        self.start_manager()

    def start_manager(self):
        """Starts the manager, or its successor after end_manager, and waits until it answers."""
        self.manager = self.run('rgapsd', 'rgapsd', '--set', 'idle_timeout_ms=3600000', *self.settings, **self.environment)
        end = time.monotonic() + SECONDS_MAX
        while not os.path.exists(os.path.join(self.runtime_dir, 'rgapsd.sock')):
            if time.monotonic() > end or self.manager.process.poll() is not None:
                raise Failed(f'rgapsd does not start:\n{self.manager.output()}')
            time.sleep(0.02)

    def end_manager(self):
        self.manager.end(signal.SIGTERM)

    def run(self, name, *command, **environment):
        """Starts a program on this host."""
        return self.world.run(name, command, self.namespace, {'RGAPS_RUNTIME_DIR': self.runtime_dir, 'RGAPS_AUTOSTART': '0', **environment})


class World:
    """The resources of one test. Leaving it ends everything."""

    def __init__(self, rmw, domain):
        self.rmw, self.domain = rmw, domain
        self.folder = tempfile.mkdtemp(prefix='rgaps-ros-')
        self.programs = []

    def __enter__(self):
        self.start_router()
        return self

    def __exit__(self, *_):
        for program in reversed(self.programs):
            if program.process.poll() is None:
                program.end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, name, command, namespace=None, environment=None):
        """Starts a program, in the network namespace of a process."""
        if namespace:
            command = ['nsenter', '-t', str(namespace), '-n', *command]
        everything = {**os.environ, 'RMW_IMPLEMENTATION': self.rmw, 'ROS_DOMAIN_ID': str(self.domain), 'PYTHONUNBUFFERED': '1',
                      'ROS_LOG_DIR': os.path.join(self.folder, 'log'), 'RGAPS_DEVICE': 'host',
                      **(environment or {})}
        program = Program(self, name, command, everything)
        self.programs.append(program)
        return program

    def start_router(self, namespace=None, peer=None):
        """Starts what nodes of rmw_zenoh_cpp need in each network namespace; other RMWs need nothing."""
        if self.rmw == 'rmw_zenoh_cpp':
            command, environment = router_of_zenoh(peer)
            self.run('router', command, namespace, environment).until(ROUTER_SERVES)

    def host(self, namespace=None, settings=(), environment=None):
        return Host(self, namespace, settings, environment)

    def pair_of_namespaces(self, is_routed=False):
        """Two network namespaces on one cable, or on two cables with a router between them, which forwards no multicast; as the process ids that hold
        them."""
        holders = [self.run(f'namespace-{place}', ['unshare', '-n', 'sleep', 'infinity']) for place in range(1, 4 if is_routed else 3)]
        end = time.monotonic() + SECONDS_MAX
        own = os.readlink('/proc/self/ns/net')
        for holder in holders:
            while os.readlink(f'/proc/{holder.process.pid}/ns/net') == own:
                if time.monotonic() > end:
                    raise Failed('no network namespace')
                time.sleep(0.02)
        ids, router = [holder.process.pid for holder in holders[:2]], [holder.process.pid for holder in holders[2:]]

        def inside(holder, *commands):
            for command in commands:
                subprocess.run(['nsenter', '-t', str(holder), '-n', *command.split()], check=True, capture_output=True)

        if router:
            inside(router[0], 'sysctl -w net.ipv4.ip_forward=1')
        else:
            ip('link', 'add', 'cable1', 'netns', str(ids[0]), 'type', 'veth', 'peer', 'name', 'cable2', 'netns', str(ids[1]))
        for place, holder in enumerate(ids, 1):
            cable, own, far = f'cable{place}', f'10.77.0.{place}', f'10.77.0.{place + 10}'
            if router:
                ip('link', 'add', cable, 'netns', str(holder), 'type', 'veth', 'peer', 'name', cable, 'netns', str(router[0]))
                inside(router[0], f'ip addr add {far} peer {own} dev {cable}', f'ip link set {cable} up')
                inside(holder, f'ip addr add {own} peer {far} dev {cable}', f'ip link set {cable} up', f'ip route add default via {far}')
            else:
                inside(holder, f'ip addr add {own}/24 dev {cable}', f'ip link set {cable} up', f'ip route add 224.0.0.0/4 dev {cable}')
            inside(holder, 'ip link set lo up')
        for place, holder in enumerate(ids, 1):
            self.start_router(holder, f'10.77.0.{3 - place}')
        return ids


@contextlib.contextmanager
def two_hosts(world, settings=(), environment=None):
    """Hosts in network namespaces of their own, on one cable, with further settings and environment of their managers."""
    os.environ.update(discovery('SUBNET'))
    # Not 7447, the port of a router of rmw_zenoh_cpp.
    try:
        yield [world.host(namespace, (f'listen=tcp/10.77.0.{place}:7467', f'peers=tcp/10.77.0.{3 - place}:7467', 'multicast=false', *settings),
                          environment)
               for place, namespace in enumerate(world.pair_of_namespaces(), 1)]
    finally:
        os.environ.update(discovery('LOCALHOST'))


def ip(*arguments):
    subprocess.run(['ip', *arguments], check=True, capture_output=True)


def has_rmw(rmw):
    """Whether an RMW is installed."""
    folders = os.environ.get('LD_LIBRARY_PATH', '').split(':')
    return any(os.path.exists(os.path.join(folder, f'lib{rmw}.so')) for folder in folders if folder)


def run_tests(what, tests, rmws, names, first_domain):
    """Runs tests, or those of these names, under every installed RMW, each in a world of its own; as root, all in a network namespace of their own.
    Ends the process, with status 1 if one failed. A test returns why it cannot run, if so."""
    if os.geteuid() == 0 and 'TEST_IN_NAMESPACE' not in os.environ:
        os.environ['TEST_IN_NAMESPACE'] = '1'
        os.execvp('unshare', ['unshare', '-n', sys.executable, *sys.argv])
    if os.geteuid() == 0:
        ip('link', 'set', 'lo', 'up')
    os.environ.update(discovery('LOCALHOST'))
    unknown = set(names) - {test.__name__ for test in tests}
    if unknown:
        sys.exit(f'no such test: {", ".join(sorted(unknown))}')
    failed = 0
    for rmw in os.environ.get('TEST_RMWS', ' '.join(rmws)).split():
        if not has_rmw(rmw):
            print(f'skipped: {what} under {rmw}: it is not there')
            continue
        for number, test in enumerate(tests, first_domain):
            if names and test.__name__ not in names:
                continue
            try:
                with World(rmw, number) as world:
                    reason = test(world)
                print(f'skipped: {rmw} {test.__name__}: {reason}' if reason else f'ok {rmw} {test.__name__}', flush=True)
            except Failed as failure:
                failed += 1
                print(f'FAILED {rmw} {test.__name__}: {failure}', flush=True)
    sys.exit(1 if failed else 0)
