"""Unsupported inputs raise a one-line error that names the cause; inputs that are only unusual are measured."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from models import After, Function, Stubborn, inputs, smooth
from torch import Tensor, nn

import marginattack as ma
from marginattack.attacks import DeepFool
from marginattack.core.norms import as_norm
from marginattack.sources.data import samples
from marginattack.sources.networks import zoo

QUICK = ma.MarginAttack(moves=8, closing=2, follow=0, scans=0)
MODEL = smooth(dtype=torch.float32)
X, Y = inputs(MODEL)
ONE = nn.Linear(6, 1)


@pytest.fixture(autouse=True)
def _unchecked() -> Iterator[None]:
    """Errors as a user sees them: without the type checks that the tests install."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def measure(model: Any = MODEL, images: Any = X, labels: Any = Y, norm: Any = "l2", **settings: Any) -> ma.Margins:
    margins: ma.Margins = ma.measure(model, images, labels, norm, **{"attack": QUICK, **settings})
    return margins


def after(function: Callable[[Tensor], object]) -> nn.Module:
    return After(MODEL, function)


def raises_in_eval(x: Tensor) -> Tensor:
    raise RuntimeError("only for training\nand a second line")


def images_with(value: float, row: int = 0) -> Tensor:
    """The images with one other pixel."""
    images = X.clone()
    images[row, 2] = value
    return images


def nan_at_zero(x: Tensor) -> Tensor:
    """NaN logits for the inputs whose first pixel is 0."""
    logits: Tensor = MODEL(x)
    return torch.where(x[:, :1] == 0, torch.nan, logits)


def batch_normalised(*shape: int) -> nn.Module:
    """A model that normalises over each batch, for inputs in this shape."""
    layer = nn.BatchNorm1d(shape[0], track_running_stats=False)
    return nn.Sequential(nn.Unflatten(1, shape), layer, nn.Flatten(), MODEL)


LATER = X.clone()
LATER[13, 0] = 0

MODELS: dict[str, tuple[Callable[[], Any], str]] = {
    "softmax": (lambda: measure(after(lambda out: out.softmax(1))), "probabilities.*remove its last softmax"),
    "a column of single logits": (lambda: measure(ONE), r"single logit.*marginattack.TwoClass\(model\)"),
    "single logits": (lambda: measure(After(ONE, lambda out: out[:, 0])), r"single logit.*marginattack.TwoClass"),
    "NaN logits": (lambda: measure(after(lambda out: out * torch.nan)), "NaN or infinite logits for 8 of the first 8"),
    "infinite logits": (lambda: measure(after(lambda out: out / 0)), "NaN or infinite logits"),
    "NaN for a later input": (lambda: measure(Function(nan_at_zero), LATER), r"infinite logits for images\[13\]"),
    "stays in train mode": (lambda: measure(Stubborn(6, 4)), "stays in train mode"),
    "fails in eval mode": (lambda: measure(Function(raises_in_eval)), "fails in eval mode.*only for training"),
    "wrong channels": (
        lambda: measure(nn.Conv2d(3, 4, 3), torch.rand(4, 1, 8, 8)), r"fails .* shape \(1, 8, 8\).*channels"),
    "statistics of the batch": (
        lambda: measure(batch_normalised(3, 2)), "batch-dependent.*running statistics"),
    "statistics of the batch, one value per channel": (
        lambda: measure(batch_normalised(6)), "batch-dependent.*running statistics"),
    "random": (lambda: measure(after(lambda out: out + 9 * torch.randn_like(out))), "random.*randomized=True"),
    "not a module": (lambda: measure(lambda x: x), "function, not a torch.nn.Module"),
    "not a module, in a Classifier": (lambda: ma.Classifier(MODEL.forward), "method, not a torch.nn.Module"),  # type: ignore[arg-type]
    "a number": (lambda: measure(3), "model is an int, not a torch.nn.Module"),
    "an array": (lambda: measure(after(lambda out: out.numpy())), "returns an ndarray, not a tensor of logits"),
    "a tuple": (lambda: measure(after(lambda out: (out, out))), "returns a tuple, not a tensor of logits"),
    "labels from the model": (lambda: measure(after(lambda out: out.argmax(1))), "returns int64.*not labels"),
    "three dimensions": (
        lambda: measure(after(lambda out: out[:, :, None])), r"returns shape \(8, 4, 1\) for 8 inputs"),
    "another number of rows": (lambda: measure(after(lambda out: out[1:])), r"returns shape \(7, 4\) for 8 inputs"),
}  # fmt: skip

IMAGES: dict[str, tuple[Callable[[], Any], str]] = {
    "above the box": (lambda: measure(images=images_with(1.1)), r"span .* to 1.1, outside the bounds \[0, 1\]"),
    "below the box": (lambda: measure(images=X - 0.5), "outside the bounds.*normalisation inside the model"),
    "255 for 1": (lambda: measure(images=X * 255), r"outside the bounds \[0, 1\].*bounds=\(lo, hi\)"),
    "outside a bound of its own": (
        lambda: measure(bounds=(torch.zeros(6), torch.tensor([1, 1, 0.05, 1, 1, 1]))), "outside the bounds"),
    "NaN": (lambda: measure(images=images_with(torch.nan, 3)), r"infinity in 1 of 20 inputs, first in images\[3\]"),
    "infinity": (lambda: measure(images=images_with(torch.inf), bounds=(-torch.inf, torch.inf)), "NaN or infinity"),
    "uint8 without a scale": (lambda: measure(images=(255 * X).byte()), r"uint8.*not stated.*bounds=\(0, 255\)"),
    "int64 without a scale": (lambda: measure(images=X.long().numpy()), "int64.*not stated"),
    "bool": (lambda: measure(images=X > 0.5), "images are bool"),
    "complex": (lambda: measure(images=X + 0j), "images are complex64"),
    "empty": (lambda: measure(images=X[:0], labels=Y[:0]), r"shape \(0, 6\).*non-empty batch"),
    "one dimension": (lambda: measure(images=X[0], labels=Y[:1]), r"shape \(6,\).*one input per row"),
    "strings": (lambda: measure(images=["a", "b"], labels=[0, 1]), "images are a list, not an array of numbers"),
    "rows of several lengths": (lambda: measure(images=[[0.0], [0.0, 1.0]], labels=[0, 1]), "not an array of numbers"),
    "none": (lambda: measure(images=None), "images are a NoneType, not an array of numbers"),
}  # fmt: skip

LABELS: dict[str, tuple[Callable[[], Any], str]] = {
    "too high": (lambda: measure(labels=Y + 4), "labels hold [4-7], but the model has classes 0 to 3"),
    "negative": (lambda: measure(labels=Y - 4), "labels hold -[1-4], but the model has classes 0 to 3"),
    "floats": (lambda: measure(labels=Y.float()), "labels are float32: give integer class indices"),
    "one-hot": (lambda: measure(labels=nn.functional.one_hot(Y, 4)), r"labels have shape \(20, 4\).*shape \(20,\)"),
    "too few": (lambda: measure(labels=Y[:5]), "labels are 5 for 20 images"),
    "none": (lambda: measure(labels=None), "labels are missing for images in a Tensor"),
    "targets that are labels": (lambda: measure(targets=Y), r"targets\[0\] is \d, the label itself"),
    "targets too high": (lambda: measure(targets=Y + 4), "targets hold [4-7], but the model has classes 0 to 3"),
    "targets too few": (lambda: measure(targets=Y[:3]), "targets are 3 for 20 images"),
}

SETTINGS: dict[str, tuple[Callable[[], Any], str]] = {
    "norm": (lambda: measure(norm="l3"), "no norm named 'l3': choose one of l0, l1, l2, linf"),
    "norm by number": (lambda: as_norm(3), "no norm named 3: choose one of"),
    "norm that the attack does not support": (
        lambda: measure(norm="l1", attack=DeepFool()), "DeepFool supports l2, linf, not l1"),
    "bounds reversed": (lambda: measure(bounds=(1, 0)), r"bounds are \[1, 0\]: the lower bound must be below"),
    "bounds equal": (lambda: measure(bounds=(0, 0)), "the lower bound must be below the upper"),
    "bounds of NaN": (lambda: measure(bounds=(0, torch.nan)), "the lower bound must be below the upper"),
    "three bounds": (lambda: measure(bounds=(0, 0.5, 1)), r"bounds are \(0, 0.5, 1\): give \(lo, hi\)"),
    "one bound": (lambda: measure(bounds=255), "bounds are 255"),
    "bounds in words": (lambda: measure(bounds=("lo", "hi")), "bounds are"),
    "bounds of another shape": (
        lambda: measure(bounds=(torch.zeros(5), torch.ones(5))), r"bounds of shape \(5,\) do not fit inputs of shape"),
    "bounds of two shapes": (lambda: measure(bounds=(torch.zeros(6), torch.ones(5))), r"shapes \(6,\) and \(5,\)"),
    "bounds of infinity": (lambda: measure(bounds=([0] * 5 + [torch.inf], [1] * 5 + [torch.inf])), r"\[inf, inf\]"),
    "scale of zero": (lambda: measure(scale=[1, 1, 0, 1, 1, 1]), "scale holds 0: .*fixed=mask"),
    "scale in words": (lambda: measure(scale="large"), "scale is 'large': give positive numbers"),
    "bounds per channel": (
        lambda: measure(images=torch.rand(2, 3, 4, 4), bounds=([0] * 3, 1)), r"per channel give shape \(3, 1, 1\)"),
    "scale of another shape": (lambda: measure(scale=[1, 2]), r"scale of shape \(2,\) does not fit"),
    "a large distance": (lambda: measure(enough=1e9), r"the distance 1e\+09 is given, but no input is farther away"),
    "scale twice": (lambda: measure(ma.Classifier(MODEL), scale=2), "scale is given twice"),
    "fixed by index": (lambda: measure(fixed=[0, 3]), "fixed is int64: give a boolean mask"),
    "fixed in words": (lambda: measure(fixed="a"), "fixed is 'a': give a boolean mask"),
    "ids in words": (lambda: measure(ids=list("abcdefghijklmnopqrst")), "ids are a list, not an array of numbers"),
    "no seed": (lambda: measure(seed=None), "seed is None: give an integer, such as 0"),
    "a fraction as seed": (lambda: measure(seed=1.5), "seed is 1.5: give an integer"),
    "a word as seed": (lambda: measure(seed="a"), "seed is 'a': give an integer"),
    "a large seed": (lambda: measure(seed=2**63), "seed is 9223372036854775808: give an integer of 64 bits"),
    "beta": (lambda: ma.MarginAttack(beta=0.5), r"beta is 0.5: give a schedule, such as Constant\(0.5\)"),  # type: ignore[arg-type]
    "negative radius": (lambda: ma.MarginAttack(radius=-1), "radius is -1: give a distance of 0 or more"),
    "radius in words": (lambda: ma.MarginAttack(radius="a"), "radius is 'a': give a distance"),  # type: ignore[arg-type]
    "everything fixed": (lambda: measure(fixed=[True] * 6), "nothing can change"),
    "bounds of a scaled model": (lambda: ma.bound(ma.Classifier(MODEL, scale=2), X, Y), "bound does not support scale"),
    "bounds twice": (lambda: measure(ma.Classifier(MODEL), bounds=(0, 1)), "bounds is given twice"),
    "precision twice": (lambda: measure(ma.Classifier(MODEL), precision="bf16"), "precision is given twice"),
    "compiled twice": (lambda: measure(ma.Classifier(MODEL), compiled=True), "compiled is given twice"),
    "compiled on a CPU": (lambda: measure(compiled=True), "compiled=True needs a GPU"),
    "unknown precision": (lambda: measure(precision="fp8"), "precision is 'fp8'"),
    "no budget": (lambda: measure(budget=0), "budget is 0.*at least 1"),
    "no batch": (lambda: measure(batch=0), "batch is 0"),
    "no batch size": (lambda: ma.Classifier(MODEL, batch_size=0), "batch_size is 0: it must be at least 1"),
    "preset": (lambda: ma.preset("mnist-l7"), "no preset named 'mnist-l7': did you mean mnist-l2?"),
    "no preset": (lambda: ma.preset(None), "no preset named None: choose one of mnist-l2"),  # type: ignore[arg-type]
    "zoo": (lambda: zoo("alexnet"), "no zoo model named 'alexnet': choose one of mnist-cnn"),
    "samples": (lambda: samples("svhn"), "no samples named 'svhn': choose one of mnist"),
    "join of nothing": (lambda: ma.Margins.join([]), "cannot join an empty list of margins"),
}  # fmt: skip

CASES = [
    pytest.param(call, message, id=f"{part}: {name}")
    for part, table in {"model": MODELS, "images": IMAGES, "labels": LABELS, "settings": SETTINGS}.items()
    for name, (call, message) in table.items()
]


def error_of(call: Callable[[], object]) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        call()
    return str(caught.value)


@pytest.mark.parametrize(("call", "message"), CASES)
def test_bad_input_raises_one_line(call: Callable[[], object], message: str) -> None:
    line = error_of(call)
    assert "\n" not in line
    assert re.search(message, line), line


FILES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "damaged": (lambda path: path.write_bytes(b"PAR1 and then nothing"), "is damaged"),
    "foreign": (lambda path: pq.write_table(pa.table({"x": [1, 2]}), path), "is not a margins file"),
    "newer": (lambda path: pq.write_table(
        pa.table({"x": [1]}).replace_schema_metadata({"marginattack": '{"format": 99}'}), path), "format 99, this"),
}  # fmt: skip


@pytest.mark.parametrize(("write", "message"), FILES.values(), ids=FILES)
def test_other_files_raise_one_line_that_names_them(write: Callable[[Path], Any], message: str, tmp_path: Path) -> None:
    write(tmp_path / "file.parquet")
    line = error_of(lambda: ma.Margins.load(tmp_path / "file.parquet"))
    assert message in line
    assert str(tmp_path / "file.parquet") in line
    assert "\n" not in line


def test_two_class_wraps_a_model_with_a_single_logit() -> None:
    images = torch.tensor([[0.2, 0.5], [0.9, 0.5]])
    linear = nn.Linear(2, 1)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[2.0, 0.0]]))
        linear.bias.fill_(-1.0)
    for model in (linear, After(linear, lambda z: z[:, 0])):
        margins = measure(ma.TwoClass(model), images, [0, 1])
        assert margins.prediction.tolist() == [0, 1]
        assert margins.distance.tolist() == pytest.approx([0.3, 0.4], rel=1e-4)


def test_rounding_outside_the_bounds_is_tolerated_and_clamped() -> None:
    images = X.clone()
    images[:, 0], images[:, 1] = -3e-6, 1 + 3e-6
    margins = measure(images=images)
    assert (images < 0).any()
    assert (images > 1).any()
    assert ((margins.adversarial >= 0) & (margins.adversarial <= 1)).all()


def test_integers_are_accepted_where_bounds_are_given() -> None:
    model = Function(lambda x: MODEL(x / 255))
    images = (255 * X).byte()
    with torch.no_grad():
        labels = MODEL(images / 255).argmax(1)
    for values in (images, images.numpy(), images.numpy().astype(np.uint16), images.long()):
        margins = measure(model, values, labels, bounds=(0, 255))
        assert margins.adversarial.dtype == torch.float32
        assert bool(margins.success.all())


def test_read_only_arrays_are_read() -> None:
    images = X.numpy().copy()
    images.setflags(write=False)
    assert bool(measure(images=images).success.all())
