"""The benchmark of a release: its cases, with small stand-ins for the networks, and what it says about the bars."""

import argparse
import json
import subprocess
import sys
from math import nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from marginattack.execution import probe
from marginattack.execution import threads as parallel

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import bars
import record as records
import speed
import threads


def test_every_network_of_timm_is_a_case() -> None:
    networks = {case.partition(":")[0] for case in speed.CASES["cuda"]} & set(speed.RANDOM)
    assert set(bars.BATCHES) == set(speed.RANDOM) == networks
    sizes = {f"{name}:{batch}" for name, batch in bars.BATCHES.items()}
    assert sizes <= set(speed.CASES["cuda"])
    assert bars.cases() == [*bars.COLD, *(f"{name}:{batch}" for name, batch in bars.BATCHES.items())]


def timed(name: str, rounds: list[float], memory: int = 0) -> dict[str, Any]:
    return {"name": name, "ms": rounds[0], "rounds": rounds, "MiB": memory}


def test_figures_are_ratios_within_a_round_to_the_fastest_other_library_and_to_the_bare_model() -> None:
    rows = [
        timed("bare plain float32", [9.0, 9.0, 9.0], 100), timed("bare graph float32", [8.0, 8.0, 8.0]),
        timed("bare graph bf16", [4.0, 2.0, 4.0]), timed("bare graph bf16 channels last", [5.0, 5.0, 5.0]),
        timed("adv-lib DDN", [10.0, 5.0, 10.0]), timed("adv-lib FMN", [12.0, 6.0, 12.0]),
        timed("foolbox DDN", [20.0, 20.0, 20.0]), timed("adv-lib DDN bf16", [1.0, 1.0, 1.0]),
        timed("race l2, 400 passes", [6.0, 3.0, 6.0], 140), timed("race l2, 2000 passes", [5.0, 2.5, 5.0], 90),
    ]  # fmt: skip
    found = [(each.most, each.value) for each in bars.figures("vit-base:64", [{"model": "vit-base", "rows": rows}])]
    assert found == [(bars.OF_PEER, 0.6), (bars.OF_PEER, 0.5), (bars.OF_BARE, 1.25), (bars.OF_MEMORY, 1.4)]
    for cold in bars.COLD:
        assert [each.value for each in bars.figures(cold, {"first": 2.0, "second": 0.5})] == [2.0]
    assert len(list(bars.figures("resnet50:64", [{"model": "resnet50", "rows": rows}]))) == 3
    assert [bars.Figure("", value, 1.0).verdict for value in (1.0, 1.1, nan)] == ["met", "missed", "not measured"]


@pytest.mark.parametrize(
    ("missing", "unknown"),
    [
        ("foolbox DDN", [bars.OF_PEER, bars.OF_PEER]), ("bare graph bf16", [bars.OF_BARE]),
        ("bare plain float32", [bars.OF_MEMORY]),
    ],
)  # fmt: skip
def test_a_bar_that_cannot_be_measured_is_not_met(missing: str, unknown: list[float]) -> None:
    ours = (f"race l2, {passes} passes" for passes in bars.PASSES)
    names = ("bare plain float32", "bare graph bf16", *bars.PEERS, *ours)
    rows = [timed(name, [1.0], 100) for name in names if name != missing]
    found = bars.figures("vit-base:64", [{"model": "vit-base", "rows": rows}])
    assert [each.most for each in found if each.verdict == "not measured"] == unknown


def test_a_case_runs_in_a_process_of_its_own_and_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []

    def run(command: list[str], *, check: bool, env: dict[str, str]) -> None:
        ran.append(command)
        name = command[command.index("--record") + 1]
        (Path(env["OUT"]) / f"{name}.json").write_text(json.dumps({"conditions": {}, "numbers": [1]}))

    monkeypatch.setattr("bars.subprocess.run", run)
    for _ in range(2):
        assert bars.run_case("resnet50:64", tmp_path / "parts", limit=3)["numbers"] == [1]
    assert len(ran) == 1
    monkeypatch.setattr(sys, "argv", ["speed.py", *ran[0][2:]])
    options = speed.parse()
    assert (list(options.cases), options.passes, options.rounds, options.limit) == (["resnet50:64"], [400, 2000], 5, 3)
    assert all(any(word in name for word in options.only) for name in ("bare graph bf16", "race l2", *bars.PEERS))


def test_a_case_of_a_small_network_is_timed_for_as_long_as_the_limit_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "open_case", lambda name, batch, files: small(batch))
    monkeypatch.setattr(speed, "other_libraries", lambda *_: {})
    monkeypatch.setattr(speed, "CUDA", False)
    for limit, rounds, names in ((0.0, 1, {"race l2"}), (60.0, 2, {"race l2, 20 passes", "race l2, 30 passes"})):
        passes = ["20", "30"][: len(names)]
        words = ["speed.py", "--limit", str(limit), "--rounds", "2", "--passes", *passes, "--peers-passes", "4"]
        monkeypatch.setattr(sys, "argv", [*words, "--modes", "default", "--only", *bars.CONTENDERS])
        found = speed.measure_case("small:4", {}, speed.parse())
        assert {len(row["rounds"]) for row in found["rows"]} == {rounds}
        assert {"bare plain float32", *names} <= {row["name"] for row in found["rows"]}


def test_a_failing_case_does_not_stop_the_others_and_a_record_is_resumed_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def run(command: list[str], *, check: bool, env: dict[str, str]) -> None:
        if "--cold-start" not in command:
            raise subprocess.CalledProcessError(3, command)
        ran.append(name := command[-1])
        part = {"conditions": {"command": name, "commit": "be21592-dirty"}, "numbers": {"first": 1.0}}
        (Path(env["OUT"]) / f"{name}.json").write_text(json.dumps(part))

    monkeypatch.setattr(bars, "subprocess", SimpleNamespace(run=run, CalledProcessError=subprocess.CalledProcessError))
    monkeypatch.setenv("OUT", str(tmp_path))
    record, only = tmp_path / f"bars-{records.DEVICE}.json", ["--only", "cold", "resnet50:64"]
    for parts, more in (("a", []), ("b", ["--resume", str(record)])):
        monkeypatch.setattr(sys, "argv", ["bars.py", "--parts", str(tmp_path / parts), *only, *more])
        with pytest.raises(SystemExit, match="1"):
            bars.main()
        assert ran == ["cold-start", "cold-start-again"]
        assert "resnet50:64: not measured, exit code 3" in capsys.readouterr().out
    found = json.loads(record.read_text())
    assert [each["case"] for each in found["numbers"]] == list(bars.COLD)
    assert [part["command"] for part in found["parts"]] == ran
    bars.restore_parts(record, tmp_path / "c", "abc1234")
    copied = json.loads((tmp_path / "c" / "cold-start.json").read_text())["conditions"]
    assert copied == {"command": "cold-start", "commit": "abc1234", "stated": "be21592-dirty"}
    monkeypatch.setattr(sys, "argv", ["bars.py", "--parts", str(tmp_path / "b"), "--only", "cold"])
    with pytest.raises(SystemExit, match="0"):
        bars.main()


def small(batch: int) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, x = bars.Small().eval().requires_grad_(False), torch.rand(batch, 3, 8, 8)
    return model, x, model(x).argmax(1)


def test_the_cold_start_is_that_of_a_first_measurement() -> None:
    found = bars.cold_start(n=2)
    assert found["first"] > 0 < found["second"]
    assert len([m for m in bars.Small().modules() if type(m).__name__ in ("Conv2d", "Linear")]) == 20


def test_threads_are_compared_within_a_round_on_the_same_inputs() -> None:
    before = torch.get_num_threads()
    try:
        options = argparse.Namespace(threads=2, rounds=2, torch=True, any_size=True, data=[])
        found = threads.measure_case("mnist-cnn", 8, 20, options)
    finally:
        torch.set_num_threads(before)
    ways = ("one", "parts", "torch", "one, any size")
    assert {way: len(times) for way, times in found["seconds"].items()} == dict.fromkeys(ways, 2)
    one, parts = found["seconds"]["one"], found["seconds"]["parts"]
    assert found["rounds"]["parts"] == [one[0] / parts[0], one[1] / parts[1]]
    assert found["ratio of means"]["parts"] == pytest.approx(1, abs=1e-3)
    assert (parallel.MOST_PARTS, probe.LARGEST_BLOCK) == (8, 32 << 20)  # restored
