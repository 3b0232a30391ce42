"""Subject: the model under diagnosis, run so that whatever it does wrong comes back as one line and leaves no trace."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from marginattack.core.draws import uniform
from marginattack.core.losses import CROSS_ENTROPY, MARGIN, Belief
from marginattack.errors import describe, one_line
from marginattack.execution.memory import out_of_memory

CHUNK = 64  # inputs a forward, half as many with a backward; fewer once memory has run out
LARGEST_COPY = 50_000_000  # parameters of a model that is copied to float64

# What makes jumps out of a smooth input, by the name of torch's operator.
JUMPS = {
    "round", "floor", "ceil", "trunc", "sign", "sgn", "heaviside", "bucketize", "searchsorted", "argmax", "argmin",
    "floor_divide", "quantize_per_tensor", "quantize_per_channel", "fake_quantize_per_tensor_affine_cachemask",
    "fake_quantize_per_channel_affine_cachemask", "gt", "ge", "lt", "le", "to_integer",
}  # fmt: skip
WEIGHTS = {"convolution", "addmm", "mm", "bmm", "baddbmm", "mv", "addmv", "_convolution", "mkldnn_convolution"}


class Broken(Exception):
    """The model raised something; the text is its first line."""


class Flat(Exception):
    """The logits carry no gradient with respect to the input."""


class Subject:
    """A held model and some images in its precision, on its device."""

    def __init__(self, module: nn.Module, images: Tensor, *, dtype: torch.dtype | None, device: torch.device) -> None:
        self.module, self.chunk = module, CHUNK
        if not images.is_floating_point() or images.dtype.itemsize < 4:
            images = images.float()
        self.images = images.detach().to(device=device, dtype=dtype or images.dtype)

    @property
    def epsilon(self) -> float:
        """The rounding unit of the model's precision."""
        return float(torch.finfo(self.images.dtype).eps)

    def call(self, x: Tensor) -> Any:
        """Whatever the model returns for a copy of x."""
        try:
            return self.module(x.clone())
        except Exception as error:
            raise Broken(describe(error)) from error

    @torch.no_grad()
    def logits(self, x: Tensor, *, module: nn.Module | None = None) -> Tensor:
        """Logits in double precision for the comparisons here, some inputs at a time, without gradients."""
        subject = self if module is None else self.like(module)
        return torch.cat(list(subject._pieces(len(x), CHUNK, lambda rows: subject.call(x[rows]).double())))

    def _pieces(self, n: int, most: int, work: Callable[[slice], Tensor]) -> Iterator[Tensor]:
        """Work on n inputs, piece by piece; a piece that does not fit into memory is tried again at half the size."""
        if n == 0:
            yield work(slice(0, 0))
        first = 0
        while first < n:
            size = min(most, self.chunk, n - first)
            try:
                piece = work(slice(first, first + size))
            except Broken as error:
                if size == 1 or error.__cause__ is None or not out_of_memory(error.__cause__):
                    raise
                self.chunk = size // 2
                continue
            yield piece
            first += size

    def like(self, module: nn.Module) -> "Subject":
        """Another model on the same images."""
        return Subject(module, self.images, dtype=self.images.dtype, device=self.images.device)

    def margin(self, x: Tensor, label: Tensor) -> Tensor:
        """The lead of the label, l_y − max l_i, without gradients."""
        return MARGIN(self.logits(x), label)

    def slope(self, x: Tensor, label: Tensor, of: Belief = MARGIN) -> Tensor | None:
        """The gradient of a belief, a flat row a sample and as it is, NaN included; None where logits carry none."""
        try:
            return torch.cat(list(self._pieces(len(x), CHUNK // 2, lambda rows: self._slope(x[rows], label[rows], of))))
        except Flat:
            return None

    def _slope(self, x: Tensor, label: Tensor, of: Belief) -> Tensor:
        leaf = x.detach().clone().requires_grad_()
        with torch.enable_grad():
            value = of(self._differentiable(leaf), label)
        if not value.requires_grad:
            raise Flat
        try:
            (row,) = torch.autograd.grad(value.sum(), leaf, allow_unused=True)
        except Exception as error:
            raise Broken(f"backward: {one_line(error)}") from error
        if row is None:
            raise Flat
        return row.flatten(1)

    def cross_entropy_slope(self, x: Tensor, label: Tensor) -> Tensor | None:
        """The gradient of log p_y."""
        return self.slope(x, label, of=CROSS_ENTROPY)

    def _differentiable(self, leaf: Tensor) -> Tensor:
        try:
            logits: Tensor = self.module(leaf)
        except Exception as error:
            raise Broken(describe(error)) from error
        return logits

    @cached_property
    def double(self) -> "Subject | None":
        """A float64 copy that says the same, or None where there is none: finite differences need the digits."""
        size = sum(parameter.numel() for parameter in self.module.parameters())
        if size > LARGEST_COPY:
            return None
        try:
            copy = deepcopy(self.module).double()
            double = Subject(copy, self.images, dtype=torch.float64, device=self.images.device)
            few = self.images[:4]
            ours, theirs = self.logits(few), double.logits(few.double())
            same = bool((ours - theirs).abs().max() <= 1e-2 * ours.abs().max())
            exact = copy(few.double()).dtype == torch.float64
        except Exception:  # a copy is a luxury: without it the check is coarser
            return None
        return double if same and exact else None

    def noise(self, rows: int, draw: int) -> Tensor:
        """Numbers in [0, 1) of the images' shape, the same in every diagnosis."""
        ids, which = torch.arange(rows), torch.tensor(draw)
        flat: Tensor = uniform(ids, self.images[0].numel(), seed=0, draw=which, like=self.images)
        images: Tensor = flat.unflatten(1, self.images.shape[1:])
        return images

    def operators(self) -> list[str]:
        """The names of torch's operators that one forward calls, in order; none where they cannot be seen."""
        try:
            with torch.no_grad(), _Record() as record:
                self.module(self.images[:1].clone())
                names: list[str] = record.names
        except Exception:
            return []
        return names

    def jumps(self) -> tuple[list[str], bool]:
        """Operators that jump, and whether the first of them comes before the first layer with weights."""
        names = self.operators()
        first = next((k for k, name in enumerate(names) if name in WEIGHTS), len(names))
        places = [k for k, name in enumerate(names) if name in JUMPS]
        return sorted({names[k] for k in places}), bool(places) and places[0] < first


class _Record(TorchDispatchMode):
    """Takes down the operators that are called."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        to = (kwargs or {}).get("dtype")
        whole = to is not None and not to.is_floating_point and not to.is_complex and to != torch.bool
        self.names.append("to_integer" if whole else func.overloadpacket.__name__.rstrip("_"))
        return func(*args, **(kwargs or {}))


@contextmanager
def backward_calls() -> Iterator[list[str]]:
    """The calls of autograd while this lasts: torch's entries to it are replaced by ones that take note."""
    calls: list[str] = []
    places = [(torch.autograd, name) for name in ("_engine_run_backward", "grad", "backward")]
    before = [(owner, name, getattr(owner, name)) for owner, name in places if hasattr(owner, name)]

    def noted(name: str, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return function(*args, **kwargs)

        return call

    try:
        for owner, name, function in before:
            setattr(owner, name, noted(name, function))
        yield calls
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)


@contextmanager
def own_randomness(device: torch.device) -> Iterator[None]:
    """Draws of the model while this lasts start from one seed and leave the caller's generators as they were."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        yield
