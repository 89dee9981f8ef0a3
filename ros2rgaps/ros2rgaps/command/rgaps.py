"""`ros2 rgaps VERB ...` runs the program `rgaps VERB ...`, of which it has the verbs that show something."""

import argparse
import os
import signal
import subprocess

from ros2cli.command import CommandExtension

VERBS = {
    'topic': 'topics and their traffic: list, info, hz, bw, latency',
    'hosts': 'other hosts and their topics',
    'doctor': 'what this machine offers, and what to do about each problem',
}


class RgapsCommand(CommandExtension):
    """Various RGAPS related sub-commands."""

    def add_arguments(self, parser, cli_name, *, argv=None):
        """The verb, and everything after it."""
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = 'verbs:\n' + '\n'.join(f'  {verb:<8}{text}' for verb, text in VERBS.items())
        parser.add_argument('verb', choices=list(VERBS), metavar='VERB')
        parser.add_argument('arguments', nargs=argparse.REMAINDER, metavar='...', help='arguments of the verb; --help shows them')

    def main(self, *, parser, args):
        """Runs the program, and returns its exit status."""
        command = ['rgaps', args.verb, *args.arguments]
        try:
            # Started here, a manager would be closed to other hosts, and nodes that start soon after would use it.
            environment = {} if args.verb == 'doctor' else {'RGAPS_AUTOSTART': '0'}
            process = subprocess.Popen(command, env={**os.environ, **environment})
        except FileNotFoundError:
            return 'rgaps is not in PATH; source the workspace in which the package rgaps is built'
        try:
            status = process.wait()
        except KeyboardInterrupt:
            try:
                status = process.wait(1)  # A terminal has interrupted both.
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
                status = process.wait()
        return status if status >= 0 else 128 - status
