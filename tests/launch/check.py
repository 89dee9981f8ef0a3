"""Every launch file is valid Python and, where ROS 2's launch is at hand, makes its description; else that is skipped by name."""

import pathlib
import runpy
import sys

FOLDER = pathlib.Path(__file__).resolve().parents[2] / 'launch'


def main():
    files = sorted(FOLDER.glob('*.launch.py'))
    if not files:
        sys.exit(f'no launch files in {FOLDER}')
    sys.dont_write_bytecode = True
    try:
        from launch import LaunchDescription  # PyPI's package of this name is unrelated and has none.
    except ImportError:
        LaunchDescription = None
    for file in files:
        compile(file.read_text(), file, 'exec')
        if LaunchDescription is None:
            print(f'skipped: {file.name} as a launch description: no ROS 2 environment')
            continue
        description = runpy.run_path(str(file))['generate_launch_description']()
        assert isinstance(description, LaunchDescription), file
        arguments = [argument.name for argument in description.get_launch_arguments()]
        for wanted in ('topics', 'transport', 'device'):
            assert wanted in arguments, f'{file}: no argument {wanted}'
        print(f'{file.name}: {" ".join(arguments)}')


main()
