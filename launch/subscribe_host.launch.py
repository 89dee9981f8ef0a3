"""The subscribing host: its manager, and `subscribers` times `rgaps sub` for each topic once the manager serves.

ros2 launch rgaps subscribe_host.launch.py topics:=camera/front subscribers:=8 peer:=10.0.0.1
"""

import os
import sys

from launch import LaunchDescription

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from rgaps_hosts import ADDRESS_ARGUMENTS, HOST_ARGUMENTS, Host, QOS_ARGUMENTS, SUBSCRIBE_ARGUMENTS, TOPICS, setup  # noqa: E402


def host(settings, report):
    host = Host(settings, report)
    return host.run(host.subscribers)


def generate_launch_description():
    return LaunchDescription([TOPICS, *SUBSCRIBE_ARGUMENTS, *QOS_ARGUMENTS, *HOST_ARGUMENTS, *ADDRESS_ARGUMENTS, setup(host)])
