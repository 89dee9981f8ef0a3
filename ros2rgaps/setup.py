"""The command `ros2 rgaps`."""

from setuptools import setup

setup(
    name='ros2rgaps',
    version='0.1.0',
    packages=['ros2rgaps', 'ros2rgaps.command'],
    data_files=[('share/ament_index/resource_index/packages', ['resource/ros2rgaps']), ('share/ros2rgaps', ['package.xml'])],
    install_requires=['setuptools', 'ros2cli'],
    zip_safe=True,
    description='The command `ros2 rgaps`: topics, hosts and problems of RGAPS, with the tools of ROS 2.',
    license='Apache-2.0',
    entry_points={'ros2cli.command': ['rgaps = ros2rgaps.command.rgaps:RgapsCommand']},
)
