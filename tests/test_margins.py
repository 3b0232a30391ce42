"""Margins: saved whole or not at all, read back to the bit, joined in order, summed up rightly."""

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

INF = float("inf")


def made(distance: list[float], *, right: list[bool] | None = None, targeted: bool = False) -> ma.Margins:
    """Margins of these sizes; where the prediction is not right the distance should be 0."""
    n = len(distance)
    size, zero = torch.tensor(distance, dtype=torch.float64), torch.zeros(n, dtype=torch.int64)
    passes = torch.arange(n) + 1
    return ma.Margins(
        norm="l2", distance=size, adversarial=torch.rand(n, 1, 2, 3), success=torch.isfinite(size), label=zero,
        prediction=zero if right is None else (~torch.tensor(right)).long(), adversarial_label=zero + 1,
        forwards=passes, backwards=2 * passes, rejected=torch.isinf(size),
        confidence=torch.full_like(size, 0.9), distance_at_90pct=size, settings={"targeted": targeted},
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-torch.inf, torch.inf)])
def test_what_is_saved_is_read_back_to_the_bit(tmp_path: Path, dtype: torch.dtype, bounds: tuple[float, float]) -> None:
    model = smooth(dtype=dtype)
    images, labels = inputs(model)
    labels[0] = (labels[0] + 1) % 4
    attack = ma.MarginAttack(moves=8, closing=2, follow=0)
    margins = ma.measure(model, images, labels, "linf", attack=attack, bounds=bounds, budget=100)
    margins = replace(margins, adversarial=margins.adversarial.reshape(20, 2, 3))
    path = tmp_path / "margins.parquet"
    margins.save(path)
    read = ma.Margins.load(str(path))
    for field in fields(ma.Margins):
        before, after = getattr(margins, field.name), getattr(read, field.name)
        if isinstance(before, Tensor):
            assert after.dtype == before.dtype
            assert after.equal(before)
        else:
            assert after == before
    assert [file.name for file in tmp_path.iterdir()] == ["margins.parquet"]


def test_other_readers_find_one_row_a_sample(tmp_path: Path) -> None:
    made([1.0, INF, 0.5]).save(tmp_path / "margins.parquet")
    table = pq.read_table(tmp_path / "margins.parquet")
    assert table.column("distance").to_pylist() == [1.0, INF, 0.5]
    assert [len(row) for row in table.column("adversarial").to_pylist()] == [6, 6, 6]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "margins.parquet"
    made([1.0, 2.0]).save(path)

    def full_disk(table: object, where: Path) -> None:
        where.write_bytes(b"half of it")
        raise OSError("no space left on device")

    monkeypatch.setattr(pq, "write_table", full_disk)
    with pytest.raises(OSError, match="no space left"):
        made([3.0]).save(path)
    assert ma.Margins.load(path).distance.tolist() == [1.0, 2.0]
    assert [file.name for file in tmp_path.iterdir()] == ["margins.parquet"]


def test_saving_again_replaces(tmp_path: Path) -> None:
    made([1.0, 2.0]).save(tmp_path / "m.parquet")
    made([3.0]).save(tmp_path / "m.parquet")
    assert ma.Margins.load(tmp_path / "m.parquet").distance.tolist() == [3.0]


def test_join_keeps_the_order_and_every_column() -> None:
    parts = [made([1.0, 2.0]), made([INF])]
    joined = ma.Margins.join(parts)
    assert len(joined) == 3
    for field in fields(ma.Margins):
        values = [getattr(part, field.name) for part in parts]
        if isinstance(values[0], Tensor):
            assert getattr(joined, field.name).equal(torch.cat(values))
    assert joined.norm == "l2"


OTHERS = {
    "settings": {"settings": {"targeted": True}},
    "norm": {"norm": "linf"},
    "shape": {"adversarial": torch.rand(1, 1, 3, 3)},
}


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_join_refuses_what_is_no_part_of_the_same_measurement(change: dict[str, Any]) -> None:
    one = made([1.0])
    with pytest.raises(ValueError, match="cannot join") as caught:
        ma.Margins.join([one, replace(one, **change)])
    assert "\n" not in str(caught.value)


def test_robust_accuracy_is_the_share_that_lies_further() -> None:
    margins = made([0.0, 1.0, 2.0, INF], right=[False, True, True, True])
    assert margins.robust_accuracy(0.0) == 0.75
    assert margins.robust_accuracy(1.0) == 0.5  # at the boundary is not further
    assert margins.robust_accuracy([0.5, 1.5, 99.0]) == [0.75, 0.5, 0.25]
    assert isinstance(margins.robust_accuracy(1.0), float)


def test_the_summary_is_of_the_inputs_that_were_right() -> None:
    summary = made([0.0, 1.0, 2.0, 4.0, INF], right=[False, True, True, True, True]).summary()
    assert summary == {
        "n": 5, "accuracy": 0.8, "measured": 4, "success": 0.75, "rejected": 1,
        "median": 3.0, "mean_found": pytest.approx(7 / 3), "forwards": 3.5, "backwards": 7.0,
    }  # fmt: skip


def test_towards_targets_the_summary_is_of_all() -> None:
    summary = made([1.0, 2.0, 6.0], right=[False, True, True], targeted=True).summary()
    assert (summary["measured"], summary["median"], summary["mean_found"]) == (3, 2.0, 3.0)


def test_a_summary_of_nothing_found_or_nothing_right_is_still_one() -> None:
    lost, wrong = made([INF, INF]).summary(), made([0.0], right=[False]).summary()
    assert (lost["median"], lost["success"]) == (INF, 0.0)
    assert math.isnan(lost["mean_found"])
    assert (wrong["n"], wrong["measured"], wrong["accuracy"]) == (1, 0, 0.0)
    assert math.isnan(wrong["median"])


def test_a_margins_prints_as_one_line() -> None:
    line = repr(made([1.0, 3.0, INF]))
    assert "\n" not in line
    for part in ("l2", "n=3", "accuracy=100.00%", "median=3", "success=66.67%"):
        assert part in line
