"""MarginAttack and attacks within a radius in low precision: what is confirmed, searched on, charged and recorded."""

from dataclasses import replace
from typing import Any

import pytest
import standins
import torch
from models import inputs, smooth
from problems import pose, validated
from torch import Tensor, nn

import marginattack as ma
from marginattack import attacks
from marginattack.attacks import Attack
from marginattack.core.calibration import Tolerance
from marginattack.core.losses import MARGIN
from marginattack.core.norms import as_norm
from marginattack.execution import precision
from marginattack.execution.evaluator import ModelEvaluator

EPS = {"l1": 3.0, "l2": 1.2, "linf": 0.6}  # which reach every sample
WITHIN: dict[str, Any] = {
    "pgd": lambda eps: attacks.PGD(eps=eps, steps=20, step=0.1, restarts=2),
    "bim": lambda eps: attacks.BIM(eps=eps),
    "apgd": lambda eps: attacks.APGD(eps=eps, steps=20),
    "apgd-t": lambda eps: attacks.APGD(eps=eps, steps=20, candidates=3),
    "square": lambda eps: attacks.Square(eps=eps, queries=100),
    "daa": lambda eps: attacks.DAA(eps=eps, steps=20, step=0.1, particles=3),
    "logit-difference": lambda eps: attacks.LogitDifferenceAttack(eps=eps, steps=20, step=0.1),
}
EACH = [*((name, "linf") for name in WITHIN), ("pgd", "l1"), ("pgd", "l2")]
each = pytest.mark.parametrize(("name", "norm"), EACH)


class Lying(nn.Module):
    """In low precision it negates the logits of points with a coordinate outside of [0.1, 0.9], where no input is."""

    def __init__(self) -> None:
        super().__init__()
        self.model = smooth(dtype=torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        outside = ((x - 0.5).abs().flatten(1).amax(1) > 0.4)[:, None]
        return logits if self.model[0].weight.dtype == torch.float32 else torch.where(outside, -logits, logits)


def check(found: ma.Margins, model: nn.Module, x: Tensor, y: Tensor, budget: int | None = None) -> None:
    """Verified in float32, nothing rejected, within the budget."""
    with torch.no_grad():
        assert (model(found.adversarial).argmax(1) != y).equal(found.success)
    assert not found.rejected.any()
    if budget is not None:
        assert (found.forwards + found.backwards).max() <= budget


@each
def test_what_float32_does_not_confirm_is_searched_on_within_the_radius(name: str, norm: str) -> None:
    model, eps = Lying(), EPS[norm]
    x, y = inputs(model, n=8)
    full, found = (
        ma.measure(model, x, y, norm, attack=WITHIN[name](eps), precision=each) for each in ("float32", "bf16")
    )
    assert full.success.all()
    assert found.success.all()
    assert (found.distance <= eps).all()
    assert (full.settings["precision"], found.settings["precision"]) == ("float32", "bf16")
    check(found, model, x, y)


@each
@pytest.mark.parametrize("budget", [59, 60, 75])
def test_the_budget_is_hard_and_nothing_is_rejected(name: str, norm: str, budget: int) -> None:
    model = Lying()
    x, y = inputs(model, n=8)
    found = ma.measure(model, x, y, norm, attack=WITHIN[name](EPS[norm]), budget=budget, precision="bf16")
    check(found, model, x, y, budget)
    assert found.settings["precision"] == ("bf16" if budget >= 60 else "float32")


@pytest.mark.parametrize(
    ("attack", "norm", "budget", "chosen"),
    [
        (attacks.PGD(eps=0.6), "linf", None, "fp16"), (attacks.PGD(eps=3.0), "l1", 80, "fp16"),
        (attacks.PGD(eps=0.6, stop=False), "linf", None, "float32"), (ma.MarginAttack(), "l2", None, "fp16"),
        (ma.MarginAttack(moves=100), "l2", None, "float32"), (ma.MarginAttack(), "l2", 399, "float32"),
        (ma.MarginAttack(), "l1", 400, "float32"), (ma.MarginAttack(gain=1e-3), "l2", 400, "float32"),
        (attacks.FGSM(), "linf", 400, "float32"), (attacks.Search(levels=2), "linf", 400, "float32"),
    ],
)  # fmt: skip
def test_a_precision_is_chosen_where_it_was_shown_to_keep_results(
    attack: Attack, norm: str, budget: int | None, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "has_low_precision", lambda device: True)
    monkeypatch.setattr(precision, "MOST_ERROR", 0.1)
    model = smooth(dtype=torch.float32)
    x, y = inputs(model, n=4)
    found = ma.measure(model, x, y, norm, attack=attack, budget=budget)
    assert found.settings["precision"] == chosen
    assert attack.low_precision(as_norm(norm), budget) == (chosen != "float32")
    check(found, model, x, y, budget)


class Rounded(nn.Module):
    """In low precision its logits are multiples of ``unit``."""

    def __init__(self, unit: float) -> None:
        super().__init__()
        self.model, self.unit = smooth(dtype=torch.float32), unit

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        if self.model[0].weight.dtype == torch.float32:
            return logits
        return logits + (torch.round(logits / self.unit) * self.unit - logits).detach()


def test_samples_that_cross_by_less_than_the_error_of_low_precision_are_found() -> None:
    model = Rounded(0.02)
    x, y = inputs(model, n=8)
    margin = ma.measure(model, x, y, "linf", budget=400, precision="float32").distance
    seen = 0
    for row in range(8):
        attack = attacks.PGD(eps=1.003 * float(margin[row]), random=False, loss=MARGIN)
        one = x[row : row + 1], y[row : row + 1]
        full, found = (ma.measure(model, *one, "linf", attack=attack, precision=each) for each in ("float32", "bf16"))
        assert found.success.item() >= full.success.item()
        seen += int(bool(full.success) and found.settings["precision"] == "bf16")
        eps = 0.997 * float(margin[row])
        found = ma.measure(model, *one, "linf", attack=replace(attack, eps=eps), precision="bf16")
        assert not (found.success & (found.distance > eps)).any()  # no point is moved out of the radius
    assert seen > 3


def test_a_pass_is_withheld_for_the_confirmation() -> None:
    model = smooth(dtype=torch.float32)
    x, y = inputs(model, n=4)
    near = ma.measure(model, x, y, "linf", budget=100)
    point = x + 1.05 * (near.adversarial - x)

    def spend(search: ma.Problem) -> None:
        while True:
            search.value(point)

    with validated(ma.Classifier(model, precision="bf16"), x, y) as (session, batch):
        problem = session.problem(batch, ma.LINF, budget=61)
        with problem.for_search(claims=True) as search:
            search.solve(spend)
            assert (problem.budget.forwards == 60).all()
        confirmed = torch.isfinite(problem.incumbent.distance)[:, 0]
        assert confirmed.sum() > 1
        assert problem.budget.forwards.equal(60 + confirmed.long())
        assert (problem.budget.forwards + problem.budget.left == 61).all()


def test_a_reversed_tolerance_counts_what_may_be_adversarial() -> None:
    size = torch.tensor([5.0, 50.0])
    assert Tolerance(1e-6, 0.1).reversed.of(size).tolist() == pytest.approx([-0.1, -0.1])


@pytest.mark.parametrize("norm", ["l0", "l1", "l2", "linf"])
@pytest.mark.parametrize("budget", [None, 100, 150])
def test_marginattack_loses_nothing_that_float32_finds(norm: str, budget: int | None) -> None:
    model, attack = Lying(), ma.MarginAttack(moves=60, closing=6)
    x, y = inputs(model, n=8)
    full, found = (
        ma.measure(model, x, y, norm, attack=attack, budget=budget, precision=each) for each in ("float32", "bf16")
    )
    assert found.success[full.success].all()
    assert found.settings["precision"] == "bf16"
    check(found, model, x, y, budget)


def record_queries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The precisions of the queries from now on."""
    asked: list[str] = []
    query = ModelEvaluator.query

    def spy(self: ModelEvaluator, *arguments: Any) -> Any:
        asked.append(self.precision)
        return query(self, *arguments)

    monkeypatch.setattr(ModelEvaluator, "query", spy)
    return asked


def test_the_closing_moves_of_marginattack_are_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = record_queries(monkeypatch)
    model, attack = smooth(dtype=torch.float32), ma.MarginAttack(moves=60, closing=12, follow=0, scans=0, rescue=0)
    x, y = inputs(model, n=8)
    low = ma.measure(model, x, y, "l2", attack=attack, precision="bf16")
    low_part, rest = asked[: 48 + 1 + 12 + 1], asked[48 + 1 + 12 + 1 :]  # pairs, confirmation, closing, last point
    assert low_part == 48 * ["bf16"] + (1 + 12 + 1) * ["float32"]
    assert set(rest) <= {"float32"}  # samples within the error of bf16
    tight = ma.measure(model, x, y, "l2", attack=attack, precision="bf16", budget=101)
    assert set((tight.forwards - tight.backwards).tolist()) == {2}  # the confirmation and the last point
    full = ma.measure(model, x, y, "l2", attack=attack, precision="float32")
    assert (low.distance / full.distance).mean() == pytest.approx(1, abs=1e-3)
    asked.clear()
    early = ma.measure(model, x, y, "l2", attack=ma.MarginAttack(moves=60, gain=1e-3), precision="bf16")
    assert set(asked) == {"float32"}  # samples that stop early have no closing moves
    assert early.settings["precision"] == "float32"


def test_one_forward_confirms_an_attack_within_a_radius(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = record_queries(monkeypatch)
    model = smooth(dtype=torch.float32)
    x, y = (part[:1] for part in inputs(model))
    found = ma.measure(model, x, y, "linf", attack=attacks.BIM(eps=0.6), precision="bf16")
    assert asked == (len(asked) - 1) * ["bf16"] + ["float32"]
    assert found.forwards.item() == len(asked) == found.backwards.item() + 1
    asked.clear()
    every = ma.measure(model, x, y, "linf", attack=attacks.BIM(eps=0.6, stop=False), precision="bf16")
    assert set(asked) == {every.settings["precision"]} == {"float32"}  # the nearest of all points counts


@each
def test_without_low_precision_nothing_changes(name: str, norm: str) -> None:
    model, attack = smooth(dtype=torch.float32), WITHIN[name](EPS[norm] / 2)
    problem, plain = (pose(model, *inputs(model, n=8), norm=as_norm(norm), budget=100) for _ in range(2))
    problem.solve(attack)
    radius = torch.full_like(plain.incumbent.distance, attack.eps)
    plain.solve(lambda each: attack.within(each, radius))
    assert problem.incumbent.points.equal(plain.incumbent.points)
    assert problem.budget.forwards.equal(plain.budget.forwards)
    assert not problem.searched.is_set()


@pytest.mark.parametrize(
    ("attack", "used"),
    [
        (attacks.DeepFool(), "float32"), (attacks.FGSM(), "float32"), (attacks.Search(levels=2), "float32"),
        (ma.Race(passes=60), "bf16"), (attacks.BIM(eps=0.6), "bf16"),
    ],
)  # fmt: skip
def test_settings_name_the_precision_that_the_attack_used(attack: Attack, used: str) -> None:
    model = smooth(dtype=torch.float32)
    x, y = inputs(model, n=8)
    found, full = (ma.measure(model, x, y, "linf", attack=attack, precision=each) for each in ("bf16", "float32"))
    assert (found.settings["precision"], full.settings["precision"]) == (used, "float32")
    if used == "float32":
        torch.testing.assert_close(found.distance, full.distance, rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("attack", "norm"), [(ma.MarginAttack(moves=60), "l2"), (attacks.PGD(eps=0.3, steps=20), "linf")]
)
def test_graphs_of_both_precisions_give_what_eager_passes_give(
    attack: Attack, norm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, model = standins.install(monkeypatch), Lying()
    x, y = inputs(model, n=8)
    plain, captured = (
        ma.measure(ma.Classifier(model, precision="bf16", graphs=graphs), x, y, norm, attack=attack)
        for graphs in (False, True)
    )
    assert made
    assert plain.settings["precision"] == captured.settings["precision"] == "bf16"
    assert captured.success.equal(plain.success)
    torch.testing.assert_close(captured.distance, plain.distance, rtol=1e-4, atol=0)
    assert captured.forwards.equal(plain.forwards)
