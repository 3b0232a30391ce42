"""From ATen operations to rules: one function per kind of operation, registered by name."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

from marginattack.bounds.operations import Affine, Convolution, Dense, Diagonal, Sliding, Sum, weighted_sum
from marginattack.bounds.relaxations import MaxPool, NonLinear, ReLU, Smooth

Rule = Affine | NonLinear


class Untranslatable(Exception):
    """An operation without a rule; the message continues "bounds do not cover X"."""


@dataclass(frozen=True, eq=False)
class Call:
    """A call in the traced program, its constants filled in."""

    target: Any
    args: Sequence[Any]
    kwargs: dict[str, Any]
    inputs: list[fx.Node]  # those that depend on the network's input
    values: list[Any]  # fake tensors: the output's, then the inputs'

    def get(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by position or by name."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)

    def constant(self, position: int, name: str) -> Any:
        """An argument that must not depend on the network's input."""
        value = self.get(position, name)
        if isinstance(value, fx.Node):
            raise Untranslatable(" with weights that depend on the input")
        return value


def find_rule(call: Call) -> Rule | None:
    """The rule of a call; None if its output is its input.

    Raises:
        Untranslatable: There is none.
    """
    if call.target is operator.getitem and call.args[1] == 0:
        return None
    name = str(call.target).removeprefix("aten.").split(".")[0]
    name = name if name.startswith("_") else name.removesuffix("_")
    if name not in RULES:
        raise Untranslatable(f": supported are {', '.join(sorted(RULES))}")
    return RULES[name](name, call)


def _linear(name: str, call: Call) -> Rule:
    weight, bias = call.constant(1, "weight"), call.constant(2, "bias")
    out, fan_in = weight.shape
    return Dense(linear=_apply_linear, weight=weight, bias=bias, fan_in=fan_in, fan_out=out)


def _apply_linear(weight: Tensor, x: Tensor) -> Tensor:
    return functional.linear(x, weight)


def _addmm(name: str, call: Call) -> Rule:
    if call.kwargs:
        raise Untranslatable(f" with {', '.join(call.kwargs)}")
    bias, weight = call.constant(0, "input"), call.constant(2, "mat2").T
    out, fan_in = weight.shape
    return Dense(linear=_apply_linear, weight=weight, bias=bias, fan_in=fan_in, fan_out=out)


def _matmul(name: str, call: Call) -> Rule:
    weight = call.constant(1, "other")
    if weight.ndim != 2:
        raise Untranslatable(f" with a matrix of shape {tuple(weight.shape)}")
    return Dense(linear=_apply_linear, weight=weight.T, fan_in=len(weight), fan_out=weight.shape[1])


def _conv2d(name: str, call: Call) -> Rule:
    weight, bias = call.constant(1, "weight"), call.constant(2, "bias")
    kernel = tuple(weight.shape[2:])
    stride, dilation = (_pair(call.get(i, k, 1)) for i, k in ((3, "stride"), (5, "dilation")))
    padding, groups = call.get(4, "padding", 0), call.get(6, "groups", 1)
    if isinstance(padding, str):
        if padding == "same" and any(d * (k - 1) % 2 for d, k in zip(dilation, kernel, strict=True)):
            raise Untranslatable(" with padding='same' and an even kernel")
        padding = [d * (k - 1) // 2 if padding == "same" else 0 for d, k in zip(dilation, kernel, strict=True)]
    sliding = Sliding(_pair(kernel), stride, _pair(padding), dilation)

    def convolve(weight: Tensor, x: Tensor) -> Tensor:
        return functional.conv2d(x, weight, None, stride, sliding.padding, dilation, groups)

    return Convolution(
        linear=convolve, weight=weight, bias=None if bias is None else bias[:, None, None],
        fan_in=prod(weight.shape[1:]), fan_out=weight.shape[0] // groups * prod(kernel), sliding=sliding, groups=groups,
    )  # fmt: skip


def _batch_norm(name: str, call: Call) -> Rule:
    gamma, beta, mean, variance = (call.constant(i, "") for i in range(1, 5))
    if bool(call.get(5, "training")) or mean is None:
        raise Untranslatable(" without running statistics")
    axes = call.values[1].ndim - 2
    scale = (variance.double() + float(call.get(7, "eps"))).rsqrt() * (1 if gamma is None else gamma.double())
    centre = mean.double() * scale
    shift = -centre if beta is None else beta.double() - centre
    size = centre.abs() + (0 if beta is None else beta.double().abs())
    scale, shift, size = (each.to(mean.dtype)[(...,) + (None,) * axes] for each in (scale, shift, size))
    return Diagonal(linear=_scale, weight=scale, bias=shift, bias_magnitude=size, fan_in=8, fan_out=8)


def _scale(weight: Tensor, x: Tensor) -> Tensor:
    return x * weight


def _mul(name: str, call: Call) -> Rule:
    if len(call.inputs) > 1:
        raise Untranslatable(" of two tensors that depend on the input")
    first, second = call.get(0, "self"), call.get(1, "other")
    factor = second if isinstance(first, fx.Node) else first
    if name == "div" and not isinstance(first, fx.Node):
        raise Untranslatable(" by a tensor that depends on the input")
    if call.kwargs.get("rounding_mode") is not None:
        raise Untranslatable(" with a rounding mode")
    weight = _for_one_sample(factor, call)
    weight = 1 / weight if name == "div" else weight
    return Diagonal(linear=_scale, weight=weight, fan_in=4, fan_out=4)


def _neg(name: str, call: Call) -> Rule:
    one = -torch.ones((), dtype=call.values[1].dtype, device=call.values[1].device)
    return Diagonal(linear=_scale, weight=one)


def _add(name: str, call: Call) -> Rule:
    signs = {"add": (1.0, 1.0), "sub": (1.0, -1.0), "rsub": (-1.0, 1.0)}[name]
    alpha = float(call.kwargs.get("alpha", call.args[2] if len(call.args) > 2 else 1))
    signs = (signs[0] * alpha, signs[1]) if name == "rsub" else (signs[0], signs[1] * alpha)
    parts = call.get(0, "self"), call.get(1, "other")
    moving = [isinstance(each, fx.Node) for each in parts]
    like = call.values[1]
    weight = torch.tensor([s for s, m in zip(signs, moving, strict=True) if m], dtype=like.dtype)
    bias = None
    for part, sign, moves in zip(parts, signs, moving, strict=True):
        if not moves:
            bias = _for_one_sample(part, call) * sign
    spread = prod(call.values[0].shape) // min(prod(each.shape) for each in call.values[1:])
    return Sum(linear=weighted_sum, weight=weight, bias=bias, fan_in=4, fan_out=4 * spread)


def _for_one_sample(constant: Any, call: Call) -> Tensor:
    """A constant that broadcasts against one output instead of a batch of them."""
    if any(each.shape != call.values[0].shape for each in call.values[1:]):
        raise Untranslatable(" with a constant that has more entries than the input")
    value = torch.as_tensor(constant, dtype=call.values[1].dtype, device=call.values[1].device)
    if value.ndim == call.values[0].ndim:
        if value.shape[0] != 1:
            raise Untranslatable(" with a constant that differs between samples")
        value = value[0]
    return value


def _pool(name: str, call: Call) -> Rule:
    """Averages: the operation itself, whose weights are positive."""
    size = prod(call.values[1].shape[-2:])
    if call.get(6, "divisor_override") is not None:
        raise Untranslatable(" with divisor_override")
    if name == "mean":
        dims = call.get(1, "dim")
        if dims is None or any(d % call.values[1].ndim == 0 for d in dims):
            raise Untranslatable(" over the samples of a batch")
        size = prod(call.values[1].shape[1:])
    return Affine(linear=_as_is(call), fan_in=size, fan_out=prod(call.values[0].shape[1:]))


def _as_is(call: Call) -> Callable[..., Tensor]:
    """The operation with its tensors exchanged."""

    def apply(_: Tensor | None, *tensors: Tensor) -> Tensor:
        given = dict(zip(call.inputs, tensors, strict=True))
        args, kwargs = fx.map_arg((tuple(call.args), call.kwargs), lambda each: given[each])
        out: Tensor = call.target(*args, **kwargs)
        return out

    return apply


def _rearrange(name: str, call: Call) -> Rule:
    """Entries of each sample in another order, in part, or with zeros."""
    before, after = call.values[1], call.values[0]
    if name in ("permute", "transpose", "slice", "select"):
        axes = call.get(1, "dim", ())
        axes = axes[:1] if name == "permute" else [axes] if isinstance(axes, int) else axes
        axes = [*axes, call.get(2, "dim1")] if name == "transpose" else axes
        moved = [axis % before.ndim for axis in axes]
        if (0 in moved) != (name == "permute"):
            raise Untranslatable(" along the samples of a batch")
    if after.shape[:1] != before.shape[:1]:
        raise Untranslatable(" across the samples of a batch")
    if name == "pad" and call.get(3, "value") not in (None, 0, 0.0):
        raise Untranslatable(" with another value than 0")
    if name == "pad" and call.get(2, "mode", "constant") != "constant":
        raise Untranslatable(f" with mode {call.get(2, 'mode')!r}")
    return Affine(linear=_as_is(call))


def _reshape(name: str, call: Call) -> Rule:
    before, after = call.values[1].shape, call.values[0].shape
    if before[:1] != after[:1]:
        raise Untranslatable(" across the samples of a batch")
    shape = tuple(after[1:])
    return Affine(linear=lambda _, x: x.reshape(len(x), *shape))


def _cat(name: str, call: Call) -> Rule:
    dim = call.get(1, "dim", 0) % call.values[0].ndim
    if dim == 0 or len(call.inputs) != len(call.args[0]):
        raise Untranslatable(" along the samples of a batch, or with constants")
    return Affine(linear=lambda _, *tensors: torch.cat(tensors, dim))


def _same(name: str, call: Call) -> None:
    if call.values[0].dtype != call.values[1].dtype:
        raise Untranslatable(f" to {call.values[0].dtype}")
    if name.endswith("dropout") and bool(call.get(2, "train")):
        raise Untranslatable(" in train mode")


def _leaky_relu(name: str, call: Call) -> Rule:
    slope = 0.0 if name == "relu" else float(call.get(1, "negative_slope", 0.01))
    if not 0 <= slope <= 1:
        raise Untranslatable(f" with slope {slope}: it must lie between 0 and 1")
    return ReLU(name, slope)


def _max_pool(name: str, call: Call) -> Rule:
    if call.values[1].ndim != 4:
        raise Untranslatable(" of images without channels")
    if name == "adaptive_max_pool2d":
        before, after = call.values[1].shape[2:], _pair(call.get(1, "output_size"))
        if any(b % a for b, a in zip(before, after, strict=True)):
            raise Untranslatable(f" from {tuple(before)} to {after}: the sizes must divide")
        kernel = before[0] // after[0], before[1] // after[1]
        return MaxPool(name, Sliding(kernel, kernel, (0, 0), (1, 1)))
    if call.get(5, "ceil_mode", False):
        raise Untranslatable(" with ceil_mode=True")
    kernel = _pair(call.get(1, "kernel_size"))
    stride = call.get(2, "stride") or kernel
    return MaxPool(
        name, Sliding(kernel, _pair(stride), _pair(call.get(3, "padding", 0)), _pair(call.get(4, "dilation", 1)))
    )


def _pair(value: Any) -> tuple[int, int]:
    parts = [value] if isinstance(value, int) else list(value)
    return int(parts[0]), int(parts[-1])


def _smooth(name: str, call: Call) -> Rule:
    if name == "gelu" and call.kwargs.get("approximate", "none") == "tanh":
        return Smooth("gelu", _gelu_tanh, 0.799, -0.7524614)
    return SMOOTH[name]


def _gelu_tanh(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


# max |f''|: of gelu 2 φ(0) = 0.798 and of silu 0.5, at 0; of sigmoid 1 / (6 √3) = 0.0963, of tanh 4 / (3 √3) = 0.7699.
SMOOTH = {
    "gelu": Smooth("gelu", functional.gelu, 0.799, -0.7517916),
    "silu": Smooth("silu", functional.silu, 0.501, -1.2784645),
    "sigmoid": Smooth("sigmoid", torch.sigmoid, 0.0963),
    "tanh": Smooth("tanh", torch.tanh, 0.77),
}
RULES: dict[str, Callable[[str, Call], Rule | None]] = {
    "linear": _linear, "addmm": _addmm, "matmul": _matmul, "mm": _matmul, "conv2d": _conv2d, "batch_norm": _batch_norm,
    "mul": _mul, "div": _mul, "neg": _neg, "add": _add, "sub": _add, "rsub": _add,
    "avg_pool2d": _pool, "adaptive_avg_pool2d": _pool, "mean": _pool, "cat": _cat,
    "view": _reshape, "reshape": _reshape, "flatten": _reshape, "unflatten": _reshape, "_unsafe_view": _reshape,
    "permute": _rearrange, "transpose": _rearrange, "slice": _rearrange, "select": _rearrange, "pad": _rearrange,
    "squeeze": _reshape, "unsqueeze": _reshape,
    "contiguous": _same, "clone": _same, "alias": _same, "detach": _same, "dropout": _same, "feature_dropout": _same,
    "to": _same, "_to_copy": _same, "relu": _leaky_relu, "leaky_relu": _leaky_relu,
    "max_pool2d": _max_pool, "adaptive_max_pool2d": _max_pool, "gelu": _smooth, "silu": _smooth, "sigmoid": _smooth,
    "tanh": _smooth,
}  # fmt: skip
