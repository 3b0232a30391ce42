"""Interruptions and typos: Ctrl-C keeps what was measured, and a wrong word gets one line that names the right one."""

import signal
import time
from pathlib import Path

import pytest
import terminal
from run_folders import MODELS, data

import marginattack as ma


def test_ctrl_c_and_the_same_command_again(tmp_path: Path) -> None:
    data(tmp_path / "data.npz", 24)
    words = ["measure", "--model", f"{MODELS}:slow", "--data", "data.npz", "--attack", "marginattack",
             "--set", "attack.marginattack.moves=20", "--shard", "4", "--batch", "4", "--out", "run"]  # fmt: skip
    first = terminal.start(tmp_path, *words)
    while not (shards := sorted((tmp_path / "run/margins").glob("*/*.parquet"))) and first.poll() is None:
        time.sleep(0.02)
    first.send_signal(signal.SIGINT)
    ended = first.wait()
    assert ended.returncode == 130, ended.stderr
    assert ended.stderr.splitlines()[-1].endswith("Interrupted. Run the same command again to resume.")
    stamps = {shard: shard.stat().st_mtime_ns for shard in shards}
    assert "Partial: " in terminal.run(tmp_path, "report", "run", "--text")
    assert "Verified 24 stored rows; 0 failed." in terminal.run(tmp_path, *words)
    assert len(ma.Margins.load(tmp_path / "run")) == 24
    assert {shard: shard.stat().st_mtime_ns for shard in shards} == stamps  # kept, not measured again


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        (["--model", "zoo:mnist-cn"], "mnist-cnn"), (["--model", "mnist-cnn"], "zoo:mnist-cnn"),
        (["--model", "absent.onnx"], "no file absent.onnx"), (["--data", "samples:mnst"], "mnist"),
        (["--data", "test.npzz"], "FILE.npz"), (["--norm", "l3"], "l2"), (["--attack", "rac"], "race"),
        (["--set", "atack.race.passes=3"], "attack"), (["--set", "data.limt=3"], "limit"),
        (["--sample", "3", "--limit", "4"], "--limit"), (["--layout", "nchw"], "--layout nchw does not apply"),
        (["--bounds", "0,1"], "--bounds 0,1 does not apply"), (["--strip-softmax"], "--strip-softmax applies to .onnx"),
        (["--classes", "names.txt"], "--classes names.txt: no such file"), (["--lmit", "3"], "--limit"),
    ],
)  # fmt: skip
def test_typos(tmp_path: Path, wrong: list[str], right: str) -> None:
    words = {"--model": "zoo:mnist-cnn", "--data": "samples:mnist", "--out": "run"}
    given = [part for option, value in words.items() if option not in wrong for part in (option, value)]
    line = terminal.refused(tmp_path, "measure", *given, *wrong)
    assert line.count("\n") == 0
    assert right in line
    assert not (tmp_path / "run").exists()
