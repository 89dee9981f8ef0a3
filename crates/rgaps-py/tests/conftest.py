"""Shared fixtures: each test gets its own manager, and its programs end with it."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

# Long enough for a busy machine; a test that takes longer hangs.
LONG = 60.0

REPOSITORY = Path(__file__).resolve().parents[3]

# A shell ignores SIGINT for background jobs, and child processes inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def users_of(folder):
    """Processes other than this one that have a file in the folder open, or are bound to a socket in it."""
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        try:
            if any(os.readlink(file).startswith(folder) for file in (process / "fd").iterdir()):
                yield int(process.name)
        except OSError:
            continue  # The process has ended, or belongs to another user.


@pytest.fixture(autouse=True)
def runtime_dir(monkeypatch):
    """A host of the test's own."""
    # Short: a socket's path has at most 107 bytes.
    folder = tempfile.mkdtemp(prefix="rgaps-py-")
    for name in list(os.environ):
        if name.startswith("RGAPS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("RGAPS_RUNTIME_DIR", folder)
    monkeypatch.setenv("RGAPS_NETWORK", "local")
    monkeypatch.setenv("RGAPS_DEVICE", "host")
    yield folder
    for process in users_of(folder):
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            pass
    shutil.rmtree(folder, ignore_errors=True)


class Program:
    """A Python program that exchanges lines of text with the test."""

    def __init__(self, source, *arguments, **environment):
        command = [sys.executable, "-c", textwrap.dedent(source), *map(str, arguments)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={**os.environ, **environment},
        )

    def line(self):
        """The next line it prints; fails with its errors if it prints no more."""
        line = self.process.stdout.readline()
        assert line, f"it ended with {self.process.wait(LONG)}: {self.process.stderr.read()}"
        return line.rstrip("\n")

    def tell(self, line=""):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def kill(self):
        self.process.kill()
        self.process.wait(LONG)

    def end(self):
        """Waits for its end; returns its remaining output."""
        said, errors = self.process.communicate(timeout=LONG)
        assert self.process.returncode == 0, f"{self.process.returncode}: {errors}"
        return said


@pytest.fixture
def program():
    """Starts programs, and ends those that still run after the test."""
    started = []

    def start(source, *arguments, **environment):
        started.append(Program(source, *arguments, **environment))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.kill()
        for pipe in (one.process.stdin, one.process.stdout, one.process.stderr):
            pipe.close()


def pytest_runtest_logreport(report):
    """Records skipped tests, so that `./dev test` names them again at its end."""
    names = os.environ.get("SKIPPED_TESTS_LIST")
    if report.skipped and names:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        with open(names, "a", encoding="utf-8") as file:
            file.write(f"skipped: {report.nodeid.rpartition('::')[2]}: {reason.removeprefix('Skipped: ')}\n")
