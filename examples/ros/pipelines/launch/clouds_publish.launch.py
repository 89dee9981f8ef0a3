"""This host has the source of clouds; clouds_subscribe.launch.py runs on the other.

    ros2 launch rgaps_examples clouds_publish.launch.py peer:=10.0.0.2
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from pipeline import host_launch_description  # noqa: E402


def generate_launch_description():
    return host_launch_description('publish_host.launch.py', 'clouds', 'publish')
