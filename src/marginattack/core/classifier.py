"""Classifier: an nn.Module with its box, held in eval mode and frozen while it is looked at; and what it refuses."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from marginattack.core.flags import full_float32, tf32
from marginattack.core.types import Labels, Logits
from marginattack.core.validation import check_logits
from marginattack.errors import InputError, one_line
from marginattack.execution.compilation import Compiler
from marginattack.execution.folding import folded
from marginattack.execution.graphs import Graphs, friendly, padded

Bounds = tuple[float | int, float | int] | tuple[Tensor, Tensor]

NOISE = 1e-5  # how far outside the box, as a share of its width, an input may lie by rounding


# An adversarial label must lead by so many units of rounding of the largest logit, and by so many times what the
# company of other inputs was seen to change of a logit, since a point must be adversarial in any company.
ROUNDING, COMPANY = 8, 2

SEARCHES = ("float32", "tf32", "bf16")  # precisions of a search, the finest first


class TwoClass(nn.Module):
    """A model with a single logit z, as one with the two logits (−z/2, z/2): class 1 is predicted where z > 0."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Logits:
        z = self.model(images).reshape(-1, 1) / 2
        return torch.cat([-z, z], dim=1)


class Classifier:
    """Logits of a model for inputs inside a box, at most ``chunk`` inputs at a time.

    Inside ``with classifier.held():`` the caller's model is in eval mode and its parameters are frozen; afterwards
    modes, flags and buffers are what they were, also when something was raised. Attacks look at a copy whose batch
    normalisations are folded, where it has some; what they find is checked on the model itself.
    On a GPU passes that are made often are captured as CUDA graphs, unless ``graphs`` is off or the model forbids it.
    ``search`` is the precision in which attacks may look for points, "float32", "tf32" or "bf16"; what they find is
    judged in full. ``compiled``: on a GPU looks with a gradient at whole chunks go through ``torch.compile``.
    """

    def __init__(
        self, model: nn.Module, *, bounds: Bounds | None = None, chunk: int = 512, graphs: bool = True,
        search: str = "float32", compiled: bool = False,
    ) -> None:  # fmt: skip
        if not isinstance(model, nn.Module):
            raise InputError(f"model is a {type(model).__name__}, not a torch.nn.Module: wrap the function in a Module")
        if chunk < 1:
            raise InputError(f"chunk is {chunk}, but must be at least 1")
        self.model, self.chunk = model, chunk
        self.bounds_stated = bounds is not None
        self.lo, self.hi = _checked_bounds((0.0, 1.0) if bounds is None else bounds)
        weight = next((p for p in model.parameters() if p.is_floating_point()), None)
        self.model_dtype = None if weight is None else weight.dtype
        self.device = torch.device("cpu") if weight is None else weight.device
        self.classes = 0  # this and the next two are known once inputs were accepted
        self.channels_last = False
        self.company = 0.0
        self._alone = 0.0  # the company of a few inputs
        if search not in SEARCHES:
            raise InputError(f"search is {search!r}: give one of {', '.join(SEARCHES)}")
        self.search, self.precision = search, "float32"  # what is asked for, and in which looks are made now
        self._coarse = 0.0  # by how much the precision of the search changes logits
        self._folded: nn.Module | None = None  # what attacks look at, where it is not the model itself
        self._low: nn.Module | None = None
        self._holds = 0
        if compiled and self.device.type != "cuda":
            raise InputError(
                "compiled is for a GPU: on a CPU a compiled model is hardly faster or slower, so leave it out"
            )
        self.compiler = Compiler("" if compiled else "not asked for")
        self.graphs = Graphs("" if graphs else "graphs are switched off")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Eval mode, frozen parameters, gradients and full float32 for the duration; all as before afterwards."""
        modes = [(module, module.training) for module in self.model.modules()]
        flags = [(parameter, parameter.requires_grad) for parameter in self.model.parameters()]
        buffers = [
            (owner, name, buffer, buffer.clone())
            for owner in self.model.modules()
            for name, buffer in owner._buffers.items()
            if buffer is not None
        ]
        self._holds += 1
        try:
            self.model.eval()
            if self.model.training:
                raise InputError("model stays in train mode after eval(): margins need the inference behaviour, so let "
                              "its train() and eval() take effect")  # fmt: skip
            for parameter, _ in flags:
                parameter.requires_grad_(False)
            with torch.inference_mode(False), torch.enable_grad(), full_float32(self.device):
                yield
        finally:
            self._holds -= 1
            if not self._holds:
                self.forget()
                self._folded = self._low = None
            for module, training in modes:
                module.training = training
            for parameter, flag in flags:
                parameter.requires_grad_(flag)
            with torch.no_grad():
                for owner, name, buffer, value in buffers:
                    owner._buffers[name] = buffer.copy_(value)

    @contextmanager
    def quickly(self) -> Iterator[None]:
        """Look in the precision of the search for a while. A label must lead by twice what that changes of logits."""
        before = self.precision, self.company
        try:
            with tf32(True) if self.search == "tf32" else nullcontext():
                self.precision, self.company = self.search, max(self.company, self._coarse)
                yield
        finally:
            self.precision, self.company = before

    def logits(self, images: Tensor, *, often: bool = False) -> Logits:
        """The model's output for images of any precision, in that precision; of looks that are made often, compiled."""
        model, ready = self.looked_at, images
        if self.precision == "bf16":
            model, ready = self.low, images.to(torch.bfloat16)
        elif self.model_dtype is not None:
            ready = images.to(self.model_dtype)
        if self.channels_last and model is not self._low:
            ready = ready.contiguous(memory_format=torch.channels_last)
        whole = often and len(images) == self.full
        logits: Logits = self.compiler(model, ready, self.precision) if whole else model(ready)
        return logits.to(images.dtype)

    @property
    def full(self) -> int:
        """The size of batches that are compiled for; 0: nothing is."""
        return 0 if self.compiler.why else self.chunk

    def modes(self) -> dict[str, Any]:
        """How it was looked at: whether graphs were captured and the model was compiled, or why not."""
        captured = self.device.type == "cuda" and (self.graphs.why or "captured")
        return {"graphs": captured, "compiled": self.compiler.about()}

    def forget(self) -> None:
        """Let go of what was captured and compiled: the model or the size of batches may change."""
        self.graphs.clear()
        self.compiler.clear()

    @property
    def looked_at(self) -> nn.Module:
        """The model, or its folded copy."""
        return self._folded or self.model

    @property
    def low(self) -> nn.Module:
        """A copy of the model in bf16, laid out as a GPU likes it best."""
        if self._low is None:
            self._low = deepcopy(self.looked_at).to(torch.bfloat16)
            self._low = self._low.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return self._low

    def lead(self, points: Tensor, size: Tensor) -> Tensor:
        """By how much a label must lead to be believed, for logits of these sizes."""
        share, least = self.leads(points)
        return (share * size).clamp(min=least)

    def leads(self, points: Tensor) -> tuple[float, float]:
        """By which share of the logits' size a label must lead, and by how much at least."""
        return ROUNDING * self.epsilon(points), COMPANY * self.company

    def epsilon(self, points: Tensor) -> float:
        """The rounding unit of the logits: that of the model's precision, or of the points' where it has none."""
        return torch.finfo(self.model_dtype or points.dtype).eps

    def predict(self, images: Tensor) -> Labels:
        """The predicted class of each image."""
        return self.answers(images).argmax(1)

    @torch.no_grad()
    def answers(self, images: Tensor, ids: Tensor | None = None) -> Logits:
        """The logits of each image, on the CPU, all finite; ``ids`` are the images' numbers, for the refusal."""
        logits = torch.cat([self.logits(part.to(self.device)).cpu() for part in images.split(self.chunk)])
        strange = (~torch.isfinite(logits)).any(1)
        if bool(strange.any()):
            number = int((torch.arange(len(logits)) if ids is None else ids)[strange][0])
            raise InputError(f"model returns NaN or infinite logits for images[{number}]: check its input scale")
        return logits

    def recheck(self, points: Tensor, beside: Tensor | None = None) -> Labels:
        """The bare model's label of each point, in other company than before."""
        return self.elsewhere(points, beside).argmax(1)

    @torch.no_grad()
    def elsewhere(self, points: Tensor, beside: Tensor | None = None) -> Logits:
        """The bare model's logits of each point, on the CPU, in other company than an attack's batches give it.

        The size of a batch, and with it the order of the sums inside the model, is another; and each may hold other
        images ``beside`` the points.
        """
        half = max(1, self.chunk // 3)
        half += 2 * half == self.chunk
        found = []
        for first in range(0, len(points), half):
            part, other = (each[first : first + half] for each in (points, points[:0] if beside is None else beside))
            batch = torch.cat([part, other]).to(self.device)
            logits = self.model(batch if self.model_dtype is None else batch.to(self.model_dtype))
            found.append(logits[: len(part)].cpu())
        return torch.cat(found)

    def meet(self, images: Tensor, logits: Logits) -> None:
        """See what company changes of these logits: in batches as large as an attack's it can be more than in small."""
        beside = self.elsewhere(images, images.flip(0)).to(logits.dtype)
        moved = torch.cat([each - beside for each in (logits, *self._compiled(images))]).nan_to_num(0.0)
        apart = float((moved.amax(1) - moved.amin(1)).max()) / 2  # two logits move by so much in opposite directions
        self.company = max(self._alone, _rounded_up(min(apart, _most(logits))))
        if self.search != "float32":
            try:
                with self.quickly():
                    coarse = torch.cat([each - logits for each in (self.answers(images), *self._compiled(images))])
                self._coarse = _rounded_up(float(coarse.abs().max()))
            except (torch.OutOfMemoryError, MemoryError):
                raise
            except Exception as error:  # whatever a model does in a precision that it was not made for
                raise InputError(
                    f"model fails in {self.search} ({one_line(error)}): search in float32 instead"
                ) from error

    def _compiled(self, images: Tensor) -> list[Logits]:
        """The logits as an attack on these images sees them, if that is other than as they come."""
        if not self.full or friendly(len(images), self.full) != self.full:
            return []
        batch = padded(images, self.full).to(self.device).requires_grad_()
        return [self.logits(batch, often=True).detach()[: len(images)].cpu()]

    @torch.no_grad()
    def accept(self, images: Any, labels: Any, targets: Any = None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Images, labels and targets as checked tensors on the CPU, or a refusal. Call it while the model is held."""
        x = self._accept_images(images)
        self.classes = self._accept_model(x[:8].to(self.device))
        y = _accept_labels(labels, len(x), self.classes, "labels")
        if targets is None:
            return x, y, None
        a = _accept_labels(targets, len(x), self.classes, "targets")
        if bool((a == y).any()):
            row = int((a == y).nonzero()[0])
            raise InputError(f"targets[{row}] is {int(a[row])}, the label itself: a target must be another class")
        return x, y, a

    def _accept_images(self, images: Any) -> Tensor:
        x = _as_tensor(images, "images")
        if x.ndim < 2 or 0 in x.shape:
            hint = "give a non-empty batch, one input a row, such as (n, channels, height, width)"
            raise InputError(f"images have shape {tuple(x.shape)}: {hint}")
        if x.is_complex() or x.dtype == torch.bool:
            raise InputError(f"images are {_name(x.dtype)}: give floating-point pixels")
        if not x.is_floating_point() and not self.bounds_stated:
            hint = "pass images / 255 or, if the model takes 0 to 255, bounds=(0, 255)"
            raise InputError(f"images are {_name(x.dtype)} and their scale is not stated: {hint}")
        if not x.is_floating_point() or x.dtype.itemsize < 4:
            x = x.to(torch.float32)
        if self.model_dtype is not None:
            x = x.to(torch.float64 if self.model_dtype == torch.float64 else torch.float32)
        strange = (~torch.isfinite(x)).flatten(1).any(1)
        if bool(strange.any()):
            where = f"{int(strange.sum())} of {len(x)} inputs, first in images[{int(strange.nonzero()[0])}]"
            raise InputError(f"images hold NaN or infinity in {where}: clean the data")
        lo, hi = self.box(x)
        width = torch.where(torch.isfinite(hi - lo), hi - lo, 1)
        if bool((x < lo - NOISE * width).any()) or bool((x > hi + NOISE * width).any()):
            span = f"{float(x.min()):.4g} to {float(x.max()):.4g}, outside the box {_span(lo, hi)}"
            hint = "pass pixels, with normalisation inside the model, or state bounds=(lo, hi)"
            raise InputError(f"images span {span}: {hint}")
        return torch.clamp(x, lo, hi).cpu()

    def box(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Lower and upper bounds that broadcast against these images."""
        try:
            lo, hi = (b.to(images).expand(images.shape[1:]) if b.ndim else b.to(images) for b in (self.lo, self.hi))
        except RuntimeError:
            shapes = f"{tuple(self.lo.shape)} do not fit inputs of shape {tuple(images.shape[1:])}"
            raise InputError(f"bounds of shape {shapes}: give two numbers, or one bound a coordinate") from None
        return lo, hi

    def _accept_model(self, x: Tensor) -> int:
        """The number of classes, from the logits of a few inputs."""
        try:
            logits = self.model(x if self.model_dtype is None else x.to(self.model_dtype))
        except Exception as error:
            shape = tuple(x.shape[1:])
            raise InputError(f"model fails in eval mode on inputs of shape {shape}: {one_line(error)}") from error
        check_logits(logits, len(x))
        if self._holds and self._folded is None:
            self._folded = folded(self.model, x if self.model_dtype is None else x.to(self.model_dtype))
        try:
            alone = torch.cat([self.logits(one) for one in x.split(1)])
        except Exception:
            alone = torch.full_like(logits, torch.nan)
        logits = logits.to(alone.dtype)
        if not torch.allclose(alone, logits, rtol=1e-2, atol=1e-2 * float(logits.abs().max())):
            why = "it is random, or normalises over the batch (BatchNorm without running statistics)"
            raise InputError(
                f"model gives an input other logits alone than in a batch: {why}; a margin needs a function"
            )
        self._alone = self.company = _rounded_up(min(float((alone - logits).abs().max()), _most(logits)))
        self.channels_last = self._takes_channels_last(x, logits)
        return int(logits.shape[1])

    def _takes_channels_last(self, x: Tensor, logits: Logits) -> bool:
        """Whether images may be laid out channels last, which on a CPU convolves 10 to 20 % faster."""
        if x.ndim != 4 or x.device.type != "cpu":
            return False
        try:
            self.channels_last = True
            return torch.allclose(self.logits(x), logits.to(x.dtype), rtol=1e-3, atol=1e-3)
        except RuntimeError:  # a model that views its features as flat rows wants them contiguous
            return False


def _most(logits: Logits) -> float:
    """What company may change at most: more than that is no rounding."""
    return 1e-3 * float(logits.abs().max())


def _rounded_up(value: float) -> float:
    """To a power of √2: batches in which company changes about as much are then alike, and share graphs."""
    return 2.0 ** (math.ceil(2 * math.log2(value)) / 2) if value > 0 else 0.0


def _accept_labels(labels: Any, n: int, classes: int, what: str) -> Tensor:
    y = _as_tensor(labels, what)
    if y.ndim != 1:
        raise InputError(f"{what} have shape {tuple(y.shape)}: give one class index an input, shape ({n},)")
    if len(y) != n:
        raise InputError(f"{what} are {len(y)} for {n} images: they must pair up")
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise InputError(f"{what} are {_name(y.dtype)}: give integer class indices")
    y = y.to(torch.int64).cpu()
    if bool((y < 0).any()) or bool((y >= classes).any()):
        wrong = y[(y < 0) | (y >= classes)]
        raise InputError(f"{what} hold {int(wrong[0])}, but the model has classes 0 to {classes - 1}")
    return y


def _as_tensor(values: Any, what: str) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach()
    try:
        array = np.asarray(values)
        if array.dtype in (np.uint16, np.uint32, np.uint64):
            array = array.astype(np.int64)
        return torch.from_numpy(np.array(array, order="C"))
    except (TypeError, ValueError):
        kind = type(values).__name__
        raise InputError(f"{what} are a {kind} that is no array of numbers: give a tensor or a numpy array") from None


def _checked_bounds(bounds: Bounds | Sequence[Any]) -> tuple[Tensor, Tensor]:
    try:
        lo, hi = (torch.as_tensor(b, dtype=torch.float64) for b in bounds)
    except (TypeError, ValueError):
        raise InputError(f"bounds are {bounds!r}: give (lo, hi)") from None
    if lo.shape != hi.shape and lo.ndim and hi.ndim:
        raise InputError(f"bounds have shapes {tuple(lo.shape)} and {tuple(hi.shape)}: both must fit the input")
    if not bool((lo < hi).all()):
        raise InputError(f"bounds are {_span(lo, hi)}: the lower must be below the upper")
    return lo, hi


def _span(lo: Tensor, hi: Tensor) -> str:
    return f"[{float(lo.min()):g}, {float(hi.max()):g}]"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
