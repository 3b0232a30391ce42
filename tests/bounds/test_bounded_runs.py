"""Runs with both sides of the margins: `measure --bound`, `bound RUN`, what is stored, and what is refused."""

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from command_line import Command
from run_folders import MODELS, content, data
from run_models import rectified, small
from typer.testing import CliRunner

import marginattack as ma
from marginattack.cli import app
from marginattack.runs import bound_shard
from marginattack.storage.bounds import commit_bounds
from marginattack.storage.parquet import read_metadata, write_table
from marginattack.storage.run_folder import RunFolder

SAMPLES, SHARD = 8, 4
CROWN = ("--model", f"{MODELS}:small", "--method", "crown")


def marginattack(*words: object, code: int = 0) -> str:
    """Run a command in this process; its output, or its line on stderr."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, (result.stderr, result.exception)
    if code == 2:
        assert result.stderr.startswith("marginattack: ")
        assert result.stderr.count("\n") == 1
    return str(result.stderr if code == 2 else result.stdout)


def measure(folder: Path, model: str, *more: object, norms: tuple[str, ...] = ("l2", "linf"), code: int = 0) -> str:
    """Measure a few samples with an attack of few passes."""
    file = folder / "data.npz"
    if not file.exists():
        data(file, SAMPLES)
    source = ("--model", f"{MODELS}:{model}", "--data", file, *(word for norm in norms for word in ("--norm", norm)))
    return marginattack("measure", *source, "--shard", SHARD, "--batch", 4, "--budget", 30, *more, code=code)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run without bounds, and the same run with those of CROWN."""
    folder = tmp_path_factory.mktemp("bounded")
    measure(folder, "small", "--out", folder / "plain")
    shutil.copytree(folder / "plain", folder / "crown")
    assert "bounds by" in marginattack("bound", folder / "crown", *CROWN)
    return folder


@pytest.fixture
def plain(folder: Path, tmp_path: Path) -> Path:
    """A copy of the run without bounds."""
    return Path(shutil.copytree(folder / "plain", tmp_path / "run"))


@pytest.fixture
def crown(folder: Path, tmp_path: Path) -> Path:
    """A copy of the run with bounds."""
    return Path(shutil.copytree(folder / "crown", tmp_path / "run"))


def test_a_run_holds_the_bounds_of_the_python_api(folder: Path) -> None:
    for norm in ("l2", "linf"):
        plain, both = (ma.Margins.load(folder / name, norm=norm) for name in ("plain", "crown"))
        assert plain.lower.tolist() == [0.0] * SAMPLES
        assert set(plain.certified_by) == {""}
        images = torch.cat([RunFolder(folder / "plain").images(RunFolder(folder / "plain").find(norm=norm), shard)
                            ["original"] for shard in range(SAMPLES // SHARD)])  # fmt: skip
        expected = ma.bound(small(), images, plain.label, norm, upper=plain, method="crown").add_to(plain)
        torch.testing.assert_close(both.lower, expected.lower, rtol=1e-3, atol=0)  # rounding in batches
        assert both.certified_by == expected.certified_by
        assert torch.equal(both.distance, plain.distance)
        assert torch.equal(both.closed, expected.closed)
        right = both.prediction == both.label
        assert 0 < int(right.sum()) < SAMPLES
        assert bool(((both.lower > 0) == right).all())
        assert bool((both.lower <= both.distance).all())
        expected_kkt = ma.bounds.kkt_residual(small(), images, plain)
        torch.testing.assert_close(both.kkt, expected_kkt, rtol=0, atol=1e-6, equal_nan=True)
        shares = zip(both.certified_accuracy([0.0, 0.05, 0.2]), both.robust_accuracy([0.0, 0.05, 0.2]), strict=True)
        assert all(certified <= robust for certified, robust in shares)


def test_bounds_are_computed_once_and_recorded(crown: Path) -> None:
    manifest = RunFolder(crown).manifest
    assert manifest["bounds"]["settings"] == {"method": "crown", "time_limit": None, "radius": None, "restarts": 0}
    assert {*manifest["bounds"]["digests"]} == {"race-l2", "race-linf"}
    assert manifest["failed_shards"] == []
    assert len(manifest["sessions"]) == 2
    before = times(crown)
    marginattack("bound", crown, *CROWN)
    assert times(crown) == before
    hint = f"names Python code as its model, which only you can run: add --model {MODELS}:small"
    assert hint in marginattack("bound", crown, "--method", "crown", code=2)
    other = marginattack("bound", crown, "--model", f"{MODELS}:other", code=2)
    assert "was measured with another model or other data (model.digest was" in other


def times(run: Path) -> dict[Path, int]:
    """When each bounds file was written."""
    return {file: file.stat().st_mtime_ns for file in run.glob("bounds/*/*.parquet")}


def test_killed_bounds_resume(folder: Path, plain: Path) -> None:
    process = Command([sys.executable, "-m", "marginattack", "bound", str(plain), *CROWN])
    while not times(plain):
        assert process.poll() is None, process.wait().stderr
        time.sleep(0.005)
    process.kill()
    process.wait(60)
    kept = times(plain)
    assert 0 < len(kept) < 2 * SAMPLES // SHARD
    missing = 2 * SAMPLES // SHARD - len(kept)
    stated = f"Bounds are missing for {missing * SHARD} of {2 * SAMPLES} margins and count as 0."
    assert f"{stated} Resume: marginattack bound {plain} --method crown\n" in marginattack("report", plain, "--text")
    marginattack("bound", plain, *CROWN)
    assert repr(content(plain)) == repr(content(folder / "crown"))  # NaN and all
    assert times(plain).items() >= kept.items()


def test_the_longest_time_is_said_first(plain: Path) -> None:
    words = ("bound", plain, *CROWN, "--time-limit", "7.5", "--restarts", "1")
    said = CliRunner().invoke(app, [str(word) for word in words]).stderr
    first = "marginattack: bounding 16 margins, at most 7.5 s each: up to 2 min (--time-limit), "
    assert said.startswith(first + "besides 1 × the time of the attack (--restarts)\n")
    again = CliRunner().invoke(app, [str(word) for word in words])
    assert (again.exit_code, again.stderr) == (0, "")


def test_a_solver_and_other_seeds_move_the_upper_side(tmp_path: Path) -> None:
    weak = ("--attack", "deepfool", "--out", tmp_path / "run", "--bound", "exact", "--time-limit", 60, "--restarts", 1)
    measure(tmp_path, "rectified", *weak, norms=("linf",))
    shutil.copytree(tmp_path / "run", tmp_path / "attack")
    manifest = json.loads((tmp_path / "attack/manifest.json").read_text())
    attacked = RunFolder(tmp_path / "attack")
    attacked.manifest = {**manifest, "bounds": None}
    distance = attacked.numeric_columns(attacked.parts[0])["distance"]
    margins = ma.Margins.load(tmp_path / "run")
    assert bool((margins.distance <= distance).all())
    assert bool((margins.distance < 0.99 * distance).any())
    assert bool(margins.closed.all())
    assert {*margins.certified_by} <= {"", "exact", "milp", "alpha"}
    with torch.no_grad():
        found = rectified()(margins.adversarial).argmax(1)
    assert torch.equal(found[margins.success], margins.adversarial_label[margins.success])
    assert bool((found != margins.label)[margins.success].all())
    right = margins.prediction == margins.label
    assert bool((margins.spread[right & distance.isfinite()] >= 0).all())
    assert bool(margins.spread[~right].isnan().all())
    summary = json.loads(marginattack("report", tmp_path / "run", "--json"))[0]["parts"][0]
    assert summary["bounds"]["closed"]["0.01"] == summary["measured"]
    assert [level["certified"] for level in summary["robust"]] == pytest.approx(
        [level["accuracy"] for level in summary["robust"]], abs=0.1
    )
    marginattack("report", tmp_path / "run", "-o", tmp_path / "page.html")


def test_other_methods_refine_what_is_there(crown: Path, folder: Path) -> None:
    before = {norm: ma.Margins.load(crown, norm=norm) for norm in ("l2", "linf")}
    marginattack("bound", crown, *CROWN[:3], "ibp")  # nothing is better
    for norm, old in before.items():
        assert torch.equal(ma.Margins.load(crown, norm=norm).lower, old.lower)
    marginattack("bound", crown, *CROWN[:3], "clever", "--radius", 0.5)
    kept = times(crown)
    marginattack("bound", crown, *CROWN[:3], "alpha")
    assert not times(crown).items() & kept.items()
    gained = 0
    for norm, old in before.items():
        new = ma.Margins.load(crown, norm=norm)
        assert bool((new.lower >= old.lower).all())
        better = new.lower > old.lower
        gained += int(better.sum())
        assert new.certified_by == tuple(
            "alpha" if more else name for more, name in zip(better.tolist(), old.certified_by, strict=True)
        )
    assert gained > 0
    assert json.loads(marginattack("report", crown, "--json"))[0]["parts"][0]["bounds"]["median_estimate"] > 0
    refined = times(crown)
    for method in (("crown",), ("alpha",), ("clever", "--radius", 0.5)):  # all of them are done
        marginattack("bound", crown, *CROWN[:3], *method)
    assert times(crown) == refined
    assert RunFolder(crown).manifest["bounds"]["settings"]["method"] == "alpha"


def test_refining_that_is_interrupted_resumes(crown: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []

    def interrupted(*arguments: Any) -> None:
        if done:
            raise KeyboardInterrupt
        done.append(arguments)
        commit_bounds(*arguments)

    monkeypatch.setattr(bound_shard, "commit_bounds", interrupted)
    before = times(crown)
    marginattack("bound", crown, *CROWN[:3], "ibp", code=130)
    changed = {file for file, time in times(crown).items() if time != before[file]}
    assert len(changed) == 1
    assert ma.Margins.load(crown, norm="linf").certified_by  # readable all the time
    monkeypatch.undo()
    middle = times(crown)
    marginattack("bound", crown, *CROWN[:3], "ibp")
    assert {file for file, time in times(crown).items() if time == middle[file]} == changed


def test_clever_is_marked_as_an_estimate(plain: Path) -> None:
    words = ("bound", plain, *CROWN[:3], "clever")
    assert "setting radius is None: the radius of the ball that CLEVER samples is missing" in marginattack(
        *words, code=2
    )
    text = marginattack(*words, "--radius", 0.5)
    assert "linf: CLEVER estimates, not bounds: median 0." in text
    assert "are wrong, as they exceed the margin" in text
    margins = ma.Margins.load(plain, norm="l2")
    assert float(margins.lower.max()) == 0  # nothing is certified
    part = json.loads(marginattack("report", plain, "--json"))[0]["parts"][0]
    assert part["bounds"]["certified"] == 0
    assert 0 < part["bounds"]["median_estimate"] <= 0.5


def rewrite(file: Path, name: str, value: object) -> None:
    """Change the second cell of a column and write the file with matching digests."""
    table = pq.read_table(file)
    first, old, *more = table.column(name).to_pylist()
    column = [first, 0.99 * old if value is None else value, *more]
    about = {key: each for key, each in read_metadata(table).items() if key not in ("digest", "groups")}
    index = table.column_names.index(name)
    write_table(file, table.set_column(index, name, [column]).cast(table.schema), about)


DAMAGE: dict[str, tuple[str, Any, str]] = {
    "lower above upper": ("lower", 9.0, "has a lower bound below 0 or above its upper bound in row 1"),
    "upper above the margin": ("upper", 9.0, "has an upper bound above its margin in row 1"),
    "another sample": ("id", 7, "has other samples than its margins"),
    "no method": ("certified_by", "", "has a bound without a method"),
    "nearer without a point": ("upper", None, "has no column adversarial with images of shape"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_bounds_are_refused(crown: Path, damage: str) -> None:
    column, value, message = DAMAGE[damage]
    file = crown / "bounds/race-l2/part-00000.parquet"
    rewrite(file, column, value)
    with pytest.raises(
        ma.InputError, match=rf"part-00000.parquet ({message}).*: delete it and run `marginattack bound`"
    ):
        ma.Margins.load(crown, norm="l2")
    assert str(file) in marginattack("report", crown, "--text", code=2)


def test_bounds_of_other_margins_and_edited_ones_are_refused(crown: Path) -> None:
    file, other = (crown / f"bounds/race-l2/part-0000{i}.parquet" for i in range(2))
    kept = file.read_bytes()
    rewrite(file, "kkt", 0.5)
    with pytest.raises(ma.InputError, match="is not the file that manifest"):
        ma.Margins.load(crown, norm="l2")
    file.write_bytes(other.read_bytes())
    with pytest.raises(ma.InputError, match="says that it is shard 1, not 0"):
        ma.Margins.load(crown, norm="l2")
    file.unlink()
    with pytest.raises(ma.InputError, match="is missing, but manifest"):
        ma.Margins.load(crown, norm="l2")
    marginattack("bound", crown, *CROWN)
    assert file.read_bytes() == kept


BAD: dict[str, tuple[str, tuple[str, ...], tuple[str, ...], str]] = {
    "unsupported layer": ("attentive", ("--bound", "crown"), ("linf",), "bounds do not cover"),
    "not a sequence": ("small", ("--bound", "lipschitz"), ("l2",), "lipschitz bounds do not cover Small"),
    "not piecewise linear": ("small", ("--bound", "exact", "--time-limit", "9"), ("linf",), "need a piecewise linear"),
    "target": ("small", ("--bound", "crown", "--target", "random"), ("l2",), "leave out --target"),
    "randomized": ("small", ("--bound", "crown", "--randomized"), ("l2",), "bounds need a deterministic model"),
    "no limit": ("small", ("--bound", "exact"), ("linf",), "setting time_limit is None: a solver may take hours"),
    "l0": ("small", ("--bound", "kkt"), ("l2", "l0"), "leave out --norm l0"),
    "no such method": ("small", ("--bound", "zonotope"), ("l2",), "setting bound is 'zonotope'"),
    "scale": ("small", ("--bound", "crown", "--scale", "2"), ("l2",), "measure without it, or leave bound out"),
    "radius": ("small", ("--bound", "crown", "--radius", "1"), ("l2",), "it applies to CLEVER only"),
    "no bound": ("small", ("--time-limit", "1"), ("l2",), "it applies to bounds only: add --bound"),
    "restarts": ("small", ("--bound", "crown", "--restarts", "-1"), ("l2",), "--restarts -1: input should be"),
    "time": ("small", ("--bound", "crown", "--time-limit", "50000"), ("l2",), "but --shard-timeout is 86400 s"),
}  # fmt: skip


@pytest.mark.parametrize("bad", BAD)
def test_what_cannot_be_bounded_is_refused_before_any_work(tmp_path: Path, bad: str) -> None:
    model, words, norms, message = BAD[bad]
    assert message in measure(tmp_path, model, *words, "--out", tmp_path / "run", norms=norms, code=2)
    assert not list(tmp_path.glob("run/margins/*"))


def test_boxes_may_be_infinite(tmp_path: Path) -> None:
    """Also where the attack found nothing, as with a budget of one pass."""
    words = ("--bounds=-inf,inf", "--attack", "deepfool", "--budget", 1, "--bound", "crown", "--out", tmp_path / "run")
    measure(tmp_path, "rectified", *words, norms=("linf",))
    margins = ma.Margins.load(tmp_path / "run")
    right = margins.prediction == margins.label
    assert bool(margins.distance[right].isinf().all())
    assert bool((margins.lower[right] > 0).all())
    assert float(margins.lower.max()) < 10
    assert not bool(margins.closed[right].any())


def test_runs_that_cannot_be_bounded(plain: Path) -> None:
    old = Path(__file__).parents[1] / "data/run-format-2"
    assert "measure again to bound its margins; reports can still read it" in marginattack("bound", old, code=2)
    assert "is not a run folder" in marginattack("bound", plain.parent, code=2)
    assert "lipschitz bounds do not cover Small" in marginattack("bound", plain, *CROWN[:3], "lipschitz", code=2)
    assert not (plain / "bounds").exists()


def test_ray_gives_the_same_bounds(folder: Path, plain: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'marginattack[ray]'")
    ray = ("--engine", "ray", "--workers", "1", "--device", "cpu")
    result = Command([sys.executable, "-m", "marginattack", "bound", str(plain), *CROWN, *ray]).wait()
    assert result.returncode == 0, result.stderr
    assert repr(content(plain)) == repr(content(folder / "crown"))
    assert RunFolder(plain).manifest["sessions"][-1]["engine"] == "ray"
