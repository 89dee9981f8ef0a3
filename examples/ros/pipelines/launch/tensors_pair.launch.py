"""Two hosts on this machine: the source of features on one, the model on the other.

    ros2 launch rgaps_examples tensors_pair.launch.py count:=60
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from pipeline import host_launch_description  # noqa: E402


def generate_launch_description():
    return host_launch_description('pair.launch.py', 'tensors', 'publish', 'subscribe')
