"""Searches in low precision: bf16 and fp16 run on a CPU too, tf32 on a GPU alone."""

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
from marginattack.execution import precision
from marginattack.execution.copies import DTYPES, to_half
from marginattack.execution.passes import logits_in_batches
from marginattack.execution.precision import by_clarity, turned
from marginattack.sources.data import samples
from marginattack.sources.networks import zoo


def test_a_search_in_bf16_ends_at_nearly_the_same_margins() -> None:
    model = zoo("mnist-cnn")
    x, y = samples("mnist", 12)
    full = ma.measure(model, x, y, "l2", budget=200)
    coarse = ma.measure(model, x, y, "l2", budget=200, precision="bf16")
    assert full.success.equal(coarse.success)
    assert float((coarse.distance / full.distance)[full.distance > 0].mean()) == pytest.approx(1, abs=5e-3)
    assert not coarse.distance.equal(full.distance)  # it was another search
    assert (coarse.forwards + coarse.backwards).max() <= 200
    with torch.no_grad():
        assert (model(coarse.adversarial).argmax(1) != y).all()


def test_only_the_search_is_in_low_precision_and_its_tolerance_covers_it() -> None:
    model = smooth(dtype=torch.float32)
    with validated(Classifier(model, precision="bf16"), *inputs(model, n=12)) as (session, batch):
        problem = session.problem(batch, L2)
        full = session.logits(batch.images)
        assert logits_in_batches(session.evaluator(), batch.images).equal(full)
        with problem.for_search() as search:
            evaluator, exact = search.evaluator, problem.evaluator
            coarse = logits_in_batches(evaluator, batch.images)  # type: ignore[arg-type]
            assert problem.evaluator.for_search is not problem.evaluator
            assert search.evaluator.for_search is search.evaluator
        change = float((coarse - full).abs().amax(1).median())
        assert evaluator.tolerance.absolute >= 2 * change > exact.tolerance.absolute
        assert session.logits(batch.images).equal(full)


class Misled(nn.Module):
    """In low precision its logits are off by up to ``error``, differently at each point; or those of other classes."""

    def __init__(self, error: float) -> None:
        super().__init__()
        self.model, self.error = smooth(dtype=torch.float32), error

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        if next(self.parameters()).dtype == torch.float32:
            return logits
        return logits + self.error * torch.sin(1e4 * logits.detach()) if self.error else logits.flip(1)


def test_no_sample_is_lost_where_low_precision_is_misleading() -> None:
    x, y = inputs(Misled(0), n=12)
    found = ma.measure(Misled(0), x, y, "l2", budget=400, precision="bf16")
    assert found.success.all()
    assert not found.rejected.any()


@pytest.mark.parametrize(("norm", "budget"), [("l0", 200), ("l1", 200), ("l2", 1200), ("linf", 200)])
def test_errors_of_low_precision_do_not_reach_the_result(norm: str, budget: int) -> None:
    model = Misled(0.004)
    x, y = inputs(model, n=24)
    full, found = (ma.measure(model, x, y, norm, budget=budget, precision=each) for each in ("float32", "bf16"))
    assert found.success.equal(full.success)
    assert not found.rejected.any()
    passes = (found.forwards + found.backwards).tolist()
    assert all(budget - 3 <= spent <= budget for spent in passes)
    ratio = found.distance / full.distance
    assert float(ratio.mean()) < 1.002
    assert float(ratio.max()) < 1.05


def test_samples_within_the_error_of_low_precision_are_searched_in_float32() -> None:
    model = Misled(0.02)
    x, y = inputs(model, n=40)
    with validated(Classifier(model, precision="bf16"), x, y) as (session, batch):
        logits = session.logits(batch.images)
        parts = by_clarity(session.calibrate(batch.images, logits), batch, logits, torch.arange(40))
    (clear, low), (unclear, exact) = parts
    assert (low.for_search is low, exact.for_search is exact) == (False, True)
    assert sorted([*clear.tolist(), *unclear.tolist()]) == list(range(40))
    highest = logits.topk(2).values
    lead = highest[:, 0] - highest[:, 1]
    assert float(lead[unclear].max()) < float(lead[clear].min())
    assert float(lead[clear].min()) > 10 * 0.01
    full, found = (ma.measure(model, x, y, "l2", budget=200, precision=each) for each in ("float32", "bf16"))
    torch.testing.assert_close(found.distance[unclear], full.distance[unclear], rtol=1e-5, atol=0)
    assert not found.distance[clear].equal(full.distance[clear])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_last_layer_keeps_its_precision_and_gradients_do_not_underflow(dtype: torch.dtype) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)]
    layers[2].weight.data.mul_(1e-6)  # gradients that underflow in fp16 unless they are scaled
    model = nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])
    x = torch.rand(5, 6, requires_grad=True)
    copy = to_half(model, x, dtype)
    first = torch.float32 if dtype == torch.bfloat16 else dtype  # which would round inputs to 8 bits
    weights = [weight.dtype for name, weight in copy.named_parameters() if "weight" in name]
    assert weights == [first, dtype, torch.float32]
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    torch.testing.assert_close(copy(x), model(x), rtol=0.02, atol=1e-8)
    gradient, expected = (torch.autograd.grad(each(x).sum(), x)[0] for each in (copy, model))
    torch.testing.assert_close(gradient, expected, rtol=0.05, atol=0.02 * float(expected.abs().max()))


class Overflowing(nn.Module):
    """Its activations are beyond the range of fp16."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 4)]
        layers[1].weight.data.mul_(1e6)
        layers[2].weight.data.mul_(1e-6)
        self.layers = nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Identity(), layers[2])

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        return logits


def test_the_first_precision_that_changes_little_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        models = {"fp16": smooth(dtype=torch.float32), "bf16": Overflowing(), "float32": smooth()}  # of float64
    for expected, model in models.items():
        x, y = inputs(model, n=8)
        assert ma.measure(model, x, y, "l2", budget=40, precision="auto").settings["precision"] == "float32"
        with monkeypatch.context() as patch:
            patch.setattr(precision, "has_low_precision", lambda device: True)
            patch.setattr(precision, "MOST_ERROR", 0.1)
            found = ma.measure(model, x, y, "l2", budget=400)
            assert found.settings["precision"] == expected
            assert (f"searched in {expected}" in repr(found)) == (expected != "float32")
            assert found.success.all()
            same = ma.measure(model, x, y, "l2", budget=400, precision="float32")
            assert same.settings["precision"] == "float32"
            assert same.distance.equal(found.distance) == (expected == "float32")


@pytest.mark.parametrize(
    ("norm", "budget", "attack"), [("l1", 400, ma.Race()), ("l2", 200, ma.Race()), ("l1", 400, ma.MarginAttack())]
)
def test_no_precision_is_chosen_where_it_was_not_shown_to_keep_margins(
    norm: str, budget: int, attack: Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "has_low_precision", lambda device: True)
    monkeypatch.setattr(precision, "MOST_ERROR", 0.1)
    model = smooth(dtype=torch.float32)
    x, y = inputs(model, n=4)
    found = ma.measure(model, x, y, norm, budget=budget, attack=attack)
    assert found.settings["precision"] == "float32"
    torch.testing.assert_close(
        found.distance, ma.measure(model, x, y, norm, budget=budget, attack=attack, precision="float32").distance
    )


@pytest.mark.parametrize("error", [0.2, 0.0])
def test_a_precision_that_misleads_is_not_chosen(monkeypatch: pytest.MonkeyPatch, error: float) -> None:
    monkeypatch.setattr(precision, "has_low_precision", lambda device: True)
    monkeypatch.setattr(precision, "CANDIDATES", ("fp16",))
    x, y = inputs(Misled(error), n=8)
    assert ma.measure(Misled(error), x, y, budget=400).settings["precision"] == "float32"


def test_a_few_gradients_may_turn_at_kinks() -> None:
    straight = torch.ones(32, 2)
    kinks = torch.tensor([[1.0, -1.0]])
    assert not turned(straight, straight)
    assert not turned(straight, torch.cat([straight[1:], kinks]))
    assert turned(straight, torch.cat([straight[2:], kinks, kinks]))
    assert turned(straight[:8], torch.cat([straight[:7], kinks]))  # one of eight is more than 5 %
    assert turned(straight[:8], torch.cat([straight[:7], kinks * torch.nan]))


def test_the_precision_of_a_result_is_the_one_that_was_used() -> None:
    """Where most inputs are within the error of bf16, all are searched in float32."""
    x, y = inputs(Misled(1.0), n=8)
    full, low = (ma.measure(Misled(1.0), x, y, budget=200, precision=each) for each in ("float32", "bf16"))
    assert low.settings["precision"] == "float32"
    assert low.distance.equal(full.distance)


class FailsOnDark(nn.Module):
    """In low precision it cannot handle dark inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.model = smooth(dtype=torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        if next(self.parameters()).dtype != torch.float32 and bool((x.flatten(1).amax(1) < 0.1).any()):
            raise RuntimeError("too dark")
        logits: Tensor = self.model(x)
        return logits


@pytest.mark.parametrize(("order", "expected"), [((0, 1), "fp16"), ((1, 0), "float32"), ((1, 1), "float32")])
def test_a_precision_that_fails_on_a_later_batch_is_not_reported_for_it(
    monkeypatch: pytest.MonkeyPatch, order: tuple[int, int], expected: str
) -> None:
    monkeypatch.setattr(precision, "has_low_precision", lambda device: True)
    monkeypatch.setattr(precision, "MOST_ERROR", 0.1)
    light, _ = inputs(FailsOnDark(), n=4)
    both = (light, 0.05 * light)
    x = torch.cat([both[each] for each in order])
    with torch.no_grad():
        y = FailsOnDark()(x).argmax(1)
    found = ma.measure(FailsOnDark(), x, y, budget=400, batch=4)
    assert found.settings["precision"] == expected


def test_the_former_name_of_the_argument_is_deprecated() -> None:
    x, y = inputs(smooth(), n=2)
    with pytest.warns(DeprecationWarning, match="use precision="):
        assert ma.measure(smooth(), x, y, budget=80, search="tf32").settings["precision"] == "tf32"
    with pytest.warns(DeprecationWarning, match="use precision="):
        assert Classifier(smooth(), search="bf16").execution.precision == "bf16"


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
        ma.measure(Classifier(smooth(dtype=torch.float32), precision="tf32"), x, y, norm, attack=each, budget=budget)
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
                return logits * (torch.nan if logits.dtype == torch.bfloat16 else 1)
            return logits @ self.scale.triu()

    x, y = inputs(Fixed(), n=4)
    with pytest.raises(ma.InputError, match=rf"model fails in bf16 \(.*{reason}"):
        ma.measure(Fixed(), x, y, precision="bf16")


class _TwoHeads(nn.Module):
    """Logits of which most pass the last layer by; it changes its input in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.main, self.last = nn.Linear(12, 32), nn.Linear(32, 4), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x.sub_(0.5)))
        logits: Tensor = self.main(h) + 0.1 * self.last(h)
        return logits


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_gradients_of_logits_that_pass_the_last_layer_by(name: str) -> None:
    torch.manual_seed(0)
    model, x = _TwoHeads(), torch.rand(8, 12)
    with torch.no_grad():
        y = model(x.clone()).argmax(1)
    exact, low = (ma.measure(model, x, y, "l2", precision=each, diagnose=False) for each in ("float32", name))
    assert (low.distance / exact.distance - 1).abs().max() < 0.01
    slopes = []
    for each in (model, to_half(model, x[:1], DTYPES[name])):
        leaf = x.clone().requires_grad_()
        slopes.append(torch.autograd.grad(each(leaf.clone())[:, 0].sum(), leaf)[0])
    assert (slopes[0] - slopes[1]).abs().max() < 0.02 * slopes[0].abs().max()
