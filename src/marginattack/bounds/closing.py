"""Close brackets with exact solvers: the nearest classes first, each within the distance of the nearest known point."""

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from marginattack.bounds.exact import NORMS, Encoding, encode, make_matrices, solve_class
from marginattack.bounds.graph import Graph
from marginattack.bounds.propagation import CROWN, Limits, OutOfTime, Propagation
from marginattack.bounds.regions import make_region
from marginattack.core.box import Box
from marginattack.core.norms import Norm
from marginattack.core.validation import Batch
from marginattack.errors import InputError
from marginattack.execution.session import Session

BEYOND = (1.0, 2.0, 4.0, 8.0, 16.0)  # times the rounding of the logits: how far beyond the boundary points are moved
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
            if answer.point is not None:
                self._confirm(row, other, torch.from_numpy(answer.point), float(errors[other]))
            cutoff = min(cutoff, float(self.upper[row]))

    def _confirm(self, row: int, other: int, point: Tensor, slack: float) -> None:
        """Move a solver's point, which lies at the boundary, across it until the plain model confirms it."""
        batch, classifier = self.samples.select(torch.tensor([row])), self.session.classifier
        x = batch.images
        box = Box(*(each.reshape(1, -1) for each in classifier.bounds_for(x)))
        start = point.view(1, -1).to(x.dtype)
        for beyond in BEYOND:
            leaf = start.view(x.shape).to(classifier.device).requires_grad_()
            logits = classifier.logits(leaf)[0]
            lead = logits[batch.labels[0]] - logits[other]
            gradient = torch.autograd.grad(lead, leaf)[0].cpu().flatten(1)
            distance = (lead.detach().cpu().to(x.dtype) + beyond * slack).view(1, 1)
            start = self.norm.onto_plane(start, gradient, distance, box)
            size = self.norm.size(start.double() - x.double().flatten(1))[0, 0]
            if size < self.upper[row] and bool(self.session.verify(batch, start.view(x.shape))[0]):
                self.upper[row], self.adversarial[row] = size, start.view(x.shape)[0]
                return
