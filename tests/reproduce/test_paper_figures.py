"""The paper's figures in docs/img are drawn from runs and records."""

import importlib
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pictures() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "experiments"))
        return importlib.import_module("pictures")


def test_every_figure_is_in_the_docs() -> None:
    page = (ROOT / "docs/method.md").read_text()
    for name in ("paradigms", "path", "convergence", "shapes"):
        assert f"(img/{name}.svg)" in page
        assert (ROOT / f"docs/img/{name}.svg").read_text().startswith("<svg")


def test_figure_1_shows_nearest_points_and_points_within_the_radius(pictures: ModuleType) -> None:
    margin, fixed = pictures.attacks_by_kind()
    assert {"marginattack", "deepfool", "cw", "fgsm"} <= margin.keys()
    assert {"pgd", "bim", "apgd"} <= fixed.keys()
    nearest, _ = pictures.find_example(replace(margin["marginattack"], moves=60, closing=6))
    grid = np.linspace(-1, 1, 20001)
    assert np.hypot(*nearest) == pytest.approx(np.hypot(grid, pictures.curved(grid)).min(), rel=1e-3)
    near, deepest = pictures.find_example(fixed["pgd"])
    assert np.hypot(*near) < np.hypot(*deepest) <= pictures.RADIUS
    assert deepest[1] - pictures.curved(deepest[0]) > 0.05  # well past the boundary


def test_figure_3_shows_the_recorded_path(pictures: ModuleType) -> None:
    path = json.loads((ROOT / "experiments/results/convergence.json").read_text())["numbers"]["path"]
    spec = pictures.draw_convergence().to_dict()
    (shown,) = [rows for rows in spec["datasets"].values() if rows[0]["move"] == 0]
    assert [row["norm"] / 255 for row in shown] == pytest.approx(path["distance"][: len(shown)])
    assert [row["c"] for row in shown] == pytest.approx(path["c"][: len(shown)])
    assert len(shown) > 40
