r"""CLEVER (Weng et al. 2018): an estimate of the margin from the largest gradient norm around the input.

.. math:: \min_{j \ne c} \; \min\Big(\frac{l_c(x_0) - l_j(x_0)}{L_j}, R\Big), \qquad
    L_j = \max_{\|x - x_0\|_p \le R} \|\nabla l_c(x) - \nabla l_j(x)\|_q

L is extrapolated: the largest gradient norms of several batches of random points follow a reverse Weibull distribution,
whose end point (its location, by maximum likelihood) estimates L.

**An estimate, not a bound.** A margin may be smaller or larger. Random points miss the steep regions that an attack
finds; a model whose gradients are masked (saturated, quantised, stepwise) appears flat to them and gets a score that
is far too high (Goodfellow 2018, "Gradient masking causes CLEVER to overestimate adversarial perturbation size"); local
Lipschitz constants are loose even if they are known (Huster, Chiang, Chadha 2018). Report it next to measured margins,
never instead of them: an estimate that exceeds a margin is wrong.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from marginattack.core.classifier import Bounds, Classifier
from marginattack.core.draws import uniform
from marginattack.core.norms import Norm, as_norm
from marginattack.core.queries import input_gradient
from marginattack.core.types import Points, Scalars
from marginattack.errors import InputError
from marginattack.execution.evaluator import ModelEvaluator
from marginattack.execution.session import open_session

LARGEST_SHAPE = 10.0  # of the Weibull fit; good fits on the bundled digits have 5 to 9
SMALLEST = 2.0**-25  # half a unit of the uniform draws: keeps their logarithms finite


@dataclass(frozen=True, kw_only=True)
class Clever:
    """The estimates, not bounds, one row per sample: at most ``radius``; 0 if the input is misclassified."""

    norm: str
    radius: float
    estimate: Tensor  # (n,) float64: the smallest over classes, or that of the target
    per_class: Tensor  # (n, classes) float64; infinite for the predicted class and those not requested
    slope: Tensor  # (n, classes) float64: L; NaN for the same classes
    fit: Tensor  # (n, classes) float64: p-value of the Kolmogorov-Smirnov test of the fit; below 0.05 the fit is bad
    settings: dict[str, Any]


def clever(
    model: nn.Module | Classifier, images: Any, labels: Any, norm: Norm | str = "l2", *, radius: float,
    batches: int = 50, samples: int = 64, targets: Any = None, bounds: Bounds | None = None, seed: int = 0,
) -> Clever:  # fmt: skip
    """Estimate the margin of each input with CLEVER, towards any class or, with ``targets``, towards one.

    Each input costs batches × samples forwards, and as many backwards per class (the paper: 500 × 1,024). Points are
    uniform in the ball and clipped to the box, as in ART 1.20.

    Args:
        model: A module from images to logits, or a Classifier.
        images: Inputs.
        labels: Their classes.
        norm: ``"l1"``, ``"l2"`` or ``"linf"``.
        radius: R, the radius of the ball in which gradients are sampled; no estimate exceeds it.
        batches: Maxima that the distribution is fitted to.
        samples: Points per maximum.
        targets: One class per input, to estimate the distance to it instead of to the nearest other class.
        bounds: The box of a model that is not a Classifier, (lo, hi).
        seed: Seed of the random points.

    Returns:
        The estimates with their slopes and goodness of fit.

    Raises:
        InputError: An argument is out of range or does not fit the model.

    Example:
        >>> import torch
        >>> from marginattack.bounds import clever
        >>> clever(torch.nn.Flatten(), torch.tensor([[0.9, 0.0]]), [0], "linf", radius=9.0).estimate
        tensor([0.4500], dtype=torch.float64)
    """
    norm = as_norm(norm)
    _check_numbers(norm, radius, batches, samples)
    if isinstance(model, Classifier) and bounds is not None:
        raise InputError("bounds are given twice: omit them, since the Classifier has its own")
    classifier = model if isinstance(model, Classifier) else Classifier(model, bounds=bounds)
    settings = {"batches": batches, "samples": samples, "seed": seed, "targeted": targets is not None}
    with open_session(classifier) as session:
        session.space.require_plain("clever")
        batch = session.validate(images, labels, targets)
        x, y, a, classes = batch.images, batch.labels, batch.targets, batch.classes
        prediction, evaluator = session.predict(x), session.evaluator()
        slope, gap, fit = (torch.full((len(x), classes), torch.nan, dtype=torch.float64) for _ in range(3))
        for row, c in enumerate(prediction.tolist()):
            goals = [j for j in (range(classes) if a is None else [int(a[row])]) if j != c]
            if not goals or (a is None and c != int(y[row])):
                continue  # misclassified already
            logits = evaluator.logits(x[row, None].to(classifier.device))[0].detach().double().cpu()
            gap[row, goals] = logits[c] - logits[goals]
            norms = _gradient_norms(evaluator, x[row], row, c, goals, norm, radius, batches * samples, seed)
            for j, maxima in zip(goals, norms.unflatten(1, (batches, samples)).amax(2), strict=True):
                slope[row, j], fit[row, j] = end_point(maxima)
    per_class = torch.where(gap.isnan(), torch.inf, (gap / slope).nan_to_num(nan=radius).clamp(max=radius))
    estimate = torch.where(prediction != y if a is None else prediction == a, 0.0, per_class.amin(1))
    return Clever(
        norm=norm.name, radius=radius, estimate=estimate, per_class=per_class, slope=slope, fit=fit, settings=settings
    )


def _check_numbers(norm: Norm, radius: float, batches: int, samples: int) -> None:
    if norm.name not in BALLS:
        raise InputError(f"CLEVER needs a norm with a dual, not {norm}: choose one of {', '.join(BALLS)}")
    if not 0 < radius < float("inf") or batches < 2 or samples < 1:
        given = f"radius {radius}, batches {batches}, samples {samples}"
        raise InputError(f"{given}: give a finite radius above 0, at least 2 batches and 1 sample")


def _gradient_norms(
    evaluator: ModelEvaluator, image: Tensor, row: int, c: int, goals: list[int],
    norm: Norm, radius: float, count: int, seed: int,
) -> Tensor:  # fmt: skip
    """‖∇(l_c − l_j)‖_q for each goal j (rows) at ``count`` random points of the ball (columns)."""
    classifier = evaluator.copies.classifier
    image = image.to(classifier.device)
    lo, hi = classifier.bounds_for(image[None])
    parts = []
    for draw in torch.arange(count).split(evaluator.batch_size):
        u = uniform(torch.full_like(draw, row), image.numel() + 1, seed=seed, draw=draw, like=image)
        points = image + radius * BALLS[norm.name](u[:, :-1], u[:, -1:]).unflatten(1, image.shape)
        leaf = torch.clamp(points, lo, hi).requires_grad_()
        logits = evaluator.logits(leaf)
        gaps = [(logits[:, c] - logits[:, j]).sum() for j in goals]
        gradients = [input_gradient(gap, leaf, keep=gap is not gaps[-1]) for gap in gaps]
        parts.append(torch.stack([norm.dual(g.flatten(1))[:, 0] for g in gradients]))
    return torch.cat(parts, dim=1).double().cpu()


def end_point(maxima: Tensor) -> tuple[float, float]:
    """The largest value that the distribution of these maxima allows, and the p-value of its fit."""
    from scipy.stats import kstest, weibull_min

    top, spread = float(maxima.max()), float(maxima.std())
    if spread <= 1e-6 * top:  # a constant slope, as of a linear model, is its own maximum
        return top, 1.0
    below = ((top - maxima) / spread).numpy()  # scaled, so that the search starts near the answer
    with np.errstate(all="ignore"):  # trial fits whose end lies inside the data have likelihood zero
        shape, end, scale = weibull_min.fit(below)
        if not 0 < shape <= LARGEST_SHAPE:  # nearly a Gumbel distribution, which has no end: L would be millions
            shape, end, scale = weibull_min.fit(below, fc=LARGEST_SHAPE)
        p = float(kstest(below, "weibull_min", args=(shape, end, scale)).pvalue)
    return max(top, top - float(end) * spread), p


def _l1(u: Points, last: Scalars) -> Points:
    """Laplace over their sum with one more exponential: uniform in the ℓ1 ball."""
    centred = 2 * u - 1 + 2 * SMALLEST
    exponential = -torch.log1p(-centred.abs())
    return torch.sign(centred) * exponential / (exponential.sum(1, keepdim=True) - torch.log(last + SMALLEST))


def _l2(u: Points, last: Scalars) -> Points:
    """A Gaussian direction, the radius as the d-th root: uniform in the ℓ2 ball."""
    gaussian: Points = torch.special.ndtri(u + SMALLEST)
    length = gaussian.square().sum(1, keepdim=True).sqrt()
    return gaussian / length * torch.pow(last, 1 / u.shape[1])


def _linf(u: Points, last: Scalars) -> Points:
    return 2 * u - 1


BALLS: dict[str, Callable[[Points, Scalars], Points]] = {"l1": _l1, "l2": _l2, "linf": _linf}
