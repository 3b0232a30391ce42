"""Session: a frozen model, from validation and calibration to verified results. The wrong order cannot be written.

with open_session(classifier) as session:               # eval mode, frozen; restored at the end
batch = session.validate(images, labels, targets)   # or InputError
problem = session.problem(batch, norm, budget=400)  # the decision tolerance is calibrated on the batch
solution = session.solve(batch, norm, attack)       # all of it, verified on the plain model
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from marginattack.core.budget import Budget
from marginattack.core.calibration import batch_noise, largest_change, round_up, tolerance_for
from marginattack.core.classifier import Classifier, Execution
from marginattack.core.consistency import (
    CHECKED,
    FEW,
    describe_change,
    find_inconsistency,
    most_batch_noise,
    require_consistent,
)
from marginattack.core.draws import Draws
from marginattack.core.flags import plain_passes
from marginattack.core.freezing import frozen_eval
from marginattack.core.goals import leave, reach
from marginattack.core.incumbent import History, Incumbent
from marginattack.core.norms import Norm
from marginattack.core.problem import Observer, Problem
from marginattack.core.randomized import FROM_INPUT, OUTWARDS
from marginattack.core.sharing import forked_random
from marginattack.core.types import Labels, Logits, Mask
from marginattack.core.validation import NO_LABEL, PROBED, Batch, check_batch
from marginattack.errors import InputError, one_line
from marginattack.execution import fused
from marginattack.execution.compilation import Compiler
from marginattack.execution.copies import Copies
from marginattack.execution.evaluator import ModelEvaluator
from marginattack.execution.graphs import Graphs
from marginattack.execution.passes import compiled_logits, logits_in_batches, out_of_memory
from marginattack.execution.precision import choose_precision
from marginattack.execution.probe import Probe
from marginattack.execution.randomized import (
    AwayFromInput,
    RandomizedEvaluator,
    confirm_rate,
    not_contradicted,
    require_separate_rows,
    seed_torch,
    towards_tangent_plane,
)

EXTEND_TO = (1.0001, 1.001)  # multiples of the distance at which a point that verification rejects is tried again


@contextmanager
def open_session(model: "Classifier | Session") -> Iterator["Session"]:
    """Freeze a classifier in eval mode for the duration of the block; an open session is passed through.

    Raises:
        InputError: The model ignores ``eval()``.
    """
    if isinstance(model, Session):
        with plain_passes(model.classifier.device):
            yield model
        return
    draws = forked_random(model.device) if model.randomized is not None else nullcontext()
    with draws, frozen_eval(model.model, model.device):
        session = Session(model)
        try:
            yield session
        finally:
            session.release()


class Classified(NamedTuple):
    """What the model makes of the inputs of a batch."""

    logits: Logits
    prediction: Labels
    reached: Mask  # whether an input reaches its goal as it is
    verified: Mask  # and does so when verified
    label: Labels  # as verified


@dataclass(frozen=True, eq=False)
class Solution:
    """What an attack found for a batch, each point verified on the plain model in other batches."""

    adversarial: Tensor  # like the images; the image itself where nothing was found
    distance: Tensor  # float64; infinite where nothing was found
    label: Labels  # the plain model's label of the adversarial point
    success: Mask
    rejected: Mask  # found, but not confirmed by the plain model
    forwards: Tensor
    backwards: Tensor
    history: History
    low_precision: bool  # whether it was searched in a lower precision


class Session:
    """A classifier frozen in eval mode, with everything that makes its evaluation fast. See ``open_session``."""

    def __init__(self, classifier: Classifier, execution: Execution | None = None) -> None:
        self.classifier, self.execution = classifier, execution or classifier.execution
        self.randomized, self.space = classifier.randomized, classifier.space
        self.copies, self.probe = Copies(classifier), Probe()
        replays = "" if self.randomized is None else "the model is randomised: a graph would replay its draws"
        self.graphs = Graphs(replays or ("" if self.execution.graphs else "switched off"))
        self.compiler = Compiler("" if self.execution.compiled else "not asked for")
        self.precision = "float32" if self.randomized is not None else self.execution.precision  # "auto": chosen later

    def configure(self, **changes: Any) -> "Session":
        """A session of the same frozen model with other execution settings, such as ``batch_size``."""
        execution = replace(self.execution, **changes)
        session = Session(self.classifier, execution)
        session.copies, session.probe = self.copies, self.probe
        session.precision = execution.precision if "precision" in changes else self.precision
        if replace(execution, precision=self.execution.precision) == self.execution:
            session.graphs, session.compiler = self.graphs, self.compiler
        return session

    @property
    def batch_size(self) -> int:
        """The most inputs per pass, as requested."""
        return self.execution.batch_size

    @property
    def rows_per_pass(self) -> int:
        """The most inputs of a pass in an attack: fewer than ``batch_size`` where a CPU is faster with fewer."""
        return min(self.batch_size, self.probe.rows_per_pass)

    def release(self) -> None:
        """Release the memory of everything that was captured and compiled."""
        self.graphs.clear()
        self.compiler.clear()

    def describe(self, precision: str) -> dict[str, Any]:
        """How the model was evaluated: whether it was captured and compiled, or why not; in what it was searched."""
        captured = self.classifier.device.type == "cuda" and (self.graphs.why_not or "captured")
        return {"graphs": captured, "compiled": self.compiler.describe(), "precision": precision}

    @torch.no_grad()
    def validate(self, images: Any, labels: Any, targets: Any = None, ids: Any = None) -> Batch:
        """Check inputs, and the model on the first of them.

        Raises:
            InputError: They make no sense together, or the model is not a deterministic function of each input.
        """
        batch = check_batch(self.classifier, images, labels, targets, ids)
        if self.classifier.device.type == "cuda":
            fused.start_loading(self.classifier.device, batch.images[0].numel(), batch.classes)
        x = batch.images[:PROBED].to(self.classifier.device)
        self.probe = Probe(batch.classes, edits_input=self.classifier.edits_input(x))
        if self.randomized is not None:
            require_separate_rows(self.classifier.model)
            return batch
        self.check_consistency(batch.images)
        self.copies.fold(x)
        self.probe = self.probe.with_passes(self.evaluator(), x, self.classifier.logits(x))
        return batch

    def check_consistency(self, images: Tensor) -> None:
        """Raise InputError unless the plain model is a function of each input, on some inputs of the whole batch."""
        n = min(len(images), CHECKED, max(1, self.batch_size - 1))
        x = images[torch.linspace(0, len(images) - 1, n).long()].to(self.classifier.device)
        find = partial(find_inconsistency, self.classifier.logits, repeats=2)
        unit = self.classifier.rounding_unit(images.dtype)
        try:
            found = find(x, unit)
        except (RuntimeError, MemoryError) as error:
            if len(x) <= PROBED or not out_of_memory(error):
                raise
            found = find(x[:PROBED], unit)
        require_consistent(found)

    def evaluator(
        self, noise: float | None = None, *, search_noise: float | None = None, dtype: torch.dtype = torch.float32
    ) -> ModelEvaluator:
        """The model with the decision tolerance for this batch noise (None: that of the probe) and dtype of points."""
        noise = self.probe.noise if noise is None else noise
        unit = self.classifier.rounding_unit(dtype)
        search = None
        if search_noise is not None:
            search = self.precision, tolerance_for(unit, max(noise, search_noise))
        make = ModelEvaluator if self.randomized is None else partial(RandomizedEvaluator, rule=self.randomized)
        return make(
            self.probe.classes, tolerance_for(unit, noise), self.rows_per_pass, self.copies,
            self.graphs, self.compiler, channels_last=self.probe.channels_last, edits_input=self.probe.edits_input,
            search=search,
        )  # fmt: skip

    @torch.no_grad()
    def logits(self, images: Tensor, ids: Tensor | None = None) -> Logits:
        """The logits of each image, on the CPU.

        Raises:
            InputError: A logit is not finite; ``ids`` are the images' numbers for the message.
        """
        return _require_finite(logits_in_batches(self.evaluator(), images), ids)

    def predict(self, images: Tensor) -> Labels:
        """The predicted class of each image."""
        return self.logits(images).argmax(1)

    @torch.no_grad()
    def plain_logits(self, points: Tensor, beside: Tensor | None = None) -> Logits:
        """The plain model's logits of each point, on the CPU, in other batches than an attack's.

        Batch sizes, and with them the order of sums inside the model, differ; each batch may hold other images
        ``beside`` the points.
        """
        half = max(1, self.rows_per_pass // 3)
        half += 2 * half == self.rows_per_pass
        found = []
        for first in range(0, len(points), half):
            part, other = (each[first : first + half] for each in (points, points[:0] if beside is None else beside))
            logits = self.classifier.logits(torch.cat([part, other]).to(self.classifier.device))
            found.append(logits[: len(part)].cpu())
        return torch.cat(found)

    def plain_labels(self, points: Tensor, beside: Tensor | None = None) -> Labels:
        """The plain model's label of each point, in other batches than an attack's; −1 where a logit is not finite."""
        logits = self.plain_logits(points, beside)
        return torch.where(torch.isfinite(logits).all(1), logits.argmax(1), NO_LABEL)

    @torch.no_grad()
    def calibrate(self, images: Tensor, logits: Logits | None = None, *, low: bool = False) -> ModelEvaluator:
        """The model with the decision tolerance for these images: how far batch and precision change their logits.

        Large batches, as an attack's, can change logits more than small ones. With ``low``, the precision of searches
        may be chosen; what it typically changes of these logits is the tolerance of searches, which confirm what they
        find.

        Raises:
            InputError: They do so by more than rounding can, or the model fails in the precision of the search.
        """
        if self.randomized is not None:
            return self.evaluator()
        logits = self.logits(images) if logits is None else logits
        beside = self.plain_logits(images, images.flip(0)).to(logits.dtype)
        self.check_batch_noise(images, logits, beside)
        exact = self.evaluator()
        change = torch.cat([each - beside for each in (logits, *compiled_logits(exact, images))])
        noise = max(self.probe.noise, batch_noise(largest_change(change), logits))
        if self.precision == "auto" and low:
            self.precision = choose_precision(exact, images, logits)
        if self.precision == "float32" or (self.execution.precision == "auto" and not low):
            return self.evaluator(noise, dtype=images.dtype)
        try:
            search = replace(exact, precision=self.precision)
            found = (logits_in_batches(search, images), *compiled_logits(search, images))
            change = torch.cat([_require_finite(each) - logits for each in found])
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:  # a model may do anything in a precision that it was not made for
            if self.execution.precision == "auto":  # the inputs on which it was chosen did not show it
                return self.evaluator(noise, dtype=images.dtype)
            reason = f"model fails in {self.precision} ({one_line(error)})"
            raise InputError(f"{reason}: use precision='float32'") from error
        coarse = round_up(float(change.abs().amax(1).median()))
        return self.evaluator(noise, search_noise=coarse, dtype=images.dtype)

    def check_batch_noise(self, images: Tensor, logits: Logits, beside: Logits) -> None:
        """Raise InputError where logits in the batch of an attack, beside other images or in a small batch differ."""
        rows = torch.linspace(0, len(images) - 1, min(len(images), FEW)).long()
        small = self.plain_logits(images[rows]).to(logits.dtype)
        most = most_batch_noise(self.classifier.rounding_unit(images.dtype))
        for change in (beside - logits, small - logits[rows]):
            require_consistent(describe_change("batch-dependent", "between batches", [change], logits, most))

    def problem(
        self, batch: Batch, norm: Norm, *, budget: int | None = None, seed: int = 0, observer: Observer | None = None,
        evaluator: ModelEvaluator | None = None, enough: float | None = None,
    ) -> Problem:  # fmt: skip
        """The problem of a validated batch, calibrated on it unless a calibrated evaluator is given.

        For a randomised model it counts a pass with all its draws as one. Samples are finished a little nearer than
        ``enough``, so that verification can move their points a little.
        """
        device, incumbent = self.classifier.device, Incumbent
        if self.randomized is not None:
            incumbent, budget = AwayFromInput, budget and budget // self.randomized.eot
        evaluator = evaluator or self.calibrate(batch.images)
        if self.space.scale is not None:
            evaluator = replace(evaluator, scale=self.space.scale_for(batch.images).to(device))
        x0, box = self.space.flatten(batch.images.to(device))
        goals = leave(batch.labels.to(device)) if batch.targets is None else reach(batch.targets.to(device))
        return Problem(
            evaluator, batch.images.shape[1:], x0, box, norm, goals,
            batch.targets is not None, Budget(len(x0), budget, device), incumbent(x0, box, norm),
            Draws(seed, batch.ids, x0), observer or Observer(), enough and enough / EXTEND_TO[0],
        )  # fmt: skip

    def solve(
        self, batch: Batch, norm: Norm, attack: Callable[[Problem], None], *, budget: int | None = None, seed: int = 0,
        evaluator: ModelEvaluator | None = None, enough: float | None = None,
    ) -> Solution:  # fmt: skip
        """Attack a validated batch and verify what was found.

        A point that the plain model rejects lies within rounding of the boundary, or was lucky in its draws; it is
        tried again a little further out, and counts as not found if that fails too.
        """
        draws = 1 if self.randomized is None else self.randomized.eot
        if budget is not None and self.randomized is not None:
            budget -= 2 * draws  # for ``towards_tangent_plane``
        problem = self.problem(batch, norm, budget=budget, seed=seed, evaluator=evaluator, enough=enough)
        problem.solve(attack)
        x = batch.images
        adversarial = self.space.restore(x, problem.x0, problem.incumbent.points)
        found = torch.isfinite(problem.incumbent.distance[:, 0]).cpu()
        holds, label = self.verify(batch, adversarial)

        def retry(points: Tensor, factors: Sequence[float]) -> None:
            """Try lost points at multiples of the distance of these, until one holds."""
            for factor in factors:
                lost = (found & ~holds).nonzero()[:, 0]
                if len(lost):
                    further = torch.clamp(
                        x[lost] + factor * (points[lost] - x[lost]), *self.classifier.bounds_for(x[lost])
                    )
                    good, labels = self.verify(batch.select(lost), further)
                    kept = lost[good]
                    adversarial[kept], label[kept], holds[kept] = further[good], labels[good], True

        retry(adversarial.clone(), EXTEND_TO if self.randomized is None else OUTWARDS)
        if self.randomized is not None and bool((found & ~holds).any()):
            retry(self.space.restore(x, problem.x0, towards_tangent_plane(problem, found & ~holds)), FROM_INPUT)
        success = found & holds
        distance = self.space.distance(norm, x, adversarial)
        return Solution(
            adversarial=torch.where(success.view(-1, *[1] * (x.ndim - 1)), adversarial, x),
            distance=torch.where(success, distance, torch.inf), label=label, success=success, rejected=found & ~holds,
            forwards=draws * problem.budget.forwards, backwards=draws * problem.budget.backwards,
            history=problem.incumbent.history, low_precision=problem.searched.is_set(),
        )  # fmt: skip

    def verify(self, batch: Batch, points: Tensor) -> tuple[Mask, Labels]:
        """Whether each point is adversarial for the plain model and inside the box; the plain model's labels.

        For a randomised model: whether fresh draws confirm the rate; the class that they reach most often.
        """
        inside = self.space.contains(batch.images, points)
        if self.randomized is not None:
            holds, label = confirm_rate(self.randomized, batch, lambda rows: self.plain_logits(points[rows]))
            return inside & holds, label
        label = self.plain_labels(points, batch.images)
        return inside & batch.reached(label), label

    def seed_draws(self, seed: int, ids: Tensor) -> None:
        """Seed torch's generators, from which a randomised model draws, for these samples."""
        if self.randomized is not None:
            seed_torch(seed, ids)

    def holds_again(self, points: Tensor, reached: Callable[[Labels], Mask]) -> Mask:
        """Whether fresh draws of a randomised model do not contradict that these labels of the points are reached."""
        assert self.randomized is not None
        return not_contradicted(self.randomized, lambda: self.plain_logits(points), reached)

    def classify(self, batch: Batch) -> Classified:
        """Classify the inputs of a batch; those that reach their goal as they are, are verified.

        For a randomised model, an input reaches its goal if the verification confirms it.
        """
        logits = self.logits(batch.images, batch.ids)
        if self.randomized is not None:
            reached, label = self.verify(batch, batch.images)
            other = batch.labels
            if batch.targets is not None:
                other = logits.scatter(1, batch.targets[:, None], -torch.inf).argmax(1)
            prediction = torch.where(reached, label, other)
            return Classified(logits, prediction, reached, reached, prediction)
        prediction = logits.argmax(1)
        reached = batch.reached(prediction)
        verified, label = reached.clone(), prediction.clone()
        if bool(reached.any()):
            verified[reached], label[reached] = self.verify(batch.select(reached), batch.images[reached])
        return Classified(logits, prediction, reached, verified, label)


def _require_finite(logits: Logits, ids: Tensor | None = None) -> Logits:
    strange = (~torch.isfinite(logits)).any(1)
    if bool(strange.any()):
        number = int((torch.arange(len(logits)) if ids is None else ids)[strange][0])
        raise InputError(f"model returns NaN or infinite logits for images[{number}]: check its input scale")
    return logits
