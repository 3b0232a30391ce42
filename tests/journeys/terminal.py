"""A terminal in a folder: the command line in a process of its own, as a user calls it."""

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torchvision_stub
from command_line import ENVIRONMENT, Command
from typer.testing import CliRunner

from marginattack.cli import app


def start(folder: Path, *words: str) -> Command:
    """Start ``marginattack …`` in a folder."""
    return Command([sys.executable, "-m", "marginattack", *words], ENVIRONMENT, partial(_enter, str(folder)))


def run(folder: Path, *words: str) -> str:
    """Run ``marginattack …`` in a folder; its output."""
    ended = start(folder, *words).wait()
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def refused(folder: Path, *words: str) -> str:
    """The line of errors of a command that is refused; in this process, which takes less time."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        ended = CliRunner().invoke(app, words)
    finally:
        os.chdir(before)
    assert ended.exit_code == 2, ended.output
    return ended.stderr.strip()


def read(run: Path, kind: str) -> Any:
    """The ``margins`` or ``images`` of a run, as a pyarrow Table."""
    files = sorted((run / kind).glob("*/part-*.parquet"))
    return pa.concat_tables(pq.read_table(file).replace_schema_metadata(None) for file in files)


def _enter(folder: str) -> None:
    os.chdir(folder)
    torchvision_stub.install()
