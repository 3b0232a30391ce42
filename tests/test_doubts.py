"""measure() warns once, in one line, of results that cannot be trusted; fixed-radius attacks say what they are."""

import warnings
from typing import Any

import pytest
import torch
from models import After, Function, constant, inputs, smooth
from torch import Tensor, nn

import marginattack as ma
from marginattack import attacks
from marginattack.attacks.external import EXTERNAL_ATTACKS
from marginattack.errors import DiagnosisWarning

MODEL = smooth()
X, Y = inputs(MODEL, n=10)
QUICK = ma.MarginAttack(moves=16, closing=4, follow=0)


def installed(name: str) -> bool:
    return not EXTERNAL_ATTACKS[name].why_unavailable()


class Rounded(nn.Module):
    """A model that rounds its input: no gradient reaches it."""

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = MODEL((x * 8).round() / 8)
        return logits


ALWAYS_0 = After(MODEL, lambda out: out + torch.tensor([1e4, 0, 0, 0]))
ZERO = torch.zeros(10, dtype=torch.int64)
DOUBTFUL: dict[str, tuple[nn.Module, Tensor, str]] = {
    "every label wrong": (MODEL, (Y + 1) % 4, "grave: accuracy-zero .10 of 10.: no input is classified correctly"),
    "sigmoid": (After(MODEL, lambda out: (3 * out).sigmoid()), Y, "warning: sigmoid-outputs .* last sigmoid"),
    "masked gradients": (Rounded(), Rounded()(X).argmax(1), r"grave: zero-gradients .*\(forward calls round\)"),
    "failed attack": (ALWAYS_0, ZERO, r"grave: not-found .* Check the gradients \(diagnose\)"),
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


def test_copies_of_one_input_are_no_reason_to_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", DiagnosisWarning)
        ma.measure(MODEL, X[:1].expand(10, -1), Y[:1].expand(10), attack=QUICK)


def test_few_samples_targets_and_fixed_features_are_no_reason_to_warn() -> None:
    ma.measure(MODEL, X[:5], (Y[:5] + 1) % 4, attack=QUICK)
    ma.measure(Rounded(), X[:5], Rounded()(X[:5]).argmax(1), attack=QUICK)
    ma.measure(constant(3, 1, 1, 1), X[:5], ZERO[:5], attack=QUICK)
    ma.measure(ALWAYS_0, X, ZERO, targets=ZERO + 1, attack=QUICK)
    one = Function(lambda x: torch.stack([x[:, 0] - 1, 0 * x[:, 0] - 0.95], 1))
    fixed = ma.measure(one, X, [0] * 10, attack=QUICK, fixed=[True] + 5 * [False])
    assert not fixed.success.any()


class Blind(nn.Module):
    """A model whose logits have no gradient."""

    def __init__(self, noise: float = 0.0) -> None:
        super().__init__()
        self.noise = noise

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = MODEL(x + self.noise * torch.randn_like(x))
        return logits


DETACHED: dict[str, tuple[nn.Module, dict[str, Any]]] = {
    "no_grad": (Blind(), {}),
    "detach": (Function(lambda x: MODEL(x.detach())), {}),
    "one sample": (Blind(), {"rows": 1}),
    "marginattack": (Blind(), {"attack": QUICK}),
    "pgd": (Blind(), {"attack": "pgd@1/2"}),
    "randomised": (Blind(0.01), {"randomized": True}),
    "search": (Blind(), {"attack": attacks.Search()}),
}


@pytest.mark.parametrize(("model", "options"), DETACHED.values(), ids=DETACHED)
def test_a_model_without_gradients_is_refused(model: nn.Module, options: dict[str, Any]) -> None:
    options = {"budget": 80, **options}
    n = options.pop("rows", 10)
    with pytest.raises(
        ma.InputError, match=r"^nothing was measured: .*Remove detach\(\), .* diagnose=False.*\(detached"
    ):
        ma.measure(model, X[:n], Y[:n], "linf", **options)
    with pytest.raises(ma.InputError, match="nothing was measured"):
        ma.evaluate(model, X[:n], Y[:n], "linf", eps=[0.25, 0.5] if "attack" not in options else 0.5, **options)
    ma.measure(model, X[:n], Y[:n], "linf", diagnose=False, **options)


@pytest.mark.parametrize("attack", [name for name in ("advlib:fmn-10", "autoattack:apgd-ce") if installed(name)])
def test_attacks_of_other_libraries_are_refused_too_and_cannot_measure_anyway(attack: str) -> None:
    attack += "@1/2" if attack.startswith("autoattack") else ""
    with pytest.raises(ma.InputError, match=r"^nothing was measured: .* such as square@8/255\. \(detached"):
        ma.measure(Blind(), X, Y, "linf", attack=attack, budget=80)


def test_attacks_need_gradients_unless_they_state_otherwise() -> None:
    class Nothing(ma.Attack):
        norms = ("linf",)

        def __call__(self, problem: ma.Problem) -> None:
            pass

    class Nowhere(Nothing):
        needs_gradient = False

    with pytest.raises(ma.InputError, match="nothing was measured"):
        ma.measure(Blind(), X, Y, "linf", attack=Nothing())
    assert not ma.measure(Blind(), X[:5], Y[:5], "linf", attack=Nowhere()).success.any()
    search = attacks.Search(attack=attacks.Square(eps=0.5))
    assert ma.measure(Blind(), X[:5], Y[:5], "linf", attack=search, budget=400).success.any()
    free = {name for name, attack in EXTERNAL_ATTACKS.items() if not attack.needs_gradient}
    assert free == {"autoattack:square", "torchattacks:square", "art:square"}


IMAGES = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("library", ["autoattack", "torchattacks", "art"])
def test_square_of_other_libraries_measures_a_model_without_gradients(library: str) -> None:
    if not installed(f"{library}:square"):
        pytest.skip(f"{library} is not installed")
    model = Function(lambda x: x.detach().flatten(1)[:, :4])
    ma.measure(model, IMAGES, model(IMAGES).argmax(1), "linf", attack=f"{library}:square@1/2", budget=40)


@pytest.mark.parametrize(("attack", "norm"), [("square@1/2", "linf"), ("boundary", "l2"), ("one-pixel", "l0")])
def test_attacks_without_gradients_measure_a_model_without_gradients(attack: str, norm: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = ma.measure(Blind(), X, Y, norm, attack=attack, budget=100)
        ma.measure(Rounded(), X, Rounded()(X).argmax(1), norm, attack=attack, budget=100)
    assert not found.backwards.any()


FIXED = [attacks.PGD, attacks.BIM, attacks.DAA, attacks.LogitDifferenceAttack]


@pytest.mark.parametrize("kind", FIXED)
def test_attacks_within_a_radius_have_no_default_radius_and_say_what_they_find(kind: Any) -> None:
    name = kind.__name__
    with pytest.raises(
        ma.InputError, match=rf"{name} has no radius: give its name with one, NAME@8/255, or {name}\(eps=8/255\)"
    ):
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
