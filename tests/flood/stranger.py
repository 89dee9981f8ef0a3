"""Floods the network with announcements and withdrawals, with PyPI's zenoh.

usage: stranger.py LOCATOR SECONDS AT_A_TIME < KEYS

Repeatedly declares a liveliness token for each key on standard input, one a line; AT_A_TIME tokens exist at once. Prints "flooding" once it begins,
and after each few how many tokens it has declared and withdrawn.
"""

import collections
import sys
import time

import zenoh

locator, seconds, at_a_time = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
keys = sys.stdin.read().split()
config = zenoh.Config()
config.insert_json5("mode", '"peer"')
config.insert_json5("scouting/multicast/enabled", "false")
config.insert_json5("listen/endpoints", '["tcp/127.0.0.1:0"]')
config.insert_json5("connect/endpoints", f'["{locator}"]')
with zenoh.open(config) as session:
    print("flooding", flush=True)
    tokens, changes, until = collections.deque(), 0, time.monotonic() + seconds
    while time.monotonic() < until:
        for key in keys[changes % len(keys) :][:64]:
            tokens.append(session.liveliness().declare_token(key))
            changes += 1
            if len(tokens) > at_a_time:
                tokens.popleft().undeclare()
                changes += 1
        print(changes, flush=True)
