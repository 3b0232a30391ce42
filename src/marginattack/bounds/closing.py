"""Close brackets with exact solvers: the nearest classes first, each within the distance of the nearest known point."""

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from marginattack.bounds.exact import NORMS, Answer, Encoding, encode, make_matrices, solve_class
from marginattack.bounds.graph import Graph
from marginattack.bounds.propagation import CROWN, Limits, OutOfTime, Propagation
from marginattack.bounds.regions import make_region
from marginattack.core.norms import Norm
from marginattack.core.validation import Batch
from marginattack.errors import InputError
from marginattack.execution.session import Session

BEYOND = (1e-5, 1e-4, 1e-3)  # shares of its distance by which a solver's point is moved on, until the model confirms it
SAFETY = 1e-6  # share of a solver's bound that its tolerances may cost


@dataclass(frozen=True, eq=False)
class Closing:
    """What solvers work on: validated samples, what is certified towards each class, and the nearest known points."""

    session: Session
    graph: Graph
    samples: Batch
    norm: Norm
    per_class: Tensor  # (n, classes), raised in place
    upper: Tensor  # (n,), lowered in place
    farthest: Tensor  # (n,) the largest distance inside the box
    adversarial: Tensor  # like the images, at distance upper

    def run(self, rows: Tensor, limits: Limits) -> None:
        """Solve these samples; the time left is shared out evenly.

        Raises:
            InputError: The norm or the network has no exact solver.
        """
        if self.norm.name not in NORMS:
            raise InputError(f"exact margins in {self.norm} are not available: choose one of {', '.join(NORMS)}")
        matrices = make_matrices(self.graph)
        for place, row in enumerate(rows.tolist()):
            now = time.monotonic()
            deadline = now + (limits.deadline - now) / (len(rows) - place)
            cutoff = float(torch.minimum(self.upper, self.farthest)[row])
            if not torch.isfinite(torch.tensor(cutoff)) or float(self.per_class[row].min()) >= cutoff:
                continue
            try:
                propagation, least, errors = self._relax(row, cutoff, Limits(limits.chunk, deadline))
            except OutOfTime:
                continue
            self.per_class[row] = torch.where(least > 0, self.per_class[row].clamp(min=cutoff), self.per_class[row])
            self._solve(row, cutoff, encode(matrices, propagation), errors, deadline)

    def _relax(self, row: int, cutoff: float, limits: Limits) -> tuple[Propagation, Tensor, Tensor]:
        """Bounds of all nodes within the cut-off, of the label's lead over each class, and the rounding in it."""
        images, device = self.samples.images[row, None].double(), self.session.classifier.device
        lo, hi = (each.double() for each in self.session.classifier.bounds_for(images))
        radius = torch.tensor([cutoff], dtype=torch.float64)
        region = make_region(self.norm, images, lo, hi, radius).to(torch.float64, device)
        unit = torch.eye(self.samples.classes, dtype=torch.float64, device=device)
        with torch.no_grad():
            propagation = Propagation(self.graph.to(torch.float64), region, CROWN, limits)
            least, errors = propagation.output((unit[self.samples.labels[row]] - unit)[None])
        return propagation, least[0].cpu(), errors[0].cpu()

    def _solve(self, row: int, cutoff: float, encoding: Encoding, errors: Tensor, deadline: float) -> None:
        """One program per class that may be within the cut-off, which falls with every nearer point."""
        label, certified = int(self.samples.labels[row]), self.per_class[row]
        goals = [int(j) for j in certified.argsort() if float(certified[j]) < cutoff]
        for place, other in enumerate(goals):
            if float(certified[other]) >= cutoff:
                continue
            now = time.monotonic()
            share = max(0.5, 1 / (len(goals) - place))  # the nearest classes are the hardest
            answer = solve_class(encoding, label, other, cutoff, float(errors[other]), now + share * (deadline - now))
            certified[other] = max(float(certified[other]), answer.lower * (1 - SAFETY))
            cutoff = min(cutoff, self._confirm(row, answer))

    def _confirm(self, row: int, answer: Answer) -> float:
        """The distance of the nearest known point, after a solver's point has been tried on the plain model."""
        if answer.point is None:
            return float(self.upper[row])
        batch = self.samples.select(torch.tensor([row]))
        x = batch.images
        step = torch.from_numpy(answer.point).view(x.shape) - x.double()
        lo, hi = self.session.classifier.bounds_for(x)
        for share in (0.0, *BEYOND):
            point = torch.clamp((x.double() + (1 + share) * step).to(x.dtype), lo, hi)
            size = self.norm.size((point.double() - x.double()).flatten(1))[0, 0]
            if size < self.upper[row] and bool(self.session.verify(batch, point)[0]):
                self.upper[row], self.adversarial[row] = size, point[0]
                break
        return float(self.upper[row])
