r"""Lipschitz networks: a lower bound in closed form, from a constant of the whole network.

If every layer changes distances in ℓ2 by at most a factor, the network does by at most their product L, and

.. math:: \frac{l_y(x_0) - l_j(x_0)}{L \, \|w_y - w_j\|} \;\ge\; \frac{l_y(x_0) - l_j(x_0)}{\sqrt{2} \, L}

is a lower bound towards class j, with w the rows of the last layer if it is linear. In networks of 1-Lipschitz layers
(deel-torchlip, orthogonium) L is 1 by construction. This is verified: the factor of a layer with weights is the
spectral norm of the weights that it uses, and no layer may exceed its factor on random changes of its input.

The norm of a convolution is at most the largest singular value of its symbol A(ω), the Fourier transform of its kernel
(zero padding restricts the convolution of an infinite image). It is computed on a grid of N points per axis. Since
‖A(ω)v‖² is a trigonometric polynomial of degree n = kernel − 1, its maximum is at most that on the grid over
cos(π n / N) per axis (M. Riesz). A stride is a convolution of stride 1 of more channels, one per position.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from marginattack.bounds.operations import require_precision
from marginattack.core.norms import Norm
from marginattack.core.validation import Batch
from marginattack.errors import InputError
from marginattack.execution.session import Session

POINTS_PER_DEGREE = 32  # of the grid of frequencies: 0.5 % above the norm of a convolution, at most
GROUPED = 64  # rows of frequencies at a time
SAFETY = 1e-9  # relative error of a norm in float64
ALLOWANCE = 2.0**10  # units in the last place of the largest logit: the model's rounding error of a gap, at most
TRIALS = 16  # random changes of the input of each layer
ROUNDING = 16.0  # rounding error of a layer, in units in the last place of its output
EXCEEDS = 1e-3  # relative: by how much a change may grow beyond the factor of a layer

FACTORS: dict[type[nn.Module], float] = {
    nn.Identity: 1.0, nn.Flatten: 1.0, nn.Unflatten: 1.0, nn.Dropout: 1.0, nn.PixelUnshuffle: 1.0, nn.PixelShuffle: 1.0,
    nn.ChannelShuffle: 1.0, nn.ReLU: 1.0, nn.Tanh: 1.0, nn.Sigmoid: 0.25, nn.Softplus: 1.0, nn.Hardtanh: 1.0,
    nn.GELU: 1.13, nn.SiLU: 1.1,
}  # fmt: skip
# of deel.torchlip and orthogonium, without weights or with a rotation: 1, times the coefficient that the layer states
BY_CONSTRUCTION = (
    "Abs", "BatchCentering", "BatchCentering2D", "ChannelShuffle", "FullSort", "GroupSort", "GroupSort2", "HouseHolder",
    "HouseHolder_Order_2", "InvertibleDownSampling", "InvertibleUpSampling", "LayerCentering", "LayerCentering2D",
    "MaxMin", "ScaledAdaptativeL2NormPool2d", "ScaledAdaptiveAvgPool2d", "ScaledAvgPool2d", "ScaledL2NormPool2d",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer of a sequential network with the input that it gets for some samples."""

    name: str
    module: nn.Module
    given: Tensor

    @property
    def kind(self) -> str:
        return f"{type(self.module).__name__}{f' ({self.name})' if self.name else ''}"


def certify(session: Session, samples: Batch, norm: Norm) -> Tensor:
    """The certified radius towards each class, (n, classes); 0 for classes with a higher logit than the label.

    Raises:
        InputError: The model is not a sequence of layers with known Lipschitz constants.
    """
    classifier, dtype = session.classifier, session.classifier.dtype or samples.images.dtype
    require_precision(dtype)
    logits = session.logits(samples.images).double()
    with torch.no_grad():
        layers = list(_unfold(classifier.model, samples.images[:1].to(classifier.device, dtype)))
        _check_end(layers[-1], logits[:1])
        *factors, last = (_factor(layer) for layer in layers)
        pairs = torch.full((samples.classes,) * 2, 2**0.5 * last, dtype=torch.float64)
        if isinstance(layers[-1].module, nn.Linear):
            rows = layers[-1].module.weight.double().cpu()
            pairs = torch.minimum(pairs, torch.linalg.vector_norm(rows[:, None] - rows, dim=2) * (1 + SAFETY))
    slope = pairs[samples.labels] * torch.tensor(factors, dtype=torch.float64).prod()
    if norm.name == "linf":
        slope = slope * samples.images[0].numel() ** 0.5  # ‖δ‖₂ ≤ √d ‖δ‖∞; in ℓ1, ‖δ‖₂ ≤ ‖δ‖₁
    rounding = ALLOWANCE * torch.finfo(dtype).eps * logits.abs().amax(1, keepdim=True)
    gap = logits.gather(1, samples.labels[:, None]) - logits - rounding
    certified = torch.where(gap > 0, gap / slope, 0.0)
    return certified.scatter(1, samples.labels[:, None], torch.inf)


def _unfold(module: nn.Module, given: Tensor, name: str = "") -> Iterator[Layer]:
    """The layers of nested sequences, each with its input."""
    if type(module).forward is nn.Sequential.forward:
        for key, child in module._modules.items():  # named_children() leaves out a layer that is used again
            assert child is not None
            yield from _unfold(child, given, f"{name}.{key}".lstrip("."))
            given = child(given.clone())  # a layer may edit its input
    elif (slope := getattr(module, "input_slope", None)) is not None:  # our preprocessing
        inner: Any = module
        yield Layer(f"{name}.normalize".lstrip("."), _Scale(slope), given)
        yield from _unfold(inner.model, inner.normalize(inner.fit(given)), f"{name}.model".lstrip("."))
    else:
        yield Layer(name, module, given)


def _check_end(last: Layer, logits: Tensor) -> None:
    """Raise InputError for a model that computes more than its layers, for example in a hook of the sequence."""
    found = last.module(last.given.clone()).double().cpu()
    if found.shape != logits.shape or not torch.allclose(
        found, logits, rtol=1e-3, atol=1e-3 * float(logits.abs().max())
    ):
        raise InputError("the model computes something else than its layers: lipschitz bounds would be wrong")


class _Scale(nn.Module):
    """A placeholder for an affine map with this Lipschitz constant."""

    def __init__(self, slope: float) -> None:
        super().__init__()
        self.slope = slope

    def forward(self, given: Tensor) -> Tensor:
        return self.slope * given


def _factor(layer: Layer) -> float:
    """The largest factor by which a layer changes distances, checked on random changes."""
    factor = _stated_factor(layer)
    if factor is None:
        hint = "they need an nn.Sequential of linear, convolution and 1-Lipschitz layers"
        raise InputError(f"lipschitz bounds do not cover {layer.kind}: {hint}")
    generator = torch.Generator().manual_seed(0)
    scale = max(float(layer.given.abs().max()), 1e-3)
    base = layer.given.expand(TRIALS, *layer.given.shape[1:])
    change = torch.randn(base.shape, generator=generator).to(base) * scale
    change *= torch.logspace(-3, 0, TRIALS, device=base.device).view(-1, *[1] * (base.ndim - 1)).to(base)
    before, after = (layer.module(each).flatten(1).double() for each in (base.clone(), base + change))
    rounded = (
        ROUNDING * torch.finfo(base.dtype).eps * (after.norm(dim=1) + factor * base.flatten(1).double().norm(dim=1))
    )
    grown = (after - before).norm(dim=1) - rounded
    growth = float((grown / change.flatten(1).double().norm(dim=1)).max())
    if growth > factor * (1 + EXCEEDS) + EXCEEDS**2:
        raise InputError(f"{layer.kind} stretches a change {growth:.4g} times, not at most {factor:.4g}: bounds fail")
    return factor


def _stated_factor(layer: Layer) -> float | None:
    module, kind = layer.module, type(layer.module)
    if isinstance(module, _Scale):
        return module.slope
    if isinstance(module, nn.Linear | nn.Conv2d):
        return _weight_norm(layer, module)
    if isinstance(module, nn.Softplus) and (module.threshold < 20 or module.beta < 1):
        return None  # it jumps where it turns into a line
    if kind in FACTORS:
        return FACTORS[kind]
    if isinstance(module, nn.LeakyReLU):
        return max(1.0, abs(module.negative_slope))
    if hasattr(module, "kernel_size"):  # pooling: each input must count once
        size, stride, dilation = (
            torch.tensor(getattr(module, each, 1)) for each in ("kernel_size", "stride", "dilation")
        )
        if bool((size > stride).any() or (dilation > 1).any()):
            return None
    if kind is nn.MaxPool2d:
        return 1.0
    if kind.__module__.startswith(("deel.torchlip.", "orthogonium.")) and kind.__name__ in BY_CONSTRUCTION:
        return abs(float(getattr(module, "_coefficient_lip", 1.0)))
    return None


def _weight_norm(layer: Layer, module: nn.Linear | nn.Conv2d) -> float | None:
    """The spectral norm of the weights that a layer uses; None for convolutions that are not covered."""
    plain = nn.Linear.forward if isinstance(module, nn.Linear) else nn.Conv2d.forward
    expected, found = plain(module, layer.given), module(layer.given)  # type: ignore[arg-type]
    if found.shape != expected.shape or not torch.allclose(found, expected, rtol=1e-4, atol=1e-5):
        raise InputError(f"{layer.kind} computes something else than its weights say: lipschitz bounds would be wrong")
    weight = module.weight.detach().double()
    if isinstance(module, nn.Linear):
        return float(torch.linalg.matrix_norm(weight, 2)) * (1 + SAFETY)
    if module.dilation != (1, 1) and module.stride != (1, 1):
        return None
    if module.padding_mode == "circular":  # on a torus each output must have its own position
        sizes = zip(layer.given.shape[2:], found.shape[2:], module.stride, strict=True)
        if any(n % stride or after * stride > n for n, after, stride in sizes):
            return None
    elif module.padding_mode != "zeros":
        return None
    return max(_convolution_norm(part, module.stride) for part in weight.chunk(module.groups))


def _convolution_norm(weight: Tensor, stride: tuple[int, ...]) -> float:
    """A bound of the norm of a convolution with zero padding, (out, in, height, width), within 0.5 % of it."""
    (high, wide), (down, right) = weight.shape[2:], stride
    padded = functional.pad(weight, (0, -wide % right, 0, -high % down))
    phases = padded.unflatten(3, (-1, right)).unflatten(2, (-1, down))  # (out, in, rows, down, columns, right)
    kernel = phases.permute(0, 1, 3, 5, 2, 4).flatten(1, 3)
    degree = [size - 1 for size in kernel.shape[2:]]
    points = [max(1, POINTS_PER_DEGREE * n) for n in degree]
    symbol = torch.fft.rfft2(kernel, s=points).permute(2, 3, 0, 1).flatten(0, 1)
    if symbol.shape[1] > symbol.shape[2]:
        symbol = symbol.mT
    largest = max(float(torch.linalg.eigvalsh(part @ part.mH)[:, -1].max()) for part in symbol.split(GROUPED))
    between = [torch.cos(torch.tensor(torch.pi * n / m)).item() for n, m in zip(degree, points, strict=True)]
    return float((largest / between[0] / between[1]) ** 0.5) * (1 + SAFETY)
