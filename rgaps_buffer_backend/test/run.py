#!/usr/bin/env python3
"""Tests of the rosidl::Buffer backend with plain sensor_msgs/Image, under the RMWs that have such backends.

usage: run.py BUILD_FOLDER [TEST ...]      BUILD_FOLDER: build/rgaps_buffer_backend of the workspace

ROS 2 and the workspace must be sourced. As root, each run gets its own network namespace, so that it sees no other topics. Tests that cannot run
here are listed with `skipped:`.
"""

import functools
import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'rgaps_ros', 'test'))

from world import Failed, run_tests, two_hosts  # noqa: E402 (found by the line above)

# rmw_cyclonedds_cpp has no backends: there, messages go as bytes.
RMWS = ['rmw_fastrtps_cpp', 'rmw_zenoh_cpp']
PICTURES = 100
# Of no user of this machine.
GROUP = 54321
PICTURE_BYTES = 640 * 480 * 3


# The middleware says several lines about each message otherwise.
QUIETLY = ['--ros-args', '--log-level', 'warn']


def take(context, host, name, topic='/pictures', backends='rgaps', count=PICTURES, subscriptions=1, environment=None):
    subscriber = host.run(name, context, 'take', topic, str(count), backends, str(subscriptions), *QUIETLY, **(environment or {}))
    subscriber.until('waits')
    return subscriber


def publish(context, host, reached, others=0, count=PICTURES, rate=30, environment=None):
    return host.run('publisher', context, 'publish', str(count), str(rate), str(reached), str(others), *QUIETLY, **(environment or {}))


def of_publisher(published, as_bytes=0, copied=0, count=PICTURES):
    return f'publisher allocated {count + 1} published {published} as_bytes {as_bytes} copied {copied} '


def all_taken(in_pool=PICTURES, count=PICTURES):
    return f'taken {count} in_pool {in_pool} lost 0 mismatched 0 failed 0'


def four_subscribers_read_every_picture_in_place(context, world):
    host = world.host()
    subscribers = [take(context, host, f'subscriber{number}') for number in range(4)]
    publisher = publish(context, host, reached=4)
    for subscriber in subscribers:
        subscriber.passes(all_taken())
    publisher.until(of_publisher(4 * PICTURES))


def subscriptions_of_one_process_read_every_picture_in_place(context, world):
    if world.rmw == 'rmw_fastrtps_cpp':
        return 'rmw_fastrtps_cpp 9.4.7 loses messages of several subscriptions of a process that accept backends, also of ordinary bytes'
    host = world.host()
    subscriber = take(context, host, 'subscriber', subscriptions=3)
    publisher = publish(context, host, reached=3)
    subscriber.passes(all_taken(3 * PICTURES, 3 * PICTURES))
    publisher.until(of_publisher(3 * PICTURES))
    return None


def with_a_gpu():
    """The environment of programs and managers on the stand-in for libcuda; none without the stand-in."""
    standin = os.environ.get('TEST_STANDIN')
    return standin and {'RGAPS_DEVICE': 'cuda', 'LD_LIBRARY_PATH': f'{standin}:{os.environ["LD_LIBRARY_PATH"]}'}


NO_STANDIN = 'TEST_STANDIN does not name a folder with the stand-in for libcuda'


def four_subscribers_read_every_picture_on_a_gpu(context, world):
    on_gpu = with_a_gpu()
    if not on_gpu:
        return NO_STANDIN
    host = world.host(settings=('device=cuda',), environment=on_gpu)
    subscribers = [take(context, host, f'subscriber{number}', environment=on_gpu) for number in range(4)]
    publisher = publish(context, host, reached=4, environment=on_gpu)
    for subscriber in subscribers:
        subscriber.passes(all_taken())
    publisher.until(of_publisher(4 * PICTURES))
    return None


def a_subscriber_on_another_gpu_reads_every_picture(context, world):
    on_gpu = with_a_gpu()
    if not on_gpu:
        return NO_STANDIN
    # GPUs that reach each other's memory, and those that do not.
    for more in ({}, {'RGAPS_TEST_STANDIN_NO_PEER': '1'}):
        both = {**on_gpu, 'RGAPS_TEST_STANDIN_DEVICES': '2', **more}
        host = world.host(settings=('device=cuda:0',), environment=both)
        subscribers = [take(context, host, f'subscriber{gpu}', environment={**both, 'RGAPS_BUFFERS_DEVICE': f'cuda:{gpu}'}) for gpu in range(2)]
        publisher = publish(context, host, reached=2, environment=both)
        for gpu, subscriber in enumerate(subscribers):
            subscriber.passes(all_taken())
            if f'read on device 2:{gpu}\n' not in subscriber.output():
                raise Failed(subscriber.output())
        publisher.until(of_publisher(2 * PICTURES))
        publisher.end()
    return None


def received_bytes(namespace, interface):
    path = f'/sys/class/net/{interface}/statistics/rx_bytes'
    command = ['nsenter', '-t', str(namespace), '-n', 'sh', '-c', f'mount -t sysfs sysfs /sys && cat {path}']
    return int(subprocess.run(['unshare', '-m', *command], check=True, capture_output=True, text=True).stdout)


def each_picture_goes_to_another_host_once(context, world):
    return pictures_go_to_another_host_once(context, world)


def each_picture_goes_to_the_gpu_of_another_host_once(context, world):
    on_gpu = with_a_gpu()
    return pictures_go_to_another_host_once(context, world, ('device=cuda',), on_gpu) if on_gpu else NO_STANDIN


def pictures_go_to_another_host_once(context, world, settings=(), environment=None):
    if os.geteuid() != 0:
        return 'no root, no network namespaces'
    with two_hosts(world, settings, environment) as hosts:
        subscribers = [take(context, hosts[number // 2], f'subscriber{number}', environment=environment) for number in range(4)]
        publisher = publish(context, hosts[0], reached=4, environment=environment)
        for subscriber in subscribers:
            subscriber.passes(all_taken())
        publisher.until(of_publisher(4 * PICTURES))
        received, payload = received_bytes(hosts[1].namespace, 'cable2'), PICTURES * PICTURE_BYTES
        print(f'{world.rmw}: the other host received {received} B for {payload} B of pictures', flush=True)
        # Twice only until the second subscription has joined the first one's topic.
        if not payload <= received < payload * 1.2:
            raise Failed(f'the other host received {received} B for {payload} B of pictures')
    return None


def a_subscriber_of_bytes_gets_them_and_the_others_still_read_in_place(context, world):
    host = world.host()
    subscribers = [take(context, host, f'subscriber{number}') for number in range(2)]
    plain = take(context, host, 'plain', backends='cpu')
    publisher = publish(context, host, reached=2, others=1)
    for subscriber in subscribers:
        subscriber.passes(all_taken())
    plain.passes(all_taken(in_pool=0))
    publisher.until(of_publisher(2 * PICTURES))


def a_relayed_picture_is_copied_once(context, world):
    host = world.host()
    relay = host.run('relay', context, 'relay', str(PICTURES), '2')
    relay.until('waits')
    subscribers = [take(context, host, f'subscriber{number}', topic='/relayed') for number in range(2)]
    publish(context, host, reached=1)
    for subscriber in subscribers:
        subscriber.passes(all_taken())
    relay.until(f'relay allocated 1 published {2 * PICTURES} as_bytes 0 copied {PICTURES} received {PICTURES} refused 0')


def the_plugin_keeps_the_contract_of_its_interface(context, world):
    if world.rmw != RMWS[0]:
        return 'it needs no RMW, and has run'
    world.host().run('contract', os.path.join(os.path.dirname(context), 'contract')).passes('the plugin keeps its contract')
    return None


def nodes_in_python_and_cpp_read_each_others_pictures_in_place(context, world):
    python = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'images.py')
    for camera in (context, python):
        host = world.host()
        subscribers = [take(program, host, f'subscriber{number}') for number, program in enumerate((context, python))]
        plain = take(python, host, 'plain', backends='cpu')
        publisher = publish(camera, host, reached=2, others=1)
        for subscriber in subscribers:
            subscriber.passes(all_taken())
        plain.passes(all_taken(in_pool=0))
        publisher.until(of_publisher(2 * PICTURES))
        publisher.end()


def a_member_of_the_group_reads_every_picture_in_place(context, world):
    if os.geteuid() != 0:
        return 'no root, no second user'
    if world.rmw == 'rmw_fastrtps_cpp':
        return 'rmw_fastrtps_cpp 9.4.7 delivers nothing from one user to another, also no ordinary bytes'
    os.chmod(world.folder, 0o755)
    host = world.host(settings=(f'socket_group={GROUP}',))
    as_member = ['setpriv', f'--reuid={GROUP + 1}', f'--regid={GROUP + 1}', f'--groups={GROUP}']
    logs = os.path.join(world.folder, 'logs-of-the-member')
    os.mkdir(logs)
    os.chown(logs, GROUP + 1, GROUP + 1)
    member = host.run('member', *as_member, context, 'take', '/pictures', str(PICTURES), 'rgaps', '1', *QUIETLY, ROS_LOG_DIR=logs)
    member.until('waits')
    publisher = publish(context, host, reached=1)
    member.passes(all_taken())
    publisher.until(of_publisher(PICTURES))
    return None


def a_killed_subscriber_harms_nobody_and_a_late_one_gets_pictures(context, world):
    host = world.host()
    victim, witness = take(context, host, 'victim', count=10**9), take(context, host, 'witness', count=300)
    publisher = publish(context, host, reached=2, count=300, rate=60)
    late = take(context, host, 'late', count=300)
    os.killpg(victim.process.pid, signal.SIGKILL)
    # While a subscription joins, rmw_zenoh_cpp may send a message to all as bytes.
    witness.passes(r'taken 300 in_pool (300|29\d) lost 0 mismatched 0 failed 0')
    late.passes(r'taken \d+ in_pool \d+ lost \d+ mismatched 0 failed 0')
    publisher.until('all is released')
    if ' copied 0 ' not in publisher.output():
        raise Failed(publisher.output())


def a_killed_publisher_takes_no_picture_from_its_subscribers(context, world):
    host = world.host()
    count, gate = 8, os.path.join(world.folder, 'gate')
    # The middleware receives while the program takes nothing.
    subscriber = take(context, host, 'subscriber', count=count, environment={'IMAGES_GATE': gate})
    publisher = publish(context, host, reached=1, count=count)
    publisher.until('publisher allocated')
    os.killpg(publisher.process.pid, signal.SIGKILL)
    with open(gate, 'w', encoding='utf-8'):
        pass
    subscriber.passes(all_taken(count, count))


def a_late_joiner_of_a_transient_local_topic_gets_bytes(context, world):
    if world.rmw == 'rmw_fastrtps_cpp':
        return 'rmw_fastrtps_cpp 9.4.7 keeps what it sends to a subscription that accepts backends for that subscription alone'
    host, latched = world.host(), {'IMAGES_LATCHED': '1'}
    early = take(context, host, 'early', count=10, environment=latched)
    publisher = publish(context, host, reached=0, others=1, count=10, environment=latched)
    publisher.until('publisher allocated')
    late = take(context, host, 'late', count=10, environment=latched)
    for subscriber in (early, late):
        subscriber.passes(all_taken(in_pool=0, count=10))
    return None


def memory_and_fds(program):
    pid = program.process.pid
    with open(f'/proc/{pid}/status', encoding='utf-8') as status:
        kib = next(int(line.split()[1]) for line in status if line.startswith('VmRSS'))
    return kib, len(os.listdir(f'/proc/{pid}/fd'))


def a_hundred_thousand_pictures_leak_nothing(context, world):
    if 'TEST_LONG' not in os.environ:
        return 'it takes a minute; set TEST_LONG'
    host = world.host()
    count, small = 100_000, {'IMAGES_HEIGHT': '1'}
    subscribers = [take(context, host, f'subscriber{number}', count=count, environment=small) for number in range(2)]
    publisher = publish(context, host, reached=2, count=count, rate=2000, environment=small)
    publisher.until('tenths published: 1\n')
    programs = [publisher, *subscribers, host.manager]
    before = [memory_and_fds(program) for program in programs]
    publisher.until('tenths published: 9\n', seconds=300)
    after = [memory_and_fds(program) for program in programs]
    for subscriber in subscribers:
        subscriber.passes(r'taken \d+ in_pool \d+ lost \d+ mismatched 0 failed 0')
    print(f'{world.rmw}: KiB and file descriptors after a tenth: {before}; after nine: {after}', flush=True)
    publisher.until('all is released')
    for (kib, fds), (kib_after, fds_after) in zip(before, after):
        # 200 B for each message.
        if kib_after > kib + 16 * 1024 or fds_after > fds:
            raise Failed(f'{before} has grown to {after}')
    return None


TESTS = [the_plugin_keeps_the_contract_of_its_interface, four_subscribers_read_every_picture_in_place, subscriptions_of_one_process_read_every_picture_in_place,
         four_subscribers_read_every_picture_on_a_gpu, a_subscriber_on_another_gpu_reads_every_picture, each_picture_goes_to_another_host_once,
         each_picture_goes_to_the_gpu_of_another_host_once,
         a_subscriber_of_bytes_gets_them_and_the_others_still_read_in_place, a_relayed_picture_is_copied_once,
         nodes_in_python_and_cpp_read_each_others_pictures_in_place,
         a_member_of_the_group_reads_every_picture_in_place,
         a_killed_subscriber_harms_nobody_and_a_late_one_gets_pictures, a_killed_publisher_takes_no_picture_from_its_subscribers,
         a_late_joiner_of_a_transient_local_topic_gets_bytes, a_hundred_thousand_pictures_leak_nothing]


def main():
    if len(sys.argv) < 2 or not os.path.exists(os.path.join(sys.argv[1], 'test', 'images')):
        sys.exit(__doc__)
    build, *names = sys.argv[1:]
    unknown = set(names) - {test.__name__ for test in TESTS}
    if unknown:
        sys.exit(f'no such test: {", ".join(unknown)}; there are {", ".join(test.__name__ for test in TESTS)}')
    images = os.path.join(build, 'test', 'images')
    tests = [functools.wraps(test)(functools.partial(test, images)) for test in TESTS]
    run_tests('rosidl::Buffer', tests, RMWS, names, first_domain=60)


if __name__ == '__main__':
    main()
