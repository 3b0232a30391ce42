"""Close brackets exactly: branch and bound at the radius that closes them, or mixed-integer programs with max-pooling.

A bracket is closed if no adversarial point lies within (1 − tolerance) times the nearest known distance: a yes-or-no
question at one radius. A nearer point that is found on the way lowers that radius; finished domains stay finished.
"""

import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from marginattack.bounds.branching import Branching
from marginattack.bounds.graph import Graph
from marginattack.bounds.leaves import nearest_point
from marginattack.bounds.milp import (
    LINEAR_NORMS,
    Encoding,
    Matrices,
    check_piecewise_linear,
    encode,
    make_matrices,
    solve_class,
)
from marginattack.bounds.propagation import CROWN, Limits, OutOfTime, Propagation
from marginattack.bounds.regions import Region, make_region
from marginattack.bounds.relaxations import MaxPool, ReLU
from marginattack.core import losses
from marginattack.core.box import Box
from marginattack.core.norms import Norm
from marginattack.core.validation import Batch
from marginattack.execution.session import Session

BEYOND = (1.0, 2.0, 4.0, 8.0, 16.0)  # times the rounding of the logits: how far beyond the boundary points are moved
SAFETY = 1e-6  # relative error of a solver's bound, from its tolerances
WHOLE = 1 + 1e-9  # times the largest distance in the box: covers all of it despite rounding
GROWN = 1 + 1e-12  # by how much a region may exceed its radius
INSIDE = 0.99  # of the tolerance, so that rounding does not leave a bracket open
PROJECTIONS = 4  # onto the boundary's tangent plane, from points that may lead to a nearer adversarial one
NEARER = 1e-5  # relative: by how much a point must be nearer, and how far beyond the boundary it is placed
FIRST_SHARE = 0.7  # of a sample's time for the radius that closes its bracket; smaller radii get the rest


@dataclass(frozen=True, eq=False)
class Closing:
    """Validated samples, their certified radii towards each class, and their nearest known adversarial points."""

    session: Session
    graph: Graph
    samples: Batch
    norm: Norm
    per_class: Tensor  # (n, classes), raised in place
    upper: Tensor  # (n,), lowered in place
    farthest: Tensor  # (n,) the largest distance inside the box
    adversarial: Tensor  # like the images, at distance upper

    def run(self, rows: Tensor, tolerance: float, limits: Limits) -> str:
        """Close these samples, with equal shares of the time left; return the name of their certificates.

        Raises:
            InputError: The network is not piecewise linear.
        """
        check_piecewise_linear(self.graph)
        pooled = self.norm.name in LINEAR_NORMS and any(isinstance(node.rule, MaxPool) for node in self.graph.nodes)
        matrices = make_matrices(self.graph) if pooled else None
        for place, row in enumerate(rows.tolist()):
            now = time.monotonic()
            own = replace(limits, deadline=now + (limits.deadline - now) / (len(rows) - place))
            if not bool(torch.isfinite(torch.minimum(self.upper, self.farthest)[row])):
                continue
            if matrices is not None:
                self._program(row, matrices, own)
            elif any(isinstance(node.rule, ReLU) for node in self.graph.nodes):
                self._close(row, tolerance, own)
        return "exact" if matrices is None else "milp"

    def _close(self, row: int, tolerance: float, limits: Limits) -> None:
        """Branch and bound at the radius that closes the bracket, and if that fails, at smaller ones."""
        now = time.monotonic()
        first = replace(limits, deadline=now + FIRST_SHARE * (limits.deadline - now))
        failed = 1 - INSIDE * tolerance  # shares of the nearest known distance
        if self._branch(row, failed, first):
            return
        while (now := time.monotonic()) < limits.deadline:
            certified = float(self.per_class[row].min()) / self._reach(row)
            share = (certified + failed) / 2
            if share - certified < tolerance:
                break
            if not self._branch(row, share, replace(limits, deadline=(now + limits.deadline) / 2)):
                failed = share

    def _reach(self, row: int) -> float:
        """The relevant distance: of the nearest known adversarial point, or of the farthest point of the box."""
        return float(torch.minimum(self.upper, self.farthest * WHOLE)[row])

    def _branch(self, row: int, share: float, limits: Limits) -> bool:
        """Branch and bound within a share of the relevant distance; return whether no adversarial point is there."""
        certified, device = self.per_class[row], self.session.classifier.device
        label = int(self.samples.labels[row])
        region = self._region(row, share)
        whole = float(region.radius) > float(self.farthest[row])  # then a proof holds at any distance
        goals = (certified < (torch.inf if whole else share * self._reach(row))).nonzero()[:, 0]
        unit = torch.eye(self.samples.classes, dtype=torch.float64, device=device)
        search = None
        try:
            search = Branching(self.graph.to(torch.float64), region, unit[label] - unit[goals.to(device)], limits)
            while len(search.open_goals()):
                if self._look(row, search.points) or self._settle(row, search, goals):
                    search.shrink(self._region(row, share))
                if not len(search.work["goal", 0]):
                    break
                search.step()
        except OutOfTime:
            if search is None:
                return False
        proven = torch.ones(len(goals), dtype=torch.bool)
        proven[search.open_goals().cpu()] = False
        radius = float(search.region.radius) / GROWN
        value = torch.inf if radius >= float(self.farthest[row]) else radius
        certified[goals[proven]] = certified[goals[proven]].clamp(min=value)
        return bool(proven.all())

    def _region(self, row: int, share: float) -> Region:
        """The region within a share of the relevant distance; the whole box if no adversarial point is known."""
        reach = self._reach(row)
        return self._ball(row, reach if reach > float(self.farthest[row]) else share * reach)

    def _ball(self, row: int, radius: float) -> Region:
        """The region within a radius, in float64 on the model's device."""
        images, classifier = self.samples.images[row, None].double(), self.session.classifier
        lo, hi = (each.double() for each in classifier.bounds_for(images))
        region = make_region(self.norm, images, lo, hi, torch.tensor([radius], dtype=torch.float64))
        return region.to(torch.float64, classifier.device)

    def _look(self, row: int, points: Tensor) -> bool:
        """Project these points onto tangent planes of the boundary; return whether one is adversarial and nearer."""
        if not len(points):
            return False
        classifier, batch = self.session.classifier, self.samples.select(torch.tensor([row]))
        label, x = int(batch.labels[0]), batch.images.flatten(1)
        box = Box(*(each.reshape(1, -1) for each in classifier.bounds_for(batch.images)))
        start, near = x.expand(len(points), -1), points.flatten(1).to(x)
        for _ in range(PROJECTIONS):
            leaf = near.view(-1, *batch.images.shape[1:]).to(classifier.device).requires_grad_()
            lead, undecided = self._lead(classifier.logits(leaf), label)
            g = torch.autograd.grad(lead.sum(), leaf)[0].cpu().flatten(1)
            lead, undecided = (each.detach().cpu().to(x.dtype)[:, None] for each in (lead, undecided))
            at_start = lead + (g * (start - near)).sum(1, keepdim=True)
            near = self.norm.onto_plane(start, g, at_start + torch.maximum(NEARER * at_start, 2 * undecided), box)
        size = self.norm.size(near.double() - start.double())[:, 0]
        size = torch.where(self._is_clear(near.view(-1, *batch.images.shape[1:]), label), size, torch.inf)
        best = int(size.argmin())
        found = near[best].view(batch.images.shape)
        if float(size[best]) >= float(self.upper[row]) * (1 - NEARER) or not bool(self.session.verify(batch, found)[0]):
            return False
        self.upper[row], self.adversarial[row] = size[best], found[0]
        return True

    def _is_clear(self, points: Tensor, label: int) -> Tensor:
        """Which points have another label beyond the decision tolerance, which holds in any batch."""
        lead, undecided = self._lead(self.session.logits(points), label)
        return lead + undecided < 0

    def _lead(self, logits: Tensor, label: int) -> tuple[Tensor, Tensor]:
        """The label's lead over all other classes, and the decision tolerance."""
        own, other = losses.compare(logits, torch.full((len(logits),), label, device=logits.device))
        return own - other, self.session.evaluator().tolerance.of(losses.scale(logits, own, other))

    def _settle(self, row: int, search: Branching, goals: Tensor) -> bool:
        """Whether a domain in which the network is linear holds a nearer adversarial point.

        Raises:
            OutOfTime: The deadline has passed; there may be many domains, and each takes a solver.
        """
        image = self.samples.images[row].double()
        sides = (each.double().expand_as(image) for each in self.session.classifier.bounds_for(image[None]))
        centre, lo, hi = (each.flatten().numpy() for each in (image, *sides))
        before = float(self.upper[row])
        for a, b, goal in search.leaves():
            search.limits.check()
            point = nearest_point(a.cpu().numpy(), b.cpu().numpy(), centre, lo, hi, self.norm.name)
            if point is not None:
                slack = float(search.slack[goal])
                self._confirm(row, int(goals[goal]), torch.from_numpy(point), slack)
        return float(self.upper[row]) < before

    def _program(self, row: int, matrices: Matrices, limits: Limits) -> None:
        """Mixed-integer programs for the classes that are still open."""
        cutoff = float(torch.minimum(self.upper, self.farthest)[row])
        try:
            propagation, least, errors = self._relax(row, cutoff, limits)
        except OutOfTime:
            return
        self.per_class[row] = torch.where(least > 0, self.per_class[row].clamp(min=cutoff), self.per_class[row])
        self._solve(row, cutoff, encode(matrices, propagation), errors, limits.deadline)

    def _relax(self, row: int, cutoff: float, limits: Limits) -> tuple[Propagation, Tensor, Tensor]:
        """Bounds of all nodes within the cut-off, of the label's lead over each class, and the rounding in it."""
        device = self.session.classifier.device
        with torch.no_grad():
            propagation = Propagation(self.graph.to(torch.float64), self._ball(row, cutoff), CROWN, limits)
            classes = torch.arange(self.samples.classes, device=device)[None]
            least, errors = propagation.leads(self.samples.labels[row, None].to(device), classes)
        return propagation, least[0].cpu(), errors[0].cpu()

    def _solve(self, row: int, cutoff: float, encoding: Encoding, errors: Tensor, deadline: float) -> None:
        """Solve one program per class that may be within the cut-off, which falls with every nearer point."""
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
        x, label = batch.images, int(batch.labels[0])
        box = Box(*(each.reshape(1, -1) for each in classifier.bounds_for(x)))
        start = point.view(1, -1).to(x.dtype)
        for beyond in BEYOND:
            leaf = start.view(x.shape).to(classifier.device).requires_grad_()
            logits = classifier.logits(leaf)
            lead = logits[0, label] - logits[0, other]
            gradient = torch.autograd.grad(lead, leaf)[0].cpu().flatten(1)
            undecided = float(self._lead(logits.detach(), label)[1])
            distance = (lead.detach().cpu().to(x.dtype) + beyond * max(slack, undecided)).view(1, 1)
            start = self.norm.onto_plane(start, gradient, distance, box)
            size = self.norm.size(start.double() - x.double().flatten(1))[0, 0]
            found = start.view(x.shape)
            if size < self.upper[row] and bool(self._is_clear(found, label) & self.session.verify(batch, found)[0]):
                self.upper[row], self.adversarial[row] = size, found[0]
                return
