"""What users pass to measure(): Datasets, DataLoaders, batches, arrays; norms in a list; a progress bar."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from models import Function, inputs, smooth
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import marginattack as ma
from marginattack import measuring

MODEL = smooth()
X, Y = inputs(MODEL, n=11)
QUICK: dict[str, Any] = {"attack": ma.MarginAttack(moves=8, closing=2, follow=0, radius=0.1), "batch": 4}


@pytest.fixture(scope="module")
def expected() -> ma.Margins:
    margins: ma.Margins = ma.measure(MODEL, X, Y, **QUICK)
    return margins


class Pairs(Dataset[tuple[np.ndarray, int]]):
    """Single samples, as most data sets have them: numpy images and plain numbers."""

    classes = ("ant", "bee", "cat", "dog")

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        if index >= len(X):
            raise IndexError
        return X[index].numpy(), int(Y[index])


class Uneven(Dataset[tuple[Tensor, int]]):
    """Images of different widths."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.zeros(1, 2, 3 + index), 0


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """A data set without a length."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(zip(X, Y, strict=True))


def generate(sizes: list[int]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Batches in numpy, with uint8 labels."""
    for x, y in zip(X.split(sizes), Y.split(sizes), strict=True):
        yield x.numpy(), y.numpy().astype(np.uint8)


SOURCES: dict[str, Any] = {
    "Dataset": Pairs(),
    "TensorDataset": TensorDataset(X, Y),
    "IterableDataset": Stream(),
    "DataLoader": DataLoader(TensorDataset(X, Y), batch_size=3),
    "list of batches": [(X[:5], Y[:5]), (X[5:], Y[5:])],
    "generator": generate([1, 1, 6, 3]),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_every_source_of_batches_gives_the_margins_of_the_arrays(source: Any, expected: ma.Margins) -> None:
    m = ma.measure(MODEL, source, norm="l2", **QUICK)
    assert m.label.equal(Y)
    torch.testing.assert_close(m.distance, expected.distance, rtol=1e-5, atol=0)
    assert m.original is not None
    assert m.original.equal(X)


def test_batches_are_read_when_they_are_needed() -> None:
    seen: list[int] = []

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for first in range(0, 8, 2):
            seen.append(first)
            yield X[first : first + 2], Y[first : first + 2]

    def progress(done: int) -> None:
        done_at.append((sum(n for n, _ in done_at) + done, len(seen)))

    done_at: list[tuple[int, int]] = []
    ma.measure(MODEL, batches(), **QUICK, progress=progress)
    assert [read for _, read in done_at] == [2, 4]


def test_a_dataset_names_its_classes_and_targets_belong_to_its_samples() -> None:
    target = (Y + 1) % 4
    m = ma.measure(MODEL, Subset(Pairs(), range(11)), targets=target, **QUICK)
    assert m.classes == Pairs.classes
    assert m.adversarial_label[m.success].equal(target[m.success])


WRONG: dict[str, tuple[Any, dict[str, Any], str]] = {
    "no labels": (X, {}, "labels are missing for images in a Tensor: give one class per image, or a Dataset"),
    "labels twice": (TensorDataset(X, Y), {"labels": Y}, "a TensorDataset has its own: leave them out"),
    "images alone": ([X], {}, "batch 0 is a Tensor: give batches of"),
    "one part": ([(X,)], {}, "batch 0 is 1 part: give batches of"),
    "an integer": (3, {}, "labels are missing for images in an int: give"),
    "three parts": ([(X, Y, Y)], {}, "batch 0 is 3 parts: give batches of"),
    "single samples": (zip(X, Y, strict=True), {}, r"batch 0 has shapes \(6,\) and \(\): give batches of"),
    "other shapes in a batch": (
        Uneven(),
        {},
        r"inputs of batch 0 have shapes \[1, 2, 3\] and \[1, 2, 4\]: give inputs of one shape",
    ),
    "other shapes in a worker": (
        DataLoader(Uneven(), batch_size=3, num_workers=1),
        {},
        r"batch 0 have shapes \[1, 2, 3\] and \[1, 2, 4\]",
    ),
    "other shapes between batches": (
        DataLoader(Uneven()),
        {},
        r"inputs of batch 1 have shape \(1, 2, 4\), those before \(1, 2, 3\): give inputs",
    ),
    "ids in words": (TensorDataset(X, Y), {"ids": list("abc")}, "ids are a list, not an array of numbers"),
    "targets in words": (TensorDataset(X, Y), {"targets": "a"}, "targets are a str, not an array of numbers"),
    "nothing": ([], {}, "an empty list"),
    "a folder": ("photos/", {}, "labels are missing for images in a str"),
    "no norm": (X, {"labels": Y, "norm": []}, "norm is an empty list"),
}


@pytest.mark.parametrize(("source", "settings", "message"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_read_raises_one_line(source: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ma.InputError, match=message) as caught:
        ma.measure(MODEL, source, **{**QUICK, **settings})
    assert "\n" not in str(caught.value)


def test_items_that_are_no_tensors_are_named() -> None:
    class Words(Pairs):
        def __getitem__(self, index: int) -> Any:
            return object(), 0

    with pytest.raises(ma.InputError, match=r"the Dataset cannot be read .*transforms\.ToTensor"):
        ma.measure(MODEL, Words(), **QUICK)


def test_a_list_of_norms_gives_a_result_per_norm(expected: ma.Margins) -> None:
    results = ma.measure(MODEL, DataLoader(TensorDataset(X, Y), batch_size=4), norm=["L2", np.inf, 1], **QUICK)
    assert list(results) == ["l2", "linf", "l1"]
    assert {norm: m.norm for norm, m in results.items()} == {"l2": "l2", "linf": "linf", "l1": "l1"}
    assert results["Linf"] is results["linf"]
    torch.testing.assert_close(results[2].distance, expected.distance, rtol=1e-5, atol=0)
    with pytest.raises(KeyError, match="l0 was not measured"):
        results["l0"]


def test_a_progress_bar_is_shown_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    ma.measure(MODEL, X, Y, **QUICK)
    assert capsys.readouterr().err == ""
    ma.measure(MODEL, X, Y, progress=True, **QUICK)
    shown = capsys.readouterr().err
    assert "11/11" in shown
    assert re.search(r"about \d+ s, by the time of a few passes", shown)
    assert re.search(r"11/11 \S+/s", shown)  # and how many per second


class Weights(nn.Module):
    """A linear model whose weights are no parameters."""

    def __init__(self, *, registered: bool, device: str = "cpu") -> None:
        super().__init__()
        weight = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], device=device)
        if registered:
            self.register_buffer("weight", weight)
        else:
            self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight)


@pytest.mark.parametrize("registered", [True, False])
def test_a_model_without_parameters_runs_where_its_tensors_are(registered: bool) -> None:
    assert ma.Classifier(Weights(registered=registered, device="meta")).device == torch.device("meta")
    m = ma.measure(Weights(registered=registered), np.array([[0.9, 0.2]]), [0], budget=20)  # float64, as numpy has it
    assert m.distance.item() == pytest.approx(0.35 * 2**0.5, rel=1e-4)


def test_a_model_without_tensors_runs_where_the_images_are(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[ma.Classifier] = []

    def open_session(classifier: ma.Classifier) -> Any:
        opened.append(classifier)
        return nullcontext()

    monkeypatch.setattr(measuring, "open_session", open_session)
    with pytest.raises(AttributeError):  # there is no session
        ma.measure(Function(lambda x: x), torch.empty(2, 3, device="meta"), [0, 0], progress=True)
    assert opened[0].device == torch.device("meta")


WRONG_TYPES = """
import torch, marginattack as ma
counts = [{"norm": "l2", "budget": b} for b in ("50", float("inf"), 2.5)] + [{"batch": b} for b in ("a", 1.5)]
counts += [{"budget": True}, {"batch": True}, {"seed": True}]
for wrong in ({"norm": None}, {"norm": "l2", "enough": "8/255"}, *counts):
    try:
        ma.measure(torch.nn.Identity(), torch.tensor([[0.9, 0.2]]), [0], **wrong)
    except ma.InputError as error:
        print(error)
"""


def test_values_of_wrong_types_raise_one_line() -> None:
    """In a process of its own, because tests check all annotations."""
    result = subprocess.run([sys.executable, "-c", WRONG_TYPES], capture_output=True, text=True, check=True)
    norm, enough, *counts = result.stdout.splitlines()
    assert norm == "norm is None: give one of l0, l1, l2, linf"
    assert enough == "enough is '8/255': give a distance above 0, such as 8/255"
    budget = "it counts forwards + backwards per sample, so give a whole number of at least 1"
    assert counts[:3] == [f"budget is {value}: {budget}" for value in ("'50'", "inf", "2.5")]
    inputs = "it counts inputs, so give a whole number of at least 1"
    assert counts[3:5] == [f"batch is {value}: {inputs}" for value in ("'a'", "1.5")]
    assert counts[5:7] == [f"budget is True: {budget}", f"batch is True: {inputs}"]
    assert counts[7:] == ["seed is True: give an integer, such as 0"]


NUMPY_NUMBERS = """
import sys, numpy as np, torch, marginattack as ma
x = 3 * torch.rand(10, 4, generator=torch.Generator().manual_seed(0))
given = {"budget": 20, "batch": 4, "seed": 2, "enough": 0.125}
numbers = {name: np.float32(n) if name == "enough" else np.int64(n) for name, n in given.items()}
radius, same = ma.attacks.PGD(eps=0.125), ma.attacks.PGD(eps=np.float32(0.125))
for attack, again in ((None, None), (radius, same)):
    first = ma.measure(torch.nn.Identity(), x, x.argmax(1), "linf", attack=attack, bounds=(0, 3), **given)
    other = ma.measure(torch.nn.Identity(), x, x.argmax(1), "linf", attack=again, bounds=(0, 3), **numbers)
    assert torch.equal(first.distance, other.distance)
    other.save(sys.argv[1])
    settings = ma.Margins.load(sys.argv[1]).settings
    assert {**settings, "attack": 0} == {**first.settings, "attack": 0}, settings
"""


def test_numbers_of_numpy_measure_and_save_as_those_of_python(tmp_path: Path) -> None:
    """In a process of its own, because tests check all annotations."""
    subprocess.run([sys.executable, "-c", NUMPY_NUMBERS, str(tmp_path / "margins")], check=True)
