"""The build backend: builds `rgapsd`, puts it into the package beside the library that starts it, then calls maturin.

MATURIN_PEP517_ARGS has maturin's meaning; a `--profile NAME` in it also selects rgapsd's profile, so that the tests share cargo's folder.
"""

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import maturin
from maturin import get_requires_for_build_editable, get_requires_for_build_wheel
from maturin import prepare_metadata_for_build_editable, prepare_metadata_for_build_wheel

HERE = Path(__file__).resolve().parent.parent
RGAPSD = HERE / "python" / "rgaps" / "rgapsd"


def profile() -> str:
    arguments = shlex.split(os.environ.get("MATURIN_PEP517_ARGS", ""))
    for name, value in zip(arguments, arguments[1:] + [""]):
        if name == "--profile":
            return value
        if name.startswith("--profile="):
            return name.partition("=")[2]
    return "release"


def build_rgapsd() -> None:
    command = ["cargo", "build", "--locked", "-p", "rgaps-manager", "--bin", "rgapsd", "--profile", profile()]
    command += ["--message-format", "json-render-diagnostics"]
    told = subprocess.run(command, cwd=HERE, check=True, stdout=subprocess.PIPE, text=True).stdout
    programs = [json.loads(line).get("executable") for line in told.splitlines()]
    RGAPSD.unlink(missing_ok=True)
    shutil.copy2(next(program for program in programs if program), RGAPSD)
    if profile() == "release" and shutil.which("strip"):
        # Three quarters of the program are debug line numbers, which package users do not need.
        subprocess.run(["strip", "--strip-debug", RGAPSD], check=True)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    build_rgapsd()
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    build_rgapsd()
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory, config_settings=None):
    raise SystemExit("the package must be built from a clone of the repository: pip install ./crates/rgaps-py")
