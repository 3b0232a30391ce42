"""Runs through the command line: what is measured, stored and read."""

import json
import shutil
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from run_folders import command, data
from typer.testing import CliRunner

import marginattack as ma
from marginattack.cli import app
from marginattack.core.norms import NORMS
from marginattack.storage.run_folder import RunFolder

RUNNER = CliRunner()
OLDER = Path(__file__).parent / "data"
QUICK = ("--attack", "marginattack", "--set", "attack.marginattack.moves=10")


def cli(*arguments: str, code: int = 0) -> str:
    """The output of a command that succeeds, or the errors of one that ends with another code."""
    result = RUNNER.invoke(app, arguments)
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two norms of 32 samples, every tenth misclassified, in shards of eight."""
    folder = tmp_path_factory.mktemp("run")
    cli(*command(folder, folder / "run", "--lattice", "255", n=32)[3:])
    return folder / "run"


def test_run_folder_holds_what_measure_returns(run: Path) -> None:
    from run_models import small

    with np.load(run.parent / "data-32.npz") as arrays:
        images, labels = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"])
    expected = ma.measure(small(), images, labels, "linf", attack=ma.MarginAttack(moves=20), batch=8)
    found = ma.Margins.load(run, norm="linf")
    assert found.norm == "linf"
    for name in ("success", "label", "prediction", "forwards", "backwards"):
        assert getattr(found, name).equal(getattr(expected, name)), name
    # How far past the boundary depends on the rounding seen in each shard, and so do pixels of no weight.
    assert torch.allclose(found.distance, expected.distance, rtol=1e-4, atol=1e-6)
    assert torch.allclose((found.adversarial - images).abs().flatten(1).amax(1).double(), found.distance, atol=1e-6)
    assert found.settings["attacks"]["marginattack"].startswith("MarginAttack(moves=20")
    assert found.summary() == pytest.approx(expected.summary(), rel=1e-4)


def test_load_needs_a_norm_where_a_run_has_several(run: Path) -> None:
    with pytest.raises(ma.InputError, match="2 of them match any part: state the norm"):
        ma.Margins.load(run)
    with pytest.raises(ma.InputError, match="0 of them match l1"):
        ma.Margins.load(run, norm="l1")


def test_stored_images_have_the_stored_distances_also_at_8_bits(run: Path) -> None:
    from run_models import small

    store, model = RunFolder(run), small()
    for part in store.parts:
        for shard in range(len(store.shards)):
            images, column = store.images(part, shard), store.numeric_columns(part, shard)
            for name, distance, unit in (("adversarial", "distance", 1.0), ("adversarial_255", "distance_255", 255.0)):
                points = images[name].float() / unit
                assert (model(points).argmax(1) != column["label"]).all()
                size = NORMS[part.norm].size((points.double() - images["original"].double()).flatten(1))[:, 0]
                assert torch.allclose(size, column[distance], atol=1e-7)


def test_pandas_polars_and_duckdb_open_the_folder(run: Path) -> None:
    expected = RunFolder(run).table(["distance"]).column("distance").to_pylist()
    assert sorted(pd.read_parquet(run / "margins")["distance"]) == sorted(expected)
    assert sorted(pl.read_parquet(f"{run}/margins/**/*.parquet")["distance"]) == sorted(expected)
    query = f"select norm, median(distance) from '{run}/margins/*/*.parquet' where label = prediction group by norm"
    medians = dict(duckdb.sql(query).fetchall())
    text = json.loads(cli("report", str(run), "--json"))[0]
    assert medians == {part["norm"]: pytest.approx(part["median"]) for part in text["parts"]}


def test_text_report(run: Path) -> None:
    text = cli("report", str(run), "--text", "--eps", "0.125", "--unit", "255")
    for words in ("run_models.py:small on", "87.5%", "100.0%", "0.125:", "[", "1/255", "64 stored rows", "at 8 bits"):
        assert words in text


def test_robust_accuracy_counts_every_sample_and_has_an_interval(run: Path) -> None:
    part = json.loads(cli("report", str(run), "--json", "--eps", "0", "--eps", "1e9"))[0]["parts"][0]
    clean, none = part["robust"]
    assert clean["accuracy"] == part["accuracy"] == 28 / 32
    assert clean["interval"] == pytest.approx(part["accuracy_interval"])
    assert clean["interval"][0] < 28 / 32 < clean["interval"][1]
    assert none["accuracy"] == 0


def test_compare_joins_by_pixels_in_any_order(run: Path, tmp_path: Path) -> None:
    more = ("--shuffle", "3", "--limit", "30", "--set", "attack.marginattack.moves=100")
    cli(*command(run.parent, tmp_path / "other", *more, n=32)[3:])
    rows = json.loads(cli("compare", str(run), str(tmp_path / "other"), "--json"))["rows"]
    right = int(sum(number % 10 > 0 for number in np.random.default_rng(3).permutation(32)[:30]))
    assert [(row["norm"], row["n"]) for row in rows] == [("l2", right), ("linf", right)]
    for row in rows:
        assert row["smaller"] > 2 * row["larger"]
        assert row["p"] < 0.05
        assert row["median_ratio"] <= 1
    assert "Wilcoxon" in cli("compare", str(run), str(tmp_path / "other"))


def test_shuffled_and_limited_runs_measure_the_same_rows_with_the_same_draws(run: Path, tmp_path: Path) -> None:
    cli(*command(run.parent, tmp_path / "some", "--shuffle", "1", "--limit", "12", n=32)[3:])
    some, every = (
        RunFolder(path).table(["id", "norm", "input", "distance"]).to_pandas() for path in (tmp_path / "some", run)
    )
    assert len(some) == 24
    assert some["id"].tolist()[:12] == np.random.default_rng(1).permutation(32)[:12].tolist()
    joined = some.merge(every, on=["id", "norm", "input"])
    assert len(joined) == 24
    assert np.allclose(joined["distance_x"], joined["distance_y"], rtol=1e-3)


def test_only_correct_omits_misclassified_samples_but_keeps_the_accuracy(run: Path, tmp_path: Path) -> None:
    cli(*command(run.parent, tmp_path / "right", "--only-correct", "--set", "shard=1", n=32)[3:])
    store = RunFolder(tmp_path / "right")
    column = store.numeric_columns(store.parts[0])
    assert sorted(column["id"].tolist()) == [i for i in range(32) if i % 10]
    part = json.loads(cli("report", str(tmp_path / "right"), "--json"))[0]["parts"][0]
    assert (part["accuracy"], part["samples"], part["rows"]) == (28 / 32, 32, 28)
    assert pd.read_parquet(tmp_path / "right" / "margins").shape[0] == 56


@pytest.mark.parametrize("target", ["random", "least-likely", "file"])
def test_targeted_runs(run: Path, tmp_path: Path, target: str) -> None:
    from run_models import small

    with np.load(run.parent / "data-32.npz") as arrays:
        images, labels = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"])
    np.savetxt(tmp_path / "targets.txt", (labels.numpy() + 2) % 4, fmt="%d")
    named = str(tmp_path / "targets.txt") if target == "file" else target
    cli(*command(run.parent, tmp_path / "targeted", "--target", named, "--norm", "l2", n=32)[3:])
    store = RunFolder(tmp_path / "targeted")
    column = store.numeric_columns(store.find(norm="l2"))
    assert (column["target"] != column["label"]).all()
    assert (column["adversarial_label"] == column["target"])[column["success"]].all()
    assert column["success"].double().mean() > 0.9
    median = json.loads(cli("report", str(store.path), "--json"))[0]["parts"][0]["median"]
    assert ma.Margins.load(tmp_path / "targeted", norm="l2").summary()["median"] == pytest.approx(median)
    if target == "file":
        assert column["target"].equal((labels + 2) % 4)
    if target == "least-likely":
        logits = small()(images).detach().scatter(1, labels[:, None], torch.inf)
        assert column["target"].equal(logits.argmin(1))
    if target == "random":
        assert len(set(((column["target"] - column["label"]) % 4).tolist())) == 3


def test_several_attacks_in_one_run(run: Path, tmp_path: Path) -> None:
    cli(*command(run.parent, tmp_path / "two", "--attack", "marginattack", "--attack", "deepfool", n=32)[3:])
    store = RunFolder(tmp_path / "two")
    assert [part.name for part in store.parts] == [
        "marginattack-l2",
        "marginattack-linf",
        "deepfool-l2",
        "deepfool-linf",
    ]
    ours, theirs = (store.numeric_columns(store.find(norm="l2", attack=name)) for name in ("marginattack", "deepfool"))
    assert ours["distance"].mean() < theirs["distance"].mean()


def test_printed_settings_can_be_read_from_a_file(tmp_path: Path) -> None:
    data(tmp_path / "x.npz", 8)
    model = command(tmp_path, tmp_path)[5]
    printed = cli(
        "measure", "--model", model, "--data", str(tmp_path / "x.npz"), *QUICK, "--norm", "linf", "--print-config"
    )
    (tmp_path / "run.toml").write_text(printed)
    out = cli("measure", "--config", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run"), "--json")
    assert [part["norm"] for part in json.loads(out)["parts"]] == ["linf"]
    assert RunFolder(tmp_path / "run").manifest["settings"]["attack"] == {"marginattack": {"moves": 10}}


def test_manifest(run: Path) -> None:
    manifest = RunFolder(run).manifest
    assert manifest["model"]["digest"] != manifest["data"]["digest"]
    assert manifest["versions"]["torch"] == str(torch.__version__)
    assert manifest["sessions"][0]["batch"] == 8
    assert (manifest["sessions"][0]["graphs"], manifest["sessions"][0]["compiled"]) == (False, "not asked for")
    assert manifest["verified"]["rows"] == 64
    assert manifest["verified"]["failed"] == 0
    assert manifest["started"] <= manifest["finished"]


BAD = {
    "measure --data samples:mnist --out x": "no model given: pass --model",
    "measure --model zoo:none --data samples:mnist --out x": "no zoo model named 'none'",
    "measure --model zoo:mnist-cnn --data samples:none --out x": "no samples named 'none'",
    "measure --model zoo:mnist-cnn --data samples:mnist": "no run folder given: pass --out RUN",
    "measure --model zoo:mnist-cnn --data samples:mnist --out x --unit 7": "--unit is 7: choose 1 or 255",
    "measure --model zoo:mnist-cnn --data samples:mnist --out x --attack deepfool --norm l0": "DeepFool supports",
    "measure --model zoo:mnist-cnn --data samples:mnist --out x --target absent.txt": "--target absent.txt is neither",
    "measure --model zoo:mnist-cnn --data samples:mnist --out x --image-size big": "--image-size 'big' is",
    "measure --model zoo:mnist-cnn --data samples:mnist --out x --image-size 20": "samples:mnist: --image-size 20",
    "measure --model zoo:mnist-cnn --data samples:mnist --out x --set attack.pgd.steps=3": "settings are given for the",
    "measure --model zoo:mnist-cnn --data samples:mnist --out full/of.txt": "full/of.txt is a file: give a folder",
    "measure --model zoo:mnist-cnn --data samples:mnist --out full": "full holds other files (of.txt, …)",
    "measure --model zoo:mnist-cnn --data samples:mnist --out x --device cpu --compiled": "compiled=True needs a GPU",
    "report nowhere --text": "nowhere is not a run folder: it has no manifest.json",
    "compare full": "compare needs at least two runs",
    "diagnose --model zoo:mnist-cnn": "no data given: pass --data",
}


@pytest.mark.parametrize("arguments", BAD)
def test_bad_input_is_one_line_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("full").mkdir()
    Path("full/of.txt").touch()
    error = cli(*arguments.split(), code=2)
    assert error.startswith(f"marginattack: {BAD[arguments]}")
    assert error.count("\n") == 1
    assert [str(path) for path in Path().rglob("*")] == ["full", "full/of.txt"]


@pytest.mark.parametrize(("model", "norm"), [("half", "l2"), ("double", "linf")])
def test_models_of_other_precision(run: Path, tmp_path: Path, model: str, norm: str) -> None:
    flags = ("--lattice", "255", "--norm", norm, "--limit", "8", "--data", str(run.parent / "data-32.npz"), *QUICK)
    source = command(tmp_path, tmp_path)[5].replace("small", model)
    cli("measure", "--model", source, *flags, "--out", str(tmp_path / "x"))
    verified = RunFolder(tmp_path / "x").manifest["verified"]
    assert (verified["rows"], verified["failed"]) == (8, 0)


def test_labels_outside_the_classes_are_rejected_before_anything_is_written(tmp_path: Path) -> None:
    data(tmp_path / "x.npz", 300)
    with np.load(tmp_path / "x.npz") as arrays:
        labels = arrays["y"].copy()
        labels[271] = 12
        np.savez(tmp_path / "wrong.npz", x=arrays["x"], y=labels)
    source = ["--model", command(tmp_path, tmp_path)[5], "--data", str(tmp_path / "wrong.npz"), *QUICK]
    error = cli("measure", *source, "--out", str(tmp_path / "run"), "--despite-findings", code=2)
    assert "the label of row 271 is 12, but the model has classes 0 to 3" in error
    assert not (tmp_path / "run").exists()


def test_manifest_of_another_program_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"name": "an app", "start_url": "/"}')
    source = ["--model", "zoo:mnist-cnn", "--data", "samples:mnist", "--limit", "2"]
    error = cli("measure", *source, "--out", str(tmp_path), code=2)
    assert error.startswith(f"marginattack: {tmp_path} has run format None")
    assert (tmp_path / "manifest.json").read_text() == '{"name": "an app", "start_url": "/"}'
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_a_model_that_fails_cannot_be_measured_anyway(tmp_path: Path) -> None:
    data(tmp_path / "x.npz", 8)
    (tmp_path / "net.py").write_text("import torch\n\n\ndef net():\n    return torch.nn.Linear(1234, 2).eval()\n")
    source = ["--model", f"{tmp_path}/net.py:net", "--data", str(tmp_path / "x.npz"), *QUICK]
    error = cli("measure", *source, "--out", str(tmp_path / "run"), code=2)
    assert error.startswith("marginattack: nothing was measured: ")
    assert error.rstrip().endswith("(model-fails, 8 of 8 samples)")
    assert "--despite-findings" not in error


def test_grave_finding_stops_the_run_before_it_writes(tmp_path: Path) -> None:
    data(tmp_path / "x.npz", 64)
    with np.load(tmp_path / "x.npz") as arrays:
        np.savez(tmp_path / "wrong.npz", x=arrays["x"], y=(arrays["y"] + 1) % 4)
    source = ["--model", command(tmp_path, tmp_path)[5], "--data", str(tmp_path / "wrong.npz"), *QUICK]
    error = cli("measure", *source, "--out", str(tmp_path / "run"), code=2)
    assert error.startswith("marginattack: nothing was measured: ")
    assert error.rstrip().endswith(" of 64 samples)")
    assert "Or measure anyway with --despite-findings. (" in error
    assert not (tmp_path / "run").exists()
    cli("measure", *source, "--out", str(tmp_path / "run"), "--despite-findings")
    findings = RunFolder(tmp_path / "run").findings
    assert findings[0]["grade"] == "grave"
    assert "grave" in cli("report", str(tmp_path / "run"), "--text")


def test_diagnose_finds_nothing_in_the_bundled_network() -> None:
    assert "No problems" in cli("diagnose", "--model", "zoo:mnist-cnn", "--data", "samples:mnist", "--limit", "64")


@pytest.mark.parametrize("number", [1, 2, 3])
def test_run_folder_of_an_older_format_can_be_read_but_not_resumed(tmp_path: Path, number: int) -> None:
    shutil.copytree(OLDER / f"run-format-{number}", tmp_path / "run")
    margins, folder = ma.Margins.load(tmp_path / "run"), RunFolder(tmp_path / "run")
    assert (margins.norm, margins.rejected.tolist()) == ("l2", [False] * 3)
    assert (margins.distance_at_90pct >= margins.distance).all()
    assert {"query", "best"} <= set(folder.traces().column_names)
    assert folder.manifest["failed_shards"] == []
    assert json.loads(cli("report", str(tmp_path / "run"), "--json"))[0]["parts"][0]["rows"] == 3
    (tmp_path / "run/margins/race-l2/part-00001.parquet").unlink()
    again = folder.manifest["sessions"][0]["command"].split()[1:-1]
    error = cli(*again, str(tmp_path / "run"), code=2)
    assert error.startswith(
        f"marginattack: {tmp_path / 'run'} has run format {number}, this version writes 4: reports can read"
    )
    assert error.count("\n") == 1


def test_run_of_the_former_default_precision_resumes_with_default_arguments(tmp_path: Path) -> None:
    again = command(tmp_path, tmp_path / "run", n=16)[3:]
    cli(*again, "--precision", "float32")
    cli(*again)  # finished
    for file in (tmp_path / "run").glob("*/*/part-00001.parquet"):
        file.unlink()
    error = cli(*again, "--precision", "bf16", code=2)
    assert 'other settings (precision was "float32", is "bf16")' in error
    cli(*again)
    assert len(ma.Margins.load(tmp_path / "run", norm="l2")) == 16
    assert RunFolder(tmp_path / "run").manifest["identity"]["search"] == "float32"
