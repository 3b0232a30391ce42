"""Batch normalisations folded into convolutions: the same function, on a copy, and only where it is."""

from collections.abc import Callable

import pytest
import torch
from problems import validated
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import marginattack as ma
from marginattack.core.classifier import Classifier
from marginattack.execution import copies
from marginattack.execution.folding import fold


class Block(nn.Module):
    """A convolution with a normalisation, and what a model may do besides."""

    def __init__(self, *, twice: bool = False, also: bool = False, tracked: bool = True) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, track_running_stats=tracked)
        self.last = nn.Linear(4, 3)
        self.twice, self.also = twice, also

    def forward(self, x: Tensor) -> Tensor:
        before = self.conv(x)
        after = self.norm(before)
        if self.twice:
            after = after + self.norm(after)
        if self.also:  # the output of the convolution is read elsewhere too
            after = after + before
        logits: Tensor = self.last(torch.relu(after).mean((2, 3)))
        return logits


def trained(**options: bool) -> Block:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Block(**options)
        if model.norm.running_mean is not None:
            model.norm.running_mean.uniform_(-1, 1)
            model.norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
        nn.init.uniform_(model.norm.weight, 0.5, 2)
    return model.eval()


IMAGES = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def test_it_is_the_same_function_without_normalisations() -> None:
    model = trained()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    copy = fold(model, IMAGES)
    assert copy is not None
    assert not any(isinstance(module, nn.BatchNorm2d) for module in copy.modules())
    torch.testing.assert_close(copy(IMAGES), model(IMAGES), rtol=1e-5, atol=1e-6)
    assert all(weights[name].equal(value) for name, value in model.state_dict().items())
    assert not model.conv._forward_hooks


@pytest.mark.parametrize("how", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_a_convolution_with_computed_weights_is_kept(how: Callable[[nn.Module], nn.Module]) -> None:
    model = trained()
    how(model.conv)
    labels = model(IMAGES).argmax(1)
    assert fold(model, IMAGES) is None
    assert ma.measure(model, IMAGES, labels, "l2", budget=20).prediction.equal(labels)


class Clipped(Block):
    """Writes into the output of the convolution, without effect on small inputs."""

    def forward(self, x: Tensor) -> Tensor:
        before = self.conv(x)
        before.clamp_(-1e3, 1e3)
        logits: Tensor = self.last(self.norm(before).mean((2, 3)))
        return logits


@pytest.mark.parametrize(
    "model", [trained(twice=True), trained(also=True), trained(tracked=False), Clipped().eval()],
    ids=["normalised twice", "read elsewhere too", "statistics of the batch", "written to in between"],
)  # fmt: skip
def test_what_cannot_be_folded_is_kept(model: nn.Module) -> None:
    assert fold(model, IMAGES) is None


def test_margins_are_those_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model = trained()
    labels = model(IMAGES).argmax(1)
    with validated(Classifier(model), IMAGES, labels) as (session, _):
        assert session.copies.fast is not model
    found = ma.measure(model, IMAGES, labels, "l2", budget=100)
    monkeypatch.setattr(copies, "fold", lambda *_: None)
    plain = ma.measure(model, IMAGES, labels, "l2", budget=100)
    assert found.success.equal(plain.success)
    torch.testing.assert_close(found.distance, plain.distance, rtol=1e-3, atol=0)
