#!/usr/bin/env python3
"""Checks what colcon finds in a workspace that has this repository in its `src`: all of its ROS packages and nothing else.

    check.py COLCON ...

runs each of these programs in an empty workspace with a copy of the files that git tracks or would add. Also checks the manifests.
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]

# All ROS packages.
PACKAGES = {'rgaps', 'rgaps_buffer_backend', 'rgaps_examples', 'rgaps_examples_rust', 'rgaps_msgs', 'rgaps_ros', 'rgaps_image_transport', 'rmw_rgaps',
            'ros2rgaps'}
GROUPS = {'rgaps_msgs': 'rosidl_interface_packages', 'rmw_rgaps': 'rmw_implementation_packages'}


def files():
    """The files of a clone, and new ones."""
    command = ['git', '-C', str(ROOT), 'ls-files', '-z', '--cached', '--others', '--exclude-standard']
    names = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split('\0')
    return [name for name in names if name and (ROOT / name).is_file()]


def manifest(path):
    """The package's name and build type; checks the manifest's required parts."""
    package = xml.etree.ElementTree.parse(path).getroot()
    name = package.findtext('name')
    for wanted in ('version', 'description', 'maintainer', 'license', 'export/build_type'):
        assert package.findtext(wanted), f'{path}: no {wanted}'
    assert package.find('maintainer').get('email'), f'{path}: the maintainer has no address'
    assert package.findtext('license') == 'Apache-2.0', path
    group = GROUPS.get(name)
    groups = [element.text for element in package.findall('member_of_group')]
    assert groups == ([group] if group else []), f'{path}: member of {groups}'
    return name, package.findtext('export/build_type')


def listed(colcon, workspace):
    """Lines of `colcon list`: name, path, type. Any other output indicates an error in this repository."""
    done = subprocess.run([colcon, '--log-base', '/dev/null', 'list'], cwd=workspace, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, f'{colcon} list: {done.stderr}'
    return [line.split('\t') for line in done.stdout.splitlines()]


def main():
    colcons = sys.argv[1:]
    if not colcons:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory(prefix='rgaps-colcon-') as folder:
        workspace = pathlib.Path(folder)
        clone = workspace / 'src' / 'rgaps'
        for name in files():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, clone / name)
        wanted = {}
        for path in sorted(clone.rglob('package.xml')):
            name, build_type = manifest(path)
            assert name not in wanted, f'two packages {name}'
            wanted[name] = [str(path.parent.relative_to(workspace)), f'(ros.{build_type})']
        assert set(wanted) == PACKAGES, sorted(wanted)
        for colcon in colcons:
            # In the workspace, and in the repository itself.
            for place, prefix in ((workspace, ''), (clone, 'src/rgaps/')):
                found = listed(colcon, place)
                assert sorted([name, prefix + path, kind] for name, path, kind in found) \
                    == sorted([name, *place] for name, place in wanted.items()), f'{colcon}: {found}'
        print(f'colcon lists {" ".join(sorted(wanted))}, asked {len(colcons)} ways')


main()
