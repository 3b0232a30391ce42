"""How the numbers of Race's moves change over the steps of a phase: a rule makes a move, and its numbers per step."""

from dataclasses import dataclass
from typing import TypeAlias, final

from marginattack.attacks.race.moves import Descent, Move, Slide
from marginattack.attacks.race.proposals import Proposal
from marginattack.attacks.race.sparse_moves import Pruning, SmoothedCount, TopCorners
from marginattack.core.norms import Norm
from marginattack.core.schedules import Cosine, Geometric, Schedule

Numbers: TypeAlias = tuple[tuple[float, float, float], ...]  # of a plan: one row per step


@final
@dataclass(frozen=True, kw_only=True)
class DescentRule:
    """How a descent's numbers change over its steps; a goes from 0 (signs) to 1 (gradient) in the share ``warmup``."""

    step: Schedule = Cosine(3.0, 0.02)  # η
    pulse: Schedule = Cosine(0.25, 0.002)  # γ
    warmup: float = 0.25
    memory: float = 0.25
    growth: float = 0.5
    scout: bool = False  # in the norm's scout norm

    def move(self, norm: Norm) -> Move:
        """The step of the descent."""
        return Descent((norm.scout_norm or norm) if self.scout else norm, self.memory, self.growth)

    def numbers(self, steps: int) -> Numbers:
        """η, γ and a of each step."""
        a = [min(1.0, k / steps / self.warmup) if self.warmup else 1.0 for k in range(steps)]
        return tuple((self.step(k, steps), self.pulse(k, steps), a[k]) for k in range(steps))


@final
@dataclass(frozen=True, kw_only=True)
class SlideRule:
    """How a slide's numbers change over its steps; ``average`` is the weight of earlier gradients."""

    beta: Schedule = Cosine(0.3, 0.01)
    past: Schedule = Geometric(0.05, 0.001)
    average: float = 0.5

    def move(self, norm: Norm) -> Move:
        """The step of the slide."""
        return Slide()

    def numbers(self, steps: int) -> Numbers:
        """β, the way past the plane, and the weight of earlier gradients, of each step."""
        return tuple((self.beta(k, steps), self.past(k, steps), self.average if k else 0.0) for k in range(steps))


@final
@dataclass(frozen=True, kw_only=True)
class CornersRule:
    """How the number of coordinates of ``TopCorners`` changes, and the weight of earlier gradients."""

    pulse: Schedule = Cosine(0.25, 0.01)  # γ
    memory: float = 0.7
    growth: float = 1.0

    def move(self, norm: Norm) -> Move:
        """The step."""
        return TopCorners(self.growth)

    def numbers(self, steps: int) -> Numbers:
        """γ and the weight of earlier gradients, of each step."""
        return tuple((self.pulse(k, steps), self.memory if k else 0.0, 0.0) for k in range(steps))


@final
@dataclass(frozen=True, kw_only=True)
class SmoothedRule:
    """σ-zero's step size, and how far the threshold moves as a share of it."""

    step: Schedule = Cosine(1.0, 0.1)  # η
    threshold: float = 0.01

    def move(self, norm: Norm) -> Move:
        """The step."""
        return SmoothedCount()

    def numbers(self, steps: int) -> Numbers:
        """η and the change of the threshold, of each step."""
        return tuple((self.step(k, steps), self.threshold * self.step(k, steps), 0.0) for k in range(steps))


@final
@dataclass(frozen=True)
class PruningRule:
    """Every other step of a pruning tries a swap."""

    def move(self, norm: Norm) -> Move:
        """The step."""
        return Pruning()

    def numbers(self, steps: int) -> Numbers:
        """Whether each step swaps, and whether it is the first."""
        return tuple((float(k % 2), float(k == 0), 0.0) for k in range(steps))


@final
@dataclass(frozen=True, kw_only=True)
class ProposalRule:
    """How the windows of proposals shrink, and how much nearer the next ball is."""

    pulse: Schedule = Geometric(0.003, 0.0003)  # γ
    share: Schedule = Geometric(0.1, 0.005)
    size: float = 2.0

    def move(self, norm: Norm) -> Move:
        """The step."""
        return Proposal(self.size)

    def numbers(self, steps: int) -> Numbers:
        """γ, the share of the input in the window, and the number of each step."""
        return tuple((self.pulse(k, steps), self.share(k, steps), float(k)) for k in range(steps))


Rule: TypeAlias = DescentRule | SlideRule | CornersRule | SmoothedRule | PruningRule | ProposalRule
