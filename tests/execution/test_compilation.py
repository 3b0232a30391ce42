"""Compiled models: used for whole batches alone, left where they cannot be, and the same margins on a GPU."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from models import inputs, smooth
from torch import Tensor, nn
from typer.testing import CliRunner

import marginattack as ma
from marginattack.cli import app
from marginattack.core.classifier import Classifier
from marginattack.errors import InputError
from marginattack.execution.compilation import Compiler
from marginattack.execution.graphs import friendly

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


def test_only_whole_batches_are_compiled_for(compiles: list[nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    model = smooth()
    images, labels = inputs(model, n=20)
    classifier = Classifier(model, chunk=8)
    classifier.compiler = Compiler()
    sizes: set[int] = set()
    calls = classifier.compiler.__call__

    def seen(model: nn.Module, images: Tensor, key: str) -> Tensor:
        sizes.add(len(images))
        return calls(model, images, key)

    monkeypatch.setattr(Compiler, "__call__", lambda self, *arguments: seen(*arguments))
    found = ma.measure(classifier, images, labels, "l2", budget=60, batch=8)
    assert compiles
    assert sizes == {8}
    expected = ma.measure(Classifier(model, chunk=8), images, labels, "l2", budget=60, batch=8)
    assert found.distance.equal(expected.distance)
    assert (found.settings["compiled"], expected.settings["compiled"]) == ("compiled", "not asked for")


def test_small_sets_are_not_compiled_for_and_that_is_said(compiles: list[nn.Module]) -> None:
    model = smooth()
    classifier = Classifier(model, chunk=64)
    classifier.compiler = Compiler()
    found = ma.measure(classifier, *inputs(model, n=20), "l2", budget=60, batch=64)
    assert not compiles
    assert found.settings["compiled"] == "no batch was full enough"


def test_batches_are_filled_up_to_what_is_compiled_for() -> None:
    assert [friendly(n, 100) for n in (100, 76, 75, 101)] == [100, 100, 80, 104]
    assert friendly(100) == 104


def test_a_model_that_answers_otherwise_when_compiled_is_run_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    model = smooth()
    monkeypatch.setattr(torch, "compile", failing(lambda images: 1.1 * model(images)))
    compiler, (images, _) = Compiler(), inputs(model, n=3)
    assert compiler(model, images, "float32").equal(model(images))
    assert compiler.why == "it answers otherwise when compiled"


def test_memory_that_runs_out_in_low_precision_is_no_fault_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: Any) -> Tensor:
        raise torch.OutOfMemoryError("out of memory")

    model = smooth(dtype=torch.float32)
    classifier = Classifier(model, chunk=4, search="bf16")
    with classifier.held():
        x, _, _ = classifier.accept(*inputs(model, n=4))
        logits = classifier.answers(x)
        monkeypatch.setattr(Classifier, "answers", breaks)
        with pytest.raises(torch.OutOfMemoryError):  # the batch is halved
            classifier.meet(x, logits)


def test_on_a_cpu_it_is_refused() -> None:
    with pytest.raises(InputError, match="compiled is for a GPU"):
        ma.measure(smooth(), *inputs(smooth(), n=3), "l2", compiled=True)


def test_compiled_is_not_stated_twice() -> None:
    model = smooth()
    with pytest.raises(InputError, match="compiled is stated twice"):
        ma.measure(Classifier(model), *inputs(model, n=3), "l2", compiled=True)


def test_on_a_cpu_the_command_ends_in_one_line_and_writes_nothing(tmp_path: Path) -> None:
    flags = ["--model", "zoo:mnist-cnn", "--data", "samples:mnist", "--limit", "2", "--device", "cpu", "--compiled"]
    result = CliRunner().invoke(app, ["measure", *flags, "--out", str(tmp_path / "run")])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "compiled is for a GPU" in result.stderr
    assert not (tmp_path / "run").exists()


@on_a_gpu
@pytest.mark.parametrize("search", ["float32", "bf16"])
def test_on_a_gpu_a_compiled_model_has_the_same_margins(search: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)).cuda()
    images = torch.rand(40, 1, 8, 8)
    labels = model.eval()(images.cuda()).argmax(1).cpu()
    plain = ma.measure(model, images, labels, "l2", budget=200, batch=40)
    compiled = ma.measure(model, images, labels, "l2", budget=200, batch=40, compiled=True, search=search)
    assert compiled.settings["compiled"] == "compiled"
    assert bool(compiled.success.all())
    assert float((compiled.distance / plain.distance).mean()) == pytest.approx(1, abs=1e-3)
