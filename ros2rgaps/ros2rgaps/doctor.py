"""What `ros2 doctor` checks and reports of RGAPS: problems of this machine, other hosts, and the topics with their links and lost messages."""

import json
import os
import subprocess

from ros2doctor.api import DoctorCheck, DoctorReport, Report, Result
from ros2doctor.api.format import doctor_error, doctor_warn

SECONDS_MAX = 30
TOPICS = ('topic', 'list', '--include-hidden-topics')


def rgaps_json(*arguments):
    """The document that `rgaps ... --json` prints; its exit status says only whether there are problems."""
    try:
        done = subprocess.run(['rgaps', *arguments, '--json'], capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
                              env={**os.environ, 'RGAPS_AUTOSTART': '0'})
    except FileNotFoundError:
        raise RuntimeError('rgaps is not in PATH; source the workspace in which the package rgaps is built') from None
    except subprocess.TimeoutExpired:
        raise RuntimeError(f'rgaps {" ".join(arguments)} did not answer within {SECONDS_MAX} s') from None
    try:
        return json.loads(done.stdout)
    except json.JSONDecodeError:
        raise RuntimeError(f'rgaps {" ".join(arguments)}: {done.stderr.strip() or "no output"}') from None


def has_manager(lines):
    """Whether a manager runs, by what `rgaps doctor` found. A check must not start one."""
    return not any(line['what'] == 'manager' and line['found'].startswith('none runs') for line in lines)


def name_of(topic):
    return f'{topic["key"]["name"]} in domain {topic["key"]["domain"]}'


class RgapsCheck(DoctorCheck):
    """Problems that `rgaps doctor` finds, endpoints that do not match, and lost messages."""

    def category(self):
        return 'rgaps'

    def check(self):
        result = Result()
        try:
            self._check(result)
        except RuntimeError as error:
            doctor_error(str(error))
            result.add_error()
        return result

    def _check(self, result):
        lines = rgaps_json('doctor')
        for line in lines:
            if line['verdict'] == 'broken':
                doctor_error(f'RGAPS, {line["what"]}: {line["found"]}; {line["remedy"]}')
                result.add_error()
        for topic in rgaps_json(*TOPICS) if has_manager(lines) else []:
            for mismatch in topic['mismatches']:
                doctor_warn(f'RGAPS, {name_of(topic)}: {mismatch}')
                result.add_warning()
            if topic['lost']:
                doctor_warn(f'RGAPS, {name_of(topic)}: subscribers of this host have lost {topic["lost"]} messages')
                result.add_warning()


class RgapsReport(DoctorReport):
    """Other hosts, and for each topic its hosts, links and lost messages."""

    def category(self):
        return 'rgaps'

    def report(self):
        report = Report('RGAPS')
        try:
            self._report(report)
        except RuntimeError as error:
            report.add_to_report('error', str(error))
        return report

    def _report(self, report):
        lines = rgaps_json('doctor')
        report.add_to_report('manager', 'runs' if has_manager(lines) else 'none runs')
        for line in lines:
            if line['verdict'] != 'ok':
                report.add_to_report(line['what'], f'{line["verdict"]}: {line["found"]}; {line["remedy"]}')
        hosts, topics = (rgaps_json('hosts'), rgaps_json(*TOPICS)) if has_manager(lines) else ([], [])
        report.add_to_report('other hosts', ', '.join(hosts) or 'none')
        for topic in topics:
            report.add_to_report('topic', f'{name_of(topic)} ({topic["type_name"]})')
            report.add_to_report('publishers here', topic['publishers'])
            report.add_to_report('subscribers here', topic['subscribers'])
            report.add_to_report('publishing hosts', ', '.join(topic['publishing_hosts']) or 'none')
            report.add_to_report('subscribing hosts', ', '.join(topic['subscribing_hosts']) or 'none')
            for link in topic['links']:
                report.add_to_report('link', link)
            report.add_to_report('messages lost here', topic['lost'])
