"""Brackets join margins, and what cannot be bounded is refused in one line."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import marginattack as ma

MODEL, X, Y = nn.Flatten(), torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.3, 0.0], [0.5, 0.6, 0.0]]), [0, 1, 0]


@pytest.fixture(scope="module")
def margins() -> ma.Margins:
    return ma.measure(MODEL, X, Y, "l2", budget=40)


@pytest.fixture(scope="module")
def brackets(margins: ma.Margins) -> ma.Brackets:
    return ma.bound(MODEL, X, Y, "l2", upper=margins, method="crown")


def test_margins_take_the_better_bound_and_the_nearer_point(margins: ma.Margins, brackets: ma.Brackets) -> None:
    both = brackets.add_to(margins)
    assert both.closed.tolist() == [True] * 3
    assert both.certified_by == ("crown", "crown", "")
    assert torch.equal(both.distance, margins.distance)
    loose = replace(brackets, lower=brackets.lower / 2, certified_by=("ibp", "ibp", ""))
    assert loose.add_to(both).certified_by == both.certified_by
    assert torch.equal(loose.add_to(both).lower, both.lower)
    far = replace(
        margins, distance=2 * margins.distance, adversarial=X.clone(), rejected=torch.tensor([True, False, False])
    )
    near = brackets.add_to(far)
    assert torch.equal(near.distance, margins.distance)
    assert torch.equal(near.adversarial[:2], margins.adversarial[:2])
    assert near.rejected.tolist() == [False] * 3
    assert near.adversarial_label[:2].tolist() == [1, 0]
    distances = ma.bound(MODEL, X, Y, "l2", upper=margins.distance, method="crown")  # without points
    assert torch.equal(distances.add_to(far).distance, far.distance)


def test_margins_of_something_else_are_refused(margins: ma.Margins, brackets: ma.Brackets) -> None:
    with pytest.raises(ma.InputError, match="the margins are of other samples, or in another norm"):
        brackets.add_to(replace(margins, norm="linf"))
    with pytest.raises(ma.InputError, match="the margins are of other samples, or in another norm"):
        brackets.add_to(replace(margins, label=margins.label + 1))
    with pytest.raises(ma.InputError, match=r"sample 0 is certified to 0\.\d+, but has a margin of 0\.\d+: compute"):
        brackets.add_to(replace(margins, distance=margins.distance / 2))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"scale": 1.4}, "measured with scale, which bounds do not support"),
        ({"fixed": [True, False, False]}, "measured with fixed, which bounds do not support"),
        ({"bounds": (-0.3, 1)}, r"in the box \[-0.3, 1.0\], but these bounds hold in \[0.0, 1.0\]"),
        ({"bounds": (torch.tensor([0.0, 0, -0.3]), 1)}, r"in the box \[-0.3"),
        (
            {"bounds": (0, torch.tensor([1.0, 0.95, 1]))},
            r"in the box \[0.0, 1.0\], but with other bounds per feature: measure",
        ),
        ({"targets": [1, 0, 1]}, "targeted, but bounds hold for any class"),
    ],
)
def test_margins_of_another_distance_or_box_are_refused(
    brackets: ma.Brackets, other: dict[str, Any], message: str
) -> None:  # fmt: skip
    with pytest.raises(ma.InputError, match=f"the margins (are|were measured|were) {message}"):
        brackets.add_to(ma.measure(MODEL, X, Y, "l2", budget=40, **other))


def test_brackets_fit_margins_in_the_same_box_per_feature() -> None:
    box = (torch.tensor([-0.5, 0, 0]), 1)
    margins = ma.measure(MODEL, X, Y, "l2", budget=40, bounds=box)
    assert ma.bound(MODEL, X, Y, "l2", upper=margins, method="crown", bounds=box).add_to(margins).closed.all()
    other = ma.bound(MODEL, X, Y, "l2", method="crown", bounds=(torch.tensor([0, -0.5, 0]), 1))
    with pytest.raises(ma.InputError, match="but with other bounds per feature"):
        other.add_to(margins)


def test_a_box_is_the_same_however_it_is_stated() -> None:
    images, low = torch.full((2, 3, 2, 2), 0.5), torch.tensor([-0.5, 0.0, -0.2]).view(3, 1, 1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    labels = model(images).argmax(1)
    margins = ma.measure(model, images, labels, "l2", budget=40, bounds=(low, 1))
    expanded = ma.bound(model, images, labels, "l2", method="ibp", bounds=(low.expand(3, 2, 2), torch.ones(3, 2, 2)))
    expanded.add_to(margins)
    listed = ["-0.5", "0.0", "-0.2", "1.0", "1.0", "1.0"]  # lower bounds, then upper ones
    for bounds in (listed, "a digest"):
        expanded.add_to(replace(margins, settings={"shard": 8, "space": {"bounds": bounds}}))
    with pytest.raises(ma.InputError, match="measured in the box"):
        expanded.add_to(replace(margins, settings={"shard": 8, "space": {"bounds": ["-0.5", "1.0"]}}))


def test_inputs_are_the_same_in_another_precision(margins: ma.Margins, brackets: ma.Brackets) -> None:
    assert margins.original is not None
    wide = replace(brackets, original=margins.original.double() * (1 + 1e-12))
    wide.add_to(margins)
    replace(brackets, original=margins.original).add_to(replace(margins, original=wide.original))
    with pytest.raises(ma.InputError, match="input 0 of the margins is another"):
        replace(brackets, original=margins.original.double() + 1e-3).add_to(margins)


def test_margins_of_a_run_are_compared_too(margins: ma.Margins, brackets: ma.Brackets) -> None:
    run = replace(margins, settings={"shard": 8})  # as ``Margins.load`` reads a run in the default box
    assert brackets.add_to(run).closed.all()
    assert brackets.add_to(replace(run, settings={"shard": 8, "space": {"bounds": ["0.0", "1.0"]}})).closed.all()
    for space in ({"bounds": ["-1.0", "1.0"]}, {"bounds": "a digest"}, {"scale": ["2.0"]}):
        with pytest.raises(ma.InputError, match="were measured"):
            brackets.add_to(replace(run, settings={"shard": 8, "space": space}))
    with pytest.raises(ma.InputError, match="upper holds scaled margins"):
        ma.bound(MODEL, X, Y, "l2", upper=replace(run, settings={"shard": 8, "space": {"scale": ["2.0"]}}))


def test_margins_of_other_inputs_are_refused(margins: ma.Margins, brackets: ma.Brackets) -> None:
    swapped = margins[[2, 1, 0]]
    with pytest.raises(ma.InputError, match="input 0 of the margins is another than that of the bounds"):
        brackets.add_to(swapped)
    with pytest.raises(ma.InputError, match="input 0 of the margins is another than that of the bounds"):
        ma.bound(MODEL, X, Y, "l2", upper=swapped, method="crown")
    flat = ma.bound(MODEL, X[:, None], Y, "l2", method="crown")
    with pytest.raises(ma.InputError, match=r"inputs of shape \(3, 3\), not \(3, 1, 3\): measure and bound the same"):
        flat.add_to(margins)
    assert brackets.add_to(replace(margins, original=None)).closed.all()  # as in files of old versions


@pytest.mark.parametrize("method", ["crown", "exact", "lipschitz"])
def test_inputs_that_are_all_misclassified_have_no_bound(method: str) -> None:
    model = nn.Linear(3, 3)
    labels = (model(X).argmax(1) + 1) % 3
    found = ma.bound(model, X, labels, method=method)
    assert found.lower.tolist() == found.upper.tolist() == [0.0] * 3


class Two(nn.Module):
    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return first + second


class Recurrent(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.layer(images[:, None])[0][:, -1]
        return logits


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(3, 1, batch_first=True)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.layer(images[:, None], images[:, None], images[:, None])[0][:, 0]
        return logits


class Branching(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images if images.sum() > 0 else -images


class Random(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images + 0 * torch.rand_like(images)


UNCOVERED = {
    "several inputs": (Two(), "model fails in eval mode .* missing 1 required positional argument: 'second'"),
    "lstm": (Recurrent(nn.LSTM(3, 3, batch_first=True)), "bounds do not cover lstm"),
    "gru": (Recurrent(nn.GRU(3, 3, batch_first=True)), "bounds do not cover gru"),
    "attention": (Attention(), "bounds do not cover"),
    "branches": (Branching(), "torch.export cannot trace the model .* control flow that depends on the input"),
    "random": (Random(), "model draws random numbers|bounds do not cover rand_like"),
    "softsign": (nn.Softsign(), "bounds do not cover abs"),
}


@pytest.mark.parametrize("name", UNCOVERED)
def test_models_that_bounds_do_not_cover(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    model, message = UNCOVERED[name]
    torch.manual_seed(0)
    with pytest.raises(ma.InputError, match=message) as error:
        ma.bound(model.eval(), X, Y)
    assert "\n" not in str(error.value)
    assert capfd.readouterr() == ("", "")  # nor does torch.export say more


@pytest.mark.parametrize("method", ["ibp", "crown", "alpha", "exact"])
def test_infinite_boxes(method: str) -> None:
    free = (-float("inf"), float("inf"))
    with pytest.raises(ma.InputError, match="bounds are infinite and so is a margin: give finite bounds"):
        ma.bound(MODEL, X, Y, method=method, bounds=free)


def test_a_data_loader_and_several_norms_give_what_arrays_do() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).requires_grad_(False)
    x = torch.rand(5, 4)
    y = model(x).argmax(1)
    loader = DataLoader(TensorDataset(x, y), batch_size=2)
    margins = ma.measure(model, loader, norm=["l2", "linf"], budget=60)
    both = ma.bound(model, loader, norm=["l2", np.inf], upper=margins, method="crown")
    assert list(both) == ["l2", "linf"]
    for norm, found in both.items():
        expected = ma.bound(model, x, y, norm, upper=margins[norm], method="crown")
        assert torch.equal(found.lower, expected.lower)
        assert torch.equal(found.upper, margins[norm].distance)
    with pytest.raises(ma.InputError, match="upper and norm do not fit"):
        ma.bound(model, x, y, "l2", upper=margins)  # type: ignore[call-overload]
    with pytest.raises(ma.InputError, match="labels are missing"):
        ma.bound(model, x, norm="l2")
