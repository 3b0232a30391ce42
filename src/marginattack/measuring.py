"""measure(): batches → attack → verification → Margins."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from numbers import Real
from typing import Any, overload

import torch
from torch import Tensor, nn

from marginattack.analysis.diagnose.doubts import find_doubts, require_gradient
from marginattack.analysis.diagnose.findings import Finding
from marginattack.attacks import ATTACKS, Attack
from marginattack.attacks.external.base import ExternalAttack
from marginattack.attacks.naming import named_attack
from marginattack.attacks.pgd import FixedRadiusAttack
from marginattack.attacks.race import Race
from marginattack.core.classifier import Bounds, Classifier
from marginattack.core.draws import as_integer, check_seed
from marginattack.core.norms import Norm, NormLike, as_norms
from marginattack.core.randomized import Randomized, as_randomized
from marginattack.core.streams import Chunk, class_names, count_rows, read_chunks
from marginattack.core.validation import Batch
from marginattack.errors import DiagnosisWarning, InputError
from marginattack.execution.evaluator import ModelEvaluator
from marginattack.execution.memory import fitting_batch_size
from marginattack.execution.passes import out_of_memory
from marginattack.execution.precision import by_clarity, lowest_precision
from marginattack.execution.session import Session, Solution, open_session
from marginattack.execution.threads import solve_parts
from marginattack.execution.timing import describe_estimate, expected_passes, seconds_per_pass
from marginattack.margins import Margins, MarginsByNorm
from marginattack.sources.foreign import ModelWithBounds, unwrap

BATCH = 256  # inputs that are attacked at a time
TIMED = 0.5  # seconds in which passes are timed for the estimate next to a progress bar
SHOWN = 32  # inputs at a time on a CPU with a progress bar, so that it advances often


@overload
def measure(
    model: nn.Module | Classifier | Session | ModelWithBounds, images: Any, labels: Any = ..., norm: NormLike = ..., *,
    attack: Attack | str | None = ..., bounds: Bounds | None = ..., scale: Any = ..., fixed: Any = ...,
    budget: int | None = ..., enough: float | None = ..., targets: Any = ..., seed: int = ..., ids: Any = ...,
    batch: int | None = ..., precision: str = ..., compiled: bool = ..., progress: Callable[[int], None] | bool = ...,
    randomized: bool | Randomized = ..., eot: int | None = ..., diagnose: bool = ..., search: str | None = ...,
) -> Margins: ...  # fmt: skip
@overload
def measure(
    model: nn.Module | Classifier | Session | ModelWithBounds, images: Any, labels: Any = ...,
    norm: list[Any] | tuple[Any, ...] = ..., *,
    attack: Attack | str | None = ..., bounds: Bounds | None = ..., scale: Any = ..., fixed: Any = ...,
    budget: int | None = ..., enough: float | None = ..., targets: Any = ..., seed: int = ..., ids: Any = ...,
    batch: int | None = ..., precision: str = ..., compiled: bool = ..., progress: Callable[[int], None] | bool = ...,
    randomized: bool | Randomized = ..., eot: int | None = ..., diagnose: bool = ..., search: str | None = ...,
) -> MarginsByNorm: ...  # fmt: skip
def measure(
    model: nn.Module | Classifier | Session | ModelWithBounds, images: Any, labels: Any = None,
    norm: NormLike | list[Any] | tuple[Any, ...] = "l2", *,
    attack: Attack | str | None = None, bounds: Bounds | None = None, scale: Any = None, fixed: Any = None,
    budget: int | None = None, enough: float | None = None, targets: Any = None, seed: int = 0, ids: Any = None,
    batch: int | None = None, precision: str = "auto", compiled: bool = False,
    progress: Callable[[int], None] | bool = False, randomized: bool | Randomized = False, eot: int | None = None,
    diagnose: bool = True, search: str | None = None,
) -> Margins | MarginsByNorm:  # fmt: skip
    r"""Measure the distance of each input to the decision boundary, and find the adversarial input that shows it.

    .. math:: \min_x \|x - x_0\| \quad \text{s.t.} \quad \arg\max_i l_i(x) \ne y, \; x \in [lo, hi]^d

    Misclassified inputs have distance 0 and cost nothing. Each adversarial input is verified on the plain model in
    another batch; one that fails, even 0.1 % further out, is reported as not found. The model runs in eval mode, frozen
    and without autocast, and is restored afterwards; several threads may measure it at once.

    Args:
        model: Maps a batch of inputs to logits; or a ``Classifier`` with its bounds, an open ``Session`` of one, or a
            ``foolbox.PyTorchModel`` with its bounds and preprocessing.
        images: One input per row, inside ``bounds``; or a ``Dataset``, a ``DataLoader`` or any iterable of batches
            (images, labels), which is read once, ``batch`` inputs at a time.
        labels: The class of each input, if ``images`` is an array.
        norm: "l0", "l1", "l2", "linf" (also "L2", 2, "Linf", ``numpy.inf``, …) or a ``Norm``; or a list of norms.
        attack: One of ``marginattack.ATTACKS`` with its settings, or its name, or the name of an attack of another
            library, such as "advlib:ddn"; by default ``Race()``. Attacks within a radius: "square@8/255",
            "autoattack:standard@8/255".
        bounds: Lower and upper bound, by default (0, 1): numbers, or arrays that broadcast to an input. They may be
            infinite, and equal for features that must not change.
        scale: Positive numbers that broadcast to an input: the distance is the norm of (x − x₀) / scale.
        fixed: A boolean mask that broadcasts to an input: these features do not change, and may have any value.
        budget: Forwards + backwards per sample, never exceeded. ``Race`` spends all of it, by default 400.
        enough: A distance, such as 8/255, at which a sample is finished: robust accuracy there and beyond at a fraction
            of the passes. Larger margins are as good as without; smaller ones are not minimised further.
        targets: For each input the class to reach; by default any wrong class.
        seed: Random draws belong to (seed, sample), so results do not depend on ``batch``, up to rounding.
        ids: The number of each input, which its random draws depend on; by default 0, 1, ….
        batch: How many inputs are attacked at a time: by default 256, or on a CPU as many of them as fit into half of
            the free memory. It is halved, down to one, when memory runs out.
        precision: The precision in which ``Race``, ``MarginAttack`` and attacks within a radius search: "float32",
            "tf32", "bf16", "fp16", or "auto" (the default): on a GPU fp16 or bf16 if it hardly changes logits and
            gradients, else float32; for margins only in ℓ2 and ℓ∞ with 400 passes or more. Points that a search finds
            are confirmed, and margins refined, in float32. The precision used is in ``settings["precision"]``.
        compiled: Whether ``torch.compile`` may compile the model for full batches on a GPU, in some 10 s per precision.
        progress: Whether to show a progress bar and an estimate of the time at the start; or a function that is called
            with the number of samples done.
        randomized: Whether the model draws random numbers in each pass; or a ``Randomized`` with the details.
            Adversarial then means misclassified with probability above 1/2, which fresh draws confirm.
        eot: Draws per query of a randomised model, by default 10, each counted as a pass.
        diagnose: Whether to refuse attacks that need gradients on a model without any, and to warn, in one line, about
            results that cannot be trusted: every label wrong, outputs that are not logits, gradients that are zero,
            adversarial points that are not found or not confirmed.
        search: Deprecated, the former name of ``precision``.

    Returns:
        One row per sample: distance, adversarial input, labels, passes spent. For a list of norms, a dictionary with
        such a result per norm.

    Raises:
        InputError: An argument is invalid, or the model cannot be measured, for example because its logits vary
            between forwards or with the batch, or have no gradient.

    Example:
        >>> import marginattack as ma
        >>> from marginattack.sources.data import samples
        >>> from marginattack.sources.networks import zoo
        >>> images, labels = samples("mnist", 3)
        >>> margins = ma.measure(zoo("mnist-cnn"), images, labels, norm="linf", budget=60)
        >>> bool((margins.distance > 0).all() and (margins.distance < 0.5).all())
        True
    """
    attack, norms = as_attack(attack), as_norms(norm)
    if not norms:
        raise InputError("norm is an empty list: give at least one norm")
    for each in norms:
        attack.check_norm(each)
    budget = _as_count(budget, "budget", "forwards + backwards per sample")
    batch, seed = _as_count(batch, "batch", "inputs"), check_seed(seed)
    if search is not None:
        warnings.warn("measure(search=…) is deprecated: use precision=…", DeprecationWarning, stacklevel=2)
        precision = search
    if enough is not None and not (isinstance(enough, Real) and 0 < enough < float("inf")):
        raise InputError(f"enough is {enough!r}: give a distance above 0, such as 8/255")
    enough = None if enough is None else float(enough)
    rule = as_randomized(randomized, eot)
    space = {"bounds": bounds, "scale": scale, "fixed": fixed}
    total = count_rows(images, labels)
    most = batch or BATCH
    classifier = _as_classifier(model, space, most, precision, compiled, rule, images)
    with open_session(classifier) as session, show_progress(progress, total and total * len(norms)) as advance:
        if progress is True and session.classifier.device.type == "cpu":
            most = min(most, SHOWN)
        results, missing = _measure_chunks(
            session, read_chunks(images, labels, targets, ids, most), norms, attack, batch=most, fit=batch is None,
            budget=budget, enough=enough, seed=seed, progress=advance, diagnose=diagnose,
        )  # fmt: skip
        findings = find_doubts(session, results, attack, missing) if diagnose else []
    if findings:
        more = f" ({len(findings) - 1} more, see marginattack diagnose)" if len(findings) > 1 else ""
        warnings.warn(f"{findings[0].line()}{more} Silence: diagnose=False.", DiagnosisWarning, stacklevel=2)
    names = class_names(images)
    by_norm = MarginsByNorm((result.norm, replace(result, classes=names)) for result in results)
    return by_norm if isinstance(norm, list | tuple) else by_norm[norms[0]]


def _as_count(number: Any, name: str, counted: str) -> int | None:
    """The number as an integer, which JSON can hold; None leaves the choice to the library."""
    if number is None:
        return None
    with suppress(TypeError, ValueError):
        if (count := as_integer(number)) >= 1:
            return count
    raise InputError(f"{name} is {number!r}: it counts {counted}, so give a whole number of at least 1")


def _measure_chunks(
    session: Session, chunks: Iterable[Chunk], norms: Sequence[Norm], attack: Attack, *, batch: int, fit: bool,
    budget: int | None, enough: float | None, seed: int, progress: Callable[[int], None] | None, diagnose: bool,
) -> tuple[list[Margins], Finding | None]:  # fmt: skip
    """Measure chunks of samples in each norm; also return the finding that gradients are missing, if they are."""
    parts: list[list[Margins]] = [[] for _ in norms]
    missing = None
    for number, chunk in enumerate(chunks):
        samples = session.validate(*chunk)
        for norm in norms if number == 0 else ():
            check_radius(session, samples, norm, attack, enough)
        if number == 0 and diagnose:
            missing = require_gradient(session, samples, attack)
        if number == 0 and fit and session.classifier.device.type == "cpu":  # where memory does not run out in time
            batch = min(batch, fitting_batch_size(session, samples.images[0]))
            session = session.configure(batch_size=min(batch, session.batch_size))
        if number == 0 and isinstance(progress, ProgressBar):
            with suppress(Exception):  # a model that fails does so again when it is measured
                each = seconds_per_pass(session, samples.images[:1], patience=TIMED)
                progress.announce(each * expected_passes(attack, budget))
        for norm, done in zip(norms, parts, strict=True):
            margins, used = measure_samples(
                session, samples, norm, attack, batch=batch, budget=budget, seed=seed, progress=progress, enough=enough
            )
            if used.batch_size < session.batch_size:  # memory ran out
                batch, session = used.batch_size, session.configure(batch_size=used.batch_size)
            done.append(margins)
    return [_join(done) for done in parts], missing


def _join(parts: Sequence[Margins]) -> Margins:
    """The results of all chunks, with the settings of the last one and the lowest precision of any."""
    precision = lowest_precision([part.settings["precision"] for part in parts])
    settings = parts[-1].settings | {"precision": precision}
    return Margins.join([replace(part, settings=settings) for part in parts])


def measure_samples(
    session: Session, samples: Batch, norm: Norm, attack: Attack, *, batch: int, budget: int | None, seed: int,
    progress: Callable[[int], None] | None, enough: float | None = None,
) -> tuple[Margins, Session]:  # fmt: skip
    """Measure validated samples, ``batch`` at a time; also return the session with the batch size that fitted."""
    rule = session.randomized
    if rule is not None and enough is not None:
        raise InputError("enough does not work for a randomised model, which may be fooled by chance: leave it out")
    if rule is not None and budget is not None and budget < 4 * rule.eot:
        needed = f"two gradients of {rule.eot} draws take {4 * rule.eot} passes"
        raise InputError(f"budget is {budget}, but {needed}: raise the budget, or lower eot")
    settings = {
        "attack": repr(attack), "budget": budget, "seed": seed, "targeted": samples.targets is not None,
        **session.space.describe(),
        "dtype": str(samples.images.dtype), "torch": str(torch.__version__),
        **({} if rule is None else {"randomized": asdict(rule)}), **({} if enough is None else {"enough": enough}),
        **({"within": radius} if (radius := radius_of(attack)) else {}),
    }  # fmt: skip
    parts, used = [], session
    for used, columns, searched in _measure_batches(session, samples, batch, norm, attack, budget, seed, enough):
        settings |= used.describe(lowest_precision([searched, settings.get("precision", "float32")]))
        parts.append(Margins(norm=norm.name, settings=settings, certified_by=(), **columns))
        if progress is not None:
            progress(len(columns["label"]))
    return replace(Margins.join(parts), original=samples.images), used


def radius_of(attack: Attack) -> float | int | None:
    """The radius within which an attack searches; None if it minimises the distance."""
    eps = attack.eps if isinstance(attack, FixedRadiusAttack | ExternalAttack) else None
    return eps if eps is None or isinstance(eps, int) else float(eps)


def check_radius(session: Session, samples: Batch, norm: Norm, attack: Attack, enough: Any = None) -> None:
    """Raise InputError for a radius of the attack, or a distance that is enough, that no input exceeds."""
    for eps in (radius_of(attack), enough):
        if eps is not None:
            session.space.check_distance(norm, samples.images, eps)


class ProgressBar:
    """A progress bar on stderr with one task, in samples."""

    def __init__(self, bar: Any) -> None:
        self.bar, (self.task,) = bar, bar.tasks

    def announce(self, seconds: float) -> None:
        """Print the expected time of all samples, from the seconds per sample."""
        if self.task.total:
            self.bar.console.print(describe_estimate(seconds * self.task.total), highlight=False)

    def __call__(self, done: int) -> None:
        rate = (self.task.completed + done) / max(self.task.elapsed or 0, 1e-9)
        self.bar.update(self.task.id, advance=done, rate=f"{rate:,.0f}/s" if rate >= 100 else f"{rate:.3g}/s")


@contextmanager
def show_progress(
    progress: Callable[[int], None] | bool | None, total: int | None
) -> Iterator[Callable[[int], None] | None]:
    """Yield the function to call with the number of samples done; if ``progress`` is True, it advances a bar."""
    if progress is not True:
        yield progress or None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        "margins", BarColumn(), MofNCompleteColumn(), "{task.fields[rate]}", TimeElapsedColumn(), TimeRemainingColumn()
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True)) as bar:
        bar.add_task("", total=total, rate="")
        yield ProgressBar(bar)


def as_attack(attack: Any) -> Attack:
    """Return an attack as given, or the one of that name with its defaults; ``Race()`` for None."""
    if attack is None:
        return Race()
    if isinstance(attack, Attack):
        return attack
    if isinstance(attack, str):
        return named_attack(attack)
    raise InputError(f"attack is {attack!r}: give an attack such as Race(), or one of {', '.join(ATTACKS)}")


def _as_classifier(
    given: nn.Module | Classifier | Session | ModelWithBounds, space: dict[str, Any], batch: int, precision: str,
    compiled: bool, rule: Randomized | None, images: Any,
) -> Classifier | Session:  # fmt: skip
    """Wrap a model in a classifier with these settings; return a ``Classifier`` or ``Session`` as given."""
    model, bounds = unwrap(given, space["bounds"])
    space = {**space, "bounds": bounds}
    if not isinstance(model, Classifier | Session):
        return Classifier(
            model, **space, batch_size=batch, precision=precision, compiled=compiled, randomized=rule or False,
            device=images.device if isinstance(images, Tensor) else None,
        )  # fmt: skip
    stated = {name: value is not None for name, value in space.items()}
    stated |= {"precision": precision != "auto", "compiled": compiled, "randomized": rule is not None}
    for name, again in stated.items():
        if again:
            raise InputError(f"{name} is given twice: pass it to the Classifier alone")
    return model


def _measure_batches(
    session: Session,
    samples: Batch,
    batch: int,
    norm: Norm,
    attack: Attack,
    budget: int | None,
    seed: int,
    enough: float | None,
) -> Iterator[tuple[Session, dict[str, Any], str]]:
    """Measure batch by batch; halve the batch size, for all that follow, when memory runs out.

    Yields the session that measured a batch, its columns, and the precision in which it was searched.
    """
    first = 0
    while first < len(samples):
        try:
            part = samples.select(slice(first, first + batch))
            columns, precision = _measure_batch(session, part, norm, attack, budget, seed, enough)
        except (RuntimeError, MemoryError) as error:
            smaller = min(batch, len(samples) - first) // 2
            if smaller < 1 or not out_of_memory(error):
                raise
            session.release()  # what was captured for the larger batch takes memory too
            batch = smaller
            session = session.configure(batch_size=max(1, min(session.batch_size, smaller)))
            continue
        yield session, columns, precision
        first += batch


def _measure_batch(
    session: Session, batch: Batch, norm: Norm, attack: Attack, budget: int | None, seed: int, enough: float | None
) -> tuple[dict[str, Tensor], str]:
    """Measure one batch; return the columns of Margins and the lowest precision in which an input was searched."""
    session.seed_draws(seed, batch.ids)
    logits, prediction, wrong, success, label = session.classify(batch)
    confidence = logits.double().softmax(1).gather(1, prediction[:, None])[:, 0]
    n, float64 = len(batch), torch.float64
    columns = {
        "distance": torch.where(wrong & ~success, torch.inf, torch.zeros(n, dtype=float64)),
        "adversarial": batch.images.clone(), "success": success, "label": batch.labels, "prediction": prediction,
        "confidence": confidence, "adversarial_label": torch.where(success, label, prediction),
        "forwards": torch.zeros_like(label), "backwards": torch.zeros_like(label), "rejected": wrong & ~success,
        "distance_at_90pct": torch.zeros(n, dtype=float64),
    }  # fmt: skip
    todo = (~wrong).nonzero()[:, 0]
    low = attack.low_precision(norm, budget)
    parts = by_clarity(session.calibrate(batch.images, logits, low=low), batch, logits, todo) if len(todo) else []

    def solve(rows: Tensor, evaluator: ModelEvaluator) -> tuple[Solution, str]:
        solution = session.solve(
            batch.select(rows), norm, attack, budget=budget, seed=seed, evaluator=evaluator, enough=enough
        )
        return solution, evaluator.search_precision if solution.low_precision else "float32"

    shared = None if isinstance(attack, ExternalAttack) else attack  # which draws for a batch as a whole
    precisions = ["float32"]
    for rows, (solution, precision) in solve_parts(session, solve, parts, batch.images, shared):
        precisions.append(precision)
        found = {
            "distance": solution.distance, "adversarial": solution.adversarial, "success": solution.success,
            "adversarial_label": torch.where(solution.success, solution.label, prediction[rows]),
            "forwards": solution.forwards, "backwards": solution.backwards, "rejected": solution.rejected,
            "distance_at_90pct": solution.history.distance_at(0.9).double(),
        }  # fmt: skip
        for name, column in found.items():
            columns[name][rows] = column
    return columns, lowest_precision(precisions)
