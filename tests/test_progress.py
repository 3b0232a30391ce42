"""Progress of a run: shards that take seconds, what an interrupt loses, and what is said meanwhile."""

import json
import re
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import Command
from run_folders import call, data
from run_models import Small
from typer.testing import CliRunner

import marginattack as ma
from marginattack.cli import app
from marginattack.cli.common import Display
from marginattack.runs import pace
from marginattack.storage.run_folder import RunFolder

MODEL = f"{Path(__file__)}:slow"


class SlowSmall(Small):
    """The small network, with a forward pass that takes 0.5 ms per image."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        time.sleep(0.0005 * len(images))
        return super().forward(images)


def slow() -> torch.nn.Module:
    """For the command line."""
    return SlowSmall().eval()


def impatient() -> None:
    """Let shards take a fraction of a second, instead of seconds."""
    pace.SHARD["cpu"], pace.PASS = 0.2, 0.0


def patient() -> None:
    """Let them take minutes."""
    pace.SHARD["cpu"] = 100.0


def measure(folder: Path, out: str, *more: str) -> list[str]:
    source = ["--model", MODEL, "--data", str(folder / "data.npz"), "--budget", "40", "--out", str(folder / out)]
    return [sys.executable, "-m", "marginattack", "measure", *source, *more]


def test_an_interrupt_loses_one_short_shard_and_its_size_is_kept(tmp_path: Path) -> None:
    data(tmp_path / "data.npz", 64)
    running = Command(measure(tmp_path, "run"), first=impatient)
    while not list((tmp_path / "run").glob("margins/*/part-*.parquet")):
        assert running.poll() is None
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    assert running.wait().returncode == 130
    stopped = RunFolder(tmp_path / "run")
    assert stopped.manifest["shard"] <= 16  # 40 passes of 16 samples take 0.2 s or more
    assert 0 < len(stopped.finished()) < len(stopped.shards)
    assert call(measure(tmp_path, "run"), first=patient).returncode == 0
    assert RunFolder(tmp_path / "run").manifest["shard"] == stopped.manifest["shard"]
    assert call(measure(tmp_path, "whole", "--shard", "512")).returncode == 0
    found, expected = (ma.Margins.load(tmp_path / name).distance for name in ("run", "whole"))
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("seconds", "budget", "size"),
    [(0.000375, None, 32), (0.1, None, 1), (1e-7, None, 512), (0.000375, 10_000, 16)],
)
def test_shards_take_seconds_or_fill_an_efficient_batch(
    seconds: float, budget: int | None, size: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from marginattack.core.classifier import Classifier
    from marginattack.execution.session import open_session
    from marginattack.runs.job import open_job
    from marginattack.runs.settings import read_settings

    monkeypatch.setattr(pace, "seconds_per_pass", lambda job, session: seconds)
    job = open_job(read_settings(None, [], {"model": "zoo:mnist-cnn", "data": "samples:mnist", "budget": budget}))
    with open_session(Classifier(job.model.module)) as session, Display().log():
        assert pace.choose_shard(job, session) == size
    expected = f"about {seconds * (budget or 400) * 1000 / 60:.1f} min, by the time of a few passes\n"
    assert capsys.readouterr().err == (f"marginattack: {expected}" if size < 512 else "")


def test_the_expected_time_is_told_with_shards_of_a_stated_size_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    data(tmp_path / "data.npz", 8)
    monkeypatch.setattr(pace, "seconds_per_pass", lambda job, session: 0.05)
    source = ["measure", "--model", MODEL, "--data", str(tmp_path / "data.npz"), "--budget", "40", "--shard", "8"]
    _, err = cli(*source, "--out", str(tmp_path / "run"))
    assert err.splitlines()[0] == "marginattack: about 16 s, by the time of a few passes"  # 40 passes of 8 samples
    assert re.search(r"measuring 8/8, [\d.,]+/s", err)


def cli(*arguments: str) -> tuple[str, str]:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def test_findings_are_shown_once_and_quiet_and_verbose_say_less_and_more(tmp_path: Path) -> None:
    with np.load(data(tmp_path / "data.npz", 64)) as arrays:
        np.savez(tmp_path / "wrong.npz", x=arrays["x"], y=(arrays["y"] + 1) % 4)
    source = ["measure", "--model", MODEL, "--data", str(tmp_path / "wrong.npz"), "--despite-findings", "--budget", "4"]
    refused = CliRunner().invoke(app, [*source[:5], "--out", str(tmp_path / "refused")])
    assert (refused.exit_code, refused.stderr.count("labels-order"), refused.stderr.count("\n")) == (2, 1, 1)
    out, err = cli(*source, "--out", str(tmp_path / "loud"), "--verbose")
    assert ("labels-order" in out, err.count("labels-order")) == (False, 1)
    assert "marginattack: 64 of 64 samples of" in err
    assert "marginattack: race l2: shard 1 of" in err
    out, err = cli(*source, "--out", str(tmp_path / "loud"), "-q")
    assert (out.count("labels-order"), err) == (1, "")
    out, err = cli(*source, "--out", str(tmp_path / "loud"), "-q", "--json")
    assert json.loads(out)["findings"][0]["code"] == "labels-order"


def test_the_last_line_of_a_log_tells_the_throughput(capsys: pytest.CaptureFixture[str]) -> None:
    for quiet in (True, False):
        with Display(quiet=quiet).progress("margins", 8) as advance:
            advance(8)
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"marginattack: margins 8/8, [\d.,]+/s after 0 s", line)
