"""Compiled models: used for whole batches alone, left where they cannot be, and the same margins on a GPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from models import inputs, smooth
from torch import Tensor, nn

import marginattack as ma
from marginattack.classifier import Classifier, Refused
from marginattack.compiling import Compiler
from marginattack.graphs import Graphs

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: nothing is compiled elsewhere")


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """What torch was asked to compile; it returns the model itself."""
    asked: list[nn.Module] = []

    def compiled(model: nn.Module, **_: Any) -> nn.Module:
        asked.append(model)
        return model

    monkeypatch.setattr(torch, "compile", compiled)
    return asked


def test_a_model_is_compiled_once_for_each_precision(compiles: list[nn.Module]) -> None:
    compiler, model = Compiler(), smooth()
    images, _ = inputs(model, n=3)
    for key in ("float32", "bf16", "float32"):
        assert compiler(model, images, key).equal(model(images))
    assert compiles == [model, model]
    compiler.clear()
    compiler(model, images, "float32")
    assert len(compiles) == 3


def failing(function: Callable[..., Any]) -> Callable[..., Any]:
    def compiled(*_: Any, **__: Any) -> Any:
        return function

    return compiled


def test_a_model_that_cannot_be_compiled_is_run_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(images: Tensor) -> Tensor:
        raise RuntimeError("no compiler is installed")

    monkeypatch.setattr(torch, "compile", failing(breaks))
    compiler, model = Compiler(), smooth()
    images, _ = inputs(model, n=3)
    assert compiler(model, images, "float32").equal(model(images))
    assert compiler.why == "it cannot be compiled: RuntimeError: no compiler is installed"
    assert compiler(model, images, "float32").equal(model(images))


def test_memory_that_runs_out_is_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(images: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(torch, "compile", failing(breaks))
    compiler, model = Compiler(), smooth()
    with pytest.raises(torch.OutOfMemoryError):  # the batch is halved, and compiled for then
        compiler(model, inputs(model, n=3)[0], "float32")
    assert not compiler.why


def test_only_whole_batches_are_compiled_for(compiles: list[nn.Module]) -> None:
    model = smooth()
    images, labels = inputs(model, n=20)
    classifier = Classifier(model, chunk=8)
    classifier.compiler = Compiler()
    found = ma.measure(classifier, images, labels, "l2", budget=60, batch=8)
    assert compiles
    expected = ma.measure(Classifier(model, chunk=8), images, labels, "l2", budget=60, batch=8)
    assert found.distance.equal(expected.distance)
    assert (found.settings["compiled"], expected.settings["compiled"]) == (True, "only on a GPU")


def test_batches_are_filled_up_to_what_is_compiled_for() -> None:
    graphs = Graphs(full=lambda: 100)
    assert [graphs._rows(n) for n in (100, 51, 50, 101)] == [100, 100, 56, 104]
    assert Graphs()._rows(100) == 104


def test_compiled_is_not_stated_twice() -> None:
    model = smooth()
    with pytest.raises(Refused, match="compiled is stated twice"):
        ma.measure(Classifier(model), *inputs(model, n=3), "l2", compiled=True)


@on_a_gpu
@pytest.mark.parametrize("search", ["float32", "bf16"])
def test_on_a_gpu_a_compiled_model_has_the_same_margins(search: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)).cuda()
    images = torch.rand(40, 1, 8, 8)
    labels = model.eval()(images.cuda()).argmax(1).cpu()
    plain = ma.measure(model, images, labels, "l2", budget=200, batch=40)
    compiled = ma.measure(model, images, labels, "l2", budget=200, batch=40, compiled=True, search=search)
    assert compiled.settings["compiled"] is True
    assert bool(compiled.success.all())
    assert float((compiled.distance / plain.distance).mean()) == pytest.approx(1, abs=1e-3)
