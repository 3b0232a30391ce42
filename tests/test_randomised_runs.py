"""Randomised models through the command line: what is stored and printed, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from randomised_models import noisy
from run_folders import content, data
from typer.testing import CliRunner

import marginattack as ma
from marginattack.cli import app
from marginattack.execution.session import open_session
from marginattack.report.page import render_page
from marginattack.runs.verify import verify_shard
from marginattack.storage.run_folder import RunFolder

MODEL = Path(__file__).parent / "randomised_models.py"
RANDOMIZED = ("--randomized", "--eot", "2", "--draws", "40", "--budget", "60")
SENTENCE = (
    "Randomised model: adversarial means misclassified with probability above 0.5; a stored point holds on 40 fresh "
    "draws with probability 0.99 or more; 2 draws per query, each counted as a pass."
)


def cli(*arguments: str, code: int = 0) -> str:
    """The output of a command, or its errors where it ends with another code."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def measure(folder: Path, *more: str) -> list[str]:
    """A measurement of the noisy network on sixteen images."""
    source = ["--model", f"{MODEL}:noisy", "--data", str(folder / "data.npz"), "--set", "shard=8", "--batch", "8"]
    return ["measure", *source, *more]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the noisy network; every tenth of the sixteen inputs is misclassified."""
    folder = tmp_path_factory.mktemp("randomised")
    data(folder / "data.npz", 16)
    cli(*measure(folder, *RANDOMIZED, "--out", str(folder / "run")))
    return folder / "run"


def test_a_run_says_that_the_model_is_randomised(run: Path) -> None:
    assert SENTENCE in " ".join(cli("report", str(run), "--text").split())
    manifest = json.loads((run / "manifest.json").read_text())
    assert f"Randomised model: {manifest['randomized']}." == SENTENCE
    rule = {"eot": 2, "rate": 0.5, "confidence": 0.99, "draws": 40}
    assert manifest["identity"]["randomized"] == rule
    assert manifest["verified"]["failed"] == 0
    found = ma.Margins.load(run)
    assert found.settings["randomized"] == rule
    assert (found.distance == 0).tolist() == [k == 0 for k in range(16)]  # the other wrong label is one of two classes
    assert (found.forwards + found.backwards <= 60).all()
    passes = pq.ParquetFile(run / "traces.parquet").read().column("passes").to_numpy()
    assert passes.max() > 30
    assert (passes % 2 == 0).all()


def test_only_correct_samples_are_those_whose_stored_prediction_is_correct(run: Path, tmp_path: Path) -> None:
    few = ("--randomized", "--eot", "1", "--draws", "20", "--budget", "4", "--only-correct", "--despite-findings")
    source = [each.replace(":noisy", ":flipping") for each in measure(run.parent, *few)]
    cli(*source, "--out", str(tmp_path / "run"))
    found = RunFolder(tmp_path / "run").table(["label", "prediction"]).to_pydict()
    assert 0 < len(found["label"]) < 16
    assert found["label"] == found["prediction"]


def test_the_page_says_so(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marginattack.report.page.bundle_script", str)  # slow, and not the point
    assert SENTENCE.removeprefix("Randomised model: ").rstrip(".") in render_page([run])


def test_the_same_command_stores_the_same_rows(run: Path, tmp_path: Path) -> None:
    cli(*measure(run.parent, *RANDOMIZED, "--out", str(tmp_path / "again")))
    assert content(tmp_path / "again") == content(run)


def test_another_rate_is_another_run(run: Path) -> None:
    errors = cli(*measure(run.parent, *RANDOMIZED, "--rate", "0.7", "--out", str(run)), code=2)
    assert "randomized.rate was 0.5, is 0.7" in errors


def test_stored_points_that_do_not_hold_are_found(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RunFolder(run)
    images = RunFolder.images
    here = images(store, store.parts[0], 0)
    samples = here["id"], here["original"].float(), torch.tensor(store.read(store.parts[0], 0)["label"].to_pylist())

    def unmoved(self: RunFolder, *named: Any, **options: Any) -> dict[str, torch.Tensor]:
        return {**images(self, *named, **options), "adversarial": images(self, *named, **options)["original"]}

    classifier = ma.Classifier(noisy(), randomized=ma.Randomized(draws=40))
    with open_session(classifier) as session:
        assert verify_shard(store, session, store.parts[0], 0, samples) == (8, 0)
        monkeypatch.setattr(RunFolder, "images", unmoved)
        monkeypatch.setattr("marginattack.runs.verify.torch.isclose", lambda *_, **__: torch.tensor(True))
        assert verify_shard(store, session, store.parts[0], 0, samples) == (8, 7)  # all but the misclassified input


REFUSED = {
    "measure with --randomized": (),
    "--eot 5: it applies to randomised models only: add --randomized": ("--eot", "5"),
    "leave out --lattice": ("--randomized", "--lattice", "255"),
    "precision='bf16' may change the draws of a randomised model": ("--randomized", "--precision", "bf16"),
    "budget is 30, but two gradients of 10 draws take 40 passes": ("--randomized", "--budget", "30"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_makes_no_sense_is_refused_in_one_line(message: str, run: Path, tmp_path: Path) -> None:
    errors = cli(*measure(run.parent, *REFUSED[message], "--out", str(tmp_path / "run")), code=2)
    assert message in errors
    assert "Traceback" not in errors
    assert errors.count("--randomized") <= 1
    assert "--despite-findings" not in errors


def test_noise_that_is_meant_is_no_finding(run: Path) -> None:
    source = measure(run.parent)[1:5]
    assert "grave: random" in CliRunner().invoke(app, ["diagnose", *source]).stdout
    assert cli("diagnose", *source, "--randomized").startswith("No problems found.\nAccuracy: ")
