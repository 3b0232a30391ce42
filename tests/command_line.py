"""The command line in a process of its own, forked from one that has imported what commands need: that takes seconds.

The forked processes import neither pytest nor the hook that checks types.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload([
    "__main__", "marginattack.cli", "marginattack.report.text", "marginattack.runs.engines.serial",
    "marginattack.runs.run", "pandas", "rich.console", "s3fs", "scipy.stats", "torch.fx.experimental.symbolic_shapes",
    "upath",
])  # fmt: skip


class Command:
    """A running command, with those methods of ``subprocess.Popen`` that the tests use."""

    def __init__(
        self, arguments: list[str], env: dict[str, str] = ENVIRONMENT, first: Callable[[], object] | None = None
    ) -> None:
        """Start ``python -m marginattack ...`` after calling ``first`` in its process."""
        assert arguments[:3] == [sys.executable, "-m", "marginattack"]
        self._folder = tempfile.TemporaryDirectory()
        self._files = [str(Path(self._folder.name) / name) for name in ("stdout", "stderr")]
        self._process = _SERVER.Process(target=_main, args=(arguments[3:], env, first, self._files))
        self._process.start()

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        """Its exit code, once it has ended."""
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        """Wait until it ends; its exit code and output."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            self._process.kill()
            raise TimeoutError(f"not ended after {timeout} s")
        output = [Path(file).read_text() if Path(file).exists() else "" for file in self._files]
        self._folder.cleanup()
        return subprocess.CompletedProcess([], self._process.exitcode, *output)


def _main(words: list[str], env: dict[str, str], first: Callable[[], object] | None, files: list[str]) -> None:
    for number, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(env)
    torch.set_num_threads(int(env["OMP_NUM_THREADS"]))  # which torch has read in the server
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    sys.argv = ["marginattack", *words]
    if first:
        first()
    from marginattack.cli import app

    app()
