#!/usr/bin/env python3
"""Loads and unloads a component in a container process while samples arrive on /samples, and checks that the process leaks no resources.

usage: component_cycles.py PID converter|bridge
"""

import os
import sys
import time

import rclpy
from composition_interfaces.srv import LoadNode, UnloadNode
from rclpy.node import Node
from rclpy.parameter import Parameter
from sensor_msgs.msg import Image

SECONDS_MAX = 60
# The first cycles load libraries and grow thread pools.
WARM, CYCLES = 5, 20


# Plugin, remapping and the topic of pictures.
COMPONENTS = {'converter': ('rgaps_ros::Converter', ['in:=/samples', 'out:=/pictures'], '/pictures'), 'bridge': ('rgaps_ros::Bridge', [], '/samples/cpu')}


class Cycles(Node):
    def __init__(self, pid, component):
        super().__init__('cycles')
        self.pid = pid
        self.plugin, self.remapping, self.pictures = COMPONENTS[component]
        self.came = 0
        self.loads = self.create_client(LoadNode, '/ComponentManager/_container/load_node')
        self.unloads = self.create_client(UnloadNode, '/ComponentManager/_container/unload_node')
        for client in (self.loads, self.unloads):
            if not client.wait_for_service(SECONDS_MAX):
                sys.exit('there is no container')

    def until(self, is_so, what):
        end = time.monotonic() + SECONDS_MAX
        while not is_so():
            if time.monotonic() > end:
                sys.exit(f'{what}: not in time')
            rclpy.spin_once(self, timeout_sec=0.05)

    def ask(self, client, request):
        future = client.call_async(request)
        self.until(future.done, client.srv_name)
        if not future.result().success:
            sys.exit(future.result().error_message)
        return future.result()

    def cycle(self):
        """Loads the component, lets it convert, and unloads it in the middle of that."""
        request = LoadNode.Request(package_name='rgaps_ros', plugin_name=self.plugin, remap_rules=self.remapping)
        request.extra_arguments = [Parameter('use_intra_process_comms', value=True).to_parameter_msg()]
        loaded = self.ask(self.loads, request)
        before = self.came
        self.until(lambda: self.came > before + 2, 'pictures')
        self.ask(self.unloads, UnloadNode.Request(unique_id=loaded.unique_id))
        self.until(lambda: self.count_publishers(self.pictures) == 0 and self.count_subscribers('/samples') == 0, 'the end of the component')

    def has(self):
        return {what: len(os.listdir(f'/proc/{self.pid}/{what}')) for what in ('fd', 'task')}

    def look(self, _):
        self.came += 1

    def run(self):
        self.create_subscription(Image, self.pictures, self.look, 10)
        for _ in range(WARM):
            self.cycle()
        before = self.has()
        for _ in range(CYCLES):
            self.cycle()
        # Middleware threads may end a moment later.
        self.until(lambda: all(now <= before[what] for what, now in self.has().items()), f'what the container has left: {before}, then {self.has()}')
        print(f'{CYCLES} components came and went: {before}, then {self.has()}')


def main():
    rclpy.init()
    Cycles(int(sys.argv[1]), sys.argv[2]).run()


if __name__ == '__main__':
    main()
