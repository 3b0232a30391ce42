"""Attacks, norms, models and data of other packages; the norm of docs/add-a-norm.md in Race and MarginAttack."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from models import inputs, smooth
from oracles import linear
from scipy.optimize import Bounds, LinearConstraint, minimize

import marginattack as ma
from marginattack.core import plugins
from marginattack.core.box import Box
from marginattack.core.plugins import Registry

DOCS = Path(__file__).parents[1] / "docs"


def documented(page: str) -> str:
    """The first program of a page."""
    return (DOCS / page).read_text().split("```python\n")[1].split("```")[0]


NORM: dict[str, Any] = {"__name__": "norms"}
exec(documented("add-a-norm.md"), NORM)
L3: ma.Norm = NORM["L3"]
ATTACKS: list[tuple[Any, int | None]] = [(None, 200), (ma.MarginAttack(moves=60, closing=8, follow=1), None)]


def test_a_documented_norm_is_a_norm() -> None:
    v, zero = torch.randn(50, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64), torch.zeros(1, 7)
    s = L3.steepest(v)
    torch.testing.assert_close((v * s).sum(1, keepdim=True), L3.dual(v))
    torch.testing.assert_close(L3.size(s), torch.ones(50, 1, dtype=torch.float64))
    assert L3.steepest(zero).equal(zero)
    assert L3.onto_ball(v, 0 * v, L3.size(v) / 2).allclose(v / 2)


def test_its_step_to_a_plane_is_the_shortest_in_the_box() -> None:
    draws = torch.Generator().manual_seed(1)
    x, g = (torch.rand(6, 5, generator=draws, dtype=torch.float64) for _ in range(2))
    g, r = 2 * g - 1, torch.full((6, 1), 0.4, dtype=torch.float64)
    z = L3.onto_plane(x, g, r, Box(torch.zeros(1, 1).double(), torch.ones(1, 1).double()))
    for k in range(6):
        plane = LinearConstraint(g[k].numpy(), -0.4, -0.4)
        room, solve = Bounds(-x[k].numpy(), 1 - x[k].numpy()), cast(Any, minimize)
        t = solve(
            lambda t: float((np.abs(t) ** 3).sum()), np.zeros(5), constraints=plane, bounds=room, tol=1e-14,
            method="SLSQP",
        )  # fmt: skip
        assert L3.size(z - x)[k].item() == pytest.approx(t.fun ** (1 / 3), rel=1e-4)


@pytest.mark.parametrize(("attack", "budget"), ATTACKS)
def test_a_norm_of_a_third_party_works_in_race_and_marginattack(attack: Any, budget: int | None) -> None:
    oracle = linear(0, n=10, boxed=False, dtype=torch.float64)
    bounds = (-torch.inf, torch.inf)
    m = ma.measure(oracle.model, oracle.images, oracle.labels, L3, attack=attack, budget=budget, bounds=bounds)
    w, b = (p.detach() for p in oracle.model.parameters())
    logits = oracle.images @ w.T + b
    gap = logits.gather(1, oracle.labels[:, None]) - logits
    slope = torch.linalg.vector_norm(w[oracle.labels][:, None] - w[None], 1.5, dim=2)
    exact = torch.where(slope > 0, gap / slope, torch.inf).amin(1)
    torch.testing.assert_close(m.distance, exact, rtol=1e-4, atol=0)
    assert m.norm == "l3"


@pytest.mark.parametrize(("attack", "budget"), ATTACKS)
def test_margins_in_it_lie_between_those_of_its_neighbours(attack: Any, budget: int | None) -> None:
    model = smooth()
    images, labels = inputs(model, n=8)
    found = {
        norm: ma.measure(model, images, labels, norm, attack=attack, budget=budget) for norm in (ma.L2, L3, ma.LINF)
    }
    l3 = found[L3].distance
    assert (l3 <= L3.size(found[ma.L2].perturbation)[:, 0] * 1.001).all()
    assert (l3 <= L3.size(found[ma.LINF].perturbation)[:, 0] * 1.001).all()
    assert (found[ma.LINF].distance * 0.999 <= l3).all()
    assert (l3 <= found[ma.L2].distance * 1.001).all()


def test_attacks_for_certain_norms_say_so() -> None:
    with pytest.raises(ma.InputError, match="DeepFool supports l2, linf, not l3: choose another norm or attack"):
        ma.measure(smooth(), *inputs(smooth()), L3, attack="deepfool")


SOURCES = """
import torch
from torch import nn
from marginattack.sources.common import Form
from marginattack.sources.data_base import Data
from marginattack.sources.model_base import LoadedModel


class Noise(Data):
    labels = torch.zeros(5, dtype=torch.int64)

    def __len__(self):
        return 5

    def read(self, rows):
        return torch.linspace(0.1, 0.9, 5)[list(rows), None, None, None].expand(-1, 1, 2, 3), self.labels[list(rows)]

    def digest(self):
        return "noise"


MODELS = Form(lambda source, options: LoadedModel(module=nn.Flatten()), "the input as logits")
DATA = Form(lambda source, options: Noise(source, (1, 2, 3), None), "greys")
"""
ENTRIES = """
[marginattack.attacks]
rays = rays:Rays
[marginattack.norms]
l3 = norms:L3
[marginattack.models]
lab = sources:MODELS
[marginattack.data]
lab = sources:DATA
"""
PROGRAM = """
import json, norms, torch  # one of the plugins is imported before anything asks for it
import marginattack as ma
from marginattack.sources.data import open_data
from marginattack.sources.models import open_model
x, y = torch.tensor([[0.9, 0.2]]), [0]
print(json.dumps([
    repr(ma.ATTACKS["rays"]()), ma.measure(torch.nn.Identity(), x, y, "l3", budget=40).distance.item(),
    ma.measure(torch.nn.Identity(), x, y, "linf", attack="rays").success.item(),
    type(open_model("lab:a").module).__name__, len(open_data("lab:b")),
]))
"""


def test_other_packages_add_attacks_norms_models_and_data(tmp_path: Path) -> None:
    (tmp_path / "rays.py").write_text(documented("add-an-attack.md"))
    (tmp_path / "norms.py").write_text(documented("add-a-norm.md"))
    (tmp_path / "sources.py").write_text(SOURCES)
    metadata = tmp_path / "lab-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: lab\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRIES)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    printed = subprocess.check_output([sys.executable, "-c", PROGRAM], env=environment, text=True)
    attack, distance, found, model, rows = json.loads(printed)
    assert attack == "Rays(rays=10, halvings=10)"
    assert distance == pytest.approx(0.7 / 2 ** (2 / 3), rel=1e-3)
    assert (found, model, rows) == (True, "Flatten", 5)


class Broken:
    """An entry point of a package that does not fit."""

    name, value = "new", "package:thing"

    def load(self) -> Any:
        raise ImportError("cannot import name 'Norm2'")


def test_a_package_that_cannot_be_loaded_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "entry_points", lambda group: [Broken()])
    registry = Registry("marginattack.norms", {"l2": ma.L2})
    assert registry["l2"] is ma.L2
    with pytest.warns(UserWarning, match="new = package:thing cannot be loaded .ImportError.*update or uninstall"):
        assert list(registry) == ["l2"]
