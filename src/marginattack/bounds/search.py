"""bound(): the largest certified radius of each sample, by a search between 0 and the attack's margin."""

import time
from dataclasses import dataclass, replace
from typing import Any, overload

import torch
from torch import Tensor, nn

from marginattack.bounds.brackets import Brackets, check_agreement, check_inputs, states
from marginattack.bounds.closing import Closing
from marginattack.bounds.graph import Graph, trace
from marginattack.bounds.lipschitz import certify
from marginattack.bounds.propagation import ALPHA, IBP, METHODS, Limits, OutOfTime, Propagation, Relaxation
from marginattack.bounds.regions import make_region
from marginattack.core.classifier import Bounds, Classifier
from marginattack.core.norms import Norm, NormLike, as_norms
from marginattack.core.streams import read_chunks
from marginattack.core.validation import PROBED, Batch
from marginattack.errors import InputError
from marginattack.execution.session import Session, open_session
from marginattack.margins import Margins, MarginsByNorm

ALL = 2**31  # rows per chunk: all inputs at once
LIPSCHITZ = Relaxation(name="lipschitz", backward=False)  # no relaxation: a constant of the whole network
SEARCH_SHARE = 0.3  # of the time for the search, if a solver follows
FAR_APART = 4.0  # times the certified radius: if the failed one is larger, their geometric mean is next
SMALLEST = 1e-4  # times a failed radius: the first to try if nothing is certified
COARSE = 0.25  # tolerance of the cheap intervals that come first
WORTHWHILE = 1.05  # times the certified radius: for larger ones, float64 decides what float32 leaves open


@overload
def bound(
    model: nn.Module | Classifier | Session, images: Any, labels: Any = ..., norm: NormLike = ..., *,
    upper: Margins | Tensor | None = ..., method: Relaxation | str = ..., bounds: Bounds | None = ...,
    tolerance: float = ..., time_limit: float | None = ..., batch: int = ..., chunk: int = ...,
) -> Brackets: ...  # fmt: skip
@overload
def bound(
    model: nn.Module | Classifier | Session, images: Any, labels: Any = ..., norm: list[Any] | tuple[Any, ...] = ..., *,
    upper: MarginsByNorm | None = ..., method: Relaxation | str = ..., bounds: Bounds | None = ...,
    tolerance: float = ..., time_limit: float | None = ..., batch: int = ..., chunk: int = ...,
) -> dict[str, Brackets]: ...  # fmt: skip
def bound(
    model: nn.Module | Classifier | Session, images: Any, labels: Any = None,
    norm: NormLike | list[Any] | tuple[Any, ...] = "linf", *,
    upper: Margins | MarginsByNorm | Tensor | None = None, method: Relaxation | str = "alpha",
    bounds: Bounds | None = None, tolerance: float = 0.01, time_limit: float | None = None, batch: int = 32,
    chunk: int = 2**22,
) -> Brackets | dict[str, Brackets]:  # fmt: skip
    r"""Certify a lower bound of each input's distance to the decision boundary: no adversarial point is nearer.

    .. math:: \max r \quad \text{s.t.} \quad l_y(x) > l_j(x) \;
        \forall j \ne y, \; \|x - x_0\| \le r, \; x \in [lo, hi]^d

    The radius is searched between 0 and ``upper``, for all samples and classes at once. A bound holds for the network
    in real arithmetic and as PyTorch computes it in its own precision, for any order of its sums.

    Args:
        model: Maps a batch of inputs to logits; or a ``Classifier`` with its bounds, or an open ``Session`` of one.
        images: One input per row, inside ``bounds``; or a ``Dataset``, a ``DataLoader`` or any iterable of batches
            (images, labels), which is read once.
        labels: The class of each input, if ``images`` is an array.
        norm: "l1", "l2" or "linf"; or a list of norms.
        upper: The margins that an attack measured for the same inputs in the same norm or norms, or their distances.
            Without them the search starts from the largest distance in the box.
        method: "ibp" (fastest), "crown", "alpha" (tightest), or a ``Relaxation`` with other numbers; "exact" closes
            what "alpha" leaves open, by branch and bound or, with max-pooling in l1 and linf, by a solver, for small
            piecewise linear networks; "lipschitz" is for sequences of layers with small Lipschitz constants.
        bounds: The box of a model that is not a Classifier, (lo, hi), by default (0, 1).
        tolerance: The search of a sample ends once the certified radius is within this fraction of one that failed.
        time_limit: Average seconds per sample; radii certified by then are kept.
        batch: Samples at a time.
        chunk: Numbers per tensor of coefficients: limits the memory to 10 to 20 such tensors, besides the intervals of
            a batch.

    Returns:
        Lower and upper bound of each margin; for a list of norms, a dictionary with such a result per norm.

    Raises:
        InputError: An argument is invalid, the model has an operation that bounds do not cover, or the adversarial
            points of ``upper`` contradict a certificate.

    Example:
        >>> import torch
        >>> import marginattack as ma
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> images = torch.rand(5, 4)
        >>> labels = model(images).argmax(1)
        >>> margins = ma.measure(model, images, labels, norm="l2")
        >>> brackets = ma.bound(model, images, labels, norm="l2", upper=margins)
        >>> bool((brackets.lower <= margins.distance).all())
        True
    """
    several, relaxation, norms = isinstance(norm, list | tuple), _as_relaxation(method), as_norms(norm)
    _check_numbers(tolerance, time_limit, batch, chunk)
    if several != isinstance(upper, MarginsByNorm) and upper is not None:
        raise InputError("upper and norm do not fit: give the margins of each norm in the list, or of the one norm")
    if isinstance(model, Classifier | Session) and bounds is not None:
        raise InputError("bounds are given twice: omit them, since the Classifier has its own")
    classifier = model if isinstance(model, Classifier | Session) else Classifier(model, bounds=bounds)
    found = {}
    with open_session(classifier) as session:
        samples = session.validate(*next(read_chunks(images, labels, None, None, ALL)))
        for each in norms:
            numbers = _Numbers(time.monotonic(), tolerance, time_limit, batch, chunk)
            known = upper[each] if isinstance(upper, MarginsByNorm) else upper
            found[each.name] = _bracket(session, samples, each, known, relaxation, numbers)
    return found if several else found[norms[0].name]


@dataclass(frozen=True)
class _Numbers:
    """The numeric arguments of one call."""

    start: float
    tolerance: float
    time_limit: float | None
    batch: int
    chunk: int


def _bracket(
    session: Session,
    samples: Batch,
    norm: Norm,
    upper: Margins | Tensor | None,
    relaxation: Relaxation,
    given: _Numbers,
) -> Brackets:
    """The brackets of validated samples: the search, then branch and bound or a solver."""
    if session.randomized is not None:
        raise InputError("the Classifier is randomised, but bounds need a deterministic model: fix its random numbers")
    session.space.require_plain("bound")
    some = samples.images[:PROBED].to(session.classifier.device)
    graph = None if relaxation is LIPSCHITZ else trace(session.classifier.model, some)
    prediction = session.predict(samples.images)
    distance, points = _as_upper(upper, samples, norm)
    if not bool(session.space.contains(samples.images, points).all()):
        raise InputError("upper holds points outside the bounds: measure with the same bounds")
    correct = prediction == samples.labels
    distance = torch.where(correct, distance, 0.0)
    time_left = float("inf") if given.time_limit is None else given.time_limit * len(samples)
    limits = Limits(given.chunk, given.start + (SEARCH_SHARE if relaxation.exact else 1) * time_left)
    mine = torch.nn.functional.one_hot(samples.labels, samples.classes) > 0
    per_class = torch.where(mine, torch.inf, 0.0).double()
    if graph is None:
        per_class = certify(session, samples, norm)
        whole = per_class.amin(1) >= _farthest(session.classifier, samples, norm)
        per_class = torch.where(whole[:, None], torch.inf, per_class)
    else:
        left = int(correct.sum())
        for rows in correct.nonzero()[:, 0].split(given.batch) if left else ():
            now = time.monotonic()
            own = replace(limits, deadline=now + (limits.deadline - now) * len(rows) / left)
            part = _Search(session.classifier, graph, samples.select(rows), norm, relaxation, own)
            per_class[rows] = part.run(distance[rows], given.tolerance)
            left -= len(rows)
    relaxed, closed_by = per_class.amin(1), ""
    if relaxation.exact and graph is not None:
        far = _farthest(session.classifier, samples, norm)
        closing = Closing(session, graph, samples, norm, per_class, distance, far, points)
        rows = (correct & (relaxed < (1 - given.tolerance) * distance)).nonzero()[:, 0]
        closed_by = closing.run(rows, given.tolerance, Limits(given.chunk, given.start + time_left))
    reached = session.predict(points)
    crossed = correct & (reached != samples.labels)
    check_agreement(per_class.gather(1, reached[:, None])[:, 0], torch.where(crossed, distance, torch.inf))
    lower = torch.where(correct, torch.minimum(per_class.amin(1), distance), 0.0)
    name = ALPHA.name if relaxation.exact else relaxation.name
    settings = {
        "method": repr(relaxation), "tolerance": given.tolerance, "time_limit": given.time_limit,
        "torch": str(torch.__version__), **session.space.describe(),
    }  # fmt: skip
    return Brackets(
        norm=norm.name, lower=lower, upper=distance, per_class=per_class, label=samples.labels, prediction=prediction,
        adversarial=points, adversarial_label=reached, original=samples.images, settings=settings,
        seconds=time.monotonic() - given.start,
        certified_by=tuple(
            "" if now == 0 else name if now <= before else closed_by
            for now, before in zip(lower.tolist(), relaxed.tolist(), strict=True)
        ),
    )  # fmt: skip


def _as_relaxation(method: Relaxation | str) -> Relaxation:
    if isinstance(method, Relaxation):
        return method
    known = {**METHODS, LIPSCHITZ.name: LIPSCHITZ}
    if method not in known:
        raise InputError(f"no method named {method!r}: choose one of {', '.join(known)}")
    return known[method]


def _check_numbers(tolerance: float, time_limit: float | None, batch: int, chunk: int) -> None:
    if not 0 < tolerance < 1:
        raise InputError(f"tolerance is {tolerance}: give a share between 0 and 1, such as 0.01")
    if time_limit is not None and not time_limit > 0:
        raise InputError(f"time_limit is {time_limit}: give seconds per sample, above 0")
    if batch < 1 or chunk < 1:
        raise InputError(f"batch is {batch} and chunk {chunk}: both must be at least 1")


def _as_upper(upper: Margins | Tensor | None, samples: Batch, norm: Norm) -> tuple[Tensor, Tensor]:
    """The known upper bound of each margin, and its point; the image itself if it is unknown."""
    points = samples.images.clone()
    if upper is None:
        return torch.full((len(samples),), torch.inf, dtype=torch.float64), points
    if isinstance(upper, Margins):
        if upper.norm != norm.name:
            raise InputError(f"upper holds {upper.norm} margins, but norm is {norm}: give margins of the same norm")
        if upper.settings.get("targeted"):
            raise InputError("upper holds targeted margins, but bounds hold for any class: measure without targets")
        if states(upper, "scale"):
            raise InputError("upper holds scaled margins, which bounds do not support: measure without scale")
        if len(upper) == len(samples) and not torch.equal(upper.label, samples.labels):
            raise InputError("upper holds margins of other labels: measure the same inputs")
        if len(upper) == len(samples):
            check_inputs(upper, samples.images)
        points = upper.adversarial.clone() if upper.adversarial.shape == points.shape else points
        upper = upper.distance
    distance = upper.to(torch.float64).cpu()
    if distance.shape != (len(samples),) or not bool((distance >= 0).all()):
        raise InputError(f"upper has shape {tuple(distance.shape)}: give one distance ≥ 0 per image")
    return distance, points


def _farthest(classifier: Classifier, samples: Batch, norm: Norm) -> Tensor:
    """The largest distance of each sample inside the box."""
    x = samples.images.double()
    lo, hi = (each.double() for each in classifier.bounds_for(x))
    return norm.size(torch.maximum(hi - x, x - lo).flatten(1))[:, 0]


@dataclass(frozen=True, eq=False)
class _Search:
    """Certified radii of a batch of correctly classified samples."""

    classifier: Classifier
    graph: Graph
    samples: Batch
    norm: Norm
    method: Relaxation
    limits: Limits

    def run(self, upper: Tensor, tolerance: float) -> Tensor:
        """The certified radius towards each class, (n, classes); the search of a sample ends at the tolerance."""
        certified = torch.zeros(len(upper), self.samples.classes, dtype=torch.float64)
        certified[torch.arange(len(upper)), self.samples.labels] = torch.inf
        farthest = _farthest(self.classifier, self.samples, self.norm)
        # Beyond the known distance, so that a certificate that contradicts it is detected.
        first = (1 + 2 * tolerance) * torch.minimum(upper, farthest)
        if not bool(torch.isfinite(first).all()):
            raise InputError("bounds are infinite and so is a margin: give finite bounds, or finite distances as upper")
        phases = [(IBP, COARSE), (self.method, tolerance)] if self.method.backward else [(self.method, tolerance)]
        try:
            for method, close in phases:
                bracket = _Bracket(certified, first.clone())
                while len(rows := bracket.open(close)):
                    radius = bracket.propose(rows)
                    goals, gain = certified[rows] < radius[:, None], radius > WORTHWHILE * certified.amin(1)[rows]
                    values = self.certify(rows, radius, goals, gain, method)
                    bracket.enter(rows, radius, values)
        except OutOfTime:
            pass
        least = certified.amin(1)
        return torch.where((least >= farthest)[:, None], torch.inf, certified)

    def certify(self, rows: Tensor, radius: Tensor, goals: Tensor, gain: Tensor, method: Relaxation) -> Tensor:
        """Lower bounds of l_y − l_j over the region, (n, classes); +∞ for classes that are not goals.

        In float32 first; in float64 for samples that ``gain`` marks and float32 leaves undecided only by its rounding.
        """
        dtype = self.graph.model_dtype
        values, undecided = self._differences(rows, radius, goals, method, dtype)
        undecided &= gain
        if dtype == torch.float32 and bool(undecided.any()):
            part = rows[undecided], radius[undecided], goals[undecided]
            values[undecided] = self._differences(*part, method, torch.float64)[0]
        return values

    def _differences(
        self, rows: Tensor, radius: Tensor, goals: Tensor, method: Relaxation, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """The values in one precision, and which samples its rounding leaves undecided."""
        device, labels = self.classifier.device, self.samples.labels[rows]
        images = self.samples.images[rows].double()
        lo, hi = (each.double() for each in self.classifier.bounds_for(images))
        region = make_region(self.norm, images, lo, hi, radius).to(dtype, device)
        count = int(goals.sum(1).max())
        chosen = goals.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :count]  # goals first
        with torch.no_grad():
            propagation = Propagation(self.graph.to(dtype), region, method, self.limits)
        least, error = (each.double().cpu() for each in propagation.leads(labels.to(device), chosen.to(device)))
        values = torch.full(goals.shape, torch.inf, dtype=torch.float64).scatter(1, chosen, least)
        values = torch.where(goals, values, torch.inf)
        open_ = goals.gather(1, chosen) & (least <= 0)
        undecided = (open_ & (least + error > 0)).any(1) & ~(open_ & (least + error <= 0)).any(1)
        return values, undecided


@dataclass(eq=False)
class _Bracket:
    """The search of each sample: its certified radii, and the smallest radius that failed."""

    certified: Tensor  # (n, classes)
    failed: Tensor  # (n,)

    def __post_init__(self) -> None:
        self._first = SMALLEST**2 * self.failed  # the search gives up below this
        self.inside, self.outside = torch.full_like(self.failed, torch.nan), torch.full_like(self.failed, torch.nan)

    def open(self, tolerance: float) -> Tensor:
        """The samples that are still searched."""
        least = self.certified.amin(1)
        found = (self.failed - least > tolerance * self.failed) & (self.failed > self._first)
        return found.nonzero()[:, 0]

    def propose(self, rows: Tensor) -> Tensor:
        """The next radius: the geometric mean while both ends are far apart, then between midpoint and secant."""
        least, failed = self.certified.amin(1)[rows], self.failed[rows]
        secant = (self.inside / (self.inside - self.outside))[rows].nan_to_num(0.5).clamp(0.02, 0.98)
        near = least + (secant + 0.5) / 2 * (failed - least)
        far = (torch.maximum(least, SMALLEST * failed) * failed).sqrt()
        return torch.where(failed > FAR_APART * least, far, near)

    def enter(self, rows: Tensor, radius: Tensor, values: Tensor) -> None:
        """Enter the lower bounds found at these radii."""
        holds, value = values > 0, values.amin(1)
        known = self.certified[rows]
        self.certified[rows] = torch.where(holds, torch.maximum(known, radius[:, None]), known)
        done = holds.all(1)
        self.failed[rows] = torch.where(done, self.failed[rows], radius)
        self.inside[rows] = torch.where(done, value, self.inside[rows])
        self.outside[rows] = torch.where(done, self.outside[rows], value)
