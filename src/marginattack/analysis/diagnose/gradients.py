"""Checks of the gradients: whether they exist and are correct, and if not, what kind of function the model is.

Gradients are compared with central differences in float64, at steps so small that they rarely cross a kink of a
piecewise linear network, and at points slightly off the images: at the images themselves, black backgrounds put every
pooling and every clamp at a kink. If gradients fail, the largest change of the margin along a line is bisected: a jump
keeps its size, a steep slope vanishes.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from marginattack.analysis.diagnose.findings import Finding, make_finding
from marginattack.analysis.diagnose.model_runner import ModelRunner
from marginattack.core.losses import CROSS_ENTROPY

SAMPLES = 32
COMPARED, COMPARED_LARGE = 12, 4  # samples for finite differences; large images cost time
LARGE = 10_000  # numbers per image
RANDOM_DIRECTIONS = 2  # in addition to the gradient
FLAT = 1e4  # the margin is flat if its tangent reaches zero only this many box widths away


class Comparison(NamedTuple):
    """Gradients compared with central differences, one entry per sample."""

    agree: Tensor
    constant: Tensor  # the margin does not change at all at the smallest steps
    error: Tensor  # relative
    float64: bool

    def fails(self) -> bool:
        """Whether more samples disagree than kinks explain."""
        wrong = int((~self.agree).sum())
        share = wrong / len(self.agree)
        return share > 0.5 or (self.float64 and wrong >= 2 and share >= 0.15)


def check_gradients(runner: ModelRunner, logits: Tensor) -> Iterator[Finding]:
    """Report gradients that are missing, zero, not finite or wrong, by their cause."""
    x = runner.images[:SAMPLES]
    n = len(x)
    label = logits[:n].argmax(1)
    g = runner.gradient(x, label)
    if g is None:
        if _follow_change(runner, x, label)[0]:
            yield _report_steps(runner, n, n, "the logits carry no gradient", "grave")
        else:
            yield make_finding("detached", "the logits do not require a gradient although the input does", n, n)
        return
    not_finite = ~torch.isfinite(g).all(1)
    if bool(not_finite.any()):
        seen = "NaN or infinity in the gradient of the margin"
        yield make_finding("non-finite-gradients", seen, int(not_finite.sum()), n)
    g = g.nan_to_num(0, 0, 0).double()
    c = logits[:n].topk(2, dim=1).values.diff(dim=1).abs()[:, 0]
    flat = (FLAT * (g.abs() * runner.widths).sum(1) <= c) & (c > 0) & ~not_finite
    few = COMPARED if g.shape[1] < LARGE else COMPARED_LARGE
    comparison = compare(runner, x[:few], label[:few])
    if comparison is None:
        return
    if bool(flat.any()):
        yield _explain_flat(runner, x, label, flat, g, comparison)
    elif comparison.fails():
        yield _explain_wrong(runner, x[:few], label[:few], comparison)
    else:
        yield from _check_cross_entropy(runner, x, label)


def compare(runner: ModelRunner, x: Tensor, label: Tensor) -> Comparison | None:
    """Compare gradients with central differences near the images, in float64 if the model supports it."""
    copy, fine = runner.float64, None
    if copy is not None:
        fine = _compare_at(copy, x.double(), label, [1e-5, 1e-6, 1e-7], "median", 0.1)
    if fine is not None and not fine.fails():
        return fine
    # In the model's own precision too: a model that rounds to float32 internally is not a step function.
    coarse = _compare_at(runner, x, label, [1e-1, 3e-2, 1e-2, 3e-3], "min", 0.25)
    if fine is None or coarse is None:
        return coarse if fine is None else fine
    operators, _ = runner.discontinuous_operators()
    rounds = bool(set(operators) - {"gt", "ge", "lt", "le"})
    return fine if coarse.fails() or (rounds and bool(fine.constant.double().mean() > 0.5)) else coarse


def _compare_at(
    runner: ModelRunner, x: Tensor, label: Tensor, steps: list[float], over_steps: str, tolerance: float
) -> Comparison | None:
    """Compare slopes along the gradient and random directions; the median or smallest error over the steps counts."""
    n = len(x)
    point = 0.01 + 0.97 * x + 0.01 * runner.noise(n, draw=2).to(x)
    g = runner.gradient(point, label)
    if g is None:
        return None
    g = g.nan_to_num(0, 0, 0)
    noise = [runner.noise(n, draw=3 + k).to(x).flatten(1) - 0.5 for k in range(RANDOM_DIRECTIONS)]
    slopes, differences = [], []
    for direction in (g, *noise):
        v = direction / direction.norm(dim=1, keepdim=True).clamp(min=1e-30)
        slopes.append((g * v).sum(1).double())
        v = v.unflatten(1, x.shape[1:])
        central = [(runner.margin(point + h * v, label) - runner.margin(point - h * v, label)) / (2 * h) for h in steps]
        differences.append(torch.stack(central))
    slope, measured = torch.stack(slopes), torch.stack(differences)  # (directions, n), (directions, steps, n)
    errors = []
    for part in (slice(0, 1), slice(1, None)):  # along the gradient, and across it
        gap = (measured[part] - slope[part][:, None]).norm(dim=0)
        size = torch.maximum(measured[part].norm(dim=0), slope[part].norm(dim=0)[None])
        error = torch.where(size > 1e-12, gap / size, 0)
        errors.append(error.median(0).values if over_steps == "median" else error.amin(0))
    worst = torch.stack(errors).amax(0)
    return Comparison(worst <= tolerance, (measured[:, -1] == 0).all(0), worst, x.dtype == torch.float64)


def _explain_flat(
    runner: ModelRunner, x: Tensor, label: Tensor, flat: Tensor, g: Tensor, comparison: Comparison
) -> Finding:
    """Explain why gradients vanish on some samples: steps, saturation, or a wrong backward."""
    n, number = len(x), int(flat.sum())
    exact = int((g[flat] == 0).all(1).sum())
    counts = [f"{how} zero on {k}" for how, k in (("exactly", exact), ("nearly", number - exact)) if k]
    grade = "grave" if number >= n / 2 else "warning"
    seen = f"the gradient of the margin is {' and '.join(counts)} input{'s' * (number > 1)}"
    jumps, smooth = _follow_change(runner, x[flat], label[flat])
    if jumps:
        return _report_steps(runner, number, n, seen, grade)
    compared = flat[: len(comparison.agree)]
    code = "zero-gradients"
    if int((~comparison.agree & compared).sum()) > int(compared.sum()) / 2:
        code, seen = "wrong-gradients", f"{seen}, but finite differences are not zero"
    elif smooth:
        code, seen = "saturated", f"{seen}; the logits are flat there and steep elsewhere"
    return make_finding(code, seen, number, n, grade=grade)


def _explain_wrong(runner: ModelRunner, x: Tensor, label: Tensor, comparison: Comparison) -> Finding:
    """Explain why gradients are wrong: straight-through estimates of steps, or another error."""
    bad = ~comparison.agree
    number, n = int(bad.sum()), len(x)
    if float(comparison.constant[bad].double().mean()) > 0.5 and _follow_change(runner, x[bad], label[bad])[0]:
        seen = "the gradient is an estimate (straight-through): the logits do not change at all at small steps"
        return _report_steps(runner, number, n, seen, "warning")
    error = float(comparison.error[bad].median())
    seen = f"gradient and finite differences of the margin differ, in the median by {error:.0%} of the larger"
    return make_finding("wrong-gradients", seen, number, n)


def _report_steps(runner: ModelRunner, number: int, n: int, seen: str, grade: str) -> Finding:
    """Report a step function, at the input or behind it."""
    operators, at_input = runner.discontinuous_operators()
    named = f" (forward calls {', '.join(operators)})" if operators else ""
    code = "quantised-input" if at_input else "step-function"
    return make_finding(code, f"{seen}, and jump further away{named}", number, n, grade=grade)


def _check_cross_entropy(runner: ModelRunner, x: Tensor, label: Tensor) -> Iterator[Finding]:
    """Report a cross-entropy that is flat where the margin is not."""
    g = runner.gradient(x, label, CROSS_ENTROPY)
    zero = 0 if g is None else int((g == 0).all(1).sum())
    if zero >= max(1, 0.1 * len(x)):
        seen = "the gradient of the cross-entropy is exactly zero, that of the margin is not"
        yield make_finding("saturated-softmax", seen, zero, len(x))


def _follow_change(runner: ModelRunner, x: Tensor, label: Tensor) -> tuple[bool, bool]:
    """Return whether the margin jumps, and whether it changes smoothly, between images and noise, for most samples."""
    coarse, fine = _largest_change(runner, x, label)
    jumps, changes = fine > 0.3 * coarse, coarse > 0
    if not bool(changes.any()):
        return False, False
    return float(jumps[changes].double().mean()) > 0.5, float((~jumps).double().mean()) > 0.5


def _largest_change(runner: ModelRunner, x: Tensor, label: Tensor, pieces: int = 32) -> tuple[Tensor, Tensor]:
    """Return the largest change of the margin over a tiny and a far tinier piece of the line to noise.

    Bisection follows the larger change; of many small jumps, such as of rounded pixels, one remains.
    """
    copy = runner.float64
    coarse_at, fine_at = (6, 12) if copy is None else (20, 34)  # halvings
    runner, x, label = runner if copy is None else copy, x[:4] if copy is None else x[:4].double(), label[:4]
    goal = runner.noise(len(x), draw=9).to(x)

    def margin_at(t: Tensor) -> Tensor:
        return runner.margin(torch.lerp(x, goal, t.to(x).view(-1, *[1] * (x.ndim - 1))), label)

    grid = torch.linspace(0, 1, pieces + 1, dtype=torch.float64, device=x.device)
    margins = torch.stack([margin_at(t.expand(len(x))) for t in grid])
    k = margins.diff(dim=0).abs().argmax(0)
    lo, hi = grid[k], grid[k + 1]
    c_lo, c_hi = (margins.gather(0, end[None])[0] for end in (k, k + 1))
    coarse = torch.zeros_like(c_lo)
    for halving in range(fine_at):
        if halving == coarse_at:
            coarse = (c_hi - c_lo).abs()
        t = (lo + hi) / 2
        c = margin_at(t)
        left = (c - c_lo).abs() >= (c_hi - c).abs()
        lo, c_lo = torch.where(left, lo, t), torch.where(left, c_lo, c)
        hi, c_hi = torch.where(left, t, hi), torch.where(left, c, c_hi)
    return coarse, (c_hi - c_lo).abs()
