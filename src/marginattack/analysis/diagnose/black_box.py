r"""probe: a small decision-based attack. If it comes nearer than the gradient attack, gradients are misleading.

.. math:: \min_x \|x - x_0\| \quad \text{s.t.} \quad \arg\max_i l_i(x) \ne y, \; x \in [lo, hi]^d

It starts from the nearest images of other classes, noise, corners of the box, greys and the gradient attack's own
point. Bisection moves each start into smaller and smaller balls around x₀. From the nearest one a random walk proposes
points in a smaller ball, and keeps those that are still adversarial (Brendel, Rauber, Bethge 2018). Norms differ only
in ``Norm.onto_ball``.
"""

from typing import Any

import torch
from torch import Tensor

from marginattack.analysis.diagnose.findings import Finding, make_finding
from marginattack.core.draws import uniform
from marginattack.core.norms import L0, Norm
from marginattack.core.types import Labels, Mask, Points, Scalars
from marginattack.core.validation import Batch
from marginattack.errors import InputError
from marginattack.execution.session import Session

SAMPLES = 32
NEIGHBOURS, NOISES, CORNERS, GREYS = 6, 3, 2, 5  # starts
COARSE, FINE = 7, 10  # halvings of every start, and of the nearest one
PROPOSALS = 250
NEARER = 0.99  # times the gradient attack's distance: a nearer point beats it
TOLERATED = 0.05  # share of samples on which it may be beaten by chance


def probe(session: Session, batch: Batch, adversarial: Any, distance: Any, norm: Norm, *, seed: int) -> Finding | None:
    """Return a finding if an attack without gradients comes nearer than ``distance`` on some of the first inputs.

    It costs about 400 forwards of up to 32 inputs.
    """
    x, y = batch.images, batch.labels
    distance, point = torch.as_tensor(distance).double(), torch.as_tensor(adversarial)
    rows = ((distance > 0) & (session.predict(x) == y)).nonzero()[:SAMPLES, 0]
    n = len(rows)
    if n == 0:
        return None
    distance = distance[rows]
    walk = RandomWalk(session, x[rows], y[rows], norm, rows, seed)
    try:
        walk.start(point[rows].flatten(1), torch.isfinite(distance))
        walk.run(PROPOSALS)
        size = walk.verified_distance()
    except InputError as error:
        return make_finding("non-finite-on-noise", str(error), 1, n)
    beaten = size < NEARER * distance
    number = int(beaten.sum())
    if number <= TOLERATED * n:
        return None
    ratio = float((size / distance)[beaten].min())
    new = int((beaten & torch.isinf(distance)).sum())
    seen = f"in {norm} a decision-based attack came as close as {ratio:.2f} of the gradient attack's distance"
    if ratio == 0:
        seen = f"in {norm} a decision-based attack found adversarial points for {new} samples, the gradient attack none"
    return make_finding("black-box-beats-gradient", seen, number, n, grade="grave" if number >= n / 2 else "warning")


class RandomWalk:
    """The nearest adversarial point of each sample so far, ``best`` at distance ``size``."""

    def __init__(self, session: Session, x: Tensor, y: Labels, norm: Norm, ids: Tensor, seed: int) -> None:
        self.session, self.norm, self.ids, self.seed = session, norm, ids, seed
        self.shape, self.y = x.shape[1:], y
        self.x0: Points = x.flatten(1)
        bounds = session.classifier.bounds_for(x)
        self.lo, self.hi = (bound.cpu().expand(self.shape).reshape(1, -1).to(self.x0) for bound in bounds)
        self.best: Points = self.x0.clone()
        self.size: Scalars = torch.full_like(self.x0[:, :1], torch.inf)
        self.draws = 0

    def is_adversarial(self, points: Points, y: Labels) -> Mask:
        """Whether each point has another class than y."""
        return self.session.predict(points.unflatten(1, self.shape)) != y

    def uniform(self) -> Points:
        """Return uniform numbers in [0, 1) that depend on the seed and the sample but not on the batch."""
        self.draws += 1
        return uniform(self.ids, self.x0.shape[1], seed=self.seed, draw=torch.tensor(self.draws), like=self.x0)

    def in_box(self, share: Points) -> Points:
        """Return points at these fractions of the box's width; unbounded sides are replaced by finite ones."""
        lo, hi = self.lo.clamp(min=-1e3).nan_to_num(0), self.hi.clamp(max=1e3).nan_to_num(1)
        return lo + (hi - lo) * share

    def start(self, adversarial: Points, exists: Mask) -> None:
        """Bisect many starts, including the attack's point if it exists, and keep the nearest."""
        starts = [self.in_box(self.uniform()) for _ in range(NOISES)]
        starts += [self.in_box((self.uniform() < 0.5).to(self.x0)) for _ in range(CORNERS)]
        starts += [self.in_box(torch.full_like(self.x0, k / (GREYS - 1))) for k in range(GREYS)]
        starts += self.neighbours()
        if self.norm is not L0:  # a count of coordinates can nearly always be reduced, masked gradients or not
            starts.append(torch.where(exists[:, None], adversarial.to(self.x0), self.x0))
        points = torch.stack(starts, 1).flatten(0, 1)
        centre, y = (v.repeat_interleave(len(starts), 0) for v in (self.x0, self.y))
        points, size = self.bisect(points, centre, y, COARSE)
        n = len(self.x0)
        nearest = size.view(n, -1).argmin(1) + len(starts) * torch.arange(n)
        self.best, self.size = self.bisect(points[nearest], self.x0, self.y, FINE)

    def neighbours(self) -> list[Points]:
        """Return for each sample the nearest samples of another class; itself if there are too few."""
        if len(self.x0) == 1:
            return []
        size = torch.cat([self.norm.size(self.x0 - other) for other in self.x0], 1)
        size, row = torch.where(self.y[:, None] == self.y, torch.inf, size).sort(1)
        own = torch.arange(len(row))[:, None]
        return list(self.x0[torch.where(torch.isfinite(size), row, own)[:, :NEIGHBOURS]].unbind(1))

    def bisect(self, points: Points, centre: Points, y: Labels, halvings: int) -> tuple[Points, Scalars]:
        """Move points towards their centres while they stay adversarial; the size of others is infinite."""
        good = self.is_adversarial(points, y)
        far = self.norm.size(points - centre)
        near, best = torch.zeros_like(far), points
        for _ in range(halvings):
            middle = (near + far) / 2
            moved = self.norm.onto_ball(points, centre, middle)
            holds = (good & self.is_adversarial(moved, y))[:, None]
            best = torch.where(holds, moved, best)
            near, far = torch.where(holds, near, middle), torch.where(holds, middle, far)
        return best, torch.where(good[:, None], self.norm.size(best - centre), torch.inf)

    def run(self, proposals: int) -> None:
        """Propose random steps into smaller balls; step size and shrinkage adapt to the rate of success."""
        active = torch.isfinite(self.size)
        kinds = 3
        steps = [torch.full_like(self.size, 0.3) for _ in range(kinds)]
        shrink = torch.full_like(self.size, 0.05)
        for k in range(proposals):
            direction, step = self.direction(k % kinds), steps[k % kinds]
            radius = torch.where(active, self.size, 0)
            moved = self.best + step * radius * direction / self.norm.size(direction).clamp(min=1e-30)
            moved = self.norm.onto_ball(torch.clamp(moved, self.lo, self.hi), self.x0, radius * (1 - shrink))
            size = self.norm.size(moved - self.x0)
            holds = active & self.is_adversarial(moved, self.y)[:, None] & (size < self.size)
            self.best, self.size = torch.where(holds, moved, self.best), torch.where(holds, size, self.size)
            # One success in five keeps the step size.
            steps[k % kinds] = (step * torch.where(holds, 1.3, 0.94)).clamp(1e-3, 2.0)
            shrink = (shrink * torch.where(holds, 1.5, 0.9)).clamp(2e-3, 0.3)

    def direction(self, kind: int) -> Points:
        """Return noise on all pixels, on blocks of pixels, or on a few coordinates."""
        noise = self.uniform() - 0.5
        if kind == 1 and len(self.shape) == 3 and min(self.shape[1:]) >= 8:
            image = noise.unflatten(1, self.shape)
            coarse = image[:, :, : self.shape[1] // 4, : self.shape[2] // 4]
            return torch.nn.functional.interpolate(coarse, size=self.shape[1:], mode="bilinear").flatten(1)
        if kind == 2:
            return torch.where(self.uniform() < 0.03, noise, 0)
        return noise

    def verified_distance(self) -> Tensor:
        """Return the distances, in double precision, of the points that are adversarial in a reversed batch too."""
        again = self.is_adversarial(self.best.flip(0), self.y.flip(0)).flip(0)
        size = self.norm.size(self.best.double() - self.x0.double())[:, 0]
        return torch.where(again & torch.isfinite(self.size[:, 0]), size, torch.inf)
