r"""probe: a small attack from decisions alone. Where it comes nearer than the gradient attack, gradients mislead.

.. math:: \min_x \|x - x_0\| \quad \text{s.t.} \quad \arg\max_i l_i(x) \ne y, \; x \in [lo, hi]^d

Starts are the nearest images of other classes, noise, corners of the box, greys and the gradient attack's own point.
Each is brought into smaller and smaller balls around x₀ by bisection; from the nearest a random walk goes on, in which
every proposal lies in a smaller ball and is kept if it is still adversarial (Brendel, Rauber, Bethge 2018). All norms
share this: what differs is ``Norm.onto_ball``.
"""

from typing import Any

import torch
from torch import Tensor

from marginattack.analysis.diagnose.causes import Finding, found
from marginattack.core.classifier import Classifier
from marginattack.core.draws import uniform
from marginattack.core.norms import L0, Norm
from marginattack.core.types import Labels, Mask, Points, Scalars
from marginattack.errors import InputError

SAMPLES = 32
NEIGHBOURS, NOISES, CORNERS, GREYS = 6, 3, 2, 5
COARSE, FINE = 7, 10  # halvings of every start, and of the best one
WALK = 250  # proposals
NEARER = 0.99  # the share of the gradient attack's distance that shows it wrong
FEW = 0.05  # the share of samples on which any attack may have had bad luck


def probe(
    classifier: Classifier, images: Any, labels: Any, adversarial: Any, distance: Any, norm: Norm, *, seed: int
) -> Finding | None:
    """A finding if an attack without gradients comes nearer than ``distance`` on some of the first inputs.

    Call it while the classifier is held. It costs some 400 forwards of up to 32 inputs.
    """
    x, y = torch.as_tensor(images), torch.as_tensor(labels)
    reached, point = torch.as_tensor(distance).double(), torch.as_tensor(adversarial)
    rows = ((reached > 0) & (classifier.predict(x) == y)).nonzero()[:SAMPLES, 0]
    if len(rows) == 0:
        return None
    walk = _Walk(classifier, x[rows], y[rows], norm, rows, seed)
    try:
        walk.start(point[rows].flatten(1), torch.isfinite(reached[rows]))
        walk.go(WALK)
        size = walk.confirmed()
    except InputError as refusal:
        return found("non-finite-on-noise", str(refusal), 1, len(rows))
    beaten = size < NEARER * reached[rows]
    number = int(beaten.sum())
    if number <= FEW * len(rows):
        return None
    ratio = float((size / reached[rows])[beaten].min())
    grade = "grave" if number >= len(rows) / 2 else "warning"
    new = int((beaten & torch.isinf(reached[rows])).sum())
    seen = f"from decisions alone, {norm} distances down to {ratio:.2f} of the gradient attack's"
    seen = f"from decisions alone, adversarial points where the attack found none ({new})" if ratio == 0 else seen
    return found("black-box-beats-gradient", seen, number, len(rows), grade=grade)


class _Walk:
    """The nearest adversarial point found so far of each sample, and how it goes on."""

    def __init__(self, classifier: Classifier, x: Tensor, y: Labels, norm: Norm, ids: Tensor, seed: int) -> None:
        self.classifier, self.norm, self.ids, self.seed = classifier, norm, ids, seed
        self.shape, self.y = x.shape[1:], y
        self.x0: Points = x.flatten(1)
        lo, hi = (wall.cpu() for wall in classifier.box(x))
        self.lo, self.hi = (wall.expand(self.shape).reshape(1, -1).to(self.x0) for wall in (lo, hi))
        self.best: Points = self.x0.clone()
        self.size: Scalars = torch.full_like(self.x0[:, :1], torch.inf)
        self.draws = 0

    def crossed(self, points: Points, y: Labels) -> Mask:
        """Whether each point has another class."""
        return torch.as_tensor(self.classifier.predict(points.unflatten(1, self.shape)) != y)

    def uniform(self) -> Points:
        """Numbers in [0, 1): each sample's own, the same whatever its company."""
        self.draws += 1
        return uniform(self.ids, self.x0.shape[1], seed=self.seed, draw=torch.tensor(self.draws), like=self.x0)

    def span(self, share: Points) -> Points:
        """Points of the box at these shares of its width; a side without a wall counts as that of the unit box."""
        lo, hi = self.lo.clamp(min=-1e3).nan_to_num(0), self.hi.clamp(max=1e3).nan_to_num(1)
        return lo + (hi - lo) * share

    def start(self, adversarial: Points, given: Mask) -> None:
        """The nearest of many starts, each bisected."""
        n = len(self.x0)
        starts = [self.span(self.uniform()) for _ in range(NOISES)]
        starts += [self.span((self.uniform() < 0.5).to(self.x0)) for _ in range(CORNERS)]
        starts += [self.span(torch.full_like(self.x0, k / (GREYS - 1))) for k in range(GREYS)]
        starts += self.neighbours()
        if self.norm is not L0:  # a count of coordinates can nearly always be trimmed, masked gradients or not
            starts.append(torch.where(given[:, None], adversarial.to(self.x0), self.x0))
        many = torch.stack(starts, 1).flatten(0, 1)
        centre, y = (v.repeat_interleave(len(starts), 0) for v in (self.x0, self.y))
        many, size = self.bisected(many, centre, y, COARSE)
        nearest = size.view(n, -1).argmin(1) + len(starts) * torch.arange(n)
        self.best, self.size = self.bisected(many[nearest], self.x0, self.y, FINE)

    def neighbours(self) -> list[Points]:
        """For each sample the nearest others of another class; itself where there are fewer."""
        others = []
        far = torch.cat([self.norm.size(self.x0 - other) for other in self.x0], 1)
        far = torch.where(self.y[:, None] == self.y, torch.inf, far)
        for size, row in zip(*far.sort(1), strict=True) if len(far) > 1 else ():
            picked = torch.where(torch.isfinite(size), row, -1)[:NEIGHBOURS]
            others.append(picked)
        if not others:
            return []
        rows = torch.stack(others)
        return [torch.where((k >= 0)[:, None], self.x0[k.clamp(min=0)], self.x0) for k in rows.T]

    def bisected(self, points: Points, centre: Points, y: Labels, halvings: int) -> tuple[Points, Scalars]:
        """Points brought as near to their centres as they stay adversarial; infinitely far where they never were."""
        good = self.crossed(points, y)
        size = self.norm.size(points - centre)
        near, far, best = torch.zeros_like(size), size, points
        for _ in range(halvings):
            middle = (near + far) / 2
            tried = self.norm.onto_ball(points, centre, middle)
            holds = (good & self.crossed(tried, y))[:, None]
            best = torch.where(holds, tried, best)
            near, far = torch.where(holds, near, middle), torch.where(holds, middle, far)
        return best, torch.where(good[:, None], self.norm.size(best - centre), torch.inf)

    def go(self, proposals: int) -> None:
        """Random steps into smaller balls; step and shrinkage adapt to how often they hold."""
        live = torch.isfinite(self.size)
        kinds = 3
        steps = [torch.full_like(self.size, 0.3) for _ in range(kinds)]
        shrink = torch.full_like(self.size, 0.05)
        for k in range(proposals):
            way, step = self.direction(k % kinds), steps[k % kinds]
            room = torch.where(live, self.size, 0)
            tried = self.best + step * room * way / self.norm.size(way).clamp(min=1e-30)
            radius = room * (1 - shrink)
            tried = self.norm.onto_ball(torch.clamp(tried, self.lo, self.hi), self.x0, radius)
            size = self.norm.size(tried - self.x0)
            holds = live & self.crossed(tried, self.y)[:, None] & (size < self.size)
            self.best, self.size = torch.where(holds, tried, self.best), torch.where(holds, size, self.size)
            # One success in five keeps the pace.
            steps[k % kinds] = (step * torch.where(holds, 1.3, 0.94)).clamp(1e-3, 2.0)
            shrink = (shrink * torch.where(holds, 1.5, 0.9)).clamp(2e-3, 0.3)

    def direction(self, kind: int) -> Points:
        """Noise of every pixel, of blocks of pixels, or of a few coordinates."""
        noise = self.uniform() - 0.5
        if kind == 1 and len(self.shape) == 3 and min(self.shape[1:]) >= 8:
            image = noise.unflatten(1, self.shape)
            coarse = image[:, :, : self.shape[1] // 4, : self.shape[2] // 4]
            return torch.nn.functional.interpolate(coarse, size=self.shape[1:], mode="bilinear").flatten(1)
        if kind == 2:
            return torch.where(self.uniform() < 0.03, noise, 0)
        return noise

    def confirmed(self) -> Tensor:
        """The distances in double precision of the points that are adversarial in another batch as well."""
        turned = self.crossed(self.best.flip(0), self.y.flip(0)).flip(0)
        size = self.norm.size(self.best.double() - self.x0.double())[:, 0]
        return torch.where(turned & torch.isfinite(self.size[:, 0]), size, torch.inf)
