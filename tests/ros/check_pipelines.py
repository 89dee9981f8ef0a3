"""Tests of the pipelines of examples/ros/pipelines: check_pipelines.py [TEST ...]

ROS 2 and the workspace must be sourced. Each pipeline is launched as a user would, under every installed RMW, and its topics' payloads are compared
with what this file computes from the same input. As root, all runs are in their own network namespace. Tests that cannot run here are listed with
`skipped:`.
"""

import ctypes
import json
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import time
import zlib

import numpy as np
from ament_index_python.packages import PackageNotFoundError, get_package_prefix, get_package_share_directory

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'rgaps_ros' / 'test'))
from world import SECONDS_MAX, Failed, discovery, left_behind, run_tests  # noqa: E402

DATA = pathlib.Path(get_package_share_directory('rgaps_examples')) / 'data'
RMWS = ['rmw_fastrtps_cpp', 'rmw_zenoh_cpp', 'rmw_rgaps']
DETECTORS = [f'edges_{number}' for number in range(8)]
IN_CPP = ['rectify', *DETECTORS[:5]]
RUN_SECONDS = 12


# ---- References ------------------------------------------------------------------------------------------------------------

def read_png(path):
    """Decodes an 8-bit PNG, gray or RGB, without interlacing."""
    data = path.read_bytes()
    place, body = 8, b''
    while place < len(data):
        length, name = struct.unpack_from('>I4s', data, place)
        chunk = data[place + 8:place + 8 + length]
        if name == b'IHDR':
            width, height, depth, colour, _, _, interlaced = struct.unpack('>IIBBBBB', chunk)
            assert depth == 8 and colour in (0, 2) and not interlaced, path
        elif name == b'IDAT':
            body += chunk
        place += 12 + length
    channels = 1 if colour == 0 else 3
    rows = np.frombuffer(zlib.decompress(body), np.uint8).reshape(height, 1 + width * channels)
    before, picture = np.zeros(width * channels, np.uint8), []
    for row in rows:
        before = unfiltered(row[0], row[1:], before, channels)
        picture.append(before)
    return np.stack(picture).reshape((height, width) if channels == 1 else (height, width, 3))


def unfiltered(kind, row, above, channels):
    """Removes the filter from a row of a PNG (PNG specification, 9.2)."""
    if kind == 0:
        return row
    if kind == 2:
        return row + above
    made, above = [0] * channels + row.tolist(), [0] * channels + above.tolist()
    for place in range(channels, len(made)):
        left, up, corner = made[place - channels], above[place], above[place - channels]
        if kind == 1:
            guess = left
        elif kind == 3:
            guess = (left + up) // 2
        else:
            guess = min((left, up, corner), key=lambda value: abs(left + up - corner - value))
        made[place] = (made[place] + guess) % 256
    return np.array(made[channels:], np.uint8)


def rectified(picture, width, height, distortion):
    """Rectifies an rgb8 image to mono8: plumb_bob about the middle, with a focal length of the image's width; bilinear."""
    k1, k2, p1, p2, k3 = distortion
    rows, columns = picture.shape[:2]
    focal, cx, cy = columns, (columns - 1) / 2, (rows - 1) / 2
    x = ((np.arange(width) + 0.5) * columns / width - 0.5 - cx)[None, :] / focal
    y = ((np.arange(height) + 0.5) * rows / height - 0.5 - cy)[:, None] / focal
    square = x * x + y * y
    radial = 1 + k1 * square + k2 * square**2 + k3 * square**3
    u = focal * (x * radial + 2 * p1 * x * y + p2 * (square + 2 * x * x)) + cx
    v = focal * (y * radial + p1 * (square + 2 * y * y) + 2 * p2 * x * y) + cy
    u = np.clip(np.floor(u * 256 + 0.5), 0, (columns - 1) * 256).astype(np.int64)
    v = np.clip(np.floor(v * 256 + 0.5), 0, (rows - 1) * 256).astype(np.int64)
    left, top, right, down = u // 256, v // 256, (u % 256)[..., None], (v % 256)[..., None]
    next_left, next_top = np.minimum(left + 1, columns - 1), np.minimum(top + 1, rows - 1)
    wide = picture.astype(np.int64)
    upper = wide[top, left] * (256 - right) + wide[top, next_left] * right
    lower = wide[next_top, left] * (256 - right) + wide[next_top, next_left] * right
    rgb = (upper * (256 - down) + lower * down + 32768) // 65536
    return ((rgb @ np.array([77, 150, 29]) + 128) // 256).astype(np.uint8)


def edges(picture):
    """Sobel's |gx| + |gy| by its two masks, at most 255; outside the image, its border pixels repeat."""
    wide = np.pad(picture.astype(np.int64), 1, mode='edge')
    mask = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    rows, columns = picture.shape
    gx, gy = (sum(m[y, x] * wide[y:y + rows, x:x + columns] for y in range(3) for x in range(3)) for m in (mask, mask.T))
    return np.minimum(abs(gx) + abs(gy), 255).astype(np.uint8)


def filtered(cloud, cube):
    """The first point in each cube, in the cloud's order."""
    _, first = np.unique(np.floor(cloud[:, :3].astype(np.float64) / cube).astype(np.int64), axis=0, return_index=True)
    return cloud[np.sort(first)]


def clusters(cloud, tolerance):
    """The number of clusters: labels spread from neighbour to neighbour until none changes."""
    points = cloud[:, :3].astype(np.float64)
    near = ((points[:, None, :] - points[None, :, :]) ** 2).sum(axis=2) <= tolerance**2
    labels = np.arange(len(points))
    while True:
        spread = np.where(near, labels[None, :], len(points)).min(axis=1)
        spread = spread[spread]
        if (spread == labels).all():
            return len(np.unique(labels))
        labels = spread


def example_cloud(number):
    """Cloud `number` of cloud_source."""
    saddle = np.frombuffer(DATA.joinpath('saddle.pcd').read_bytes()[-16384 * 16:], np.float32).reshape(-1, 4)
    copies = []
    for copy in range(1 + number % 4):
        moved = saddle.copy()
        moved[:, 0] += np.float32(number / 64)
        moved[:, 1] += np.float32(copy * 3)
        copies.append(moved)
    return np.concatenate(copies)


def scores_of(features):
    weights = (np.arange(10 * 3072, dtype=np.float32).reshape(10, 3072) % 17 - 8) / 3072
    return np.maximum(features.reshape(1, 3072) @ weights.T, 0).reshape(-1)


# ---- Runs ------------------------------------------------------------------------------------------------------------------

class Run:
    """One launch of a pipeline, observed from outside: its output and its topics' payloads."""

    def __init__(self, world, pipeline, rate, device='host', **arguments):
        self.host = world.host(settings=[f'device={device}'])
        seen = os.path.join(world.folder, f'{pipeline}-seen')
        environment = {'RGAPS_DEVICE': device}
        watcher = self.host.run('watcher', sys.executable, str(ROOT / 'tests/ros/watch_pipelines.py'), pipeline, seen, **environment)
        watcher.until('watching')
        # Long enough for discovery of the watcher: DDS may take some seconds to match endpoints that it did not match at once (Fast DDS: 3.4 s).
        self.count = count = RUN_SECONDS * rate
        command = ['ros2', 'launch', 'rgaps_examples', f'{pipeline}.launch.py', f'count:={count}', f'rate:={float(rate)}']
        launched = self.host.run(pipeline, *command, *(f'{name}:={value}' for name, value in arguments.items()), **environment)
        launched.passes()
        self.output = launched.output()
        pathlib.Path(f'{seen}.end').touch()
        watcher.passes()
        with open(f'{seen}.json', encoding='utf-8') as file:
            self.seen = json.load(file)
        with np.load(f'{seen}.npz') as arrays:
            self.arrays = dict(arrays)
        self.expect('frames', f'frames {count} lost 0 mismatched 0')
        self.expect_nothing_left()

    def lines(self, pattern):
        """The matches of a pattern at the end of each line that a node printed."""
        return [match for line in self.output.splitlines() for match in re.findall(pattern + '$', line)]

    def expect(self, beginning, line):
        found = self.lines(f'({beginning} .*)')
        if found != [line]:
            raise Failed(f'{found} instead of "{line}":\n{self.output[-6000:]}')

    def subscriptions(self, nodes):
        """Counters of the subscriptions of these nodes; each node must have at least one."""
        found = {name: counters for name, counters in self.seen['statuses'].items() if ': subscription' in name}
        for node in nodes:
            mine = {name: counters for name, counters in found.items() if name.split(':')[0].rsplit('/', 1)[1] == node}
            if not mine:
                raise Failed(f'no diagnostics of {node}, but of {sorted(found)}')
            yield from mine.items()

    def expect_no_copies(self, nodes):
        for name, counters in self.subscriptions(nodes):
            if counters['copied_bytes'] != 0 or counters['lost'] != 0 or counters['taken'] == 0:
                raise Failed(f'{name}: {counters}')

    def expect_on_device(self):
        """The viewer reads every image on the CPU, which costs copies if the pools are in device memory."""
        if self.lines(r'copied_bytes (\d+)') in ([], ['0']):
            raise Failed('the viewer copied payloads although the pools are in host memory')

    def expect_nothing_left(self):
        """The processes of the launch: all have this host's runtime directory in their environment, and so has the manager."""
        left = self.processes()
        end = time.monotonic() + SECONDS_MAX
        while left and time.monotonic() < end:
            time.sleep(0.05)
            left = self.processes()
        if left:
            raise Failed(f'left running: {left}')

    def processes(self):
        marker = f'RGAPS_RUNTIME_DIR={self.host.runtime_dir}'.encode()
        found = []
        for folder in pathlib.Path('/proc').glob('[0-9]*'):
            try:
                if marker in (folder / 'environ').read_bytes().split(b'\0'):
                    found.append((folder / 'cmdline').read_bytes().replace(b'\0', b' ').decode(errors='replace'))
            except OSError:
                continue
        return [command for command in found if not command.startswith('rgapsd ')]


def has_gpu():
    try:
        cuda = ctypes.CDLL('libcuda.so.1')
    except OSError:
        return False
    count = ctypes.c_int()
    return cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


def compare_pictures(folder, saved, width=320, height=240):
    """Compares every saved image with the one computed from the input; returns the number of stamps."""
    originals = [read_png(path) for path in sorted(DATA.glob('*.png'))]
    stamps = sorted({path.stem.rsplit('-', 1)[1] for path in folder.iterdir()})
    if len(stamps) != saved:
        raise Failed(f'{len(stamps)} moments were saved, not {saved}')
    for stamp in stamps:
        raw = read_png(folder / f'image_raw-{stamp}.png')
        if not any(raw.shape == original.shape and (raw == original).all() for original in originals):
            raise Failed(f'picture {stamp} is none of {DATA}')
        rect = read_png(folder / f'image_rect-{stamp}.png')
        wanted = rectified(raw, width, height, (-0.1, 0.01, 0.001, -0.001, 0))
        if rect.shape != wanted.shape or (rect != wanted).any():
            raise Failed(f'picture {stamp} is rectified otherwise, by up to {abs(rect.astype(int) - wanted).max()}')
        for detector in DETECTORS:
            if (read_png(folder / f'{detector}-{stamp}.png') != edges(wanted)).any():
                raise Failed(f'{detector} has other edges of picture {stamp}')


def run_pictures(world, device='host', **arguments):
    folder = pathlib.Path(world.folder) / 'saved'
    run = Run(world, 'pictures', 6, device, save=folder, namespace='robot', **arguments)
    pictures = run.lines(r'picture (\d+): 1 of \d+x\d+ rgb8, 9 of 320x240 mono8')
    if len(pictures) != run.count:
        raise Failed(run.output[-6000:])
    compare_pictures(folder, 3)
    return run


# ---- Tests -----------------------------------------------------------------------------------------------------------------

def eight_detectors_in_two_languages_read_every_image_in_place(world):
    run = run_pictures(world, rust='false')
    run.expect('copied_bytes', 'copied_bytes 0')
    run.expect_no_copies(['rectify', *DETECTORS, 'viewer'])


def has_rust_edges():
    try:
        return pathlib.Path(get_package_prefix('rgaps_examples_rust'), 'lib', 'rgaps_examples_rust', 'edges').exists()
    except PackageNotFoundError:
        return False


def detectors_in_cpp_python_and_rust_read_every_image(world):
    if not has_rust_edges():
        return 'the package rgaps_examples_rust is not built'
    run = run_pictures(world, rust='true')
    run.expect('copied_bytes', 'copied_bytes 0')
    run.expect_no_copies(['rectify', *DETECTORS, 'viewer'])
    return None


def clouds_are_filtered_and_their_clusters_counted(world):
    run = Run(world, 'clouds', 3)
    run.expect('copied_bytes', 'copied_bytes 0')
    run.expect_no_copies(['voxel', 'clusters'])
    counted = [(stamp, int(number)) for stamp, number in run.lines(r'cloud (\d+): \d+ points, (\d+) clusters')]
    if len(counted) != run.count:
        raise Failed(run.output[-6000:])
    for stamp, number in counted:
        cloud = run.arrays[f'points-{stamp}'].reshape(-1, 4)
        wanted = example_cloud(round((float(cloud[0, 0]) + 1) * 64))
        if cloud.shape != wanted.shape or (cloud != wanted).any():
            raise Failed(f'cloud {stamp} is not what was read')
        kept = run.arrays[f'points_filtered-{stamp}'].reshape(-1, 4)
        wanted = filtered(cloud, 0.1)
        if kept.shape != wanted.shape or (kept != wanted).any():
            raise Failed(f'cloud {stamp} has {len(kept)} points left, not those {len(wanted)} that it should have')
        if number != clusters(kept, 0.3):
            raise Failed(f'cloud {stamp} has {clusters(kept, 0.3)} clusters, not {number}')
    expect_numbers(run, [number for _, number in counted])


def tensors_pass_a_model_whose_scores_and_label_are_right(world):
    run = Run(world, 'tensors', 10)
    run.expect('copied_bytes', 'copied_bytes 0')
    run.expect_no_copies(['model'])
    labels = [(stamp, int(label)) for stamp, label in run.lines(r'features (\d+): class (\d+) \(\w+\)')]
    if len(labels) != run.count:
        raise Failed(run.output[-6000:])
    for stamp, label in labels:
        wanted = scores_of(run.arrays[f'features-{stamp}'])
        scores = run.arrays[f'scores-{stamp}']
        if not np.allclose(scores, wanted, rtol=1e-4, atol=1e-6) or not np.isclose(wanted[label], wanted.max(), rtol=1e-4):
            raise Failed(f'features {stamp}: scores {scores} and class {label}, not {wanted}')
    expect_numbers(run, [label for _, label in labels])


def stages_on_a_gpu_copy_nothing_to_the_host(world):
    if not has_gpu():
        return 'no GPU'
    run = run_pictures(world, 'cuda:0', rust='false')
    run.expect_on_device()
    run.expect_no_copies(IN_CPP)
    return None


def path_with_standin(world):
    """LD_LIBRARY_PATH with the stand-in for libcuda in front; None if there is no stand-in."""
    standin = os.environ.get('STANDIN_CUDA')
    if not standin:
        return None
    folder = pathlib.Path(world.folder) / 'standin'
    folder.mkdir()
    # The stand-in under its own name; libcuda.so.1 is linked with it.
    os.symlink(os.path.abspath(standin), folder / 'libcuda.so')
    subprocess.run(['g++', '-std=c++17', '-shared', '-fPIC', ROOT / 'tests/ros/standin_kernels.cpp', '-o', folder / 'libcuda.so.1',
                    folder / 'libcuda.so', '-Wl,-rpath,$ORIGIN'], check=True)
    return f'{folder}:{os.environ["LD_LIBRARY_PATH"]}'


def stages_on_a_stand_in_for_a_gpu_copy_nothing_to_the_host(world):
    path = path_with_standin(world)
    if not path:
        return 'no stand-in for libcuda (STANDIN_CUDA)'
    before = os.environ['LD_LIBRARY_PATH']
    os.environ['LD_LIBRARY_PATH'] = path
    try:
        run = run_pictures(world, 'cuda:0', rust='false')
    finally:
        os.environ['LD_LIBRARY_PATH'] = before
    run.expect_on_device()
    run.expect_no_copies(IN_CPP)
    return None


ENDED_WELL = 'the launches of nodes have ended without an error'


def a_stage_that_is_missing_ends_the_pipeline_and_its_topics_are_named(world):
    host = world.host(settings=['device=host'])
    # No picture has this width: the component that rectifies is not loaded, and the camera runs on.
    launched = host.run('pictures', 'ros2', 'launch', 'rgaps_examples', 'pictures.launch.py', 'width:=0', 'timeout:=20.0')
    if launched.wait() == 0:
        raise Failed(f'it has ended well:\n{launched.output()[-4000:]}')
    if 'no image came within 20.0 s on image_rect, edges_0, edges_1' not in launched.output():
        raise Failed(f'no missing topic is named:\n{launched.output()[-4000:]}')


def last_line(launch):
    return launch.output().splitlines()[-1]


def expect_nothing_left_of(launch):
    end = time.monotonic() + SECONDS_MAX
    while left := left_behind(launch.output()):
        if time.monotonic() > end:
            raise Failed(f'left behind: {left}\n{launch.output()[-4000:]}')
        time.sleep(0.05)


def a_pipeline_over_two_hosts_sends_each_payload_once(world):
    if os.geteuid() != 0:
        return 'network namespaces need root'
    # One image of 640x480 mono8 has nine subscribers on the other host.
    arguments = {'pictures': (60, 'rate:=6.0', 'width:=640', 'height:=480'), 'clouds': (20, 'rate:=5.0'), 'tensors': (60, 'rate:=10.0')}
    for pipeline, (count, *more) in arguments.items():
        launch = world.run(pipeline, ['ros2', 'launch', 'rgaps_examples', f'{pipeline}_pair.launch.py', f'count:={count}', *more])
        launch.passes()
        said = launch.output()
        if f'frames {count} lost 0 mismatched 0' not in said or 'copied_bytes 0' not in said or not last_line(launch).endswith(ENDED_WELL):
            raise Failed(said[-6000:])
        expect_nothing_left_of(launch)
        if pipeline != 'pictures':
            continue
        if not re.search(r'path in place x \d+, tcp x \d+', said):
            raise Failed(said[-6000:])
        (received,) = re.findall(r"the second host's interface has received (\d+) B", said)
        raw = {path.stem: read_png(path).nbytes for path in DATA.glob('*.png')}
        each = sum(raw.values()) / len(raw) + 640 * 480
        # Images before all topics were known crossed, too; nine transfers of each rectified image would be more than three times as many bytes.
        if not count * each <= int(received) < 2 * count * each:
            raise Failed(f'{received} B were received, and {count} x {each} B viewed:\n{said[-6000:]}')
    return None


class Apart:
    """The two parts of a pipeline, launched apart on two hosts in network namespaces."""

    def __init__(self, world, pipeline, *arguments, publish=(), environment=None, static_peers=False):
        self.namespaces = world.pair_of_namespaces(is_routed=static_peers)
        more = {'publish': publish, 'subscribe': ()}
        self.runs = {}
        for part, namespace, peer in zip(more, self.namespaces, ('10.77.0.2', '10.77.0.1')):
            folder = os.path.join(world.folder, f'{part}-host')
            os.mkdir(folder, 0o700)
            by_peer = [] if static_peers else [f'peer:={peer}']
            command = ['ros2', 'launch', 'rgaps_examples', f'{pipeline}_{part}.launch.py', *by_peer, *arguments, *more[part]]
            by_ros = {'ROS_STATIC_PEERS': peer} if static_peers else {}
            own = {'RGAPS_RUNTIME_DIR': folder, **discovery('SUBNET'), **by_ros, **(environment or {} if part == 'publish' else {})}
            self.runs[part] = world.run(part, command, namespace, own)

    def passes(self):
        """Waits for the end of both, and returns what the subscribing part printed."""
        self.runs['subscribe'].passes()
        self.runs['publish'].process.send_signal(signal.SIGINT)
        self.runs['publish'].passes()
        return self.runs['subscribe'].output()

    def received_bytes(self):
        """What the subscribing host's interface has received."""
        command = ['nsenter', '-t', str(self.namespaces[1]), '-n', 'ip', '-json', '-stats', 'link', 'show', 'cable2']
        return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)[0]['stats64']['rx']['bytes']


def two_hosts_launched_apart_find_each_other_by_peer(world):
    if os.geteuid() != 0:
        return 'network namespaces need root'
    said = Apart(world, 'tensors', 'count:=30').passes()
    if 'frames 30 lost 0 mismatched 0' not in said:
        raise Failed(said[-6000:])
    return None


def two_hosts_without_multicast_find_each_other_by_static_peers_of_ros(world):
    """A router between them forwards no multicast."""
    if os.geteuid() != 0:
        return 'network namespaces need root'
    if os.environ.get('ROS_DISTRO') == 'humble' or world.rmw == 'rmw_zenoh_cpp':
        return 'the RMW does not use ROS_STATIC_PEERS'
    said = Apart(world, 'tensors', 'count:=30', static_peers=True).passes()
    if 'frames 30 lost 0 mismatched 0' not in said:
        raise Failed(said[-6000:])
    return None


def nothing_is_left_of_a_pair_of_nodes_that_was_killed(world):
    if os.geteuid() != 0:
        return 'network namespaces need root'
    launch = world.run('killed', ['ros2', 'launch', 'rgaps_examples', 'pictures_pair.launch.py', 'count:=0', 'rate:=6.0'])
    end = time.monotonic() + SECONDS_MAX
    while len(re.findall('connected over', launch.output())) < 2:
        if time.monotonic() > end or launch.process.poll() is not None:
            raise Failed(f'the hosts do not connect:\n{launch.output()[-4000:]}')
        time.sleep(0.05)
    launch.process.kill()
    expect_nothing_left_of(launch)
    return None


def kernels_on_one_host_feed_readers_in_three_languages_on_another(world):
    """Camera and rectifier on the stand-in for a GPU, which a manager that is told `cuda:0` does not do without; detectors in C++, Python and, if it is
    built, Rust on a host without a GPU."""
    if os.geteuid() != 0:
        return 'network namespaces need root'
    path = path_with_standin(world)
    if not path:
        return 'no stand-in for libcuda (STANDIN_CUDA)'
    folder = pathlib.Path(world.folder) / 'saved'
    if not has_rust_edges():
        print(f'skipped: {world.rmw} the detector in Rust: it is not built')
    count = 60
    pair = Apart(world, 'pictures', f'count:={count}', 'rate:=6.0', 'width:=640', 'height:=480', f'save:={folder}', publish=['device:=cuda:0'],
                 environment={'LD_LIBRARY_PATH': path})
    said = pair.passes()
    if f'frames {count} lost 0 mismatched 0' not in said or 'copied_bytes 0' not in said:
        raise Failed(said[-6000:])
    compare_pictures(folder, 3, 640, 480)
    raw = [read_png(path).nbytes for path in DATA.glob('*.png')]
    each, received = sum(raw) / len(raw) + 640 * 480, pair.received_bytes()
    # Nine nodes read each rectified picture there: nine transfers of it would be more than three times as many bytes.
    if not count * each <= received < 2 * count * each:
        raise Failed(f'{received} B were received, and {count} x {each} B viewed:\n{said[-6000:]}')
    return None


def nodes_by_name_run_on_two_hosts(world):
    launch = world.run('nodes', ['ros2', 'launch', 'rgaps', 'pair.launch.py', 'publish_nodes:=rgaps_examples/tensor_source',
                                 'subscribe_launch_file:=rgaps_examples tensors.launch.py part:=subscribe count:=20'])
    launch.passes()
    if 'frames 20 lost 0 mismatched 0' not in launch.output() or not last_line(launch).endswith(ENDED_WELL):
        raise Failed(launch.output()[-6000:])
    wrong = world.run('wrong', ['ros2', 'launch', 'rgaps', 'pair.launch.py', 'publish_nodes:=rgaps_examples/tensor_source',
                                'subscribe_nodes:=rgaps_examples/rgaps_examples::Voxel,rgaps_examples/no_such_node'])
    if wrong.wait() == 0 or "executable 'no_such_node' not found" not in wrong.output() or 'not all has ended well' not in last_line(wrong):
        raise Failed(f'a node that does not exist was no failure:\n{wrong.output()[-6000:]}')
    wrong = world.run('class', ['ros2', 'launch', 'rgaps', 'nodes.launch.py', 'nodes:=rgaps_examples/rgaps_examples::Vexel'])
    if wrong.wait() == 0 or 'has no component rgaps_examples::Vexel; it has rgaps_examples::' not in wrong.output():
        raise Failed(f'a component that does not exist was no failure:\n{wrong.output()[-6000:]}')


def expect_numbers(run, wanted):
    """Numbers received after discovery must be a contiguous part of the numbers published."""
    numbers = run.seen['numbers']
    places = range(len(wanted) - len(numbers) + 1)
    if not numbers or not any(wanted[place:place + len(numbers)] == numbers for place in places):
        raise Failed(f'{numbers} came of {wanted}')


TESTS = [eight_detectors_in_two_languages_read_every_image_in_place,
         detectors_in_cpp_python_and_rust_read_every_image, clouds_are_filtered_and_their_clusters_counted,
         tensors_pass_a_model_whose_scores_and_label_are_right, a_stage_that_is_missing_ends_the_pipeline_and_its_topics_are_named,
         a_pipeline_over_two_hosts_sends_each_payload_once, two_hosts_launched_apart_find_each_other_by_peer,
         two_hosts_without_multicast_find_each_other_by_static_peers_of_ros, nothing_is_left_of_a_pair_of_nodes_that_was_killed,
         kernels_on_one_host_feed_readers_in_three_languages_on_another, nodes_by_name_run_on_two_hosts,
         stages_on_a_stand_in_for_a_gpu_copy_nothing_to_the_host, stages_on_a_gpu_copy_nothing_to_the_host]


run_tests('pipelines', TESTS, RMWS, sys.argv[1:], first_domain=40)
