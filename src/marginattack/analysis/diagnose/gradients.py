"""What the gradients show: whether they are there, whether they are slopes, and if not, what kind of function it is.

Slopes are compared with central differences in float64 at steps where a kink of a piecewise linear network is hardly
ever met, at points moved a little off the images: on the images themselves, black backgrounds put every pooling and
every clamp at a kink. A function whose gradient fails is followed along a line to its largest change: under bisection
a jump stays as large as it was, and a steep slope goes away.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from marginattack.analysis.diagnose.causes import Finding, found
from marginattack.analysis.diagnose.subject import Subject

SAMPLES = 32
COMPARED, COMPARED_LARGE = 12, 4  # samples on which gradients are compared with differences; large images cost time
LARGE = 10_000  # numbers in an image
RANDOM = 2  # random directions, beside that of the gradient
FAR = 1e4  # a tangent that meets zero so many box widths away is flat


class Slopes(NamedTuple):
    """How gradients compare with central differences, one entry a sample."""

    agree: Tensor
    still: Tensor  # the logits do not move at all at the smallest steps
    error: Tensor
    double: bool


def slopes(subject: Subject, logits: Tensor) -> list[Finding]:
    """Gradients that are missing, zero, not finite or wrong, by their cause."""
    x = subject.images[:SAMPLES]
    n = len(x)
    label = logits[:n].argmax(1)
    g = subject.slope(x, label)
    if g is None:
        return [_absent(subject, x, label)]
    strange = ~torch.isfinite(g).all(1)
    findings = []
    if bool(strange.any()):
        seen = "NaN or infinity in the gradient of the margin"
        findings.append(found("non-finite-gradients", seen, int(strange.sum()), n))
    g = g.nan_to_num(0, 0, 0).double()
    c = logits[:n].topk(2, dim=1).values.diff(dim=1).abs()[:, 0]
    flat = (FAR * g.abs().sum(1) <= c) & (c > 0) & ~strange
    few = COMPARED if g.shape[1] < LARGE else COMPARED_LARGE
    compared = compare(subject, x[:few], label[:few])
    if compared is None:
        return findings
    if bool(flat.any()):
        findings.append(_flat(subject, x, label, flat, g, compared))
    elif _disagree(compared):
        findings.append(_wrong(subject, x[:few], label[:few], compared))
    else:
        findings += _softmax(subject, x, label)
    return findings


def compare(subject: Subject, x: Tensor, label: Tensor) -> Slopes | None:
    """Gradients against central differences, at points a little off the images; in float64 where the model can."""
    double = subject.double
    fine = None if double is None else _differences(double, x.double(), label, [1e-5, 1e-6, 1e-7], "median", 0.1)
    if fine is not None and not _disagree(fine):
        return fine
    # In the model's own precision too: a model that rounds to float32 inside is no staircase.
    coarse = _differences(subject, x, label, [1e-1, 3e-2, 1e-2, 3e-3], "least", 0.25)
    if fine is None or coarse is None:
        return coarse if fine is None else fine
    steps, _ = subject.jumps()
    small = set(steps) - {"gt", "ge", "lt", "le"}
    return fine if _disagree(coarse) or (small and bool(fine.still.double().mean() > 0.5)) else coarse


def _disagree(compared: Slopes) -> bool:
    """Whether too many samples disagree for it to be kinks."""
    wrong = int((~compared.agree).sum())
    share = wrong / len(compared.agree)
    return share > 0.5 or (compared.double and wrong >= 2 and share >= 0.15)


def _differences(
    subject: Subject, x: Tensor, label: Tensor, steps: list[float], over: str, tolerance: float
) -> Slopes | None:
    """Slopes along the gradient and along random directions, for each step; ``over`` says which step's error counts."""
    n = len(x)
    point = 0.01 + 0.97 * x + 0.01 * subject.noise(n, draw=2).to(x)
    g = subject.slope(point, label)
    if g is None:
        return None
    g = g.nan_to_num(0, 0, 0)
    ways = [g, *(subject.noise(n, draw=3 + k).to(x).flatten(1) - 0.5 for k in range(RANDOM))]
    told, errors, moves = [], [], []
    for way in ways:
        v = way / way.norm(dim=1, keepdim=True).clamp(min=1e-30)
        told.append((g * v).sum(1).double())
        v = v.unflatten(1, x.shape[1:])
        ends = [(subject.margin(point + h * v, label), subject.margin(point - h * v, label)) for h in steps]
        moves.append(torch.stack([(up - down) / (2 * h) for (up, down), h in zip(ends, steps, strict=True)]))
    slope, measured = torch.stack(told), torch.stack(moves)  # (ways, n), (ways, steps, n)
    for part in (slice(0, 1), slice(1, None)):  # along the gradient, and across it
        gap = (measured[part] - slope[part][:, None]).square().sum(0).sqrt()
        size = torch.maximum(measured[part].square().sum(0).sqrt(), slope[part].square().sum(0).sqrt()[None])
        error = torch.where(size > 1e-12, gap / size, 0)
        errors.append(error.median(0).values if over == "median" else error.amin(0))
    worst = torch.stack(errors).amax(0)
    still = (measured[:, -1] == 0).all(0)
    return Slopes(worst <= tolerance, still, worst, x.dtype == torch.float64)


def _absent(subject: Subject, x: Tensor, label: Tensor) -> Finding:
    """Logits without a gradient: a step function, or one that was cut off."""
    n = len(x)
    if jumps(subject, x, label):
        return _staircase(subject, n, n, "the logits carry no gradient", grade="grave")
    return found("detached", "the logits do not require a gradient although the input does", n, n)


def _flat(subject: Subject, x: Tensor, label: Tensor, flat: Tensor, g: Tensor, compared: Slopes) -> Finding:
    """Gradients that vanish on some samples: because of steps, of saturation, or though the logits do move."""
    n, number = len(x), int(flat.sum())
    exact = int((g[flat] == 0).all(1).sum())
    grade = "grave" if number >= n / 2 else "warning"
    words = f"the gradient of the margin is exactly zero on {exact} and nearly on {number - exact} images"
    if jumps(subject, x[flat], label[flat]):
        return _staircase(subject, number, n, words, grade=grade)
    looked = flat[: len(compared.agree)]
    if int((~compared.agree & looked).sum()) > int(looked.sum()) / 2:
        seen = f"{words}, but finite differences find a slope"
        return found("wrong-gradients", seen, number, n, grade=grade)
    if continuous(subject, x[flat], label[flat]):
        return found("saturated", f"{words}, and the logits are flat there and steep elsewhere", number, n, grade=grade)
    return found("zero-gradients", words, number, n, grade=grade)


def _wrong(subject: Subject, x: Tensor, label: Tensor, compared: Slopes) -> Finding:
    """Gradients that are there and are not slopes: straight-through estimates of steps, or just wrong."""
    bad = ~compared.agree
    number, n = int(bad.sum()), len(x)
    if float(compared.still[bad].double().mean()) > 0.5 and jumps(subject, x[bad], label[bad]):
        words = "the gradient is an estimate (straight-through): the logits do not move at all at small steps"
        return _staircase(subject, number, n, words, grade="warning")
    error = float(compared.error[bad].median())
    seen = f"gradient and finite differences of the margin differ, typically by {error:.0%} of the larger"
    return found("wrong-gradients", seen, number, n)


def _staircase(subject: Subject, number: int, n: int, words: str, *, grade: str) -> Finding:
    """A function of steps, at the input or behind it."""
    steps, at_input = subject.jumps()
    named = f" (forward calls {', '.join(steps)})" if steps else ""
    code = "quantised-input" if at_input else "step-function"
    return found(code, f"{words}, and they jump further away{named}", number, n, grade=grade)


def _softmax(subject: Subject, x: Tensor, label: Tensor) -> list[Finding]:
    """Cross-entropy that is flat where the margin is not."""
    g = subject.cross_entropy_slope(x, label)
    zero = 0 if g is None else int((g == 0).all(1).sum())
    if zero < max(1, 0.1 * len(x)):
        return []
    seen = "the gradient of the cross-entropy is exactly zero, that of the margin is not"
    return [found("saturated-softmax", seen, zero, len(x))]


def jumps(subject: Subject, x: Tensor, label: Tensor) -> bool:
    """Whether the margin jumps on the way to another image, on most of a few samples."""
    middle, last = _largest_change(subject, x, label)
    moved = middle > 0
    return bool(moved.any()) and float((last[moved] > 0.3 * middle[moved]).double().mean()) > 0.5


def continuous(subject: Subject, x: Tensor, label: Tensor) -> bool:
    """Whether the margin does change on the way to another image, and does not jump."""
    middle, last = _largest_change(subject, x, label)
    return bool((middle > 0).any()) and float((last <= 0.3 * middle).double().mean()) > 0.5


def _largest_change(subject: Subject, x: Tensor, label: Tensor, pieces: int = 32) -> tuple[Tensor, Tensor]:
    """What the margin changes by over a tiny and over a far tinier piece of the line to noise, where it changes most.

    Bisection towards the larger change; of many small jumps, as from pixels that are rounded, one is left.
    """
    double = subject.double
    subject, x = (subject, x) if double is None else (double, x.double())
    x, label = x[:4], label[:4]
    goal = subject.noise(len(x), draw=9).to(x)
    halvings = (6, 12) if double is None else (20, 34)

    def at(t: Tensor) -> Tensor:
        weight = t.to(x).view(-1, *[1] * (x.ndim - 1))
        return subject.margin(torch.lerp(x, goal, weight), label)

    places = torch.linspace(0, 1, pieces + 1, dtype=torch.float64, device=x.device)
    along = torch.stack([at(place.expand(len(x))) for place in places])
    where = along.diff(dim=0).abs().argmax(0)
    lo, hi = places[where], places[where + 1]
    c_lo, c_hi = (along.gather(0, k[None])[0] for k in (where, where + 1))
    changes = []
    for k in range(halvings[1]):
        if k == halvings[0]:
            changes.append((c_hi - c_lo).abs())
        t = (lo + hi) / 2
        c = at(t)
        left = (c - c_lo).abs() >= (c_hi - c).abs()
        lo, c_lo = torch.where(left, lo, t), torch.where(left, c_lo, c)
        hi, c_hi = torch.where(left, t, hi), torch.where(left, c, c_hi)
    return changes[0], (c_hi - c_lo).abs()
