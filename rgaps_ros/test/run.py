#!/usr/bin/env python3
"""Tests of rgaps_ros that need several processes, under every installed RMW.

usage: run.py INSTALL_PREFIX BUILD_FOLDER [TEST ...]

ROS 2 and the workspace must be sourced. As root, each run gets its own network namespace, so that it sees no other topics. Tests that cannot run
here are listed with `skipped:`.
"""

import contextlib
import functools
import glob
import importlib.util
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time

from world import SECONDS_MAX, Failed, discovery, has_rmw, program_of, run_tests, stands_still_under_zenoh, two_hosts

RMWS = ['rmw_fastrtps_cpp', 'rmw_cyclonedds_cpp', 'rmw_zenoh_cpp', 'rmw_rgaps']
SAMPLES = 30
EXCHANGED = r'\d+ messages equal, \d+ refused'
NO_PICTURES = 'rosbag2 records no sensor_msgs/Image here, from any publisher'


class Context:
    """Where the tests' programs are."""

    def __init__(self, prefix, build):
        self.streamer = os.path.join(build, 'test', 'streamer')
        self.in_process = os.path.join(build, 'test', 'in_process')
        self.converter = os.path.join(prefix, 'lib', 'rgaps_ros', 'converter')
        beside = os.path.dirname(os.path.abspath(__file__))
        self.bridge = os.path.join(prefix, 'lib', 'rgaps_ros', 'bridge')
        self.republish = program_of('image_transport', 'republish')
        self.exchange = os.path.join(beside, 'converter_exchange.py')
        self.bridge_watch = os.path.join(beside, 'bridge_watch.py')
        self.cycles = os.path.join(beside, 'component_cycles.py')
        self.foxglove = program_of('foxglove_bridge', 'foxglove_bridge')
        self.foxglove_watch = os.path.join(beside, 'foxglove_watch.py')
        self.container = program_of('rclcpp_components', 'component_container_mt')


def play(context, host, name, remap=None, **parameters):
    """A streamer with these parameters."""
    arguments = [argument for key, value in parameters.items() for argument in ('-p', f'{key}:={str(value).lower()}')]
    arguments += [argument for pair in (remap or {}).items() for argument in ('-r', ':='.join(pair))]
    return host.run(name, context.streamer, '--ros-args', '-r', f'__node:={name}', *arguments)


def convert(context, host, name, kind, direction, source, target, environment=None, **parameters):
    more = [argument for key, value in parameters.items() for argument in ('-p', f'{key}:={str(value).lower()}')]
    return host.run(name, context.converter, '--ros-args', '-r', f'__node:={name}', '-p', f'type:={kind}', '-p', f'direction:={direction}',
                    '-r', f'in:={source}', '-r', f'out:={target}', *more, **(environment or {}))


def bridge(context, host, name, environment=None):
    return host.run(name, context.bridge, '--ros-args', '-r', f'__node:=rgaps_bridge_{name}', **(environment or {}))


def in_one_process(context, world):
    host = world.host()
    program = host.run('in_process', context.in_process)
    program.passes()
    for name in re.findall(r'\[ *SKIPPED *\] (\S+) \(', program.output()):
        print(f'skipped: {world.rmw} in_process {name}')


def in_one_process_on_a_gpu(context, world):
    standin = os.environ.get('TEST_STANDIN')
    if not standin:
        return 'TEST_STANDIN does not name a folder with the stand-in for libcuda'
    on_gpu = {'RGAPS_DEVICE': 'cuda', 'LD_LIBRARY_PATH': f'{standin}:{os.environ["LD_LIBRARY_PATH"]}'}
    host = world.host(settings=('device=cuda',), environment=on_gpu)
    host.run('in_process', context.in_process, **on_gpu).passes()
    return None


def across_processes_eight_subscribers_read_every_sample_in_place(context, world):
    host = world.host()
    for kind in ('image', 'cloud', 'tensor'):
        readers = [play(context, host, f'{kind}_{number}', role='sub', kind=kind, count=SAMPLES, subscriptions=2) for number in range(4)]
        publisher = play(context, host, f'{kind}_source', role='pub', kind=kind, count=SAMPLES, subscriptions=8, readers=8)
        for reader in readers:
            reader.passes(f'samples {2 * SAMPLES} mismatched 0 lost 0 refused 0 copied_bytes 0')
        publisher.passes(f'published {SAMPLES}')


def across_hosts_samples_arrive_equal_and_no_subscriber_gets_a_copy(context, world):
    if os.geteuid() != 0:
        return 'no root, no network namespaces'
    with two_hosts(world) as hosts:
        reader = play(context, hosts[1], 'remote', role='sub', count=SAMPLES, subscriptions=8)
        local = play(context, hosts[0], 'local', role='sub', count=SAMPLES)
        publisher = play(context, hosts[0], 'source', role='pub', count=SAMPLES, subscriptions=9, readers=2)
        reader.passes(f'samples {8 * SAMPLES} mismatched 0 lost 0 refused 0 copied_bytes 0')
        local.passes(f'samples {SAMPLES} mismatched 0 lost 0 refused 0 copied_bytes 0')
        publisher.passes(f'published {SAMPLES}')
    return None


def the_converter_carries_every_encoding_unchanged_and_only_while_subscribed_to(context, world):
    host = world.host()
    for kind in ('image', 'point_cloud'):
        to_gpu = convert(context, host, f'to_gpu_{kind}', kind, 'to_gpu', f'/{kind}/cpu_in', f'/{kind}/gpu')
        to_cpu = convert(context, host, f'to_cpu_{kind}', kind, 'to_cpu', f'/{kind}/gpu', f'/{kind}/cpu_out')
        host.run(f'exchange_{kind}', sys.executable, context.exchange, kind).passes(EXCHANGED)
        if kind == 'image':
            to_gpu.until('not converted: an image of 4 rows of step 24 in rgb8 needs 96 B of data, the message has 95 B')
        for converter in (to_gpu, to_cpu):
            converter.end()


def the_converter_reads_best_effort_publishers(context, world):
    """A best-effort publisher, like a camera. The converters start first, and their clock stands still."""
    if reason := stands_still_under_zenoh(world):
        return reason
    host = world.host()
    to_gpu = convert(context, host, 'to_gpu', 'image', 'to_gpu', '/image/cpu_in', '/image/gpu', use_sim_time=True,
                     **{'qos_overrides./image/gpu.publisher.reliability': 'best_effort'})
    to_cpu = convert(context, host, 'to_cpu', 'image', 'to_cpu', '/image/gpu', '/image/cpu_out', use_sim_time=True)
    host.run('exchange', sys.executable, context.exchange, 'image', 'best_effort').passes(EXCHANGED)
    to_gpu.until('not converted: an image of 4 rows of step 24 in rgb8 needs 96 B of data, the message has 95 B')
    for converter in (to_gpu, to_cpu):
        converter.end()


def a_component_that_is_loaded_and_unloaded_repeatedly_leaks_nothing(context, world):
    if reason := stands_still_under_zenoh(world):
        return reason
    host = world.host()
    source = play(context, host, 'source', role='pub', count=10 ** 6, period_ms=5)
    for component in ('converter', 'bridge'):
        container = host.run('container', context.container)
        cycles = host.run('cycles', sys.executable, context.cycles, str(container.process.pid), component)
        cycles.passes()
        for program in (source, container):
            if program.process.poll() is not None:
                raise Failed(f'{program.name} has ended:\n{program.output()[-4000:]}')
        container.end()


def the_converter_is_a_component(context, world):
    host = world.host()
    container = host.run('container', 'ros2', 'run', 'rclcpp_components', 'component_container')
    # It looks for the container once, after these seconds.
    loaded = host.run('load', 'ros2', 'component', 'load', '--no-daemon', '--spin-time', '5', '/ComponentManager', 'rgaps_ros', 'rgaps_ros::Converter',
                      '-p', 'direction:=to_gpu')
    loaded.passes(".* as '/converter'")


def recorded(context, world, host, convert_in, topic):
    """A bag of pictures of the samples on /samples, which the program that `convert_in(environment)` starts puts on a topic; None if rosbag2 records
    no pictures here."""
    recording = environment_that_records_pictures(world, host)
    if recording is None:
        return None
    bag = os.path.join(world.folder, 'pictures')
    converter = convert_in(recording)
    recorder = record(host, 'recorder', bag, topic, recording)
    # The converter subscribes once the recorder has. Under another RMW, the converter may discover the publisher late and miss the first messages.
    publisher = play(context, host, 'source', role='pub', count=10 ** 6, period_ms=20)
    wait_for_messages(bag, recorder, SAMPLES)
    for program in (publisher, converter):
        program.end()
    return bag


def expect_samples_of(context, host, bag, topic):
    """Plays the bag to a subscription of a GPU topic."""
    reader = play(context, host, 'reader', {'samples': topic}, role='sub', count=SAMPLES, in_order=False)
    player = host.run('player', 'ros2', 'bag', 'play', '--loop', bag)
    reader.passes(f'samples {SAMPLES} mismatched 0 lost 0 refused 0 copied_bytes 0')
    player.end()


def samples_survive_recording_and_playing_a_bag_through_the_converter(context, world):
    if not has_rosbag2():
        return 'no rosbag2'
    host = world.host()
    bag = recorded(context, world, host, lambda environment: convert(context, host, 'to_cpu', 'image', 'to_cpu', '/samples', '/pictures', environment),
                   '/pictures')
    if bag is None:
        return NO_PICTURES
    converter = convert(context, host, 'to_gpu', 'image', 'to_gpu', '/pictures', '/samples_again')
    expect_samples_of(context, host, bag, '/samples_again')
    converter.end()
    return None


def a_bag_of_a_bridged_topic_replays_as_the_same_samples_on_the_gpu_topic(context, world):
    if not has_rosbag2():
        return 'no rosbag2'
    host = world.host()
    bag = recorded(context, world, host, lambda environment: bridge(context, host, 'first', environment), '/samples/cpu')
    if bag is None:
        return NO_PICTURES
    bridge(context, host, 'second')
    expect_samples_of(context, host, bag, '/samples')
    return None


def of_several_bridges_one_converts_and_another_takes_over(context, world):
    host = world.host()
    bridges = {f'rgaps_bridge_{name}': bridge(context, host, name) for name in ('a', 'b')}
    play(context, host, 'source', role='pub', count=10 ** 6, period_ms=20)
    for _ in range(2):
        watch = host.run('watch', sys.executable, context.bridge_watch, '/samples/cpu', str(SAMPLES))
        bridges.pop(watch.passes('rgaps_bridge_.*')).end()


def a_bridge_leaves_a_pair_that_a_converter_serves(context, world):
    """Else each picture would come twice, or, with the converter to_gpu, go round for ever."""
    host = world.host()
    converter = convert(context, host, 'to_cpu', 'image', 'to_cpu', '/samples', '/samples/cpu')
    play(context, host, 'source', role='pub', count=10 ** 6, period_ms=20)
    beside = bridge(context, host, 'beside')
    beside.until('/samples: /to_cpu converts it; it is left to that node')
    host.run('watch', sys.executable, context.bridge_watch, '/samples/cpu', str(SAMPLES)).passes('to_cpu')
    converter.end()
    host.run('watch', sys.executable, context.bridge_watch, '/samples/cpu', str(SAMPLES)).passes('rgaps_bridge_beside')


def bridges_survive_odd_names_and_end_when_asked_to(context, world):
    host = world.host()
    # Legal, but with the suffix too long; and two bridges of one name.
    play(context, host, 'long', {'samples': '/' + 'x' * 244}, role='sub', count=10 ** 6)
    play(context, host, 'source', role='pub', count=10 ** 6, period_ms=20)
    first = bridge(context, host, 'twin')
    first.until('/samples is offered as /samples/cpu')
    second = bridge(context, host, 'twin')
    for twin in (first, second):
        twin.until('another bridge has this name')
    first.process.send_signal(signal.SIGINT)
    if first.wait() not in (0, -signal.SIGINT):
        raise Failed(f'a bridge ended with {first.wait()}:\n{first.output()[-4000:]}')
    host.run('watch', sys.executable, context.bridge_watch, '/samples/cpu', str(SAMPLES)).passes('rgaps_bridge_twin')


def an_image_transport_node_publishes_a_gpu_topic_unchanged(context, world):
    if not os.path.exists(context.republish):
        return 'no image_transport'
    host = world.host()
    # Humble's republish takes the transports as arguments, later ones as parameters. Those of Lyrical keep one picture, best-effort, unless told otherwise.
    def republish(name, source, target, *remappings):
        transports = [source, target, '--ros-args', '-p', f'in_transport:={source}', '-p', f'out_transport:={target}']
        keep = [('reliability', 'reliable'), ('depth', '10')]
        keep = [word for policy, value in keep for word in ('-p', f'qos_overrides./image/cpu_in.subscription.{policy}:={value}')]
        return host.run(name, context.republish, *transports, *keep, '-r', f'__node:={name}', *remappings)

    to_pool = republish('to_pool', 'raw', 'rgaps', '-r', 'in:=/image/cpu_in', '-r', 'out/rgaps:=/image/gpu')
    from_pool = republish('from_pool', 'rgaps', 'raw', '-r', 'in/rgaps:=/image/gpu', '-r', 'out:=/image/cpu_out')
    host.run('exchange', sys.executable, context.exchange, 'image', 'always').passes(EXCHANGED)
    to_pool.until('not converted: an image of 4 rows of step 24 in rgb8 needs 96 B of data, the message has 95 B')
    for program in (to_pool, from_pool):
        program.end()
    return None


def foxglove_shows_the_pictures_of_a_bridged_topic(context, world):
    if not os.path.exists(context.foxglove):
        return 'no foxglove_bridge'
    if not importlib.util.find_spec('websockets'):
        return 'no Python package websockets'
    host = world.host()
    bridge(context, host, 'first')
    play(context, host, 'source', role='pub', count=10 ** 6, period_ms=20)
    host.run('foxglove_bridge', context.foxglove, '--ros-args', '-p', 'port:=8765', '-p', 'address:=127.0.0.1').until('listening')
    watch = host.run('watch', sys.executable, context.foxglove_watch, '8765', '/samples/cpu', str(SAMPLES))
    watch.passes(f'pictures {SAMPLES} mismatched 0')
    return None


def ros2_doctor_names_hosts_links_and_lost_messages(context, world):
    if os.geteuid() != 0:
        return 'no root, no network namespaces'
    with two_hosts(world) as hosts:
        reader = play(context, hosts[1], 'reader', role='sub', count=10 ** 6, in_order=False)
        play(context, hosts[0], 'source', role='pub', count=10 ** 6)

        def report_until(pattern):
            end = time.monotonic() + SECONDS_MAX
            while True:
                doctor = hosts[1].run('doctor', 'ros2', 'doctor', '--report')
                doctor.passes()
                found = re.search(pattern, doctor.output())
                if found:
                    return
                if time.monotonic() > end:
                    raise Failed(f'ros2 doctor does not say "{pattern}":\n{doctor.output()[-4000:]}')

        report_until(r'other hosts *: (?!none)\S')
        report_until(r'link *: from \S+ connected over tcp')
        # While it does not run, it loses messages beyond the depth of its QoS; it counts them afterwards.
        reader.process.send_signal(signal.SIGSTOP)
        report_until(r'topic *: /samples in domain')
        reader.process.send_signal(signal.SIGCONT)
        report_until(r'messages lost here *: [1-9]')
        check = hosts[1].run('check', 'ros2', 'doctor')
        check.passes()
        # `ros2 doctor` starts it, and it would stay.
        hosts[1].run('daemon', 'ros2', 'daemon', 'stop').passes()
        if not re.search(r'RGAPS, /samples in domain \d+: subscribers of this host have lost [1-9]', check.output()):
            raise Failed(check.output()[-4000:])
    return None


def a_replayed_descriptor_is_refused_and_never_matched_to_live_memory(context, world):
    if not has_rosbag2():
        return 'no rosbag2'
    host = world.host()
    bag = os.path.join(world.folder, 'descriptors')
    recorder = record(host, 'recorder', bag, '/samples')
    reader = play(context, host, 'first', role='sub', count=SAMPLES)
    publisher = play(context, host, 'source', role='pub', count=SAMPLES, subscriptions=2)
    reader.passes(f'samples {SAMPLES} mismatched 0 lost 0 refused 0 copied_bytes 0')
    wait_for_messages(bag, recorder, SAMPLES)
    publisher.passes(f'published {SAMPLES}')

    if world.rmw == 'rmw_rgaps':
        a_layer_refuses_to_publish_them(context, host, bag)
        return None

    # In the same run of the host, while another publisher is active.
    player = host.run('player', 'ros2', 'bag', 'play', '--loop', bag)
    reader = play(context, host, 'second', role='sub', count=SAMPLES, refusals=5)
    publisher = play(context, host, 'live', role='pub', count=SAMPLES)
    reader.passes(rf'samples {SAMPLES} mismatched 0 lost 0 refused \d+ .*')
    reader.until("is not this subscriber's")
    publisher.passes(f'published {SAMPLES}')

    # In the next run of the host.
    host.end_manager()
    host.start_manager()
    reader = play(context, host, 'third', role='sub', count=0, refusals=5)
    reader.passes(r'samples 0 mismatched 0 lost 0 refused \d+ .*')
    reader.until('is of an earlier run')
    reader.until('a replayed handle names no memory')
    player.end()
    return None


def a_layer_refuses_to_publish_them(context, host, bag):
    """Descriptors without a message do not reach subscribers: the player gets an error."""
    for reason in ('is no message of this topic that this host has', 'is of an earlier run'):
        reader = play(context, host, 'second', role='sub', count=SAMPLES)
        player = host.run('player', 'ros2', 'bag', 'play', '--loop', bag)
        player.until(reason)
        publisher = play(context, host, 'live', role='pub', count=SAMPLES)
        reader.passes(f'samples {SAMPLES} mismatched 0 lost 0 refused 0 copied_bytes 0')
        publisher.passes(f'published {SAMPLES}')
        player.end()
        host.end_manager()
        host.start_manager()


def has_rosbag2():
    return shutil.which('ros2') and subprocess.run(['ros2', 'bag', '--help'], capture_output=True, check=False).returncode == 0


def record(host, name, bag, topic, environment=None):
    topics = [topic] if os.environ.get('ROS_DISTRO') == 'humble' else ['--topics', topic]
    return host.run(name, 'ros2', 'bag', 'record', '-s', 'sqlite3', '--max-cache-size', '0', '-o', bag, *topics, **(environment or {}))


def environment_that_records_pictures(world, host):
    """As in the README: if rosbag2 records no pictures under an RMW, only converter and recorder use another one."""
    environments = [{}, {'RMW_IMPLEMENTATION': 'rmw_cyclonedds_cpp'}]
    return next((environment for environment in environments if records_pictures(world, host, environment)), None)


def records_pictures(world, host, environment):
    """Whether rosbag2 records pictures under this RMW; rmw_fastrtps_cpp 9.4.7 of Lyrical does not."""
    if not has_rmw(environment.get('RMW_IMPLEMENTATION', world.rmw)):
        return False
    bag = os.path.join(world.folder, f'probe{len(world.programs)}')
    recorder = record(host, 'probe', bag, '/probe', environment)
    publisher = host.run('probe_source', 'ros2', 'topic', 'pub', '--rate', '20', '--times', '60', '--wait-matching-subscriptions', '1',
                         '/probe', 'sensor_msgs/msg/Image', '{data: [1, 2, 3]}', **environment)
    publisher.passes('.*')
    try:
        wait_for_messages(bag, recorder, 1, seconds=5)
    except Failed:
        recorder.end()
        return False
    return True


def wait_for_messages(bag, recorder, count, seconds=SECONDS_MAX):
    """Ends a recorder when its bag has this many messages. The recorder is configured to write each at once, and ends if it finds its database locked:
    an immutable one is read without a lock. What is read while the recorder writes may be damaged; the next reading is not."""
    end = time.monotonic() + seconds
    found = 0
    while found < count:
        if time.monotonic() > end:
            raise Failed(f'{found} of {count} messages are in the bag:\n{recorder.output()}')
        time.sleep(0.1)
        for file in glob.glob(os.path.join(bag, '*.db3')):
            with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(f'file:{file}?immutable=1', uri=True)) as database:
                found = database.execute('select count(*) from messages').fetchone()[0]
    recorder.end()


TESTS = [in_one_process, in_one_process_on_a_gpu, across_processes_eight_subscribers_read_every_sample_in_place,
         across_hosts_samples_arrive_equal_and_no_subscriber_gets_a_copy,
         the_converter_carries_every_encoding_unchanged_and_only_while_subscribed_to,
         the_converter_reads_best_effort_publishers, the_converter_is_a_component,
         a_component_that_is_loaded_and_unloaded_repeatedly_leaks_nothing,
         samples_survive_recording_and_playing_a_bag_through_the_converter,
         a_bag_of_a_bridged_topic_replays_as_the_same_samples_on_the_gpu_topic,
         of_several_bridges_one_converts_and_another_takes_over, a_bridge_leaves_a_pair_that_a_converter_serves,
         bridges_survive_odd_names_and_end_when_asked_to,
         an_image_transport_node_publishes_a_gpu_topic_unchanged, foxglove_shows_the_pictures_of_a_bridged_topic,
         ros2_doctor_names_hosts_links_and_lost_messages,
         a_replayed_descriptor_is_refused_and_never_matched_to_live_memory]


def main():
    prefix, build, *names = sys.argv[1:]
    context = Context(prefix, build)
    tests = [functools.wraps(test)(functools.partial(test, context)) for test in TESTS]
    run_tests('rgaps_ros', tests, RMWS, names, first_domain=20)


if __name__ == '__main__':
    main()
