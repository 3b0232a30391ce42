"""Margins: saved atomically, loaded bit by bit, joined in order, summarised."""

import doctest
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from models import inputs, smooth
from torch import Tensor

import marginattack as ma
from marginattack import margins as module
from marginattack import views

INF = float("inf")
DATA = Path(__file__).parent / "data"


def make_margins(distance: list[float], *, correct: list[bool] | None = None, targeted: bool = False) -> ma.Margins:
    """Margins of these distances, which should be 0 where the prediction is wrong."""
    n = len(distance)
    size, zero = torch.tensor(distance, dtype=torch.float64), torch.zeros(n, dtype=torch.int64)
    passes = torch.arange(n) + 1
    return ma.Margins(
        norm="l2", distance=size, adversarial=torch.rand(n, 1, 2, 3), success=torch.isfinite(size), label=zero,
        prediction=zero if correct is None else (~torch.tensor(correct)).long(), adversarial_label=zero + 1,
        forwards=passes, backwards=2 * passes, rejected=torch.isinf(size),
        confidence=torch.full_like(size, 0.9), distance_at_90pct=size, settings={"targeted": targeted},
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-torch.inf, torch.inf)])
def test_save_and_load_keep_every_bit(tmp_path: Path, dtype: torch.dtype, bounds: tuple[float, float]) -> None:
    model = smooth(dtype=dtype)
    images, labels = inputs(model)
    labels[0] = (labels[0] + 1) % 4
    attack = ma.MarginAttack(moves=8, closing=2, follow=0)
    margins = ma.measure(model, images, labels, "linf", attack=attack, bounds=bounds, budget=100)
    assert margins.original is not None
    shaped = {name: getattr(margins, name).reshape(20, 2, 3) for name in ("adversarial", "original")}
    margins = replace(margins, **shaped)
    margins = replace(margins, lower=margins.distance / 2, certified_by=("", *["alpha"] * 19))
    margins = replace(margins, kkt=torch.rand(20, dtype=torch.float64))
    path = tmp_path / "margins.parquet"
    margins.save(path)
    read = ma.Margins.load(str(path))
    for field in fields(ma.Margins):
        before, after = getattr(margins, field.name), getattr(read, field.name)
        if isinstance(before, Tensor):
            torch.testing.assert_close(after, before, rtol=0, atol=0, equal_nan=True)
        else:
            assert after == before
    assert [file.name for file in tmp_path.iterdir()] == ["margins.parquet"]


def test_other_readers_find_one_row_per_sample(tmp_path: Path) -> None:
    make_margins([1.0, INF, 0.5]).save(tmp_path / "margins.parquet")
    table = pq.read_table(tmp_path / "margins.parquet")
    assert table.column("distance").to_pylist() == [1.0, INF, 0.5]
    assert [len(row) for row in table.column("adversarial").to_pylist()] == [6, 6, 6]


def test_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "margins.parquet"
    make_margins([1.0, 2.0]).save(path)

    def full_disk(table: object, file: Any, **options: Any) -> None:
        file.write(b"half of it")
        raise OSError("no space left on device")

    monkeypatch.setattr(pq, "write_table", full_disk)
    with pytest.raises(OSError, match="no space left"):
        make_margins([3.0]).save(path)
    assert ma.Margins.load(path).distance.tolist() == [1.0, 2.0]
    assert [file.name for file in tmp_path.iterdir()] == ["margins.parquet"]


def test_file_of_format_2_loads_under_the_present_names() -> None:
    margins = ma.Margins.load(DATA / "margins-format-2.parquet")
    assert pq.read_table(DATA / "margins-format-2.parquet").column("late").to_pylist() == (
        margins.distance_at_90pct.tolist()
    )
    assert (margins.norm, margins.rejected.tolist()) == ("linf", [False] * 3)
    with pytest.warns(DeprecationWarning, match="use rejected"):
        assert margins.refuted is margins.rejected
    with pytest.warns(DeprecationWarning, match="use distance_at_90pct"):
        assert margins.late is margins.distance_at_90pct
    assert margins.adversarial.shape == (3, 1, 28, 28)
    assert (margins.lower.tolist(), margins.certified_by) == ([0.0] * 3, ("",) * 3)
    assert bool(margins.kkt.isnan().all() and margins.spread.isnan().all())


@pytest.mark.parametrize(("content", "message"), [(b"no Parquet", "is damaged"), (None, "does not exist")])
def test_load_rejects_what_is_not_a_margins_file(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content:
        (tmp_path / "m.parquet").write_bytes(content)
    with pytest.raises(ma.InputError, match=rf"{message}.*: give a file that Margins.save wrote"):
        ma.Margins.load(tmp_path / "m.parquet")


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    margins = ma.measure(torch.nn.Identity(), torch.tensor([[0.9, 0.2]]), [0], budget=20)
    with pytest.raises(FileNotFoundError, match=r"absent/a\.parquet'$"):
        margins.save(tmp_path / "absent/a.parquet")


@pytest.mark.parametrize("kind", ["margins", "images"])
def test_load_rejects_a_shard_of_a_run(kind: str) -> None:
    (shard, *_) = sorted((DATA / "run-format-1" / kind).glob("*/part-*.parquet"))
    with pytest.raises(ma.InputError, match=r"not a margins file.*or a run folder"):
        ma.Margins.load(shard)


def test_examples_in_docstrings() -> None:
    assert doctest.testmod(module).failed == 0
    assert doctest.testmod(views).failed == 0


def test_join_keeps_the_order_and_every_column() -> None:
    parts = [replace(make_margins([1.0, 2.0]), certified_by=("alpha", "crown")), make_margins([INF])]
    joined = ma.Margins.join(parts)
    assert len(joined) == 3
    for field in fields(ma.Margins):
        values = [getattr(part, field.name) for part in parts]
        if isinstance(values[0], Tensor):
            torch.testing.assert_close(getattr(joined, field.name), torch.cat(values), equal_nan=True)
    assert joined.norm == "l2"
    assert joined.certified_by == ("alpha", "crown", "")


OTHERS = {
    "settings": {"settings": {"targeted": True}},
    "norm": {"norm": "linf"},
    "shape": {"adversarial": torch.rand(1, 1, 3, 3)},
}


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_join_rejects_parts_of_different_measurements(change: dict[str, Any]) -> None:
    one = make_margins([1.0])
    with pytest.raises(ValueError, match="cannot join") as caught:
        ma.Margins.join([one, replace(one, **change)])
    assert "\n" not in str(caught.value)


def test_closed_means_certified_to_one_percent() -> None:
    margins = make_margins([0.0, 1.0, 1.0, INF, INF], correct=[False, True, True, True, True])
    assert margins.closed.tolist() == [True, False, False, False, False]
    margins = replace(margins, lower=torch.tensor([0.0, 0.99, 0.98, 0.5, INF], dtype=torch.float64))
    assert margins.closed.tolist() == [True, True, False, False, True]
    assert margins.certified_accuracy([0.0, 0.5, 0.985]) == [0.8, 0.8, 0.4]


def test_robust_accuracy_is_the_share_further_than_eps() -> None:
    margins = make_margins([0.0, 1.0, 2.0, INF], correct=[False, True, True, True])
    assert margins.robust_accuracy(0.0) == 0.75
    assert margins.robust_accuracy(1.0) == 0.5  # at the boundary is not further
    assert margins.robust_accuracy([0.5, 1.5, 99.0]) == [0.75, 0.5, 0.25]
    assert isinstance(margins.robust_accuracy(1.0), float)


def test_summary_covers_correctly_classified_inputs() -> None:
    summary = make_margins([0.0, 1.0, 2.0, 4.0, INF], correct=[False, True, True, True, True]).summary()
    assert summary == {
        "n": 5, "accuracy": 0.8, "measured": 4, "success": 0.75, "rejected": 1,
        "median": 3.0, "mean_found": pytest.approx(7 / 3), "forwards": 3.5, "backwards": 7.0,
    }  # fmt: skip


def test_summary_of_targeted_margins_covers_all_inputs() -> None:
    summary = make_margins([1.0, 2.0, 6.0], correct=[False, True, True], targeted=True).summary()
    assert (summary["measured"], summary["median"], summary["mean_found"]) == (3, 2.0, 3.0)


def test_summary_without_any_point_or_correct_input() -> None:
    lost, wrong = make_margins([INF, INF]).summary(), make_margins([0.0], correct=[False]).summary()
    assert (lost["median"], lost["success"]) == (INF, 0.0)
    assert math.isnan(lost["mean_found"])
    assert (wrong["n"], wrong["measured"], wrong["accuracy"]) == (1, 0, 0.0)
    assert math.isnan(wrong["median"])


def test_repr_is_one_line() -> None:
    line = repr(make_margins([1.0, 3.0, INF]))
    assert "\n" not in line
    for part in ("l2", "n=3", "accuracy=100.00%", "median=3", "success=66.67%"):
        assert part in line
