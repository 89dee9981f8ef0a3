"""The subscribing host: its manager and, once that serves, ROS nodes, a launch file, or `subscribers` times `rgaps sub` for each topic.

ros2 launch rgaps subscribe_host.launch.py nodes:=my_detector/detector,my_viewer/viewer
ros2 launch rgaps subscribe_host.launch.py topics:=camera/front subscribers:=8 peer:=10.0.0.1

If multicast does not reach the other host, set ROS_STATIC_PEERS on both; `peer` is for the managers alone (docs/launch.md).
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from rgaps_hosts import (ADDRESS_ARGUMENTS, HOST_ARGUMENTS, Host, QOS_ARGUMENTS, SUBSCRIBE, SUBSCRIBE_ARGUMENTS, TOPICS,  # noqa: E402
                         described, node_arguments)


def host(settings, report):
    host = Host(settings, report)
    return host.run(host.clients(SUBSCRIBE))


def generate_launch_description():
    return described(__file__, [*node_arguments(), TOPICS, *SUBSCRIBE_ARGUMENTS, *QOS_ARGUMENTS, *HOST_ARGUMENTS, *ADDRESS_ARGUMENTS], host)
