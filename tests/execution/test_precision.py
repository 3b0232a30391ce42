"""Searches in low precision: bf16 runs on a CPU too, tf32 on a GPU alone."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from models import inputs, smooth
from problems import validated
from torch import Tensor, nn

import marginattack as ma
from marginattack.attacks import Attack
from marginattack.core.classifier import Classifier
from marginattack.core.norms import L2
from marginattack.execution.passes import logits_in_batches
from marginattack.execution.precision import choose_precision, fastest
from marginattack.sources.data import samples
from marginattack.sources.networks import zoo


def test_a_search_in_bf16_ends_at_nearly_the_same_margins() -> None:
    model = zoo("mnist-cnn")
    x, y = samples("mnist", 32)
    full = ma.measure(model, x, y, "l2", budget=400)
    coarse = ma.measure(model, x, y, "l2", budget=400, search="bf16")
    assert full.success.equal(coarse.success)
    assert float((coarse.distance / full.distance)[full.distance > 0].mean()) == pytest.approx(1, abs=5e-3)
    assert not coarse.distance.equal(full.distance)  # it was another search
    assert (coarse.forwards + coarse.backwards).max() <= 400
    with torch.no_grad():
        assert (model(coarse.adversarial).argmax(1) != y).all()


def test_only_the_search_is_in_low_precision_and_its_tolerance_covers_it() -> None:
    model = smooth(dtype=torch.float32)
    with validated(Classifier(model, search="bf16"), *inputs(model, n=12)) as (session, batch):
        problem = session.problem(batch, L2)
        full = session.logits(batch.images)
        assert logits_in_batches(session.evaluator(), batch.images).equal(full)
        with problem.for_search() as search:
            evaluator, exact = search.evaluator, problem.evaluator
            coarse = logits_in_batches(evaluator, batch.images)  # type: ignore[arg-type]
            assert problem.evaluator.for_search is not problem.evaluator
            assert search.evaluator.for_search is search.evaluator
        change = float((coarse - full).abs().max())
        assert evaluator.tolerance.absolute >= 2 * change > exact.tolerance.absolute
        assert session.logits(batch.images).equal(full)


class Rounded(nn.Module):
    """In low precision it is another model: no point that a search finds there is adversarial."""

    def __init__(self) -> None:
        super().__init__()
        self.model = smooth(dtype=torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        return logits.flip(1) if x.dtype == torch.bfloat16 else logits


def test_no_sample_is_lost_where_low_precision_is_misleading() -> None:
    x, y = inputs(Rounded(), n=12)
    found = ma.measure(Rounded(), x, y, "l2", budget=400, search="bf16")
    assert found.success.all()
    assert not found.rejected.any()


def test_the_fastest_precision_that_loses_nothing_is_chosen() -> None:
    one = torch.tensor([[1.0], [2.0], [torch.inf]])
    lost = torch.tensor([[1.0], [torch.inf], [torch.inf]])
    assert fastest({"float32": (3.0, one), "tf32": (2.0, one), "bf16": (1.0, 1.01 * one)}) == "tf32"
    assert fastest({"float32": (3.0, one), "tf32": (2.0, lost), "bf16": (1.0, 1.0005 * one)}) == "bf16"
    assert fastest({"float32": (1.0, one), "tf32": (2.0, one), "bf16": (torch.inf, lost)}) == "float32"
    nothing = torch.full((3, 1), torch.inf)
    assert fastest({"float32": (1.0, nothing), "bf16": (0.5, nothing)}) == "float32"


def test_on_a_cpu_auto_is_float32() -> None:
    x, y = inputs(smooth(), n=8)
    assert ma.measure(smooth(), x, y, "l2", budget=40, search="auto").settings["search"] == "float32"
    with validated(Classifier(smooth()), x, y) as (session, batch):
        assert choose_precision(session, batch, L2, ma.Race(), 40) == "float32"


@dataclass(frozen=True, kw_only=True)
class Searching(Attack):
    """All of an attack in the precision of the search."""

    norms: ClassVar = ("l0", "l1", "l2", "linf")

    attack: Attack

    def __call__(self, problem: ma.Problem) -> None:
        with problem.for_search() as search:
            self.attack(search)


@pytest.mark.parametrize(
    "attack", [ma.attacks.LogitDifferenceAttack(eps=0.3), ma.ATTACKS["search"](), ma.MarginAttack()]
)
@pytest.mark.parametrize("budget", [None, 400])
def test_attacks_that_deactivate_samples_or_spend_all_keep_what_they_found(attack: Attack, budget: int | None) -> None:
    """On a CPU tf32 is float32, so that nothing may change but what the confirmation costs."""
    x, y = inputs(smooth(dtype=torch.float32), n=12)
    norm = attack.norms[-1]
    plain, confirmed = (
        ma.measure(Classifier(smooth(dtype=torch.float32), search="tf32"), x, y, norm, attack=each, budget=budget)
        for each in (attack, Searching(attack=attack))
    )
    assert confirmed.success.equal(plain.success)
    torch.testing.assert_close(confirmed.distance, plain.distance, rtol=0.02, atol=0)


@pytest.mark.parametrize("reason", ["expected m1 and m2", "NaN or infinite logits"])
def test_a_model_that_cannot_run_in_low_precision_raises_one_line(reason: str) -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.scale = smooth(dtype=torch.float32), torch.ones(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.model(x)
            if "NaN" in reason:
                return logits * (torch.nan if x.dtype == torch.bfloat16 else 1)
            return logits @ self.scale.triu()

    x, y = inputs(Fixed(), n=4)
    with pytest.raises(ma.InputError, match=rf"model fails in bf16 \(.*{reason}"):
        ma.measure(Fixed(), x, y, search="bf16")
