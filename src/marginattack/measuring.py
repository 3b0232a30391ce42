"""measure(): batches → attack → verification → Margins."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from marginattack.attacks import ATTACKS, Attack
from marginattack.attacks.race import Race
from marginattack.core.classifier import Bounds, Classifier
from marginattack.core.norms import Norm, as_norm
from marginattack.core.randomized import Randomized, as_randomized
from marginattack.core.validation import Batch
from marginattack.errors import InputError
from marginattack.execution.passes import out_of_memory
from marginattack.execution.precision import by_clarity
from marginattack.execution.session import Session, open_session
from marginattack.margins import Margins


def measure(
    model: nn.Module | Classifier | Session, images: Any, labels: Any, norm: Norm | str = "l2", *,
    attack: Attack | str | None = None, bounds: Bounds | None = None, budget: int | None = None, targets: Any = None,
    seed: int = 0, ids: Any = None, batch: int = 256, precision: str = "float32", compiled: bool = False,
    progress: Callable[[int], None] | None = None, randomized: bool | Randomized = False, eot: int | None = None,
    search: str | None = None,
) -> Margins:  # fmt: skip
    r"""Measure the distance of each input to the decision boundary, and find the adversarial input that shows it.

    .. math:: \min_x \|x - x_0\| \quad \text{s.t.} \quad \arg\max_i l_i(x) \ne y, \; x \in [lo, hi]^d

    Inputs that are misclassified as they are have distance 0 and cost nothing. Each adversarial input is verified on
    the plain model in another batch; one that fails, also 0.1 % further out, is reported as not found. The model runs
    in eval mode, frozen and without autocast, and is restored afterwards; several threads may measure it at once.

    Args:
        model: Maps a batch of inputs to logits; or a ``Classifier`` with its bounds, or an open ``Session`` of one.
        images: One input per row, inside ``bounds``.
        labels: Their classes.
        norm: "l0", "l1", "l2", "linf" or a ``Norm``.
        attack: One of ``marginattack.ATTACKS`` with its settings, or its name; ``Race()`` unless stated.
        bounds: Lower and upper bound of the inputs; (0, 1) unless stated.
        budget: Forwards + backwards per sample, never exceeded. ``Race`` spends all of it, and 400 where none is given.
        targets: For each input the class to reach; any wrong class unless stated.
        seed: Random draws belong to (seed, sample), so results do not depend on ``batch``, up to rounding.
        ids: The number of each input, which its draws belong to; 0, 1, … unless stated.
        batch: How many inputs are attacked at a time; halved, down to one, when memory runs out.
        precision: In which ``Race`` searches, with 200 passes or more: "float32", "tf32", "bf16", "fp16", or "auto": on
            a GPU the fastest that hardly changes logits and gradients on a few inputs, elsewhere float32. What it
            finds is confirmed and refined in float32; so are inputs that low precision cannot decide. float32 unless
            stated.
        compiled: Whether ``torch.compile`` may compile the model for full batches on a GPU, in some 10 s per precision.
        progress: Called with the number of samples done.
        randomized: Whether the model draws random numbers in each pass; or a ``Randomized`` with the details.
            Adversarial then means misclassified with probability above 1/2, which fresh draws confirm.
        eot: Draws per query of a randomised model, each counted as a pass; 10 unless stated.
        search: Deprecated, the former name of ``precision``.

    Returns:
        One row per sample: distance, adversarial input, labels, passes spent.

    Raises:
        InputError: An argument makes no sense, or the model cannot be measured, for example because its logits vary
            between forwards or with the batch.

    Example:
        >>> import marginattack as ma
        >>> from marginattack.sources.data import samples
        >>> from marginattack.sources.networks import zoo
        >>> images, labels = samples("mnist", 3)
        >>> margins = ma.measure(zoo("mnist-cnn"), images, labels, norm="linf", budget=60)
        >>> bool((margins.distance > 0).all() and (margins.distance < 0.5).all())
        True
    """
    norm, attack = as_norm(norm), as_attack(attack)
    attack.check_norm(norm)
    if budget is not None and budget < 1:
        raise InputError(f"budget is {budget}: it counts forwards + backwards per sample, so give at least 1")
    if batch < 1:
        raise InputError(f"batch is {batch}: it must be at least 1")
    if search is not None:
        warnings.warn("measure(search=…) is deprecated: use precision=…", DeprecationWarning, stacklevel=2)
        precision = search
    rule = as_randomized(randomized, eot)
    with open_session(_as_classifier(model, bounds, batch, precision, compiled, rule)) as session:
        samples = session.validate(images, labels, targets, ids)
        return measure_samples(
            session, samples, norm, attack, batch=batch, budget=budget, seed=seed, progress=progress
        )[0]


def measure_samples(
    session: Session, samples: Batch, norm: Norm, attack: Attack, *, batch: int, budget: int | None, seed: int,
    progress: Callable[[int], None] | None,
) -> tuple[Margins, Session]:  # fmt: skip
    """Measure validated samples, ``batch`` at a time; also return the session with the batch size that fitted."""
    classifier, rule = session.classifier, session.randomized
    if rule is not None and budget is not None and budget < 4 * rule.eot:
        needed = f"two gradients of {rule.eot} draws take {4 * rule.eot} passes"
        raise InputError(f"budget is {budget}, but {needed}: raise the budget, or lower eot")
    settings = {
        "attack": repr(attack), "budget": budget, "seed": seed, "targeted": samples.targets is not None,
        "bounds": [float(classifier.lo.min()), float(classifier.hi.max())],
        "dtype": str(samples.images.dtype), "torch": str(torch.__version__),
        **({} if rule is None else {"randomized": asdict(rule)}),
    }  # fmt: skip
    parts, used = [], session
    for used, columns in _measure_batches(session, samples, batch, norm, attack, budget, seed):
        settings |= used.describe()
        parts.append(Margins(norm=norm.name, settings=settings, **columns))
        if progress is not None:
            progress(len(columns["label"]))
    return Margins.join(parts), used


def as_attack(attack: Any) -> Attack:
    """An attack, or the one of that name with its defaults."""
    if attack is None:
        return Race()
    if isinstance(attack, Attack):
        return attack
    if isinstance(attack, str) and attack in ATTACKS:
        return ATTACKS[attack]()
    raise InputError(f"attack is {attack!r}: give an attack such as Race(), or one of {', '.join(ATTACKS)}")


def _as_classifier(
    model: nn.Module | Classifier | Session, bounds: Bounds | None, batch: int, precision: str, compiled: bool,
    rule: Randomized | None,
) -> Classifier | Session:  # fmt: skip
    """What was given, or a classifier with these settings."""
    if not isinstance(model, Classifier | Session):
        return Classifier(
            model, bounds=bounds, batch_size=batch, precision=precision, compiled=compiled, randomized=rule or False
        )
    given = {
        "bounds": bounds is not None,
        "precision": precision != "float32",
        "compiled": compiled,
        "randomized": rule,
    }
    for name, stated in given.items():
        if stated:
            raise InputError(f"{name} is given twice: pass it to the Classifier alone")
    return model


def _measure_batches(
    session: Session, samples: Batch, batch: int, norm: Norm, attack: Attack, budget: int | None, seed: int
) -> Iterator[tuple[Session, dict[str, Tensor]]]:
    """Batch after batch; one that does not fit into memory is tried again at half the size, and so are the next.

    Each comes with the session that measured it.
    """
    first = 0
    while first < len(samples):
        try:
            columns = _measure_batch(session, samples.select(slice(first, first + batch)), norm, attack, budget, seed)
        except (RuntimeError, MemoryError) as error:
            smaller = min(batch, len(samples) - first) // 2
            if smaller < 1 or not out_of_memory(error):
                raise
            session.release()  # what was captured for the larger batch takes memory too
            batch = smaller
            session = session.configure(batch_size=max(1, min(session.batch_size, smaller)))
            continue
        yield session, columns
        first += batch


def _measure_batch(
    session: Session, batch: Batch, norm: Norm, attack: Attack, budget: int | None, seed: int
) -> dict[str, Tensor]:
    """One batch, as the columns of Margins."""
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
    parts = by_clarity(session.calibrate(batch.images, logits), batch, logits, todo) if len(todo) else []
    for rows, evaluator in parts:
        solution = session.solve(batch.select(rows), norm, attack, budget=budget, seed=seed, evaluator=evaluator)
        found = {
            "distance": solution.distance, "adversarial": solution.adversarial, "success": solution.success,
            "adversarial_label": torch.where(solution.success, solution.label, prediction[rows]),
            "forwards": solution.forwards, "backwards": solution.backwards, "rejected": solution.rejected,
            "distance_at_90pct": solution.history.distance_at(0.9).double(),
        }  # fmt: skip
        for name, column in found.items():
            columns[name][rows] = column
    return columns
