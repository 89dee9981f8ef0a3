"""The publishing host: its manager, and one `rgaps pub` for each topic once the manager serves.

ros2 launch rgaps publish_host.launch.py topics:=camera/front,camera/back input:=pictures peer:=10.0.0.2
"""

import os
import sys

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from rgaps_hosts import ADDRESS_ARGUMENTS, HOST_ARGUMENTS, Host, PUBLISH_ARGUMENTS, QOS_ARGUMENTS, TOPICS, setup  # noqa: E402

INPUT = DeclareLaunchArgument('input', description='A PNG, JPEG, PCD, PLY or NPY file, or a folder of them.')


def host(settings, report):
    host = Host(settings, report)
    return host.run(host.publishers)


def generate_launch_description():
    return LaunchDescription([TOPICS, INPUT, *PUBLISH_ARGUMENTS, *QOS_ARGUMENTS, *HOST_ARGUMENTS, *ADDRESS_ARGUMENTS, setup(host)])
