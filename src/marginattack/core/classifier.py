"""Classifier: a model, the box of its inputs, and how it may be evaluated."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from marginattack.core.randomized import Randomized, as_randomized
from marginattack.core.space import Bounds as Bounds
from marginattack.core.space import as_space
from marginattack.core.types import Logits
from marginattack.errors import InputError, name_type

PRECISIONS = ("auto", "float32", "tf32", "bf16", "fp16")  # of a search


class TwoClass(nn.Module):
    """A model with a single logit z as one with two logits (−z/2, z/2): class 1 is predicted if z > 0.

    Args:
        model: Returns one logit per input, of shape (n,) or (n, 1).

    Example:
        >>> import torch, marginattack as ma
        >>> ma.TwoClass(torch.nn.Linear(3, 1))(torch.zeros(5, 3)).shape
        torch.Size([5, 2])
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Logits:
        z = self.model(images).reshape(-1, 1) / 2
        return torch.cat([-z, z], dim=1)


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How a model is evaluated, which affects speed, not the meaning of a result. See ``Classifier`` for the fields."""

    batch_size: int = 512
    graphs: bool = True
    precision: str = "auto"
    compiled: bool = False

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise InputError(f"batch_size is {self.batch_size}: it must be at least 1")
        if self.precision not in PRECISIONS:
            raise InputError(f"precision is {self.precision!r}: choose one of {', '.join(PRECISIONS)}")


class Classifier:
    """A model, the bounds of its inputs, and how it may be evaluated.

    Args:
        model: Maps a batch of inputs to logits of shape (n, classes).
        bounds: Lower and upper bound, by default (0, 1): numbers, or arrays that broadcast to an input. They may be
            infinite, and equal for features that must not change.
        scale: Positive numbers that broadcast to an input: distances are norms of the perturbation over ``scale``.
        fixed: A boolean mask that broadcasts to an input: these features do not change, and may have any value.
        batch_size: The largest number of inputs per pass.
        graphs: Whether repeated passes on a GPU are captured as CUDA graphs.
        precision: The precision in which attacks search: "float32", "tf32", "bf16", "fp16", or "auto", the default: on
            a GPU fp16 or bf16 if it hardly changes logits, else float32. Points found are confirmed in float32.
        compiled: Whether ``torch.compile`` compiles the model for full batches, on a GPU.
        randomized: Whether the model draws random numbers in each pass; or a ``Randomized`` with the details. Such a
            model is neither captured nor compiled, and searched in float32.
        device: The device of a model without tensors, by default the CPU; other models run where their tensors are.

    Raises:
        InputError: The model is not an ``nn.Module``, or another argument is invalid.

    Example:
        >>> import torch, marginattack as ma
        >>> classifier = ma.Classifier(torch.nn.Linear(4, 3), bounds=(-1, 1))
        >>> ma.measure(classifier, torch.zeros(2, 4), [0, 1], "linf", budget=20).distance.shape
        torch.Size([2])
    """

    def __init__(
        self, model: nn.Module, *, bounds: Bounds | None = None, scale: Any = None, fixed: Any = None,
        batch_size: int = 512, graphs: bool = True, precision: str = "auto", compiled: bool = False,
        randomized: bool | Randomized = False, device: torch.device | str | None = None, chunk: int | None = None,
        search: str | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(model, nn.Module):
            raise InputError(f"model is {name_type(model)}, not a torch.nn.Module: wrap the function in a Module")
        if chunk is not None:
            warnings.warn("Classifier(chunk=…) is deprecated: use batch_size=…", DeprecationWarning, stacklevel=2)
            batch_size = chunk
        if search is not None:
            warnings.warn("Classifier(search=…) is deprecated: use precision=…", DeprecationWarning, stacklevel=2)
            precision = search
        self.model = model
        self.randomized = as_randomized(randomized)
        if self.randomized is not None and (compiled or precision not in ("auto", "float32")):
            option = "compiled=True" if compiled else f"precision={precision!r}"
            raise InputError(f"{option} may change the draws of a randomised model: leave it out")
        self.execution = Execution(batch_size=batch_size, graphs=graphs, precision=precision, compiled=compiled)
        self.bounds_stated = bounds is not None
        self.space = as_space(bounds, scale, fixed)
        self.lo, self.hi = self.space.lo, self.space.hi
        weight = next((tensor for tensor in _tensors_of(model) if tensor.is_floating_point()), None)
        self.dtype = None if weight is None else weight.dtype
        self.device = torch.device(device or "cpu") if weight is None else weight.device
        if compiled and self.device.type != "cuda":
            raise InputError("compiled=True needs a GPU, since it hardly helps on a CPU: leave it out")

    def logits(self, images: Tensor) -> Logits:
        """The plain model's output for a copy of images on its device, in its own precision."""
        logits: Logits = self.model(images.to(self.dtype or images.dtype, copy=True))
        return logits

    def edits_input(self, images: Tensor) -> bool:
        """Whether the model writes to these images in place, even the same values."""
        given = images.to(self.dtype or images.dtype, copy=True)
        before = given._version, given.clone()
        self.model(given)
        return given._version != before[0] or not given.equal(before[1])

    def cast(self, images: Tensor) -> Tensor:
        """Images in the precision of the model; unchanged if it has no weights."""
        return images if self.dtype is None else images.to(self.dtype)

    def rounding_unit(self, dtype: torch.dtype) -> float:
        """The rounding unit of the logits: that of the model's precision, or of the points' if it has no weights."""
        return torch.finfo(self.dtype or dtype).eps

    def bounds_for(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """``Space.bounds_for``"""
        return self.space.bounds_for(images)


def _tensors_of(model: nn.Module) -> Iterator[Tensor]:
    """The parameters, the buffers, then tensors in plain attributes of the modules."""
    yield from model.parameters()
    yield from model.buffers()
    for module in model.modules():
        yield from (value for value in vars(module).values() if isinstance(value, Tensor))
