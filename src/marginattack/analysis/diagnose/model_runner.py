"""ModelRunner: runs the model under diagnosis, with one-line errors, and leaves it unchanged."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import cached_property
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from marginattack.core.draws import uniform
from marginattack.core.losses import MARGIN, Loss
from marginattack.core.space import Space, as_space
from marginattack.errors import describe, one_line
from marginattack.execution.passes import out_of_memory

MAX_BATCH = 64  # inputs per forward, half as many with a backward; fewer once memory has run out
MAX_COPIED = 50_000_000  # parameters of a model that is copied to float64

# Operators that turn a smooth input into jumps.
DISCONTINUOUS = {
    "round", "floor", "ceil", "trunc", "sign", "sgn", "heaviside", "bucketize", "searchsorted", "argmax", "argmin",
    "floor_divide", "quantize_per_tensor", "quantize_per_channel", "fake_quantize_per_tensor_affine_cachemask",
    "fake_quantize_per_channel_affine_cachemask", "gt", "ge", "lt", "le", "to_integer",
}  # fmt: skip
WEIGHTED = {"convolution", "addmm", "mm", "bmm", "baddbmm", "mv", "addmv", "_convolution", "mkldnn_convolution"}


class ModelError(Exception):
    """The model raised an exception; the message is its first line."""


class NoGradientError(Exception):
    """The logits carry no gradient with respect to the input."""


class ModelRunner:
    """A frozen model, some images in its precision and on its device, and their space, by default that of pixels."""

    def __init__(
        self, module: nn.Module, images: Tensor, *, dtype: torch.dtype | None, device: torch.device,
        space: Space | None = None,
    ) -> None:  # fmt: skip
        self.module, self.batch_size, self.space = module, MAX_BATCH, space or as_space(None, None, None)
        if not images.is_floating_point() or images.dtype.itemsize < 4:
            images = images.float()
        self.images = images.detach().to(device=device, dtype=dtype or images.dtype)

    @property
    def epsilon(self) -> float:
        """The rounding unit of the model's precision."""
        return float(torch.finfo(self.images.dtype).eps)

    @property
    def widths(self) -> Tensor:
        """Per flat feature, the width of its bounds; without any, its largest value or its scale if that is larger."""
        x = self.images
        lo, hi = replace(self.space, fixed=None).bounds_for(x)
        width = (hi - lo).expand(x.shape[1:]).double()
        size = torch.maximum(x.abs().amax(0).double(), self.space.scale_for(x.double()))
        return torch.where(torch.isfinite(width) & (width > 0), width, size).flatten()

    def call(self, x: Tensor, module: nn.Module | None = None) -> Any:
        """Return the output of the model, or of another one, for x."""
        try:
            return (self.module if module is None else module)(x)
        except Exception as error:
            raise ModelError(describe(error)) from error

    @torch.no_grad()
    def logits(self, x: Tensor, *, module: nn.Module | None = None) -> Tensor:
        """Return logits, converted to double precision for comparisons, without gradients."""
        return self._in_batches(len(x), MAX_BATCH, lambda rows: self.call(x[rows].clone(), module).double())

    def margin(self, x: Tensor, label: Tensor) -> Tensor:
        """Return l_y − max l_i, without gradients."""
        return MARGIN(self.logits(x), label)

    def gradient(self, x: Tensor, label: Tensor, of: Loss = MARGIN) -> Tensor | None:
        """Return the gradient of a loss, one flat row per sample, NaN included; None if the logits carry none."""
        try:
            return self._in_batches(len(x), MAX_BATCH // 2, lambda rows: self._gradient(x[rows], label[rows], of))
        except NoGradientError:
            return None

    def _gradient(self, x: Tensor, label: Tensor, of: Loss) -> Tensor:
        leaf = x.detach().clone().requires_grad_()
        with torch.enable_grad():
            value = of(self.call(leaf.clone()), label)  # it may edit its input
        if not value.requires_grad:
            raise NoGradientError
        try:
            (rows,) = torch.autograd.grad(value.sum(), leaf, allow_unused=True)
        except Exception as error:
            raise ModelError(f"backward: {one_line(error)}") from error
        if rows is None:
            raise NoGradientError
        return rows.flatten(1)

    def _in_batches(self, n: int, most: int, work: Callable[[slice], Tensor]) -> Tensor:
        """Work on n inputs in batches; a batch that does not fit into memory is retried at half the size."""
        parts: list[Tensor] = []
        first = 0
        while first < n or not parts:
            size = min(most, self.batch_size, n - first)
            try:
                parts.append(work(slice(first, first + size)))
            except ModelError as error:
                if size <= 1 or error.__cause__ is None or not out_of_memory(error.__cause__):
                    raise
                self.batch_size = size // 2
                continue
            first += size
        return torch.cat(parts)

    @cached_property
    def float64(self) -> "ModelRunner | None":
        """A float64 copy with the same logits, for finite differences; None if it cannot be made."""
        if sum(parameter.numel() for parameter in self.module.parameters()) > MAX_COPIED:
            return None
        try:
            module = deepcopy(self.module).double()
            copy = ModelRunner(module, self.images, dtype=torch.float64, device=self.images.device)
            few = self.images[:4]
            logits = self.logits(few)
            same = bool((logits - copy.logits(few.double())).abs().max() <= 1e-2 * logits.abs().max())
            exact = copy.module(few.double()).dtype == torch.float64
        except Exception:  # without a copy the checks are coarser
            return None
        return copy if same and exact else None

    def noise(self, rows: int, draw: int) -> Tensor:
        """Return uniform noise in [0, 1) of the images' shape, the same in every diagnosis."""
        ids, number = torch.arange(rows), torch.tensor(draw)
        flat: Tensor = uniform(ids, self.images[0].numel(), seed=0, draw=number, like=self.images)
        return flat.reshape(rows, *self.images.shape[1:])

    def discontinuous_operators(self) -> tuple[list[str], bool]:
        """Return the discontinuous operators of a forward, and whether one precedes the first layer with weights."""
        try:
            with torch.no_grad(), _OperatorLog() as log:
                self.module(self.images[:1].clone())
                names: list[str] = log.names
        except Exception:
            return [], False
        first = next((k for k, name in enumerate(names) if name in WEIGHTED), len(names))
        return sorted(DISCONTINUOUS.intersection(names)), not DISCONTINUOUS.isdisjoint(names[:first])


class _OperatorLog(TorchDispatchMode):
    """Records the names of torch's operators as they are called."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        to = (kwargs or {}).get("dtype")
        to_integer = to is not None and not to.is_floating_point and not to.is_complex and to != torch.bool
        self.names.append("to_integer" if to_integer else func.overloadpacket.__name__.rstrip("_"))
        return func(*args, **(kwargs or {}))


def count_autograd_calls() -> Any:
    """Return a context manager whose ``call_count`` counts the calls of autograd's engine."""
    autograd: Any = torch.autograd
    return mock.patch.object(autograd, "_engine_run_backward", wraps=autograd._engine_run_backward)
