"""measure(): batches → attack → independent re-check → Margins."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from marginattack.attacks import ATTACKS, Attack
from marginattack.attacks.race import Race
from marginattack.core.classifier import Bounds, Classifier
from marginattack.core.norms import Norm, as_norm
from marginattack.core.problem import Problem
from marginattack.core.types import Labels, Mask
from marginattack.errors import InputError
from marginattack.execution.memory import out_of_memory
from marginattack.execution.precision import quickest
from marginattack.margins import Margins

FURTHER = (1.0001, 1.001)  # where a point that was refused is tried again, as multiples of its distance


def measure(
    model: nn.Module | Classifier,
    images: Any,
    labels: Any,
    norm: Norm | str = "l2",
    *,
    attack: Attack | str | None = None,
    bounds: Bounds | None = None,
    budget: int | None = None,
    targets: Any = None,
    seed: int = 0,
    ids: Any = None,
    batch: int = 256,
    search: str = "float32",
    compiled: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Margins:
    """The distance of each input to the decision boundary, and the adversarial input that shows it.

    images: one input a row, in pixels, inside ``bounds`` (0 to 1 unless stated). labels: their classes.
    norm: "l1", "l2", "linf", "l0" or a Norm. targets: for each input the class to reach; none: any wrong class.
    attack: any of ``marginattack.ATTACKS`` with its settings, or its name; ``Race()`` unless stated.
    budget: forwards + backwards a sample, never exceeded. ``Race`` spends all of it, and 400 where none is given.
    seed: random draws belong to (seed, sample), so results do not depend on ``batch``.
    ids: the number of each input, which its draws belong to; 0, 1, … unless stated.
    batch: how many inputs are attacked side by side; halved, down to one, when memory runs out.
    search: "tf32" or "bf16": ``Race`` looks for points in that precision, with 200 passes or more; what it finds is
        looked at again and polished in full. "auto": the quickest that loses less than 0.1 % on a few inputs.
    compiled: whether ``torch.compile`` may compile the model for whole batches on a GPU, in some 10 s a precision.
    progress: called with the number of samples done.

    Inputs that are misclassified as they are have distance 0 and cost nothing. Each adversarial input is checked
    again on the bare model, in another batch; one that fails, also 0.1 % further out, is reported as not found.
    """
    norm, attack = as_norm(norm), _as_attack(attack)
    if norm.name not in attack.norms:
        raise InputError(
            f"{type(attack).__name__} is made for {', '.join(attack.norms)}, not {norm}: choose another norm or attack"
        )
    if budget is not None and budget < 1:
        raise InputError(f"budget is {budget}: it counts forwards + backwards a sample, so give at least 1")
    if batch < 1:
        raise InputError(f"batch is {batch}, but must be at least 1")
    classifier = _as_classifier(model, bounds, batch, search, compiled)
    with classifier.held():
        x, y, a = classifier.accept(images, labels, targets)
        if search == "auto":
            classifier.search = quickest(classifier, x, y, norm, attack, budget)
        settings = {
            "attack": repr(attack), "budget": budget, "seed": seed, "targeted": a is not None,
            "bounds": [float(classifier.lo.min()), float(classifier.hi.max())],
            "dtype": str(x.dtype), "torch": str(torch.__version__), "search": classifier.search,
        }  # fmt: skip
        parts = []
        for rows, columns in _batches(classifier, x, y, a, _as_ids(ids, len(x)), batch, norm, attack, budget, seed):
            parts.append(Margins(norm=norm.name, settings=settings, **columns))
            if progress is not None:
                progress(rows)
        settings |= classifier.modes()
    return Margins.join(parts)


def _as_classifier(
    model: nn.Module | Classifier, bounds: Bounds | None, batch: int, search: str, compiled: bool
) -> Classifier:
    """The classifier that was given, or one with these settings."""
    if not isinstance(model, Classifier):
        now = "float32" if search == "auto" else search
        return Classifier(model, bounds=bounds, chunk=batch, search=now, compiled=compiled)
    if bounds is not None:
        raise InputError("bounds are stated twice: they belong to the Classifier that was given")
    if search != "float32":
        raise InputError("search is stated twice: it belongs to the Classifier that was given")
    if compiled:
        raise InputError("compiled is stated twice: it belongs to the Classifier that was given")
    return model


def _as_attack(attack: Any) -> Attack:
    """An attack, or the one of that name with its defaults."""
    if attack is None:
        return Race()
    if isinstance(attack, Attack):
        return attack
    if isinstance(attack, str) and attack in ATTACKS:
        return ATTACKS[attack]()
    raise InputError(f"attack is {attack!r}: give an attack such as Race(), or one of {', '.join(ATTACKS)}")


def _as_ids(ids: Any, n: int) -> Tensor:
    """The samples' numbers, one each."""
    if ids is None:
        return torch.arange(n)
    numbers = torch.as_tensor(ids)
    if numbers.shape != (n,) or numbers.is_floating_point() or numbers.dtype == torch.bool:
        raise InputError(f"ids have shape {tuple(numbers.shape)} and type {numbers.dtype}: give one integer an image")
    return numbers.to(torch.int64).cpu()


def _batches(
    classifier: Classifier, x: Tensor, y: Labels, a: Labels | None, ids: Tensor, batch: int, *settings: Any
) -> Iterator[tuple[int, dict[str, Tensor]]]:  # fmt: skip
    """Batch after batch; one that does not fit into memory is tried again at half the size, and so are the next."""
    first = 0
    while first < len(x):
        rows = slice(first, first + batch)
        try:
            columns = _measure_batch(classifier, x[rows], y[rows], a if a is None else a[rows], ids[rows], *settings)
        except (RuntimeError, MemoryError) as error:
            smaller = min(batch, len(x) - first) // 2
            if smaller < 1 or not out_of_memory(error):
                raise
            classifier.forget()  # what was made for the large batch takes memory too
            batch, classifier.chunk = smaller, max(1, min(classifier.chunk, smaller))
            continue
        yield len(columns["label"]), columns
        first += batch


def _measure_batch(
    classifier: Classifier, x: Tensor, y: Labels, a: Labels | None, ids: Tensor, norm: Norm, attack: Attack,
    budget: int | None, seed: int,
) -> dict[str, Tensor]:  # fmt: skip
    """One batch, as the columns of Margins."""
    logits = classifier.answers(x, ids)
    classifier.meet(x, logits)
    prediction = logits.argmax(1)
    done = _reached(prediction, y, a)
    forwards, backwards = torch.zeros_like(y), torch.zeros_like(y)
    adversarial, found = x.clone(), done.clone()
    late = torch.zeros(len(x), dtype=torch.float64)
    todo = (~done).nonzero()[:, 0]
    if len(todo):
        targets = a if a is None else a[todo]
        problem = Problem(classifier, x[todo], y[todo], norm, targets=targets, budget=budget, seed=seed, ids=ids[todo])
        problem.solve(attack)
        adversarial[todo] = problem.best.unflatten(1, x.shape[1:]).cpu()
        found[todo] = torch.isfinite(problem.distance[:, 0]).cpu()
        forwards[todo], backwards[todo] = problem.forwards, problem.backwards
        late[todo] = problem.anytime.at(0.9).double()
    holds, adversarial_label = _recheck(classifier, x, adversarial, y, a)
    for further in FURTHER:  # a refused point lies within rounding of the boundary: one a little further may hold
        lost = (found & ~holds).nonzero()[:, 0]
        if len(lost):
            beyond = _beyond(classifier, x[lost], adversarial[lost], further)
            good, label = _recheck(classifier, x[lost], beyond, y[lost], a if a is None else a[lost])
            kept = lost[good]
            adversarial[kept], adversarial_label[kept], holds[kept] = beyond[good], label[good], True
    distance = norm.size((adversarial.double() - x.double()).flatten(1))[:, 0]
    return {
        "distance": torch.where(found & holds, distance, torch.inf),
        "adversarial": torch.where((found & holds).view(-1, *[1] * (x.ndim - 1)), adversarial, x),
        "success": found & holds,
        "label": y,
        "prediction": prediction,
        "confidence": logits.double().softmax(1).amax(1),
        "adversarial_label": torch.where(found & holds, adversarial_label, prediction),
        "forwards": forwards,
        "backwards": backwards,
        "rejected": found & ~holds,
        "distance_at_90pct": late,
    }  # fmt: skip


def _beyond(classifier: Classifier, x: Tensor, adversarial: Tensor, further: float) -> Tensor:
    """Points so many times as far from the inputs, inside the box."""
    lo, hi = classifier.box(adversarial)
    return torch.clamp(x + further * (adversarial - x), lo, hi)


def _recheck(
    classifier: Classifier, x: Tensor, adversarial: Tensor, y: Labels, a: Labels | None
) -> tuple[Mask, Labels]:
    """Whether each point is adversarial and inside the box, from the bare model's argmax."""
    label = classifier.recheck(adversarial, x)
    lo, hi = classifier.box(adversarial)
    inside = ((adversarial >= lo) & (adversarial <= hi)).flatten(1).all(1)
    return inside & _reached(label, y, a), label


def _reached(label: Labels, y: Labels, a: Labels | None) -> Mask:
    """Whether this label is what the attack is after."""
    return label != y if a is None else label == a
