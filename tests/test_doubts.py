"""measure() warns once, in one line, of results that cannot be trusted; fixed-radius attacks say what they are."""

import warnings
from typing import Any

import pytest
import torch
from models import After, Function, inputs, smooth
from torch import Tensor, nn

import marginattack as ma
from marginattack import attacks
from marginattack.errors import DiagnosisWarning

MODEL = smooth()
X, Y = inputs(MODEL, n=10)
QUICK = ma.MarginAttack(moves=16, closing=4, follow=0)


class Rounded(nn.Module):
    """A model that rounds its input: no gradient reaches it."""

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = MODEL((x * 8).round() / 8)
        return logits


DOUBTFUL: dict[str, tuple[nn.Module, Tensor, str]] = {
    "every label wrong": (MODEL, (Y + 1) % 4, "grave: accuracy-zero .10 of 10.: no input is classified correctly"),
    "sigmoid": (After(MODEL, lambda out: (3 * out).sigmoid()), Y, "warning: sigmoid-outputs .* last sigmoid"),
    "masked gradients": (Rounded(), Rounded()(X).argmax(1), r"grave: not-found .* Check the gradients \(diagnose\)"),
}


@pytest.mark.parametrize(("model", "labels", "message"), DOUBTFUL.values(), ids=DOUBTFUL)
def test_doubtful_results_come_with_one_warning_of_one_line(model: nn.Module, labels: Tensor, message: str) -> None:
    settings: dict[str, Any] = {"norm": ["l2", "linf"], "attack": QUICK}
    with pytest.warns(DiagnosisWarning, match=message) as caught:
        ma.measure(model, X, labels, **settings)
    (warning,) = caught
    assert "\n" not in str(warning.message)
    assert str(warning.message).endswith("Silence: diagnose=False.")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ma.measure(model, X, labels, diagnose=False, **settings)


def test_few_samples_targets_and_fixed_features_are_no_reason_to_warn() -> None:
    ma.measure(MODEL, X[:5], (Y[:5] + 1) % 4, attack=QUICK)
    ma.measure(Rounded(), X, Rounded()(X).argmax(1), targets=(Rounded()(X).argmax(1) + 1) % 4, attack=QUICK)
    one = Function(lambda x: torch.stack([x[:, 0] - 1, 0 * x[:, 0] - 0.95], 1))
    stuck = ma.measure(one, X, [0] * 10, attack=QUICK, fixed=[True] + 5 * [False])
    assert not stuck.success.any()


FIXED = [attacks.PGD, attacks.BIM, attacks.DAA, attacks.LogitDifferenceAttack]


@pytest.mark.parametrize("kind", FIXED)
def test_attacks_within_a_radius_have_no_default_radius_and_say_what_they_find(kind: Any) -> None:
    name = kind.__name__
    with pytest.raises(ma.InputError, match=rf"{name} has no radius: give one, {name}\(eps=8/255\)"):
        ma.measure(MODEL, X, Y, "linf", attack=kind())
    m = ma.measure(MODEL, X, Y, "linf", attack=kind(eps=0.5))
    assert "within 0.5: distances are of points in that radius, not margins" in repr(m)
    assert "not margins" in m._repr_html_()
    assert (m.distance[m.success] <= 0.5).all()


def test_an_attack_by_name_needs_a_radius_too() -> None:
    with pytest.raises(ma.InputError, match="PGD has no radius"):
        ma.measure(MODEL, X, Y, "linf", attack="pgd")
    with pytest.raises(ma.InputError, match="deepfool@1: deepfool minimises the distance: omit the radius"):
        ma.measure(MODEL, X, Y, "linf", attack="deepfool@1")
    named, given = (ma.measure(MODEL, X, Y, "linf", attack=each) for each in ("pgd@1/2", attacks.PGD(eps=0.5)))
    assert torch.equal(named.distance, given.distance)
    assert "within 0.5" in repr(named)
    assert "within" not in repr(ma.measure(MODEL, X, Y, "linf", attack=attacks.Search(levels=2)))
