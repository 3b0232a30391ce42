"""Compiled models: for full batches only, dropped where compiling fails, the same margins on a GPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from models import Function, inputs, smooth
from problems import validated
from torch import Tensor, nn

import marginattack as ma
from marginattack.core.classifier import Classifier
from marginattack.errors import InputError
from marginattack.execution import session as sessions
from marginattack.execution.compilation import Compiler
from marginattack.execution.graphs import graph_rows

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: models are compiled nowhere else")


@pytest.fixture
def compiled_models(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """The models that torch was asked to compile; compiling returns the model itself."""
    asked: list[nn.Module] = []

    def compiled(model: nn.Module, **_: Any) -> nn.Module:
        asked.append(model)
        return model

    monkeypatch.setattr(torch, "compile", compiled)
    return asked


def test_a_model_is_compiled_once_for_each_precision(compiled_models: list[nn.Module]) -> None:
    compiler, model = Compiler(), smooth()
    images, _ = inputs(model, n=3)
    for key in ("float32", "bf16", "float32"):
        assert compiler(model, images, key).equal(model(images))
    assert compiled_models == [model, model]
    compiler.clear()
    compiler(model, images, "float32")
    assert len(compiled_models) == 3


def compile_to(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *_, **__: function


def test_a_model_that_cannot_be_compiled_runs_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(images: Tensor) -> Tensor:
        raise RuntimeError("no compiler is installed")

    monkeypatch.setattr(torch, "compile", compile_to(breaks))
    compiler, model = Compiler(), smooth()
    images, _ = inputs(model, n=3)
    assert compiler(model, images, "float32").equal(model(images))
    assert compiler.why_not == "it cannot be compiled: RuntimeError: no compiler is installed"
    assert compiler(model, images, "float32").equal(model(images))


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are compiled on the CPU too."""
    monkeypatch.setattr(sessions, "Compiler", lambda why_not: Compiler())


def test_only_full_batches_are_compiled(
    compiled_models: list[nn.Module], compiling: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = smooth()
    images, labels = inputs(model, n=20)
    sizes: set[int] = set()
    call = Compiler.__call__

    def note(self: Compiler, model: nn.Module, images: Tensor, precision: str) -> Tensor:
        sizes.add(len(images))
        return call(self, model, images, precision)

    monkeypatch.setattr(Compiler, "__call__", note)
    found = ma.measure(Classifier(model, batch_size=8), images, labels, "l2", budget=60, batch=8)
    assert compiled_models
    assert sizes == {8}
    monkeypatch.setattr(sessions, "Compiler", Compiler)
    expected = ma.measure(Classifier(model, batch_size=8), images, labels, "l2", budget=60, batch=8)
    assert found.distance.equal(expected.distance)
    assert (found.settings["compiled"], expected.settings["compiled"]) == ("compiled", "not asked for")


def test_after_out_of_memory_the_model_is_compiled_for_half_the_batch(
    compiling: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(images: Tensor) -> Tensor:
        if len(images) > 8:
            raise torch.OutOfMemoryError("out of memory")
        logits: Tensor = model(images)
        return logits

    model = smooth()
    monkeypatch.setattr(torch, "compile", compile_to(Function(run)))
    found = ma.measure(Classifier(model, batch_size=16), *inputs(model, n=16), "l2", budget=60, batch=16)
    assert found.settings["compiled"] == "compiled"


def test_small_batches_are_not_compiled_and_the_settings_say_so(
    compiled_models: list[nn.Module], compiling: None
) -> None:
    found = ma.measure(Classifier(smooth(), batch_size=64), *inputs(smooth(), n=20), "l2", budget=60, batch=64)
    assert not compiled_models
    assert found.settings["compiled"] == "no batch was full"


def test_batches_are_padded_to_the_compiled_size() -> None:
    assert [graph_rows(n, 100) for n in (100, 76, 75, 101)] == [100, 100, 80, 104]
    assert graph_rows(100) == 104


def test_a_model_with_other_logits_when_compiled_runs_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    model = smooth()
    monkeypatch.setattr(torch, "compile", compile_to(lambda images: 1.1 * model(images)))
    compiler, (images, _) = Compiler(), inputs(model, n=3)
    assert compiler(model, images, "float32").equal(model(images))
    assert compiler.why_not == "the compiled model returns other logits"


def test_out_of_memory_in_low_precision_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: Any) -> Tensor:
        raise torch.OutOfMemoryError("out of memory")

    model = smooth(dtype=torch.float32)
    with validated(Classifier(model, batch_size=4, precision="bf16"), *inputs(model, n=4)) as (session, batch):
        logits = session.logits(batch.images)
        monkeypatch.setattr(sessions, "logits_in_batches", breaks)
        with pytest.raises(torch.OutOfMemoryError):  # the batch is halved
            session.calibrate(batch.images, logits)


def test_compiling_on_a_cpu_raises() -> None:
    with pytest.raises(InputError, match="compiled=True needs a GPU"):
        ma.measure(smooth(), *inputs(smooth(), n=3), "l2", compiled=True)


@on_a_gpu
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_on_a_gpu_a_compiled_model_has_the_same_margins(precision: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)).cuda()
    images = torch.rand(40, 1, 8, 8)
    labels = model.eval()(images.cuda()).argmax(1).cpu()
    plain = ma.measure(model, images, labels, "l2", budget=200, batch=40)
    compiled = ma.measure(model, images, labels, "l2", budget=200, batch=40, compiled=True, precision=precision)
    assert compiled.settings["compiled"] == "compiled"
    assert bool(compiled.success.all())
    close = 1e-3 if precision == "float32" else 5e-3  # a search in bf16 differs that much, compiled or not
    assert float((compiled.distance / plain.distance).mean()) == pytest.approx(1, abs=close)
