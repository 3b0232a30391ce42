"""APGD: its checkpoints, its losses, and its success rates beside those of pyautoattack."""

from typing import Any

import pytest
import torch
from models import inputs, smooth
from torch import nn

import marginattack as ma
from marginattack.attacks.apgd import APGD
from marginattack.core.losses import CROSS_ENTROPY, DLR, MARGIN, TARGETED_DLR, Loss

LOSSES: dict[str, Loss] = {"ce": CROSS_ENTROPY, "dlr": DLR, "t": TARGETED_DLR}


def test_checkpoints_are_the_published_ones() -> None:
    assert sorted(APGD(steps=100).checkpoints()) == [22, 41, 57, 70, 80, 87, 93, 99]
    assert APGD(steps=3).checkpoints() == {1, 2, 3}


def test_dlr_does_not_depend_on_the_scale_of_the_logits() -> None:
    logits = torch.tensor([[2.0, 1.0, -1.0, 0.5], [0.0, 3.0, 1.0, 2.0]])
    label = torch.tensor([0, 2])
    torch.testing.assert_close(DLR(logits, label), torch.tensor([1.0 / 1.5, -2.0 / 2.0]))
    torch.testing.assert_close(DLR(1000 * logits, label), DLR(logits, label))
    torch.testing.assert_close(TARGETED_DLR(logits, label), torch.tensor([1.0 / 2.25, -2.0 / 2.5]))
    assert (torch.sign(DLR(logits, label)) == torch.sign(MARGIN(logits, label))).all()


def test_the_step_shrinks_to_the_optimum() -> None:
    """On a linear model with a radius just above the margin only a small step at the end can succeed."""
    model = nn.Linear(12, 2, bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(torch.randn(2, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
        model.weight.sub_(model.weight.mean(1, keepdim=True))  # the boundary passes through the middle of the box
    x, y = inputs(model, (12,), n=10)
    exact = ma.measure(model, x, y, "l2", budget=400).distance
    inside = exact < 0.4
    assert int(inside.sum()) >= 3
    for row in inside.nonzero()[:3, 0].tolist():
        attack = APGD(eps=1.001 * float(exact[row]), steps=50)
        assert ma.measure(model, x[[row]], y[[row]], "l2", attack=attack).success.all()


@pytest.mark.parametrize("kind", ["ce", "dlr", "t"])
@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.014), ("l2", 0.16)])
def test_success_rates_are_those_of_pyautoattack(norm: str, eps: float, kind: str) -> None:
    library = pytest.importorskip("pyautoattack.autopgd_base")
    model = nn.Sequential(nn.Flatten(), smooth(d=144, classes=6, dtype=torch.float32))
    x, y = inputs(model, (1, 12, 12), n=60)
    settings: dict[str, Any] = {"norm": {"linf": "Linf", "l2": "L2"}[norm], "eps": eps, "n_iter": 12, "device": "cpu"}
    with torch.random.fork_rng():
        theirs = (
            library.APGDAttack_targeted(model, n_target_classes=3, **settings)
            if kind == "t"
            else library.APGDAttack(model, loss=kind, **settings)
        ).perturb(x, y)
    with torch.no_grad():
        expected = float((model(theirs).argmax(1) != y).double().mean())
    ours = APGD(eps=eps, steps=12, loss=LOSSES[kind], candidates=3 * (kind == "t"))
    assert 0.1 < expected < 0.9
    assert float(ma.measure(model, x, y, norm, attack=ours).success.double().mean()) >= expected - 0.05
