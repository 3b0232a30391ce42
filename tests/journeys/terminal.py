"""A terminal in a folder: the command line in a process of its own, as a user calls it."""

import os
import sys
from functools import partial
from pathlib import Path

import torchvision_stub
from command_line import ENVIRONMENT, Command


def start(folder: Path, *words: str) -> Command:
    """Start ``marginattack …`` in a folder."""
    return Command([sys.executable, "-m", "marginattack", *words], ENVIRONMENT, partial(_enter, str(folder)))


def run(folder: Path, *words: str, code: int = 0) -> str:
    """Run ``marginattack …`` in a folder; its output, or its last line of errors if it should end with another code."""
    ended = start(folder, *words).wait()
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout if code == 0 else ended.stderr.splitlines()[-1]


def _enter(folder: str) -> None:
    os.chdir(folder)
    torchvision_stub.install()
