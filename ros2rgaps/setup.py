"""The command `ros2 rgaps`, and what `ros2 doctor` checks and reports of RGAPS."""

from setuptools import setup

setup(
    name='ros2rgaps',
    version='0.1.0',
    packages=['ros2rgaps', 'ros2rgaps.command'],
    data_files=[('share/ament_index/resource_index/packages', ['resource/ros2rgaps']), ('share/ros2rgaps', ['package.xml'])],
    install_requires=['setuptools', 'ros2cli'],
    zip_safe=True,
    description='Topics, hosts and problems of RGAPS with the tools of ROS 2: `ros2 rgaps`, and checks and a report of `ros2 doctor`.',
    license='Apache-2.0',
    entry_points={
        'ros2cli.command': ['rgaps = ros2rgaps.command.rgaps:RgapsCommand'],
        'ros2doctor.checks': ['RgapsCheck = ros2rgaps.doctor:RgapsCheck'],
        'ros2doctor.report': ['RgapsReport = ros2rgaps.doctor:RgapsReport'],
    },
)
