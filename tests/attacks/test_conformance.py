"""Conformance of every attack, and of the one in docs/add-an-attack.md: what results must be, and what they may cost.

A new attack needs a line in ``ATTACKS``, quick settings in ``QUICK`` and, if it minimises the distance rather than
searching within a radius, tolerances in test_known_margins.py.
"""

import doctest
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from problems import validated
from torch import Tensor, nn

import marginattack as ma
from marginattack import attacks
from marginattack.attacks import Attack
from marginattack.core.norms import as_norm

pytest.importorskip("foolbox", reason="Boundary runs Foolbox's")

PAGE = Path(__file__).parents[2] / "docs/add-an-attack.md"
DOCUMENTED = PAGE.read_text().split("```python\n")[1].split("```")[0]
SCOPE: dict[str, Any] = {"__name__": "rays"}
exec(DOCUMENTED, SCOPE)
ATTACKS: dict[str, type[Attack]] = {**attacks.ATTACKS, "rays": SCOPE["Rays"]}

D = 12  # coordinates of the inputs, in every shape below
RADIUS = {"l1": 6.0, "l2": 2.0, "linf": 0.6}  # of fixed-radius attacks, in widths of the box: large enough for all
QUICK: dict[str, Callable[[float], Attack]] = {
    "race": lambda eps: attacks.Race(passes=50),
    "marginattack": lambda eps: attacks.MarginAttack(moves=14, closing=4),
    "fgsm": lambda eps: attacks.FGSM(scan=12, growth=1.6, halvings=3),
    "bim": lambda eps: attacks.BIM(eps=eps),
    "pgd": lambda eps: attacks.PGD(eps=eps, steps=10, step=0.15, restarts=2),
    "search": lambda eps: attacks.Search(attack=attacks.PGD(steps=5, step=0.3), levels=3),
    "daa": lambda eps: attacks.DAA(eps=eps, steps=8, step=0.15, particles=3),
    "logit-difference": lambda eps: attacks.LogitDifferenceAttack(eps=eps, steps=8, step=0.15),
    "deepfool": lambda eps: attacks.DeepFool(steps=12),
    "cw": lambda eps: attacks.CarliniWagner(searches=2, steps=15, rate=0.2, initial=3.0),
    "lbfgs": lambda eps: attacks.LBFGS(growths=5, bisections=1, steps=6),
    "jsma": lambda eps: attacks.JSMA(theta=0.5),
    "one-pixel": lambda eps: attacks.OnePixel(pixels=4, population=60, generations=8),
    "boundary": lambda eps: attacks.Boundary(steps=8, directions=60),
    "apgd": lambda eps: attacks.APGD(eps=eps, steps=10, restarts=2),
    "square": lambda eps: attacks.Square(eps=eps, queries=60),
    "rays": lambda eps: ATTACKS["rays"](rays=12, halvings=4),  # type: ignore[call-arg]
}
EACH = [(name, norm) for name, attack in ATTACKS.items() for norm in attack.norms]
GRADIENT_FREE = {"one-pixel", "boundary", "square", "rays"}
each = pytest.mark.parametrize(("name", "norm"), EACH)


class Small(nn.Module):
    """A random network on inputs of any shape, in units of their box; without ``hidden`` units it is linear."""

    def __init__(self, bounds: tuple[float, float], classes: int, hidden: int, seed: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.lo, self.width = bounds[0], bounds[1] - bounds[0]
        generator = torch.Generator().manual_seed(seed)
        sizes = (D, hidden, classes) if hidden else (D, classes)
        self.weights = nn.ParameterList(
            torch.randn(b, a, generator=generator, dtype=torch.float64).to(dtype) for a, b in pairwise(sizes)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = (x.flatten(1) - self.lo) / self.width - 0.5
        for k, weight in enumerate(self.weights):
            x = (torch.tanh(x) if k else x) @ weight.T
        return x


class Plateau(nn.Module):
    """Class 1 where any coordinate is above 0.7; below 0.6 the logits are flat, so that all gradients vanish."""

    def forward(self, x: Tensor) -> Tensor:
        above = torch.relu(x.flatten(1).amax(1) - 0.6) - 0.1
        return torch.stack([-above, above], dim=1)


@dataclass(frozen=True)
class Case:
    """A model, inputs that it classifies correctly, and their bounds."""

    model: nn.Module
    images: Tensor
    labels: Tensor
    bounds: tuple[float, float]

    def measure(self, name: str, norm: str, *, budget: int | None = None, targets: Tensor | None = None,
                seed: int = 0, batch: int = 256) -> ma.Margins:  # fmt: skip
        """Measure with the attack of that name."""
        return ma.measure(
            self.model, self.images, self.labels, norm, attack=self.attack(name, norm), bounds=self.bounds,
            budget=budget, targets=targets, seed=seed, batch=batch,
        )  # fmt: skip

    def attack(self, name: str, norm: str) -> Attack:
        return QUICK[name](RADIUS.get(norm, 0.0) * (self.bounds[1] - self.bounds[0]))


def case(
    *, shape: tuple[int, ...] = (D,), classes: int = 3, hidden: int = 0, n: int = 4, seed: int = 0,
    bounds: tuple[float, float] = (0.0, 1.0), dtype: torch.dtype = torch.float64,
) -> Case:  # fmt: skip
    """A small network and random inputs, many of them near a bound."""
    model = Small(bounds, classes, hidden, seed, dtype)
    draws = torch.rand(n, *shape, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    images = (bounds[0] + (bounds[1] - bounds[0]) * (1.2 * draws - 0.1).clamp(0, 1)).to(dtype)
    return Case(model, images, model(images).argmax(1), bounds)


class Counter:
    """Counts the rows of forward and backward passes, from hooks on the model alone."""

    def __init__(self, model: nn.Module) -> None:
        self.forwards = self.backwards = 0
        model.register_forward_pre_hook(self._forward)

    def _forward(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.forwards += len(inputs[0])
        if inputs[0].requires_grad:
            inputs[0].register_hook(self._backward)

    def _backward(self, gradient: Tensor) -> None:
        self.backwards += len(gradient)


def solve(
    of: Case, name: str, norm: str, *, budget: int | None = None, targets: Tensor | None = None
) -> tuple[ma.Problem, Counter]:
    """A problem after the attack, and the passes of the model."""
    classifier = ma.Classifier(of.model, bounds=of.bounds, batch_size=3)
    with validated(classifier, of.images, of.labels, targets) as (session, batch):
        problem = session.problem(batch, as_norm(norm), budget=budget)
        counter = Counter(of.model)
        problem.solve(of.attack(name, norm))
    return problem, counter


def check(of: Case, m: ma.Margins, norm: str, targets: Tensor | None = None) -> None:
    """Every success is adversarial for the plain model, inside the box, and as far away as stated."""
    with torch.no_grad():
        label = of.model(m.adversarial).argmax(1)
    reached = label != of.labels if targets is None else label == targets
    assert bool(reached[m.success].all())
    assert torch.equal(m.label, of.labels)
    assert m.settings["targeted"] is (targets is not None)
    assert torch.equal(label[m.success], m.adversarial_label[m.success])
    assert float(m.adversarial.min()) >= of.bounds[0]
    assert float(m.adversarial.max()) <= of.bounds[1]
    order = {"l0": 0, "l1": 1, "l2": 2, "linf": np.inf}[norm]
    delta = (m.adversarial.double() - of.images.double()).flatten(1).numpy()
    again = torch.tensor([np.linalg.norm(row, order) for row in delta], dtype=torch.float64)
    torch.testing.assert_close(m.distance[m.success], again[m.success], rtol=1e-12, atol=0)
    assert bool(torch.isinf(m.distance[~m.success]).all())
    assert not bool(m.rejected.any())


def test_every_attack_has_quick_settings_and_is_described() -> None:
    assert set(QUICK) == set(ATTACKS)
    for name, attack in ATTACKS.items():
        assert isinstance(QUICK[name](1.0), attack)
        assert attack.norms
        assert attack.cost
        assert attack.reference
        assert attack().needs_gradient == (name not in GRADIENT_FREE)
        assert repr(attack()) == repr(attack()), "settings are provenance: no address in them"


@pytest.mark.parametrize("name", ATTACKS)
def test_docstrings_list_every_setting_and_their_examples_run(name: str) -> None:
    attack = ATTACKS[name]
    args = (attack.__doc__ or "").split("Args:")[1].split("\n\n")[0]
    described = ", ".join(re.findall(r"^ {8}(\w[\w, ]*):", args, flags=re.MULTILINE)).split(", ")
    assert sorted(described) == sorted(setting.name for setting in fields(attack))  # type: ignore[arg-type]
    example = doctest.DocTestParser().get_doctest(attack.__doc__ or "", {attack.__name__: attack}, name, None, None)
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example)
    assert result.attempted > 0
    assert result.failed == 0


@each
@pytest.mark.parametrize(
    ("shape", "dtype", "bounds", "hidden"),
    [
        ((D,), torch.float32, (0.0, 1.0), 0), ((4, 3), torch.float64, (-1.0, 1.0), 8),
        ((3, 2, 2), torch.float32, (0.0, 255.0), 8),
    ],
    ids=["features", "sequence", "image"],
)  # fmt: skip
def test_results_are_valid(
    name: str, norm: str, shape: tuple[int, ...], dtype: torch.dtype, bounds: tuple[float, float], hidden: int
) -> None:
    of = case(shape=shape, dtype=dtype, bounds=bounds, hidden=hidden)
    m = of.measure(name, norm)
    assert bool(m.success.all())
    assert bool((m.distance > 0).all())
    assert m.adversarial.dtype == dtype
    assert m.adversarial.shape == of.images.shape
    check(of, m, norm)


@each
@pytest.mark.parametrize("targeted", [False, True])
def test_counts_are_true(name: str, norm: str, targeted: bool) -> None:
    of = case(hidden=8)
    problem, counter = solve(of, name, norm, targets=(of.labels + 1) % 3 if targeted else None)
    assert int(problem.budget.forwards.sum()) == counter.forwards > 0
    assert int(problem.budget.backwards.sum()) == counter.backwards
    assert (counter.backwards == 0) == (name in GRADIENT_FREE)
    found, size = torch.isfinite(problem.incumbent.distance), as_norm(norm).size(problem.incumbent.points - problem.x0)
    torch.testing.assert_close(problem.incumbent.distance[found], size[found])


@each
@pytest.mark.parametrize("budget", [1, 2, 7, 23])
def test_the_budget_is_never_exceeded(name: str, norm: str, budget: int) -> None:
    problem, counter = solve(case(hidden=8), name, norm, budget=budget)
    passes = problem.budget.forwards + problem.budget.backwards
    assert int(passes.max()) <= budget
    assert int(passes.sum()) == counter.forwards + counter.backwards


@each
def test_an_ample_budget_changes_nothing(name: str, norm: str) -> None:
    """Except for Race, which spends all of it."""
    of = case(hidden=8)
    if name == "race":
        for budget, spent in ((97, 97), (210, 210)):
            given = of.measure(name, norm, budget=budget)
            assert spent - 1 <= int((given.forwards + given.backwards).max()) <= spent
        return
    free = of.measure(name, norm)
    ample = of.measure(name, norm, budget=10**9)
    assert torch.equal(free.distance, ample.distance)
    assert torch.equal(free.forwards, ample.forwards)


@each
def test_a_seed_gives_the_same_result_in_any_batch(name: str, norm: str) -> None:
    of = case(hidden=8, n=3)
    runs = [of.measure(name, norm, seed=3, batch=batch) for batch in (3, 3, 2)]
    assert torch.equal(runs[0].adversarial, runs[1].adversarial)
    for other in runs[1:]:
        torch.testing.assert_close(other.adversarial, runs[0].adversarial, rtol=0, atol=1e-6)
        torch.testing.assert_close(other.distance, runs[0].distance, rtol=0, atol=1e-6)
        assert torch.equal(other.forwards, runs[0].forwards)
        assert torch.equal(other.backwards, runs[0].backwards)


def test_another_seed_gives_another_result() -> None:
    of = case(hidden=8)
    for name in ("pgd", "apgd", "daa", "logit-difference", "one-pixel", "boundary", "square", "rays"):
        norm = ATTACKS[name].norms[-1]
        assert not torch.equal(*(of.measure(name, norm, seed=seed).adversarial for seed in (0, 1))), name


@each
def test_targets_are_reached(name: str, norm: str) -> None:
    of = case(hidden=8)
    targets = (of.labels + 1) % 3
    m = of.measure(name, norm, targets=targets)
    assert bool(m.success.all())
    check(of, m, norm, targets)


@each
@pytest.mark.parametrize("targeted", [False, True])
def test_misclassified_inputs_cost_nothing(name: str, norm: str, targeted: bool) -> None:
    """Or inputs that are classified as the target already: alone, and among others."""
    of = case()
    labels = of.labels.clone()
    labels[:2] = (of.labels[:2] + 1) % 3
    targets = torch.where(labels == of.labels, (of.labels + 1) % 3, of.labels) if targeted else None
    mixed = Case(of.model, of.images, labels, of.bounds).measure(name, norm, targets=targets)
    alone = Case(of.model, of.images[:2], labels[:2], of.bounds).measure(
        name, norm, targets=targets if targets is None else targets[:2]
    )
    for m in (mixed, alone):
        assert bool(m.success[:2].all())
        assert m.distance[:2].tolist() == [0, 0]
        assert m.forwards[:2].tolist() == m.backwards[:2].tolist() == [0, 0]
        assert torch.equal(m.adversarial[:2], of.images[:2])
        assert torch.equal(m.adversarial_label[:2], m.prediction[:2])
    assert bool((mixed.forwards[2:] > 0).all())


@each
@pytest.mark.parametrize(("dtype", "margin"), [(torch.float32, 0.5), (torch.float64, 1e4)], ids=["float32", "float64"])
def test_a_constant_model_is_not_crossed(name: str, norm: str, dtype: torch.dtype, margin: float) -> None:
    model = nn.Linear(D, 3, dtype=dtype)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.copy_(torch.tensor([0.0, margin, 0.0]))
    images = torch.full((2, D), 0.4, dtype=dtype)
    m = Case(model, images, torch.tensor([1, 1]), (0.0, 1.0)).measure(name, norm)
    assert m.distance.tolist() == [torch.inf, torch.inf]
    assert not bool((m.success | m.rejected).any())
    assert torch.equal(m.adversarial, images)
    assert m.adversarial_label.tolist() == [1, 1]


@each
def test_a_model_that_is_flat_at_the_input_is_no_error(name: str, norm: str) -> None:
    images = torch.full((2, D), 0.3, dtype=torch.float64)
    of = Case(Plateau(), images, torch.tensor([0, 0]), (0.0, 1.0))
    m = of.measure(name, norm)
    check(of, m, norm)
    if name in GRADIENT_FREE:
        assert bool(m.success.all())


@each
@pytest.mark.parametrize("single", [False, True], ids=["two logits", "TwoClass"])
def test_two_classes(name: str, norm: str, single: bool) -> None:
    of = case(classes=2)
    if single:
        model = ma.TwoClass(Small(of.bounds, 1, 0, 5, torch.float64))
        of = Case(model, of.images, model(of.images).argmax(1), of.bounds)
    m = of.measure(name, norm)
    assert bool(m.success.all())
    assert m.adversarial_label.tolist() == (1 - of.labels).tolist()
    check(of, m, norm)
    towards = of.measure(name, norm, targets=1 - of.labels)
    assert bool(towards.success.all())
    check(of, towards, norm, 1 - of.labels)
