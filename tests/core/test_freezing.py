"""Freezing: what cannot be frozen is refused, and everything that was changed is restored."""

import threading
from functools import partial

import pytest
import torch
from torch import nn

import marginattack as ma
from marginattack.core import sharing
from marginattack.execution.session import open_session


def exported() -> nn.Module:
    return torch.export.export(nn.Linear(4, 3), (torch.zeros(2, 4),)).module()


def made_in_inference_mode() -> nn.Module:
    with torch.inference_mode():
        return nn.Linear(4, 3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Sequential(nn.LazyLinear(3)), "0.weight of the model has no values yet: call the model once"),
        (exported, r"model refuses eval\(\) .* measure the module it was exported from"),
        (made_in_inference_mode, "weight of the model was made in inference mode: build the model outside of it"),
    ],
)
def test_models_that_cannot_be_frozen_are_refused(make: "partial[nn.Module]", message: str) -> None:
    with pytest.raises(ma.InputError, match=message):
        ma.measure(make(), torch.zeros(2, 4), [0, 0])


def test_one_failing_restore_does_not_keep_the_others_from_running() -> None:
    restored: list[int] = []

    def fail() -> None:
        raise ValueError("not restored")

    def save() -> dict[object, sharing.Restore]:
        return {"first": partial(restored.append, 1), "second": fail, "third": partial(restored.append, 3)}

    with pytest.raises(ValueError, match="not restored"), sharing.hold(save, lambda: None):
        pass
    assert sorted(restored) == [1, 3]
    assert not {"first", "second", "third"} & set(sharing._HELD)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("wrapped", [False, True])
def test_scripted_modules_are_measured(wrapped: bool) -> None:
    images = torch.rand(4, 6, generator=torch.Generator().manual_seed(0))
    scripted = torch.jit.script(
        nn.Sequential(nn.Flatten(), nn.Linear(images[0].numel(), 8), nn.ReLU(), nn.Linear(8, 3))
    )
    found = ma.measure(nn.Sequential(scripted) if wrapped else scripted, images, scripted(images).argmax(1), budget=650)
    assert (found.forwards + found.backwards <= 650).all()


def test_randomised_models_are_measured_by_one_thread_at_a_time() -> None:
    classifier, opened = ma.Classifier(nn.Linear(4, 3), randomized=True), threading.Event()

    def use() -> None:
        with open_session(classifier):
            opened.set()

    with open_session(classifier):
        other = threading.Thread(target=use)
        other.start()
        assert not opened.wait(0.3)
    other.join(5)
    assert opened.is_set()
