"""The publishing host: its manager and, once that serves, ROS nodes, a launch file, or one `rgaps pub` for each topic.

ros2 launch rgaps publish_host.launch.py nodes:=my_camera/driver
ros2 launch rgaps publish_host.launch.py launch_file:='my_robot cameras.launch.py rate:=15.0'
ros2 launch rgaps publish_host.launch.py topics:=camera/front,camera/back input:=pictures peer:=10.0.0.2

If multicast does not reach the other host, set ROS_STATIC_PEERS on both; `peer` is for the managers alone (docs/launch.md).
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from rgaps_hosts import (ADDRESS_ARGUMENTS, HOST_ARGUMENTS, Host, PUBLISH, PUBLISH_ARGUMENTS, QOS_ARGUMENTS, TOPICS, argument,  # noqa: E402
                         described, node_arguments)

INPUT = argument('input', '', 'For `rgaps pub`: a PNG, JPEG, PCD, PLY or NPY file, or a folder of them.')


def host(settings, report):
    if not any(settings[name] for name in ('nodes', 'launch_file', 'input')):
        raise RuntimeError('there is nothing to publish: give nodes, launch_file, or input')
    host = Host(settings, report)
    return host.run(host.clients(PUBLISH))


def generate_launch_description():
    return described(__file__, [*node_arguments(), TOPICS, INPUT, *PUBLISH_ARGUMENTS, *QOS_ARGUMENTS, *HOST_ARGUMENTS, *ADDRESS_ARGUMENTS], host)
