"""Searches in low precision: bf16 runs on a CPU too, tf32 on a GPU alone."""

import pytest
import torch
from models import inputs, smooth
from torch import Tensor, nn

import marginattack as ma
from marginattack.attacks import Attack
from marginattack.core.classifier import Classifier
from marginattack.core.norms import L2
from marginattack.execution.precision import chosen, quickest
from marginattack.reproduce.fast import InTf32
from marginattack.sources.data import samples
from marginattack.sources.networks import zoo


def test_a_search_in_bf16_ends_at_nearly_the_same_margins() -> None:
    model = zoo("mnist-cnn")
    x, y = samples("mnist", 32)
    full = ma.measure(model, x, y, "l2", budget=400)
    coarse = ma.measure(model, x, y, "l2", budget=400, search="bf16")
    assert full.success.equal(coarse.success)
    there = full.distance > 0
    assert float((coarse.distance / full.distance)[there].mean()) == pytest.approx(1, abs=5e-3)
    assert not coarse.distance.equal(full.distance)  # it was another search
    assert (coarse.forwards + coarse.backwards).max() <= 400
    with torch.no_grad():
        assert (model(coarse.adversarial).argmax(1) != y).all()


def test_the_precision_is_the_searches_alone_and_ends_with_it() -> None:
    classifier = Classifier(smooth(dtype=torch.float32), search="bf16")
    images, labels = inputs(smooth(dtype=torch.float32), n=12)
    with classifier.held():
        x, _, _ = classifier.accept(images, labels)
        full = classifier.answers(x)
        classifier.meet(x, full)
        company = classifier.company
        with classifier.quickly():
            coarse = classifier.answers(x)
            assert classifier.company >= float((coarse - full).abs().max()) > company
        assert classifier.company == company
        assert classifier.answers(x).equal(full)
        assert not coarse.equal(full)


class Rounded(nn.Module):
    """In low precision its answers are those of another model: no point that it finds there holds."""

    def __init__(self) -> None:
        super().__init__()
        self.model = smooth(dtype=torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        return logits.flip(1) if x.dtype == torch.bfloat16 else logits


def test_no_sample_is_lost_where_low_precision_misleads() -> None:
    x, y = inputs(Rounded(), n=12)
    found = ma.measure(Rounded(), x, y, "l2", budget=400, search="bf16")
    assert found.success.all()
    assert not found.rejected.any()


def test_the_quickest_that_loses_nothing_is_chosen() -> None:
    one = torch.tensor([[1.0], [2.0], [torch.inf]])
    lost = torch.tensor([[1.0], [torch.inf], [torch.inf]])
    assert chosen({"float32": (3.0, one), "tf32": (2.0, one), "bf16": (1.0, 1.01 * one)}) == "tf32"
    assert chosen({"float32": (3.0, one), "tf32": (2.0, lost), "bf16": (1.0, 1.0005 * one)}) == "bf16"
    assert chosen({"float32": (1.0, one), "tf32": (2.0, one), "bf16": (torch.inf, lost)}) == "float32"
    nothing = torch.full((3, 1), torch.inf)
    assert chosen({"float32": (1.0, nothing), "bf16": (0.5, nothing)}) == "float32"


def test_on_a_cpu_auto_is_float32() -> None:
    x, y = inputs(smooth(), n=8)
    assert ma.measure(smooth(), x, y, "l2", budget=40, search="auto").settings["search"] == "float32"
    classifier = Classifier(smooth())
    with classifier.held():
        assert quickest(classifier, x, y, L2, ma.Race(), 40) == "float32"


@pytest.mark.parametrize("attack", [ma.ATTACKS["logit-difference"](), ma.ATTACKS["search"](), ma.MarginAttack()])
@pytest.mark.parametrize("budget", [None, 400])
def test_attacks_that_drop_samples_or_spend_all_keep_what_they_found(attack: Attack, budget: int | None) -> None:
    """On a CPU tf32 is float32, so nothing may change but what the second look costs."""
    x, y = inputs(smooth(dtype=torch.float32), n=12)
    norm = attack.norms[-1]
    plain, quick = (
        ma.measure(smooth(dtype=torch.float32), x, y, norm, attack=each, budget=budget)
        for each in (attack, InTf32(attack=attack))
    )
    assert quick.success.equal(plain.success)
    torch.testing.assert_close(quick.distance, plain.distance, rtol=0.02, atol=0)


def test_a_model_that_cannot_run_in_low_precision_is_refused_in_a_line() -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.scale = smooth(dtype=torch.float32), torch.ones(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.model(x) @ self.scale.triu()
            return logits

    x, y = inputs(Fixed(), n=4)
    with pytest.raises(ma.InputError, match="model fails in bf16"):
        ma.measure(Fixed(), x, y, search="bf16")


def test_an_unknown_precision_is_refused_and_so_is_one_stated_twice() -> None:
    x, y = inputs(smooth(), n=4)
    with pytest.raises(ma.InputError, match="search is 'fp8'"):
        ma.measure(smooth(), x, y, search="fp8")
    with pytest.raises(ma.InputError, match="search is stated twice"):
        ma.measure(Classifier(smooth()), x, y, search="bf16")
